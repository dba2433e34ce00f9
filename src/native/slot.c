/* Event slots: docs/events-protocol.md, step by step. */
#include "events.h"

#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#define INSTANT (1ull << 20)
#define MEMBER(word) ((uint32_t)((word) & 0xfffff))

/* --- reading ------------------------------------------------------------------------------------------------------ */

static inline void read_slot(const xp_words *w, xp_view *v)
{
    uint64_t lost, pending, value;
    for (int i = 0;; i++) {
        lost = XP_ACQUIRE(&w->lost);
        pending = XP_ACQUIRE(&w->pending);
        value = XP_ACQUIRE(&w->value);
        if (XP_LIKELY(XP_ACQUIRE(&w->lost) == lost) || i == 1000) /* a peer that never stops writing: take this */
            break;
    }
    uint64_t count = lost & XP_OUTSTANDING_MAX;
    v->pending = pending;
    v->lost = lost;
    v->top = pending >> 21;
    v->hi = lost >> 20;
    v->lo = v->hi > count ? v->hi - count : 0;
    v->value = (pending & INSTANT) && value < v->top ? v->top : value; /* a host's signal is complete once it is seen */
    v->effective = v->value > v->hi ? v->value : v->hi;
}

static inline int state_of(const xp_view *v, uint64_t point)
{
    if (v->value > v->hi)
        return point <= v->value ? XP_DONE : XP_PENDING;
    return point <= v->lo ? XP_DONE : point <= v->hi ? XP_LOST : XP_PENDING;
}

void xp_read(const xp_words *w, xp_view *v) { read_slot(w, v); }
int xp_state(const xp_view *v, uint64_t point) { return state_of(v, point); }

/* The outstanding points in runs of one owner each, in order: false after the last. `*from` is where the run begins. A
 * fact names the last point of a run, the pending word the newest. */
static bool next_run(const xp_view *v, const uint64_t *facts, uint64_t *from, uint64_t *last, uint32_t *owner)
{
    *from = *from ? *last + 1 : v->effective + 1;
    if (*from > v->top)
        return false;
    *last = v->top;
    *owner = MEMBER(v->pending);
    for (uint32_t i = 0; i < XP_FACTS; i++) {
        uint64_t p = facts[i] >> 20;
        if (p >= *from && p < *last) {
            *last = p;
            *owner = MEMBER(facts[i]);
        }
    }
    return true;
}

/* State and facts that belong together: a fact is overwritten only after its point was outstanding. False: no end to
 * it. */
static bool read_facts(const xp_words *w, xp_view *v, uint64_t *facts)
{
    for (int i = 0; i < 1000; i++) {
        read_slot(w, v);
        for (uint32_t k = 0; k < XP_FACTS; k++)
            facts[k] = XP_ACQUIRE(&w->facts[k]);
        xp_view again;
        read_slot(w, &again);
        if (again.lost == v->lost && again.effective == v->effective)
            return true;
    }
    return false;
}

uint64_t xp_lowest_owed(const xp_words *w, xp_view *v, uint32_t m)
{
    uint64_t facts[XP_FACTS], from = 0, last = 0;
    uint32_t owner;
    if (!read_facts(w, v, facts))
        return UINT64_MAX;
    while (next_run(v, facts, &from, &last, &owner))
        if (owner == m)
            return from;
    return 0;
}

/* Does a dead member owe a point up to `point`? Then that is lost, though a living one's earlier point puts the loss
 * off. */
static bool owner_dead(xp_slot *s, uint64_t point)
{
    uint64_t facts[XP_FACTS], from = 0, last = 0;
    uint32_t owner;
    xp_view v;
    bool dead = false;
    pthread_mutex_lock(&s->d->mu);
    if (read_facts(s->w, &v, facts))
        while (!dead && next_run(&v, facts, &from, &last, &owner) && from <= point)
            if (owner < XP_MEMBERS && !xp_alive(s->d, owner)) { /* it may have completed in between, and then died */
                xp_view now;
                uint64_t owed = xp_lowest_owed(s->w, &now, owner);
                dead = owed && owed <= point;
            }
    if (dead)
        xp_reap(s->d, owner, false); /* so that the loss is recorded when the caller is told of it, if it can be now */
    pthread_mutex_unlock(&s->d->mu);
    return dead;
}

int xp_full_state(xp_slot *s, uint64_t point, bool deaths)
{
    xp_view v;
    read_slot(s->w, &v);
    int state = state_of(&v, point);
    if (state != XP_PENDING)
        return state;
    if (point <= v.top)
        return deaths && owner_dead(s, point) ? XP_LOST : XP_PENDING;
    if (XP_LOAD(&s->w->orphan) != v.top + 1)
        return XP_PENDING;
    if (xp_others_alive(s->d, s->w->attached))
        return XP_PENDING;
    /* Somebody may have come, signalled and gone in between. */
    return XP_LOAD(&s->w->pending) == v.pending ? XP_LOST : XP_PENDING;
}

bool xp_owes(const xp_words *w, const xp_view *v, uint32_t m)
{
    if (v->top <= v->effective)
        return false;
    if (MEMBER(v->pending) == m)
        return true; /* outstanding, so not instant */
    for (uint32_t i = 0; i < XP_FACTS; i++) {
        uint64_t fact = XP_ACQUIRE(&w->facts[i]);
        if (MEMBER(fact) == m && fact >> 20 > v->effective)
            return true;
    }
    return false;
}

void xp_owing(const xp_words *w, uint64_t *mask)
{
    xp_view v;
    read_slot(w, &v);
    if (v.top <= v.effective)
        return;
    uint32_t m = MEMBER(v.pending);
    if (m < XP_MEMBERS)
        mask[m / 64] |= 1ull << m % 64;
    for (uint32_t i = 0; i < XP_FACTS; i++) {
        uint64_t fact = XP_ACQUIRE(&w->facts[i]);
        m = MEMBER(fact);
        if (fact >> 20 > v.effective && m < XP_MEMBERS)
            mask[m / 64] |= 1ull << m % 64;
    }
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static inline void raise_value(xp_words *w, uint64_t to)
{
    uint64_t old = XP_RELAXED(&w->value);
    for (int i = 0; old < to && i < XP_TRIES; i++)
        if (XP_CAS(&w->value, &old, to))
            return;
}

/* Point `to` is complete. After a loss on a device's queue its stores may come late, and lower the value: then what is
 * complete stands in `lost`, too, as a loss of no points. */
static inline void complete(xp_words *w, uint64_t to)
{
    if (XP_UNLIKELY(XP_LOAD(&w->device) & XP_LATE)) {
        uint64_t old = XP_LOAD(&w->lost);
        for (int i = 0; old >> 20 < to && i < XP_TRIES; i++)
            if (XP_CAS(&w->lost, &old, to << 20))
                break;
    }
    raise_value(w, to);
}

static void ring(int bell)
{
    uint64_t one = 1, all;
    /* Nobody reads a bell in normal life; one that somebody filled up is emptied, and a full one never blocks us. */
    struct pollfd p = {.fd = bell, .events = POLLOUT};
    if (poll(&p, 1, 0) == 1 && (p.revents & POLLOUT)) {
        if (write(bell, &one, sizeof one) == sizeof one)
            return;
    } else if (poll(&(struct pollfd){.fd = bell, .events = POLLIN}, 1, 0) == 1 && read(bell, &all, sizeof all) > 0) {
        if (write(bell, &one, sizeof one) == sizeof one)
            return;
    }
}

static inline void wake(xp_domain *d, xp_words *w)
{
    if (XP_UNLIKELY(XP_LOAD(&w->waiters)) && XP_EXCHANGE(&w->waiters, 0)) {
        __atomic_fetch_add(&w->seq, 1, __ATOMIC_SEQ_CST);
        xp_futex_wake(&w->seq, INT32_MAX);
    }
    if (XP_UNLIKELY(XP_LOAD(&w->async_waiters)) && XP_EXCHANGE(&w->async_waiters, 0))
        ring(d->bell);
}

void xp_wake_all(xp_words *w)
{
    XP_STORE(&w->waiters, 0);
    __atomic_fetch_add(&w->seq, 1, __ATOMIC_SEQ_CST);
    xp_futex_wake(&w->seq, INT32_MAX);
}

void xp_ring(xp_domain *d) { ring(d->bell); }

void xp_finish(xp_words *w)
{
    xp_view v;
    read_slot(w, &v);
    /* Those who guard waits of devices let these go for a loss themselves. */
    if (v.value > v.hi || v.lo == v.hi || XP_LOAD(&w->guards) == 0)
        raise_value(w, v.effective);
}

void xp_release(xp_words *w, uint64_t point) { raise_value(w, point); }

/* From the lowest outstanding point on; with `from` not 0 only if it is that one. */
static bool lose(xp_domain *d, xp_words *w, uint32_t cause, uint64_t pid, uint64_t from)
{
    xp_view v;
    for (int i = 0; i < XP_TRIES; i++) {
        read_slot(w, &v);
        if (v.top <= v.effective)
            break;
        if (from && from != v.effective + 1)
            return from <= v.effective;
        uint64_t lo = v.value > v.hi ? v.value : v.lo, count = v.top - lo;
        if (count > XP_OUTSTANDING_MAX)
            count = XP_OUTSTANDING_MAX;
        uint64_t old = v.lost;
        if (!XP_CAS(&w->lost, &old, v.top << 20 | count))
            continue;
        XP_STORE_RELAXED(&w->cause, cause);
        XP_STORE_RELAXED(&w->blame, pid);
        if (XP_LOAD(&w->guards) == 0)
            raise_value(w, v.top); /* lets devices go */
        wake(d, w);
        return true;
    }
    xp_finish(w);
    return true;
}

void xp_lose(xp_domain *d, xp_words *w, uint32_t cause, uint64_t pid) { lose(d, w, cause, pid, 0); }

bool xp_lose_late(xp_slot *s, uint64_t from, uint32_t cause, uint64_t pid)
{
    __atomic_fetch_or(&s->w->device, XP_LATE, __ATOMIC_SEQ_CST); /* before anybody can submit behind the loss */
    return lose(s->d, s->w, cause, pid, from);
}

bool xp_lose_from(xp_slot *s, uint64_t from, uint32_t cause, uint64_t pid) { return lose(s->d, s->w, cause, pid, from); }

void xp_complete(xp_slot *s, uint64_t point)
{
    xp_view v;
    read_slot(s->w, &v);
    if (state_of(&v, point) != XP_LOST) /* else it would let devices go before their processes do */
        complete(s->w, point);
    wake(s->d, s->w);
}

bool xp_abandon(xp_slot *s, uint64_t point)
{
    xp_words *w = s->w;
    for (int i = 0; i < XP_TRIES; i++) {
        xp_view v;
        read_slot(w, &v);
        int state = state_of(&v, point);
        if (state != XP_PENDING)
            return state == XP_LOST;
        /* Submitted since, by somebody new: its own business. Outstanding: our own queue may still complete it. */
        if (v.top >= point || v.top > v.effective || XP_LOAD(&w->orphan) != v.top + 1)
            return false;
        if (v.pending & INSTANT)
            complete(w, v.top); /* the new word will not say that it is complete */
        uint64_t old = v.pending;
        if (!XP_CAS(&w->pending, &old, point << 21 | s->d->member))
            continue;
        uint64_t mark = v.top + 1; /* later points stay orphaned */
        XP_CAS(&w->orphan, &mark, point + 1);
        xp_lose(s->d, w, XP_CAUSE_DEATH, XP_RELAXED(&w->blame));
        return true;
    }
    return false;
}

/* --- the type ----------------------------------------------------------------------------------------------------- */

void xp_slot_ref(xp_slot *s) { __atomic_fetch_add(&s->refs, 1, __ATOMIC_RELAXED); }

void xp_slot_unref(xp_slot *s)
{
    if (__atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL))
        return;
    free(s->released);
    xp_domain_unref(s->d);
    free(s);
}

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs, *domain;
    xp_slot *s;
} xp_slot_object;

static inline xp_slot *slot(PyObject *self)
{
    xp_slot *s = ((xp_slot_object *)self)->s;
    if (XP_LIKELY(!XP_RELAXED(&s->gone)) && xp_usable(s->d))
        return s;
    bool detached = XP_RELAXED(&s->gone) || XP_RELAXED(&s->d->left);
    PyErr_SetString(PyExc_ValueError, detached ? "the slot is detached" : "the slot is from before a fork");
    return NULL;
}

static PyObject *slot_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"domain", "index", NULL};
    PyObject *o_domain, *o_index;
    uint32_t index;
    xp_domain *d;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO", names, &o_domain, &o_index) ||
        (d = xp_domain_of(o_domain)) == NULL || xp_as_u32(o_index, &index) < 0)
        return NULL;
    if (index >= XP_SLOTS || index >= XP_LOAD(&((xp_commons *)d->base)->slots_used)) {
        PyErr_SetString(PyExc_ValueError, "no such slot");
        return NULL;
    }
    xp_slot_object *self = (xp_slot_object *)PyType_GenericAlloc(type, 0);
    xp_slot *s = self ? calloc(1, sizeof *s) : NULL;
    if (s == NULL) {
        Py_XDECREF((PyObject *)self);
        return self ? PyErr_NoMemory() : NULL;
    }
    s->refs = 1;
    s->index = index;
    s->d = d;
    s->w = xp_words_at(d, index);
    pthread_mutex_init(&s->mu, NULL);
    xp_domain_ref(d);
    self->domain = Py_NewRef(o_domain);
    self->s = s;
    if (!xp_count_in(d, &d->attaches, XP_SLOTS, index, s->w->attached)) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    wake(d, s->w); /* sleepers must get to know of the new member */
    return (PyObject *)self;
}

static void detach(xp_slot *s)
{
    if (XP_EXCHANGE(&s->gone, 1) || !xp_usable(s->d))
        return;
    pthread_mutex_lock(&xp_mu);
    xp_nodes_drop(s->d, s);
    pthread_mutex_unlock(&xp_mu);
    xp_count_out(s->d, s->d->attaches, s->index, s->w->attached);
    wake(s->d, s->w);
}

static void slot_dealloc(PyObject *self)
{
    xp_slot_object *o = (xp_slot_object *)self;
    xp_clear_weakrefs(self, o->weakrefs);
    if (o->s) {
        Py_BEGIN_ALLOW_THREADS
        detach(o->s);
        xp_slot_unref(o->s);
        Py_END_ALLOW_THREADS
    }
    Py_XDECREF(o->domain);
    xp_free(self);
}

static PyObject *slot_detach(PyObject *self, PyObject *Py_UNUSED(a))
{
    Py_BEGIN_ALLOW_THREADS
    detach(((xp_slot_object *)self)->s);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

int xp_as_point(PyObject *arg, uint64_t *point)
{
    if (xp_as_u64(arg, point) < 0)
        return -1;
    if (*point <= XP_POINT_MAX)
        return 0;
    PyErr_SetString(PyExc_ValueError, "a point has 43 bits");
    return -1;
}

static PyObject *slot_state(PyObject *self, PyObject *arg)
{
    xp_slot *s = slot(self);
    uint64_t point;
    if (s == NULL || xp_as_point(arg, &point) < 0)
        return NULL;
    return PyLong_FromLong(xp_full_state(s, point, false));
}

static PyObject *exhausted(const char *what)
{
    PyErr_SetString(PyExc_ValueError, what);
    return NULL;
}

static PyObject *slot_signal(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_slot *s = slot(self);
    if (s == NULL)
        return NULL;
    for (int i = 0; i < XP_TRIES; i++) {
        xp_view v;
        read_slot(s->w, &v);
        if (v.top > v.effective)
            return exhausted("another signaller's point is pending");
        if (v.top >= XP_POINT_MAX)
            return exhausted("no points left");
        uint64_t old = v.pending, point = v.top + 1;
        if (!XP_CAS(&s->w->pending, &old, point << 21 | INSTANT | s->d->member))
            continue;
        raise_value(s->w, point);
        wake(s->d, s->w);
        return PyLong_FromUnsignedLongLong(point);
    }
    return exhausted("a peer does not let this event be signalled");
}

/* Record that `pending`'s member submitted its point, before another member's point hides it. False: no room. */
static bool record(xp_words *w, const xp_view *v)
{
    uint64_t fact = v->top << 20 | MEMBER(v->pending);
    for (uint32_t i = 0; i < XP_FACTS; i++)
        if (XP_LOAD(&w->facts[i]) == fact)
            return true;
    for (uint32_t i = 0; i < XP_FACTS; i++) {
        uint64_t old = XP_LOAD(&w->facts[i]);
        if ((old == 0 || old >> 20 <= v->effective) && XP_CAS(&w->facts[i], &old, fact))
            return true;
    }
    return false;
}

/* With s->mu. */
static const char *submit(xp_slot *s, uint64_t queue, uint64_t *point, uint64_t *after, bool *host)
{
    xp_words *w = s->w;
    uint32_t me = s->d->member;
    for (int i = 0; i < XP_TRIES; i++) {
        xp_view v;
        read_slot(w, &v);
        if (v.pending & INSTANT)
            complete(w, v.top); /* the new word will not say that it is complete */
        bool outstanding = v.top > v.effective, mine = MEMBER(v.pending) == me;
        if (outstanding && !mine && !record(w, &v))
            return "too many signallers";
        if ((outstanding && v.top - v.effective >= XP_OUTSTANDING_MAX) || v.top >= XP_POINT_MAX)
            return "too many points are outstanding";
        uint64_t old = v.pending;
        if (!XP_CAS(&w->pending, &old, (v.top + 1) << 21 | me))
            continue;
        *point = v.top + 1;
        *after = outstanding && !(mine && s->last_point == v.top && s->last_queue == queue) ? v.top : 0;
        s->last_point = *point;
        s->last_queue = queue;
        /* A device's store would come all the same if the point is lost first, and lower the value under a later one. */
        *host = *after || s->last_host > v.effective || (XP_LOAD(&w->device) & XP_LATE);
        if (*host)
            s->last_host = *point;
        return NULL;
    }
    return "a peer does not let this event be signalled";
}

const char *xp_submit(xp_slot *s, uint64_t queue, bool device, uint64_t *point, uint64_t *after, bool *host)
{
    if (device && XP_LOAD(&s->w->device) == 0) {
        __atomic_fetch_or(&s->w->device, XP_DEVICE, __ATOMIC_SEQ_CST);
        wake(s->d, s->w); /* sleepers must start to poll */
    }
    pthread_mutex_lock(&s->mu); /* never held while anything blocks */
    const char *wrong = submit(s, queue, point, after, host);
    pthread_mutex_unlock(&s->mu);
    return wrong;
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
        return exhausted("a point that nobody submitted");
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
    xp_view v;
    read_slot(s->w, &v);
    if (xp_owes(s->w, &v, s->d->member)) {
        if (XP_LOAD(&s->w->device)) /* a device that still works may store some of them */
            xp_lose_late(s, 0, (uint32_t)cause, (uint64_t)getpid());
        else
            xp_lose(s->d, s->w, (uint32_t)cause, (uint64_t)getpid());
    }
    Py_RETURN_NONE;
}

static PyObject *slot_owes(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_slot *s = slot(self);
    if (s == NULL)
        return NULL;
    xp_view v;
    read_slot(s->w, &v);
    return PyBool_FromLong(xp_owes(s->w, &v, s->d->member));
}

static PyObject *slot_blame(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_slot *s = slot(self);
    if (s == NULL)
        return NULL;
    return Py_BuildValue("(IK)", XP_RELAXED(&s->w->cause), (unsigned long long)XP_RELAXED(&s->w->blame));
}

static PyObject *slot_attached(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_slot *s = slot(self);
    PyObject *list = s ? PyList_New(0) : NULL;
    for (uint32_t i = 0; list && i < XP_MASK_WORDS; i++)
        XP_EACH_BIT(XP_LOAD(&s->w->attached[i]), bits) {
            PyObject *v = PyLong_FromUnsignedLong(i * 64 + (unsigned long)__builtin_ctzll(bits));
            int rc = v ? PyList_Append(list, v) : -1;
            Py_XDECREF(v);
            if (rc < 0) {
                Py_CLEAR(list);
                break;
            }
        }
    return list;
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

/* A signal that comes just before the futex call does not interrupt it, one that another thread takes never does: so
 * look now and then. */
#define LONGEST_SLEEP_NS 500000000u
#define RETRY_NS 10000000u
#define POLL_NS 200000000u

static int spin_for(xp_slot *s, uint64_t point, uint64_t until)
{
    do {
        for (int i = 0; i < 16; i++) {
            xp_view v;
            read_slot(s->w, &v);
            int state = state_of(&v, point);
            if (state != XP_PENDING)
                return state;
            xp_pause();
        }
    } while (xp_now() < until && !XP_RELAXED(&s->gone));
    return XP_PENDING;
}

/* One sleep at most: the state if it is no longer pending; else *rc is futex_wait's result. No GIL. */
static int sleep_once(xp_slot *s, uint64_t point, uint64_t start, uint64_t end, int *rc)
{
    xp_words *w = s->w;
    *rc = 0;
    uint32_t seq = XP_LOAD(&w->seq); /* first: a wake that takes the flag back must not go unseen */
    XP_STORE(&w->waiters, 1);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* the reads of the state that follow are acquire only */
    xp_warden_start(); /* where no thread can be had, members count as polled */
    int watch = xp_watch_attached(s);
    int state = xp_full_state(s, point, true);
    uint64_t now = xp_now();
    if (state != XP_PENDING || now >= end || XP_LOAD(&s->gone) || !xp_usable(s->d))
        return state;
    uint64_t most = watch == XP_RETRY ? RETRY_NS : watch == XP_POLLED ? POLL_NS : LONGEST_SLEEP_NS;
    if (XP_LOAD(&w->device)) { /* nobody wakes us: an eighth of what we waited so far */
        uint64_t nap = (now - start) / 8;
        nap = nap < 20000 ? 20000 : nap > 1000000 ? 1000000 : nap;
        most = nap < most ? nap : most;
    }
    *rc = xp_futex_wait(&w->seq, seq, end - now < most ? end - now : most);
    xp_view v;
    read_slot(w, &v);
    return state_of(&v, point);
}

static PyObject *wait_slow(PyObject *self, xp_slot *s, uint64_t point, uint64_t timeout, double spin)
{
    uint64_t start = xp_now(), end = timeout == XP_FOREVER ? XP_FOREVER : start + timeout;
    int state = XP_PENDING;
    uint64_t full = spin > 0 ? (uint64_t)(spin < 1 ? spin * 1e9 : 1e9) : 0;
    /* After misses in a row a spin gets short: the other side is slow, or wants the CPU that the spin keeps. Now and
     * then a whole one finds out whether that has changed. */
    unsigned misses = XP_RELAXED(&s->misses);
    if (full && xp_may_spin()) {
        uint64_t until = start + (misses % 64 < 4 ? full >> misses % 64 * 2 : 0);
        Py_BEGIN_ALLOW_THREADS
        state = spin_for(s, point, until < end ? until : end);
        Py_END_ALLOW_THREADS
        XP_STORE_RELAXED(&s->misses, state == XP_PENDING ? misses + 1 : 0);
    }
    while (state == XP_PENDING) { /* also where there is no time to sleep: deaths are seen */
        int rc;
        Py_BEGIN_ALLOW_THREADS
        state = sleep_once(s, point, start, end, &rc);
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
    xp_view v;
    read_slot(s->w, &v);
    int state = state_of(&v, point);
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

static PyObject *slot_notify(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    xp_slot *s = slot(self);
    uint64_t point, token;
    if (s == NULL || xp_arity("notify", n, 2, 2) < 0 || xp_as_point(args[0], &point) < 0 || xp_as_u64(args[1], &token) < 0)
        return NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = xp_node_add(s, point, token, XP_TOKEN, NULL);
    Py_END_ALLOW_THREADS
    return rc > 1 ? xp_oserror_of(rc - 1, "starting the warden") : rc < 0 ? PyErr_NoMemory() : PyBool_FromLong(rc);
}

int xp_guard(xp_slot *s, uint64_t point, xp_queue *queue, uint64_t at)
{
    xp_view v;
    read_slot(s->w, &v);
    if (point > v.effective && point - v.effective > XP_OUTSTANDING_MAX)
        return XP_TOO_FAR;
    return xp_node_add(s, point, at, XP_GUARD, queue);
}

int xp_guarded(int rc)
{
    if (rc == XP_TOO_FAR)
        exhausted("a device cannot wait for a point so far ahead");
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
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = xp_guard(s, point, NULL, 0);
    Py_END_ALLOW_THREADS
    if (xp_guarded(rc) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* A later signal may heal the loss before anybody asks: what was released by it is remembered. */
void xp_note_released(xp_slot *s, uint64_t point)
{
    if (s->released_count == s->released_room) {
        uint32_t room = s->released_room ? 2 * s->released_room : 4;
        uint64_t *grown = realloc(s->released, room * sizeof *grown);
        if (grown == NULL)
            return; /* the state still tells, until a later signal */
        s->released = grown;
        s->released_room = room;
    }
    s->released[s->released_count++] = point;
}

static PyObject *slot_released(PyObject *self, PyObject *arg)
{
    xp_slot *s = ((xp_slot_object *)self)->s;
    uint64_t point;
    if (xp_as_point(arg, &point) < 0)
        return NULL;
    bool found = false;
    pthread_mutex_lock(&xp_mu);
    for (uint32_t i = 0; i < s->released_count && !found; i++)
        if (s->released[i] == point) {
            s->released[i] = s->released[--s->released_count];
            found = true;
        }
    pthread_mutex_unlock(&xp_mu);
    return PyBool_FromLong(found);
}

static PyObject *slot_watch(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_slot *s = slot(self);
    if (s == NULL)
        return NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = xp_warden_start();
    if (rc == 0)
        xp_watch_attached(s);
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
    xp_slot *s = ((xp_slot_object *)self)->s; /* also of a detached slot: its tokens are due */
    Py_BEGIN_ALLOW_THREADS
    xp_node_cancel(s, token);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *slot_domain(PyObject *self, void *Py_UNUSED(c)) { return Py_NewRef(((xp_slot_object *)self)->domain); }

static PyObject *slot_index(PyObject *self, void *Py_UNUSED(c))
{
    return PyLong_FromUnsignedLong(((xp_slot_object *)self)->s->index);
}

static PyObject *slot_address(PyObject *self, void *Py_UNUSED(c))
{
    return PyLong_FromUnsignedLongLong((uintptr_t)((xp_slot_object *)self)->s->w);
}

static PyObject *slot_value(PyObject *self, void *Py_UNUSED(c))
{
    xp_slot *s = slot(self);
    if (s == NULL)
        return NULL;
    xp_view v;
    read_slot(s->w, &v);
    return PyLong_FromUnsignedLongLong(v.effective);
}

static PyObject *slot_pending(PyObject *self, void *Py_UNUSED(c))
{
    xp_slot *s = slot(self);
    return s ? PyLong_FromUnsignedLongLong(XP_ACQUIRE(&s->w->pending) >> 21) : NULL;
}

static PyGetSetDef slot_getset[] = {
    {"domain", slot_domain, NULL, NULL, NULL},
    {"index", slot_index, NULL, NULL, NULL},
    {"address", slot_address, NULL, NULL, NULL},
    {"value", slot_value, NULL, NULL, NULL},
    {"pending", slot_pending, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef slot_methods[] = {
    {"state", slot_state, METH_O, NULL},
    {"signal", slot_signal, METH_NOARGS, NULL},
    {"submit", XP_FAST(slot_submit), METH_VARARGS | METH_KEYWORDS, NULL},
    {"complete", slot_complete, METH_O, NULL},
    {"fail", slot_fail, METH_O, NULL},
    {"owes", slot_owes, METH_NOARGS, NULL},
    {"wait", XP_FAST(slot_wait), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"blame", slot_blame, METH_NOARGS, NULL},
    {"attached", slot_attached, METH_NOARGS, NULL},
    {"notify", XP_FAST(slot_notify), METH_FASTCALL, NULL},
    {"cancel", slot_cancel, METH_O, NULL},
    {"guard", slot_guard, METH_O, NULL},
    {"released", slot_released, METH_O, NULL},
    {"watch", slot_watch, METH_NOARGS, NULL},
    {"detach", slot_detach, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef slot_members[] = {XP_WEAKREFS(xp_slot_object), {NULL, 0, 0, 0, NULL}};

static PyType_Slot slot_slots[] = {
    {Py_tp_new, slot_new},         {Py_tp_dealloc, slot_dealloc}, {Py_tp_getset, slot_getset},
    {Py_tp_methods, slot_methods}, {Py_tp_members, slot_members}, {0, NULL},
};
static PyType_Spec slot_spec = {"xpushare._native.Slot", sizeof(xp_slot_object), 0, Py_TPFLAGS_DEFAULT, slot_slots};

xp_slot *xp_slot_of(PyObject *object)
{
    if (PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) == (void *)slot_dealloc)
        return slot(object);
    PyErr_SetString(PyExc_TypeError, "a Slot is wanted");
    return NULL;
}

int xp_init_slot(PyObject *module)
{
    if (PyModule_AddIntConstant(module, "PENDING", XP_PENDING) < 0 ||
        PyModule_AddIntConstant(module, "DONE", XP_DONE) < 0 || PyModule_AddIntConstant(module, "LOST", XP_LOST) < 0)
        return -1;
    return xp_add_type(module, &slot_spec);
}
