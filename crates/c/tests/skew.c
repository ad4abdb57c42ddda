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
    for (; *round < rounds; ++*round) {
        fermata_mpi_checkpoint();
        dawdle();
        lagging(*round);
        dawdle();
        if (*round % 2)
            exchanges(*round, copy);
        if (*round % 8 == 0)
            collective(*round, half);
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
    MPI_Comm_free(&copy);
    MPI_Comm_free(&half);
    MPI_Finalize();
    return 0;
}
