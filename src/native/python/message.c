/* MessageState: the base of `ArrayHandle`. Turns the descriptions in a message into arrays of this package or
 * another library's. */
#include "message.h"
#include "array.h"
#include "dlpack.h"

PyObject *xp_message_new(const xp_types *types, PyObject *raw, const xp_parts *parts, PyObject *handles,
                         PyObject *events)
{
    xp_message_object *self = (xp_message_object *)xp_made(types->array_handle, "ArrayHandle");
    if (self) {
        self->raw = Py_NewRef(raw);
        self->handles = Py_XNewRef(handles);
        self->events = Py_XNewRef(events);
        if (parts)
            self->parts = *parts;
    }
    return (PyObject *)self;
}

/* Python is notified when an object that owned its exports dies. */
static void message_finalize(PyObject *object)
{
    xp_message_object *self = (xp_message_object *)object;
    PyObject *type, *value, *trace;
    if (!__atomic_exchange_n(&self->owns, false, __ATOMIC_ACQ_REL) || self->owner != XP_RELAXED(&xp_fork_count))
        return;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *told = PyObject_CallMethod(object, "_abandoned", NULL);
    if (told == NULL)
        PyErr_WriteUnraisable(object);
    Py_XDECREF(told);
    PyErr_Restore(type, value, trace);
}

XP_LIFE_PLAIN(message, .weakrefs = offsetof(xp_message_object, weakrefs),
              .fixed = XP_OBJECTS(xp_message_object, raw, unread, newest, handles, events))

static const xp_types *types_of(PyTypeObject *type) { return xp_types_by(type, message_dealloc); }

/* --- its handles -------------------------------------------------------------------------------------------------- */

/* Return whether it is a message here. If it is not, raise the reason. */
static bool is_read(const xp_message_object *self, const char *name)
{
    if (self->parts.head.memory == 0)
        xp_no_such(self->unread, name);
    return self->parts.head.memory != 0;
}

static PyObject *handles_of(const xp_types *types, const xp_message_object *self, bool events)
{
    const uint8_t *at = events ? self->parts.events : self->parts.memory;
    uint32_t count = events ? self->parts.head.events : self->parts.head.memory;
    PyObject *made = PyTuple_New(count);
    for (uint32_t i = 0; made && i < count; i++, at += events ? XP_EVENT_NBYTES : sizeof(xp_handle)) {
        xp_handle h;
        unsigned long long point;
        memcpy(&h, at, sizeof h);
        PyObject *item = xp_handle_new(types, &h);
        if (item && events) {
            memcpy(&point, at + sizeof h, sizeof point);
            item = Py_BuildValue("(NK)", item, point);
        }
        if (item == NULL || PyTuple_SetItem(made, i, item) < 0)
            Py_CLEAR(made);
    }
    return made;
}

static PyObject *message_handles(PyObject *object, bool events)
{
    xp_message_object *self = (xp_message_object *)object;
    PyObject **place = events ? &self->events : &self->handles, *known = __atomic_load_n(place, __ATOMIC_ACQUIRE);
    if (known)
        return Py_NewRef(known);
    return is_read(self, events ? "events" : "handles")
               ? xp_set_once(place, handles_of(types_of(Py_TYPE(object)), self, events))
               : NULL;
}

static PyObject *message_memory(PyObject *self, void *Py_UNUSED(c)) { return message_handles(self, false); }
static PyObject *message_events(PyObject *self, void *Py_UNUSED(c)) { return message_handles(self, true); }

/* --- what it says ------------------------------------------------------------------------------------------------- */

static PyObject *message_bytes(PyObject *object, PyObject *Py_UNUSED(none))
{
    PyObject *raw = ((xp_message_object *)object)->raw;
    return raw ? Py_NewRef(raw) : PyBytes_FromStringAndSize("", 0);
}

static PyObject *message_text(PyObject *object, void *Py_UNUSED(c))
{
    const xp_message_object *self = (xp_message_object *)object;
    return is_read(self, "text")
               ? PyBytes_FromStringAndSize((const char *)self->parts.text, self->parts.head.text_nbytes)
               : NULL;
}

static PyObject *message_copied(PyObject *object, void *Py_UNUSED(c))
{
    const xp_message_object *self = (xp_message_object *)object;
    return is_read(self, "copied") ? PyLong_FromUnsignedLongLong(self->parts.head.copied) : NULL;
}

static PyObject *message_count(PyObject *object, void *Py_UNUSED(c))
{
    const xp_message_object *self = (xp_message_object *)object;
    return is_read(self, "count") ? PyLong_FromUnsignedLong(self->parts.head.arrays) : NULL;
}

/* flaw(item sizes): None, or the flaw of the first array that is not possible or does not lie in its memory, with dtypes
 * of these sizes, and its number */
static PyObject *message_flaw(PyObject *object, PyObject *sizes)
{
    const xp_message_object *self = (xp_message_object *)object;
    uint32_t few[16], *itemsizes = few;
    Py_ssize_t n = PyTuple_Check(sizes) ? PyTuple_Size(sizes) : -1;
    if (n < 0)
        return xp_refuse(PyExc_TypeError, "item sizes are a tuple");
    if (!is_read(self, "flaw") || (n > 16 && (itemsizes = PyMem_Calloc((size_t)n, sizeof *itemsizes)) == NULL))
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    int rc = 0;
    for (Py_ssize_t i = 0; i < n && rc == 0; i++)
        rc = xp_as_u32(PyTuple_GetItem(sizes, i), &itemsizes[i]);
    uint32_t leaf;
    xp_flaw flaw = rc < 0 ? XP_FLAWLESS : xp_read_leaves(&self->parts, itemsizes, (uint32_t)n, &leaf);
    PyObject *found = rc < 0 ? NULL : flaw ? Py_BuildValue("(iI)", flaw, leaf) : Py_NewRef(Py_None);
    if (itemsizes != few)
        PyMem_Free(itemsizes);
    return found;
}

/* Read the next array, and its lengths and strides. Returns false after the last one, or if it names something that
 * does not exist. */
static bool next_leaf(const xp_parts *m, uint32_t at, uint64_t *step, xp_leaf *l, int64_t *dims)
{
    if (at >= m->head.arrays)
        return false;
    memcpy(l, m->leaves + (size_t)at * sizeof *l, sizeof *l);
    if (l->ndim > XP_ARRAY_DIMS || *step + 2u * l->ndim > m->head.steps)
        return false;
    memcpy(dims, m->dims + 8 * *step, 16u * l->ndim);
    *step += 2u * l->ndim;
    return true;
}

/* elements(): for each array (memory, event or -1, shape, strides, dtype's number, offset) */
static PyObject *message_elements(PyObject *object, void *Py_UNUSED(c))
{
    const xp_parts *m = &((xp_message_object *)object)->parts;
    int64_t dims[2 * XP_ARRAY_DIMS];
    uint64_t step = 0;
    xp_leaf l;
    PyObject *found = PyList_New(0);
    for (uint32_t i = 0; found && next_leaf(m, i, &step, &l, dims); i++) {
        xp_append(&found, Py_BuildValue("(IiNNIK)", l.memory, (int)l.event - 1, xp_dims_tuple(dims, l.ndim),
                  xp_dims_tuple(dims + l.ndim, l.ndim), l.dtype, (unsigned long long)l.offset));
    }
    return found;
}

/* marks(): the set of (memory, event) of the arrays that have an event */
static PyObject *message_marks(PyObject *object, void *Py_UNUSED(c))
{
    const xp_parts *m = &((xp_message_object *)object)->parts;
    PyObject *found = PySet_New(NULL);
    for (uint32_t i = 0; found && m->head.events && i < m->head.arrays; i++) {
        xp_leaf l;
        memcpy(&l, m->leaves + (size_t)i * sizeof l, sizeof l);
        PyObject *mark = l.event ? Py_BuildValue("(II)", l.memory, l.event - 1) : NULL;
        if (l.event && (mark == NULL || PySet_Add(found, mark) < 0))
            Py_CLEAR(found);
        Py_XDECREF(mark);
    }
    return found;
}

/* --- its arrays --------------------------------------------------------------------------------------------------- */

/* Return the point that the readers of an array wait for, or NULL, with or without an exception. orders: by (memory,
 * event) */
static PyObject *order_of(PyObject *orders, const xp_leaf *l)
{
    PyObject *key = l->event && PyDict_Size(orders) ? Py_BuildValue("(II)", l->memory, l->event - 1) : NULL;
    PyObject *found = key ? Py_XNewRef(PyDict_GetItemWithError(orders, key)) : NULL;
    Py_XDECREF(key);
    return found;
}

/* arrays(ranges, dtypes, orders): a SharedArray for each; call `flaw` before. ranges: of each memory, or None for
 * memory that was not opened, whose arrays are None; orders: the points that the readers wait for, by (memory,
 * event) */
static PyObject *message_arrays(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_parts *m = &((xp_message_object *)object)->parts;
    const xp_types *types = types_of(Py_TYPE(object));
    if (xp_arity("arrays", n, 3, 3) < 0)
        return NULL;
    if (!PyList_Check(args[0]) || !PyTuple_Check(args[1]) || !PyDict_Check(args[2]) ||
        PyList_Size(args[0]) != m->head.memory)
        return xp_refuse(PyExc_TypeError, "arrays() takes a list with a range for each memory, a tuple and a dict");
    int64_t dims[2 * XP_ARRAY_DIMS];
    uint64_t step = 0;
    xp_leaf l;
    PyObject *found = PyList_New(m->head.arrays);
    for (uint32_t i = 0; found && i < m->head.arrays; i++) {
        PyObject *array = NULL;
        if (!next_leaf(m, i, &step, &l, dims) || l.memory >= m->head.memory || l.dtype >= PyTuple_Size(args[1]))
            PyErr_SetString(PyExc_ValueError, "the message has an array of what it does not have");
        PyObject *range = PyErr_Occurred() ? NULL : PyList_GetItem(args[0], l.memory);
        PyObject *order = range ? order_of(args[2], &l) : NULL;
        if (range == Py_None)
            array = Py_NewRef(Py_None);
        else if (!PyErr_Occurred())
            array = xp_array_new(types, Py_XNewRef(range), XP_RELAXED(&xp_fork_count),
                                 xp_dims_tuple(dims, l.ndim), xp_dims_tuple(dims + l.ndim, l.ndim),
                                 Py_NewRef(PyTuple_GetItem(args[1], l.dtype)), (int64_t)l.offset, Py_NewRef(object),
                                 Py_XNewRef(order));
        Py_XDECREF(order);
        if (array == NULL || PyList_SetItem(found, i, array) < 0)
            Py_CLEAR(found);
    }
    return found;
}

typedef struct {
    dl_dtype type;
    uint32_t itemsize;
} element;

/* For each dtype, DLPack's (code, bits, lanes) and the item size. NULL with an exception set. */
static element *elements_of(PyObject *dtypes, uint32_t n)
{
    element *kinds = PyMem_Calloc((size_t)n + 1, sizeof *kinds);
    for (uint32_t i = 0; kinds && i < n; i++) {
        unsigned char code, bits;
        unsigned short lanes;
        unsigned int itemsize;
        if (!PyArg_ParseTuple(PyTuple_GetItem(dtypes, i), "(bbH)I", &code, &bits, &lanes, &itemsize)) {
            PyMem_Free(kinds);
            return NULL;
        }
        kinds[i] = (element){{code, bits, lanes}, itemsize};
    }
    return kinds ? kinds : (void *)PyErr_NoMemory();
}

/* For each memory, (owner, address, (device type, id)). NULL with an exception set, after releasing everything made
 * so far. */
static xp_holder **holders_of(PyObject *places, uint32_t n)
{
    xp_holder **held = PyMem_Calloc((size_t)n + 1, sizeof *held);
    for (uint32_t i = 0; held && i < n; i++) {
        PyObject *owner;
        unsigned long long address;
        dl_device device;
        if (!PyArg_ParseTuple(PyTuple_GetItem(places, i), "OK(ii)", &owner, &address, &device.type, &device.id) ||
            (held[i] = xp_held_by(owner, address, device)) == NULL) {
            for (uint32_t made = 0; made < i; made++)
                xp_let_go(held[made]);
            PyMem_Free(held);
            return NULL;
        }
    }
    return held ? held : (void *)PyErr_NoMemory();
}

/* tensors(exchange, places, dtypes): see `holders_of` and `elements_of`. A list of the exchange's tensors, or None
 * if it has none for one of the arrays. */
static PyObject *message_tensors(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_parts *m = &((xp_message_object *)object)->parts;
    const dl_exchange *api = xp_arity("tensors", n, 3, 3) < 0 ? NULL : xp_exchange_of(args[0]);
    if (PyErr_Occurred())
        return NULL;
    if (api == NULL || api->to_object == NULL)
        Py_RETURN_NONE;
    if (!PyList_Check(args[1]) || !PyTuple_Check(args[2]) || PyList_Size(args[1]) != m->head.memory)
        return xp_refuse(PyExc_TypeError, "places are a list, one for each memory, and dtypes a tuple");
    uint32_t places = m->head.memory, dtypes = (uint32_t)PyTuple_Size(args[2]);
    PyObject *fixed = PyList_AsTuple(args[1]); /* the numbers in it may be objects that run Python */
    element *kinds = fixed ? elements_of(args[2], dtypes) : NULL;
    xp_holder **held = kinds ? holders_of(fixed, places) : NULL;
    PyObject *found = held ? PyList_New(0) : NULL;
    int64_t dims[2 * XP_ARRAY_DIMS];
    uint64_t step = 0;
    xp_leaf l;
    bool known = true;
    for (uint32_t i = 0; found && known && next_leaf(m, i, &step, &l, dims); i++) {
        uint32_t itemsize = l.memory < places && l.dtype < dtypes ? kinds[l.dtype].itemsize : 0;
        known = itemsize && xp_whole_steps(l.ndim, dims, itemsize);
        PyObject *tensor =
            known ? xp_tensor(api, held[l.memory], l.offset, l.ndim, dims, kinds[l.dtype].type, itemsize) : NULL;
        if (known && (tensor == NULL || PyList_Append(found, tensor) < 0)) {
            if (!PyErr_ExceptionMatches(PyExc_Exception))
                Py_CLEAR(found); /* an interrupt */
            else
                PyErr_Clear(); /* the consumer's own function says what is wrong */
            known = false;
        }
        Py_XDECREF(tensor);
    }
    for (uint32_t i = 0; held && i < places; i++)
        xp_let_go(held[i]);
    PyMem_Free(held);
    PyMem_Free(kinds);
    Py_XDECREF(fixed);
    if (found && !known) {
        Py_DECREF(found);
        Py_RETURN_NONE;
    }
    return found;
}

/* --- whose exports they are --------------------------------------------------------------------------------------- */

/* own(): it owns the exports that it names, in this process */
static PyObject *message_own(PyObject *object, PyObject *Py_UNUSED(none))
{
    xp_message_object *self = (xp_message_object *)object;
    self->owner = XP_RELAXED(&xp_fork_count);
    self->owns = true;
    Py_RETURN_NONE;
}

/* end(): close it, and return whether it owned its exports in this process */
static PyObject *message_end(PyObject *object, PyObject *Py_UNUSED(none))
{
    xp_message_object *self = (xp_message_object *)object;
    bool owned = __atomic_exchange_n(&self->owns, false, __ATOMIC_ACQ_REL);
    self->closed = true;
    return PyBool_FromLong(owned && self->owner == XP_RELAXED(&xp_fork_count));
}

/* --- others of the kind ------------------------------------------------------------------------------------------- */

/* _of(raw, why): see _native.pyi */
static PyObject *message_of(PyObject *class, PyObject *const *args, Py_ssize_t n)
{
    PyObject *made = xp_arity("_of", n, 2, 2) < 0
                         ? NULL
                         : xp_message_new(types_of((PyTypeObject *)class), args[0], NULL, NULL, NULL);
    if (made)
        ((xp_message_object *)made)->unread = Py_NewRef(args[1]);
    return made;
}

/* _following(newest): the same, as a separate object that was looked up by a name */
static PyObject *message_following(PyObject *object, PyObject *newest)
{
    const xp_message_object *self = (xp_message_object *)object;
    if (self->raw == NULL) /* made by its base's `__new__` alone */
        return PyErr_Format(PyExc_TypeError, "that is not a message");
    PyObject *made = xp_message_new(types_of(Py_TYPE(object)), self->raw, &self->parts, self->handles, self->events);
    if (made)
        ((xp_message_object *)made)->newest = Py_NewRef(newest);
    return made;
}

XP_TYPE(message_spec, "MessageState", xp_message_object, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
        {Py_tp_finalize, message_finalize}, {Py_tp_dealloc, message_dealloc},
        XP_FIELDS(XP_WEAKREFS(xp_message_object),
                  {"closed", T_BOOL, offsetof(xp_message_object, closed), READONLY, "Whether `close` was called."}),
        XP_METHODS({"__bytes__", message_bytes, METH_NOARGS, NULL},
                   {"_flaw", message_flaw, METH_O, NULL},
                   {"_arrays", XP_FAST(message_arrays), METH_FASTCALL, NULL},
                   {"_tensors", XP_FAST(message_tensors), METH_FASTCALL, NULL},
                   {"_own", message_own, METH_NOARGS, NULL},
                   {"_end", message_end, METH_NOARGS, NULL},
                   {"_following", message_following, METH_O, NULL},
                   {"_of", XP_FAST(message_of), METH_FASTCALL | METH_CLASS, NULL}),
        XP_GETSET({"_text", message_text, NULL, NULL, NULL},
                  {"_copied", message_copied, NULL, NULL, NULL},
                  {"_count", message_count, NULL, NULL, NULL},
                  {"_memory", message_memory, NULL, NULL, NULL},
                  {"_events", message_events, NULL, NULL, NULL},
                  {"_elements", message_elements, NULL, NULL, NULL},
                  {"_marks", message_marks, NULL, NULL, NULL},
                  XP_OBJECT("_unread", xp_message_object, unread),
                  XP_OBJECT("_newest", xp_message_object, newest)))

XP_PART(message, NULL, XP_KEEP(message_spec, message_base))
