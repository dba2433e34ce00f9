/* The warden's functions for Python. */
#include "objects.h"

#include <stdlib.h>

static PyObject *notification_fd(PyObject *Py_UNUSED(m), PyObject *Py_UNUSED(a))
{
    int fd, error;
    Py_BEGIN_ALLOW_THREADS
    fd = xp_notification_fd();
    error = errno;
    Py_END_ALLOW_THREADS
    return fd < 0 ? xp_oserror_of(error, "eventfd") : PyLong_FromLong(fd);
}

static PyObject *due(PyObject *Py_UNUSED(m), PyObject *Py_UNUSED(a))
{
    xp_node *list = XP_UNLOCKED(xp_due());
    PyObject *tokens = PyList_New(0);
    while (list) {
        xp_node *node = list;
        list = node->next;
        xp_append(&tokens, PyLong_FromUnsignedLongLong(node->token));
        free(node);
    }
    return tokens;
}

/* The warden belongs to the process: it continues when a sub-interpreter ends. */
static PyObject *close_warden(PyObject *Py_UNUSED(m), PyObject *Py_UNUSED(a))
{
    bool main = PyInterpreterState_GetID(PyInterpreterState_Get()) == 0;
    Py_BEGIN_ALLOW_THREADS
    if (main)
        xp_loop_stop();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* start_warden(): whether it runs */
XP_METHOD(start_warden, PyBool_FromLong(XP_UNLOCKED(xp_loop_start()) == 0))

static int say_robbed(void *Py_UNUSED(arg))
{
    if (PyErr_WarnEx(PyExc_RuntimeWarning, XP_ROBBED_TEXT, 1) < 0)
        PyErr_WriteUnraisable(NULL);
    return 0;
}

static void on_robbed(void) { Py_AddPendingCall(say_robbed, NULL); /* the warden has no GIL */ }

static PyMethodDef functions[] = {
    {"notification_fd", notification_fd, METH_NOARGS, NULL},
    {"due", due, METH_NOARGS, NULL},
    {"start_warden", start_warden, METH_NOARGS, NULL},
    {"close_warden", close_warden, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int xp_init_warden(PyObject *module)
{
    xp_engine_init();
    xp_on_robbed = on_robbed;
    return PyModule_AddFunctions(module, functions);
}
