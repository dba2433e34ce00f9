/* Exposure: which other processes may have memory that this process exported, for Python. */
#include "exports.h"

static xp_exposure *exposure_in(PyObject *self) { return &((xp_exposure_object *)self)->exposure; }

static PyObject *exposure_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    PyObject *self = PyType_GenericAlloc(type, 0);
    if (self)
        xp_exposure_begin(exposure_in(self));
    return self;
}

static int exposure_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((xp_exposure_object *)self)->prepared);
    return 0;
}

static void exposure_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    xp_exposure_end(exposure_in(self));
    Py_XDECREF(((xp_exposure_object *)self)->prepared);
    xp_free(self);
}

/* free(): see _native.pyi */
static PyObject *exposure_free(PyObject *self, PyObject *Py_UNUSED(a))
{
    int state;
    Py_BEGIN_ALLOW_THREADS
    state = xp_exposure_state(exposure_in(self));
    Py_END_ALLOW_THREADS
    if (state == XP_EXPOSED_FOREVER)
        Py_RETURN_NONE;
    return PyBool_FromLong(state == XP_EXPOSED_NOT);
}

static PyObject *exposure_spoil(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_exposure_spoil(exposure_in(self));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"free", exposure_free, METH_NOARGS, NULL},
    {"spoil", exposure_spoil, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef members[] = {
    {"prepared", T_OBJECT, offsetof(xp_exposure_object, prepared), 0, NULL},
    {"serial", T_ULONGLONG, offsetof(xp_exposure_object, serial), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, exposure_new},   {Py_tp_dealloc, exposure_dealloc}, {Py_tp_traverse, exposure_traverse},
    {Py_tp_methods, methods},    {Py_tp_members, members},          {0, NULL},
};
static PyType_Spec spec = {"xpushare._native.Exposure", sizeof(xp_exposure_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

int xp_init_exposure(PyObject *module)
{
    return xp_keep_type(module, &spec, &xp_types_of(module)->exposure);
}
