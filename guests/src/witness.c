/* Watches the clocks of the machine that it runs on, and says what it saw of them.
 *
 * Usage: witness [SLEEPS [BUSY_MS]]
 * A round is SLEEPS (default 100) sleeps of 10 ms, then BUSY_MS (default 1000) of looking at every
 * clock without a rest. Each round prints one line of KEY VALUE pairs; all times are in microseconds.
 *
 *   late_p50, late_p97, late_max  how much longer than 10 ms a sleep took
 *   gap_mono, gap_real, gap_tsc   the longest time between two looks at one clock while busy
 *   back_mono, back_real, back_tsc  how often a clock showed less than before
 *   drift_real, drift_tsc         how far the clock moved against the monotonic one, this round
 *   total_real, total_tsc         the same since the start
 *
 * A pause that the guest can see makes a gap, a late sleep, or a drift. The TSC is converted by
 * its rate against the monotonic clock in the first second. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <x86intrin.h>

#define SLEEP_NS 10000000
#define SLEEPS_MAX 100000

struct look {
    int64_t mono, real, tsc;
};
struct watch {
    int64_t last, gap, back;
};

static double tsc_per_ns;
static int64_t late[SLEEPS_MAX];

static int64_t read_clock(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static struct look look(void) {
    struct look now = {read_clock(CLOCK_MONOTONIC), read_clock(CLOCK_REALTIME), (int64_t)__rdtsc()};
    return now;
}

/* The look, of many, whose clocks were read closest together: the scheduler may step in between. */
static struct look sharp_look(void) {
    struct look best = look();
    int64_t best_width = INT64_MAX;
    for (int i = 0; i < 64; i++) {
        struct look now = look();
        int64_t width = read_clock(CLOCK_MONOTONIC) - now.mono;
        if (width < best_width) {
            best = now;
            best_width = width;
        }
    }
    return best;
}

static void see(struct watch *watch, int64_t now) {
    int64_t gap = now - watch->last;
    if (gap < 0)
        watch->back++;
    if (gap > watch->gap)
        watch->gap = gap;
    watch->last = now;
}

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t tsc_us(int64_t ticks) { return (int64_t)(ticks / tsc_per_ns / 1000); }

static void sleeps(int count) {
    struct timespec pause = {0, SLEEP_NS};
    for (int i = 0; i < count; i++) {
        int64_t before = read_clock(CLOCK_MONOTONIC);
        nanosleep(&pause, NULL);
        late[i] = read_clock(CLOCK_MONOTONIC) - before - SLEEP_NS;
    }
    qsort(late, count, sizeof late[0], by_size);
}

/* A drift in microseconds of a clock against the monotonic one between two looks. */
static int64_t drift_real(struct look from, struct look to) {
    return ((to.real - from.real) - (to.mono - from.mono)) / 1000;
}
static int64_t drift_tsc(struct look from, struct look to) {
    return tsc_us(to.tsc - from.tsc) - (to.mono - from.mono) / 1000;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 100;
    int64_t busy_ns = (argc > 2 ? atoi(argv[2]) : 1000) * 1000000LL;
    if (count < 1 || count > SLEEPS_MAX || busy_ns < 0) {
        printf("FERMATA FAIL witness: SLEEPS must be 1 to %d and BUSY_MS at least 0\n", SLEEPS_MAX);
        return 2;
    }
    struct look start = sharp_look(), now;
    do
        now = sharp_look();
    while (now.mono - start.mono < 1000000000);
    tsc_per_ns = (double)(now.tsc - start.tsc) / (now.mono - start.mono);
    printf("witness tsc %.3f MHz\n", tsc_per_ns * 1000);
    start = sharp_look();

    for (int64_t round = 1;; round++) {
        struct look from = sharp_look();
        sleeps(count);
        now = look();
        struct watch mono = {now.mono, 0, 0}, real = {now.real, 0, 0}, tsc = {now.tsc, 0, 0};
        int64_t end = now.mono + busy_ns;
        while (now.mono < end) {
            now = look();
            see(&mono, now.mono);
            see(&real, now.real);
            see(&tsc, now.tsc);
        }
        now = sharp_look();
        printf("witness round %" PRId64 " late_p50 %" PRId64 " late_p97 %" PRId64 " late_max %" PRId64
               " gap_mono %" PRId64 " gap_real %" PRId64 " gap_tsc %" PRId64 " back_mono %" PRId64 " back_real %" PRId64
               " back_tsc %" PRId64 " drift_real %" PRId64 " drift_tsc %" PRId64 " total_real %" PRId64 " total_tsc %" PRId64 "\n",
               round, late[count / 2] / 1000, late[count * 97 / 100] / 1000, late[count - 1] / 1000, mono.gap / 1000,
               real.gap / 1000, tsc_us(tsc.gap), mono.back, real.back, tsc.back, drift_real(from, now), drift_tsc(from, now),
               drift_real(start, now), drift_tsc(start, now));
        fflush(stdout);
    }
}
