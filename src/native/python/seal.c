/* Seal: the user's key. It hashes under that key, and reads handles. The key's file. */
#include "message.h"

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
    if (nbytes < 1 || nbytes > 64)
        return xp_refuse(PyExc_ValueError, "a key has 1 to 64 bytes");
    xp_seal *self = (xp_seal *)PyType_GenericAlloc(type, 0);
    if (self)
        xp_make_key(&self->key, key, (size_t)nbytes);
    return (PyObject *)self;
}

const xp_key *xp_key_of(const xp_types *types, PyObject *seal)
{
    if (Py_TYPE(seal) == types->seal)
        return &((const xp_seal *)seal)->key;
    return xp_refuse(PyExc_TypeError, "that is not a Seal");
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

/* read(raw, boot_id): the handle, or the flaw of these bytes */
static PyObject *seal_read(PyObject *self, PyObject *args)
{
    const char *data, *boot;
    Py_ssize_t nbytes, boot_nbytes;
    xp_handle h;
    if (!PyArg_ParseTuple(args, "y#y#", &data, &nbytes, &boot, &boot_nbytes))
        return NULL;
    xp_flaw flaw = boot_nbytes != sizeof h.boot_id
                       ? XP_FLAW_HANDLE_BOOT
                       : xp_read_handle(&((xp_seal *)self)->key, data, (size_t)nbytes, (const uint8_t *)boot, &h);
    return flaw ? PyLong_FromLong(flaw) : xp_handle_new(PyType_GetModuleState(Py_TYPE(self)), &h);
}

/* read_message(raw, boot_id): the ArrayHandle, or the flaw of these bytes and where the handle begins that has it */
static PyObject *seal_read_message(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    char *raw, *boot;
    Py_ssize_t nbytes, boot_nbytes;
    uint32_t at = 0;
    xp_parts m;
    if (xp_arity("read_message", n, 2, 2) < 0 || PyBytes_AsStringAndSize(args[0], &raw, &nbytes) < 0 ||
        PyBytes_AsStringAndSize(args[1], &boot, &boot_nbytes) < 0)
        return NULL;
    xp_flaw flaw = boot_nbytes != sizeof(((xp_handle *)0)->boot_id)
                       ? XP_FLAW_HANDLE_BOOT
                       : xp_read_message(&((xp_seal *)self)->key, raw, (size_t)nbytes, (const uint8_t *)boot, &m, &at);
    return flaw ? Py_BuildValue("(iI)", flaw, at)
                : xp_message_new(PyType_GetModuleState(Py_TYPE(self)), args[0], &m, NULL, NULL);
}

/* moved(raw, handles): the message of these bytes over the same number of other memory handles */
static PyObject *seal_moved(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    char *raw, *handles;
    Py_ssize_t nbytes, handles_nbytes;
    if (xp_arity("moved", n, 2, 2) < 0 || PyBytes_AsStringAndSize(args[0], &raw, &nbytes) < 0 ||
        PyBytes_AsStringAndSize(args[1], &handles, &handles_nbytes) < 0)
        return NULL;
    PyObject *message = PyBytes_FromStringAndSize(raw, nbytes);
    if (message && xp_move_message(&((xp_seal *)self)->key, PyBytes_AsString(message), (size_t)nbytes, handles,
                                   (size_t)handles_nbytes) != XP_MOVE_GOOD) {
        PyErr_SetString(PyExc_ValueError, "that is not a message of this user, or not of so many handles");
        Py_CLEAR(message);
    }
    return message;
}

XP_TYPE(seal_spec, "Seal", xp_seal, Py_TPFLAGS_DEFAULT, {Py_tp_new, seal_new},
        XP_METHODS({"moved", XP_FAST(seal_moved), METH_FASTCALL, NULL},
                   {"hash", seal_hash, METH_O, NULL},
                   {"read", seal_read, METH_VARARGS, NULL},
                   {"read_message", XP_FAST(seal_read_message), METH_FASTCALL, NULL}))

/* read_key(path): (code, detail, key), see _native.pyi */
static PyObject *read_key(PyObject *Py_UNUSED(module), PyObject *arg)
{
    PyObject *path;
    uint8_t key[XP_KEY_NBYTES];
    uint32_t detail;
    int code;
    if (!PyUnicode_FSConverter(arg, &path))
        return NULL;
    code = XP_UNLOCKED(xp_read_key(PyBytes_AsString(path), key, &detail));
    Py_DECREF(path);
    return Py_BuildValue("(iIy#)", code, detail, (const char *)key, (Py_ssize_t)(code == XP_KEY_GOOD ? sizeof key : 0));
}

XP_PART(seal, XP_FUNCTIONS({"read_key", read_key, METH_O, NULL}), XP_KEEP(seal_spec, seal))
