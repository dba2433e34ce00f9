/* Reads a peer's table, and checks and maps memfds. */
#include "table.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static bool check(int fd, const xp_memfd *wanted, struct stat *found, xp_error *error)
{
    struct statfs where;
    int needed = wanted->seals | F_SEAL_SHRINK, seals;
    if (fstat(fd, found) < 0)
        return xp_failed(error, errno, "fstat");
    if ((seals = fcntl(fd, F_GET_SEALS)) < 0)
        return errno == EINVAL ? xp_failed(error, 0, "the file descriptor is not a memfd that can be sealed")
                               : xp_failed(error, errno, "fcntl(F_GET_SEALS)");
    /* With huge pages, whose size is then the block size, touching a hole is a SIGBUS when the pool is empty. In
     * tmpfs, too, blocks can be larger than pages. */
    if (found->st_blksize > sysconf(_SC_PAGESIZE)) {
        if (fstatfs(fd, &where) < 0)
            return xp_failed(error, errno, "fstatfs");
        if (where.f_type != TMPFS_MAGIC)
            return xp_failed(error, 0, "the memfd is not of ordinary pages");
    }
    if (!(seals & F_SEAL_SHRINK))
        return xp_failed(error, 0, "the memfd is not sealed against shrinking (no F_SEAL_SHRINK)");
    if ((seals & needed) != needed)
        return xp_failed(error, 0, "the memfd is not sealed as it has to be (no F_SEAL_FUTURE_WRITE)");
    if (wanted->inode && found->st_ino != wanted->inode)
        return xp_failed(error, 0, "the file descriptor's number was used again: it is another file");
    if (wanted->nbytes == 0 || (uint64_t)found->st_size < wanted->nbytes)
        return xp_failed(error, 0, "the memfd has the wrong size: it is smaller than it has to be");
    if (wanted->exact && (uint64_t)found->st_size != wanted->nbytes)
        return xp_failed(error, 0, "the memfd has the wrong size");
    return true;
}

bool xp_check_memfd(int fd, const xp_memfd *wanted, xp_error *error)
{
    struct stat found;
    return check(fd, wanted, &found, error);
}

char *xp_map_memfd(int fd, const xp_memfd *wanted, bool writable, struct stat *found, xp_error *error)
{
    struct stat ignored;
    if (!check(fd, wanted, found ? found : &ignored, error))
        return NULL;
    void *base = mmap(NULL, wanted->nbytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (base != MAP_FAILED)
        return base;
    xp_failed(error, errno, "mmap");
    return NULL;
}

/* --- entries ------------------------------------------------------------------------------------------------------ */

int xp_entry_state(const char *base, const xp_handle *h, uint32_t *reason)
{
    *reason = XP_REASON_PUT;
    if (h->entry >= XP_ENTRIES || h->generation == 0)
        return XP_NO_ENTRY;
    const xp_entry *e = xp_entry_at(base, h->entry);
    if (XP_LOAD(&e->generation) == h->generation)
        return XP_LIVE;
    uint32_t why = XP_LOAD(&e->reason);
    if (XP_LOAD(&e->retired) == h->generation)
        *reason = why;
    return XP_EXPIRED;
}

bool xp_overdue(const char *base, const xp_handle *h, uint64_t renewed, bool used_up)
{
    if (h->entry >= XP_ENTRIES)
        return false;
    uint64_t deadline = XP_LOAD((const uint64_t *)(base + XP_TABLE_DEADLINES) + h->entry);
    if (deadline == 0)
        return false;
    if ((h->flags & XP_ENTRY_PICKLED) && renewed > deadline)
        deadline = renewed;
    return used_up || xp_now() >= deadline;
}

/* Entries are copied word by word: their owner may write one while others read it, and both must see whole words. */
#define KIND_AT offsetof(xp_entry, kind)
#define REST_AT offsetof(xp_entry, flags)
_Static_assert(KIND_AT % 4 == 0 && REST_AT == KIND_AT + 4 && REST_AT % 8 == 0 && sizeof(xp_entry) % 8 == 0, "words");

void xp_write_entry(xp_entry *to, const xp_entry *from)
{
    uint64_t word;
    __atomic_thread_fence(__ATOMIC_RELEASE); /* who reads what follows finds the generation 0 afterwards */
    XP_STORE_RELAXED(&to->kind, from->kind);
    for (size_t at = REST_AT; at < sizeof *to; at += sizeof word) {
        memcpy(&word, (const char *)from + at, sizeof word);
        XP_STORE_RELAXED((uint64_t *)((char *)to + at), word);
    }
}

static void copy_entry(xp_entry *to, const xp_entry *from)
{
    for (size_t at = 0; at < sizeof *to; at += sizeof(uint64_t)) {
        uint64_t word = XP_RELAXED((const uint64_t *)((const char *)from + at));
        memcpy((char *)to + at, &word, sizeof word);
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE); /* the generation is read again only after this */
}

int xp_read_entry(const char *base, const xp_handle *h, xp_entry *e)
{
    uint32_t reason;
    int state = xp_entry_state(base, h, &reason);
    if (state != XP_LIVE)
        return state;
    const xp_entry *theirs = xp_entry_at(base, h->entry);
    copy_entry(e, theirs); /* the peer may change its table while we read: the checked values are the used ones */
    if (XP_LOAD(&theirs->generation) != h->generation)
        return XP_EXPIRED;
    bool fits = e->generation == h->generation && e->kind == h->kind && e->object == h->object &&
                memcmp(e->nonce, h->nonce, sizeof e->nonce) == 0 &&
                (e->flags & XP_HANDLE_FLAGS) == h->flags && h->offset <= e->nbytes &&
                h->nbytes <= e->nbytes - h->offset && e->nbytes <= e->exposed_nbytes &&
                e->offset <= e->exposed_nbytes - e->nbytes && e->payload_nbytes <= sizeof e->payload &&
                (e->flags & ~XP_ENTRY_FLAGS) == 0 && (e->flags & XP_ENTRY_FORM) <= XP_ENTRY_FORM_LAST &&
                (e->fd_count <= XP_ENTRY_FDS || (e->flags & XP_ENTRY_ON_DEMAND));
    if (fits && (e->flags & XP_ENTRY_FORM) == XP_ENTRY_MEMFD) /* a single file, with the object at its beginning */
        fits = e->fd_count == 1 && e->offset == 0 && (e->flags & XP_ENTRY_ON_DEMAND) == 0;
    return fits ? XP_LIVE : XP_MISFIT;
}

/* --- the socket --------------------------------------------------------------------------------------------------- */

void xp_write_wanted(xp_wanted *w, const xp_handle *h, uint32_t first)
{
    *w = (xp_wanted){.entry = h->entry, .first = first, .generation = h->generation};
    memcpy(w->nonce, h->nonce, sizeof w->nonce);
}

size_t xp_write_request(xp_request *q, uint32_t op, const uint8_t *cookie, uint32_t count)
{
    memcpy(q->magic, XP_REQUEST_MAGIC, sizeof q->magic);
    q->op = op;
    memcpy(q->cookie, cookie, sizeof q->cookie);
    return offsetof(xp_request, wanted) + count * sizeof *q->wanted;
}

uint32_t xp_read_request(xp_request *q, const void *packet, size_t size)
{
    size_t wanted = size - offsetof(xp_request, wanted);
    if (size <= offsetof(xp_request, wanted) || size > sizeof *q || wanted % sizeof *q->wanted != 0)
        return 0;
    memcpy(q, packet, size);
    return memcmp(q->magic, XP_REQUEST_MAGIC, sizeof q->magic) == 0 ? (uint32_t)(wanted / sizeof *q->wanted) : 0;
}

int xp_read_reply(const void *packet, size_t size, uint32_t asked, uint32_t fds, xp_reply *r, uint32_t *given)
{
    size_t answers = size - offsetof(xp_reply, given);
    uint64_t sum = 0;
    *given = 0;
    if (size <= offsetof(xp_reply, given) || size > sizeof *r || answers % sizeof *r->given != 0)
        return XP_REPLY_NONE;
    memcpy(r, packet, size);
    answers /= sizeof *r->given;
    if (memcmp(r->magic, XP_REPLY_MAGIC, sizeof r->magic) != 0 || answers > asked)
        return XP_REPLY_NONSENSE;
    for (size_t i = 0; i < answers; i++) {
        if (r->given[i].status != XP_STATUS_OK)
            r->given[i].count = 0; /* its other fields mean nothing */
        sum += r->given[i].count;
    }
    if (sum != fds)
        return sum > fds ? XP_REPLY_FDS_LOST : XP_REPLY_NONSENSE;
    *given = (uint32_t)answers;
    return XP_REPLY_GOOD;
}
