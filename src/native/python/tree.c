/* Trees: TreeParts reads the handle of one, and makes its arrays; Leaves describes the arrays of one, and seals its
 * handle. What they do not know they leave to Python. */
#include "tree.h"
#include "dlpack.h"

#include <stdlib.h>

#define EVENT_NBYTES (sizeof(xp_handle) + sizeof(uint64_t))

/* --- TreeParts: what the bytes say -------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *raw;
    xp_tree_parts t; /* in these bytes */
} xp_parts;

static PyObject *read_tree(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    const xp_types *types = xp_types_of(module);
    const xp_key *key = xp_arity("read_tree", n, 2, 2) < 0 ? NULL : xp_key_of(types, args[0]);
    char *raw;
    Py_ssize_t nbytes;
    xp_tree_parts t;
    if (key == NULL || PyBytes_AsStringAndSize(args[1], &raw, &nbytes) < 0)
        return NULL;
    if (!xp_read_tree(key, raw, (size_t)nbytes, &t))
        Py_RETURN_NONE;
    xp_parts *self = (xp_parts *)PyType_GenericAlloc(types->tree_parts, 0);
    if (self) {
        self->raw = Py_NewRef(args[1]);
        self->t = t;
    }
    return (PyObject *)self;
}

static void parts_dealloc(PyObject *object)
{
    Py_XDECREF(((xp_parts *)object)->raw);
    xp_free(object);
}

static PyObject *new_handle(PyTypeObject *type, const xp_types *types, const uint8_t *at)
{
    xp_handle h;
    memcpy(&h, at, sizeof h);
    PyObject *raw = PyBytes_FromStringAndSize((const char *)at, sizeof h);
    PyObject *fields = raw ? xp_fields_new(types->fields, &h) : NULL;
    PyObject *made = fields ? PyType_GenericAlloc(type, 0) : NULL;
    if (made && (PyObject_SetAttrString(made, "_raw", raw) < 0 || PyObject_SetAttrString(made, "_fields", fields) < 0))
        Py_CLEAR(made);
    Py_XDECREF(raw);
    Py_XDECREF(fields);
    return made;
}

/* handles(Handle, boot_id): those of the memory, and (handle, point) of the events; None if one is of another boot */
static PyObject *parts_handles(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_parts *self = (xp_parts *)object;
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    char *boot;
    Py_ssize_t boot_nbytes;
    if (xp_arity("handles", n, 2, 2) < 0 || PyBytes_AsStringAndSize(args[1], &boot, &boot_nbytes) < 0)
        return NULL;
    if (!PyType_Check(args[0]) || boot_nbytes != sizeof(((xp_handle *)0)->boot_id)) {
        PyErr_SetString(PyExc_TypeError, "handles() takes a class and the boot's id");
        return NULL;
    }
    uint32_t counts[] = {self->t.head.memory, self->t.head.events};
    const uint8_t *at = self->t.memory;
    PyObject *made[2] = {NULL, NULL};
    for (int kind = 0; kind < 2; kind++) {
        if ((made[kind] = PyTuple_New(counts[kind])) == NULL)
            goto failed;
        for (uint32_t i = 0; i < counts[kind]; i++, at += kind ? EVENT_NBYTES : sizeof(xp_handle)) {
            if (memcmp(at + offsetof(xp_handle, boot_id), boot, (size_t)boot_nbytes) != 0) {
                Py_XDECREF(made[0]);
                Py_XDECREF(made[1]);
                Py_RETURN_NONE;
            }
            PyObject *handle = new_handle((PyTypeObject *)args[0], types, at);
            if (handle && kind) {
                unsigned long long point;
                memcpy(&point, at + sizeof(xp_handle), sizeof point);
                handle = Py_BuildValue("(NK)", handle, point);
            }
            if (handle == NULL)
                goto failed;
            PyTuple_SetItem(made[kind], i, handle);
        }
    }
    return Py_BuildValue("(NN)", made[0], made[1]);
failed:
    Py_XDECREF(made[0]);
    Py_XDECREF(made[1]);
    return NULL;
}

static PyObject *parts_text(PyObject *object, void *Py_UNUSED(c))
{
    const xp_tree_parts *t = &((xp_parts *)object)->t;
    return PyBytes_FromStringAndSize((const char *)t->text, t->head.text_nbytes);
}

static PyObject *parts_copied(PyObject *object, void *Py_UNUSED(c))
{
    return PyLong_FromUnsignedLongLong(((xp_parts *)object)->t.head.copied);
}

static Py_ssize_t parts_length(PyObject *object) { return ((xp_parts *)object)->t.head.arrays; }

/* Whether the arrays are good with dtypes of these sizes. -1 with an exception set */
static int good(const xp_parts *self, PyObject *sizes)
{
    Py_ssize_t n = PyTuple_Check(sizes) ? PyTuple_Size(sizes) : -1;
    if (n < 0) {
        PyErr_SetString(PyExc_TypeError, "item sizes are a tuple");
        return -1;
    }
    uint32_t *itemsizes = PyMem_Calloc((size_t)n + 1, sizeof *itemsizes);
    if (itemsizes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int found = 0;
    for (Py_ssize_t i = 0; i < n && found == 0; i++)
        found = xp_as_u32(PyTuple_GetItem(sizes, i), &itemsizes[i]);
    if (found == 0)
        found = xp_leaves_good(&self->t, itemsizes, (uint32_t)n);
    PyMem_Free(itemsizes);
    return found;
}

static PyObject *parts_good(PyObject *object, PyObject *sizes)
{
    int found = good((xp_parts *)object, sizes);
    return found < 0 ? NULL : PyBool_FromLong(found);
}

/* The next array, and its lengths and strides: false once there is none, or where it names what is not there. */
static bool next_leaf(const xp_tree_parts *t, uint32_t at, uint64_t *step, xp_leaf *l, int64_t *dims)
{
    if (at >= t->head.arrays)
        return false;
    memcpy(l, t->leaves + (size_t)at * sizeof *l, sizeof *l);
    if (l->ndim > XP_ARRAY_DIMS || *step + 2u * l->ndim > t->head.steps)
        return false;
    memcpy(dims, t->dims + 8 * *step, 16u * l->ndim);
    *step += 2u * l->ndim;
    return true;
}

/* elements(): for each array (memory, event or -1, shape, strides, dtype's number, offset) */
static PyObject *parts_elements(PyObject *object, PyObject *Py_UNUSED(none))
{
    const xp_tree_parts *t = &((xp_parts *)object)->t;
    int64_t dims[2 * XP_ARRAY_DIMS];
    uint64_t step = 0;
    xp_leaf l;
    PyObject *found = PyList_New(0);
    for (uint32_t i = 0; found && next_leaf(t, i, &step, &l, dims); i++) {
        PyObject *shape = xp_dims_tuple(dims, l.ndim), *strides = xp_dims_tuple(dims + l.ndim, l.ndim);
        PyObject *element = NULL;
        if (shape && strides)
            element = Py_BuildValue("(IiOOIK)", l.memory, (int)l.event - 1, shape, strides, l.dtype,
                                    (unsigned long long)l.offset);
        if (element == NULL || PyList_Append(found, element) < 0)
            Py_CLEAR(found);
        Py_XDECREF(shape);
        Py_XDECREF(strides);
        Py_XDECREF(element);
    }
    return found;
}

/* tensors(exchange, places, dtypes): `places` has (owner, address, (device type, id)) for each memory, `dtypes`
 * DLPack's (code, bits, lanes) and the item size for each dtype. A list of the exchange's tensors; None where it has
 * none for one of the arrays. */
static PyObject *parts_tensors(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_tree_parts *t = &((xp_parts *)object)->t;
    const dl_exchange *api = xp_arity("tensors", n, 3, 3) < 0 ? NULL : xp_exchange_of(args[0]);
    if (PyErr_Occurred())
        return NULL;
    if (api == NULL || api->to_object == NULL)
        Py_RETURN_NONE;
    if (!PyList_Check(args[1]) || !PyList_Check(args[2]) || PyList_Size(args[1]) != t->head.memory) {
        PyErr_SetString(PyExc_TypeError, "places and dtypes are lists, one place for each memory");
        return NULL;
    }
    uint32_t places = t->head.memory, dtypes = (uint32_t)PyList_Size(args[2]);
    xp_holder **held = PyMem_Calloc(places, sizeof *held);
    struct {
        dl_dtype type;
        uint32_t itemsize;
    } *kinds = PyMem_Calloc((size_t)dtypes + 1, sizeof *kinds);
    PyObject *found = held && kinds ? PyList_New(0) : PyErr_NoMemory();
    for (uint32_t i = 0; found && i < dtypes; i++) {
        unsigned char code, bits;
        unsigned short lanes;
        unsigned int itemsize;
        if (!PyArg_ParseTuple(PyList_GetItem(args[2], i), "(bbH)I", &code, &bits, &lanes, &itemsize))
            Py_CLEAR(found);
        else
            kinds[i].type = (dl_dtype){code, bits, lanes}, kinds[i].itemsize = itemsize;
    }
    for (uint32_t i = 0; found && i < places; i++) {
        PyObject *owner;
        unsigned long long address;
        dl_device device;
        if (!PyArg_ParseTuple(PyList_GetItem(args[1], i), "OK(ii)", &owner, &address, &device.type, &device.id) ||
            (held[i] = xp_held_by(owner, address, device)) == NULL)
            Py_CLEAR(found);
    }
    int64_t dims[2 * XP_ARRAY_DIMS];
    uint64_t step = 0;
    xp_leaf l;
    bool known = true;
    for (uint32_t i = 0; found && known && next_leaf(t, i, &step, &l, dims); i++) {
        uint32_t itemsize = l.memory < places && l.dtype < dtypes ? kinds[l.dtype].itemsize : 0;
        known = itemsize && xp_whole_steps(l.ndim, dims, itemsize);
        PyObject *tensor =
            known ? xp_tensor(api, held[l.memory], l.offset, l.ndim, dims, kinds[l.dtype].type, itemsize) : NULL;
        if (known && (tensor == NULL || PyList_Append(found, tensor) < 0)) {
            if (!PyErr_ExceptionMatches(PyExc_Exception))
                Py_CLEAR(found); /* an interrupt */
            else
                PyErr_Clear(); /* the consumer's own way says what is wrong */
            known = false;
        }
        Py_XDECREF(tensor);
    }
    for (uint32_t i = 0; held && i < places && held[i]; i++)
        xp_let_go(held[i]);
    PyMem_Free(held);
    PyMem_Free(kinds);
    if (found && !known) {
        Py_DECREF(found);
        Py_RETURN_NONE;
    }
    return found;
}

/* marks(): the set of (memory, event) of the arrays that have an event */
static PyObject *parts_marks(PyObject *object, PyObject *Py_UNUSED(none))
{
    const xp_tree_parts *t = &((xp_parts *)object)->t;
    PyObject *found = PySet_New(NULL);
    for (uint32_t i = 0; found && t->head.events && i < t->head.arrays; i++) {
        xp_leaf l;
        memcpy(&l, t->leaves + (size_t)i * sizeof l, sizeof l);
        PyObject *mark = l.event ? Py_BuildValue("(II)", l.memory, l.event - 1) : NULL;
        if (l.event && (mark == NULL || PySet_Add(found, mark) < 0))
            Py_CLEAR(found);
        Py_XDECREF(mark);
    }
    return found;
}

static PyGetSetDef parts_getset[] = {
    {"text", parts_text, NULL, NULL, NULL}, {"copied", parts_copied, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL},
};
static PyMethodDef parts_methods[] = {
    {"handles", XP_FAST(parts_handles), METH_FASTCALL, NULL},
    {"good", parts_good, METH_O, NULL},
    {"elements", parts_elements, METH_NOARGS, NULL},
    {"marks", parts_marks, METH_NOARGS, NULL},
    {"tensors", XP_FAST(parts_tensors), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot parts_slots[] = {
    {Py_tp_dealloc, parts_dealloc}, {Py_tp_getset, parts_getset}, {Py_tp_methods, parts_methods},
    {Py_sq_length, parts_length},   {0, NULL},
};
static PyType_Spec parts_spec = {"xpushare._native.TreeParts", sizeof(xp_parts), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, parts_slots};

/* --- Leaves: the arrays of a tree that is shared ------------------------------------------------------------------ */

#define KINDS_MOST 64u /* of arrays in one tree that are told apart; Python takes the rest */

/* Arrays that are described alike: of one type, on one device, with one type of element. */
typedef struct {
    PyTypeObject *type;
    dl_device device;
    dl_dtype dtype;
    PyObject *on; /* the device, once Python has looked at the first of them; borrowed from `held` */
} leaf_kind;

/* An allocation that arrays were found in. */
typedef struct {
    uint64_t start, end, low, high; /* low, high: of the arrays that were placed here */
    PyObject *allocation, *on;      /* itself and its device, as above */
    PyObject *arrays;               /* the list of those that were placed here */
} leaf_slot;

typedef struct {
    uint64_t address; /* of the first element, until `offset` is known */
    uint64_t start;   /* of the slot that it was placed in: slots may overlap */
    int64_t low, high;
    size_t dims; /* where lengths and strides begin in the pool; strides in bytes */
    uint32_t kind;
    bool viewed, placed, set;
    xp_leaf as;
} leaf;

typedef struct {
    PyObject_HEAD
    PyObject *arrays, *held; /* lists */
    Py_ssize_t n, at;        /* at: the first that is not placed */
    leaf *leaves;
    leaf_kind kinds[KINDS_MOST];
    uint32_t kind_count, slot_count, slot_room;
    leaf_slot *slots; /* sorted by their starts */
    int64_t *pool;
    size_t pool_used, pool_room;
} xp_leaves;

static void leaves_dealloc(PyObject *object)
{
    xp_leaves *self = (xp_leaves *)object;
    for (uint32_t i = 0; i < self->slot_count; i++)
        Py_XDECREF(self->slots[i].arrays);
    Py_XDECREF(self->arrays);
    Py_XDECREF(self->held);
    PyMem_Free(self->leaves);
    PyMem_Free(self->slots);
    PyMem_Free(self->pool);
    xp_free(object);
}

static int64_t *room_for(xp_leaves *self, size_t n)
{
    if (self->pool == NULL || self->pool_used + n > self->pool_room) { /* NULL says that memory is short */
        size_t room = 2 * self->pool_room + n + 64;
        int64_t *grown = PyMem_Realloc(self->pool, room * sizeof *grown);
        if (grown == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        self->pool = grown;
        self->pool_room = room;
    }
    int64_t *found = self->pool + self->pool_used;
    self->pool_used += n;
    return found;
}

/* Shape and strides in bytes of what was viewed; false: no array can be so, or memory is short (with an exception). */
static bool copy_dims(xp_leaves *self, leaf *l, const dl_tensor *t, int64_t itemsize)
{
    l->dims = self->pool_used;
    l->as.ndim = (uint16_t)t->ndim;
    int64_t *dims = room_for(self, 2 * (size_t)t->ndim);
    return dims && xp_viewed_dims(t, itemsize, dims, &l->low, &l->high);
}

static bool same(const leaf_kind *a, const leaf_kind *b)
{
    return a->type == b->type && a->device.type == b->device.type && a->device.id == b->device.id &&
           a->dtype.code == b->dtype.code && a->dtype.bits == b->dtype.bits && a->dtype.lanes == b->dtype.lanes;
}

/* Look at an array by its library's exchange API. -1 with an exception set */
static int view(xp_leaves *self, leaf *l, PyObject *array, const dl_exchange *api)
{
    dl_tensor t = {0};
    size_t used = self->pool_used;
    if (api->view(array, &t) != 0) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return -1;
        PyErr_Clear(); /* Python says why */
        return 0;
    }
    leaf_kind kind = {Py_TYPE(array), t.device, t.dtype, NULL};
    int64_t itemsize = (t.dtype.bits * t.dtype.lanes + 7) / 8;
    if (t.dtype.code == DL_COMPLEX || itemsize == 0 || t.ndim < 0 || t.ndim > (int)XP_ARRAY_DIMS ||
        (t.ndim && t.shape == NULL) || !copy_dims(self, l, &t, itemsize)) {
        self->pool_used = used;
        return PyErr_Occurred() ? -1 : 0;
    }
    for (l->kind = 0; l->kind < self->kind_count && !same(&self->kinds[l->kind], &kind);)
        l->kind++;
    if (l->kind == KINDS_MOST)
        return 0;
    if (l->kind == self->kind_count)
        self->kinds[self->kind_count++] = kind;
    l->address = (uint64_t)(uintptr_t)t.data + t.byte_offset;
    l->viewed = true;
    return 0;
}

static PyObject *leaves_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"arrays", NULL};
    PyObject *arrays;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!", names, &PyList_Type, &arrays))
        return NULL;
    xp_leaves *self = (xp_leaves *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->n = PyList_Size(arrays);
    self->arrays = PyList_AsTuple(arrays); /* nobody changes it while we look at it */
    self->held = PyList_New(0);
    self->leaves = PyMem_Calloc((size_t)self->n + 1, sizeof *self->leaves);
    if (self->leaves == NULL)
        PyErr_NoMemory();
    if (!(self->arrays && self->held && self->leaves))
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* view(exchange_of, differs): look at the arrays whose types have an exchange API by `exchange_of(type)`, but not at
 * those whose attribute of the name `differs` is true. */
static PyObject *leaves_view(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    xp_leaves *self = (xp_leaves *)object;
    PyTypeObject *last = NULL;
    const dl_exchange *api = NULL;
    if (xp_arity("view", n, 2, 2) < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < self->n; i++) {
        PyObject *array = PyTuple_GetItem(self->arrays, i);
        if (Py_TYPE(array) != last) {
            PyObject *capsule = PyObject_CallFunctionObjArgs(args[0], (PyObject *)Py_TYPE(array), NULL);
            if (capsule == NULL)
                return NULL;
            api = xp_exchange_of(capsule);
            Py_DECREF(capsule); /* the type has it, for good */
            last = Py_TYPE(array);
        }
        if (api == NULL || api->view == NULL)
            continue;
        PyObject *differs = PyObject_GetAttr(array, args[1]);
        if (differs == NULL && !PyErr_ExceptionMatches(PyExc_AttributeError))
            return NULL;
        PyErr_Clear();
        int other = differs ? PyObject_IsTrue(differs) : 0;
        Py_XDECREF(differs);
        if (other < 0 || (other == 0 && view(self, &self->leaves[i], array, api) < 0))
            return NULL;
    }
    Py_RETURN_NONE;
}

/* The slot that has these bytes, or NULL. */
static leaf_slot *slot_of(const xp_leaves *self, uint64_t first, uint64_t last)
{
    uint32_t low = 0, high = self->slot_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (self->slots[middle].start <= first)
            low = middle + 1;
        else
            high = middle;
    }
    leaf_slot *slot = low ? &self->slots[low - 1] : NULL;
    return slot && last <= slot->end ? slot : NULL;
}

/* Place the arrays that lie where earlier ones did, up to the next at which somebody has to look. -1: an exception is set;
 * 0: there is none; 1 */
static int place(xp_leaves *self)
{
    for (; self->at < self->n; self->at++) {
        leaf *l = &self->leaves[self->at];
        if (!l->viewed || self->kinds[l->kind].on == NULL)
            return 1;
        uint64_t first = l->address + (uint64_t)l->low, last = l->address + (uint64_t)l->high;
        leaf_slot *slot = slot_of(self, first, last);
        if (slot == NULL || slot->on != self->kinds[l->kind].on)
            return 1;
        if (slot->arrays == NULL && (slot->arrays = PyList_New(0)) == NULL)
            return -1;
        if (PyList_Append(slot->arrays, PyTuple_GetItem(self->arrays, self->at)) < 0)
            return -1;
        slot->low = first < slot->low ? first : slot->low;
        slot->high = last > slot->high ? last : slot->high;
        l->start = slot->start;
        l->placed = true;
    }
    return 0;
}

/* next(): see `place`: the index of that array, or None */
static PyObject *leaves_next(PyObject *object, PyObject *Py_UNUSED(none))
{
    int rc = place((xp_leaves *)object);
    return rc < 0 ? NULL : rc ? PyLong_FromSsize_t(((xp_leaves *)object)->at) : Py_NewRef(Py_None);
}

/* The array at which somebody has to look; NULL where it was not viewed. */
static const leaf *here(const xp_leaves *self)
{
    return self->at < self->n && self->leaves[self->at].viewed ? &self->leaves[self->at] : NULL;
}

/* where(): (kind, DLPack's device type, address of the lowest byte, bytes) of the array that `next` named; None where
 * it was not viewed */
static PyObject *leaves_where(PyObject *object, PyObject *Py_UNUSED(none))
{
    const xp_leaves *self = (xp_leaves *)object;
    const leaf *l = here(self);
    if (l == NULL)
        Py_RETURN_NONE;
    return Py_BuildValue("(IiKK)", l->kind, self->kinds[l->kind].device.type,
                         (unsigned long long)(l->address + (uint64_t)l->low), (unsigned long long)(l->high - l->low));
}

/* learn(start, nbytes, device, allocation): other arrays may lie there, too */
static PyObject *leaves_learn(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    uint64_t start, nbytes;
    if (xp_arity("learn", n, 4, 4) < 0 || xp_as_u64(args[0], &start) < 0 || xp_as_u64(args[1], &nbytes) < 0 ||
        xp_leaves_learn(object, start, nbytes, args[2], args[3]) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* allocation(address, nbytes): the one that has these bytes, or None */
static PyObject *leaves_allocation(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    uint64_t address, nbytes;
    if (xp_arity("allocation", n, 2, 2) < 0 || xp_as_u64(args[0], &address) < 0 || xp_as_u64(args[1], &nbytes) < 0)
        return NULL;
    const leaf_slot *slot = slot_of((xp_leaves *)object, address, address + nbytes);
    return Py_NewRef(slot ? slot->allocation : Py_None);
}

/* skip(device): Python places the array that `next` named. `device`: on which others of its kind need no look; or
 * None */
static PyObject *leaves_skip(PyObject *object, PyObject *device)
{
    xp_leaves *self = (xp_leaves *)object;
    if (self->at >= self->n) {
        PyErr_SetString(PyExc_IndexError, "there is no such array");
        return NULL;
    }
    const leaf *l = &self->leaves[self->at];
    if (device != Py_None && l->viewed) {
        if (PyList_Append(self->held, device) < 0)
            return NULL;
        self->kinds[l->kind].on = device;
    }
    self->at++;
    Py_RETURN_NONE;
}

/* placed(): for each allocation that arrays were placed in (itself, its start, the lowest byte, the one behind the
 * highest, the arrays) */
static PyObject *leaves_placed(PyObject *object, PyObject *Py_UNUSED(none))
{
    const xp_leaves *self = (xp_leaves *)object;
    PyObject *found = PyList_New(0);
    for (uint32_t i = 0; found && i < self->slot_count; i++) {
        const leaf_slot *slot = &self->slots[i];
        PyObject *item = slot->arrays == NULL ? NULL
                                              : Py_BuildValue("(OKKKO)", slot->allocation,
                                                              (unsigned long long)slot->start,
                                                              (unsigned long long)slot->low,
                                                              (unsigned long long)slot->high, slot->arrays);
        if (slot->arrays && (item == NULL || PyList_Append(found, item) < 0))
            Py_CLEAR(found);
        Py_XDECREF(item);
    }
    return found;
}

/* assign(memory, kinds): what was placed. memory: {start: (number of its memory, address of the first byte of that)};
 * kinds: (event or -1, number of the dtype) for each */
static PyObject *leaves_assign(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    xp_leaves *self = (xp_leaves *)object;
    if (xp_arity("assign", n, 2, 2) < 0)
        return NULL;
    if (!PyDict_Check(args[0]) || !PyDict_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "assign() takes two dicts");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < self->n; i++) {
        leaf *l = &self->leaves[i];
        if (!l->placed)
            continue;
        PyObject *start = PyLong_FromUnsignedLongLong(l->start), *kind = PyLong_FromUnsignedLong(l->kind);
        PyObject *memory = start ? PyDict_GetItemWithError(args[0], start) : NULL;
        PyObject *described = kind ? PyDict_GetItemWithError(args[1], kind) : NULL;
        unsigned long long base;
        int event;
        bool good = memory && described && PyArg_ParseTuple(memory, "IK", &l->as.memory, &base) &&
                    PyArg_ParseTuple(described, "iI", &event, &l->as.dtype);
        Py_XDECREF(start);
        Py_XDECREF(kind);
        if (!good) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_KeyError, "no such memory or kind");
            return NULL;
        }
        l->as.event = (uint32_t)(event + 1);
        l->as.offset = l->address - base;
        l->set = true;
    }
    Py_RETURN_NONE;
}

/* set(index, memory, event or -1, dtype's number, shape, strides, offset): an array that Python placed */
static PyObject *leaves_set(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    xp_leaves *self = (xp_leaves *)object;
    int64_t shape[XP_MAX_DIMS], strides[XP_MAX_DIMS];
    int event, ndim, nsteps;
    uint64_t index;
    xp_leaf as = {.reserved = 0};
    if (xp_arity("set", n, 7, 7) < 0 || xp_as_u64(args[0], &index) < 0 || xp_as_u32(args[1], &as.memory) < 0 ||
        xp_as_int(args[2], &event) < 0 || xp_as_u32(args[3], &as.dtype) < 0 ||
        xp_as_dims(args[4], "shape", shape, &ndim) < 0 || xp_as_dims(args[5], "strides", strides, &nsteps) < 0 ||
        xp_as_u64(args[6], &as.offset) < 0)
        return NULL;
    if (index >= (uint64_t)self->n || ndim < 0 || nsteps != ndim) {
        PyErr_SetString(PyExc_ValueError, "shape and strides differ in length, or there is no such array");
        return NULL;
    }
    leaf *l = &self->leaves[index];
    l->dims = self->pool_used;
    int64_t *dims = room_for(self, 2 * (size_t)ndim);
    if (dims == NULL)
        return NULL;
    memcpy(dims, shape, 8u * (size_t)ndim);
    memcpy(dims + ndim, strides, 8u * (size_t)ndim);
    as.event = (uint32_t)(event + 1);
    as.ndim = (uint16_t)ndim;
    l->as = as;
    l->set = true;
    Py_RETURN_NONE;
}

/* The bytes of all handles of a list, each followed by its point where there are `points`. NULL: an exception is set */
static char *copy_handles(char *at, PyObject *handles, PyObject *points)
{
    for (Py_ssize_t i = 0; i < PyList_Size(handles); i++) {
        char *raw;
        Py_ssize_t nbytes;
        uint64_t point;
        if (PyBytes_AsStringAndSize(PyList_GetItem(handles, i), &raw, &nbytes) < 0 ||
            (points && xp_as_u64(PyList_GetItem(points, i), &point) < 0))
            return NULL;
        if (nbytes != sizeof(xp_handle)) {
            PyErr_SetString(PyExc_ValueError, "that is no handle");
            return NULL;
        }
        at = (char *)memcpy(at, raw, sizeof(xp_handle)) + sizeof(xp_handle);
        if (points)
            at = (char *)memcpy(at, &point, sizeof point) + sizeof point;
    }
    return at;
}

/* seal(seal, memory, events, points, text, copied): the handle; None where it would be too large. Lists of bytes, of
 * points. */
static PyObject *leaves_seal(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_leaves *self = (xp_leaves *)object;
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    const xp_key *key = xp_arity("seal", n, 6, 6) < 0 ? NULL : xp_key_of(types, args[0]);
    char *text;
    Py_ssize_t text_nbytes;
    xp_tree head = {.magic = XP_TREE_MAGIC, .version = XP_TREE_VERSION};
    uint64_t steps = 0, copied;
    if (key == NULL || PyBytes_AsStringAndSize(args[4], &text, &text_nbytes) < 0 || xp_as_u64(args[5], &copied) < 0)
        return NULL;
    if (!PyList_Check(args[1]) || !PyList_Check(args[2]) || !PyList_Check(args[3]) ||
        PyList_Size(args[2]) != PyList_Size(args[3])) {
        PyErr_SetString(PyExc_TypeError, "seal() takes lists, with as many points as events");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < self->n; i++) {
        steps += 2u * self->leaves[i].as.ndim;
        if (!self->leaves[i].set) {
            PyErr_SetString(PyExc_ValueError, "not all arrays are described");
            return NULL;
        }
    }
    uint64_t nbytes = sizeof head + (uint64_t)PyList_Size(args[1]) * sizeof(xp_handle) +
                      (uint64_t)PyList_Size(args[2]) * EVENT_NBYTES + (uint64_t)self->n * sizeof(xp_leaf) + 8 * steps +
                      (uint64_t)text_nbytes + XP_SEAL;
    if (nbytes > XP_TREE_MOST)
        Py_RETURN_NONE;
    head.length = (uint32_t)nbytes;
    head.memory = (uint32_t)PyList_Size(args[1]);
    head.events = (uint32_t)PyList_Size(args[2]);
    head.arrays = (uint32_t)self->n;
    head.steps = (uint32_t)steps;
    head.text_nbytes = (uint32_t)text_nbytes;
    head.copied = copied;
    PyObject *raw = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)nbytes);
    if (raw == NULL)
        return NULL;
    char *begin = PyBytes_AsString(raw), *at = (char *)memcpy(begin, &head, sizeof head) + sizeof head;
    if ((at = copy_handles(at, args[1], NULL)) == NULL || (at = copy_handles(at, args[2], args[3])) == NULL) {
        Py_DECREF(raw);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < self->n; i++)
        at = (char *)memcpy(at, &self->leaves[i].as, sizeof(xp_leaf)) + sizeof(xp_leaf);
    for (Py_ssize_t i = 0; i < self->n; i++) {
        const leaf *l = &self->leaves[i];
        at = (char *)memcpy(at, self->pool + l->dims, 16u * l->as.ndim) + 16u * l->as.ndim;
    }
    at = (char *)memcpy(at, text, (size_t)text_nbytes) + text_nbytes;
    xp_hash(key, begin, (size_t)nbytes - XP_SEAL, (uint8_t *)at);
    return raw;
}

static PyMethodDef leaves_methods[] = {
    {"view", XP_FAST(leaves_view), METH_FASTCALL, NULL},   {"next", leaves_next, METH_NOARGS, NULL},
    {"where", leaves_where, METH_NOARGS, NULL},            {"learn", XP_FAST(leaves_learn), METH_FASTCALL, NULL},
    {"allocation", XP_FAST(leaves_allocation), METH_FASTCALL, NULL},
    {"skip", leaves_skip, METH_O, NULL},                   {"placed", leaves_placed, METH_NOARGS, NULL},
    {"assign", XP_FAST(leaves_assign), METH_FASTCALL, NULL}, {"set", XP_FAST(leaves_set), METH_FASTCALL, NULL},
    {"seal", XP_FAST(leaves_seal), METH_FASTCALL, NULL},   {NULL, NULL, 0, NULL},
};
static PyType_Slot leaves_slots[] = {
    {Py_tp_new, leaves_new}, {Py_tp_dealloc, leaves_dealloc}, {Py_tp_methods, leaves_methods}, {0, NULL},
};
static PyType_Spec leaves_spec = {"xpushare._native.Leaves", sizeof(xp_leaves), 0, Py_TPFLAGS_DEFAULT, leaves_slots};

/* --- for hand_over.c ---------------------------------------------------------------------------------------------- */

bool xp_leaves_next(PyObject *object, uint32_t *kind, uint64_t *address, uint64_t *nbytes)
{
    xp_leaves *self = (xp_leaves *)object;
    const leaf *l = place(self) > 0 ? here(self) : NULL;
    if (l) {
        *kind = l->kind;
        *address = l->address + (uint64_t)l->low;
        *nbytes = (uint64_t)(l->high - l->low);
    }
    return l != NULL;
}

int xp_leaves_learn(PyObject *object, uint64_t start, uint64_t nbytes, PyObject *device, PyObject *allocation)
{
    xp_leaves *self = (xp_leaves *)object;
    uint32_t at = self->slot_count;
    while (at && self->slots[at - 1].start > start)
        at--;
    if (at && self->slots[at - 1].start == start)
        return 0;
    if (self->slot_count == self->slot_room) {
        uint32_t room = 2 * self->slot_room + 16;
        leaf_slot *grown = PyMem_Realloc(self->slots, room * sizeof *grown);
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        self->slots = grown;
        self->slot_room = room;
    }
    if (PyList_Append(self->held, device) < 0 || PyList_Append(self->held, allocation) < 0)
        return -1;
    memmove(self->slots + at + 1, self->slots + at, (self->slot_count - at) * sizeof *self->slots);
    self->slots[at] = (leaf_slot){start, start + nbytes, UINT64_MAX, 0, allocation, device, NULL};
    self->slot_count++;
    return 0;
}

/* --- what contains the arrays ------------------------------------------------------------------------------------- */

#define DEPTH_MOST 64

/* What is not known here is Python's to describe or to refuse. */
static PyObject *declined(void) { return Py_NewRef(Py_NotImplemented); }

static bool is_int64(PyObject *x)
{
    int overflow = 0;
    if (!PyLong_CheckExact(x))
        return false;
    PyLong_AsLongLongAndOverflow(x, &overflow);
    return overflow == 0;
}

static bool stands_for_itself(PyObject *x)
{
    return x == Py_None || PyUnicode_CheckExact(x) || PyBool_Check(x) || PyFloat_CheckExact(x);
}

typedef struct {
    PyObject *arrays, *indices; /* a list; by the addresses of the arrays and containers: their number */
    Py_ssize_t left;            /* bytes that the message may still have */
} walk;

/* Its number, or -1 with an exception set. `number`: of one that is new */
static Py_ssize_t number_of(walk *w, PyObject *x, Py_ssize_t number)
{
    PyObject *key = PyLong_FromVoidPtr(x), *known = key ? PyDict_GetItemWithError(w->indices, key) : NULL;
    Py_ssize_t found = known ? PyLong_AsSsize_t(known) : -1;
    if (key && known == NULL && !PyErr_Occurred()) {
        PyObject *new = PyLong_FromSsize_t(number);
        if (new && PyDict_SetItem(w->indices, key, new) == 0)
            found = number;
        Py_XDECREF(new);
    }
    Py_XDECREF(key);
    return found;
}

static PyObject *flat(walk *w, PyObject *x, int depth);

static PyObject *flat_list(walk *w, PyObject *held, int depth)
{
    Py_ssize_t n = PyList_Size(held);
    PyObject *nodes = PyList_New(n);
    for (Py_ssize_t i = 0; nodes && i < n; i++) {
        PyObject *node = flat(w, PyList_GetItem(held, i), depth);
        if (node == NULL || node == Py_NotImplemented) {
            Py_DECREF(nodes);
            return node;
        }
        PyList_SetItem(nodes, i, node);
    }
    return nodes;
}

static PyObject *flat_container(walk *w, PyObject *x, int depth)
{
    bool dict = PyDict_CheckExact(x);
    Py_ssize_t size = PyObject_Size(x), before = PyDict_Size(w->indices);
    w->left -= 2 * size;
    if (depth >= DEPTH_MOST || w->left < 0)
        return declined();
    if (number_of(w, x, -2) == -1 && PyErr_Occurred())
        return NULL;
    if (PyDict_Size(w->indices) == before)
        return declined(); /* there twice */
    PyObject *keys = dict ? PyDict_Keys(x) : NULL;
    PyObject *held = dict ? PyDict_Values(x) : PySequence_List(x);
    PyObject *nodes = held && (keys || !dict) ? flat_list(w, held, depth + 1) : NULL, *found = NULL;
    for (Py_ssize_t i = 0; nodes && nodes != Py_NotImplemented && keys && i < PyList_Size(keys); i++) {
        PyObject *key = PyList_GetItem(keys, i);
        if (!PyUnicode_CheckExact(key) && !is_int64(key)) {
            Py_DECREF(nodes);
            nodes = declined();
        }
    }
    if (nodes == Py_NotImplemented)
        found = Py_NewRef(nodes);
    else if (nodes)
        found = dict ? Py_BuildValue("[sOO]", "d", keys, nodes)
                     : Py_BuildValue("[sO]", PyList_CheckExact(x) ? "l" : "t", nodes);
    Py_XDECREF(keys);
    Py_XDECREF(held);
    Py_XDECREF(nodes);
    return found;
}

static PyObject *flat(walk *w, PyObject *x, int depth)
{
    if (stands_for_itself(x))
        return Py_NewRef(x);
    if (PyLong_CheckExact(x))
        return is_int64(x) ? Py_BuildValue("[sO]", "i", x) : declined();
    if (PyDict_CheckExact(x) || PyList_CheckExact(x) || PyTuple_CheckExact(x))
        return flat_container(w, x, depth);
    if (PyDict_Check(x) || PyList_Check(x) || PyTuple_Check(x) || PyFloat_Check(x))
        return declined();
    Py_ssize_t next = PyList_Size(w->arrays), index = number_of(w, x, next);
    if (index < 0 || (index == next && PyList_Append(w->arrays, x) < 0))
        return NULL;
    return PyLong_FromSsize_t(index);
}

/* flatten(tree, most): (the arrays, the tree in terms of JSON); NotImplemented where Python has to look */
static PyObject *flatten(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n)
{
    if (xp_arity("flatten", n, 2, 2) < 0)
        return NULL;
    walk w = {PyList_New(0), PyDict_New(), PyLong_AsSsize_t(args[1])};
    PyObject *node = w.arrays && w.indices && !PyErr_Occurred() ? flat(&w, args[0], 0) : NULL, *found = NULL;
    if (node)
        found = node == Py_NotImplemented ? Py_NewRef(node) : Py_BuildValue("(OO)", w.arrays, node);
    Py_XDECREF(node);
    Py_XDECREF(w.arrays);
    Py_XDECREF(w.indices);
    return found;
}

static PyObject *built(PyObject *x, PyObject *arrays, Py_ssize_t n, int depth);

static PyObject *built_list(PyObject *nodes, PyObject *arrays, Py_ssize_t n, int depth)
{
    Py_ssize_t size = PyList_Size(nodes);
    PyObject *made = PyList_New(size);
    for (Py_ssize_t i = 0; made && i < size; i++) {
        PyObject *element = built(PyList_GetItem(nodes, i), arrays, n, depth);
        if (element == NULL || element == Py_NotImplemented) {
            Py_DECREF(made);
            return element;
        }
        PyList_SetItem(made, i, element);
    }
    return made;
}

static PyObject *built_dict(PyObject *keys, PyObject *values)
{
    Py_ssize_t n = PyList_Size(keys);
    PyObject *made = PyDict_New();
    for (Py_ssize_t i = 0; made && i < n; i++) {
        PyObject *key = PyList_GetItem(keys, i);
        if (!PyUnicode_CheckExact(key) && !is_int64(key)) {
            Py_DECREF(made);
            return declined();
        }
        if (PyDict_SetItem(made, key, PyList_GetItem(values, i)) < 0)
            Py_CLEAR(made);
    }
    if (made && PyDict_Size(made) != n) { /* one is there twice */
        Py_DECREF(made);
        return declined();
    }
    return made;
}

static PyObject *built(PyObject *x, PyObject *arrays, Py_ssize_t n, int depth)
{
    if (PyLong_CheckExact(x)) {
        int overflow;
        long long index = PyLong_AsLongLongAndOverflow(x, &overflow);
        return overflow || index < 0 || index >= n ? declined() : PySequence_GetItem(arrays, (Py_ssize_t)index);
    }
    if (stands_for_itself(x))
        return Py_NewRef(x);
    Py_ssize_t size = PyList_CheckExact(x) ? PyList_Size(x) : 0;
    PyObject *tag = size ? PyList_GetItem(x, 0) : NULL, *held = size ? PyList_GetItem(x, size - 1) : NULL;
    if (tag == NULL || !PyUnicode_CheckExact(tag))
        return declined();
    if (size == 2 && PyUnicode_CompareWithASCIIString(tag, "i") == 0)
        return is_int64(held) ? Py_NewRef(held) : declined();
    bool list = PyUnicode_CompareWithASCIIString(tag, "l") == 0;
    bool tuple = PyUnicode_CompareWithASCIIString(tag, "t") == 0;
    bool dict = PyUnicode_CompareWithASCIIString(tag, "d") == 0;
    PyObject *keys = dict && size == 3 ? PyList_GetItem(x, 1) : NULL;
    if (depth >= DEPTH_MOST || !PyList_CheckExact(held) || !(dict ? keys != NULL : (list || tuple) && size == 2) ||
        (dict && (!PyList_CheckExact(keys) || PyList_Size(keys) != PyList_Size(held))))
        return declined();
    PyObject *elements = built_list(held, arrays, n, depth + 1), *made;
    if (elements == NULL || elements == Py_NotImplemented || list)
        return elements;
    made = dict ? built_dict(keys, elements) : PyList_AsTuple(elements);
    Py_DECREF(elements);
    return made;
}

/* unflatten(described, arrays): the tree; NotImplemented where Python has to look */
static PyObject *unflatten(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t n)
{
    Py_ssize_t size = xp_arity("unflatten", n, 2, 2) < 0 ? -1 : PySequence_Size(args[1]);
    return size < 0 ? NULL : built(args[0], args[1], size, 0);
}

static PyMethodDef functions[] = {
    {"read_tree", XP_FAST(read_tree), METH_FASTCALL, NULL},
    {"flatten", XP_FAST(flatten), METH_FASTCALL, NULL},
    {"unflatten", XP_FAST(unflatten), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

int xp_init_tree(PyObject *module)
{
    if (PyModule_AddFunctions(module, functions) < 0 ||
        xp_keep_type(module, &leaves_spec, &xp_types_of(module)->leaves) < 0)
        return -1;
    return xp_keep_type(module, &parts_spec, &xp_types_of(module)->tree_parts);
}
