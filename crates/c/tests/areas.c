/* Several areas: commits at one instant, commits that nobody waits for, and a child of fork() that lets go. Run by c/tests/c.rs, which kills it. */
#include <err.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fermata.h"

static void or_die(int status) {
    if (status != 0)
        errx(1, "%s", fermata_error());
}

static fermata_area *opened(const char *store, const char *name) {
    fermata_area *area;
    or_die(fermata_open(store, name, 4096, FERMATA_COMPARE, FERMATA_ANYWHERE, &area));
    return area;
}

int main(int argc, char **argv) {
    if (argc != 2)
        errx(2, "usage: areas STORE");
    fermata_area *areas[2] = {opened(argv[1], "one"), opened(argv[1], "two")}, *twice[2] = {areas[0], areas[0]};
    unsigned long *one = fermata_memory(areas[0]), *two = fermata_memory(areas[1]);
    or_die(fermata_keep_last(areas[0], 100));
    if (fermata_keep_last(NULL, 1) == 0)
        errx(1, "no area keeps commits");
    *one = *two = 1;
    or_die(fermata_commit_together(areas, 2));
    if (fermata_commit_together(twice, 2) == 0 || !strstr(fermata_error(), "twice"))
        errx(1, "an area that is named twice was committed: %s", fermata_error());
    *one = 2;
    or_die(fermata_commit_message(areas[0], "the second of one"));
    *two = 2;
    or_die(fermata_commit_behind(areas[1], NULL));
    or_die(fermata_drain(areas[1]));
    *two = 3;
    fermata_pending *pending;
    int done;
    or_die(fermata_commit_behind(areas[1], &pending));
    while ((done = fermata_done(pending)) == 0)
        usleep(1000);
    if (done != 1 || fermata_done(NULL) != -1)
        errx(1, "a commit is done by %d", done);
    or_die(fermata_wait(pending));
    pid_t child = fork();
    if (child == -1)
        err(1, "fork");
    if (child == 0) {
        for (int which = 0; which < 2; which++)
            fermata_abandon(areas[which]);
        printf("%ld\n", (long)getpid());
        fflush(stdout);
    }
    /* Neither is left behind by a test that fails. */
    alarm(60);
    pause();
    return 0;
}
