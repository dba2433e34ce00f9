/* Event slots in this process: signalling, submitting and waiting, step by step as in docs/events-protocol.md. */
#include "events.h"
#include "loop.h"

#include <stdlib.h>
#include <unistd.h>

#define FIRST_CREDIT_NS 200000
#define LEAST_BACKOFF 4u /* one spin in 16 waits */

/* --- states ------------------------------------------------------------------------------------------------------- */

/* Return whether a dead member owes `point` or an earlier one. Then `point` is lost, even if the loss is postponed
 * because a living member's earlier point is outstanding. */
static bool owner_dead(xp_slot *s, uint64_t point)
{
    uint64_t facts[XP_FACTS], from = 0, last = 0, owed = 0;
    uint32_t owner;
    xp_view v, now;
    bool dead = false;
    pthread_mutex_lock(&s->d->mu);
    if (xp_read_facts(s->w, &v, facts))
        while (!dead && xp_next_run(&v, facts, &from, &last, &owner) && from <= point)
            if (owner < XP_MEMBERS && !xp_alive(&s->d->ms, owner)) { /* it may have completed the point before it died */
                owed = xp_lowest_owed(s->w, &now, owner);
                dead = owed && owed <= point;
            }
    /* Record the loss, if that is possible yet, before the caller learns of it. This also happens if others prevent
     * us from reaping. */
    if (dead && xp_reap(s->d, owner, false) < 0 && owed == now.effective + 1) {
        xp_roster_lose(s->w);
        xp_lose(s->w, s->d->bell, XP_CAUSE_DEATH, XP_RELAXED(&xp_member_at(s->d, owner)->pid), owed);
    }
    pthread_mutex_unlock(&s->d->mu);
    return dead;
}

int xp_full_state(xp_slot *s, uint64_t point, bool deaths)
{
    xp_view v;
    xp_read(s->w, &v);
    int state = xp_state(&v, point);
    if (state != XP_PENDING)
        return state;
    if (point <= v.top)
        return deaths && owner_dead(s, point) ? XP_LOST : XP_PENDING;
    return xp_future_lost(s, &v) ? XP_LOST : XP_PENDING;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

bool xp_lose_late(xp_slot *s, uint64_t from, uint32_t cause, uint64_t pid)
{
    __atomic_fetch_or(&s->w->device, XP_LATE, __ATOMIC_SEQ_CST); /* before anybody can submit a point behind the loss */
    return xp_lose(s->w, s->d->bell, cause, pid, from);
}

void xp_complete(xp_slot *s, uint64_t point)
{
    xp_view v;
    xp_read(s->w, &v);
    if (xp_state(&v, point) != XP_LOST) /* otherwise it would release devices before their processes do */
        xp_reach(s->w, point);
    xp_wake(s->w, s->d->bell);
}

bool xp_abandon(xp_slot *s, uint64_t point)
{
    xp_words *w = s->w;
    for (int i = 0; i < XP_TRIES; i++) {
        xp_view v;
        xp_read(w, &v);
        int state = xp_state(&v, point);
        if (state != XP_PENDING)
            return state == XP_LOST;
        /* Submitted since, by a new member: not our business. Outstanding: our own queue may still complete it. */
        if (v.top >= point || v.top > v.effective || !xp_future_lost(s, &v))
            return false;
        if (v.pending & XP_INSTANT)
            xp_reach(w, v.top); /* the new word will not say that it is complete */
        uint64_t old = v.pending;
        if (!XP_CAS(&w->pending, &old, point << 21 | s->d->member))
            continue;
        uint32_t cause = XP_RELAXED(&w->cause);
        bool told = cause == XP_CAUSE_ABANDONED || cause == XP_CAUSE_UNOPENED;
        xp_lose(w, s->d->bell, told ? cause : XP_CAUSE_DEATH, XP_RELAXED(&w->blame), 0);
        return true;
    }
    return false;
}

/* --- this process as a signaller ---------------------------------------------------------------------------------- */

/* This process may signal, or does signal. First report earlier deaths, so that their loss ends now. Then set the
 * bit, so that this process's own death counts from here on. Called with d->mu. */
static void join(xp_slot *s, bool signaller)
{
    const uint64_t *relied = xp_relied(s->roles);
    XP_EACH(relied, m)
        xp_reap(s->d, m, false);
    xp_roster_join(s, signaller);
}

/* After `attached` says so. Returns false if there is no memory. Takes d->mu. */
static bool take_role(xp_slot *s)
{
    xp_domain *d = s->d;
    if (s->role == XP_ONLY_WAITS)
        return true;
    pthread_mutex_lock(&d->mu);
    bool ok = xp_counts_reach(&d->able, s->index);
    if (ok && d->able.at[s->index]++ == 0) {
        XP_STORE_RELAXED(s->act, 0);
        join(s, false);
    }
    if (ok && s->role == XP_WILL_SIGNAL) {
        __atomic_fetch_and(s->act, (uint8_t)~XP_ACT_SIGNALLED, __ATOMIC_RELAXED);
        xp_note_act(s, XP_ACT_DECLARED);
        if (!xp_bit(s->roles->signallers, d->member))
            join(s, true);
    }
    pthread_mutex_unlock(&d->mu);
    return ok;
}

/* Before this process signals: it is a signaller from now on. Returns true if it was none, and its waits for the
 * next point would find no other signaller. Then nobody here may check until d->mu is released. */
static bool become_signaller(xp_slot *s)
{
    xp_domain *d = s->d;
    if (XP_LIKELY(xp_bit(s->roles->signallers, d->member)))
        return false;
    pthread_mutex_lock(&d->mu);
    if (xp_usable(d) && !xp_bit(s->roles->signallers, d->member))
        join(s, true);
    return true;
}

/* Before `attached` is cleared. Takes d->mu. */
static void give_up_role(xp_slot *s)
{
    xp_domain *d = s->d;
    uint32_t me = d->member;
    pthread_mutex_lock(&d->mu);
    bool able = s->role == XP_ONLY_WAITS || --d->able.at[s->index];
    bool attached = d->attaches.at[s->index] > 1;
    uint8_t acts = XP_RELAXED(s->act);
    if (!able && acts & XP_ACT_DROPPED && xp_abandons(acts))
        xp_roster_leave(d, s->index, me, XP_CAUSE_ABANDONED, false);
    else if (!able || !attached)
        xp_roster_close(d, s->roles, me);
    if (!able)
        xp_clear(s->roles->candidates, me);
    if (!attached)
        xp_roster_leave(d, s->index, me, XP_CAUSE_EXIT, false);
    pthread_mutex_unlock(&d->mu);
}

/* --- the type ----------------------------------------------------------------------------------------------------- */

void xp_slot_ref(xp_slot *s) { __atomic_fetch_add(&s->refs, 1, __ATOMIC_RELAXED); }

void xp_slot_unref(xp_slot *s)
{
    if (__atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL))
        return;
    free(s->released);
    xp_domain_unref(s->d);
    free(s);
}

xp_slot *xp_attach(xp_domain *d, uint32_t index, int role, xp_error *error)
{
    if (index >= xp_slots_used(d)) {
        xp_failed(error, 0, "no such slot");
        return NULL;
    }
    xp_slot *s = calloc(1, sizeof *s);
    xp_words *w = xp_words_at(d, index);
    if (s == NULL || !xp_count_in(d, &d->attaches, index, w->attached)) {
        free(s);
        const char *wrong = xp_domain_wrong(d);
        xp_failed(error, wrong ? 0 : ENOMEM, wrong);
        return NULL;
    }
    pthread_mutex_lock(&d->mu);
    d->attached_below = d->attached_below > index ? d->attached_below : index + 1;
    pthread_mutex_unlock(&d->mu);
    s->refs = 1;
    s->credit = FIRST_CREDIT_NS;
    s->backoff = LEAST_BACKOFF;
    s->index = index;
    s->role = role;
    s->d = d;
    s->w = w;
    s->roles = xp_roles_at(d, index);
    s->act = &d->acts[index];
    if (!take_role(s)) {
        xp_count_out(d, &d->attaches, index, w->attached);
        free(s);
        xp_failed(error, ENOMEM, NULL);
        return NULL;
    }
    pthread_mutex_init(&s->mu, NULL);
    xp_domain_ref(d);
    xp_wake(w, d->bell); /* sleepers must learn of the new member */
    return s;
}

const char *xp_slot_wrong(const xp_slot *s)
{
    if (XP_LIKELY(!XP_RELAXED(&s->gone)) && xp_usable(s->d))
        return NULL;
    bool robbed = XP_RELAXED(&s->d->left) & XP_ROBBED;
    return XP_RELAXED(&s->gone) && !robbed ? "the event was closed meanwhile" : xp_domain_wrong(s->d);
}

void xp_slot_drop(xp_slot *s)
{
    if (s->role != XP_ONLY_WAITS && xp_slot_wrong(s) == NULL)
        xp_note_act(s, XP_ACT_DROPPED);
}

void xp_slot_end(xp_slot *s)
{
    give_up_role(s);
    xp_count_out(s->d, &s->d->attaches, s->index, s->w->attached);
    xp_wake(s->w, s->d->bell);
}

static const char *signal_once(xp_slot *s, uint64_t *point)
{
    for (int i = 0; i < XP_TRIES; i++) {
        xp_view v;
        xp_read(s->w, &v);
        if (v.top > v.effective)
            return "a signal of another signaller is pending";
        if (v.top >= XP_POINT_MAX)
            return "no signals left";
        uint64_t old = v.pending;
        *point = v.top + 1;
        if (!XP_CAS(&s->w->pending, &old, *point << 21 | XP_INSTANT | s->d->member))
            continue;
        xp_raise_value(s->w, *point);
        xp_wake(s->w, s->d->bell);
        return NULL;
    }
    return "a peer does not let this event be signalled";
}

const char *xp_signal(xp_slot *s, uint64_t *point)
{
    bool first = become_signaller(s);
    const char *wrong = signal_once(s, point);
    if (wrong == NULL)
        xp_note_act(s, XP_ACT_SIGNALLED);
    if (XP_UNLIKELY(first))
        pthread_mutex_unlock(&s->d->mu);
    return wrong;
}

/* Record that the member in `pending` submitted that point, before another member's point hides it. Returns false if
 * there is no room. */
static bool record(xp_words *w, const xp_view *v)
{
    uint64_t fact = v->top << 20 | XP_MEMBER_IN(v->pending);
    for (uint32_t i = 0; i < XP_FACTS; i++)
        if (XP_LOAD(&w->facts[i]) == fact)
            return true;
    for (uint32_t i = 0; i < XP_FACTS; i++) {
        uint64_t old = XP_LOAD(&w->facts[i]);
        if ((old == 0 || old >> 20 <= v->effective) && XP_CAS(&w->facts[i], &old, fact))
            return true;
    }
    return false;
}

/* With s->mu. */
static const char *submit(xp_slot *s, uint64_t queue, uint64_t *point, uint64_t *after, bool *host)
{
    xp_words *w = s->w;
    uint32_t me = s->d->member;
    for (int i = 0; i < XP_TRIES; i++) {
        xp_view v;
        xp_read(w, &v);
        if (v.pending & XP_INSTANT)
            xp_reach(w, v.top); /* the new word will not say that it is complete */
        bool outstanding = v.top > v.effective, mine = XP_MEMBER_IN(v.pending) == me;
        if (outstanding && !mine && !record(w, &v))
            return "too many signallers";
        if ((outstanding && v.top - v.effective >= XP_OUTSTANDING_MAX) || v.top >= XP_POINT_MAX)
            return "too many signals are outstanding";
        uint64_t old = v.pending;
        if (!XP_CAS(&w->pending, &old, (v.top + 1) << 21 | me))
            continue;
        *point = v.top + 1;
        *after = outstanding && !(mine && s->last_point == v.top && s->last_queue == queue) ? v.top : 0;
        s->last_point = *point;
        s->last_queue = queue;
        /* If the point were lost first, a device's store would still come, and lower the value under a later point. */
        *host = *after || s->last_host > v.effective || (XP_LOAD(&w->device) & XP_LATE);
        if (*host)
            s->last_host = *point;
        return NULL;
    }
    return "a peer does not let this event be signalled";
}

const char *xp_submit(xp_slot *s, uint64_t queue, bool device, uint64_t *point, uint64_t *after, bool *host)
{
    if (device && XP_LOAD(&s->w->device) == 0) {
        __atomic_fetch_or(&s->w->device, XP_DEVICE, __ATOMIC_SEQ_CST);
        xp_wake(s->w, s->d->bell); /* sleepers must start to poll */
    }
    bool first = become_signaller(s);
    pthread_mutex_lock(&s->mu); /* never held while anything blocks */
    const char *wrong = submit(s, queue, point, after, host);
    if (wrong == NULL)
        xp_note_act(s, XP_ACT_SIGNALLED);
    pthread_mutex_unlock(&s->mu);
    if (XP_UNLIKELY(first))
        pthread_mutex_unlock(&s->d->mu);
    return wrong;
}

void xp_fail(xp_slot *s, uint32_t cause)
{
    if (!xp_owes(s->w, s->d->member))
        return;
    if (XP_LOAD(&s->w->device)) /* a device that is still working may store some of them */
        xp_lose_late(s, 0, cause, (uint64_t)getpid());
    else
        xp_lose(s->w, s->d->bell, cause, (uint64_t)getpid(), 0);
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

/* A Unix signal that comes just before the futex call does not interrupt it, and a signal that another thread takes
 * never does. So check from time to time. */
#define LONGEST_SLEEP_NS 500000000u
#define RETRY_NS 10000000u
#define POLL_NS 200000000u

static int spin_for(xp_slot *s, uint64_t point, uint64_t until)
{
    do {
        for (int i = 0; i < 16; i++) {
            xp_view v;
            xp_read(s->w, &v);
            int state = xp_state(&v, point);
            if (state != XP_PENDING)
                return state;
            xp_pause();
        }
    } while (xp_now() < until && !XP_RELAXED(&s->gone));
    return XP_PENDING;
}

/* An eighth of the time waited so far, at most 1 ms. After a quarter of a second, 1/256 of it, at most 8 ms. */
static uint64_t nap_after(uint64_t waited)
{
    uint64_t eighth = waited / 8, long_wait = waited / 256;
    if (eighth < 1000000)
        return eighth < 20000 ? 20000 : eighth;
    return long_wait < 1000000 ? 1000000 : long_wait > 8000000 ? 8000000 : long_wait;
}

int xp_sleep(xp_slot *s, uint64_t point, uint64_t start, uint64_t end, int *rc)
{
    xp_words *w = s->w;
    *rc = 0;
    uint32_t seq = XP_LOAD(&w->seq); /* first: a wake that resets the flag must not be missed */
    XP_STORE(&w->waiters, 1);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* the following reads of the state are only acquire */
    xp_loop_start(); /* if no thread can be started, members count as polled */
    int watch = xp_watch_relied(s);
    int state = xp_full_state(s, point, true);
    uint64_t now = xp_now();
    if (state != XP_PENDING || now >= end || XP_LOAD(&s->gone) || !xp_usable(s->d))
        return state;
    uint64_t most = watch == XP_RETRY ? RETRY_NS : watch == XP_POLLED ? POLL_NS : LONGEST_SLEEP_NS;
    if (XP_LOAD(&w->device)) { /* nobody wakes us */
        uint64_t nap = nap_after(now - start);
        most = nap < most ? nap : most;
    }
    *rc = xp_futex_wait(&w->seq, seq, end - now < most ? end - now : most);
    if (*rc == ETIMEDOUT)
        xp_stands(s->d);
    xp_view v;
    xp_read(w, &v);
    return xp_state(&v, point);
}

/* A spin that sees the point saves a sleep and a wake. A spin that does not has wasted time, on a busy machine even
 * that of the process that is to signal. So spins must not cost more than they save. A slot without credit sleeps at
 * once, and probes ever more rarely whether spins pay again. Both sides may sleep, so a probe is as long as a spin. */
#define SAVED_NS 8000
#define SLICE_NS 1000000u /* a thread that was away for so long had to share the CPU */
#define MOST_BACKOFF 10u

static uint64_t spin_budget(xp_slot *s, uint64_t full)
{
    int64_t credit = XP_RELAXED(&s->credit);
    if (credit > 0)
        return (uint64_t)credit < full ? (uint64_t)credit : full;
    unsigned sleeps = XP_RELAXED(&s->sleeps) + 1, backoff = XP_RELAXED(&s->backoff);
    bool probe = sleeps >> backoff;
    XP_STORE_RELAXED(&s->sleeps, probe ? 0 : sleeps);
    if (probe && backoff < MOST_BACKOFF)
        XP_STORE_RELAXED(&s->backoff, backoff + 2);
    return probe ? full : 0;
}

/* Threads that wait at the same time may overwrite each other's sums. That only changes how long spins are. */
int xp_spin(xp_slot *s, uint64_t point, uint64_t start, uint64_t end, uint64_t full)
{
    uint64_t budget = full && xp_may_spin() ? spin_budget(s, full) : 0;
    if (budget == 0)
        return XP_PENDING;
    int state = spin_for(s, point, end - start < budget ? end : start + budget);
    int64_t spent = (int64_t)(xp_now() - start), most = 4 * (int64_t)full, credit = XP_RELAXED(&s->credit);
    if (state != XP_PENDING && spent <= (int64_t)budget) {
        credit += SAVED_NS;
        credit = credit > 2 * spent ? credit : 2 * spent; /* enough for another one of that length */
        XP_STORE_RELAXED(&s->backoff, credit < most ? XP_RELAXED(&s->backoff) : LEAST_BACKOFF);
    } else { /* or it was seen only after another process had its turn, as after a sleep */
        credit -= spent;
        XP_STORE_RELAXED(&s->backoff, spent < SLICE_NS ? XP_RELAXED(&s->backoff) : MOST_BACKOFF);
    }
    XP_STORE_RELAXED(&s->credit, credit < 0 ? 0 : credit > most ? most : credit);
    return state;
}

/* A later signal may end the loss before anybody asks, so remember which points were seen lost. */
void xp_note_released(xp_slot *s, uint64_t point)
{
    if (s->released_count == s->released_room) {
        uint32_t room = s->released_room ? 2 * s->released_room : 4;
        uint64_t *grown = realloc(s->released, room * sizeof *grown);
        if (grown == NULL)
            return; /* the state still says so, until a later signal */
        s->released = grown;
        s->released_room = room;
    }
    s->released[s->released_count++] = point;
}

bool xp_take_released(xp_slot *s, uint64_t point)
{
    bool found = false;
    pthread_mutex_lock(&xp_mu);
    for (uint32_t i = 0; i < s->released_count && !found; i++)
        if (s->released[i] == point) {
            s->released[i] = s->released[--s->released_count];
            found = true;
        }
    pthread_mutex_unlock(&xp_mu);
    return found;
}
