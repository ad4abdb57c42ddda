/* What the files of the library have in common. */
#include <stddef.h>

/*
 * Sends bytes over descriptor 0, a socket of ours, and with them a descriptor, if it is one. The process ends if there is nobody to hear it: it was left
 * before it could be tied to its parent.
 */
__attribute__((visibility("hidden"))) void hand_out(const void *bytes, size_t count, int fd);
