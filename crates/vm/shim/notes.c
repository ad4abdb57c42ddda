/*
 * Added to the library preloaded into QEMU when KVM is to note what the guest's processors write. Only the process that made a virtual machine may ask
 * for its dirty log, so it is asked for here.
 *
 * KVM's notes do not name what QEMU writes. Therefore the guest's memory, a file, is mapped a second time, and each of KVM's memory slots that QEMU lays
 * over the first mapping is laid over the second one instead, with its log switched on: processors write through the second mapping and are noted by
 * KVM, QEMU writes through the first and is seen from outside (PAGEMAP_SCAN). A thread answers each byte on a socket with one byte, how it went, and the
 * bits of all pages written since the last answer. See Documentation/virt/kvm/api.rst, 4.8, 4.35 and 4.117.
 */
#define _GNU_SOURCE
#include "shim.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define PAGE 4096
#define SLOTS_MAX 1024
/* The larger struct of the newer request begins like the older one (linux/kvm.h). */
#define SET_REGION_2 _IOW(KVMIO, 0x49, char[160])

/* How an answer went; else it is an errno. */
enum { EXACT = 0, MORE_THAN_WRITTEN = 255 };

struct slot {
    uint32_t id;
    uint64_t address, page, pages;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* All below is under the lock, but for what is set before the thread starts. */
static struct slot slots[SLOTS_MAX];
static unsigned slot_count;
static int machine = -1, clears_apart, more, broken;
static char *second;
static struct stat memory;
static uint64_t *found, *fetched;
static int answers;

static uint64_t pages(void)
{
    return memory.st_size / PAGE;
}

static void note(uint64_t page)
{
    found[page / 64] |= 1ULL << page % 64;
}

/* Where in the memory's file an address of QEMU lies, or -1. */
static int64_t offset_of(uint64_t address)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    unsigned long start, end, inode;
    unsigned device_major, device_minor;
    unsigned long long offset;
    int64_t result = -1;
    char line[512];

    if (!maps) {
        broken = errno;
        return -1;
    }
    while (result < 0 && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %*s %llx %x:%x %lu", &start, &end, &offset, &device_major, &device_minor, &inode) == 6 && address >= start &&
            address < end && inode == memory.st_ino && device_major == major(memory.st_dev) && device_minor == minor(memory.st_dev))
            result = offset + (address - start);
    fclose(maps);
    return result;
}

/* The log of a slot goes with it, and processors may be writing until the kernel has let it go: every page of it counts as written. */
static void let_go(struct slot *slot)
{
    for (uint64_t page = slot->page; page < slot->page + slot->pages; page++)
        note(page);
    more = 1;
    *slot = slots[--slot_count];
}

static struct slot *find(uint32_t id)
{
    struct slot *slot = slots;

    while (slot < slots + slot_count && slot->id != id)
        slot++;
    return slot;
}

static int set_region(int fd, unsigned long request, const void *wanted)
{
    char copy[160];
    struct kvm_userspace_memory_region *region = (void *)copy;
    struct slot *slot;
    int64_t offset;
    int result;

    memcpy(copy, wanted, request == KVM_SET_USER_MEMORY_REGION ? sizeof *region : sizeof copy);
    pthread_mutex_lock(&lock);
    machine = fd;
    slot = find(region->slot);
    /* Neither taken away nor moved, it changes its flags and keeps its log. */
    if (slot < slots + slot_count && (slot->address != region->guest_phys_addr || slot->pages * PAGE != region->memory_size))
        let_go(slot);
    offset = region->memory_size ? offset_of(region->userspace_addr) : -1;
    if (offset >= 0) {
        region->userspace_addr = (uint64_t)second + offset;
        region->flags |= KVM_MEM_LOG_DIRTY_PAGES;
    }
    result = syscall(SYS_ioctl, fd, request, region);
    slot = find(region->slot);
    if (result == 0 && offset >= 0 && slot == slots + SLOTS_MAX) {
        broken = ENOSPC;
    } else if (result == 0 && offset >= 0) {
        slot_count += slot == slots + slot_count;
        *slot = (struct slot){ region->slot, region->guest_phys_addr, offset / PAGE, region->memory_size / PAGE };
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* QEMU's own calls go through here: the name comes before the C library's. */
int ioctl(int fd, unsigned long request, ...)
{
    struct kvm_enable_cap *capability;
    va_list list;
    void *argument;
    int result;

    va_start(list, request);
    argument = va_arg(list, void *);
    va_end(list);
    if (second && (request == KVM_SET_USER_MEMORY_REGION || request == SET_REGION_2))
        return set_region(fd, request, argument);
    capability = argument;
    if (second && request == KVM_ENABLE_CAP && capability->cap == KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2) {
        /* A log that begins with all bits set would name every page of a new slot. */
        capability->args[0] &= ~(uint64_t)KVM_DIRTY_LOG_INITIALLY_SET;
        result = syscall(SYS_ioctl, fd, request, argument);
        clears_apart = result == 0 && capability->args[0] & KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE;
        return result;
    }
    return syscall(SYS_ioctl, fd, request, argument);
}

static int fetch(const struct slot *slot)
{
    struct kvm_dirty_log log = { .slot = slot->id, .dirty_bitmap = fetched };
    struct kvm_clear_dirty_log clear = { .slot = slot->id, .num_pages = slot->pages, .dirty_bitmap = fetched };
    uint64_t word, bits;

    if (syscall(SYS_ioctl, machine, KVM_GET_DIRTY_LOG, &log) < 0)
        return errno;
    for (word = 0; word < (slot->pages + 63) / 64; word++)
        for (bits = fetched[word]; bits; bits &= bits - 1)
            note(slot->page + word * 64 + __builtin_ctzll(bits));
    /* Where fetching clears by itself, this would clear what was written since. */
    if (clears_apart && syscall(SYS_ioctl, machine, KVM_CLEAR_DIRTY_LOG, &clear) < 0)
        return errno;
    return 0;
}

static int send_all(const void *from, size_t bytes)
{
    for (ssize_t sent; bytes; from = (const char *)from + sent, bytes -= sent)
        if ((sent = send(answers, from, bytes, MSG_NOSIGNAL)) <= 0)
            return 0;
    return 1;
}

static void *answer(void *unused)
{
    size_t bytes = (pages() + 63) / 64 * 8;
    int going = 1;
    char byte;

    while (going && recv(answers, &byte, 1, 0) == 1) {
        unsigned char how;

        pthread_mutex_lock(&lock);
        for (unsigned slot = 0; slot < slot_count && !broken; slot++)
            broken = fetch(&slots[slot]);
        how = broken ? broken : more ? MORE_THAN_WRITTEN : EXACT;
        going = send_all(&how, 1) && send_all(found, bytes);
        memset(found, 0, bytes);
        more = 0;
        pthread_mutex_unlock(&lock);
    }
    return unused;
}

/* Before hand_over() of the other file, which has no number. Sends the address of the second mapping and a socket, or an errno and nothing. */
__attribute__((constructor(200))) static void take_notes(void)
{
    struct {
        unsigned char how;
        uint64_t address;
    } __attribute__((packed)) data = { 0, 0 };
    const char *path = getenv("FERMATA_MEMORY");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1, pair[2];
    sigset_t all, before;
    pthread_t thread;
    void *mapped = MAP_FAILED;

    unsetenv("FERMATA_MEMORY");
    if (file >= 0 && fstat(file, &memory) == 0)
        mapped = mmap(NULL, memory.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    found = calloc(pages() / 64 + 1, 8);
    fetched = calloc(pages() / 64 + 1, 8);
    if (mapped == MAP_FAILED || !found || !fetched || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        goto failed;
    second = mapped;
    answers = pair[0];
    /* QEMU expects its signals in threads of its own. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    errno = pthread_create(&thread, NULL, answer, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (errno)
        goto failed;
    data.address = (uint64_t)second;
    hand_out(&data, sizeof data, pair[1]);
    close(pair[1]);
    close(file);
    return;
failed:
    second = NULL;
    data.how = errno;
    hand_out(&data, sizeof data, -1);
}
