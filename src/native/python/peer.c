/* PeerTable: the base of `Peer`. Opens an entry of a peer's mapped table in one call. */
#include "peer.h"
#include "handle.h"

/* --- PeerTable ---------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *mapping, *domain;
    const char *base;
    int pidfd;
} xp_peer_table;

static void table_dealloc(PyObject *object)
{
    xp_peer_table *self = (xp_peer_table *)object;
    Py_XDECREF(self->mapping);
    Py_XDECREF(self->domain);
    xp_free(object);
}

static const xp_types *types_of(PyObject *self) { return xp_types_by(Py_TYPE(self), table_dealloc); }

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"mapping", "domain", "pidfd", NULL};
    const xp_types *types = xp_types_by(type, table_dealloc);
    PyObject *mapping, *domain;
    int pidfd;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!Oi", names, types->mapping, &mapping, &domain, &pidfd) ||
        xp_domain_of(domain) == NULL)
        return NULL;
    uint64_t nbytes;
    const char *base = xp_mapping_base(mapping, &nbytes);
    if (nbytes < XP_TABLE_SIZE) {
        PyErr_SetString(PyExc_ValueError, "that is not a mapping of a table");
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

static bool overdue(const xp_peer_table *self, const xp_handle *h)
{
    xp_domain *d = h->flags & XP_ENTRY_PICKLED && h->entry < XP_ENTRIES ? xp_domain_of(self->domain) : NULL;
    PyErr_Clear();
    return xp_overdue(self->base, h, d ? xp_renewed(d, h->entry) : 0, d && !xp_opens_left(d, h->entry));
}

/* Return the entry if one native call may open it. */
static bool look_up(const xp_peer_table *self, const xp_handle *h, xp_entry *e)
{
    return self->pidfd >= 0 && !(h->flags & XP_ENTRY_COUNTED) && xp_read_entry(self->base, h, e) == XP_LIVE &&
           !overdue(self, h);
}

static const xp_handle *fields_arg(const xp_types *types, const char *name, PyObject *arg)
{
    const xp_handle *h = xp_fields_of(types, arg);
    if (h == NULL)
        PyErr_Format(PyExc_TypeError, "%s() takes Fields first", name);
    return h;
}

static PyObject *lease_of(PyObject *self, const xp_handle *h)
{
    PyObject *lease = xp_lease_new(types_of(self)->lease, ((xp_peer_table *)self)->domain, h->entry, self);
    if (lease == NULL)
        PyErr_Clear(); /* the caller tries again step by step, which shows what is wrong */
    return lease;
}

/* Hold the entry, for an object that is open already, if the entry and its process are live. */
static PyObject *hold_live(PyObject *object, const xp_handle *h, xp_entry *e)
{
    const xp_peer_table *self = (xp_peer_table *)object;
    PyObject *lease = look_up(self, h, e) ? lease_of(object, h) : NULL;
    uint32_t reason;
    if (lease && (xp_entry_state(self->base, h, &reason) != XP_LIVE || xp_pidfd_readable(self->pidfd)))
        Py_CLEAR(lease);
    return lease;
}

PyObject *xp_peer_hold(const xp_types *types, PyObject *peer, const xp_handle *h)
{
    xp_entry e;
    return PyObject_TypeCheck(peer, types->peer_table) ? hold_live(peer, h, &e) : NULL;
}

static PyObject *table_hold(PyObject *object, PyObject *fields)
{
    const xp_handle *h = fields_arg(types_of(object), "hold", fields);
    xp_entry e;
    if (h == NULL)
        return NULL;
    PyObject *lease = hold_live(object, h, &e);
    if (lease == NULL)
        Py_RETURN_NONE;
    PyObject *all[] = {lease, PyLong_FromUnsignedLong(e.slot)};
    return xp_tuple_of(all, 2);
}

static bool is_memfd(const xp_entry *e) { return (e->flags & XP_ENTRY_FORM) == XP_ENTRY_MEMFD; }

/* Make a list of OwnedFds, which takes over all of them, even if it fails. */
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

typedef struct {
    xp_entry e;
    PyObject *lease, *mapping, *fds;
} opened;

static void close_opened(opened *o)
{
    Py_CLEAR(o->lease);
    Py_CLEAR(o->mapping);
    Py_CLEAR(o->fds);
}

/* Get the entry, a hold of it, and its fds, or with `maps` its mapped memfd. Returns false if the caller has to take
 * the generic path, or if this failed with an exception set. */
static bool open_entry(const xp_types *types, PyObject *table, const xp_handle *h, bool maps, opened *o)
{
    const xp_peer_table *self = (const xp_peer_table *)table;
    int fds[XP_ENTRY_FDS];
    char *base = NULL;
    bool got;
    *o = (opened){.lease = NULL};
    if (!look_up(self, h, &o->e) || (o->e.flags & XP_ENTRY_ON_DEMAND))
        return false;
    bool memfd = maps && is_memfd(&o->e);
    if ((memfd && o->e.payload_nbytes) || (o->lease = lease_of(table, h)) == NULL)
        return false;
    Py_BEGIN_ALLOW_THREADS
    if (memfd)
        got = (base = xp_fetch_mapping(self->base, self->pidfd, h, &o->e)) != NULL;
    else
        got = xp_fetch_fds(self->base, self->pidfd, h, &o->e, fds);
    Py_END_ALLOW_THREADS
    if (got) {
        o->mapping = memfd ? xp_mapping_new(types->mapping, base, o->e.exposed_nbytes) : Py_NewRef(Py_None);
        o->fds = own_fds(types, fds, memfd ? 0 : o->e.fd_count);
    }
    if (o->mapping && o->fds)
        return true;
    close_opened(o);
    return false;
}

static PyObject *table_open(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_types *types = types_of(object);
    const xp_handle *h = xp_arity("open", n, 2, 2) < 0 ? NULL : fields_arg(types, "open", args[0]);
    int maps = h ? PyObject_IsTrue(args[1]) : -1;
    opened o;
    if (maps < 0)
        return NULL;
    if (!open_entry(types, object, h, maps, &o)) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    PyObject *all[] = {Py_NewRef(o.mapping), Py_NewRef(o.lease), PyLong_FromUnsignedLongLong(o.e.nbytes),
                       PyLong_FromUnsignedLongLong(o.e.exposed_nbytes),
                       PyBytes_FromStringAndSize((const char *)o.e.payload, (Py_ssize_t)o.e.payload_nbytes),
                       Py_NewRef(o.fds), PyLong_FromUnsignedLongLong(o.e.offset),
                       PyBool_FromLong(o.e.flags & XP_ENTRY_READ_ONLY),
                       PyLong_FromUnsignedLong((o.e.flags & XP_ENTRY_FORM) >> XP_ENTRY_FORM_BIT)};
    close_opened(&o);
    return xp_tuple_of(all, sizeof all / sizeof *all);
}

static PyObject *table_ended(PyObject *object, PyObject *arg)
{
    const xp_handle *h = fields_arg(types_of(object), "ended", arg);
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

bool xp_peer_entry(PyObject *peer, const xp_handle *h, xp_entry *e)
{
    return look_up((const xp_peer_table *)peer, h, e);
}

bool xp_peer_stands(PyObject *peer, const xp_handle *h)
{
    uint32_t reason;
    return xp_entry_state(((xp_peer_table *)peer)->base, h, &reason) == XP_LIVE;
}

static PyObject *table_stands(PyObject *object, PyObject *arg)
{
    const xp_handle *h = fields_arg(types_of(object), "stands", arg);
    return h ? PyBool_FromLong(xp_peer_stands(object, h)) : NULL;
}

static PyObject *table_copy(PyObject *object, PyObject *arg)
{
    const xp_handle *h = fields_arg(types_of(object), "copy", arg);
    xp_entry e;
    if (h == NULL)
        return NULL;
    if (xp_read_entry(((xp_peer_table *)object)->base, h, &e) != XP_LIVE || overdue((xp_peer_table *)object, h))
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)&e, sizeof e);
}

static PyMethodDef table_methods[] = {
    {"ended", table_ended, METH_O, NULL},
    {"stands", table_stands, METH_O, NULL},
    {"copy", table_copy, METH_O, NULL},
    {"open", XP_FAST(table_open), METH_FASTCALL, NULL},
    {"hold", table_hold, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot table_slots[] = {
    {Py_tp_new, table_new}, {Py_tp_dealloc, table_dealloc}, {Py_tp_methods, table_methods}, {0, NULL},
};
static PyType_Spec table_spec = {"xpushare._native.PeerTable", sizeof(xp_peer_table), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, table_slots};

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
    PyObject *o_wanted;
    unsigned op, first;
    if (!PyArg_ParseTuple(args, "IO!", &op, &PyList_Type, &o_wanted))
        return NULL;
    Py_ssize_t count = PyList_Size(o_wanted);
    if (count < 1 || count > (Py_ssize_t)XP_FDS_AT_ONCE) {
        PyErr_Format(PyExc_ValueError, "a request is for 1 to %u entries, not %zd", XP_FDS_AT_ONCE, count);
        return NULL;
    }
    xp_request q;
    const uint8_t *cookie = NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *o_fields, *each = PyList_GetItem(o_wanted, i);
        if (!PyTuple_Check(each)) {
            PyErr_SetString(PyExc_TypeError, "request() takes a list of (Fields, first)");
            return NULL;
        }
        if (!PyArg_ParseTuple(each, "OI", &o_fields, &first))
            return NULL;
        const xp_handle *h = fields_arg(xp_types_of(module), "request", o_fields);
        if (h == NULL)
            return NULL;
        if (cookie && memcmp(cookie, h->cookie, XP_COOKIE) != 0) {
            PyErr_SetString(PyExc_ValueError, "a request is for entries of one exporter");
            return NULL;
        }
        cookie = h->cookie;
        xp_write_wanted(&q.wanted[i], h, first);
    }
    size_t size = xp_write_request(&q, op, cookie, (uint32_t)count);
    return PyBytes_FromStringAndSize((const char *)&q, (Py_ssize_t)size);
}

static PyObject *read_reply(PyObject *Py_UNUSED(m), PyObject *args)
{
    const char *packet;
    Py_ssize_t size;
    unsigned asked, fds, given;
    if (!PyArg_ParseTuple(args, "y#II", &packet, &size, &asked, &fds))
        return NULL;
    xp_reply r;
    switch (xp_read_reply(packet, (size_t)size, asked, fds, &r, &given)) {
    case XP_REPLY_GOOD:
        break;
    case XP_REPLY_FDS_LOST:
        return xp_oserror_of(EMFILE, "file descriptors were lost");
    default:
        PyErr_SetString(PyExc_ValueError, "the exporter's answer makes no sense");
        return NULL;
    }
    PyObject *list = PyList_New(0);
    for (unsigned i = 0; list && i < given; i++) {
        PyObject *each = Py_BuildValue("(III)", r.given[i].status, r.given[i].count, r.given[i].total);
        if (each == NULL || PyList_Append(list, each) < 0)
            Py_CLEAR(list);
        Py_XDECREF(each);
    }
    return list;
}

static PyMethodDef functions[] = {
    {"check_memfd", XP_FAST(check_memfd), METH_VARARGS | METH_KEYWORDS, NULL},
    {"request", request, METH_VARARGS, NULL},
    {"read_reply", read_reply, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int xp_init_peer(PyObject *module)
{
    int rc = PyModule_AddFunctions(module, functions);
    return rc < 0 ? -1 : xp_keep_type(module, &table_spec, &xp_types_of(module)->peer_table);
}
