/* What libfermata has for the sources of fermata_mpi, and for nobody else: a process of a program of MPI is one rank. Functions that return int return -1 with a text in fermata_error(). Where a rank or a tag
 * is negative any will do. */
#ifndef FERMATA_RANK_H
#define FERMATA_RANK_H

#include <stddef.h>
#include <stdint.h>

enum { HEAD = 24 };
/* In the context of a message: its sender waits until it is received. It is found as one without. */
#define SYNCHRONOUS (UINT32_C(1) << 31)

struct fermata_arrival {
    size_t from;
    uint32_t context;
    int tag;
    const void *bytes;
    size_t length;
    void *owner;
};
int fermata_rank_join(size_t rank, size_t ranks);
void *fermata_rank_take(size_t bytes);
/* The first call: the memory becomes what a checkpoint has. */
int fermata_rank_begin(void);
/* What goes in front of a message. */
int fermata_rank_head(size_t to, uint32_t context, int tag, unsigned char *head);
int fermata_rank_arrived(size_t from, const unsigned char *message, size_t bytes);
/* Looks what has come: only that is found from now on, so that of two who ask for alike messages the first finds the first. */
int fermata_rank_look(void);
/* 1: there is such a message, and its owner is to be released; 0: there is none. */
int fermata_rank_find(int from, uint32_t context, int tag, int take, struct fermata_arrival *arrival);
void fermata_rank_release(void *owner);
/* There was none, and the program waits for it. */
int fermata_rank_in_vain(int from);
int fermata_rank_call(void);
/* Returns when all ranks are at their end. */
int fermata_rank_finish(void);
void fermata_rank_fail(const char *why);

#endif
