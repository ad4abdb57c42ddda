/* Writes to a file through a shared mapping, and knows what the file must hold.
 *
 * Usage: mapio [MIB]      (default: 16)
 * Environment: FERMATA_DISK=DIRECTORY, where the file is made (default: /disk).
 *
 * Each page of the file has a version, kept in memory, from which all its words follow. A round rewrites random pages through the mapping, some
 * of them twice, and checks others: through the mapping and by read(2). Now and then the file is flushed and dropped from the page cache, so that
 * its pages are read from the disk again. It prints "mapio round N ok checked C", or "FERMATA FAIL mapio ..." and ends. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define WORDS 512 /* of a page */
#define PAGE 4096
#define WRITES 64 /* in a round */
#define CHECKS 192
#define DROP_EVERY 4 /* rounds */
#define PAUSE_US 20000

static uint64_t dice = 88172645463325252u;
static uint64_t roll(void) {
    dice ^= dice << 13;
    dice ^= dice >> 7;
    return dice ^= dice << 17;
}

static uint64_t word_of(uint64_t page, uint64_t version, uint64_t word) {
    uint64_t z = (page << 40 ^ version << 10 ^ word) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return version == 0 ? 0 : z ^ (z >> 27);
}

static void check(const uint64_t *content, uint64_t page, uint64_t version, const char *how, uint64_t round) {
    for (uint64_t word = 0; word < WORDS; word++)
        if (content[word] != word_of(page, version, word)) {
            printf("FERMATA FAIL mapio round %" PRIu64 ": word %" PRIu64 " of page %" PRIu64 " %s is %016" PRIx64 "\n", round, word, page, how,
                   content[word]);
            exit(1);
        }
}

int main(int argc, char **argv) {
    uint64_t pages = (argc > 1 ? strtoul(argv[1], NULL, 10) : 16) * (1 << 20) / PAGE;
    const char *directory = getenv("FERMATA_DISK");
    char name[256];
    snprintf(name, sizeof name, "%.200s/mapio.%d", directory ? directory : "/disk", getpid());
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    uint32_t *versions = calloc(pages, sizeof *versions);
    uint64_t *mapped = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, pages * PAGE) == 0)
        mapped = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (pages == 0 || versions == NULL || mapped == MAP_FAILED) {
        printf("FERMATA FAIL mapio: no mapping of %s\n", name);
        return 1;
    }
    for (uint64_t round = 1;; round++) {
        for (int i = 0; i < WRITES; i++) {
            uint64_t page = roll() % pages;
            versions[page]++;
            for (uint64_t word = 0; word < WORDS; word++)
                mapped[page * WORDS + word] = word_of(page, versions[page], word);
        }
        for (int i = 0; i < CHECKS; i++) {
            uint64_t page = roll() % pages, content[WORDS];
            check(mapped + page * WORDS, page, versions[page], "in the mapping", round);
            if (pread(fd, content, PAGE, page * PAGE) != PAGE) {
                printf("FERMATA FAIL mapio: page %" PRIu64 " cannot be read\n", page);
                return 1;
            }
            check(content, page, versions[page], "in the file", round);
        }
        if (round % DROP_EVERY == 0) {
            fsync(fd);
            madvise(mapped, pages * PAGE, MADV_DONTNEED);
            posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        }
        printf("mapio round %" PRIu64 " ok checked %d\n", round, CHECKS);
        fflush(stdout);
        usleep(PAUSE_US);
    }
}
