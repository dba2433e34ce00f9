/* A process that exports: its commons, its table, and memory in memfds. */
#ifndef XP_TEST_EXPORTING_H
#define XP_TEST_EXPORTING_H

#include "../../../src/engine/exports.h"
#include "support.h"

#include <sys/stat.h>

#define BLOCK 8192u

static const uint8_t test_names[32] = "mock";
static int table_fd = -1;

static inline uint64_t namespace_of(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0 ? found.st_ino : 0;
}

/* A table that importers can meet, for that domain of ours. */
static inline xp_exports *new_exports(xp_domain *d)
{
    struct stat commons;
    table_fd = memfd(XP_TABLE_SIZE, 0);
    char *base = mmap(NULL, XP_TABLE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, table_fd, 0);
    CHECK(base != MAP_FAILED && fstat(d->fd, &commons) == 0);
    CHECK(fcntl(table_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | 16 /* FUTURE_WRITE */ | F_SEAL_SEAL) == 0);
    xp_table *table = (xp_table *)base;
    *table = (xp_table){.version = XP_VERSION, .pid = (uint32_t)getpid(), .pid_namespace = xp_pid_namespace(),
                        .commons_fd = d->fd, .bell_fd = d->bell, .commons_inode = commons.st_ino};
    memcpy(table->cookie, cookie, XP_COOKIE);
    memcpy(table->magic, XP_TABLE_MAGIC, sizeof table->magic);
    xp_handle common = {.version = XP_VERSION, .pid_namespace = xp_pid_namespace(),
                        .net_namespace = namespace_of("/proc/self/ns/net"), .pid = (uint32_t)getpid(),
                        .table_fd = (uint32_t)table_fd};
    memcpy(common.magic, XP_HANDLE_MAGIC, sizeof common.magic);
    memcpy(common.cookie, cookie, XP_COOKIE);
    xp_exports *t = xp_exports_new(base, d, &common);
    CHECK(t != NULL);
    return t;
}

static inline void end_exports(xp_exports *t)
{
    CHECK(munmap(t->base, XP_TABLE_SIZE) == 0 && close(table_fd) == 0);
    xp_exports_unref(t);
}

/* Memory of `nbytes` in a memfd, and what its exports have in common. */
static inline xp_template memory_template(xp_exports *t, int fd, const void *names, uint64_t nbytes, uint32_t device)
{
    xp_template p;
    struct stat found;
    CHECK(fstat(fd, &found) == 0);
    xp_entry common = {.kind = XP_KIND_MEMORY, .flags = XP_ENTRY_MEMFD, .object = xp_exports_new_object(t), .nbytes = nbytes,
                       .exposed_nbytes = (uint64_t)found.st_size, .inode = found.st_ino, .device = device};
    CHECK(xp_template_fill(&p, t, &common, names, &fd, 1, "", 0, NULL));
    return p;
}

#endif
