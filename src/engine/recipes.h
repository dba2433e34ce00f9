/* How a driver is called: recipes, which a vendor's adapter provides, and the host functions that complete points. */
#ifndef XP_RECIPES_H
#define XP_RECIPES_H

#include "outside.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct xp_slot xp_slot;

#define XP_ARGUMENTS 10
#define XP_STEPS 4
#define XP_FILLS 3

typedef struct {
    uint64_t function;
    uint32_t count;
    uint64_t arguments[XP_ARGUMENTS];
} xp_call;

/* What a recipe fills in. VALUE_AT is the address of a byte that has the value, and stays. OUT is the address of a
 * temporary, MADE the value that an earlier step put there, INT_AT the address of an int that has the recipe's
 * number. */
enum {
    XP_ARG_FIXED, XP_ARG_QUEUE, XP_ARG_ADDRESS, XP_ARG_POINT, XP_ARG_POINT_LOW, XP_ARG_FUNCTION, XP_ARG_DATA,
    XP_ARG_OUT, XP_ARG_MADE, XP_ARG_STATUS_OUT, XP_ARG_INT_AT,
    XP_ARG_TO, XP_ARG_FROM, XP_ARG_NBYTES, XP_ARG_VALUE, XP_ARG_VALUE_AT, XP_ARG_TIMES,
    XP_ARG_KINDS
};

typedef struct {
    xp_call call; /* its fixed arguments, and numbers */
    uint8_t kinds[XP_ARGUMENTS];
    bool cleanup; /* carried out even after an earlier step failed, if there is a temporary */
} xp_step;

typedef struct {
    uint32_t count; /* 0 if the driver has no such call */
    xp_step steps[XP_STEPS];
} xp_recipe;

typedef struct {
    unsigned refs;
    xp_recipe store, wait, host, captured, relay;
    xp_recipe copy, fills[XP_FILLS]; /* one step each; fills: with patterns of 1, 2 and 4 bytes */
    unsigned wait_bits, store_bits; /* of a point that the device compares and stores: 64 or 32 */
    bool event_callback; /* the host function is f(event, status, data), else f(data) */
    unsigned budget;     /* how many shared queues may have their device wait for points that may never come */
    unsigned waiting;    /* how many queues do */
} xp_queue_calls;

void xp_queue_calls_unref(xp_queue_calls *calls);

/* Codes besides a driver's own, which have 32 bits. */
#define XP_CODE_CAPTURED (1ll << 32)
#define XP_CODE_NOT_HELD (2ll << 32) /* an adopted queue would have to hold its work */
#define XP_CODE_SYSTEM (3ll << 32)   /* and errno */

/* All of these may block in the driver. */
int xp_invoke_all(const xp_call *calls, uint32_t count, uint64_t *done); /* *done: how many were carried out */
int xp_word_operation(const xp_recipe *recipe, uint64_t handle, uint64_t address, uint64_t point);
int64_t xp_captured(const xp_queue_calls *calls, uint64_t handle); /* 0, XP_CODE_CAPTURED, or the driver's code */

/* Makes driver calls that may block, on the relay. Returns 0 or errno. */
int xp_relay_calls(const xp_call *calls, uint32_t count);

/* A point that a host function completes. A queue's list and the function each hold a reference. */
typedef struct {
    unsigned refs;
    uint32_t lost; /* whether a wait before it was lost, and why and through which process: */
    uint64_t pid;
    xp_slot *s;
    uint64_t point;
} xp_completion;

xp_completion *xp_completion_new(xp_slot *s, uint64_t point);
void xp_completion_unref(xp_completion *c); /* NULL is not a completion */
int xp_launch(const xp_queue_calls *calls, uint64_t handle, xp_completion *c); /* queue it; takes over the reference */

/* The calls that do `work`, which the caller frees. Returns false if the driver has no such call, or there is no
 * memory. */
bool xp_calls_for(const xp_queue_calls *calls, uint64_t handle, const xp_work *work, xp_call **made, uint32_t *count);

#endif
