/* A lane: another vendor's in-order queue as far as event slots go. A driver's stream memory operations, called by
 * address, write a slot's value word and wait for it; so submitting a point and queueing its store is one call. */
#include "events.h"

typedef int (*word_op)(uint64_t stream, uint64_t address, uint64_t value, unsigned flags);
typedef int (*capture_op)(uint64_t stream, int *status);

typedef struct {
    PyObject_HEAD
    uint64_t number, stream;
    word_op write, wait;
    capture_op capturing; /* or NULL: nobody else has the stream */
    unsigned wait_flags;
} lane_object;

#define CAPTURED (-1)

static PyObject *lane_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"number", "stream", "write", "wait", "wait_flags", "capturing", NULL};
    unsigned long long number, stream, write, wait, capturing = 0;
    unsigned flags;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KKKKI|K", names, &number, &stream, &write, &wait, &flags,
                                     &capturing))
        return NULL;
    if (number == 0 || write == 0 || wait == 0) {
        PyErr_SetString(PyExc_ValueError, "neither a lane's number nor its functions are 0");
        return NULL;
    }
    lane_object *self = (lane_object *)PyType_GenericAlloc(type, 0);
    if (self) {
        self->number = number;
        self->stream = stream;
        self->write = (word_op)(uintptr_t)write;
        self->wait = (word_op)(uintptr_t)wait;
        self->capturing = (capture_op)(uintptr_t)capturing;
        self->wait_flags = flags;
    }
    return (PyObject *)self;
}

/* 0, CAPTURED, or the driver's error. No GIL. */
static int check(const lane_object *lane)
{
    int status = 0, code = lane->capturing ? lane->capturing(lane->stream, &status) : 0;
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

static PyObject *lane_write(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    lane_object *lane = (lane_object *)self;
    uint64_t address, value;
    if (xp_arity("write", n, 2, 2) < 0 || xp_as_u64(args[0], &address) < 0 || xp_as_u64(args[1], &value) < 0)
        return NULL;
    int code;
    Py_BEGIN_ALLOW_THREADS /* a full stream blocks whoever queues more */
    code = lane->write(lane->stream, address, value, 0);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(code);
}

static PyObject *lane_wait(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    lane_object *lane = (lane_object *)self;
    uint64_t address, point;
    xp_slot *s;
    if (xp_arity("wait", n, 3, 3) < 0 || (s = xp_slot_of(args[0])) == NULL || xp_as_u64(args[1], &address) < 0 ||
        xp_as_point(args[2], &point) < 0)
        return NULL;
    int rc, code = 0;
    Py_BEGIN_ALLOW_THREADS
    rc = xp_guard(s, point);
    if (rc == 0)
        code = lane->wait(lane->stream, address, point, lane->wait_flags);
    Py_END_ALLOW_THREADS
    return xp_guarded(rc) < 0 ? NULL : PyLong_FromLong(code);
}

static PyObject *lane_signal(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    lane_object *lane = (lane_object *)self;
    uint64_t address, point = 0, after = 0;
    xp_slot *s;
    if (xp_arity("signal", n, 2, 2) < 0 || (s = xp_slot_of(args[0])) == NULL || xp_as_u64(args[1], &address) < 0)
        return NULL;
    int code;
    const char *wrong = NULL;
    Py_BEGIN_ALLOW_THREADS
    code = check(lane);
    if (code == 0)
        wrong = xp_submit(s, lane->number, true, &point, &after);
    if (code == 0 && wrong == NULL && after == 0)
        code = lane->write(lane->stream, address, point, 0);
    Py_END_ALLOW_THREADS
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, wrong);
        return NULL;
    }
    return Py_BuildValue("(KKi)", (unsigned long long)point, (unsigned long long)after, code);
}

static PyMethodDef lane_methods[] = {
    {"check", lane_check, METH_NOARGS, NULL},
    {"write", XP_FAST(lane_write), METH_FASTCALL, NULL},
    {"wait", XP_FAST(lane_wait), METH_FASTCALL, NULL},
    {"signal", XP_FAST(lane_signal), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static void lane_dealloc(PyObject *self) { xp_free(self); }

static PyType_Slot lane_slots[] = {
    {Py_tp_new, lane_new}, {Py_tp_dealloc, lane_dealloc}, {Py_tp_methods, lane_methods}, {0, NULL},
};
static PyType_Spec lane_spec = {"xpushare._native.Lane", sizeof(lane_object), 0, Py_TPFLAGS_DEFAULT, lane_slots};

int xp_init_lane(PyObject *module)
{
    return PyModule_AddIntConstant(module, "CAPTURED", CAPTURED) < 0 ? -1 : xp_add_type(module, &lane_spec);
}
