/* Imports: what this process has open from other processes, and what opens the memory of a device. It keeps nothing
 * open. */
#include "handle.h"
#include "peer.h"
#include "resources.h"

/* What opens handles of a device. */
typedef struct decision decision;
struct decision {
    const decision *next;
    uint8_t names[offsetof(xp_handle, boot_id) - offsetof(xp_handle, backend)]; /* of the device: backend and uuid */
    PyObject *opener, *device, *context;
    uint64_t number; /* of the opener */
};

typedef struct {
    PyObject_HEAD
    PyObject *peers;           /* a Python dict: the exporters met so far, by cookie */
    PyObject *living;          /* a dict of weak references, by `xp_import_key` or Python's keys */
    const decision *decisions; /* grows at its beginning */
} xp_imports;

static PyObject *imports_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (PyTuple_Size(args) || (kwargs && PyDict_Size(kwargs)))
        return xp_refuse(PyExc_TypeError, "Imports() takes no arguments");
    xp_imports *self = (xp_imports *)PyType_GenericAlloc(type, 0);
    if (self && ((self->peers = PyDict_New()) == NULL || (self->living = PyDict_New()) == NULL))
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int visit_decisions(PyObject *object, visitproc visit, void *arg)
{
    for (const decision *d = ((xp_imports *)object)->decisions; d; d = d->next) {
        Py_VISIT(d->opener);
        Py_VISIT(d->device);
        Py_VISIT(d->context);
    }
    return 0;
}

static void release_decisions(PyObject *object)
{
    for (const decision *d = ((xp_imports *)object)->decisions, *next; d; d = next) {
        next = d->next;
        Py_DECREF(d->opener);
        Py_DECREF(d->device);
        Py_DECREF(d->context);
        PyMem_Free((decision *)d);
    }
}

XP_LIFE(imports, .end = release_decisions, .visit = visit_decisions, .fixed = XP_OBJECTS(xp_imports, peers, living))

/* --- what is open ------------------------------------------------------------------------------------------------- */

/* Return the object of a key, a new reference. NULL, perhaps with an exception set. */
static PyObject *item_of(PyObject *dict, PyObject *key)
{
    PyObject *found;
#ifdef Py_GIL_DISABLED
    PyDict_GetItemRef(dict, key, &found);
#else
    found = Py_XNewRef(PyDict_GetItemWithError(dict, key));
#endif
    return found;
}

/* Return the object of a weak reference. Takes over the reference, which may be NULL. */
static PyObject *living_of(PyObject *reference)
{
    PyObject *found = NULL;
#ifdef Py_GIL_DISABLED
    if (reference)
        PyWeakref_GetRef(reference, &found);
#else
    found = reference ? PyWeakref_GetObject(reference) : NULL;
    found = found == Py_None ? NULL : Py_XNewRef(found);
#endif
    Py_XDECREF(reference);
    return found;
}

static PyObject *imports_get(PyObject *object, PyObject *key)
{
    PyObject *found = living_of(item_of(((xp_imports *)object)->living, key));
    return found || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}

/* add(key, made): what is open under the key: from now on `made`, unless there is something else */
static PyObject *imports_add(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    PyObject *living = ((xp_imports *)object)->living, *found = NULL;
    PyObject *reference = xp_arity("add", n, 2, 2) < 0 ? NULL : PyWeakref_NewRef(args[1], NULL);
    if (reference == NULL)
        return NULL;
    Py_BEGIN_CRITICAL_SECTION(object);
    found = living_of(item_of(living, args[0]));
    if (found == NULL && !PyErr_Occurred() && PyDict_SetItem(living, args[0], reference) == 0)
        found = Py_NewRef(args[1]);
    Py_END_CRITICAL_SECTION();
    Py_DECREF(reference);
    return found;
}

/* forget(key): the object under the key has died, unless there is something newer */
static PyObject *imports_forget(PyObject *object, PyObject *key)
{
    PyObject *living = ((xp_imports *)object)->living, *found, *reference;
    Py_BEGIN_CRITICAL_SECTION(object);
    reference = item_of(living, key);
    found = living_of(Py_XNewRef(reference));
    if (reference && found == NULL)
        PyDict_DelItem(living, key);
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(reference);
    Py_XDECREF(found);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* objects(): everything that is open */
static PyObject *imports_objects(PyObject *object, PyObject *Py_UNUSED(none))
{
    PyObject *all = PyDict_Values(((xp_imports *)object)->living), *found = all ? PyList_New(0) : NULL;
    for (Py_ssize_t i = 0; found && i < PyList_Size(all); i++) {
        PyObject *each = living_of(Py_NewRef(PyList_GetItem(all, i)));
        if (each && PyList_Append(found, each) < 0)
            Py_CLEAR(found);
        Py_XDECREF(each);
    }
    Py_XDECREF(all);
    return found;
}

/* --- opening it again --------------------------------------------------------------------------------------------- */

/* Return the exporter that a handle names, if this process has met it: a new reference. NULL, perhaps with an
 * exception set. */
static PyObject *peer_of(const xp_imports *self, const xp_handle *h)
{
    PyObject *cookie = PyBytes_FromStringAndSize((const char *)h->cookie, sizeof h->cookie);
    PyObject *peer = cookie ? item_of(self->peers, cookie) : NULL;
    Py_XDECREF(cookie);
    return peer;
}

/* Return what is open already under a key, and a hold of it at its exporter: new references. Returns false with
 * neither, perhaps with an exception set. */
static bool held(const xp_imports *self, const xp_types *types, const xp_handle *h, PyObject *key, PyObject **made,
                 PyObject **lease)
{
    xp_entry e;
    *made = living_of(item_of(self->living, key));
    PyObject *peer = *made ? peer_of(self, h) : NULL;
    *lease = peer ? xp_peer_hold(types, peer, h, &e) : NULL;
    if (*lease == NULL)
        Py_CLEAR(*made);
    Py_XDECREF(peer);
    return *lease;
}

/* hold(fields, key): (what is open already, a hold of it), or None */
static PyObject *imports_hold(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    const xp_handle *h = xp_arity("hold", n, 2, 2) < 0 ? NULL : xp_fields_of(types, args[0]);
    PyObject *all[2];
    if (h && held((xp_imports *)object, types, h, args[1], &all[0], &all[1]))
        return xp_tuple_of(all, 2);
    if (h == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "hold() takes Fields");
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static const decision *decision_for(const xp_imports *self, const xp_handle *h)
{
    const decision *d = __atomic_load_n(&self->decisions, __ATOMIC_ACQUIRE);
    while (d && memcmp(d->names, h->backend, sizeof d->names) != 0)
        d = d->next;
    return d;
}

/* Return the range of a handle whose allocation is open already. NULL, perhaps with an exception set, if Python has
 * to open it or to count the open. */
static PyObject *open_again(const xp_imports *self, const xp_types *types, PyObject *handle, const decision *d)
{
    const xp_handle *h = xp_handle_of(types, handle);
    PyObject *key = h->flags & (XP_ENTRY_COUNTED | XP_ENTRY_PICKLED) ? NULL : xp_import_key(h, d->number);
    PyObject *made, *lease, *range = NULL;
    if (key && held(self, types, h, key, &made, &lease)) {
        range = xp_open_again(types, handle, made, d->device, d->context, lease);
        Py_DECREF(made);
        Py_DECREF(lease);
    }
    Py_XDECREF(key);
    return range;
}

/* Append what a caller needs to open a handle. Returns false if that is not known, perhaps with an exception set. */
static bool leave(const xp_imports *self, PyObject *handle, const xp_handle *h, const decision *d, PyObject *left)
{
    PyObject *peer = peer_of(self, h), *all[] = {Py_NewRef(handle), Py_NewRef(d->opener), Py_NewRef(d->device),
                                                 Py_NewRef(d->context)};
    PyObject *item = xp_tuple_of(all, 4);
    bool good = peer && item && PyList_Append(left, item) == 0;
    Py_XDECREF(peer);
    Py_XDECREF(item);
    return good;
}

/* open(handles, opened): append the ranges of handles to a list, up to the first whose allocation is not open yet,
 * or which Python has to look at. Returns for each of the rest (handle, opener, device, context), or None if its
 * exporter has not been met, or nothing was decided for its device. */
static PyObject *imports_open(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_imports *self = (xp_imports *)object;
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    if (xp_arity("open", n, 2, 2) < 0)
        return NULL;
    if (!PyTuple_Check(args[0]) || !PyList_Check(args[1]))
        return xp_refuse(PyExc_TypeError, "open() takes a tuple and a list");
    PyObject *left = PyList_New(0);
    Py_ssize_t count = PyTuple_Size(args[0]);
    bool going = left, again = true;
    for (Py_ssize_t i = 0; i < count && going; i++) {
        PyObject *handle = PyTuple_GetItem(args[0], i), *range = NULL;
        const xp_handle *h = xp_handle_of(types, handle);
        const decision *d = h ? decision_for(self, h) : NULL;
        if (d && again)
            range = open_again(self, types, handle, d);
        again = range;
        going = d && !PyErr_Occurred() && (range ? PyList_Append(args[1], range) == 0 : leave(self, handle, h, d, left));
        Py_XDECREF(range);
    }
    if (!going)
        Py_CLEAR(left);
    return left || PyErr_Occurred() ? left : Py_NewRef(Py_None);
}

/* decide(handle, opener, number, device, context): set what opens handles of that device if no other device is
 * requested */
static PyObject *imports_decide(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    xp_imports *self = (xp_imports *)object;
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    const xp_handle *h = xp_arity("decide", n, 5, 5) < 0 ? NULL : xp_handle_of(types, args[0]);
    uint64_t number;
    if (h == NULL || xp_as_u64(args[2], &number) < 0)
        return xp_refuse(PyExc_TypeError, "decide() takes a Handle");
    decision *d = PyMem_Calloc(1, sizeof *d);
    if (d == NULL)
        return PyErr_NoMemory();
    memcpy(d->names, h->backend, sizeof d->names);
    d->opener = Py_NewRef(args[1]);
    d->number = number;
    d->device = Py_NewRef(args[3]);
    d->context = Py_NewRef(args[4]);
    d->next = __atomic_load_n(&self->decisions, __ATOMIC_ACQUIRE);
    while (!__atomic_compare_exchange_n(&self->decisions, &d->next, d, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        ;
    Py_RETURN_NONE;
}

/* decided(handle): what `decide` has set, (opener, device, context), or None */
static PyObject *imports_decided(PyObject *object, PyObject *handle)
{
    const xp_handle *h = xp_handle_of(PyType_GetModuleState(Py_TYPE(object)), handle);
    const decision *d = h ? decision_for((xp_imports *)object, h) : NULL;
    if (d == NULL)
        Py_RETURN_NONE;
    PyObject *all[] = {Py_NewRef(d->opener), Py_NewRef(d->device), Py_NewRef(d->context)};
    return xp_tuple_of(all, 3);
}

XP_TYPE(imports_spec, "Imports", xp_imports, XP_WITH_GC, {Py_tp_new, imports_new}, XP_LIFE_SLOTS(imports),
        XP_METHODS({"get", imports_get, METH_O, NULL},
                   {"add", XP_FAST(imports_add), METH_FASTCALL, NULL},
                   {"forget", imports_forget, METH_O, NULL},
                   {"objects", imports_objects, METH_NOARGS, NULL},
                   {"hold", XP_FAST(imports_hold), METH_FASTCALL, NULL},
                   {"open", XP_FAST(imports_open), METH_FASTCALL, NULL},
                   {"decide", XP_FAST(imports_decide), METH_FASTCALL, NULL},
                   {"decided", imports_decided, METH_O, NULL}),
        XP_FIELDS({"peers", T_OBJECT_EX, offsetof(xp_imports, peers), READONLY, NULL}))

XP_PART(imports, NULL, XP_ADD(imports_spec))
