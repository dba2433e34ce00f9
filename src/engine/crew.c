/* The crews of this process: who is a member, which members live, and what rings when one dies. */
#include "crew.h"

#include "events.h"
#include "loop.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DYING_NS 300000000u    /* as in members.c */
#define LONGEST_NS 500000000u  /* a Unix signal just before the futex call does not interrupt it, so check from time to time */
#define POLLED_NS 100000000u
#define PIDFDS 64u /* of one crew */

static xp_crew *crews; /* xp_mu */

void xp_crew_ref(xp_crew *c) { __atomic_fetch_add(&c->refs, 1, __ATOMIC_RELAXED); }

void xp_crew_unref(xp_crew *c)
{
    if (__atomic_sub_fetch(&c->refs, 1, __ATOMIC_ACQ_REL) == 0)
        free(c);
}

static bool check_words(xp_crew *c, uint32_t kind, bool fresh, xp_error *error)
{
    xp_crew_head *head = xp_crew_head_of(c);
    if (c->nbytes <= XP_CREW_WORDS)
        return xp_failed(error, 0, "the control words do not fit in their memory");
    if (fresh) {
        head->version = XP_CREW_VERSION;
        head->kind = kind;
        head->nbytes = c->nbytes;
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        memcpy(head->magic, XP_CREW_MAGIC, sizeof head->magic);
        return true;
    }
    if (memcmp(head->magic, XP_CREW_MAGIC, sizeof head->magic) != 0 || head->version != XP_CREW_VERSION)
        return xp_failed(error, 0, "these are not control words of this version");
    if (head->kind != kind || head->nbytes != c->nbytes)
        return xp_failed(error, 0, "these are control words of something else");
    return true;
}

xp_crew *xp_crew_open(int fd, char *base, uint64_t nbytes, uint32_t kind, bool fresh, xp_error *error)
{
    static uint64_t serials;
    struct stat found;
    xp_crew *c = calloc(1, sizeof *c);
    if (c == NULL) {
        xp_failed(error, ENOMEM, NULL);
        return NULL;
    }
    *c = (xp_crew){.refs = 1, .born = XP_RELAXED(&xp_fork_count), .fd = fd, .base = base, .nbytes = nbytes};
    if (!check_words(c, kind, fresh, error) || (fstat(fd, &found) < 0 && !xp_failed(error, errno, "fstat"))) {
        free(c);
        return NULL;
    }
    c->inode = found.st_ino;
    c->device = found.st_dev;
    c->serial = __atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED);
    pthread_mutex_init(&c->mu, NULL);
    for (uint32_t m = 0; m < XP_CREW_MEMBERS; m++)
        c->pidfds[m] = -1;
    pthread_mutex_lock(&xp_mu);
    c->next = crews;
    crews = c;
    pthread_mutex_unlock(&xp_mu);
    return c;
}

static void unwatch(xp_crew *c, uint32_t m)
{
    if (c->pidfds[m] < 0)
        return;
    xp_loop_remove(c->pidfds[m]);
    close(c->pidfds[m]);
    c->pidfds[m] = -1;
}

void xp_crew_close(xp_crew *c)
{
    if (c->born != XP_RELAXED(&xp_fork_count))
        return; /* the fork handler has closed everything */
    pthread_mutex_lock(&xp_mu);
    for (xp_crew **p = &crews; *p; p = &(*p)->next)
        if (*p == c) {
            *p = c->next;
            break;
        }
    pthread_mutex_unlock(&xp_mu);
    bool ours = !XP_LOAD(&c->gone) && xp_crew_stands(c);
    pthread_mutex_lock(&c->mu);
    XP_STORE(&c->gone, 1);
    if (c->fd >= 0) {
        for (uint32_t m = 0; m < XP_CREW_MEMBERS; m++)
            unwatch(c, m);
        if (ours)
            xp_close_locked(c->fd);
        c->fd = -1;
    }
    pthread_mutex_unlock(&c->mu);
}

bool xp_crew_stands(xp_crew *c)
{
    struct stat found;
    if (c->fd >= 0 && fstat(c->fd, &found) == 0 && found.st_ino == c->inode && found.st_dev == c->device)
        return true;
    XP_STORE(&c->gone, 1);
    return false;
}

const char *xp_crew_wrong(xp_crew *c)
{
    if (xp_crew_usable(c))
        return NULL;
    return c->born != XP_RELAXED(&xp_fork_count) ? "it is from before a fork" : c->fd < 0 ? XP_LEFT_TEXT : XP_ROBBED_TEXT;
}

/* --- members ------------------------------------------------------------------------------------------------------ */

static bool mine(const xp_crew *c, uint32_t m) { return c->mine[m / 64] >> m % 64 & 1; }

/* Called with c->mu. Returns the pid of the holder of the life byte, 0 if it cannot be seen, or -1 if nobody holds
 * it. */
static int holder(xp_crew *c, uint32_t m)
{
    int pid = 0;
    if (mine(c, m))
        return (int)getpid();
    return c->fd < 0 || xp_lock_holder(c->fd, XP_CREW_LIFE + (int64_t)m, &pid) != 0 ? pid : -1;
}

/* Whether index `i` is free. A member that died still has its index while its device works. */
static bool vacant(xp_crew *c, uint32_t i)
{
    return xp_crew_is_gone(c, i) && (!XP_LOAD(&xp_crew_head_of(c)->members[i].state) || xp_crew_is_dead(c, i));
}

int xp_crew_claim(xp_crew *c, const char *label, xp_crew_sweep sweep, uint32_t *m)
{
    int rc = ENOSPC;
    for (uint32_t i = 0; i < XP_CREW_MEMBERS && rc == ENOSPC; i++) {
        if (!vacant(c, i))
            continue;
        pthread_mutex_lock(&c->mu);
        rc = c->fd < 0 ? EBADF : xp_lock_for_life(c->fd, XP_CREW_LIFE + (int64_t)i);
        pthread_mutex_unlock(&c->mu);
        /* Others join at the same time, so the index is looked at again, and cleared, only once it is ours. */
        if (rc == 0 && !vacant(c, i)) {
            xp_unlock_for_life(c->fd, XP_CREW_LIFE + (int64_t)i);
            rc = EAGAIN;
        }
        if (rc == 0) {
            sweep(c, i);
            pthread_mutex_lock(&c->mu);
            struct timespec t;
            clock_gettime(CLOCK_REALTIME, &t);
            c->mine[i / 64] |= 1ull << i % 64;
            unwatch(c, i);
            c->dying_since[i] = 0;
            xp_crew_member *record = &xp_crew_head_of(c)->members[i];
            XP_STORE_RELAXED(&record->pid, (uint32_t)getpid());
            XP_STORE_RELAXED(&record->pid_namespace, xp_pid_namespace());
            XP_STORE_RELAXED(&record->since_ns, (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec);
            strncpy(record->label, label, sizeof record->label); /* readers stop at the end */
            XP_STORE(&record->state, 1);
            pthread_mutex_unlock(&c->mu);
            *m = i;
        } else if (rc == EAGAIN) {
            rc = ENOSPC; /* another process was faster: try the next one */
        }
    }
    return rc;
}

int xp_crew_move(xp_crew *c, int fd)
{
    pthread_mutex_lock(&c->mu);
    bool usable = c->fd >= 0 && xp_crew_usable(c);
    if (!usable)
        close(fd);
    int rc = usable ? xp_replace_for_life(c->fd, fd) : EBADF;
    for (uint32_t m = 0; m < XP_CREW_MEMBERS && rc == 0; m++)
        if (mine(c, m))
            rc = xp_lock_for_life(c->fd, XP_CREW_LIFE + (int64_t)m);
    pthread_mutex_unlock(&c->mu);
    return rc;
}

void xp_crew_leave(xp_crew *c, uint32_t m)
{
    pthread_mutex_lock(&c->mu);
    if (mine(c, m)) {
        XP_STORE(&xp_crew_head_of(c)->members[m].state, 0);
        c->mine[m / 64] &= ~(1ull << m % 64);
        if (c->fd >= 0 && xp_crew_usable(c))
            xp_unlock_for_life(c->fd, XP_CREW_LIFE + (int64_t)m);
    }
    pthread_mutex_unlock(&c->mu);
}

bool xp_crew_is_gone(xp_crew *c, uint32_t m)
{
    pthread_mutex_lock(&c->mu);
    bool gone = holder(c, m) < 0;
    pthread_mutex_unlock(&c->mu);
    return gone;
}

/* The kernel drops the locks of a dying process before it closes the process's driver fds, as in xp_life. */
bool xp_crew_is_dead(xp_crew *c, uint32_t m)
{
    const xp_crew_member *record = &xp_crew_head_of(c)->members[m];
    pthread_mutex_lock(&c->mu);
    bool dead = holder(c, m) < 0;
    if (!dead) {
        c->dying_since[m] = 0;
    } else {
        int declared = (int)XP_RELAXED(&record->pid), pidfd = c->pidfds[m], opened = -1;
        if (pidfd < 0 && declared > 0 && XP_RELAXED(&record->pid_namespace) == xp_pid_namespace() && xp_pid_ours(declared))
            pidfd = opened = xp_pidfd_open(declared);
        uint64_t now = xp_now();
        if (c->dying_since[m] == 0)
            c->dying_since[m] = now;
        dead = pidfd < 0 || xp_pidfd_readable(pidfd) || now - c->dying_since[m] > DYING_NS;
        if (opened >= 0)
            close(opened);
    }
    pthread_mutex_unlock(&c->mu);
    return dead;
}

int xp_crew_pid(xp_crew *c, uint32_t m)
{
    pthread_mutex_lock(&c->mu);
    int pid = holder(c, m);
    pthread_mutex_unlock(&c->mu);
    return pid;
}

/* --- watching ----------------------------------------------------------------------------------------------------- */

static int watch(xp_crew *c, uint32_t m)
{
    int pid = holder(c, m), again = 0;
    if (pid < 0)
        return XP_CREW_GONE;
    if (mine(c, m) || c->pidfds[m] >= 0)
        return XP_CREW_WATCHED;
    uint32_t watched = 0;
    for (uint32_t i = 0; i < XP_CREW_MEMBERS; i++)
        watched += c->pidfds[i] >= 0;
    if (pid == 0 || watched >= PIDFDS)
        return XP_CREW_POLLED;
    int pidfd = xp_pidfd_open(pid);
    if (pidfd < 0)
        return XP_CREW_POLLED;
    /* If that process still holds the byte, the pidfd belongs to it, not to a later process with the same pid. */
    if (xp_lock_holder(c->fd, XP_CREW_LIFE + (int64_t)m, &again) != 1 || again != pid ||
        xp_loop_add(pidfd, EPOLLIN, XP_READY_CREW, c->serial, m) < 0) {
        close(pidfd);
        return XP_CREW_POLLED;
    }
    c->pidfds[m] = pidfd;
    c->pids[m] = pid;
    return XP_CREW_WATCHED;
}

int xp_crew_watch(xp_crew *c, uint32_t m)
{
    xp_loop_start(); /* if no thread can be started, members are polled */
    pthread_mutex_lock(&c->mu);
    int how = watch(c, m);
    pthread_mutex_unlock(&c->mu);
    return how;
}

void xp_crew_ready(uint64_t serial, uint32_t m)
{
    pthread_mutex_lock(&xp_mu);
    xp_crew *c = crews;
    while (c && c->serial != serial)
        c = c->next;
    if (c)
        xp_crew_ref(c);
    pthread_mutex_unlock(&xp_mu);
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->mu);
    if (m < XP_CREW_MEMBERS && c->pidfds[m] >= 0 && xp_pidfd_readable(c->pidfds[m]))
        unwatch(c, m);
    if (c->fd >= 0)
        xp_ring_all(c);
    pthread_mutex_unlock(&c->mu);
    xp_crew_unref(c);
}

void xp_crews_end(void)
{
    for (xp_crew *c = crews; c; c = c->next) {
        pthread_mutex_lock(&c->mu);
        for (uint32_t m = 0; m < XP_CREW_MEMBERS; m++)
            unwatch(c, m);
        pthread_mutex_unlock(&c->mu);
    }
}

void xp_crews_forked(void)
{
    for (xp_crew *c = crews; c; c = c->next) {
        if (c->fd >= 0)
            close(c->fd);
        c->fd = -1;
        for (uint32_t m = 0; m < XP_CREW_MEMBERS; m++)
            if (c->pidfds[m] >= 0)
                close(c->pidfds[m]);
        pthread_mutex_init(&c->mu, NULL);
    }
    crews = NULL;
}

/* --- bells -------------------------------------------------------------------------------------------------------- */

static void ring(xp_bell *bell)
{
    __atomic_fetch_add(&bell->seq, 1, __ATOMIC_SEQ_CST);
    xp_futex_wake(&bell->seq, INT32_MAX);
}

void xp_ring(xp_bell *bell)
{
    if (XP_UNLIKELY(XP_LOAD(&bell->sleepers)) && XP_EXCHANGE(&bell->sleepers, 0))
        ring(bell);
}

void xp_crew_tell(xp_crew *c)
{
    if (c->listeners && XP_LOAD(c->listeners) && XP_EXCHANGE(c->listeners, 0)) {
        ssize_t n = pwrite(c->fd, "", 1, 0); /* inotify tells them */
        (void)n;
    }
}

void xp_ring_all(xp_crew *c)
{
    for (int i = 0; i < 2 && c->bells[i]; i++)
        ring(c->bells[i]);
    xp_crew_tell(c);
}

int xp_bell_sleep(xp_crew *c, xp_bell *bell, uint32_t seq, uint64_t end, int watch)
{
    uint64_t now = xp_now(), most = watch == XP_CREW_POLLED ? POLLED_NS : LONGEST_NS;
    if (now >= end || !xp_crew_usable(c))
        return ETIMEDOUT;
    int rc = xp_futex_wait(&bell->seq, seq, end - now < most ? end - now : most);
    if (rc == ETIMEDOUT)
        xp_crew_stands(c);
    return rc;
}
