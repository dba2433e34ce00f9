/* The types whose objects C makes. Each interpreter has its own, in the state of the module. */
#ifndef XP_TYPES_H
#define XP_TYPES_H

#include <Python.h>

#define XP_EVERY_TYPE(X)                                                                                               \
    X(fields) X(lease) X(mapping) X(span) X(queue_calls) X(owned_fd) X(name_lock) X(seal) X(template) X(exported) X(exposure) X(own_table) X(peer_table) X(refusal)    \
    X(domain) X(slot) X(stream_queue) X(driver) X(scopes) X(with) X(recogniser) X(addresses) X(kinds) X(end) X(resource)     \
    X(object_base) X(buffer_base) X(timeline) X(pinned) X(allocation_base) X(range_base) X(handle_base) X(message_base) X(array_base) X(allocation) X(range)   \
    X(handle) X(array_handle) X(shared_array) /* these five: subclasses that Python registers; NULL before that */ \
    X(ndarray) /* of NumPy; NULL until it is asked for */

/* Names of attributes. `differs`: of torch's tensors, whose views do not show it. Python refuses such tensors, or has them
 * copied. */
#define XP_EVERY_NAME(X) X(itemsize, "itemsize") X(differs, "requires_grad") X(dtype, "dtype") X(strides, "strides")

typedef struct {
    unsigned left; /* whether this process has left: see `left` of the module */
#define XP_POINTER(name) PyTypeObject *name;
    XP_EVERY_TYPE(XP_POINTER)
#undef XP_POINTER
#define XP_POINTER(name, text) PyObject *name;
    XP_EVERY_NAME(XP_POINTER)
#undef XP_POINTER
} xp_types;

xp_types *xp_types_of(PyObject *module); /* of a type's module, PyType_GetModuleState returns them */
bool xp_types_begin(xp_types *types);    /* false with an exception set */
int xp_types_visit(xp_types *types, visitproc visit, void *arg);
void xp_types_clear(xp_types *types);

#endif
