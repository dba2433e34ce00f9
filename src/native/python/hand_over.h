/* What `share` and `attach` have in common: what the package gives, and the helpers over it. */
#ifndef XP_HAND_OVER_H
#define XP_HAND_OVER_H

#include "objects.h"

/* What the package gives at the start. */
#define KIT(_)                                                                                                        \
    _(SharedArray) _(ArrayHandle) _(Handle) _(Range) _(Parts) _(Allocation) _(Exported) _(End) _(Opener) _(Device)    \
        _(Import) _(Export) _(Node) _(Table) _(Implicit) _(Located) _(Timeline) _(Opened) _(Order) _(Turn) _(Peers)   \
        _(Peer)                                                    /* classes */                                      \
        _(decided) _(opened_on) _(texts) _(dtypes) _(lasting) _(started) /* dicts that it fills */                    \
        _(off) _(layers_on) _(here) _(sealings) _(boot_ids)        /* the first two are empty, the others have one item or none */    \
        _(forms) _(prepared_by) _(decode_dtype) _(order_of)        /* all of Form; steps in Python */                 \
        _(exchange_of) _(kind_of) _(range_at) _(current_mark) _(mark) _(offer) _(release_slot)         \
        _(reopened) _(partial) _(rlock)
/* Names of attributes and methods. */
#define NAMES(_)                                                                                                      \
    _(has_streams) _(acquire) _(release) _(_sweep_for) _(acquire_known) _(handle) _(sweep) _(withdraw) _(forget) _(_remember)         \
        _(setdefault) _(meet) _(_discard) _(import_memory) _(address) _(nbytes) _(host_accessible) _(device)          \
        _(lasting_export) _(export) _(requires_grad) _(slot) _(data) _(close) _(_items) _(keep) _(keepable)           \
        _(most_nbytes) _(prepare) _(importer) _(cookie) _(recogniser) _(object_named) _(find)   \
        _(maps) _(_starts) _(_dlpacks)
/* Slots of these classes, which are read and set without a search for their names. */
#define SLOTS(_)                                                                                                      \
    _(SharedArray, _held) _(SharedArray, _forks) _(SharedArray, _shape) _(SharedArray, _strides)                      \
    _(SharedArray, _offset) _(SharedArray, _dtype) _(SharedArray, _pinned) _(SharedArray, _handle)                    \
    _(SharedArray, _order) _(SharedArray, _implicit)                                                                  \
    _(ArrayHandle, _raw) _(ArrayHandle, _parts) _(ArrayHandle, _held) _(ArrayHandle, _dtype) _(ArrayHandle, _owner)   \
    _(Handle, _raw) _(Handle, _fields)                                                                                \
    _(Allocation, device) _(Allocation, driver) _(Allocation, forks) _(Allocation, _end) _(Allocation, kind)          \
    _(Allocation, address) _(Allocation, nbytes) _(Allocation, host_accessible) _(Allocation, imported)               \
    _(Allocation, foreign) _(Allocation, source) _(Allocation, prepared) _(Allocation, _handle)                       \
    _(Allocation, _earlier) _(Allocation, _serial) _(Allocation, _name)                                               \
    _(End, _release) _(End, _arguments) _(End, _forks) _(End, forget) _(End, keep)                                    \
    _(Exported, handle) _(Exported, source) _(Exported, keep) _(Exported, foreign) _(Exported, implicit)              \
    _(Exported, nbytes) _(Exported, outlives) _(Exported, deadline)                                                   \
    _(Opener, admit) _(Opener, maps) _(Opener, room) _(Opener, importer)                                                                  \
    _(Device, _adapter) _(Device, _info)                                                                              \
    _(Node, _table) _(Node, peers) _(Node, allocations) _(Node, foreign)                                              \
    _(Table, _lock) _(Table, _serving) _(Table, _lingering) _(Table, _ending) _(Table, _entries) _(Table, domain)     \
    _(Table, _exports) _(Table, exporting) _(Implicit, handle)                                                        \
    _(Peers, _peers) _(Peers, _cache) _(Peers, _lock) _(Peers, _turns) _(Peers, _together) _(Peers, _opening)         \
    _(Peers, kept) _(Peer, table) _(Peer, domain)                                                                     \
    _(Timeline, device) _(Timeline, driver) _(Timeline, forks) _(Timeline, _end) _(Timeline, slot) _(Timeline, prepared) \
    _(Order, _event) _(Order, _point) _(Turn, keys) _(Turn, lock) _(Turn, over) _(Turn, refusal)

#define ENUM(name) K_##name,
enum { KIT(ENUM) KIT_SIZE };
#undef ENUM
#define ENUM(name) N_##name,
enum { NAMES(ENUM) NAMES_SIZE };
#undef ENUM
#define ENUM(class, name) S_##class##_##name,
enum { SLOTS(ENUM) SLOTS_SIZE };
#undef ENUM

typedef struct {
    PyObject_HEAD
    PyObject *kit[KIT_SIZE], *names[NAMES_SIZE], *slots[SLOTS_SIZE];
    descrgetfunc get; /* of each of the slots */
    descrsetfunc set;
} xp_hand_over;

#define GET(object, name) PyObject_GetAttr(object, self->names[N_##name])
#define SET(object, name, value) (PyObject_SetAttr(object, self->names[N_##name], value) == 0)
#define READ(object, class, name) self->get(self->slots[S_##class##_##name], object, self->kit[K_##class])
#define WRITE(object, class, name, value) (self->set(self->slots[S_##class##_##name], object, value) == 0)
#define CLASS(name) ((PyTypeObject *)self->kit[K_##name])
#define CALL(function, ...) PyObject_CallFunctionObjArgs(self->kit[K_##function], __VA_ARGS__, NULL)
#define METHOD(object, name, ...) PyObject_CallMethodObjArgs(object, self->names[N_##name], ##__VA_ARGS__, NULL)

/* dict[key], or NULL without an exception: the caller asks PyErr_Occurred. A new reference. */
static inline PyObject *found_in(PyObject *dict, PyObject *key)
{
#ifdef Py_GIL_DISABLED
    PyObject *value;
    return PyDict_GetItemRef(dict, key, &value) < 0 ? NULL : value;
#else
    return Py_XNewRef(PyDict_GetItemWithError(dict, key));
#endif
}

/* A plain tuple, whose reference it takes over, as an instance of a named tuple; NULL stays NULL. By `tuple.__new__`:
 * tuples know of themselves more than their items. */
static inline PyObject *as_named(PyTypeObject *type, PyObject *plain)
{
    PyObject *args = plain ? PyTuple_New(1) : NULL;
    if (args == NULL) {
        Py_XDECREF(plain);
        return NULL;
    }
    PyTuple_SetItem(args, 0, plain);
    PyObject *made = ((newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new))(type, args, NULL);
    Py_DECREF(args);
    return made;
}

/* Takes over the references, also where it fails, one of which may be NULL then. */
static inline PyObject *plain_tuple(Py_ssize_t n, PyObject **items)
{
    bool good = true;
    for (Py_ssize_t i = 0; i < n; i++)
        good = good && items[i];
    PyObject *plain = good ? PyTuple_New(n) : NULL;
    for (Py_ssize_t i = 0; i < n; i++)
        if (plain)
            PyTuple_SetItem(plain, i, items[i]);
        else
            Py_XDECREF(items[i]);
    return plain;
}

/* An instance of a named tuple; takes over the references as `plain_tuple` does. */
static inline PyObject *named_tuple(PyTypeObject *type, Py_ssize_t n, PyObject **items)
{
    return as_named(type, plain_tuple(n, items));
}

static inline PyObject *new_handle(const xp_hand_over *self, const xp_types *types, const xp_handle *h)
{
    PyObject *raw = PyBytes_FromStringAndSize((const char *)h, sizeof *h);
    PyObject *fields = raw ? xp_fields_new(types->fields, h) : NULL;
    PyObject *made = fields ? PyType_GenericAlloc(CLASS(Handle), 0) : NULL;
    if (made && !(WRITE(made, Handle, _raw, raw) && WRITE(made, Handle, _fields, fields)))
        Py_CLEAR(made);
    Py_XDECREF(raw);
    Py_XDECREF(fields);
    return made;
}

static inline PyObject *new_array_handle(const xp_hand_over *self, PyObject *raw, PyObject *parts, PyObject *owner)
{
    PyObject *made = PyType_GenericAlloc(CLASS(ArrayHandle), 0);
    if (made && !(WRITE(made, ArrayHandle, _raw, raw) && WRITE(made, ArrayHandle, _parts, parts) &&
                  WRITE(made, ArrayHandle, _held, parts) && WRITE(made, ArrayHandle, _dtype, Py_None) &&
                  WRITE(made, ArrayHandle, _owner, owner)))
        Py_CLEAR(made);
    return made;
}

/* The only item of a list that loses none, borrowed; NULL if it has none yet. */
static inline PyObject *only(const xp_hand_over *self, int list)
{
    if (PyList_Size(self->kit[list]) == 0)
        return NULL;
#ifdef Py_GIL_DISABLED
    PyObject *item = PyList_GetItemRef(self->kit[list], 0); /* it may be growing: the list's storage moves then */
    Py_XDECREF(item);
    return item;
#else
    return PyList_GetItem(self->kit[list], 0);
#endif
}

static inline bool has_items(const xp_hand_over *self, int list) { return PyList_Size(self->kit[list]) != 0; }

/* NULL where Python goes all of its way, or has not made the seal yet. */
static inline const xp_key *key_if_on(const xp_hand_over *self, const xp_types *types)
{
    PyObject *seal = has_items(self, K_off) || has_items(self, K_layers_on) ? NULL : only(self, K_sealings);
    return seal ? xp_key_of(types, seal) : NULL;
}

/* None unless the last call failed. */
static inline PyObject *declined(void) { return PyErr_Occurred() ? NULL : Py_NewRef(Py_None); }

/* attach.c */
PyObject *xp_over_attach(PyObject *object, PyObject *message);
PyObject *xp_over_attach_as(PyObject *object, PyObject *const *args, Py_ssize_t n);
PyObject *xp_over_open_all(PyObject *object, PyObject *const *args, Py_ssize_t n);

#endif
