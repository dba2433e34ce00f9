/* HandleState: the base of `Handle`. */
#include "handle.h"

/* The bytes of a handle. Returns false with an exception set. */
static bool as_handle(PyObject *raw, xp_handle *h)
{
    char *bytes;
    Py_ssize_t nbytes;
    if (PyBytes_AsStringAndSize(raw, &bytes, &nbytes) < 0)
        return false;
    if (nbytes != sizeof *h) {
        PyErr_Format(PyExc_ValueError, "a handle has %zu bytes, not %zd", sizeof *h, nbytes);
        return false;
    }
    memcpy(h, bytes, sizeof *h);
    return true;
}

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
    if (Py_TYPE(object) != xp_types_of(module)->handle) {
        PyErr_SetString(PyExc_TypeError, "fields_of() takes a Handle");
        return NULL;
    }
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

static PyMethodDef handle_methods[] = {
    {"__bytes__", handle_bytes, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot handle_slots[] = {
    XP_LIFE_SLOTS(handle), {Py_tp_methods, handle_methods}, {Py_tp_hash, handle_hash},
    {Py_tp_richcompare, handle_compare}, {0, NULL},
};
static PyType_Spec handle_spec = {"xpushare._native.HandleState", sizeof(xp_handle_object), 0,
                                  XP_WITH_GC | Py_TPFLAGS_BASETYPE, handle_slots};

/* --- functions ---------------------------------------------------------------------------------------------------- */

/* handle(raw, newest): the handle of 256 bytes, which are not checked. newest: of a handle that was looked up by
 * name */
static PyObject *handle(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    xp_handle h;
    if (xp_arity("handle", n, 1, 2) < 0 || !as_handle(args[0], &h))
        return NULL;
    xp_handle_object *made = (xp_handle_object *)xp_handle_new(xp_types_of(module), &h);
    if (made) {
        made->raw = Py_NewRef(args[0]);
        made->newest = n == 2 ? Py_NewRef(args[1]) : NULL;
    }
    return (PyObject *)made;
}

/* unread_handle(raw, why) */
static PyObject *unread_handle(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    static const xp_handle nothing;
    if (xp_arity("unread_handle", n, 2, 2) < 0)
        return NULL;
    xp_handle_object *made = (xp_handle_object *)xp_handle_new(xp_types_of(module), &nothing);
    if (made) {
        made->raw = Py_NewRef(args[0]);
        made->unread = Py_NewRef(args[1]);
    }
    return (PyObject *)made;
}

static PyMethodDef functions[] = {
    {"fields_of", fields_of, METH_O, NULL},
    {"handle", XP_FAST(handle), METH_FASTCALL, NULL},
    {"unread_handle", XP_FAST(unread_handle), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

int xp_init_handle(PyObject *module)
{
    int rc = PyModule_AddFunctions(module, functions);
    return rc < 0 ? -1 : xp_keep_type(module, &handle_spec, &xp_types_of(module)->handle_base);
}
