/* OwnTable: the table of this process's exports. Exported: one export. Template: what the exports of one object have
 * in common. */
#include "exports.h"
#include "resources.h"

#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

#define BODY_NBYTES offsetof(xp_handle, seal)
#define RECYCLE_TRIES 8
#define NAMED 4096 /* how many numbers of other libraries' objects are remembered: at least this many, at most twice as many */

/* --- Template ----------------------------------------------------------------------------------------------------- */

static void template_dealloc(PyObject *object)
{
    free(((xp_template *)object)->offer);
    xp_free(object);
}

static PyMemberDef template_members[] = {
    {"nbytes", T_ULONGLONG, offsetof(xp_template, e.nbytes), READONLY, NULL}, {NULL, 0, 0, 0, NULL},
};
static PyType_Slot template_slots[] = {
    {Py_tp_dealloc, template_dealloc}, {Py_tp_members, template_members}, {0, NULL},
};
static PyType_Spec template_spec = {"xpushare._native.Template", sizeof(xp_template), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, template_slots};

static bool fill_template(xp_template *t, PyObject *o_names, PyObject *fds, PyObject *o_payload, const xp_entry *common)
{
    char *names, *payload;
    Py_ssize_t names_size, payload_size, fds_size = PyTuple_Check(fds) ? PyTuple_Size(fds) : -1;
    if (PyBytes_AsStringAndSize(o_names, &names, &names_size) < 0 ||
        PyBytes_AsStringAndSize(o_payload, &payload, &payload_size) < 0)
        return false;
    if (fds_size < 0) {
        PyErr_SetString(PyExc_TypeError, "fds are a tuple");
        return false;
    }
    t->e = *common;
    if (names_size != sizeof t->h.backend + sizeof t->h.device_uuid || fds_size > (Py_ssize_t)XP_ENTRY_FDS ||
        payload_size > (Py_ssize_t)sizeof t->e.payload) {
        PyErr_SetString(PyExc_ValueError, "no entry says that");
        return false;
    }
    memcpy(t->h.backend, names, (size_t)names_size); /* and the uuid behind it */
    t->h.kind = (uint16_t)common->kind;
    t->h.object = common->object;
    t->h.exposed_nbytes = common->exposed_nbytes;
    t->e.payload_nbytes = (uint32_t)payload_size;
    t->e.fd_count = t->offer ? t->offer->count : (uint32_t)fds_size;
    if (t->offer)
        t->e.flags |= XP_ENTRY_ON_DEMAND;
    memset(t->e.fds, 0xff, sizeof t->e.fds);
    memcpy(t->e.payload, payload, (size_t)payload_size);
    for (Py_ssize_t i = 0; i < fds_size; i++)
        if (xp_as_int(PyTuple_GetItem(fds, i), &t->e.fds[i]) < 0)
            return false;
    return true;
}

PyObject *xp_prepare(const xp_types *types, PyObject *own, PyObject *names, PyObject *fds, PyObject *payload,
                     const xp_entry *common, xp_offer *offer)
{
    xp_template *t = (xp_template *)PyType_GenericAlloc(types->template, 0);
    if (t == NULL) {
        free(offer);
        return NULL;
    }
    t->h = ((const xp_own_table *)own)->common;
    t->offer = offer;
    if (!fill_template(t, names, fds, payload, common))
        Py_CLEAR(t);
    return (PyObject *)t;
}

PyObject *xp_prepare_like(const xp_types *types, PyObject *own, PyObject *like, uint64_t serial, uint64_t nbytes,
                          const char *payload, uint32_t payload_nbytes)
{
    const xp_template *from = Py_TYPE(like) == types->template ? (const xp_template *)like : NULL;
    const xp_handle *common = &((const xp_own_table *)own)->common;
    if (from == NULL || from->e.fd_count || from->offer || payload_nbytes > sizeof from->e.payload ||
        memcmp(from->h.cookie, common->cookie, sizeof common->cookie) != 0)
        return NULL;
    xp_template *t = (xp_template *)PyType_GenericAlloc(types->template, 0);
    if (t) {
        t->h = from->h;
        t->e = from->e;
        t->h.object = t->e.object = serial;
        t->h.exposed_nbytes = t->e.exposed_nbytes = t->e.nbytes = nbytes;
        t->e.payload_nbytes = payload_nbytes;
        memset(t->e.payload, 0, sizeof t->e.payload);
        memcpy(t->e.payload, payload, payload_nbytes);
    }
    return (PyObject *)t;
}

/* The arguments are (function, objects, a, b). NULL with an exception set */
static xp_offer *as_offer(PyObject *const *args)
{
    uint64_t function, b;
    int64_t a = PyLong_AsLongLong(args[2]);
    Py_ssize_t count = a == -1 && PyErr_Occurred() ? -1 : PySequence_Size(args[1]);
    if (count < 0 || xp_as_u64(args[0], &function) < 0 || xp_as_u64(args[3], &b) < 0)
        return NULL;
    if (function < XP_LEAST_ADDRESS || count == 0 || count > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "no such function, or no objects");
        return NULL;
    }
    xp_offer *offer = malloc(sizeof *offer + (size_t)count * sizeof *offer->objects);
    if (offer == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
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

PyObject *xp_exported_new(const xp_types *types, PyObject *template, PyObject *source, PyObject *keep, uint64_t offset,
                          uint64_t length, uint32_t flags, bool foreign)
{
    xp_exported *self = (xp_exported *)PyType_GenericAlloc(types->exported, 0);
    if (self == NULL)
        return NULL;
    self->template = Py_NewRef(template);
    self->source = Py_NewRef(source);
    self->keep = Py_NewRef(keep);
    self->offset = offset;
    self->length = length;
    const xp_template *t = (const xp_template *)template;
    self->nbytes = t->e.nbytes;
    self->fds = t->offer ? 0 : t->e.fd_count;
    self->entry = XP_ENTRIES;
    self->flags = flags;
    self->foreign = foreign;
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
    PyObject *self = xp_exported_new(types, template, source, keep, offset, nbytes, flags, foreign);
    if (self)
        ((xp_exported *)self)->slot = slot;
    return self;
}

static int exported_traverse(PyObject *object, visitproc visit, void *arg)
{
    const xp_exported *self = (const xp_exported *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->template);
    Py_VISIT(self->source);
    Py_VISIT(self->keep);
    Py_VISIT(self->handle);
    Py_VISIT(self->made);
    return 0;
}

static int exported_clear(PyObject *object)
{
    xp_exported *self = (xp_exported *)object;
    Py_CLEAR(self->template);
    Py_CLEAR(self->source);
    Py_CLEAR(self->keep);
    Py_CLEAR(self->handle);
    Py_CLEAR(self->made);
    return 0;
}

static void exported_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    exported_clear(object);
    free(((xp_exported *)object)->offer);
    xp_free(object);
}

#define MEMBER(name, type, access) {#name, type, offsetof(xp_exported, name), access, NULL}
static PyMemberDef exported_members[] = {
    MEMBER(source, T_OBJECT, READONLY),      MEMBER(keep, T_OBJECT, READONLY),       MEMBER(handle, T_OBJECT, READONLY),
    MEMBER(nbytes, T_ULONGLONG, READONLY),   MEMBER(generation, T_ULONGLONG, READONLY),
    MEMBER(deadline, T_ULONGLONG, READONLY), MEMBER(entry, T_UINT, READONLY),        MEMBER(fds, T_UINT, READONLY),
    MEMBER(foreign, T_BOOL, READONLY),
    MEMBER(implicit, T_BOOL, READONLY),      MEMBER(live, T_BOOL, READONLY),         MEMBER(outlives, T_BOOL, 0),
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot exported_slots[] = {
    {Py_tp_new, exported_new},     {Py_tp_dealloc, exported_dealloc}, {Py_tp_traverse, exported_traverse},
    {Py_tp_clear, exported_clear}, {Py_tp_members, exported_members}, {0, NULL},
};
static PyType_Spec exported_spec = {"xpushare._native.Exported", sizeof(xp_exported), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, exported_slots};

/* --- OwnTable ----------------------------------------------------------------------------------------------------- */

static void lock(xp_own_table *self) { pthread_mutex_lock(&self->lock); }
static void unlock(xp_own_table *self) { pthread_mutex_unlock(&self->lock); }

static PyObject *own_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"mapping", "common", "domain", NULL};
    const xp_types *types = PyType_GetModuleState(type);
    PyObject *mapping, *domain;
    const char *common;
    Py_ssize_t size;
    xp_domain *d;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!y#O", names, types->mapping, &mapping, &common, &size, &domain) ||
        (d = xp_domain_of(domain)) == NULL)
        return NULL;
    uint64_t nbytes;
    const char *base = xp_mapping_base(mapping, &nbytes);
    if (nbytes < XP_TABLE_SIZE || size != BODY_NBYTES) {
        PyErr_SetString(PyExc_ValueError, "that is not a mapping of a table, or not what its handles have in common");
        return NULL;
    }
    uint32_t *room = PyMem_Calloc(XP_ENTRIES, sizeof *room);
    xp_exported **exports = PyMem_Calloc(XP_ENTRIES, sizeof *exports);
    xp_own_table *self = room && exports ? (xp_own_table *)PyType_GenericAlloc(type, 0) : NULL;
    if (self == NULL) {
        PyMem_Free(room);
        PyMem_Free(exports);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    pthread_mutex_init(&self->lock, NULL);
    self->mapping = Py_NewRef(mapping);
    self->domain = Py_NewRef(domain);
    self->base = (char *)base;
    self->d = d;
    self->free = room;
    self->exports = exports;
    memcpy(&self->common, common, (size_t)size);
    if ((self->named = PyDict_New()) == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int own_traverse(PyObject *object, visitproc visit, void *arg)
{
    const xp_own_table *self = (const xp_own_table *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->mapping);
    Py_VISIT(self->domain);
    Py_VISIT(self->named);
    Py_VISIT(self->named_before);
    for (uint32_t i = 0; i < self->used; i++) /* without the lock: no thread can be inside the table now */
        Py_VISIT(self->exports[i]);
    return 0;
}

static int own_clear(PyObject *object)
{
    xp_own_table *self = (xp_own_table *)object;
    for (uint32_t i = 0; i < self->used; i++)
        Py_CLEAR(self->exports[i]);
    return 0;
}

static void own_dealloc(PyObject *object)
{
    xp_own_table *self = (xp_own_table *)object;
    PyObject_GC_UnTrack(object);
    own_clear(object);
    PyMem_Free(self->free);
    PyMem_Free(self->exports);
    pthread_mutex_destroy(&self->lock);
    Py_XDECREF(self->mapping);
    Py_XDECREF(self->domain);
    Py_XDECREF(self->named);
    Py_XDECREF(self->named_before);
    xp_free(object);
}

/* prepare(kind, flags, names, device, object, nbytes, exposed_nbytes, inode, within, fds, payload[, function, objects, a,
 * b]) */
static PyObject *own_prepare(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    xp_entry e = {0};
    if ((n != 11 && xp_arity("prepare", n, 15, 15) < 0) || xp_as_u32(args[0], &e.kind) < 0 ||
        xp_as_u32(args[1], &e.flags) < 0 || xp_as_u32(args[3], &e.device) < 0 || xp_as_u64(args[4], &e.object) < 0 ||
        xp_as_u64(args[5], &e.nbytes) < 0 || xp_as_u64(args[6], &e.exposed_nbytes) < 0 ||
        xp_as_u64(args[7], &e.inode) < 0 || xp_as_u64(args[8], &e.offset) < 0)
        return NULL;
    xp_offer *offer = n == 11 ? NULL : as_offer(args + 11);
    if (n != 11 && offer == NULL)
        return NULL;
    return xp_prepare(PyType_GetModuleState(Py_TYPE(object)), object, args[2], args[9], args[10], &e, offer);
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
static PyObject *own_of_range(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    const xp_range *r = xp_arity("of_range", n, 4, 4) < 0 ? NULL : xp_range_of(types, args[0]);
    if (r == NULL || (args[1] != Py_None && Py_TYPE(args[1]) != types->template)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "of_range() takes a range of an allocation, and a Template or None");
        return NULL;
    }
    int read_only = PyObject_IsTrue(args[2]), implicit = PyObject_IsTrue(args[3]);
    if (read_only < 0 || implicit < 0)
        return NULL;
    xp_allocation *m = xp_allocation_of(types, r->allocation);
    PyObject *template = args[1] != Py_None ? Py_NewRef(args[1]) : m && !read_only ? prepared_of(r, m) : NULL;
    if (template == NULL)
        Py_RETURN_NONE;
    PyObject *made = NULL;
    uint32_t flags = (read_only || r->read_only ? XP_ENTRY_READ_ONLY : 0) | (implicit ? XP_ENTRY_PICKLED : 0);
    if (m && Py_TYPE(template) == types->template)
        made = xp_exported_new(types, template, r->allocation, r->lease, r->offset, r->nbytes, flags, m->foreign);
    else
        PyErr_SetString(PyExc_TypeError, "of_range() takes a range of an allocation, and its Template");
    Py_DECREF(template);
    return made;
}

uint64_t xp_new_object(PyObject *own) { return __atomic_add_fetch(&((xp_own_table *)own)->objects, 1, __ATOMIC_RELAXED); }

static PyObject *own_new_object(PyObject *object, PyObject *Py_UNUSED(a))
{
    return PyLong_FromUnsignedLongLong(xp_new_object(object));
}

/* `fresh`: an empty dict, to forget the names that nobody has asked for since. Runs no Python. */
static uint64_t number_of(xp_own_table *self, PyObject *name, PyObject **fresh)
{
    PyObject *found = PyDict_GetItemWithError(self->named, name), *made = NULL;
    uint64_t number = 0;
    if (found == NULL && !PyErr_Occurred()) {
        if (self->named_before)
            found = PyDict_GetItemWithError(self->named_before, name);
        if (found == NULL && !PyErr_Occurred())
            found = made = PyLong_FromUnsignedLongLong(xp_new_object((PyObject *)self));
        if (found && *fresh) {
            PyObject *gone = self->named_before;
            self->named_before = self->named;
            self->named = *fresh;
            *fresh = gone;
            made = made ? made : Py_NewRef(found);
        }
        if (found && PyDict_SetItem(self->named, name, found) < 0)
            found = NULL;
    }
    if (found && xp_as_u64(found, &number) < 0)
        number = 0;
    Py_XDECREF(made);
    return number;
}

uint64_t xp_object_named(PyObject *own, PyObject *name)
{
    xp_own_table *self = (xp_own_table *)own;
    uint64_t number = 0;
    PyObject *fresh = PyDict_Size(self->named) >= NAMED ? PyDict_New() : NULL;
    if (PyErr_Occurred())
        return 0;
    Py_BEGIN_CRITICAL_SECTION(own);
    number = number_of(self, name, &fresh);
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(fresh);
    return number;
}

/* object_named(name): the number of another library's object, always the same one */
static PyObject *own_object_named(PyObject *object, PyObject *name)
{
    uint64_t number = xp_object_named(object, name);
    return number ? PyLong_FromUnsignedLongLong(number) : NULL;
}

static xp_entry *entry_at(xp_own_table *self, uint32_t entry)
{
    return (xp_entry *)(self->base + XP_TABLE_HEADER) + entry;
}

static void store_deadline(xp_own_table *self, xp_exported *e, uint64_t deadline)
{
    e->deadline = deadline;
    XP_STORE((uint64_t *)(self->base + XP_TABLE_DEADLINES) + e->entry, deadline);
}

/* --- which entries are free --- */

static bool take_free(xp_own_table *self, uint32_t *entry)
{
    lock(self);
    bool found = self->count != 0;
    if (found) {
        *entry = self->free[self->first];
        self->first = (self->first + 1) % XP_ENTRIES;
        self->count--;
    }
    unlock(self);
    return found;
}

static bool held(xp_domain *d, uint32_t entry)
{
    uint32_t found[XP_MEMBERS], n;
    if (!xp_may_hold(d, entry))
        return false;
    Py_BEGIN_ALLOW_THREADS
    n = xp_holders(d, entry, found);
    Py_END_ALLOW_THREADS
    return n > 0;
}

/* Returns false if there is none, or if it failed with an exception set. */
static bool take_entry(xp_own_table *self, uint32_t *entry)
{
    uint32_t found;
    /* An entry that a living importer still holds is not reused: the importer's bit would count for another export. */
    for (int i = 0; i < RECYCLE_TRIES && take_free(self, &found); i++) {
        bool usable = xp_domain_of(self->domain) != NULL;
        if (usable && !held(self->d, found)) {
            *entry = found;
            return true;
        }
        xp_give_entry(self, found);
        if (!usable)
            return false;
    }
    lock(self);
    bool more = self->used < XP_ENTRIES;
    if (more)
        *entry = self->used++;
    unlock(self);
    return more;
}

/* --- exporting --- */

/* Random bytes that are used only once. Many are fetched at a time, since a system call takes long. Returns false
 * with an exception set. */
static bool take_nonce(xp_own_table *self, uint8_t *nonce)
{
    lock(self);
    if (self->nonces_left == 0 && getrandom(self->nonces, sizeof self->nonces, 0) == sizeof self->nonces)
        self->nonces_left = sizeof self->nonces / sizeof *self->nonces; /* so few bytes come whole, or not at all */
    bool got = self->nonces_left;
    if (got)
        memcpy(nonce, self->nonces[--self->nonces_left], sizeof *self->nonces);
    unlock(self);
    if (!got)
        xp_oserror("getrandom");
    return got;
}

/* Fill in an entry, which stays dead for now: the generation is stored last, and the reason for the end of its last
 * export can still be reported. Returns false with an exception set. */
static bool enter(xp_own_table *self, const xp_key *key, const xp_exported *e, uint32_t flags, xp_handle *made)
{
    const xp_template *t = (const xp_template *)e->template;
    xp_handle h = t->h;
    if (!take_nonce(self, h.nonce))
        return false;
    h.flags = flags & XP_HANDLE_FLAGS;
    h.entry = e->entry;
    h.generation = e->generation;
    h.offset = e->offset;
    h.nbytes = e->length;
    xp_hash(key, &h, BODY_NBYTES, h.seal);
    xp_entry *entry = entry_at(self, e->entry);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    memcpy((char *)entry + offsetof(xp_entry, kind), (const char *)&t->e + offsetof(xp_entry, kind),
           sizeof *entry - offsetof(xp_entry, kind));
    entry->flags |= flags;
    entry->slot = e->slot;
    entry->since = (uint32_t)now.tv_sec;
    memcpy(entry->nonce, h.nonce, sizeof entry->nonce);
    *made = h;
    return true;
}

/* Make a copy for one export. Returns false with an exception set. */
static bool copy_offer(xp_exported *e)
{
    const xp_offer *from = ((const xp_template *)e->template)->offer;
    size_t nbytes = from ? sizeof *from + from->count * sizeof *from->objects : 0;
    if (from == NULL)
        return true;
    if ((e->offer = malloc(nbytes)) == NULL) {
        PyErr_NoMemory();
        return false;
    }
    memcpy(e->offer, from, nbytes);
    e->offer->entry = e->entry;
    e->offer->generation = e->generation;
    return true;
}

/* All that may fail. */
static bool fill(xp_own_table *self, const xp_types *types, const xp_key *key, xp_exported *e, int opens,
                 uint64_t deadline)
{
    uint32_t flags = e->flags | (opens < 0 ? 0 : XP_ENTRY_COUNTED);
    bool counts = flags & (XP_ENTRY_COUNTED | XP_ENTRY_PICKLED);
    if (!take_entry(self, &e->entry) || (counts && xp_domain_of(self->domain) == NULL))
        return false;
    if (xp_marked(self->d, e->entry))
        xp_clear_marks(self->d, e->entry);
    lock(self);
    e->generation = ++self->generation;
    unlock(self);
    xp_handle h;
    if (!copy_offer(e) || !enter(self, key, e, flags, &h) || (e->made = xp_handle_new(types, &h)) == NULL)
        return false;
    memcpy(e->seal, h.seal, sizeof e->seal);
    if (counts)
        xp_set_opens(self->d, e->entry, opens < 0 ? 0 : opens);
    store_deadline(self, e, deadline);
    return true;
}

/* Nobody has seen it. */
static void undo(xp_own_table *self, xp_exported *e)
{
    if (e->entry != XP_ENTRIES)
        xp_give_entry(self, e->entry);
    e->entry = XP_ENTRIES;
    e->generation = e->deadline = 0;
    Py_CLEAR(e->made);
    free(e->offer);
    e->offer = NULL;
    __atomic_store_n(&e->begun, false, __ATOMIC_RELEASE);
}

static bool begin(xp_own_table *self, const xp_types *types, const xp_key *key, xp_exported *e, int opens,
                  uint64_t deadline)
{
    if (__atomic_exchange_n(&e->begun, true, __ATOMIC_ACQ_REL) || e->template == NULL) {
        PyErr_SetString(PyExc_ValueError, "that has been exported before");
        return false;
    }
    if (fill(self, types, key, e, opens, deadline))
        return true;
    undo(self, e);
    return false;
}

static void publish(xp_own_table *self, PyObject *const *exports, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        xp_exported *e = (xp_exported *)exports[i];
        if (e->offer) {
            Py_BEGIN_ALLOW_THREADS /* the warden may be in a driver's call */
            xp_make_offer(e->offer);
            Py_END_ALLOW_THREADS
            e->offer = NULL;
        }
    }
    lock(self);
    for (Py_ssize_t i = 0; i < n; i++) {
        xp_exported *e = (xp_exported *)exports[i];
        self->exports[e->entry] = (xp_exported *)Py_NewRef(exports[i]);
        self->live++;
        e->live = true;
        e->handle = e->made;
        e->made = NULL;
        XP_STORE(&entry_at(self, e->entry)->generation, e->generation);
    }
    unlock(self);
}

bool xp_export(const xp_types *types, PyObject *own, const xp_key *key, PyObject *const *exports, Py_ssize_t n,
               int opens, uint64_t deadline)
{
    xp_own_table *self = (xp_own_table *)own;
    Py_ssize_t begun = 0;
    while (begun < n && begin(self, types, key, (xp_exported *)exports[begun], opens, deadline))
        begun++;
    if (begun == n)
        publish(self, exports, n);
    else
        for (Py_ssize_t i = 0; i < begun; i++)
            undo(self, (xp_exported *)exports[i]);
    return begun == n;
}

/* export(seal, exports, opens, deadline): their handles; None, and no export, if the table is full */
static PyObject *own_export(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    const xp_key *key = xp_arity("export", n, 4, 4) < 0 ? NULL : xp_key_of(types, args[0]);
    int opens = -1;
    uint64_t deadline;
    if (key == NULL || (args[2] != Py_None && xp_as_int(args[2], &opens) < 0) || xp_as_u64(args[3], &deadline) < 0)
        return NULL;
    if (args[2] != Py_None && opens < 0) {
        PyErr_SetString(PyExc_ValueError, "opens are a number that is not negative");
        return NULL;
    }
    PyObject *held = PySequence_Tuple(args[1]), *made = NULL, *few[8]; /* held: a list may lose its items in between */
    Py_ssize_t count = held ? PyTuple_Size(held) : 0;
    PyObject **exports = count <= 8 ? few : PyMem_Calloc((size_t)count, sizeof *exports);
    bool good = held && (exports || PyErr_NoMemory());
    for (Py_ssize_t i = 0; i < count && good; i++) {
        exports[i] = PyTuple_GetItem(held, i);
        if (!(good = Py_TYPE(exports[i]) == types->exported))
            PyErr_SetString(PyExc_TypeError, "export() takes Exported");
    }
    if (good && (made = PyList_New(count)) && !xp_export(types, object, key, exports, count, opens, deadline))
        Py_CLEAR(made);
    for (Py_ssize_t i = 0; i < count && made; i++)
        PyList_SetItem(made, i, Py_NewRef(((xp_exported *)exports[i])->handle));
    if (exports != few)
        PyMem_Free(exports);
    Py_XDECREF(held);
    return made || PyErr_Occurred() ? made : Py_NewRef(Py_None);
}

/* --- what is exported --- */

/* The live export of a handle, borrowed. Called with the lock. */
static xp_exported *export_of(const xp_own_table *self, const xp_handle *h)
{
    xp_exported *e = h->entry < XP_ENTRIES ? self->exports[h->entry] : NULL;
    return e && e->live && e->generation == h->generation && memcmp(e->seal, h->seal, sizeof e->seal) == 0 ? e : NULL;
}

PyObject *xp_export_of(PyObject *own, const xp_handle *h)
{
    xp_own_table *self = (xp_own_table *)own;
    lock(self);
    PyObject *found = Py_XNewRef((PyObject *)export_of(self, h));
    unlock(self);
    return found;
}

/* true if it is in the table. */
static bool has(const xp_own_table *self, const xp_exported *e)
{
    return e->entry < XP_ENTRIES && self->exports[e->entry] == e;
}

/* The exposure of memory that may be reused, or NULL for any other memory. */
static PyObject *exposure_of(PyObject *own, const xp_exported *e)
{
    const xp_types *types = PyType_GetModuleState(Py_TYPE(own));
    return types && Py_TYPE(e->source) == types->allocation ? ((const xp_allocation *)e->source)->exposure : NULL;
}

void xp_release_export(PyObject *own, PyObject *exported)
{
    xp_own_table *self = (xp_own_table *)own;
    xp_exported *e = (xp_exported *)exported;
    lock(self);
    bool ours = has(self, e) && !e->live;
    if (ours)
        self->exports[e->entry] = NULL;
    unlock(self);
    if (ours) {
        PyObject *exposure = exposure_of(own, e);
        if (exposure == NULL || !xp_exposure_add(exposure, self, e->entry))
            xp_give_entry(self, e->entry);
        Py_DECREF(exported);
    }
}

bool xp_end_export(PyObject *own, PyObject *exported, uint32_t reason)
{
    xp_own_table *self = (xp_own_table *)own;
    xp_exported *e = (xp_exported *)exported;
    lock(self);
    bool ours = has(self, e) && e->live;
    if (ours) {
        e->live = false;
        self->live--;
    }
    unlock(self);
    if (!ours)
        return false;
    Py_BEGIN_ALLOW_THREADS /* the warden may be in a driver's call for it */
    xp_withdraw(entry_at(self, e->entry), reason);
    Py_END_ALLOW_THREADS
    if (e->foreign && xp_usable(self->d) && (xp_owned(self->d, e->entry) || xp_may_reach(self->d, e->entry)))
        return true;
    xp_release_export(own, exported);
    return false;
}

/* NULL with TypeError */
static const xp_handle *fields_arg(PyObject *own, PyObject *arg)
{
    const xp_handle *h = xp_fields_of(PyType_GetModuleState(Py_TYPE(own)), arg);
    if (h == NULL)
        PyErr_SetString(PyExc_TypeError, "Fields are wanted");
    return h;
}

static bool is_exported(PyObject *own, PyObject *arg)
{
    bool good = Py_TYPE(arg) == ((const xp_types *)PyType_GetModuleState(Py_TYPE(own)))->exported;
    if (!good)
        PyErr_SetString(PyExc_TypeError, "an Exported is wanted");
    return good;
}

static PyObject *own_find(PyObject *object, PyObject *arg)
{
    const xp_handle *h = fields_arg(object, arg);
    PyObject *found = h ? xp_export_of(object, h) : NULL;
    return found || h == NULL ? found : Py_NewRef(Py_None);
}

/* end(exported, reason): whether importers may still use it */
static PyObject *own_end(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    uint32_t reason;
    if (xp_arity("end", n, 2, 2) < 0 || !is_exported(object, args[0]) || xp_as_u32(args[1], &reason) < 0)
        return NULL;
    return PyBool_FromLong(xp_end_export(object, args[0], reason));
}

static PyObject *own_release(PyObject *object, PyObject *arg)
{
    if (!is_exported(object, arg))
        return NULL;
    xp_release_export(object, arg);
    Py_RETURN_NONE;
}

static PyObject *own_set_deadline(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    xp_own_table *self = (xp_own_table *)object;
    uint64_t deadline;
    if (xp_arity("set_deadline", n, 2, 2) < 0 || !is_exported(object, args[0]) || xp_as_u64(args[1], &deadline) < 0)
        return NULL;
    xp_exported *e = (xp_exported *)args[0];
    lock(self);
    if (has(self, e) && e->live)
        store_deadline(self, e, deadline);
    unlock(self);
    Py_RETURN_NONE;
}

/* give_open(fields[, until]): allow one more open and, with `until`, extend the time. Returns False if it has ended. */
static PyObject *own_give_open(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    xp_own_table *self = (xp_own_table *)object;
    uint64_t until = 0;
    const xp_handle *h = xp_arity("give_open", n, 1, 2) < 0 ? NULL : fields_arg(object, args[0]);
    if (h == NULL || (n == 2 && xp_as_u64(args[1], &until) < 0))
        return NULL;
    xp_exported *e = (xp_exported *)xp_export_of(object, h);
    bool live = e != NULL, usable = e == NULL || xp_domain_of(self->domain);
    if (e && usable) {
        lock(self);
        live = e->live; /* otherwise the entry may belong to another export by now */
        if (live && n == 2)
            xp_renew(self->d, e->entry, until);
        else if (live)
            xp_give_open(self->d, e->entry);
        unlock(self);
    }
    Py_XDECREF((PyObject *)e);
    return usable ? PyBool_FromLong(live) : NULL;
}

static int by_generation(const void *a, const void *b)
{
    uint64_t one = (*(xp_exported *const *)a)->generation, other = (*(xp_exported *const *)b)->generation;
    return one < other ? -1 : one > other;
}

/* exports(): the live exports, the oldest first */
static PyObject *own_exports(PyObject *object, PyObject *Py_UNUSED(a))
{
    xp_own_table *self = (xp_own_table *)object;
    xp_exported **found = NULL;
    uint32_t room = 0, n = 0;
    lock(self);
    while (room < self->live) {
        room = self->live + 64;
        unlock(self);
        xp_exported **more = PyMem_Realloc(found, room * sizeof *found);
        if (more == NULL) {
            PyMem_Free(found);
            return PyErr_NoMemory();
        }
        found = more;
        lock(self);
    }
    for (uint32_t i = 0; i < self->used; i++)
        if (self->exports[i] && self->exports[i]->live)
            found[n++] = (xp_exported *)Py_NewRef((PyObject *)self->exports[i]);
    unlock(self);
    if (n > 1)
        qsort(found, n, sizeof *found, by_generation);
    PyObject *list = PyList_New(n);
    for (uint32_t i = 0; i < n; i++)
        if (list)
            PyList_SetItem(list, i, (PyObject *)found[i]);
        else
            Py_DECREF((PyObject *)found[i]);
    PyMem_Free(found);
    return list;
}

static PyMethodDef own_methods[] = {
    {"prepare", XP_FAST(own_prepare), METH_FASTCALL, NULL},
    {"of_range", XP_FAST(own_of_range), METH_FASTCALL, NULL},
    {"export", XP_FAST(own_export), METH_FASTCALL, NULL},
    {"find", own_find, METH_O, NULL},
    {"exports", own_exports, METH_NOARGS, NULL},
    {"end", XP_FAST(own_end), METH_FASTCALL, NULL},
    {"release", own_release, METH_O, NULL},
    {"set_deadline", XP_FAST(own_set_deadline), METH_FASTCALL, NULL},
    {"give_open", XP_FAST(own_give_open), METH_FASTCALL, NULL},
    {"new_object", own_new_object, METH_NOARGS, NULL},
    {"object_named", own_object_named, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef own_members[] = {
    {"used", T_UINT, offsetof(xp_own_table, used), READONLY, NULL},
    {"live", T_UINT, offsetof(xp_own_table, live), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot own_slots[] = {
    {Py_tp_new, own_new},     {Py_tp_dealloc, own_dealloc}, {Py_tp_traverse, own_traverse},
    {Py_tp_clear, own_clear}, {Py_tp_methods, own_methods}, {Py_tp_members, own_members},
    {0, NULL},
};
static PyType_Spec own_spec = {"xpushare._native.OwnTable", sizeof(xp_own_table), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, own_slots};

int xp_init_exports(PyObject *module)
{
    xp_types *types = xp_types_of(module);
    if (xp_keep_type(module, &template_spec, &types->template) < 0 ||
        xp_keep_type(module, &exported_spec, &types->exported) < 0)
        return -1;
    return xp_keep_type(module, &own_spec, &types->own_table);
}
