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
#include "fermata_mpi_inside.h"
#include "fermata_rank.h"

enum { WIRE_TAG = 1, SPINS = 200, TICKET = 4 };
/* The context of what answers synchronous sends. Communicators have smaller ones. */
static const uint32_t ACKNOWLEDGED = SYNCHRONOUS - 1;
/* Before the first call and behind it, so that nothing of before arrives behind it. */
static MPI_Comm wires[2], wire;
static int keyval = MPI_KEYVAL_INVALID, is_begun, ranks, idle;
static uint32_t next_context;
/* Messages of before the first call, by rank. */
static uint64_t *sent, *received;
/* In the order in which the program posted them. */
static struct request *waiting;

void fermata_mpi_die(const char *format, ...) {
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
    fermata_mpi_die("%s does not go with checkpoints yet: its messages would be in none. What does is in fermata's documentation of MPI", call);
}

void fermata_mpi_ours(int result) {
    if (result < 0)
        fermata_mpi_die("%s", fermata_error());
}

void *fermata_mpi_must(void *memory) {
    if (!memory)
        fermata_mpi_die("there is no memory for a message");
    return memory;
}

/* Communicators. */

const struct info *fermata_mpi_info(MPI_Comm comm) {
    void *info = NULL;
    int is_known = 0;
    PMPI_Comm_get_attr(comm, keyval, &info, &is_known);
    if (!is_known)
        fermata_mpi_die("a communicator was made by a call that fermata does not know: MPI_Comm_dup, MPI_Comm_split and MPI_Cart_create are known");
    return info;
}

static void note(MPI_Comm comm, uint32_t context) {
    struct info *info = fermata_mpi_must(malloc(sizeof *info));
    MPI_Group all, group;
    int is_inter;
    PMPI_Comm_test_inter(comm, &is_inter);
    if (is_inter)
        fermata_mpi_die("communicators between two groups do not go with checkpoints yet");
    PMPI_Comm_rank(comm, &info->rank);
    PMPI_Comm_size(comm, &info->size);
    info->context = context;
    info->world = fermata_mpi_must(malloc(2 * sizeof(int) * (size_t)info->size));
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
        fermata_mpi_die("%s after the first call of fermata_mpi_checkpoint: communicators are made before it, for they are made again in every life", call);
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
            buffer = fermata_mpi_must(realloc(buffer, (size_t)(room = bytes)));
        PMPI_Recv(buffer, bytes, MPI_BYTE, status.MPI_SOURCE, WIRE_TAG, wire, MPI_STATUS_IGNORE);
        fermata_mpi_ours(fermata_rank_arrived((size_t)status.MPI_SOURCE, buffer, (size_t)bytes));
        if (!is_begun)
            received[status.MPI_SOURCE]++;
        idle = 0;
    }
}

static int rank_in(const struct info *info, size_t world) {
    for (int rank = 0; rank < info->size; rank++)
        if ((size_t)info->world[rank] == world)
            return rank;
    fermata_mpi_die("a message of rank %zu came over a communicator that it is not in", world);
}

int fermata_mpi_is_derived(MPI_Datatype type) {
    int integers, addresses, types, combiner;
    PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner);
    return combiner != MPI_COMBINER_NAMED;
}

static struct request *fresh(const struct info *info, uint32_t context) {
    struct request *request = fermata_mpi_must(calloc(1, sizeof *request));
    request->info = info;
    request->context = context;
    return request;
}

static int world_of(const struct info *info, int rank, const char *what) {
    if (rank < 0 || rank >= info->size)
        fermata_mpi_die("there is no rank %d to %s in this communicator: they are numbered from 0 to %d", rank, what, info->size - 1);
    return info->world[rank];
}

/* Only puts it behind the others. */
static void enlist(struct request *request) {
    struct request **place = &waiting;
    while (*place)
        place = &(*place)->next;
    request->next = NULL;
    *place = request;
}

/* `front`: so many bytes that are not the program's go before the message's own. */
static struct request *dispatch(const struct info *info, uint32_t context, const void *front, int front_bytes, const void *values, int count, MPI_Datatype type,
                                int to, int tag) {
    struct request *request = fresh(info, context);
    const int begins = HEAD + front_bytes;
    int size, bound, position = begins;
    request->tag = tag;
    if (to == MPI_PROC_NULL) {
        request->state = COMPLETE;
        return request;
    }
    int world = world_of(info, to, "send to");
    PMPI_Type_size(type, &size);
    PMPI_Pack_size(count, type, MPI_COMM_WORLD, &bound);
    request->packed = fermata_mpi_must(malloc((size_t)(bound + begins)));
    fermata_mpi_ours(fermata_rank_head((size_t)world, context, tag, request->packed));
    if (front_bytes)
        memcpy(request->packed + HEAD, front, (size_t)front_bytes);
    if (count)
        PMPI_Pack(values, count, type, request->packed, bound + begins, &position, MPI_COMM_WORLD);
    if (position - begins != size * count)
        fermata_mpi_die("this MPI packs %d times %d bytes as %d: fermata cannot tell how long messages are", count, size, position - begins);
    PMPI_Isend(request->packed, position, MPI_BYTE, world, WIRE_TAG, wire, &request->carried);
    if (!is_begun)
        sent[world]++;
    request->state = SENDING;
    enlist(request);
    return request;
}

/* What a message has before its own bytes: that of a synchronous send a ticket, by which the sender knows it again when it hears that it is received. */
static size_t front_of(const struct fermata_arrival *arrival) {
    if (!(arrival->context & SYNCHRONOUS))
        return 0;
    if (arrival->length < TICKET)
        fermata_mpi_die("a message of rank %zu has lost its ticket", arrival->from);
    return TICKET;
}

static void acknowledge(const struct info *info, const struct fermata_arrival *arrival) {
    int32_t ticket;
    memcpy(&ticket, arrival->bytes, TICKET);
    dispatch(info, ACKNOWLEDGED, NULL, 0, NULL, 0, MPI_BYTE, rank_in(info, arrival->from), ticket)->is_forgotten = 1;
}

/* A message goes where it was awaited. */
static void receive(struct request *request, const struct fermata_arrival *arrival) {
    int size, position = (int)front_of(arrival);
    PMPI_Type_size(request->type, &size);
    size_t length = arrival->length - (size_t)position;
    int count = size ? (int)(length / (size_t)size) : 0;
    if (count > request->count || (size && length % (size_t)size))
        fermata_mpi_die("a message of %zu bytes with tag %d came from rank %zu, where %d times %d bytes are awaited", length, arrival->tag, arrival->from, request->count, size);
    if (count)
        PMPI_Unpack(arrival->bytes, (int)arrival->length, &position, request->into, count, request->type, MPI_COMM_WORLD);
    if (fermata_mpi_is_derived(request->type))
        PMPI_Type_free(&request->type);
    request->source = rank_in(request->info, arrival->from);
    request->found_tag = arrival->tag;
    request->bytes = (int)length;
    request->state = COMPLETE;
    if (arrival->context & SYNCHRONOUS)
        acknowledge(request->info, arrival);
}

/* Does what can be done without waiting. Who awaits a message gets it in the order in which he asked. */
void fermata_mpi_advance(void) {
    take_in();
    fermata_mpi_ours(fermata_rank_look());
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
            fermata_mpi_ours(found);
            if (found) {
                receive(request, &arrival);
                fermata_rank_release(arrival.owner);
            }
        }
        if (request->state == COMPLETE) {
            *place = request->next;
            idle = 0;
            if (request->is_forgotten)
                free(request);
        } else {
            place = &request->next;
        }
    }
}

/* Nothing could be done: others may need the processor. */
void fermata_mpi_rest(void) {
    const struct timespec moment = {0, 50000};
    if (++idle < SPINS)
        sched_yield();
    else
        nanosleep(&moment, NULL);
}

struct request *fermata_mpi_several(const struct info *info, int room, void (*conclude)(void *), void *conclusion) {
    struct request *request = fresh(info, of_all(info));
    request->state = SEVERAL;
    request->parts = fermata_mpi_must(malloc(sizeof *request->parts * (size_t)(room + 1)));
    request->conclude = conclude;
    request->conclusion = conclusion;
    return request;
}

struct request *fermata_mpi_send(const struct info *info, uint32_t context, const void *values, int count, MPI_Datatype type, int to, int tag) {
    struct request *request = dispatch(info, context, NULL, 0, values, count, type, to, tag);
    fermata_mpi_advance();
    return request;
}

struct request *fermata_mpi_await(const struct info *info, uint32_t context, void *into, int count, MPI_Datatype type, int from, int tag) {
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
    if (fermata_mpi_is_derived(type))
        PMPI_Type_dup(type, &request->type);
    request->from = from == MPI_ANY_SOURCE ? ANY : world_of(info, from, "receive from");
    request->tag = tag == MPI_ANY_TAG ? ANY : tag;
    request->state = RECEIVING;
    enlist(request);
    fermata_mpi_advance();
    return request;
}

/* Something of several parts is over when they are. */
int fermata_mpi_is_over(const struct request *request) {
    if (request->state != SEVERAL)
        return request->state == COMPLETE;
    for (int which = 0; which < request->part_count; which++)
        if (!fermata_mpi_is_over(request->parts[which]))
            return 0;
    return 1;
}

/* The program waits for it, and for nothing else. */
void fermata_mpi_complete(struct request *request) {
    if (request->state == SEVERAL) {
        for (int which = 0; which < request->part_count; which++)
            fermata_mpi_end(request->parts[which], MPI_STATUS_IGNORE);
        free(request->parts);
        if (request->conclude)
            request->conclude(request->conclusion);
        request->state = COMPLETE;
    }
    while (request->state != COMPLETE) {
        fermata_mpi_advance();
        if (request->state == COMPLETE)
            break;
        if (request->state == RECEIVING)
            fermata_mpi_ours(fermata_rank_in_vain(request->from));
        fermata_mpi_rest();
    }
}

void fermata_mpi_tell(const struct request *request, MPI_Status *status) {
    if (status == MPI_STATUS_IGNORE)
        return;
    status->MPI_SOURCE = request->source;
    status->MPI_TAG = request->found_tag;
    status->MPI_ERROR = MPI_SUCCESS;
    PMPI_Status_set_elements(status, MPI_BYTE, request->bytes);
    PMPI_Status_set_cancelled(status, 0);
}

int fermata_mpi_end(struct request *request, MPI_Status *status) {
    fermata_mpi_complete(request);
    fermata_mpi_tell(request, status);
    free(request);
    return MPI_SUCCESS;
}

/* From one to one. */

int MPI_Send(const void *values, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
    const struct info *info = fermata_mpi_info(comm);
    return fermata_mpi_end(fermata_mpi_send(info, of_pairs(info), values, count, type, to, tag), MPI_STATUS_IGNORE);
}

/* The receiver is ready, or the program has memory set aside that is not needed: messages are packed aside anyway. */
int MPI_Rsend(const void *values, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
    return MPI_Send(values, count, type, to, tag, comm);
}

int MPI_Bsend(const void *values, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
    return MPI_Send(values, count, type, to, tag, comm);
}

/* Over when its receiver has said that he has it. All such messages of this rank are over when it is captured, so that tickets need not outlive a life. */
struct request *fermata_mpi_send_synchronously(const struct info *info, const void *values, int count, MPI_Datatype type, int to, int tag) {
    static uint32_t tickets;
    const int32_t ticket = (int32_t)(tickets++ & INT32_MAX);
    struct request *both = fermata_mpi_several(info, 2, NULL, NULL);
    both->parts[both->part_count++] = dispatch(info, of_pairs(info) | SYNCHRONOUS, &ticket, TICKET, values, count, type, to, tag);
    both->parts[both->part_count++] = fermata_mpi_await(info, ACKNOWLEDGED, NULL, 0, MPI_BYTE, to, ticket);
    return both;
}

int MPI_Ssend(const void *values, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
    return fermata_mpi_end(fermata_mpi_send_synchronously(fermata_mpi_info(comm), values, count, type, to, tag), MPI_STATUS_IGNORE);
}

int MPI_Issend(const void *values, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *handle) {
    return fermata_mpi_give(fermata_mpi_send_synchronously(fermata_mpi_info(comm), values, count, type, to, tag), handle);
}

int MPI_Isend(const void *values, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *handle) {
    const struct info *info = fermata_mpi_info(comm);
    return fermata_mpi_give(fermata_mpi_send(info, of_pairs(info), values, count, type, to, tag), handle);
}

int MPI_Irsend(const void *values, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *handle) {
    return MPI_Isend(values, count, type, to, tag, comm, handle);
}

int MPI_Ibsend(const void *values, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *handle) {
    return MPI_Isend(values, count, type, to, tag, comm, handle);
}

int MPI_Recv(void *into, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status *status) {
    const struct info *info = fermata_mpi_info(comm);
    return fermata_mpi_end(fermata_mpi_await(info, of_pairs(info), into, count, type, from, tag), status);
}

int MPI_Irecv(void *into, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *handle) {
    const struct info *info = fermata_mpi_info(comm);
    return fermata_mpi_give(fermata_mpi_await(info, of_pairs(info), into, count, type, from, tag), handle);
}

int MPI_Sendrecv(const void *values, int count, MPI_Datatype type, int to, int tag, void *into, int room, MPI_Datatype awaited, int from, int from_tag,
                 MPI_Comm comm, MPI_Status *status) {
    const struct info *info = fermata_mpi_info(comm);
    struct request *coming = fermata_mpi_await(info, of_pairs(info), into, room, awaited, from, from_tag);
    fermata_mpi_end(fermata_mpi_send(info, of_pairs(info), values, count, type, to, tag), MPI_STATUS_IGNORE);
    return fermata_mpi_end(coming, status);
}

int MPI_Sendrecv_replace(void *values, int count, MPI_Datatype type, int to, int tag, int from, int from_tag, MPI_Comm comm, MPI_Status *status) {
    const struct info *info = fermata_mpi_info(comm);
    /* What is sent is packed before anything is received. */
    struct request *going = fermata_mpi_send(info, of_pairs(info), values, count, type, to, tag);
    fermata_mpi_end(fermata_mpi_await(info, of_pairs(info), values, count, type, from, from_tag), status);
    return fermata_mpi_end(going, MPI_STATUS_IGNORE);
}

static int look(int from, int tag, MPI_Comm comm, MPI_Status *status, int waits) {
    const struct info *info = fermata_mpi_info(comm);
    struct request found = {.source = MPI_PROC_NULL, .found_tag = MPI_ANY_TAG};
    if (from != MPI_PROC_NULL) {
        int world = from == MPI_ANY_SOURCE ? ANY : world_of(info, from, "receive from");
        struct fermata_arrival arrival;
        fermata_mpi_advance();
        int is_there = fermata_rank_find(world, of_pairs(info), tag == MPI_ANY_TAG ? ANY : tag, 0, &arrival);
        fermata_mpi_ours(is_there);
        if (!is_there) {
            fermata_mpi_ours(fermata_rank_in_vain(waits ? world : ANY));
            return 0;
        }
        found.source = rank_in(info, arrival.from);
        found.found_tag = arrival.tag;
        found.bytes = (int)(arrival.length - front_of(&arrival));
        fermata_rank_release(arrival.owner);
    }
    fermata_mpi_tell(&found, status);
    return 1;
}

int MPI_Probe(int from, int tag, MPI_Comm comm, MPI_Status *status) {
    while (!look(from, tag, comm, status, 1))
        fermata_mpi_rest();
    return MPI_SUCCESS;
}

int MPI_Iprobe(int from, int tag, MPI_Comm comm, int *is_there, MPI_Status *status) {
    *is_there = look(from, tag, comm, status, 0);
    if (!*is_there)
        sched_yield();
    return MPI_SUCCESS;
}

/* The beginning and the end. */

static void join(void) {
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
    /* What is known of a communicator outlives it: a program may free it before what it has begun on it is over. */
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &keyval, NULL);
    for (int which = 0; which < 2; which++)
        PMPI_Comm_dup(MPI_COMM_WORLD, &wires[which]);
    wire = wires[0];
    sent = fermata_mpi_must(calloc((size_t)ranks, sizeof *sent));
    received = fermata_mpi_must(calloc((size_t)ranks, sizeof *received));
    note(MPI_COMM_WORLD, next_context++);
    note(MPI_COMM_SELF, next_context++);
    fermata_mpi_ours(fermata_rank_join((size_t)rank, (size_t)ranks));
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
    for (int is_over = 0; !is_over; fermata_mpi_rest()) {
        fermata_mpi_advance();
        PMPI_Test(request, &is_over, MPI_STATUS_IGNORE);
    }
}

static void begin(void) {
    MPI_Request exchanged;
    uint64_t *expected = fermata_mpi_must(calloc((size_t)ranks, sizeof *expected));
    PMPI_Ialltoall(sent, 1, MPI_UINT64_T, expected, 1, MPI_UINT64_T, wire, &exchanged);
    wait_for(&exchanged);
    for (int rank = 0; rank < ranks;) {
        if (received[rank] == expected[rank])
            rank++;
        else
            take_in();
    }
    free(expected);
    fermata_mpi_ours(fermata_rank_begin());
    wire = wires[1];
    is_begun = 1;
}

void *fermata_mpi_take(size_t bytes) {
    void *memory = fermata_rank_take(bytes);
    if (!memory)
        fermata_mpi_die("%s", fermata_error());
    return memory;
}

void fermata_mpi_checkpoint(void) {
    if (fermata_mpi_open())
        fermata_mpi_die("%zu requests are open at a call of fermata_mpi_checkpoint: it stands where MPI_Wait has ended all of them", fermata_mpi_open());
    if (!is_begun)
        begin();
    fermata_mpi_advance();
    fermata_mpi_ours(fermata_rank_call());
    fermata_mpi_advance();
}

int MPI_Finalize(void) {
    MPI_Request all;
    if (!is_begun)
        fermata_mpi_ours(fermata_rank_finish());
    /* Messages of others need us as long as they are on their way. */
    PMPI_Ibarrier(wire, &all);
    wait_for(&all);
    if (is_begun)
        fermata_mpi_ours(fermata_rank_finish());
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
