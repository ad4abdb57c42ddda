/*
 * Preloaded into QEMU. A userfaultfd serves the memory of the process that makes it, so QEMU has to make the one through which we watch the guest's
 * memory; this does it before QEMU's main(), and before QEMU's sandbox forbids anything. The descriptor goes out over descriptor 0, a socket of
 * ours, with one byte: how it was had ('k' kernel faults too, 'u' user faults only), or the errno if there is none. All else is done from outside.
 */
#define _GNU_SOURCE
#include "shim.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * The same socket once more: QEMU closes the descriptor that it has read a state from. Were that 0, the next eventfd would get the number, which QEMU takes
 * for "none" when it tells a disk's server where the guest kicks (hw/virtio/vhost-user.c).
 */
#define STATE_IN 100

#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

/* The system call needs privilege or a sysctl, the device only its file mode; user faults alone need neither (userfaultfd(2)). */
static int make(char *how)
{
    int flags = O_CLOEXEC | O_NONBLOCK, fd, device;

    *how = 'k';
    fd = syscall(SYS_userfaultfd, flags);
    if (fd >= 0)
        return fd;
    device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
    if (device >= 0) {
        fd = ioctl(device, USERFAULTFD_IOC_NEW, flags);
        close(device);
        if (fd >= 0)
            return fd;
    }
    *how = 'u';
    return syscall(SYS_userfaultfd, flags | UFFD_USER_MODE_ONLY);
}

void hand_out(const void *bytes, size_t count, int fd)
{
    char control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct iovec data = { (void *)bytes, count };
    struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1 };

    if (fd >= 0) {
        struct cmsghdr *header;

        message.msg_control = control;
        message.msg_controllen = sizeof control;
        header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    if (sendmsg(0, &message, MSG_NOSIGNAL) < 0)
        _exit(1);
}

__attribute__((constructor)) static void hand_over(void)
{
    char byte;
    int fd;

    unsetenv("LD_PRELOAD");
    /* Without us nobody serves its faults or its disks: it must not outlive us. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    fd = dup2(0, STATE_IN) < 0 ? -1 : make(&byte);
    if (fd < 0)
        byte = (char)errno;
    hand_out(&byte, sizeof byte, fd);
    /* The descriptor stays open here: should we die first, the kernel must not let the guest go on with empty pages. */
}
