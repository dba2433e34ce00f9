/* The functions of an exporter for Python. */
#include "objects.h"

#include <stdlib.h>

static PyObject *serve(PyObject *Py_UNUSED(m), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"table_address", "table_fd", "domain", "file", NULL};
    PyObject *o_address, *o_domain;
    uint64_t address;
    int table_fd;
    const char *file = NULL;
    Py_ssize_t file_size;
    xp_domain *d;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OiO|z#", names, &o_address, &table_fd, &o_domain, &file, &file_size) ||
        xp_as_u64(o_address, &address) < 0 || (d = xp_domain_of(o_domain)) == NULL)
        return NULL;
    xp_error error = {0, "not the table of this process and its own domain"};
    bool good = address >= XP_LEAST_ADDRESS && address % 8 == 0;
    if (good) {
        Py_BEGIN_ALLOW_THREADS
        good = xp_serve((xp_table *)(uintptr_t)address, table_fd, d, file, &error);
        Py_END_ALLOW_THREADS
    }
    if (!good)
        return xp_raise(&error);
    Py_RETURN_NONE;
}

static PyObject *withdraw(PyObject *Py_UNUSED(m), PyObject *const *args, Py_ssize_t n)
{
    uint64_t address;
    uint32_t reason;
    if (xp_arity("withdraw", n, 2, 2) < 0 || xp_as_u64(args[0], &address) < 0 || xp_as_u32(args[1], &reason) < 0)
        return NULL;
    if (address < XP_LEAST_ADDRESS || address % 8) {
        PyErr_SetString(PyExc_ValueError, "no entry's address");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    xp_withdraw((xp_entry *)(uintptr_t)address, reason);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *add_offer(PyObject *Py_UNUSED(m), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"entry", "generation", "function", "objects", "a", "b", NULL};
    PyObject *o_entry, *o_generation, *o_function, *objects, *o_a, *o_b;
    uint64_t generation, function, b;
    uint32_t entry;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOO", names, &o_entry, &o_generation, &o_function, &objects,
                                     &o_a, &o_b) ||
        xp_as_u32(o_entry, &entry) < 0 || xp_as_u64(o_generation, &generation) < 0 ||
        xp_as_u64(o_function, &function) < 0 || xp_as_u64(o_b, &b) < 0)
        return NULL;
    int64_t a = PyLong_AsLongLong(o_a);
    Py_ssize_t count = a == -1 && PyErr_Occurred() ? -1 : PySequence_Size(objects);
    if (count < 0)
        return NULL;
    if (entry >= XP_ENTRIES || generation == 0 || function < XP_LEAST_ADDRESS || count == 0 || count > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "no such entry, generation or function, or no objects");
        return NULL;
    }
    xp_offer *o = malloc(sizeof *o + (size_t)count * sizeof *o->objects);
    if (o == NULL)
        return PyErr_NoMemory();
    *o = (xp_offer){NULL, entry, (uint32_t)count, generation, (xp_make_fd)(uintptr_t)function, a, b};
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(objects, i);
        int rc = item ? xp_as_u64(item, &o->objects[i]) : -1;
        Py_XDECREF(item);
        if (rc < 0) {
            free(o);
            return NULL;
        }
    }
    Py_BEGIN_ALLOW_THREADS
    xp_make_offer(o);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"serve", XP_FAST(serve), METH_VARARGS | METH_KEYWORDS, NULL},
    {"withdraw", XP_FAST(withdraw), METH_FASTCALL, NULL},
    {"offer", XP_FAST(add_offer), METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

int xp_init_serve(PyObject *module) { return PyModule_AddFunctions(module, functions); }
