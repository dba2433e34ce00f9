/* Handles as Python has them: 256 verified bytes, or the bytes of a pickle that are not a handle here. */
#ifndef XP_HANDLE_H
#define XP_HANDLE_H

#include "objects.h"

/* The base of Python's `Handle`. */
typedef struct {
    PyObject_HEAD
    xp_handle h;
    PyObject *raw;    /* its bytes, made when somebody asks; of what is not a handle here, they are all there is */
    PyObject *fields; /* Fields, made when somebody asks */
    PyObject *unread; /* why it is not a handle here, a callable that raises it; NULL if it is one */
    PyObject *newest; /* what its name says by now, a callable; NULL unless it was looked up by one */
} xp_handle_object;

PyObject *xp_handle_new(const xp_types *types, const xp_handle *h); /* an instance of the class that was registered */
const xp_handle *xp_handle_of(const xp_types *types, PyObject *object); /* borrowed; NULL without an exception: it is none */

/* Whether a handle does for an earlier one of the same object: those of the same bytes do. Those of pickles end one by
 * one. */
static inline bool xp_does_for(const xp_handle *h, const xp_handle *earlier)
{
    if ((h->flags | earlier->flags) & XP_ENTRY_PICKLED)
        return (h->flags & earlier->flags & XP_ENTRY_PICKLED) && h->generation == earlier->generation;
    return h->offset == earlier->offset && h->nbytes == earlier->nbytes;
}

#endif
