/* Pinned, Pin: how many buffers and operations use a mapping of a virtual range.
 *
 * The counts change in C, where no signal handler runs: a handler's exception would leave a count wrong for good. */
#include "objects.h"

typedef struct {
    PyObject_HEAD
    uint32_t pins, working;
} xp_pinned;

typedef struct {
    PyObject_HEAD
    PyObject *piece, *mapped; /* what keeps the range open, and a tuple of Pinned */
    uint32_t works;
} xp_pin;

XP_LIFE_PLAIN(pinned, .end = NULL)

XP_TYPE(pinned_spec, "Pinned", xp_pinned, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, {Py_tp_dealloc, pinned_dealloc},
        XP_FIELDS({"pins", T_UINT, offsetof(xp_pinned, pins), READONLY, NULL},
                  {"working", T_UINT, offsetof(xp_pinned, working), READONLY, NULL}))

static xp_pinned *pinned_at(const xp_pin *pin, Py_ssize_t i) { return (xp_pinned *)PyTuple_GetItem(pin->mapped, i); }

static PyObject *pin_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *piece, *mapped;
    if (!PyArg_ParseTuple(args, "OO:Pin", &piece, &mapped))
        return NULL;
    PyTypeObject *pinned = ((xp_types *)PyType_GetModuleState(type))->pinned;
    PyObject *all = PySequence_Tuple(mapped);
    Py_ssize_t n = all ? PyTuple_Size(all) : -1;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!PyObject_TypeCheck(PyTuple_GetItem(all, i), pinned)) {
            PyErr_SetString(PyExc_TypeError, "Pin() takes mappings");
            n = -1;
        }
    xp_pin *pin = n < 0 ? NULL : (xp_pin *)PyType_GenericAlloc(type, 0);
    if (pin == NULL) {
        Py_XDECREF(all);
        return NULL;
    }
    pin->piece = Py_NewRef(piece);
    pin->mapped = all;
    for (Py_ssize_t i = 0; i < n; i++)
        __atomic_fetch_add(&pinned_at(pin, i)->pins, 1, __ATOMIC_SEQ_CST);
    return (PyObject *)pin;
}

static PyObject *pin_works(PyObject *self, PyObject *Py_UNUSED(none))
{
    xp_pin *pin = (xp_pin *)self;
    if (__atomic_exchange_n(&pin->works, 1, __ATOMIC_SEQ_CST) == 0)
        for (Py_ssize_t i = 0; i < PyTuple_Size(pin->mapped); i++)
            __atomic_fetch_add(&pinned_at(pin, i)->working, 1, __ATOMIC_SEQ_CST);
    Py_RETURN_NONE;
}

static void pin_end(PyObject *self)
{
    xp_pin *pin = (xp_pin *)self;
    for (Py_ssize_t i = 0; i < PyTuple_Size(pin->mapped); i++) {
        /* `pins` first: a view is seen where there are more pins than working ones */
        __atomic_fetch_sub(&pinned_at(pin, i)->pins, 1, __ATOMIC_SEQ_CST);
        __atomic_fetch_sub(&pinned_at(pin, i)->working, pin->works, __ATOMIC_SEQ_CST);
    }
}

XP_LIFE(pin, .end = pin_end, .fixed = XP_OBJECTS(xp_pin, piece, mapped))

XP_TYPE(pin_spec, "Pin", xp_pin, XP_WITH_GC, {Py_tp_new, pin_new}, XP_LIFE_SLOTS(pin),
        XP_METHODS({"works", pin_works, METH_NOARGS, NULL}))

XP_PART(pins, NULL, XP_KEEP(pinned_spec, pinned), XP_ADD(pin_spec))
