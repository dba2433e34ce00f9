/* Scopes: the calls that surround a driver's calls, made and undone through the addresses of its functions. */
#include "objects.h"
#include "scope.h"

/* --- for native code ---------------------------------------------------------------------------------------------- */

int xp_scope_enter(const xp_scope *scope, int *before, int *step)
{
    int code = 0;
    *before = scope->mode;
    *step = XP_SCOPE_MODE;
    if (scope->exchange && (code = scope->exchange(before)))
        return code;
    *step = XP_SCOPE_CONTEXT;
    if (scope->push && (code = scope->push(scope->context)) && scope->exchange)
        scope->exchange(before);
    return code;
}

void xp_scope_leave(const xp_scope *scope, int before)
{
    uint64_t context;
    if (scope->push)
        scope->pop(&context);
    if (scope->exchange)
        scope->exchange(&before);
}

/* --- for Python --------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    xp_scope scope;
    PyObject *failed;
} xp_scopes;

typedef struct {
    PyObject_HEAD
    PyObject *scopes;
    int before;
} xp_with;

const xp_scope *xp_scope_of(const xp_types *types, PyObject *object)
{
    return Py_TYPE(object) == types->scopes ? &((const xp_scopes *)object)->scope : NULL;
}

static PyObject *scopes_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"failed", "exchange", "push", "pop", NULL};
    PyObject *failed;
    int mode = 0;
    unsigned long long exchange = 0, push = 0, context = 0, pop = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|(Ki)(KK)K", names, &failed, &exchange, &mode, &push, &context,
                                     &pop))
        return NULL;
    if ((push == 0) != (pop == 0)) {
        PyErr_SetString(PyExc_ValueError, "Scopes() pushes and pops, or does neither");
        return NULL;
    }
    xp_scopes *self = (xp_scopes *)PyType_GenericAlloc(type, 0);
    if (self) {
        self->failed = Py_NewRef(failed);
        self->scope = (xp_scope){(int (*)(int *))(uintptr_t)exchange, (int (*)(uint64_t))(uintptr_t)push,
                                 (int (*)(uint64_t *))(uintptr_t)pop, context, mode};
    }
    return (PyObject *)self;
}

XP_LIFE(scopes, .cleared = XP_OBJECTS(xp_scopes, failed))

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

static PyType_Slot scopes_slots[] = {
    {Py_tp_new, scopes_new}, XP_LIFE_SLOTS(scopes), {Py_tp_call, scopes_call}, {0, NULL},
};
static PyType_Spec scopes_spec = {"xpushare._native.Scopes", sizeof(xp_scopes), 0, XP_WITH_GC,
                                  scopes_slots};

static bool is_empty(const xp_scope *scope) { return scope->exchange == NULL && scope->push == NULL; }

static PyObject *with_enter(PyObject *object, PyObject *Py_UNUSED(a))
{
    xp_with *self = (xp_with *)object;
    const xp_scopes *scopes = (const xp_scopes *)self->scopes;
    int code, step;
    if (is_empty(&scopes->scope))
        Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS
    code = xp_scope_enter(&scopes->scope, &self->before, &step);
    Py_END_ALLOW_THREADS
    if (code == 0)
        Py_RETURN_NONE;
    PyObject *error = PyObject_CallFunction(scopes->failed, "ii", step, code);
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return NULL;
}

static PyObject *with_exit(PyObject *object, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(n))
{
    const xp_with *self = (const xp_with *)object;
    const xp_scopes *scopes = (const xp_scopes *)self->scopes;
    if (is_empty(&scopes->scope))
        Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS
    xp_scope_leave(&scopes->scope, self->before);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

XP_LIFE(with, .fixed = XP_OBJECTS(xp_with, scopes))

static PyMethodDef with_methods[] = {
    {"__enter__", with_enter, METH_NOARGS, NULL},
    {"__exit__", XP_FAST(with_exit), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot with_slots[] = {XP_LIFE_SLOTS(with), {Py_tp_methods, with_methods}, {0, NULL}};
static PyType_Spec with_spec = {"xpushare._native.Scope", sizeof(xp_with), 0,
                                XP_WITH_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, with_slots};

int xp_init_scope(PyObject *module)
{
    xp_types *types = xp_types_of(module);
    return xp_keep_type(module, &scopes_spec, &types->scopes) < 0 ? -1
                                                                  : xp_keep_type(module, &with_spec, &types->with);
}
