/* Fermata for C: critical data areas, and programs of ranks (below).
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
 * none while fermata_commit and its like are running. A child of fork() does not have the memory, and calls nothing but fermata_abandon.
 *
 * Link with: pkg-config --cflags --libs fermata
 */
#ifndef FERMATA_H
#define FERMATA_H

#include <stddef.h>
#include <stdint.h>

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
/* fermata_commit_behind returns before what was written is copied: a thread copies, and what is written to again before is copied first. Shorter pauses of large commits, under
 * FERMATA_PROTECT and FERMATA_EMULATE, and under FERMATA_AUTO with FERMATA_ONLY_STORES; else nothing changes. What is no store of the program's own, to pinned memory, too, is
 * announced before it is written (fermata_expect_writes), or the commit before may have it. */
#define FERMATA_COPY_ON_WRITE 4u

/* Opens the area of this name as it was at its last commit; a new one, all zero, if there is none. `store` is a directory; NULL: $FERMATA_STORE, or the
 * user's own store. */
int fermata_open(const char *store, const char *name, size_t bytes, enum fermata_tracking tracking, unsigned flags, fermata_area **area);

/* Waits for what is being written, and takes the memory away. What was not committed is lost. */
void fermata_close(fermata_area *area);

/* In a child of fork(): lets go of the area, and leaves its memory and its checkpoints alone. A child has a share in the lock: as long as it lives and has not said this, nobody can open the area after its
 * parent has ended, and its backup takes half a minute to see that it has. A child that soon calls one of the exec functions need not. */
void fermata_abandon(fermata_area *area);

/* Its memory, and how many bytes it has (whole pages). */
void *fermata_memory(fermata_area *area);
size_t fermata_size(const fermata_area *area);

/* Makes a checkpoint of the memory as it is, and returns when it is durable. The second says something of it, which `fermata log` shows. If it fails it is no checkpoint here, but a
 * backup may have it: it goes there at the same time. */
int fermata_commit(fermata_area *area);
int fermata_commit_message(fermata_area *area, const char *message);

/* Commits several areas at one instant: a checkpoint each, durable when this returns. After a crash in between some may be at this commit and others at the one before: what refers to each
 * other belongs into one area. */
int fermata_commit_together(fermata_area *const *areas, size_t count);

/* As fermata_commit, but returns when what was written is copied. `*pending` must go to fermata_wait, which returns when the commit is durable and every backup has it; `pending` may be NULL where nobody waits.
 * If the writing fails, fermata_wait says so, and so does the next commit; the one after that has all of it. A backup that is lost is an error of each commit, which is
 * written here all the same; where this function says so there is nothing to wait for. Where four commits are copied and not yet written, it waits for the
 * first of them before it copies. */
int fermata_commit_behind(fermata_area *area, fermata_pending **pending);
int fermata_wait(fermata_pending *pending);

/* Whether it is durable and every backup has it, or it has failed: 1, and fermata_wait does not wait any more; 0; -1 if there is no such one. */
int fermata_done(const fermata_pending *pending);

/* Waits until all that was committed is durable and every backup has it. Says what of it failed, if no commit has said so yet. */
int fermata_drain(fermata_area *area);

/* From now on the area keeps its last so many commits, one at least, and what is tagged: a thread removes older ones, those of earlier programs, too, every ten seconds, and frees their space when that is worth it. Without this it
 * keeps all of them. */
int fermata_keep_last(fermata_area *area, uint32_t commits);

/* Commits, and has each commit from this one on go to a backup, too: to whoever receives at this Unix socket (fermata receive), which a tunnel may lead to from another host (ssh -L). When this returns the backup has all of the
 * area. fermata_commit then waits for the backups, too; it returns -1 if one is lost, and the commit is durable here all the same: fermata_back_up_to sends all anew, fermata_stop_backing_up does without. */
int fermata_back_up_to(fermata_area *area, const char *socket);
int fermata_stop_backing_up(fermata_area *area, const char *socket);

/* As fermata_commit, but returns as soon as every backup has it in its memory; it becomes durable behind the program. */
int fermata_commit_replicated(fermata_area *area);

/* Undoes all writes since the last commit, but for those to pages that are left out. */
int fermata_roll_back(fermata_area *area);

/* Leaves whole pages of the area out of checkpoints from now on, and takes them up again. */
int fermata_exclude(fermata_area *area, const void *from, size_t bytes);
int fermata_include(fermata_area *area, const void *from, size_t bytes);

/* The kernel writes here before the next commit; to be said anew after each. For system calls (read, recv, a read through io_uring): before the call, with FERMATA_ONLY_STORES,
 * FERMATA_PROTECT and FERMATA_EMULATE. For memory that is pinned (registered buffers of io_uring, RDMA, devices): before the commit, with everything but FERMATA_COMPARE; what is
 * written there unsaid is missing from checkpoints, and nothing fails. */
int fermata_expect_writes(fermata_area *area, void *from, size_t bytes);

/* Sets whole pages to zero, and gives their memory back to the system. */
int fermata_discard(fermata_area *area, void *from, size_t bytes);

/* An allocator inside the area, which uses all of it: its books are in the checkpoints, too. Blocks are aligned to 16 bytes, and have 4 GiB at most. NULL, with a text, when there is no room. */
void *fermata_alloc(fermata_area *area, size_t bytes);
int fermata_free(fermata_area *area, void *block);

/* Where the program begins to look after a restart; NULL as long as nothing was set. */
void *fermata_root(fermata_area *area);
int fermata_set_root(fermata_area *area, void *block);

/* What went wrong last in this thread. Valid until the next call in this thread. */
const char *fermata_error(void);

/* Programs of ranks: `fermata run-ranks -n 16 ./program` starts it as often, checkpoints all of them together while they run, and takes them back when one dies.
 *
 * A program goes in steps. A step says what messages it waits for, gets all of them, computes and sends; then comes the next step. All that a step changes lies in memory
 * of the layout: a rank that goes back is a new process, which calls `make` and finds that memory as it was at the checkpoint. System calls do not write there: read() and recv() straight into it
 * fail with EFAULT for users who are not root, unless vm.unprivileged_userfaultfd is 1. Read elsewhere, then copy.
 */
typedef struct fermata_layout fermata_layout;
typedef struct fermata_wants fermata_wants;
typedef struct fermata_messages fermata_messages;
typedef struct fermata_ranks fermata_ranks;

struct fermata_here {
    size_t rank;  /* which one this is, from 0 */
    size_t ranks; /* how many there are */
};

enum fermata_next {
    FERMATA_STEP = 0,  /* the next step */
    FERMATA_DONE = 1,  /* this rank has done its work */
    FERMATA_FAILED = 2 /* trying again will not mend it: all ranks end */
};

struct fermata_program {
    /* Takes memory of the layout, always the same pieces in the same order, and says what the other functions get as `self`; NULL: it fails. It must not write to
     * that memory, which may have come from a checkpoint. */
    void *(*make)(fermata_layout *layout, struct fermata_here here, void *argument);
    /* Comes before the first step; may be NULL. */
    void (*begin)(void *self, fermata_ranks *ranks);
    /* Says what the next step waits for; says nothing if that is nothing. It changes nothing. */
    void (*wants)(const void *self, fermata_wants *wants);
    enum fermata_next (*step)(void *self, fermata_ranks *ranks, const fermata_messages *got);
};

/* Runs a program until all ranks are done. Call it once, first in main. */
int fermata_run(const struct fermata_program *program, void *argument);

/* In `make`: memory, all zero in the beginning, aligned to more than any number needs. NULL, with a text, when there is no room. */
void *fermata_take(fermata_layout *layout, size_t bytes);

/* In `wants`: a message with this tag from this rank; one from each rank, the own one among them; one from whoever is first, and then nothing else.
 * The first fails if there is no such rank, and wants nothing then. */
int fermata_want(fermata_wants *wants, size_t from, uint32_t tag);
int fermata_want_all(fermata_wants *wants, uint32_t tag);
int fermata_want_any(fermata_wants *wants, uint32_t tag);

/* In `begin` and `step`: to a rank, which may be this one; to all, this one among them. What is sent to one rank arrives in the order in which it was sent, once. */
int fermata_send(fermata_ranks *ranks, size_t to, uint32_t tag, const void *values, size_t bytes);
int fermata_broadcast(fermata_ranks *ranks, uint32_t tag, const void *values, size_t bytes);

/* To each rank what is its own, this one among them: so many bytes for each, one after the other in the order of the ranks. The next step of each wants all. */
int fermata_all_to_all(fermata_ranks *ranks, uint32_t tag, const void *values, size_t bytes_for_each);

/* This rank's part of a reduction: `root` wants all, and has what comes of it from fermata_reduced; the second is for where every rank is to have it. */
int fermata_reduce(fermata_ranks *ranks, size_t root, uint32_t tag, const void *values, size_t bytes);
int fermata_all_reduce(fermata_ranks *ranks, uint32_t tag, const void *values, size_t bytes);

/* In `step`: what a rank that is done, or has failed, has to say. It is printed once. */
int fermata_say(fermata_ranks *ranks, const char *text);

/* In `step`: how many messages it got, in the order in which it wanted them; who sent one (SIZE_MAX: there is no such one), and how long it is. */
size_t fermata_count(const fermata_messages *got);
size_t fermata_from(const fermata_messages *got, size_t which);
size_t fermata_length(const fermata_messages *got, size_t which);

/* Copies a message to where it belongs. Fails if it has more or fewer bytes, or if `into` is NULL. */
int fermata_receive(const fermata_messages *got, size_t which, void *into, size_t bytes);

/* Puts all messages together as one, in their order: `into` gets the first, `count` values of `size` bytes each; then, for each other message, `put_together` is called
 * with each of these and with what stands at the same place there. It changes the value: adds to it, or whatever is to be done. Fails, and leaves `into` as it was,
 * if a message has more or fewer bytes, if there is none, or if `into` is NULL. */
int fermata_reduced(const fermata_messages *got, void *into, size_t count, size_t size,
                    void (*put_together)(void *value, const void *more));

#ifdef __cplusplus
}
#endif

#endif
