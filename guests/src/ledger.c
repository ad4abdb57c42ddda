/*
 * ledger: whether a replicated Redis loses a write that it has acknowledged, or does one twice.
 *
 *   ledger ADDRESS REPLICAS
 *
 * Appends 1, 2, 3, ... to the list "ledger", each when the one before it is acknowledged by the master and by all replicas. The
 * answer to each is the length of the list, so a write that is lost or done twice shows in the next answer at the latest. Says
 * "ledger wrote N" twice a second, and FERMATA FAIL when an answer is another than it must be, or a connection is lost.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PORT 6379
#define SECOND 1000000000LL
/* Replicas have so long to acknowledge a write: no longer than master and replica wait before they give each other up. */
#define WAIT_MS 10000

/* The two ways of one connection. */
static FILE *to_redis, *from_redis;

static long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

/* The number that Redis answers to a command, which is a line of words; -1 for another answer. */
static long ask(const char *command)
{
    char line[256];
    if (fprintf(to_redis, "%s\r\n", command) < 0 || fflush(to_redis) || !fgets(line, sizeof line, from_redis)) {
        printf("FERMATA FAIL ledger: the connection is lost at: %s\n", command);
        exit(1);
    }
    if (line[0] == ':')
        return atol(line + 1);
    printf("ledger hears %s", line);
    return -1;
}

static int reach(const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    int fd = -1;
    if (!inet_aton(address, &to.sin_addr))
        return -1;
    do {
        if (fd >= 0) {
            close(fd);
            usleep(200000);
        }
        fd = socket(AF_INET, SOCK_STREAM, 0);
    } while (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to));
    return fd;
}

int main(int count, char **words)
{
    long replicas = count == 3 ? atol(words[2]) : 0;
    long long told = now();
    char wait[64], push[64];
    int fd = replicas > 0 ? reach(words[1]) : -1;
    if (fd < 0 || !(to_redis = fdopen(fd, "w")) || !(from_redis = fdopen(dup(fd), "r"))) {
        fprintf(stderr, "usage: ledger ADDRESS REPLICAS\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    snprintf(wait, sizeof wait, "WAIT %ld %d", replicas, WAIT_MS);
    /* The replicas come when they have booted. */
    while (ask("DEL ledger") < 0 || ask(wait) < replicas)
        usleep(200000);
    for (long number = 1;; number++) {
        snprintf(push, sizeof push, "RPUSH ledger %ld", number);
        long length = ask(push), acknowledged = ask(wait);
        if (length != number || acknowledged != replicas) {
            printf("FERMATA FAIL ledger: after write %ld the list has %ld, and %ld replicas acknowledged\n", number, length, acknowledged);
            return 1;
        }
        if (now() - told > SECOND / 2) {
            told = now();
            printf("ledger wrote %ld\n", number);
        }
    }
}
