/* End, Resource, Timeline, AllocationBase, PagesBase, RangeBase: the owners of driver resources, and pieces of
 * memory.
 *
 * An object gets all its state when it is made, so no method ever sees half an object. */
#include "handle.h"
#include "resources.h"

#define EARLIER 64 /* how many handles by which an import was opened before are kept until the ended ones are removed */

#define OBJECT(type, field) {#field, T_OBJECT_EX, offsetof(type, field), READONLY, NULL}
#define NUMBER(type, field) {#field, T_ULONGLONG, offsetof(type, field), READONLY, NULL}
#define FLAG(type, field) {#field, T_BOOL, offsetof(type, field), READONLY, NULL}

/* The module's types that match one of these types or a Python subclass: the last base before `object` is ours. */
static const xp_types *types_of(PyTypeObject *type)
{
    PyTypeObject *base;
    while ((base = PyType_GetSlot(type, Py_tp_base)) != &PyBaseObject_Type)
        type = base;
    return PyType_GetModuleState(type);
}

/* Return the class that Python registered as `name`, or NULL with an exception set. */
static PyTypeObject *registered(PyTypeObject *class, const char *name)
{
    if (class == NULL)
        PyErr_Format(PyExc_RuntimeError, "%s is not registered", name);
    return class;
}

/* Check that a constructor was called with `n` arguments, or `more`, and no keywords. */
static bool takes(const char *name, PyObject *args, PyObject *kwargs, Py_ssize_t n, bool more)
{
    Py_ssize_t got = PyTuple_Size(args);
    if ((kwargs == NULL || PyDict_Size(kwargs) == 0) && (got == n || (more && got > n)))
        return true;
    PyErr_Format(PyExc_TypeError, "%s() takes %s%zd positional arguments", name, more ? "at least " : "", n);
    return false;
}

/* --- End ---------------------------------------------------------------------------------------------------------- */

static PyObject *end_make(PyTypeObject *type, PyObject *release, PyObject *arguments)
{
    xp_end *end = (xp_end *)PyType_GenericAlloc(type, 0);
    if (end) {
        end->release = Py_NewRef(release);
        end->arguments = Py_NewRef(arguments);
        end->forks = XP_RELAXED(&xp_fork_count);
    }
    return (PyObject *)end;
}

/* Split a constructor's arguments: the function to call is at `at`, and its arguments follow. */
static PyObject *end_from(PyTypeObject *type, PyObject *args, Py_ssize_t at)
{
    PyObject *release = PyTuple_GetItem(args, at), *end = NULL;
    if (release != Py_None && !PyCallable_Check(release))
        return PyErr_Format(PyExc_TypeError, "release is a callable or None, not %R", release);
    PyObject *arguments = PyTuple_GetSlice(args, at + 1, PyTuple_Size(args));
    if (arguments)
        end = end_make(type, release, arguments);
    Py_XDECREF(arguments);
    return end;
}

static PyObject *end_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    return takes("End", args, kwargs, 1, true) ? end_from(type, args, 0) : NULL;
}

static PyObject *end_repeated(PyObject *type, PyObject *args)
{
    PyObject *end = end_new((PyTypeObject *)type, args, NULL);
    if (end)
        ((xp_end *)end)->again = true;
    return end;
}

static void on_death(PyObject *object, PyObject *forget, PyObject *key, PyObject *keep)
{
    xp_end *end = (xp_end *)object;
    PyObject *before[] = {xp_exchange(end, &end->forget, Py_XNewRef(forget)),
                          xp_exchange(end, &end->key, Py_XNewRef(key)),
                          xp_exchange(end, &end->keep, Py_XNewRef(keep))};
    for (int i = 0; i < 3; i++)
        Py_XDECREF(before[i]);
}

/* Return whether the function may be called: only in the process that made the end, and before that process leaves. */
static bool is_ours(PyTypeObject *type, uint32_t forks)
{
    const xp_types *types = PyType_GetModuleState(type);
    PyErr_Clear(); /* there is no module any more */
    return types && !XP_RELAXED(&types->left) && forks == XP_RELAXED(&xp_fork_count);
}

/* Release the resource, or pass it to `keep` as a new end. Returns false with an exception set. */
static bool end_call(PyTypeObject *type, PyObject *release, PyObject *arguments, PyObject *forget, PyObject *key,
                     PyObject *keep)
{
    PyObject *forgotten = forget ? PyObject_CallFunctionObjArgs(forget, key, NULL) : Py_NewRef(Py_None), *done = NULL;
    PyObject *next = forgotten && keep ? end_make(type, release, arguments) : NULL;
    if (next)
        done = PyObject_CallFunctionObjArgs(keep, next, NULL);
    else if (forgotten && keep == NULL)
        done = release == Py_None ? Py_NewRef(Py_None) : PyObject_Call(release, arguments, NULL);
    bool good = done != NULL;
    Py_XDECREF(forgotten);
    Py_XDECREF(next);
    Py_XDECREF(done);
    return good;
}

/* The thread that takes `release` out is the only one to call it. The end itself is passed to nobody, since
 * tp_dealloc comes here, too. */
static void end_finalize(PyObject *object)
{
    xp_end *end = (xp_end *)object;
    PyObject *release = xp_exchange(end, &end->release, NULL);
    if (release == NULL)
        return;
    PyObject *arguments = xp_exchange(end, &end->arguments, NULL), *forget = xp_exchange(end, &end->forget, NULL);
    PyObject *key = xp_exchange(end, &end->key, NULL), *keep = xp_exchange(end, &end->keep, NULL);
    PyObject *type, *value, *trace; /* the collector calls this, too */
    PyErr_Fetch(&type, &value, &trace);
    bool calls = is_ours(Py_TYPE(object), end->forks);
    while (calls && !end_call(Py_TYPE(object), release, arguments, forget, key, keep)) {
        calls = end->again && !PyErr_ExceptionMatches(PyExc_Exception);
        PyErr_WriteUnraisable(release);
    }
    PyObject *all[] = {release, arguments, forget, key, keep};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XDECREF(all[i]);
    PyErr_Restore(type, value, trace);
}

/* In C, so that no interrupt comes between the end of a block and the release. */
XP_METHOD(end_enter, Py_NewRef(self))
static PyObject *end_exit(PyObject *self, PyObject *error)
{
    xp_end *end = (xp_end *)self;
    PyObject *release = xp_exchange(end, &end->release, NULL), *done = NULL;
    bool calls = release && release != Py_None && PyTuple_Size(error) > 0 && PyTuple_GetItem(error, 0) != Py_None &&
                 is_ours(Py_TYPE(self), end->forks);
    if (calls)
        done = PyObject_Call(release, end->arguments, NULL);
    Py_XDECREF(release);
    if (calls && done == NULL)
        return NULL;
    Py_XDECREF(done);
    Py_RETURN_NONE;
}

XP_LIFE(end, .end = end_finalize, .fixed = XP_OBJECTS(xp_end, release, arguments),
        .cleared = XP_OBJECTS(xp_end, forget, key, keep))

XP_TYPE(end_spec, "End", xp_end, XP_WITH_GC, {Py_tp_new, end_new}, XP_LIFE_SLOTS(end), {Py_tp_finalize, end_finalize},
        XP_METHODS({"__enter__", end_enter, METH_NOARGS, NULL},
                   {"__exit__", end_exit, METH_VARARGS, NULL},
                   {"repeated", end_repeated, METH_VARARGS | METH_CLASS, NULL}))

/* --- Resource ----------------------------------------------------------------------------------------------------- */

static xp_resource *resource_make(PyTypeObject *type, PyObject *device, PyObject *driver, PyObject *end)
{
    xp_resource *r = (xp_resource *)PyType_GenericAlloc(type, 0);
    if (r) {
        r->device = Py_NewRef(device);
        r->driver = Py_NewRef(driver);
        r->end = Py_NewRef(end);
        r->forks = XP_RELAXED(&xp_fork_count);
    }
    return r;
}

static PyObject *resource_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    const xp_types *types = types_of(type);
    PyObject *end = takes("Resource", args, kwargs, 3, true) ? end_from(types->end, args, 2) : NULL;
    xp_resource *r = end ? resource_make(type, PyTuple_GetItem(args, 0), PyTuple_GetItem(args, 1), end) : NULL;
    Py_XDECREF(end);
    return (PyObject *)r;
}

static PyObject *resource_on_death(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    if (xp_arity("on_death", n, 2, 3) < 0)
        return NULL;
    on_death(((xp_resource *)self)->end, args[0], args[1], n == 3 && args[2] != Py_None ? args[2] : NULL);
    Py_RETURN_NONE;
}

XP_GETTER(resource_reopens, Py_NewRef(Py_None))

XP_GETTER(resource_foreign_process, PyBool_FromLong(((xp_resource *)self)->forks != XP_RELAXED(&xp_fork_count)))

XP_LIFE(resource, .weakrefs = offsetof(xp_resource, weakrefs), .fixed = XP_OBJECTS(xp_resource, end, device, driver))

XP_TYPE(resource_spec, "Resource", xp_resource, XP_WITH_GC | Py_TPFLAGS_BASETYPE, {Py_tp_new, resource_new},
        XP_LIFE_SLOTS(resource),
        XP_FIELDS(OBJECT(xp_resource, device),
                  OBJECT(xp_resource, driver),
                  {"forks", T_UINT, offsetof(xp_resource, forks), READONLY, NULL},
                  XP_WEAKREFS(xp_resource)),
        XP_GETSET({"foreign_process", resource_foreign_process, NULL, NULL, NULL},
                  {"reopens", resource_reopens, NULL, NULL, NULL}),
        XP_METHODS({"on_death", XP_FAST(resource_on_death), METH_FASTCALL, NULL}))

/* --- AllocationBase ----------------------------------------------------------------------------------------------- */

static PyObject *or_none(PyObject *object) { return Py_NewRef(object ? object : Py_None); }

static PyObject *allocation_make(PyTypeObject *type, PyObject *device, PyObject *driver, PyObject *end,
                                 const xp_allocation *rest)
{
    xp_allocation *a = (xp_allocation *)resource_make(type, device, driver, end);
    if (a) {
        a->kind = or_none(rest->kind);
        a->source = or_none(rest->source);
        a->name = or_none(rest->name);
        a->handle = or_none(rest->handle);
        a->prepared = or_none(rest->prepared);
        a->address = rest->address;
        a->nbytes = rest->nbytes;
        a->serial = rest->serial;
        a->host_accessible = rest->host_accessible;
        a->imported = rest->imported;
        a->foreign = rest->foreign;
        a->owned = rest->owned;
        a->keepable = rest->keepable;
        if ((a->earlier = PyDict_New()) == NULL)
            Py_CLEAR(a);
    }
    return (PyObject *)a;
}

PyObject *xp_foreign_allocation(const xp_types *types, PyObject *device, PyObject *driver, PyObject *name,
                                uint64_t nbytes, uint64_t address, PyObject *prepared, uint64_t serial)
{
    xp_allocation rest = {.name = name, .prepared = prepared, .address = address, .nbytes = nbytes, .serial = serial,
                          .foreign = true};
    PyTypeObject *class = registered(types->allocation, "Allocation");
    PyObject *nothing = class ? PyTuple_New(0) : NULL, *made = NULL;
    PyObject *end = nothing ? end_make(types->end, Py_None, nothing) : NULL;
    if (end && (rest.kind = PyUnicode_FromString("device")))
        made = allocation_make(class, device, driver, end, &rest);
    Py_XDECREF(rest.kind);
    Py_XDECREF(end);
    Py_XDECREF(nothing);
    return made;
}

PyObject *xp_imported_allocation(const xp_types *types, PyObject *device, PyObject *driver, PyObject *release,
                                 PyObject *arguments, uint64_t address, uint64_t nbytes)
{
    xp_allocation rest = {.address = address, .nbytes = nbytes, .imported = true, .keepable = true};
    PyTypeObject *class = registered(types->allocation, "Allocation");
    PyObject *end = class ? end_make(types->end, Py_None, arguments) : NULL, *made = NULL;
    if (end && (rest.kind = PyUnicode_FromString("device")))
        made = allocation_make(class, device, driver, end, &rest);
    if (made) /* only now: a resource that was not made is not released */
        Py_XDECREF(xp_exchange(end, &((xp_end *)end)->release, Py_NewRef(release)));
    Py_XDECREF(rest.kind);
    Py_XDECREF(end);
    return made;
}

static bool as_flag(PyObject *object, bool *flag)
{
    int value = PyObject_IsTrue(object);
    *flag = value > 0;
    return value >= 0;
}

static bool is_end(const xp_types *types, PyObject *end)
{
    if (Py_TYPE(end) == types->end)
        return true;
    PyErr_Format(PyExc_TypeError, "this is not an End: %R", end);
    return false;
}

static PyObject *allocation_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    enum { DEVICE, DRIVER, END, KIND, ADDRESS, NBYTES, ACCESSIBLE, FOREIGN, SOURCE, SERIAL, NAME, N };
    PyObject *given[N];
    if (!takes("AllocationBase", args, kwargs, N, false))
        return NULL;
    for (int i = 0; i < N; i++)
        given[i] = PyTuple_GetItem(args, i);
    xp_allocation rest = {.kind = given[KIND], .source = given[SOURCE], .name = given[NAME]};
    if (!is_end(types_of(type), given[END]) || xp_as_u64(given[ADDRESS], &rest.address) < 0 ||
        xp_as_u64(given[NBYTES], &rest.nbytes) < 0 || xp_as_u64(given[SERIAL], &rest.serial) < 0 ||
        !as_flag(given[ACCESSIBLE], &rest.host_accessible) || !as_flag(given[FOREIGN], &rest.foreign))
        return NULL;
    return allocation_make(type, given[DEVICE], given[DRIVER], given[END], &rest);
}

XP_LIFE(allocation, .base = &resource_life, .fixed = XP_OBJECTS(xp_allocation, kind, source, name, earlier),
        .cleared = XP_OBJECTS(xp_allocation, handle, prepared, exposure, uses))

/* Equal for handles of which the newer one can replace the other: see `xp_does_for`. */
static PyObject *told_apart(const xp_handle *h)
{
    if (h->flags & XP_ENTRY_PICKLED)
        return PyLong_FromUnsignedLongLong(h->generation);
    PyObject *all[] = {PyLong_FromUnsignedLongLong(h->offset), PyLong_FromUnsignedLongLong(h->nbytes)};
    return xp_tuple_of(all, 2);
}

/* Return whether to remove earlier handles that have ended. Only from time to time, since that looks at all of them. */
static bool are_many(Py_ssize_t n) { return n >= EARLIER && (n & (n - 1)) == 0; }

/* Record the handle by which an import was opened, and keep the one before unless the new one can replace it. -1
 * with an exception set. */
static int note(const xp_types *types, xp_allocation *a, PyObject *handle, const xp_handle *h)
{
    PyObject *before = xp_exchange(a, &a->handle, Py_NewRef(handle));
    const xp_handle *b = before && before != Py_None ? xp_handle_of(types, before) : NULL;
    PyObject *key = b && !xp_does_for(h, b) ? told_apart(b) : NULL;
    int rc = PyErr_Occurred() ? -1 : 0;
    if (key) { /* the newest is the last */
        if (PyDict_Contains(a->earlier, key) == 1 && PyDict_DelItem(a->earlier, key) < 0)
            PyErr_Clear();
        rc = PyDict_SetItem(a->earlier, key, before);
    }
    Py_XDECREF(key);
    Py_XDECREF(before);
    return rc;
}

/* opened_by(handle): record the handle by which an import was opened; returns whether it is time to remove earlier
 * ones that ended */
static PyObject *allocation_opened_by(PyObject *self, PyObject *handle)
{
    xp_allocation *a = (xp_allocation *)self;
    const xp_types *types = types_of(Py_TYPE(self));
    const xp_handle *h = xp_handle_of(types, handle);
    if (h == NULL)
        return xp_refuse(PyExc_TypeError, "opened_by() takes a Handle");
    Py_ssize_t number = PyDict_Size(a->earlier);
    if (note(types, a, handle, h) < 0)
        return NULL;
    return PyBool_FromLong(number < PyDict_Size(a->earlier) && are_many(number + 1));
}

static PyObject *allocation_reopens(PyObject *self, void *Py_UNUSED(c))
{
    const xp_allocation *a = (const xp_allocation *)self;
    if (!a->keepable)
        Py_RETURN_NONE;
    PyObject *all[] = {Py_NewRef(a->resource.device),
                       Py_NewRef(a->resource.driver),
                       Py_NewRef(a->kind),
                       PyLong_FromUnsignedLongLong(a->address),
                       PyLong_FromUnsignedLongLong(a->nbytes),
                       PyBool_FromLong(a->host_accessible),
                       Py_NewRef(Py_None)};
    return xp_tuple_of(all, sizeof all / sizeof *all);
}

XP_TYPE(allocation_spec, "AllocationBase", xp_allocation, XP_WITH_GC | Py_TPFLAGS_BASETYPE, {Py_tp_new, allocation_new},
        XP_LIFE_SLOTS(allocation),
        XP_FIELDS(OBJECT(xp_allocation, kind),
                  OBJECT(xp_allocation, source),
                  OBJECT(xp_allocation, name),
                  OBJECT(xp_allocation, earlier),
                  NUMBER(xp_allocation, address),
                  NUMBER(xp_allocation, nbytes),
                  FLAG(xp_allocation, host_accessible),
                  FLAG(xp_allocation, imported),
                  FLAG(xp_allocation, foreign),
                  {"owned", T_BOOL, offsetof(xp_allocation, owned), 0, NULL},
                  {"lent", T_BOOL, offsetof(xp_allocation, lent), 0, NULL},
                  {"prepared", T_OBJECT_EX, offsetof(xp_allocation, prepared), 0, NULL},
                  {"newest", T_OBJECT_EX, offsetof(xp_allocation, handle), 0, NULL},
                  {"exposure", T_OBJECT, offsetof(xp_allocation, exposure), 0, NULL},
                  {"uses", T_OBJECT, offsetof(xp_allocation, uses), 0, NULL},
                  {"known_serial", T_ULONGLONG, offsetof(xp_allocation, serial), 0, NULL}),
        XP_METHODS({"opened_by", allocation_opened_by, METH_O, NULL}),
        XP_GETSET({"reopens", allocation_reopens, NULL, NULL, NULL}))

/* --- Timeline ----------------------------------------------------------------------------------------------------- */

static PyObject *timeline_make(const xp_types *types, PyObject *device, PyObject *domain, PyObject *end, PyObject *slot)
{
    xp_timeline *t = (xp_timeline *)resource_make(types->timeline, device, domain, end);
    if (t) {
        t->slot = Py_NewRef(slot);
        t->prepared = Py_NewRef(Py_None);
    }
    return (PyObject *)t;
}

static PyObject *timeline_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    const xp_types *types = types_of(type);
    PyObject *end = takes("Timeline", args, kwargs, 4, true) ? end_from(types->end, args, 3) : NULL;
    PyObject *made = end ? timeline_make(types, PyTuple_GetItem(args, 0), PyTuple_GetItem(args, 1), end,
                                         PyTuple_GetItem(args, 2))
                         : NULL;
    Py_XDECREF(end);
    return made;
}

XP_LIFE(timeline, .base = &resource_life, .fixed = XP_OBJECTS(xp_timeline, slot),
        .cleared = XP_OBJECTS(xp_timeline, prepared))

XP_TYPE(timeline_spec, "Timeline", xp_timeline, XP_WITH_GC, {Py_tp_new, timeline_new}, XP_LIFE_SLOTS(timeline),
        XP_FIELDS(OBJECT(xp_timeline, slot),
                  {"prepared", T_OBJECT_EX, offsetof(xp_timeline, prepared), 0, NULL}))

/* --- PagesBase ---------------------------------------------------------------------------------------------------- */

static PyObject *pages_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *device, *driver, *end, *o_nbytes;
    uint64_t nbytes;
    int ipc_enabled, imported;
    if (!takes("PagesBase", args, kwargs, 6, false) ||
        !PyArg_ParseTuple(args, "OOOOpp", &device, &driver, &end, &o_nbytes, &ipc_enabled, &imported) ||
        !is_end(types_of(type), end) || xp_as_u64(o_nbytes, &nbytes) < 0)
        return NULL;
    xp_pages *p = (xp_pages *)resource_make(type, device, driver, end);
    if (p) {
        p->nbytes = nbytes;
        p->ipc_enabled = ipc_enabled != 0;
        p->imported = imported != 0;
    }
    return (PyObject *)p;
}

XP_TYPE(pages_spec, "PagesBase", xp_pages, XP_WITH_GC | Py_TPFLAGS_BASETYPE, {Py_tp_new, pages_new},
        XP_LIFE_SLOTS(resource),
        XP_FIELDS(NUMBER(xp_pages, nbytes),
                  FLAG(xp_pages, ipc_enabled),
                  FLAG(xp_pages, imported),
                  {"known_serial", T_ULONGLONG, offsetof(xp_pages, serial), 0, NULL}))

/* --- RangeBase ---------------------------------------------------------------------------------------------------- */

static PyObject *range_make(PyTypeObject *type, PyObject *allocation, uint64_t offset, uint64_t nbytes,
                            PyObject *device, PyObject *context, bool read_only, PyObject *handle, PyObject *lease)
{
    xp_range *r = (xp_range *)PyType_GenericAlloc(type, 0);
    if (r) {
        r->allocation = Py_NewRef(allocation);
        r->device = Py_NewRef(device);
        r->context = Py_NewRef(context);
        r->handle = Py_NewRef(handle);
        r->lease = Py_NewRef(lease);
        r->offset = offset;
        r->nbytes = nbytes;
        r->read_only = read_only;
    }
    return (PyObject *)r;
}

PyObject *xp_range_new(const xp_types *types, PyObject *allocation, uint64_t offset, uint64_t nbytes, PyObject *device,
                       PyObject *context, bool read_only, PyObject *handle, PyObject *lease)
{
    PyTypeObject *class = registered(types->range, "Range");
    return class ? range_make(class, allocation, offset, nbytes, device, context, read_only, handle, lease) : NULL;
}

static PyObject *range_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    uint64_t offset, nbytes;
    if (!takes("RangeBase", args, kwargs, 8, false) || xp_as_u64(PyTuple_GetItem(args, 1), &offset) < 0 ||
        xp_as_u64(PyTuple_GetItem(args, 2), &nbytes) < 0)
        return NULL;
    int read_only = PyObject_IsTrue(PyTuple_GetItem(args, 5));
    if (read_only < 0)
        return NULL;
    return range_make(type, PyTuple_GetItem(args, 0), offset, nbytes, PyTuple_GetItem(args, 3),
                      PyTuple_GetItem(args, 4), read_only != 0, PyTuple_GetItem(args, 6), PyTuple_GetItem(args, 7));
}

static PyObject *range_replace(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"allocation", "offset", "nbytes", "device", "context", "read_only", "handle", "lease", NULL};
    const xp_range *r = (const xp_range *)self;
    PyObject *allocation = r->allocation, *device = r->device, *context = r->context, *handle = r->handle;
    PyObject *lease = r->lease, *o_offset = NULL, *o_nbytes = NULL;
    uint64_t offset = r->offset, nbytes = r->nbytes;
    int read_only = r->read_only;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOOOpOO", names, &allocation, &o_offset, &o_nbytes, &device,
                                     &context, &read_only, &handle, &lease) ||
        (o_offset && xp_as_u64(o_offset, &offset) < 0) || (o_nbytes && xp_as_u64(o_nbytes, &nbytes) < 0))
        return NULL;
    return range_make(Py_TYPE(self), allocation, offset, nbytes, device, context, read_only != 0, handle, lease);
}

/* Return whether the handle's range lies in the allocation. */
static bool covers(const xp_allocation *a, const xp_handle *h)
{
    return h->offset <= a->nbytes && h->nbytes <= a->nbytes - h->offset;
}

PyObject *xp_open_again(const xp_types *types, PyObject *handle, PyObject *allocation, PyObject *device,
                        PyObject *context, PyObject *lease)
{
    const xp_handle *h = xp_handle_of(types, handle);
    xp_allocation *a = xp_allocation_of(types, allocation);
    if (a == NULL || !covers(a, h) || are_many(PyDict_Size(a->earlier) + 1))
        return NULL;
    PyObject *range = xp_range_new(types, allocation, h->offset, h->nbytes, device, context,
                                   h->flags & XP_ENTRY_READ_ONLY, handle, lease);
    if (range && note(types, a, handle, h) < 0)
        Py_CLEAR(range);
    if (range)
        xp_lease_uses(types, lease, a->uses);
    return range;
}

/* opened(handle, allocation, device, context, lease): the range of a handle that was opened, or None if it does not
 * lie in the allocation */
static PyObject *range_opened(PyObject *type, PyObject *const *args, Py_ssize_t n)
{
    const xp_types *types = types_of((PyTypeObject *)type);
    const xp_handle *h = xp_arity("opened", n, 5, 5) < 0 ? NULL : xp_handle_of(types, args[0]);
    const xp_allocation *a = h ? xp_allocation_of(types, args[1]) : NULL;
    if (a == NULL)
        return xp_refuse(PyExc_TypeError, "opened() takes a Handle and an Allocation");
    if (!covers(a, h))
        Py_RETURN_NONE;
    xp_lease_uses(types, args[4], a->uses);
    return range_make((PyTypeObject *)type, args[1], h->offset, h->nbytes, args[2], args[3],
                      h->flags & XP_ENTRY_READ_ONLY, args[0], args[4]);
}

XP_LIFE(range, .fixed = XP_OBJECTS(xp_range, allocation, device, context, handle, lease))

XP_TYPE(range_spec, "RangeBase", xp_range, XP_WITH_GC | Py_TPFLAGS_BASETYPE, {Py_tp_new, range_new},
        XP_LIFE_SLOTS(range),
        XP_FIELDS(OBJECT(xp_range, allocation), NUMBER(xp_range, offset),  NUMBER(xp_range, nbytes), OBJECT(xp_range, device),
                  OBJECT(xp_range, context),    FLAG(xp_range, read_only), OBJECT(xp_range, handle), OBJECT(xp_range, lease)),
        XP_METHODS({"replace", XP_FAST(range_replace), METH_VARARGS | METH_KEYWORDS, NULL},
                   {"opened", XP_FAST(range_opened), METH_FASTCALL | METH_CLASS, NULL}))

/* --- functions ---------------------------------------------------------------------------------------------------- */

/* imported(device, driver, kind, address, nbytes, host_accessible, owned, end, keepable=False): the Allocation of an import */
static PyObject *imported(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    const xp_types *types = xp_types_of(module);
    xp_allocation rest = {.imported = true};
    if (xp_arity("imported", n, 8, 9) < 0 || !is_end(types, args[7]) || xp_as_u64(args[3], &rest.address) < 0 ||
        xp_as_u64(args[4], &rest.nbytes) < 0 || !as_flag(args[5], &rest.host_accessible) ||
        (n == 9 && !as_flag(args[8], &rest.keepable)))
        return NULL;
    rest.kind = args[2];
    rest.source = args[6];
    rest.owned = args[6] != Py_None;
    PyTypeObject *class = registered(types->allocation, "Allocation");
    return class ? allocation_make(class, args[0], args[1], args[7], &rest) : NULL;
}

XP_PART(resources, XP_FUNCTIONS({"imported", XP_FAST(imported), METH_FASTCALL, NULL}), XP_KEEP(end_spec, end),
        XP_KEEP(resource_spec, resource), XP_KEEP_OF(resource, allocation_spec, allocation_base),
        XP_KEEP_OF(resource, timeline_spec, timeline), XP_ADD_OF(resource, pages_spec), XP_KEEP(range_spec, range_base))
