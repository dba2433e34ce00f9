/* Event slots: docs/events-protocol.md, step by step. */
#include "events.h"

#include <stdlib.h>
#include <unistd.h>

#define INSTANT (1ull << 20)
#define MEMBER(word) ((uint32_t)((word) & 0xfffff))
#define FIRST_CREDIT_NS 200000
#define LEAST_BACKOFF 4u /* a spin in 16 waits */

/* --- reading ------------------------------------------------------------------------------------------------------ */

static inline void read_slot(const xp_words *w, xp_view *v)
{
    uint64_t lost, pending, value;
    for (int i = 0;; i++) {
        lost = XP_ACQUIRE(&w->lost);
        pending = XP_ACQUIRE(&w->pending);
        value = XP_ACQUIRE(&w->value);
        if (XP_LIKELY(XP_ACQUIRE(&w->lost) == lost) || i == 1000) /* a peer never stops writing: take what was read */
            break;
    }
    value = value < XP_POINT_MAX ? value : XP_POINT_MAX; /* a peer may have stored anything */
    uint64_t count = lost & XP_OUTSTANDING_MAX;
    v->pending = pending;
    v->lost = lost;
    v->top = pending >> 21;
    v->hi = lost >> 20;
    v->lo = v->hi > count ? v->hi - count : 0;
    v->value = (pending & INSTANT) && value < v->top ? v->top : value; /* a host's signal is complete once it is seen */
    v->effective = v->value > v->hi ? v->value : v->hi;
}

static inline int state_of(const xp_view *v, uint64_t point)
{
    if (v->value > v->hi)
        return point <= v->value ? XP_DONE : XP_PENDING;
    return point <= v->lo ? XP_DONE : point <= v->hi ? XP_LOST : XP_PENDING;
}

void xp_read(const xp_words *w, xp_view *v) { read_slot(w, v); }
int xp_state(const xp_view *v, uint64_t point) { return state_of(v, point); }

/* The outstanding points in runs of one owner each, in order: false after the last. `*from` is where the run begins. A
 * fact names the last point of a run, the pending word the newest. */
static bool next_run(const xp_view *v, const uint64_t *facts, uint64_t *from, uint64_t *last, uint32_t *owner)
{
    *from = *from ? *last + 1 : v->effective + 1;
    if (*from > v->top)
        return false;
    *last = v->top;
    *owner = MEMBER(v->pending);
    for (uint32_t i = 0; i < XP_FACTS; i++) {
        uint64_t p = facts[i] >> 20;
        if (p >= *from && p < *last) {
            *last = p;
            *owner = MEMBER(facts[i]);
        }
    }
    return true;
}

/* Read state and facts that belong together: a fact is overwritten only once its point is no longer outstanding. False:
 * they never stop changing. */
static bool read_facts(const xp_words *w, xp_view *v, uint64_t *facts)
{
    for (int i = 0; i < 1000; i++) {
        read_slot(w, v);
        for (uint32_t k = 0; k < XP_FACTS; k++)
            facts[k] = XP_ACQUIRE(&w->facts[k]);
        xp_view again;
        read_slot(w, &again);
        if (again.lost == v->lost && again.effective == v->effective)
            return true;
    }
    return false;
}

uint64_t xp_lowest_owed(const xp_words *w, xp_view *v, uint32_t m)
{
    uint64_t facts[XP_FACTS], from = 0, last = 0;
    uint32_t owner;
    if (!read_facts(w, v, facts))
        return UINT64_MAX;
    while (next_run(v, facts, &from, &last, &owner))
        if (owner == m)
            return from;
    return 0;
}

static bool lose(xp_domain *d, xp_words *w, uint32_t cause, uint64_t pid, uint64_t from);

/* Does a dead member owe `point` or an earlier one? Then `point` is lost, even if the loss is put off because a living
 * member's earlier point is outstanding. */
static bool owner_dead(xp_slot *s, uint64_t point)
{
    uint64_t facts[XP_FACTS], from = 0, last = 0, owed = 0;
    uint32_t owner;
    xp_view v, now;
    bool dead = false;
    pthread_mutex_lock(&s->d->mu);
    if (read_facts(s->w, &v, facts))
        while (!dead && next_run(&v, facts, &from, &last, &owner) && from <= point)
            if (owner < XP_MEMBERS && !xp_alive(s->d, owner)) { /* it may have completed the point, and died then */
                owed = xp_lowest_owed(s->w, &now, owner);
                dead = owed && owed <= point;
            }
    /* Record the loss, if that is possible yet, before the caller learns of it; also if others keep us from reaping. */
    if (dead && xp_reap(s->d, owner, false) < 0 && owed == now.effective + 1) {
        xp_roster_lose(s->w);
        lose(s->d, s->w, XP_CAUSE_DEATH, XP_RELAXED(&xp_member_at(s->d, owner)->pid), owed);
    }
    pthread_mutex_unlock(&s->d->mu);
    return dead;
}

int xp_full_state(xp_slot *s, uint64_t point, bool deaths)
{
    xp_view v;
    read_slot(s->w, &v);
    int state = state_of(&v, point);
    if (state != XP_PENDING)
        return state;
    if (point <= v.top)
        return deaths && owner_dead(s, point) ? XP_LOST : XP_PENDING;
    return xp_future_lost(s, &v) ? XP_LOST : XP_PENDING;
}

bool xp_owes(const xp_words *w, const xp_view *v, uint32_t m)
{
    if (v->top <= v->effective)
        return false;
    if (MEMBER(v->pending) == m)
        return true; /* outstanding, so not instant */
    for (uint32_t i = 0; i < XP_FACTS; i++) {
        uint64_t fact = XP_ACQUIRE(&w->facts[i]);
        if (MEMBER(fact) == m && fact >> 20 > v->effective)
            return true;
    }
    return false;
}

void xp_owing(const xp_words *w, uint64_t *mask)
{
    xp_view v;
    read_slot(w, &v);
    if (v.top <= v.effective)
        return;
    uint32_t m = MEMBER(v.pending);
    if (m < XP_MEMBERS)
        mask[m / 64] |= 1ull << m % 64;
    for (uint32_t i = 0; i < XP_FACTS; i++) {
        uint64_t fact = XP_ACQUIRE(&w->facts[i]);
        m = MEMBER(fact);
        if (fact >> 20 > v.effective && m < XP_MEMBERS)
            mask[m / 64] |= 1ull << m % 64;
    }
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static inline void raise_value(xp_words *w, uint64_t to)
{
    uint64_t old = XP_RELAXED(&w->value);
    for (int i = 0; old < to && i < XP_TRIES; i++)
        if (XP_CAS(&w->value, &old, to))
            return;
}

/* Point `to` is complete. After a loss on a device's queue, late stores of the device may lower the value. Then `lost`,
 * too, says what is complete, as a loss of no points. */
static inline void complete(xp_words *w, uint64_t to)
{
    if (XP_UNLIKELY(XP_LOAD(&w->device) & XP_LATE)) {
        uint64_t old = XP_LOAD(&w->lost);
        for (int i = 0; old >> 20 < to && i < XP_TRIES; i++)
            if (XP_CAS(&w->lost, &old, to << 20))
                break;
    }
    raise_value(w, to);
}

static inline void wake(xp_domain *d, xp_words *w)
{
    if (XP_UNLIKELY(XP_LOAD(&w->waiters)) && XP_EXCHANGE(&w->waiters, 0)) {
        __atomic_fetch_add(&w->seq, 1, __ATOMIC_SEQ_CST);
        xp_futex_wake(&w->seq, INT32_MAX);
    }
    if (XP_UNLIKELY(XP_LOAD(&w->async_waiters)) && XP_EXCHANGE(&w->async_waiters, 0))
        xp_ring_bell(d->bell);
}

void xp_wake(xp_domain *d, xp_words *w) { wake(d, w); }

void xp_wake_all(xp_words *w)
{
    XP_STORE(&w->waiters, 0);
    __atomic_fetch_add(&w->seq, 1, __ATOMIC_SEQ_CST);
    xp_futex_wake(&w->seq, INT32_MAX);
}

void xp_ring(xp_domain *d) { xp_ring_bell(d->bell); }

void xp_finish(xp_words *w)
{
    xp_view v;
    read_slot(w, &v);
    /* After a loss, the processes that guard waits of devices release these devices themselves. */
    if (v.value > v.hi || v.lo == v.hi || XP_LOAD(&w->guards) == 0)
        raise_value(w, v.effective);
}

void xp_release(xp_words *w, uint64_t point) { raise_value(w, point); }

/* Lose everything from the lowest outstanding point on; if `from` is not 0, only if it is that point. */
static bool lose(xp_domain *d, xp_words *w, uint32_t cause, uint64_t pid, uint64_t from)
{
    xp_view v;
    for (int i = 0; i < XP_TRIES; i++) {
        read_slot(w, &v);
        if (v.top <= v.effective)
            break;
        if (from && from != v.effective + 1)
            return from <= v.effective;
        uint64_t lo = v.value > v.hi ? v.value : v.lo, count = v.top - lo;
        if (count > XP_OUTSTANDING_MAX)
            count = XP_OUTSTANDING_MAX;
        uint64_t old = v.lost;
        if (!XP_CAS(&w->lost, &old, v.top << 20 | count))
            continue;
        XP_STORE_RELAXED(&w->cause, cause);
        XP_STORE_RELAXED(&w->blame, pid);
        if (XP_LOAD(&w->guards) == 0)
            raise_value(w, v.top); /* lets devices go */
        wake(d, w);
        return true;
    }
    xp_finish(w);
    return true;
}

void xp_lose(xp_domain *d, xp_words *w, uint32_t cause, uint64_t pid) { lose(d, w, cause, pid, 0); }

bool xp_lose_late(xp_slot *s, uint64_t from, uint32_t cause, uint64_t pid)
{
    __atomic_fetch_or(&s->w->device, XP_LATE, __ATOMIC_SEQ_CST); /* before anybody can submit a point behind the loss */
    return lose(s->d, s->w, cause, pid, from);
}

bool xp_lose_from(xp_slot *s, uint64_t from, uint32_t cause, uint64_t pid) { return lose(s->d, s->w, cause, pid, from); }

void xp_complete(xp_slot *s, uint64_t point)
{
    xp_view v;
    read_slot(s->w, &v);
    if (state_of(&v, point) != XP_LOST) /* else it would release devices before their processes do */
        complete(s->w, point);
    wake(s->d, s->w);
}

bool xp_abandon(xp_slot *s, uint64_t point)
{
    xp_words *w = s->w;
    for (int i = 0; i < XP_TRIES; i++) {
        xp_view v;
        read_slot(w, &v);
        int state = state_of(&v, point);
        if (state != XP_PENDING)
            return state == XP_LOST;
        /* Submitted since, by somebody new: its own business. Outstanding: our own queue may still complete it. */
        if (v.top >= point || v.top > v.effective || !xp_future_lost(s, &v))
            return false;
        if (v.pending & INSTANT)
            complete(w, v.top); /* the new word will not say that it is complete */
        uint64_t old = v.pending;
        if (!XP_CAS(&w->pending, &old, point << 21 | s->d->member))
            continue;
        xp_lose(s->d, w, XP_CAUSE_DEATH, XP_RELAXED(&w->blame));
        return true;
    }
    return false;
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
    if (!xp_roster_attach(s)) {
        xp_count_out(d, &d->attaches, index, w->attached);
        free(s);
        xp_failed(error, ENOMEM, NULL);
        return NULL;
    }
    pthread_mutex_init(&s->mu, NULL);
    xp_domain_ref(d);
    wake(d, w); /* sleepers must learn of the new member */
    return s;
}

const char *xp_slot_wrong(const xp_slot *s)
{
    if (XP_LIKELY(!XP_RELAXED(&s->gone)) && xp_usable(s->d))
        return NULL;
    int left = XP_RELAXED(&s->d->left);
    return left & XP_ROBBED       ? XP_ROBBED_TEXT
           : XP_RELAXED(&s->gone) ? "the slot is detached"
           : left                 ? XP_LEFT_TEXT
                                  : "the slot is from before a fork";
}

void xp_detach(xp_slot *s)
{
    if (XP_EXCHANGE(&s->gone, 1) || !xp_usable(s->d))
        return;
    pthread_mutex_lock(&xp_mu);
    xp_nodes_drop(s->d, s);
    pthread_mutex_unlock(&xp_mu);
    xp_roster_detach(s);
    xp_count_out(s->d, &s->d->attaches, s->index, s->w->attached);
    wake(s->d, s->w);
}

static const char *signal_once(xp_slot *s, uint64_t *point)
{
    for (int i = 0; i < XP_TRIES; i++) {
        xp_view v;
        read_slot(s->w, &v);
        if (v.top > v.effective)
            return "another signaller's point is pending";
        if (v.top >= XP_POINT_MAX)
            return "no points left";
        uint64_t old = v.pending;
        *point = v.top + 1;
        if (!XP_CAS(&s->w->pending, &old, *point << 21 | INSTANT | s->d->member))
            continue;
        raise_value(s->w, *point);
        wake(s->d, s->w);
        return NULL;
    }
    return "a peer does not let this event be signalled";
}

const char *xp_signal(xp_slot *s, uint64_t *point)
{
    bool first = xp_roster_signals(s);
    const char *wrong = signal_once(s, point);
    if (XP_UNLIKELY(first))
        xp_roster_signalled(s);
    return wrong;
}

/* Record that the member in `pending` submitted that point, before another member's point hides it. False: no room. */
static bool record(xp_words *w, const xp_view *v)
{
    uint64_t fact = v->top << 20 | MEMBER(v->pending);
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
        read_slot(w, &v);
        if (v.pending & INSTANT)
            complete(w, v.top); /* the new word will not say that it is complete */
        bool outstanding = v.top > v.effective, mine = MEMBER(v.pending) == me;
        if (outstanding && !mine && !record(w, &v))
            return "too many signallers";
        if ((outstanding && v.top - v.effective >= XP_OUTSTANDING_MAX) || v.top >= XP_POINT_MAX)
            return "too many points are outstanding";
        uint64_t old = v.pending;
        if (!XP_CAS(&w->pending, &old, (v.top + 1) << 21 | me))
            continue;
        *point = v.top + 1;
        *after = outstanding && !(mine && s->last_point == v.top && s->last_queue == queue) ? v.top : 0;
        s->last_point = *point;
        s->last_queue = queue;
        /* If the point were lost first, a device's store would come all the same, and lower the value under a later
         * point. */
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
        wake(s->d, s->w); /* sleepers must start to poll */
    }
    bool first = xp_roster_signals(s);
    pthread_mutex_lock(&s->mu); /* never held while anything blocks */
    const char *wrong = submit(s, queue, point, after, host);
    pthread_mutex_unlock(&s->mu);
    if (XP_UNLIKELY(first))
        xp_roster_signalled(s);
    return wrong;
}

void xp_fail(xp_slot *s, uint32_t cause)
{
    xp_view v;
    read_slot(s->w, &v);
    if (!xp_owes(s->w, &v, s->d->member))
        return;
    if (XP_LOAD(&s->w->device)) /* a device that still works may store some of them */
        xp_lose_late(s, 0, cause, (uint64_t)getpid());
    else
        xp_lose(s->d, s->w, cause, (uint64_t)getpid());
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

/* A Unix signal that comes just before the futex call does not interrupt it, and one that another thread takes never
 * does: so look now and then. */
#define LONGEST_SLEEP_NS 500000000u
#define RETRY_NS 10000000u
#define POLL_NS 200000000u

static int spin_for(xp_slot *s, uint64_t point, uint64_t until)
{
    do {
        for (int i = 0; i < 16; i++) {
            xp_view v;
            read_slot(s->w, &v);
            int state = state_of(&v, point);
            if (state != XP_PENDING)
                return state;
            xp_pause();
        }
    } while (xp_now() < until && !XP_RELAXED(&s->gone));
    return XP_PENDING;
}

int xp_sleep(xp_slot *s, uint64_t point, uint64_t start, uint64_t end, int *rc)
{
    xp_words *w = s->w;
    *rc = 0;
    uint32_t seq = XP_LOAD(&w->seq); /* first: a wake that resets the flag must not go unseen */
    XP_STORE(&w->waiters, 1);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* the reads of the state that follow are acquire only */
    xp_warden_start(); /* where no thread can be had, members count as polled */
    int watch = xp_watch_relied(s);
    int state = xp_full_state(s, point, true);
    uint64_t now = xp_now();
    if (state != XP_PENDING || now >= end || XP_LOAD(&s->gone) || !xp_usable(s->d))
        return state;
    uint64_t most = watch == XP_RETRY ? RETRY_NS : watch == XP_POLLED ? POLL_NS : LONGEST_SLEEP_NS;
    if (XP_LOAD(&w->device)) { /* nobody wakes us: sleep for an eighth of the time waited so far */
        uint64_t nap = (now - start) / 8;
        nap = nap < 20000 ? 20000 : nap > 1000000 ? 1000000 : nap;
        most = nap < most ? nap : most;
    }
    *rc = xp_futex_wait(&w->seq, seq, end - now < most ? end - now : most);
    if (*rc == ETIMEDOUT)
        xp_stands(s->d);
    xp_view v;
    read_slot(w, &v);
    return state_of(&v, point);
}

/* A spin that sees the point saves a sleep and a wake. One that does not has burnt time, on a crowded machine that of the
 * process that is to signal. So what spins burn must not exceed what they save. A slot without credit sleeps at once, and
 * probes ever more rarely whether spins pay again. Both sides may sleep, so a probe is as long as a spin. */
#define SAVED_NS 8000
#define SLICE_NS 1000000u /* who was away for so long had to share the CPU */
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

/* Threads that wait at the same time may overwrite each other's sums: that changes how long spins are, nothing else. */
int xp_spin(xp_slot *s, uint64_t point, uint64_t start, uint64_t end, uint64_t full)
{
    uint64_t budget = full && xp_may_spin() ? spin_budget(s, full) : 0;
    if (budget == 0)
        return XP_PENDING;
    int state = spin_for(s, point, end - start < budget ? end : start + budget);
    int64_t spent = (int64_t)(xp_now() - start), most = 4 * (int64_t)full, credit = XP_RELAXED(&s->credit);
    if (state != XP_PENDING && spent <= (int64_t)budget) {
        credit += SAVED_NS;
        credit = credit > 2 * spent ? credit : 2 * spent; /* enough for another one as long */
        XP_STORE_RELAXED(&s->backoff, credit < most ? XP_RELAXED(&s->backoff) : LEAST_BACKOFF);
    } else { /* or it was seen after another process had its turn, as after a sleep */
        credit -= spent;
        XP_STORE_RELAXED(&s->backoff, spent < SLICE_NS ? XP_RELAXED(&s->backoff) : MOST_BACKOFF);
    }
    XP_STORE_RELAXED(&s->credit, credit < 0 ? 0 : credit > most ? most : credit);
    return state;
}

int xp_guard(xp_slot *s, uint64_t point, xp_queue *queue, uint64_t at, bool unsure)
{
    xp_view v;
    read_slot(s->w, &v);
    if (point > v.effective && point - v.effective > XP_OUTSTANDING_MAX)
        return XP_TOO_FAR;
    return xp_node_add(s, point, at, unsure ? XP_GUARD | XP_UNSURE : XP_GUARD, queue);
}

/* A later signal may heal the loss before anybody asks, so remember which points were seen lost. */
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
