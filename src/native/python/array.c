/* ObjectBase: the base of all objects that can be closed, such as `Event`. BufferBase: the base of objects with a
 * buffer, such as `Memory`. Their buffers are those of the Span that the method `_span` returns. ArrayState: the
 * base of `SharedArray`. */
#include "array.h"

/* --- ObjectBase --------------------------------------------------------------------------------------------------- */

XP_LIFE(object, .weakrefs = offsetof(xp_object_state, weakrefs), .cleared = XP_OBJECTS(xp_object_state, held, pickled))

static PyMemberDef object_members[] = {XP_WEAKREFS(xp_object_state), {NULL, 0, 0, 0, NULL}};
static PyType_Slot object_slots[] = {
    XP_LIFE_SLOTS(object), {Py_tp_members, object_members}, {0, NULL},
};
static PyType_Spec object_spec = {"xpushare._native.ObjectBase", sizeof(xp_object_state), 0,
                                  XP_WITH_GC | Py_TPFLAGS_BASETYPE, object_slots};

XP_READS_OBJECT(held_by, xp_object_state, held)
XP_READS_OBJECT(pickle_of, xp_object_state, pickled)
XP_WRITES(set_pickle, xp_object_state, pickled, T_OBJECT)

/* usable(object): its resource, or None if it is closed or the process has forked since */
static PyObject *usable(PyObject *self, PyObject *none)
{
    return ((xp_object_state *)self)->forks == XP_RELAXED(&xp_fork_count) ? held_by(self, none) : Py_NewRef(Py_None);
}

XP_WRITES(set_held, xp_object_state, held, T_OBJECT)

/* hold(object, held, forks) */
static PyObject *hold(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    if (xp_arity("hold", n, 2, 2) < 0 || xp_as_u32(args[1], &((xp_object_state *)self)->forks) < 0)
        return NULL;
    return set_held(self, args[0]);
}

/* give_up(object): it has no resource from now on */
static PyObject *give_up(PyObject *self, PyObject *Py_UNUSED(none))
{
    PyObject *done = set_held(self, Py_None);
    Py_XDECREF(done);
    return done ? set_pickle(self, Py_None) : NULL;
}

static PyMethodDef on_objects[] = {
    {"held_by", held_by, METH_NOARGS, NULL},     {"usable", usable, METH_NOARGS, NULL},
    {"hold", XP_FAST(hold), METH_FASTCALL, NULL}, {"give_up", give_up, METH_NOARGS, NULL},
    {"pickle_of", pickle_of, METH_NOARGS, NULL}, {"set_pickle", set_pickle, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

/* --- BufferBase --------------------------------------------------------------------------------------------------- */

XP_LIFE(state, .base = &object_life, .cleared = XP_OBJECTS(xp_buffer_state, pinned))

static int state_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    view->obj = NULL;
    PyObject *span = PyObject_CallMethod(self, "_span", NULL);
    int rc = span ? xp_span_buffer(span, view, flags) : -1;
    Py_XDECREF(span);
    return rc;
}

/* Never called: the exporter of a view is the Span. Without this slot, NumPy's frombuffer would drop the view and
 * keep this object. */
static void state_releasebuffer(PyObject *Py_UNUSED(self), Py_buffer *Py_UNUSED(view)) {}

static PyObject *state_span(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(none))
{
    PyErr_SetString(PyExc_NotImplementedError, "_span() is for sub-classes to define");
    return NULL;
}

static PyMethodDef state_methods[] = {{"_span", state_span, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyType_Slot state_slots[] = {
    XP_LIFE_SLOTS(state), {Py_bf_getbuffer, state_getbuffer}, {Py_bf_releasebuffer, state_releasebuffer},
    {Py_tp_methods, state_methods}, {0, NULL},
};
static PyType_Spec state_spec = {"xpushare._native.BufferBase", sizeof(xp_buffer_state), 0,
                                 XP_WITH_GC | Py_TPFLAGS_BASETYPE, state_slots};

XP_WRITES(pin, xp_buffer_state, pinned, T_OBJECT)

static PyMethodDef on_buffers[] = {{"pin", pin, METH_O, NULL}, {NULL, NULL, 0, NULL}};

/* --- ArrayState --------------------------------------------------------------------------------------------------- */

XP_LIFE(array, .base = &state_life, .cleared = XP_OBJECTS(xp_array_state, shape, strides, dtype, message, order))

PyObject *xp_array_new(const xp_types *types, PyObject *held, uint32_t forks, PyObject *shape, PyObject *strides,
                       PyObject *dtype, int64_t offset, PyObject *message, PyObject *order)
{
    bool good = held && shape && strides && dtype;
    xp_array_state *self = good ? (xp_array_state *)xp_made(types->shared_array, "SharedArray") : NULL;
    if (self) {
        self->base.base.held = held;
        self->base.base.forks = forks;
        self->shape = shape;
        self->strides = strides;
        self->dtype = dtype;
        self->offset = offset;
        self->message = message;
        self->order = order;
        return (PyObject *)self;
    }
    PyObject *all[] = {held, shape, strides, dtype, message, order};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XDECREF(all[i]);
    return NULL;
}

xp_array_state *xp_array_of(const xp_types *types, PyObject *object)
{
    xp_array_state *self = (xp_array_state *)object;
    return Py_TYPE(object) == types->shared_array && self->dtype && self->base.base.held ? self : NULL;
}

static PyType_Slot array_slots[] = {XP_LIFE_SLOTS(array), {0, NULL}};
static PyType_Spec array_spec = {"xpushare._native.ArrayState", sizeof(xp_array_state), 0,
                                 XP_WITH_GC | Py_TPFLAGS_BASETYPE, array_slots};

XP_READS_OBJECT(array_shape, xp_array_state, shape)
XP_READS_OBJECT(array_strides, xp_array_state, strides)
XP_READS_OBJECT(array_dtype, xp_array_state, dtype)
XP_READS(array_offset, xp_array_state, offset, T_LONGLONG)
XP_READS_OBJECT(array_message, xp_array_state, message)
XP_READS_OBJECT(array_order, xp_array_state, order)
XP_WRITES(set_array_order, xp_array_state, order, T_OBJECT)

static PyMethodDef on_arrays[] = {
    {"array_shape", array_shape, METH_NOARGS, NULL},     {"array_strides", array_strides, METH_NOARGS, NULL},
    {"array_dtype", array_dtype, METH_NOARGS, NULL},     {"array_offset", array_offset, METH_NOARGS, NULL},
    {"array_message", array_message, METH_NOARGS, NULL}, {"array_order", array_order, METH_NOARGS, NULL},
    {"set_array_order", set_array_order, METH_O, NULL},  {NULL, NULL, 0, NULL},
};

/* --- functions ---------------------------------------------------------------------------------------------------- */

static PyObject *given(PyObject *value) { return value == Py_None ? NULL : Py_NewRef(value); }

/* array(held, forks, shape, strides, dtype, offset, message, order): a SharedArray. The arguments are not checked. */
static PyObject *array(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    uint32_t forks;
    long long offset;
    if (xp_arity("array", n, 8, 8) < 0 || xp_as_u32(args[1], &forks) < 0)
        return NULL;
    offset = PyLong_AsLongLong(args[5]);
    if ((offset == -1 && PyErr_Occurred()) || !PyTuple_Check(args[2]) || !PyTuple_Check(args[3])) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "shape and strides are tuples");
        return NULL;
    }
    return xp_array_new(xp_types_of(module), Py_NewRef(args[0]), forks, Py_NewRef(args[2]), Py_NewRef(args[3]),
                        Py_NewRef(args[4]), offset, given(args[6]), given(args[7]));
}

static PyMethodDef functions[] = {
    {"array", XP_FAST(array), METH_FASTCALL, NULL}, {NULL, NULL, 0, NULL},
};

int xp_init_array(PyObject *module)
{
    PyTypeObject *object = NULL, *buffer = NULL;
    int rc = PyModule_AddFunctions(module, functions);
    rc = rc < 0 ? -1 : xp_add_base(module, &object_spec, NULL, on_objects, &object);
    rc = rc < 0 ? -1 : xp_add_base(module, &state_spec, object, on_buffers, &buffer);
    rc = rc < 0 ? -1 : xp_add_base(module, &array_spec, buffer, on_arrays, &xp_types_of(module)->array_base);
    Py_XDECREF((PyObject *)object);
    Py_XDECREF((PyObject *)buffer);
    return rc;
}
