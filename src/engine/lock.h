/* A lock whose owner may die, and a number that processes share: docs/channels-protocol.md. */
#ifndef XP_LOCK_H
#define XP_LOCK_H

#include "crew.h"

typedef struct {
    uint64_t owner; /* turn << 16 | died << 15 | 1 + member, or 0 in its place; the turn grows with each change */
    uint64_t heir;  /* ticket << 8 | 1 + member: a waiter that nobody may overtake; or 0 */
    xp_bell bell;
} xp_lock_words;

typedef struct {
    int64_t value;
    xp_bell bell;
} xp_atomic_words;

#define XP_LOCK_DIED_BIT 0x8000u
#define XP_LOCK_MEMBER 0x7fffu

/* The result of an attempt. With the first two, this process has the lock. The second means that its last owner
 * died, or left without releasing it. */
enum { XP_LOCK_HELD = 1, XP_LOCK_DIED, XP_LOCK_BUSY };

uint64_t xp_lock_ticket(uint32_t m); /* a new one for each wait: what `heir` says of it */
int xp_lock_try(xp_lock_words *w, uint32_t m, uint64_t ticket);
/* Spin, and sleep at most once. *tries counts the calls of one wait. *rc: 0 or the futex's errno. */
int xp_lock_wait(xp_crew *c, xp_lock_words *w, uint32_t m, uint64_t ticket, unsigned *tries, uint64_t end, int *rc);
void xp_lock_give_up(xp_lock_words *w, uint64_t ticket); /* after each wait that did not get the lock */
bool xp_lock_release(xp_lock_words *w, uint32_t m);      /* false: `m` does not hold it */
void xp_lock_sweep(xp_lock_words *w, uint32_t m);        /* `m` is gone, or goes */
/* Wait until this process has the lock: XP_LOCK_HELD or XP_LOCK_DIED. XP_LOCK_BUSY means that `end` has come, or
 * that the crew is of no more use. */
int xp_lock_take(xp_crew *c, xp_lock_words *w, uint32_t m, uint64_t end);

int64_t xp_atomic_add(xp_atomic_words *w, int64_t more); /* the value before */
void xp_atomic_store(xp_atomic_words *w, int64_t value);
bool xp_atomic_swap(xp_atomic_words *w, int64_t old, int64_t value);
/* Sleep at most once. Returns true if the value differs. */
bool xp_atomic_wait(xp_crew *c, xp_atomic_words *w, int64_t value, uint64_t end, int *rc);

#endif
