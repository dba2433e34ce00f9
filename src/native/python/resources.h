/* The owners of driver resources, and pieces of memory, as native code reads them: see resources.c.
 *
 * Fields are set when an object is made, never change after that, and no pointer is NULL, unless a comment says
 * otherwise. A field that may change is read by `xp_field` and set by `xp_exchange`. */
#ifndef XP_RESOURCES_H
#define XP_RESOURCES_H

#include "objects.h"

/* Releases a resource when its owner has died. */
typedef struct {
    PyObject_HEAD
    PyObject *release, *arguments;  /* the function to call, or None; both become NULL when it is called */
    PyObject *forget, *key, *keep;  /* may change: see `on_death`. NULL if not set */
    uint32_t forks;
    bool again; /* call `release` once more if an interrupt has ended it */
} xp_end;

/* Owns a driver's resource. */
typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;             /* of Python */
    PyObject *device, *driver, *end;
    uint32_t forks;                 /* xp_fork_count when it was made */
} xp_resource;

typedef struct {
    xp_resource resource;
    PyObject *kind, *source, *name; /* the last two may be None */
    PyObject *earlier;              /* a dict */
    PyObject *handle, *prepared;    /* may change; None or NULL if there is none */
    PyObject *exposure;             /* may change, once; NULL if its memory is never reused */
    PyObject *uses;                 /* the list of its ended leases' uses, set before anybody finds an import; or NULL */
    uint64_t address, nbytes;
    uint64_t serial;                /* may change, once: 0 before the first export */
    bool host_accessible, imported, foreign;
    bool owned;                     /* imported, and can be exported from here; may become true */
    bool lent;                      /* used again once this process drops the arrays over it: never shared in place; may become true */
    bool keepable;                  /* imported, and worth caching for a moment after its end: see sharing/idle.py */
} xp_allocation;

typedef struct {
    xp_resource resource;
    PyObject *slot;
    PyObject *prepared;             /* may change; None or NULL if there is none */
} xp_timeline;

typedef struct {
    xp_resource resource;
    uint64_t nbytes;
    uint64_t serial;                /* may change, once: 0 before the first export */
    bool ipc_enabled, imported;
} xp_pages;

/* A piece of an allocation, and what keeps it open. */
typedef struct {
    PyObject_HEAD
    PyObject *allocation, *device, *context;
    PyObject *handle, *lease;       /* None unless it is imported; the lease may also be an array of another library */
    uint64_t offset, nbytes;
    bool read_only;
} xp_range;

/* Make an object of the registered class. Takes over no reference. */
PyObject *xp_range_new(const xp_types *types, PyObject *allocation, uint64_t offset, uint64_t nbytes, PyObject *device,
                       PyObject *context, bool read_only, PyObject *handle, PyObject *lease);

/* Return the range of a handle by which an import is opened once more, and record the handle. NULL, perhaps with an
 * exception set, if Python has to look at it. Takes over no reference. */
PyObject *xp_open_again(const xp_types *types, PyObject *handle, PyObject *allocation, PyObject *device,
                        PyObject *context, PyObject *lease);

/* Make an allocation of another library, on a device, of which this process owns nothing. Takes over no reference.
 * `prepared`: NULL for none. `serial`: 0 for none yet. */
PyObject *xp_foreign_allocation(const xp_types *types, PyObject *device, PyObject *driver, PyObject *name,
                                uint64_t nbytes, uint64_t address, PyObject *prepared, uint64_t serial);

/* Make an allocation of a peer, on a device, that is worth caching after its end: `release` is called with the tuple
 * `arguments` once it has died. NULL with an exception set, and then `release` is not called. Takes over no
 * reference. */
PyObject *xp_imported_allocation(const xp_types *types, PyObject *device, PyObject *driver, PyObject *release,
                                 PyObject *arguments, uint64_t address, uint64_t nbytes);

/* Borrowed; NULL, without an exception, if the object is not an allocation: a range may also lie in another object. */
static inline xp_allocation *xp_allocation_of(const xp_types *types, PyObject *object)
{
    return Py_TYPE(object) == types->allocation ? (xp_allocation *)object : NULL;
}

/* Return whether it is of `Resource`, or of a subclass. */
static inline bool xp_is_resource(const xp_types *types, PyObject *object)
{
    return PyObject_TypeCheck(object, types->resource);
}

/* Like `xp_allocation_of`, for a range. */
static inline xp_range *xp_range_of(const xp_types *types, PyObject *object)
{
    return Py_TYPE(object) == types->range ? (xp_range *)object : NULL;
}

/* Set such a field, taking over the reference, and return the old value. */
static inline PyObject *xp_exchange(void *object, PyObject **field, PyObject *value)
{
    PyObject *before;
    (void)object;
    Py_BEGIN_CRITICAL_SECTION((PyObject *)object);
    before = *field;
    *field = value;
    Py_END_CRITICAL_SECTION();
    return before;
}

#endif
