/* The collective calls of a program of MPI: made of messages from one to one, so that checkpoints need to know of nothing else. */
#include <stdlib.h>

#include "fermata_mpi_inside.h"

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
    return fermata_mpi_send(info, of_all(info), piece(side, to), count_of(side, to), side->type, to, 0);
}

static struct request *get(const struct info *info, const struct side *side, int from) {
    return fermata_mpi_await(info, of_all(info), piece(side, from), count_of(side, from), side->type, from, 0);
}

/* Some ranks: from the first to the last, but for one. */
struct ranks {
    int first, last, but;
};

static struct ranks all(const struct info *info) { return (struct ranks){0, info->size - 1, ANY}; }
static struct ranks one(int rank) { return (struct ranks){rank, rank, ANY}; }
static struct ranks none(void) { return (struct ranks){0, -1, ANY}; }
static int is_among(struct ranks ranks, int rank) { return rank >= ranks.first && rank <= ranks.last && rank != ranks.but; }

/* To some ranks, and from some. What goes to oneself goes that way too. All is packed before anything comes, so that both sides may be the same memory. */
static struct request *begin(const struct info *info, const struct side *out, struct ranks to, const struct side *in, struct ranks from, void (*conclude)(void *),
                             void *conclusion) {
    struct request *request = fermata_mpi_several(info, 2 * info->size, conclude, conclusion);
    for (int rank = 0; rank < info->size; rank++)
        if (is_among(to, rank))
            request->parts[request->part_count++] = put(info, out, rank);
    for (int rank = 0; rank < info->size; rank++)
        if (is_among(from, rank))
            request->parts[request->part_count++] = get(info, in, rank);
    return request;
}

static int exchange(const struct info *info, const struct side *out, struct ranks to, const struct side *in, struct ranks from) {
    return fermata_mpi_end(begin(info, out, to, in, from, NULL, NULL), MPI_STATUS_IGNORE);
}

/* Calls that wait. What one rank has for all, or all for one, goes one by one, so that no more than one message is in memory. */

int MPI_Bcast(void *values, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    const struct info *info = fermata_mpi_info(comm);
    const struct side side = {.values = values, .count = count, .type = type, .is_one = 1};
    if (info->rank != root)
        return exchange(info, NULL, none(), &side, one(root));
    for (int rank = 0; rank < info->size; rank++)
        if (rank != root)
            exchange(info, &side, one(rank), NULL, none());
    return MPI_SUCCESS;
}

int MPI_Barrier(MPI_Comm comm) {
    const struct info *info = fermata_mpi_info(comm);
    const struct side nothing = {.type = MPI_BYTE, .is_one = 1};
    exchange(info, &nothing, one(0), &nothing, info->rank == 0 ? all(info) : none());
    return MPI_Bcast(NULL, 0, MPI_BYTE, 0, comm);
}

static int gather(const struct info *info, const void *values, int count, MPI_Datatype type, struct side into, int root) {
    int is_in_place = values == MPI_IN_PLACE;
    const struct side out = {.values = (char *)values, .count = count, .type = type, .is_one = 1};
    if (info->rank != root)
        return exchange(info, &out, one(root), NULL, none());
    for (int rank = 0; rank < info->size; rank++)
        if (rank != root || !is_in_place)
            exchange(info, &out, rank == root ? one(root) : none(), &into, one(rank));
    return MPI_SUCCESS;
}

int MPI_Gather(const void *values, int count, MPI_Datatype type, void *into, int room, MPI_Datatype awaited, int root, MPI_Comm comm) {
    return gather(fermata_mpi_info(comm), values, count, type, (struct side){.values = into, .count = room, .type = awaited}, root);
}

int MPI_Gatherv(const void *values, int count, MPI_Datatype type, void *into, const int counts[], const int displacements[], MPI_Datatype awaited, int root,
                MPI_Comm comm) {
    const struct side side = {.values = into, .counts = counts, .displacements = displacements, .type = awaited};
    return gather(fermata_mpi_info(comm), values, count, type, side, root);
}

static int scatter(const struct info *info, struct side out, void *into, int room, MPI_Datatype awaited, int root) {
    int is_in_place = into == MPI_IN_PLACE;
    const struct side in = {.values = into, .count = room, .type = awaited, .is_one = 1};
    if (info->rank != root)
        return exchange(info, NULL, none(), &in, one(root));
    for (int rank = 0; rank < info->size; rank++)
        if (rank != root || !is_in_place)
            exchange(info, &out, one(rank), &in, rank == root ? one(root) : none());
    return MPI_SUCCESS;
}

int MPI_Scatter(const void *values, int count, MPI_Datatype type, void *into, int room, MPI_Datatype awaited, int root, MPI_Comm comm) {
    return scatter(fermata_mpi_info(comm), (struct side){.values = (char *)values, .count = count, .type = type}, into, room, awaited, root);
}

int MPI_Scatterv(const void *values, const int counts[], const int displacements[], MPI_Datatype type, void *into, int room, MPI_Datatype awaited, int root,
                 MPI_Comm comm) {
    const struct side side = {.values = (char *)values, .counts = counts, .displacements = displacements, .type = type};
    return scatter(fermata_mpi_info(comm), side, into, room, awaited, root);
}

static struct side of_each(const struct info *info, const void *values, int count, MPI_Datatype type, const struct side *in) {
    if (values != MPI_IN_PLACE)
        return (struct side){.values = (char *)values, .count = count, .type = type, .is_one = 1};
    return (struct side){.values = piece(in, info->rank), .count = count_of(in, info->rank), .type = in->type, .is_one = 1};
}

static struct request *allgather(const struct info *info, const void *values, int count, MPI_Datatype type, struct side in) {
    const struct side out = of_each(info, values, count, type, &in);
    return begin(info, &out, all(info), &in, all(info), NULL, NULL);
}

static struct request *alltoall(const struct info *info, struct side out, struct side in) {
    return begin(info, out.values == MPI_IN_PLACE ? &in : &out, all(info), &in, all(info), NULL, NULL);
}

int MPI_Allgather(const void *values, int count, MPI_Datatype type, void *into, int room, MPI_Datatype awaited, MPI_Comm comm) {
    const struct side in = {.values = into, .count = room, .type = awaited};
    return fermata_mpi_end(allgather(fermata_mpi_info(comm), values, count, type, in), MPI_STATUS_IGNORE);
}

int MPI_Allgatherv(const void *values, int count, MPI_Datatype type, void *into, const int counts[], const int displacements[], MPI_Datatype awaited,
                   MPI_Comm comm) {
    const struct side in = {.values = into, .counts = counts, .displacements = displacements, .type = awaited};
    return fermata_mpi_end(allgather(fermata_mpi_info(comm), values, count, type, in), MPI_STATUS_IGNORE);
}

int MPI_Alltoall(const void *values, int count, MPI_Datatype type, void *into, int room, MPI_Datatype awaited, MPI_Comm comm) {
    const struct side out = {.values = (char *)values, .count = count, .type = type};
    const struct side in = {.values = into, .count = room, .type = awaited};
    return fermata_mpi_end(alltoall(fermata_mpi_info(comm), out, in), MPI_STATUS_IGNORE);
}

int MPI_Alltoallv(const void *values, const int counts[], const int displacements[], MPI_Datatype type, void *into, const int rooms[], const int places[],
                  MPI_Datatype awaited, MPI_Comm comm) {
    const struct side out = {.values = (char *)values, .counts = counts, .displacements = displacements, .type = type};
    const struct side in = {.values = into, .counts = rooms, .displacements = places, .type = awaited};
    return fermata_mpi_end(alltoall(fermata_mpi_info(comm), out, in), MPI_STATUS_IGNORE);
}

/* What so many values take. They begin `lower` before the memory. */
static size_t bytes_of(int count, MPI_Datatype type, MPI_Aint *lower) {
    MPI_Aint extent, step, unused;
    PMPI_Type_get_true_extent(type, lower, &extent);
    PMPI_Type_get_extent(type, &unused, &step);
    return (size_t)(extent + (count > 0 ? count - 1 : 0) * (step > 0 ? step : -step)) + 1;
}

/* From the last rank to the first, so that the result is the same each time, and operators need not commute. */
int MPI_Reduce(const void *values, void *into, int count, MPI_Datatype type, MPI_Op operator, int root, MPI_Comm comm) {
    const struct info *info = fermata_mpi_info(comm);
    MPI_Aint lower;
    const struct side own = {.values = values == MPI_IN_PLACE ? into : (char *)values, .count = count, .type = type, .is_one = 1};
    if (info->rank != root)
        return exchange(info, &own, one(root), NULL, none());
    const size_t bytes = bytes_of(count, type, &lower);
    struct side sum = {.values = (char *)fermata_mpi_must(malloc(bytes)) - lower, .count = count, .type = type, .is_one = 1};
    struct side next = {.values = (char *)fermata_mpi_must(malloc(bytes)) - lower, .count = count, .type = type, .is_one = 1};
    for (int rank = info->size - 1; rank >= 0; rank--) {
        exchange(info, &own, rank == root ? one(root) : none(), rank == info->size - 1 ? &sum : &next, one(rank));
        if (rank < info->size - 1)
            PMPI_Reduce_local(next.values, sum.values, count, type, operator);
    }
    const struct side result = {.values = into, .count = count, .type = type, .is_one = 1};
    exchange(info, &sum, one(root), &result, one(root));
    free(sum.values + lower);
    free(next.values + lower);
    return MPI_SUCCESS;
}

int MPI_Allreduce(const void *values, void *into, int count, MPI_Datatype type, MPI_Op operator, MPI_Comm comm) {
    const struct info *info = fermata_mpi_info(comm);
    /* Only the root may say that it is in place, and at others nothing is written. */
    MPI_Reduce(values == MPI_IN_PLACE && info->rank != 0 ? into : values, into, count, type, operator, 0, comm);
    return MPI_Bcast(into, count, type, 0, comm);
}

/* Calls that do not wait. All that a rank has to send goes at once, so that messages of one call and the next keep their order; what is reduced goes to all who need it. */

/* Values of several ranks, and where they go as one. */
struct reduction {
    char *memory;
    size_t bytes;
    MPI_Aint lower;
    int first, last, count;
    MPI_Datatype type;
    MPI_Op operator;
    void *into;
};

static void *value_of(const struct reduction *reduction, int rank) {
    return reduction->memory + (size_t)(rank - reduction->first) * reduction->bytes - reduction->lower;
}

static void reduce(void *conclusion) {
    struct reduction *reduction = conclusion;
    if (reduction->first <= reduction->last) {
        void *sum = value_of(reduction, reduction->last);
        for (int rank = reduction->last - 1; rank >= reduction->first; rank--)
            PMPI_Reduce_local(value_of(reduction, rank), sum, reduction->count, reduction->type, reduction->operator);
        PMPI_Sendrecv(sum, reduction->count, reduction->type, 0, 0, reduction->into, reduction->count, reduction->type, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE);
    }
    if (fermata_mpi_is_derived(reduction->type))
        PMPI_Type_free(&reduction->type);
    free(reduction->memory);
    free(reduction);
}

/* `out` has a piece for each of `to`; from each of `from`, which are next to each other, come `count` values. */
static struct request *begin_reduction(const struct info *info, const struct side *out, struct ranks to, struct ranks from, int count, void *into,
                                       MPI_Op operator) {
    struct reduction *reduction = fermata_mpi_must(malloc(sizeof *reduction));
    const int ranks = from.last - from.first + 1;
    *reduction = (struct reduction){.first = from.first, .last = from.last, .count = count, .type = out->type, .operator = operator, .into = into};
    /* The program may free its own before all is there. */
    if (fermata_mpi_is_derived(out->type))
        PMPI_Type_dup(out->type, &reduction->type);
    /* Each begins where any value may. */
    reduction->bytes = (bytes_of(count, out->type, &reduction->lower) + 63) & ~(size_t)63;
    reduction->memory = fermata_mpi_must(malloc(reduction->bytes * (size_t)(ranks > 0 ? ranks : 0) + 1));
    struct request *request = fermata_mpi_several(info, 2 * info->size, reduce, reduction);
    for (int rank = 0; rank < info->size; rank++)
        if (is_among(to, rank))
            request->parts[request->part_count++] = put(info, out, rank);
    for (int rank = from.first; rank <= from.last; rank++) {
        const struct side in = {.values = value_of(reduction, rank), .count = count, .type = out->type, .is_one = 1};
        request->parts[request->part_count++] = get(info, &in, rank);
    }
    return request;
}

/* The same values for all of `to`. */
static struct request *reduce_from(const struct info *info, const void *values, void *into, int count, MPI_Datatype type, MPI_Op operator, struct ranks to,
                                   struct ranks from) {
    const struct side out = {.values = values == MPI_IN_PLACE ? into : (char *)values, .count = count, .type = type, .is_one = 1};
    return begin_reduction(info, &out, to, from, count, into, operator);
}

static struct request *scan(const struct info *info, const void *values, void *into, int count, MPI_Datatype type, MPI_Op operator, int is_inclusive) {
    const struct ranks to = {info->rank + !is_inclusive, info->size - 1, ANY}, from = {0, info->rank - !is_inclusive, ANY};
    return reduce_from(info, values, into, count, type, operator, to, from);
}

static struct request *reduce_scatter(const struct info *info, const void *values, void *into, const int counts[], int count, MPI_Datatype type, MPI_Op operator) {
    int *places = fermata_mpi_must(malloc(sizeof *places * (size_t)(info->size + 1)));
    places[0] = 0;
    for (int rank = 0; rank < info->size; rank++)
        places[rank + 1] = places[rank] + (counts ? counts[rank] : count);
    const struct side out = {
        .values = values == MPI_IN_PLACE ? into : (char *)values, .count = count, .counts = counts, .displacements = places, .type = type};
    struct request *request = begin_reduction(info, &out, all(info), all(info), count_of(&out, info->rank), into, operator);
    free(places);
    return request;
}

int MPI_Ibarrier(MPI_Comm comm, MPI_Request *handle) {
    const struct info *info = fermata_mpi_info(comm);
    const struct side nothing = {.type = MPI_BYTE, .is_one = 1};
    return fermata_mpi_give(begin(info, &nothing, all(info), &nothing, all(info), NULL, NULL), handle);
}

int MPI_Ibcast(void *values, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *handle) {
    const struct info *info = fermata_mpi_info(comm);
    const struct side side = {.values = values, .count = count, .type = type, .is_one = 1};
    struct ranks others = all(info);
    others.but = root;
    const int is_root = info->rank == root;
    return fermata_mpi_give(begin(info, &side, is_root ? others : none(), &side, is_root ? none() : one(root), NULL, NULL), handle);
}

static int igather(const struct info *info, const void *values, int count, MPI_Datatype type, struct side in, int root, MPI_Request *handle) {
    const struct side out = {.values = (char *)values, .count = count, .type = type, .is_one = 1};
    struct ranks to = one(root), from = info->rank == root ? all(info) : none();
    if (values == MPI_IN_PLACE) {
        to = none();
        from.but = root;
    }
    return fermata_mpi_give(begin(info, &out, to, &in, from, NULL, NULL), handle);
}

int MPI_Igather(const void *values, int count, MPI_Datatype type, void *into, int room, MPI_Datatype awaited, int root, MPI_Comm comm, MPI_Request *handle) {
    return igather(fermata_mpi_info(comm), values, count, type, (struct side){.values = into, .count = room, .type = awaited}, root, handle);
}

int MPI_Igatherv(const void *values, int count, MPI_Datatype type, void *into, const int counts[], const int displacements[], MPI_Datatype awaited, int root,
                 MPI_Comm comm, MPI_Request *handle) {
    const struct side in = {.values = into, .counts = counts, .displacements = displacements, .type = awaited};
    return igather(fermata_mpi_info(comm), values, count, type, in, root, handle);
}

static int iscatter(const struct info *info, struct side out, void *into, int room, MPI_Datatype awaited, int root, MPI_Request *handle) {
    const struct side in = {.values = into, .count = room, .type = awaited, .is_one = 1};
    struct ranks to = info->rank == root ? all(info) : none(), from = one(root);
    if (into == MPI_IN_PLACE) {
        to.but = root;
        from = none();
    }
    return fermata_mpi_give(begin(info, &out, to, &in, from, NULL, NULL), handle);
}

int MPI_Iscatter(const void *values, int count, MPI_Datatype type, void *into, int room, MPI_Datatype awaited, int root, MPI_Comm comm, MPI_Request *handle) {
    return iscatter(fermata_mpi_info(comm), (struct side){.values = (char *)values, .count = count, .type = type}, into, room, awaited, root, handle);
}

int MPI_Iscatterv(const void *values, const int counts[], const int displacements[], MPI_Datatype type, void *into, int room, MPI_Datatype awaited, int root,
                  MPI_Comm comm, MPI_Request *handle) {
    const struct side out = {.values = (char *)values, .counts = counts, .displacements = displacements, .type = type};
    return iscatter(fermata_mpi_info(comm), out, into, room, awaited, root, handle);
}

int MPI_Iallgather(const void *values, int count, MPI_Datatype type, void *into, int room, MPI_Datatype awaited, MPI_Comm comm, MPI_Request *handle) {
    const struct side in = {.values = into, .count = room, .type = awaited};
    return fermata_mpi_give(allgather(fermata_mpi_info(comm), values, count, type, in), handle);
}

int MPI_Iallgatherv(const void *values, int count, MPI_Datatype type, void *into, const int counts[], const int displacements[], MPI_Datatype awaited,
                    MPI_Comm comm, MPI_Request *handle) {
    const struct side in = {.values = into, .counts = counts, .displacements = displacements, .type = awaited};
    return fermata_mpi_give(allgather(fermata_mpi_info(comm), values, count, type, in), handle);
}

int MPI_Ialltoall(const void *values, int count, MPI_Datatype type, void *into, int room, MPI_Datatype awaited, MPI_Comm comm, MPI_Request *handle) {
    const struct side out = {.values = (char *)values, .count = count, .type = type};
    const struct side in = {.values = into, .count = room, .type = awaited};
    return fermata_mpi_give(alltoall(fermata_mpi_info(comm), out, in), handle);
}

int MPI_Ialltoallv(const void *values, const int counts[], const int displacements[], MPI_Datatype type, void *into, const int rooms[], const int places[],
                   MPI_Datatype awaited, MPI_Comm comm, MPI_Request *handle) {
    const struct side out = {.values = (char *)values, .counts = counts, .displacements = displacements, .type = type};
    const struct side in = {.values = into, .counts = rooms, .displacements = places, .type = awaited};
    return fermata_mpi_give(alltoall(fermata_mpi_info(comm), out, in), handle);
}

int MPI_Ireduce(const void *values, void *into, int count, MPI_Datatype type, MPI_Op operator, int root, MPI_Comm comm, MPI_Request *handle) {
    const struct info *info = fermata_mpi_info(comm);
    const struct ranks from = info->rank == root ? all(info) : none();
    return fermata_mpi_give(reduce_from(info, values, into, count, type, operator, one(root), from), handle);
}

int MPI_Iallreduce(const void *values, void *into, int count, MPI_Datatype type, MPI_Op operator, MPI_Comm comm, MPI_Request *handle) {
    const struct info *info = fermata_mpi_info(comm);
    return fermata_mpi_give(reduce_from(info, values, into, count, type, operator, all(info), all(info)), handle);
}

int MPI_Iscan(const void *values, void *into, int count, MPI_Datatype type, MPI_Op operator, MPI_Comm comm, MPI_Request *handle) {
    return fermata_mpi_give(scan(fermata_mpi_info(comm), values, into, count, type, operator, 1), handle);
}

int MPI_Iexscan(const void *values, void *into, int count, MPI_Datatype type, MPI_Op operator, MPI_Comm comm, MPI_Request *handle) {
    return fermata_mpi_give(scan(fermata_mpi_info(comm), values, into, count, type, operator, 0), handle);
}

int MPI_Ireduce_scatter(const void *values, void *into, const int counts[], MPI_Datatype type, MPI_Op operator, MPI_Comm comm, MPI_Request *handle) {
    return fermata_mpi_give(reduce_scatter(fermata_mpi_info(comm), values, into, counts, 0, type, operator), handle);
}

int MPI_Ireduce_scatter_block(const void *values, void *into, int count, MPI_Datatype type, MPI_Op operator, MPI_Comm comm, MPI_Request *handle) {
    return fermata_mpi_give(reduce_scatter(fermata_mpi_info(comm), values, into, NULL, count, type, operator), handle);
}

/* The same, and waiting for them. */

int MPI_Scan(const void *values, void *into, int count, MPI_Datatype type, MPI_Op operator, MPI_Comm comm) {
    return fermata_mpi_end(scan(fermata_mpi_info(comm), values, into, count, type, operator, 1), MPI_STATUS_IGNORE);
}

int MPI_Exscan(const void *values, void *into, int count, MPI_Datatype type, MPI_Op operator, MPI_Comm comm) {
    return fermata_mpi_end(scan(fermata_mpi_info(comm), values, into, count, type, operator, 0), MPI_STATUS_IGNORE);
}

int MPI_Reduce_scatter(const void *values, void *into, const int counts[], MPI_Datatype type, MPI_Op operator, MPI_Comm comm) {
    return fermata_mpi_end(reduce_scatter(fermata_mpi_info(comm), values, into, counts, 0, type, operator), MPI_STATUS_IGNORE);
}

int MPI_Reduce_scatter_block(const void *values, void *into, int count, MPI_Datatype type, MPI_Op operator, MPI_Comm comm) {
    return fermata_mpi_end(reduce_scatter(fermata_mpi_info(comm), values, into, NULL, count, type, operator), MPI_STATUS_IGNORE);
}
