/* ObjectBase: the base of all objects that can be closed, such as `Event`. BufferBase: the base of objects with a
 * buffer, such as `Memory`. Their buffers are those of the Span that the method `_span` returns. ArrayState: the
 * base of `SharedArray`. */
#include "array.h"

/* --- ObjectBase --------------------------------------------------------------------------------------------------- */

XP_LIFE(object, .weakrefs = offsetof(xp_object_state, weakrefs), .cleared = XP_OBJECTS(xp_object_state, held, exports))

static PyObject *object_usable(PyObject *self, void *Py_UNUSED(c))
{
    bool here = ((xp_object_state *)self)->forks == XP_RELAXED(&xp_fork_count);
    return here ? xp_get_object(self, (void *)offsetof(xp_object_state, held)) : Py_NewRef(Py_None);
}

static PyObject *object_hold(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    if (xp_arity("_hold", n, 2, 2) < 0 || xp_as_u32(args[1], &((xp_object_state *)self)->forks) < 0 ||
        xp_set_object(self, args[0], (void *)offsetof(xp_object_state, held)) < 0)
        return NULL;
    Py_RETURN_NONE;
}

XP_METHOD(object_give_up, XP_NONE_BY(xp_object_clear(&object_life, self)))

XP_TYPE(object_spec, "ObjectBase", xp_object_state, XP_WITH_GC | Py_TPFLAGS_BASETYPE, XP_LIFE_SLOTS(object),
        XP_FIELDS(XP_WEAKREFS(xp_object_state)),
        XP_GETSET(XP_OBJECT("_held", xp_object_state, held), {"_usable", object_usable, NULL, NULL, NULL},
                  XP_ANY_OBJECT("_exports", xp_object_state, exports)),
        XP_METHODS({"_hold", XP_FAST(object_hold), METH_FASTCALL, NULL},
                   {"_give_up", object_give_up, METH_NOARGS, NULL}))

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

XP_METHOD(state_span, xp_refuse(PyExc_NotImplementedError, "_span() is for sub-classes to define"))

XP_TYPE(state_spec, "BufferBase", xp_buffer_state, XP_WITH_GC | Py_TPFLAGS_BASETYPE, XP_LIFE_SLOTS(state),
        {Py_bf_getbuffer, state_getbuffer}, {Py_bf_releasebuffer, state_releasebuffer},
        XP_METHODS({"_span", state_span, METH_NOARGS, NULL}),
        XP_GETSET(XP_ANY_OBJECT("_pinned", xp_buffer_state, pinned)))

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

XP_TYPE(array_spec, "ArrayState", xp_array_state, XP_WITH_GC | Py_TPFLAGS_BASETYPE, XP_LIFE_SLOTS(array),
        XP_FIELDS({"_offset", T_LONGLONG, offsetof(xp_array_state, offset), READONLY, NULL}),
        XP_GETSET(XP_OBJECT("_shape", xp_array_state, shape),     XP_OBJECT("_strides", xp_array_state, strides),
                  XP_OBJECT("_dtype", xp_array_state, dtype),     XP_OBJECT("_message", xp_array_state, message),
                  XP_ANY_OBJECT("_order", xp_array_state, order)))

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
    if ((offset == -1 && PyErr_Occurred()) || !PyTuple_Check(args[2]) || !PyTuple_Check(args[3]))
        return xp_refuse(PyExc_TypeError, "shape and strides are tuples");
    return xp_array_new(xp_types_of(module), Py_NewRef(args[0]), forks, Py_NewRef(args[2]), Py_NewRef(args[3]),
                        Py_NewRef(args[4]), offset, given(args[6]), given(args[7]));
}

XP_PART(array, XP_FUNCTIONS({"array", XP_FAST(array), METH_FASTCALL, NULL}), XP_KEEP(object_spec, object_base),
        XP_KEEP_OF(object_base, state_spec, buffer_base), XP_KEEP_OF(buffer_base, array_spec, array_base))
