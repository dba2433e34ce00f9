/* The inside of a stream queue: what it has signalled, what it holds, and what is lost with a wait.
 *
 * What a queue signals behind a lost wait must be lost, too. So while a queue has guarded waits it keeps a list of its
 * signals, which the warden loses before it releases the device.
 *
 * Where the device cannot or must not wait for a point, the queue holds that wait and everything behind it, and the
 * relay hands it to the driver when the point is done or lost: docs/events-protocol.md, "Queues that hold".
 *
 * There are two mutexes. `order` is held from a decision until the driver has the call, so that the driver sees the
 * order in which points were submitted. It is outermost, and the warden never takes it. `mu` is never held during a
 * driver call, since the driver's host functions must be able to run; the warden takes it while it holds xp_mu. */
#ifndef XP_HELD_H
#define XP_HELD_H

#include "events.h"
#include "queue.h"
#include "relay.h"

typedef struct {
    xp_slot *s;
    uint64_t point, at;
    xp_completion *completion; /* or NULL: the device stores it */
} xp_record;

enum { XP_HELD_WAIT, XP_HELD_SIGNAL, XP_HELD_CALLS };

typedef struct xp_operation {
    struct xp_operation *next;
    int kind;
    uint64_t at;
    xp_slot *s;
    uint64_t address, point;
    bool host, handed; /* a signal: a host function completes it; it is in the list of records */
    uint32_t lost;     /* a wait before it was, and why; by whom: */
    uint64_t pid;
    uint32_t count;
    xp_call calls[];
} xp_operation;

struct xp_queue {
    const xp_queue_ops *ops; /* first */
    xp_job job; /* to go on with what is held */
    unsigned refs, waits, unsure, born; /* unsure: those of its waits whose points may never come */
    uint64_t number, handle;
    xp_queue_calls *calls;
    int ordering;
    bool adopted; /* somebody else has the queue, too */
    pthread_mutex_t order;
    xp_operation *spare[2]; /* `order`; so that what is submitted is not lost for want of memory */
    pthread_mutex_t mu; /* what follows; what is held changes only with `order`, too */
    uint64_t at;        /* counts operations */
    xp_record *records;    /* a ring */
    uint32_t first_record, record_count, room;
    xp_operation *first, **last;
    uint32_t held, drained; /* how many operations; a futex word */
    uint64_t failed_at;
    int64_t failed;
    /* The newest lost wait, if the user was not told of it: what is signalled behind it is lost. An adopted queue has
     * none, since its users need not ask us. */
    uint64_t lost_at, told;
    uint32_t lost;
    uint64_t lost_pid;
    uint64_t losses; /* how many lost waits it has met */
    uint64_t own_since;           /* how many it had met when it got: */
    xp_slot *own;                 /* its timeline, or NULL; `order`, too */
};

/* Records, with q->mu: signals that a loss finds. */
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

/* Decisions, with q->order. May the device wait for that point, or must the queue hold what comes? *unsure: it may, and
 * has a place. Without `unsure` no place is taken. */
bool xp_device_may_wait(xp_queue *q, xp_slot *s, uint64_t point, bool *unsure);
bool xp_host_completes(const xp_queue *q, uint64_t point);
int xp_settled(xp_slot *s, uint64_t point); /* its state; of an event that was closed here DONE or LOST all the same */
void xp_note_lost(xp_slot *s, uint64_t point); /* while the loss is put off, the slot does not say that it is one */

/* Held operations, with q->order. */
xp_operation *xp_operation_new(int kind, xp_slot *s, uint64_t address, uint64_t point, uint32_t count);
bool xp_have_spares(xp_queue *q);
xp_operation *xp_take_spare(xp_queue *q, int i, int kind, xp_slot *s, uint64_t address, uint64_t point);
void xp_append(xp_queue *q, xp_operation *op); /* with q->mu, too */
uint64_t xp_next_at(xp_queue *q);
int64_t xp_begin(xp_queue *q); /* the caller's operations, which are the first held ones; if they fail, none is held */
int xp_hand(const xp_queue *q, xp_slot *s, uint64_t address, uint64_t point, xp_completion *c); /* give the driver it */
int64_t xp_settings(const xp_queue *q); /* what a thread of ours has had of the driver's before is another queue's */

#endif
