/* The calls of a program of MPI, with what checkpoints need. Compiled with the program's own mpicc, for no two implementations have the same binary interface.
 *
 * Every message of the program, those of its collective calls too, is packed behind a head and travels over one communicator of ours, with one tag: so the messages of a pair of ranks keep their
 * order, whatever the program's communicators and tags are. Whenever the program is in a call here, all that has arrived is taken from MPI and handed to libfermata, which says what may be had of it:
 * matching is ours, and MPI only carries. Nobody but the program's thread calls MPI.
 */
#include "fermata_mpi.h"

#include <mpi.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fermata.h"
#include "fermata_rank.h"

void fermata_mpi_refuse(const char *call);

/* What is known of a communicator. The messages of its collective calls are in a context of their own. */
struct info {
    uint32_t context;
    int rank, size;
    int *world; /* by its ranks: the rank of all */
};

/* A message on its way out, or awaited. */
struct request {
    enum { SENDING, RECEIVING, COMPLETE } state;
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
};

enum { ANY = -1, WIRE_TAG = 1, REQUESTS = 1 << 16, SPINS = 200 };
/* Before the first call and behind it, so that nothing of before arrives behind it. */
static MPI_Comm wires[2], wire;
static int keyval = MPI_KEYVAL_INVALID, is_begun, ranks, idle;
static uint32_t next_context;
/* Messages of before the first call, by rank. */
static uint64_t *sent, *received;
/* In the order in which the program posted them. */
static struct request *waiting;
/* Those that the program has; what it holds is a place here, and 1. */
static struct request *requests[REQUESTS];
static size_t open_requests;

static void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void die(const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "fermata: %s\n", text);
    fermata_rank_fail(text);
    PMPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

void fermata_mpi_refuse(const char *call) {
    die("%s does not go with checkpoints yet: its messages would be in none. What does is in fermata's documentation of MPI", call);
}

static void ours(int result) {
    if (result < 0)
        die("%s", fermata_error());
}

static void *must(void *memory) {
    if (!memory)
        die("there is no memory for a message");
    return memory;
}

/* Communicators. */

static int forget(MPI_Comm comm, int key, void *value, void *extra) {
    struct info *info = value;
    (void)comm, (void)key, (void)extra;
    free(info->world);
    free(info);
    return MPI_SUCCESS;
}

static const struct info *info_of(MPI_Comm comm) {
    void *info = NULL;
    int is_known = 0;
    PMPI_Comm_get_attr(comm, keyval, &info, &is_known);
    if (!is_known)
        die("a communicator was made by a call that fermata does not know: MPI_Comm_dup, MPI_Comm_split and MPI_Cart_create are known");
    return info;
}

static void note(MPI_Comm comm, uint32_t context) {
    struct info *info = must(malloc(sizeof *info));
    MPI_Group all, group;
    int is_inter;
    PMPI_Comm_test_inter(comm, &is_inter);
    if (is_inter)
        die("communicators between two groups do not go with checkpoints yet");
    PMPI_Comm_rank(comm, &info->rank);
    PMPI_Comm_size(comm, &info->size);
    info->context = context;
    info->world = must(malloc(2 * sizeof(int) * (size_t)info->size));
    int *own = info->world + info->size;
    for (int rank = 0; rank < info->size; rank++)
        own[rank] = rank;
    PMPI_Comm_group(MPI_COMM_WORLD, &all);
    PMPI_Comm_group(comm, &group);
    PMPI_Group_translate_ranks(group, info->size, own, all, info->world);
    PMPI_Group_free(&all);
    PMPI_Group_free(&group);
    PMPI_Comm_set_attr(comm, keyval, info);
}

/* A communicator that all of another have made: its context is one that none of them knows yet, and the same in every life. */
static int adopt(int result, MPI_Comm of, MPI_Comm *made, const char *call) {
    uint32_t context;
    if (is_begun)
        die("%s after the first call of fermata_mpi_checkpoint: communicators are made before it, for they are made again in every life", call);
    PMPI_Allreduce(&next_context, &context, 1, MPI_UINT32_T, MPI_MAX, of);
    next_context = context + 1;
    if (*made != MPI_COMM_NULL)
        note(*made, context);
    return result;
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *made) { return adopt(PMPI_Comm_dup(comm, made), comm, made, "MPI_Comm_dup"); }

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *made) {
    return adopt(PMPI_Comm_split(comm, color, key, made), comm, made, "MPI_Comm_split");
}

int MPI_Comm_create(MPI_Comm comm, MPI_Group group, MPI_Comm *made) {
    return adopt(PMPI_Comm_create(comm, group, made), comm, made, "MPI_Comm_create");
}

int MPI_Cart_create(MPI_Comm comm, int dimensions, const int sizes[], const int periods[], int reorder, MPI_Comm *made) {
    return adopt(PMPI_Cart_create(comm, dimensions, sizes, periods, reorder, made), comm, made, "MPI_Cart_create");
}

int MPI_Cart_sub(MPI_Comm comm, const int remain[], MPI_Comm *made) {
    return adopt(PMPI_Cart_sub(comm, remain, made), comm, made, "MPI_Cart_sub");
}

/* Carrying. */

/* Takes from MPI all that has arrived. */
static void take_in(void) {
    static unsigned char *buffer;
    static int room;
    for (;;) {
        MPI_Status status;
        int is_there, bytes;
        PMPI_Iprobe(MPI_ANY_SOURCE, WIRE_TAG, wire, &is_there, &status);
        if (!is_there)
            return;
        PMPI_Get_count(&status, MPI_BYTE, &bytes);
        if (bytes > room)
            buffer = must(realloc(buffer, (size_t)(room = bytes)));
        PMPI_Recv(buffer, bytes, MPI_BYTE, status.MPI_SOURCE, WIRE_TAG, wire, MPI_STATUS_IGNORE);
        ours(fermata_rank_arrived((size_t)status.MPI_SOURCE, buffer, (size_t)bytes));
        if (!is_begun)
            received[status.MPI_SOURCE]++;
        idle = 0;
    }
}

static int rank_in(const struct info *info, size_t world) {
    for (int rank = 0; rank < info->size; rank++)
        if ((size_t)info->world[rank] == world)
            return rank;
    die("a message of rank %zu came over a communicator that it is not in", world);
}

static int is_derived(MPI_Datatype type) {
    int integers, addresses, types, combiner;
    PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner);
    return combiner != MPI_COMBINER_NAMED;
}

/* A message goes where it was awaited. */
static void receive(struct request *request, const struct fermata_arrival *arrival) {
    int size, position = 0;
    PMPI_Type_size(request->type, &size);
    int count = size ? (int)(arrival->length / (size_t)size) : 0;
    if (count > request->count || (size && arrival->length % (size_t)size))
        die("a message of %zu bytes with tag %d came from rank %zu, where %d times %d bytes are awaited", arrival->length, arrival->tag, arrival->from,
            request->count, size);
    if (count)
        PMPI_Unpack(arrival->bytes, (int)arrival->length, &position, request->into, count, request->type, MPI_COMM_WORLD);
    if (is_derived(request->type))
        PMPI_Type_free(&request->type);
    request->source = rank_in(request->info, arrival->from);
    request->found_tag = arrival->tag;
    request->bytes = (int)arrival->length;
    request->state = COMPLETE;
}

/* Does what can be done without waiting. Who awaits a message gets it in the order in which he asked. */
static void advance(void) {
    take_in();
    for (struct request **place = &waiting; *place;) {
        struct request *request = *place;
        if (request->state == SENDING) {
            int is_sent;
            PMPI_Test(&request->carried, &is_sent, MPI_STATUS_IGNORE);
            if (is_sent) {
                free(request->packed);
                request->state = COMPLETE;
            }
        } else {
            struct fermata_arrival arrival;
            int found = fermata_rank_find(request->from, request->context, request->tag, 1, &arrival);
            ours(found);
            if (found) {
                receive(request, &arrival);
                fermata_rank_release(arrival.owner);
            }
        }
        if (request->state == COMPLETE) {
            *place = request->next;
            idle = 0;
        } else {
            place = &request->next;
        }
    }
}

/* Nothing could be done: others may need the processor. */
static void rest(void) {
    const struct timespec moment = {0, 50000};
    if (++idle < SPINS)
        sched_yield();
    else
        nanosleep(&moment, NULL);
}

static void enlist(struct request *request) {
    struct request **place = &waiting;
    while (*place)
        place = &(*place)->next;
    request->next = NULL;
    *place = request;
    advance();
}

static struct request *fresh(const struct info *info, uint32_t context) {
    struct request *request = must(calloc(1, sizeof *request));
    request->info = info;
    request->context = context;
    return request;
}

static int world_of(const struct info *info, int rank, const char *what) {
    if (rank < 0 || rank >= info->size)
        die("there is no rank %d to %s in this communicator: they are numbered from 0 to %d", rank, what, info->size - 1);
    return info->world[rank];
}

static struct request *send(const struct info *info, uint32_t context, const void *values, int count, MPI_Datatype type, int to, int tag) {
    struct request *request = fresh(info, context);
    int size, bound, position = HEAD;
    request->tag = tag;
    if (to == MPI_PROC_NULL) {
        request->state = COMPLETE;
        return request;
    }
    int world = world_of(info, to, "send to");
    PMPI_Type_size(type, &size);
    PMPI_Pack_size(count, type, MPI_COMM_WORLD, &bound);
    request->packed = must(malloc((size_t)bound + HEAD));
    ours(fermata_rank_head((size_t)world, context, tag, request->packed));
    if (count)
        PMPI_Pack(values, count, type, request->packed, bound + HEAD, &position, MPI_COMM_WORLD);
    if (position - HEAD != size * count)
        die("this MPI packs %d times %d bytes as %d: fermata cannot tell how long messages are", count, size, position - HEAD);
    PMPI_Isend(request->packed, position, MPI_BYTE, world, WIRE_TAG, wire, &request->carried);
    if (!is_begun)
        sent[world]++;
    request->state = SENDING;
    enlist(request);
    return request;
}

static struct request *await(const struct info *info, uint32_t context, void *into, int count, MPI_Datatype type, int from, int tag) {
    struct request *request = fresh(info, context);
    if (from == MPI_PROC_NULL) {
        request->state = COMPLETE;
        request->source = MPI_PROC_NULL;
        request->found_tag = MPI_ANY_TAG;
        return request;
    }
    request->into = into;
    request->count = count;
    request->type = type;
    /* The program may free its own before the message is there. */
    if (is_derived(type))
        PMPI_Type_dup(type, &request->type);
    request->from = from == MPI_ANY_SOURCE ? ANY : world_of(info, from, "receive from");
    request->tag = tag == MPI_ANY_TAG ? ANY : tag;
    request->state = RECEIVING;
    enlist(request);
    return request;
}

/* The program waits for it, and for nothing else. */
static void complete(struct request *request) {
    while (request->state != COMPLETE) {
        advance();
        if (request->state == COMPLETE)
            break;
        if (request->state == RECEIVING)
            ours(fermata_rank_in_vain(request->from));
        rest();
    }
}

static void tell(const struct request *request, MPI_Status *status) {
    if (status == MPI_STATUS_IGNORE)
        return;
    status->MPI_SOURCE = request->source;
    status->MPI_TAG = request->found_tag;
    status->MPI_ERROR = MPI_SUCCESS;
    PMPI_Status_set_elements(status, MPI_BYTE, request->bytes);
    PMPI_Status_set_cancelled(status, 0);
}

static int end(struct request *request, MPI_Status *status) {
    complete(request);
    tell(request, status);
    free(request);
    return MPI_SUCCESS;
}

/* Requests of the program. */

static int give(struct request *request, MPI_Request *handle) {
    size_t place = 0;
    while (place < REQUESTS && requests[place])
        place++;
    if (place == REQUESTS)
        die("more than %d requests are open", REQUESTS);
    requests[place] = request;
    open_requests++;
    *handle = (MPI_Request)(intptr_t)(place + 1);
    return MPI_SUCCESS;
}

static size_t place_of(MPI_Request handle) {
    size_t place = (size_t)(intptr_t)handle - 1;
    if (place >= REQUESTS || !requests[place])
        die("a request was made by a call that fermata does not know, or is over already");
    return place;
}

static void close_request(MPI_Request *handle, MPI_Status *status) {
    size_t place = place_of(*handle);
    end(requests[place], status);
    requests[place] = NULL;
    open_requests--;
    *handle = MPI_REQUEST_NULL;
}

static void tell_nothing(MPI_Status *status) {
    const struct request nothing = {.source = MPI_ANY_SOURCE, .found_tag = MPI_ANY_TAG};
    tell(&nothing, status);
}

int MPI_Wait(MPI_Request *handle, MPI_Status *status) {
    if (*handle == MPI_REQUEST_NULL)
        tell_nothing(status);
    else
        close_request(handle, status);
    return MPI_SUCCESS;
}

int MPI_Waitall(int count, MPI_Request handles[], MPI_Status statuses[]) {
    for (int which = 0; which < count; which++)
        MPI_Wait(&handles[which], statuses == MPI_STATUSES_IGNORE ? MPI_STATUS_IGNORE : &statuses[which]);
    return MPI_SUCCESS;
}

int MPI_Test(MPI_Request *handle, int *is_complete, MPI_Status *status) {
    advance();
    *is_complete = *handle == MPI_REQUEST_NULL || requests[place_of(*handle)]->state == COMPLETE;
    if (*is_complete)
        return MPI_Wait(handle, status);
    /* The program may do something else meanwhile, and another message may lead it to its next call. */
    ours(fermata_rank_in_vain(ANY));
    sched_yield();
    return MPI_SUCCESS;
}

int MPI_Testall(int count, MPI_Request handles[], int *are_complete, MPI_Status statuses[]) {
    advance();
    *are_complete = 1;
    for (int which = 0; which < count; which++)
        if (handles[which] != MPI_REQUEST_NULL && requests[place_of(handles[which])]->state != COMPLETE)
            *are_complete = 0;
    if (*are_complete)
        return MPI_Waitall(count, handles, statuses);
    ours(fermata_rank_in_vain(ANY));
    sched_yield();
    return MPI_SUCCESS;
}

int MPI_Waitany(int count, MPI_Request handles[], int *index, MPI_Status *status) {
    for (;;) {
        int open = 0;
        advance();
        for (int which = 0; which < count; which++) {
            if (handles[which] == MPI_REQUEST_NULL)
                continue;
            open = 1;
            if (requests[place_of(handles[which])]->state == COMPLETE) {
                *index = which;
                return MPI_Wait(&handles[which], status);
            }
        }
        if (!open) {
            *index = MPI_UNDEFINED;
            tell_nothing(status);
            return MPI_SUCCESS;
        }
        ours(fermata_rank_in_vain(ANY));
        rest();
    }
}

/* From one to one. */

static uint32_t of_pairs(const struct info *info) { return 2 * info->context; }

int MPI_Send(const void *values, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
    const struct info *info = info_of(comm);
    return end(send(info, of_pairs(info), values, count, type, to, tag), MPI_STATUS_IGNORE);
}

/* The receiver is ready, or the program has memory set aside that is not needed: messages are packed aside anyway. */
int MPI_Rsend(const void *values, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
    return MPI_Send(values, count, type, to, tag, comm);
}

int MPI_Bsend(const void *values, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
    return MPI_Send(values, count, type, to, tag, comm);
}

int MPI_Isend(const void *values, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *handle) {
    const struct info *info = info_of(comm);
    return give(send(info, of_pairs(info), values, count, type, to, tag), handle);
}

int MPI_Recv(void *into, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status *status) {
    const struct info *info = info_of(comm);
    return end(await(info, of_pairs(info), into, count, type, from, tag), status);
}

int MPI_Irecv(void *into, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *handle) {
    const struct info *info = info_of(comm);
    return give(await(info, of_pairs(info), into, count, type, from, tag), handle);
}

int MPI_Sendrecv(const void *values, int count, MPI_Datatype type, int to, int tag, void *into, int room, MPI_Datatype awaited, int from, int from_tag,
                 MPI_Comm comm, MPI_Status *status) {
    const struct info *info = info_of(comm);
    struct request *coming = await(info, of_pairs(info), into, room, awaited, from, from_tag);
    end(send(info, of_pairs(info), values, count, type, to, tag), MPI_STATUS_IGNORE);
    return end(coming, status);
}

int MPI_Sendrecv_replace(void *values, int count, MPI_Datatype type, int to, int tag, int from, int from_tag, MPI_Comm comm, MPI_Status *status) {
    const struct info *info = info_of(comm);
    /* What is sent is packed before anything is received. */
    struct request *going = send(info, of_pairs(info), values, count, type, to, tag);
    end(await(info, of_pairs(info), values, count, type, from, from_tag), status);
    return end(going, MPI_STATUS_IGNORE);
}

static int look(int from, int tag, MPI_Comm comm, MPI_Status *status, int waits) {
    const struct info *info = info_of(comm);
    struct request found = {.source = MPI_PROC_NULL, .found_tag = MPI_ANY_TAG};
    if (from != MPI_PROC_NULL) {
        int world = from == MPI_ANY_SOURCE ? ANY : world_of(info, from, "receive from");
        struct fermata_arrival arrival;
        advance();
        int is_there = fermata_rank_find(world, of_pairs(info), tag == MPI_ANY_TAG ? ANY : tag, 0, &arrival);
        ours(is_there);
        if (!is_there) {
            ours(fermata_rank_in_vain(waits ? world : ANY));
            return 0;
        }
        found.source = rank_in(info, arrival.from);
        found.found_tag = arrival.tag;
        found.bytes = (int)arrival.length;
        fermata_rank_release(arrival.owner);
    }
    tell(&found, status);
    return 1;
}

int MPI_Probe(int from, int tag, MPI_Comm comm, MPI_Status *status) {
    while (!look(from, tag, comm, status, 1))
        rest();
    return MPI_SUCCESS;
}

int MPI_Iprobe(int from, int tag, MPI_Comm comm, int *is_there, MPI_Status *status) {
    *is_there = look(from, tag, comm, status, 0);
    if (!*is_there)
        sched_yield();
    return MPI_SUCCESS;
}

/* Collective calls. */

/* One side of a collective call: a piece for each rank. */
struct side {
    char *values;
    int count; /* of each piece, if there are no counts */
    const int *counts, *displacements;
    MPI_Datatype type;
    int is_one; /* the same piece for all */
};

static int count_of(const struct side *side, int rank) { return side->counts ? side->counts[rank] : side->count; }

static void *piece(const struct side *side, int rank) {
    MPI_Aint lower, extent;
    PMPI_Type_get_extent(side->type, &lower, &extent);
    MPI_Aint place = side->displacements ? side->displacements[rank] : (MPI_Aint)rank * side->count;
    return side->is_one ? side->values : side->values + place * extent;
}

static struct request *put(const struct info *info, const struct side *side, int to) {
    return send(info, of_pairs(info) + 1, piece(side, to), count_of(side, to), side->type, to, 0);
}

static struct request *get(const struct info *info, const struct side *side, int from) {
    return await(info, of_pairs(info) + 1, piece(side, from), count_of(side, from), side->type, from, 0);
}

/* From all ranks to `to`, and from `from` to all; either may be none. What goes to oneself goes that way too. Where a side is NULL nothing is done for it. */
static int exchange(const struct info *info, const struct side *out, int to, const struct side *in, int from) {
    size_t count = 0;
    struct request **all = must(malloc(2 * sizeof *all * (size_t)info->size));
    for (int rank = 0; rank < info->size; rank++) {
        if (in && (from == ANY || from == rank))
            all[count++] = get(info, in, rank);
        if (out && (to == ANY || to == rank))
            all[count++] = put(info, out, rank);
    }
    for (size_t which = 0; which < count; which++)
        end(all[which], MPI_STATUS_IGNORE);
    free(all);
    return MPI_SUCCESS;
}

int MPI_Bcast(void *values, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    const struct info *info = info_of(comm);
    const struct side side = {.values = values, .count = count, .type = type, .is_one = 1};
    if (info->rank != root)
        return exchange(info, NULL, ANY, &side, root);
    for (int rank = 0; rank < info->size; rank++)
        if (rank != root)
            exchange(info, &side, rank, NULL, ANY);
    return MPI_SUCCESS;
}

int MPI_Barrier(MPI_Comm comm) {
    const struct info *info = info_of(comm);
    const struct side nothing = {.type = MPI_BYTE, .is_one = 1};
    exchange(info, &nothing, 0, info->rank == 0 ? &nothing : NULL, ANY);
    return MPI_Bcast(NULL, 0, MPI_BYTE, 0, comm);
}

static int gather(const struct info *info, const void *values, int count, MPI_Datatype type, struct side into, int root) {
    int is_in_place = values == MPI_IN_PLACE;
    const struct side out = {.values = (char *)values, .count = count, .type = type, .is_one = 1};
    if (info->rank != root)
        return exchange(info, &out, root, NULL, ANY);
    for (int rank = 0; rank < info->size; rank++)
        if (rank != root || !is_in_place)
            exchange(info, rank == root ? &out : NULL, root, &into, rank);
    return MPI_SUCCESS;
}

int MPI_Gather(const void *values, int count, MPI_Datatype type, void *into, int room, MPI_Datatype awaited, int root, MPI_Comm comm) {
    return gather(info_of(comm), values, count, type, (struct side){.values = into, .count = room, .type = awaited}, root);
}

int MPI_Gatherv(const void *values, int count, MPI_Datatype type, void *into, const int counts[], const int displacements[], MPI_Datatype awaited, int root,
                MPI_Comm comm) {
    const struct side side = {.values = into, .counts = counts, .displacements = displacements, .type = awaited};
    return gather(info_of(comm), values, count, type, side, root);
}

static int scatter(const struct info *info, struct side out, void *into, int room, MPI_Datatype awaited, int root) {
    int is_in_place = into == MPI_IN_PLACE;
    const struct side in = {.values = into, .count = room, .type = awaited, .is_one = 1};
    if (info->rank != root)
        return exchange(info, NULL, ANY, &in, root);
    for (int rank = 0; rank < info->size; rank++)
        if (rank != root || !is_in_place)
            exchange(info, &out, rank, rank == root ? &in : NULL, root);
    return MPI_SUCCESS;
}

int MPI_Scatter(const void *values, int count, MPI_Datatype type, void *into, int room, MPI_Datatype awaited, int root, MPI_Comm comm) {
    return scatter(info_of(comm), (struct side){.values = (char *)values, .count = count, .type = type}, into, room, awaited, root);
}

int MPI_Scatterv(const void *values, const int counts[], const int displacements[], MPI_Datatype type, void *into, int room, MPI_Datatype awaited, int root,
                 MPI_Comm comm) {
    const struct side side = {.values = (char *)values, .counts = counts, .displacements = displacements, .type = type};
    return scatter(info_of(comm), side, into, room, awaited, root);
}

static int allgather(const struct info *info, const void *values, int count, MPI_Datatype type, struct side in) {
    struct side out = {.values = (char *)values, .count = count, .type = type, .is_one = 1};
    if (values == MPI_IN_PLACE) {
        /* What goes to oneself is packed before it comes back to the same place. */
        out.values = piece(&in, info->rank);
        out.count = count_of(&in, info->rank);
        out.type = in.type;
    }
    return exchange(info, &out, ANY, &in, ANY);
}

int MPI_Allgather(const void *values, int count, MPI_Datatype type, void *into, int room, MPI_Datatype awaited, MPI_Comm comm) {
    return allgather(info_of(comm), values, count, type, (struct side){.values = into, .count = room, .type = awaited});
}

int MPI_Allgatherv(const void *values, int count, MPI_Datatype type, void *into, const int counts[], const int displacements[], MPI_Datatype awaited,
                   MPI_Comm comm) {
    const struct side side = {.values = into, .counts = counts, .displacements = displacements, .type = awaited};
    return allgather(info_of(comm), values, count, type, side);
}

int MPI_Alltoall(const void *values, int count, MPI_Datatype type, void *into, int room, MPI_Datatype awaited, MPI_Comm comm) {
    const struct side out = {.values = (char *)values, .count = count, .type = type};
    const struct side in = {.values = into, .count = room, .type = awaited};
    if (values == MPI_IN_PLACE)
        fermata_mpi_refuse("MPI_Alltoall with MPI_IN_PLACE");
    return exchange(info_of(comm), &out, ANY, &in, ANY);
}

int MPI_Alltoallv(const void *values, const int counts[], const int displacements[], MPI_Datatype type, void *into, const int rooms[], const int places[],
                  MPI_Datatype awaited, MPI_Comm comm) {
    const struct side out = {.values = (char *)values, .counts = counts, .displacements = displacements, .type = type};
    const struct side in = {.values = into, .counts = rooms, .displacements = places, .type = awaited};
    if (values == MPI_IN_PLACE)
        fermata_mpi_refuse("MPI_Alltoallv with MPI_IN_PLACE");
    return exchange(info_of(comm), &out, ANY, &in, ANY);
}

/* From the last rank to the first, so that the result is the same each time, and operators need not commute. */
int MPI_Reduce(const void *values, void *into, int count, MPI_Datatype type, MPI_Op operator, int root, MPI_Comm comm) {
    const struct info *info = info_of(comm);
    MPI_Aint lower, extent;
    const struct side own = {.values = values == MPI_IN_PLACE ? into : (char *)values, .count = count, .type = type, .is_one = 1};
    if (info->rank != root)
        return exchange(info, &own, root, NULL, ANY);
    PMPI_Type_get_true_extent(type, &lower, &extent);
    MPI_Aint step, unused;
    PMPI_Type_get_extent(type, &unused, &step);
    size_t bytes = (size_t)(extent + (count > 0 ? count - 1 : 0) * (step > 0 ? step : -step)) + 1;
    struct side sum = {.values = (char *)must(malloc(bytes)) - lower, .count = count, .type = type, .is_one = 1};
    struct side next = {.values = (char *)must(malloc(bytes)) - lower, .count = count, .type = type, .is_one = 1};
    for (int rank = info->size - 1; rank >= 0; rank--) {
        exchange(info, rank == root ? &own : NULL, root, rank == info->size - 1 ? &sum : &next, rank);
        if (rank < info->size - 1)
            PMPI_Reduce_local(next.values, sum.values, count, type, operator);
    }
    const struct side result = {.values = into, .count = count, .type = type, .is_one = 1};
    exchange(info, &sum, root, &result, root);
    free(sum.values + lower);
    free(next.values + lower);
    return MPI_SUCCESS;
}

int MPI_Allreduce(const void *values, void *into, int count, MPI_Datatype type, MPI_Op operator, MPI_Comm comm) {
    const struct info *info = info_of(comm);
    /* Only the root may say that it is in place, and at others nothing is written. */
    MPI_Reduce(values == MPI_IN_PLACE && info->rank != 0 ? into : values, into, count, type, operator, 0, comm);
    return MPI_Bcast(into, count, type, 0, comm);
}

/* The beginning and the end. */

static void join(void) {
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &keyval, NULL);
    for (int which = 0; which < 2; which++)
        PMPI_Comm_dup(MPI_COMM_WORLD, &wires[which]);
    wire = wires[0];
    sent = must(calloc((size_t)ranks, sizeof *sent));
    received = must(calloc((size_t)ranks, sizeof *received));
    note(MPI_COMM_WORLD, next_context++);
    note(MPI_COMM_SELF, next_context++);
    ours(fermata_rank_join((size_t)rank, (size_t)ranks));
}

int MPI_Init(int *count, char ***arguments) {
    int result = PMPI_Init(count, arguments);
    join();
    return result;
}

/* One thread may call: what is here knows of no other. */
int MPI_Init_thread(int *count, char ***arguments, int required, int *provided) {
    int result = PMPI_Init_thread(count, arguments, required < MPI_THREAD_FUNNELED ? required : MPI_THREAD_FUNNELED, provided);
    if (*provided > MPI_THREAD_FUNNELED)
        *provided = MPI_THREAD_FUNNELED;
    join();
    return result;
}

static void wait_for(MPI_Request *request) {
    for (int is_over = 0; !is_over; rest()) {
        advance();
        PMPI_Test(request, &is_over, MPI_STATUS_IGNORE);
    }
}

static void begin(void) {
    MPI_Request exchanged;
    uint64_t *expected = must(calloc((size_t)ranks, sizeof *expected));
    PMPI_Ialltoall(sent, 1, MPI_UINT64_T, expected, 1, MPI_UINT64_T, wire, &exchanged);
    wait_for(&exchanged);
    for (int rank = 0; rank < ranks;) {
        if (received[rank] == expected[rank])
            rank++;
        else
            take_in();
    }
    free(expected);
    ours(fermata_rank_begin());
    wire = wires[1];
    is_begun = 1;
}

void *fermata_mpi_take(size_t bytes) {
    void *memory = fermata_rank_take(bytes);
    if (!memory)
        die("%s", fermata_error());
    return memory;
}

void fermata_mpi_checkpoint(void) {
    if (open_requests)
        die("%zu requests are open at a call of fermata_mpi_checkpoint: it stands where MPI_Wait has ended all of them", open_requests);
    if (!is_begun)
        begin();
    advance();
    ours(fermata_rank_call());
    advance();
}

int MPI_Finalize(void) {
    MPI_Request all;
    if (!is_begun)
        ours(fermata_rank_finish());
    /* Messages of others need us as long as they are on their way. */
    PMPI_Ibarrier(wire, &all);
    wait_for(&all);
    if (is_begun)
        ours(fermata_rank_finish());
    for (int which = 0; which < 2; which++)
        PMPI_Comm_free(&wires[which]);
    free(sent);
    free(received);
    return PMPI_Finalize();
}

int MPI_Abort(MPI_Comm comm, int code) {
    char text[64];
    snprintf(text, sizeof text, "it called MPI_Abort with %d", code);
    fermata_rank_fail(text);
    return PMPI_Abort(comm, code);
}
