/* DLPack: makes capsules that keep an owner alive, and reads other libraries' capsules. The structs are the ABI of
 * DLPack 1.x. */
#include "dlpack.h"
#include "objects.h"

#include <stdlib.h>

#define DL_READ_ONLY 1u
#define DL_COPIED 2u
#define DL_NAME "dltensor"
#define DL_NAME_VERSIONED "dltensor_versioned"

/* --- ours, given away --------------------------------------------------------------------------------------------- */

typedef struct {
    union {
        dl_managed plain;
        dl_versioned versioned;
    } as;
    PyObject *owner;
    int64_t dims[]; /* shape, then strides */
} xp_export;

/* From any thread, even after the interpreter's end. */
static void drop_owner(PyObject *owner)
{
    if (!Py_IsInitialized())
        return; /* it is gone as well */
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    Py_DECREF(owner);
    PyErr_Restore(type, value, trace);
    PyGILState_Release(state);
}

static void export_free(xp_export *e)
{
    drop_owner(e->owner);
    free(e);
}

static void delete_plain(dl_managed *m)
{
    if (m)
        export_free(m->context);
}

static void delete_versioned(dl_versioned *m)
{
    if (m)
        export_free(m->context);
}

/* A capsule that no consumer took still has its first name. */
static void capsule_plain(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, DL_NAME))
        delete_plain(PyCapsule_GetPointer(capsule, DL_NAME));
}

static void capsule_versioned(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, DL_NAME_VERSIONED))
        delete_versioned(PyCapsule_GetPointer(capsule, DL_NAME_VERSIONED));
}

static PyObject *dlpack_capsule(PyObject *Py_UNUSED(m), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"owner",   "address",   "device",    "dtype",  "shape",
                            "strides", "read_only", "versioned", "copied", NULL};
    PyObject *owner, *o_address, *o_shape, *o_strides;
    int device[2], code, bits, lanes, read_only, versioned, copied = 0, ndim, nstrides;
    uint64_t address;
    int64_t shape[XP_MAX_DIMS], strides[XP_MAX_DIMS];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO(ii)(iii)OOpp|p", names, &owner, &o_address, &device[0],
                                     &device[1], &code, &bits, &lanes, &o_shape, &o_strides, &read_only, &versioned,
                                     &copied) ||
        xp_as_u64(o_address, &address) < 0 || xp_as_dims(o_shape, "shape", shape, &ndim) < 0 ||
        xp_as_dims(o_strides, "strides", strides, &nstrides) < 0)
        return NULL;
    if (ndim < 0)
        return xp_refuse(PyExc_TypeError, "shape must be a tuple");
    if ((nstrides >= 0 && nstrides != ndim) || (code & ~0xff) || (bits & ~0xff) || (lanes & ~0xffff))
        return xp_refuse(PyExc_ValueError, "shape and strides differ in length, or no such dtype");
    if (read_only && !versioned)
        return xp_refuse(PyExc_BufferError, "read-only memory needs a consumer that speaks DLPack 1.0 (max_version)");
    xp_export *e = calloc(1, sizeof *e + (size_t)ndim * 2 * sizeof(int64_t));
    if (e == NULL)
        return PyErr_NoMemory();
    int64_t step = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        e->dims[i] = shape[i];
        e->dims[ndim + i] = nstrides >= 0 ? strides[i] : step;
        if (shape[i] < 0 || __builtin_mul_overflow(step, shape[i] ? shape[i] : 1, &step)) {
            free(e);
            return xp_refuse(PyExc_ValueError, "no such shape");
        }
    }
    dl_tensor tensor = {
        .data = (void *)(uintptr_t)address,
        .device = {device[0], device[1]},
        .ndim = ndim,
        .dtype = {(uint8_t)code, (uint8_t)bits, (uint16_t)lanes},
        .shape = e->dims,
        .strides = e->dims + ndim, /* never null: DLPack 1.2 and later require it, and all versions accept it */
    };
    PyObject *capsule;
    if (versioned) {
        dl_versioned *v = &e->as.versioned;
        unsigned flags = (read_only ? DL_READ_ONLY : 0) | (copied ? DL_COPIED : 0);
        *v = (dl_versioned){1, 0, e, delete_versioned, flags, tensor};
        capsule = PyCapsule_New(v, DL_NAME_VERSIONED, capsule_versioned);
    } else {
        e->as.plain = (dl_managed){tensor, e, delete_plain};
        capsule = PyCapsule_New(&e->as.plain, DL_NAME, capsule_plain);
    }
    if (capsule == NULL)
        free(e);
    else
        e->owner = Py_NewRef(owner);
    return capsule;
}

/* --- ours, made by the exchange API ------------------------------------------------------------------------------- */

struct xp_holder {
    uint64_t references;
    PyObject *owner;
    uint64_t address;
    dl_device device;
};

typedef struct {
    dl_versioned as;
    xp_holder *held;
    bool *gone;     /* NULL once a tensor has it */
    int64_t dims[]; /* shape, then strides */
} held_tensor;

xp_holder *xp_held_by(PyObject *owner, uint64_t address, dl_device device)
{
    xp_holder *held = malloc(sizeof *held);
    if (held)
        *held = (xp_holder){1, Py_NewRef(owner), address, device};
    else
        PyErr_NoMemory();
    return held;
}

void xp_let_go(xp_holder *held)
{
    if (__atomic_sub_fetch(&held->references, 1, __ATOMIC_ACQ_REL) == 0) {
        drop_owner(held->owner);
        free(held);
    }
}

static void delete_held(dl_versioned *tensor)
{
    if (tensor) {
        held_tensor *leaf = tensor->context;
        if (leaf->gone)
            *leaf->gone = true;
        xp_let_go(leaf->held);
        free(leaf);
    }
}

bool xp_whole_steps(unsigned ndim, const int64_t *dims, uint32_t itemsize)
{
    for (unsigned i = 0; i < ndim; i++)
        if (dims[ndim + i] < 0 || dims[ndim + i] % itemsize) /* torch ends the process at a negative stride */
            return false;
    return true;
}

PyObject *xp_tensor(const dl_exchange *api, xp_holder *held, uint64_t offset, unsigned ndim, const int64_t *dims,
                    dl_dtype dtype, uint32_t itemsize)
{
    held_tensor *leaf = malloc(sizeof *leaf + 16u * ndim);
    if (leaf == NULL)
        return PyErr_NoMemory();
    memcpy(leaf->dims, dims, 16u * ndim);
    for (unsigned i = 0; i < ndim; i++)
        leaf->dims[ndim + i] /= itemsize;
    bool gone = false;
    leaf->held = held;
    leaf->gone = &gone;
    leaf->as = (dl_versioned){1, 0, leaf, delete_held, 0,
                              {.data = (void *)(uintptr_t)(held->address + offset), .device = held->device,
                               .ndim = (int32_t)ndim, .dtype = dtype, .shape = leaf->dims,
                               .strides = leaf->dims + ndim}};
    __atomic_add_fetch(&held->references, 1, __ATOMIC_RELAXED);
    void *made = NULL;
    if (api->to_object(&leaf->as, &made) == 0) {
        if (!gone) /* a consumer that copies has released it already */
            leaf->gone = NULL;
        return made;
    }
    if (!gone) /* according to DLPack it is taken over even if this fails, but not every library does that */
        delete_held(&leaf->as);
    return NULL;
}

/* --- theirs, taken over ------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    dl_tensor *tensor;
    dl_managed *plain;
    dl_versioned *versioned;
} xp_dltensor;

/* If two threads have one capsule, only one of them may take it. */
static pthread_mutex_t take_mutex = PTHREAD_MUTEX_INITIALIZER;

static bool take(PyObject *capsule, const char *name, const char *used, void **pointer)
{
    bool mine = false;
    pthread_mutex_lock(&take_mutex);
    if (PyCapsule_IsValid(capsule, name)) {
        *pointer = PyCapsule_GetPointer(capsule, name);
        mine = *pointer && PyCapsule_SetName(capsule, used) == 0;
    }
    pthread_mutex_unlock(&take_mutex);
    return mine;
}

static PyObject *dltensor_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"capsule", NULL};
    PyObject *capsule;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &capsule))
        return NULL;
    if (PyCapsule_IsValid(capsule, DL_NAME_VERSIONED)) {
        const dl_versioned *v = PyCapsule_GetPointer(capsule, DL_NAME_VERSIONED);
        if (v && v->major != 1) {
            PyErr_Format(PyExc_BufferError, "a DLPack capsule of version %u.%u; 1.x is understood", v->major, v->minor);
            return NULL;
        }
    }
    xp_dltensor *t = (xp_dltensor *)PyType_GenericAlloc(type, 0);
    if (t == NULL)
        return NULL;
    void *pointer;
    if (take(capsule, DL_NAME_VERSIONED, "used_" DL_NAME_VERSIONED, &pointer)) {
        t->versioned = pointer;
        t->tensor = &t->versioned->tensor;
    } else if (take(capsule, DL_NAME, "used_" DL_NAME, &pointer)) {
        t->plain = pointer;
        t->tensor = &t->plain->tensor;
    }
    if (t->tensor == NULL || t->tensor->ndim < 0 || t->tensor->ndim > XP_MAX_DIMS ||
        (t->tensor->ndim && t->tensor->shape == NULL)) {
        Py_DECREF(t);
        return xp_refuse(PyExc_ValueError, "not an unused DLPack capsule");
    }
    return (PyObject *)t;
}

static void dltensor_end(PyObject *self)
{
    xp_dltensor *t = (xp_dltensor *)self;
    if (t->versioned && t->versioned->deleter)
        t->versioned->deleter(t->versioned);
    if (t->plain && t->plain->deleter)
        t->plain->deleter(t->plain);
}

XP_LIFE_PLAIN(dltensor, .end = dltensor_end)

static const dl_tensor *tensor(PyObject *self) { return ((xp_dltensor *)self)->tensor; }

XP_GETTER(dltensor_address, PyLong_FromUnsignedLongLong((uintptr_t)tensor(self)->data + tensor(self)->byte_offset))
XP_GETTER(dltensor_device, Py_BuildValue("(ii)", tensor(self)->device.type, tensor(self)->device.id))
XP_GETTER(dltensor_dtype, Py_BuildValue("(iii)", tensor(self)->dtype.code, tensor(self)->dtype.bits, tensor(self)->dtype.lanes))
XP_GETTER(dltensor_shape, xp_dims_tuple(tensor(self)->shape, tensor(self)->ndim))
XP_GETTER(dltensor_strides,
          tensor(self)->strides ? xp_dims_tuple(tensor(self)->strides, tensor(self)->ndim) : Py_NewRef(Py_None))
static PyObject *dltensor_read_only(PyObject *self, void *Py_UNUSED(c))
{
    const dl_versioned *v = ((xp_dltensor *)self)->versioned;
    return PyBool_FromLong(v && (v->flags & DL_READ_ONLY));
}

XP_TYPE(dltensor_spec, "DLTensor", xp_dltensor, Py_TPFLAGS_DEFAULT, {Py_tp_new, dltensor_new},
        {Py_tp_dealloc, dltensor_dealloc},
        XP_GETSET({"address", dltensor_address, NULL, NULL, NULL},
                  {"device", dltensor_device, NULL, NULL, NULL},
                  {"dtype", dltensor_dtype, NULL, NULL, NULL},
                  {"shape", dltensor_shape, NULL, NULL, NULL},
                  {"strides", dltensor_strides, NULL, NULL, NULL},
                  {"read_only", dltensor_read_only, NULL, NULL, NULL}))

/* --- theirs, looked at by the exchange API ------------------------------------------------------------------------ */

const dl_exchange *xp_exchange_of(PyObject *capsule)
{
    const dl_exchange *api =
        PyCapsule_IsValid(capsule, DL_EXCHANGE) ? PyCapsule_GetPointer(capsule, DL_EXCHANGE) : NULL;
    while (api && api->major != 1)
        api = api->previous;
    return api;
}

bool xp_viewed_dims(const dl_tensor *t, int64_t itemsize, int64_t *dims, int64_t *low, int64_t *high)
{
    int64_t step = itemsize;
    for (int i = t->ndim - 1; i >= 0; i--) {
        dims[i] = t->shape[i];
        dims[t->ndim + i] = step;
        if (t->strides ? __builtin_mul_overflow(t->strides[i], itemsize, &dims[t->ndim + i])
                       : __builtin_mul_overflow(step, t->shape[i] ? t->shape[i] : 1, &step))
            return false;
    }
    return xp_extent(dims, (unsigned)t->ndim, (uint64_t)itemsize, low, high) && *low < *high;
}

XP_PART(dlpack, XP_FUNCTIONS({"dlpack_capsule", XP_FAST(dlpack_capsule), METH_VARARGS | METH_KEYWORDS, NULL}),
        XP_ADD(dltensor_spec))
