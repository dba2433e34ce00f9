/* The words of an event slot, which processes share: docs/events-protocol.md. This code knows no domain. */
#ifndef XP_WORDS_H
#define XP_WORDS_H

#include "xp.h"

#define XP_TRIES (1 << 20) /* of a compare-and-swap that a hostile peer may disturb for ever */
#define XP_INSTANT (1ull << 20) /* in `pending`: the host signalled, so the point is complete */
#define XP_MEMBER_IN(word) ((uint32_t)((word) & 0xfffff))

enum { XP_PENDING = 0, XP_DONE = 1, XP_LOST = 2 };

typedef struct {
    uint64_t pending, top, value, hi, lo, effective, lost;
} xp_view;

static inline void xp_read(const xp_words *w, xp_view *v)
{
    uint64_t lost, pending, value;
    for (int i = 0;; i++) {
        lost = XP_ACQUIRE(&w->lost);
        pending = XP_ACQUIRE(&w->pending);
        value = XP_ACQUIRE(&w->value);
        if (XP_LIKELY(XP_ACQUIRE(&w->lost) == lost) || i == 1000) /* a peer never stops writing: use the last value read */
            break;
    }
    value = value < XP_POINT_MAX ? value : XP_POINT_MAX; /* a peer may have stored anything */
    uint64_t count = lost & XP_OUTSTANDING_MAX;
    v->pending = pending;
    v->lost = lost;
    v->top = pending >> 21;
    v->hi = lost >> 20;
    v->lo = v->hi > count ? v->hi - count : 0;
    v->value = (pending & XP_INSTANT) && value < v->top ? v->top : value; /* a host's signal is complete once it is visible */
    v->effective = v->value > v->hi ? v->value : v->hi;
}

static inline int xp_state(const xp_view *v, uint64_t point)
{
    if (v->value > v->hi)
        return point <= v->value ? XP_DONE : XP_PENDING;
    return point <= v->lo ? XP_DONE : point <= v->hi ? XP_LOST : XP_PENDING;
}

static inline void xp_raise_value(xp_words *w, uint64_t to)
{
    uint64_t old = XP_RELAXED(&w->value);
    for (int i = 0; old < to && i < XP_TRIES; i++)
        if (XP_CAS(&w->value, &old, to))
            return;
}

/* Point `to` is complete. After a loss on a device's queue, late stores of the device may lower the value. Then
 * `lost` also says what is complete, as a loss of no points. */
static inline void xp_reach(xp_words *w, uint64_t to)
{
    if (XP_UNLIKELY(XP_LOAD(&w->device) & XP_LATE)) {
        uint64_t old = XP_LOAD(&w->lost);
        for (int i = 0; old >> 20 < to && i < XP_TRIES; i++)
            if (XP_CAS(&w->lost, &old, to << 20))
                break;
    }
    xp_raise_value(w, to);
}

/* Wake all that wait here; the bell is for wardens. */
static inline void xp_wake(xp_words *w, int bell)
{
    if (XP_UNLIKELY(XP_LOAD(&w->waiters)) && XP_EXCHANGE(&w->waiters, 0)) {
        __atomic_fetch_add(&w->seq, 1, __ATOMIC_SEQ_CST);
        xp_futex_wake(&w->seq, INT32_MAX);
    }
    if (XP_UNLIKELY(XP_LOAD(&w->async_waiters)) && XP_EXCHANGE(&w->async_waiters, 0))
        xp_ring_bell(bell);
}

void xp_wake_all(xp_words *w); /* also sleepers whose waker died half-way */
void xp_finish(xp_words *w); /* raise the value to what is complete, or lost without guards, on behalf of a dead peer */
/* Lose everything from the lowest outstanding point on. With `from`, lose only from that point on; returns false if
 * earlier points are outstanding. */
bool xp_lose(xp_words *w, int bell, uint32_t cause, uint64_t pid, uint64_t from);
/* Read a consistent pair of state and facts: a fact is overwritten only once its point is no longer outstanding.
 * Returns false if they never stop changing. */
bool xp_read_facts(const xp_words *w, xp_view *v, uint64_t *facts);
/* The outstanding points in order, in runs of one owner each. Returns false after the last run. `*from` is the start
 * of the run. A fact names the last point of a run, and the pending word names the newest. */
bool xp_next_run(const xp_view *v, const uint64_t *facts, uint64_t *from, uint64_t *last, uint32_t *owner);
/* The lowest outstanding point that `m` owes, 0 if there is none, or UINT64_MAX if that cannot be determined now.
 * Fills `v`. */
uint64_t xp_lowest_owed(const xp_words *w, xp_view *v, uint32_t m);
void xp_owing(const xp_words *w, uint64_t *mask); /* adds everybody who owes */
bool xp_owes(const xp_words *w, uint32_t m);

#endif
