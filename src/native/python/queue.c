/* Stream queues for Python. Recipes are checked here, once, so that the engine only has to fill them in. */
#include "objects.h"
#include "driver.h"

#include "../../engine/queue.h"
#include "../../engine/relay.h"

#include <stdlib.h>

/* --- recipes ------------------------------------------------------------------------------------------------------ */

static const char *const kinds[XP_ARG_KINDS] = {
    [XP_ARG_QUEUE] = "queue",       [XP_ARG_ADDRESS] = "address", [XP_ARG_POINT] = "point",
    [XP_ARG_POINT_LOW] = "point_low", [XP_ARG_FUNCTION] = "function", [XP_ARG_DATA] = "data",
    [XP_ARG_OUT] = "out",           [XP_ARG_MADE] = "made",       [XP_ARG_STATUS_OUT] = "status_out",
    [XP_ARG_INT_AT] = "int_at",     [XP_ARG_TO] = "to",           [XP_ARG_FROM] = "from",
    [XP_ARG_NBYTES] = "nbytes",     [XP_ARG_VALUE] = "value",     [XP_ARG_VALUE_AT] = "value_at",
    [XP_ARG_TIMES] = "times",
};

#define BIT(kind) (1u << (kind))
#define ANYWHERE (BIT(XP_ARG_QUEUE) | BIT(XP_ARG_OUT) | BIT(XP_ARG_MADE))
#define OF_WORD (ANYWHERE | BIT(XP_ARG_ADDRESS) | BIT(XP_ARG_POINT) | BIT(XP_ARG_POINT_LOW))
#define OF_HOST (ANYWHERE | BIT(XP_ARG_FUNCTION) | BIT(XP_ARG_DATA))
#define OF_RELAY (ANYWHERE | BIT(XP_ARG_INT_AT))
#define OF_COPY (BIT(XP_ARG_QUEUE) | BIT(XP_ARG_TO) | BIT(XP_ARG_FROM) | BIT(XP_ARG_NBYTES))
#define OF_FILL (BIT(XP_ARG_QUEUE) | BIT(XP_ARG_TO) | BIT(XP_ARG_VALUE) | BIT(XP_ARG_VALUE_AT) | BIT(XP_ARG_TIMES))
#define OF_CAPTURED (ANYWHERE | BIT(XP_ARG_STATUS_OUT))

static int take_function(PyObject *o, xp_call *call)
{
    if (xp_as_u64(o, &call->function) < 0)
        return -1;
    return call->function ? 0 : xp_invalid("a function's address is not 0");
}

static int take_argument(PyObject *o, uint64_t *value, uint8_t *kind)
{
    bool pair = PyTuple_Check(o) && PyTuple_Size(o) == 2; /* ("int_at", number) */
    PyObject *name = pair ? PyTuple_GetItem(o, 0) : o;
    *kind = XP_ARG_FIXED;
    if (!PyUnicode_Check(name))
        return xp_as_u64(o, value);
    for (uint8_t i = XP_ARG_QUEUE; i < XP_ARG_KINDS; i++)
        if (PyUnicode_CompareWithASCIIString(name, kinds[i]) == 0 && pair == (i == XP_ARG_INT_AT)) {
            *kind = i;
            return pair ? xp_as_u64(PyTuple_GetItem(o, 1), value) : 0;
        }
    PyErr_Format(PyExc_ValueError, "no such argument: %R", o);
    return -1;
}

/* (function, (argument, ...)), with True at the end if it is a clean-up */
static int take_step(PyObject *o, xp_step *step, unsigned *seen)
{
    PyObject *arguments;
    int cleanup = 0;
    *step = (xp_step){0};
    if (!PyTuple_Check(o) || PyTuple_Size(o) < 2 || !PyTuple_Check(arguments = PyTuple_GetItem(o, 1)))
        return xp_invalid("a step is (function, (argument, ...)), with True behind it where it cleans up");
    if (PyTuple_Size(o) > 2 && (cleanup = PyObject_IsTrue(PyTuple_GetItem(o, 2))) < 0)
        return -1;
    Py_ssize_t n = PyTuple_Size(arguments);
    if (n > XP_ARGUMENTS)
        return xp_invalid("a function has at most 10 arguments");
    step->cleanup = cleanup;
    step->call.count = (uint32_t)n;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (take_argument(PyTuple_GetItem(arguments, i), &step->call.arguments[i], &step->kinds[i]) < 0)
            return -1;
        *seen |= BIT(step->kinds[i]);
    }
    return take_function(PyTuple_GetItem(o, 0), &step->call);
}

/* One step, or a tuple of steps. None if the driver has no such call. */
static int take_recipe(PyObject *o, xp_recipe *recipe, unsigned allowed, unsigned wanted)
{
    unsigned seen = 0;
    if (o == NULL || o == Py_None)
        return 0;
    if (!PyTuple_Check(o) || PyTuple_Size(o) == 0)
        return xp_invalid("a recipe is a step or a tuple of steps");
    bool one = !PyTuple_Check(PyTuple_GetItem(o, 0));
    Py_ssize_t n = one ? 1 : PyTuple_Size(o);
    if (n > XP_STEPS)
        return xp_invalid("a recipe has at most 4 steps");
    for (Py_ssize_t i = 0; i < n; i++)
        if (take_step(one ? o : PyTuple_GetItem(o, i), &recipe->steps[i], &seen) < 0)
            return -1;
    if (seen & ~(allowed | BIT(XP_ARG_FIXED)))
        return xp_invalid("an argument that this recipe has not");
    if ((seen & wanted) != wanted)
        return xp_invalid("the recipe lacks an argument that it is about");
    recipe->count = (uint32_t)n;
    return 0;
}

typedef struct {
    PyObject_HEAD
    xp_queue_calls *calls;
} calls_object;

static int take_bits(unsigned bits)
{
    return bits == 32 || bits == 64 ? 0 : xp_invalid("a device's words have 32 or 64 bits");
}

/* The call that copies, and the calls that fill with patterns of 1, 2 and 4 bytes. Each is a single step, since held
 * operations are stored as calls. */
static int take_work(PyObject *copy, PyObject *fills, xp_queue_calls *calls)
{
    Py_ssize_t n = fills ? PyTuple_Size(fills) : 0;
    if (n < 0 || n > XP_FILLS)
        return n < 0 ? -1 : xp_invalid("a driver's fills are for patterns of 1, 2 and 4 bytes");
    if (take_recipe(copy, &calls->copy, OF_COPY, BIT(XP_ARG_TO) | BIT(XP_ARG_FROM) | BIT(XP_ARG_NBYTES)) < 0)
        return -1;
    bool single = calls->copy.count <= 1;
    for (Py_ssize_t i = 0; i < n; i++) {
        xp_recipe *fill = &calls->fills[i];
        if (take_recipe(PyTuple_GetItem(fills, i), fill, OF_FILL, BIT(XP_ARG_TO) | BIT(XP_ARG_TIMES)) < 0)
            return -1;
        single = single && fill->count <= 1;
    }
    return single ? 0 : xp_invalid("a copy and a fill are one step");
}

static PyObject *calls_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"host",       "store",     "wait",  "captured", "wait_bits",
                            "store_bits", "host_data", "relay", "budget",   "copy", "fills", NULL};
    PyObject *host, *store = NULL, *wait = NULL, *captured = NULL, *relay = NULL, *copy = NULL, *fills = NULL;
    unsigned wait_bits = 64, store_bits = 64, host_data = 0, budget = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOO$IIIOIOO", names, &host, &store, &wait, &captured,
                                     &wait_bits, &store_bits, &host_data, &relay, &budget, &copy, &fills))
        return NULL;
    calls_object *self = (calls_object *)PyType_GenericAlloc(type, 0);
    xp_queue_calls *calls = self ? calloc(1, sizeof *calls) : NULL;
    if (calls == NULL) {
        Py_XDECREF((PyObject *)self);
        return self ? PyErr_NoMemory() : NULL;
    }
    self->calls = calls;
    *calls = (xp_queue_calls){.refs = 1, .wait_bits = wait_bits, .store_bits = store_bits,
                              .event_callback = host_data == 2, .budget = budget};
    if ((host_data != 0 && host_data != 2 && xp_invalid("a host function's data is its parameter 0 or 2") < 0) ||
        take_bits(wait_bits) < 0 || take_bits(store_bits) < 0 ||
        take_recipe(host, &calls->host, OF_HOST, BIT(XP_ARG_FUNCTION) | BIT(XP_ARG_DATA)) < 0 ||
        take_recipe(store, &calls->store, OF_WORD, BIT(XP_ARG_ADDRESS)) < 0 ||
        take_recipe(wait, &calls->wait, OF_WORD, BIT(XP_ARG_ADDRESS)) < 0 ||
        take_recipe(captured, &calls->captured, OF_CAPTURED, BIT(XP_ARG_STATUS_OUT)) < 0 ||
        take_recipe(relay, &calls->relay, OF_RELAY, 0) < 0 || take_work(copy, fills, calls) < 0 ||
        (calls->host.count == 0 && xp_invalid("a driver must call host functions") < 0)) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

static void calls_end(PyObject *self) { xp_queue_calls_unref(((calls_object *)self)->calls); }

XP_LIFE_PLAIN(calls, .end = calls_end)

XP_GETTER(calls_works, PyBool_FromLong(xp_queue_works(((calls_object *)self)->calls)))

XP_TYPE(calls_spec, "QueueCalls", calls_object, Py_TPFLAGS_DEFAULT, {Py_tp_new, calls_new},
        {Py_tp_dealloc, calls_dealloc}, XP_GETSET({"works", calls_works, NULL, NULL, NULL}))

/* Complete calls, from a list of (function, argument, ...). The caller frees them; NULL with an exception set. */
static xp_call *take_calls(PyObject *o, uint32_t *count)
{
    PyObject *list = PySequence_List(o);
    if (list == NULL)
        return NULL;
    Py_ssize_t n = PyList_Size(list);
    xp_call *calls = n < INT32_MAX ? calloc(n ? (size_t)n : 1, sizeof *calls) : NULL;
    if (calls == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; calls && i < n; i++) {
        PyObject *given = PyList_GetItem(list, i);
        Py_ssize_t k = PyTuple_Check(given) ? PyTuple_Size(given) : 0;
        int rc = 0;
        if (k < 1 || k > XP_ARGUMENTS + 1)
            rc = xp_invalid("a call is (function, argument, ...), with at most 10 arguments");
        else
            rc = take_function(PyTuple_GetItem(given, 0), &calls[i]);
        calls[i].count = (uint32_t)(k - 1);
        for (Py_ssize_t a = 1; rc == 0 && a < k; a++)
            rc = xp_as_u64(PyTuple_GetItem(given, a), &calls[i].arguments[a - 1]);
        if (rc < 0) {
            free(calls);
            calls = NULL;
        }
    }
    *count = (uint32_t)n;
    Py_DECREF(list);
    return calls;
}

/* --- queues ------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    xp_queue *queue;
} queue_object;

static PyTypeObject *calls_type(PyTypeObject *type)
{
    PyObject *module = PyType_GetModule(type);
    return module ? xp_types_of(module)->queue_calls : NULL;
}

static PyObject *queue_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"number", "handle", "calls", "ordering", "adopted", NULL};
    static const char *const orderings[] = {"device", "shared", "held"};
    PyObject *o_number, *o_handle, *o_calls;
    const char *name = "device";
    uint64_t number, handle;
    int adopted = 0, ordering = 0;
    PyTypeObject *wanted = calls_type(type);
    if (wanted == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!|sp", names, &o_number, &o_handle, wanted,
                                                       &o_calls, &name, &adopted) ||
        xp_as_u64(o_number, &number) < 0 || xp_as_u64(o_handle, &handle) < 0)
        return NULL;
    while (ordering < 3 && strcmp(name, orderings[ordering]) != 0)
        ordering++;
    if (ordering == 3 || number == 0) {
        xp_invalid(number ? "a queue's ordering is \"device\", \"shared\" or \"held\"" : "a queue's number is not 0");
        return NULL;
    }
    queue_object *self = (queue_object *)PyType_GenericAlloc(type, 0);
    if (self &&
        (self->queue = xp_queue_new(number, handle, ((calls_object *)o_calls)->calls, ordering, adopted)) == NULL) {
        Py_DECREF((PyObject *)self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static xp_queue *queue_of(PyObject *self)
{
    xp_queue *queue = ((queue_object *)self)->queue;
    if (!xp_queue_forked(queue))
        return queue;
    xp_invalid("the queue is from before a fork");
    return NULL;
}

static PyObject *queue_check(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_queue *queue = queue_of(self);
    if (queue == NULL)
        return NULL;
    return PyLong_FromLongLong(XP_UNLOCKED(xp_queue_check(queue)));
}

typedef int (*asks)(uint64_t handle);

/* query(function, handle): see _native.pyi */
static PyObject *query(PyObject *Py_UNUSED(m), PyObject *const *args, Py_ssize_t n)
{
    uint64_t function, handle;
    int code;
    if (xp_arity("query", n, 2, 2) < 0 || xp_as_u64(args[0], &function) < 0 || xp_as_u64(args[1], &handle) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    code = ((asks)(uintptr_t)function)(handle);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(code);
}

/* idle(function, unfinished, handle, scopes): see _native.pyi */
static PyObject *queue_idle(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    xp_queue *queue = queue_of(self);
    uint64_t function, handle;
    int64_t code;
    int unfinished;
    xp_before before;
    if (queue == NULL || xp_arity("idle", n, 4, 4) < 0 || xp_as_u64(args[0], &function) < 0 ||
        xp_as_int(args[1], &unfinished) < 0 || xp_as_u64(args[2], &handle) < 0)
        return NULL;
    const xp_scope *scope = xp_scope_of(PyType_GetModuleState(Py_TYPE(self)), args[3]);
    if (scope == NULL)
        return xp_refuse(PyExc_TypeError, "idle() takes Scopes last");
    bool held = xp_queue_look(queue).held != 0;
    Py_BEGIN_ALLOW_THREADS
    code = xp_scope_enter(scope, &before);
    if (code == 0) {
        code = xp_queue_check(queue);
        if (code == 0 && !held)
            code = ((asks)(uintptr_t)function)(handle);
        xp_scope_leave(scope, &before);
    }
    Py_END_ALLOW_THREADS
    if (code == 0 || code == unfinished)
        return PyBool_FromLong(code == 0 && !held);
    Py_RETURN_NONE;
}

static PyObject *queue_wait(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    xp_queue *queue = queue_of(self);
    uint64_t address, point;
    xp_slot *s;
    if (queue == NULL || xp_arity("wait", n, 3, 3) < 0 || (s = xp_slot_of(args[0])) == NULL ||
        xp_as_u64(args[1], &address) < 0 || xp_as_point(args[2], &point) < 0)
        return NULL;
    int rc;
    int64_t code;
    Py_BEGIN_ALLOW_THREADS /* a full stream blocks every thread that queues more */
    rc = xp_queue_wait(queue, s, address, point, &code);
    Py_END_ALLOW_THREADS
    return xp_guarded(rc) < 0 ? NULL : PyLong_FromLongLong(code);
}

static PyObject *queue_signal(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    xp_queue *queue = queue_of(self);
    uint64_t address;
    xp_slot *s;
    if (queue == NULL || xp_arity("signal", n, 2, 2) < 0 || (s = xp_slot_of(args[0])) == NULL ||
        xp_as_u64(args[1], &address) < 0)
        return NULL;
    xp_signalled done;
    XP_UNLOCKED_DO(xp_queue_signal(queue, s, address, &done));
    if (!done.memory)
        return PyErr_NoMemory();
    if (done.wrong) {
        xp_invalid(done.wrong);
        return NULL;
    }
    return Py_BuildValue("(KKL)", (unsigned long long)done.point, (unsigned long long)done.after, (long long)done.code);
}

static PyObject *queue_finish(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    xp_queue *queue = queue_of(self);
    uint64_t point;
    xp_slot *s;
    if (queue == NULL || xp_arity("finish", n, 2, 2) < 0 || (s = xp_slot_of(args[0])) == NULL ||
        xp_as_point(args[1], &point) < 0)
        return NULL;
    int64_t code = 0;
    bool memory = XP_UNLOCKED(xp_queue_finish(queue, s, point, &code));
    return memory ? PyLong_FromLongLong(code) : PyErr_NoMemory();
}

static PyObject *queue_submit(PyObject *self, PyObject *o)
{
    xp_queue *queue = queue_of(self);
    uint32_t count;
    xp_call *calls = queue ? take_calls(o, &count) : NULL;
    if (calls == NULL)
        return NULL;
    uint64_t at = 0;
    int64_t code;
    bool memory;
    Py_BEGIN_ALLOW_THREADS
    memory = xp_queue_submit(queue, calls, count, &at, &code);
    free(calls);
    Py_END_ALLOW_THREADS
    return memory ? Py_BuildValue("(KL)", (unsigned long long)at, (long long)code) : PyErr_NoMemory();
}

#define LONGEST_SLEEP_NS 500000000u /* a signal that another thread takes does not wake this one */

static PyObject *queue_drain(PyObject *self, PyObject *args)
{
    xp_queue *queue = queue_of(self);
    PyObject *timeout = NULL;
    uint64_t ns;
    if (queue == NULL || !PyArg_ParseTuple(args, "|O", &timeout) || xp_seconds(timeout ? timeout : Py_None, &ns) < 0)
        return NULL;
    uint64_t end = ns == XP_FOREVER ? XP_FOREVER : xp_now() + ns;
    uint32_t *word = xp_queue_drained(queue);
    for (;;) {
        uint32_t seen = XP_LOAD(word);
        if (xp_queue_look(queue).held == 0)
            Py_RETURN_TRUE;
        uint64_t now = xp_now();
        if (now >= end)
            Py_RETURN_FALSE;
        uint64_t left = end == XP_FOREVER ? LONGEST_SLEEP_NS : end - now;
        XP_UNLOCKED_DO(xp_futex_wait(word, seen, left < LONGEST_SLEEP_NS ? left : LONGEST_SLEEP_NS));
        if (PyErr_CheckSignals() < 0)
            return NULL;
    }
}

static PyObject *queue_failure(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_queue *queue = queue_of(self);
    if (queue == NULL)
        return NULL;
    xp_queue_status found = xp_queue_look(queue);
    if (found.failed == 0)
        Py_RETURN_NONE;
    return Py_BuildValue("(KL)", (unsigned long long)found.failed_at, (long long)found.failed);
}

static PyObject *queue_lost(PyObject *self, PyObject *slot)
{
    xp_queue *queue = queue_of(self);
    xp_slot *s = queue ? xp_slot_of(slot) : NULL;
    if (s == NULL)
        return NULL;
    xp_queue_lost(queue, s);
    Py_RETURN_NONE;
}

static PyObject *queue_told(PyObject *self, PyObject *o)
{
    uint64_t at;
    xp_queue *queue = queue_of(self);
    if (queue == NULL || xp_as_u64(o, &at) < 0)
        return NULL;
    xp_queue_told(queue, at);
    Py_RETURN_NONE;
}

static PyObject *queue_own(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    xp_queue *queue = queue_of(self);
    uint64_t address;
    xp_slot *s;
    if (queue == NULL || xp_arity("own", n, 2, 2) < 0 || (s = xp_slot_of(args[0])) == NULL ||
        xp_as_u64(args[1], &address) < 0)
        return NULL;
    XP_UNLOCKED_DO(xp_queue_own(queue, s, address));
    Py_RETURN_NONE;
}

static PyObject *queue_spent(PyObject *self, void *Py_UNUSED(c))
{
    xp_queue *queue = queue_of(self);
    return queue ? PyBool_FromLong(xp_queue_spent(queue)) : NULL;
}

static PyObject *queue_status(PyObject *self, void *place)
{
    xp_queue *queue = queue_of(self);
    if (queue == NULL)
        return NULL;
    xp_queue_status found = xp_queue_look(queue);
    return PyLong_FromUnsignedLongLong(*(const uint64_t *)((const char *)&found + (uintptr_t)place));
}

static PyObject *mending(PyObject *self, PyObject *slot, bool end)
{
    xp_queue *queue = queue_of(self);
    xp_slot *s = queue ? xp_slot_of(slot) : NULL;
    if (queue && s == NULL && PyErr_ExceptionMatches(PyExc_ValueError)) { /* a detached slot needs no correction */
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    if (s == NULL)
        return NULL;
    bool found;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&xp_mu);
    found = xp_mending(s, queue, end);
    pthread_mutex_unlock(&xp_mu);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(found);
}

static PyObject *queue_unsure(PyObject *self, PyObject *more)
{
    int yes = PyObject_IsTrue(more);
    xp_queue *queue = yes ? queue_of(self) : ((queue_object *)self)->queue;
    if (yes < 0 || queue == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (yes)
        xp_queue_unsure(queue);
    else
        xp_queue_sure(queue); /* even in a forked child, since finalisers come here */
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *queue_late(PyObject *self, PyObject *slot) { return mending(self, slot, false); }
static PyObject *queue_landed(PyObject *self, PyObject *slot) { return mending(self, slot, true); }

static void queue_end(PyObject *self)
{
    xp_queue *queue = ((queue_object *)self)->queue; /* guards and held work keep it alive */
    if (queue)
        xp_queue_unref(queue);
}

XP_LIFE_PLAIN(queue, .end = queue_end)

XP_TYPE(queue_spec, "StreamQueue", queue_object, Py_TPFLAGS_DEFAULT, {Py_tp_new, queue_new},
        {Py_tp_dealloc, queue_dealloc},
        XP_METHODS({"check", queue_check, METH_NOARGS, NULL},
                   {"idle", XP_FAST(queue_idle), METH_FASTCALL, NULL},
                   {"wait", XP_FAST(queue_wait), METH_FASTCALL, NULL},
                   {"signal", XP_FAST(queue_signal), METH_FASTCALL, NULL},
                   {"finish", XP_FAST(queue_finish), METH_FASTCALL, NULL},
                   {"submit", queue_submit, METH_O, NULL},
                   {"own", XP_FAST(queue_own), METH_FASTCALL, NULL},
                   {"unsure", queue_unsure, METH_O, NULL},
                   {"drain", queue_drain, METH_VARARGS, NULL},
                   {"failure", queue_failure, METH_NOARGS, NULL},
                   {"lost", queue_lost, METH_O, NULL},
                   {"told", queue_told, METH_O, NULL},
                   {"late", queue_late, METH_O, NULL},
                   {"landed", queue_landed, METH_O, NULL}),
        XP_GETSET({"spent", queue_spent, NULL, NULL, NULL},
                  {"place", queue_status, NULL, NULL, (void *)offsetof(xp_queue_status, place)},
                  {"handed", queue_status, NULL, NULL, (void *)offsetof(xp_queue_status, handed)},
                  {"held", queue_status, NULL, NULL, (void *)offsetof(xp_queue_status, held)}),
        XP_FIELDS({"engine", T_ULONGLONG, offsetof(queue_object, queue), READONLY, NULL}))

/* --- the relay ---------------------------------------------------------------------------------------------------- */

static PyObject *relay(PyObject *Py_UNUSED(m), PyObject *o)
{
    uint32_t count;
    xp_call *calls = take_calls(o, &count);
    if (calls == NULL)
        return NULL;
    int rc = xp_relay_calls(calls, count);
    free(calls);
    if (rc)
        return xp_oserror_of(rc, "starting the relay");
    Py_RETURN_NONE;
}

static PyObject *close_relay(PyObject *Py_UNUSED(m), PyObject *args)
{
    PyObject *timeout = NULL;
    uint64_t ns = 1000000000u;
    if (!PyArg_ParseTuple(args, "|O", &timeout) || (timeout && xp_seconds(timeout, &ns) < 0))
        return NULL;
    bool all = true, main = PyInterpreterState_GetID(PyInterpreterState_Get()) == 0; /* the relay belongs to the process */
    all = XP_UNLOCKED(!main || xp_relay_stop(ns == XP_FOREVER ? 1000000000000000000u : ns));
    return PyBool_FromLong(all);
}

XP_PART(queue,
        XP_FUNCTIONS({"query", XP_FAST(query), METH_FASTCALL, NULL},
                     {"relay", relay, METH_O, NULL},
                     {"close_relay", close_relay, METH_VARARGS, NULL}),
        XP_KEEP(calls_spec, queue_calls), XP_KEEP(queue_spec, stream_queue))
