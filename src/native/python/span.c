/* Span: a buffer that keeps its owner alive. */
#include "objects.h"

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    PyObject *owner;
    char *address;
    char *format;
    Py_ssize_t nbytes, itemsize, len;
    int ndim;
    bool readonly, c_order, f_order;
    Py_ssize_t *dims; /* shape, then strides */
} xp_span;

static bool contiguous(const xp_span *s, bool fortran)
{
    if (s->len == 0)
        return true;
    Py_ssize_t want = s->itemsize;
    for (int i = 0; i < s->ndim; i++) {
        int d = fortran ? i : s->ndim - 1 - i;
        if (s->dims[d] != 1 && s->dims[s->ndim + d] != want)
            return false;
        want *= s->dims[d];
    }
    return true;
}

/* Fill in dims and len. Every element of the shape must lie inside the span. */
static int span_dims(xp_span *s, const int64_t *shape, int ndim, const int64_t *strides)
{
    int64_t flat = s->nbytes / s->itemsize;
    if (shape == NULL) {
        shape = &flat;
        ndim = 1;
        if (s->nbytes % s->itemsize)
            return xp_invalid("nbytes is not a multiple of itemsize");
    }
    s->ndim = ndim;
    s->dims = PyMem_Calloc((size_t)ndim * 2 + 1, sizeof *s->dims);
    if (s->dims == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    bool empty = false;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0)
            return xp_invalid("shape must not be negative");
        empty |= shape[i] == 0;
    }
    int64_t count = s->itemsize, reach = s->itemsize;
    for (int i = ndim - 1; i >= 0; i--) {
        s->dims[i] = (Py_ssize_t)shape[i];
        s->dims[ndim + i] = (Py_ssize_t)(strides ? strides[i] : count);
        if (empty)
            continue;
        int64_t step;
        if (__builtin_mul_overflow(count, shape[i], &count) ||
            __builtin_mul_overflow((int64_t)s->dims[ndim + i], shape[i] - 1, &step) ||
            __builtin_add_overflow(reach, step, &reach) || step < 0)
            goto outside;
    }
    s->len = empty ? 0 : (Py_ssize_t)count;
    if (!empty && reach > s->nbytes)
        goto outside;
    s->c_order = contiguous(s, false);
    s->f_order = contiguous(s, true);
    return 0;
outside:
    return xp_invalid("shape and strides reach outside the span");
}

/* shape NULL: one dimension; strides NULL: C order */
static PyObject *span_make(PyTypeObject *type, uint64_t address, Py_ssize_t nbytes, bool readonly, PyObject *owner,
                           const int64_t *shape, int ndim, const int64_t *strides, const char *format,
                           Py_ssize_t itemsize)
{
    if (nbytes < 0 || itemsize < 1 || (nbytes && address + (uint64_t)nbytes < address) || (nbytes && address == 0))
        return xp_refuse(PyExc_ValueError, "no such span of memory");
    xp_span *s = (xp_span *)PyType_GenericAlloc(type, 0);
    if (s == NULL)
        return NULL;
    s->address = (char *)(uintptr_t)address;
    s->nbytes = nbytes;
    s->itemsize = itemsize;
    s->readonly = readonly;
    size_t length = strlen(format) + 1;
    s->format = PyMem_Malloc(length);
    if (s->format == NULL) {
        Py_DECREF(s);
        return PyErr_NoMemory();
    }
    memcpy(s->format, format, length);
    if (span_dims(s, shape, ndim, strides) < 0) {
        Py_DECREF(s);
        return NULL;
    }
    s->owner = Py_NewRef(owner);
    return (PyObject *)s;
}

static PyObject *span_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"address", "nbytes", "readonly", "owner", "shape", "strides", "format", "itemsize", NULL};
    PyObject *o_address, *owner, *o_shape = NULL, *o_strides = NULL;
    Py_ssize_t nbytes, itemsize = 1;
    int readonly, ndim, nstrides;
    const char *format = "B";
    uint64_t address;
    int64_t shape[XP_MAX_DIMS], strides[XP_MAX_DIMS];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OnpO|OOsn", names, &o_address, &nbytes, &readonly, &owner, &o_shape,
                                     &o_strides, &format, &itemsize) ||
        xp_as_u64(o_address, &address) < 0 || xp_as_dims(o_shape, "shape", shape, &ndim) < 0 ||
        xp_as_dims(o_strides, "strides", strides, &nstrides) < 0)
        return NULL;
    if (nstrides >= 0 && nstrides != ndim)
        return xp_refuse(PyExc_ValueError, "shape and strides differ in length");
    return span_make(type, address, nbytes, readonly != 0, owner, ndim >= 0 ? shape : NULL, ndim,
                     nstrides >= 0 ? strides : NULL, format, itemsize);
}

static void span_end(PyObject *self)
{
    xp_span *s = (xp_span *)self;
    PyMem_Free(s->format);
    PyMem_Free(s->dims);
}

/* `owner` is fixed: a span never releases it while a view may use the memory. */
XP_LIFE(span, .end = span_end, .weakrefs = offsetof(xp_span, weakrefs), .fixed = XP_OBJECTS(xp_span, owner))

static int span_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    xp_span *s = (xp_span *)self;
    const char *refusal = NULL;
    if ((flags & PyBUF_WRITABLE) && s->readonly)
        refusal = "this memory is read-only";
    else if ((flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS && !s->c_order)
        refusal = "this memory is not C-contiguous";
    else if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !s->f_order)
        refusal = "this memory is not Fortran-contiguous";
    else if ((flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS && !s->c_order && !s->f_order)
        refusal = "this memory is not contiguous";
    else if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES && !s->c_order)
        refusal = "this memory is not C-contiguous and the consumer asks for no strides";
    if (refusal) {
        view->obj = NULL;
        PyErr_SetString(PyExc_BufferError, refusal);
        return -1;
    }
    view->obj = Py_NewRef(self);
    view->buf = s->address;
    view->len = s->len;
    view->itemsize = s->itemsize;
    view->readonly = s->readonly;
    view->ndim = s->ndim;
    view->format = flags & PyBUF_FORMAT ? s->format : NULL;
    view->shape = flags & PyBUF_ND ? s->dims : NULL;
    view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? s->dims + s->ndim : NULL;
    view->suboffsets = NULL;
    view->internal = NULL;
    return 0;
}

XP_TYPE(span_spec, "Span", xp_span, XP_WITH_GC, {Py_tp_new, span_new}, XP_LIFE_SLOTS(span),
        XP_FIELDS(XP_WEAKREFS(xp_span),
                  {"address", T_ULONGLONG, offsetof(xp_span, address), READONLY, NULL},
                  {"nbytes", T_PYSSIZET, offsetof(xp_span, nbytes), READONLY, NULL},
                  {"readonly", T_BOOL, offsetof(xp_span, readonly), READONLY, NULL},
                  {"owner", T_OBJECT_EX, offsetof(xp_span, owner), READONLY, NULL}),
        {Py_bf_getbuffer, span_getbuffer})

int xp_span_buffer(PyObject *span, Py_buffer *view, int flags)
{
    if (PyType_GetSlot(Py_TYPE(span), Py_bf_getbuffer) == (void *)span_getbuffer)
        return span_getbuffer(span, view, flags);
    PyErr_SetString(PyExc_TypeError, "that is not a Span");
    return -1;
}

XP_PART(span, NULL, XP_ADD(span_spec))
