/* A driver's calls about allocations, by the addresses of its functions. The calls for many allocations run no
 * Python in between. */
#include "objects.h"

#define XP_DRIVER_HANDLE 64 /* bytes of a driver's handle of an allocation, which its calls take by value */
#define XP_ASKED_MOST 16    /* attributes */

typedef struct {
    char raw[XP_DRIVER_HANDLE];
} driver_handle;
typedef int (*queries)(uint64_t handle);
typedef int (*tells)(void *value, int attribute, uint64_t address);
typedef int (*tells_all)(unsigned count, const int *attributes, void **values, uint64_t address);
typedef int (*names)(driver_handle *handle, uint64_t address);

/* --- functions ---------------------------------------------------------------------------------------------------- */

/* query(function, handle): see _native.pyi */
static PyObject *query(PyObject *Py_UNUSED(m), PyObject *const *args, Py_ssize_t n)
{
    uint64_t function, handle;
    int code;
    if (xp_arity("query", n, 2, 2) < 0 || xp_as_u64(args[0], &function) < 0 || xp_as_u64(args[1], &handle) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    code = ((queries)(uintptr_t)function)(handle);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(code);
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
    {"query", XP_FAST(query), METH_FASTCALL, NULL},
    {"ask", XP_FAST(ask), METH_FASTCALL, NULL},
    {"ask_all", XP_FAST(ask_all), METH_FASTCALL, NULL},
    {"name_handles", XP_FAST(name_handles), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

int xp_init_allocations(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
