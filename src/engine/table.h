/* Reading a peer's table, and mapping memfds from a peer. None of it is trusted. */
#ifndef XP_TABLE_H
#define XP_TABLE_H

#include "xp.h"

/* The conditions under which mapping `nbytes` of an fd is safe: it is a memfd in memory, has at least these seals,
 * and is at least that large or, with `exact`, exactly that large. Reading a page that the file does not have would
 * kill the reader. `inode`: 0, or the file that it must be. */
typedef struct {
    uint64_t nbytes, inode;
    int seals; /* F_SEAL_…; F_SEAL_SHRINK is added */
    bool exact;
} xp_memfd;
bool xp_check_memfd(int fd, const xp_memfd *wanted, xp_error *error);

/* Checked and mapped, or NULL with `error`. `found`: NULL, or where to put the result of fstat. */
struct stat;
char *xp_map_memfd(int fd, const xp_memfd *wanted, bool writable, struct stat *found, xp_error *error);

/* The entry of a handle in a mapped table of XP_TABLE_SIZE bytes that begins at `base`. */
static inline const xp_entry *xp_entry_at(const char *base, uint32_t entry)
{
    return (const xp_entry *)(base + XP_TABLE_HEADER) + entry;
}

/* Fill in a dead entry of this process's own table. Its generation, and why its last export ended, stay as they are. */
void xp_write_entry(xp_entry *to, const xp_entry *from);

/* The only check of a peer's claims about an export. XP_LIVE: `e` is a copy of the entry, and fits the handle. */
enum { XP_LIVE, XP_NO_ENTRY, XP_EXPIRED, XP_MISFIT };
int xp_read_entry(const char *base, const xp_handle *h, xp_entry *e);
/* The cheap half of that check, to be made before or after it. Returns XP_LIVE, XP_NO_ENTRY, or XP_EXPIRED with the
 * reason, as far as it is known. */
int xp_entry_state(const char *base, const xp_handle *h, uint32_t *reason);
/* Return whether the entry's deadline has passed, or it has a deadline and its opens are used up. The commons has
 * both. */
bool xp_overdue(const char *base, const xp_handle *h, uint64_t renewed, bool used_up);

/* A request to an exporter's socket: first the wanted items, one by one, then the beginning, which has their number.
 * Returns the size of the packet. */
void xp_write_wanted(xp_wanted *w, const xp_handle *h, uint32_t first);
size_t xp_write_request(xp_request *q, uint32_t op, const uint8_t *cookie, uint32_t count);
/* How many items a packet asks for, or 0 if it is not a request. */
uint32_t xp_read_request(xp_request *q, const void *packet, size_t size);

/* The reply to a request for so many items, which came with `fds` fds. If the reply is whole, fills in `r` and how
 * many items it answers: at least one, from the first one on. */
enum { XP_REPLY_GOOD, XP_REPLY_NONE, XP_REPLY_FDS_LOST, XP_REPLY_NONSENSE };
int xp_read_reply(const void *packet, size_t size, uint32_t asked, uint32_t fds, xp_reply *r, uint32_t *given);

#endif
