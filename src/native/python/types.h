/* The types whose objects C makes. Each interpreter has its own, in the state of the module. */
#ifndef XP_TYPES_H
#define XP_TYPES_H

#include <Python.h>

#define XP_EVERY_TYPE(X)                                                                                               \
    X(fields) X(lease) X(mapping) X(span) X(queue_calls) X(owned_fd) X(seal) X(template) X(exported) X(exposure) X(own_table) X(peer_table) X(refusal)    \
    X(domain) X(slot) X(stream_queue) X(scopes) X(with) X(recogniser) X(addresses) X(kinds) X(end) X(resource)     \
    X(timeline) X(pinned) X(allocation_base) X(range_base) X(handle_base) X(message_base) X(array_base) X(allocation) X(range)   \
    X(handle) X(array_handle) X(shared_array) /* these five: subclasses that Python registers; NULL before that */ \
    X(ndarray) /* of NumPy; NULL until it is asked for */

typedef struct {
#define XP_TYPE(name) PyTypeObject *name;
    XP_EVERY_TYPE(XP_TYPE)
#undef XP_TYPE
    PyObject *itemsize; /* the name of that attribute of dtypes */
    PyObject *differs;  /* the name of torch's attribute for gradients */
    PyObject *dtype, *strides; /* the names of these attributes of arrays */
    unsigned left; /* whether this process has left: see `left` of the module */
} xp_types;

xp_types *xp_types_of(PyObject *module); /* of a type's module, PyType_GetModuleState returns them */
int xp_types_visit(xp_types *types, visitproc visit, void *arg);
void xp_types_clear(xp_types *types);

#endif
