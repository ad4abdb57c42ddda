/* A simulator of events: a network of nodes that send each other messages, in the manner of the large network simulators.
 *
 * Usage: events [NODES [MESSAGES [LOG]]]      (default: 2000 60000 no log)
 *
 * MESSAGES are under way at any time. Each is a piece of heap with a payload and a route; each event takes one from the queue (a heap
 * ordered by time), drops it and makes a new one, or hands it on to a neighbour with a new delay. So memory is written all over and with
 * new content all the time. LOG names a file that gets the statistics, a line for each node, again and again. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEIGHBOURS 4
#define HOPS_MAX 16
#define PAYLOAD_MAX 1024
#define BETWEEN 200000 /* events between two reports */
#define LOG_MAX (32 << 20)

struct message {
    double due;
    uint32_t node, hops;
    uint32_t route[HOPS_MAX];
    uint32_t length;
    uint8_t payload[];
};

struct node {
    uint64_t received, bytes;
    double last, delay_sum;
    uint32_t neighbours[NEIGHBOURS];
};

static uint64_t dice = 88172645463325252u;
static uint64_t roll(void) {
    dice ^= dice << 13;
    dice ^= dice >> 7;
    return dice ^= dice << 17;
}

static void *need(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory) {
        puts("FERMATA FAIL events: out of memory");
        exit(1);
    }
    return memory;
}

static struct message **queue;
static size_t queued;

static void push(struct message *message) {
    size_t at = queued++;
    for (; at && queue[(at - 1) / 2]->due > message->due; at = (at - 1) / 2)
        queue[at] = queue[(at - 1) / 2];
    queue[at] = message;
}

static struct message *pop(void) {
    struct message *first = queue[0], *last = queue[--queued];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < queued; at = child) {
        if (child + 1 < queued && queue[child + 1]->due < queue[child]->due)
            child++;
        if (last->due <= queue[child]->due)
            break;
        queue[at] = queue[child];
    }
    queue[at] = last;
    return first;
}

static double delay(void) { return 1e-3 + (double)(roll() % 1000000) / 1e6; }

static struct message *make(double now, uint32_t nodes) {
    uint32_t length = 64 + roll() % (PAYLOAD_MAX - 64);
    struct message *message = need(sizeof *message + length);
    memset(message, 0, sizeof *message);
    message->due = now + delay();
    message->node = roll() % nodes;
    message->length = length;
    for (uint32_t at = 0; at + 8 <= length; at += 8) {
        uint64_t word = roll();
        memcpy(message->payload + at, &word, 8);
    }
    return message;
}

static void report(const char *log, const struct node *nodes, uint32_t count, uint64_t events) {
    printf("events %" PRIu64 "\n", events);
    fflush(stdout);
    FILE *file = log ? fopen(log, "a") : NULL;
    if (!file)
        return;
    // Statistics go on for ever; the disk does not.
    if (fseek(file, 0, SEEK_END) || ftell(file) > LOG_MAX)
        file = freopen(log, "w", file);
    for (uint32_t node = 0; file && node < count; node++)
        fprintf(file, "%u %" PRIu64 " %" PRIu64 " %.6f %.6f\n", node, nodes[node].received, nodes[node].bytes, nodes[node].last, nodes[node].delay_sum);
    if (file)
        fclose(file);
}

int main(int argc, char **argv) {
    uint32_t count = argc > 1 ? atol(argv[1]) : 2000, messages = argc > 2 ? atol(argv[2]) : 60000;
    const char *log = argc > 3 ? argv[3] : NULL;
    struct node *nodes = need(count * sizeof *nodes);
    memset(nodes, 0, count * sizeof *nodes);
    for (uint32_t node = 0; node < count; node++)
        for (unsigned link = 0; link < NEIGHBOURS; link++)
            nodes[node].neighbours[link] = roll() % count;
    queue = need((messages + 1) * sizeof *queue);
    for (uint32_t message = 0; message < messages; message++)
        push(make(0, count));
    for (uint64_t events = 1;; events++) {
        struct message *message = pop();
        struct node *node = &nodes[message->node];
        double now = message->due;
        node->received++;
        node->bytes += message->length;
        node->delay_sum += now - node->last;
        node->last = now;
        if (message->hops == HOPS_MAX || roll() % 8 == 0) {
            free(message);
            message = make(now, count);
        } else {
            message->route[message->hops++] = message->node;
            message->node = node->neighbours[roll() % NEIGHBOURS];
            message->due = now + delay();
        }
        push(message);
        if (events % BETWEEN == 0)
            report(log, nodes, count, events);
    }
}
