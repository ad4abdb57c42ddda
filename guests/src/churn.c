/* A closed computation: the same arguments give the same memory contents and the same digest.
 *
 * Usage: churn SEED MIB ROUNDS
 * Fills MIB of memory from SEED, then in each round swaps and changes words all over it, so that every
 * result hangs on all of memory. Prints one digest at the end. It reads no clock and asks for nothing. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t mix(uint64_t z) { /* splitmix64, public domain constants */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        printf("FERMATA FAIL churn: usage: churn SEED MIB ROUNDS\n");
        return 2;
    }
    uint64_t seed = strtoull(argv[1], NULL, 0), words = strtoull(argv[2], NULL, 0) << 17, rounds = strtoull(argv[3], NULL, 0);
    uint64_t *memory = words ? malloc(words * 8) : NULL;
    if (!memory) {
        printf("FERMATA FAIL churn: no memory for %s MiB\n", argv[2]);
        return 1;
    }
    for (uint64_t i = 0; i < words; i++)
        memory[i] = mix(seed + i);
    uint64_t state = mix(seed);
    for (uint64_t round = 0; round < rounds; round++) {
        /* A 16th of all words a round. */
        for (uint64_t i = 0; i < words / 16; i++) {
            uint64_t *a = memory + state % words, *b = memory + mix(state) % words, kept = *a;
            *a = mix(*b + round);
            *b = kept ^ state;
            state = mix(state + *a);
        }
    }
    for (uint64_t i = 0; i < words; i++)
        state = mix(state ^ memory[i]);
    printf("%016" PRIx64 "\n", state);
    return 0;
}
