/* Fields, the bytes of a handle by name, and PeerTable, which opens an entry of a peer's mapped table at one go. */
#include "events.h"

#include <sys/mman.h>

/* --- Fields ------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    xp_handle h;
} xp_fields;

static PyObject *fields_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *raw;
    char *bytes;
    Py_ssize_t nbytes;
    if ((kwargs && PyDict_Size(kwargs)) || PyTuple_Size(args) != 1) {
        PyErr_SetString(PyExc_TypeError, "Fields() takes the bytes of a handle");
        return NULL;
    }
    raw = PyTuple_GetItem(args, 0);
    if (PyBytes_AsStringAndSize(raw, &bytes, &nbytes) < 0)
        return NULL;
    if (nbytes != sizeof(xp_handle)) {
        PyErr_Format(PyExc_ValueError, "a handle has %zu bytes, not %zd", sizeof(xp_handle), nbytes);
        return NULL;
    }
    xp_fields *self = (xp_fields *)PyType_GenericAlloc(type, 0);
    if (self)
        memcpy(&self->h, bytes, sizeof self->h);
    return (PyObject *)self;
}

static PyObject *fields_bytes(PyObject *self, void *place)
{
    uintptr_t at = (uintptr_t)place >> 8, nbytes = (uintptr_t)place & 0xff;
    return PyBytes_FromStringAndSize((const char *)&((xp_fields *)self)->h + at, (Py_ssize_t)nbytes);
}

#define NUMBER(name, type) {#name, type, offsetof(xp_fields, h.name), READONLY, NULL}
#define BYTES(name) \
    {#name, fields_bytes, NULL, NULL, (void *)(offsetof(xp_handle, name) << 8 | sizeof(((xp_handle *)0)->name))}

static PyMemberDef fields_members[] = {
    NUMBER(version, T_USHORT),
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
    NUMBER(net_namespace, T_ULONGLONG),
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef fields_getset[] = {
    BYTES(magic),  BYTES(backend), BYTES(device_uuid), BYTES(boot_id),
    BYTES(cookie), BYTES(nonce),   BYTES(reserved1),   {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot fields_slots[] = {
    {Py_tp_new, fields_new}, {Py_tp_members, fields_members}, {Py_tp_getset, fields_getset}, {0, NULL},
};
static PyType_Spec fields_spec = {"xpushare._native.Fields", sizeof(xp_fields), 0, Py_TPFLAGS_DEFAULT, fields_slots};

/* --- PeerTable ---------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *mapping, *domain;
    const char *base;
    int pidfd;
} xp_peer_table;

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"mapping", "domain", "pidfd", NULL};
    const xp_types *types = PyType_GetModuleState(type);
    PyObject *mapping, *domain;
    int pidfd;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!Oi", names, types->mapping, &mapping, &domain, &pidfd) ||
        xp_domain_of(domain) == NULL)
        return NULL;
    uint64_t nbytes;
    const char *base = xp_mapping_base(mapping, &nbytes);
    if (nbytes < XP_TABLE_HEADER + XP_ENTRIES * sizeof(xp_entry)) {
        PyErr_SetString(PyExc_ValueError, "that is no mapping of a table");
        return NULL;
    }
    xp_peer_table *self = (xp_peer_table *)PyType_GenericAlloc(type, 0);
    if (self) {
        self->mapping = Py_NewRef(mapping);
        self->domain = Py_NewRef(domain);
        self->base = base;
        self->pidfd = pidfd;
    }
    return (PyObject *)self;
}

static void table_dealloc(PyObject *object)
{
    xp_peer_table *self = (xp_peer_table *)object;
    Py_XDECREF(self->mapping);
    Py_XDECREF(self->domain);
    xp_free(object);
}

/* The entry is what the handle says, and one memfd that needs nothing but mapping. */
static bool plain(const xp_handle *h, const xp_entry *e)
{
    return e->generation == h->generation && e->kind == h->kind && e->object == h->object &&
           memcmp(e->nonce, h->nonce, sizeof e->nonce) == 0 && e->flags == (h->flags | XP_ENTRY_MEMFD) &&
           h->offset <= e->nbytes && h->nbytes <= e->nbytes - h->offset && e->nbytes <= e->exposed_nbytes &&
           e->fd_count == 1 && e->payload_nbytes == 0;
}

static PyObject *table_open(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_peer_table *self = (xp_peer_table *)object;
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    if (xp_arity("open", n, 2, 2) < 0)
        return NULL;
    if (Py_TYPE(args[0]) != types->fields) {
        PyErr_SetString(PyExc_TypeError, "open() takes Fields first");
        return NULL;
    }
    const xp_handle *h = &((const xp_fields *)args[0])->h;
    if (self->pidfd < 0 || h->entry >= XP_ENTRIES || h->generation == 0 || h->flags & ~XP_ENTRY_READ_ONLY)
        Py_RETURN_NONE;
    const xp_entry *shared = (const xp_entry *)(self->base + XP_TABLE_HEADER) + h->entry;
    xp_entry e; /* a copy: the peer may change its table while we look */
    if (XP_ACQUIRE(&shared->generation) != h->generation)
        Py_RETURN_NONE;
    memcpy(&e, shared, sizeof e);
    __asm__ __volatile__("" ::: "memory"); /* what is checked is what is used */
    if (!plain(h, &e))
        Py_RETURN_NONE;
    PyObject *lease = xp_lease_new(types->lease, self->domain, h->entry, args[1]);
    if (lease == NULL) {
        PyErr_Clear(); /* the caller does it again, and says what is wrong */
        Py_RETURN_NONE;
    }
    xp_memfd m = {.inode = e.inode, .nbytes = e.exposed_nbytes, .writable = !(e.flags & XP_ENTRY_READ_ONLY)};
    char *base;
    bool expired = false;
    Py_BEGIN_ALLOW_THREADS
    base = xp_fetch_memfd(&m, self->pidfd, e.fds[0], &shared->generation, h->generation);
    if (base && XP_LOAD(&shared->generation) != h->generation) {
        munmap(base, m.nbytes);
        expired = true;
    }
    Py_END_ALLOW_THREADS
    if (base == NULL || expired) {
        Py_DECREF(lease);
        Py_RETURN_NONE;
    }
    PyObject *mapping = xp_mapping_new(types->mapping, base, m.nbytes);
    PyObject *nbytes = PyLong_FromUnsignedLongLong(e.nbytes);
    PyObject *opened = mapping && nbytes ? PyTuple_Pack(3, mapping, lease, nbytes) : NULL;
    Py_XDECREF(mapping);
    Py_XDECREF(nbytes);
    Py_DECREF(lease);
    return opened;
}

static PyMethodDef table_methods[] = {
    {"open", XP_FAST(table_open), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot table_slots[] = {
    {Py_tp_new, table_new}, {Py_tp_dealloc, table_dealloc}, {Py_tp_methods, table_methods}, {0, NULL},
};
static PyType_Spec table_spec = {"xpushare._native.PeerTable", sizeof(xp_peer_table), 0, Py_TPFLAGS_DEFAULT,
                                 table_slots};

int xp_init_peer(PyObject *module)
{
    if (xp_keep_type(module, &fields_spec, &xp_types_of(module)->fields) < 0)
        return -1;
    return xp_add_type(module, &table_spec);
}
