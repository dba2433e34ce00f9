/* Functions that other libraries may call, from any thread and without Python. queue.c has more of them. */
#include "events.h"
#include "outside.h"

#define SPIN_NS 50000

/* 0 if the slot may not be used any more. */
XP_OUTSIDE uint64_t xp_newest_point(xp_slot *s) { return xp_slot_wrong(s) ? 0 : XP_LOAD(&s->w->pending) >> 21; }

/* A state, or -1 if the slot may not be used any more. */
XP_OUTSIDE int xp_state_at(xp_slot *s, uint64_t point)
{
    if (xp_slot_wrong(s))
        return -1;
    int rc, state = xp_full_state(s, point, false);
    if (state != XP_PENDING)
        return state;
    uint64_t now = xp_now();
    return xp_sleep(s, point, now, now, &rc); /* does not sleep, but detects deaths, and has later ones detected */
}

/* The same, once it is no longer pending. */
XP_OUTSIDE int xp_wait_at(xp_slot *s, uint64_t point)
{
    if (xp_slot_wrong(s))
        return -1;
    xp_slot_ref(s);
    uint64_t start = xp_now();
    int rc, state = xp_full_state(s, point, false);
    if (state == XP_PENDING)
        state = xp_spin(s, point, start, XP_FOREVER, SPIN_NS);
    while (state == XP_PENDING && !xp_slot_wrong(s))
        state = xp_sleep(s, point, start, XP_FOREVER, &rc);
    xp_slot_unref(s);
    return state == XP_PENDING ? -1 : state;
}

/* The result of `xp_queue_work` is no longer needed. */
XP_OUTSIDE void xp_let_slot_go(xp_slot *s) { xp_slot_unref(s); }

XP_OUTSIDE void xp_fill(char *to, const char *pattern, uint64_t unit, uint64_t nbytes)
{
    if (unit == 1) {
        memset(to, *(const unsigned char *)pattern, nbytes);
        return;
    }
    /* Grow a block that stays in the cache, then repeat it. */
    uint64_t block = unit, most = unit > 65536 ? unit : 65536 / unit * unit;
    memmove(to, pattern, unit < nbytes ? unit : nbytes);
    while (block * 2 <= most && block * 2 <= nbytes) {
        memcpy(to + block, to, block);
        block *= 2;
    }
    for (uint64_t at = block; at < nbytes; at += block)
        memcpy(to + at, to, nbytes - at < block ? nbytes - at : block);
}
