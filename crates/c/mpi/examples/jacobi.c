/* Heat in a plate: each point becomes the mean of its four neighbours, again and again. The plate is divided among the ranks in two dimensions; neighbours exchange their edges, columns
 * as a derived datatype. In the end rank 0 does the same alone, and compares every bit.
 *
 *     jacobi SIZE ROUNDS
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fermata_mpi.h"

static double edge(int row, int column) { return (row * 7 + column * 13) % 100; }

static void relax(double *to, const double *from, int rows, int columns) {
    int width = columns + 2;
    for (int row = 1; row <= rows; row++)
        for (int at = row * width + 1; at <= row * width + columns; at++)
            to[at] = 0.25 * (from[at - width] + from[at + width] + from[at - 1] + from[at + 1]);
}

/* The edge of the plate, and nothing within, for the part that begins at this row and column. */
static void fill(double *plate, int rows, int columns, int first_row, int first_column, int size) {
    for (int row = 0; row < rows + 2; row++)
        for (int column = 0; column < columns + 2; column++) {
            int y = first_row + row, x = first_column + column;
            int is_edge = y == 0 || x == 0 || y == size + 1 || x == size + 1;
            plate[row * (columns + 2) + column] = is_edge ? edge(y, x) : 0;
        }
}

/* How many points of the finished plate rank 0 finds wrong that another rank has sent. */
static long compare(const double *alone, const double *part, int rows, int columns, int first_row, int first_column, int size) {
    long wrong = 0;
    for (int row = 0; row < rows; row++)
        wrong += memcmp(&alone[(first_row + row + 1) * (size + 2) + first_column + 1], &part[row * columns], sizeof(double) * (size_t)columns) != 0;
    return wrong;
}

static long check(const double *all, int rows, int columns, int size, int rounds, MPI_Comm plate, int ranks) {
    size_t points = (size_t)(size + 2) * (size_t)(size + 2);
    double *alone = malloc(2 * points * sizeof *alone), *now = alone, *next = alone + points;
    long wrong = 0;
    fill(now, size, size, 0, 0, size);
    fill(next, size, size, 0, 0, size);
    for (int round = 0; round < rounds; round++) {
        relax(next, now, size, size);
        double *swap = now;
        now = next;
        next = swap;
    }
    for (int rank = 0; rank < ranks; rank++) {
        int place[2];
        MPI_Cart_coords(plate, rank, 2, place);
        wrong += compare(now, all + (size_t)rank * (size_t)(rows * columns), rows, columns, place[0] * rows, place[1] * columns, size);
    }
    free(alone);
    return wrong;
}

/* All edges of a part to the neighbours, and theirs around it. */
static void exchange(double *now, int rows, int columns, MPI_Datatype column, const int neighbours[4], MPI_Comm plate) {
    int width = columns + 2;
    MPI_Request requests[8];
    /* Above, below, left, right: where their edge goes, and which edge is theirs. */
    double *around[4] = {&now[1], &now[(rows + 1) * width + 1], &now[width], &now[2 * width - 1]};
    const double *edges[4] = {&now[width + 1], &now[rows * width + 1], &now[width + 1], &now[2 * width - 2]};
    for (int side = 0; side < 4; side++) {
        MPI_Irecv(around[side], side < 2 ? columns : 1, side < 2 ? MPI_DOUBLE : column, neighbours[side], side / 2, plate, &requests[side]);
        MPI_Isend(edges[side], side < 2 ? columns : 1, side < 2 ? MPI_DOUBLE : column, neighbours[side], side / 2, plate, &requests[4 + side]);
    }
    MPI_Waitall(8, requests, MPI_STATUSES_IGNORE);
}

int main(int count, char **arguments) {
    int sizes[2] = {0, 0}, periods[2] = {0, 0}, place[2], neighbours[4], ranks, rank;
    MPI_Comm plate;
    MPI_Datatype column;
    MPI_Init(&count, &arguments);
    int size = count > 1 ? atoi(arguments[1]) : 240, rounds = count > 2 ? atoi(arguments[2]) : 1000;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Dims_create(ranks, 2, sizes);
    MPI_Cart_create(MPI_COMM_WORLD, 2, sizes, periods, 0, &plate);
    MPI_Comm_rank(plate, &rank);
    MPI_Cart_coords(plate, rank, 2, place);
    MPI_Cart_shift(plate, 0, 1, &neighbours[0], &neighbours[1]);
    MPI_Cart_shift(plate, 1, 1, &neighbours[2], &neighbours[3]);
    if (size % sizes[0] || size % sizes[1]) {
        fprintf(stderr, "%d points cannot be divided among %d x %d ranks\n", size, sizes[0], sizes[1]);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int rows = size / sizes[0], columns = size / sizes[1], width = columns + 2;
    MPI_Type_vector(rows, 1, width, MPI_DOUBLE, &column);
    MPI_Type_commit(&column);

    size_t points = (size_t)(rows + 2) * (size_t)width;
    int *round = fermata_mpi_take(sizeof *round);
    double *plates[2] = {fermata_mpi_take(points * sizeof(double)), fermata_mpi_take(points * sizeof(double))};
    fill(plates[0], rows, columns, place[0] * rows, place[1] * columns, size);
    fill(plates[1], rows, columns, place[0] * rows, place[1] * columns, size);
    for (; *round < rounds; ++*round) {
        fermata_mpi_checkpoint();
        double *now = plates[*round % 2], *next = plates[(*round + 1) % 2], change = 0, most;
        exchange(now, rows, columns, column, neighbours, plate);
        relax(next, now, rows, columns);
        if (*round % 10 == 0) {
            for (size_t point = 0; point < points; point++)
                change = next[point] - now[point] > change ? next[point] - now[point] : change;
            MPI_Allreduce(&change, &most, 1, MPI_DOUBLE, MPI_MAX, plate);
            if (most < 0)
                MPI_Abort(MPI_COMM_WORLD, 3);
        }
    }

    double *all = rank == 0 ? malloc((size_t)size * (size_t)size * sizeof *all) : NULL;
    double *part = malloc((size_t)(rows * columns) * sizeof *part);
    for (int row = 0; row < rows; row++)
        memcpy(&part[row * columns], &plates[rounds % 2][(row + 1) * width + 1], (size_t)columns * sizeof *part);
    MPI_Gather(part, rows * columns, MPI_DOUBLE, all, rows * columns, MPI_DOUBLE, 0, plate);
    long wrong = 0;
    if (rank == 0) {
        wrong = check(all, rows, columns, size, rounds, plate, ranks);
        printf("%d rounds on %d x %d points: %s\n", rounds, size, size, wrong ? "wrong" : "right");
    }
    free(all);
    free(part);
    MPI_Type_free(&column);
    MPI_Comm_free(&plate);
    MPI_Finalize();
    return wrong != 0;
}
