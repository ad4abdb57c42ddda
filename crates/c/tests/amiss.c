/* What a program of MPI must not do, and is told of: run by c/tests/mpi.rs.
 *
 *     amiss WHAT
 */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "fermata_mpi.h"

int main(int count, char **arguments) {
    int rank, value = 0;
    MPI_Request request;
    MPI_Message message;
    MPI_Comm made;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char *what = arguments[1];
    if (!strcmp(what, "before") && rank == 0)
        MPI_Send(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
    if (!strcmp(what, "never"))
        MPI_Finalize();
    fermata_mpi_checkpoint();
    if (!strcmp(what, "refused"))
        MPI_Mprobe(1 - rank, 0, MPI_COMM_WORLD, &message, MPI_STATUS_IGNORE);
    if (!strcmp(what, "open")) {
        MPI_Irecv(&value, 1, MPI_INT, 1 - rank, 0, MPI_COMM_WORLD, &request);
        fermata_mpi_checkpoint();
    }
    if (!strcmp(what, "communicator"))
        MPI_Comm_dup(MPI_COMM_WORLD, &made);
    if (!strcmp(what, "memory"))
        fermata_mpi_take(1);
    if (!strcmp(what, "abort"))
        MPI_Abort(MPI_COMM_WORLD, 7);
    MPI_Finalize();
    return !strcmp(what, "status") ? 3 : 0;
}
