/* Counts in an area: how often the program ran, and a list with a node for each run. Run by c/tests/c.rs, and killed by it now and then. */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fermata.h"

struct node {
    unsigned long value;
    struct node *next; /* pointers hold: an area comes back at its address */
};

static void or_die(int status) {
    if (status != 0)
        errx(1, "%s", fermata_error());
}

int main(int argc, char **argv) {
    if (argc != 4)
        errx(2, "usage: counter STORE CYCLES TRACKING");
    fermata_area *area;
    if (fermata_open(argv[1], "counter", 1 << 20, FERMATA_AUTO, 1u << 31, &area) == 0 || !strstr(fermata_error(), "0x80000000"))
        errx(1, "a flag that is none was taken: %s", fermata_error());
    or_die(fermata_open(argv[1], "counter", 1 << 20, (enum fermata_tracking)atoi(argv[3]), FERMATA_ONLY_STORES | FERMATA_COPY_ON_WRITE, &area));
    struct node *first = fermata_root(area);
    unsigned long sum = 0, count = 0;
    for (struct node *node = first; node; node = node->next, count++)
        sum += node->value;
    if (first && (first->value != count || sum != count * (count + 1) / 2))
        errx(1, "%lu nodes, the first says %lu, the sum is %lu", count, first->value, sum);
    for (long left = atol(argv[2]); left > 0; left--) {
        struct node *node = fermata_alloc(area, sizeof *node);
        if (!node)
            errx(1, "%s", fermata_error());
        node->value = ++count;
        node->next = fermata_root(area);
        or_die(fermata_set_root(area, node));
        if (left % 2) {
            or_die(fermata_commit(area));
        } else {
            fermata_pending *pending;
            /* The commit has the first, though the second is written while it may not be copied yet: it is undone. */
            or_die(fermata_commit_behind(area, &pending));
            node->value = 0;
            or_die(fermata_wait(pending));
            or_die(fermata_roll_back(area));
            if (node->value != count)
                errx(1, "the commit has %lu in the place of %lu", node->value, count);
        }
        printf("%lu\n", count);
        fflush(stdout);
    }
    /* Undone. */
    memset(fermata_memory(area), 0xff, fermata_size(area));
    or_die(fermata_roll_back(area));
    if (fermata_free(area, (char *)fermata_memory(area) + 3) == 0 || !*fermata_error())
        errx(1, "a block that is none was given back");
    fermata_close(area);
    return 0;
}
