/* What the sources of fermata_mpi share, and nobody else. */
#ifndef FERMATA_MPI_INSIDE_H
#define FERMATA_MPI_INSIDE_H

#include <mpi.h>
#include <stdint.h>

#define INSIDE __attribute__((visibility("hidden")))

/* Any rank, or any tag. */
enum { ANY = -1 };

/* What is known of a communicator. The messages of its collective calls are in a context of their own. */
struct info {
    uint32_t context;
    int rank, size;
    int *world; /* by its ranks: the rank of all */
};

/* A message on its way out, or awaited; or several of them, and what is done when all are complete. */
struct request {
    enum { SENDING, RECEIVING, SEVERAL, COMPLETE } state;
    MPI_Request carried;
    unsigned char *packed;
    /* Where it is to go; as the program says it, and as it travels. */
    void *into;
    int count;
    MPI_Datatype type;
    const struct info *info;
    uint32_t context;
    int from, tag;
    /* What became of it. */
    int source, found_tag, bytes;
    struct request *next;
    /* Nobody waits for it. */
    int is_forgotten;
    struct request **parts;
    int part_count;
    void (*conclude)(void *);
    void *conclusion;
};

/* Which messages are meant: those of the program's calls from one to one, and of its collective ones. */
static inline uint32_t of_pairs(const struct info *info) { return 2 * info->context; }
static inline uint32_t of_all(const struct info *info) { return 2 * info->context + 1; }

INSIDE void fermata_mpi_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
INSIDE void fermata_mpi_refuse(const char *call);
/* What libfermata answers: the program ends if it is an error. */
INSIDE void fermata_mpi_ours(int result);
/* The memory, or the program ends. */
INSIDE void *fermata_mpi_must(void *memory);
INSIDE const struct info *fermata_mpi_info(MPI_Comm comm);
INSIDE int fermata_mpi_is_derived(MPI_Datatype type);
/* A request, which `conclude` is called for when all `room` parts, that the caller puts into it, are complete. */
INSIDE struct request *fermata_mpi_several(const struct info *info, int room, void (*conclude)(void *), void *conclusion);
INSIDE struct request *fermata_mpi_send(const struct info *info, uint32_t context, const void *values, int count, MPI_Datatype type, int to, int tag);
INSIDE struct request *fermata_mpi_await(const struct info *info, uint32_t context, void *into, int count, MPI_Datatype type, int from, int tag);
/* Over when its receiver has it. */
INSIDE struct request *fermata_mpi_send_synchronously(const struct info *info, const void *values, int count, MPI_Datatype type, int to, int tag);
/* Does what can be done without waiting. */
INSIDE void fermata_mpi_advance(void);
/* Nothing could be done: others may need the processor. */
INSIDE void fermata_mpi_rest(void);
INSIDE int fermata_mpi_is_over(const struct request *request);
/* The program waits for it, and for nothing else; then all is where it belongs. */
INSIDE void fermata_mpi_complete(struct request *request);
INSIDE void fermata_mpi_tell(const struct request *request, MPI_Status *status);
/* Waits for it, and frees it. */
INSIDE int fermata_mpi_end(struct request *request, MPI_Status *status);
/* The program gets it. */
INSIDE int fermata_mpi_give(struct request *request, MPI_Request *handle);
/* How many requests the program has that are begun, and that it has not waited for. */
INSIDE size_t fermata_mpi_open(void);

#endif
