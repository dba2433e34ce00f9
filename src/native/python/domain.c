/* Domain and Lease: membership, for Python. */
#include "handle.h"

/* --- the type ----------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    xp_domain *d;
} xp_domain_object;

static xp_domain *domain(PyObject *self) { return ((xp_domain_object *)self)->d; }

/* NULL with an exception if the object may not touch shared memory. */
static xp_domain *member(PyObject *self)
{
    xp_domain *d = domain(self);
    const char *wrong = xp_domain_wrong(d);
    if (wrong)
        xp_unusable(wrong);
    return wrong ? NULL : d;
}

static PyObject *domain_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", "bell", "cookie", "owner", NULL};
    int fd, bell, owner;
    Py_buffer cookie;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iiy*p", names, &fd, &bell, &cookie, &owner))
        return NULL;
    uint8_t bytes[XP_COOKIE];
    bool fits = cookie.len == XP_COOKIE;
    if (fits)
        memcpy(bytes, cookie.buf, XP_COOKIE);
    PyBuffer_Release(&cookie);
    if (!fits)
        return xp_refuse(PyExc_ValueError, "a cookie has 16 bytes");
    xp_domain_object *self = (xp_domain_object *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    xp_domain *d;
    xp_error error;
    d = XP_UNLOCKED(xp_join(fd, bell, bytes, owner, &error));
    if (d == NULL) {
        Py_DECREF(self);
        return xp_raise(&error);
    }
    self->d = d;
    return (PyObject *)self;
}

PyObject *xp_domain_new(PyTypeObject *type, xp_domain *d)
{
    xp_domain_object *self = (xp_domain_object *)PyType_GenericAlloc(type, 0);
    if (self) {
        self->d = d;
    } else {
        xp_leave(d);
        xp_domain_unref(d);
    }
    return (PyObject *)self;
}

static void domain_end(PyObject *self)
{
    xp_domain *d = domain(self);
    if (d) {
        Py_BEGIN_ALLOW_THREADS
        xp_leave(d);
        xp_domain_unref(d);
        Py_END_ALLOW_THREADS
    }
}

XP_LIFE_PLAIN(domain, .end = domain_end, .weakrefs = offsetof(xp_domain_object, weakrefs))

xp_domain *xp_domain_of(PyObject *object)
{
    if (PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) == (void *)domain_dealloc)
        return member(object);
    return xp_refuse(PyExc_TypeError, "a Domain is wanted");
}

XP_METHOD(domain_leave, XP_NONE_BY(XP_UNLOCKED_DO(xp_leave(domain(self)))))

static PyObject *domain_members(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_domain *d = member(self);
    PyObject *list = d ? PyList_New(0) : NULL;
    for (uint32_t m = 0; list && m < XP_MEMBERS; m++) {
        int pid;
        uint64_t since;
        bool there, alive;
        there = XP_UNLOCKED(xp_look(d, m, &pid, &since, &alive));
        if (!there)
            continue;
        xp_append(&list, Py_BuildValue("(IiKN)", m, pid, (unsigned long long)since, PyBool_FromLong(alive)));
    }
    return list;
}

static PyObject *domain_reap(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_domain *d = member(self);
    if (d == NULL)
        return NULL;
    return PyLong_FromLong(XP_UNLOCKED(xp_reap_all(d)));
}

/* --- holders and opens -------------------------------------------------------------------------------------------- */

static xp_domain *entry_arg(PyObject *self, PyObject *arg, uint32_t *entry)
{
    xp_domain *d = member(self);
    if (d == NULL || xp_as_u32(arg, entry) < 0)
        return NULL;
    if (*entry < XP_ENTRIES)
        return d;
    return xp_refuse(PyExc_ValueError, "no such entry");
}

XP_METHOD(domain_leave_if_idle, PyBool_FromLong(XP_UNLOCKED(xp_leave_if_idle(domain(self)))))
XP_METHOD(domain_stands, PyBool_FromLong(XP_UNLOCKED(xp_domain_wrong(domain(self)) == NULL && xp_stands(domain(self)))))

/* --- Lease: a hold with an owner object --------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *domain, *peer;
    PyObject *uses; /* NULL, or the list to which a use is added when the lease ends */
    uint32_t entry;
    bool use; /* no hold, but a use */
    bool lasts;
    bool took; /* one of the entry's opens, which it gives back if nothing comes of it */
} xp_lease;

static PyObject *lease_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *o_domain, *o_entry, *peer;
    uint32_t entry;
    if (kwargs && PyDict_Size(kwargs))
        return xp_refuse(PyExc_TypeError, "Lease() takes no keyword arguments");
    if (!PyArg_ParseTuple(args, "OOO", &o_domain, &o_entry, &peer) || xp_as_u32(o_entry, &entry) < 0)
        return NULL;
    return xp_lease_new(type, o_domain, entry, peer);
}

static PyObject *lease_make(PyTypeObject *type, PyObject *o_domain, uint32_t entry, PyObject *peer, bool use)
{
    xp_domain *d = xp_domain_of(o_domain);
    if (d == NULL)
        return NULL;
    if (entry >= XP_ENTRIES)
        return xp_refuse(PyExc_ValueError, "no such entry");
    xp_lease *self = (xp_lease *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    if (!(use ? xp_use : xp_hold)(d, entry)) {
        Py_DECREF(self);
        return member(o_domain) ? PyErr_NoMemory() : NULL;
    }
    self->domain = Py_NewRef(o_domain);
    self->peer = Py_NewRef(peer);
    self->entry = entry;
    self->use = use;
    self->lasts = true;
    return (PyObject *)self;
}

PyObject *xp_lease_new(PyTypeObject *type, PyObject *domain, uint32_t entry, PyObject *peer)
{
    return lease_make(type, domain, entry, peer, false);
}

/* End a hold of memory that devices may still use. Set the use first, so that the exporter always sees one of the
 * two. If there is no memory for the use, the hold stays. */
static void hold_to_use(xp_lease *self, xp_domain *d)
{
    PyObject *done = NULL, *use = lease_make(Py_TYPE((PyObject *)self), self->domain, self->entry, Py_None, true);
    if (use && PyList_Append(self->uses, use) == 0) {
        xp_drop(d, self->entry);
        done = PyObject_CallNoArgs(self->uses);
    }
    if (done == NULL)
        PyErr_WriteUnraisable(self->uses);
    Py_XDECREF(use);
    Py_XDECREF(done);
}

static void end_lease(xp_lease *self)
{
    if (!__atomic_exchange_n(&self->lasts, false, __ATOMIC_ACQ_REL))
        return;
    xp_domain *d = domain(self->domain);
    if (xp_usable(d) && self->took)
        xp_give_open(d, self->entry); /* first: until the hold ends, the export does not */
    if (xp_usable(d) && self->uses)
        hold_to_use(self, d);
    else if (xp_usable(d))
        (self->use ? xp_unuse : xp_drop)(d, self->entry);
}

XP_METHOD(lease_end, XP_NONE_BY(end_lease((xp_lease *)self)))
XP_METHOD(lease_spend, XP_NONE_BY(((xp_lease *)self)->took = false))

bool xp_lease_takes_open(PyObject *lease)
{
    xp_lease *self = (xp_lease *)lease;
    return self->took = xp_take_open(domain(self->domain), self->entry);
}

static void lease_died(PyObject *self) { end_lease((xp_lease *)self); }

/* `end_lease` needs all of them */
XP_LIFE(lease, .end = lease_died, .fixed = XP_OBJECTS(xp_lease, domain, peer, uses))

void xp_lease_uses(const xp_types *types, PyObject *lease, PyObject *uses)
{
    xp_lease *self = (xp_lease *)lease;
    if (uses && PyList_Check(uses) && Py_TYPE(lease) == types->lease && self->uses == NULL)
        self->uses = Py_NewRef(uses);
}

XP_TYPE(lease_spec, "Lease", xp_lease, XP_WITH_GC, {Py_tp_new, lease_new}, XP_LIFE_SLOTS(lease),
        XP_FIELDS({"peer", T_OBJECT_EX, offsetof(xp_lease, peer), READONLY, NULL}),
        XP_METHODS({"end", lease_end, METH_NOARGS, NULL},
                   {"spend", lease_spend, METH_NOARGS, NULL}))

static PyObject *domain_holders(PyObject *self, PyObject *arg)
{
    uint32_t entry, found[XP_MEMBERS], n;
    xp_domain *d = entry_arg(self, arg, &entry);
    if (d == NULL)
        return NULL;
    n = XP_UNLOCKED(xp_holders(d, entry, found));
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < n; i++)
        xp_append(&list, PyLong_FromUnsignedLong(found[i]));
    return list;
}

/* Methods that take the number of an entry */
#define OF_ENTRY(name, result)                                                                                         \
    static PyObject *domain_##name(PyObject *self, PyObject *arg)                                                      \
    {                                                                                                                  \
        uint32_t entry;                                                                                                \
        xp_domain *d = entry_arg(self, arg, &entry);                                                                   \
        return d ? result : NULL;                                                                                      \
    }
OF_ENTRY(reached, PyBool_FromLong(xp_may_reach(d, entry) && XP_UNLOCKED(xp_reached(d, entry))))
OF_ENTRY(mark, XP_NONE_BY(xp_mark(d, entry)))
OF_ENTRY(take_open, PyBool_FromLong(xp_take_open(d, entry)))
OF_ENTRY(give_open, XP_NONE_BY(xp_give_open(d, entry)))
OF_ENTRY(opens_left, PyLong_FromLong(xp_opens_left(d, entry)))
OF_ENTRY(renewed, PyLong_FromUnsignedLongLong(xp_renewed(d, entry)))
OF_ENTRY(own, XP_NONE_BY(xp_own(d, entry)))
OF_ENTRY(owned, PyBool_FromLong(xp_owned(d, entry)))

static PyObject *domain_set_opens(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    uint32_t entry;
    int count;
    xp_domain *d;
    if (xp_arity("set_opens", n, 2, 2) < 0 || (d = entry_arg(self, args[0], &entry)) == NULL ||
        xp_as_int(args[1], &count) < 0)
        return NULL;
    xp_set_opens(d, entry, count);
    Py_RETURN_NONE;
}

static PyObject *domain_renew(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    uint32_t entry;
    uint64_t until;
    xp_domain *d;
    if (xp_arity("renew", n, 2, 2) < 0 || (d = entry_arg(self, args[0], &entry)) == NULL ||
        xp_as_u64(args[1], &until) < 0)
        return NULL;
    xp_renew(d, entry, until);
    Py_RETURN_NONE;
}

/* --- slots -------------------------------------------------------------------------------------------------------- */

static xp_domain *owner_arg(PyObject *self)
{
    xp_domain *d = member(self);
    if (d && !d->owner)
        return xp_refuse(PyExc_ValueError, "only the owner of a commons gives slots");
    return d;
}

static PyObject *domain_new_slot(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_domain *d = owner_arg(self);
    if (d == NULL)
        return NULL;
    uint32_t index = XP_UNLOCKED(xp_new_slot(d));
    return index == XP_SLOTS ? xp_oserror_of(ENOSPC, "new_slot") : PyLong_FromUnsignedLong(index);
}

static PyObject *domain_release_slot(PyObject *self, PyObject *arg)
{
    xp_domain *d = owner_arg(self);
    uint32_t index;
    if (d == NULL || xp_as_u32(arg, &index) < 0)
        return NULL;
    bool live = XP_UNLOCKED(xp_release_slot(d, index));
    if (!live)
        return xp_refuse(PyExc_ValueError, "no slot in use");
    Py_RETURN_NONE;
}

XP_GETTER(domain_fd, PyLong_FromLong(XP_RELAXED(&domain(self)->fd)))
XP_GETTER(domain_bell, PyLong_FromLong(domain(self)->bell))
XP_GETTER(domain_member, PyLong_FromUnsignedLong(domain(self)->member))
XP_GETTER(domain_address, PyLong_FromUnsignedLongLong((uintptr_t)domain(self)->base))

XP_TYPE(domain_spec, "Domain", xp_domain_object, Py_TPFLAGS_DEFAULT, {Py_tp_new, domain_new},
        {Py_tp_dealloc, domain_dealloc},
        XP_GETSET({"fd", domain_fd, NULL, NULL, NULL},
                  {"bell", domain_bell, NULL, NULL, NULL},
                  {"member", domain_member, NULL, NULL, NULL},
                  {"address", domain_address, NULL, NULL, NULL}),
        XP_METHODS({"leave", domain_leave, METH_NOARGS, NULL},
                   {"members", domain_members, METH_NOARGS, NULL},
                   {"reap", domain_reap, METH_NOARGS, NULL},
                   {"leave_if_idle", domain_leave_if_idle, METH_NOARGS, NULL},
                   {"stands", domain_stands, METH_NOARGS, NULL},
                   {"holders", domain_holders, METH_O, NULL},
                   {"reached", domain_reached, METH_O, NULL},
                   {"mark", domain_mark, METH_O, NULL},
                   {"set_opens", XP_FAST(domain_set_opens), METH_FASTCALL, NULL},
                   {"take_open", domain_take_open, METH_O, NULL},
                   {"give_open", domain_give_open, METH_O, NULL},
                   {"opens_left", domain_opens_left, METH_O, NULL},
                   {"renew", XP_FAST(domain_renew), METH_FASTCALL, NULL},
                   {"renewed", domain_renewed, METH_O, NULL},
                   {"own", domain_own, METH_O, NULL},
                   {"owned", domain_owned, METH_O, NULL},
                   {"new_slot", domain_new_slot, METH_NOARGS, NULL},
                   {"release_slot", domain_release_slot, METH_O, NULL}),
        XP_FIELDS(XP_WEAKREFS(xp_domain_object)))

XP_PART(domain, NULL, XP_KEEP(domain_spec, domain), XP_KEEP(lease_spec, lease))
