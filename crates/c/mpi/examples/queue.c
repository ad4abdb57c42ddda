/* Work for whoever asks: rank 0 hands out numbers, and the others say how many steps each takes to come to 1 (Collatz), which takes them longer or shorter. Who gets which number is by
 * chance, and another one after a failure; the sum is not. In the end rank 0 does all of it alone.
 *
 *     queue NUMBERS
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "fermata_mpi.h"

enum { RESULT, TASK, EACH = 2000 };

static long steps(long task) {
    long steps = 0;
    for (long number = task * EACH + 1; number <= (task + 1) * EACH; number++)
        for (long at = number; at != 1; at = at % 2 ? 3 * at + 1 : at / 2)
            steps++;
    return steps;
}

/* What a rank has to keep from round to round. */
struct kept {
    long next, sum, ended;  /* of rank 0 */
    long result, has_asked; /* of the others */
};

static void hand_out(struct kept *kept, long tasks, int ranks) {
    const long none = -1;
    while (kept->ended < ranks - 1) {
        fermata_mpi_checkpoint();
        long result;
        MPI_Status status;
        MPI_Recv(&result, 1, MPI_LONG, MPI_ANY_SOURCE, RESULT, MPI_COMM_WORLD, &status);
        kept->sum += result;
        int is_over = kept->next == tasks;
        MPI_Send(is_over ? &none : &kept->next, 1, MPI_LONG, status.MPI_SOURCE, TASK, MPI_COMM_WORLD);
        kept->next += !is_over;
        kept->ended += is_over;
    }
}

/* The call stands between the question and its answer: there a rank can be captured whether rank 0 is captured before it answers or after. */
static void work(struct kept *kept) {
    for (;;) {
        fermata_mpi_checkpoint();
        if (kept->has_asked) {
            long task;
            MPI_Recv(&task, 1, MPI_LONG, 0, TASK, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (task < 0)
                return;
            kept->result = steps(task);
        }
        MPI_Send(&kept->result, 1, MPI_LONG, 0, RESULT, MPI_COMM_WORLD);
        kept->has_asked = 1;
    }
}

int main(int count, char **arguments) {
    int rank, ranks, is_right = 1;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long tasks = count > 1 ? atol(arguments[1]) : 1000;
    struct kept *kept = fermata_mpi_take(sizeof *kept);
    if (rank == 0)
        hand_out(kept, tasks, ranks);
    else
        work(kept);
    if (rank == 0) {
        long sum = 0;
        for (long task = 0; task < tasks; task++)
            sum += steps(task);
        is_right = sum == kept->sum;
        printf("%ld steps for %ld numbers: %s\n", kept->sum, tasks * EACH, is_right ? "right" : "wrong");
    }
    MPI_Finalize();
    return !is_right;
}
