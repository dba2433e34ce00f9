/* Seal: the user's key. It hashes under that key, and reads handles. */
#include "handle.h"

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
    PyErr_SetString(PyExc_TypeError, "that is not a Seal");
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
    return xp_handle_new(PyType_GetModuleState(Py_TYPE(self)), &h);
}

/* moved(raw, handles): the message of these bytes over the same number of other memory handles */
static PyObject *seal_moved(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    const xp_key *key = &((xp_seal *)self)->key;
    char *raw, *handles;
    Py_ssize_t nbytes, handles_nbytes;
    xp_parts m;
    if (xp_arity("moved", n, 2, 2) < 0 || PyBytes_AsStringAndSize(args[0], &raw, &nbytes) < 0 ||
        PyBytes_AsStringAndSize(args[1], &handles, &handles_nbytes) < 0)
        return NULL;
    if (!xp_read_message(key, raw, (size_t)nbytes, &m) || m.head.memory * sizeof(xp_handle) != (size_t)handles_nbytes) {
        PyErr_SetString(PyExc_ValueError, "that is not a message of this user, or not of so many handles");
        return NULL;
    }
    PyObject *made = PyBytes_FromStringAndSize(raw, nbytes);
    if (made == NULL)
        return NULL;
    char *begin = PyBytes_AsString(made);
    memcpy(begin + sizeof(xp_message), handles, (size_t)handles_nbytes);
    if (!xp_parts_of(begin, (size_t)nbytes, &m)) {
        Py_DECREF(made);
        PyErr_SetString(PyExc_ValueError, "that is not a message");
        return NULL;
    }
    xp_hash_message(key, &m, (uint8_t *)begin + nbytes - XP_SEAL);
    return made;
}

static PyMethodDef seal_methods[] = {
    {"moved", XP_FAST(seal_moved), METH_FASTCALL, NULL},
    {"hash", seal_hash, METH_O, NULL},
    {"read", seal_read, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot seal_slots[] = {{Py_tp_new, seal_new}, {Py_tp_methods, seal_methods}, {0, NULL}};
static PyType_Spec seal_spec = {"xpushare._native.Seal", sizeof(xp_seal), 0, Py_TPFLAGS_DEFAULT, seal_slots};

int xp_init_seal(PyObject *module) { return xp_keep_type(module, &seal_spec, &xp_types_of(module)->seal); }
