/* A driver's calls about allocations, by the addresses of its functions; those for many allocations at one go: between
 * two of them no Python runs. */
#include "objects.h"
#include "scope.h"

#define XP_DRIVER_HANDLE 64 /* bytes of a driver's handle of an allocation, which its calls take by value */
#define XP_PATIENCE 64      /* calls between two looks at the signals */
#define XP_ASKED_MOST 16    /* attributes */

typedef struct {
    char raw[XP_DRIVER_HANDLE];
} driver_handle;
typedef int (*opens)(uint64_t *address, driver_handle handle, unsigned flags);
typedef int (*tells)(void *value, int attribute, uint64_t address);
typedef int (*tells_all)(unsigned count, const int *attributes, void **values, uint64_t address);
typedef int (*names)(driver_handle *handle, uint64_t address);

typedef struct {
    uint64_t address, nbytes;
} opened;

/* --- Importer: opens one allocation of another process without Python ---------------------------------------------- */

#define HEAD_NBYTES 16 /* of a payload: its kind, then from byte 8 on the bytes that are mapped */

typedef int (*closes)(uint64_t address);

typedef struct {
    PyObject_HEAD
    unsigned char kind; /* of a payload */
    uint64_t open, ask, close;
    uint32_t flags;
    int attribute;
    PyObject *scopes, *make;
} xp_importer;

static PyObject *importer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"kind", "open", "ask", "close", "scopes", "make", NULL};
    unsigned char kind;
    unsigned long long open, ask, close;
    unsigned flags;
    int attribute;
    PyObject *scopes, *make;
    const xp_types *types = PyType_GetModuleState(type);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "b(KI)(Ki)KO!O", names, &kind, &open, &flags, &ask, &attribute, &close,
                                     types->scopes, &scopes, &make))
        return NULL;
    xp_importer *self = (xp_importer *)PyType_GenericAlloc(type, 0);
    if (self) {
        self->kind = kind;
        self->open = open;
        self->flags = flags;
        self->ask = ask;
        self->attribute = attribute;
        self->close = close;
        self->scopes = Py_NewRef(scopes);
        self->make = Py_NewRef(make);
    }
    return (PyObject *)self;
}

static int importer_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((xp_importer *)object)->scopes);
    Py_VISIT(((xp_importer *)object)->make);
    return 0;
}

static int importer_clear(PyObject *object)
{
    Py_CLEAR(((xp_importer *)object)->scopes);
    Py_CLEAR(((xp_importer *)object)->make);
    return 0;
}

static void importer_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    importer_clear(object);
    xp_free(object);
}

/* The address; 0 where anything fails: then nothing is open. Without Python's lock, as `close_one`. */
static uint64_t open_one(const xp_importer *self, const xp_scope *scope, driver_handle handle, uint64_t nbytes)
{
    uint64_t address = 0, known = UINT64_MAX;
    int before, step;
    if (xp_scope_enter(scope, &before, &step))
        return 0;
    if (((opens)(uintptr_t)self->open)(&address, handle, self->flags))
        address = 0;
    else if (((tells)(uintptr_t)self->ask)(&known, self->attribute, address) == 0 && known < nbytes) {
        ((closes)(uintptr_t)self->close)(address); /* the exporter's table claims more than there is */
        address = 0;
    }
    xp_scope_leave(scope, before);
    return address;
}

static void close_one(const xp_importer *self, const xp_scope *scope, uint64_t address)
{
    int before, step;
    if (xp_scope_enter(scope, &before, &step) == 0) {
        ((closes)(uintptr_t)self->close)(address);
        xp_scope_leave(scope, before);
    }
}

PyObject *xp_import(const xp_types *types, PyObject *importer, const xp_opened *o)
{
    const xp_importer *self = (const xp_importer *)importer;
    const xp_entry *e = &o->e;
    driver_handle handle;
    uint64_t mapped, address;
    if (Py_TYPE(importer) != types->importer || o->mapping != Py_None || e->fd_count ||
        (e->flags & (XP_ENTRY_READ_ONLY | XP_ENTRY_FORM)) || e->payload_nbytes < HEAD_NBYTES + sizeof handle ||
        e->payload[0] != self->kind)
        return NULL;
    const xp_scope *scope = xp_scope_of(types, self->scopes);
    memcpy(&mapped, e->payload + 8, sizeof mapped);
    memcpy(&handle, e->payload + HEAD_NBYTES, sizeof handle);
    if (mapped != e->exposed_nbytes || e->nbytes > mapped)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    address = open_one(self, scope, handle, e->nbytes);
    Py_END_ALLOW_THREADS
    if (address == 0)
        return NULL;
    PyObject *made = PyObject_CallFunction(self->make, "KK", (unsigned long long)address, (unsigned long long)e->nbytes);
    if (made == NULL) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        Py_BEGIN_ALLOW_THREADS
        close_one(self, scope, address);
        Py_END_ALLOW_THREADS
        PyErr_Restore(type, value, trace);
    }
    return made;
}

static PyType_Slot importer_slots[] = {
    {Py_tp_new, importer_new},           {Py_tp_dealloc, importer_dealloc},
    {Py_tp_traverse, importer_traverse}, {Py_tp_clear, importer_clear},
    {0, NULL},
};
static PyType_Spec importer_spec = {"xpushare._native.Importer", sizeof(xp_importer), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, importer_slots};

/* --- functions ---------------------------------------------------------------------------------------------------- */

/* open_handles(open, flags, ask, attribute, handles, into): see _native.pyi */
static PyObject *open_handles(PyObject *Py_UNUSED(m), PyObject *const *args, Py_ssize_t n)
{
    uint64_t open, ask;
    uint32_t flags;
    int attribute, code = 0;
    Py_buffer handles, into;
    if (xp_arity("open_handles", n, 6, 6) < 0 || xp_as_u64(args[0], &open) < 0 || xp_as_u32(args[1], &flags) < 0 ||
        xp_as_u64(args[2], &ask) < 0 || xp_as_int(args[3], &attribute) < 0 ||
        PyObject_GetBuffer(args[4], &handles, PyBUF_SIMPLE) < 0)
        return NULL;
    if (PyObject_GetBuffer(args[5], &into, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&handles);
        return NULL;
    }
    Py_ssize_t count = handles.len / XP_DRIVER_HANDLE, done = 0;
    bool fits = handles.len % XP_DRIVER_HANDLE == 0 && into.len == count * (Py_ssize_t)sizeof(opened);
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "open_handles(): 64 bytes for each handle, and 16 for what comes of it");
    bool going = fits;
    while (going && done < count && code == 0) {
        Py_ssize_t end = count - done > XP_PATIENCE ? done + XP_PATIENCE : count;
        Py_BEGIN_ALLOW_THREADS
        for (; done < end; done++) {
            driver_handle handle;
            opened found = {0, UINT64_MAX};
            memcpy(&handle, (const char *)handles.buf + done * XP_DRIVER_HANDLE, sizeof handle);
            code = ((opens)(uintptr_t)open)(&found.address, handle, flags);
            if (code)
                break;
            if (((tells)(uintptr_t)ask)(&found.nbytes, attribute, found.address))
                found.nbytes = UINT64_MAX;
            memcpy((char *)into.buf + done * sizeof found, &found, sizeof found);
        }
        Py_END_ALLOW_THREADS
        going = PyErr_CheckSignals() == 0;
    }
    PyBuffer_Release(&handles);
    PyBuffer_Release(&into);
    return going ? PyLong_FromLong(code) : NULL;
}

/* ask(function, attribute, address): see _native.pyi. Drivers write some attributes in fewer than 8 bytes. */
static PyObject *ask(PyObject *Py_UNUSED(m), PyObject *const *args, Py_ssize_t n)
{
    uint64_t function, address, value = 0;
    int attribute, code;
    if (xp_arity("ask", n, 3, 3) < 0 || xp_as_u64(args[0], &function) < 0 || xp_as_int(args[1], &attribute) < 0 ||
        xp_as_u64(args[2], &address) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    code = ((tells)(uintptr_t)function)(&value, attribute, address);
    Py_END_ALLOW_THREADS
    if (code)
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(value);
}

/* ask_all(function, attributes, address): see _native.pyi */
static PyObject *ask_all(PyObject *Py_UNUSED(m), PyObject *const *args, Py_ssize_t n)
{
    uint64_t function, address, values[XP_ASKED_MOST] = {0};
    void *places[XP_ASKED_MOST];
    int attributes[XP_ASKED_MOST], code;
    if (xp_arity("ask_all", n, 3, 3) < 0 || xp_as_u64(args[0], &function) < 0 || xp_as_u64(args[2], &address) < 0)
        return NULL;
    Py_ssize_t count = PyTuple_Check(args[1]) ? PyTuple_Size(args[1]) : -1;
    if (count < 0 || count > XP_ASKED_MOST) {
        PyErr_Format(PyExc_ValueError, "ask_all(): attributes are a tuple of at most %d", XP_ASKED_MOST);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        places[i] = &values[i];
        if (xp_as_int(PyTuple_GetItem(args[1], i), &attributes[i]) < 0)
            return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    code = ((tells_all)(uintptr_t)function)((unsigned)count, attributes, places, address);
    Py_END_ALLOW_THREADS
    if (code)
        return PyLong_FromLong(code);
    PyObject *found = PyTuple_New(count);
    for (Py_ssize_t i = 0; found && i < count; i++) {
        PyObject *value = PyLong_FromUnsignedLongLong(values[i]);
        if (value == NULL || PyTuple_SetItem(found, i, value) < 0)
            Py_CLEAR(found);
    }
    return found;
}

/* name_handles(function, addresses, into): see _native.pyi */
static PyObject *name_handles(PyObject *Py_UNUSED(m), PyObject *const *args, Py_ssize_t n)
{
    uint64_t function;
    int code = 0;
    Py_buffer into;
    if (xp_arity("name_handles", n, 3, 3) < 0 || xp_as_u64(args[0], &function) < 0 ||
        PyObject_GetBuffer(args[2], &into, PyBUF_WRITABLE) < 0)
        return NULL;
    Py_ssize_t count = PyList_Check(args[1]) ? PyList_Size(args[1]) : -1;
    bool going = into.len == count * XP_DRIVER_HANDLE;
    if (!going)
        PyErr_SetString(PyExc_ValueError, "name_handles(): a list of addresses, and 64 bytes for each");
    for (Py_ssize_t done = 0; going && done < count && code == 0; done++) {
        uint64_t address;
        driver_handle handle = {{0}};
        if (xp_as_u64(PyList_GetItem(args[1], done), &address) < 0) {
            going = false;
            break;
        }
        Py_BEGIN_ALLOW_THREADS
        code = ((names)(uintptr_t)function)(&handle, address);
        Py_END_ALLOW_THREADS
        if (code == 0)
            memcpy((char *)into.buf + done * XP_DRIVER_HANDLE, &handle, sizeof handle);
    }
    PyBuffer_Release(&into);
    return going ? PyLong_FromLong(code) : NULL;
}

static PyMethodDef functions[] = {
    {"ask", XP_FAST(ask), METH_FASTCALL, NULL},
    {"ask_all", XP_FAST(ask_all), METH_FASTCALL, NULL},
    {"name_handles", XP_FAST(name_handles), METH_FASTCALL, NULL},
    {"open_handles", XP_FAST(open_handles), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

int xp_init_allocations(PyObject *module)
{
    if (PyModule_AddFunctions(module, functions) < 0)
        return -1;
    return xp_keep_type(module, &importer_spec, &xp_types_of(module)->importer);
}
