/* Stream queues: what a vendor's in-order queues do with event slots, over the functions of its driver. */
#ifndef XP_QUEUE_H
#define XP_QUEUE_H

#include "outside.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct xp_slot xp_slot;
typedef struct xp_queue xp_queue;

/* --- how to call a driver ----------------------------------------------------------------------------------------- */

#define XP_ARGUMENTS 10
#define XP_STEPS 4
#define XP_FILLS 3

typedef struct {
    uint64_t function;
    uint32_t count;
    uint64_t arguments[XP_ARGUMENTS];
} xp_call;

/* What a recipe fills in. VALUE_AT is the address of a byte that has the value, and stays. OUT is the address of a
 * temporary, MADE what a step before has put there, MODE the address of an int that says RELAXED. */
enum {
    XP_ARG_FIXED,
    XP_ARG_QUEUE,
    XP_ARG_ADDRESS,
    XP_ARG_POINT,
    XP_ARG_POINT_LOW,
    XP_ARG_FUNCTION,
    XP_ARG_DATA,
    XP_ARG_OUT,
    XP_ARG_MADE,
    XP_ARG_STATUS_OUT,
    XP_ARG_MODE,
    XP_ARG_TO,
    XP_ARG_FROM,
    XP_ARG_NBYTES,
    XP_ARG_VALUE,
    XP_ARG_VALUE_AT,
    XP_ARG_TIMES,
    XP_ARG_KINDS
};

typedef struct {
    xp_call call; /* its fixed arguments */
    uint8_t kinds[XP_ARGUMENTS];
    bool cleanup; /* carried out even if an earlier step failed, provided there is a temporary */
} xp_step;

typedef struct {
    uint32_t count; /* 0: the driver has no such call */
    xp_step steps[XP_STEPS];
} xp_recipe;

typedef struct {
    unsigned refs;
    xp_recipe store, wait, host, captured, relay;
    xp_recipe copy, fills[XP_FILLS]; /* one step each; fills: with patterns of 1, 2 and 4 bytes */
    unsigned wait_bits, store_bits; /* of a point that the device compares, and stores: 64 or 32 */
    bool event_callback; /* the host function is f(event, status, data), else f(data) */
    unsigned budget;     /* how many shared queues may wait in the device for what may never come */
    unsigned waiting;    /* how many queues do */
} xp_queue_calls;

void xp_queue_calls_unref(xp_queue_calls *calls);

/* --- queues ------------------------------------------------------------------------------------------------------- */

enum { XP_ORDER_DEVICE, XP_ORDER_SHARED, XP_ORDER_HELD };

/* Codes beside a driver's own, which have 32 bits. */
#define XP_CODE_CAPTURED (1ll << 32)
#define XP_CODE_NOT_HELD (2ll << 32) /* an adopted queue would have to hold its work */
#define XP_CODE_SYSTEM (3ll << 32)   /* and errno */

typedef struct {
    uint64_t point, after;
    int64_t code;
    const char *wrong; /* or NULL: nothing was submitted */
    bool memory;       /* false: there was no memory */
} xp_signalled;

xp_queue *xp_queue_new(uint64_t number, uint64_t handle, xp_queue_calls *calls, int ordering, bool adopted);
void xp_queue_ref(xp_queue *queue);
void xp_queue_unref(xp_queue *queue);
bool xp_queue_forked(const xp_queue *queue);

/* All of these may block in the driver. */
int64_t xp_queue_check(xp_queue *queue);
/* A lost wait loses what is signalled behind it, until `xp_queue_told`. */
int xp_queue_wait(xp_queue *queue, xp_slot *s, uint64_t address, uint64_t point, int64_t *code); /* as xp_guard, 0 or 1 */
void xp_queue_signal(xp_queue *queue, xp_slot *s, uint64_t address, xp_signalled *done);
bool xp_queue_finish(xp_queue *queue, xp_slot *s, uint64_t point, int64_t *code); /* false: no memory */
/* The queue waits for what may never come, and is no point; xp_queue_sure ends that. */
void xp_queue_unsure(xp_queue *queue);
/* `at`: its place, or which call failed, from 0. */
bool xp_queue_submit(xp_queue *queue, const xp_call *calls, uint32_t count, uint64_t *at, int64_t *code);

/* Commands of a program that enqueues without Python. Each signals a point of a timeline that is the queue's own, so that
 * nothing has to be made for it. */
bool xp_queue_works(const xp_queue_calls *calls); /* the driver has what that takes */
void xp_queue_own(xp_queue *queue, xp_slot *s, uint64_t address); /* the timeline: nobody else signals it */
bool xp_queue_spent(xp_queue *queue); /* it needs a new one: it has none, or what is behind a loss would heal the loss */
/* Queue it, and its point. False: it is to be queued in another way, also where some of it was queued. */
XP_OUTSIDE bool xp_queue_work(xp_queue *queue, const xp_work *work, xp_slot **s, uint64_t *point);
/* Later work starts once that point of another queue's own timeline, on the same device, is done. False: that is not known
 * to be certain, or it could not be queued. */
XP_OUTSIDE bool xp_queue_after(xp_queue *queue, xp_slot *s, uint64_t point);

/* None of these blocks. */
void xp_queue_lost(xp_queue *queue, xp_slot *s); /* a wait for a point of that event that is lost already */
void xp_queue_told(xp_queue *queue, uint64_t at); /* the user knows of the losses up to that place */
uint64_t xp_queue_handed(xp_queue *queue);
uint64_t xp_queue_place(xp_queue *queue); /* of the newest operation */
uint32_t xp_queue_held(xp_queue *queue);
bool xp_queue_failure(xp_queue *queue, uint64_t *at, int64_t *code);
uint32_t *xp_queue_drained(xp_queue *queue); /* a futex word; it changes when nothing is held any more */

/* For the warden, with xp_mu. */
void xp_queue_waits(xp_queue *queue, int more); /* waits that are guarded */
void xp_queue_sure(xp_queue *queue);            /* a wait for what might never have come is over */
/* Lose what was signalled behind the wait at `at`, for that cause (not 0). Unless all is done, call it again later. */
enum { XP_ALL_LOST, XP_STORES_TO_COME /* of lost points */, XP_PUT_OFF /* a point from before the wait is outstanding */ };
int xp_queue_lose(xp_queue *queue, uint64_t at, uint32_t cause, uint64_t pid, bool first);
void xp_queue_resume(xp_queue *queue); /* the wait that it holds is over; takes the reference over */

/* Makes driver calls that may block, on the relay. Returns 0 or errno. */
int xp_relay_calls(const xp_call *calls, uint32_t count);

#endif
