/* HandleState: the base of `Handle`. */
#include "handle.h"

/* --- HandleState -------------------------------------------------------------------------------------------------- */

PyObject *xp_handle_new(const xp_types *types, const xp_handle *h)
{
    xp_handle_object *self = (xp_handle_object *)xp_made(types->handle, "Handle");
    if (self)
        self->h = *h;
    return (PyObject *)self;
}

const xp_handle *xp_handle_of(const xp_types *types, PyObject *object)
{
    const xp_handle_object *self = (const xp_handle_object *)object;
    return Py_TYPE(object) == types->handle && self->unread == NULL && self->h.kind ? &self->h : NULL;
}

XP_LIFE(handle, .fixed = XP_OBJECTS(xp_handle_object, raw, fields),
        .cleared = XP_OBJECTS(xp_handle_object, unread, newest))

static PyObject *handle_bytes(PyObject *object, PyObject *Py_UNUSED(none))
{
    xp_handle_object *self = (xp_handle_object *)object;
    PyObject *raw = __atomic_load_n(&self->raw, __ATOMIC_ACQUIRE);
    return raw ? Py_NewRef(raw)
               : xp_set_once(&self->raw, PyBytes_FromStringAndSize((const char *)&self->h, sizeof self->h));
}

/* fields_of(handle): raises the reason if it is not a handle here */
static PyObject *fields_of(PyObject *module, PyObject *object)
{
    if (Py_TYPE(object) != xp_types_of(module)->handle)
        return xp_refuse(PyExc_TypeError, "fields_of() takes a Handle");
    xp_handle_object *self = (xp_handle_object *)object;
    PyObject *fields = __atomic_load_n(&self->fields, __ATOMIC_ACQUIRE);
    if (fields)
        return Py_NewRef(fields);
    if (self->unread || self->h.kind == 0) {
        xp_no_such(self->unread, "fields");
        return NULL;
    }
    return xp_set_once(&self->fields, xp_fields_new(xp_types_of(module)->fields, &self->h));
}

static Py_hash_t handle_hash(PyObject *object)
{
    PyObject *raw = handle_bytes(object, NULL);
    Py_hash_t hash = raw ? PyObject_Hash(raw) : -1;
    Py_XDECREF(raw);
    return hash;
}

static PyObject *handle_compare(PyObject *a, PyObject *b, int op)
{
    if (Py_TYPE(a) != Py_TYPE(b) || (op != Py_EQ && op != Py_NE))
        Py_RETURN_NOTIMPLEMENTED;
    PyObject *left = handle_bytes(a, NULL), *right = left ? handle_bytes(b, NULL) : NULL;
    PyObject *found = right ? PyObject_RichCompare(left, right, op) : NULL;
    Py_XDECREF(left);
    Py_XDECREF(right);
    return found;
}

/* _of(raw[, why]): see _native.pyi */
static PyObject *handle_of(PyObject *class, PyObject *const *args, Py_ssize_t n)
{
    xp_handle h = {.kind = 0};
    char *bytes;
    Py_ssize_t nbytes;
    if (xp_arity("_of", n, 1, 2) < 0 || (n == 1 && PyBytes_AsStringAndSize(args[0], &bytes, &nbytes) < 0))
        return NULL;
    if (n == 1 && nbytes != sizeof h)
        return PyErr_Format(PyExc_ValueError, "a handle has %zu bytes, not %zd", sizeof h, nbytes);
    if (n == 1)
        memcpy(&h, bytes, sizeof h);
    xp_handle_object *made =
        (xp_handle_object *)xp_handle_new(xp_types_by((PyTypeObject *)class, handle_dealloc), &h);
    if (made) {
        made->raw = Py_NewRef(args[0]);
        made->unread = n == 2 ? Py_NewRef(args[1]) : NULL;
    }
    return (PyObject *)made;
}

/* _following(newest): the same, as a separate object that was looked up by a name */
static PyObject *handle_following(PyObject *object, PyObject *newest)
{
    const xp_handle_object *self = (xp_handle_object *)object;
    PyObject *made = xp_handle_new(xp_types_by(Py_TYPE(object), handle_dealloc), &self->h);
    if (made)
        ((xp_handle_object *)made)->newest = Py_NewRef(newest);
    return made;
}

XP_TYPE(handle_spec, "HandleState", xp_handle_object, XP_WITH_GC | Py_TPFLAGS_BASETYPE, XP_LIFE_SLOTS(handle),
        XP_METHODS({"__bytes__", handle_bytes, METH_NOARGS, NULL},
                   {"_following", handle_following, METH_O, NULL},
                   {"_of", XP_FAST(handle_of), METH_FASTCALL | METH_CLASS, NULL}),
        XP_GETSET(XP_OBJECT("_unread", xp_handle_object, unread),
                  XP_OBJECT("_newest", xp_handle_object, newest)),
        {Py_tp_hash, handle_hash}, {Py_tp_richcompare, handle_compare})

XP_PART(handle, XP_FUNCTIONS({"fields_of", fields_of, METH_O, NULL}), XP_KEEP(handle_spec, handle_base))
