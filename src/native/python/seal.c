/* Seal: seals handles and array handles under the user's key, and reads sealed bytes. */
#include "objects.h"

typedef struct {
    PyObject_HEAD
    xp_key key;
} xp_seal;

static PyObject *seal_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key", NULL};
    const char *key;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#", names, &key, &nbytes))
        return NULL;
    if (nbytes < 1 || nbytes > 64) {
        PyErr_SetString(PyExc_ValueError, "a key has 1 to 64 bytes");
        return NULL;
    }
    xp_seal *self = (xp_seal *)PyType_GenericAlloc(type, 0);
    if (self)
        xp_make_key(&self->key, key, (size_t)nbytes);
    return (PyObject *)self;
}

const xp_key *xp_key_of(const xp_types *types, PyObject *seal)
{
    if (Py_TYPE(seal) == types->seal)
        return &((const xp_seal *)seal)->key;
    PyErr_SetString(PyExc_TypeError, "that is no Seal");
    return NULL;
}

static PyObject *seal_hash(PyObject *self, PyObject *arg)
{
    char *data;
    Py_ssize_t nbytes;
    uint8_t hash[XP_SEAL];
    if (PyBytes_AsStringAndSize(arg, &data, &nbytes) < 0)
        return NULL;
    xp_hash(&((xp_seal *)self)->key, data, (size_t)nbytes, hash);
    return PyBytes_FromStringAndSize((const char *)hash, sizeof hash);
}

static PyObject *seal_read(PyObject *self, PyObject *arg)
{
    char *data;
    Py_ssize_t nbytes;
    xp_handle h;
    if (PyBytes_AsStringAndSize(arg, &data, &nbytes) < 0)
        return NULL;
    if (nbytes != sizeof h)
        Py_RETURN_NONE;
    memcpy(&h, data, sizeof h);
    if (!xp_handle_good(&((xp_seal *)self)->key, &h))
        Py_RETURN_NONE;
    const xp_types *types = PyType_GetModuleState(Py_TYPE(self));
    return xp_fields_new(types->fields, &h);
}

/* The bytes and the Fields of a handle, or two Nones. */
static int set_handle(PyObject *tuple, Py_ssize_t at, const xp_types *types, const xp_handle *h)
{
    PyObject *raw = h ? PyBytes_FromStringAndSize((const char *)h, sizeof *h) : Py_NewRef(Py_None);
    PyObject *fields = h ? xp_fields_new(types->fields, h) : Py_NewRef(Py_None);
    int rc = raw ? PyTuple_SetItem(tuple, at, raw) : -1; /* takes the reference, also where it fails */
    if (fields == NULL || PyTuple_SetItem(tuple, at + 1, fields) < 0)
        rc = -1;
    return rc;
}

static int set(PyObject *tuple, Py_ssize_t at, PyObject *value)
{
    return value ? PyTuple_SetItem(tuple, at, value) : -1;
}

/* The lengths have 64 bits, unlike those of an array that is there. */
static PyObject *lengths(const uint8_t *dims, unsigned ndim)
{
    PyObject *tuple = PyTuple_New(ndim);
    for (unsigned i = 0; tuple && i < ndim; i++) {
        unsigned long long length;
        memcpy(&length, dims + i * sizeof length, sizeof length);
        if (set(tuple, i, PyLong_FromUnsignedLongLong(length)) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

PyObject *xp_shape(const xp_array_parts *a) { return lengths(a->dims, a->head.ndim); }

PyObject *xp_strides(const xp_array_parts *a)
{
    int64_t strides[XP_ARRAY_DIMS];
    memcpy(strides, a->dims + 8 * a->head.ndim, 8 * a->head.ndim);
    return xp_dims_tuple(strides, a->head.ndim);
}

/* 8 items: from the point to `fits` */
static int set_described(PyObject *tuple, Py_ssize_t at, const xp_array_parts *a)
{
    bool good = set(tuple, at, PyLong_FromUnsignedLongLong(a->head.point)) == 0 &&
                set(tuple, at + 1, xp_shape(a)) == 0 && set(tuple, at + 2, xp_strides(a)) == 0 &&
                set(tuple, at + 3, PyLong_FromUnsignedLongLong(a->head.offset)) == 0 &&
                set(tuple, at + 4, PyLong_FromUnsignedLong(a->head.itemsize)) == 0 &&
                set(tuple, at + 5, PyBytes_FromStringAndSize((const char *)a->text, a->head.text_nbytes)) == 0 &&
                set(tuple, at + 6, PyLong_FromUnsignedLongLong(a->head.copied)) == 0 &&
                set(tuple, at + 7, PyBool_FromLong(a->fits)) == 0;
    return good ? 0 : -1;
}

static PyObject *seal_read_array(PyObject *self, PyObject *arg)
{
    char *data;
    Py_ssize_t nbytes;
    xp_array_parts a;
    if (PyBytes_AsStringAndSize(arg, &data, &nbytes) < 0)
        return NULL;
    if (!xp_read_array(&((xp_seal *)self)->key, data, (size_t)nbytes, &a))
        Py_RETURN_NONE;
    const xp_types *types = PyType_GetModuleState(Py_TYPE(self));
    PyObject *found = PyTuple_New(12);
    if (found && (set_handle(found, 0, types, &a.memory) < 0 ||
                  set_handle(found, 2, types, a.has_event ? &a.event : NULL) < 0 || set_described(found, 4, &a) < 0))
        Py_CLEAR(found);
    return found;
}

static int handle_bytes(PyObject *arg, char **raw)
{
    Py_ssize_t nbytes;
    if (PyBytes_AsStringAndSize(arg, raw, &nbytes) < 0)
        return -1;
    if (nbytes == sizeof(xp_handle))
        return 0;
    PyErr_SetString(PyExc_ValueError, "that is no handle");
    return -1;
}

PyObject *xp_seal_array(const xp_key *key, xp_array head, const void *memory, const void *event, int ndim,
                        const int64_t *shape, const int64_t *strides, PyObject *o_text)
{
    char *text;
    Py_ssize_t text_nbytes;
    if (PyBytes_AsStringAndSize(o_text, &text, &text_nbytes) < 0)
        return NULL;
    if (text_nbytes > UINT16_MAX) {
        PyErr_SetString(PyExc_ValueError, "the dtype's text is too long");
        return NULL;
    }
    size_t dims_nbytes = 8u * (size_t)ndim;
    size_t nbytes = sizeof head + (event ? 2 : 1) * sizeof(xp_handle) + 2 * dims_nbytes + (size_t)text_nbytes + XP_SEAL;
    PyObject *raw = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)nbytes);
    if (raw == NULL)
        return NULL;
    memcpy(head.magic, XP_ARRAY_MAGIC, sizeof head.magic);
    head.version = XP_ARRAY_VERSION;
    head.flags = event ? XP_ARRAY_EVENT : 0;
    head.length = (uint32_t)nbytes;
    head.ndim = (uint16_t)ndim;
    head.text_nbytes = (uint16_t)text_nbytes;
    char *begin = PyBytes_AsString(raw), *at = begin;
    at = (char *)memcpy(at, &head, sizeof head) + sizeof head;
    at = (char *)memcpy(at, memory, sizeof(xp_handle)) + sizeof(xp_handle);
    if (event)
        at = (char *)memcpy(at, event, sizeof(xp_handle)) + sizeof(xp_handle);
    at = (char *)memcpy(at, shape, dims_nbytes) + dims_nbytes;
    at = (char *)memcpy(at, strides, dims_nbytes) + dims_nbytes;
    at = (char *)memcpy(at, text, (size_t)text_nbytes) + text_nbytes;
    xp_hash_array(key, begin, nbytes, event ? 2 : 1, (uint8_t *)at);
    return raw;
}

/* seal_array(memory, event, point, dtype, itemsize, shape, strides, offset, copied) */
static PyObject *seal_array(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    char *memory, *event = NULL;
    xp_array head = {0};
    int64_t shape[XP_MAX_DIMS], strides[XP_MAX_DIMS];
    int ndim, nstrides;
    if (xp_arity("seal_array", n, 9, 9) < 0 || handle_bytes(args[0], &memory) < 0 ||
        (args[1] != Py_None && handle_bytes(args[1], &event) < 0) || xp_as_u64(args[2], &head.point) < 0 ||
        xp_as_u32(args[4], &head.itemsize) < 0 ||
        xp_as_dims(args[5], "shape", shape, &ndim) < 0 || xp_as_dims(args[6], "strides", strides, &nstrides) < 0 ||
        xp_as_u64(args[7], &head.offset) < 0 || xp_as_u64(args[8], &head.copied) < 0)
        return NULL;
    if (ndim < 0 || nstrides != ndim) {
        PyErr_SetString(PyExc_ValueError, "shape and strides differ in length");
        return NULL;
    }
    return xp_seal_array(&((xp_seal *)self)->key, head, memory, event, ndim, shape, strides, args[3]);
}

static PyMethodDef seal_methods[] = {
    {"hash", seal_hash, METH_O, NULL},
    {"read", seal_read, METH_O, NULL},
    {"read_array", seal_read_array, METH_O, NULL},
    {"seal_array", XP_FAST(seal_array), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot seal_slots[] = {{Py_tp_new, seal_new}, {Py_tp_methods, seal_methods}, {0, NULL}};
static PyType_Spec seal_spec = {"xpushare._native.Seal", sizeof(xp_seal), 0, Py_TPFLAGS_DEFAULT, seal_slots};

int xp_init_seal(PyObject *module) { return xp_keep_type(module, &seal_spec, &xp_types_of(module)->seal); }
