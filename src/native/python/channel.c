/* ChannelEnd: the Python side of engine/channel.h. */
#include "ends.h"

#define KIND_CHANNEL 3u

static bool numbers(PyObject *tuple, uint64_t *out, Py_ssize_t n)
{
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != n) {
        PyErr_SetString(PyExc_TypeError, "a geometry is a tuple of ten numbers");
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if (xp_as_u64(PyTuple_GetItem(tuple, i), &out[i]) < 0)
            return false;
    return true;
}

static bool geometry_from(PyObject *tuple, xp_geometry *g)
{
    uint64_t v[10];
    if (!numbers(tuple, v, 10))
        return false;
    for (int i = 1; i < 10; i++)
        if (v[i] > UINT32_MAX) {
            PyErr_SetString(PyExc_OverflowError, "does not fit in 32 bits");
            return false;
        }
    *g = (xp_geometry){.nbytes = v[0], .slots = (uint32_t)v[1], .spare = (uint32_t)v[2], .writers = (uint32_t)v[3],
                       .history = (uint32_t)v[4], .redeliver = (uint32_t)v[5], .on_full = (uint32_t)v[6],
                       .meta_nbytes = (uint32_t)v[7], .text_nbytes = (uint32_t)v[8], .device = (uint32_t)v[9]};
    return true;
}

static PyObject *channel_nbytes(PyObject *Py_UNUSED(m), PyObject *arg)
{
    xp_geometry g;
    return geometry_from(arg, &g) ? PyLong_FromUnsignedLongLong(xp_channel_nbytes(&g)) : NULL;
}

static PyObject *channel_begin(PyObject *Py_UNUSED(m), PyObject *args)
{
    PyObject *o_crew, *o_geometry;
    const char *text;
    Py_ssize_t n;
    xp_geometry g;
    if (!PyArg_ParseTuple(args, "OOy#", &o_crew, &o_geometry, &text, &n) || !geometry_from(o_geometry, &g))
        return NULL;
    xp_crew *c = xp_crew_of(o_crew, KIND_CHANNEL);
    if (c == NULL)
        return NULL;
    if (c->nbytes < xp_channel_nbytes(&g) || n > (Py_ssize_t)XP_CHANNEL_TEXT) {
        PyErr_SetString(PyExc_ValueError, "the channel does not fit");
        return NULL;
    }
    xp_channel_begin(c, &g, text, (uint32_t)n);
    Py_RETURN_NONE;
}

/* The crew of a channel that another process has begun. ValueError: its words are invalid. */
static xp_crew *begun(PyObject *o_crew, xp_geometry *g)
{
    xp_crew *c = xp_crew_of(o_crew, KIND_CHANNEL);
    if (c && !xp_channel_geometry(c, g)) {
        PyErr_SetString(PyExc_ValueError, "the words of the channel do not fit in their memory");
        return NULL;
    }
    return c;
}

/* (geometry, text) of a channel that another process has begun. */
static PyObject *channel_geometry(PyObject *Py_UNUSED(m), PyObject *o_crew)
{
    xp_geometry g;
    xp_crew *c = begun(o_crew, &g);
    if (c == NULL)
        return NULL;
    const xp_channel_words *w = xp_crew_words(c);
    return Py_BuildValue("(KIIIIIIIII)y#", (unsigned long long)g.nbytes, g.slots, g.spare, g.writers, g.history, g.redeliver,
                         g.on_full, g.meta_nbytes, g.text_nbytes, g.device, w->text,
                         (Py_ssize_t)strnlen(w->text, XP_CHANNEL_TEXT));
}

static PyObject *channel_move(PyObject *Py_UNUSED(m), PyObject *o_crew)
{
    xp_geometry g;
    xp_crew *c = begun(o_crew, &g);
    if (c == NULL)
        return NULL;
    xp_channel_move(c);
    Py_RETURN_NONE;
}

/* The pid of the process that has the channel's lock: 0 if it cannot be seen, None if no process has it. */
static PyObject *channel_owner(PyObject *Py_UNUSED(m), PyObject *o_crew)
{
    xp_geometry g;
    xp_crew *c = begun(o_crew, &g);
    if (c == NULL)
        return NULL;
    uint64_t owner = XP_LOAD(&((xp_channel_words *)xp_crew_words(c))->lock.owner) & XP_LOCK_MEMBER;
    int pid = owner && owner <= XP_CREW_MEMBERS ? xp_crew_pid(c, (uint32_t)owner - 1) : -1;
    return pid < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(pid);
}

/* --- ChannelEnd --------------------------------------------------------------------------------------------------- */

static PyObject *end_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *o_crew, *loan, *frame, *refuse, *encode, *signal;
    const char *label;
    int mode, oldest, writer, reconnect, rc;
    xp_geometry g;
    if (!PyArg_ParseTuple(args, "OsipppO!O!OOO", &o_crew, &label, &mode, &oldest, &writer, &reconnect, &PyType_Type,
                          &loan, &PyType_Type, &frame, &refuse, &encode, &signal))
        return NULL;
    if (!xp_is_loan((PyTypeObject *)loan) || !xp_is_frame((PyTypeObject *)frame)) {
        PyErr_SetString(PyExc_TypeError, "the classes of loans and frames derive from LoanBase and FrameBase");
        return NULL;
    }
    xp_crew *c = xp_crew_of(o_crew, KIND_CHANNEL);
    if (c == NULL)
        return NULL;
    if (!xp_channel_geometry(c, &g)) {
        PyErr_SetString(PyExc_ValueError, "the words of the channel do not fit in their memory");
        return NULL;
    }
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
    self->crew = Py_NewRef(o_crew);
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
        xp_crew_unref(o->e.c);
        Py_END_ALLOW_THREADS
    }
}

XP_LIFE(end, .end = end_end, .weakrefs = offsetof(xp_end_object, weakrefs),
        .fixed = XP_OBJECTS(xp_end_object, crew, loan, frame, refuse, encode, signal),
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
    const xp_slot_words *s = &e->w->slots[slot];
    for (uint32_t m = 0; list && m < XP_CREW_MEMBERS; m++) {
        uint64_t point = XP_LOAD(&s->reads[m]);
        /* The earlier writer, if it lives: perhaps nobody has read its frame. */
        if (s->point_by == m && s->since == xp_crew_head_of(e->c)->members[m].since_ns && s->point > point)
            point = s->point;
        PyObject *v = point ? Py_BuildValue("(IK)", m, (unsigned long long)point) : NULL;
        if (point && (v == NULL || PyList_Append(list, v) < 0))
            Py_CLEAR(list);
        Py_XDECREF(v);
    }
    return list;
}

/* For people: [(member, pid, role, cursor, missed, got, holding, label)], and the seq of the next frame. Reads
 * without the lock. */
static PyObject *channel_survey(PyObject *Py_UNUSED(module), PyObject *o_crew)
{
    xp_geometry g;
    xp_crew *c = begun(o_crew, &g);
    if (c == NULL)
        return NULL;
    const xp_channel_words *w = xp_crew_words(c);
    PyObject *list = PyList_New(0);
    for (uint32_t m = 0; list && m < XP_CREW_MEMBERS; m++) {
        const xp_end_words *end = &w->ends[m];
        const xp_crew_member *record = &xp_crew_head_of(c)->members[m];
        uint32_t role = XP_LOAD(&end->role), holding = 0;
        int64_t missed = XP_RELAXED(&end->missed);
        int pid = role ? xp_crew_pid(c, m) : -1;
        if (pid < 0)
            continue;
        for (uint32_t i = 0; i < g.slots + g.spare; i++)
            holding += XP_RELAXED(&w->slots[i].holders[m / 64]) >> m % 64 & 1;
        PyObject *label = PyUnicode_DecodeUTF8(record->label, (Py_ssize_t)strnlen(record->label, XP_CREW_LABEL), "replace");
        PyObject *v = label ? Py_BuildValue("(IiIKKKIN)", m, pid, role, (unsigned long long)XP_RELAXED(&end->cursor),
                                            missed > 0 ? (unsigned long long)missed : 0,
                                            (unsigned long long)XP_RELAXED(&end->got), holding, label)
                            : NULL;
        if (v == NULL || PyList_Append(list, v) < 0)
            Py_CLEAR(list);
        Py_XDECREF(v);
    }
    return list ? Py_BuildValue("(NK)", list, (unsigned long long)XP_LOAD(&w->next_seq)) : NULL;
}

/* When a member joined, which tells it from others with the same index. */
static PyObject *end_since(PyObject *self, PyObject *arg)
{
    xp_end *e = xp_end_of(self);
    uint32_t m;
    if (e == NULL || xp_as_u32(arg, &m) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(m < XP_CREW_MEMBERS ? XP_LOAD(&xp_crew_head_of(e->c)->members[m].since_ns) : 0);
}

static PyObject *end_member(PyObject *self, void *Py_UNUSED(c)) { return PyLong_FromUnsignedLong(((xp_end_object *)self)->e.m); }
static PyObject *end_lost(PyObject *self, void *Py_UNUSED(c))
{
    return PyLong_FromUnsignedLongLong(XP_RELAXED(&((xp_end_object *)self)->e.w->lost_pid));
}

static PyObject *end_unread(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_end *e = xp_end_of(self);
    return e ? PyLong_FromUnsignedLongLong(xp_end_unread(e)) : NULL;
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

static PyObject *get_arrays(PyObject *self, void *Py_UNUSED(c))
{
    PyObject *arrays = ((xp_end_object *)self)->arrays;
    return Py_NewRef(arrays ? arrays : Py_None);
}

static PyGetSetDef end_getset[] = {
    {"member", end_member, NULL, NULL, NULL}, {"lost_pid", end_lost, NULL, NULL, NULL},
    {"arrays", get_arrays, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef end_methods[] = {
    {"loan", end_loan, METH_O, NULL},
    {"receive", end_receive, METH_O, NULL},
    {"peek", end_peek, METH_NOARGS, NULL},
    {"failed", end_failed, METH_NOARGS, NULL},
    {"finish", end_finish, METH_NOARGS, NULL},
    {"write", end_write, METH_NOARGS, NULL},
    {"reads", end_reads, METH_O, NULL},
    {"since", end_since, METH_O, NULL},
    {"unread", end_unread, METH_NOARGS, NULL},
    {"leave", end_leave, METH_NOARGS, NULL},
    {"use_arrays", XP_FAST(end_use_arrays), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef end_members[] = {
    XP_WEAKREFS(xp_end_object), {"lost", T_ULONGLONG, offsetof(xp_end_object, lost), 0, NULL}, {NULL, 0, 0, 0, NULL},
};

static PyType_Slot end_slots[] = {
    {Py_tp_new, end_new},         XP_LIFE_SLOTS(end),           {Py_tp_methods, end_methods},
    {Py_tp_getset, end_getset},   {Py_tp_members, end_members}, {0, NULL},
};
static PyType_Spec end_spec = {"xpushare._native.ChannelEnd", sizeof(xp_end_object), 0,
                              XP_WITH_GC | Py_TPFLAGS_BASETYPE, end_slots};

static PyMethodDef functions[] = {
    {"channel_nbytes", channel_nbytes, METH_O, NULL},
    {"channel_begin", channel_begin, METH_VARARGS, NULL},
    {"channel_geometry", channel_geometry, METH_O, NULL},
    {"channel_move", channel_move, METH_O, NULL},
    {"channel_owner", channel_owner, METH_O, NULL},
    {"channel_survey", channel_survey, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static const struct {
    const char *name;
    long value;
} constants[] = {
    {"CHANNEL_OVER", XP_OVER}, {"CHANNEL_LOST", XP_LOST_END}, {"CHANNEL_WAIT", XP_WAIT}, {"CHANNEL_GOT", XP_GOT},
    {"CHANNEL_NO_ROOM", XP_NO_ROOM}, {"CHANNEL_TWICE", XP_TWICE}, {"CHANNEL_NO_WRITER", XP_NO_WRITER},
    {"CHANNEL_SAID_END", XP_SAID_END}, {"CHANNEL_MOVED", XP_MOVED}, {"CHANNEL_SPARE", XP_CHANNEL_SPARE}, {"CHANNEL_TEXT", XP_CHANNEL_TEXT},
};

int xp_init_channel(PyObject *module)
{
    if (PyModule_AddFunctions(module, functions) < 0)
        return -1;
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0)
            return -1;
    return xp_add_type(module, &end_spec);
}
