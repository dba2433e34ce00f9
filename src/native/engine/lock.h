/* A lock whose owner may die, and a number that processes share: docs/channels-protocol.md. */
#ifndef XP_LOCK_H
#define XP_LOCK_H

#include "crew.h"

typedef struct {
    uint64_t owner; /* turn << 16 | died << 15 | 1 + member, or 0 in its place; the turn grows with each change */
    uint64_t heir;  /* ticket << 8 | 1 + member: a waiter whom nobody may overtake; or 0 */
    xp_bell bell;
} xp_lock_words;

typedef struct {
    int64_t value;
    xp_bell bell;
} xp_atomic_words;

#define XP_LOCK_DIED_BIT 0x8000u
#define XP_LOCK_MEMBER 0x7fffu

/* The outcome of an attempt. With the first two, the lock is ours. With the second, its last owner died, or left without
 * releasing. */
enum { XP_LOCK_HELD = 1, XP_LOCK_DIED, XP_LOCK_BUSY };

uint64_t xp_lock_ticket(uint32_t m); /* a new one, for one wait: what `heir` says of it */
int xp_lock_try(xp_lock_words *w, uint32_t m, uint64_t ticket);
/* Spin, and sleep once at most. *tries counts the calls of one wait. *rc: 0 or the futex's errno. */
int xp_lock_wait(xp_crew *c, xp_lock_words *w, uint32_t m, uint64_t ticket, unsigned *tries, uint64_t end, int *rc);
void xp_lock_give_up(xp_lock_words *w, uint64_t ticket); /* after each wait that got nothing */
bool xp_lock_release(xp_lock_words *w, uint32_t m);      /* false: `m` does not hold it */
void xp_lock_sweep(xp_lock_words *w, uint32_t m);        /* `m` is gone, or goes */
/* Until it is ours: XP_LOCK_HELD or XP_LOCK_DIED; XP_LOCK_BUSY: `end` has come, or the crew is of no more use. */
int xp_lock_take(xp_crew *c, xp_lock_words *w, uint32_t m, uint64_t end);

int64_t xp_atomic_add(xp_atomic_words *w, int64_t more); /* the value before */
void xp_atomic_store(xp_atomic_words *w, int64_t value);
bool xp_atomic_swap(xp_atomic_words *w, int64_t old, int64_t value);
/* One sleep at most; true: the value differs. */
bool xp_atomic_wait(xp_crew *c, xp_atomic_words *w, int64_t value, uint64_t end, int *rc);

#endif
