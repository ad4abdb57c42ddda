/* Asks an NTP server once: sntp ADDRESS PORT. Prints what it says and what the clock here shows, in nanoseconds since 1970; or "silence". */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

static int64_t at(const unsigned char *stamp) {
    uint32_t seconds, fraction;
    memcpy(&seconds, stamp, 4);
    memcpy(&fraction, stamp + 4, 4);
    return ((int64_t)ntohl(seconds) - 2208988800LL) * 1000000000LL + (((int64_t)ntohl(fraction) * 1000000000LL) >> 32);
}

int main(int count, char **words) {
    unsigned char packet[48] = {0x23}, answer[1500];
    struct sockaddr_in to = {.sin_family = AF_INET};
    struct timeval patience = {.tv_sec = 2};
    if (count != 3 || inet_pton(AF_INET, words[1], &to.sin_addr) != 1) return 2;
    to.sin_port = htons(atoi(words[2]));
    memcpy(packet + 40, "question", 8);
    int socket_ = socket(AF_INET, SOCK_DGRAM, 0);
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    for (int tries = 0; tries < 10; tries++) {
        struct timespec now;
        if (sendto(socket_, packet, sizeof packet, 0, (struct sockaddr *)&to, sizeof to) < 0) continue;
        ssize_t length = recv(socket_, answer, sizeof answer, 0);
        clock_gettime(CLOCK_REALTIME, &now);
        if (length < 48 || (answer[0] & 7) != 4 || memcmp(answer + 24, "question", 8)) continue;
        printf("%lld %lld\n", (long long)at(answer + 40), now.tv_sec * 1000000000LL + now.tv_nsec);
        return 0;
    }
    puts("silence");
    return 0;
}
