/* Meets exporters, and opens the entries of their tables. */
#include "exporter.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 16
#endif

static bool refuse(xp_refusal *why, xp_refusal_code code, int error, const char *what)
{
    *why = (xp_refusal){.code = code, .error = error, .what = what};
    return false;
}

static bool refuse_number(xp_refusal *why, xp_refusal_code code, uint64_t detail)
{
    *why = (xp_refusal){.code = code, .detail = detail};
    return false;
}

/* Descriptors or memory ran out: no other route helps. */
static bool exhausted(int error) { return error == EMFILE || error == ENFILE || error == ENOMEM; }

/* --- by pidfd_getfd ----------------------------------------------------------------------------------------------- */

/* Fetch one descriptor. `gone`: the refusal if the process has no such descriptor, or has ended. */
static bool get(int pidfd, int fd, xp_refusal_code gone, int *got, xp_refusal *why)
{
    *got = xp_pidfd_getfd(pidfd, fd);
    if (*got >= 0)
        return true;
    bool ended = errno == EBADF || errno == ESRCH;
    return refuse(why, ended ? gone : exhausted(errno) ? XP_REFUSED_CALL_FAILED : XP_REFUSED_PIDFD_BLOCKED, errno,
                  "pidfd_getfd");
}

/* Read the beginning of what the handle says is its exporter's table. */
static bool read_head(const xp_handle *h, int fd, xp_table *head, xp_refusal *why)
{
    xp_memfd wanted = {.nbytes = XP_TABLE_SIZE, .exact = true};
    xp_error error;
    if (!xp_check_memfd(fd, &wanted, &error))
        return refuse(why, error.code ? XP_REFUSED_TABLE_UNREAD : XP_REFUSED_FD_REUSED, error.code, error.what);
    if (pread(fd, head, sizeof *head, 0) != sizeof *head)
        return refuse(why, XP_REFUSED_TABLE_UNREAD, errno, "pread");
    if (memcmp(head->magic, XP_TABLE_MAGIC, sizeof head->magic) != 0 || memcmp(head->cookie, h->cookie, XP_COOKIE) != 0)
        return refuse(why, XP_REFUSED_FD_REUSED, 0, NULL);
    return true;
}

static bool open_process(const xp_handle *h, int *pidfd, xp_refusal *why)
{
    if (h->pid_namespace == 0 || h->pid_namespace != xp_pid_namespace())
        return refuse(why, XP_REFUSED_OTHER_PIDS, 0, NULL);
    /* A copy of an fd of our own would, when it is closed, drop the lock by which the commons' members see us alive. */
    if (h->pid == (uint32_t)getpid())
        return refuse(why, XP_REFUSED_PID_OURS, 0, NULL);
    if ((*pidfd = xp_pidfd_open((int)h->pid)) >= 0)
        return true;
    return refuse(why, errno == ESRCH ? XP_REFUSED_PID_UNUSED : exhausted(errno) ? XP_REFUSED_CALL_FAILED
                                                                                 : XP_REFUSED_PIDFD_BLOCKED,
                  errno, "pidfd_open");
}

bool xp_fetch_exporter_fds(const xp_handle *h, xp_exporter_fds *r, xp_refusal *why)
{
    xp_table head;
    *r = (xp_exporter_fds){-1, -1, -1, -1};
    if (open_process(h, &r->pidfd, why) && get(r->pidfd, (int)h->table_fd, XP_REFUSED_PID_REUSED, &r->table, why) &&
        read_head(h, r->table, &head, why) &&
        get(r->pidfd, head.commons_fd, XP_REFUSED_MET_ENDING, &r->commons, why) &&
        get(r->pidfd, head.bell_fd, XP_REFUSED_MET_ENDING, &r->bell, why))
        return true;
    xp_close_exporter_fds(r);
    return false;
}

void xp_close_exporter_fds(xp_exporter_fds *r)
{
    int *fds[] = {&r->bell, &r->commons, &r->table};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        if (*fds[i] >= 0)
            xp_close_received(*fds[i]);
        *fds[i] = -1;
    }
    if (r->pidfd >= 0)
        close(r->pidfd);
    r->pidfd = -1;
}

/* --- by whatever route -------------------------------------------------------------------------------------------- */

static bool refuse_failure(xp_refusal *why, const xp_error *error)
{
    return refuse(why, error->code || error->what == NULL ? XP_REFUSED_TABLE_FAILED : XP_REFUSED_TABLE_UNFIT,
                  error->code, error->what);
}

/* Check the commons that a table names before it is joined, so that another version is refused as such. */
static bool check_commons(const xp_table *table, int commons, xp_refusal *why)
{
    struct stat found;
    xp_commons head = {.version = 0};
    if (fstat(commons, &found) < 0)
        return refuse(why, XP_REFUSED_TABLE_FAILED, errno, "fstat");
    if (found.st_ino != table->commons_inode)
        return refuse(why, XP_REFUSED_COMMONS_OTHER, 0, NULL);
    if (pread(commons, &head, sizeof head, 0) < 0)
        return refuse(why, XP_REFUSED_TABLE_FAILED, errno, "pread");
    if (memcmp(head.magic, XP_COMMONS_MAGIC, sizeof head.magic) == 0 && head.version != XP_VERSION)
        return refuse_number(why, XP_REFUSED_COMMONS_VERSION, head.version);
    return true;
}

/* Join the commons of a mapped table. The table is read once: its owner may change it at any time. */
static xp_domain *join(const xp_handle *h, const char *mapped, const xp_exporter_fds *r, xp_refusal *why)
{
    xp_table table;
    xp_error error;
    memcpy(&table, mapped, sizeof table);
    __asm__ __volatile__("" ::: "memory");
    if (memcmp(table.magic, XP_TABLE_MAGIC, sizeof table.magic) != 0 || memcmp(table.cookie, h->cookie, XP_COOKIE) != 0)
        refuse(why, XP_REFUSED_TABLE_OTHER, 0, NULL);
    else if (table.version != XP_VERSION)
        refuse_number(why, XP_REFUSED_TABLE_VERSION, table.version);
    else if (check_commons(&table, r->commons, why)) {
        xp_domain *d = xp_join(r->commons, r->bell, h->cookie, false, &error);
        if (d)
            return d;
        if (error.code == ENOSPC)
            refuse(why, XP_REFUSED_COMMONS_FULL, ENOSPC, NULL);
        else
            refuse_failure(why, &error);
    }
    return NULL;
}

bool xp_meet(const xp_handle *h, const xp_exporter_fds *r, xp_met *met, xp_refusal *why)
{
    xp_memfd wanted = {.nbytes = XP_TABLE_SIZE, .seals = F_SEAL_FUTURE_WRITE, .exact = true};
    xp_error error;
    met->table = xp_map_memfd(r->table, &wanted, false, NULL, &error);
    if (met->table == NULL)
        return refuse_failure(why, &error);
    met->domain = join(h, met->table, r, why);
    if (met->domain == NULL)
        munmap(met->table, XP_TABLE_SIZE);
    return met->domain;
}

/* --- entries ------------------------------------------------------------------------------------------------------ */

bool xp_exporter_lives(const xp_exporter *x, xp_refusal *why)
{
    int pid;
    bool ended = x->pidfd >= 0 ? xp_pidfd_readable(x->pidfd) : xp_lock_holder(x->domain->fd, XP_LIFE_BYTE, &pid) == 0;
    return !ended || refuse(why, XP_REFUSED_EXPORTER_ENDED, 0, NULL);
}

static bool in_time(const xp_exporter *x, const xp_handle *h, xp_refusal *why)
{
    bool pickled = h->flags & XP_ENTRY_PICKLED;
    bool known = pickled && h->entry < XP_ENTRIES && x->domain && !xp_domain_wrong(x->domain);
    uint64_t renewed = known ? xp_renewed(x->domain, h->entry) : 0;
    return !xp_overdue(x->table, h, renewed, known && !xp_opens_left(x->domain, h->entry)) ||
           refuse_number(why, XP_REFUSED_ENTRY_ENDED, pickled ? XP_REASON_PICKLE : XP_REASON_TTL);
}

bool xp_entry_stands(const xp_exporter *x, const xp_handle *h, xp_refusal *why)
{
    uint32_t reason;
    switch (xp_entry_state(x->table, h, &reason)) {
    case XP_LIVE:
        return in_time(x, h, why);
    case XP_NO_ENTRY:
        return refuse(why, XP_REFUSED_ENTRY_NONE, 0, NULL);
    default:
        return refuse_number(why, XP_REFUSED_ENTRY_ENDED, reason);
    }
}

bool xp_find_entry(const xp_exporter *x, const xp_handle *h, xp_entry *e, xp_refusal *why)
{
    if (xp_read_entry(x->table, h, e) == XP_LIVE)
        return in_time(x, h, why);
    return xp_entry_stands(x, h, why) && refuse(why, XP_REFUSED_ENTRY_UNFIT, 0, NULL);
}

static bool fetch(const xp_exporter *x, int theirs, int *fd, xp_refusal *why)
{
    if (get(x->pidfd, theirs, XP_REFUSED_FD_FREED, fd, why))
        return true;
    if (why->code == XP_REFUSED_FD_FREED && (why->error == ESRCH || xp_pidfd_readable(x->pidfd)))
        why->code = XP_REFUSED_EXPORTER_ENDED;
    return false;
}

bool xp_fd_belongs(const xp_exporter *x, const xp_handle *h, const xp_entry *e, int fd, xp_refusal *why)
{
    struct stat found;
    if (!xp_entry_stands(x, h, why))
        return false;
    if (e->inode && fstat(fd, &found) < 0)
        return refuse(why, XP_REFUSED_OBJECT_UNREAD, errno, "fstat");
    return !e->inode || found.st_ino == e->inode || refuse(why, XP_REFUSED_FD_OTHER, 0, NULL);
}

bool xp_fetch_fds(const xp_exporter *x, const xp_handle *h, const xp_entry *e, int *fds, xp_refusal *why)
{
    uint32_t got = 0;
    while (got < e->fd_count && fetch(x, e->fds[got], &fds[got], why))
        got++;
    if (got == e->fd_count && (got == 0 || xp_fd_belongs(x, h, e, fds[0], why)))
        return true;
    while (got)
        xp_close_received(fds[--got]);
    return false;
}

static void refuse_memory(xp_refusal *why, const xp_entry *e, const xp_error *error)
{
    bool failed = error->code || error->what == NULL;
    *why = (xp_refusal){failed ? XP_REFUSED_MEMORY_FAILED : XP_REFUSED_MEMORY_UNFIT, error->code, error->what,
                        e->exposed_nbytes};
}

char *xp_map_fetched(const xp_entry *e, int fd, xp_refusal *why)
{
    xp_memfd wanted = {.inode = e->inode, .nbytes = e->exposed_nbytes};
    xp_error error;
    char *base = xp_map_memfd(fd, &wanted, !(e->flags & XP_ENTRY_READ_ONLY), NULL, &error);
    if (base == NULL)
        refuse_memory(why, e, &error);
    return base;
}

char *xp_fetch_mapping(const xp_exporter *x, const xp_handle *h, const xp_entry *e, xp_refusal *why)
{
    int fd;
    if (!fetch(x, e->fds[0], &fd, why)) {
        if (why->code == XP_REFUSED_CALL_FAILED)
            refuse_memory(why, e, &(xp_error){why->error, why->what});
        return NULL;
    }
    char *base = xp_entry_stands(x, h, why) ? xp_map_fetched(e, fd, why) : NULL;
    xp_close_received(fd);
    if (base && !xp_entry_stands(x, h, why)) {
        munmap(base, e->exposed_nbytes);
        base = NULL;
    }
    return base;
}
