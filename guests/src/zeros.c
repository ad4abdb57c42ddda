/* Takes memory, as much as there is to be had, and looks whether the kernel has emptied it.
 *
 * Usage: zeros
 * Prints "zeros: N pages", or "FERMATA FAIL zeros ..." and exits with 1. */
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))
#define KEEP (24u << 20) /* for all others */

int main(void) {
    struct sysinfo system;
    if (sysinfo(&system) || system.freeram * system.mem_unit <= KEEP) {
        printf("FERMATA FAIL zeros: no memory is free\n");
        return 1;
    }
    uint64_t pages = (system.freeram * system.mem_unit - KEEP) / PAGE;
    uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        printf("FERMATA FAIL zeros: no mapping\n");
        return 1;
    }
    for (uint64_t page = 0; page < pages; page++) {
        volatile uint64_t *words = memory + page * WORDS;
        /* A page that is only read may be the one page of zeros that all share. */
        words[0] = words[0] | 1;
        for (uint64_t word = 0; word < WORDS; word++)
            if (words[word] != (word == 0)) {
                printf("FERMATA FAIL zeros: word %lu of page %lu is %016lx\n", (unsigned long)word, (unsigned long)page, (unsigned long)words[word]);
                return 1;
            }
    }
    printf("zeros: %lu pages\n", (unsigned long)pages);
    return 0;
}
