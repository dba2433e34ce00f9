/* The functions of an exporter for Python. */
#include "objects.h"

#include <fcntl.h>

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
    if (good)
        good = XP_UNLOCKED(xp_serve((xp_table *)(uintptr_t)address, table_fd, d, file, &error));
    if (!good)
        return xp_raise(&error);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"serve", XP_FAST(serve), METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

/* An xp_make_fd: `object` is a descriptor of this process, which the export holds. */
static int duplicate(int *fd, uint64_t object, int64_t Py_UNUSED(a), uint64_t Py_UNUSED(b))
{
    *fd = fcntl((int)object, F_DUPFD_CLOEXEC, 3);
    return *fd < 0 ? errno : 0;
}

int xp_init_serve(PyObject *module)
{
    PyObject *address = PyLong_FromUnsignedLongLong((uintptr_t)duplicate);
    int rc = address ? PyModule_AddObjectRef(module, "DUPLICATE", address) : -1;
    Py_XDECREF(address);
    return rc < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
