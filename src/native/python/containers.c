/* flatten, unflatten: convert a tree of arrays to JSON's types, and back. Objects that they do not know are left to
 * Python. */
#include "objects.h"

#define DEPTH_MOST 64

/* Python describes or refuses anything that is not known here. */
static PyObject *declined(void) { return Py_NewRef(Py_NotImplemented); }

static bool is_int64(PyObject *x)
{
    int overflow = 0;
    if (!PyLong_CheckExact(x))
        return false;
    PyLong_AsLongLongAndOverflow(x, &overflow);
    return overflow == 0;
}

static bool stands_for_itself(PyObject *x)
{
    return x == Py_None || PyUnicode_CheckExact(x) || PyBool_Check(x) || PyFloat_CheckExact(x);
}

typedef struct {
    PyObject *arrays, *indices; /* a list; number by address of the arrays and containers */
    PyObject *kept;             /* a list of the containers, since an address is unique only while its object lives */
    PyTypeObject *scalar;       /* of NumPy's scalars, borrowed; NULL: not loaded */
    Py_ssize_t left;            /* how many bytes the message may still have */
} walk;

/* Return its number, or -1 with an exception set. `number`: the next free one */
static Py_ssize_t number_of(walk *w, PyObject *x, Py_ssize_t number)
{
    PyObject *key = PyLong_FromVoidPtr(x), *known = key ? PyDict_GetItemWithError(w->indices, key) : NULL;
    Py_ssize_t found = known ? PyLong_AsSsize_t(known) : -1;
    if (key && known == NULL && !PyErr_Occurred()) {
        PyObject *new = PyLong_FromSsize_t(number);
        if (new && PyDict_SetItem(w->indices, key, new) == 0)
            found = number;
        Py_XDECREF(new);
    }
    Py_XDECREF(key);
    return found;
}

static PyObject *flat(walk *w, PyObject *x, int depth);

static PyObject *flat_list(walk *w, PyObject *held, int depth)
{
    Py_ssize_t n = PyList_Size(held);
    PyObject *nodes = PyList_New(n);
    for (Py_ssize_t i = 0; nodes && i < n; i++) {
        PyObject *node = flat(w, PyList_GetItem(held, i), depth);
        if (node == NULL || node == Py_NotImplemented) {
            Py_DECREF(nodes);
            return node;
        }
        PyList_SetItem(nodes, i, node);
    }
    return nodes;
}

static PyObject *flat_container(walk *w, PyObject *x, int depth)
{
    bool dict = PyDict_CheckExact(x);
    Py_ssize_t size = PyObject_Size(x), before = PyDict_Size(w->indices);
    w->left -= 2 * size;
    if (depth >= DEPTH_MOST || w->left < 0)
        return declined();
    if ((number_of(w, x, -2) == -1 && PyErr_Occurred()) || PyList_Append(w->kept, x) < 0)
        return NULL;
    if (PyDict_Size(w->indices) == before)
        return declined(); /* there twice */
    PyObject *keys = dict ? PyDict_Keys(x) : NULL;
    PyObject *held = dict ? PyDict_Values(x) : PySequence_List(x);
    PyObject *nodes = held && (keys || !dict) ? flat_list(w, held, depth + 1) : NULL, *found = NULL;
    for (Py_ssize_t i = 0; nodes && nodes != Py_NotImplemented && keys && i < PyList_Size(keys); i++) {
        PyObject *key = PyList_GetItem(keys, i);
        if (!PyUnicode_CheckExact(key) && !is_int64(key)) {
            Py_DECREF(nodes);
            nodes = declined();
        }
    }
    if (nodes == Py_NotImplemented)
        found = Py_NewRef(nodes);
    else if (nodes)
        found = dict ? Py_BuildValue("[sOO]", "d", keys, nodes)
                     : Py_BuildValue("[sO]", PyList_CheckExact(x) ? "l" : "t", nodes);
    Py_XDECREF(keys);
    Py_XDECREF(held);
    Py_XDECREF(nodes);
    return found;
}

static PyObject *flat(walk *w, PyObject *x, int depth)
{
    if (stands_for_itself(x))
        return Py_NewRef(x);
    if (PyLong_CheckExact(x))
        return is_int64(x) ? Py_BuildValue("[sO]", "i", x) : declined();
    if (PyDict_CheckExact(x) || PyList_CheckExact(x) || PyTuple_CheckExact(x))
        return flat_container(w, x, depth);
    if (PyDict_Check(x) || PyList_Check(x) || PyTuple_Check(x) || PyFloat_Check(x) || PyBytes_Check(x) ||
        PyComplex_Check(x) || (w->scalar && PyType_IsSubtype(Py_TYPE(x), w->scalar)))
        return declined();
    Py_ssize_t next = PyList_Size(w->arrays), index = number_of(w, x, next);
    if (index < 0 || (index == next && PyList_Append(w->arrays, x) < 0))
        return NULL;
    return PyLong_FromSsize_t(index);
}

/* flatten(tree, most, type of NumPy's scalars or None): (the arrays, the tree in JSON's types), or NotImplemented if
 * Python has to look at it */
static PyObject *flatten(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n)
{
    if (xp_arity("flatten", n, 3, 3) < 0)
        return NULL;
    walk w = {PyList_New(0), PyDict_New(), PyList_New(0), PyType_Check(args[2]) ? (PyTypeObject *)args[2] : NULL,
              PyLong_AsSsize_t(args[1])};
    PyObject *node = w.arrays && w.indices && w.kept && !PyErr_Occurred() ? flat(&w, args[0], 0) : NULL, *found = NULL;
    if (node)
        found = node == Py_NotImplemented ? Py_NewRef(node) : Py_BuildValue("(OO)", w.arrays, node);
    Py_XDECREF(node);
    Py_XDECREF(w.arrays);
    Py_XDECREF(w.indices);
    Py_XDECREF(w.kept);
    return found;
}

static PyObject *built(PyObject *x, PyObject *arrays, Py_ssize_t n, int depth);

static PyObject *built_list(PyObject *nodes, PyObject *arrays, Py_ssize_t n, int depth)
{
    Py_ssize_t size = PyList_Size(nodes);
    PyObject *made = PyList_New(size);
    for (Py_ssize_t i = 0; made && i < size; i++) {
        PyObject *element = built(PyList_GetItem(nodes, i), arrays, n, depth);
        if (element == NULL || element == Py_NotImplemented) {
            Py_DECREF(made);
            return element;
        }
        PyList_SetItem(made, i, element);
    }
    return made;
}

static PyObject *built_dict(PyObject *keys, PyObject *values)
{
    Py_ssize_t n = PyList_Size(keys);
    PyObject *made = PyDict_New();
    for (Py_ssize_t i = 0; made && i < n; i++) {
        PyObject *key = PyList_GetItem(keys, i);
        if (!PyUnicode_CheckExact(key) && !is_int64(key)) {
            Py_DECREF(made);
            return declined();
        }
        if (PyDict_SetItem(made, key, PyList_GetItem(values, i)) < 0)
            Py_CLEAR(made);
    }
    if (made && PyDict_Size(made) != n) { /* one is there twice */
        Py_DECREF(made);
        return declined();
    }
    return made;
}

static PyObject *built(PyObject *x, PyObject *arrays, Py_ssize_t n, int depth)
{
    if (PyLong_CheckExact(x)) {
        int overflow;
        long long index = PyLong_AsLongLongAndOverflow(x, &overflow);
        return overflow || index < 0 || index >= n ? declined() : PySequence_GetItem(arrays, (Py_ssize_t)index);
    }
    if (stands_for_itself(x))
        return Py_NewRef(x);
    Py_ssize_t size = PyList_CheckExact(x) ? PyList_Size(x) : 0;
    PyObject *tag = size ? PyList_GetItem(x, 0) : NULL, *held = size ? PyList_GetItem(x, size - 1) : NULL;
    if (tag == NULL || !PyUnicode_CheckExact(tag))
        return declined();
    if (size == 2 && PyUnicode_CompareWithASCIIString(tag, "i") == 0)
        return is_int64(held) ? Py_NewRef(held) : declined();
    bool list = PyUnicode_CompareWithASCIIString(tag, "l") == 0;
    bool tuple = PyUnicode_CompareWithASCIIString(tag, "t") == 0;
    bool dict = PyUnicode_CompareWithASCIIString(tag, "d") == 0;
    PyObject *keys = dict && size == 3 ? PyList_GetItem(x, 1) : NULL;
    if (depth >= DEPTH_MOST || !PyList_CheckExact(held) || !(dict ? keys != NULL : (list || tuple) && size == 2) ||
        (dict && (!PyList_CheckExact(keys) || PyList_Size(keys) != PyList_Size(held))))
        return declined();
    PyObject *elements = built_list(held, arrays, n, depth + 1), *made;
    if (elements == NULL || elements == Py_NotImplemented || list)
        return elements;
    made = dict ? built_dict(keys, elements) : PyList_AsTuple(elements);
    Py_DECREF(elements);
    return made;
}

/* unflatten(described, arrays): the tree, or NotImplemented if Python has to look at it */
static PyObject *unflatten(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n)
{
    Py_ssize_t size = xp_arity("unflatten", n, 2, 2) < 0 ? -1 : PySequence_Size(args[1]);
    return size < 0 ? NULL : built(args[0], args[1], size, 0);
}

static PyMethodDef functions[] = {
    {"flatten", XP_FAST(flatten), METH_FASTCALL, NULL},
    {"unflatten", XP_FAST(unflatten), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

int xp_init_containers(PyObject *module) { return PyModule_AddFunctions(module, functions); }
