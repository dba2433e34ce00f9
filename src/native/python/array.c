/* BufferBase: the base of `Memory`, and, by ArrayState, of `SharedArray`. Their buffers are those of the Span that the
 * method `_span` returns. */
#include "array.h"

/* --- BufferBase --------------------------------------------------------------------------------------------------- */

static int state_traverse(PyObject *object, visitproc visit, void *arg)
{
    xp_buffer_state *self = (xp_buffer_state *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->held);
    Py_VISIT(self->pickled);
    Py_VISIT(self->pinned);
    return 0;
}

static int state_clear(PyObject *object)
{
    xp_buffer_state *self = (xp_buffer_state *)object;
    Py_CLEAR(self->held);
    Py_CLEAR(self->pickled);
    Py_CLEAR(self->pinned);
    return 0;
}

static void state_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    xp_clear_weakrefs(object, ((xp_buffer_state *)object)->weakrefs);
    state_clear(object);
    xp_free(object);
}

static int state_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    view->obj = NULL;
    PyObject *span = PyObject_CallMethod(self, "_span", NULL);
    int rc = span ? xp_span_buffer(span, view, flags) : -1;
    Py_XDECREF(span);
    return rc;
}

/* Never called: the exporter that a view names is the Span. Without this slot, NumPy's frombuffer would drop the view
 * and keep this object. */
static void state_releasebuffer(PyObject *Py_UNUSED(self), Py_buffer *Py_UNUSED(view)) {}

static PyObject *state_span(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(none))
{
    PyErr_SetString(PyExc_NotImplementedError, "_span() is for sub-classes to define");
    return NULL;
}

static PyMethodDef state_methods[] = {{"_span", state_span, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyMemberDef state_members[] = {
    XP_WEAKREFS(xp_buffer_state),
    {"held", T_OBJECT, offsetof(xp_buffer_state, held), 0, NULL},
    {"pickled", T_OBJECT, offsetof(xp_buffer_state, pickled), 0, NULL},
    {"pinned", T_OBJECT, offsetof(xp_buffer_state, pinned), 0, NULL},
    {"forks", T_UINT, offsetof(xp_buffer_state, forks), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot state_slots[] = {
    {Py_tp_dealloc, state_dealloc},     {Py_tp_traverse, state_traverse},
    {Py_tp_clear, state_clear},         {Py_bf_getbuffer, state_getbuffer},
    {Py_bf_releasebuffer, state_releasebuffer}, {Py_tp_members, state_members},
    {Py_tp_methods, state_methods},     {0, NULL},
};
static PyType_Spec state_spec = {"xpushare._native.BufferBase", sizeof(xp_buffer_state), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, state_slots};

/* --- ArrayState --------------------------------------------------------------------------------------------------- */

static int array_traverse(PyObject *object, visitproc visit, void *arg)
{
    xp_array_state *self = (xp_array_state *)object;
    Py_VISIT(self->shape);
    Py_VISIT(self->strides);
    Py_VISIT(self->dtype);
    Py_VISIT(self->message);
    Py_VISIT(self->order);
    return state_traverse(object, visit, arg);
}

static int array_clear(PyObject *object)
{
    xp_array_state *self = (xp_array_state *)object;
    Py_CLEAR(self->shape);
    Py_CLEAR(self->strides);
    Py_CLEAR(self->dtype);
    Py_CLEAR(self->message);
    Py_CLEAR(self->order);
    return state_clear(object);
}

static void array_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    xp_clear_weakrefs(object, ((xp_buffer_state *)object)->weakrefs);
    array_clear(object);
    xp_free(object);
}

PyObject *xp_array_new(const xp_types *types, PyObject *held, uint32_t forks, PyObject *shape, PyObject *strides,
                       PyObject *dtype, int64_t offset, PyObject *message, PyObject *order)
{
    bool good = held && shape && strides && dtype;
    xp_array_state *self = good ? (xp_array_state *)xp_made(types->shared_array, "SharedArray") : NULL;
    if (self) {
        self->base.held = held;
        self->base.forks = forks;
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
    return Py_TYPE(object) == types->shared_array && self->dtype && self->base.held ? self : NULL;
}

static PyMemberDef array_members[] = {
    {"lengths", T_OBJECT, offsetof(xp_array_state, shape), READONLY, NULL},
    {"steps", T_OBJECT, offsetof(xp_array_state, strides), READONLY, NULL},
    {"kind", T_OBJECT, offsetof(xp_array_state, dtype), READONLY, NULL},
    {"message", T_OBJECT, offsetof(xp_array_state, message), READONLY, NULL},
    {"order", T_OBJECT, offsetof(xp_array_state, order), 0, NULL},
    {"first", T_LONGLONG, offsetof(xp_array_state, offset), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot array_slots[] = {
    {Py_tp_dealloc, array_dealloc}, {Py_tp_traverse, array_traverse}, {Py_tp_clear, array_clear},
    {Py_tp_members, array_members}, {0, NULL},
};
static PyType_Spec array_spec = {"xpushare._native.ArrayState", sizeof(xp_array_state), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, array_slots};

/* --- functions ---------------------------------------------------------------------------------------------------- */

static PyObject *given(PyObject *value) { return value == Py_None ? NULL : Py_NewRef(value); }

/* array(held, forks, shape, strides, dtype, offset, message, order): a SharedArray, whose arguments are not checked */
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
    xp_types *types = xp_types_of(module);
    PyTypeObject *state = NULL;
    int rc = PyModule_AddFunctions(module, functions) < 0 ? -1 : xp_keep_type(module, &state_spec, &state);
    if (rc == 0) {
        types->array_base = (PyTypeObject *)PyType_FromModuleAndSpec(module, &array_spec, (PyObject *)state);
        rc = types->array_base ? PyModule_AddType(module, types->array_base) : -1;
    }
    Py_XDECREF((PyObject *)state);
    return rc;
}
