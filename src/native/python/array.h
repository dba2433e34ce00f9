/* The public objects in native code: what holds a resource until it is closed, and of these `SharedArray`. */
#ifndef XP_ARRAY_H
#define XP_ARRAY_H

#include "objects.h"

/* ObjectBase */
typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    PyObject *held;    /* its resource; of what no pickle could open, why; NULL or None once it is closed */
    PyObject *pickled; /* what pickling it has exported */
    uint32_t forks;    /* how often this line of processes had forked when the resource was made */
} xp_object_state;

/* BufferBase */
typedef struct {
    xp_object_state base;
    PyObject *pinned; /* what the consumer of an array interface needs as long as this lives */
} xp_buffer_state;

/* ArrayState */
typedef struct {
    xp_buffer_state base;
    PyObject *shape, *strides, *dtype; /* NULL of what no pickle could open */
    PyObject *message;                 /* by which it was attached, or NULL */
    PyObject *order;                   /* what its readers have to wait for, or NULL */
    int64_t offset;                    /* of the first element, in the range */
} xp_array_state;

/* An array of the class that was registered. Its references are taken over, also where this fails; message and order may
 * be NULL, any other where an exception is set. */
PyObject *xp_array_new(const xp_types *types, PyObject *held, uint32_t forks, PyObject *shape, PyObject *strides,
                       PyObject *dtype, int64_t offset, PyObject *message, PyObject *order);
xp_array_state *xp_array_of(const xp_types *types, PyObject *object); /* NULL without an exception: it is none */

#endif
