/* Waiting for a lock or an atomic, and what a death of its owner does. */
#include "lock.h"

#define SPIN_NS 20000u

/* Watch the member that is in the way, or remove it if it is gone. */
static int watch_owner(xp_group *g, xp_lock_words *w)
{
    uint64_t owner = XP_LOAD(&w->owner), heir = XP_LOAD(&w->heir);
    int worst = XP_WATCHED;
    for (int i = 0; i < 2; i++) {
        uint32_t m = (uint32_t)(i ? heir & XP_LOCK_HEIR : owner & XP_LOCK_MEMBER) - 1;
        if (m >= g->count)
            continue;
        int how = xp_group_watch(g, m);
        if (how == XP_GONE) {
            xp_lock_sweep_as(w, owner, heir, m);
            xp_group_tell(g);
        } else if (how == XP_POLLED) {
            worst = how;
        }
    }
    return worst;
}

int xp_lock_wait(xp_group *g, xp_lock_words *w, uint32_t m, uint64_t ticket, unsigned *tries, uint64_t end, int *rc)
{
    int got = XP_LOCK_BUSY;
    *rc = 0;
    if ((*tries)++ == 0 && xp_may_spin())
        for (uint64_t until = xp_now() + SPIN_NS; got == XP_LOCK_BUSY && xp_now() < until;) {
            for (int i = 0; i < 16 && (XP_RELAXED(&w->owner) & XP_LOCK_MEMBER); i++)
                xp_pause();
            got = xp_lock_try(w, m, ticket);
        }
    if (got != XP_LOCK_BUSY)
        return got;
    uint32_t seq = XP_LOAD(&w->bell.seq);
    XP_STORE(&w->bell.sleepers, 1);
    uint64_t nobody = 0;
    if (*tries > 1) /* it was overtaken */
        XP_CAS(&w->heir, &nobody, ticket);
    int watch = watch_owner(g, w);
    if ((got = xp_lock_try(w, m, ticket)) != XP_LOCK_BUSY)
        return got;
    *rc = xp_bell_sleep(g, &w->bell, seq, end, watch);
    return xp_lock_try(w, m, ticket);
}

int xp_lock_poll(xp_group *g, xp_lock_words *w, uint64_t ticket, bool overtaken)
{
    int got = xp_lock_try(w, g->member, ticket);
    if (got != XP_LOCK_BUSY)
        return got;
    XP_STORE(g->listeners, 1);
    uint64_t nobody = 0;
    if (overtaken)
        XP_CAS(&w->heir, &nobody, ticket);
    watch_owner(g, w);
    return xp_lock_try(w, g->member, ticket);
}

int xp_lock_take(xp_group *g, xp_lock_words *w, uint32_t m, uint64_t end)
{
    int got = xp_lock_try(w, m, 0), rc;
    if (XP_LIKELY(got != XP_LOCK_BUSY))
        return got;
    uint64_t ticket = xp_lock_ticket(m);
    for (unsigned tries = 0; got == XP_LOCK_BUSY && xp_group_usable(g) && xp_now() < end;)
        got = xp_lock_wait(g, w, m, ticket, &tries, end, &rc);
    if (got == XP_LOCK_BUSY)
        xp_lock_give_up(w, ticket);
    return got;
}

bool xp_atomic_wait(xp_group *g, xp_atomic_words *w, int64_t value, uint64_t end, int *rc)
{
    uint32_t seq = XP_LOAD(&w->bell.seq);
    XP_STORE(&w->bell.sleepers, 1);
    *rc = 0;
    if (XP_LOAD(&w->value) == value)
        *rc = xp_bell_sleep(g, &w->bell, seq, end, XP_WATCHED);
    return XP_LOAD(&w->value) != value;
}
