/* PeerTable: the base of `Peer`. Opens entries of a peer's mapped table. */
#include "peer.h"
#include "handle.h"
#include "meeting.h"

/* --- PeerTable ---------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *mapping, *domain;
    xp_exporter x;
    char direct;
} xp_peer_table;

XP_LIFE_PLAIN(table, .fixed = XP_OBJECTS(xp_peer_table, mapping, domain))

static const xp_types *types_of(PyObject *self) { return xp_types_by(Py_TYPE(self), table_dealloc); }

static const xp_exporter *exporter(PyObject *self) { return &((xp_peer_table *)self)->x; }

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"mapping", "domain", "pidfd", "direct", NULL};
    const xp_types *types = xp_types_by(type, table_dealloc);
    PyObject *mapping, *o_domain;
    int pidfd, direct;
    xp_domain *domain;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!Oip", names, types->mapping, &mapping, &o_domain, &pidfd,
                                     &direct) ||
        (domain = xp_domain_of(o_domain)) == NULL)
        return NULL;
    uint64_t nbytes;
    const char *base = xp_mapping_base(mapping, &nbytes);
    if (nbytes < XP_TABLE_SIZE)
        return xp_refuse(PyExc_ValueError, "that is not a mapping of a table");
    xp_peer_table *self = (xp_peer_table *)PyType_GenericAlloc(type, 0);
    if (self) {
        self->mapping = Py_NewRef(mapping);
        self->domain = Py_NewRef(o_domain);
        self->x = (xp_exporter){base, domain, pidfd};
        self->direct = direct && pidfd >= 0;
    }
    return (PyObject *)self;
}

static const xp_handle *fields_arg(const xp_types *types, const char *name, PyObject *arg)
{
    const xp_handle *h = xp_fields_of(types, arg);
    if (h == NULL)
        PyErr_Format(PyExc_TypeError, "%s() takes Fields first", name);
    return h;
}

/* The result for a call that was refused, or raised something. */
static PyObject *not_done(const xp_types *types, const xp_refusal *why)
{
    return PyErr_Occurred() ? NULL : xp_refused(types, why);
}

/* Hold a handle's entry and copy it, and take one of its opens if they are counted. Returns the lease, or NULL if that
 * is refused, or with an exception set if this process is no member any more. */
static PyObject *hold(PyObject *peer, const xp_handle *h, xp_entry *e, xp_refusal *why)
{
    const xp_exporter *x = exporter(peer);
    if (!xp_find_entry(x, h, e, why))
        return NULL;
    PyObject *lease = xp_lease_new(types_of(peer)->lease, ((xp_peer_table *)peer)->domain, h->entry, peer);
    bool good = lease && xp_entry_stands(x, h, why) && xp_exporter_lives(x, why); /* from here on it does, if it lives */
    if (good && h->flags & XP_ENTRY_COUNTED && !xp_lease_takes_open(lease)) {
        *why = (xp_refusal){.code = XP_REFUSED_ENTRY_ENDED, .detail = XP_REASON_OPENS};
        good = false;
    }
    if (!good)
        Py_CLEAR(lease);
    return lease;
}

PyObject *xp_peer_hold(const xp_types *types, PyObject *peer, const xp_handle *h, xp_entry *e)
{
    xp_refusal why;
    PyObject *lease = PyObject_TypeCheck(peer, types->peer_table) ? hold(peer, h, e, &why) : NULL;
    if (lease == NULL)
        PyErr_Clear(); /* `open` raises the same */
    return lease;
}

static PyObject *table_hold(PyObject *object, PyObject *fields)
{
    const xp_handle *h = fields_arg(types_of(object), "hold", fields);
    xp_entry e;
    xp_refusal why;
    if (h == NULL)
        return NULL;
    PyObject *lease = hold(object, h, &e, &why);
    if (lease == NULL)
        return not_done(types_of(object), &why);
    PyObject *all[] = {lease, PyLong_FromUnsignedLong(e.slot)};
    return xp_tuple_of(all, 2);
}

static uint32_t form_of(const xp_entry *e) { return (e->flags & XP_ENTRY_FORM) >> XP_ENTRY_FORM_BIT; }

static PyObject *table_find(PyObject *object, PyObject *fields)
{
    const xp_handle *h = fields_arg(types_of(object), "find", fields);
    xp_entry e;
    xp_refusal why;
    if (h == NULL)
        return NULL;
    if (!xp_find_entry(exporter(object), h, &e, &why))
        return xp_refused(types_of(object), &why);
    return Py_BuildValue("(IIIK)", form_of(&e), e.device, e.fd_count, (unsigned long long)e.exposed_nbytes);
}

/* --- its descriptors ---------------------------------------------------------------------------------------------- */

/* Make a list of OwnedFds, which takes over all of them, even if it fails. */
static PyObject *own_fds(const xp_types *types, const int *fds, uint32_t count)
{
    PyObject *numbers = PyList_New(0);
    for (uint32_t i = 0; i < count; i++)
        xp_append(&numbers, xp_own_fd(types->owned_fd, fds[i], "fcntl(F_DUPFD_CLOEXEC)"));
    return numbers;
}

/* NULL if that is refused, or with an exception set */
static PyObject *fetch(PyObject *peer, const xp_handle *h, const xp_entry *e, xp_refusal *why)
{
    int fds[XP_ENTRY_FDS];
    bool got;
    if (e->flags & XP_ENTRY_ON_DEMAND) {
        *why = (xp_refusal){.code = XP_REFUSED_ON_DEMAND};
        return NULL;
    }
    got = XP_UNLOCKED(xp_fetch_fds(exporter(peer), h, e, fds, why));
    return got ? own_fds(types_of(peer), fds, e->fd_count) : NULL;
}

static PyObject *table_fetch(PyObject *object, PyObject *fields)
{
    const xp_handle *h = fields_arg(types_of(object), "fetch", fields);
    xp_entry e;
    xp_refusal why;
    if (h == NULL)
        return NULL;
    PyObject *fds = xp_find_entry(exporter(object), h, &e, &why) ? fetch(object, h, &e, &why) : NULL;
    return fds ? fds : not_done(types_of(object), &why);
}

/* Make a mapping of the entry's memfd: of `fds`, or by pidfd_getfd. */
static PyObject *map(PyObject *peer, const xp_handle *h, const xp_entry *e, PyObject *fds, xp_refusal *why)
{
    char *base;
    int fd = fds ? xp_fd_number(PyList_GetItem(fds, 0)) : -1;
    base = XP_UNLOCKED(fds ? xp_map_fetched(e, fd, why) : xp_fetch_mapping(exporter(peer), h, e, why));
    if (base && fds)
        xp_close_received(xp_take_fd(PyList_GetItem(fds, 0)));
    return base ? xp_mapping_new(types_of(peer)->mapping, base, e->exposed_nbytes) : NULL;
}

/* Whether the descriptors that a route has brought are those of an entry. */
static bool fit(PyObject *peer, const xp_handle *h, const xp_entry *e, PyObject *fds, xp_refusal *why)
{
    *why = (xp_refusal){.code = XP_REFUSED_ENTRY_UNFIT}; /* another number: they are of what was there before */
    return (uint64_t)PyList_Size(fds) == e->fd_count &&
           (e->fd_count == 0 || xp_fd_belongs(exporter(peer), h, e, xp_fd_number(PyList_GetItem(fds, 0)), why));
}

/* Set the mapping of an entry that is held, and its other descriptors. `fds`: all that a route has brought, or NULL.
 * Returns false if that is refused, or with an exception set. */
static bool bring(PyObject *peer, const xp_handle *h, const xp_entry *e, bool maps, PyObject *fds, PyObject **mapping,
                  PyObject **left, xp_refusal *why)
{
    bool memfd = maps && (e->flags & XP_ENTRY_FORM) == XP_ENTRY_MEMFD;
    *why = (xp_refusal){.code = XP_REFUSED_NOT_DIRECT};
    if (fds ? !fit(peer, h, e, fds, why) : e->fd_count && !((xp_peer_table *)peer)->direct)
        return false;
    if ((*mapping = memfd ? map(peer, h, e, fds, why) : Py_NewRef(Py_None)))
        *left = memfd ? PyList_New(0) : fds ? Py_NewRef(fds) : fetch(peer, h, e, why);
    return *left;
}

static int fds_arg(const xp_types *types, PyObject *fds)
{
    Py_ssize_t i = 0, n = PyList_Check(fds) ? PyList_Size(fds) : -1;
    while (i < n && PyObject_TypeCheck(PyList_GetItem(fds, i), types->owned_fd))
        i++;
    if (i != n)
        PyErr_SetString(PyExc_TypeError, "open() takes a list of OwnedFds");
    return i == n ? 0 : -1;
}

/* open(fields, maps[, fds]) */
static PyObject *table_open(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_types *types = types_of(object);
    const xp_handle *h = xp_arity("open", n, 2, 3) < 0 ? NULL : fields_arg(types, "open", args[0]);
    int maps = h ? PyObject_IsTrue(args[1]) : -1;
    xp_entry e;
    xp_refusal why;
    if (maps < 0 || (n > 2 && fds_arg(types, args[2]) < 0))
        return NULL;
    PyObject *mapping = NULL, *fds = NULL, *lease = hold(object, h, &e, &why);
    if (lease == NULL || !bring(object, h, &e, maps, n > 2 ? args[2] : NULL, &mapping, &fds, &why)) {
        Py_XDECREF(lease);
        Py_XDECREF(mapping);
        Py_XDECREF(fds);
        return not_done(types, &why);
    }
    PyObject *all[] = {mapping, lease, PyLong_FromUnsignedLongLong(e.nbytes),
                       PyLong_FromUnsignedLongLong(e.exposed_nbytes),
                       PyBytes_FromStringAndSize((const char *)e.payload, (Py_ssize_t)e.payload_nbytes), fds,
                       PyLong_FromUnsignedLongLong(e.offset), PyBool_FromLong(e.flags & XP_ENTRY_READ_ONLY),
                       PyLong_FromUnsignedLong(form_of(&e))};
    return xp_tuple_of(all, sizeof all / sizeof *all);
}

/* --- whether it still stands -------------------------------------------------------------------------------------- */

static PyObject *table_ended(PyObject *object, PyObject *arg)
{
    const xp_handle *h = fields_arg(types_of(object), "ended", arg);
    xp_refusal why;
    if (h == NULL)
        return NULL;
    return xp_entry_stands(exporter(object), h, &why) ? Py_NewRef(Py_None) : xp_refused(types_of(object), &why);
}

bool xp_peer_stands(PyObject *peer, const xp_handle *h)
{
    uint32_t reason;
    return xp_entry_state(exporter(peer)->table, h, &reason) == XP_LIVE;
}

static PyObject *table_stands(PyObject *object, PyObject *arg)
{
    const xp_handle *h = fields_arg(types_of(object), "stands", arg);
    return h ? PyBool_FromLong(xp_peer_stands(object, h)) : NULL;
}

XP_TYPE(table_spec, "PeerTable", xp_peer_table, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, {Py_tp_new, table_new},
        {Py_tp_dealloc, table_dealloc},
        XP_METHODS({"ended", table_ended, METH_O, NULL},
                   {"stands", table_stands, METH_O, NULL},
                   {"find", table_find, METH_O, NULL},
                   {"fetch", table_fetch, METH_O, NULL},
                   {"open", XP_FAST(table_open), METH_FASTCALL, NULL},
                   {"hold", table_hold, METH_O, NULL}),
        XP_FIELDS({"direct", T_BOOL, offsetof(xp_peer_table, direct), READONLY, NULL},
                  {"pidfd_number", T_INT, offsetof(xp_peer_table, x.pidfd), READONLY, NULL}))

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
    if (count < 1 || count > (Py_ssize_t)XP_FDS_AT_ONCE)
        return PyErr_Format(PyExc_ValueError, "a request is for 1 to %u entries, not %zd", XP_FDS_AT_ONCE, count);
    xp_request q;
    const uint8_t *cookie = NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *o_fields, *each = PyList_GetItem(o_wanted, i);
        if (!PyTuple_Check(each))
            return xp_refuse(PyExc_TypeError, "request() takes a list of (Fields, first)");
        if (!PyArg_ParseTuple(each, "OI", &o_fields, &first))
            return NULL;
        const xp_handle *h = fields_arg(xp_types_of(module), "request", o_fields);
        if (h == NULL)
            return NULL;
        if (cookie && memcmp(cookie, h->cookie, XP_COOKIE) != 0)
            return xp_refuse(PyExc_ValueError, "a request is for entries of one exporter");
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
        return xp_refuse(PyExc_ValueError, "the exporter's answer makes no sense");
    }
    PyObject *list = PyList_New(0);
    for (unsigned i = 0; list && i < given; i++) {
        xp_append(&list, Py_BuildValue("(III)", r.given[i].status, r.given[i].count, r.given[i].total));
    }
    return list;
}

XP_PART(peer,
        XP_FUNCTIONS({"check_memfd", XP_FAST(check_memfd), METH_VARARGS | METH_KEYWORDS, NULL},
                     {"request", request, METH_VARARGS, NULL},
                     {"read_reply", read_reply, METH_VARARGS, NULL}),
        XP_KEEP(table_spec, peer_table))
