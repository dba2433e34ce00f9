/* Deaths: watching the members of a domain, and removing dead ones from its slots and entries. */
#include "events.h"
#include "loop.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

/* A peer can fake a thousand dead members, with many slots and entries to sweep for each, while callers wait for
 * d->mu. So one sweep or series of sweeps takes no longer than this at once, and no more than this share of the time
 * in the long run. */
#define SWEEP_BURST_NS 10000000u
#define SWEEP_REST 5u
#define SWEEP_STEP 4096u /* slots, and entries */

/* --- reaping ------------------------------------------------------------------------------------------------------ */

static uint32_t entries_used(const xp_domain *d)
{
    uint32_t used = XP_LOAD(&((xp_commons *)d->base)->entries_used);
    return used < XP_ENTRIES ? used : XP_ENTRIES;
}

static uint32_t users_used(const xp_domain *d)
{
    uint32_t used = XP_LOAD(&((xp_commons *)d->base)->users_used);
    return used < XP_ENTRIES ? used : XP_ENTRIES;
}

/* False: it keeps some. */
static bool sweep_mask(xp_domain *d, uint32_t m, uint64_t *masks, uint32_t from, uint32_t to, int reach)
{
    bool all = true;
    for (uint32_t i = from; i < to; i++)
        if (xp_bit(masks + (size_t)i * XP_MASK_WORDS, m)) {
            if (reach & XP_REACH_UNSEEN)
                xp_mark(d, i);
            if (reach & XP_REACH_KEPT)
                all = false;
            else
                xp_clear(masks + (size_t)i * XP_MASK_WORDS, m);
        }
    return all;
}

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

bool xp_sweep_out(xp_domain *d, uint32_t m, uint32_t cause, uint32_t from, uint32_t to, int reach)
{
    uint64_t pid = XP_RELAXED(&xp_member_at(d, m)->pid);
    bool swept = false, all = true;
    uint32_t used = xp_slots_used(d);
    if (m == d->member && used > d->attached_below)
        used = d->attached_below;
    for (uint32_t i = from; i < used && i < to; i++) {
        xp_words *w = xp_words_at(d, i);
        const xp_roles *r = xp_roles_at(d, i);
        bool attached = xp_bit(w->attached, m) || xp_bit(r->signallers, m) || xp_bit(r->candidates, m);
        xp_view v;
        uint64_t owed = xp_lowest_owed(w, &v, m);
        if (!attached && !owed) {
            if (m == 0) { /* the exporter's exit matters to every waiter */
                xp_wake(w, d->bell);
                swept = true;
            }
            continue;
        }
        /* Until our process has ended, one of our devices may store a point that we owe, which would lower the
         * value. */
        bool put_off = owed && (owed != v.effective + 1 || (m == d->member && XP_LOAD(&w->device)));
        if (owed && !put_off)
            xp_lose(w, d->bell, cause, pid, 0);
        bool open = m == d->member && i < d->able.length && d->able.at[i];
        bool abandons = open && !owed && xp_abandons(XP_RELAXED(&d->acts[i]));
        xp_roster_leave(d, i, m, abandons ? XP_CAUSE_ABANDONED : cause, owed && !put_off);
        /* The record of sleepers may be lost, so do not check the flag. Clear the bit last: until then, another
         * reaper repeats all this. */
        xp_finish(w);
        xp_wake_all(w);
        swept = true;
        if (put_off)
            all = false;
        else
            xp_clear(w->attached, m);
    }
    if (swept)
        xp_ring_bell(d->bell);
    all &= sweep_mask(d, m, (uint64_t *)(d->base + XP_COMMONS_HOLDERS), from, smaller(entries_used(d), to), reach);
    all &= sweep_mask(d, m, (uint64_t *)(d->base + XP_COMMONS_USERS), from, smaller(users_used(d), to), reach);
    return all;
}

static bool may_sweep(const xp_domain *d) { return d->sweep_at <= xp_now() + SWEEP_BURST_NS * SWEEP_REST; }

/* Return what the process of a member that looks dead can still reach. A released lock does not prove that the process has
 * ended: an exec, or closing an fd that belongs to somebody else, releases it, too. And a process that ends closes its files
 * first: its devices may work until the driver has torn down what it had there, which takes some of them seconds. */
static int reach_of(const xp_domain *d, uint32_t m)
{
    const xp_member *record = xp_member_at(d, m);
    bool watched = xp_bit(d->watched, m);
    int pidfd = watched ? d->seen[m].pidfd : -1, pid = watched ? d->seen[m].pid : (int)XP_RELAXED(&record->pid), mine = -1;
    if (pidfd < 0) {
        if (pid <= 0 || XP_RELAXED(&record->pid_namespace) != xp_pid_namespace())
            return XP_REACH_UNSEEN;
        if ((pidfd = mine = xp_pidfd_open(pid)) < 0)
            return errno == ESRCH ? XP_REACH_NOTHING : XP_REACH_UNSEEN;
    }
    bool ended = xp_pidfd_readable(pidfd), ends = !ended && xp_pid_ours(pid) && xp_pid_exiting(pid);
    if (mine >= 0)
        close(mine);
    return ended ? XP_REACH_NOTHING : ends ? XP_REACH_KEPT : XP_REACH_UNSEEN;
}

/* Take the next step in sweeping a dead member. Returns false if the sweep is not finished, or if something was
 * postponed, so that it starts again. A peer may claim every slot and entry, whose pages the kernel then has to
 * make, so no step visits all of them. */
static bool sweep_dead(xp_domain *d, uint32_t m)
{
    const xp_member *record = xp_member_at(d, m);
    xp_sweep *s = &d->sweeps[m];
    uint64_t start = xp_now(), since = XP_RELAXED(&record->attached_ns);
    if (s->next == 0 || s->since != since)
        *s = (xp_sweep){.since = since};
    uint32_t slots = xp_slots_used(d), entries = entries_used(d), most = slots > entries ? slots : entries;
    most = users_used(d) > most ? users_used(d) : most;
    uint32_t to = s->next + SWEEP_STEP;
    uint32_t cause = XP_LOAD(&record->state) == XP_EXITING ? XP_CAUSE_EXIT : XP_CAUSE_DEATH;
    s->put_off |= !xp_sweep_out(d, m, cause, s->next, to, reach_of(d, m));
    s->next = to < most ? to : 0;
    d->sweep_at = (d->sweep_at > start ? d->sweep_at : start) + (xp_now() - start) * SWEEP_REST;
    return s->next == 0 && !s->put_off;
}

int xp_reap(xp_domain *d, uint32_t m, bool sure)
{
    if (m == d->member || d->fd < 0)
        return 0;
    int pid, life = xp_life(&d->ms, m, &pid);
    if (life == XP_LIVING || life == XP_NOBODY) {
        xp_clear(d->retry, m);
        return 0;
    }
    /* The life byte stays free during this, so that every process still sees the dead member as dead. */
    if ((life == XP_DYING && !sure) || !may_sweep(d) || xp_lock(d->fd, XP_REAP_BYTE + (int64_t)m, true) != 0) {
        xp_set(d->retry, m);
        return -1;
    }
    int reaped = 0;
    xp_member *record = xp_member_at(d, m);
    if (xp_lock_holder(d->fd, XP_LIFE_BYTE + (int64_t)m, &pid) == 0 && XP_LOAD(&record->state) != 0) {
        reaped = sweep_dead(d, m) ? 1 : -1;
        if (reaped > 0)
            XP_STORE(&record->state, 0);
    }
    xp_lock(d->fd, XP_REAP_BYTE + (int64_t)m, false);
    xp_unwatch(&d->ms, m);
    xp_clear(d->polled, m);
    (reaped < 0 ? xp_set : xp_clear)(d->retry, m);
    d->seen[m].dying_since = reaped < 0 ? d->seen[m].dying_since : 0;
    return reaped;
}

int xp_reap_by_steps(xp_domain *d, uint32_t m)
{
    uint32_t before = d->sweeps[m].next;
    int reaped;
    while ((reaped = xp_reap(d, m, false)) < 0 && d->sweeps[m].next > before && may_sweep(d)) {
        before = d->sweeps[m].next;
        pthread_mutex_unlock(&d->mu);
        pthread_mutex_lock(&d->mu);
    }
    return reaped;
}

bool xp_vacant(xp_domain *d, uint32_t m)
{
    int pid, life = xp_life(&d->ms, m, &pid);
    return (life == XP_DEAD && may_sweep(d) && sweep_dead(d, m)) || life == XP_NOBODY;
}

/* --- watching ----------------------------------------------------------------------------------------------------- */

int xp_watch(xp_domain *d, uint32_t m)
{
    int how = xp_watch_member(&d->ms, m);
    if (how == XP_GONE)
        return xp_reap(d, m, false) < 0 ? XP_RETRY : XP_WATCHED;
    (how == XP_POLLED ? xp_set : xp_clear)(d->polled, m);
    return how;
}

int xp_watch_relied(xp_slot *s)
{
    xp_domain *d = s->d;
    bool pickles = xp_pickles_wait(s); /* nobody wakes us when their time runs out */
    int worst = pickles ? XP_POLLED : XP_WATCHED;
    if (pickles)
        XP_STORE(&d->unopened, 1);
    uint64_t wanted[XP_MASK_WORDS] = {0};
    xp_owing(s->w, wanted); /* they may have detached in the meantime */
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

/* Edge-triggered: each ring (EPOLLOUT) wakes every epoll that has the bell, which is one file for all members. If
 * somebody fills the bell before the warden checks, the warden still sees EPOLLIN. */
int xp_watch_bell(xp_domain *d)
{
    if (!d->bell_watched && xp_loop_add(d->bell, EPOLLIN | EPOLLOUT | EPOLLET, XP_READY_BELL, d->serial, 0) < 0)
        return errno == ESHUTDOWN ? 0 : errno;
    d->bell_watched = true;
    return 0;
}

void xp_unwatch_bell(xp_domain *d)
{
    if (d->bell_watched) /* explicitly, since the other members' copies would keep it in the epoll */
        xp_loop_remove(d->bell);
    d->bell_watched = false;
}
