/* A guest program that knows what its memory and its disk must hold, and looks all the time.
 *
 * Usage: selfcheck [MIB [FILE_MIB [SECONDS [KEY]]]]      (default: 64 16 0 random; 0 seconds is for ever)
 * Environment: FERMATA_DISK=PATH, a directory or a block device to use, or nothing.
 *
 * Memory and files are cut into units of 512 bytes. What a unit holds follows from the key, its
 * number and its version. The versions are kept in a second place and a sum of the contents of each
 * MiB in a third, so one of the three cannot go back in time alone and still fit the other two.
 *
 * A round takes about a second: it rewrites random runs of units, checks as much as it has time for
 * in half of it, and prints "selfcheck round N ok ...". A difference prints "SELFCHECK FAIL ..." and ends with status 1.
 *
 * In a directory it uses two files, one written past the page cache (O_DIRECT) and one through it, whose
 * cache is dropped again and again, and it punches holes. On a raw device it uses the first FILE_MIB. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define UNIT 512u
#define WORDS (UNIT / 8)
#define MIB (1u << 20)
#define UNITS_PER_MIB (MIB / UNIT)
#define RUN_MAX 64u       /* units in one write; 64 is 32 KiB */
#define FAILS_MAX 10      /* then it gives up */
#define LOOK_BACK 100000u /* versions tried to say what a wrong unit is */
#define ROUND_NS 1000000000LL
#define CHECK_NS (ROUND_NS / 2) /* the processor is somebody else's for the rest */
#define HOLE 0u           /* the version of a unit that reads as zeros */

enum { MEMORY = 1, DIRECT = 2, BUFFERED = 3 };

/* A place under test: memory if fd is -1, else a file or device. */
struct place {
    uint64_t kind, units, writes, checks;
    uint32_t *versions; /* what each unit holds now */
    uint32_t last;      /* the newest version given out: none is given twice, so nothing old can pass for new */
    uint64_t *sums;     /* memory only: the xor of all words of each MiB */
    uint64_t *memory;
    int fd;
    uint64_t next;      /* the next MiB to check */
    char name[256];
};

static uint64_t key, dice;
static int fails;

static uint64_t mix(uint64_t z) { /* splitmix64, public domain constants */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint64_t roll(uint64_t below) {
    dice += 0x9e3779b97f4a7c15ull;
    return mix(dice) % below;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

__attribute__((format(printf, 1, 2))) static void failed(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    printf("SELFCHECK FAIL ");
    vprintf(format, rest);
    printf("\n");
    fflush(stdout);
    va_end(rest);
    if (++fails >= FAILS_MAX)
        exit(1);
}

/* Fills one unit with what it holds at a version. */
static void content(uint64_t kind, uint64_t unit, uint32_t version, uint64_t *out) {
    if (version == HOLE) {
        memset(out, 0, UNIT);
        return;
    }
    uint64_t state = mix(key ^ mix(kind << 56 | unit) ^ (uint64_t)version << 32);
    for (unsigned i = 0; i < WORDS; i++)
        out[i] = mix(state += 0x9e3779b97f4a7c15ull);
}

static uint64_t sum_of(const uint64_t *unit) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < WORDS; i++)
        sum ^= unit[i];
    return sum;
}

/* Says which unit is wrong, and whether it is one of its own earlier states. */
static void report(struct place *place, uint64_t unit, const uint64_t *got, const uint64_t *want) {
    unsigned at = 0;
    while (got[at] == want[at])
        at++;
    uint32_t version = place->versions[unit];
    char what[64] = "as never lately";
    uint64_t old[WORDS];
    for (uint32_t back = 0; back < LOOK_BACK && back <= place->last; back++) {
        content(place->kind, unit, place->last - back, old);
        if (!memcmp(old, got, UNIT)) {
            snprintf(what, sizeof what, "as at version %" PRIu32, place->last - back);
            break;
        }
    }
    failed("%s unit %" PRIu64 " (byte %" PRIu64 ", at %p): is %s, must be as at version %" PRIu32 "; word %u is %016" PRIx64
           ", must be %016" PRIx64,
           place->name, unit, unit * UNIT + at * 8, place->memory ? (void *)(place->memory + unit * WORDS) : NULL, what, version,
           at, got[at], want[at]);
}

static void compare(struct place *place, uint64_t unit, const uint64_t *got) {
    uint64_t want[WORDS];
    content(place->kind, unit, place->versions[unit], want);
    if (memcmp(got, want, UNIT))
        report(place, unit, got, want);
    place->checks++;
}

static void rewrite_memory(struct place *place, uint64_t first, uint64_t count) {
    for (uint64_t unit = first; unit < first + count; unit++) {
        uint64_t *at = place->memory + unit * WORDS, *sum = place->sums + unit / UNITS_PER_MIB;
        *sum ^= sum_of(at);
        content(place->kind, unit, place->versions[unit] = ++place->last, at);
        *sum ^= sum_of(at);
        place->writes++;
    }
}

static void check_memory(struct place *place) {
    uint64_t first = place->next * UNITS_PER_MIB, sum = 0;
    for (uint64_t unit = first; unit < first + UNITS_PER_MIB; unit++) {
        compare(place, unit, place->memory + unit * WORDS);
        sum ^= sum_of(place->memory + unit * WORDS);
    }
    if (sum != place->sums[place->next])
        failed("%s MiB %" PRIu64 ": the sum is %016" PRIx64 ", must be %016" PRIx64, place->name, place->next, sum,
               place->sums[place->next]);
}

/* O_DIRECT wants aligned memory. */
static uint64_t buffer[MIB / 8] __attribute__((aligned(4096)));

static void write_file(struct place *place, uint64_t first, uint64_t count) {
    ssize_t bytes = count * UNIT;
    for (uint64_t i = 0; i < count; i++)
        content(place->kind, first + i, place->versions[first + i] = ++place->last, buffer + i * WORDS);
    if (pwrite(place->fd, buffer, bytes, first * UNIT) != bytes)
        failed("%s: writing %zd bytes at unit %" PRIu64 ": %s", place->name, bytes, first, strerror(errno));
    place->writes += count;
}

static void punch_file(struct place *place, uint64_t first, uint64_t count) {
    if (fallocate(place->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, first * UNIT, count * UNIT)) {
        if (errno != EOPNOTSUPP)
            failed("%s: punching a hole at unit %" PRIu64 ": %s", place->name, first, strerror(errno));
        return;
    }
    for (uint64_t i = 0; i < count; i++)
        place->versions[first + i] = HOLE;
}

static void check_file(struct place *place, uint64_t first, uint64_t count) {
    ssize_t bytes = count * UNIT, got = pread(place->fd, buffer, bytes, first * UNIT);
    if (got != bytes) {
        failed("%s: reading %zd bytes at unit %" PRIu64 " gave %zd: %s", place->name, bytes, first, got, strerror(errno));
        return;
    }
    for (uint64_t i = 0; i < count; i++)
        compare(place, first + i, buffer + i * WORDS);
}

static void *pages(uint64_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        failed("cannot have %" PRIu64 " bytes of memory: %s", bytes, strerror(errno));
        exit(1);
    }
    return at;
}

static void open_memory(struct place *place, uint64_t mib) {
    *place = (struct place){.kind = MEMORY, .units = mib * UNITS_PER_MIB, .fd = -1, .name = "memory"};
    place->memory = pages(mib * MIB);
    place->versions = pages(place->units * sizeof *place->versions);
    place->sums = pages(mib * sizeof *place->sums);
    rewrite_memory(place, 0, place->units);
}

static void open_file(struct place *place, uint64_t kind, const char *name, int flags, uint64_t mib) {
    *place = (struct place){.kind = kind, .units = mib * UNITS_PER_MIB};
    snprintf(place->name, sizeof place->name, "%s", name);
    place->versions = pages(place->units * sizeof *place->versions);
    place->fd = open(name, O_RDWR | O_CLOEXEC | flags, 0600);
    if (place->fd < 0) {
        failed("%s: cannot open: %s", name, strerror(errno));
        exit(1);
    }
    for (uint64_t first = 0; first < place->units; first += RUN_MAX)
        write_file(place, first, RUN_MAX);
}

static int open_files(struct place *places, const char *disk, uint64_t mib) {
    struct stat status;
    char name[200];
    if (!disk || !*disk || !mib)
        return 0;
    if (stat(disk, &status)) {
        failed("%s: %s", disk, strerror(errno));
        exit(1);
    }
    if (S_ISBLK(status.st_mode)) {
        open_file(places, DIRECT, disk, O_DIRECT, mib);
        return 1;
    }
    snprintf(name, sizeof name, "%.150s/selfcheck.%d.direct", disk, getpid());
    open_file(places, DIRECT, name, O_DIRECT | O_CREAT | O_TRUNC, mib);
    snprintf(name, sizeof name, "%.150s/selfcheck.%d.buffered", disk, getpid());
    open_file(places + 1, BUFFERED, name, O_CREAT | O_TRUNC, mib);
    return 2;
}

/* One run of units: a random place and length. */
static uint64_t run_at(struct place *place, uint64_t *count) {
    *count = 1 + roll(RUN_MAX);
    return roll(place->units - *count + 1);
}

static void disturb(struct place *places, int count) {
    uint64_t length, first;
    for (int p = 0; p < count; p++) {
        struct place *place = places + p;
        /* A 32nd of the memory, or a dozen file writes. */
        int runs = place->memory ? (int)(place->units / 32 / (RUN_MAX / 2)) + 1 : 12;
        for (int i = 0; i < runs; i++) {
            first = run_at(place, &length);
            if (place->memory)
                rewrite_memory(place, first, length);
            else if (roll(8) == 0)
                punch_file(place, first, length);
            else
                write_file(place, first, length);
        }
        if (place->kind == BUFFERED && roll(2) == 0) {
            /* Only what is on the disk can be dropped, and is then read from there. */
            if (fdatasync(place->fd))
                failed("%s: flushing: %s", place->name, strerror(errno));
            posix_fadvise(place->fd, 0, 0, POSIX_FADV_DONTNEED);
        }
    }
}

static void check_next(struct place *place) {
    if (place->memory)
        check_memory(place);
    else
        check_file(place, place->next * UNITS_PER_MIB, UNITS_PER_MIB);
    place->next = (place->next + 1) % (place->units / UNITS_PER_MIB);
}

int main(int argc, char **argv) {
    long mib = argc > 1 ? atol(argv[1]) : 64, file_mib = argc > 2 ? atol(argv[2]) : 16, seconds = argc > 3 ? atol(argv[3]) : 0;
    static struct place places[3];
    if (mib < 1 || file_mib < 0 || seconds < 0) {
        failed("usage: selfcheck [MIB [FILE_MIB [SECONDS [KEY]]]]");
        return 2;
    }
    if (argc > 4)
        key = strtoull(argv[4], NULL, 0);
    else if (getrandom(&key, sizeof key, 0) != sizeof key)
        failed("no random key: %s", strerror(errno));
    dice = mix(key);
    open_memory(places, mib);
    int count = 1 + open_files(places + 1, getenv("FERMATA_DISK"), file_mib);
    printf("selfcheck key %016" PRIx64 " memory %ld MiB, %d file(s) of %ld MiB\n", key, mib, count - 1, file_mib);

    int64_t start = now_ns();
    for (uint64_t round = 1; !fails; round++) {
        int64_t begin = now_ns();
        disturb(places, count);
        /* As much as there is time for, at most all of it, and at least one MiB of each place. */
        for (uint64_t i = 0; i < places[0].units / UNITS_PER_MIB && (i == 0 || now_ns() - begin < CHECK_NS); i++)
            for (int p = 0; p < count; p++)
                check_next(places + p);
        if (fails)
            break;
        printf("selfcheck round %" PRIu64 " ok units written %" PRIu64 " checked %" PRIu64 " in files %" PRIu64 "\n", round,
               places[0].writes + places[1].writes + places[2].writes, places[0].checks + places[1].checks + places[2].checks,
               places[1].checks + places[2].checks);
        fflush(stdout);
        int64_t left = begin + ROUND_NS - now_ns();
        if (left > 0)
            usleep(left / 1000);
        if (seconds && now_ns() - start > seconds * 1000000000LL) {
            printf("selfcheck done after %" PRIu64 " rounds\n", round);
            return 0;
        }
    }
    return 1;
}
