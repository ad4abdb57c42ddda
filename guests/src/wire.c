/*
 * wire: whether a network loses, repeats or reorders anything, and how long it takes.
 *
 *   wire listen                        sends every datagram back
 *   wire send ADDRESS [PER_S [BYTES]]  sends numbered datagrams at a steady rate
 *
 * Datagrams are numbered from 1. Both sides know which number comes next, and say FERMATA FAIL when
 * another one comes. Number 0 finds out whether the other side is there, and counts for nothing.
 * The links between them must lose nothing, and their queues must be long enough.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PORT 7777
#define SECOND 1000000000LL
#define BYTES_MAX 65000

struct datagram {
    uint64_t number;
    int64_t sent;
    char rest[BYTES_MAX];
};

static struct datagram datagram;

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

static void fail(const char *what, uint64_t number, uint64_t expected)
{
    printf("FERMATA FAIL wire %s: got %llu, expected %llu\n", what, (unsigned long long)number, (unsigned long long)expected);
    fflush(stdout);
}

static int open_socket(void)
{
    int size = 8 << 20;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    /* More than the system's limit is cut down to it without a word, unless root forces it. */
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size)) {
        perror("FERMATA FAIL wire: socket");
        exit(1);
    }
    return fd;
}

static int listen_for(void)
{
    struct sockaddr_in from, here = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    uint64_t heard = 0;
    int64_t told = now();
    int fd = open_socket();
    if (bind(fd, (struct sockaddr *)&here, sizeof here)) {
        perror("FERMATA FAIL wire: bind");
        return 1;
    }
    for (;;) {
        socklen_t size = sizeof from;
        ssize_t bytes = recvfrom(fd, &datagram, sizeof datagram, 0, (struct sockaddr *)&from, &size);
        if (bytes < 16)
            continue;
        if (datagram.number && datagram.number != heard + 1)
            fail("heard", datagram.number, heard + 1);
        heard = datagram.number;
        sendto(fd, &datagram, bytes, 0, (struct sockaddr *)&from, size);
        if (now() - told > SECOND / 2) {
            told = now();
            printf("wire heard %llu\n", (unsigned long long)heard);
            fflush(stdout);
        }
    }
}

static int send_to(const char *address, long per_second, long bytes)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    uint64_t sent = 0, back = 0, counted = 0;
    int64_t least = INT64_MAX, most = 0, sum = 0, next, told;
    int fd = open_socket(), there = 0;
    if (!inet_aton(address, &to.sin_addr) || connect(fd, (struct sockaddr *)&to, sizeof to) || per_second < 1 || bytes < 16 ||
        bytes > BYTES_MAX) {
        fprintf(stderr, "FERMATA FAIL wire: cannot send to %s\n", address);
        return 1;
    }
    while (!there) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        datagram.number = 0;
        send(fd, &datagram, bytes, 0);
        poll(&wait, 1, 500);
        while (recv(fd, &datagram, sizeof datagram, MSG_DONTWAIT) >= 16)
            there = 1;
    }
    next = told = now();
    for (;;) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        int64_t left = next - now();
        struct timespec time = {0, left > 0 ? left % SECOND : 0};
        ppoll(&wait, 1, &time, NULL);
        while (recv(fd, &datagram, sizeof datagram, MSG_DONTWAIT) >= 16) {
            int64_t took = now() - datagram.sent;
            if (datagram.number == 0)
                continue;
            if (datagram.number != ++back)
                fail("back", datagram.number, back);
            back = datagram.number;
            least = took < least ? took : least;
            most = took > most ? took : most;
            sum += took;
            counted++;
        }
        /* What was slept through is not made up for. */
        if (now() >= next) {
            next = now() + SECOND / per_second;
            datagram.number = ++sent;
            datagram.sent = now();
            if (send(fd, &datagram, bytes, 0) != bytes)
                fail("sent", 0, sent);
        }
        if (now() - told > SECOND / 2 && counted) {
            told = now();
            printf("wire sent %llu back %llu rtt_us %lld %lld %lld\n", (unsigned long long)sent, (unsigned long long)back,
                   (long long)least / 1000, (long long)(sum / (int64_t)counted) / 1000, (long long)most / 1000);
            fflush(stdout);
            least = INT64_MAX, most = sum = 0, counted = 0;
        }
    }
}

int main(int count, char **words)
{
    if (count == 2 && !strcmp(words[1], "listen"))
        return listen_for();
    if (count >= 3 && count <= 5 && !strcmp(words[1], "send"))
        return send_to(words[2], count > 3 ? atol(words[3]) : 100, count > 4 ? atol(words[4]) : 100);
    fprintf(stderr, "usage: wire listen | wire send ADDRESS [PER_S [BYTES]]\n");
    return 2;
}
