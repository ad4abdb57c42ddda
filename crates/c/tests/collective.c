/* A program of ranks in which each round everybody sends to everybody, one puts together what all have and tells all, and then all do. Run by c/tests/c.rs, and killed by it. */
#include <err.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fermata.h"

enum tag { EXCHANGE = 1, PART, RESULT, TOTAL };

/* What ranks put together: of another size than a number, and with numbers that are aligned. */
struct found {
    uint64_t sum, most;
    uint32_t ranks;
};

struct collective {
    struct fermata_here here;
    uint64_t rounds;
    /* Of the layout. */
    uint64_t *round, *waits_for, *total;
};

static void *make(fermata_layout *layout, struct fermata_here here, void *rounds) {
    struct collective *self = malloc(sizeof *self);
    if (!self)
        return NULL;
    self->here = here;
    self->rounds = *(uint64_t *)rounds;
    self->round = fermata_take(layout, sizeof *self->round);
    self->waits_for = fermata_take(layout, sizeof *self->waits_for);
    self->total = fermata_take(layout, sizeof *self->total);
    return self->round && self->waits_for && self->total ? self : NULL;
}

static void or_die(int status) {
    if (status != 0)
        errx(1, "%s", fermata_error());
}

static void must_fail(int status, const char *what) {
    if (status == 0 || !*fermata_error())
        errx(1, "%s did not fail", what);
}

static void put_together(void *value, const void *more) {
    struct found *found = value;
    const struct found *other = more;
    found->sum += other->sum;
    if (found->most < other->most)
        found->most = other->most;
    found->ranks += other->ranks;
}

/* What a rank sends to another in a round. */
static uint64_t number(size_t from, size_t to, uint64_t round) {
    return (from + 1) * 1000 + to * 10 + round;
}

static size_t root(const struct collective *self) {
    return *self->round % self->here.ranks;
}

static void exchange(const struct collective *self, fermata_ranks *ranks) {
    uint64_t *numbers = calloc(self->here.ranks, 2 * sizeof *numbers);
    if (!numbers)
        err(1, "memory");
    for (size_t to = 0; to < self->here.ranks; to++) {
        numbers[2 * to] = number(self->here.rank, to, *self->round);
        numbers[2 * to + 1] = to;
    }
    or_die(fermata_all_to_all(ranks, EXCHANGE, numbers, 2 * sizeof *numbers));
    free(numbers);
    *self->waits_for = EXCHANGE;
}

static void begin(void *self, fermata_ranks *ranks) {
    const struct collective *own = self;
    must_fail(fermata_reduce(ranks, own->here.ranks, PART, "", 1), "a reduction at a rank that is none");
    must_fail(fermata_all_to_all(ranks, EXCHANGE, NULL, 1), "sending nothing to all");
    must_fail(fermata_all_to_all(ranks, EXCHANGE, "", SIZE_MAX), "sending more than there is");
    exchange(own, ranks);
}

static void wants(const void *self, fermata_wants *wants) {
    const struct collective *own = self;
    uint32_t tag = (uint32_t)*own->waits_for;
    if (tag == RESULT)
        or_die(fermata_want(wants, root(own), tag));
    else
        or_die(fermata_want_all(wants, tag));
}

/* What came of all parts, if it is right. */
static struct found found(const struct collective *self, const fermata_messages *got) {
    struct found found[2];
    must_fail(fermata_reduced(got, found, 1, sizeof *found, put_together), "a reduction of less than was sent");
    must_fail(fermata_reduced(got, found, 2, sizeof *found, NULL), "a reduction by nothing");
    must_fail(fermata_reduced(got, NULL, 2, sizeof *found, put_together), "a reduction into nothing");
    or_die(fermata_reduced(got, found, 2, sizeof *found, put_together));
    if (memcmp(&found[0].sum, &found[1].sum, sizeof found->sum) != 0 || found[0].ranks != self->here.ranks || found[1].ranks != 2 * self->here.ranks)
        errx(1, "%" PRIu32 " and %" PRIu32 " ranks were put together", found[0].ranks, found[1].ranks);
    return found[0];
}

static enum fermata_next step(void *self, fermata_ranks *ranks, const fermata_messages *got) {
    struct collective *own = self;
    size_t rank = own->here.rank;
    switch (*own->waits_for) {
    case EXCHANGE: {
        struct found part[2];
        memset(part, 0, sizeof part);
        for (size_t which = 0; which < fermata_count(got); which++) {
            uint64_t numbers[2];
            or_die(fermata_receive(got, which, numbers, sizeof numbers));
            if (numbers[0] != number(which, rank, *own->round) || numbers[1] != rank)
                errx(1, "rank %zu sent %" PRIu64 " for rank %" PRIu64, which, numbers[0], numbers[1]);
            part[0].sum += numbers[0];
        }
        part[0].most = part[0].sum;
        part[0].ranks = 1;
        part[1] = part[0];
        part[1].ranks = 2;
        or_die(fermata_reduce(ranks, root(own), PART, part, sizeof part));
        or_die(fermata_all_reduce(ranks, TOTAL, part, sizeof part));
        *own->waits_for = rank == root(own) ? PART : RESULT;
        return FERMATA_STEP;
    }
    case PART: {
        struct found all = found(own, got);
        or_die(fermata_broadcast(ranks, RESULT, &all, sizeof all));
        *own->waits_for = RESULT;
        return FERMATA_STEP;
    }
    case RESULT: {
        struct found all;
        or_die(fermata_receive(got, 0, &all, sizeof all));
        *own->total += all.sum + all.most;
        *own->waits_for = TOTAL;
        return FERMATA_STEP;
    }
    default: {
        struct found all = found(own, got);
        *own->total += all.sum + all.most;
        if (++*own->round < own->rounds) {
            exchange(own, ranks);
            return FERMATA_STEP;
        }
        char text[64];
        snprintf(text, sizeof text, "it comes to %" PRIu64, *own->total);
        or_die(fermata_say(ranks, text));
        return FERMATA_DONE;
    }
    }
}

int main(int argc, char **argv) {
    if (argc != 2)
        errx(2, "usage: fermata run-ranks -n RANKS collective ROUNDS");
    uint64_t rounds = strtoull(argv[1], NULL, 10);
    const struct fermata_program program = {make, begin, wants, step};
    or_die(fermata_run(&program, &rounds));
    return 0;
}
