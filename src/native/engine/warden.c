/* The warden: one thread per process that never takes the GIL. It serves importers, sees members die, polls for points
 * that devices complete, and reports tokens. */
#include "events.h"

#include "queue.h"
#include "relay.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

#define CONNECTIONS 16
#define LISTENERS 2
#define BACKLOG 128
#define CONNECTION_NS 1000000000u
#define POLL_FIRST_NS 20000u
#define POLL_LAST_NS 1000000u
#define GUARD_LAST_NS 50000000u /* a guard alone only has to know when it may end: deaths are reported anyway */
#define GRACE_NS 200000000u /* gives other processes time to lose what their devices have queued behind a lost point */
#define RETRY_NS 10000000u
#define LOCKS_NS 200000000u
#define PIDFDS 64u /* of the members of one domain: a peer may claim any number of them; the others' locks are polled */

enum { KIND_WAKE = 1, KIND_LISTEN, KIND_CONNECTION, KIND_BELL, KIND_PIDFD };
#define NAME(kind, serial, member) ((uint64_t)(kind) << 60 | ((serial) & ((1ull << 50) - 1)) << 10 | (member))

pthread_mutex_t xp_life_mu = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t warden_mu = PTHREAD_MUTEX_INITIALIZER; /* the fds below */
static struct {
    bool running;
    int stop, robbed; /* robbed: the fds are not ours any more */
    pthread_t thread;
    int epoll, wake, listen[LISTENERS];
    dev_t dev; /* of `wake` */
    ino_t ino;
    uint64_t paused; /* until when nobody is let in, for want of fds; 0 not */
    struct {
        int fd;
        uint64_t serial, deadline;
    } connections[CONNECTIONS];
} W = {.epoll = -1, .wake = -1, .listen = {-1, -1}};

/* with xp_mu */
static xp_node *nodes, *due_first, **due_last = &due_first;
static int notify_fd = -1;
static bool polling_nodes; /* the warden will look at the nodes of devices soon anyway */

/* --- watching ----------------------------------------------------------------------------------------------------- */

static int epoll_add(int fd, uint32_t events, uint64_t name)
{
    struct epoll_event e = {.events = events, .data.u64 = name};
    return epoll_ctl(W.epoll, EPOLL_CTL_ADD, fd, &e);
}

static void kick(void)
{
    uint64_t one = 1;
    struct stat found;
    pthread_mutex_lock(&warden_mu);
    if (W.running && (fstat(W.wake, &found) < 0 || found.st_dev != W.dev || found.st_ino != W.ino)) {
        XP_STORE(&W.robbed, 1); /* and never write into somebody's file */
    } else if (W.running && write(W.wake, &one, sizeof one) < 0) {
        /* EAGAIN: it is woken already */
    }
    pthread_mutex_unlock(&warden_mu);
}

static bool full(const xp_domain *d)
{
    uint32_t watched = 0;
    for (uint32_t i = 0; i < XP_MASK_WORDS; i++)
        watched += (uint32_t)__builtin_popcountll(XP_LOAD(&d->watched[i]));
    return watched >= PIDFDS;
}

int xp_watch(xp_domain *d, uint32_t m)
{
    if (m == d->member || d->fd < 0 || xp_bit(d->watched, m))
        return XP_WATCHED;
    if (!xp_alive(d, m))
        return xp_reap(d, m, false) < 0 ? XP_RETRY : XP_WATCHED;
    for (int i = 0; i < 8; i++) {
        int pid, again;
        if (xp_lock_holder(d->fd, XP_LIFE_BYTE + (int64_t)m, &pid) <= 0)
            return xp_reap(d, m, false) < 0 ? XP_RETRY : XP_WATCHED;
        if (pid == 0 || full(d))
            break;
        int pidfd = xp_pidfd_open(pid);
        if (pidfd < 0 && errno == ESRCH)
            continue;
        if (pidfd < 0)
            break;
        /* If that is still the holder, the pidfd is the holder's, not that of a later process with the same pid. */
        if (xp_lock_holder(d->fd, XP_LIFE_BYTE + (int64_t)m, &again) != 1 || again != pid) {
            close(pidfd);
            continue;
        }
        for (uint32_t i = 0; i < XP_MEMBERS; i++)
            if (d->pidfds[i] >= 0 && d->pids[i] == pid) { /* nobody is two members: a peer that holds all locks, say */
                close(pidfd);
                xp_set(d->polled, m);
                return XP_POLLED;
            }
        pthread_mutex_lock(&warden_mu);
        int rc = W.running ? epoll_add(pidfd, EPOLLIN, NAME(KIND_PIDFD, d->serial, m)) : -1;
        pthread_mutex_unlock(&warden_mu);
        if (rc < 0) {
            close(pidfd);
            break;
        }
        d->pidfds[m] = pidfd;
        d->pids[m] = pid;
        xp_clear(d->polled, m);
        xp_set(d->watched, m);
        return XP_WATCHED;
    }
    xp_set(d->polled, m);
    return XP_POLLED;
}

void xp_unwatch(xp_domain *d, uint32_t m)
{
    if (d->pidfds[m] < 0)
        return;
    pthread_mutex_lock(&warden_mu);
    if (W.running)
        epoll_ctl(W.epoll, EPOLL_CTL_DEL, d->pidfds[m], NULL);
    pthread_mutex_unlock(&warden_mu);
    close(d->pidfds[m]);
    d->pidfds[m] = -1;
    xp_clear(d->watched, m);
}

int xp_watch_relied(xp_slot *s)
{
    xp_domain *d = s->d;
    int worst = XP_WATCHED;
    uint64_t wanted[XP_MASK_WORDS] = {0};
    xp_owing(s->w, wanted); /* they may have detached since */
    xp_roster_watch(s, wanted);
    for (uint32_t i = 0; i < XP_MASK_WORDS; i++) {
        uint64_t missing = wanted[i] & ~XP_LOAD(&d->watched[i]);
        if (d->member / 64 == i)
            missing &= ~(1ull << d->member % 64);
        if (XP_LIKELY(missing == 0))
            continue;
        pthread_mutex_lock(&d->mu);
        XP_EACH_BIT(missing, bits) {
            int how = xp_watch(d, i * 64 + (uint32_t)__builtin_ctzll(bits));
            if (how != XP_WATCHED && worst != XP_RETRY)
                worst = how;
        }
        pthread_mutex_unlock(&d->mu);
    }
    return worst;
}

/* With d->mu. Edge-triggered: each ring (EPOLLOUT) wakes every epoll that has the bell, which is one file for all
 * members. Where somebody fills it up before the warden looks, EPOLLIN is what it still finds. */
static int watch_bell(xp_domain *d)
{
    int rc = 0;
    pthread_mutex_lock(&warden_mu);
    if (!d->bell_watched && W.running) {
        rc = epoll_add(d->bell, EPOLLIN | EPOLLOUT | EPOLLET, NAME(KIND_BELL, d->serial, 0));
        d->bell_watched = rc == 0;
    }
    pthread_mutex_unlock(&warden_mu);
    return rc < 0 ? errno : 0;
}

void xp_unwatch_bell(xp_domain *d)
{
    pthread_mutex_lock(&warden_mu);
    if (d->bell_watched && W.running) /* by hand, since the other members' copies would keep it in the epoll */
        epoll_ctl(W.epoll, EPOLL_CTL_DEL, d->bell, NULL);
    d->bell_watched = false;
    pthread_mutex_unlock(&warden_mu);
}

/* --- tokens and guards (with xp_mu) ------------------------------------------------------------------------------- */

static void make_due(xp_node *node)
{
    xp_slot_unref(node->slot);
    node->slot = NULL;
    node->next = NULL;
    *due_last = node;
    due_last = &node->next;
    uint64_t one = 1;
    if (notify_fd >= 0 && write(notify_fd, &one, sizeof one) < 0) {
        /* EAGAIN: it is readable already */
    }
}

/* A slot counts the processes that have a guard on it: whoever loses its points leaves it to them to release the
 * devices. Count before looking at the state: then either the loser sees the guard, or the guard sees the loss. */
static void guards_in(xp_slot *s)
{
    if (s->guards++ == 0)
        __atomic_fetch_add(&s->w->guards, 1, __ATOMIC_SEQ_CST);
}

static void guards_out(xp_slot *s)
{
    if (--s->guards)
        return;
    __atomic_fetch_sub(&s->w->guards, 1, __ATOMIC_SEQ_CST);
    xp_finish(s->w);
}

/* The point of a guard is lost. From now on that is told, also if a later signal heals the loss. */
static void see_lost(xp_node *node)
{
    node->lost = true;
    xp_note_released(node->slot, node->point);
}

static void serve_guard(xp_node *node)
{
    xp_slot *s = node->slot;
    uint32_t cause = XP_RELAXED(&s->w->cause); /* 0: not written yet */
    int left = XP_ALL_LOST;
    if (!node->served && node->queue)
        left = xp_queue_lose(node->queue, node->token, cause ? cause : XP_CAUSE_DEATH, XP_RELAXED(&s->w->blame),
                             !node->met);
    node->met = true; /* a loss that is put off comes again and again */
    node->served = left == XP_ALL_LOST;
    s->held = s->held || !node->served;
    s->reached = s->reached || left != XP_PUT_OFF;
}

static void finish_node(xp_node *node)
{
    xp_slot *s = node->slot;
    if (node->kind == XP_TOKEN) {
        make_due(node);
        return;
    }
    if (node->kind == XP_GUARD) {
        if (node->queue)
            xp_queue_waits(node->queue, -1);
        if (node->unsure)
            xp_queue_sure(node->queue);
        guards_out(s);
    }
    if (node->kind == XP_HOLD || node->kind == XP_HOLD_RECORDED)
        xp_queue_resume(node->queue);
    else if (node->queue)
        xp_queue_unref(node->queue);
    xp_slot_unref(s);
    free(node);
}

void xp_nodes_drop(xp_domain *d, xp_slot *s)
{
    for (xp_node **p = &nodes; *p;) {
        xp_node *node = *p;
        if (s ? node->slot != s : node->slot->d != d) {
            p = &node->next;
            continue;
        }
        xp_view v;
        xp_read(node->slot->w, &v);
        if (node->kind == XP_GUARD && xp_state(&v, node->point) == XP_LOST) { /* nobody would do it later */
            serve_guard(node);
            xp_release(node->slot->w, v.hi);
        }
        for (p = &nodes; *p != node; p = &(*p)->next) /* serving may have added nodes */
            ;
        *p = node->next;
        finish_node(node); /* whoever waits for the token finds the slot detached */
    }
}

int xp_node_add(xp_slot *s, uint64_t point, uint64_t token, int kind, xp_queue *queue)
{
    bool unsure = kind & XP_UNSURE;
    kind &= ~XP_UNSURE;
    bool guard = kind == XP_GUARD, deaths = kind == XP_TOKEN || kind == XP_HOLD;
    int rc = xp_warden_start();
    if (rc)
        return rc + 1;
    xp_domain *d = s->d;
    if (!xp_stands(d) && XP_LOAD(&d->left) & XP_ROBBED)
        return EBADF + 1;
    xp_node *node = malloc(sizeof *node);
    if (node == NULL)
        return -1;
    *node = (xp_node){.slot = s, .point = point, .token = token, .kind = kind, .unsure = unsure, .queue = queue};
    pthread_mutex_lock(&xp_mu);
    if (XP_LOAD(&s->gone) || XP_LOAD(&d->left)) {
        pthread_mutex_unlock(&xp_mu);
        free(node);
        return 1;
    }
    pthread_mutex_lock(&d->mu);
    rc = watch_bell(d);
    pthread_mutex_unlock(&d->mu);
    if (rc) {
        pthread_mutex_unlock(&xp_mu);
        free(node);
        return rc + 1;
    }
    if (guard)
        guards_in(s);
    XP_STORE(&s->w->async_waiters, 1);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    int watch = xp_watch_relied(s);
    int state = xp_full_state(s, point, deaths);
    if (state == XP_LOST && guard) {
        if (xp_abandon(s, point))
            xp_note_released(s, point);
        else
            state = XP_PENDING; /* not now */
    }
    if (state == XP_PENDING) {
        xp_slot_ref(s);
        if (queue)
            xp_queue_ref(queue);
        if (queue && guard)
            xp_queue_waits(queue, 1);
        node->next = nodes;
        nodes = node;
    } else if (guard) {
        guards_out(s);
    }
    bool soon = guard && polling_nodes; /* a guard only has to know when it may end */
    pthread_mutex_unlock(&xp_mu);
    if (state != XP_PENDING) {
        free(node);
        return 1;
    }
    if (watch != XP_WATCHED || (XP_LOAD(&s->w->device) && !soon)) {
        XP_STORE(&d->rescan, 1);
        kick();
    }
    return 0;
}

void xp_node_cancel(xp_slot *s, uint64_t token)
{
    pthread_mutex_lock(&xp_mu);
    for (xp_node **p = &nodes; *p;) {
        xp_node *node = *p;
        if (node->slot != s || node->kind != XP_TOKEN || node->token != token) {
            p = &node->next;
            continue;
        }
        *p = node->next;
        xp_slot_unref(node->slot);
        free(node);
    }
    for (xp_node **p = &due_first; *p;) {
        xp_node *node = *p;
        if (node->token != token) {
            p = &node->next;
            continue;
        }
        *p = node->next;
        free(node);
    }
    due_last = &due_first;
    while (*due_last)
        due_last = &(*due_last)->next;
    pthread_mutex_unlock(&xp_mu);
}

void xp_mend(xp_slot *s, xp_queue *queue)
{
    xp_node *node = !xp_usable(s->d) || XP_LOAD(&s->gone) || xp_mending(s, queue, false) ? NULL : malloc(sizeof *node);
    if (node == NULL)
        return; /* for want of memory: a device that waits here for a completed point may have to wait for the next
                 * one */
    *node = (xp_node){.next = nodes, .slot = s, .token = xp_now(), .kind = XP_MEND, .queue = queue};
    xp_view v;
    xp_read(s->w, &v);
    node->point = v.hi;
    xp_slot_ref(s);
    xp_queue_ref(queue);
    nodes = node;
}

bool xp_mending(xp_slot *s, const xp_queue *queue, bool end)
{
    for (xp_node **p = &nodes; *p; p = &(*p)->next) {
        xp_node *node = *p;
        if (node->kind != XP_MEND || node->slot != s || node->queue != queue)
            continue;
        if (end) {
            xp_finish(s->w);
            *p = node->next;
            finish_node(node);
        }
        return true;
    }
    return false;
}

/* A late store may have lowered the value. Guards release devices for losses that came after it. */
static void mend(const xp_node *node)
{
    xp_finish(node->slot->w);
    if (xp_now() - node->token > GRACE_NS)
        xp_release(node->slot->w, node->point);
}

/* For guards whose point is lost: first the queues lose what is queued behind, then the devices are released, at once
 * if no other process has guards on the slot. A queue that has to complete an earlier point of its own first has not come
 * to its wait: while that is so of all, nobody waits to be released, and the grace does not count. True: call it again
 * later. */
static bool serve_losses(void)
{
    bool again = false;
    uint64_t now = xp_now();
    for (xp_node *node = nodes; node; node = node->next)
        if (node->kind == XP_GUARD && node->lost) {
            xp_view v;
            xp_read(node->slot->w, &v);
            xp_slot *s = node->slot;
            if (s->lost_at == 0 || XP_LOAD(&s->w->value) >= s->lost_hi) { /* else an earlier loss is still being
                                                                           * served */
                s->lost_at = now;
                s->lost_hi = v.hi;
            }
            s->held = s->reached = false;
        }
    for (xp_node *node = nodes; node; node = node->next) {
        xp_slot *s = node->slot;
        if (node->kind != XP_GUARD || s->lost_at == 0 || node->point > s->lost_hi)
            continue;
        xp_view v; /* look again: the point may have been lost since */
        xp_read(s->w, &v);
        if (!node->lost && xp_state(&v, node->point) == XP_LOST)
            see_lost(node);
        if (node->lost)
            serve_guard(node);
    }
    for (xp_node **p = &nodes; *p;) {
        xp_node *node = *p;
        xp_slot *s = node->slot;
        if (node->kind != XP_GUARD || !node->lost) {
            p = &node->next;
            continue;
        }
        bool alone = XP_LOAD(&s->w->guards) == 1;
        if (s->lost_at && ((alone && !s->held) || ((!alone || s->reached) && now - s->lost_at >= GRACE_NS))) {
            xp_release(s->w, s->lost_hi);
            s->lost_at = 0;
        }
        if (!node->served || XP_LOAD(&s->w->value) < node->point) {
            XP_STORE(&s->d->rescan, 1);
            again = true;
            p = &node->next;
            continue;
        }
        *p = node->next;
        finish_node(node);
    }
    return again;
}

void xp_guards_look(void)
{
    pthread_mutex_lock(&xp_mu);
    for (xp_node **p = &nodes; *p;) {
        xp_node *node = *p;
        xp_words *w = node->slot->w;
        if (node->unsure && !node->lost && xp_full_state(node->slot, node->point, false) == XP_DONE) {
            xp_finish(w);
            *p = node->next;
            finish_node(node);
        } else {
            p = &node->next;
        }
    }
    pthread_mutex_unlock(&xp_mu);
}

static bool retrying(const xp_domain *d)
{
    uint64_t any = 0;
    for (uint32_t i = 0; i < XP_MASK_WORDS; i++)
        any |= XP_LOAD(&d->retry[i]);
    return any != 0;
}

/* What the nodes want next: 2 tokens or held waits that a device completes, or losses; 1 only guards; 0 none. */
static int service(bool polling)
{
    int wanted = 0;
    bool losses = false;
    pthread_mutex_lock(&xp_mu);
    xp_domain *scanned[32];
    int n = 0;
    for (xp_domain *d = xp_domains; d; d = d->next)
        if (XP_LOAD(&d->rescan)) {
            if (n == 32) { /* do the rest next time */
                kick();
                break;
            }
            XP_STORE(&d->rescan, 0);
            scanned[n++] = d;
        }
    for (xp_node **p = &nodes; *p;) {
        xp_node *node = *p;
        xp_slot *s = node->slot;
        bool device = XP_LOAD(&s->w->device) != 0, scan = false;
        for (int i = 0; i < n && !scan; i++)
            scan = scanned[i] == s->d;
        int state = XP_PENDING;
        if (scan || (polling && device)) {
            if (scan) {
                if (XP_LOAD(&s->w->async_waiters) == 0)
                    XP_STORE(&s->w->async_waiters, 1);
                __atomic_thread_fence(__ATOMIC_SEQ_CST);
                xp_watch_relied(s);
            }
            if (node->kind == XP_MEND) {
                mend(node);
            } else if (!node->lost) {
                /* A guard's wait ends with the recorded loss, and where nobody can reap, that is for us to record. */
                bool deaths = node->kind == XP_TOKEN || node->kind == XP_HOLD || (scan && retrying(s->d));
                state = xp_full_state(s, node->point, deaths);
                if (node->kind == XP_GUARD && state == XP_LOST) {
                    if (xp_abandon(s, node->point)) /* else not now */
                        see_lost(node);
                    state = XP_PENDING;
                } else if (node->kind == XP_GUARD && state == XP_DONE && XP_LOAD(&s->w->value) < node->point) {
                    xp_finish(s->w);
                }
            }
        }
        losses = losses || node->lost;
        if (state == XP_PENDING) {
            if (device && wanted < 2)
                wanted = node->kind == XP_GUARD || node->kind == XP_MEND ? 1 : 2;
            p = &node->next;
            continue;
        }
        *p = node->next;
        finish_node(node);
    }
    if (losses && serve_losses())
        wanted = 2;
    polling_nodes = wanted != 0;
    pthread_mutex_unlock(&xp_mu);
    return wanted;
}

/* --- deaths ------------------------------------------------------------------------------------------------------- */

/* With a reference; NULL when it is gone. */
static xp_domain *find_domain(uint64_t serial)
{
    pthread_mutex_lock(&xp_mu);
    xp_domain *d = xp_domains;
    while (d && d->serial != serial)
        d = d->next;
    if (d)
        xp_domain_ref(d);
    pthread_mutex_unlock(&xp_mu);
    return d;
}

static void on_pidfd(uint64_t serial, uint32_t m)
{
    xp_domain *d = find_domain(serial);
    if (d == NULL)
        return;
    pthread_mutex_lock(&d->mu);
    if (d->pidfds[m] >= 0 && xp_pidfd_readable(d->pidfds[m])) {
        xp_unwatch(d, m);
        xp_reap(d, m, true);
        if (xp_alive(d, m)) /* somebody new has the index by now */
            xp_watch(d, m);
    }
    pthread_mutex_unlock(&d->mu);
    XP_STORE(&d->rescan, 1);
    xp_domain_unref(d);
}

/* Check the members whose death no pidfd can tell, and dead members that are not reaped yet. Returns when to check
 * again. */
static uint64_t check_locks(bool act, uint64_t retry_ns)
{
    uint64_t again = XP_FOREVER, after = 0;
    for (;;) { /* one domain at a time, by their serials, so that xp_mu is not held while members are reaped */
        xp_domain *d = NULL;
        bool waited = false;
        pthread_mutex_lock(&xp_mu);
        for (xp_domain *o = xp_domains; o; o = o->next)
            if (o->serial > after && (d == NULL || o->serial < d->serial))
                d = o;
        if (d)
            xp_domain_ref(d);
        for (xp_node *node = nodes; d && node && !waited; node = node->next)
            waited = node->slot->d == d;
        pthread_mutex_unlock(&xp_mu);
        if (d == NULL)
            return again;
        after = d->serial;
        for (uint32_t i = 0; i < XP_MASK_WORDS; i++) {
            uint64_t retry = XP_LOAD(&d->retry[i]), polled = waited ? XP_LOAD(&d->polled[i]) : 0;
            if ((retry | polled) == 0)
                continue;
            if (act) {
                pthread_mutex_lock(&d->mu);
                XP_EACH_BIT(retry | polled, bits) {
                    uint32_t m = i * 64 + (uint32_t)__builtin_ctzll(bits);
                    int reaped;
                    uint32_t before = xp_swept(d, m);
                    while ((reaped = xp_reap(d, m, false)) < 0 && xp_sweeping(d, m, before)) {
                        before = xp_swept(d, m);
                        pthread_mutex_unlock(&d->mu); /* between two steps others have their turn */
                        pthread_mutex_lock(&d->mu);
                    }
                    if (reaped) /* also if it cannot be reaped: its death counts all the same */
                        XP_STORE(&d->rescan, 1);
                    else if (!xp_alive(d, m))
                        xp_clear(d->polled, m);
                }
                pthread_mutex_unlock(&d->mu);
                retry = XP_LOAD(&d->retry[i]);
                polled &= XP_LOAD(&d->polled[i]);
            }
            uint64_t wish = retry ? retry_ns : polled ? LOCKS_NS : XP_FOREVER;
            again = wish < again ? wish : again;
        }
        xp_domain_unref(d);
    }
}

/* --- connections -------------------------------------------------------------------------------------------------- */

/* Start or stop accepting connections; others wait in the backlog. With warden_mu. */
static void let_in(bool yes)
{
    for (unsigned i = 0; i < LISTENERS; i++) {
        struct epoll_event e = {.events = yes ? EPOLLIN : 0, .data.u64 = NAME(KIND_LISTEN, 0, i)};
        if (W.listen[i] >= 0)
            epoll_ctl(W.epoll, EPOLL_CTL_MOD, W.listen[i], &e);
    }
}

static void drop_connection(int i)
{
    pthread_mutex_lock(&warden_mu);
    epoll_ctl(W.epoll, EPOLL_CTL_DEL, W.connections[i].fd, NULL);
    close(W.connections[i].fd);
    W.connections[i].fd = -1;
    W.paused = 0;
    let_in(true);
    pthread_mutex_unlock(&warden_mu);
}

/* With warden_mu: one connection; false when there is no more to do. */
static bool accept_one(int listening, uint64_t now)
{
    static uint64_t serials;
    int i = 0;
    while (i < CONNECTIONS && W.connections[i].fd >= 0)
        i++;
    if (i == CONNECTIONS) {
        let_in(false); /* until one closes, in a second at the latest */
        return false;
    }
    int fd = xp_above_stdio(accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            let_in(false); /* else we would be woken again and again */
            W.paused = now + LOCKS_NS;
        }
        return errno == EINTR || errno == ECONNABORTED;
    }
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0 || peer.uid != geteuid()) {
        char request[64]; /* an unread request would turn the reply into a reset; an honest client sends one */
        if (recv(fd, request, sizeof request, MSG_DONTWAIT) < 0) {
            /* the request is not there yet */
        }
        xp_refuse(fd);
        close(fd);
    } else if (epoll_add(fd, EPOLLIN | EPOLLRDHUP, NAME(KIND_CONNECTION, ++serials, (uint64_t)i)) < 0) {
        close(fd);
    } else {
        W.connections[i].fd = fd;
        W.connections[i].serial = serials;
        W.connections[i].deadline = now + CONNECTION_NS;
    }
    return true;
}

static void on_listen(uint32_t i, uint64_t now)
{
    pthread_mutex_lock(&warden_mu);
    for (int burst = 0; burst < CONNECTIONS && i < LISTENERS && W.listen[i] >= 0 && accept_one(W.listen[i], now); burst++)
        ;
    pthread_mutex_unlock(&warden_mu);
}

static void on_connection(uint64_t serial, uint32_t i)
{
    if (i >= CONNECTIONS || W.connections[i].fd < 0 || W.connections[i].serial != serial)
        return;
    char packet[sizeof(xp_request) + 8];
    /* There is no room for control data, so the kernel closes fds that somebody sends us. */
    ssize_t n = recv(W.connections[i].fd, packet, sizeof packet, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    bool keep = false;
    if (n > 0)
        keep = xp_answer(W.connections[i].fd, packet, (size_t)n);
    if (!keep)
        drop_connection((int)i);
}

/* Close connections whose deadline is over; returns the earliest of the other deadlines. */
static uint64_t check_connections(uint64_t now)
{
    uint64_t earliest = XP_FOREVER;
    for (int i = 0; i < CONNECTIONS; i++) {
        if (W.connections[i].fd < 0)
            continue;
        if (W.connections[i].deadline <= now)
            drop_connection(i);
        else if (W.connections[i].deadline < earliest)
            earliest = W.connections[i].deadline;
    }
    if (W.paused && W.paused <= now) {
        pthread_mutex_lock(&warden_mu);
        W.paused = 0;
        let_in(true);
        pthread_mutex_unlock(&warden_mu);
    }
    return W.paused && W.paused < earliest ? W.paused : earliest;
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

static int wait_events(struct epoll_event *events, int most, uint64_t ns)
{
    static int no_pwait2;
    if (ns == XP_FOREVER)
        return epoll_wait(W.epoll, events, most, -1);
    if (!no_pwait2) {
        struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
        int n = (int)syscall(SYS_epoll_pwait2, W.epoll, events, most, &t, NULL, 0);
        if (n >= 0 || (errno != ENOSYS && errno != EPERM))
            return n;
        no_pwait2 = 1; /* an old kernel, or a container that hides it */
    }
    return epoll_wait(W.epoll, events, most, (int)((ns + 999999u) / 1000000u));
}

static void *run(void *arg)
{
    (void)arg;
    prctl(PR_SET_NAME, "xpushare-warden");
    prctl(PR_SET_TIMERSLACK, 1000);
    uint64_t poll_at = XP_FOREVER, step = POLL_FIRST_NS, locks_at = XP_FOREVER, retry = RETRY_NS;
    bool look = true;
    while (!XP_LOAD(&W.stop)) {
        uint64_t now = xp_now();
        bool polling = now >= poll_at;
        if (look || now >= locks_at) {
            uint64_t again = check_locks(now >= locks_at, retry);
            if (now >= locks_at)
                retry = retry < LOCKS_NS ? retry * 2 : LOCKS_NS;
            uint64_t next = again == XP_FOREVER ? XP_FOREVER : now + again;
            locks_at = now >= locks_at || next < locks_at || again == XP_FOREVER ? next : locks_at;
            look = true;
        }
        if (look || polling) {
            if (look)
                step = POLL_FIRST_NS;
            int wanted = service(polling || look);
            uint64_t last = wanted == 1 ? GUARD_LAST_NS : POLL_LAST_NS;
            step = step < last ? step : last;
            poll_at = wanted ? xp_now() + step : XP_FOREVER;
            step = step + step / 2 < last ? step + step / 2 : last;
        }
        uint64_t until = check_connections(now);
        until = poll_at < until ? poll_at : until;
        until = locks_at < until ? locks_at : until;
        uint64_t trim_at = xp_trim_old(now);
        until = trim_at < until ? trim_at : until;
        now = xp_now();
        struct epoll_event events[32];
        int n = wait_events(events, 32, until == XP_FOREVER ? XP_FOREVER : until > now ? until - now : 0);
        look = false;
        if (n < 0 && errno != EINTR) { /* EBADF, EINVAL: the number is another file's, or nobody's */
            XP_STORE(&W.robbed, 1);
            xp_rob();
            return NULL;
        }
        for (int i = 0; i < n; i++) {
            uint64_t name = events[i].data.u64, serial = name >> 10 & ((1ull << 50) - 1), drained;
            uint32_t m = (uint32_t)(name & 1023);
            xp_domain *d;
            switch (name >> 60) {
            case KIND_WAKE:
                look = read(W.wake, &drained, sizeof drained) > 0 || look;
                break;
            case KIND_LISTEN:
                on_listen(m, xp_now());
                break;
            case KIND_CONNECTION:
                on_connection(serial, m);
                break;
            case KIND_BELL:
                if ((d = find_domain(serial))) {
                    XP_STORE(&d->rescan, 1);
                    xp_domain_unref(d);
                    look = true;
                }
                break;
            case KIND_PIDFD:
                on_pidfd(serial, m);
                retry = RETRY_NS;
                look = true;
                break;
            default: /* another epoll has the number */
                XP_STORE(&W.robbed, 1);
                xp_rob();
                return NULL;
            }
        }
    }
    return NULL;
}

/* With warden_mu. */
static void close_fds(void)
{
    int *fds[] = {&W.epoll, &W.wake, &W.listen[0], &W.listen[1]};
    for (unsigned i = 0; i < sizeof fds / sizeof *fds; i++) {
        if (*fds[i] >= 0 && !W.robbed)
            close(*fds[i]);
        *fds[i] = -1;
    }
    for (int i = 0; i < CONNECTIONS; i++) {
        if (W.running && W.connections[i].fd >= 0 && !W.robbed)
            close(W.connections[i].fd);
        W.connections[i].fd = -1;
    }
}

static int start(void) /* with xp_mu and warden_mu */
{
    sigset_t all, old;
    for (int i = 0; i < CONNECTIONS; i++)
        W.connections[i].fd = -1;
    W.epoll = xp_above_stdio(epoll_create1(EPOLL_CLOEXEC));
    W.wake = xp_above_stdio(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    struct stat found;
    int rc = W.epoll < 0 || W.wake < 0 || fstat(W.wake, &found) < 0 || epoll_add(W.wake, EPOLLIN, NAME(KIND_WAKE, 0, 0)) < 0
                 ? errno
                 : 0;
    if (rc == 0) {
        W.dev = found.st_dev;
        W.ino = found.st_ino;
        W.stop = 0;
        W.paused = 0;
        polling_nodes = false;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        rc = pthread_create(&W.thread, NULL, run, NULL);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    if (rc)
        close_fds();
    __atomic_store_n(&W.running, rc == 0, __ATOMIC_SEQ_CST);
    return rc;
}

int xp_warden_start(void)
{
    if (XP_UNLIKELY(XP_LOAD(&W.robbed))) {
        xp_rob();
        return EBADF;
    }
    if (XP_LIKELY(XP_LOAD(&W.running)))
        return 0;
    int rc = 0;
    pthread_mutex_lock(&xp_life_mu);
    pthread_mutex_lock(&xp_mu);
    if (!W.running) {
        pthread_mutex_lock(&warden_mu);
        rc = start();
        pthread_mutex_unlock(&warden_mu);
        for (xp_node *node = nodes; rc == 0 && node; node = node->next) { /* left over from a warden that was stopped */
            pthread_mutex_lock(&node->slot->d->mu);
            watch_bell(node->slot->d);
            pthread_mutex_unlock(&node->slot->d->mu);
            XP_STORE(&node->slot->d->rescan, 1);
        }
    }
    bool kicked = rc == 0 && nodes;
    pthread_mutex_unlock(&xp_mu);
    pthread_mutex_unlock(&xp_life_mu);
    if (kicked)
        kick();
    return rc;
}

void xp_warden_stop(void)
{
    pthread_mutex_lock(&xp_life_mu);
    if (W.running) {
        XP_STORE(&W.stop, 1);
        kick();
        if (XP_LOAD(&W.robbed)) /* it may sleep at fds that are gone, for ever */
            pthread_detach(W.thread);
        else
            pthread_join(W.thread, NULL);
        xp_serving_end(NULL);
        xp_trim(); /* nobody is left to do it later */
        pthread_mutex_lock(&xp_mu);
        for (xp_domain *d = xp_domains; d; d = d->next) {
            pthread_mutex_lock(&d->mu);
            for (uint32_t m = 0; m < XP_MEMBERS; m++)
                xp_unwatch(d, m);
            xp_unwatch_bell(d);
            pthread_mutex_unlock(&d->mu);
        }
        pthread_mutex_unlock(&xp_mu);
        pthread_mutex_lock(&warden_mu);
        close_fds();
        __atomic_store_n(&W.running, false, __ATOMIC_SEQ_CST);
        pthread_mutex_unlock(&warden_mu);
    }
    pthread_mutex_unlock(&xp_life_mu);
}

/* With warden_mu, so that no fork in between leaves a child with the socket. -1 and errno. */
static int listen_at(const struct sockaddr_un *name, size_t size, uint32_t i)
{
    int fd = xp_above_stdio(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0 || (bind(fd, (const struct sockaddr *)name, (socklen_t)size) == 0 && listen(fd, BACKLOG) == 0 &&
                   epoll_add(fd, EPOLLIN, NAME(KIND_LISTEN, 0, i)) == 0))
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

int xp_warden_listen(const struct sockaddr_un *name, size_t size, const char *file, const char **call)
{
    struct sockaddr_un there = {.sun_family = AF_UNIX};
    int rc = 0;
    pthread_mutex_lock(&warden_mu);
    if (!W.running || W.listen[0] >= 0) {
        rc = EALREADY;
        *call = "serve";
    } else if ((W.listen[0] = listen_at(name, size, 0)) < 0) {
        rc = errno;
        *call = "bind";
    } else if (file && strlen(file) < sizeof there.sun_path) {
        strcpy(there.sun_path, file);
        W.listen[1] = listen_at(&there, sizeof there, 1);
    }
    pthread_mutex_unlock(&warden_mu);
    return rc;
}

void xp_warden_deaf(void)
{
    pthread_mutex_lock(&warden_mu);
    for (unsigned i = 0; i < LISTENERS; i++) {
        if (W.listen[i] >= 0 && !W.robbed) /* which takes it out of the epoll */
            close(W.listen[i]);
        W.listen[i] = -1;
    }
    pthread_mutex_unlock(&warden_mu);
}

/* --- fork --------------------------------------------------------------------------------------------------------- */

static void fork_prepare(void)
{
    pthread_mutex_lock(&xp_life_mu);
    pthread_mutex_lock(&xp_mu);
    pthread_mutex_lock(&warden_mu);
    xp_relay_fork_prepare();
    xp_kept_fork_prepare();
}

static void fork_parent(void)
{
    xp_kept_fork_parent();
    xp_relay_fork_parent();
    pthread_mutex_unlock(&warden_mu);
    pthread_mutex_unlock(&xp_mu);
    pthread_mutex_unlock(&xp_life_mu);
}

static void fork_child(void)
{
    XP_STORE(&xp_fork_count, xp_fork_count + 1);
    close_fds(); /* above all the listening socket, which would outlive the parent */
    W.running = false;
    W.robbed = 0;
    /* The commons' fds at once too: closing one later would drop the locks that this child takes by its own fd. */
    for (xp_domain *d = xp_domains; d; d = d->next) {
        if (d->fd >= 0)
            close(d->fd);
        d->fd = -1;
        for (uint32_t m = 0; m < XP_MEMBERS; m++)
            if (d->pidfds[m] >= 0) {
                close(d->pidfds[m]);
                d->pidfds[m] = -1;
            }
        memset(d->watched, 0, sizeof d->watched);
        pthread_mutex_init(&d->mu, NULL);
    }
    if (notify_fd >= 0)
        close(notify_fd);
    notify_fd = -1;
    xp_domains = NULL;
    nodes = due_first = NULL; /* they are the parent's; what they refer to stays mapped */
    due_last = &due_first;
    xp_serving_forked();
    xp_relay_forked();
    xp_kept_forked();
    fork_parent(); /* the child's only thread is the one that locked them */
}

static void install_fork_handlers(void) { pthread_atfork(fork_prepare, fork_parent, fork_child); }

void xp_engine_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_fork_handlers);
}

/* --- what is due -------------------------------------------------------------------------------------------------- */

int xp_notification_fd(void)
{
    pthread_mutex_lock(&xp_mu);
    if (notify_fd < 0)
        notify_fd = xp_above_stdio(eventfd(due_first ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK));
    int fd = notify_fd, error = errno;
    pthread_mutex_unlock(&xp_mu);
    errno = error;
    return fd;
}

xp_node *xp_due(void)
{
    uint64_t drained;
    pthread_mutex_lock(&xp_mu);
    if (notify_fd >= 0 && read(notify_fd, &drained, sizeof drained) < 0) {
        /* EAGAIN: nothing new */
    }
    xp_node *list = due_first;
    due_first = NULL;
    due_last = &due_first;
    pthread_mutex_unlock(&xp_mu);
    return list;
}

void xp_warden_kick(void) { kick(); }

bool xp_warden_running(void) { return XP_LOAD(&W.running); }
