/*
 * beat: does the same again and again, and notes of each time when it was and how long it took.
 *
 *   beat sleep FILE COUNT                   sleeps of 10 ms
 *   beat work FILE COUNT LOOPS              the same computation
 *   beat ping FILE COUNT ADDRESS EVERY_US   echo requests at a steady rate
 *   beat sink FILE COUNT                    takes datagrams, until none comes for 3 s; notes their numbers instead
 *   beat clock FILE COUNT                   reads the processor's clock (TSC) without end; notes two records each time it leapt or had stood still:
 *                                           when and how far it leapt, and for how long we read it before while it stood
 *   beat flood ADDRESS COUNT BYTES PER_S    sends numbered datagrams; PER_S 0: as fast as the system takes them
 *
 * SIGTERM ends it early. Nothing is written before the end, since that would disturb what is measured. FILE holds, all little-endian:
 * where the monotonic clock (ns), the machine's power management timer (3,579,545 Hz, 24 bits) and the wall clock (ns) stood at the
 * beginning, and the same at the end, which tells virtual time from the guest's own; how many echo replies came twice; how many
 * records follow; and of each its begin (ns, 64 bits) and what it took (ns, 32 bits, at most 2.1 s; -1 if there was no end). The
 * timer's port is that of QEMU's machines.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PM_TIMER 0x608
#define SECOND 1000000000LL
#define SLEEP_NS 10000000
#define COUNT_MAX 4000000
#define BYTES_MAX 65000
#define PORT 7778
/* After the last request. */
#define WAIT_NS (3 * SECOND)

struct record {
    int64_t at;
    int32_t took;
} __attribute__((packed));

struct look {
    int64_t mono, timer, real;
};

struct head {
    struct look begin, end;
    int64_t doubled, count;
};

static struct record *records;
static struct head head;
static volatile sig_atomic_t ended;
static volatile uint64_t result;
static char bytes[BYTES_MAX];

static void end(int signal)
{
    (void)signal;
    ended = 1;
}

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

static void fail(const char *what)
{
    fprintf(stderr, "FERMATA FAIL beat: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Of many looks the one at which the two clocks were read closest together. */
static struct look look(void)
{
    struct look best = {0};
    int64_t least = INT64_MAX;
    for (int i = 0; i < 200; i++) {
        int64_t before = now(), timer = inl(PM_TIMER) & 0xffffff, width = now() - before;
        if (width < least) {
            least = width;
            best.mono = before + width / 2;
            best.timer = timer;
        }
    }
    struct timespec real;
    clock_gettime(CLOCK_REALTIME, &real);
    best.real = real.tv_sec * SECOND + real.tv_nsec - (now() - best.mono);
    return best;
}

static void note(int64_t at, int64_t took)
{
    records[head.count].at = at;
    records[head.count].took = took > INT32_MAX ? INT32_MAX : took;
    head.count++;
}

static void sleeps(long count)
{
    struct timespec pause = {0, SLEEP_NS};
    while (!ended && head.count < count) {
        int64_t before = now();
        nanosleep(&pause, NULL);
        note(before, now() - before);
    }
}

static void work(long count, long loops)
{
    while (!ended && head.count < count) {
        int64_t before = now();
        uint64_t state = 88172645463325252;
        for (long i = 0; i < loops; i++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
        result = state;
        note(before, now() - before);
    }
}

/* Ticks. A reading takes a few hundred at most; whatever comes between two takes longer than this. */
#define LEAP 5000

static int64_t ticks(void)
{
    return __builtin_ia32_rdtsc();
}

/* How often it was read while it stood, not for how long: what a reading takes is known in the end. */
static void leaps(long count)
{
    int64_t mono = now(), begin = ticks(), last = begin, read = 0, steps = 0, stood = 0;
    while (!ended && head.count + 2 <= count) {
        int64_t at = ticks();
        if (at == last) {
            stood++;
            continue;
        }
        if (stood || at - last > LEAP) {
            records[head.count].at = last;
            records[head.count].took = at - last > INT32_MAX ? INT32_MAX : at - last;
            records[head.count + 1].at = last;
            records[head.count + 1].took = stood;
            head.count += 2;
            stood = 0;
        } else {
            steps += at - last;
            read++;
        }
        last = at;
    }
    double tick_ns = (double)(now() - mono) / (ticks() - begin), step_ns = steps * tick_ns / (read ? read : 1);
    for (int64_t i = 0; i < head.count; i++) {
        double took = records[i].took * (i % 2 ? step_ns : tick_ns);
        records[i].at = mono + (records[i].at - begin) * tick_ns;
        records[i].took = took > INT32_MAX ? INT32_MAX : took;
    }
}

static int open_socket(int type, int protocol)
{
    int size = 16 << 20, fd = socket(AF_INET, type, protocol);
    /* More than the system's limit is cut down to it without a word, unless root forces it. */
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size))
        fail("socket");
    return fd;
}

static struct sockaddr_in address_of(const char *text, int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (!inet_aton(text, &to.sin_addr)) {
        errno = EINVAL;
        fail(text);
    }
    return to;
}

struct echo {
    struct icmphdr header;
    uint32_t number;
    char rest[48];
};

static uint16_t checksum(const void *data, size_t size)
{
    const uint16_t *words = data;
    uint32_t sum = 0;
    for (size_t i = 0; i < size / 2; i++)
        sum += words[i];
    sum = (sum >> 16) + (sum & 0xffff);
    return ~(sum + (sum >> 16));
}

/* Takes all replies that are there. */
static void hear(int fd, uint16_t id)
{
    char packet[1500];
    ssize_t size;
    while ((size = recv(fd, packet, sizeof packet, MSG_DONTWAIT)) >= 20) {
        int64_t at = now();
        size_t begin = (packet[0] & 15) * 4;
        struct echo echo;
        if (size < (ssize_t)(begin + sizeof echo))
            continue;
        memcpy(&echo, packet + begin, sizeof echo);
        if (echo.header.type != ICMP_ECHOREPLY || echo.header.un.echo.id != id || echo.number >= head.count)
            continue;
        struct record *record = &records[echo.number];
        if (record->took != -1)
            head.doubled++;
        else
            record->took = at - record->at > INT32_MAX ? INT32_MAX : at - record->at;
    }
}

static void ping(long count, const char *address, long every_us)
{
    struct sockaddr_in to = address_of(address, 0);
    int fd = open_socket(SOCK_RAW, IPPROTO_ICMP);
    uint16_t id = getpid();
    int64_t next = now(), last = next;
    while ((!ended && head.count < count) || now() < last + WAIT_NS) {
        int sends = !ended && head.count < count;
        int64_t left = (sends ? next : last + WAIT_NS) - now();
        struct timespec time = {left > 0 ? left / SECOND : 0, left > 0 ? left % SECOND : 0};
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        ppoll(&wait, 1, &time, NULL);
        hear(fd, id);
        /* What was slept through is not made up for. */
        if (sends && now() >= next) {
            struct echo echo = {.header = {.type = ICMP_ECHO, .un.echo = {id, head.count}}, .number = head.count};
            next = now() + every_us * 1000;
            echo.header.checksum = checksum(&echo, sizeof echo);
            note(last = now(), -1);
            if (sendto(fd, &echo, sizeof echo, 0, (struct sockaddr *)&to, sizeof to) != sizeof echo)
                fail("sendto");
        }
    }
}

static void sink(long count)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    int fd = open_socket(SOCK_DGRAM, 0);
    if (bind(fd, (struct sockaddr *)&here, sizeof here))
        fail("bind");
    while (!ended && head.count < count) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        uint32_t number;
        if (poll(&wait, 1, head.count ? WAIT_NS / 1000000 : -1) == 0)
            break;
        if (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) < (ssize_t)sizeof number)
            continue;
        memcpy(&number, bytes, sizeof number);
        note(now(), number);
    }
}

static int flood(const char *address, long count, long size, long per_second)
{
    struct sockaddr_in to = address_of(address, PORT);
    int fd = open_socket(SOCK_DGRAM, 0);
    int64_t begin = now();
    for (uint32_t number = 0; number < count && !ended; number++) {
        int64_t left = per_second ? begin + number * SECOND / per_second - now() : 0;
        struct timespec pause = {left / SECOND, left % SECOND};
        if (left > 0)
            nanosleep(&pause, NULL);
        memcpy(bytes, &number, sizeof number);
        if (sendto(fd, bytes, size, 0, (struct sockaddr *)&to, sizeof to) != size && errno != ENOBUFS)
            fail("sendto");
    }
    return 0;
}

static void write_down(const char *path)
{
    FILE *file = fopen(path, "w");
    if (!file || fwrite(&head, sizeof head, 1, file) != 1 ||
        fwrite(records, sizeof *records, head.count, file) != (size_t)head.count || fclose(file))
        fail(path);
}

int main(int words, char **word)
{
    long count = words > 3 ? atol(word[3]) : 0, size = words > 4 ? atol(word[4]) : 0;
    struct sigaction action = {.sa_handler = end};
    sigaction(SIGTERM, &action, NULL);
    if (words == 6 && !strcmp(word[1], "flood") && size >= 4 && size <= BYTES_MAX)
        return flood(word[2], count, size, atol(word[5]));
    if (words < 4 || count < 1 || count > COUNT_MAX) {
        fprintf(stderr, "usage: beat sleep|work|ping|sink|clock FILE COUNT [...] | beat flood ADDRESS COUNT BYTES PER_S\n");
        return 2;
    }
    records = calloc(count, sizeof *records);
    if (!records || iopl(3))
        fail("memory and ports");
    /* The pages are there before they are written in the middle of a measurement. */
    memset(records, 1, count * sizeof *records);
    head.begin = look();
    if (!strcmp(word[1], "sleep"))
        sleeps(count);
    else if (!strcmp(word[1], "work") && words == 5)
        work(count, size);
    else if (!strcmp(word[1], "ping") && words == 6)
        ping(count, word[4], atol(word[5]));
    else if (!strcmp(word[1], "sink"))
        sink(count);
    else if (!strcmp(word[1], "clock"))
        leaps(count);
    head.end = look();
    write_down(word[2]);
    return 0;
}
