/* The lock and the atomic, step by step as docs/channels-protocol.md says. */
#include "lock.h"

#define TRIES 1000 /* a peer that never stops changing a word is not waited for */

uint64_t xp_lock_ticket(uint32_t m)
{
    static uint64_t tickets;
    return __atomic_add_fetch(&tickets, 1, __ATOMIC_RELAXED) << 16 | (m + 1);
}

int xp_lock_try(xp_lock_words *w, uint32_t m, uint64_t ticket)
{
    uint64_t found = XP_ACQUIRE(&w->owner);
    for (int i = 0; i < TRIES; i++) {
        uint64_t heir = XP_ACQUIRE(&w->heir);
        if ((found & XP_LOCK_MEMBER) || (heir && heir != ticket))
            return XP_LOCK_BUSY;
        if (!XP_CAS(&w->owner, &found, ((found >> 16) + 1) << 16 | (m + 1)))
            continue;
        if (heir)
            XP_CAS(&w->heir, &heir, 0);
        return found & XP_LOCK_DIED_BIT ? XP_LOCK_DIED : XP_LOCK_HELD;
    }
    return XP_LOCK_BUSY;
}

/* Remove `m`, which is gone, as these words had it. They change with each turn, so a successor with the same index
 * is left alone. */
void xp_lock_sweep_as(xp_lock_words *w, uint64_t owner, uint64_t heir, uint32_t m)
{
    bool changed = false;
    if ((owner & XP_LOCK_MEMBER) == m + 1)
        changed = XP_CAS(&w->owner, &owner, ((owner >> 16) + 1) << 16 | XP_LOCK_DIED_BIT);
    if ((heir & XP_LOCK_HEIR) == m + 1)
        changed |= XP_CAS(&w->heir, &heir, 0);
    if (changed)
        xp_ring(&w->bell);
}

void xp_lock_sweep(xp_lock_words *w, uint32_t m) { xp_lock_sweep_as(w, XP_LOAD(&w->owner), XP_LOAD(&w->heir), m); }

void xp_lock_give_up(xp_lock_words *w, uint64_t ticket)
{
    uint64_t mine = ticket;
    if (XP_LOAD(&w->heir) == ticket && XP_CAS(&w->heir, &mine, 0))
        xp_ring(&w->bell);
}

bool xp_lock_end_turn(xp_lock_words *w, uint64_t owner, bool died)
{
    uint64_t free = died ? ((owner >> 16) + 1) << 16 | XP_LOCK_DIED_BIT : owner >> 16 << 16;
    if (!XP_CAS(&w->owner, &owner, free))
        return false;
    xp_ring(&w->bell);
    return true;
}

bool xp_lock_release(xp_lock_words *w, uint32_t m)
{
    uint64_t found = XP_ACQUIRE(&w->owner);
    return (found & XP_LOCK_MEMBER) == m + 1 && xp_lock_end_turn(w, found, false);
}

int64_t xp_atomic_add(xp_atomic_words *w, int64_t more)
{
    int64_t before = __atomic_fetch_add(&w->value, more, __ATOMIC_SEQ_CST);
    xp_ring(&w->bell);
    return before;
}

void xp_atomic_store(xp_atomic_words *w, int64_t value)
{
    XP_STORE(&w->value, value);
    xp_ring(&w->bell);
}

bool xp_atomic_swap(xp_atomic_words *w, int64_t old, int64_t value)
{
    if (!XP_CAS(&w->value, &old, value))
        return false;
    xp_ring(&w->bell);
    return true;
}
