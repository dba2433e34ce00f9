/* Group, Lock and Atomic: the Python side of engine/group.h and engine/lock.h. */
#include "ends.h"

#include "../../engine/lock.h"

#include <unistd.h>

/* --- Group -------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    xp_group *g;
    Py_buffer view; /* keeps the memory mapped */
} xp_group_object;


/* Group(fd, memory, kind, how, members) */
static PyObject *group_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", "memory", "kind", "how", "members", NULL};
    PyObject *o_memory;
    int fd, kind, how;
    unsigned int members = XP_GROUP_MEMBERS;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iOii|I", names, &fd, &o_memory, &kind, &how, &members))
        return NULL;
    xp_group_object *self = (xp_group_object *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    if (PyObject_GetBuffer(o_memory, &self->view, how == XP_GROUP_LOOK ? PyBUF_SIMPLE : PyBUF_WRITABLE) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    xp_error error = {0};
    char *base = self->view.buf;
    uint64_t nbytes = (uint64_t)self->view.len;
    uint32_t places = kind == XP_HOME ? XP_HOME_PLACES : 1;
    Py_BEGIN_ALLOW_THREADS
    self->g = xp_group_open(fd, base, nbytes, (uint32_t)kind, how, members, places, &error);
    Py_END_ALLOW_THREADS
    if (self->g)
        return (PyObject *)self;
    const xp_group_head *head = (const xp_group_head *)base;
    if (error.code == 0 && nbytes >= sizeof *head && head->version != XP_GROUP_VERSION &&
        memcmp(head->magic, XP_GROUP_MAGIC, sizeof head->magic) == 0)
        PyErr_Format(PyExc_ValueError, "it has version %u of the shared layout, and this process has version %u: use the "
                     "same version of xpushare in all processes", head->version, XP_GROUP_VERSION);
    else
        xp_raise(&error);
    Py_DECREF(self);
    return NULL;
}

static void group_end(PyObject *self)
{
    xp_group_object *o = (xp_group_object *)self;
    if (o->g) {
        Py_BEGIN_ALLOW_THREADS
        xp_group_leave(o->g);
        xp_group_unref(o->g);
        Py_END_ALLOW_THREADS
    }
    if (o->view.obj)
        PyBuffer_Release(&o->view);
}

XP_LIFE_PLAIN(group, .end = group_end, .weakrefs = offsetof(xp_group_object, weakrefs))

void xp_group_unusable(const xp_group *g, const char *wrong)
{
    if (g && g->born != XP_RELAXED(&xp_fork_count))
        xp_unusable(NULL);
    else
        xp_unusable(wrong ? wrong : "this Lock or Atomic is closed: close() was called. Make another of the same name");
}

static xp_group *group(PyObject *self)
{
    xp_group *g = ((xp_group_object *)self)->g;
    const char *wrong = xp_group_wrong(g);
    if (wrong)
        xp_group_unusable(g, wrong);
    return wrong ? NULL : g;
}

static xp_group *group_of(PyObject *object, uint32_t kind)
{
    if (PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) == (void *)group_dealloc &&
        ((xp_group_object *)object)->g->kind == kind)
        return group(object);
    PyErr_SetString(PyExc_TypeError, "a Group of that kind is wanted");
    return NULL;
}

static PyObject *group_close(PyObject *self, PyObject *Py_UNUSED(a))
{
    Py_BEGIN_ALLOW_THREADS
    xp_group_leave(((xp_group_object *)self)->g);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *home_nbytes(PyObject *Py_UNUSED(none), PyObject *Py_UNUSED(a))
{
    return PyLong_FromUnsignedLongLong(
        xp_group_nbytes(XP_GROUP_MEMBERS, XP_HOME_PLACES, (uint64_t)XP_HOME_PLACES * XP_PLACE_WORDS));
}

/* --- places --- */

/* begin(kind, initial) -> (place, generation) */
static PyObject *group_begin(PyObject *self, PyObject *args)
{
    unsigned int kind;
    long long initial;
    uint64_t generation = 0;
    if (!PyArg_ParseTuple(args, "IL", &kind, &initial))
        return NULL;
    xp_group *g = group(self);
    if (g == NULL)
        return NULL;
    uint32_t p;
    Py_BEGIN_ALLOW_THREADS
    p = xp_place_begin(g, kind, &generation);
    Py_END_ALLOW_THREADS
    if (p == XP_GROUP_NOBODY)
        return xp_oserror_of(ENOSPC, "making a lock or an atomic");
    if (kind == XP_PLACE_ATOMIC)
        xp_atomic_store(xp_place_words(g, p), initial);
    return Py_BuildValue("(IK)", p, (unsigned long long)generation);
}

/* Who only looks at a group has no index, and attaches to nothing. */
static xp_group *place_of(PyObject *self, PyObject *arg, uint32_t *p)
{
    xp_group *g = group(self);
    if (g == NULL || xp_as_u32(arg, p) < 0)
        return NULL;
    if (*p < g->places && g->member < g->count)
        return g;
    PyErr_SetString(PyExc_ValueError, "the group has no such place, or this process is no member");
    return NULL;
}

static PyObject *group_attach(PyObject *self, PyObject *arg)
{
    uint32_t p;
    xp_group *g = place_of(self, arg, &p);
    if (g == NULL)
        return NULL;
    xp_place_attach(g, p);
    Py_RETURN_NONE;
}

/* state(place, generation, kind) */
static PyObject *group_state(PyObject *self, PyObject *args)
{
    unsigned int p, kind;
    unsigned long long generation;
    int state = XP_PLACE_OVER;
    if (!PyArg_ParseTuple(args, "IKI", &p, &generation, &kind))
        return NULL;
    xp_group *g = group(self);
    if (g == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (p < g->places)
        state = xp_place_state(g, p, generation, kind);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(state);
}

/* end(place, generation) -> whether the object has ended */
static PyObject *group_end_place(PyObject *self, PyObject *args)
{
    unsigned int p;
    unsigned long long generation;
    bool ended = false;
    if (!PyArg_ParseTuple(args, "IK", &p, &generation))
        return NULL;
    xp_group *g = group(self);
    if (g == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (p < g->places && g->member < g->count)
        ended = xp_place_end(g, p, generation);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(ended);
}

static PyObject *group_detach(PyObject *self, PyObject *arg)
{
    uint32_t p;
    xp_group *g = place_of(self, arg, &p);
    if (g == NULL)
        return NULL;
    xp_place_detach(g, p);
    Py_RETURN_NONE;
}

/* How many objects this process has there, none if the group is of no more use. In C, where no interrupt comes between an
 * object and its count. */
static PyObject *group_own(PyObject *self, PyObject *arg)
{
    const xp_group *g = ((xp_group_object *)self)->g;
    uint32_t p;
    if (xp_as_u32(arg, &p) < 0)
        return NULL;
    return PyLong_FromUnsignedLong(xp_group_usable(g) && p < g->places ? XP_RELAXED(&g->own[p].objects) : 0);
}

/* --- members --- */

/* set_handle(which, handle): of this process */
static PyObject *group_set_handle(PyObject *self, PyObject *args)
{
    unsigned int which;
    const char *raw;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "Iy#", &which, &raw, &n))
        return NULL;
    xp_group *g = group(self);
    if (g == NULL)
        return NULL;
    if (which >= XP_GROUP_HANDLES || n != sizeof(xp_handle) || g->member >= g->count) {
        PyErr_SetString(PyExc_ValueError, "that is no handle of a member");
        return NULL;
    }
    memcpy(xp_group_member_at(g, g->member)->handles[which], raw, sizeof(xp_handle));
    Py_RETURN_NONE;
}

/* [(member, handle of the memory, handle of the slots)] of all members that live, this process among them */
static PyObject *group_handles(PyObject *self, PyObject *Py_UNUSED(a))
{
    static const uint8_t none[sizeof(xp_handle)];
    xp_group *g = group(self);
    PyObject *list = g ? PyList_New(0) : NULL;
    for (uint32_t m = 0; list && m < g->count; m++) {
        const xp_group_member *record = xp_group_member_at(g, m);
        if (!XP_LOAD(&record->who.state) || memcmp(record->handles[0], none, sizeof none) == 0 || xp_group_is_gone(g, m))
            continue;
        PyObject *v = Py_BuildValue("(Iy#y#)", m, (const char *)record->handles[0], (Py_ssize_t)sizeof none,
                                    (const char *)record->handles[1], (Py_ssize_t)sizeof none);
        if (v == NULL || PyList_Append(list, v) < 0)
            Py_CLEAR(list);
        Py_XDECREF(v);
    }
    return list;
}

static PyObject *group_pid(PyObject *self, PyObject *arg)
{
    xp_group *g = group(self);
    uint32_t m;
    if (g == NULL || xp_as_u32(arg, &m) < 0)
        return NULL;
    return PyLong_FromLong(m < g->count ? xp_group_pid(g, m) : -1);
}

/* --- channels --- */

/* The numbers of a geometry are the bytes of an xp_geometry in Python. */
static bool geometry_from(PyObject *raw, xp_geometry *g)
{
    char *bytes;
    Py_ssize_t nbytes;
    if (PyBytes_AsStringAndSize(raw, &bytes, &nbytes) < 0)
        return false;
    if (nbytes != sizeof *g) {
        PyErr_SetString(PyExc_ValueError, "that is no geometry");
        return false;
    }
    memcpy(g, bytes, sizeof *g);
    return true;
}

static PyObject *channel_nbytes(PyObject *Py_UNUSED(none), PyObject *arg)
{
    xp_geometry g;
    return geometry_from(arg, &g) ? PyLong_FromUnsignedLongLong(xp_channel_nbytes(&g)) : NULL;
}

static PyObject *channel_begin(PyObject *self, PyObject *args)
{
    PyObject *o_geometry;
    const char *text;
    Py_ssize_t n;
    xp_geometry g;
    if (!PyArg_ParseTuple(args, "Oy#", &o_geometry, &text, &n) || !geometry_from(o_geometry, &g))
        return NULL;
    xp_group *c = group_of(self, XP_CHANNEL_GROUP);
    if (c == NULL)
        return NULL;
    if (c->nbytes < xp_channel_nbytes(&g) || n > (Py_ssize_t)XP_CHANNEL_TEXT) {
        PyErr_SetString(PyExc_ValueError, "the channel does not fit");
        return NULL;
    }
    xp_channel_begin(c, &g, text, (uint32_t)n);
    Py_RETURN_NONE;
}

xp_group *xp_channel_of(PyObject *o_group, xp_geometry *g)
{
    xp_group *c = group_of(o_group, XP_CHANNEL_GROUP);
    if (c && !xp_channel_geometry(c, g)) {
        PyErr_SetString(PyExc_ValueError, "the words of the channel do not fit in their memory");
        return NULL;
    }
    return c;
}

/* (geometry, text) of a channel that another process has begun. */
static PyObject *channel_geometry(PyObject *self, PyObject *Py_UNUSED(none))
{
    xp_geometry g;
    xp_group *c = xp_channel_of(self, &g);
    if (c == NULL)
        return NULL;
    const xp_channel_words *w = (const xp_channel_words *)c->words;
    return Py_BuildValue("y#y#", (const char *)&g, (Py_ssize_t)sizeof g, w->text,
                         (Py_ssize_t)strnlen(w->text, XP_CHANNEL_TEXT));
}

static PyObject *channel_move(PyObject *self, PyObject *Py_UNUSED(none))
{
    xp_geometry g;
    xp_group *c = xp_channel_of(self, &g);
    if (c == NULL)
        return NULL;
    xp_channel_move(c);
    Py_RETURN_NONE;
}

/* The pid of the process that has the channel's lock: 0 if it cannot be seen, None if no process has it. */
static PyObject *channel_owner(PyObject *self, PyObject *Py_UNUSED(none))
{
    xp_geometry g;
    xp_group *c = xp_channel_of(self, &g);
    if (c == NULL)
        return NULL;
    uint64_t owner = XP_LOAD(&((xp_channel_words *)c->words)->lock.owner) & XP_LOCK_MEMBER;
    int pid = owner && owner <= c->count ? xp_group_pid(c, (uint32_t)owner - 1) : -1;
    return pid < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(pid);
}

/* For people: [(end, pid, role, cursor, missed, got, holding, label)], and the seq of the next frame. Reads without the
 * lock. */
static PyObject *channel_survey(PyObject *self, PyObject *Py_UNUSED(none))
{
    xp_geometry g;
    xp_end e;
    xp_group *c = xp_channel_of(self, &g);
    if (c == NULL)
        return NULL;
    xp_end_look(&e, c, &g);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < g.ends; i++) {
        const xp_end_words *end = &e.ends[i];
        uint32_t role = XP_LOAD(&end->role), holding = 0, m = xp_end_of_member(&e, i);
        int64_t missed = XP_RELAXED(&end->missed);
        int pid = role && m != XP_GROUP_NOBODY && XP_RELAXED(&xp_group_member_at(c, m)->who.since_ns) == end->since
                      ? xp_group_pid(c, m) : -1;
        if (pid < 0)
            continue;
        for (uint32_t slot = 0; slot < g.slots + g.spare; slot++)
            holding += xp_end_holds(&e, slot, i);
        const char *text = xp_end_card_of(&e, i)->label;
        PyObject *label = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strnlen(text, XP_END_LABEL), "replace");
        PyObject *v = label ? Py_BuildValue("(IiIKKKIN)", i, pid, role, (unsigned long long)XP_RELAXED(&end->cursor),
                                            missed > 0 ? (unsigned long long)missed : 0,
                                            (unsigned long long)XP_RELAXED(&end->got), holding, label)
                            : NULL;
        if (v == NULL || PyList_Append(list, v) < 0)
            Py_CLEAR(list);
        Py_XDECREF(v);
    }
    return list ? Py_BuildValue("(NK)", list, (unsigned long long)XP_LOAD(&e.w->next_seq)) : NULL;
}

static PyMethodDef group_methods[] = {
    {"close", group_close, METH_NOARGS, NULL},
    {"home_nbytes", home_nbytes, METH_NOARGS | METH_STATIC, NULL},
    {"begin", group_begin, METH_VARARGS, NULL},
    {"attach", group_attach, METH_O, NULL},
    {"state", group_state, METH_VARARGS, NULL},
    {"end", group_end_place, METH_VARARGS, NULL},
    {"detach", group_detach, METH_O, NULL},
    {"own", group_own, METH_O, NULL},
    {"pid", group_pid, METH_O, NULL},
    {"set_handle", group_set_handle, METH_VARARGS, NULL},
    {"handles", group_handles, METH_NOARGS, NULL},
    {"channel_nbytes", channel_nbytes, METH_O | METH_STATIC, NULL},
    {"channel_begin", channel_begin, METH_VARARGS, NULL},
    {"channel_geometry", channel_geometry, METH_NOARGS, NULL},
    {"channel_move", channel_move, METH_NOARGS, NULL},
    {"channel_owner", channel_owner, METH_NOARGS, NULL},
    {"channel_survey", channel_survey, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *group_own_member(PyObject *self, void *Py_UNUSED(c))
{
    return PyLong_FromUnsignedLong(((xp_group_object *)self)->g->member);
}

static PyObject *group_fd(PyObject *self, void *Py_UNUSED(c)) { return PyLong_FromLong(((xp_group_object *)self)->g->fd); }

/* The inode of the memory's file: (device, inode), as in a stat result. */
static PyObject *group_inode(PyObject *self, void *Py_UNUSED(c))
{
    const xp_group *g = ((xp_group_object *)self)->g;
    return Py_BuildValue("(KK)", (unsigned long long)g->dev, (unsigned long long)g->ino);
}

static PyGetSetDef group_getset[] = {
    {"member", group_own_member, NULL, NULL, NULL}, {"fd", group_fd, NULL, NULL, NULL}, {"inode", group_inode, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef group_members[] = {XP_WEAKREFS(xp_group_object), {NULL, 0, 0, 0, NULL}};

static PyType_Slot group_slots[] = {
    {Py_tp_new, group_new}, {Py_tp_dealloc, group_dealloc}, {Py_tp_methods, group_methods}, {Py_tp_members, group_members},
    {Py_tp_getset, group_getset}, {0, NULL},
};
static PyType_Spec group_spec = {"xpushare._native.Group", sizeof(xp_group_object), 0, Py_TPFLAGS_DEFAULT, group_slots};

/* --- Lock and Atomic: an object at a place each ------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *group, *held, *died; /* `held` and `died`: what a Lock returns */
    PyObject *why;                 /* NULL, or a callable that raises the reason why it could not be opened */
    xp_group *g;
    void *words;
    uint64_t turn; /* of a Lock that has the lock: the owner's word. 0: it has not */
    uint32_t place, kind;
    int closed;
} xp_member_object;

/* (group, place, held, died), or (callable, …) */
static PyObject *member_new(PyTypeObject *type, PyObject *args, uint32_t kind)
{
    PyObject *o_group, *held = Py_None, *died = Py_None;
    unsigned int place;
    if (!PyArg_ParseTuple(args, "OI|OO", &o_group, &place, &held, &died))
        return NULL;
    bool unopened = PyCallable_Check(o_group);
    xp_group *g = unopened ? NULL : group_of(o_group, XP_HOME);
    if (g == NULL && !unopened)
        return NULL;
    if (g && (place >= g->places || XP_LOAD(&xp_place_at(g, place)->kind) != kind)) {
        PyErr_SetString(PyExc_ValueError, "something else is at that place");
        return NULL;
    }
    xp_member_object *self = (xp_member_object *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->kind = kind;
    if (unopened) {
        self->closed = 1;
        self->why = Py_NewRef(o_group);
        return (PyObject *)self;
    }
    xp_group_ref(g);
    self->g = g;
    self->place = place;
    self->words = xp_place_words(g, place);
    self->group = Py_NewRef(o_group);
    self->held = Py_NewRef(held);
    self->died = Py_NewRef(died);
    xp_place_count(g, place, 1);
    return (PyObject *)self;
}

static void leave(xp_member_object *o)
{
    if (o->g == NULL || XP_EXCHANGE(&o->closed, 1) || xp_group_wrong(o->g))
        return;
    uint64_t turn = XP_EXCHANGE(&o->turn, 0);
    if (turn)
        xp_lock_end_turn(o->words, turn, true); /* leaving while holding it is its owner's death */
    xp_ring(o->kind == XP_PLACE_LOCK ? &((xp_lock_words *)o->words)->bell : &((xp_atomic_words *)o->words)->bell);
    xp_group_tell(o->g);
    xp_place_count(o->g, o->place, -1);
}

static void member_end(PyObject *self)
{
    xp_member_object *o = (xp_member_object *)self;
    leave(o);
    if (o->g)
        xp_group_unref(o->g);
}

static PyObject *member_leave(PyObject *self, PyObject *Py_UNUSED(a))
{
    leave((xp_member_object *)self);
    Py_RETURN_NONE;
}

#define MEMBER_LIFE .end = member_end, .fixed = XP_OBJECTS(xp_member_object, group, held, died, why)
#define MEMBER_LEAVE {"_leave", member_leave, METH_NOARGS, NULL}

static PyMemberDef member_members[] = {
    {"_place", T_UINT, offsetof(xp_member_object, place), READONLY, NULL}, {NULL, 0, 0, 0, NULL},
};

static inline xp_member_object *member(PyObject *self)
{
    xp_member_object *o = (xp_member_object *)self;
    if (XP_LIKELY(!XP_RELAXED(&o->closed) && xp_group_usable(o->g)))
        return o;
    if (o->why) {
        PyObject *none = PyObject_CallNoArgs(o->why);
        if (none)
            PyErr_SetString(PyExc_RuntimeError, "the reason was not raised");
        Py_XDECREF(none);
        return NULL;
    }
    xp_group_unusable(o->g, XP_RELAXED(&o->closed) ? NULL : xp_group_wrong(o->g));
    return NULL;
}

/* --- Lock --- */

static PyObject *lock_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    return member_new(type, args, XP_PLACE_LOCK);
}

XP_LIFE(lock, MEMBER_LIFE)

static PyObject *taken(xp_member_object *o, int got)
{
    xp_lock_words *w = o->words;
    o->turn = XP_RELAXED(&w->owner); /* nobody else changes it now */
    XP_STORE_RELAXED(&o->g->own[o->place].thread, (uint64_t)pthread_self());
    return Py_NewRef(got == XP_LOCK_DIED ? o->died : o->held);
}

/* None: not within the time. */
static PyObject *acquire_slow(PyObject *self, xp_member_object *o, uint64_t timeout)
{
    xp_lock_words *w = o->words;
    uint64_t end = timeout == XP_FOREVER ? XP_FOREVER : xp_now() + timeout, ticket = xp_lock_ticket(o->g->member);
    unsigned tries = 0;
    int got, rc;
    for (;;) {
        Py_BEGIN_ALLOW_THREADS
        got = xp_lock_wait(o->g, w, o->g->member, ticket, &tries, end, &rc);
        Py_END_ALLOW_THREADS
        if (got != XP_LOCK_BUSY && !XP_RELAXED(&o->closed))
            return taken(o, got);
        bool over = PyErr_CheckSignals() < 0 || member(self) == NULL;
        if (over || xp_now() >= end) {
            xp_lock_give_up(w, ticket);
            if (got != XP_LOCK_BUSY)
                xp_lock_release(w, o->g->member);
            xp_group_tell(o->g);
            return over ? NULL : Py_NewRef(Py_None);
        }
    }
}

static PyObject *acquire(PyObject *self, PyObject *timeout)
{
    xp_member_object *o = member(self);
    uint64_t ns = XP_FOREVER;
    if (o == NULL || (timeout && xp_seconds(timeout, &ns) < 0))
        return NULL;
    xp_lock_words *w = o->words;
    int got = xp_lock_try(w, o->g->member, 0);
    if (XP_LIKELY(got != XP_LOCK_BUSY))
        return taken(o, got);
    if (XP_RELAXED(&o->g->own[o->place].thread) == (uint64_t)pthread_self() &&
        (XP_LOAD(&w->owner) & XP_LOCK_MEMBER) == o->g->member + 1) {
        xp_unusable("this thread holds the lock already: it is not re-entrant. Release it first");
        return NULL;
    }
    return acquire_slow(self, o, ns);
}

static PyObject *lock_acquire(PyObject *self, PyObject *arg) { return acquire(self, arg); }
static PyObject *lock_enter(PyObject *self, PyObject *Py_UNUSED(a)) { return acquire(self, NULL); }

static int release(PyObject *self)
{
    xp_member_object *o = member(self);
    if (o == NULL)
        return -1;
    uint64_t turn = o->turn, *thread = &o->g->own[o->place].thread, before = XP_RELAXED(thread);
    o->turn = 0;
    XP_STORE_RELAXED(thread, 0);
    if (turn && xp_lock_end_turn(o->words, turn, false)) {
        xp_group_tell(o->g);
        return 0;
    }
    XP_STORE_RELAXED(thread, before);
    xp_unusable("this object does not hold the lock: acquire() it first, or write `with lock:`, which also releases it");
    return -1;
}

static PyObject *lock_release(PyObject *self, PyObject *Py_UNUSED(a)) { return release(self) < 0 ? NULL : Py_NewRef(Py_None); }

static PyObject *lock_exit(PyObject *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(n))
{
    return release(self) < 0 ? NULL : Py_NewRef(Py_None);
}

/* For tasks, which must not sleep here. */

static PyObject *lock_ticket(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_member_object *o = member(self);
    return o ? PyLong_FromUnsignedLongLong(xp_lock_ticket(o->g->member)) : NULL;
}

/* _poll(ticket, overtaken). None: the lock is busy. */
static PyObject *lock_poll(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    xp_member_object *o = member(self);
    uint64_t ticket;
    if (o == NULL || xp_arity("_poll", n, 2, 2) < 0 || xp_as_u64(args[0], &ticket) < 0)
        return NULL;
    int got = xp_lock_poll(o->g, o->words, ticket, args[1] == Py_True);
    return got == XP_LOCK_BUSY ? Py_NewRef(Py_None) : taken(o, got);
}

static PyObject *lock_give_up(PyObject *self, PyObject *arg)
{
    xp_member_object *o = (xp_member_object *)self;
    uint64_t ticket;
    if (xp_as_u64(arg, &ticket) < 0)
        return NULL;
    if (o->g && xp_group_usable(o->g)) { /* also of an object that was closed meanwhile */
        xp_lock_give_up(o->words, ticket);
        xp_group_tell(o->g);
    }
    Py_RETURN_NONE;
}

static PyObject *lock_owner(PyObject *self, PyObject *Py_UNUSED(none))
{
    xp_member_object *o = member(self);
    return o ? PyLong_FromUnsignedLongLong(XP_LOAD(&((xp_lock_words *)o->words)->owner) & XP_LOCK_MEMBER) : NULL;
}

/* As in _native.pyi, which the reference shows. */
PyDoc_STRVAR(release_doc,
    "release($self, /)\n--\n\n"
    "Release the lock. Any thread of the process may release it.\n"
    "\n"
    "Raises:\n"
    "    InvalidArgumentError: This object does not hold the lock, or it is closed.\n"
    "\n"
    "Examples:\n"
    "    >>> lock = xs.Lock()\n"
    "    >>> lock.acquire().owner_died\n"
    "    False\n"
    "    >>> lock.release()\n"
    "    >>> lock.close()");

static PyMethodDef lock_methods[] = {
    {"release", lock_release, METH_NOARGS, release_doc},
    {"__enter__", lock_enter, METH_NOARGS, NULL},
    {"__exit__", XP_FAST(lock_exit), METH_FASTCALL, NULL},
    {"_acquire", lock_acquire, METH_O, NULL},
    {"_owner", lock_owner, METH_NOARGS, NULL},
    {"_ticket", lock_ticket, METH_NOARGS, NULL},
    {"_poll", XP_FAST(lock_poll), METH_FASTCALL, NULL},
    {"_give_up", lock_give_up, METH_O, NULL},
    MEMBER_LEAVE,
    {NULL, NULL, 0, NULL},
};

static PyType_Slot lock_slots[] = {
    {Py_tp_new, lock_new}, XP_LIFE_SLOTS(lock), {Py_tp_methods, lock_methods}, {Py_tp_members, member_members}, {0, NULL},
};
static PyType_Spec lock_spec = {"xpushare._native.LockMember", sizeof(xp_member_object), 0,
                                XP_WITH_GC | Py_TPFLAGS_BASETYPE, lock_slots};

/* --- Atomic --- */

static PyObject *atomic_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    return member_new(type, args, XP_PLACE_ATOMIC);
}

XP_LIFE(atomic, MEMBER_LIFE)

static int as_i64(PyObject *obj, int64_t *out)
{
    *out = PyLong_AsLongLong(obj);
    if (*out != -1 || !PyErr_Occurred())
        return 0;
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        xp_unusable("an Atomic holds 64 bits, from -2**63 to 2**63 - 1: the given number is outside this range");
    } else if (PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        xp_unusable("an Atomic holds an int of 64 bits: the given value is not an int");
    }
    return -1;
}

static PyObject *atomic_add(PyObject *self, PyObject *arg)
{
    xp_member_object *o = member(self);
    int64_t more;
    if (o == NULL || as_i64(arg, &more) < 0)
        return NULL;
    return PyLong_FromLongLong(xp_atomic_add(o->words, more));
}

static PyObject *atomic_load(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_member_object *o = member(self);
    return o ? PyLong_FromLongLong(XP_LOAD(&((xp_atomic_words *)o->words)->value)) : NULL;
}

static PyObject *atomic_store(PyObject *self, PyObject *arg)
{
    xp_member_object *o = member(self);
    int64_t value;
    if (o == NULL || as_i64(arg, &value) < 0)
        return NULL;
    xp_atomic_store(o->words, value);
    Py_RETURN_NONE;
}

static PyObject *atomic_swap(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    xp_member_object *o = member(self);
    int64_t old, value;
    if (o == NULL || xp_arity("compare_exchange", n, 2, 2) < 0 || as_i64(args[0], &old) < 0 || as_i64(args[1], &value) < 0)
        return NULL;
    return PyBool_FromLong(xp_atomic_swap(o->words, old, value));
}

/* False: the time is over. */
static PyObject *atomic_wait(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    xp_member_object *o = member(self);
    int64_t value;
    uint64_t ns;
    if (o == NULL || xp_arity("wait", n, 2, 2) < 0 || as_i64(args[0], &value) < 0 || xp_seconds(args[1], &ns) < 0)
        return NULL;
    uint64_t end = ns == XP_FOREVER ? XP_FOREVER : xp_now() + ns;
    for (;;) {
        bool differs;
        int rc;
        Py_BEGIN_ALLOW_THREADS
        differs = xp_atomic_wait(o->g, o->words, value, end, &rc);
        Py_END_ALLOW_THREADS
        if (differs)
            Py_RETURN_TRUE;
        if (PyErr_CheckSignals() < 0 || member(self) == NULL)
            return NULL;
        if (xp_now() >= end)
            Py_RETURN_FALSE;
    }
}

/* As in _native.pyi. */
PyDoc_STRVAR(add_doc,
    "add($self, n, /)\n--\n\n"
    "Add to the number.\n"
    "\n"
    "Args:\n"
    "    n: The number to add.\n"
    "\n"
    "Returns:\n"
    "    The number before.\n"
    "\n"
    "Raises:\n"
    "    InvalidArgumentError: `n` is no signed number of 64 bits, or the object is closed.\n"
    "\n"
    "Examples:\n"
    "    >>> with xs.Atomic(5) as number:\n"
    "    ...     number.add(-2), number.load()\n"
    "    (5, 3)");

PyDoc_STRVAR(load_doc,
    "load($self, /)\n--\n\n"
    "Return the number.\n"
    "\n"
    "Returns:\n"
    "    The value after the last change by any process.\n"
    "\n"
    "Raises:\n"
    "    InvalidArgumentError: The object is closed.\n"
    "\n"
    "Examples:\n"
    "    >>> with xs.Atomic(5) as number:\n"
    "    ...     number.load()\n"
    "    5");

PyDoc_STRVAR(store_doc,
    "store($self, value, /)\n--\n\n"
    "Replace the number.\n"
    "\n"
    "Args:\n"
    "    value: The new number.\n"
    "\n"
    "Raises:\n"
    "    InvalidArgumentError: `value` is no signed number of 64 bits, or the object is closed.\n"
    "\n"
    "Examples:\n"
    "    >>> with xs.Atomic(5) as number:\n"
    "    ...     number.store(7)\n"
    "    ...     number.load()\n"
    "    7");

static PyMethodDef atomic_methods[] = {
    {"add", atomic_add, METH_O, add_doc},
    {"load", atomic_load, METH_NOARGS, load_doc},
    {"store", atomic_store, METH_O, store_doc},
    {"_swap", XP_FAST(atomic_swap), METH_FASTCALL, NULL},
    {"_wait", XP_FAST(atomic_wait), METH_FASTCALL, NULL},
    MEMBER_LEAVE,
    {NULL, NULL, 0, NULL},
};

static PyType_Slot atomic_slots[] = {
    {Py_tp_new, atomic_new}, XP_LIFE_SLOTS(atomic), {Py_tp_methods, atomic_methods}, {Py_tp_members, member_members}, {0, NULL},
};
static PyType_Spec atomic_spec = {"xpushare._native.AtomicMember", sizeof(xp_member_object), 0,
                                  XP_WITH_GC | Py_TPFLAGS_BASETYPE, atomic_slots};

int xp_init_group(PyObject *module)
{
    static const struct {
        const char *name;
        long value;
    } constants[] = {
        {"GROUP_MEMBERS", XP_GROUP_MEMBERS}, {"GROUP_VERSION", XP_GROUP_VERSION}, {"GROUP_LIFE", XP_LIFE_BYTE},
        {"GROUP_HOME", XP_HOME}, {"GROUP_CHANNEL", XP_CHANNEL_GROUP}, {"GROUP_MAKE", XP_GROUP_MAKE},
        {"GROUP_JOIN", XP_GROUP_JOIN}, {"GROUP_LOOK", XP_GROUP_LOOK}, {"HOME_PLACES", XP_HOME_PLACES},
        {"PLACE_OVER", XP_PLACE_OVER}, {"PLACE_ALONE", XP_PLACE_ALONE}, {"PLACE_SHARED", XP_PLACE_SHARED},
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0)
            return -1;
    return xp_add_type(module, &group_spec) < 0 || xp_add_type(module, &lock_spec) < 0
               ? -1
               : xp_add_type(module, &atomic_spec);
}
