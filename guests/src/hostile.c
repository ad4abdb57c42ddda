/* Takes a virtio device away from the kernel, and drives it from here: wrongly, with a right request now and then.
 *
 * Usage: hostile disk|net [ROUNDS [SEED]]      (default: 1000000000 1)
 *
 * It is a driver without a kernel (VIRTIO 1.2, sections 2.7, 4.1, 5.1 and 5.2): the device's registers are mapped through sysfs, the rings lie in locked memory
 * of ours, whose physical addresses the kernel tells to root. What is put into the rings, and where the device is told that they are, is up to the dice. After
 * each round the device is reset. Then a disk must write a sector and read it back; a network interface must ask for the address of 10.0.0.1 and get its answer.
 * Prints "hostile DEVICE round N ok" every 25 rounds; whatever goes wrong is a line with FERMATA FAIL. */
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
#define PATIENCE_MS 20000
#define RING 16
#define RINGS 2
#define DEVICES "/sys/bus/pci/devices"

enum { COMMON = 1, NOTIFY = 2, CONFIG = 4 };
/* Bytes of the device's own registers that are written to. */
enum { CONFIG_BYTES = 60, WRITE_CACHE = 32 };
enum { NEXT = 1, WRITE = 2, INDIRECT = 4 };
/* The rings of a network interface. A disk has the first one only. */
enum { RECEIVE = 0, SEND = 1 };
/* Pages: descriptors, available and used ring of each ring; headers and status; data; indirect tables, which no request writes to. */
enum { HEADERS = 3 * RINGS, DATA, DATA_PAGES = 3, TABLES = DATA + DATA_PAGES, PAGES };
/* In the page of headers: a status, and a frame behind its header. */
enum { STATUS = 2048, FRAME = 1024, FRAME_BYTES = 12 + 60 };
/* Buffers for frames, two in a page of data. */
enum { BUFFERS = 4, BUFFER_BYTES = 2048 };

struct device {
    const char *name;
    uint16_t ids[2]; /* PCI ids, as of VIRTIO 1 and before */
    int rings;
};
static const struct device devices[] = {{"disk", {0x1042, 0x1001}, 1}, {"net", {0x1041, 0x1000}, 2}}, *device;

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

static uint8_t *memory;
static uint64_t physical[PAGES];
static volatile uint8_t *common, *notify, *own;
static uint32_t notify_multiplier;

static volatile struct descriptor *descriptors(int ring) { return (void *)(memory + 3 * ring * PAGE); }
static volatile uint16_t *available(int ring) { return (void *)(memory + (3 * ring + 1) * PAGE); }
static volatile uint16_t *used(int ring) { return (void *)(memory + (3 * ring + 2) * PAGE); }
static uint8_t *headers(void) { return memory + HEADERS * PAGE; }
static volatile uint8_t *status(void) { return headers() + STATUS; }
static uint8_t *data(void) { return memory + DATA * PAGE; }
static int is_disk(void) { return device == devices; }

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

/* The last such device on the bus: the kernel may use the others. */
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
        if (read(fd, ids, 4) == 4 && ids[0] == 0x1af4 && (ids[1] == device->ids[0] || ids[1] == device->ids[1]) && strcmp(entry->d_name, name) > 0)
            snprintf(name, size, "%.31s", entry->d_name);
        close(fd);
    }
    if (!name[0])
        fail("there is no such virtio device");
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
    uint16_t command = config[4] | config[5] << 8 | 0x406; /* memory, bus master, and no interrupts, which nobody would serve */
    if (pwrite(fd, &command, 2, 4) != 2)
        fail(path);
    for (int at = config[0x34]; at; at = config[at + 1]) {
        uint32_t offset;
        if (config[at] != 9)
            continue;
        memcpy(&offset, config + at + 8, 4);
        if (config[at + 3] == COMMON)
            common = map_bar(name, config[at + 4], offset);
        if (config[at + 3] == CONFIG)
            own = map_bar(name, config[at + 4], offset);
        if (config[at + 3] == NOTIFY) {
            notify = map_bar(name, config[at + 4], offset);
            memcpy(&notify_multiplier, config + at + 16, 4);
        }
    }
    close(fd);
    if (!common || !notify || !own)
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

/* Where rings are said to be: descriptors, available and used ring of each; and how many descriptors they have. */
struct places {
    uint64_t at[RINGS][3];
    uint16_t size;
};

static struct places right_places(void) {
    struct places places = {.size = RING};
    for (int part = 0; part < 3 * RINGS; part++)
        places.at[part / 3][part % 3] = physical[part];
    return places;
}

static void enable(int ring, const uint64_t at[3]) {
    set16(0x16, ring);
    set64(0x20, at[0]);
    set64(0x28, at[1]);
    set64(0x30, at[2]);
    set16(0x1c, 1);
}

/* Resets the device and starts it with its rings at these places. */
static void start(const struct places *places) {
    set8(0x14, 0);
    for (int i = 0; common[0x14] && i < 10000; i++)
        pause_us(100);
    memset(memory, 0, HEADERS * PAGE);
    set8(0x14, 1);
    set8(0x14, 3);
    set32(0x08, 0); /* features: indirect descriptors, version 1 */
    set32(0x0c, 1 << 28);
    set32(0x08, 1);
    set32(0x0c, 1);
    set8(0x14, 11);
    for (int ring = 0; ring < device->rings; ring++) {
        set16(0x16, ring);
        set16(0x18, places->size);
        enable(ring, places->at[ring]);
    }
    set8(0x14, 15);
}

static void kick(int ring) {
    set16(0x16, ring);
    *(volatile uint16_t *)(notify + *(volatile uint16_t *)(common + 0x1e) * notify_multiplier) = ring;
}

static void put(int ring, int index, uint64_t at, uint32_t len, uint16_t flags, uint16_t next) {
    volatile struct descriptor *descriptor = descriptors(ring) + index;
    descriptor->at = at;
    descriptor->len = len;
    descriptor->flags = flags;
    descriptor->next = next;
}

static void offer(int ring, uint16_t head) {
    available(ring)[2 + available(ring)[1] % RING] = head;
    __sync_synchronize();
    available(ring)[1]++;
    __sync_synchronize();
}

/* Waits until the device has given back more than so many, at most so many milliseconds. */
static int given_back(int ring, uint16_t before, int ms) {
    for (int i = 0; i < 10 * ms && used(ring)[1] == before; i++)
        pause_us(100);
    return used(ring)[1] != before;
}

/* One request to a disk as everybody should make it, to the fourth sector. */
static int request(uint32_t kind) {
    uint32_t header[4] = {kind, 0, 3, 0};
    uint16_t before = used(0)[1];
    memcpy(headers(), header, 16);
    *status() = 0xff;
    put(0, 0, physical[HEADERS], 16, NEXT, 1);
    put(0, 1, physical[DATA], 512, NEXT | (kind ? 0 : WRITE), 2);
    put(0, 2, physical[HEADERS] + STATUS, 1, WRITE, 0);
    offer(0, 0);
    kick(0);
    return given_back(0, before, PATIENCE_MS) && used(0)[1] == (uint16_t)(before + 1) && *status() == 0;
}

/* What is written can be read. */
static void check_disk(uint64_t number) {
    uint64_t pattern[64];
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
    own[WRITE_CACHE] = roll();
}

/* Asks who has 10.0.0.1, from an address that has a number in it. */
static void put_frame(uint32_t number) {
    static const uint8_t question[] = {0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1}, from[] = {10, 0, 0, 66}, to[] = {10, 0, 0, 1};
    uint8_t *frame = headers() + FRAME + 12, mac[6] = {2, 0x66};
    memcpy(mac + 2, &number, 4);
    memset(headers() + FRAME, 0, FRAME_BYTES);
    memset(frame, 0xff, 6);
    memcpy(frame + 6, mac, 6);
    memcpy(frame + 12, question, sizeof question);
    memcpy(frame + 22, mac, 6);
    memcpy(frame + 28, from, 4);
    memcpy(frame + 38, to, 4);
}

/* What is asked is answered, among whatever else is received. */
static int answered(uint32_t number, int ms) {
    uint16_t seen = 0;
    for (int buffer = 0; buffer < BUFFERS; buffer++) {
        put(RECEIVE, buffer, physical[DATA + buffer / 2] + buffer % 2 * BUFFER_BYTES, BUFFER_BYTES, WRITE, 0);
        offer(RECEIVE, buffer);
    }
    kick(RECEIVE);
    put_frame(number);
    put(SEND, 0, physical[HEADERS] + FRAME, FRAME_BYTES, 0, 0);
    offer(SEND, 0);
    kick(SEND);
    if (!given_back(SEND, 0, PATIENCE_MS))
        fail("an honest frame after a reset is not taken");
    for (;; seen++) {
        if (!given_back(RECEIVE, seen, ms))
            return 0;
        uint16_t buffer = used(RECEIVE)[2 + 4 * (seen % RING)];
        const uint8_t *frame = data() + buffer % BUFFERS * BUFFER_BYTES + 12;
        if (frame[12] == 0x08 && frame[13] == 0x06 && frame[21] == 2 && !memcmp(frame + 34, &number, 4))
            return 1;
        offer(RECEIVE, buffer);
        kick(RECEIVE);
    }
}

/* After a reset the device serves as if nothing had been. */
static void check(uint64_t number) {
    struct places places = right_places();
    start(&places);
    if (is_disk())
        check_disk(number);
    else if (!answered(number, PATIENCE_MS))
        fail("an honest frame after a reset is not answered");
}

/* Whoever is to answer may not be up yet. */
static void await_other_end(void) {
    struct places places = right_places();
    do
        start(&places);
    while (!answered(0, 500));
}

/* What is written to must be ours or nowhere, or the kernel around us would be the victim. What is only read may be anywhere. */
static uint64_t nowhere(void) { return roll() | 1ull << 46; }

static uint64_t anywhere(void) {
    switch (roll() % 6) {
    case 0: return roll();
    case 1: return physical[roll() % PAGES] + PAGE - roll() % 32;
    case 2: return roll() % 0x200000000;
    default: return physical[DATA + roll() % DATA_PAGES] + roll() % PAGE / 512 * 512;
    }
}

static uint64_t writable(void) { return roll() % 8 ? physical[DATA + roll() % DATA_PAGES] + roll() % PAGE / 512 * 512 : nowhere(); }

static uint32_t length(void) {
    static const uint32_t lengths[] = {0, 1, 15, 16, 17, 48, 512, 1024, 4096, 65535, 0x7fffffff, 0xffffffff};
    return roll() % 8 ? lengths[roll() % 8] : lengths[roll() % 12];
}

/* One descriptor that means something, or nothing. */
static void any(int ring, int index, int count) {
    uint16_t next = (index + 1) % count;
    switch (roll() % 8) {
    case 0:
    case 1:
        if (is_disk())
            put(ring, index, physical[HEADERS] + 16 * (roll() % 4), 16, NEXT, next);
        else
            put(ring, index, physical[HEADERS] + FRAME, FRAME_BYTES, 0, 0);
        break;
    case 2: put(ring, index, physical[HEADERS] + STATUS, 1, WRITE, 0); break;
    case 3: put(ring, index, writable(), 512, WRITE | (roll() % 2), roll() % (count + 2)); break;
    case 4: put(ring, index, writable(), roll() % 513, WRITE | NEXT, next); break;
    case 5:
        put(ring, index, roll() % 4 ? physical[TABLES] : nowhere(), roll() % 4 ? 16 * (roll() % 64) : length() & 0xfff, INDIRECT, roll());
        break;
    default: put(ring, index, anywhere(), length(), roll() % 2, roll() % (count + 2)); break;
    }
}

static void wrong(int ring) {
    static const uint32_t kinds[] = {1, 4, 8, 11, 13, 0, 99};
    for (int slot = 0; slot < 4; slot++) {
        uint32_t header[4] = {kinds[roll() % 7], 0, roll() % 3 ? 8192 + roll() % 4096 : roll(), roll() % 3 ? 0 : roll()};
        memcpy(headers() + 16 * slot, header, 16);
    }
    /* Behind the ring in its page, then moved to the page of indirect tables. */
    for (int i = 0; i < 64; i++)
        any(ring, i, 64);
    memcpy(memory + TABLES * PAGE, memory + 3 * ring * PAGE, 1024);
    for (int i = 0; i < RING; i++)
        any(ring, i, RING);
    for (int i = roll() % (RING + 1); i >= 0; i--)
        offer(ring, roll() % (RING + (roll() % 4 == 0)));
    if (roll() % 4 == 0)
        available(ring)[1] = roll();
    for (int i = roll() % 20; i >= 0; i--)
        kick(ring);
    /* And it changes while it is read. Any mix of old and new must still be ours or nowhere. */
    for (int i = roll() % 200; i >= 0; i--) {
        volatile struct descriptor *descriptor = descriptors(ring) + roll() % RING;
        descriptor->at = roll() % 2 ? physical[DATA + roll() % DATA_PAGES] : nowhere();
        descriptor->len = roll() % 513;
        descriptor->flags = roll() % 2;
        descriptor->next = roll();
    }
}

/* One round without a right word. Where QEMU cannot map a ring it hangs up on a disk for a second, so that is rare. */
static void round_of_wrongs(void) {
    static const uint64_t none[3];
    struct places places = right_places();
    uint64_t *at = places.at[roll() % device->rings];
    unsigned trick = roll() % 200;
    if (trick == 0) /* two parts in no memory, of which QEMU maps one */
        at[0] = at[2] = nowhere() & ~15ull;
    else if (trick < 20) /* one part in no memory */
        at[roll() % 3] = nowhere() & ~15ull;
    else if (trick < 40) /* out of line */
        at[roll() % 3] += 1 + roll() % 15;
    else if (trick < 50)
        places.size = 3 + 2 * (roll() % 6);
    start(&places);
    /* QEMU 7.2 (vhost_dev_set_config) aborts if this one is written after rings made it hang up, so it is written elsewhere. */
    unsigned at_byte = roll() % CONFIG_BYTES;
    if (!is_disk() || at_byte != WRITE_CACHE)
        own[at_byte] = roll();
    for (int ring = 0; ring < device->rings; ring++)
        wrong(ring);
    if (trick >= 180) /* moved away while it runs, so that it is never stopped */
        enable(roll() % device->rings, none);
    pause_us(roll() % 3000);
}

int main(int count, char **arguments) {
    long rounds = count > 2 ? atol(arguments[2]) : 1000000000;
    dice = count > 3 ? strtoull(arguments[3], NULL, 0) : 1;
    for (int i = 0; i < 2; i++)
        if (count > 1 && !strcmp(arguments[1], devices[i].name))
            device = devices + i;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!device)
        fail("usage: hostile disk|net [ROUNDS [SEED]]");
    take_device();
    take_memory();
    if (!is_disk())
        await_other_end();
    check(0);
    for (long round = 1; round <= rounds; round++) {
        put_frame(-1);
        round_of_wrongs();
        check(round);
        if (round % 25 == 0)
            printf("hostile %s round %ld ok\n", device->name, round);
    }
    printf("hostile done\n");
    return 0;
}
