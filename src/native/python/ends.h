/* ChannelEnd, and the loans and frames that it returns: channel.c, frames.c. */
#ifndef XP_ENDS_H
#define XP_ENDS_H

#include "objects.h"

#include "../../engine/channel.h"

/* The threads of this process that wait for a slot, or for a frame, in the order in which they came. */
typedef struct xp_turn {
    struct xp_turn *next;
    uint64_t thread;
} xp_turn;

typedef struct {
    pthread_mutex_t mu;
    xp_turn *first, **last; /* last: NULL at first */
} xp_line;

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs, *group;
    PyTypeObject *loan, *frame; /* the classes of its loans and frames */
    PyObject *refuse, *encode, *signal; /* functions of the end: see _native.pyi */
    PyObject *arrays;           /* NULL, or a list: NumPy's array over each slot */
    bool joined, buffers;       /* buffers: those arrays export their dtype as a buffer's format */
    xp_line loaning, receiving;
    xp_end e;
} xp_end_object;

/* group.c: the group of a channel that a process has begun, borrowed. NULL with TypeError, with ValueError if its words
 * are invalid, or with InvalidArgumentError if it is of no more use. */
xp_group *xp_channel_of(PyObject *group, xp_geometry *g);

/* NULL with an exception if it is closed, or belongs to another process. */
static inline xp_end *xp_end_of(PyObject *self)
{
    xp_end *e = &((xp_end_object *)self)->e;
    if (XP_LIKELY(!XP_RELAXED(&e->closed) && xp_group_usable(e->c)))
        return e;
    xp_group_unusable(e->c, XP_RELAXED(&e->closed) ? "this Channel is closed: close() was called, or nothing refers to it "
                                                    "any more. Keep the channel in a variable"
                                                  : xp_group_wrong(e->c));
    return NULL;
}

#define XP_LOCK_MOST 10000000000u /* how many ns a process waits for the lock, which is held for microseconds */

/* Try once, and again while it has to wait. Returns XP_GOT …, XP_WAIT when the time has run out, or -1 with an
 * exception. `timeout` NULL: for attempts that wait for nothing but the lock. `line`: NULL, or where a thread that
 * has to wait queues, so that no thread that comes later, or again, overtakes it. */
typedef int (*xp_attempt)(xp_end *e, void *argument);
int xp_end_until(PyObject *self, xp_end *e, xp_attempt attempt, void *argument, PyObject *timeout, xp_line *line);
/* Has Python raise the error for `got`, and returns NULL. `wanted`: "slot" or "frame" */
PyObject *xp_end_refused(PyObject *self, int got, const char *wanted, PyObject *timeout);

bool xp_is_loan(PyTypeObject *class);
bool xp_is_frame(PyTypeObject *class);
PyObject *xp_loan_new(PyObject *end, PyObject *timeout);
PyObject *xp_frame_new(PyObject *end, const xp_frame *f);

#endif
