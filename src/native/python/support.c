/* The small helpers between C and Python. */
#include "objects.h"

#include <math.h>

PyObject *xp_oserror_of(int error, const char *call)
{
    char text[128];
    PyObject *value = Py_BuildValue("(iN)", error,
                                    PyUnicode_FromFormat("%s: %s", call, strerror_r(error, text, sizeof text)));
    if (value) {
        PyErr_SetObject(PyExc_OSError, value);
        Py_DECREF(value);
    }
    return NULL;
}

PyObject *xp_raise(const xp_error *error)
{
    if (error->code == ENOMEM && error->what == NULL)
        return PyErr_NoMemory();
    if (error->code)
        return xp_oserror_of(error->code, error->what);
    return xp_refuse(PyExc_ValueError, error->what);
}

void *xp_refuse(PyObject *type, const char *why)
{
    if (!PyErr_Occurred())
        PyErr_SetString(type, why);
    return NULL;
}

int xp_invalid(const char *why)
{
    PyErr_SetString(PyExc_ValueError, why);
    return -1;
}

void xp_unusable(const char *why)
{
    PyObject *errors = PyImport_ImportModule("xpushare.common.errors");
    PyObject *error = errors ? PyObject_CallMethod(errors, "unusable", "z", why) : NULL;
    if (error) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    } else {
        PyErr_Clear(); /* the interpreter is going */
        PyErr_SetString(PyExc_ValueError, why ? why : "it is another process's");
    }
    Py_XDECREF(error);
    Py_XDECREF(errors);
}

PyObject *xp_oserror(const char *call) { return xp_oserror_of(errno, call); }

int xp_seconds(PyObject *obj, uint64_t *ns)
{
    if (obj == NULL || obj == Py_None) {
        *ns = XP_FOREVER;
        return 0;
    }
    double s = PyFloat_AsDouble(obj);
    if (s == -1.0 && PyErr_Occurred())
        return -1;
    if (isnan(s))
        return xp_invalid("a time must be a number");
    *ns = s <= 0 ? 0 : s > 1e9 ? XP_FOREVER : (uint64_t)(s * 1e9);
    return 0;
}

void xp_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc f = (freefunc)PyType_GetSlot(type, Py_tp_free);
    f(self);
    Py_DECREF(type);
}

PyObject *xp_get_object(PyObject *self, void *place)
{
    PyObject *value = xp_field(self, (PyObject **)((char *)self + (uintptr_t)place));
    return value ? value : Py_NewRef(Py_None);
}

int xp_set_object(PyObject *self, PyObject *value, void *place)
{
    PyMemberDef member = {"", T_OBJECT, (Py_ssize_t)(uintptr_t)place, 0, NULL};
    return PyMember_SetOne((char *)self, &member, value);
}

static int add_type(PyObject *module, const xp_kept *type)
{
    char *types = (char *)xp_types_of(module);
    PyObject *base = type->base ? *(PyObject **)(types + type->base) : NULL;
    PyTypeObject *made = (PyTypeObject *)PyType_FromModuleAndSpec(module, type->spec, base);
    int rc = made ? PyModule_AddType(module, made) : -1;
    if (type->kept)
        *(PyTypeObject **)(types + type->kept) = made;
    else
        Py_XDECREF((PyObject *)made);
    return rc;
}

int xp_add_type(PyObject *module, PyType_Spec *spec) { return add_type(module, &(xp_kept){spec, 0, 0}); }

int xp_keep_type(PyObject *module, PyType_Spec *spec, PyTypeObject **kept)
{
    return add_type(module, &(xp_kept){spec, (size_t)((char *)kept - (char *)xp_types_of(module)), 0});
}

int xp_add_part(PyObject *module, PyMethodDef *functions, const xp_kept *types)
{
    int rc = functions ? PyModule_AddFunctions(module, functions) : 0;
    for (; rc == 0 && types->spec; types++)
        rc = add_type(module, types);
    return rc;
}

int xp_arity(const char *name, Py_ssize_t got, Py_ssize_t least, Py_ssize_t most)
{
    if (got >= least && got <= most)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s() takes %zd to %zd arguments, got %zd", name, least, most, got);
    return -1;
}

int xp_as_u64(PyObject *obj, uint64_t *out)
{
    *out = PyLong_AsUnsignedLongLong(obj);
    return *out == UINT64_MAX && PyErr_Occurred() ? -1 : 0;
}

int xp_as_u32(PyObject *obj, uint32_t *out)
{
    uint64_t v;
    if (xp_as_u64(obj, &v) < 0)
        return -1;
    if (v > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "does not fit in 32 bits");
        return -1;
    }
    *out = (uint32_t)v;
    return 0;
}

int xp_as_int(PyObject *obj, int *out)
{
    long v = PyLong_AsLong(obj);
    if (v == -1 && PyErr_Occurred())
        return -1;
    if (v < INT32_MIN || v > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "does not fit in 32 bits");
        return -1;
    }
    *out = (int)v;
    return 0;
}

int xp_as_dims(PyObject *obj, const char *what, int64_t *out, int *n)
{
    *n = -1;
    if (obj == NULL || obj == Py_None)
        return 0;
    Py_ssize_t len = PyTuple_Check(obj) ? PyTuple_Size(obj) : -1;
    if (len < 0 || len > XP_MAX_DIMS) {
        PyErr_Format(len < 0 ? PyExc_TypeError : PyExc_ValueError, "%s must be a tuple of at most %d ints", what,
                     XP_MAX_DIMS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < len; i++) {
        out[i] = PyLong_AsLongLong(PyTuple_GetItem(obj, i));
        if (out[i] == -1 && PyErr_Occurred())
            return -1;
    }
    *n = (int)len;
    return 0;
}

PyObject *xp_dims_tuple(const int64_t *values, int n)
{
    PyObject *tuple = PyTuple_New(n);
    for (int i = 0; tuple && i < n; i++) {
        PyObject *v = PyLong_FromLongLong(values[i]);
        if (v == NULL || PyTuple_SetItem(tuple, i, v) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

const xp_types *xp_types_by(PyTypeObject *type, destructor of)
{
    while (PyType_GetSlot(type, Py_tp_dealloc) != (void *)of)
        type = PyType_GetSlot(type, Py_tp_base);
    return PyType_GetModuleState(type);
}

void xp_append(PyObject **list, PyObject *item)
{
    if (*list && (item == NULL || PyList_Append(*list, item) < 0))
        Py_CLEAR(*list);
    Py_XDECREF(item);
}

PyObject *xp_tuple_of(PyObject **items, size_t n)
{
    bool good = true;
    for (size_t i = 0; i < n; i++)
        good = good && items[i];
    PyObject *made = good ? PyTuple_New((Py_ssize_t)n) : NULL;
    for (size_t i = 0; i < n; i++)
        if (made)
            PyTuple_SetItem(made, (Py_ssize_t)i, items[i]);
        else
            Py_XDECREF(items[i]);
    return made;
}

void xp_no_such(PyObject *unread, const char *name)
{
    PyObject *never = unread ? PyObject_CallNoArgs(unread) : NULL; /* it raises */
    Py_XDECREF(never);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_AttributeError, name);
}

PyObject *xp_set_once(PyObject **place, PyObject *made)
{
    PyObject *nothing = NULL;
    if (made && !__atomic_compare_exchange_n(place, &nothing, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        Py_DECREF(made);
        made = nothing;
    }
    return Py_XNewRef(made);
}
