/* What the warden tends: tokens to report, waits of devices to guard, late stores to correct, and waits for which a
 * queue holds work. All functions are called with xp_mu. */
#include "events.h"
#include "loop.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define GRACE_NS 200000000u /* gives other processes time to lose what their devices have queued behind a lost point */
#define LOOK_MOST_NS 20000000u /* the most that counts between two checks: what stopped us for longer has stopped the others, too */

static xp_node *nodes, *due_first, **due_last = &due_first;
static int notify_fd = -1;
static bool polling_nodes; /* the warden will soon check the nodes of devices anyway */

static const xp_queue_ops *ops_of(const xp_queue *queue) { return *(const xp_queue_ops *const *)queue; }

#define IS_TOKEN(kind) ((kind) == XP_TOKEN || (kind) == XP_RECOVERY)

/* The state of what a node waits for. It is not pending once that has ended. */
static int state_for(xp_slot *s, uint64_t point, int kind, bool deaths)
{
    if (kind != XP_RECOVERY)
        return xp_full_state(s, point, deaths);
    xp_view v;
    xp_read(s->w, &v);
    return xp_future_lost(s, &v) ? XP_PENDING : XP_DONE;
}

/* --- what is due -------------------------------------------------------------------------------------------------- */

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

int xp_notification_fd(void)
{
    pthread_mutex_lock(&xp_mu);
    if (notify_fd < 0)
        notify_fd = xp_above_stdio(eventfd(due_first ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK), close);
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

/* --- guards ------------------------------------------------------------------------------------------------------- */

/* A slot counts the processes that have a guard on it: a process that loses its points lets these processes release
 * their devices. Count before reading the state: then either the losing process sees the guard, or the guard sees
 * the loss. */
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

/* The point of a guard is lost. From now on the guard reports that, even if a later signal ends the loss. */
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
        left = ops_of(node->queue)->lose(node->queue, node->token, cause ? cause : XP_CAUSE_DEATH,
                                         XP_RELAXED(&s->w->blame), !node->met);
    node->met = true; /* a postponed loss is tried again and again */
    node->served = left == XP_ALL_LOST;
    s->held = s->held || !node->served;
    s->reached = s->reached || left != XP_PUT_OFF;
}

/* --- adding and dropping ------------------------------------------------------------------------------------------ */

/* Also remove it from the list. */
static void finish_node(xp_node **at)
{
    xp_node *node = *at;
    xp_slot *s = node->slot;
    *at = node->next;
    if (IS_TOKEN(node->kind)) {
        make_due(node);
        return;
    }
    if (node->kind == XP_GUARD) {
        if (node->queue)
            ops_of(node->queue)->waits(node->queue, -1);
        if (node->unsure)
            ops_of(node->queue)->sure(node->queue);
        guards_out(s);
    }
    if (node->kind == XP_HOLD || node->kind == XP_HOLD_RECORDED)
        ops_of(node->queue)->resume(node->queue);
    else if (node->queue)
        ops_of(node->queue)->unref(node->queue);
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
            xp_raise_value(node->slot->w, v.hi);
        }
        for (p = &nodes; *p != node; p = &(*p)->next) /* serving may have added nodes */
            ;
        finish_node(p); /* waiters for the token find the slot detached */
    }
}

int xp_node_add(xp_slot *s, uint64_t point, uint64_t token, int kind, xp_queue *queue)
{
    bool unsure = kind & XP_UNSURE;
    kind &= ~XP_UNSURE;
    bool guard = kind == XP_GUARD, deaths = IS_TOKEN(kind) || kind == XP_HOLD;
    int rc = xp_loop_start();
    if (rc)
        return rc + 1;
    xp_domain *d = s->d;
    if (!xp_stands(d) && XP_LOAD(&d->left) & XP_ROBBED)
        return EBADF + 1;
    xp_node *node = malloc(sizeof *node);
    if (node == NULL)
        return -1;
    xp_note_act(s, XP_ACT_WAITED);
    *node = (xp_node){.slot = s, .point = point, .token = token, .kind = kind, .unsure = unsure, .queue = queue};
    pthread_mutex_lock(&xp_mu);
    bool gone = XP_LOAD(&s->gone) || XP_LOAD(&d->left);
    pthread_mutex_lock(&d->mu);
    rc = gone ? 0 : xp_watch_bell(d);
    pthread_mutex_unlock(&d->mu);
    if (gone || rc) {
        pthread_mutex_unlock(&xp_mu);
        free(node);
        return rc + 1;
    }
    if (guard)
        guards_in(s);
    XP_STORE(&s->w->async_waiters, 1);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    int watch = xp_watch_relied(s);
    int state = state_for(s, point, kind, deaths);
    if (state == XP_LOST && guard) {
        if (xp_abandon(s, point))
            xp_note_released(s, point);
        else
            state = XP_PENDING; /* not now */
    }
    if (state == XP_PENDING) {
        xp_slot_ref(s);
        if (queue)
            ops_of(queue)->ref(queue);
        if (queue && guard)
            ops_of(queue)->waits(queue, 1);
        node->next = nodes;
        nodes = node;
    } else if (guard) {
        guards_out(s);
    }
    bool soon = guard && polling_nodes; /* a guard only needs to know when it may end */
    pthread_mutex_unlock(&xp_mu);
    if (state != XP_PENDING) {
        free(node);
        return 1;
    }
    if (watch != XP_WATCHED || (XP_LOAD(&s->w->device) && !soon)) {
        XP_STORE(&d->rescan, 1);
        xp_loop_kick();
    }
    return 0;
}

int xp_guard(xp_slot *s, uint64_t point, xp_queue *queue, uint64_t at, bool unsure)
{
    xp_view v;
    xp_read(s->w, &v);
    if (point > v.effective && point - v.effective > XP_OUTSTANDING_MAX)
        return XP_TOO_FAR;
    return xp_node_add(s, point, at, unsure ? XP_GUARD | XP_UNSURE : XP_GUARD, queue);
}

void xp_detach(xp_slot *s)
{
    if (XP_EXCHANGE(&s->gone, 1) || !xp_usable(s->d))
        return;
    pthread_mutex_lock(&xp_mu);
    xp_nodes_drop(s->d, s);
    pthread_mutex_unlock(&xp_mu);
    xp_slot_end(s);
}

static void cancel(xp_node **from, const xp_slot *s, uint64_t token)
{
    while (*from) {
        xp_node *node = *from;
        if (node->slot != s || !IS_TOKEN(node->kind) || node->token != token) {
            from = &node->next;
            continue;
        }
        *from = node->next;
        if (s)
            xp_slot_unref(node->slot);
        free(node);
    }
}

void xp_node_cancel(xp_slot *s, uint64_t token)
{
    pthread_mutex_lock(&xp_mu);
    cancel(&nodes, s, token);
    cancel(&due_first, NULL, token); /* no slot any more */
    due_last = &due_first;
    while (*due_last)
        due_last = &(*due_last)->next;
    pthread_mutex_unlock(&xp_mu);
}

void xp_mend(xp_slot *s, xp_queue *queue)
{
    xp_node *node = !xp_usable(s->d) || XP_LOAD(&s->gone) || xp_mending(s, queue, false) ? NULL : malloc(sizeof *node);
    if (node == NULL)
        return; /* without memory, a device that waits here for a completed point may have to wait for the next one */
    *node = (xp_node){.next = nodes, .slot = s, .token = xp_now(), .kind = XP_MEND, .queue = queue};
    xp_view v;
    xp_read(s->w, &v);
    node->point = v.hi;
    xp_slot_ref(s);
    ops_of(queue)->ref(queue);
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
            finish_node(p);
        }
        return true;
    }
    return false;
}

/* --- looking ------------------------------------------------------------------------------------------------------ */

/* A late store may have lowered the value. Guards release devices for losses that came after it. */
static void mend(const xp_node *node)
{
    xp_finish(node->slot->w);
    if (xp_now() - node->token > GRACE_NS)
        xp_raise_value(node->slot->w, node->point);
}

/* For guards whose point is lost: first the queues lose what is queued behind it, then the devices are released, at
 * once if no other process has guards on the slot. A queue that has to complete an earlier point of its own has not
 * reached its wait yet. While that holds for all queues, no device waits to be released, and the grace period does
 * not run. Returns true if it has to be called again later. */
static bool serve_losses(void)
{
    bool again = false;
    uint64_t now = xp_now();
    for (xp_node *node = nodes; node; node = node->next)
        if (node->kind == XP_GUARD && node->lost) {
            xp_view v;
            xp_read(node->slot->w, &v);
            xp_slot *s = node->slot;
            if (s->lost_at == 0 || XP_LOAD(&s->w->value) >= s->lost_hi) { /* else an earlier loss is being handled */
                s->grace = 0;
                s->lost_hi = v.hi;
            } else {
                s->grace += now - s->lost_at < LOOK_MOST_NS ? now - s->lost_at : LOOK_MOST_NS;
            }
            s->lost_at = now;
            s->held = s->reached = false;
        }
    for (xp_node *node = nodes; node; node = node->next) {
        xp_slot *s = node->slot;
        if (node->kind != XP_GUARD || s->lost_at == 0 || node->point > s->lost_hi)
            continue;
        xp_view v; /* check again: the point may have been lost in the meantime */
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
        if (s->lost_at && ((alone && !s->held) || ((!alone || s->reached) && s->grace >= GRACE_NS))) {
            xp_raise_value(s->w, s->lost_hi);
            s->lost_at = 0;
        }
        if (!node->served || XP_LOAD(&s->w->value) < node->point) {
            XP_STORE(&s->d->rescan, 1);
            again = true;
            p = &node->next;
            continue;
        }
        finish_node(p);
    }
    return again;
}

void xp_guards_look(void)
{
    pthread_mutex_lock(&xp_mu);
    for (xp_node **p = &nodes; *p;) {
        xp_node *node = *p;
        if (node->unsure && !node->lost && xp_full_state(node->slot, node->point, false) == XP_DONE) {
            xp_finish(node->slot->w);
            finish_node(p);
        } else {
            p = &node->next;
        }
    }
    pthread_mutex_unlock(&xp_mu);
}

int xp_nodes_look(void)
{
    int wanted = 0;
    bool losses = false;
    pthread_mutex_lock(&xp_mu);
    xp_domain *scanned[32];
    int n = 0;
    for (xp_domain *d = xp_domains; d; d = d->next)
        if (XP_LOAD(&d->rescan)) {
            if (n == 32) { /* do the rest next time */
                xp_loop_kick();
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
        if (scan || device) {
            if (scan) {
                if (XP_LOAD(&s->w->async_waiters) == 0)
                    XP_STORE(&s->w->async_waiters, 1);
                __atomic_thread_fence(__ATOMIC_SEQ_CST);
                pthread_mutex_lock(&s->d->mu);
                xp_watch_bell(s->d); /* an earlier warden may have been stopped */
                pthread_mutex_unlock(&s->d->mu);
                xp_watch_relied(s);
            }
            if (node->kind == XP_MEND) {
                mend(node);
            } else if (!node->lost) {
                /* A guard's wait ends with the recorded loss. If no other process can reap, this one has to record
                 * it. */
                bool unreaped = scan && xp_next(s->d->retry, 0) < XP_MEMBERS;
                bool deaths = IS_TOKEN(node->kind) || node->kind == XP_HOLD || unreaped;
                state = state_for(s, node->point, node->kind, deaths);
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
        finish_node(p);
    }
    if (losses && serve_losses())
        wanted = 2;
    polling_nodes = wanted != 0;
    pthread_mutex_unlock(&xp_mu);
    return wanted;
}

bool xp_nodes_wait(const xp_domain *d)
{
    bool found = false;
    for (const xp_node *node = nodes; node && !found; node = node->next)
        found = node->slot->d == d;
    return found;
}

void xp_nodes_forked(void) /* they belong to the parent; what they refer to stays mapped */
{
    if (notify_fd >= 0)
        close(notify_fd);
    notify_fd = -1;
    nodes = due_first = NULL;
    due_last = &due_first;
}
