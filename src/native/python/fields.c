/* Fields: the bytes of a handle, by name. */
#include "objects.h"

typedef struct {
    PyObject_HEAD
    xp_handle h;
} xp_fields;

PyObject *xp_fields_new(PyTypeObject *type, const xp_handle *h)
{
    xp_fields *self = (xp_fields *)PyType_GenericAlloc(type, 0);
    if (self)
        self->h = *h;
    return (PyObject *)self;
}

const xp_handle *xp_fields_of(const xp_types *types, PyObject *fields)
{
    return Py_TYPE(fields) == types->fields ? &((const xp_fields *)fields)->h : NULL;
}

static PyObject *fields_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *raw;
    char *bytes;
    Py_ssize_t nbytes;
    if ((kwargs && PyDict_Size(kwargs)) || PyTuple_Size(args) != 1)
        return xp_refuse(PyExc_TypeError, "Fields() takes the bytes of a handle");
    raw = PyTuple_GetItem(args, 0);
    if (PyBytes_AsStringAndSize(raw, &bytes, &nbytes) < 0)
        return NULL;
    if (nbytes != sizeof(xp_handle))
        return PyErr_Format(PyExc_ValueError, "a handle has %zu bytes, not %zd", sizeof(xp_handle), nbytes);
    xp_handle h;
    memcpy(&h, bytes, sizeof h);
    return xp_fields_new(type, &h);
}

static PyObject *fields_bytes(PyObject *self, void *place)
{
    uintptr_t at = (uintptr_t)place >> 8, nbytes = (uintptr_t)place & 0xff;
    return PyBytes_FromStringAndSize((const char *)&((xp_fields *)self)->h + at, (Py_ssize_t)nbytes);
}

#define NUMBER(name, type) {#name, type, offsetof(xp_fields, h.name), READONLY, NULL}
#define BYTES(name) \
    {#name, fields_bytes, NULL, NULL, (void *)(offsetof(xp_handle, name) << 8 | sizeof(((xp_handle *)0)->name))}

PyObject *xp_import_key(const xp_handle *h, uint64_t opener)
{
    struct {
        uint8_t cookie[XP_COOKIE];
        uint64_t object, opener, flags;
    } key = {.object = h->object, .opener = opener, .flags = h->flags & (XP_ENTRY_READ_ONLY | XP_ENTRY_PICKLED)};
    memcpy(key.cookie, h->cookie, sizeof key.cookie);
    return PyBytes_FromStringAndSize((const char *)&key, sizeof key);
}

/* key(opener): the bytes that identify an import, by the opener's number. They begin with the cookie. */
static PyObject *fields_key(PyObject *self, PyObject *number)
{
    uint64_t opener;
    return xp_as_u64(number, &opener) < 0 ? NULL : xp_import_key(&((xp_fields *)self)->h, opener);
}

XP_TYPE(fields_spec, "Fields", xp_fields, Py_TPFLAGS_DEFAULT, {Py_tp_new, fields_new},
        XP_FIELDS(NUMBER(version, T_USHORT),
                  NUMBER(kind, T_USHORT),
                  NUMBER(flags, T_UINT),
                  NUMBER(pid_namespace, T_ULONGLONG),
                  NUMBER(pid, T_UINT),
                  NUMBER(table_fd, T_UINT),
                  NUMBER(generation, T_ULONGLONG),
                  NUMBER(entry, T_UINT),
                  NUMBER(reserved0, T_UINT),
                  NUMBER(object, T_ULONGLONG),
                  NUMBER(offset, T_ULONGLONG),
                  NUMBER(nbytes, T_ULONGLONG),
                  NUMBER(exposed_nbytes, T_ULONGLONG),
                  NUMBER(net_namespace, T_ULONGLONG)),
        XP_GETSET(BYTES(magic),  BYTES(backend), BYTES(device_uuid), BYTES(boot_id),
                  BYTES(cookie), BYTES(nonce),   BYTES(reserved1),
                  {"names", fields_bytes, NULL, NULL, /* of the device: backend and uuid */
                  (void *)(offsetof(xp_handle, backend) << 8 | (offsetof(xp_handle, boot_id) - offsetof(xp_handle, backend)))}),
        XP_METHODS({"key", fields_key, METH_O, NULL}))

XP_PART(fields, NULL, XP_KEEP(fields_spec, fields))
