/* OwnTable: the table of this process's exports. Exported: one export. Template: what the exports of one object have
 * in common. The engine has the entries; these objects keep alive what they are of. */
#include "exports.h"
#include "resources.h"

#include <stdlib.h>

#define BODY_NBYTES offsetof(xp_handle, seal)
#define NAMED 4096 /* how many numbers of other libraries' objects are remembered: at least this many, at most twice as many */

typedef struct {
    PyObject_HEAD
    xp_template t;
} template_object;

typedef struct {
    PyObject_HEAD
    xp_export e;
    PyObject *template;
    PyObject *source; /* the object that an open in this very process gets */
    PyObject *keep;   /* an object that must live as long: another library's array */
    PyObject *handle; /* NULL until it is exported */
    PyObject *sealed; /* its handle until then */
    uint64_t nbytes;  /* of the whole object */
    uint32_t fds;     /* descriptors that this process holds for the object */
    bool implicit;    /* made by pickling */
    bool outlives;    /* made by pickling, and its object has died */
} exported_object;

typedef struct {
    PyObject_HEAD
    xp_exports *t;
    PyObject *mapping, *domain;
    PyObject *named, *named_before; /* may change: dicts of the numbers of other libraries' objects; see `object_named` */
} table_object;

static xp_exports *exports_in(PyObject *table) { return ((table_object *)table)->t; }
static xp_export *export_in(PyObject *exported) { return &((exported_object *)exported)->e; }

static PyObject *object_of(xp_export *e) { return (PyObject *)((char *)e - offsetof(exported_object, e)); }

static void hold_object(xp_export *e) { Py_INCREF(object_of(e)); }

/* --- Template ----------------------------------------------------------------------------------------------------- */

static void template_end(PyObject *object) { free(((template_object *)object)->t.offer); }

XP_LIFE_PLAIN(template, .end = template_end)

XP_TYPE(template_spec, "Template", template_object, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        {Py_tp_dealloc, template_dealloc},
        XP_FIELDS({"nbytes", T_ULONGLONG, offsetof(template_object, t.e.nbytes), READONLY, NULL}))

/* Fill a template in. `offer`: taken over if this succeeds. Returns false with an exception set. */
static bool template_fill(xp_template *t, const xp_exports *own, PyObject *o_names, PyObject *o_fds,
                          PyObject *o_payload, const xp_entry *common, xp_offer *offer)
{
    char *names, *payload;
    int fds[XP_ENTRY_FDS];
    Py_ssize_t names_size, payload_size, fd_count = PyTuple_Check(o_fds) ? PyTuple_Size(o_fds) : -1;
    if (PyBytes_AsStringAndSize(o_names, &names, &names_size) < 0 ||
        PyBytes_AsStringAndSize(o_payload, &payload, &payload_size) < 0)
        return false;
    if (fd_count < 0)
        return xp_refuse(PyExc_TypeError, "fds are a tuple");
    for (Py_ssize_t i = 0; i < fd_count && i < (Py_ssize_t)XP_ENTRY_FDS; i++)
        if (xp_as_int(PyTuple_GetItem(o_fds, i), &fds[i]) < 0)
            return false;
    if (names_size == sizeof t->h.backend + sizeof t->h.device_uuid &&
        xp_template_fill(t, own, common, names, fds, (size_t)fd_count, payload, (size_t)payload_size, offer))
        return true;
    return xp_refuse(PyExc_ValueError, "no entry says that");
}

PyObject *xp_prepare_like(const xp_types *types, PyObject *own, PyObject *like, uint64_t serial, uint64_t nbytes,
                          const char *payload, uint32_t payload_nbytes)
{
    xp_template t = {.offer = NULL};
    if (Py_TYPE(like) != types->template ||
        !xp_template_like(&t, exports_in(own), &((template_object *)like)->t, serial, nbytes, payload, payload_nbytes))
        return NULL;
    template_object *made = (template_object *)PyType_GenericAlloc(types->template, 0);
    if (made)
        made->t = t;
    return (PyObject *)made;
}

/* The arguments are (function, objects, a, b). NULL with an exception set */
static xp_offer *as_offer(PyObject *const *args)
{
    uint64_t function, b;
    int64_t a = PyLong_AsLongLong(args[2]);
    Py_ssize_t count = a == -1 && PyErr_Occurred() ? -1 : PySequence_Size(args[1]);
    if (count < 0 || xp_as_u64(args[0], &function) < 0 || xp_as_u64(args[3], &b) < 0)
        return NULL;
    if (function < XP_LEAST_ADDRESS || count == 0 || count > INT32_MAX)
        return xp_refuse(PyExc_ValueError, "no such function, or no objects");
    xp_offer *offer = malloc(sizeof *offer + (size_t)count * sizeof *offer->objects);
    if (offer == NULL)
        return (void *)PyErr_NoMemory();
    *offer = (xp_offer){NULL, 0, (uint32_t)count, 0, (xp_make_fd)(uintptr_t)function, a, b};
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(args[1], i);
        int rc = item ? xp_as_u64(item, &offer->objects[i]) : -1;
        Py_XDECREF(item);
        if (rc < 0) {
            free(offer);
            return NULL;
        }
    }
    return offer;
}

/* --- Exported ----------------------------------------------------------------------------------------------------- */

/* `flags`: XP_ENTRY_READ_ONLY, XP_ENTRY_PICKLED */
static PyObject *exported_make(const xp_types *types, PyObject *template, PyObject *source, PyObject *keep,
                               uint64_t offset, uint64_t nbytes, uint32_t flags, bool foreign)
{
    exported_object *self = (exported_object *)PyType_GenericAlloc(types->exported, 0);
    if (self == NULL)
        return NULL;
    const xp_template *t = &((const template_object *)template)->t;
    self->e = (xp_export){.template = t, .offset = offset, .nbytes = nbytes, .flags = flags, .entry = XP_ENTRIES,
                          .foreign = foreign};
    self->template = Py_NewRef(template);
    self->source = Py_NewRef(source);
    self->keep = Py_NewRef(keep);
    self->nbytes = t->e.nbytes;
    self->fds = t->offer ? 0 : t->e.fd_count;
    self->implicit = flags & XP_ENTRY_PICKLED;
    return (PyObject *)self;
}

/* Exported(template, source, keep, offset, nbytes, read_only, implicit, foreign, slot) */
static PyObject *exported_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"template", "source",   "keep",    "offset", "nbytes",
                            "read_only", "implicit", "foreign", "slot",   NULL};
    const xp_types *types = PyType_GetModuleState(type);
    PyObject *template, *source, *keep = Py_None;
    unsigned long long offset = 0, nbytes = 0;
    int read_only = 0, implicit = 0, foreign = 0;
    unsigned slot = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O|OKKpppI", names, types->template, &template, &source, &keep,
                                     &offset, &nbytes, &read_only, &implicit, &foreign, &slot))
        return NULL;
    uint32_t flags = (read_only ? XP_ENTRY_READ_ONLY : 0) | (implicit ? XP_ENTRY_PICKLED : 0);
    PyObject *self = exported_make(types, template, source, keep, offset, nbytes, flags, foreign);
    if (self)
        export_in(self)->slot = slot;
    return self;
}

/* The engine may still read the template. */
XP_LIFE(exported, .fixed = XP_OBJECTS(exported_object, template),
        .cleared = XP_OBJECTS(exported_object, source, keep, handle, sealed))

#define MEMBER(name, type, access) {#name, type, offsetof(exported_object, name), access, NULL}
#define OF_EXPORT(name, type) {#name, type, offsetof(exported_object, e.name), READONLY, NULL}
XP_TYPE(exported_spec, "Exported", exported_object, XP_WITH_GC, {Py_tp_new, exported_new}, XP_LIFE_SLOTS(exported),
        XP_FIELDS(MEMBER(source, T_OBJECT, READONLY), MEMBER(keep, T_OBJECT, READONLY),
                  MEMBER(handle, T_OBJECT, READONLY), MEMBER(nbytes, T_ULONGLONG, READONLY),
                  MEMBER(fds, T_UINT, READONLY), MEMBER(implicit, T_BOOL, READONLY), MEMBER(outlives, T_BOOL, 0),
                  OF_EXPORT(generation, T_ULONGLONG), OF_EXPORT(deadline, T_ULONGLONG), OF_EXPORT(entry, T_UINT),
                  OF_EXPORT(foreign, T_BOOL), OF_EXPORT(live, T_BOOL)))

/* --- OwnTable ----------------------------------------------------------------------------------------------------- */

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"mapping", "common", "domain", NULL};
    const xp_types *types = PyType_GetModuleState(type);
    PyObject *mapping, *domain;
    const char *bytes;
    Py_ssize_t size;
    xp_domain *d;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!y#O", names, types->mapping, &mapping, &bytes, &size, &domain) ||
        (d = xp_domain_of(domain)) == NULL)
        return NULL;
    uint64_t nbytes;
    const char *base = xp_mapping_base(mapping, &nbytes);
    if (nbytes < XP_TABLE_SIZE || size != BODY_NBYTES)
        return xp_refuse(PyExc_ValueError, "that is not a mapping of a table, or not what its handles have in common");
    xp_handle common = {.kind = 0};
    memcpy(&common, bytes, (size_t)size);
    table_object *self = (table_object *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->mapping = Py_NewRef(mapping);
    self->domain = Py_NewRef(domain);
    if ((self->t = xp_exports_new((char *)base, d, &common)) == NULL)
        PyErr_NoMemory();
    else
        self->t->hold = hold_object;
    if (self->t == NULL || (self->named = PyDict_New()) == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int visit_exports(PyObject *object, visitproc visit, void *arg)
{
    const xp_exports *t = exports_in(object);
    for (uint32_t i = 0; t && i < t->used; i++) /* without the lock: no thread can be inside the table now */
        if (t->exports[i])
            Py_VISIT(object_of(t->exports[i]));
    return 0;
}

static void drop_exports(PyObject *object)
{
    xp_exports *t = exports_in(object);
    for (uint32_t i = 0; t && i < t->used; i++) {
        xp_export *e = t->exports[i];
        t->exports[i] = NULL;
        if (e)
            Py_DECREF(object_of(e));
    }
}

static void table_end(PyObject *object)
{
    drop_exports(object);
    if (exports_in(object))
        xp_exports_unref(exports_in(object));
}

XP_LIFE(table, .end = table_end, .visit = visit_exports, .drop = drop_exports,
        .fixed = XP_OBJECTS(table_object, mapping, domain, named, named_before))

/* prepare(kind, flags, names, device, object, nbytes, exposed_nbytes, inode, within, fds, payload[, function, objects, a,
 * b]) */
static PyObject *table_prepare(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    xp_entry e = {0};
    if ((n != 11 && xp_arity("prepare", n, 15, 15) < 0) || xp_as_u32(args[0], &e.kind) < 0 ||
        xp_as_u32(args[1], &e.flags) < 0 || xp_as_u32(args[3], &e.device) < 0 || xp_as_u64(args[4], &e.object) < 0 ||
        xp_as_u64(args[5], &e.nbytes) < 0 || xp_as_u64(args[6], &e.exposed_nbytes) < 0 ||
        xp_as_u64(args[7], &e.inode) < 0 || xp_as_u64(args[8], &e.offset) < 0)
        return NULL;
    xp_offer *offer = n == 11 ? NULL : as_offer(args + 11);
    if (n != 11 && offer == NULL)
        return NULL;
    template_object *made = (template_object *)PyType_GenericAlloc(types->template, 0);
    if (made == NULL || !template_fill(&made->t, exports_in(object), args[2], args[9], args[10], &e, offer)) {
        free(offer);
        Py_CLEAR(made);
    }
    return (PyObject *)made;
}

/* Return the template of all exports of an allocation, if this process may export the range and Python need not look
 * at it first: a new reference, or NULL without an exception. */
static PyObject *prepared_of(const xp_range *r, xp_allocation *m)
{
    bool ours = m->resource.forks == XP_RELAXED(&xp_fork_count) && (r->handle == Py_None || m->owned);
    PyObject *prepared = ours ? xp_field(m, &m->prepared) : NULL;
    if (prepared == Py_None)
        Py_CLEAR(prepared);
    return prepared;
}

/* of_range(range, template, read_only, implicit): the Exported of a range. None if there is no template, and the
 * allocation has no usable one. */
static PyObject *table_export_of_range(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    const xp_range *r = xp_arity("of_range", n, 4, 4) < 0 ? NULL : xp_range_of(types, args[0]);
    if (r == NULL || (args[1] != Py_None && Py_TYPE(args[1]) != types->template))
        return xp_refuse(PyExc_TypeError, "of_range() takes a range of an allocation, and a Template or None");
    int read_only = PyObject_IsTrue(args[2]), implicit = PyObject_IsTrue(args[3]);
    if (read_only < 0 || implicit < 0)
        return NULL;
    xp_allocation *m = xp_allocation_of(types, r->allocation);
    PyObject *template = args[1] != Py_None ? Py_NewRef(args[1]) : m && !read_only ? prepared_of(r, m) : NULL;
    if (template == NULL)
        Py_RETURN_NONE;
    PyObject *exported = NULL;
    uint32_t flags = (read_only || r->read_only ? XP_ENTRY_READ_ONLY : 0) | (implicit ? XP_ENTRY_PICKLED : 0);
    if (m && Py_TYPE(template) == types->template)
        exported = exported_make(types, template, r->allocation, r->lease, r->offset, r->nbytes, flags, m->foreign);
    else
        PyErr_SetString(PyExc_TypeError, "of_range() takes a range of an allocation, and its Template");
    Py_DECREF(template);
    return exported;
}

XP_METHOD(table_new_object, PyLong_FromUnsignedLongLong(xp_exports_new_object(exports_in(self))))

/* `fresh`: an empty dict, to forget the names that nobody has asked for since. Runs no Python. */
static uint64_t number_named(table_object *self, PyObject *name, PyObject **fresh)
{
    PyObject *known = PyDict_GetItemWithError(self->named, name), *fetched = NULL;
    uint64_t number = 0;
    if (known == NULL && !PyErr_Occurred()) {
        if (self->named_before)
            known = PyDict_GetItemWithError(self->named_before, name);
        if (known == NULL && !PyErr_Occurred())
            known = fetched = PyLong_FromUnsignedLongLong(xp_exports_new_object(self->t));
        if (known && *fresh) {
            PyObject *gone = self->named_before;
            self->named_before = self->named;
            self->named = *fresh;
            *fresh = gone;
            fetched = fetched ? fetched : Py_NewRef(known);
        }
        if (known && PyDict_SetItem(self->named, name, known) < 0)
            known = NULL;
    }
    if (known && xp_as_u64(known, &number) < 0)
        number = 0;
    Py_XDECREF(fetched);
    return number;
}

uint64_t xp_object_named(PyObject *own, PyObject *name)
{
    table_object *self = (table_object *)own;
    uint64_t number = 0;
    PyObject *fresh = PyDict_Size(self->named) >= NAMED ? PyDict_New() : NULL;
    if (PyErr_Occurred())
        return 0;
    Py_BEGIN_CRITICAL_SECTION(own);
    number = number_named(self, name, &fresh);
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(fresh);
    return number;
}

/* object_named(name): the number of another library's object, always the same one */
static PyObject *table_object_named(PyObject *object, PyObject *name)
{
    uint64_t number = xp_object_named(object, name);
    return number ? PyLong_FromUnsignedLongLong(number) : NULL;
}

/* --- exporting ---------------------------------------------------------------------------------------------------- */

static void raise_not_exported(const xp_exports *t, const xp_export_error *error)
{
    if (error->code == XP_EXPORT_RESERVED_BEFORE)
        PyErr_SetString(PyExc_ValueError, "that has been exported before");
    else if (error->code == XP_EXPORT_UNUSABLE)
        xp_unusable(xp_domain_wrong(t->d));
    else if (error->code == XP_EXPORT_NO_MEMORY)
        PyErr_NoMemory();
    else if (error->code == XP_EXPORT_NO_RANDOM)
        xp_oserror_of(error->error, "getrandom");
}

/* Nobody has seen it. */
static void cancel_export(xp_exports *t, PyObject *exported)
{
    Py_CLEAR(((exported_object *)exported)->sealed);
    xp_export_cancel(t, export_in(exported));
}

/* Returns false on failure, without an exception if the table is full. */
static bool reserve_export(xp_exports *t, const xp_types *types, const xp_key *key, PyObject *exported, int opens,
                           uint64_t deadline)
{
    xp_export *e = export_in(exported);
    xp_export_error error;
    xp_handle h;
    bool reserved = xp_export_reserve(t, key, e, opens, deadline, false, &h, &error);
    if (!reserved && error.code == XP_EXPORT_WOULD_BLOCK)
        reserved = XP_UNLOCKED(xp_export_reserve(t, key, e, opens, deadline, true, &h, &error));
    if (!reserved) {
        raise_not_exported(t, &error);
        return false;
    }
    ((exported_object *)exported)->sealed = xp_handle_new(types, &h);
    if (((exported_object *)exported)->sealed)
        return true;
    cancel_export(t, exported);
    return false;
}

static void publish_export(xp_exports *t, PyObject *exported)
{
    exported_object *self = (exported_object *)exported;
    Py_INCREF(exported); /* the table's */
    self->handle = self->sealed;
    self->sealed = NULL;
    if (self->e.offer) {
        Py_BEGIN_ALLOW_THREADS /* the warden may be in a driver's call */
        xp_export_publish(t, &self->e);
        Py_END_ALLOW_THREADS
    } else {
        xp_export_publish(t, &self->e);
    }
}

/* All of them, or none. Returns false on failure, without an exception if the table is full. */
static bool export_all(xp_exports *t, const xp_types *types, const xp_key *key, PyObject *const *exports, Py_ssize_t n,
                       int opens, uint64_t deadline)
{
    Py_ssize_t reserved = 0;
    while (reserved < n && reserve_export(t, types, key, exports[reserved], opens, deadline))
        reserved++;
    for (Py_ssize_t i = 0; i < reserved; i++)
        (reserved == n ? publish_export : cancel_export)(t, exports[i]);
    return reserved == n;
}

/* export(seal, exports, opens, deadline): their handles; None, and no export, if the table is full */
static PyObject *table_export(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    const xp_key *key = xp_arity("export", n, 4, 4) < 0 ? NULL : xp_key_of(types, args[0]);
    int opens = -1;
    uint64_t deadline;
    if (key == NULL || (args[2] != Py_None && xp_as_int(args[2], &opens) < 0) || xp_as_u64(args[3], &deadline) < 0)
        return NULL;
    if (args[2] != Py_None && opens < 0)
        return xp_refuse(PyExc_ValueError, "opens are a number that is not negative");
    PyObject *batch = PySequence_Tuple(args[1]); /* a list may lose its items in between */
    PyObject *handles = NULL, *few[8];
    Py_ssize_t count = batch ? PyTuple_Size(batch) : 0;
    PyObject **exports = count <= 8 ? few : PyMem_Calloc((size_t)count, sizeof *exports);
    bool good = batch && (exports || PyErr_NoMemory());
    for (Py_ssize_t i = 0; i < count && good; i++) {
        exports[i] = PyTuple_GetItem(batch, i);
        if (!(good = Py_TYPE(exports[i]) == types->exported))
            PyErr_SetString(PyExc_TypeError, "export() takes Exported");
    }
    if (good && (handles = PyList_New(count)) && !export_all(exports_in(object), types, key, exports, count, opens, deadline))
        Py_CLEAR(handles);
    for (Py_ssize_t i = 0; i < count && handles; i++)
        PyList_SetItem(handles, i, Py_NewRef(((exported_object *)exports[i])->handle));
    if (exports != few)
        PyMem_Free(exports);
    Py_XDECREF(batch);
    return handles || PyErr_Occurred() ? handles : Py_NewRef(Py_None);
}

/* --- what is exported --------------------------------------------------------------------------------------------- */

/* The exposure of memory that may be reused, or NULL for any other memory. */
static xp_exposure *exposure_of(PyObject *table, PyObject *exported)
{
    const xp_types *types = PyType_GetModuleState(Py_TYPE(table));
    PyObject *source = ((exported_object *)exported)->source;
    PyObject *exposure = types && source && Py_TYPE(source) == types->allocation ? ((xp_allocation *)source)->exposure : NULL;
    return exposure ? &((xp_exposure_object *)exposure)->exposure : NULL;
}

static void release_export(PyObject *table, PyObject *exported)
{
    if (xp_export_release(exports_in(table), export_in(exported), exposure_of(table, exported)))
        Py_DECREF(exported);
}

/* NULL with TypeError */
static const xp_handle *fields_arg(PyObject *table, PyObject *arg)
{
    const xp_handle *h = xp_fields_of(PyType_GetModuleState(Py_TYPE(table)), arg);
    if (h == NULL)
        PyErr_SetString(PyExc_TypeError, "Fields are wanted");
    return h;
}

static bool is_exported(PyObject *table, PyObject *arg)
{
    bool good = Py_TYPE(arg) == ((const xp_types *)PyType_GetModuleState(Py_TYPE(table)))->exported;
    if (!good)
        PyErr_SetString(PyExc_TypeError, "an Exported is wanted");
    return good;
}

static PyObject *table_find_export(PyObject *object, PyObject *arg)
{
    const xp_handle *h = fields_arg(object, arg);
    if (h == NULL)
        return NULL;
    xp_export *e = xp_export_find(exports_in(object), h);
    return e ? object_of(e) : Py_NewRef(Py_None);
}

/* end(exported, reason): whether importers may still use it */
static PyObject *table_end_export(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    uint32_t reason;
    int code;
    if (xp_arity("end", n, 2, 2) < 0 || !is_exported(object, args[0]) || xp_as_u32(args[1], &reason) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS /* the warden may be in a driver's call for it */
    code = xp_export_end(exports_in(object), export_in(args[0]), reason);
    Py_END_ALLOW_THREADS
    if (code == XP_EXPORT_GOOD)
        release_export(object, args[0]);
    return PyBool_FromLong(code == XP_EXPORT_LINGERS);
}

static PyObject *table_release_export(PyObject *object, PyObject *arg)
{
    if (!is_exported(object, arg))
        return NULL;
    release_export(object, arg);
    Py_RETURN_NONE;
}

/* Of an export that has ended, and in a forked child, this changes nothing. */
static PyObject *table_set_deadline(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    uint64_t deadline;
    if (xp_arity("set_deadline", n, 2, 2) < 0 || !is_exported(object, args[0]) || xp_as_u64(args[1], &deadline) < 0)
        return NULL;
    xp_export_set_deadline(exports_in(object), export_in(args[0]), deadline);
    Py_RETURN_NONE;
}

/* give_open(fields[, until]): allow one more open and, with `until`, extend the time. Returns False if it has ended. */
static PyObject *table_allow_open(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    uint64_t until = 0;
    const xp_handle *h = xp_arity("give_open", n, 1, 2) < 0 ? NULL : fields_arg(object, args[0]);
    if (h == NULL || (n == 2 && xp_as_u64(args[1], &until) < 0))
        return NULL;
    int code = xp_export_allow_open(exports_in(object), h, n == 2 ? &until : NULL);
    if (code == XP_EXPORT_UNUSABLE) {
        xp_unusable(xp_domain_wrong(exports_in(object)->d));
        return NULL;
    }
    return PyBool_FromLong(code == XP_EXPORT_GOOD);
}

/* exports(): the live exports, the oldest first */
static PyObject *table_list_exports(PyObject *object, PyObject *Py_UNUSED(a))
{
    xp_exports *t = exports_in(object);
    xp_export **found = NULL;
    uint32_t room = XP_RELAXED(&t->live), n = 0;
    while (found == NULL || n > room) {
        room = found ? n + 64 : room;
        xp_export **more = PyMem_Realloc(found, (room ? room : 1) * sizeof *found);
        if (more == NULL) {
            PyMem_Free(found);
            return PyErr_NoMemory();
        }
        found = more;
        n = xp_exports_list(t, found, room);
    }
    PyObject *list = PyList_New(n);
    for (uint32_t i = 0; i < n; i++)
        if (list)
            PyList_SetItem(list, i, object_of(found[i]));
        else
            Py_DECREF(object_of(found[i]));
    PyMem_Free(found);
    return list;
}

XP_GETTER(table_used, PyLong_FromUnsignedLong(XP_RELAXED(&exports_in(self)->used)))

XP_GETTER(table_live, PyLong_FromUnsignedLong(XP_RELAXED(&exports_in(self)->live)))

XP_TYPE(table_spec, "OwnTable", table_object, XP_WITH_GC, {Py_tp_new, table_new}, XP_LIFE_SLOTS(table),
        XP_METHODS({"prepare", XP_FAST(table_prepare), METH_FASTCALL, NULL},
                   {"of_range", XP_FAST(table_export_of_range), METH_FASTCALL, NULL},
                   {"export", XP_FAST(table_export), METH_FASTCALL, NULL},
                   {"find", table_find_export, METH_O, NULL},
                   {"exports", table_list_exports, METH_NOARGS, NULL},
                   {"end", XP_FAST(table_end_export), METH_FASTCALL, NULL},
                   {"release", table_release_export, METH_O, NULL},
                   {"set_deadline", XP_FAST(table_set_deadline), METH_FASTCALL, NULL},
                   {"give_open", XP_FAST(table_allow_open), METH_FASTCALL, NULL},
                   {"new_object", table_new_object, METH_NOARGS, NULL},
                   {"object_named", table_object_named, METH_O, NULL}),
        XP_GETSET({"used", table_used, NULL, NULL, NULL}, {"live", table_live, NULL, NULL, NULL}))

XP_PART(exports, NULL, XP_KEEP(template_spec, template), XP_KEEP(exported_spec, exported),
        XP_KEEP(table_spec, own_table))
