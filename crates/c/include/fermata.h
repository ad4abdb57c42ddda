/* Fermata for C: critical data areas.
 *
 * An area is memory that comes back after a crash as it was at the last commit, at the same address.
 *
 *     fermata_area *area;
 *     if (fermata_open(NULL, "orders", 1 << 30, FERMATA_AUTO, 0, &area) != 0)
 *         errx(1, "%s", fermata_error());
 *     struct order *orders = fermata_memory(area);
 *     orders[0].count++;
 *     if (fermata_commit(area) != 0)
 *         errx(1, "%s", fermata_error());
 *
 * Functions that return int return 0, or -1 with a text for people in fermata_error(). One thread at a time uses an area; several may write to its memory, but
 * none while fermata_commit and its like are running. A child of fork() does not have the memory.
 *
 * Link with: pkg-config --cflags --libs fermata
 */
#ifndef FERMATA_H
#define FERMATA_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fermata_area fermata_area;
typedef struct fermata_pending fermata_pending;

/* How writes are found. */
enum fermata_tracking {
    FERMATA_AUTO = 0,       /* the cheapest that this host can do */
    FERMATA_ASSISTED = 1,   /* the kernel takes note (Linux 6.7) */
    FERMATA_PROTECT = 2,    /* a signal for the first write to each page */
    FERMATA_EMULATE = 3,    /* a signal for each write; single words are noted */
    FERMATA_SOFT_DIRTY = 4, /* bits of the page tables, where the kernel has them */
    FERMATA_COMPARE = 5,    /* all memory is compared with what it was */
    FERMATA_DIFFERENCE = 6  /* written pages are compared word by word */
};

/* No system call writes into the area, but where fermata_expect_writes said so: FERMATA_AUTO may take signals. */
#define FERMATA_ONLY_STORES 1u
/* There are no pointers into the area: it may come back at another address. */
#define FERMATA_ANYWHERE 2u

/* Opens the area of this name as it was at its last commit; a new one, all zero, if there is none. `store` is a directory; NULL: $FERMATA_STORE, or the
 * user's own store. */
int fermata_open(const char *store, const char *name, size_t bytes, enum fermata_tracking tracking, unsigned flags, fermata_area **area);

/* Waits for what is being written, and takes the memory away. What was not committed is lost. */
void fermata_close(fermata_area *area);

/* Its memory, and how many bytes it has (whole pages). */
void *fermata_memory(fermata_area *area);
size_t fermata_size(const fermata_area *area);

/* Makes a checkpoint of the memory as it is, and returns when it is durable. */
int fermata_commit(fermata_area *area);

/* The same, but returns when what was written is copied. `*pending` must go to fermata_wait. If the writing fails, fermata_wait says so, and so does the next commit;
 * the one after that has all of it. */
int fermata_commit_behind(fermata_area *area, fermata_pending **pending);
int fermata_wait(fermata_pending *pending);

/* Undoes all writes since the last commit. */
int fermata_roll_back(fermata_area *area);

/* Leaves whole pages of the area out of checkpoints from now on, and takes them up again. */
int fermata_exclude(fermata_area *area, const void *from, size_t bytes);
int fermata_include(fermata_area *area, const void *from, size_t bytes);

/* System calls will write here before the next commit (read, recv, io_uring). Needed with FERMATA_ONLY_STORES, FERMATA_PROTECT and FERMATA_EMULATE. */
int fermata_expect_writes(fermata_area *area, void *from, size_t bytes);

/* Sets whole pages to zero, and gives their memory back to the system. */
int fermata_discard(fermata_area *area, void *from, size_t bytes);

/* An allocator inside the area, which uses all of it: its books are in the checkpoints, too. Blocks are aligned to 16 bytes. NULL, with a text, when there is no room. */
void *fermata_alloc(fermata_area *area, size_t bytes);
int fermata_free(fermata_area *area, void *block);

/* Where the program begins to look after a restart; NULL as long as nothing was set. */
void *fermata_root(fermata_area *area);
int fermata_set_root(fermata_area *area, void *block);

/* What went wrong last in this thread. Valid until the next call in this thread. */
const char *fermata_error(void);

#ifdef __cplusplus
}
#endif

#endif
