/* flatten, unflatten: convert a tree of arrays to JSON's types, and back. Python is asked about each object that is no
 * array and no container of Python's own, and makes the errors. */
#include "objects.h"

#define DEPTH_MOST 64

static bool is_int64(PyObject *x)
{
    int overflow = 0;
    if (!PyLong_CheckExact(x))
        return false;
    PyLong_AsLongLongAndOverflow(x, &overflow);
    return overflow == 0;
}

static bool is_key(PyObject *x) { return PyUnicode_CheckExact(x) || is_int64(x); }

static bool stands_for_itself(PyObject *x)
{
    return x == Py_None || PyUnicode_CheckExact(x) || PyBool_Check(x) || PyFloat_CheckExact(x);
}

typedef struct {
    PyObject *arrays, *indices; /* a list; the number of each by its address */
    PyObject *known;            /* by the address of a container: it, its node, its bytes and the depth below it */
    PyObject *path;             /* of the error: a list of keys, the last one first */
    PyObject *ask;
    PyTypeObject *scalar; /* of NumPy's scalars; NULL: not loaded */
    Py_ssize_t left;      /* how many bytes the message may still have */
    int deepest;          /* of the containers since the one that is looked at began */
} walk;

static PyObject *ask(const walk *w, const char *what, PyObject *x, PyObject *node)
{
    return PyObject_CallFunction(w->ask, "sOO", what, x, node);
}

static PyObject *flat(walk *w, PyObject *x, int depth);

/* Return the nodes of what a container holds at these keys, or else at its indices. */
static PyObject *flat_list(walk *w, PyObject *held, PyObject *keys, int depth)
{
    Py_ssize_t n = PyList_Size(held), named = keys ? PyList_Size(keys) : 0;
    PyObject *nodes = PyList_New(n);
    for (Py_ssize_t i = 0; nodes && i < n; i++) {
        PyObject *node = flat(w, PyList_GetItem(held, i), depth);
        if (node) {
            PyList_SetItem(nodes, i, node);
            continue;
        }
        Py_CLEAR(nodes);
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        PyObject *key = i < named ? Py_NewRef(PyList_GetItem(keys, i)) : PyLong_FromSsize_t(i - named);
        if (key == NULL || PyList_Append(w->path, key) < 0)
            PyErr_Clear();
        Py_XDECREF(key);
        PyErr_Restore(type, value, traceback);
    }
    return nodes;
}

static PyObject *flat_content(walk *w, PyObject *x, int depth)
{
    bool dict = PyDict_Check(x);
    PyObject *keys = dict ? PyMapping_Keys(x) : NULL, *node = NULL;
    if (dict && keys == NULL)
        return NULL;
    for (Py_ssize_t i = 0; dict && i < PyList_Size(keys); i++)
        if (!is_key(PyList_GetItem(keys, i))) {
            node = ask(w, "key", PyList_GetItem(keys, i), Py_None);
            Py_DECREF(keys);
            return node;
        }
    PyObject *held = dict ? PyMapping_Values(x) : PySequence_List(x);
    PyObject *nodes = held ? flat_list(w, held, keys, depth) : NULL;
    if (nodes)
        node = dict ? Py_BuildValue("[sOO]", "d", keys, nodes)
                    : Py_BuildValue("[sO]", PyList_Check(x) ? "l" : "t", nodes);
    if (node && !PyDict_CheckExact(x) && !PyList_CheckExact(x) && !PyTuple_CheckExact(x)) {
        PyObject *other = ask(w, "subclass", x, node);
        Py_DECREF(node);
        node = other;
    }
    Py_XDECREF(keys);
    Py_XDECREF(held);
    Py_XDECREF(nodes);
    return node;
}

/* A container that occurs several times is converted once, since the number of paths to it may be exponential. An
 * address is unique only while its object lives, so `known` holds even one that a subclass made when it was read. */
static PyObject *flat_container(walk *w, PyObject *x, int depth)
{
    PyObject *id = PyLong_FromVoidPtr(x), *known = id ? PyDict_GetItemWithError(w->known, id) : NULL;
    PyObject *held, *node = NULL;
    Py_ssize_t nbytes = known || id == NULL || PyErr_Occurred() ? 0 : 2 * PyObject_Size(x);
    int below = 0, outside = w->deepest;
    if (!PyErr_Occurred() && (known == NULL || PyArg_ParseTuple(known, "OOni", &held, &node, &nbytes, &below))) {
        Py_ssize_t before = w->left -= nbytes;
        w->deepest = depth + below;
        if (w->left < 0)
            node = ask(w, "large", x, Py_None);
        else if (depth + below >= DEPTH_MOST)
            node = ask(w, "deep", x, Py_None);
        else if (known)
            Py_INCREF(node);
        else if ((node = flat_content(w, x, depth + 1)) != NULL) {
            known = Py_BuildValue("(OOni)", x, node, nbytes + before - w->left, w->deepest - depth);
            if (known == NULL || PyDict_SetItem(w->known, id, known) < 0)
                Py_CLEAR(node);
            Py_XDECREF(known);
        }
        w->deepest = outside > w->deepest ? outside : w->deepest;
    }
    Py_XDECREF(id);
    return node;
}

static PyObject *flat_array(walk *w, PyObject *x)
{
    PyObject *id = PyLong_FromVoidPtr(x), *known = id ? PyDict_GetItemWithError(w->indices, id) : NULL, *index = NULL;
    if (known)
        index = Py_NewRef(known);
    else if (id && !PyErr_Occurred() && (index = PyLong_FromSsize_t(PyList_Size(w->arrays))) != NULL &&
             (PyDict_SetItem(w->indices, id, index) < 0 || PyList_Append(w->arrays, x) < 0))
        Py_CLEAR(index);
    Py_XDECREF(id);
    return index;
}

static PyObject *flat(walk *w, PyObject *x, int depth)
{
    if (stands_for_itself(x))
        return Py_NewRef(x);
    if (is_int64(x))
        return Py_BuildValue("[sO]", "i", x);
    if (PyDict_Check(x) || PyList_Check(x) || PyTuple_Check(x))
        return flat_container(w, x, depth);
    if (!PyLong_CheckExact(x) && !PyFloat_Check(x) && !PyBytes_Check(x) && !PyComplex_Check(x) &&
        !(w->scalar && PyType_IsSubtype(Py_TYPE(x), w->scalar)))
        return flat_array(w, x);
    PyObject *node = ask(w, "leaf", x, Py_None);
    PyObject *last = node && PyList_Check(node) ? PyList_GetItem(node, PyList_Size(node) - 1) : NULL;
    Py_ssize_t n = last && PyUnicode_Check(last) ? PyUnicode_GetLength(last) : 0;
    for (w->left -= n / 4 * 3; n && PyUnicode_ReadChar(last, n - 1) == '='; n--)
        w->left++; /* Base64: each of these stands for one byte less */
    if (node && w->left < 0) {
        Py_DECREF(node);
        node = ask(w, "large", x, Py_None);
    }
    return node;
}

/* flatten(tree, most, type of NumPy's scalars or None, ask, path): see _native.pyi */
static PyObject *flatten(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n)
{
    if (xp_arity("flatten", n, 5, 5) < 0)
        return NULL;
    walk w = {.arrays = PyList_New(0), .indices = PyDict_New(), .known = PyDict_New(), .path = args[4], .ask = args[3],
              .scalar = PyType_Check(args[2]) ? (PyTypeObject *)args[2] : NULL, .left = PyLong_AsSsize_t(args[1])};
    PyObject *node = w.arrays && w.indices && w.known && !PyErr_Occurred() ? flat(&w, args[0], 0) : NULL;
    PyObject *found = node ? PyTuple_Pack(2, w.arrays, node) : NULL;
    Py_XDECREF(node);
    Py_XDECREF(w.arrays);
    Py_XDECREF(w.indices);
    Py_XDECREF(w.known);
    return found;
}

typedef struct {
    PyObject *arrays, *make;
    Py_ssize_t n;
} building;

static PyObject *make(const building *b, PyObject *x, PyObject *elements)
{
    return PyObject_CallFunctionObjArgs(b->make, x, elements, NULL);
}

static PyObject *built(const building *b, PyObject *x, int depth);

static PyObject *built_list(const building *b, PyObject *nodes, int depth)
{
    Py_ssize_t size = PyList_Size(nodes);
    PyObject *made = PyList_New(size);
    for (Py_ssize_t i = 0; made && i < size; i++) {
        PyObject *element = built(b, PyList_GetItem(nodes, i), depth);
        if (element == NULL)
            Py_CLEAR(made);
        else
            PyList_SetItem(made, i, element);
    }
    return made;
}

/* Return the dict with these keys, or None if they are no keys of one. */
static PyObject *built_dict(PyObject *keys, PyObject *values)
{
    Py_ssize_t n = PyList_CheckExact(keys) ? PyList_Size(keys) : -1;
    PyObject *made = PyDict_New();
    bool good = n == PyList_Size(values);
    for (Py_ssize_t i = 0; made && good && i < n; i++) {
        PyObject *key = PyList_GetItem(keys, i);
        good = is_key(key);
        if (good && PyDict_SetItem(made, key, PyList_GetItem(values, i)) < 0)
            Py_CLEAR(made);
    }
    if (made && !(good && PyDict_Size(made) == n)) {
        Py_DECREF(made);
        return Py_NewRef(Py_None);
    }
    return made;
}

static bool is_tag(PyObject *x, const char *tag)
{
    return PyUnicode_CheckExact(x) && PyUnicode_CompareWithASCIIString(x, tag) == 0;
}

static PyObject *built(const building *b, PyObject *x, int depth)
{
    if (PyLong_CheckExact(x)) {
        int overflow;
        long long index = PyLong_AsLongLongAndOverflow(x, &overflow);
        return overflow || index < 0 || index >= b->n ? make(b, x, Py_None)
                                                      : PySequence_GetItem(b->arrays, (Py_ssize_t)index);
    }
    if (stands_for_itself(x))
        return Py_NewRef(x);
    Py_ssize_t size = PyList_CheckExact(x) ? PyList_Size(x) : 0;
    PyObject *tag = size ? PyList_GetItem(x, 0) : NULL, *held = size ? PyList_GetItem(x, size - 1) : NULL;
    if (tag && size == 2 && is_tag(tag, "i") && is_int64(held))
        return Py_NewRef(held);
    if (tag == NULL || !PyUnicode_CheckExact(tag) || !PyList_CheckExact(held) || depth >= DEPTH_MOST)
        return make(b, x, Py_None);
    PyObject *elements = built_list(b, held, depth + 1), *made = NULL;
    if (elements && size == 2 && is_tag(tag, "l"))
        return elements;
    if (elements && size == 2 && is_tag(tag, "t"))
        made = PyList_AsTuple(elements);
    else if (elements && size == 3 && is_tag(tag, "d"))
        made = built_dict(PyList_GetItem(x, 1), elements);
    else if (elements)
        made = make(b, x, elements);
    Py_XDECREF(elements);
    if (made != Py_None)
        return made;
    Py_DECREF(made);
    return make(b, x, Py_None);
}

/* unflatten(described, arrays, make): see _native.pyi */
static PyObject *unflatten(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n)
{
    Py_ssize_t size = xp_arity("unflatten", n, 3, 3) < 0 ? -1 : PySequence_Size(args[1]);
    const building b = {args[1], args[2], size};
    return size < 0 ? NULL : built(&b, args[0], 0);
}

XP_PART(containers,
        XP_FUNCTIONS({"flatten", XP_FAST(flatten), METH_FASTCALL, NULL},
                     {"unflatten", XP_FAST(unflatten), METH_FASTCALL, NULL}))
