/* The table of functions by which native code calls a vendor's driver about memory of other libraries and processes.
 * The type of a vendor's driver begins with `xp_driver`, and a file of that vendor fills in the table. */
#ifndef XP_DRIVER_H
#define XP_DRIVER_H

#include "objects.h"

typedef struct xp_driver xp_driver;

/* An allocation. No two have the same number, even if one follows the other at its address. */
typedef struct {
    uint64_t number, start, nbytes;
    uint64_t ordinal; /* of its device */
} xp_found;

typedef struct {
    uint64_t address, nbytes; /* nbytes: the greatest number if the driver does not report it */
} xp_driver_mapping;

/* The calls around others that change the state of this thread, and restore it */
typedef struct {
    xp_driver *driver; /* NULL: there are no such calls */
    uint64_t place;    /* the driver's number of what is made current */
    bool relaxed;      /* whether captures of streams are not disturbed */
    bool placed;       /* whether `place` is made current */
} xp_scope;

typedef struct {
    int mode, place; /* of this thread before */
    int step;        /* the step that failed: 0 for the mode, 1 for the place */
} xp_before;

/* Functions that return an int return the driver's code. All of them may block, so they are called without the GIL. */
typedef struct {
    /* Find the number of the allocation at an address. Returns false if the driver knows no allocation there. */
    bool (*number)(const xp_driver *driver, uint64_t address, uint64_t *number);
    /* Find the allocation at an address. Returns false if there is none for which the driver makes handles. */
    bool (*find)(const xp_driver *driver, uint64_t address, xp_found *found);
    /* Make the handle by which other processes map an allocation, of `handle_nbytes` bytes. */
    int (*name)(const xp_driver *driver, uint64_t start, char *handle);
    int (*open)(const xp_driver *driver, const char *handle, xp_driver_mapping *mapped);
    int (*close)(const xp_driver *driver, uint64_t address);
    int (*enter)(const xp_driver *driver, const xp_scope *scope, xp_before *before); /* changes nothing if it fails */
    void (*leave)(const xp_driver *driver, const xp_scope *scope, const xp_before *before);
} xp_driver_table;

struct xp_driver {
    PyObject_HEAD
    const xp_driver_table *table;
    size_t handle_nbytes;
    PyObject *failed; /* failed(step, code): the exception for a scope that was not entered */
};

static inline int xp_scope_enter(const xp_scope *scope, xp_before *before)
{
    return scope->driver ? scope->driver->table->enter(scope->driver, scope, before) : 0;
}

static inline void xp_scope_leave(const xp_scope *scope, const xp_before *before)
{
    if (scope->driver)
        scope->driver->table->leave(scope->driver, scope, before);
}

const xp_scope *xp_scope_of(const xp_types *types, PyObject *object); /* borrowed; NULL: they are not Scopes */

#endif
