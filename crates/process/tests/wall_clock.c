/* Loaded before a program: its wall clock is ahead by the seconds that are in the file WALL_CLOCK_AHEAD, which may change at any time. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int64_t ahead(void) {
    int64_t seconds = 0;
    const char *name = getenv("WALL_CLOCK_AHEAD");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return 0;
    ssize_t count = read(file, &seconds, sizeof seconds);
    close(file);
    return count == sizeof seconds ? seconds : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = (int)syscall(SYS_clock_gettime, clock, now);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += ahead();
    return status;
}
