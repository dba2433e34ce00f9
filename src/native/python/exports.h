/* The table of this process's exports, as Python has it. */
#ifndef XP_EXPORT_OBJECTS_H
#define XP_EXPORT_OBJECTS_H

#include "handle.h"

#include "../../engine/exports.h"

/* Exposure: the base of Python's `Block`. */
typedef struct {
    PyObject_HEAD
    PyObject *prepared; /* the template of its allocation's exports, made by Python, or NULL */
    uint64_t serial;    /* likewise */
    xp_exposure exposure;
} xp_exposure_object;

/* The template of another object of the same device and kind as the Template `like`, with `nbytes` and no fds. NULL,
 * without an exception, if `like` is not from this table, or has fds. */
PyObject *xp_prepare_like(const xp_types *types, PyObject *own, PyObject *like, uint64_t serial, uint64_t nbytes,
                          const char *payload, uint32_t payload_nbytes);
uint64_t xp_object_named(PyObject *own, PyObject *name); /* Returns 0 with an exception set. */

#endif
