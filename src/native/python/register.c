/* register: the Python classes whose objects C makes. Each is a subclass of its native base. */
#include "objects.h"

static const struct {
    const char *name;
    size_t base, class; /* places in xp_types */
} registrable[] = {
    {"Allocation", offsetof(xp_types, allocation_base), offsetof(xp_types, allocation)},
    {"ArrayHandle", offsetof(xp_types, message_base), offsetof(xp_types, array_handle)},
    {"Handle", offsetof(xp_types, handle_base), offsetof(xp_types, handle)},
    {"Range", offsetof(xp_types, range_base), offsetof(xp_types, range)},
    {"SharedArray", offsetof(xp_types, array_base), offsetof(xp_types, shared_array)},
};

/* Return whether a module that makes this class was executed again, which happens if an interrupt ended its import.
 * Negative on error. */
static int is_made_again(PyObject *before, PyObject *class)
{
    static const char *const names[] = {"__module__", "__qualname__"};
    int same = 1;
    for (size_t i = 0; i < 2 && same == 1; i++) {
        PyObject *a = PyObject_GetAttrString(before, names[i]), *b = a ? PyObject_GetAttrString(class, names[i]) : NULL;
        same = b ? PyObject_RichCompareBool(a, b, Py_EQ) : -1;
        Py_XDECREF(a);
        Py_XDECREF(b);
    }
    return same;
}

static int register_class(xp_types *types, const char *name, PyObject *class)
{
    for (size_t i = 0; i < sizeof registrable / sizeof *registrable; i++) {
        if (strcmp(registrable[i].name, name) != 0)
            continue;
        PyTypeObject *base = *(PyTypeObject **)((char *)types + registrable[i].base), *before = NULL;
        PyTypeObject **place = (PyTypeObject **)((char *)types + registrable[i].class);
        if (!PyType_Check(class) || !PyType_IsSubtype((PyTypeObject *)class, base)) {
            PyErr_Format(PyExc_TypeError, "%R is not a subclass of %R", class, base);
            return -1;
        }
        Py_INCREF(class);
        if (__atomic_compare_exchange_n(place, &before, (PyTypeObject *)class, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            return 0;
        int again = is_made_again((PyObject *)before, class);
        if (again == 1) {
            __atomic_store_n(place, (PyTypeObject *)class, __ATOMIC_SEQ_CST); /* the earlier one may be in use, so it is kept */
            return 0;
        }
        Py_DECREF(class);
        if (again == 0)
            PyErr_Format(PyExc_ValueError, "%s is registered already", name);
        return -1;
    }
    PyErr_Format(PyExc_TypeError, "register() knows no %s", name);
    return -1;
}

/* register(Name=class, ...): each once, except for a module that is executed again */
static PyObject *register_classes(PyObject *module, PyObject *args, PyObject *kwargs)
{
    PyObject *name, *class;
    Py_ssize_t at = 0;
    if (PyTuple_Size(args))
        return xp_refuse(PyExc_TypeError, "register() takes keyword arguments only");
    while (kwargs && PyDict_Next(kwargs, &at, &name, &class)) {
        const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
        if (text == NULL || register_class(xp_types_of(module), text, class) < 0)
            return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *xp_made(PyTypeObject *class, const char *name)
{
    if (class)
        return PyType_GenericAlloc(class, 0);
    PyErr_Format(PyExc_RuntimeError, "%s is not registered", name);
    return NULL;
}

XP_PART(register, XP_FUNCTIONS({"register", XP_FAST(register_classes), METH_VARARGS | METH_KEYWORDS, NULL}))
