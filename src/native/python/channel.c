/* ChannelEnd: the Python side of engine/channel.h. */
#include "ends.h"

/* --- ChannelEnd --------------------------------------------------------------------------------------------------- */

static PyObject *end_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *o_group, *loan, *frame, *refuse, *encode, *signal;
    const char *label;
    int mode, oldest, writer, reconnect, rc;
    xp_geometry g;
    if (!PyArg_ParseTuple(args, "OsipppO!O!OOO", &o_group, &label, &mode, &oldest, &writer, &reconnect, &PyType_Type,
                          &loan, &PyType_Type, &frame, &refuse, &encode, &signal))
        return NULL;
    if (!xp_is_loan((PyTypeObject *)loan) || !xp_is_frame((PyTypeObject *)frame)) {
        PyErr_SetString(PyExc_TypeError, "the classes of loans and frames derive from LoanBase and FrameBase");
        return NULL;
    }
    xp_group *c = xp_channel_of(o_group, &g);
    if (c == NULL)
        return NULL;
    xp_end_object *self = (xp_end_object *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    rc = xp_end_join(&self->e, c, &g, label, mode, oldest, writer);
    Py_END_ALLOW_THREADS
    if (rc) {
        Py_DECREF(self);
        return xp_oserror_of(rc, "joining the channel");
    }
    self->joined = true;
    self->e.reconnect = reconnect;
    self->group = Py_NewRef(o_group);
    self->loan = (PyTypeObject *)Py_NewRef(loan);
    self->frame = (PyTypeObject *)Py_NewRef(frame);
    self->refuse = Py_NewRef(refuse);
    self->encode = Py_NewRef(encode);
    self->signal = Py_NewRef(signal);
    return (PyObject *)self;
}

static void end_end(PyObject *self)
{
    xp_end_object *o = (xp_end_object *)self;
    if (o->joined) {
        Py_BEGIN_ALLOW_THREADS
        xp_end_leave(&o->e);
        xp_group_unref(o->e.c);
        Py_END_ALLOW_THREADS
    }
}

XP_LIFE(end, .end = end_end, .weakrefs = offsetof(xp_end_object, weakrefs),
        .fixed = XP_OBJECTS(xp_end_object, group, loan, frame, refuse, encode, signal),
        .cleared = XP_OBJECTS(xp_end_object, arrays))

static PyObject *end_leave(PyObject *self, PyObject *Py_UNUSED(a))
{
    Py_BEGIN_ALLOW_THREADS
    xp_end_leave(&((xp_end_object *)self)->e);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* A loan of any slot. The slot is chosen when the loan's block is entered. */
static PyObject *end_loan(PyObject *self, PyObject *timeout) { return xp_loan_new(self, timeout); }

static int try_receive(xp_end *e, void *argument) { return xp_end_receive(e, argument, true); }
static int try_failed(xp_end *e, void *argument) { return xp_end_failed(e, argument); }

static PyObject *end_receive(PyObject *self, PyObject *timeout)
{
    xp_end *e = xp_end_of(self);
    xp_frame f;
    if (e && e->mode == XP_MODE_NONE) {
        xp_unusable("this object was made by Channel.create, and only writes: make a reader with Channel.open");
        return NULL;
    }
    int got = e ? xp_end_until(self, e, try_receive, &f, timeout, &((xp_end_object *)self)->receiving) : -1;
    return got < 0 ? NULL : got == XP_GOT ? xp_frame_new(self, &f) : xp_end_refused(self, got, "frame", timeout);
}

/* The result that `receive` would have now. The file reports the next change. */
static PyObject *end_peek(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_end *e = xp_end_of(self);
    xp_frame f;
    if (e == NULL)
        return NULL;
    xp_end_listen(e);
    int got;
    Py_BEGIN_ALLOW_THREADS
    got = xp_end_receive(e, &f, false);
    if (got == XP_WAIT) {
        xp_end_watch(e);
        got = xp_end_receive(e, &f, false);
    }
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(got == XP_UNUSABLE ? XP_WAIT : got);
}

static PyObject *end_failed(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_end *e = xp_end_of(self);
    xp_frame f;
    if (e == NULL)
        return NULL;
    int got = xp_end_until(self, e, try_failed, &f, NULL, NULL);
    if (got < 0)
        return NULL;
    return got == XP_GOT ? xp_frame_new(self, &f) : Py_NewRef(Py_None);
}

static int try_finish(xp_end *e, void *Py_UNUSED(a)) { return xp_end_finish(e); }
static int try_become(xp_end *e, void *Py_UNUSED(a)) { return xp_end_become_writer(e); }

static PyObject *end_finish(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_end *e = xp_end_of(self);
    int got = e ? xp_end_until(self, e, try_finish, NULL, NULL, NULL) : -1;
    return got < 0 ? NULL : PyLong_FromLong(got);
}

static PyObject *end_write(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_end *e = xp_end_of(self);
    int got = e ? xp_end_until(self, e, try_become, NULL, NULL, NULL) : -1;
    return got < 0 ? NULL : PyLong_FromLong(got);
}

static PyObject *end_reads(PyObject *self, PyObject *arg)
{
    xp_end *e = xp_end_of(self);
    uint32_t slot;
    if (e == NULL || xp_as_u32(arg, &slot) < 0 || slot >= e->g.slots + e->g.spare)
        return NULL;
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < e->g.ends; i++) {
        uint64_t point = xp_end_read_point(e, slot, i);
        PyObject *v = point ? Py_BuildValue("(IK)", i, (unsigned long long)point) : NULL;
        if (point && (v == NULL || PyList_Append(list, v) < 0))
            Py_CLEAR(list);
        Py_XDECREF(v);
    }
    return list;
}

static bool end_index(PyObject *self, PyObject *arg, xp_end **e, uint32_t *i)
{
    if ((*e = xp_end_of(self)) == NULL || xp_as_u32(arg, i) < 0)
        return false;
    if (*i < (*e)->g.ends)
        return true;
    PyErr_SetString(PyExc_ValueError, "the channel has no such end");
    return false;
}

/* A number that tells an end from others with the same index; 0: nobody's. */
static PyObject *end_since(PyObject *self, PyObject *arg)
{
    xp_end *e;
    uint32_t i;
    if (!end_index(self, arg, &e, &i))
        return NULL;
    return PyLong_FromUnsignedLongLong(XP_LOAD(&e->ends[i].member) ? XP_LOAD(&e->ends[i].began) : 0);
}

/* The pid of an end's process: 0 if it cannot be seen, -1 if the end is gone. */
static PyObject *end_pid(PyObject *self, PyObject *arg)
{
    xp_end *e;
    uint32_t i;
    if (!end_index(self, arg, &e, &i))
        return NULL;
    uint32_t m = xp_end_of_member(e, i);
    return PyLong_FromLong(m == XP_GROUP_NOBODY ? -1 : xp_group_pid(e->c, m));
}

/* The handle of an end's event, or None. */
static PyObject *end_event(PyObject *self, PyObject *arg)
{
    static const uint8_t none[sizeof(xp_handle)];
    xp_end *e;
    uint32_t i;
    if (!end_index(self, arg, &e, &i))
        return NULL;
    const uint8_t *raw = xp_end_card_of(e, i)->event;
    return memcmp(raw, none, sizeof none) == 0 ? Py_NewRef(Py_None)
                                               : PyBytes_FromStringAndSize((const char *)raw, sizeof none);
}

static PyObject *end_set_event(PyObject *self, PyObject *arg)
{
    xp_end *e = xp_end_of(self);
    char *raw;
    Py_ssize_t n;
    if (e == NULL || PyBytes_AsStringAndSize(arg, &raw, &n) < 0)
        return NULL;
    if (n != sizeof(xp_handle)) {
        PyErr_SetString(PyExc_ValueError, "that is no handle");
        return NULL;
    }
    memcpy(xp_end_card_of(e, e->m)->event, raw, sizeof(xp_handle));
    Py_RETURN_NONE;
}

static PyObject *end_lost(PyObject *self, void *Py_UNUSED(c))
{
    return PyLong_FromUnsignedLongLong(XP_RELAXED(&((xp_end_object *)self)->e.w->lost_pid));
}

static PyObject *end_dead_reader(PyObject *self, void *Py_UNUSED(c))
{
    return PyLong_FromUnsignedLongLong(XP_RELAXED(&((xp_end_object *)self)->e.w->dead_reader));
}

static PyObject *end_unread(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_end *e = xp_end_of(self);
    return e ? PyLong_FromUnsignedLongLong(xp_end_unread(e)) : NULL;
}

/* (readers, writers) that live. */
static PyObject *end_count(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_end *e = xp_end_of(self);
    uint32_t readers, writers;
    if (e == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    xp_end_count(e, &readers, &writers);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(II)", readers, writers);
}

/* use_arrays(list, buffers) */
static PyObject *end_use_arrays(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    xp_end_object *o = (xp_end_object *)self;
    if (xp_arity("use_arrays", n, 2, 2) < 0)
        return NULL;
    if (!PyList_Check(args[0]) || PyList_Size(args[0]) != (Py_ssize_t)(o->e.g.slots + o->e.g.spare)) {
        PyErr_SetString(PyExc_TypeError, "arrays is a list with an array for each slot");
        return NULL;
    }
    o->buffers = args[1] == Py_True;
    Py_XDECREF(xp_set_once(&o->arrays, PyList_GetSlice(args[0], 0, PyList_Size(args[0])))); /* one that nobody changes */
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyGetSetDef end_getset[] = {
    {"lost_pid", end_lost, NULL, NULL, NULL}, {"dead_reader", end_dead_reader, NULL, NULL, NULL}, XP_OBJECT("arrays", xp_end_object, arrays), {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef end_methods[] = {
    {"loan", end_loan, METH_O, NULL},
    {"receive", end_receive, METH_O, NULL},
    {"peek", end_peek, METH_NOARGS, NULL},
    {"failed", end_failed, METH_NOARGS, NULL},
    {"finish", end_finish, METH_NOARGS, NULL},
    {"write", end_write, METH_NOARGS, NULL},
    {"reads", end_reads, METH_O, NULL},
    {"since", end_since, METH_O, NULL},
    {"pid", end_pid, METH_O, NULL},
    {"event", end_event, METH_O, NULL},
    {"set_event", end_set_event, METH_O, NULL},
    {"unread", end_unread, METH_NOARGS, NULL},
    {"count", end_count, METH_NOARGS, NULL},
    {"leave", end_leave, METH_NOARGS, NULL},
    {"use_arrays", XP_FAST(end_use_arrays), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef end_members[] = {
    XP_WEAKREFS(xp_end_object), {"member", T_UINT, offsetof(xp_end_object, e.m), READONLY, NULL},
    {"lost", T_ULONGLONG, offsetof(xp_end_object, e.lost), 0, NULL},
    {"seen", T_ULONGLONG, offsetof(xp_end_object, e.seen), 0, NULL}, {NULL, 0, 0, 0, NULL},
};

static PyType_Slot end_slots[] = {
    {Py_tp_new, end_new},         XP_LIFE_SLOTS(end),           {Py_tp_methods, end_methods},
    {Py_tp_getset, end_getset},   {Py_tp_members, end_members}, {0, NULL},
};
static PyType_Spec end_spec = {"xpushare._native.ChannelEnd", sizeof(xp_end_object), 0,
                              XP_WITH_GC | Py_TPFLAGS_BASETYPE, end_slots};

static const struct {
    const char *name;
    long value;
} constants[] = {
    {"CHANNEL_OVER", XP_OVER}, {"CHANNEL_LOST", XP_LOST_END}, {"CHANNEL_WAIT", XP_WAIT}, {"CHANNEL_GOT", XP_GOT},
    {"CHANNEL_NO_ROOM", XP_NO_ROOM}, {"CHANNEL_TWICE", XP_TWICE}, {"CHANNEL_NO_WRITER", XP_NO_WRITER},
    {"CHANNEL_SAID_END", XP_SAID_END}, {"CHANNEL_MOVED", XP_MOVED},
    {"CHANNEL_READERS_LEFT", XP_READERS_LEFT}, {"CHANNEL_READERS_LOST", XP_READERS_LOST}, {"CHANNEL_SPARE", XP_CHANNEL_SPARE}, {"CHANNEL_TEXT", XP_CHANNEL_TEXT},
};

int xp_init_channel(PyObject *module)
{
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0)
            return -1;
    return xp_add_type(module, &end_spec);
}
