/* LoanBase and FrameBase: a slot that a writer fills, and a slot that a reader holds. Their Python subclasses make
 * arrays over it. loan, send, receive and release never leave C. */
#include "ends.h"

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs, *end;
    PyObject *made, *order; /* the array over the slot; on a device, the order of the work on it */
    PyObject *meta, *text;  /* of a loan: any object, and bytes or NULL; of a frame: bytes or NULL */
    PyObject *timeout;      /* of a loan */
    uint64_t nbytes;        /* of a loan: what was filled; 0: all */
    int open;
    xp_frame f;
} xp_held_object;

#define HELD_OBJECTS                                                                                                   \
    .weakrefs = offsetof(xp_held_object, weakrefs), .fixed = XP_OBJECTS(xp_held_object, end, order, timeout),          \
    .cleared = XP_OBJECTS(xp_held_object, made, meta, text) /* `order` is fixed: when a frame dies, its slot needs it */

static xp_held_object *held(PyObject *self) { return (xp_held_object *)self; }

static PyObject *held_new(PyTypeObject *class, PyObject *end)
{
    PyObject *self = PyType_GenericAlloc(class, 0);
    if (self)
        held(self)->end = Py_NewRef(end);
    return self;
}

/* Its end, if the slot has to be given back to it; otherwise there is nothing to give back. */
static xp_end *usable(const xp_held_object *o)
{
    xp_end *e = &((xp_end_object *)o->end)->e;
    return !XP_RELAXED(&e->closed) && xp_group_usable(e->c) ? e : NULL;
}

/* Whether the slot is held: closing the channel object gives back all of its slots. */
static bool is_open(const xp_held_object *o)
{
    return XP_RELAXED(&o->open) && !XP_RELAXED(&((xp_end_object *)o->end)->e.closed);
}

/* The point after which this side's device work on the slot is done, or 0 if there was none. -1 with an exception. */
static int point_of(xp_held_object *o, uint64_t *point)
{
    *point = 0;
    if (XP_LIKELY(o->order == NULL))
        return 0;
    PyObject *found = PyObject_CallFunctionObjArgs(((xp_end_object *)o->end)->signal, o->end, o->order, NULL);
    int rc = found ? xp_as_u64(found, point) : -1;
    Py_XDECREF(found);
    return rc;
}

typedef struct {
    uint32_t slot;
    bool done;
    uint64_t nbytes, point, seq;
} request;

static int try_send(xp_end *e, void *argument)
{
    request *r = argument;
    return xp_end_send(e, r->slot, r->nbytes, r->point, &r->seq);
}

static int try_drop(xp_end *e, void *argument) { return xp_end_drop(e, ((request *)argument)->slot); }

static int try_release(xp_end *e, void *argument)
{
    const request *r = argument;
    return xp_end_release(e, r->slot, r->done, r->point);
}

/* While an object is deallocated: no signal handler runs, and nobody receives an error. */
static void quietly(xp_held_object *o, xp_attempt attempt, request *r)
{
    xp_end *e = usable(o);
    if (e == NULL)
        return;
    Py_BEGIN_ALLOW_THREADS
    for (uint64_t end = xp_now() + XP_LOCK_MOST; attempt(e, r) == XP_UNUSABLE && usable(o) && xp_now() < end;)
        ;
    Py_END_ALLOW_THREADS
}

static void held_end_of(PyObject *self, xp_attempt attempt)
{
    xp_held_object *o = held(self);
    if (XP_EXCHANGE(&o->open, 0)) {
        request r = {.slot = o->f.slot};
        if (usable(o) && point_of(o, &r.point) < 0)
            PyErr_WriteUnraisable(o->order);
        quietly(o, attempt, &r);
    }
}

/* __array__(dtype=None, copy=None) */
static PyObject *held_array(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    xp_held_object *o = held(self);
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    PyObject *dtype = n > 0 ? args[0] : Py_None, *copy = n > 1 ? args[1] : Py_None;
    if (xp_arity("__array__", n + named, 0, 2) < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        if (PyUnicode_CompareWithASCIIString(name, "dtype") == 0)
            dtype = args[n + i];
        else if (PyUnicode_CompareWithASCIIString(name, "copy") == 0)
            copy = args[n + i];
        else
            return PyErr_Format(PyExc_TypeError, "__array__() takes dtype and copy, not %U", name);
    }
    PyObject *arrays = ((xp_end_object *)o->end)->arrays;
    if (XP_LIKELY(XP_RELAXED(&o->open) && arrays && dtype == Py_None && copy != Py_True && usable(o)))
        return PyObject_GetItem(PyList_GetItem(arrays, o->f.slot), Py_Ellipsis); /* a view, since its shape and flags belong to the user */
    return PyObject_CallMethod(self, "_converted", "OO", dtype, copy);
}

/* NumPy tries this first, and then takes half the time. The array itself is exported: like other views, this one
 * outlives the frame. */
static int held_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    const xp_held_object *o = held(self);
    const xp_end_object *end = (xp_end_object *)o->end;
    if (XP_LIKELY(XP_RELAXED(&o->open) && end->arrays && end->buffers && usable(o)))
        return PyObject_GetBuffer(PyList_GetItem(end->arrays, o->f.slot), view, flags);
    view->obj = NULL;
    PyErr_SetString(PyExc_BufferError, "this frame exports no buffer: use its array");
    return -1;
}

/* What both have for their Python subclasses, see _native.pyi */
#define HELD_MEMBERS                                                                                                   \
    XP_WEAKREFS(xp_held_object), {"_end", T_OBJECT_EX, offsetof(xp_held_object, end), READONLY, NULL},                 \
        {"_slot", T_UINT, offsetof(xp_held_object, f.slot), READONLY, NULL}
#define HELD_FIELDS                                                                                                    \
    XP_ANY_OBJECT("_made", xp_held_object, made), XP_ANY_OBJECT("_order", xp_held_object, order),                      \
        XP_ANY_OBJECT("_text", xp_held_object, text)

/* --- LoanBase ----------------------------------------------------------------------------------------------------- */

PyObject *xp_loan_new(PyObject *end, PyObject *timeout)
{
    PyObject *self = held_new(((xp_end_object *)end)->loan, end);
    if (self)
        held(self)->timeout = Py_NewRef(timeout);
    return self;
}

static void loan_end(PyObject *self) { held_end_of(self, try_drop); }

XP_LIFE(loan, .end = loan_end, HELD_OBJECTS)

static int try_loan(xp_end *e, void *argument) { return xp_end_loan(e, argument); }

static PyObject *loan_enter(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_held_object *o = held(self);
    if (XP_RELAXED(&o->open)) {
        xp_unusable("this loan is in use: call loan() again");
        return NULL;
    }
    xp_end *e = xp_end_of(o->end);
    uint32_t slot;
    int got = e ? xp_end_until(o->end, e, try_loan, &slot, o->timeout, &((xp_end_object *)o->end)->loaning) : -1;
    if (got != XP_GOT)
        return got < 0 ? NULL : xp_end_refused(o->end, got, "slot", o->timeout);
    PyObject **before[] = {&o->made, &o->order, &o->text}; /* of another slot, if this loan is used again */
    for (size_t i = 0; i < sizeof before / sizeof *before; i++)
        Py_XDECREF(XP_EXCHANGE(before[i], NULL));
    o->nbytes = 0;
    o->f.slot = slot;
    XP_STORE(&o->open, 1);
    return Py_NewRef(self);
}

/* Return the metadata as bytes, or NULL; -1 with an exception. Another thread may set it in between, so it is taken
 * first. */
static int encoded(xp_held_object *o, PyObject **text)
{
    PyObject *meta = o->meta ? XP_EXCHANGE(&o->meta, NULL) : NULL;
    *text = NULL;
    if (meta == NULL)
        return 0;
    if (meta != Py_None)
        *text = PyObject_CallFunctionObjArgs(((xp_end_object *)o->end)->encode, o->end, meta, NULL);
    int rc = meta == Py_None || *text ? 0 : -1;
    Py_XDECREF(xp_set_once(&o->meta, meta));
    return rc;
}

static int fill(xp_held_object *o, xp_end *e)
{
    char *meta = NULL, *text = NULL;
    Py_ssize_t meta_nbytes = 0, text_nbytes = 0;
    PyObject *bytes;
    int rc = encoded(o, &bytes);
    if (rc == 0 && bytes)
        rc = PyBytes_AsStringAndSize(bytes, &meta, &meta_nbytes);
    if (rc == 0 && o->text && o->text != Py_None)
        rc = PyBytes_AsStringAndSize(o->text, &text, &text_nbytes);
    if (rc == 0 && (meta_nbytes > (Py_ssize_t)e->g.meta_nbytes || text_nbytes > (Py_ssize_t)e->g.text_nbytes)) {
        PyErr_SetString(PyExc_ValueError, "there is no room for that");
        rc = -1;
    }
    if (rc == 0)
        xp_end_fill(e, o->f.slot, meta, (uint32_t)meta_nbytes, text, (uint32_t)text_nbytes);
    Py_XDECREF(bytes);
    return rc;
}

static int send(xp_held_object *o)
{
    request r = {.slot = o->f.slot};
    xp_end *e = xp_end_of(o->end);
    if (e == NULL || fill(o, e) < 0 || point_of(o, &r.point) < 0)
        return -1;
    r.nbytes = o->nbytes ? o->nbytes : e->g.nbytes;
    if (!XP_EXCHANGE(&o->open, 0))
        return 0;
    int got = xp_end_until(o->end, e, try_send, &r, NULL, NULL);
    o->f.seq = r.seq;
    return got < 0 ? -1 : 0;
}

static int drop(xp_held_object *o)
{
    request r = {.slot = o->f.slot};
    xp_end *e = usable(o);
    return XP_EXCHANGE(&o->open, 0) && e ? xp_end_until(o->end, e, try_drop, &r, NULL, NULL) : 0;
}

static PyObject *loan_exit(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    xp_held_object *o = held(self);
    if (!XP_RELAXED(&o->open))
        Py_RETURN_NONE;
    if (n < 1 || args[0] == Py_None) {
        if (send(o) == 0)
            Py_RETURN_NONE;
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        if (drop(o) < 0)
            PyErr_Clear(); /* the reason why it was not sent matters more */
        PyErr_Restore(type, value, trace);
        return NULL;
    }
    return drop(o) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef loan_methods[] = {
    {"__enter__", loan_enter, METH_NOARGS, NULL},
    {"__exit__", XP_FAST(loan_exit), METH_FASTCALL, NULL},
    {"__array__", XP_FAST(held_array), METH_FASTCALL | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef loan_getset[] = {HELD_FIELDS, {NULL, NULL, NULL, NULL, NULL}};

static PyMemberDef loan_members[] = {
    HELD_MEMBERS,
    {"_open", T_INT, offsetof(xp_held_object, open), READONLY, NULL},
    {"_nbytes", T_ULONGLONG, offsetof(xp_held_object, nbytes), 0, NULL},
    {"meta", T_OBJECT, offsetof(xp_held_object, meta), 0, PyDoc_STR("Plain data that readers get with the frame. Set it before the end of the block.")},
    {"seq", T_ULONGLONG, offsetof(xp_held_object, f.seq), READONLY, PyDoc_STR("The number of the frame in the channel, from 1 on. It is 0 before the end of the block.")},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot loan_slots[] = {
    XP_LIFE_SLOTS(loan), {Py_tp_methods, loan_methods}, {Py_tp_getset, loan_getset}, {Py_tp_members, loan_members},
    {Py_bf_getbuffer, held_getbuffer}, {0, NULL},
};
static PyType_Spec loan_spec = {"xpushare._native.LoanBase", sizeof(xp_held_object), 0,
                                XP_WITH_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, loan_slots};

/* --- FrameBase ---------------------------------------------------------------------------------------------------- */

PyObject *xp_frame_new(PyObject *end, const xp_frame *f)
{
    const xp_end_object *owner = (xp_end_object *)end;
    PyObject *self = held_new(owner->frame, end);
    if (self == NULL)
        return NULL;
    xp_held_object *o = held(self);
    o->f = *f;
    XP_STORE(&o->open, 1);
    const char *meta = xp_end_meta(&owner->e, f->slot);
    if (f->meta_nbytes && (o->meta = PyBytes_FromStringAndSize(meta, (Py_ssize_t)f->meta_nbytes)) == NULL)
        Py_CLEAR(self);
    else if (f->text_nbytes &&
             (o->text = PyBytes_FromStringAndSize(meta + owner->e.g.meta_nbytes, (Py_ssize_t)f->text_nbytes)) == NULL)
        Py_CLEAR(self);
    return self;
}

static void frame_end(PyObject *self) { held_end_of(self, try_release); }

XP_LIFE(frame, .end = frame_end, HELD_OBJECTS)

static PyObject *release(xp_held_object *o, bool done)
{
    if (!XP_EXCHANGE(&o->open, 0))
        Py_RETURN_NONE;
    request r = {.slot = o->f.slot, .done = done};
    xp_end *e = usable(o);
    if (e && (point_of(o, &r.point) < 0 || xp_end_until(o->end, e, try_release, &r, NULL, NULL) < 0))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *frame_close(PyObject *self, PyObject *Py_UNUSED(a)) { return release(held(self), true); }

static PyObject *frame_enter(PyObject *self, PyObject *Py_UNUSED(a))
{
    if (XP_LIKELY(is_open(held(self))))
        return Py_NewRef(self);
    xp_unusable("this frame is closed: its slot may hold another one. An iteration closes each frame before the next. "
                "To keep the content, copy it before: np.array(frame)");
    return NULL;
}

static PyObject *frame_exit(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    return release(held(self), n < 1 || args[0] == Py_None);
}

static PyObject *frame_closed(PyObject *self, void *Py_UNUSED(c)) { return PyBool_FromLong(!is_open(held(self))); }

static PyMethodDef frame_methods[] = {
    {"__enter__", frame_enter, METH_NOARGS, NULL},
    {"__exit__", XP_FAST(frame_exit), METH_FASTCALL, NULL},
    {"__array__", XP_FAST(held_array), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"close", frame_close, METH_NOARGS, PyDoc_STR("close($self, /)\n--\n\nGive the slot back. In mode \"one\" that acknowledges the frame. Idempotent.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef frame_getset[] = {
    HELD_FIELDS, XP_OBJECT("_meta", xp_held_object, meta),
    {"closed", frame_closed, NULL, PyDoc_STR("Whether the frame is closed."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef frame_members[] = {
    HELD_MEMBERS,
    {"_nbytes", T_ULONGLONG, offsetof(xp_held_object, f.nbytes), READONLY, NULL},
    {"_point", T_ULONGLONG, offsetof(xp_held_object, f.point), READONLY, NULL},
    {"_point_by", T_UINT, offsetof(xp_held_object, f.point_by), READONLY, NULL},
    {"_since", T_ULONGLONG, offsetof(xp_held_object, f.since), READONLY, NULL},
    {"seq", T_ULONGLONG, offsetof(xp_held_object, f.seq), READONLY, PyDoc_STR("The number of the frame in the channel, from 1 on.")},
    {"missed", T_ULONGLONG, offsetof(xp_held_object, f.missed), READONLY,
     PyDoc_STR("How many frames were overwritten before this reader saw them, since it opened the channel.")},
    {"gap", T_ULONGLONG, offsetof(xp_held_object, f.gap), READONLY,
     PyDoc_STR("How many frames were missed between this reader's previous frame and this one.")},
    {"time_ns", T_ULONGLONG, offsetof(xp_held_object, f.time_ns), READONLY,
     PyDoc_STR("The time at which the frame was sent, in nanoseconds of CLOCK_MONOTONIC.")},
    {"deliveries", T_UINT, offsetof(xp_held_object, f.deliveries), READONLY,
     PyDoc_STR("In mode \"one\", how often the frame has been delivered, including this delivery.")},
    {"writer", T_UINT, offsetof(xp_held_object, f.writer_pid), READONLY,
     PyDoc_STR("The pid of the process that sent the frame, in that process's own pid namespace.")},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot frame_slots[] = {
    XP_LIFE_SLOTS(frame), {Py_tp_methods, frame_methods}, {Py_tp_getset, frame_getset}, {Py_tp_members, frame_members},
    {Py_bf_getbuffer, held_getbuffer}, {0, NULL},
};
static PyType_Spec frame_spec = {"xpushare._native.FrameBase", sizeof(xp_held_object), 0,
                                 XP_WITH_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, frame_slots};

/* --- classes ------------------------------------------------------------------------------------------------------ */

static bool derives(PyTypeObject *class, destructor of)
{
    while (class && PyType_GetSlot(class, Py_tp_dealloc) != (void *)of)
        class = PyType_GetSlot(class, Py_tp_base);
    return class != NULL;
}

bool xp_is_loan(PyTypeObject *class) { return derives(class, loan_dealloc); }
bool xp_is_frame(PyTypeObject *class) { return derives(class, frame_dealloc); }

int xp_init_frames(PyObject *module)
{
    return xp_add_type(module, &loan_spec) < 0 ? -1 : xp_add_type(module, &frame_spec);
}
