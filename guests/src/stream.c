/* Writes to memory as fast as it can, after the triad of McCalpin's STREAM: a[i] = b[i] + s * c[i], with the three arrays changing places.
 *
 * Usage: stream [MIB]      (default: 96; three arrays of a third each)
 * Prints "stream mib N" a few times a second: MiB written since the start. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BLOCK (128 * 1024) /* words between two looks at the clock: 1 MiB */

int main(int argc, char **argv) {
    size_t words = (argc > 1 ? strtoull(argv[1], NULL, 0) : 96) / 3 * BLOCK;
    double *arrays[3], written = 0, said = 0;
    for (int i = 0; i < 3; i++) {
        arrays[i] = words ? malloc(words * sizeof(double)) : NULL;
        if (!arrays[i]) {
            printf("FERMATA FAIL stream: no memory for %s MiB\n", argc > 1 ? argv[1] : "96");
            return 1;
        }
        for (size_t word = 0; word < words; word++)
            arrays[i][word] = i + 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (unsigned round = 0;; round++) {
        double *a = arrays[round % 3], *b = arrays[(round + 1) % 3], *c = arrays[(round + 2) % 3];
        for (size_t from = 0; from < words; from += BLOCK) {
            for (size_t word = from; word < from + BLOCK; word++)
                a[word] = b[word] * 0.5 + 0.25 * c[word];
            written += 1;
            struct timespec now;
            clock_gettime(CLOCK_MONOTONIC, &now);
            double seconds = now.tv_sec + now.tv_nsec * 1e-9;
            if (seconds - said >= 0.2) {
                said = seconds;
                printf("stream mib %.0f\n", written);
            }
        }
    }
}
