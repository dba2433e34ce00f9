/* A lock whose owner may die, and a number that processes share: docs/channels-protocol.md. */
#ifndef XP_LOCK_H
#define XP_LOCK_H

#include "group.h"

typedef struct {
    uint64_t owner; /* turn << 16 | died << 15 | 1 + member, or 0 in its place; the turn grows with each change */
    uint64_t heir;  /* ticket << 16 | 1 + member: a waiter that nobody may overtake; or 0 */
    xp_bell bell;
} xp_lock_words;

typedef struct {
    int64_t value;
    xp_bell bell;
} xp_atomic_words;

#define XP_LOCK_DIED_BIT 0x8000u
#define XP_LOCK_MEMBER 0x7fffu
#define XP_LOCK_HEIR 0xffffu

/* The result of an attempt. With the first two, this process has the lock. The second means that its last owner
 * died, or left without releasing it. */
enum { XP_LOCK_HELD = 1, XP_LOCK_DIED, XP_LOCK_BUSY };

uint64_t xp_lock_ticket(uint32_t m); /* a new one for each wait: what `heir` says of it */
int xp_lock_try(xp_lock_words *w, uint32_t m, uint64_t ticket);
/* Spin, and sleep at most once. *tries counts the calls of one wait. *rc: 0 or the futex's errno. */
int xp_lock_wait(xp_group *g, xp_lock_words *w, uint32_t m, uint64_t ticket, unsigned *tries, uint64_t end, int *rc);
/* Try without sleeping. If the lock is busy, the file of the group reports the next change of one of its locks. `overtaken`:
 * nobody may overtake this ticket from now on. */
int xp_lock_poll(xp_group *g, xp_lock_words *w, uint64_t ticket, bool overtaken);
void xp_lock_give_up(xp_lock_words *w, uint64_t ticket); /* after each wait that did not get the lock */
bool xp_lock_release(xp_lock_words *w, uint32_t m);      /* false: `m` does not hold it */
/* The same for one of several objects of a member, which remembers the owner's word of its turn. `died`: it goes. */
bool xp_lock_end_turn(xp_lock_words *w, uint64_t owner, bool died);
void xp_lock_sweep(xp_lock_words *w, uint32_t m);        /* `m` is gone, or goes */
void xp_lock_sweep_as(xp_lock_words *w, uint64_t owner, uint64_t heir, uint32_t m); /* only if the words are still these */
static inline bool xp_lock_names(const xp_lock_words *w, uint32_t m)
{
    return (XP_LOAD(&w->owner) & XP_LOCK_MEMBER) == m + 1 || (XP_LOAD(&w->heir) & XP_LOCK_HEIR) == m + 1;
}
/* Wait until this process has the lock: XP_LOCK_HELD or XP_LOCK_DIED. XP_LOCK_BUSY means that `end` has come, or
 * that the group is of no more use. */
int xp_lock_take(xp_group *g, xp_lock_words *w, uint32_t m, uint64_t end);

int64_t xp_atomic_add(xp_atomic_words *w, int64_t more); /* the value before */
void xp_atomic_store(xp_atomic_words *w, int64_t value);
bool xp_atomic_swap(xp_atomic_words *w, int64_t old, int64_t value);
/* Sleep at most once. Returns true if the value differs. */
bool xp_atomic_wait(xp_group *g, xp_atomic_words *w, int64_t value, uint64_t end, int *rc);

#endif
