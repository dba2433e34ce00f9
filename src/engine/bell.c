/* The bells of groups. */
#include "bell.h"

void xp_ring_always(xp_bell *bell)
{
    __atomic_fetch_add(&bell->seq, 1, __ATOMIC_SEQ_CST);
    xp_futex_wake(&bell->seq, INT32_MAX);
}

void xp_ring(xp_bell *bell)
{
    if (XP_UNLIKELY(XP_LOAD(&bell->sleepers)) && XP_EXCHANGE(&bell->sleepers, 0))
        xp_ring_always(bell);
}
