/* Takes a virtio disk away from the kernel, and drives it from here: wrongly, with a right request now and then.
 *
 * Usage: hostile [ROUNDS [SEED]]      (default: 1000000000 1)
 *
 * It is a driver without a kernel (VIRTIO 1.2, sections 2.7, 4.1 and 5.2): the device's registers are mapped through sysfs, the ring lies in locked memory of ours,
 * whose physical addresses the kernel tells to root. What is put into the ring, and where the device is told that the ring is, is up to the dice. After each round
 * the device is reset, and must then write a sector and read it back.
 * Prints "hostile round N ok" every 50 rounds; whatever goes wrong is a line with FERMATA FAIL. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define RING 16
#define PAGES 8
#define DEVICES "/sys/bus/pci/devices"

enum { COMMON = 1, NOTIFY = 2 };
enum { NEXT = 1, WRITE = 2, INDIRECT = 4 };

struct descriptor {
    uint64_t at;
    uint32_t len;
    uint16_t flags, next;
};

static uint64_t dice = 1;
static uint64_t roll(void) {
    dice ^= dice << 13;
    dice ^= dice >> 7;
    return dice ^= dice << 17;
}

static void fail(const char *what) {
    printf("FERMATA FAIL hostile: %s (%s)\n", what, strerror(errno));
    exit(1);
}

/* Pages: descriptors, available ring, used ring, headers and status, data, and some to write into. */
static uint8_t *memory;
static uint64_t physical[PAGES];
static volatile uint8_t *common, *notify;
static uint32_t notify_multiplier;

static volatile struct descriptor *descriptors(void) { return (void *)memory; }
static volatile uint16_t *available(void) { return (void *)(memory + PAGE); }
static volatile uint16_t *used(void) { return (void *)(memory + 2 * PAGE); }
static uint8_t *headers(void) { return memory + 3 * PAGE; }
static volatile uint8_t *status(void) { return memory + 3 * PAGE + 2048; }
static uint8_t *data(void) { return memory + 4 * PAGE; }

static void set8(int at, uint8_t value) { common[at] = value; }
static void set16(int at, uint16_t value) { *(volatile uint16_t *)(common + at) = value; }
static void set32(int at, uint32_t value) { *(volatile uint32_t *)(common + at) = value; }
static void set64(int at, uint64_t value) {
    set32(at, value);
    set32(at + 4, value >> 32);
}

static void pause_us(long us) {
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

static void write_text(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        fail(path);
    close(fd);
}

/* The last virtio disk on the bus: the kernel may use the others. */
static void find(char *name, size_t size) {
    DIR *directory = opendir(DEVICES);
    struct dirent *entry;
    name[0] = 0;
    while (directory && (entry = readdir(directory))) {
        char path[600];
        uint16_t ids[2] = {0, 0};
        snprintf(path, sizeof path, DEVICES "/%s/config", entry->d_name);
        int fd = open(path, O_RDONLY);
        if (fd < 0)
            continue;
        if (read(fd, ids, 4) == 4 && ids[0] == 0x1af4 && (ids[1] == 0x1042 || ids[1] == 0x1001) && strcmp(entry->d_name, name) > 0)
            snprintf(name, size, "%.31s", entry->d_name);
        close(fd);
    }
    if (!name[0])
        fail("there is no virtio disk");
}

static volatile uint8_t *map_bar(const char *name, int bar, uint32_t offset) {
    char path[600];
    snprintf(path, sizeof path, DEVICES "/%s/resource%d", name, bar);
    int fd = open(path, O_RDWR | O_SYNC);
    if (fd < 0)
        fail(path);
    void *map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset / PAGE * PAGE);
    if (map == MAP_FAILED)
        fail("mapping the device's registers");
    close(fd);
    return (uint8_t *)map + offset % PAGE;
}

static void take_device(void) {
    char name[32], path[600];
    uint8_t config[256];
    find(name, sizeof name);
    snprintf(path, sizeof path, DEVICES "/%s/driver/unbind", name);
    if (!access(path, F_OK))
        write_text(path, name);
    snprintf(path, sizeof path, DEVICES "/%s/enable", name);
    write_text(path, "1");
    snprintf(path, sizeof path, DEVICES "/%s/config", name);
    int fd = open(path, O_RDWR);
    if (fd < 0 || pread(fd, config, sizeof config, 0) < 64)
        fail(path);
    uint16_t command = config[4] | config[5] << 8 | 6; /* memory, and bus master */
    if (pwrite(fd, &command, 2, 4) != 2)
        fail(path);
    for (int at = config[0x34]; at; at = config[at + 1]) {
        uint32_t offset;
        if (config[at] != 9)
            continue;
        memcpy(&offset, config + at + 8, 4);
        if (config[at + 3] == COMMON)
            common = map_bar(name, config[at + 4], offset);
        if (config[at + 3] == NOTIFY) {
            notify = map_bar(name, config[at + 4], offset);
            memcpy(&notify_multiplier, config + at + 16, 4);
        }
    }
    close(fd);
    if (!common || !notify)
        fail("the device has no registers of VIRTIO 1");
}

static void take_memory(void) {
    int fd = open("/proc/self/pagemap", O_RDONLY);
    memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED || fd < 0)
        fail("memory");
    for (int page = 0; page < PAGES; page++) {
        uint64_t entry;
        memset(memory + page * PAGE, 0, PAGE);
        if (pread(fd, &entry, 8, ((uintptr_t)memory / PAGE + page) * 8) != 8 || !(entry & ((1ull << 55) - 1)))
            fail("/proc/self/pagemap");
        physical[page] = (entry & ((1ull << 55) - 1)) * PAGE;
    }
    close(fd);
}

/* Resets the device and starts it with the ring at these addresses. */
static void start(uint64_t desc, uint64_t avail, uint64_t use) {
    set8(0x14, 0);
    for (int i = 0; common[0x14] && i < 10000; i++)
        pause_us(100);
    memset(memory, 0, 3 * PAGE);
    set8(0x14, 1);
    set8(0x14, 3);
    set32(0x08, 0); /* features: indirect descriptors, version 1 */
    set32(0x0c, 1 << 28);
    set32(0x08, 1);
    set32(0x0c, 1);
    set8(0x14, 11);
    set16(0x16, 0);
    set16(0x18, RING);
    set64(0x20, desc);
    set64(0x28, avail);
    set64(0x30, use);
    set16(0x1c, 1);
    set8(0x14, 15);
}

static void kick(void) { *(volatile uint16_t *)(notify + *(volatile uint16_t *)(common + 0x1e) * notify_multiplier) = 0; }

static void put(int index, uint64_t at, uint32_t len, uint16_t flags, uint16_t next) {
    volatile struct descriptor *descriptor = descriptors() + index;
    descriptor->at = at;
    descriptor->len = len;
    descriptor->flags = flags;
    descriptor->next = next;
}

static void offer(uint16_t head) {
    available()[2 + available()[1] % RING] = head;
    __sync_synchronize();
    available()[1]++;
    __sync_synchronize();
}

/* One request as everybody should make it, to the fourth sector. */
static int request(uint32_t kind) {
    uint32_t header[4] = {kind, 0, 3, 0};
    uint16_t before = used()[1];
    memcpy(headers(), header, 16);
    *status() = 0xff;
    put(0, physical[3], 16, NEXT, 1);
    put(1, physical[4], 512, NEXT | (kind ? 0 : WRITE), 2);
    put(2, physical[3] + 2048, 1, WRITE, 0);
    offer(0);
    kick();
    for (int i = 0; i < 100000 && used()[1] == before; i++)
        pause_us(100);
    return used()[1] == (uint16_t)(before + 1) && *status() == 0;
}

/* After a reset: what is written can be read. */
static void check(uint64_t number) {
    uint64_t pattern[64];
    start(physical[0], physical[1], physical[2]);
    for (int i = 0; i < 64; i++)
        pattern[i] = number * 64 + i;
    memcpy(data(), pattern, 512);
    if (!request(1))
        fail("an honest write after a reset");
    memset(data(), 0xee, 512);
    if (!request(0))
        fail("an honest read after a reset");
    if (memcmp(data(), pattern, 512))
        fail("what was read is not what was written");
}

/* What is written to must be ours or nowhere, or the kernel around us would be the victim. What is only read may be anywhere. */
static uint64_t nowhere(void) { return roll() | 1ull << 46; }

static uint64_t anywhere(void) {
    switch (roll() % 6) {
    case 0: return roll();
    case 1: return physical[roll() % PAGES] + PAGE - roll() % 32;
    case 2: return roll() % 0x200000000;
    default: return physical[4 + roll() % 3] + roll() % PAGE / 512 * 512;
    }
}

static uint64_t writable(void) { return roll() % 8 ? physical[4 + roll() % 3] + roll() % PAGE / 512 * 512 : nowhere(); }

static uint32_t length(void) {
    static const uint32_t lengths[] = {0, 1, 15, 16, 17, 48, 512, 1024, 4096, 65535, 0x7fffffff, 0xffffffff};
    return roll() % 8 ? lengths[roll() % 8] : lengths[roll() % 12];
}

/* One descriptor that means something, or nothing. */
static void any(int index, int ring) {
    switch (roll() % 8) {
    case 0:
    case 1: put(index, physical[3] + 16 * (roll() % 4), 16, NEXT, (index + 1) % ring); break;
    case 2: put(index, physical[3] + 2048, 1, WRITE, 0); break;
    case 3: put(index, writable(), 512, WRITE | (roll() % 2), roll() % (ring + 2)); break;
    case 4: put(index, writable(), roll() % 513, WRITE | NEXT, (index + 1) % ring); break;
    case 5: put(index, roll() % 4 ? physical[7] : nowhere(), roll() % 4 ? 16 * (roll() % 64) : length() & 0xfff, INDIRECT, roll()); break;
    default: put(index, anywhere(), length(), roll() % 2, roll() % (ring + 2)); break;
    }
}

static void wrong(void) {
    static const uint32_t kinds[] = {1, 4, 8, 11, 13, 0, 99};
    for (int slot = 0; slot < 4; slot++) {
        uint32_t header[4] = {kinds[roll() % 7], 0, roll() % 3 ? 8192 + roll() % 4096 : roll(), roll() % 3 ? 0 : roll()};
        memcpy(headers() + 16 * slot, header, 16);
    }
    /* Behind the ring in its page, then moved to the page of indirect tables, which no request writes to. */
    for (int i = 0; i < 64; i++)
        any(i, 64);
    memcpy(memory + 7 * PAGE, memory, 1024);
    for (int i = 0; i < RING; i++)
        any(i, RING);
    for (int i = roll() % (RING + 1); i >= 0; i--)
        offer(roll() % (RING + (roll() % 4 == 0)));
    if (roll() % 4 == 0)
        available()[1] = roll();
    for (int i = roll() % 20; i >= 0; i--)
        kick();
    /* And it changes while it is read. Any mix of old and new must still be ours or nowhere. */
    for (int i = roll() % 200; i >= 0; i--) {
        volatile struct descriptor *descriptor = descriptors() + roll() % RING;
        descriptor->at = roll() % 2 ? physical[4 + roll() % 3] : nowhere();
        descriptor->len = roll() % 513;
        descriptor->flags = roll() % 2;
        descriptor->next = roll();
    }
}

int main(int count, char **arguments) {
    long rounds = count > 1 ? atol(arguments[1]) : 1000000000;
    dice = count > 2 ? strtoull(arguments[2], NULL, 0) : 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    take_device();
    take_memory();
    check(0);
    for (long round = 1; round <= rounds; round++) {
        uint64_t at[3] = {physical[0], physical[1], physical[2]};
        /* Part of the ring in no memory. Parts out of line are left out: they end the connection to the disk for good. */
        if (roll() % 8 == 0)
            at[roll() % 3] = nowhere() & ~15ull;
        start(at[0], at[1], at[2]);
        wrong();
        pause_us(roll() % 3000);
        check(round);
        if (round % 50 == 0)
            printf("hostile round %ld ok\n", round);
    }
    printf("hostile done\n");
    return 0;
}
