/* Writes to memory, and to a disk if there is one, at a steady rate.
 *
 * Usage: work [MIB [PAGES_PER_S [DISK_KIB_PER_S [FILL]]]]      (default: 32 1000 256 0)
 * Environment: FERMATA_DISK=PATH, a directory or a block device to write to, or nothing.
 *
 * Pages are chosen at random from MIB of memory; each write changes eight bytes of one. With FILL other than 0
 * all of that memory is written once before, no two pages alike, and a line says so. The disk is
 * written past the page cache, in order, round and round over its first 16 MiB (or a file of 16 MiB).
 * Prints the work done once a second: the same figures with and without checkpoints mean no slowdown. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define DISK_BYTES (16 << 20)
#define STEPS 100 /* a second is cut into so many parts of work and rest */

static uint64_t dice = 1;
static uint64_t roll(void) {
    dice ^= dice << 13;
    dice ^= dice >> 7;
    return dice ^= dice << 17;
}

static void fail(const char *what) {
    printf("FERMATA FAIL work: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int open_disk(const char *disk) {
    char name[256];
    struct stat status;
    if (!disk || !*disk)
        return -1;
    if (stat(disk, &status))
        fail(disk);
    snprintf(name, sizeof name, S_ISDIR(status.st_mode) ? "%.240s/work" : "%.240s", disk);
    int fd = open(name, O_RDWR | O_DIRECT | (S_ISDIR(status.st_mode) ? O_CREAT : 0), 0600);
    if (fd < 0)
        fail(name);
    return fd;
}

int main(int argc, char **argv) {
    int64_t mib = argc > 1 ? atol(argv[1]) : 32, rate = argc > 2 ? atol(argv[2]) : 1000, kib = argc > 3 ? atol(argv[3]) : 256;
    static uint64_t block[PAGE / 8] __attribute__((aligned(PAGE)));
    int fd = open_disk(getenv("FERMATA_DISK"));
    uint64_t pages = mib * 256, written = 0, offset = 0, disk = 0;
    uint64_t *memory = mmap(NULL, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mib < 1 || memory == MAP_FAILED)
        fail("memory");
    if (argc > 4 && atol(argv[4])) {
        for (uint64_t page = 0; page < pages; page++)
            memory[page * (PAGE / 8)] = page + 1;
        printf("work filled %" PRIi64 "\n", mib);
        fflush(stdout);
    }
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (uint64_t step = 1;; step++) {
        for (; written < step * rate / STEPS; written++) {
            uint64_t *at = memory + roll() % pages * (PAGE / 8);
            at[roll() % (PAGE / 8)] = dice;
        }
        for (; fd >= 0 && disk < step * kib * 1024 / STEPS; disk += PAGE, offset = (offset + PAGE) % DISK_BYTES) {
            for (unsigned i = 0; i < PAGE / 8; i++)
                block[i] = roll();
            if (pwrite(fd, block, PAGE, offset) != PAGE)
                fail("writing to the disk");
        }
        if (step % STEPS == 0) {
            printf("work second %" PRIu64 " pages %" PRIu64 " disk_kib %" PRIu64 "\n", step / STEPS, written, disk >> 10);
            fflush(stdout);
        }
        next.tv_nsec += 1000000000 / STEPS;
        if (next.tv_nsec >= 1000000000) {
            next.tv_nsec -= 1000000000;
            next.tv_sec++;
        }
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
    }
}
