/* What an array of another library says about itself: see views.c. */
#ifndef XP_VIEWS_H
#define XP_VIEWS_H

#include "kinds.h"

/* How the arrays of a type are viewed. Zeroed before the first; `negated` is released by the caller. */
typedef struct {
    PyTypeObject *type;
    enum { XP_UNKNOWN, XP_EXCHANGE, XP_ARRAYS, XP_MEMORYVIEWS } by; /* XP_UNKNOWN: Python describes them */
    const dl_exchange *api;
    PyObject *negated; /* owned: the method of that name; NULL: there is none */
} xp_viewer;

typedef struct {
    xp_kind_key key;        /* borrowed from the array, and from `dtype` */
    const dl_exchange *api; /* NULL: a buffer */
    PyObject *dtype; /* owned: the array's own, if DLPack's type may stand for several; NULL if that says all */
    uint64_t address; /* of the first element */
    int64_t low, high; /* the bytes that its elements span, relative to the first; not empty */
    uint32_t itemsize;
    int ndim;
    bool read_only;
    int64_t dims[2 * XP_MAX_DIMS]; /* the shape, then the strides in bytes */
} xp_seen;

/* View an array. Returns 1 if that says all about it, and then the caller releases `dtype`; 0 if Python has to describe
 * the array; -1 with an exception set. `kinds`: see xp_known_exchange; may be NULL. */
int xp_view_array(const xp_types *types, PyObject *kinds, xp_viewer *viewer, PyObject *array, xp_seen *view);

#endif
