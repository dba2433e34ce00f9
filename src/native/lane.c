/* A lane: another vendor's in-order queue as far as event slots go. A driver's stream memory operations, called by
 * address, write a slot's value word and wait for it; so submitting a point and queueing its store is one call.
 *
 * What a lane signals behind a wait that is lost shall be lost, too. So while it has guarded waits it keeps a list of what
 * it signals, for the warden to lose before the device is let go. */
#include "python/objects.h"

#include <stdlib.h>
#include <unistd.h>

typedef int (*word_op)(uint64_t stream, uint64_t address, uint64_t value, unsigned flags);
typedef int (*capture_op)(uint64_t stream, int *status);
typedef int (*host_op)(uint64_t stream, void (*function)(void *), void *data);

/* A point that a host function completes: the list's and the function's. */
typedef struct {
    unsigned refs;
    uint32_t lost; /* a wait before it was, and why; by whom: */
    uint64_t pid;
    xp_slot *s;
    uint64_t point;
} job;

typedef struct {
    xp_slot *s;
    uint64_t point, at;
    job *job; /* or NULL: the device stores it */
} record;

struct xp_lane {
    unsigned refs, waits;
    pthread_mutex_t mu; /* what follows; never held while the driver is called: its host functions must go on */
    uint64_t at;        /* counts waits and signals */
    record *records;    /* a ring */
    uint32_t first, count, room;
};

typedef struct {
    PyObject_HEAD
    uint64_t number, stream;
    word_op write, wait;
    host_op host;
    capture_op capturing; /* or NULL: nobody else has the stream */
    unsigned wait_flags;
    xp_lane *lane;
} lane_object;

#define CAPTURED (-1)

/* --- what was signalled ------------------------------------------------------------------------------------------- */

static void job_unref(job *j)
{
    if (j == NULL || __atomic_sub_fetch(&j->refs, 1, __ATOMIC_ACQ_REL))
        return;
    xp_slot_unref(j->s);
    free(j);
}

static job *job_new(xp_slot *s, uint64_t point)
{
    job *j = malloc(sizeof *j);
    if (j) {
        *j = (job){.refs = 1, .s = s, .point = point};
        xp_slot_ref(s);
    }
    return j;
}

/* The host function. The stream has come here, so whatever is before the point is complete or lost. A driver whose context
 * breaks never runs it: then the job stays. */
static void run(void *data)
{
    job *j = data;
    xp_slot *s = j->s;
    xp_view v;
    if (xp_usable(s->d)) { /* else what was owed was lost when this process left */
        xp_read(s->w, &v);
        if (xp_state(&v, j->point) != XP_PENDING || j->point > v.top) {
            /* lost, and a release is final */
        } else if (XP_LOAD(&j->lost)) {
            xp_lose(s->d, s->w, j->lost, j->pid);
        } else {
            xp_complete(s, j->point);
        }
    }
    job_unref(j);
}

static record *record_at(xp_lane *lane, uint32_t i) { return &lane->records[(lane->first + i) % lane->room]; }

static int state_of(const record *r)
{
    xp_view v;
    xp_read(r->s->w, &v);
    return XP_LOAD(&r->s->gone) || !xp_usable(r->s->d) ? XP_DONE : xp_state(&v, r->point);
}

/* Its store is to come though it is lost, and would let devices go for which others have still something to lose. */
static bool held(const record *r, int state)
{
    return state == XP_LOST && r->job == NULL && XP_LOAD(&r->s->w->value) < r->point;
}

static void drop_first(xp_lane *lane)
{
    record *r = record_at(lane, 0);
    job_unref(r->job);
    xp_slot_unref(r->s);
    lane->first = (lane->first + 1) % lane->room;
    lane->count--;
}

/* Room for one more record. With lane->mu. */
static bool make_room(xp_lane *lane)
{
    while (lane->count) {
        int state = state_of(record_at(lane, 0));
        if (state == XP_PENDING || held(record_at(lane, 0), state))
            break;
        drop_first(lane);
    }
    if (lane->count < lane->room)
        return true;
    uint32_t room = lane->room ? 2 * lane->room : 8;
    record *grown = malloc(room * sizeof *grown);
    if (grown == NULL)
        return false;
    for (uint32_t i = 0; i < lane->count; i++)
        grown[i] = *record_at(lane, i);
    free(lane->records);
    lane->records = grown;
    lane->room = room;
    lane->first = 0;
    return true;
}

void xp_lane_ref(xp_lane *lane) { __atomic_fetch_add(&lane->refs, 1, __ATOMIC_RELAXED); }

void xp_lane_unref(xp_lane *lane)
{
    if (__atomic_sub_fetch(&lane->refs, 1, __ATOMIC_ACQ_REL))
        return;
    while (lane->count)
        drop_first(lane);
    free(lane->records);
    free(lane);
}

void xp_lane_waits(xp_lane *lane, int more) { __atomic_fetch_add(&lane->waits, (unsigned)more, __ATOMIC_SEQ_CST); }

bool xp_lane_lose(xp_lane *lane, uint64_t at, uint32_t cause, uint64_t pid)
{
    bool all = true;
    pthread_mutex_lock(&lane->mu);
    for (uint32_t i = 0; i < lane->count; i++) {
        record *r = record_at(lane, i);
        if (r->at < at)
            continue;
        int state = state_of(r);
        if (state != XP_PENDING) {
            all = all && !held(r, state);
        } else if (r->job) {
            r->job->pid = pid;
            XP_STORE(&r->job->lost, cause);
        } else if (xp_lose_late(r->s, r->point, cause, pid)) {
            xp_mend(r->s, lane);
            all = all && !held(r, XP_LOST);
        } else {
            all = false;
        }
    }
    pthread_mutex_unlock(&lane->mu);
    return all;
}

/* --- the type ----------------------------------------------------------------------------------------------------- */

static PyObject *lane_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"number", "stream", "write", "wait", "wait_flags", "host", "capturing", NULL};
    unsigned long long number, stream, write, wait, host, capturing = 0;
    unsigned flags;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KKKKIK|K", names, &number, &stream, &write, &wait, &flags, &host,
                                     &capturing))
        return NULL;
    if (number == 0 || write == 0 || wait == 0 || host == 0) {
        PyErr_SetString(PyExc_ValueError, "neither a lane's number nor its functions are 0");
        return NULL;
    }
    lane_object *self = (lane_object *)PyType_GenericAlloc(type, 0);
    xp_lane *lane = self ? calloc(1, sizeof *lane) : NULL;
    if (lane == NULL) {
        Py_XDECREF((PyObject *)self);
        return self ? PyErr_NoMemory() : NULL;
    }
    lane->refs = 1;
    pthread_mutex_init(&lane->mu, NULL);
    self->lane = lane;
    self->number = number;
    self->stream = stream;
    self->write = (word_op)(uintptr_t)write;
    self->wait = (word_op)(uintptr_t)wait;
    self->host = (host_op)(uintptr_t)host;
    self->capturing = (capture_op)(uintptr_t)capturing;
    self->wait_flags = flags;
    return (PyObject *)self;
}

/* 0, CAPTURED, or the driver's error. No GIL. */
static int check(const lane_object *self)
{
    int status = 0, code = self->capturing ? self->capturing(self->stream, &status) : 0;
    return code ? code : status ? CAPTURED : 0;
}

static PyObject *lane_check(PyObject *self, PyObject *Py_UNUSED(a))
{
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = check((lane_object *)self);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(code);
}

static PyObject *lane_wait(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    lane_object *self = (lane_object *)object;
    uint64_t address, point;
    xp_slot *s;
    if (xp_arity("wait", n, 3, 3) < 0 || (s = xp_slot_of(args[0])) == NULL || xp_as_u64(args[1], &address) < 0 ||
        xp_as_point(args[2], &point) < 0)
        return NULL;
    int rc, code = 0;
    Py_BEGIN_ALLOW_THREADS /* a full stream blocks whoever queues more */
    pthread_mutex_lock(&self->lane->mu);
    uint64_t at = ++self->lane->at;
    pthread_mutex_unlock(&self->lane->mu);
    rc = xp_guard(s, point, self->lane, at);
    if (rc == 0)
        code = self->wait(self->stream, address, point, self->wait_flags);
    Py_END_ALLOW_THREADS
    return xp_guarded(rc) < 0 ? NULL : PyLong_FromLong(code);
}

/* Queue the host function of a point; takes the reference over. */
static int launch(const lane_object *self, job *j)
{
    int code = self->host(self->stream, run, j);
    if (code)
        job_unref(j);
    return code;
}

static PyObject *lane_signal(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    lane_object *self = (lane_object *)object;
    xp_lane *lane = self->lane;
    uint64_t address, point = 0, after = 0;
    xp_slot *s;
    if (xp_arity("signal", n, 2, 2) < 0 || (s = xp_slot_of(args[0])) == NULL || xp_as_u64(args[1], &address) < 0)
        return NULL;
    int code;
    bool host = false, memory = true;
    job *j = NULL;
    const char *wrong = NULL;
    Py_BEGIN_ALLOW_THREADS
    code = check(self);
    if (code == 0) {
        pthread_mutex_lock(&lane->mu); /* a loss finds every point of ours that is submitted in the list */
        bool listed = XP_LOAD(&lane->waits) != 0;
        memory = !listed || make_room(lane);
        if (memory)
            wrong = xp_submit(s, self->number, true, &point, &after, &host);
        if (point && host && (j = job_new(s, point)) == NULL) {
            xp_lose_late(s, 0, XP_CAUSE_QUEUE, (uint64_t)getpid());
            memory = false;
        }
        if (point && listed && memory) {
            if (j)
                j->refs++;
            xp_slot_ref(s);
            *record_at(lane, lane->count++) = (record){s, point, ++lane->at, j};
        }
        pthread_mutex_unlock(&lane->mu);
    }
    if (point && memory && after == 0)
        code = host ? launch(self, j) : self->write(self->stream, address, point, 0);
    else
        job_unref(j); /* `finish` looks for it in the list */
    Py_END_ALLOW_THREADS
    if (!memory)
        return PyErr_NoMemory();
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, wrong);
        return NULL;
    }
    return Py_BuildValue("(KKi)", (unsigned long long)point, (unsigned long long)after, code);
}

static PyObject *lane_finish(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    lane_object *self = (lane_object *)object;
    xp_lane *lane = self->lane;
    uint64_t point;
    xp_slot *s;
    if (xp_arity("finish", n, 2, 2) < 0 || (s = xp_slot_of(args[0])) == NULL || xp_as_point(args[1], &point) < 0)
        return NULL;
    int code = 0;
    job *j = NULL;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&lane->mu);
    for (uint32_t i = lane->count; i-- && j == NULL;) {
        record *r = record_at(lane, i);
        if (r->s == s && r->point == point && (j = r->job))
            __atomic_fetch_add(&j->refs, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&lane->mu);
    if (j == NULL)
        j = job_new(s, point);
    if (j)
        code = launch(self, j);
    Py_END_ALLOW_THREADS
    return j ? PyLong_FromLong(code) : PyErr_NoMemory();
}

static PyObject *mending(PyObject *object, PyObject *slot, bool end)
{
    xp_slot *s = xp_slot_of(slot);
    if (s == NULL && PyErr_ExceptionMatches(PyExc_ValueError)) { /* of a detached slot there is nothing to mend */
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    if (s == NULL)
        return NULL;
    bool found;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&xp_mu);
    found = xp_mending(s, ((lane_object *)object)->lane, end);
    pthread_mutex_unlock(&xp_mu);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(found);
}

static PyObject *lane_late(PyObject *self, PyObject *slot) { return mending(self, slot, false); }
static PyObject *lane_landed(PyObject *self, PyObject *slot) { return mending(self, slot, true); }

static PyMethodDef lane_methods[] = {
    {"check", lane_check, METH_NOARGS, NULL},
    {"wait", XP_FAST(lane_wait), METH_FASTCALL, NULL},
    {"signal", XP_FAST(lane_signal), METH_FASTCALL, NULL},
    {"finish", XP_FAST(lane_finish), METH_FASTCALL, NULL},
    {"late", lane_late, METH_O, NULL},
    {"landed", lane_landed, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static void lane_dealloc(PyObject *self)
{
    xp_lane *lane = ((lane_object *)self)->lane; /* guards keep it: the stream may still hold work */
    if (lane)
        xp_lane_unref(lane);
    xp_free(self);
}

static PyType_Slot lane_slots[] = {
    {Py_tp_new, lane_new}, {Py_tp_dealloc, lane_dealloc}, {Py_tp_methods, lane_methods}, {0, NULL},
};
static PyType_Spec lane_spec = {"xpushare._native.Lane", sizeof(lane_object), 0, Py_TPFLAGS_DEFAULT, lane_slots};

int xp_init_lane(PyObject *module)
{
    return PyModule_AddIntConstant(module, "CAPTURED", CAPTURED) < 0 ? -1 : xp_add_type(module, &lane_spec);
}
