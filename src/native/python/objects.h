/* The common part of the Python types: Python itself, and the helpers between Python and the engine. */
#ifndef XP_OBJECTS_H
#define XP_OBJECTS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "../../engine/loop.h"
#include "../../engine/group.h"
#include "../../engine/events.h"
#include "../../engine/seal.h"
#include "life.h"
#include "types.h"

#ifndef Py_BEGIN_CRITICAL_SECTION /* then the GIL is held */
#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION() }
#endif

/* Evaluate an expression, or do something, without the GIL. */
#define XP_UNLOCKED(expression)                                                                                        \
    ({                                                                                                                 \
        PyThreadState *xp_thread = PyEval_SaveThread();                                                                \
        __auto_type xp_value = (expression);                                                                           \
        PyEval_RestoreThread(xp_thread);                                                                               \
        xp_value;                                                                                                      \
    })
#define XP_UNLOCKED_DO(statement) ((void)XP_UNLOCKED(((statement), 0)))

/* Do something and return None. */
#define XP_NONE_BY(expression) ((expression), Py_NewRef(Py_None))

/* Define a getter, or a method without arguments, that returns the value of an expression of `self`. */
#define XP_GETTER(name, expression)                                                                                    \
    static PyObject *name(PyObject *self, void *Py_UNUSED(c)) { return (void)self, expression; }
#define XP_METHOD(name, expression)                                                                                    \
    static PyObject *name(PyObject *self, PyObject *Py_UNUSED(a)) { return (void)self, expression; }

/* The value of a field that may change: a new reference, or NULL without an exception. */
static inline PyObject *xp_field(void *object, PyObject **field)
{
    PyObject *value;
    (void)object;
    Py_BEGIN_CRITICAL_SECTION((PyObject *)object);
    value = Py_XNewRef(*field);
    Py_END_CRITICAL_SECTION();
    return value;
}

#define XP_FAST(f) ((PyCFunction)(void (*)(void))(f))
/* Entries of PyGetSetDef for an object, None for NULL. (Other threads may set the field meanwhile, which T_OBJECT does
 * not bear.) The second may be set, and to anything. */
#define XP_OBJECT(name, type, field) {name, xp_get_object, NULL, NULL, (void *)offsetof(type, field)}
#define XP_ANY_OBJECT(name, type, field) {name, xp_get_object, xp_set_object, NULL, (void *)offsetof(type, field)}
PyObject *xp_get_object(PyObject *self, void *place);
int xp_set_object(PyObject *self, PyObject *value, void *place);
#define XP_WEAKREFS(type) {"__weaklistoffset__", T_PYSSIZET, offsetof(type, weakrefs), READONLY, NULL}

#define XP_LEAST_ADDRESS 4096 /* a smaller address is a mistake: nothing is ever mapped there, whatever the page size */

/* support.c */
/* Set once: another thread may be first. Takes over `made`, which may be NULL with an exception set. Returns a new
 * reference. */
PyObject *xp_set_once(PyObject **place, PyObject *made);
PyObject *xp_oserror(const char *call);
PyObject *xp_oserror_of(int error, const char *call);
PyObject *xp_raise(const xp_error *error); /* OSError, MemoryError or ValueError */
void *xp_refuse(PyObject *type, const char *why); /* raise it, unless an exception is set; NULL */
int xp_invalid(const char *why);                  /* raise ValueError; -1 */
/* Raise InvalidArgumentError if this process, and not a peer, is the reason that the object cannot be used. NULL:
 * raise ForkError, since the object belongs to the parent. */
void xp_unusable(const char *why);
int xp_seconds(PyObject *obj, uint64_t *ns); /* None: XP_FOREVER; -1 with an exception set */
void xp_free(PyObject *self);                /* tp_free and the type's reference */
void xp_no_such(PyObject *unread, const char *name); /* raise why there is no such attribute; unread: see xp_handle_object */

/* A type that is added to a module, and its places in xp_types: where it is kept, and where its base is. 0: nowhere */
typedef struct {
    PyType_Spec *spec;
    size_t kept, base;
} xp_kept;

#define XP_ADD(spec) {&spec, 0, 0}
#define XP_ADD_OF(base, spec) {&spec, 0, offsetof(xp_types, base)}
#define XP_KEEP(spec, place) {&spec, offsetof(xp_types, place), 0}
#define XP_KEEP_OF(base, spec, place) {&spec, offsetof(xp_types, place), offsetof(xp_types, base)}
/* Define xp_init_NAME, which adds functions, or NULL, and types to the module: XP_PART(name, functions, type, ...) */
#define XP_PART(name, ...) XP_PART_(name, __VA_ARGS__, {NULL, 0, 0})
#define XP_PART_(name, functions, ...)                                                                                 \
    static PyMethodDef *const name##_functions = functions; /* Python keeps them */                                    \
    int xp_init_##name(PyObject *module)                                                                               \
    {                                                                                                                  \
        static const xp_kept types[] = {__VA_ARGS__};                                                                  \
        return xp_add_part(module, name##_functions, types);                                                                  \
    }
int xp_add_part(PyObject *module, PyMethodDef *functions, const xp_kept *types);
int xp_add_type(PyObject *module, PyType_Spec *spec);
int xp_keep_type(PyObject *module, PyType_Spec *spec, PyTypeObject **kept);

/* Append an item, which it takes over, to a list. If the item is NULL, or this fails, clear the list. Does nothing else if
 * there is no list. */
void xp_append(PyObject **list, PyObject *item);
PyObject *xp_tuple_of(PyObject **items, size_t n); /* takes over both; NULL if one is NULL */
int xp_arity(const char *name, Py_ssize_t got, Py_ssize_t least, Py_ssize_t most);
int xp_as_u64(PyObject *obj, uint64_t *out);
int xp_as_u32(PyObject *obj, uint32_t *out);
int xp_as_int(PyObject *obj, int *out);
/* shape or strides: a tuple of at most 64 ints; *n = -1 if obj is None */
#define XP_MAX_DIMS 64
int xp_as_dims(PyObject *obj, const char *what, int64_t *out, int *n);
PyObject *xp_dims_tuple(const int64_t *values, int n);

const xp_types *xp_types_by(PyTypeObject *type, destructor of); /* of a subclass whose base has that destructor */

/* fds.c */
PyObject *xp_own_fd(PyTypeObject *type, int number, const char *call); /* takes it over, even if this fails */
int xp_fd_number(PyObject *owned_fd);
int xp_take_fd(PyObject *owned_fd); /* its number, which the caller owns from now on, or -1 if it has none */

/* fields.c, seal.c */
PyObject *xp_fields_new(PyTypeObject *type, const xp_handle *h);
const xp_handle *xp_fields_of(const xp_types *types, PyObject *fields); /* borrowed; NULL: they are not Fields */
const xp_key *xp_key_of(const xp_types *types, PyObject *seal); /* borrowed; NULL with TypeError */
/* The bytes that identify an import in the cache of open imports. An import that a pickle opened may have to be
 * exported from here later, so it has a key of its own. */
PyObject *xp_import_key(const xp_handle *h, uint64_t opener);

/* span.c */
int xp_span_buffer(PyObject *span, Py_buffer *view, int flags); /* TypeError if it is not a Span */

/* memory.c */
PyObject *xp_mapping_new(PyTypeObject *type, char *base, uint64_t nbytes); /* takes over the mapped bytes */
const char *xp_mapping_base(PyObject *mapping, uint64_t *nbytes);

/* domain.c, slot.c: borrowed; NULL with TypeError, or with ValueError if it is not usable */
xp_domain *xp_domain_of(PyObject *object);
PyObject *xp_domain_new(PyTypeObject *type, xp_domain *d); /* takes it over */
xp_slot *xp_slot_of(PyObject *object);
PyObject *xp_lease_new(PyTypeObject *type, PyObject *domain, uint32_t entry, PyObject *peer);
bool xp_lease_takes_open(PyObject *lease); /* false: none is left */
/* Have a hold end as a use, which is appended to that list. NULL or None: not so. `lease` need not be a Lease. */
void xp_lease_uses(const xp_types *types, PyObject *lease, PyObject *uses);
int xp_as_point(PyObject *arg, uint64_t *point);
int xp_guarded(int rc); /* of xp_guard: 0, or -1 with an exception set */

/* group.c */
void xp_group_unusable(const xp_group *g, const char *wrong); /* raise why it may not be used; NULL if its lock or atomic is closed */

/* register.c: an object of a class that Python registers; NULL with an exception set */
PyObject *xp_made(PyTypeObject *class, const char *name);

/* Each of these files adds its own functions and types: xp_init_process and so on. */
#define XP_EVERY_PART(X)                                                                                              \
    X(process) X(register) X(fds) X(name_lock) X(memory) X(span) X(array) X(dlpack) X(fields) X(handle) X(domain) X(meeting) X(peer) X(imports) X(exports) X(exposure) \
    X(seal) X(slot) X(queue) X(warden) X(serve) X(scope) X(message) X(kinds) X(views) X(leaves) X(containers) X(driver) X(foreign)   \
    X(resources) X(pins) X(group) X(channel) X(frames) X(importer) X(addresses)
#define XP_INIT(name) int xp_init_##name(PyObject *module);
XP_EVERY_PART(XP_INIT)

#endif
