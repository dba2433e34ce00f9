/* Crew, Lock and Atomic: the Python side of engine/crew.h and engine/lock.h. */
#include "ends.h"

#include "../../engine/lock.h"

#include <unistd.h>

#define KIND_LOCK 1u
#define KIND_ATOMIC 2u
#define KIND_CHANNEL 3u

/* --- Crew --------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    xp_crew *c;
    Py_buffer view; /* keeps the words mapped */
    uint32_t kind;
} xp_crew_object;

static void prepare(xp_crew *c, uint32_t kind, bool fresh, int64_t initial)
{
    if (kind == KIND_ATOMIC) {
        xp_atomic_words *w = xp_crew_words(c);
        c->bells[0] = &w->bell;
        if (fresh)
            xp_atomic_store(w, initial);
    } else if (kind == KIND_LOCK) { /* a channel's: see engine/channel.c */
        c->bells[0] = &((xp_lock_words *)xp_crew_words(c))->bell;
    }
}

static PyObject *crew_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", "memory", "kind", "fresh", "initial", NULL};
    PyObject *o_fd, *o_memory;
    int kind, fresh;
    long long initial = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOip|L", names, &o_fd, &o_memory, &kind, &fresh, &initial))
        return NULL;
    xp_crew_object *self = (xp_crew_object *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    if (PyObject_GetBuffer(o_memory, &self->view, PyBUF_WRITABLE) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    int fd = xp_take_fd(o_fd);
    if (fd < 0) {
        Py_DECREF(self);
        return xp_oserror_of(EBADF, "taking the file of a crew");
    }
    xp_error error = {0, "the control words do not fit in their memory"};
    if (self->view.len > (Py_ssize_t)XP_CREW_WORDS + 64)
        self->c = xp_crew_open(fd, self->view.buf, (uint64_t)self->view.len, (uint32_t)kind, fresh, &error);
    if (self->c == NULL) {
        const xp_crew_head *head = self->view.buf;
        close(fd);
        if (error.code == 0 && self->view.len > (Py_ssize_t)XP_CREW_WORDS && head->version != XP_CREW_VERSION &&
            memcmp(head->magic, XP_CREW_MAGIC, sizeof head->magic) == 0)
            PyErr_Format(PyExc_ValueError, "it has version %u of the shared layout, and this process has version %u: use the "
                         "same version of xpushare in all processes", head->version, XP_CREW_VERSION);
        else
            xp_raise(&error);
        Py_DECREF(self);
        return NULL;
    }
    self->kind = (uint32_t)kind;
    prepare(self->c, (uint32_t)kind, fresh, initial);
    return (PyObject *)self;
}

static void crew_end(PyObject *self)
{
    xp_crew_object *o = (xp_crew_object *)self;
    if (o->c) {
        Py_BEGIN_ALLOW_THREADS
        xp_crew_close(o->c);
        xp_crew_unref(o->c);
        Py_END_ALLOW_THREADS
    }
    if (o->view.obj)
        PyBuffer_Release(&o->view);
}

XP_LIFE_PLAIN(crew, .end = crew_end, .weakrefs = offsetof(xp_crew_object, weakrefs))

void xp_crew_unusable(const xp_crew *c, const char *wrong)
{
    if (c && c->born != XP_RELAXED(&xp_fork_count))
        xp_unusable(NULL);
    else
        xp_unusable(wrong ? wrong : "this Lock or Atomic is closed: close() was called. Make another of the same name");
}

static xp_crew *crew(PyObject *self)
{
    xp_crew *c = ((xp_crew_object *)self)->c;
    const char *wrong = xp_crew_wrong(c);
    if (wrong)
        xp_crew_unusable(c, wrong);
    return wrong ? NULL : c;
}

static xp_crew *crew_of(PyObject *object, uint32_t kind)
{
    if (PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) == (void *)crew_dealloc &&
        ((xp_crew_object *)object)->kind == kind)
        return crew(object);
    PyErr_SetString(PyExc_TypeError, "a Crew of that kind is wanted");
    return NULL;
}

static PyObject *crew_close(PyObject *self, PyObject *Py_UNUSED(a))
{
    Py_BEGIN_ALLOW_THREADS
    xp_crew_close(((xp_crew_object *)self)->c);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *crew_pid(PyObject *self, PyObject *arg)
{
    xp_crew *c = crew(self);
    uint32_t m;
    if (c == NULL || xp_as_u32(arg, &m) < 0)
        return NULL;
    return PyLong_FromLong(m < XP_CREW_MEMBERS ? xp_crew_pid(c, m) : -1);
}

/* How many members of this process the crew has, none if it is of no more use. In C, where no interrupt comes between
 * a member and its count. */
static PyObject *crew_own(PyObject *self, void *Py_UNUSED(c))
{
    const xp_crew *c = ((xp_crew_object *)self)->c;
    long n = 0;
    for (uint32_t i = 0; i < XP_CREW_MASK && xp_crew_usable(c); i++)
        n += __builtin_popcountll(__atomic_load_n(&c->mine[i], __ATOMIC_RELAXED));
    return PyLong_FromLong(n);
}

static PyGetSetDef crew_getset[] = {{"own", crew_own, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};

/* Takes the descriptor over by itself, so that no interrupt comes in between. */
static PyObject *crew_move(PyObject *self, PyObject *arg)
{
    xp_crew *c = crew(self);
    int fd = c ? xp_take_fd(arg) : -1, rc = EBADF;
    if (c == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (fd >= 0)
        rc = xp_crew_move(c, fd);
    Py_END_ALLOW_THREADS
    if (rc)
        return xp_oserror_of(rc, "moving a crew to another file");
    Py_RETURN_NONE;
}

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
    xp_crew *c = crew_of(self, KIND_CHANNEL);
    if (c == NULL)
        return NULL;
    if (c->nbytes < xp_channel_nbytes(&g) || n > (Py_ssize_t)XP_CHANNEL_TEXT) {
        PyErr_SetString(PyExc_ValueError, "the channel does not fit");
        return NULL;
    }
    xp_channel_begin(c, &g, text, (uint32_t)n);
    Py_RETURN_NONE;
}

xp_crew *xp_channel_of(PyObject *o_crew, xp_geometry *g)
{
    xp_crew *c = crew_of(o_crew, KIND_CHANNEL);
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
    xp_crew *c = xp_channel_of(self, &g);
    if (c == NULL)
        return NULL;
    const xp_channel_words *w = xp_crew_words(c);
    return Py_BuildValue("y#y#", (const char *)&g, (Py_ssize_t)sizeof g, w->text,
                         (Py_ssize_t)strnlen(w->text, XP_CHANNEL_TEXT));
}

static PyObject *channel_move(PyObject *self, PyObject *Py_UNUSED(none))
{
    xp_geometry g;
    xp_crew *c = xp_channel_of(self, &g);
    if (c == NULL)
        return NULL;
    xp_channel_move(c);
    Py_RETURN_NONE;
}

/* The pid of the process that has the channel's lock: 0 if it cannot be seen, None if no process has it. */
static PyObject *channel_owner(PyObject *self, PyObject *Py_UNUSED(none))
{
    xp_geometry g;
    xp_crew *c = xp_channel_of(self, &g);
    if (c == NULL)
        return NULL;
    uint64_t owner = XP_LOAD(&((xp_channel_words *)xp_crew_words(c))->lock.owner) & XP_LOCK_MEMBER;
    int pid = owner && owner <= XP_CREW_MEMBERS ? xp_crew_pid(c, (uint32_t)owner - 1) : -1;
    return pid < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(pid);
}

/* For people: [(member, pid, role, cursor, missed, got, holding, label)], and the seq of the next frame. Reads
 * without the lock. */
static PyObject *channel_survey(PyObject *self, PyObject *Py_UNUSED(none))
{
    xp_geometry g;
    xp_crew *c = xp_channel_of(self, &g);
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

static PyObject *crew_joined(PyObject *Py_UNUSED(m), PyObject *arg)
{
    int fd;
    if (xp_as_int(arg, &fd) < 0)
        return NULL;
    xp_lock(fd, XP_CREW_JOIN, false);
    Py_RETURN_NONE;
}

static PyMethodDef crew_methods[] = {
    {"move", crew_move, METH_O, NULL},
    {"close", crew_close, METH_NOARGS, NULL},
    {"pid", crew_pid, METH_O, NULL},
    {"joined", crew_joined, METH_O | METH_STATIC, NULL},
    {"channel_nbytes", channel_nbytes, METH_O | METH_STATIC, NULL},
    {"channel_begin", channel_begin, METH_VARARGS, NULL},
    {"channel_geometry", channel_geometry, METH_NOARGS, NULL},
    {"channel_move", channel_move, METH_NOARGS, NULL},
    {"channel_owner", channel_owner, METH_NOARGS, NULL},
    {"channel_survey", channel_survey, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef crew_members[] = {XP_WEAKREFS(xp_crew_object), {NULL, 0, 0, 0, NULL}};

static PyType_Slot crew_slots[] = {
    {Py_tp_new, crew_new}, {Py_tp_dealloc, crew_dealloc}, {Py_tp_methods, crew_methods}, {Py_tp_members, crew_members},
    {Py_tp_getset, crew_getset}, {0, NULL},
};
static PyType_Spec crew_spec = {"xpushare._native.Crew", sizeof(xp_crew_object), 0, Py_TPFLAGS_DEFAULT, crew_slots};

/* --- Lock and Atomic: a member each ------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *crew, *held, *died; /* `held` and `died`: what a Lock returns */
    PyObject *why;                /* NULL, or a callable that raises the reason why it could not be opened */
    xp_crew *c;
    void *words;
    uint32_t m, kind;
    int closed;
} xp_member_object;

static void sweep_lock(xp_crew *c, uint32_t m) { xp_lock_sweep(xp_crew_words(c), m); }
static void sweep_nothing(xp_crew *Py_UNUSED(c), uint32_t Py_UNUSED(m)) {}

static PyObject *member_new(PyTypeObject *type, PyObject *args, uint32_t kind)
{
    PyObject *o_crew, *held = Py_None, *died = Py_None;
    const char *label;
    if (!PyArg_ParseTuple(args, "Os|OO", &o_crew, &label, &held, &died))
        return NULL;
    bool unopened = PyCallable_Check(o_crew);
    xp_crew *c = unopened ? NULL : crew_of(o_crew, kind);
    if (c == NULL && !unopened)
        return NULL;
    xp_member_object *self = (xp_member_object *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->m = XP_NOBODY_OF_CREW;
    self->kind = kind;
    if (unopened) {
        self->closed = 1;
        self->why = Py_NewRef(o_crew);
        return (PyObject *)self;
    }
    int rc = xp_crew_claim(c, label, kind == KIND_LOCK ? sweep_lock : sweep_nothing, &self->m);
    if (rc) {
        Py_DECREF(self);
        return xp_oserror_of(rc, "joining the members");
    }
    xp_crew_ref(c);
    self->c = c;
    self->words = xp_crew_words(c);
    self->crew = Py_NewRef(o_crew);
    self->held = Py_NewRef(held);
    self->died = Py_NewRef(died);
    return (PyObject *)self;
}

static void leave(xp_member_object *o)
{
    if (o->c == NULL || XP_EXCHANGE(&o->closed, 1) || xp_crew_wrong(o->c))
        return;
    if (o->kind == KIND_LOCK) {
        xp_lock_sweep(o->words, o->m); /* leaving while holding it is its owner's death */
        xp_ring(&((xp_lock_words *)o->words)->bell);
    } else {
        xp_ring(&((xp_atomic_words *)o->words)->bell);
    }
    xp_crew_leave(o->c, o->m);
}

static void member_end(PyObject *self)
{
    xp_member_object *o = (xp_member_object *)self;
    leave(o);
    if (o->c)
        xp_crew_unref(o->c);
}

static PyObject *member_leave(PyObject *self, PyObject *Py_UNUSED(a))
{
    leave((xp_member_object *)self);
    Py_RETURN_NONE;
}

#define MEMBER_LIFE .end = member_end, .fixed = XP_OBJECTS(xp_member_object, crew, held, died, why)
#define MEMBER_LEAVE {"_leave", member_leave, METH_NOARGS, NULL}

static PyMemberDef member_members[] = {
    {"_member", T_UINT, offsetof(xp_member_object, m), READONLY, NULL}, {NULL, 0, 0, 0, NULL},
};

static inline xp_member_object *member(PyObject *self)
{
    xp_member_object *o = (xp_member_object *)self;
    if (XP_LIKELY(!XP_RELAXED(&o->closed) && xp_crew_usable(o->c)))
        return o;
    if (o->why) {
        PyObject *none = PyObject_CallNoArgs(o->why);
        if (none)
            PyErr_SetString(PyExc_RuntimeError, "the reason was not raised");
        Py_XDECREF(none);
        return NULL;
    }
    xp_crew_unusable(o->c, XP_RELAXED(&o->closed) ? NULL : xp_crew_wrong(o->c));
    return NULL;
}

/* --- Lock --- */

static PyObject *lock_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    return member_new(type, args, KIND_LOCK);
}

XP_LIFE(lock, MEMBER_LIFE)

static PyObject *taken(xp_member_object *o, int got)
{
    XP_STORE_RELAXED(&o->c->holder, (uint64_t)pthread_self());
    return Py_NewRef(got == XP_LOCK_DIED ? o->died : o->held);
}

/* None: not within the time. */
static PyObject *acquire_slow(PyObject *self, xp_member_object *o, uint64_t timeout)
{
    xp_lock_words *w = o->words;
    uint64_t end = timeout == XP_FOREVER ? XP_FOREVER : xp_now() + timeout, ticket = xp_lock_ticket(o->m);
    unsigned tries = 0;
    int got, rc;
    for (;;) {
        Py_BEGIN_ALLOW_THREADS
        got = xp_lock_wait(o->c, w, o->m, ticket, &tries, end, &rc);
        Py_END_ALLOW_THREADS
        if (got != XP_LOCK_BUSY && !XP_RELAXED(&o->closed))
            return taken(o, got);
        bool over = PyErr_CheckSignals() < 0 || member(self) == NULL;
        if (over || xp_now() >= end) {
            xp_lock_give_up(w, ticket);
            if (got != XP_LOCK_BUSY)
                xp_lock_release(w, o->m);
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
    int got = xp_lock_try(w, o->m, 0);
    if (XP_LIKELY(got != XP_LOCK_BUSY))
        return taken(o, got);
    uint64_t owner = XP_LOAD(&w->owner) & XP_LOCK_MEMBER;
    if (XP_RELAXED(&o->c->holder) == (uint64_t)pthread_self() && owner && owner <= XP_CREW_MEMBERS &&
        o->c->mine[(owner - 1) / 64] >> (owner - 1) % 64 & 1) {
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
    uint64_t before = XP_RELAXED(&o->c->holder);
    XP_STORE_RELAXED(&o->c->holder, 0);
    if (xp_lock_release(o->words, o->m))
        return 0;
    XP_STORE_RELAXED(&o->c->holder, before);
    xp_unusable("this object does not hold the lock: acquire() it first, or write `with lock:`, which also releases it");
    return -1;
}

static PyObject *lock_release(PyObject *self, PyObject *Py_UNUSED(a)) { return release(self) < 0 ? NULL : Py_NewRef(Py_None); }

static PyObject *lock_exit(PyObject *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(n))
{
    return release(self) < 0 ? NULL : Py_NewRef(Py_None);
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
    return member_new(type, args, KIND_ATOMIC);
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
        differs = xp_atomic_wait(o->c, o->words, value, end, &rc);
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

int xp_init_crew(PyObject *module)
{
    if (PyModule_AddIntConstant(module, "CREW_MEMBERS", XP_CREW_MEMBERS) < 0 ||
        PyModule_AddIntConstant(module, "CREW_VERSION", XP_CREW_VERSION) < 0 ||
        PyModule_AddIntConstant(module, "CREW_JOIN", XP_CREW_JOIN) < 0 ||
        PyModule_AddIntConstant(module, "CREW_LIFE", XP_CREW_LIFE) < 0)
        return -1;
    return xp_add_type(module, &crew_spec) < 0 || xp_add_type(module, &lock_spec) < 0
               ? -1
               : xp_add_type(module, &atomic_spec);
}
