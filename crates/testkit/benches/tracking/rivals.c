/* What people use where a program's data shall outlive it: the transactions of ./bench tracking, made durable by others.
 *
 *   rivals WAY DIRECTORY MIB PPT WPP
 *
 * For each number that comes in, so many transactions are done, and what they took together, in ns, is printed. The program has its data in memory, as any has, and
 * knows which pages it wrote: nobody looks for them here. */
#include <err.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#ifdef WITH_SQLITE
#include <sqlite3.h>
#endif
#ifdef WITH_LMDB
#include <lmdb.h>
#endif

#define PAGE 4096

static unsigned char *memory;
static uint64_t bytes, touched[4096];
static unsigned ppt, wpp;

/* The same writes as those of our own areas. */
static void write_transaction(uint64_t nth) {
    for (uint64_t page = 0; page < ppt; page++) {
        uint64_t number = (nth * 7 + page * 1031) % (bytes / PAGE);
        touched[page] = number;
        for (uint64_t word = 0; word < wpp; word++) {
            uint64_t value = nth << 8 | word;
            memcpy(memory + number * PAGE + (word * 31 + nth) % 512 * 8, &value, sizeof value);
        }
    }
}

static void or_die(int failed, const char *what) {
    if (failed)
        err(1, "%s", what);
}

/* A mapped file: msync writes its pages where they were. What is on the disk after a crash may be half of a transaction. */
static void msync_begin(void) {
    int file = open("mapped", O_RDWR | O_CREAT, 0600);
    or_die(file < 0 || ftruncate(file, bytes) != 0, "the file");
    or_die(pwrite(file, memory, bytes, 0) != (ssize_t)bytes || fsync(file) != 0, "the file");
    free(memory);
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    or_die(memory == MAP_FAILED, "mmap");
}

static void msync_commit(void) {
    or_die(msync(memory, bytes, MS_SYNC) != 0, "msync");
}

/* A library that copies: at each checkpoint the protected memory goes into a new file as a whole. So do libckpt's full checkpoints and VeloC's of memory. */
static void copy_begin(void) {}

static void copy_commit(void) {
    int file = open("new", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    or_die(file < 0, "a new file");
    for (uint64_t done = 0; done < bytes;) {
        ssize_t wrote = write(file, memory + done, bytes - done);
        or_die(wrote <= 0, "write");
        done += wrote;
    }
    or_die(fsync(file) != 0 || close(file) != 0 || rename("new", "checkpoint") != 0, "the new file");
    int directory = open(".", O_RDONLY | O_DIRECTORY);
    or_die(directory < 0 || fsync(directory) != 0 || close(directory) != 0, "the directory");
}

#ifdef WITH_SQLITE
static sqlite3 *base;
static sqlite3_stmt *begin_statement, *put_statement, *end_statement;

static void sql_die(int failed) {
    if (failed)
        errx(1, "sqlite: %s", sqlite3_errmsg(base));
}

static void step(sqlite3_stmt *statement) {
    sql_die(sqlite3_step(statement) != SQLITE_DONE);
    sql_die(sqlite3_reset(statement) != SQLITE_OK);
}

static void put_row(uint64_t page) {
    sqlite3_bind_int64(put_statement, 1, page);
    sqlite3_bind_blob(put_statement, 2, memory + page * PAGE, PAGE, SQLITE_STATIC);
    step(put_statement);
}

static void prepare(const char *text, sqlite3_stmt **statement) {
    sql_die(sqlite3_prepare_v2(base, text, -1, statement, NULL) != SQLITE_OK);
}

static void sqlite_begin(const char *synchronous) {
    char pragma[80];
    snprintf(pragma, sizeof pragma, "PRAGMA journal_mode=WAL; PRAGMA synchronous=%s", synchronous);
    sql_die(sqlite3_open("base", &base) != SQLITE_OK || sqlite3_exec(base, pragma, NULL, NULL, NULL) != SQLITE_OK);
    sql_die(sqlite3_exec(base, "CREATE TABLE pages (number INTEGER PRIMARY KEY, content BLOB)", NULL, NULL, NULL) != SQLITE_OK);
    prepare("BEGIN", &begin_statement);
    prepare("INSERT OR REPLACE INTO pages VALUES (?, ?)", &put_statement);
    prepare("COMMIT", &end_statement);
    step(begin_statement);
    for (uint64_t page = 0; page < bytes / PAGE; page++)
        put_row(page);
    step(end_statement);
}

static void sqlite_full_begin(void) {
    sqlite_begin("FULL");
}

/* Not durable when it returns: the log is synced only before it is written back. */
static void sqlite_normal_begin(void) {
    sqlite_begin("NORMAL");
}

static void sqlite_commit(void) {
    step(begin_statement);
    for (unsigned nth = 0; nth < ppt; nth++)
        put_row(touched[nth]);
    step(end_statement);
}
#endif

#ifdef WITH_LMDB
static MDB_env *environment;
static MDB_dbi tree;

static void lmdb_die(int status) {
    if (status != 0)
        errx(1, "lmdb: %s", mdb_strerror(status));
}

static void put_page(MDB_txn *transaction, uint64_t page) {
    MDB_val key = {sizeof page, &page}, content = {PAGE, memory + page * PAGE};
    lmdb_die(mdb_put(transaction, tree, &key, &content, 0));
}

static void lmdb_begin(void) {
    MDB_txn *transaction;
    lmdb_die(mdb_env_create(&environment));
    lmdb_die(mdb_env_set_mapsize(environment, bytes * 8 + (64 << 20)));
    lmdb_die(mdb_env_open(environment, ".", 0, 0600));
    lmdb_die(mdb_txn_begin(environment, NULL, 0, &transaction));
    lmdb_die(mdb_dbi_open(transaction, NULL, MDB_INTEGERKEY, &tree));
    for (uint64_t page = 0; page < bytes / PAGE; page++)
        put_page(transaction, page);
    lmdb_die(mdb_txn_commit(transaction));
}

static void lmdb_commit(void) {
    MDB_txn *transaction;
    lmdb_die(mdb_txn_begin(environment, NULL, 0, &transaction));
    for (unsigned nth = 0; nth < ppt; nth++)
        put_page(transaction, touched[nth]);
    lmdb_die(mdb_txn_commit(transaction));
}
#endif

static const struct way {
    const char *name;
    void (*begin)(void), (*commit)(void);
} ways[] = {
    {"msync", msync_begin, msync_commit},
    {"copy", copy_begin, copy_commit},
#ifdef WITH_SQLITE
    {"sqlite-full", sqlite_full_begin, sqlite_commit},
    {"sqlite-normal", sqlite_normal_begin, sqlite_commit},
#endif
#ifdef WITH_LMDB
    {"lmdb", lmdb_begin, lmdb_commit},
#endif
};

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc != 6)
        errx(2, "usage: rivals WAY DIRECTORY MIB PPT WPP");
    const struct way *way = NULL;
    for (unsigned nth = 0; nth < sizeof ways / sizeof *ways; nth++)
        if (strcmp(ways[nth].name, argv[1]) == 0)
            way = &ways[nth];
    if (!way)
        errx(2, "no way is called %s", argv[1]);
    or_die(chdir(argv[2]) != 0, argv[2]);
    bytes = strtoull(argv[3], NULL, 10) << 20;
    ppt = atoi(argv[4]), wpp = atoi(argv[5]);
    if (ppt > sizeof touched / sizeof *touched)
        errx(2, "too many pages");
    or_die(!(memory = aligned_alloc(PAGE, bytes)), "memory");
    /* All of it is there, and no page is like another. */
    for (uint64_t word = 0; word < bytes / 8; word++)
        ((uint64_t *)memory)[word] = word * 0x9e3779b97f4a7c15ull;
    way->begin();
    uint64_t nth = 0;
    for (unsigned long count; scanf("%lu", &count) == 1;) {
        uint64_t started = now();
        for (; count > 0; count--, nth++) {
            write_transaction(nth);
            way->commit();
        }
        printf("%llu\n", (unsigned long long)(now() - started));
        fflush(stdout);
    }
    return 0;
}
