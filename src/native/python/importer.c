/* Importer: maps a peer's memory whose handle is in the payload of its export, through the addresses of a driver's
 * functions. */
#include "peer.h"
#include "resources.h"
#include "scope.h"

#define HANDLE_NBYTES 64 /* of a driver's handle of an allocation, which its calls take by value */
#define PATIENCE 64      /* how many calls to make between two checks for signals */
#define PAYLOAD_NBYTES sizeof(((xp_entry *)0)->payload)

typedef struct {
    char raw[HANDLE_NBYTES];
} driver_handle;
typedef int (*opens)(uint64_t *address, driver_handle handle, unsigned flags);
typedef int (*closes)(uint64_t address);
typedef int (*tells)(void *value, int attribute, uint64_t address);

/* What the driver has mapped. */
typedef struct {
    uint64_t address, nbytes; /* nbytes: the greatest number if the driver does not report it */
} mapped;

typedef struct {
    PyObject_HEAD
    PyObject *scopes, *make, *unmap; /* owned */
    opens open;
    closes close;
    tells ask;
    unsigned flags;
    int attribute;
    size_t head_nbytes;
    char head[PAYLOAD_NBYTES]; /* how a payload begins, before the size and the handle */
} xp_importer;

static PyObject *new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"open", "flags", "close", "ask", "attribute", "head", "scopes", "make", "unmap", NULL};
    const xp_types *types = PyType_GetModuleState(type);
    unsigned long long open, close, ask;
    unsigned flags;
    int attribute;
    const char *head;
    Py_ssize_t nbytes;
    PyObject *scopes, *make, *unmap;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KIKKiy#O!OO", names, &open, &flags, &close, &ask, &attribute, &head,
                                     &nbytes, types->scopes, &scopes, &make, &unmap))
        return NULL;
    if (nbytes + 8 + HANDLE_NBYTES > (Py_ssize_t)PAYLOAD_NBYTES) {
        PyErr_SetString(PyExc_ValueError, "no payload has room for that head, the size and the handle");
        return NULL;
    }
    xp_importer *self = (xp_importer *)PyType_GenericAlloc(type, 0);
    if (self) {
        self->scopes = Py_NewRef(scopes);
        self->make = Py_NewRef(make);
        self->unmap = Py_NewRef(unmap);
        self->open = (opens)(uintptr_t)open;
        self->close = (closes)(uintptr_t)close;
        self->ask = (tells)(uintptr_t)ask;
        self->flags = flags;
        self->attribute = attribute;
        self->head_nbytes = (size_t)nbytes;
        memcpy(self->head, head, (size_t)nbytes);
    }
    return (PyObject *)self;
}

XP_LIFE(importer, .cleared = XP_OBJECTS(xp_importer, scopes, make, unmap))

/* Return the handle in a payload of `size` bytes, for an export of which `nbytes` are exposed. Returns false if it
 * is of another kind. */
static bool handle_in(const xp_importer *self, const void *payload, size_t size, uint64_t nbytes, driver_handle *handle)
{
    const char *at = (const char *)payload + self->head_nbytes;
    uint64_t said;
    if (size < self->head_nbytes + sizeof said + sizeof *handle || memcmp(payload, self->head, self->head_nbytes) != 0)
        return false;
    memcpy(&said, at, sizeof said);
    memcpy(handle, at + sizeof said, sizeof *handle);
    return said == nbytes;
}

/* Returns the driver's code. May block. */
static int map_one(const xp_importer *self, driver_handle handle, mapped *found)
{
    *found = (mapped){0, UINT64_MAX};
    int code = self->open(&found->address, handle, self->flags);
    if (code == 0 && self->ask(&found->nbytes, self->attribute, found->address))
        found->nbytes = UINT64_MAX;
    return code;
}

/* --- one of them -------------------------------------------------------------------------------------------------- */

/* Map it, if it has that many bytes. */
static bool map_in_scope(const xp_importer *self, const xp_scope *scope, driver_handle handle, uint64_t nbytes,
                         mapped *found)
{
    int before, step;
    if (xp_scope_enter(scope, &before, &step))
        return false;
    bool good = map_one(self, handle, found) == 0;
    if (good && found->nbytes < nbytes) {
        self->close(found->address);
        good = false;
    }
    xp_scope_leave(scope, before);
    return good;
}

static void unmap_in_scope(const xp_importer *self, const xp_scope *scope, uint64_t address)
{
    int before, step;
    if (xp_scope_enter(scope, &before, &step))
        return;
    self->close(address);
    xp_scope_leave(scope, before);
}

/* Return the Allocation of the mapping. NULL with an exception set, and nothing is mapped. */
static PyObject *owner_of(const xp_importer *self, const xp_types *types, const xp_scope *scope, PyObject *device,
                          PyObject *release, uint64_t address, uint64_t nbytes)
{
    PyObject *all[] = {PyLong_FromUnsignedLongLong(address), PyLong_FromUnsignedLongLong(nbytes),
                       Py_NewRef(self->unmap), PyLong_FromUnsignedLongLong(address)};
    PyObject *place = xp_tuple_of(all, 4);
    PyObject *driver = place ? PyObject_Call(self->make, place, NULL) : NULL;
    PyObject *given = driver ? PyTuple_Pack(1, driver) : NULL;
    PyObject *made = given ? xp_imported_allocation(types, device, driver, release, given, address, nbytes) : NULL;
    Py_XDECREF(place);
    Py_XDECREF(driver);
    Py_XDECREF(given);
    if (made == NULL) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        Py_BEGIN_ALLOW_THREADS
        unmap_in_scope(self, scope, address);
        Py_END_ALLOW_THREADS
        PyErr_Restore(type, value, trace);
    }
    return made;
}

/* open(device, release, fields, peer): see _native.pyi */
static PyObject *open_one(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_importer *self = (const xp_importer *)object;
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    const xp_handle *h = xp_arity("open", n, 4, 4) < 0 ? NULL : xp_fields_of(types, args[2]);
    const xp_scope *scope = xp_scope_of(types, self->scopes);
    driver_handle handle;
    xp_entry e;
    mapped found;
    if (h == NULL || !PyObject_TypeCheck(args[3], types->peer_table)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "open() takes Fields and a PeerTable");
        return NULL;
    }
    PyObject *lease = xp_peer_hold(types, args[3], h, &e), *made = NULL;
    bool good = lease && e.fd_count == 0 && e.nbytes <= e.exposed_nbytes &&
                !(e.flags & (XP_ENTRY_FORM | XP_ENTRY_READ_ONLY | XP_ENTRY_ON_DEMAND)) &&
                handle_in(self, e.payload, e.payload_nbytes, e.exposed_nbytes, &handle);
    if (!good) {
        Py_XDECREF(lease);
        Py_RETURN_NONE;
    }
    Py_BEGIN_ALLOW_THREADS
    good = map_in_scope(self, scope, handle, e.nbytes, &found);
    Py_END_ALLOW_THREADS
    if (good)
        made = owner_of(self, types, scope, args[0], args[1], found.address, e.nbytes);
    if (made && !xp_peer_stands(args[3], h)) /* the driver may have mistaken it for something else */
        Py_CLEAR(made);
    PyObject *both = made ? PyTuple_Pack(2, made, lease) : NULL;
    Py_XDECREF(made);
    Py_DECREF(lease);
    return both || PyErr_Occurred() ? both : Py_NewRef(Py_None);
}

/* --- several ------------------------------------------------------------------------------------------------------ */

/* Return the handles of all payloads, which the caller frees, and how many there are. NULL, without an exception if one is of
 * another kind. */
static driver_handle *handles_in(const xp_importer *self, PyObject *payloads, PyObject *sizes, Py_ssize_t *number)
{
    Py_ssize_t count = PyList_Check(payloads) && PyList_Check(sizes) ? PyList_Size(payloads) : -1, size;
    char *raw;
    *number = count;
    if (count < 0 || PyList_Size(sizes) != count) {
        PyErr_SetString(PyExc_TypeError, "open_all() takes a list of payloads, and one of their sizes");
        return NULL;
    }
    driver_handle *handles = PyMem_Calloc((size_t)count + 1, sizeof *handles);
    if (handles == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count && handles; i++) {
        uint64_t nbytes;
        if (PyBytes_AsStringAndSize(PyList_GetItem(payloads, i), &raw, &size) < 0 ||
            xp_as_u64(PyList_GetItem(sizes, i), &nbytes) < 0 ||
            !handle_in(self, raw, (size_t)size, nbytes, &handles[i])) {
            PyMem_Free(handles);
            return NULL;
        }
    }
    return handles;
}

/* open_all(payloads, sizes, into): see _native.pyi */
static PyObject *open_all(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_importer *self = (const xp_importer *)object;
    int code = 0;
    Py_buffer into;
    Py_ssize_t count, done = 0;
    driver_handle *handles = xp_arity("open_all", n, 3, 3) < 0 ? NULL : handles_in(self, args[0], args[1], &count);
    if (handles == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    bool going = PyObject_GetBuffer(args[2], &into, PyBUF_WRITABLE) == 0;
    if (going && into.len != count * (Py_ssize_t)sizeof(mapped)) {
        PyErr_SetString(PyExc_ValueError, "open_all(): two numbers of 64 bits for each payload");
        PyBuffer_Release(&into);
        going = false;
    }
    if (!going) {
        PyMem_Free(handles);
        return NULL;
    }
    while (going && done < count && code == 0) {
        Py_ssize_t end = count - done > PATIENCE ? done + PATIENCE : count;
        Py_BEGIN_ALLOW_THREADS
        for (; done < end; done++) {
            mapped found;
            code = map_one(self, handles[done], &found);
            if (code)
                break;
            memcpy((char *)into.buf + done * (Py_ssize_t)sizeof found, &found, sizeof found);
        }
        Py_END_ALLOW_THREADS
        going = PyErr_CheckSignals() == 0;
    }
    PyMem_Free(handles);
    PyBuffer_Release(&into);
    return going ? PyLong_FromLong(code) : NULL;
}

static PyMethodDef methods[] = {
    {"open", XP_FAST(open_one), METH_FASTCALL, NULL},
    {"open_all", XP_FAST(open_all), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, new}, XP_LIFE_SLOTS(importer), {Py_tp_methods, methods}, {0, NULL},
};
static PyType_Spec spec = {"xpushare._native.Importer", sizeof(xp_importer), 0,
                           XP_WITH_GC, slots};

int xp_init_importer(PyObject *module) { return xp_add_type(module, &spec); }
