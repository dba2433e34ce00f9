/* Views: what another library's array says about itself, by DLPack's exchange API or as a buffer of NumPy. An array that
 * they do not describe completely is described by Python. */
#include "views.h"

#include <string.h>

#define EXCHANGE_NAME "__dlpack_c_exchange_api__"
#define NEGATED_NAME "is_neg" /* a method: the values are negated when they are read */

/* Clear an exception of other code, since Python asks again and reports it. Returns -1 for any that is not an Exception. */
static int left_to_python(void)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Clear();
    return 0;
}

/* --- types -------------------------------------------------------------------------------------------------------- */

/* Return the exchange API that a type itself has, or NULL, perhaps with an exception set. A subclass may have
 * another `__dlpack__`, and gets none. */
static const dl_exchange *exchange_of(PyTypeObject *type)
{
    PyObject *base = PyType_GetSlot(type, Py_tp_base), *theirs = NULL;
    PyObject *own = PyObject_GetAttrString((PyObject *)type, EXCHANGE_NAME);
    if (own && base)
        theirs = PyObject_GetAttrString(base, EXCHANGE_NAME);
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    const dl_exchange *api = own && own != theirs && !PyErr_Occurred() ? xp_exchange_of(own) : NULL;
    Py_XDECREF(own); /* the type keeps it for good */
    Py_XDECREF(theirs);
    return api && api->view ? api : NULL;
}

/* Return NumPy's class of arrays: borrowed, or NULL if NumPy is not loaded, perhaps with an exception set. */
static PyTypeObject *ndarray(const xp_types *types)
{
    xp_types *kept = (xp_types *)types;
    if (kept->ndarray == NULL) {
        PyObject *name = PyUnicode_FromString("numpy"), *numpy = name ? PyImport_GetModule(name) : NULL;
        PyObject *class = numpy ? PyObject_GetAttrString(numpy, "ndarray") : NULL;
        Py_XDECREF(name);
        Py_XDECREF(numpy);
        if (class && PyType_Check(class)) {
            PyObject *found = xp_set_once((PyObject **)&kept->ndarray, class);
            Py_XDECREF(found);
        } else {
            Py_XDECREF(class);
            if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_AttributeError))
                PyErr_Clear(); /* NumPy is being imported */
        }
    }
    return kept->ndarray;
}

/* Look at a type, unless it is the one before. Returns false with an exception set. */
static bool take_type(const xp_types *types, PyObject *kinds, xp_viewer *v, PyTypeObject *type)
{
    if (type == v->type)
        return true;
    v->type = type;
    v->by = XP_UNKNOWN;
    v->api = NULL;
    Py_CLEAR(v->negated);
    const PyTypeObject *numpys = ndarray(types);
    if (type == &PyMemoryView_Type) {
        v->by = XP_MEMORYVIEWS;
    } else if (numpys && PyType_IsSubtype(type, (PyTypeObject *)numpys)) {
        v->by = XP_ARRAYS; /* Python refuses most subclasses */
    } else if (!PyErr_Occurred()) {
        v->api = kinds ? xp_known_exchange(kinds, type) : NULL;
        if (v->api == NULL)
            v->api = exchange_of(type);
        if (v->api)
            v->by = XP_EXCHANGE;
        if (v->api && !PyErr_Occurred())
            v->negated = PyObject_GetAttrString((PyObject *)type, NEGATED_NAME);
        if (v->api && v->negated == NULL && PyErr_ExceptionMatches(PyExc_AttributeError))
            PyErr_Clear();
    }
    return !PyErr_Occurred();
}

/* --- by DLPack's exchange API ------------------------------------------------------------------------------------- */

/* Return the truth of what a library said, and take over the reference. Its exceptions count as true: Python asks again,
 * and says why. -1 with an exception set. */
static int said_so(PyObject *answer)
{
    int found = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    if (found < 0 && PyErr_ExceptionMatches(PyExc_Exception)) {
        bool none = PyErr_ExceptionMatches(PyExc_AttributeError) && answer == NULL;
        PyErr_Clear();
        return !none;
    }
    return found;
}

/* Return whether the array means other values than its view shows. -1 with an exception set. */
static int differs(const xp_types *types, const xp_viewer *v, PyObject *array)
{
    int found = said_so(PyObject_GetAttr(array, types->differs));
    return found || v->negated == NULL ? found : said_so(PyObject_CallFunctionObjArgs(v->negated, array, NULL));
}

/* Get the library's own dtype if DLPack's type may stand for several, as bytes do: a new reference, or NULL for none.
 * Returns false if Python has to look at the array, or with an exception set. */
static bool dtype_behind(const xp_types *types, PyObject *array, dl_dtype type, PyObject **named)
{
    *named = NULL;
    if (type.bits != 8 || type.code > DL_UINT)
        return true;
    *named = PyObject_GetAttr(array, types->dtype);
    if (*named)
        return true;
    bool none = PyErr_ExceptionMatches(PyExc_AttributeError) != 0;
    left_to_python();
    return none;
}

static int view_exchange(const xp_types *types, const xp_viewer *v, PyObject *array, xp_seen *d)
{
    dl_tensor t = {0};
    int other = differs(types, v, array);
    if (other)
        return other < 0 ? -1 : 0;
    if (v->api->view(array, &t) != 0)
        return left_to_python();
    d->itemsize = (uint32_t)((t.dtype.bits * t.dtype.lanes + 7) / 8);
    if (t.dtype.code == DL_COMPLEX || d->itemsize == 0 || t.ndim < 0 || t.ndim > (int)XP_ARRAY_DIMS ||
        (t.ndim && t.shape == NULL))
        return 0;
    d->address = (uint64_t)(uintptr_t)t.data + t.byte_offset;
    if (!xp_viewed_dims(&t, d->itemsize, d->dims, &d->low, &d->high) ||
        !dtype_behind(types, array, t.dtype, &d->dtype))
        return PyErr_Occurred() ? -1 : 0;
    d->ndim = t.ndim;
    d->api = v->api;
    d->key = (xp_kind_key){.type = Py_TYPE(array), .dtype = d->dtype, .on = t.device, .elements = t.dtype};
    return 1;
}

/* --- as a buffer -------------------------------------------------------------------------------------------------- */

/* Get shape and strides. NumPy's buffer makes up strides of dimensions of length 1 if the array is Fortran's, so they
 * are asked of the array. Returns false if no array has them, perhaps with an exception set. */
static bool buffer_dims(const xp_types *types, PyObject *array, const Py_buffer *b, xp_seen *d)
{
    bool made_up = false;
    int ndim = b->ndim;
    for (int i = 0; i < b->ndim; i++) {
        d->dims[i] = b->shape[i];
        d->dims[b->ndim + i] = b->strides[i];
        made_up |= b->shape[i] == 1;
    }
    if (made_up && d->dtype && !PyBuffer_IsContiguous(b, 'C')) {
        PyObject *strides = PyObject_GetAttr(array, types->strides);
        bool good = strides && xp_as_dims(strides, "strides", d->dims + b->ndim, &ndim) == 0;
        Py_XDECREF(strides);
        if (!good)
            return false;
    }
    return ndim == b->ndim && xp_extent(d->dims, (unsigned)ndim, d->itemsize, &d->low, &d->high) && d->low < d->high;
}

static int view_buffer(const xp_types *types, const xp_viewer *v, PyObject *array, xp_seen *d)
{
    Py_buffer b;
    bool typed = v->by == XP_ARRAYS;
    d->dtype = typed ? PyObject_GetAttr(array, types->dtype) : NULL;
    if ((typed && d->dtype == NULL) || PyObject_GetBuffer(array, &b, typed ? PyBUF_STRIDES : PyBUF_STRIDES | PyBUF_FORMAT)) {
        Py_CLEAR(d->dtype);
        return left_to_python();
    }
    const char *format = typed ? "" : b.format ? b.format : "B";
    d->itemsize = (uint32_t)b.itemsize;
    d->address = (uint64_t)(uintptr_t)b.buf;
    d->ndim = b.ndim;
    d->read_only = b.readonly != 0;
    d->api = NULL;
    d->key = (xp_kind_key){.type = Py_TYPE(array), .dtype = d->dtype, .on = {XP_BUFFER, 0},
                           .elements = {.code = (uint8_t)*format, .lanes = (uint16_t)(typed ? 0 : b.itemsize)}};
    bool good = b.itemsize > 0 && b.itemsize <= INT32_MAX && b.ndim <= (int)XP_ARRAY_DIMS &&
                (typed || (*format && !format[1])) && buffer_dims(types, array, &b, d);
    PyBuffer_Release(&b);
    if (good)
        return 1;
    Py_CLEAR(d->dtype);
    return PyErr_Occurred() ? left_to_python() : 0;
}

int xp_view_array(const xp_types *types, PyObject *kinds, xp_viewer *v, PyObject *array, xp_seen *d)
{
    d->dtype = NULL;
    d->read_only = false;
    if (!take_type(types, kinds, v, Py_TYPE(array)))
        return -1;
    if (v->by == XP_UNKNOWN)
        return 0;
    return v->by == XP_EXCHANGE ? view_exchange(types, v, array, d) : view_buffer(types, v, array, d);
}

/* view_array(array): see _native.pyi */
static PyObject *view_array(PyObject *module, PyObject *array)
{
    xp_seen d;
    xp_viewer v = {.type = NULL};
    int rc = xp_view_array(xp_types_of(module), NULL, &v, array, &d);
    bool typed = v.by == XP_ARRAYS || v.by == XP_EXCHANGE;
    Py_XDECREF(v.negated);
    if (rc < 0)
        return NULL;
    if (rc == 0 || !typed) {
        Py_XDECREF(d.dtype);
        Py_RETURN_NONE;
    }
    PyObject *all[] = {PyLong_FromUnsignedLongLong(d.address),
                       xp_dims_tuple(d.dims, d.ndim),
                       xp_dims_tuple(d.dims + d.ndim, d.ndim),
                       PyLong_FromUnsignedLong(d.itemsize),
                       d.dtype ? d.dtype : Py_NewRef(Py_None),
                       PyBool_FromLong(d.read_only),
                       xp_kind_element(&d.key)};
    return xp_tuple_of(all, sizeof all / sizeof *all);
}

XP_PART(views, XP_FUNCTIONS({"view_array", view_array, METH_O, NULL}))
