/* The public objects in native code: objects that have a resource until they are closed, among them `SharedArray`. */
#ifndef XP_ARRAY_H
#define XP_ARRAY_H

#include "objects.h"

/* ObjectBase */
typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    PyObject *held;    /* its resource, or the reason why its pickle could not be opened; NULL or None once it is closed */
    PyObject *exports; /* of its pickles */
    uint32_t forks;    /* how often this line of processes had forked when the resource was made */
} xp_object_state;

/* BufferBase */
typedef struct {
    xp_object_state base;
    PyObject *pinned; /* what the consumer of an array interface needs as long as this object lives */
} xp_buffer_state;

/* ArrayState */
typedef struct {
    xp_buffer_state base;
    PyObject *shape, *strides, *dtype; /* NULL if its pickle could not be opened */
    PyObject *message;                 /* the handle by which it was attached, or NULL */
    PyObject *order;                   /* what its readers have to wait for, or NULL */
    int64_t offset;                    /* of the first element, in the range */
} xp_array_state;

/* Make an array of the registered class. Takes over the references, even if this fails. Message and order may be
 * NULL. Any other may be NULL if an exception is set. */
PyObject *xp_array_new(const xp_types *types, PyObject *held, uint32_t forks, PyObject *shape, PyObject *strides,
                       PyObject *dtype, int64_t offset, PyObject *message, PyObject *order);
xp_array_state *xp_array_of(const xp_types *types, PyObject *object); /* NULL without an exception if it is not an array */

#endif
