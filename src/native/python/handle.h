/* Handles as Python has them: 256 verified bytes, or the bytes of a pickle that are not a handle here. */
#ifndef XP_HANDLE_H
#define XP_HANDLE_H

#include "objects.h"

/* The base of Python's `Handle`. */
typedef struct {
    PyObject_HEAD
    xp_handle h;
    PyObject *raw;    /* its bytes, made on demand; the only content of an object that is not a handle here */
    PyObject *fields; /* Fields, made on demand */
    PyObject *unread; /* a callable that raises the reason if it is not a handle here; NULL otherwise */
    PyObject *newest; /* a callable that returns the newest handle of its name; NULL unless it was looked up by name */
} xp_handle_object;

PyObject *xp_handle_new(const xp_types *types, const xp_handle *h); /* an instance of the class that was registered */
const xp_handle *xp_handle_of(const xp_types *types, PyObject *object); /* borrowed; NULL without an exception if it is not a handle */

/* Return whether a handle can replace an earlier one of the same object: one with the same bytes can. Handles of
 * pickles end one by one. */
static inline bool xp_does_for(const xp_handle *h, const xp_handle *earlier)
{
    if ((h->flags | earlier->flags) & XP_ENTRY_PICKLED)
        return (h->flags & earlier->flags & XP_ENTRY_PICKLED) && h->generation == earlier->generation;
    return h->offset == earlier->offset && h->nbytes == earlier->nbytes;
}

#endif
