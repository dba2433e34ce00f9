/* Messages as Python has them: the handle of an array, or of a tree of arrays. */
#ifndef XP_MESSAGE_H
#define XP_MESSAGE_H

#include "handle.h"

/* The base of Python's `ArrayHandle`. */
typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    PyObject *raw;              /* its bytes */
    PyObject *unread, *newest;  /* as of a handle */
    PyObject *handles, *events; /* tuples, made on demand: of handles; of handles and points */
    xp_parts parts;             /* the description, in these bytes; empty if they are not a message here */
    uint32_t owner;             /* the fork in which it owns the exports, */
    bool owns, closed;          /* if it owns them */
} xp_message_object;

/* Make the object of a verified message. `handles` and `events`: NULL, unless somebody has made them already. */
PyObject *xp_message_new(const xp_types *types, PyObject *raw, const xp_parts *parts, PyObject *handles,
                         PyObject *events);

#endif
