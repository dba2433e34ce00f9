/* Stream queues: a vendor's in-order queues work with event slots through the functions of its driver. */
#ifndef XP_QUEUE_H
#define XP_QUEUE_H

#include "recipes.h"

typedef struct xp_queue xp_queue;

enum { XP_ORDER_DEVICE, XP_ORDER_SHARED, XP_ORDER_HELD };

typedef struct {
    uint64_t point, after;
    int64_t code;
    const char *wrong; /* or NULL if nothing was submitted */
    bool memory;       /* false if there was no memory */
} xp_signalled;

xp_queue *xp_queue_new(uint64_t number, uint64_t handle, xp_queue_calls *calls, int ordering, bool adopted);
void xp_queue_unref(xp_queue *queue);
bool xp_queue_forked(const xp_queue *queue);

/* All of these may block in the driver. */
int64_t xp_queue_check(xp_queue *queue);
/* A lost wait loses the signals behind it, until `xp_queue_told`. */
int xp_queue_wait(xp_queue *queue, xp_slot *s, uint64_t address, uint64_t point, int64_t *code); /* 0 or 1, as xp_guard */
void xp_queue_signal(xp_queue *queue, xp_slot *s, uint64_t address, xp_signalled *done);
bool xp_queue_finish(xp_queue *queue, xp_slot *s, uint64_t point, int64_t *code); /* false: no memory */
/* The first notes that the queue waits for something that is not a point and may never come. The second ends that,
 * without blocking. */
void xp_queue_unsure(xp_queue *queue);
void xp_queue_sure(xp_queue *queue);
/* `at`: its place, or the index of the call that failed, from 0. */
bool xp_queue_submit(xp_queue *queue, const xp_call *calls, uint32_t count, uint64_t *at, int64_t *code);

/* Commands of a program that enqueues without Python. Each signals a point of the queue's own timeline, so nothing
 * has to be made for it. */
bool xp_queue_works(const xp_queue_calls *calls); /* whether the driver has the calls for it */
void xp_queue_own(xp_queue *queue, xp_slot *s, uint64_t address); /* the timeline, which nobody else signals */
bool xp_queue_spent(xp_queue *queue); /* it needs a new timeline: it has none, or a signal behind a loss would end the loss */
/* Queue the command and its point. Returns false if it has to be queued in another way, even if a part of it was
 * queued. */
XP_OUTSIDE bool xp_queue_work(xp_queue *queue, const xp_work *work, xp_slot **s, uint64_t *point);
/* Later work starts once that point of another queue's own timeline, on the same device, is done. Returns false if
 * the point is not certain, or the wait could not be queued. */
XP_OUTSIDE bool xp_queue_after(xp_queue *queue, xp_slot *s, uint64_t point);

/* None of these blocks. */
void xp_queue_lost(xp_queue *queue, xp_slot *s); /* a wait for a point of that event that is lost already */
void xp_queue_told(xp_queue *queue, uint64_t at); /* the user knows of the losses up to that place */
typedef struct {
    uint64_t place, handed, held; /* of the newest operation; of the newest that the driver has; how many the driver lacks */
    uint64_t failed_at;
    int64_t failed; /* the code of the first failure, or 0 */
} xp_queue_status;
xp_queue_status xp_queue_look(xp_queue *queue);
uint32_t *xp_queue_drained(xp_queue *queue); /* a futex word; it changes when nothing is held any more */

#endif
