/* Scopes: the calls that surround a driver's calls (see driver.h). */
#include "driver.h"

typedef struct {
    PyObject_HEAD
    xp_scope scope; /* owns its driver */
} xp_scopes;

typedef struct {
    PyObject_HEAD
    PyObject *scopes;
    xp_before before;
} xp_with;

const xp_scope *xp_scope_of(const xp_types *types, PyObject *object)
{
    return Py_TYPE(object) == types->scopes ? &((const xp_scopes *)object)->scope : NULL;
}

static PyObject *scopes_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"driver", "place", "relaxed", NULL};
    const xp_types *types = PyType_GetModuleState(type);
    PyObject *driver = NULL, *place = Py_None;
    uint64_t at = 0;
    int relaxed = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O!Op", names, types->driver, &driver, &place, &relaxed) ||
        (place != Py_None && xp_as_u64(place, &at) < 0))
        return NULL;
    xp_scopes *self = (xp_scopes *)PyType_GenericAlloc(type, 0);
    if (self)
        self->scope = (xp_scope){(xp_driver *)Py_XNewRef(driver), at, relaxed != 0, place != Py_None};
    return (PyObject *)self;
}

XP_LIFE(scopes, .fixed = XP_OBJECTS(xp_scopes, scope.driver))

static PyObject *scopes_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    const xp_types *types = PyType_GetModuleState(Py_TYPE(self));
    if (PyTuple_Size(args) || (kwargs && PyDict_Size(kwargs))) {
        PyErr_SetString(PyExc_TypeError, "a scope takes no arguments");
        return NULL;
    }
    xp_with *made = (xp_with *)PyType_GenericAlloc(types->with, 0);
    if (made)
        made->scopes = Py_NewRef(self);
    return (PyObject *)made;
}

XP_TYPE(scopes_spec, "Scopes", xp_scopes, XP_WITH_GC, {Py_tp_new, scopes_new}, XP_LIFE_SLOTS(scopes),
        {Py_tp_call, scopes_call})

static PyObject *with_enter(PyObject *object, PyObject *Py_UNUSED(a))
{
    xp_with *self = (xp_with *)object;
    const xp_scope *scope = &((const xp_scopes *)self->scopes)->scope;
    int code = scope->driver ? XP_UNLOCKED(xp_scope_enter(scope, &self->before)) : 0;
    if (code == 0)
        Py_RETURN_NONE;
    PyObject *error = PyObject_CallFunction(scope->driver->failed, "ii", self->before.step, code);
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return NULL;
}

static PyObject *with_exit(PyObject *object, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(n))
{
    const xp_with *self = (const xp_with *)object;
    const xp_scope *scope = &((const xp_scopes *)self->scopes)->scope;
    if (scope->driver)
        XP_UNLOCKED_DO(xp_scope_leave(scope, &self->before));
    Py_RETURN_NONE;
}

XP_LIFE(with, .fixed = XP_OBJECTS(xp_with, scopes))

XP_TYPE(with_spec, "Scope", xp_with, XP_WITH_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, XP_LIFE_SLOTS(with),
        XP_METHODS({"__enter__", with_enter, METH_NOARGS, NULL}, {"__exit__", XP_FAST(with_exit), METH_FASTCALL, NULL}))

XP_PART(scope, NULL, XP_KEEP(scopes_spec, scopes), XP_KEEP(with_spec, with))
