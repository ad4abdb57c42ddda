/* A program of ranks: each adds up what all send, round after round, and looks after memory of its own. Run by c/tests/c.rs, and killed by it. */
#include <err.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "fermata.h"

enum { NUMBERS = 1, CELLS = 1 << 16 };

struct sum {
    struct fermata_here here;
    uint64_t rounds;
    /* Of the layout. */
    uint64_t *round, *total, *cells;
};

static void *make(fermata_layout *layout, struct fermata_here here, void *rounds) {
    struct sum *sum = malloc(sizeof *sum);
    if (!sum)
        return NULL;
    sum->here = here;
    sum->rounds = *(uint64_t *)rounds;
    sum->round = fermata_take(layout, sizeof *sum->round);
    sum->total = fermata_take(layout, sizeof *sum->total);
    sum->cells = fermata_take(layout, CELLS * sizeof *sum->cells);
    return sum->round && sum->total && sum->cells ? sum : NULL;
}

static void or_die(int status) {
    if (status != 0)
        errx(1, "%s", fermata_error());
}

static void send_number(const struct sum *sum, fermata_ranks *ranks) {
    uint64_t number = (sum->here.rank + 1) * (*sum->round + 1);
    or_die(fermata_broadcast(ranks, NUMBERS, &number, sizeof number));
}

static void begin(void *self, fermata_ranks *ranks) {
    const struct sum *sum = self;
    if (fermata_send(ranks, sum->here.ranks, NUMBERS, "", 1) == 0 || !*fermata_error())
        errx(1, "something was sent to a rank that is none");
    send_number(sum, ranks);
}

static void wants(const void *self, fermata_wants *wants) {
    const struct sum *sum = self;
    /* Or it would be waited for, for ever. */
    if (fermata_want(wants, sum->here.ranks, NUMBERS) == 0 || !*fermata_error())
        errx(1, "something is wanted from a rank that is none");
    or_die(fermata_want_all(wants, NUMBERS));
}

static enum fermata_next step(void *self, fermata_ranks *ranks, const fermata_messages *got) {
    struct sum *sum = self;
    uint64_t own = *sum->round;
    for (size_t which = 0; which < fermata_count(got); which++) {
        uint64_t number;
        if (fermata_length(got, which) != sizeof number || fermata_from(got, which) != which)
            errx(1, "message %zu is another one", which);
        if (fermata_receive(got, which, NULL, sizeof number) == 0)
            errx(1, "message %zu was received into nothing", which);
        or_die(fermata_receive(got, which, &number, sizeof number));
        *sum->total += number;
    }
    for (size_t cell = 0; cell < CELLS; cell++) {
        if (sum->cells[cell] != own * cell) {
            fermata_say(ranks, "a cell has another value than was written to it");
            return FERMATA_FAILED;
        }
        sum->cells[cell] += cell;
    }
    if (++*sum->round == sum->rounds) {
        char text[64];
        snprintf(text, sizeof text, "the sum is %" PRIu64, *sum->total);
        or_die(fermata_say(ranks, text));
        return FERMATA_DONE;
    }
    send_number(sum, ranks);
    return FERMATA_STEP;
}

int main(int argc, char **argv) {
    if (argc != 2)
        errx(2, "usage: fermata run-ranks -n RANKS sum ROUNDS");
    uint64_t rounds = strtoull(argv[1], NULL, 10);
    const struct fermata_program program = {make, begin, wants, step};
    or_die(fermata_run(&program, &rounds));
    return 0;
}
