/* A driver's calls for many allocations at one go: between two of them no Python runs, and other threads may. */
#include "objects.h"

#define XP_DRIVER_HANDLE 64 /* bytes of a driver's handle of an allocation, which its calls take by value */
#define XP_PATIENCE 64      /* calls between two looks at the signals */

typedef struct {
    char raw[XP_DRIVER_HANDLE];
} driver_handle;
typedef int (*opens)(uint64_t *address, driver_handle handle, unsigned flags);
typedef int (*tells)(void *value, int attribute, uint64_t address);

typedef struct {
    uint64_t address, nbytes;
} opened;

/* open_handles(open, flags, ask, attribute, handles, into): see _native.pyi */
static PyObject *open_handles(PyObject *Py_UNUSED(m), PyObject *const *args, Py_ssize_t n)
{
    uint64_t open, ask;
    uint32_t flags;
    int attribute, code = 0;
    Py_buffer handles, into;
    if (xp_arity("open_handles", n, 6, 6) < 0 || xp_as_u64(args[0], &open) < 0 || xp_as_u32(args[1], &flags) < 0 ||
        xp_as_u64(args[2], &ask) < 0 || xp_as_int(args[3], &attribute) < 0 ||
        PyObject_GetBuffer(args[4], &handles, PyBUF_SIMPLE) < 0)
        return NULL;
    if (PyObject_GetBuffer(args[5], &into, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&handles);
        return NULL;
    }
    Py_ssize_t count = handles.len / XP_DRIVER_HANDLE, done = 0;
    bool fits = handles.len % XP_DRIVER_HANDLE == 0 && into.len == count * (Py_ssize_t)sizeof(opened);
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "open_handles(): 64 bytes for each handle, and 16 for what comes of it");
    bool going = fits;
    while (going && done < count && code == 0) {
        Py_ssize_t end = count - done > XP_PATIENCE ? done + XP_PATIENCE : count;
        Py_BEGIN_ALLOW_THREADS
        for (; done < end; done++) {
            driver_handle handle;
            opened found = {0, UINT64_MAX};
            memcpy(&handle, (const char *)handles.buf + done * XP_DRIVER_HANDLE, sizeof handle);
            code = ((opens)(uintptr_t)open)(&found.address, handle, flags);
            if (code)
                break;
            if (((tells)(uintptr_t)ask)(&found.nbytes, attribute, found.address))
                found.nbytes = UINT64_MAX;
            memcpy((char *)into.buf + done * sizeof found, &found, sizeof found);
        }
        Py_END_ALLOW_THREADS
        going = PyErr_CheckSignals() == 0;
    }
    PyBuffer_Release(&handles);
    PyBuffer_Release(&into);
    return going ? PyLong_FromLong(code) : NULL;
}

static PyMethodDef functions[] = {
    {"open_handles", XP_FAST(open_handles), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

int xp_init_allocations(PyObject *module) { return PyModule_AddFunctions(module, functions); }
