/* Importer: maps a peer's memory for which a driver has made a handle, which is in the payload of its export. */
#include "driver.h"
#include "peer.h"
#include "resources.h"

#define PATIENCE 64 /* how many calls to make between two checks for signals */
#define PAYLOAD_NBYTES sizeof(((xp_entry *)0)->payload)

typedef struct {
    PyObject_HEAD
    PyObject *scopes, *make, *unmap; /* owned */
    size_t head_nbytes, handle_nbytes;
    char head[PAYLOAD_NBYTES]; /* how a payload begins, before the size and the handle */
} xp_importer;

static PyObject *new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"scopes", "head", "make", "unmap", NULL};
    const xp_types *types = PyType_GetModuleState(type);
    const char *head;
    Py_ssize_t nbytes;
    PyObject *scopes, *make, *unmap;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!y#OO", names, types->scopes, &scopes, &head, &nbytes, &make, &unmap))
        return NULL;
    const xp_driver *driver = xp_scope_of(types, scopes)->driver;
    if (driver == NULL || (size_t)nbytes + 8 + driver->handle_nbytes > PAYLOAD_NBYTES) {
        PyErr_SetString(PyExc_ValueError, "no payload has room for that head, the size and the handle of a driver");
        return NULL;
    }
    xp_importer *self = (xp_importer *)PyType_GenericAlloc(type, 0);
    if (self) {
        self->scopes = Py_NewRef(scopes);
        self->make = Py_NewRef(make);
        self->unmap = Py_NewRef(unmap);
        self->handle_nbytes = driver->handle_nbytes;
        self->head_nbytes = (size_t)nbytes;
        memcpy(self->head, head, (size_t)nbytes);
    }
    return (PyObject *)self;
}

XP_LIFE(importer, .cleared = XP_OBJECTS(xp_importer, scopes, make, unmap))

/* Return the handle in a payload of `size` bytes, for an export of which `nbytes` are exposed. NULL if it is of another
 * kind. */
static const char *handle_in(const xp_importer *self, const char *payload, size_t size, uint64_t nbytes)
{
    const char *at = payload + self->head_nbytes;
    uint64_t said;
    if (size < self->head_nbytes + sizeof said + self->handle_nbytes || memcmp(payload, self->head, self->head_nbytes) != 0)
        return NULL;
    memcpy(&said, at, sizeof said);
    return said == nbytes ? at + sizeof said : NULL;
}

/* --- one of them -------------------------------------------------------------------------------------------------- */

/* Map it, if it has that many bytes. */
static bool map_in_scope(const xp_scope *scope, const char *handle, uint64_t nbytes, xp_driver_mapping *found)
{
    const xp_driver *driver = scope->driver;
    xp_before before;
    if (xp_scope_enter(scope, &before))
        return false;
    bool good = driver->table->open(driver, handle, found) == 0;
    if (good && found->nbytes < nbytes) {
        driver->table->close(driver, found->address);
        good = false;
    }
    xp_scope_leave(scope, &before);
    return good;
}

static void unmap_in_scope(const xp_scope *scope, uint64_t address)
{
    xp_before before;
    if (xp_scope_enter(scope, &before))
        return;
    scope->driver->table->close(scope->driver, address);
    xp_scope_leave(scope, &before);
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
        XP_UNLOCKED_DO(unmap_in_scope(scope, address));
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
    const char *handle = NULL;
    xp_entry e;
    xp_driver_mapping found;
    if (h == NULL || !PyObject_TypeCheck(args[3], types->peer_table)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "open() takes Fields and a PeerTable");
        return NULL;
    }
    PyObject *lease = xp_peer_hold(types, args[3], h, &e), *made = NULL;
    bool good = lease && e.fd_count == 0 && e.nbytes <= e.exposed_nbytes &&
                !(e.flags & (XP_ENTRY_FORM | XP_ENTRY_READ_ONLY | XP_ENTRY_ON_DEMAND)) &&
                (handle = handle_in(self, (const char *)e.payload, e.payload_nbytes, e.exposed_nbytes));
    if (!good) {
        Py_XDECREF(lease);
        Py_RETURN_NONE;
    }
    if (XP_UNLOCKED(map_in_scope(scope, handle, e.nbytes, &found)))
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
static char *handles_in(const xp_importer *self, PyObject *payloads, PyObject *sizes, Py_ssize_t *number)
{
    Py_ssize_t count = PyList_Check(payloads) && PyList_Check(sizes) ? PyList_Size(payloads) : -1, size;
    char *raw;
    const char *handle;
    *number = count;
    if (count < 0 || PyList_Size(sizes) != count) {
        PyErr_SetString(PyExc_TypeError, "open_all() takes a list of payloads, and one of their sizes");
        return NULL;
    }
    char *handles = PyMem_Malloc((size_t)count * self->handle_nbytes + 1);
    if (handles == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count && handles; i++) {
        uint64_t nbytes;
        if (PyBytes_AsStringAndSize(PyList_GetItem(payloads, i), &raw, &size) < 0 ||
            xp_as_u64(PyList_GetItem(sizes, i), &nbytes) < 0 ||
            (handle = handle_in(self, raw, (size_t)size, nbytes)) == NULL) {
            PyMem_Free(handles);
            return NULL;
        }
        memcpy(handles + (size_t)i * self->handle_nbytes, handle, self->handle_nbytes);
    }
    return handles;
}

/* open_all(payloads, sizes, into): see _native.pyi */
static PyObject *open_all(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_importer *self = (const xp_importer *)object;
    const xp_driver *driver = xp_scope_of(PyType_GetModuleState(Py_TYPE(object)), self->scopes)->driver;
    int code = 0;
    Py_buffer into;
    Py_ssize_t count, done = 0;
    char *handles = xp_arity("open_all", n, 3, 3) < 0 ? NULL : handles_in(self, args[0], args[1], &count);
    if (handles == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    bool going = PyObject_GetBuffer(args[2], &into, PyBUF_WRITABLE) == 0;
    if (going && into.len != count * (Py_ssize_t)sizeof(xp_driver_mapping)) {
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
            xp_driver_mapping found;
            code = driver->table->open(driver, handles + (size_t)done * self->handle_nbytes, &found);
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

XP_TYPE(spec, "Importer", xp_importer, XP_WITH_GC, {Py_tp_new, new}, XP_LIFE_SLOTS(importer),
        XP_METHODS({"open", XP_FAST(open_one), METH_FASTCALL, NULL}, {"open_all", XP_FAST(open_all), METH_FASTCALL, NULL}))

XP_PART(importer, NULL, XP_ADD(spec))
