/*
 * clocks: reads every clock of the machine side by side, once a second.
 *
 * When the second of the real time clock changes, it notes the time stamp counter (edge), and then looks at all others. Each line says what they showed, in
 * their own units and as read at one time: mono and real (ns), tsc, pm (the power management timer: 3,579,545 Hz, 24 bits), hpet (-1: it cannot be read),
 * rtc (seconds since midnight, at the time stamp edge), and steal (hundredths of a second that the kernel thinks were taken from it).
 *
 *   clocks round N mono NS real NS tsc TICKS pm TICKS hpet TICKS rtc S edge TICKS steal N
 *
 * The ports and the address of the HPET are those of QEMU's machines.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#define PM_TIMER 0x608
#define CMOS_INDEX 0x70
#define CMOS_DATA 0x71
#define HPET 0xfed00000
#define HPET_CONFIG 0x10
#define HPET_RUNS 1
#define HPET_COUNTER 0xf0
#define LOOKS 50
#define REST_US 700000 /* of each second, in which there is nothing to see */

struct look {
    int64_t mono, real, tsc, pm, hpet;
};

static const volatile uint8_t *hpet;

static int64_t read_clock(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int64_t read_hpet(void)
{
    return hpet ? (int64_t)*(const volatile uint32_t *)(hpet + HPET_COUNTER) : -1;
}

/* Of many looks the one at which all clocks were read closest together. */
static struct look look(void)
{
    struct look best = {0};
    int64_t least = INT64_MAX;
    for (int i = 0; i < LOOKS; i++) {
        struct look now = {.tsc = __rdtsc()};
        now.mono = read_clock(CLOCK_MONOTONIC);
        now.real = read_clock(CLOCK_REALTIME);
        now.pm = inl(PM_TIMER) & 0xffffff;
        now.hpet = read_hpet();
        int64_t width = __rdtsc() - now.tsc;
        if (width < least) {
            least = width;
            best = now;
        }
    }
    return best;
}

static int cmos(int place)
{
    outb(place, CMOS_INDEX);
    int value = inb(CMOS_DATA);
    return (value >> 4) * 10 + (value & 15);
}

/* Waits until the second changes. Since midnight; where the time stamp counter stood then. */
static int next_second(int64_t *edge)
{
    int before = cmos(0), second;
    while ((second = cmos(0)) == before)
        ;
    *edge = __rdtsc();
    return cmos(4) * 3600 + cmos(2) * 60 + second;
}

static long steal(void)
{
    long stolen = -1;
    FILE *file = fopen("/proc/stat", "r");
    if (!file || fscanf(file, "cpu %*d %*d %*d %*d %*d %*d %*d %ld", &stolen) != 1) {
        printf("FERMATA FAIL clocks: /proc/stat\n");
        exit(1);
    }
    fclose(file);
    return stolen;
}

/* The HPET's counter, if there is one, it runs, and the kernel lets us see it. */
static void map_hpet(void)
{
    int fd = open("/dev/mem", O_RDONLY);
    void *place = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, HPET);
    if (place == MAP_FAILED)
        printf("clocks: no HPET: %s\n", strerror(errno));
    else if (*(const volatile uint32_t *)((uint8_t *)place + HPET_CONFIG) & HPET_RUNS)
        hpet = place;
    else
        printf("clocks: the HPET stands still\n");
}

int main(void)
{
    if (iopl(3)) {
        printf("FERMATA FAIL clocks: ports: %s\n", strerror(errno));
        return 1;
    }
    map_hpet();
    for (int64_t round = 1;; round++) {
        int64_t edge;
        int second = next_second(&edge);
        struct look now = look();
        printf("clocks round %" PRId64 " mono %" PRId64 " real %" PRId64 " tsc %" PRId64 " pm %" PRId64 " hpet %" PRId64
               " rtc %d edge %" PRId64 " steal %ld\n",
               round, now.mono, now.real, now.tsc, now.pm, now.hpet, second, edge, steal());
        fflush(stdout);
        usleep(REST_US);
    }
}
