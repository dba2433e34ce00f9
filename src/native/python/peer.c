/* Fields: the bytes of a handle, by name. PeerTable: opens an entry of a peer's mapped table in one call. OwnTable:
 * fills in an entry of our own. */
#include "objects.h"

#include <sys/random.h>
#include <time.h>

#define BODY_NBYTES offsetof(xp_handle, seal)
#define RECYCLE_TRIES 8

/* --- Fields ------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    xp_handle h;
} xp_fields;

PyObject *xp_fields_new(PyTypeObject *type, const xp_handle *h)
{
    xp_fields *self = (xp_fields *)PyType_GenericAlloc(type, 0);
    if (self)
        self->h = *h;
    return (PyObject *)self;
}

static PyObject *fields_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *raw;
    char *bytes;
    Py_ssize_t nbytes;
    if ((kwargs && PyDict_Size(kwargs)) || PyTuple_Size(args) != 1) {
        PyErr_SetString(PyExc_TypeError, "Fields() takes the bytes of a handle");
        return NULL;
    }
    raw = PyTuple_GetItem(args, 0);
    if (PyBytes_AsStringAndSize(raw, &bytes, &nbytes) < 0)
        return NULL;
    if (nbytes != sizeof(xp_handle)) {
        PyErr_Format(PyExc_ValueError, "a handle has %zu bytes, not %zd", sizeof(xp_handle), nbytes);
        return NULL;
    }
    xp_handle h;
    memcpy(&h, bytes, sizeof h);
    return xp_fields_new(type, &h);
}

static PyObject *fields_bytes(PyObject *self, void *place)
{
    uintptr_t at = (uintptr_t)place >> 8, nbytes = (uintptr_t)place & 0xff;
    return PyBytes_FromStringAndSize((const char *)&((xp_fields *)self)->h + at, (Py_ssize_t)nbytes);
}

#define NUMBER(name, type) {#name, type, offsetof(xp_fields, h.name), READONLY, NULL}
#define BYTES(name) \
    {#name, fields_bytes, NULL, NULL, (void *)(offsetof(xp_handle, name) << 8 | sizeof(((xp_handle *)0)->name))}

static PyMemberDef fields_members[] = {
    NUMBER(version, T_USHORT),
    NUMBER(kind, T_USHORT),
    NUMBER(flags, T_UINT),
    NUMBER(pid_namespace, T_ULONGLONG),
    NUMBER(pid, T_UINT),
    NUMBER(table_fd, T_UINT),
    NUMBER(generation, T_ULONGLONG),
    NUMBER(entry, T_UINT),
    NUMBER(reserved0, T_UINT),
    NUMBER(object, T_ULONGLONG),
    NUMBER(offset, T_ULONGLONG),
    NUMBER(nbytes, T_ULONGLONG),
    NUMBER(exposed_nbytes, T_ULONGLONG),
    NUMBER(net_namespace, T_ULONGLONG),
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef fields_getset[] = {
    BYTES(magic),  BYTES(backend), BYTES(device_uuid), BYTES(boot_id),
    BYTES(cookie), BYTES(nonce),   BYTES(reserved1),   {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot fields_slots[] = {
    {Py_tp_new, fields_new}, {Py_tp_members, fields_members}, {Py_tp_getset, fields_getset}, {0, NULL},
};
static PyType_Spec fields_spec = {"xpushare._native.Fields", sizeof(xp_fields), 0, Py_TPFLAGS_DEFAULT, fields_slots};

/* --- PeerTable ---------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *mapping, *domain;
    const char *base;
    int pidfd;
} xp_peer_table;

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"mapping", "domain", "pidfd", NULL};
    const xp_types *types = PyType_GetModuleState(type);
    PyObject *mapping, *domain;
    int pidfd;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!Oi", names, types->mapping, &mapping, &domain, &pidfd) ||
        xp_domain_of(domain) == NULL)
        return NULL;
    uint64_t nbytes;
    const char *base = xp_mapping_base(mapping, &nbytes);
    if (nbytes < XP_TABLE_SIZE) {
        PyErr_SetString(PyExc_ValueError, "that is no mapping of a table");
        return NULL;
    }
    xp_peer_table *self = (xp_peer_table *)PyType_GenericAlloc(type, 0);
    if (self) {
        self->mapping = Py_NewRef(mapping);
        self->domain = Py_NewRef(domain);
        self->base = base;
        self->pidfd = pidfd;
    }
    return (PyObject *)self;
}

static void table_dealloc(PyObject *object)
{
    xp_peer_table *self = (xp_peer_table *)object;
    Py_XDECREF(self->mapping);
    Py_XDECREF(self->domain);
    xp_free(object);
}

static bool overdue(const xp_peer_table *self, const xp_handle *h)
{
    xp_domain *d = h->flags & XP_ENTRY_PICKLED && h->entry < XP_ENTRIES ? xp_domain_of(self->domain) : NULL;
    PyErr_Clear();
    return xp_overdue(self->base, h, d ? xp_renewed(d, h->entry) : 0);
}

/* The entry, if one native call may open it. */
static bool look_up(const xp_peer_table *self, const xp_handle *h, xp_entry *e)
{
    return self->pidfd >= 0 && !(h->flags & XP_ENTRY_COUNTED) && xp_read_entry(self->base, h, e) == XP_LIVE &&
           !overdue(self, h);
}

const xp_handle *xp_fields_of(const xp_types *types, PyObject *fields)
{
    return Py_TYPE(fields) == types->fields ? &((const xp_fields *)fields)->h : NULL;
}

static const xp_handle *fields_arg(const xp_types *types, const char *name, PyObject *arg)
{
    if (Py_TYPE(arg) == types->fields)
        return &((const xp_fields *)arg)->h;
    PyErr_Format(PyExc_TypeError, "%s() takes Fields first", name);
    return NULL;
}

static const xp_handle *handle_arg(PyObject *self, const char *name, PyObject *const *args, Py_ssize_t n, int arity)
{
    return xp_arity(name, n, arity, arity) < 0 ? NULL : fields_arg(PyType_GetModuleState(Py_TYPE(self)), name, args[0]);
}

static PyObject *lease_of(PyObject *self, const xp_handle *h, PyObject *peer)
{
    const xp_types *types = PyType_GetModuleState(Py_TYPE(self));
    PyObject *lease = xp_lease_new(types->lease, ((xp_peer_table *)self)->domain, h->entry, peer);
    if (lease == NULL)
        PyErr_Clear(); /* the caller tries again the long way, which says what is wrong */
    return lease;
}

/* A hold of the entry, for what is open already, if it is live and its process, too. */
static PyObject *hold_live(PyObject *object, const xp_handle *h, PyObject *peer, xp_entry *e)
{
    const xp_peer_table *self = (xp_peer_table *)object;
    PyObject *lease = look_up(self, h, e) ? lease_of(object, h, peer) : NULL;
    uint32_t reason;
    if (lease && (xp_entry_state(self->base, h, &reason) != XP_LIVE || xp_pidfd_readable(self->pidfd)))
        Py_CLEAR(lease);
    return lease;
}

PyObject *xp_hold_live(const xp_types *types, PyObject *table, const xp_handle *h, PyObject *peer, uint32_t *slot)
{
    xp_entry e = {.slot = 0};
    PyObject *lease = Py_TYPE(table) == types->peer_table ? hold_live(table, h, peer, &e) : NULL;
    *slot = e.slot;
    return lease;
}

static PyObject *table_hold(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_handle *h = handle_arg(object, "hold", args, n, 2);
    xp_entry e;
    if (h == NULL)
        return NULL;
    PyObject *lease = hold_live(object, h, args[1], &e);
    if (lease == NULL)
        Py_RETURN_NONE;
    return Py_BuildValue("(NI)", lease, e.slot);
}

static bool is_memfd(const xp_entry *e) { return (e->flags & XP_ENTRY_FORM) == XP_ENTRY_MEMFD; }

/* A list of OwnedFds, which takes all of them over, also where it fails. */
static PyObject *own_fds(const xp_types *types, const int *fds, uint32_t count)
{
    PyObject *numbers = PyList_New(0);
    for (uint32_t i = 0; i < count; i++) {
        PyObject *fd = xp_own_fd(types->owned_fd, fds[i], "fcntl(F_DUPFD_CLOEXEC)");
        if (numbers && (fd == NULL || PyList_Append(numbers, fd) < 0))
            Py_CLEAR(numbers);
        Py_XDECREF(fd);
    }
    return numbers;
}

bool xp_open_entry(const xp_types *types, PyObject *table, const xp_handle *h, PyObject *peer, bool maps, xp_opened *o)
{
    const xp_peer_table *self = (const xp_peer_table *)table;
    int fds[XP_ENTRY_FDS];
    char *base = NULL;
    bool opened;
    *o = (xp_opened){.lease = NULL};
    if (Py_TYPE(table) != types->peer_table || !look_up(self, h, &o->e) || (o->e.flags & XP_ENTRY_ON_DEMAND))
        return false;
    bool memfd = maps && is_memfd(&o->e);
    if ((memfd && o->e.payload_nbytes) || (o->lease = lease_of(table, h, peer)) == NULL)
        return false;
    Py_BEGIN_ALLOW_THREADS
    if (memfd)
        opened = (base = xp_fetch_mapping(self->base, self->pidfd, h, &o->e)) != NULL;
    else
        opened = xp_fetch_fds(self->base, self->pidfd, h, &o->e, fds);
    Py_END_ALLOW_THREADS
    if (opened) {
        o->mapping = memfd ? xp_mapping_new(types->mapping, base, o->e.exposed_nbytes) : Py_NewRef(Py_None);
        o->fds = own_fds(types, fds, memfd ? 0 : o->e.fd_count);
    }
    if (o->mapping && o->fds)
        return true;
    xp_close_opened(o);
    return false;
}

void xp_close_opened(xp_opened *o)
{
    Py_CLEAR(o->lease);
    Py_CLEAR(o->mapping);
    Py_CLEAR(o->fds);
}

bool xp_still_live(const xp_types *types, PyObject *table, const xp_handle *h)
{
    uint32_t reason;
    return Py_TYPE(table) == types->peer_table &&
           xp_entry_state(((xp_peer_table *)table)->base, h, &reason) == XP_LIVE;
}

bool xp_point_done(PyObject *table, uint32_t slot, uint64_t point)
{
    xp_domain *d = xp_domain_of(((xp_peer_table *)table)->domain);
    xp_view v;
    if (d == NULL || slot >= xp_slots_used(d))
        return false;
    xp_read(xp_words_at(d, slot), &v);
    return xp_state(&v, point) == XP_DONE;
}

bool xp_count_open(PyObject *table, const xp_handle *h)
{
    if (!(h->flags & XP_ENTRY_PICKLED))
        return true;
    xp_domain *d = xp_domain_of(((xp_peer_table *)table)->domain);
    if (d)
        xp_take_open(d, h->entry);
    return d != NULL;
}

static PyObject *table_open(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_handle *h = handle_arg(object, "open", args, n, 3);
    int maps = h ? PyObject_IsTrue(args[2]) : -1;
    xp_opened o;
    if (maps < 0)
        return NULL;
    if (!xp_open_entry(PyType_GetModuleState(Py_TYPE(object)), object, h, args[1], maps, &o)) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    PyObject *found = Py_BuildValue("(OOKKy#OKI)", o.mapping, o.lease, (unsigned long long)o.e.nbytes,
                                    (unsigned long long)o.e.exposed_nbytes, (const char *)o.e.payload,
                                    (Py_ssize_t)o.e.payload_nbytes, o.fds, (unsigned long long)o.e.offset, o.e.flags);
    xp_close_opened(&o);
    return found;
}

static PyObject *table_ended(PyObject *object, PyObject *arg)
{
    const xp_handle *h = fields_arg(PyType_GetModuleState(Py_TYPE(object)), "ended", arg);
    if (h == NULL)
        return NULL;
    uint32_t reason;
    switch (xp_entry_state(((xp_peer_table *)object)->base, h, &reason)) {
    case XP_LIVE:
        if (overdue((xp_peer_table *)object, h))
            return PyLong_FromLong(h->flags & XP_ENTRY_PICKLED ? XP_REASON_PICKLE : XP_REASON_TTL);
        Py_RETURN_NONE;
    case XP_NO_ENTRY:
        PyErr_SetString(PyExc_ValueError, "the handle names no entry of a table");
        return NULL;
    default:
        return PyLong_FromUnsignedLong(reason);
    }
}

static PyObject *table_entry(PyObject *object, PyObject *arg)
{
    const xp_handle *h = fields_arg(PyType_GetModuleState(Py_TYPE(object)), "entry", arg);
    xp_entry e;
    if (h == NULL)
        return NULL;
    if (xp_read_entry(((xp_peer_table *)object)->base, h, &e) != XP_LIVE || overdue((xp_peer_table *)object, h))
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)&e, sizeof e);
}

static PyMethodDef table_methods[] = {
    {"ended", table_ended, METH_O, NULL},
    {"entry", table_entry, METH_O, NULL},
    {"open", XP_FAST(table_open), METH_FASTCALL, NULL},
    {"hold", XP_FAST(table_hold), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot table_slots[] = {
    {Py_tp_new, table_new}, {Py_tp_dealloc, table_dealloc}, {Py_tp_methods, table_methods}, {0, NULL},
};
static PyType_Spec table_spec = {"xpushare._native.PeerTable", sizeof(xp_peer_table), 0, Py_TPFLAGS_DEFAULT,
                                 table_slots};

/* --- OwnTable ----------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *mapping;
    char *base;
    xp_handle common;
    uint64_t objects;      /* how many have a number */
    uint64_t generation;   /* the last one that was given. With the lock of the caller, as what follows */
    uint32_t used;         /* of the entries */
    uint32_t *free;        /* a ring of entries that are not used now */
    uint32_t first, count; /* of those */
} xp_own_table;

/* Template: what the exports of one object have in common. */
typedef struct {
    PyObject_HEAD
    PyObject *on_demand;
    xp_handle h;
    xp_entry e;
} xp_template;

static void template_dealloc(PyObject *object)
{
    Py_XDECREF(((xp_template *)object)->on_demand);
    xp_free(object);
}

static PyMemberDef template_members[] = {
    {"on_demand", T_OBJECT, offsetof(xp_template, on_demand), READONLY, NULL},
    {"nbytes", T_ULONGLONG, offsetof(xp_template, e.nbytes), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot template_slots[] = {
    {Py_tp_dealloc, template_dealloc}, {Py_tp_members, template_members}, {0, NULL},
};
static PyType_Spec template_spec = {"xpushare._native.Template", sizeof(xp_template), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, template_slots};

static PyObject *own_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"mapping", "common", NULL};
    const xp_types *types = PyType_GetModuleState(type);
    PyObject *mapping;
    const char *common;
    Py_ssize_t size;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!y#", names, types->mapping, &mapping, &common, &size))
        return NULL;
    uint64_t nbytes;
    const char *base = xp_mapping_base(mapping, &nbytes);
    if (nbytes < XP_TABLE_SIZE || size != BODY_NBYTES) {
        PyErr_SetString(PyExc_ValueError, "that is no mapping of a table, or not what its handles have in common");
        return NULL;
    }
    xp_own_table *self = (xp_own_table *)PyType_GenericAlloc(type, 0);
    if (self) {
        self->mapping = Py_NewRef(mapping);
        self->base = (char *)base;
        memcpy(&self->common, common, (size_t)size);
        if ((self->free = PyMem_Calloc(XP_ENTRIES, sizeof *self->free)) == NULL) {
            Py_DECREF(self);
            return PyErr_NoMemory();
        }
    }
    return (PyObject *)self;
}

static void own_dealloc(PyObject *object)
{
    PyMem_Free(((xp_own_table *)object)->free);
    Py_XDECREF(((xp_own_table *)object)->mapping);
    xp_free(object);
}

PyObject *xp_prepare(const xp_types *types, PyObject *own, PyObject *o_names, PyObject *fds, PyObject *o_payload,
                     const xp_entry *common, PyObject *on_demand)
{
    char *names, *payload;
    Py_ssize_t names_size, payload_size, fds_size = PyTuple_Check(fds) ? PyTuple_Size(fds) : -1;
    if (PyBytes_AsStringAndSize(o_names, &names, &names_size) < 0 ||
        PyBytes_AsStringAndSize(o_payload, &payload, &payload_size) < 0)
        return NULL;
    if (fds_size < 0) {
        PyErr_SetString(PyExc_TypeError, "fds are a tuple");
        return NULL;
    }
    xp_template *t = (xp_template *)PyType_GenericAlloc(types->template, 0);
    if (t == NULL)
        return NULL;
    t->h = ((const xp_own_table *)own)->common;
    t->e = *common;
    if (names_size != sizeof t->h.backend + sizeof t->h.device_uuid || fds_size > (Py_ssize_t)XP_ENTRY_FDS ||
        payload_size > (Py_ssize_t)sizeof t->e.payload) {
        PyErr_SetString(PyExc_ValueError, "no entry says that");
        Py_DECREF(t);
        return NULL;
    }
    memcpy(t->h.backend, names, (size_t)names_size); /* and the uuid behind it */
    t->h.kind = (uint16_t)common->kind;
    t->h.object = common->object;
    t->h.exposed_nbytes = common->exposed_nbytes;
    t->e.payload_nbytes = (uint32_t)payload_size;
    t->on_demand = Py_NewRef(on_demand);
    memset(t->e.fds, 0xff, sizeof t->e.fds);
    memcpy(t->e.payload, payload, (size_t)payload_size);
    for (Py_ssize_t i = 0; i < fds_size; i++)
        if (xp_as_int(PyTuple_GetItem(fds, i), &t->e.fds[i]) < 0) {
            Py_DECREF(t);
            return NULL;
        }
    return (PyObject *)t;
}

PyObject *xp_on_demand(PyObject *template) { return ((xp_template *)template)->on_demand; }

uint64_t xp_prepared_nbytes(PyObject *template) { return ((xp_template *)template)->e.nbytes; }

/* prepare(kind, flags, names, device, object, nbytes, exposed_nbytes, inode, within, fd_count, fds, payload, on_demand) */
static PyObject *own_prepare(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    xp_entry e = {0};
    if (xp_arity("prepare", n, 13, 13) < 0 || xp_as_u32(args[0], &e.kind) < 0 || xp_as_u32(args[1], &e.flags) < 0 ||
        xp_as_u32(args[3], &e.device) < 0 || xp_as_u64(args[4], &e.object) < 0 || xp_as_u64(args[5], &e.nbytes) < 0 ||
        xp_as_u64(args[6], &e.exposed_nbytes) < 0 || xp_as_u64(args[7], &e.inode) < 0 ||
        xp_as_u64(args[8], &e.offset) < 0 || xp_as_u32(args[9], &e.fd_count) < 0)
        return NULL;
    return xp_prepare(PyType_GetModuleState(Py_TYPE(object)), object, args[2], args[10], args[11], &e, args[12]);
}

xp_entry *xp_own_entry(PyObject *own, uint32_t entry)
{
    return (xp_entry *)(((xp_own_table *)own)->base + XP_TABLE_HEADER) + entry;
}

/* --- which entries are free: with the caller's lock --- */

static void give_entry(xp_own_table *self, uint32_t entry)
{
    if (self->count < XP_ENTRIES)
        self->free[(self->first + self->count++) % XP_ENTRIES] = entry;
}

static uint32_t first_free(xp_own_table *self)
{
    uint32_t entry = self->free[self->first];
    self->first = (self->first + 1) % XP_ENTRIES;
    self->count--;
    return entry;
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

bool xp_take_entry(PyObject *object, PyObject *domain, uint32_t *entry)
{
    xp_own_table *self = (xp_own_table *)object;
    /* An entry that a living importer still holds stays where it is: its bit would count for another export. */
    for (int tries = 0; self->count && tries < RECYCLE_TRIES; tries++) {
        xp_domain *d = xp_domain_of(domain);
        if (d == NULL)
            return false;
        *entry = first_free(self);
        if (!held(d, *entry))
            return true;
        give_entry(self, *entry);
    }
    *entry = self->used < XP_ENTRIES ? self->used++ : XP_ENTRIES;
    return true;
}

void xp_give_entry(PyObject *own, uint32_t entry) { give_entry((xp_own_table *)own, entry); }

uint64_t xp_next_generation(PyObject *own) { return ++((xp_own_table *)own)->generation; }

static PyObject *own_take(PyObject *object, PyObject *domain)
{
    uint32_t entry;
    if (!xp_take_entry(object, domain, &entry))
        return NULL;
    if (entry == XP_ENTRIES)
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLong(entry);
}

static PyObject *own_give(PyObject *object, PyObject *arg)
{
    uint32_t entry;
    if (xp_as_u32(arg, &entry) < 0)
        return NULL;
    if (entry >= ((xp_own_table *)object)->used) {
        PyErr_SetString(PyExc_ValueError, "that entry was not taken");
        return NULL;
    }
    xp_give_entry(object, entry);
    Py_RETURN_NONE;
}

static PyObject *own_next_generation(PyObject *object, PyObject *Py_UNUSED(a))
{
    return PyLong_FromUnsignedLongLong(xp_next_generation(object));
}

/* --- filling one in --- */

bool xp_enter(PyObject *own, const xp_key *key, PyObject *template, uint32_t entry, uint64_t generation, uint32_t flags,
              uint32_t slot, uint64_t offset, uint64_t nbytes, xp_handle *made)
{
    const xp_own_table *self = (xp_own_table *)own;
    const xp_template *t = (const xp_template *)template;
    xp_handle h = t->h;
    while (getrandom(h.nonce, sizeof h.nonce, 0) != sizeof h.nonce)
        if (errno != EINTR) {
            xp_oserror("getrandom");
            return false;
        }
    h.flags = flags & XP_HANDLE_FLAGS;
    h.entry = entry;
    h.generation = generation;
    h.offset = offset;
    h.nbytes = nbytes;
    xp_hash(key, &h, BODY_NBYTES, h.seal);
    /* Not live yet: the generation is stored last, and what ended the one before stays to be told. */
    xp_entry *e = xp_own_entry(own, entry);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    memcpy((char *)e + offsetof(xp_entry, kind), (const char *)&t->e + offsetof(xp_entry, kind),
           sizeof *e - offsetof(xp_entry, kind));
    e->flags |= flags;
    e->slot = slot;
    e->since = (uint32_t)now.tv_sec;
    memcpy(e->nonce, h.nonce, sizeof e->nonce);
    XP_STORE((uint64_t *)(self->base + XP_TABLE_DEADLINES) + entry, 0);
    *made = h;
    return true;
}

/* enter(seal, template, entry, generation, flags, slot, offset, nbytes) */
static PyObject *own_enter(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    uint32_t entry, flags, slot;
    uint64_t generation, offset, nbytes;
    const xp_key *key = xp_arity("enter", n, 8, 8) < 0 ? NULL : xp_key_of(types, args[0]);
    if (key == NULL || xp_as_u32(args[2], &entry) < 0 || xp_as_u64(args[3], &generation) < 0 ||
        xp_as_u32(args[4], &flags) < 0 || xp_as_u32(args[5], &slot) < 0 || xp_as_u64(args[6], &offset) < 0 ||
        xp_as_u64(args[7], &nbytes) < 0)
        return NULL;
    if (Py_TYPE(args[1]) != types->template || entry >= XP_ENTRIES) {
        PyErr_SetString(PyExc_ValueError, "no such template or entry");
        return NULL;
    }
    xp_handle h;
    if (!xp_enter(object, key, args[1], entry, generation, flags, slot, offset, nbytes, &h))
        return NULL;
    PyObject *raw = PyBytes_FromStringAndSize((const char *)&h, sizeof h);
    PyObject *fields = raw ? xp_fields_new(types->fields, &h) : NULL;
    PyObject *made = fields ? PyTuple_Pack(2, raw, fields) : NULL;
    Py_XDECREF(raw);
    Py_XDECREF(fields);
    return made;
}

uint64_t xp_new_object(PyObject *own) { return __atomic_add_fetch(&((xp_own_table *)own)->objects, 1, __ATOMIC_RELAXED); }

static PyObject *own_new_object(PyObject *object, PyObject *Py_UNUSED(a))
{
    return PyLong_FromUnsignedLongLong(xp_new_object(object));
}

static PyObject *own_publish(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    uint32_t entry;
    uint64_t generation;
    if (xp_arity("publish", n, 2, 2) < 0 || xp_as_u32(args[0], &entry) < 0 || xp_as_u64(args[1], &generation) < 0)
        return NULL;
    if (entry >= XP_ENTRIES) {
        PyErr_SetString(PyExc_ValueError, "no such entry");
        return NULL;
    }
    XP_STORE(&xp_own_entry(object, entry)->generation, generation);
    Py_RETURN_NONE;
}

static PyMethodDef own_methods[] = {
    {"prepare", XP_FAST(own_prepare), METH_FASTCALL, NULL},
    {"enter", XP_FAST(own_enter), METH_FASTCALL, NULL},
    {"publish", XP_FAST(own_publish), METH_FASTCALL, NULL},
    {"new_object", own_new_object, METH_NOARGS, NULL},
    {"take", own_take, METH_O, NULL},
    {"give", own_give, METH_O, NULL},
    {"next_generation", own_next_generation, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef own_members[] = {
    {"used", T_UINT, offsetof(xp_own_table, used), READONLY, NULL}, {NULL, 0, 0, 0, NULL},
};
static PyType_Slot own_slots[] = {
    {Py_tp_new, own_new},         {Py_tp_dealloc, own_dealloc}, {Py_tp_methods, own_methods},
    {Py_tp_members, own_members}, {0, NULL},
};
static PyType_Spec own_spec = {"xpushare._native.OwnTable", sizeof(xp_own_table), 0, Py_TPFLAGS_DEFAULT, own_slots};

/* --- functions ---------------------------------------------------------------------------------------------------- */

static PyObject *check_memfd(PyObject *Py_UNUSED(m), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", "nbytes", "inode", "seals", "exact", NULL};
    int fd, seals = 0, exact = 0;
    unsigned long long nbytes, inode = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iK|Kip", names, &fd, &nbytes, &inode, &seals, &exact))
        return NULL;
    xp_memfd wanted = {.nbytes = nbytes, .inode = inode, .seals = seals, .exact = exact};
    xp_error error;
    if (!xp_check_memfd(fd, &wanted, &error))
        return xp_raise(&error);
    Py_RETURN_NONE;
}

static PyObject *request(PyObject *module, PyObject *args)
{
    PyObject *o_fields;
    unsigned op, first;
    if (!PyArg_ParseTuple(args, "IOI", &op, &o_fields, &first))
        return NULL;
    const xp_handle *h = fields_arg(xp_types_of(module), "request", o_fields);
    if (h == NULL)
        return NULL;
    xp_request q;
    xp_write_request(&q, op, h, first);
    return PyBytes_FromStringAndSize((const char *)&q, sizeof q);
}

static PyObject *read_reply(PyObject *Py_UNUSED(m), PyObject *args)
{
    const char *packet;
    Py_ssize_t size;
    unsigned fds;
    if (!PyArg_ParseTuple(args, "y#I", &packet, &size, &fds))
        return NULL;
    xp_reply r;
    switch (xp_read_reply(packet, (size_t)size, fds, &r)) {
    case XP_REPLY_GOOD:
        return Py_BuildValue("(II)", r.status, r.total);
    case XP_REPLY_FDS_LOST:
        return xp_oserror_of(EMFILE, "file descriptors were lost");
    default:
        PyErr_SetString(PyExc_ValueError, "the exporter's answer makes no sense");
        return NULL;
    }
}

static PyMethodDef functions[] = {
    {"check_memfd", XP_FAST(check_memfd), METH_VARARGS | METH_KEYWORDS, NULL},
    {"request", request, METH_VARARGS, NULL},
    {"read_reply", read_reply, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int xp_init_peer(PyObject *module)
{
    if (PyModule_AddFunctions(module, functions) < 0)
        return -1;
    xp_types *types = xp_types_of(module);
    if (xp_keep_type(module, &fields_spec, &types->fields) < 0 ||
        xp_keep_type(module, &template_spec, &types->template) < 0)
        return -1;
    return xp_keep_type(module, &table_spec, &types->peer_table) < 0
               ? -1
               : xp_keep_type(module, &own_spec, &types->own_table);
}
