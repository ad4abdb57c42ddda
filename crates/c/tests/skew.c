/* A program of MPI whose ranks dawdle, each at other times, and whose messages take their time: run by c/tests/mpi.rs, and killed by it. It makes every kind of call that goes with checkpoints and looks at what each brings.
 *
 *     skew ROUNDS MOST_MICROSECONDS
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "fermata_mpi.h"

enum { LAG = 3, MANY = 20000 };

static int rank, ranks, most;
static long *bulk, *bulk_back;

static void wrong(const char *what, int round) {
    fprintf(stderr, "rank %d, round %d: %s is wrong\n", rank, round, what);
    MPI_Abort(MPI_COMM_WORLD, 4);
}

static void dawdle(void) {
    if (most > 0) {
        const struct timespec moment = {0, rand() % most * 1000L};
        nanosleep(&moment, NULL);
    }
}

/* What a rank sends in a round. */
static long value(int of, int round) { return of * 1000003L + round; }

/* To the right, and what comes from the left was sent some rounds ago: there are always messages on their way. */
static void lagging(int round) {
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
    long out = value(rank, round), in;
    MPI_Status status;
    MPI_Send(&out, 1, MPI_LONG, right, 7 + round % 2, MPI_COMM_WORLD);
    if (round < LAG)
        return;
    MPI_Recv(&in, 1, MPI_LONG, left, 7 + (round - LAG) % 2, MPI_COMM_WORLD, &status);
    int count;
    MPI_Get_count(&status, MPI_LONG, &count);
    if (in != value(left, round - LAG) || status.MPI_SOURCE != left || count != 1)
        wrong("a late message", round);
}

static void exchanges(int round, MPI_Comm other) {
    int at, size, is_there = 0, which;
    MPI_Comm_rank(other, &at);
    MPI_Comm_size(other, &size);
    int right = (at + 1) % size, left = (at + size - 1) % size;
    long out = value(at, round), in[2] = {0, 0};
    MPI_Status status;
    MPI_Sendrecv(&out, 1, MPI_LONG, right, 1, in, 1, MPI_LONG, left, MPI_ANY_TAG, other, &status);
    if (in[0] != value(left, round) || status.MPI_TAG != 1 || status.MPI_SOURCE != left)
        wrong("MPI_Sendrecv", round);
    MPI_Request requests[3];
    for (int place = 0; place < MANY; place++)
        bulk[place] = value(at, round) + place;
    MPI_Datatype all;
    MPI_Type_contiguous(MANY, MPI_LONG, &all);
    MPI_Type_commit(&all);
    MPI_Irecv(bulk_back, 1, all, left, 2, other, &requests[0]);
    MPI_Type_free(&all);
    MPI_Irecv(&in[1], 1, MPI_LONG, MPI_ANY_SOURCE, 3, other, &requests[1]);
    MPI_Isend(bulk, MANY, MPI_LONG, right, 2, other, &requests[2]);
    MPI_Send(&out, 1, MPI_LONG, right, 3, other);
    MPI_Waitany(2, requests, &which, &status);
    MPI_Wait(&requests[1 - which], MPI_STATUS_IGNORE);
    for (int is_sent = 0; !is_sent;)
        MPI_Test(&requests[2], &is_sent, MPI_STATUS_IGNORE);
    if (in[1] != value(left, round) || bulk_back[MANY - 1] != value(left, round) + MANY - 1 || requests[0] != MPI_REQUEST_NULL)
        wrong("MPI_Irecv", round);
    MPI_Send(&out, 1, MPI_LONG, right, 4, other);
    while (!is_there)
        MPI_Iprobe(left, 4, other, &is_there, &status);
    MPI_Probe(MPI_ANY_SOURCE, 4, other, &status);
    MPI_Recv(in, 1, MPI_LONG, status.MPI_SOURCE, status.MPI_TAG, other, MPI_STATUS_IGNORE);
    MPI_Send(NULL, 0, MPI_LONG, MPI_PROC_NULL, 4, other);
    if (in[0] != value(left, round))
        wrong("MPI_Probe", round);
}

static void collective(int round, MPI_Comm other) {
    long own = value(rank, round), sum = 0, expected = 0, all[64], pairs[64], turned[64], part, most_of_all = own;
    int counts[64], places[64], root = round % ranks, size;
    for (int of = 0; of < ranks; of++) {
        expected += value(of, round);
        counts[of] = 1;
        places[of] = ranks - 1 - of;
        pairs[of] = value(rank, of);
    }
    MPI_Barrier(other);
    MPI_Allreduce(&own, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &most_of_all, 1, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
    if (sum != expected || most_of_all != value(ranks - 1, round))
        wrong("MPI_Allreduce", round);
    sum = rank == root ? own : 0;
    MPI_Bcast(&sum, 1, MPI_LONG, root, MPI_COMM_WORLD);
    if (sum != value(root, round))
        wrong("MPI_Bcast", round);
    MPI_Reduce(&own, &sum, 1, MPI_LONG, MPI_MIN, root, MPI_COMM_WORLD);
    if (rank == root && sum != value(0, round))
        wrong("MPI_Reduce", round);
    MPI_Gatherv(&own, 1, MPI_LONG, all, counts, places, MPI_LONG, root, MPI_COMM_WORLD);
    if (rank == root && all[0] != value(ranks - 1, round))
        wrong("MPI_Gatherv", round);
    MPI_Scatterv(all, counts, places, MPI_LONG, &part, 1, MPI_LONG, root, MPI_COMM_WORLD);
    if (part != own)
        wrong("MPI_Scatterv", round);
    MPI_Allgather(&own, 1, MPI_LONG, all, 1, MPI_LONG, MPI_COMM_WORLD);
    if (all[root] != value(root, round))
        wrong("MPI_Allgather", round);
    all[rank] = own + 1;
    MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_LONG, all, counts, (int[64]){0, 1, 2, 3, 4, 5, 6, 7}, MPI_LONG, MPI_COMM_WORLD);
    if (all[root] != value(root, round) + 1)
        wrong("MPI_Allgatherv", round);
    MPI_Alltoall(pairs, 1, MPI_LONG, turned, 1, MPI_LONG, MPI_COMM_WORLD);
    if (turned[root] != value(root, rank))
        wrong("MPI_Alltoall", round);
    MPI_Comm_size(other, &size);
    sum = 0;
    MPI_Allreduce(&(long){1}, &sum, 1, MPI_LONG, MPI_SUM, other);
    if (sum != size)
        wrong("MPI_Allreduce of a part", round);
}

/* Begun together, and ended as they come; a call that waits is between them. */
static void together(int round) {
    long own = value(rank, round), sum = 0, total = 0, upto = 0, least = 0, first = 0, all[64], in = 0, expected = 0, expected_upto = 0;
    int root = round % ranks, right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks, ended, indices[8];
    MPI_Request requests[8];
    MPI_Status statuses[8];
    for (int of = 0; of < ranks; of++) {
        expected += value(of, round);
        expected_upto += of <= rank ? value(of, round) : 0;
    }
    MPI_Iallreduce(&own, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD, &requests[0]);
    MPI_Iscan(&own, &upto, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD, &requests[1]);
    first = rank == root ? own : 0;
    MPI_Ibcast(&first, 1, MPI_LONG, root, MPI_COMM_WORLD, &requests[2]);
    MPI_Allreduce(&own, &total, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    MPI_Iallgather(&own, 1, MPI_LONG, all, 1, MPI_LONG, MPI_COMM_WORLD, &requests[3]);
    MPI_Ireduce(&own, &least, 1, MPI_LONG, MPI_MIN, root, MPI_COMM_WORLD, &requests[4]);
    MPI_Ibarrier(MPI_COMM_WORLD, &requests[5]);
    MPI_Issend(&own, 1, MPI_LONG, right, 30, MPI_COMM_WORLD, &requests[6]);
    requests[7] = MPI_REQUEST_NULL;
    MPI_Recv(&in, 1, MPI_LONG, left, 30, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int open = 7; open > 0; open -= ended) {
        MPI_Waitsome(8, requests, &ended, indices, statuses);
        if (ended < 1)
            wrong("MPI_Waitsome", round);
    }
    MPI_Waitsome(8, requests, &ended, indices, statuses);
    if (sum != expected || total != expected || upto != expected_upto || ended != MPI_UNDEFINED)
        wrong("a sum of all ranks", round);
    if (first != value(root, round) || all[right] != value(right, round) || in != value(left, round) || (rank == root && least != value(0, round)))
        wrong("what was begun together", round);
}

/* Pieces for each rank, sums of ranks before, and calls in place. */
static void pieces(int round) {
    long own = value(rank, round), before = -1, part = 0, pairs[64], turned[64], expected = 0, expected_part = 0;
    int counts[64], places[64], root = round % ranks;
    MPI_Request requests[3];
    for (int of = 0; of < ranks; of++) {
        pairs[of] = turned[of] = value(rank, of) + round;
        expected += of < rank ? value(of, round) : 0;
        expected_part += value(of, rank) + round;
        counts[of] = 1;
        places[of] = ranks - 1 - of;
    }
    MPI_Exscan(&own, &before, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (before != (rank == 0 ? -1 : expected))
        wrong("MPI_Exscan", round);
    MPI_Reduce_scatter_block(pairs, &part, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (part != expected_part)
        wrong("MPI_Reduce_scatter_block", round);
    MPI_Reduce_scatter(pairs, &part, counts, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
    if (part != value(ranks - 1, rank) + round)
        wrong("MPI_Reduce_scatter", round);
    MPI_Alltoall(MPI_IN_PLACE, 0, MPI_LONG, turned, 1, MPI_LONG, MPI_COMM_WORLD);
    if (turned[root] != value(root, rank) + round)
        wrong("MPI_Alltoall in place", round);
    long gathered[64] = {0};
    MPI_Igatherv(&own, 1, MPI_LONG, gathered, counts, places, MPI_LONG, root, MPI_COMM_WORLD, &requests[0]);
    MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    MPI_Iscatterv(gathered, counts, places, MPI_LONG, &part, 1, MPI_LONG, root, MPI_COMM_WORLD, &requests[1]);
    MPI_Ialltoall(pairs, 1, MPI_LONG, turned, 1, MPI_LONG, MPI_COMM_WORLD, &requests[2]);
    for (int are_over = 0; !are_over;)
        MPI_Testall(2, &requests[1], &are_over, MPI_STATUSES_IGNORE);
    if (part != own || turned[root] != value(root, rank) + round)
        wrong("MPI_Iscatterv", round);
}

/* Who sends synchronously goes on when it is received, and not before. */
static void synchronous(int round) {
    long own = value(rank, round), in = 0, go = 0;
    int other = rank ^ 1, is_over;
    MPI_Request request;
    MPI_Status status;
    if (other >= ranks)
        return;
    if (rank < other) {
        MPI_Issend(&own, 1, MPI_LONG, other, 31, MPI_COMM_WORLD, &request);
        dawdle();
        MPI_Request_get_status(request, &is_over, &status);
        if (is_over)
            wrong("MPI_Issend, which is over too early", round);
        MPI_Send(&go, 1, MPI_LONG, other, 32, MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Recv(&in, 1, MPI_LONG, MPI_ANY_SOURCE, 31, MPI_COMM_WORLD, &status);
    } else {
        MPI_Recv(&go, 1, MPI_LONG, other, 32, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Probe(MPI_ANY_SOURCE, 31, MPI_COMM_WORLD, &status);
        int count;
        MPI_Get_count(&status, MPI_LONG, &count);
        if (count != 1 || status.MPI_SOURCE != other)
            wrong("MPI_Probe of a synchronous message", round);
        MPI_Recv(&in, 1, MPI_LONG, other, 31, MPI_COMM_WORLD, &status);
        MPI_Ssend(&own, 1, MPI_LONG, other, 31, MPI_COMM_WORLD);
    }
    if (in != value(other, round) || status.MPI_SOURCE != other)
        wrong("MPI_Ssend", round);
}

/* The same two calls again and again. */
static struct {
    MPI_Request requests[2];
    long out, in;
} ring;

static void prepare(void) {
    MPI_Datatype one;
    MPI_Type_contiguous(1, MPI_LONG, &one);
    MPI_Type_commit(&one);
    MPI_Recv_init(&ring.in, 1, one, (rank + ranks - 1) % ranks, 40, MPI_COMM_WORLD, &ring.requests[0]);
    MPI_Ssend_init(&ring.out, 1, one, (rank + 1) % ranks, 40, MPI_COMM_WORLD, &ring.requests[1]);
    MPI_Type_free(&one);
}

static void repeated(int round) {
    int index, is_over;
    MPI_Status status;
    ring.out = value(rank, round);
    MPI_Startall(2, ring.requests);
    MPI_Waitany(2, ring.requests, &index, &status);
    MPI_Waitall(2, ring.requests, MPI_STATUSES_IGNORE);
    MPI_Testany(2, ring.requests, &index, &is_over, &status);
    if (ring.in != value((rank + ranks - 1) % ranks, round) || !is_over || index != MPI_UNDEFINED || ring.requests[0] == MPI_REQUEST_NULL)
        wrong("MPI_Startall", round);
}

int main(int count, char **arguments) {
    MPI_Comm half, copy;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int rounds = atoi(arguments[1]);
    most = atoi(arguments[2]);
    /* Other delays in every life. */
    srand((unsigned)time(NULL) * 31 + (unsigned)rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    MPI_Comm_dup(half, &copy);
    MPI_Bcast(&rounds, 1, MPI_INT, 0, MPI_COMM_WORLD);
    int *round = fermata_mpi_take(sizeof *round);
    bulk = fermata_mpi_take(MANY * sizeof *bulk);
    bulk_back = fermata_mpi_take(MANY * sizeof *bulk_back);
    prepare();
    for (; *round < rounds; ++*round) {
        fermata_mpi_checkpoint();
        dawdle();
        lagging(*round);
        dawdle();
        if (*round % 2)
            exchanges(*round, copy);
        if (*round % 8 == 0)
            collective(*round, half);
        if (*round % 16 == 2)
            together(*round);
        if (*round % 16 == 4)
            pieces(*round);
        if (*round % 16 == 6)
            synchronous(*round);
        if (*round % 16 == 11)
            repeated(*round);
    }
    for (int left = rounds; left < rounds + LAG; left++) {
        long in;
        int from = (rank + ranks - 1) % ranks;
        MPI_Recv(&in, 1, MPI_LONG, from, 7 + (left - LAG) % 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (in != value(from, left - LAG))
            wrong("one of the last messages", left);
    }
    if (rank == 0)
        printf("%d rounds: right\n", rounds);
    MPI_Request_free(&ring.requests[0]);
    MPI_Request_free(&ring.requests[1]);
    MPI_Comm_free(&copy);
    MPI_Comm_free(&half);
    MPI_Finalize();
    return 0;
}
