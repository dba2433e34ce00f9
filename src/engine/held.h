/* The inside of a stream queue: what it has signalled, what it holds, and what is lost with a wait.
 *
 * What a queue signals behind a lost wait must be lost, too. So while a queue has guarded waits, it keeps a list of
 * its signals, which the warden marks as lost before it releases the device.
 *
 * If the device cannot or must not wait for a point, the queue holds that wait and everything behind it. The relay
 * passes them to the driver when the point is done or lost: docs/events-protocol.md, "Queues that hold".
 *
 * There are two mutexes. `order` is held from a decision until the driver has the call, so that the driver sees the
 * order in which points were submitted. It is the outermost mutex, and the warden never takes it. `mu` is never held
 * during a driver call, since the driver's host functions must be able to run. The warden takes it while it holds
 * xp_mu. */
#ifndef XP_HELD_H
#define XP_HELD_H

#include "events.h"
#include "queue.h"
#include "relay.h"

typedef struct {
    xp_slot *s;
    uint64_t point, at;
    xp_completion *completion; /* or NULL, if the device stores it */
} xp_record;

enum { XP_HELD_WAIT, XP_HELD_SIGNAL, XP_HELD_CALLS };

typedef struct xp_operation {
    struct xp_operation *next;
    int kind;
    uint64_t at;
    xp_slot *s;
    uint64_t address, point;
    bool host, handed; /* of a signal: a host function completes it, and it is in the list of records */
    uint32_t lost;     /* whether a wait before it was lost, and why and through which process: */
    uint64_t pid;
    uint32_t count;
    xp_call calls[];
} xp_operation;

struct xp_queue {
    const xp_queue_ops *ops; /* first */
    xp_job job; /* continues with the held operations */
    unsigned refs, waits, unsure, born; /* unsure: how many of its waits have points that may never come */
    uint64_t number, handle;
    xp_queue_calls *calls;
    int ordering;
    bool adopted; /* somebody else has the queue, too */
    pthread_mutex_t order;
    xp_operation *spare[2]; /* `order`; reserved so that a submitted signal is not lost for want of memory */
    pthread_mutex_t mu; /* the following; held operations also change only with `order` */
    uint64_t at;        /* counts operations */
    xp_record *records;    /* a ring */
    uint32_t first_record, record_count, room;
    xp_operation *first, **last;
    uint32_t held, drained; /* how many operations; a futex word */
    uint64_t failed_at;
    int64_t failed;
    /* The newest lost wait that the user was not told of: signals behind it are lost. An adopted queue has none,
     * since its users may never ask us. */
    uint64_t lost_at, told;
    uint32_t lost;
    uint64_t lost_pid;
    uint64_t losses; /* how many lost waits it has met */
    uint64_t own_since;           /* how many lost waits it had met when it got: */
    xp_slot *own;                 /* its timeline, or NULL; `order` protects it as well */
};

/* Records, with q->mu: the signals that a loss finds. */
static inline xp_record *xp_record_at(xp_queue *q, uint32_t i) { return &q->records[(q->first_record + i) % q->room]; }

static inline int xp_state_here(const xp_slot *s, uint64_t point)
{
    xp_view v;
    xp_read(s->w, &v);
    return xp_state(&v, point);
}

bool xp_make_room(xp_queue *q); /* for one more */
void xp_add_record(xp_queue *q, xp_slot *s, uint64_t point, uint64_t at, xp_completion *c);
void xp_spoil_by(xp_queue *q, xp_slot *s, uint64_t at); /* a wait at that place is lost */

/* Decisions, with q->order. Return whether the device may wait for that point, or the queue must hold what comes.
 * *unsure: the device may wait, and the queue occupies a place. Without `unsure`, no place is taken. */
bool xp_device_may_wait(xp_queue *q, xp_slot *s, uint64_t point, bool *unsure);
bool xp_host_completes(const xp_queue *q, uint64_t point);
int xp_settled(xp_slot *s, uint64_t point); /* its state; also DONE or LOST for an event that was closed here */
void xp_note_lost(xp_slot *s, uint64_t point); /* while the loss is postponed, the slot does not report it */

/* Held operations, with q->order. */
xp_operation *xp_operation_new(int kind, xp_slot *s, uint64_t address, uint64_t point, uint32_t count);
bool xp_have_spares(xp_queue *q);
xp_operation *xp_take_spare(xp_queue *q, int i, int kind, xp_slot *s, uint64_t address, uint64_t point);
void xp_append(xp_queue *q, xp_operation *op); /* with q->mu, too */
uint64_t xp_next_at(xp_queue *q);
int64_t xp_begin(xp_queue *q); /* the caller's operations, which become the first held ones; if they fail, none is held */
int xp_hand(const xp_queue *q, xp_slot *s, uint64_t address, uint64_t point, xp_completion *c); /* give the driver it */
int64_t xp_settings(const xp_queue *q); /* another queue has what a thread of ours got from the driver before */

#endif
