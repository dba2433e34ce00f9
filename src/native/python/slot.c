/* Slot: the Python side of events. */
#include "objects.h"

#include <unistd.h>

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs, *domain;
    xp_slot *s;
    xp_words *words;
    uint32_t index;
} xp_slot_object;

static inline xp_slot *slot(PyObject *self)
{
    xp_slot *s = ((xp_slot_object *)self)->s;
    const char *wrong = xp_slot_wrong(s);
    if (XP_UNLIKELY(wrong))
        xp_unusable(wrong);
    return wrong ? NULL : s;
}

static PyObject *slot_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"domain", "index", "signals", NULL};
    PyObject *o_domain, *o_index, *o_signals = Py_None;
    uint32_t index;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O", names, &o_domain, &o_index, &o_signals) ||
        xp_as_u32(o_index, &index) < 0)
        return NULL;
    int truth = o_signals == Py_None ? 0 : PyObject_IsTrue(o_signals);
    if (truth < 0)
        return NULL;
    int role = o_signals == Py_None ? XP_MAY_SIGNAL : truth ? XP_WILL_SIGNAL : XP_ONLY_WAITS;
    xp_domain *d = xp_domain_of(o_domain);
    if (d == NULL)
        return NULL;
    xp_slot_object *self = (xp_slot_object *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    xp_error error;
    self->s = xp_attach(d, index, role, &error);
    if (self->s == NULL) {
        Py_DECREF(self);
        return xp_raise(&error);
    }
    self->words = self->s->w;
    self->index = index;
    self->domain = Py_NewRef(o_domain);
    return (PyObject *)self;
}

static void slot_end(PyObject *self)
{
    xp_slot_object *o = (xp_slot_object *)self;
    if (o->s) {
        Py_BEGIN_ALLOW_THREADS
        xp_slot_drop(o->s);
        xp_detach(o->s);
        xp_slot_unref(o->s);
        Py_END_ALLOW_THREADS
    }
}

XP_LIFE(slot, .end = slot_end, .weakrefs = offsetof(xp_slot_object, weakrefs),
        .fixed = XP_OBJECTS(xp_slot_object, domain))

XP_METHOD(slot_detach, XP_NONE_BY(XP_UNLOCKED_DO(xp_detach(((xp_slot_object *)self)->s))))

int xp_as_point(PyObject *arg, uint64_t *point)
{
    if (xp_as_u64(arg, point) < 0)
        return -1;
    if (*point <= XP_POINT_MAX)
        return 0;
    return xp_invalid("a point has 43 bits");
}

static PyObject *slot_state(PyObject *self, PyObject *arg)
{
    xp_slot *s = slot(self);
    uint64_t point;
    if (s == NULL || xp_as_point(arg, &point) < 0)
        return NULL;
    xp_note_act(s, XP_ACT_WAITED);
    return PyLong_FromLong(xp_full_state(s, point, false));
}

static PyObject *exhausted(const char *what)
{
    return xp_refuse(PyExc_ValueError, what);
}

/* A process that polls or signals does not wait, so perhaps nobody has noticed the death of a process that owes
 * points. Check now, and watch the living ones. Returns false if no other process owes points. */
static bool look_at_owners(xp_slot *s)
{
    uint64_t owing[XP_MASK_WORDS] = {0}, me = 1ull << s->d->member % 64, others = 0;
    xp_owing(s->w, owing);
    for (uint32_t i = 0; i < XP_MASK_WORDS; i++)
        others |= owing[i] & ~(s->d->member / 64 == i ? me : 0);
    if (others == 0)
        return false;
    Py_BEGIN_ALLOW_THREADS
    xp_loop_start(); /* if no thread can be started, the next call checks again */
    xp_watch_relied(s);
    xp_full_state(s, XP_RELAXED(&s->w->pending) >> 21, true);
    Py_END_ALLOW_THREADS
    return true;
}

static PyObject *slot_signal(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_slot *s = slot(self);
    uint64_t point;
    if (s == NULL)
        return NULL;
    const char *wrong = xp_signal(s, &point);
    if (wrong && look_at_owners(s))
        wrong = xp_signal(s, &point);
    return wrong ? exhausted(wrong) : PyLong_FromUnsignedLongLong(point);
}

static PyObject *slot_submit(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"queue", "device", NULL};
    xp_slot *s = slot(self);
    PyObject *o_queue;
    uint64_t queue, point = 0, after = 0;
    int device = 0;
    bool host;
    if (s == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "O|p", names, &o_queue, &device) ||
        xp_as_u64(o_queue, &queue) < 0)
        return NULL;
    if (queue == 0)
        return exhausted("a queue's number is not 0");
    const char *wrong = xp_submit(s, queue, device, &point, &after, &host);
    return wrong ? exhausted(wrong) : Py_BuildValue("(KK)", (unsigned long long)point, (unsigned long long)after);
}

static PyObject *slot_complete(PyObject *self, PyObject *arg)
{
    xp_slot *s = slot(self);
    uint64_t point;
    if (s == NULL || xp_as_point(arg, &point) < 0)
        return NULL;
    if (point > XP_LOAD(&s->w->pending) >> 21)
        return exhausted("a signal that nobody submitted");
    xp_complete(s, point);
    Py_RETURN_NONE;
}

static PyObject *slot_fail(PyObject *self, PyObject *arg)
{
    xp_slot *s = slot(self);
    int cause;
    if (s == NULL || xp_as_int(arg, &cause) < 0)
        return NULL;
    if (cause != XP_CAUSE_QUEUE && cause != XP_CAUSE_EXIT)
        return exhausted("cause must be 2 or 3");
    xp_fail(s, (uint32_t)cause);
    Py_RETURN_NONE;
}

static PyObject *slot_lose(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    xp_slot *s = slot(self);
    uint64_t point;
    int cause;
    if (s == NULL || xp_arity("lose", n, 2, 2) < 0 || xp_as_point(args[0], &point) < 0 || xp_as_int(args[1], &cause) < 0)
        return NULL;
    if (cause != XP_CAUSE_QUEUE && cause != XP_CAUSE_EXIT)
        return exhausted("cause must be 2 or 3");
    return PyBool_FromLong(xp_lose(s->w, s->d->bell, (uint32_t)cause, (uint64_t)getpid(), point));
}

/* Methods without arguments of a slot that can be used */
#define OF_SLOT(name, result)                                                                                          \
    static PyObject *slot_##name(PyObject *self, PyObject *Py_UNUSED(a))                                               \
    {                                                                                                                  \
        xp_slot *s = slot(self);                                                                                       \
        return s ? result : NULL;                                                                                      \
    }
OF_SLOT(owes, PyBool_FromLong(xp_owes(s->w, s->d->member)))
OF_SLOT(taken, XP_NONE_BY(xp_pickle_taken(s)))
OF_SLOT(blame, Py_BuildValue("(IK)", XP_RELAXED(&s->w->cause), (unsigned long long)XP_RELAXED(&s->w->blame)))

static PyObject *slot_owes_next(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_slot *s = slot(self);
    if (s == NULL)
        return NULL;
    xp_view v;
    return PyBool_FromLong(xp_lowest_owed(s->w, &v, s->d->member) == v.effective + 1);
}

static PyObject *slot_pickled(PyObject *self, PyObject *arg)
{
    xp_slot *s = slot(self);
    uint64_t until;
    if (s == NULL || xp_as_u64(arg, &until) < 0)
        return NULL;
    xp_pickle_made(s, until);
    Py_RETURN_NONE;
}

static PyObject *slot_attached(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_slot *s = slot(self);
    PyObject *list = s ? PyList_New(0) : NULL;
    for (uint32_t i = 0; list && i < XP_MASK_WORDS; i++)
        XP_EACH_BIT(XP_LOAD(&s->w->attached[i]), bits)
            xp_append(&list, PyLong_FromUnsignedLong(i * 64 + (unsigned long)__builtin_ctzll(bits)));
    return list;
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

static PyObject *wait_slow(PyObject *self, xp_slot *s, uint64_t point, uint64_t timeout, double spin)
{
    uint64_t start = xp_now(), end = timeout == XP_FOREVER ? XP_FOREVER : start + timeout;
    uint64_t full = spin > 0 ? (uint64_t)(spin < 1 ? spin * 1e9 : 1e9) : 0;
    int state = XP_PENDING;
    for (bool first = true; state == XP_PENDING; first = false) { /* even if no time is left to sleep, so that deaths are noticed */
        int rc = 0;
        Py_BEGIN_ALLOW_THREADS
        if (first)
            state = xp_spin(s, point, start, end, full);
        if (state == XP_PENDING)
            state = xp_sleep(s, point, start, end, &rc);
        Py_END_ALLOW_THREADS
        if (rc && rc != EAGAIN && rc != EINTR && rc != ETIMEDOUT)
            return xp_oserror_of(rc, "futex");
        if (state == XP_PENDING && PyErr_CheckSignals() < 0)
            return NULL;
        if (state == XP_PENDING && slot(self) == NULL)
            return NULL;
        if (state == XP_PENDING && xp_now() >= end)
            break;
    }
    return PyLong_FromLong(state);
}

static PyObject *slot_wait(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    xp_slot *s = slot(self);
    PyObject *timeout = NULL, *o_spin = NULL;
    uint64_t point;
    if (s == NULL || xp_arity("wait", n, 1, 3) < 0 || xp_as_point(args[0], &point) < 0)
        return NULL;
    if (n > 1)
        timeout = args[1];
    if (n > 2)
        o_spin = args[2];
    for (Py_ssize_t i = 0, k = names ? PyTuple_Size(names) : 0; i < k; i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        if (PyUnicode_CompareWithASCIIString(name, "timeout") == 0 && timeout == NULL) {
            timeout = args[n + i];
        } else if (PyUnicode_CompareWithASCIIString(name, "spin") == 0 && o_spin == NULL) {
            o_spin = args[n + i];
        } else {
            PyErr_Format(PyExc_TypeError, "wait() got an unexpected argument '%U'", name);
            return NULL;
        }
    }
    xp_note_act(s, XP_ACT_WAITED);
    xp_view v;
    xp_read(s->w, &v);
    int state = xp_state(&v, point);
    if (state != XP_PENDING)
        return PyLong_FromLong(state);
    double spin = 50e-6;
    uint64_t ns;
    if (xp_seconds(timeout, &ns) < 0)
        return NULL;
    if (o_spin) {
        spin = PyFloat_AsDouble(o_spin);
        if (spin == -1.0 && PyErr_Occurred())
            return NULL;
    }
    return wait_slow(self, s, point, ns, spin);
}

static PyObject *notify(xp_slot *s, uint64_t point, uint64_t token, int kind)
{
    int rc = XP_UNLOCKED(xp_node_add(s, point, token, kind, NULL));
    return rc > 1 ? xp_oserror_of(rc - 1, "starting the warden") : rc < 0 ? PyErr_NoMemory() : PyBool_FromLong(rc);
}

static PyObject *slot_notify(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    xp_slot *s = slot(self);
    uint64_t point, token;
    if (s == NULL || xp_arity("notify", n, 2, 2) < 0 || xp_as_point(args[0], &point) < 0 || xp_as_u64(args[1], &token) < 0)
        return NULL;
    return notify(s, point, token, XP_TOKEN);
}

static PyObject *slot_notify_recovery(PyObject *self, PyObject *arg)
{
    xp_slot *s = slot(self);
    uint64_t token;
    if (s == NULL || xp_as_u64(arg, &token) < 0)
        return NULL;
    return notify(s, XP_POINT_MAX, token, XP_RECOVERY);
}

int xp_guarded(int rc)
{
    if (rc == XP_TOO_FAR)
        exhausted("a device cannot wait for a signal so far ahead");
    else if (rc < 0)
        PyErr_NoMemory();
    else if (rc > 1)
        xp_oserror_of(rc - 1, "starting the warden");
    return rc == 0 || rc == 1 ? 0 : -1;
}

static PyObject *slot_guard(PyObject *self, PyObject *arg)
{
    xp_slot *s = slot(self);
    uint64_t point;
    if (s == NULL || xp_as_point(arg, &point) < 0)
        return NULL;
    int rc = XP_UNLOCKED(xp_guard(s, point, NULL, 0, false));
    if (xp_guarded(rc) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *slot_released(PyObject *self, PyObject *arg)
{
    xp_slot *s = ((xp_slot_object *)self)->s;
    uint64_t point;
    if (xp_as_point(arg, &point) < 0)
        return NULL;
    return PyBool_FromLong(xp_take_released(s, point));
}

static PyObject *slot_watch(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_slot *s = slot(self);
    if (s == NULL)
        return NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = xp_loop_start();
    if (rc == 0)
        xp_watch_relied(s);
    Py_END_ALLOW_THREADS
    if (rc)
        return xp_oserror_of(rc, "starting the warden");
    Py_RETURN_NONE;
}

static PyObject *slot_cancel(PyObject *self, PyObject *arg)
{
    uint64_t token;
    if (xp_as_u64(arg, &token) < 0)
        return NULL;
    xp_slot *s = ((xp_slot_object *)self)->s; /* also works on a detached slot: its tokens are due */
    XP_UNLOCKED_DO(xp_node_cancel(s, token));
    Py_RETURN_NONE;
}

static PyObject *slot_value(PyObject *self, void *Py_UNUSED(c))
{
    xp_slot *s = slot(self);
    if (s == NULL)
        return NULL;
    xp_view v;
    xp_read(s->w, &v);
    if (XP_UNLIKELY(v.top > v.effective) && look_at_owners(s))
        xp_read(s->w, &v);
    return PyLong_FromUnsignedLongLong(v.effective);
}

static PyObject *slot_pending(PyObject *self, void *Py_UNUSED(c))
{
    xp_slot *s = slot(self);
    return s ? PyLong_FromUnsignedLongLong(XP_ACQUIRE(&s->w->pending) >> 21) : NULL;
}

XP_TYPE(slot_spec, "Slot", xp_slot_object, XP_WITH_GC, {Py_tp_new, slot_new}, XP_LIFE_SLOTS(slot),
        XP_GETSET({"value", slot_value, NULL, NULL, NULL},
                  {"pending", slot_pending, NULL, NULL, NULL}),
        XP_METHODS({"state", slot_state, METH_O, NULL},
                   {"signal", slot_signal, METH_NOARGS, NULL},
                   {"submit", XP_FAST(slot_submit), METH_VARARGS | METH_KEYWORDS, NULL},
                   {"complete", slot_complete, METH_O, NULL},
                   {"fail", slot_fail, METH_O, NULL},
                   {"lose", XP_FAST(slot_lose), METH_FASTCALL, NULL},
                   {"owes", slot_owes, METH_NOARGS, NULL},
                   {"owes_next", slot_owes_next, METH_NOARGS, NULL},
                   {"wait", XP_FAST(slot_wait), METH_FASTCALL | METH_KEYWORDS, NULL},
                   {"pickled", slot_pickled, METH_O, NULL},
                   {"taken", slot_taken, METH_NOARGS, NULL},
                   {"blame", slot_blame, METH_NOARGS, NULL},
                   {"attached", slot_attached, METH_NOARGS, NULL},
                   {"notify", XP_FAST(slot_notify), METH_FASTCALL, NULL},
                   {"notify_recovery", slot_notify_recovery, METH_O, NULL},
                   {"cancel", slot_cancel, METH_O, NULL},
                   {"guard", slot_guard, METH_O, NULL},
                   {"released", slot_released, METH_O, NULL},
                   {"watch", slot_watch, METH_NOARGS, NULL},
                   {"detach", slot_detach, METH_NOARGS, NULL}),
        XP_FIELDS(XP_WEAKREFS(xp_slot_object),
                  {"domain", T_OBJECT_EX, offsetof(xp_slot_object, domain), READONLY, NULL},
                  {"index", T_UINT, offsetof(xp_slot_object, index), READONLY, NULL},
                  {"address", T_ULONGLONG, offsetof(xp_slot_object, words), READONLY, NULL},
                  {"engine", T_ULONGLONG, offsetof(xp_slot_object, s), READONLY, NULL}))

xp_slot *xp_slot_of(PyObject *object)
{
    if (PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) == (void *)slot_dealloc)
        return slot(object);
    return xp_refuse(PyExc_TypeError, "a Slot is wanted");
}

XP_PART(slot, NULL, XP_KEEP(slot_spec, slot))
