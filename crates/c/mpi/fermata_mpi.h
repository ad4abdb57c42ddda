/* Checkpoints of programs of MPI.
 *
 *     int *round = fermata_mpi_take(sizeof *round);
 *     double *grid = fermata_mpi_take(points * sizeof *grid);
 *     ... the program sets them to what they are in the beginning ...
 *     for (; *round < rounds; ++*round) {
 *         fermata_mpi_checkpoint();
 *         ... the program's own MPI calls ...
 *     }
 *
 *     mpicc -o program program.c PREFIX/share/fermata/fermata_mpi*.c $(pkg-config --cflags --libs fermata)
 *     fermata run-ranks --transport mpi -n 4 ./program
 *
 * When a rank dies all begin again: each runs as it did, up to its first fermata_mpi_checkpoint(), which then brings the memory back as it was at the call where the last checkpoint was taken. So all
 * that changes from round to round lies in that memory, and nothing has to be asked. Started without fermata, the program runs as ever.
 *
 * These functions and the MPI calls of a program that uses them end the program, with a text that says what to do, where something is not as it has to be.
 */
#ifndef FERMATA_MPI_H
#define FERMATA_MPI_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory that checkpoints have, zeros in the beginning, aligned to 64 bytes. Between MPI_Init and the first call below, and always the same pieces in the same order. */
void *fermata_mpi_take(size_t bytes);

/* Here the rank can be captured: no request is open, and all that it needs to go on from here is in memory of fermata_mpi_take, but for what the program sets before the first call.
 *
 * Every rank comes here at least once. The first call waits for all ranks; no other does. What was sent before the first call is received before it, and communicators are made before
 * it. Best at the head of the outermost loop, where every rank comes as often. */
void fermata_mpi_checkpoint(void);

#ifdef __cplusplus
}
#endif

#endif
