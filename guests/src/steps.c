/* Does the same small piece of work again and again, as fast as it can, and says how far it is fifty times a second.
 *
 * Usage: steps [MIB [PAGES [LOOPS]]]      (default: 64 1 20000)
 *
 * First it fills MIB of memory, no two pages alike, and says so. Then each step computes in LOOPS rounds and rewrites one word of
 * PAGES pages chosen at random. A step costs the same wherever it falls, so what is done in a second tells how fast the guest runs. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define WORDS 512 /* of a page */
#define BETWEEN_NS 20000000

static uint64_t dice = 1;
static uint64_t roll(void) {
    dice ^= dice << 13;
    dice ^= dice >> 7;
    return dice ^= dice << 17;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

int main(int argc, char **argv) {
    int64_t mib = argc > 1 ? atol(argv[1]) : 64, touched = argc > 2 ? atol(argv[2]) : 1, loops = argc > 3 ? atol(argv[3]) : 20000;
    uint64_t pages = mib * 256;
    uint64_t *memory = mmap(NULL, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mib < 1 || memory == MAP_FAILED) {
        printf("FERMATA FAIL steps: no %" PRIi64 " MiB of memory\n", mib);
        return 1;
    }
    for (uint64_t page = 0; page < pages; page++)
        for (unsigned word = 0; word < WORDS; word += 64)
            memory[page * WORDS + word] = roll();
    printf("steps filled %" PRIi64 "\n", mib);
    int64_t next = now_ns() + BETWEEN_NS;
    for (uint64_t step = 1;; step++) {
        for (int64_t loop = 0; loop < loops; loop++)
            roll();
        for (int64_t page = 0; page < touched; page++) {
            uint64_t at = roll() % pages;
            memory[at * WORDS + roll() % WORDS] = dice;
        }
        if (now_ns() >= next) {
            printf("steps %" PRIu64 " at_us %" PRIi64 "\n", step, now_ns() / 1000);
            fflush(stdout);
            // A guest that was put elsewhere in time does not make up for what it missed.
            next = now_ns() + BETWEEN_NS;
        }
    }
}
