/*
 * A guest that gives pages back, by reporting them free through its balloon, has QEMU punch holes into the file of its memory. That changes pages without a
 * write, which nobody sees who watches for writes; and what is not there would be taken for what is yet to be restored. So QEMU does not punch into this file:
 * its request goes out over a socket, whoever keeps the machine takes note and punches, and QEMU goes on when that is done. See src/holes.rs.
 *
 * Only with FERMATA_PUNCHES, the path of the memory.
 */
#define _GNU_SOURCE
#include "shim.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stat memory;
static int asked = -1;

/* All of it goes or comes, or the other end is gone. */
static int pass(ssize_t (*some)(char *, size_t), char *bytes, size_t count)
{
    while (count) {
        ssize_t passed = some(bytes, count);

        if (passed < 0 && errno == EINTR)
            continue;
        if (passed <= 0)
            return 0;
        bytes += passed;
        count -= passed;
    }
    return 1;
}

static ssize_t give(char *bytes, size_t count)
{
    return send(asked, bytes, count, MSG_NOSIGNAL);
}

static ssize_t take(char *bytes, size_t count)
{
    return recv(asked, bytes, count, 0);
}

/* QEMU's own calls go through here: the name comes before the C library's. */
int fallocate64(int fd, int mode, off64_t offset, off64_t length)
{
    uint64_t hole[2] = { offset, length };
    int32_t error = EIO;
    struct stat file;

    if (asked < 0 || !(mode & FALLOC_FL_PUNCH_HOLE) || fstat(fd, &file) < 0 || file.st_dev != memory.st_dev || file.st_ino != memory.st_ino)
        return syscall(SYS_fallocate, fd, mode, offset, length);
    pthread_mutex_lock(&lock);
    if (!pass(give, (char *)hole, sizeof hole) || !pass(take, (char *)&error, sizeof error))
        error = EIO;
    pthread_mutex_unlock(&lock);
    if (error)
        errno = error;
    return error ? -1 : 0;
}

/* The same where a file's offset has 64 bits anyhow, and QEMU was not built to say so. */
int fallocate(int fd, int mode, off_t offset, off_t length) __attribute__((alias("fallocate64")));

/* After KVM's notes, and before hand_over(), which has no number. Sends a socket, or an errno and nothing. */
__attribute__((constructor(300))) static void take_requests(void)
{
    const char *path = getenv("FERMATA_PUNCHES");
    unsigned char how = 0;
    int pair[2];

    if (!path)
        return;
    if (stat(path, &memory) < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
        how = errno;
        hand_out(&how, sizeof how, -1);
    } else {
        asked = pair[0];
        hand_out(&how, sizeof how, pair[1]);
        close(pair[1]);
    }
    unsetenv("FERMATA_PUNCHES");
}
