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

static void exposure_end(PyObject *self) { xp_exposure_end(exposure_in(self)); }

XP_LIFE(exposure, .end = exposure_end, .fixed = XP_OBJECTS(xp_exposure_object, prepared))

/* free(): see _native.pyi */
static PyObject *exposure_free(PyObject *self, PyObject *Py_UNUSED(a))
{
    int state = XP_UNLOCKED(xp_exposure_state(exposure_in(self)));
    if (state == XP_EXPOSED_FOREVER)
        Py_RETURN_NONE;
    return PyBool_FromLong(state == XP_EXPOSED_NOT);
}

XP_METHOD(exposure_spoil, XP_NONE_BY(xp_exposure_spoil(exposure_in(self))))

XP_TYPE(spec, "Exposure", xp_exposure_object, XP_WITH_GC | Py_TPFLAGS_BASETYPE, {Py_tp_new, exposure_new},
        XP_LIFE_SLOTS(exposure),
        XP_METHODS({"free", exposure_free, METH_NOARGS, NULL},
                   {"spoil", exposure_spoil, METH_NOARGS, NULL}),
        XP_FIELDS({"prepared", T_OBJECT, offsetof(xp_exposure_object, prepared), 0, NULL},
                  {"serial", T_ULONGLONG, offsetof(xp_exposure_object, serial), 0, NULL}))

XP_PART(exposure, NULL, XP_KEEP(spec, exposure))
