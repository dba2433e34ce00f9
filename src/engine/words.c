/* Which processes owe points, and how the points are lost. */
#include "words.h"

bool xp_next_run(const xp_view *v, const uint64_t *facts, uint64_t *from, uint64_t *last, uint32_t *owner)
{
    *from = *from ? *last + 1 : v->effective + 1;
    if (*from > v->top)
        return false;
    *last = v->top;
    *owner = XP_MEMBER_IN(v->pending);
    for (uint32_t i = 0; i < XP_FACTS; i++) {
        uint64_t p = facts[i] >> 20;
        if (p >= *from && p < *last) {
            *last = p;
            *owner = XP_MEMBER_IN(facts[i]);
        }
    }
    return true;
}

bool xp_read_facts(const xp_words *w, xp_view *v, uint64_t *facts)
{
    for (int i = 0; i < 1000; i++) {
        xp_read(w, v);
        for (uint32_t k = 0; k < XP_FACTS; k++)
            facts[k] = XP_ACQUIRE(&w->facts[k]);
        xp_view again;
        xp_read(w, &again);
        if (again.lost == v->lost && again.effective == v->effective)
            return true;
    }
    return false;
}

uint64_t xp_lowest_owed(const xp_words *w, xp_view *v, uint32_t m)
{
    uint64_t facts[XP_FACTS], from = 0, last = 0;
    uint32_t owner;
    if (!xp_read_facts(w, v, facts))
        return UINT64_MAX;
    while (xp_next_run(v, facts, &from, &last, &owner))
        if (owner == m)
            return from;
    return 0;
}

void xp_owing(const xp_words *w, uint64_t *mask)
{
    xp_view v;
    xp_read(w, &v);
    if (v.top <= v.effective)
        return;
    uint32_t m = XP_MEMBER_IN(v.pending);
    if (m < XP_MEMBERS)
        mask[m / 64] |= 1ull << m % 64;
    for (uint32_t i = 0; i < XP_FACTS; i++) {
        uint64_t fact = XP_ACQUIRE(&w->facts[i]);
        m = XP_MEMBER_IN(fact);
        if (fact >> 20 > v.effective && m < XP_MEMBERS)
            mask[m / 64] |= 1ull << m % 64;
    }
}

bool xp_owes(const xp_words *w, uint32_t m)
{
    uint64_t mask[XP_MASK_WORDS] = {0};
    xp_owing(w, mask);
    return mask[m / 64] >> m % 64 & 1;
}

void xp_wake_all(xp_words *w)
{
    XP_STORE(&w->waiters, 0);
    __atomic_fetch_add(&w->seq, 1, __ATOMIC_SEQ_CST);
    xp_futex_wake(&w->seq, INT32_MAX);
}

void xp_finish(xp_words *w)
{
    xp_view v;
    xp_read(w, &v);
    /* After a loss, the processes that guard waits of devices release these devices themselves. */
    if (v.value > v.hi || v.lo == v.hi || XP_LOAD(&w->guards) == 0)
        xp_raise_value(w, v.effective);
}

bool xp_lose(xp_words *w, int bell, uint32_t cause, uint64_t pid, uint64_t from)
{
    xp_view v;
    for (int i = 0; i < XP_TRIES; i++) {
        xp_read(w, &v);
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
            xp_raise_value(w, v.top); /* lets devices go */
        xp_wake(w, bell);
        return true;
    }
    xp_finish(w);
    return true;
}
