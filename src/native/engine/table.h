/* What is read from a peer's table, and the files that a peer gives: nothing of it is trusted. */
#ifndef XP_TABLE_H
#define XP_TABLE_H

#include "xp.h"

#define XP_TABLE_SIZE (XP_TABLE_HEADER + (uint64_t)XP_ENTRIES * sizeof(xp_entry))

/* Is it safe to map `nbytes` of the fd: a memfd in memory with at least these seals, that large at least, or, with
 * `exact`, just as large? A page that it has not got would kill whoever reads it. `inode`: 0, or which file it must
 * be. */
typedef struct {
    uint64_t nbytes, inode;
    int seals; /* F_SEAL_…, F_SEAL_SHRINK is added */
    bool exact;
} xp_memfd;
bool xp_check_memfd(int fd, const xp_memfd *wanted, xp_error *error);

char *xp_map_memfd(int fd, const xp_memfd *wanted, bool writable, xp_error *error); /* checked; NULL: `error` */
/* The same of an exporter's fd; ESTALE unless `*generation` is as expected once the fd is here. */
char *xp_fetch_memfd(int pidfd, int fd, const xp_memfd *wanted, bool writable, const uint64_t *generation,
                     uint64_t expected, xp_error *error);

/* The entry of a handle in a mapped table; `base` is where that begins, XP_TABLE_SIZE bytes. */
static inline const xp_entry *xp_entry_at(const char *base, uint32_t entry)
{
    return (const xp_entry *)(base + XP_TABLE_HEADER) + entry;
}

/* The one check of what a peer says of an export: XP_LIVE and a copy of the entry, which fits the handle. */
enum { XP_LIVE, XP_NO_ENTRY, XP_EXPIRED, XP_MISFIT };
int xp_read_entry(const char *base, const xp_handle *h, xp_entry *e);
/* The cheap half of it, before or after: XP_LIVE, XP_NO_ENTRY or XP_EXPIRED, and then why, as far as that
 * is known. */
int xp_entry_state(const char *base, const xp_handle *h, uint32_t *reason);

/* A request to the exporter's socket, and what came back with `fds` fds; `r` is filled in where a whole reply came. */
void xp_write_request(xp_request *q, uint32_t op, const xp_handle *h, uint32_t first);
enum { XP_REPLY_GOOD, XP_REPLY_NONE, XP_REPLY_FDS_LOST, XP_REPLY_NONSENSE };
int xp_read_reply(const void *packet, size_t size, uint32_t fds, xp_reply *r);

/* The exporter's fds of an entry that was read, certainly those of this handle. False: nothing is left behind. */
bool xp_fetch_fds(const char *base, int pidfd, const xp_handle *h, const xp_entry *e, int *fds);
/* A mapping of its memfd, likewise. */
char *xp_fetch_mapping(const char *base, int pidfd, const xp_handle *h, const xp_entry *e);

#endif
