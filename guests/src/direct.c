/* Reads a file into its own memory and writes it from there, past the page cache, and knows what both must hold.
 *
 * Usage: direct [MIB]      (default: 8)
 * Environment: FERMATA_DISK=DIRECTORY, where the file is made (default: /disk).
 *
 * Memory and file are as large as each other. A round does some of four things to random pages: it changes memory, writes memory to the file, to the
 * same place or to another, reads the file into memory likewise, and checks memory. It prints "direct round N ok checked C", or
 * "FERMATA FAIL direct ..." and ends. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define WORDS (PAGE / 8)
#define RUN_MAX 8 /* pages of a transfer */
#define STEPS 64  /* of a round */
#define PAUSE_US 20000

static uint64_t dice = 88172645463325252u;
static uint64_t roll(uint64_t below) {
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return dice % below;
}

/* What a page holds follows from one number, another one for each change; 0 is a page of zeros. */
static uint64_t word_of(uint64_t content, uint64_t word) {
    uint64_t z = (content << 10 ^ word) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return content == 0 ? 0 : z ^ (z >> 27);
}

static void fill(uint64_t *page, uint64_t content) {
    for (uint64_t word = 0; word < WORDS; word++)
        page[word] = word_of(content, word);
}

static void check(const uint64_t *page, uint64_t content, uint64_t number, uint64_t round) {
    for (uint64_t word = 0; word < WORDS; word++)
        if (page[word] != word_of(content, word)) {
            printf("FERMATA FAIL direct round %" PRIu64 ": word %" PRIu64 " of page %" PRIu64 " is %016" PRIx64 "\n", round, word, number, page[word]);
            exit(1);
        }
}

int main(int argc, char **argv) {
    uint64_t pages = (argc > 1 ? strtoul(argv[1], NULL, 10) : 8) * (1 << 20) / PAGE, changes = 0;
    const char *directory = getenv("FERMATA_DISK");
    char name[256];
    snprintf(name, sizeof name, "%.200s/direct.%d", directory ? directory : "/disk", getpid());
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    uint64_t *in_memory = calloc(pages, sizeof *in_memory), *in_file = calloc(pages, sizeof *in_file);
    uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (pages <= RUN_MAX || !in_memory || !in_file || memory == MAP_FAILED || fd < 0) {
        printf("FERMATA FAIL direct: no memory, or no file %s\n", name);
        return 1;
    }
    for (uint64_t page = 0; page < pages; page++) {
        in_memory[page] = in_file[page] = ++changes;
        fill(memory + page * WORDS, changes);
        if (pwrite(fd, memory + page * WORDS, PAGE, page * PAGE) != PAGE) {
            printf("FERMATA FAIL direct: the file cannot be written\n");
            return 1;
        }
    }
    for (uint64_t round = 1;; round++) {
        uint64_t checked = 0;
        for (int step = 0; step < STEPS; step++) {
            uint64_t run = 1 + roll(RUN_MAX), place = roll(pages - run), other = roll(2) ? place : roll(pages - run);
            size_t bytes = run * PAGE;
            switch (roll(4)) {
            case 0:
                in_memory[place] = ++changes;
                fill(memory + place * WORDS, changes);
                break;
            case 1:
                if (pwrite(fd, memory + place * WORDS, bytes, other * PAGE) != (ssize_t)bytes) {
                    printf("FERMATA FAIL direct: the file cannot be written\n");
                    return 1;
                }
                memcpy(in_file + other, in_memory + place, run * sizeof *in_file);
                break;
            case 2:
                if (pread(fd, memory + place * WORDS, bytes, other * PAGE) != (ssize_t)bytes) {
                    printf("FERMATA FAIL direct: the file cannot be read\n");
                    return 1;
                }
                memcpy(in_memory + place, in_file + other, run * sizeof *in_file);
                break;
            default:
                for (uint64_t page = place; page < place + run; page++, checked++)
                    check(memory + page * WORDS, in_memory[page], page, round);
            }
        }
        printf("direct round %" PRIu64 " ok checked %" PRIu64 "\n", round, checked);
        fflush(stdout);
        usleep(PAUSE_US);
    }
}
