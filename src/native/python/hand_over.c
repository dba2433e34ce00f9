/* HandOver: `share` and `attach` of the common case, one call each. They take the steps that Python takes, by the same C
 * or by Python's own functions; whatever else comes is None, and then Python goes all of its way, with its decisions and
 * errors. */
#include "dlpack.h"
#include "foreign.h"
#include "objects.h"

/* What the package gives at the start. */
#define KIT(_)                                                                                                        \
    _(SharedArray) _(ArrayHandle) _(Handle) _(Range) _(Parts) _(Allocation) _(Exported) _(End) _(Opener) _(Device)    \
        _(Import) _(Export) _(Node) _(Table) _(Implicit) _(Located) _(Peers) _(Peer) /* classes */                    \
        _(decided) _(texts) _(dtypes) _(lasting)                   /* dicts that it fills */                          \
        _(off) _(layers_on) _(here) _(sealings) _(boot_ids)        /* the first two are empty, the others have one item or none */    \
        _(memfd) _(prepared_by) _(decode_dtype) _(order_of)        /* Form.MEMFD; steps in Python */                  \
        _(exchange_of) _(kind_of) _(range_at) _(current_mark) _(mark) _(offer)
/* Names of attributes and methods. */
#define NAMES(_)                                                                                                      \
    _(has_streams) _(acquire) _(release) _(_sweep) _(acquire_known) _(handle) _(sweep) _(withdraw) _(forget) _(_remember)         \
        _(setdefault) _(meet) _(_discard) _(import_memory) _(address) _(nbytes) _(host_accessible) _(device)          \
        _(lasting_export) _(export) _(requires_grad) _(recogniser) _(object_named) \
        _(find) _(maps) _(_starts)
/* Slots of these classes, which are read and set without a search for their names. */
#define SLOTS(_)                                                                                                      \
    _(SharedArray, _held) _(SharedArray, _forks) _(SharedArray, _shape) _(SharedArray, _strides)                      \
    _(SharedArray, _offset) _(SharedArray, _dtype) _(SharedArray, _pinned) _(SharedArray, _handle)                    \
    _(SharedArray, _order) _(SharedArray, _implicit)                                                                  \
    _(ArrayHandle, _raw) _(ArrayHandle, _parts) _(ArrayHandle, _held) _(ArrayHandle, _dtype) _(ArrayHandle, _owner)   \
    _(Handle, _raw) _(Handle, _fields)                                                                                \
    _(Allocation, device) _(Allocation, driver) _(Allocation, forks) _(Allocation, _end) _(Allocation, kind)          \
    _(Allocation, address) _(Allocation, nbytes) _(Allocation, host_accessible) _(Allocation, imported)               \
    _(Allocation, foreign) _(Allocation, source) _(Allocation, prepared) _(Allocation, _handle)                       \
    _(Allocation, _earlier) _(Allocation, _serial) _(Allocation, _name)                                               \
    _(End, _release) _(End, _arguments) _(End, _forks) _(End, forget) _(End, keep)                                    \
    _(Exported, handle) _(Exported, source) _(Exported, keep) _(Exported, foreign) _(Exported, implicit)              \
    _(Exported, nbytes) _(Exported, outlives) _(Exported, deadline)                                                   \
    _(Opener, admit) _(Opener, maps) _(Opener, room)                                                                  \
    _(Device, _adapter) _(Device, _info)                                                                              \
    _(Node, _table) _(Node, peers) _(Node, allocations) _(Node, foreign)                                                                                    \
    _(Table, _lock) _(Table, _serving) _(Table, _lingering) _(Table, _ending) _(Table, _entries) _(Table, domain)     \
    _(Table, _exports) _(Table, exporting) _(Implicit, handle)                                                        \
    _(Peers, _peers) _(Peers, _cache) _(Peer, table)

#define ENUM(name) K_##name,
enum { KIT(ENUM) KIT_SIZE };
#undef ENUM
#define ENUM(name) N_##name,
enum { NAMES(ENUM) NAMES_SIZE };
#undef ENUM
#define ENUM(class, name) S_##class##_##name,
enum { SLOTS(ENUM) SLOTS_SIZE };
#define TEXT(name) #name,
static const char *const kit_texts[] = {KIT(TEXT)}, *const name_texts[] = {NAMES(TEXT)};
#define CLASS_AND_TEXT(class, name) {K_##class, #name},
static const struct {
    int class;
    const char *name;
} slot_texts[] = {SLOTS(CLASS_AND_TEXT)};

typedef struct {
    PyObject_HEAD
    PyObject *kit[KIT_SIZE], *names[NAMES_SIZE], *slots[SLOTS_SIZE];
    descrgetfunc get; /* of each of the slots */
    descrsetfunc set;
} xp_hand_over;

static int over_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    for (int i = 0; i < KIT_SIZE; i++)
        Py_VISIT(((xp_hand_over *)object)->kit[i]);
    for (int i = 0; i < SLOTS_SIZE; i++)
        Py_VISIT(((xp_hand_over *)object)->slots[i]);
    return 0;
}

static int over_clear(PyObject *object)
{
    for (int i = 0; i < KIT_SIZE; i++)
        Py_CLEAR(((xp_hand_over *)object)->kit[i]);
    for (int i = 0; i < SLOTS_SIZE; i++)
        Py_CLEAR(((xp_hand_over *)object)->slots[i]);
    return 0;
}

static void over_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    over_clear(object);
    for (int i = 0; i < NAMES_SIZE; i++)
        Py_XDECREF(((xp_hand_over *)object)->names[i]);
    xp_free(object);
}

/* The descriptors of the slots, which are all of one type. */
static bool find_slots(xp_hand_over *self)
{
    for (int i = 0; i < SLOTS_SIZE; i++) {
        PyObject *class = self->kit[slot_texts[i].class];
        if ((self->slots[i] = PyObject_GetAttrString(class, slot_texts[i].name)) == NULL)
            return false;
        if (Py_TYPE(self->slots[i]) != Py_TYPE(self->slots[0])) {
            PyErr_Format(PyExc_TypeError, "%R is no slot", self->slots[i]);
            return false;
        }
    }
    self->get = (descrgetfunc)PyType_GetSlot(Py_TYPE(self->slots[0]), Py_tp_descr_get);
    self->set = (descrsetfunc)PyType_GetSlot(Py_TYPE(self->slots[0]), Py_tp_descr_set);
    if (self->get == NULL || self->set == NULL)
        PyErr_SetString(PyExc_TypeError, "the classes have no slots");
    return !PyErr_Occurred();
}

static PyObject *over_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (PyTuple_Size(args) || kwargs == NULL || PyDict_Size(kwargs) != KIT_SIZE) {
        PyErr_Format(PyExc_TypeError, "HandOver() takes %d keyword arguments", KIT_SIZE);
        return NULL;
    }
    xp_hand_over *self = (xp_hand_over *)PyType_GenericAlloc(type, 0);
    bool good = self != NULL;
    for (int i = 0; good && i < NAMES_SIZE; i++)
        good = (self->names[i] = PyUnicode_InternFromString(name_texts[i])) != NULL;
    for (int i = 0; good && i < KIT_SIZE; i++) {
        self->kit[i] = Py_XNewRef(PyDict_GetItemString(kwargs, kit_texts[i]));
        if (!(good = self->kit[i] != NULL))
            PyErr_Format(PyExc_TypeError, "HandOver() needs %s", kit_texts[i]);
    }
    for (int i = K_SharedArray; good && i <= K_Peer; i++)
        if (!(good = PyType_Check(self->kit[i])))
            PyErr_Format(PyExc_TypeError, "%s is a class", kit_texts[i]);
    for (int i = K_decided; good && i <= K_lasting; i++)
        if (!(good = PyDict_Check(self->kit[i])))
            PyErr_Format(PyExc_TypeError, "%s is a dict", kit_texts[i]);
    for (int i = K_off; good && i <= K_boot_ids; i++)
        if (!(good = PyList_Check(self->kit[i])))
            PyErr_Format(PyExc_TypeError, "%s is a list", kit_texts[i]);
    if (!good || !find_slots(self))
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* --- helpers ------------------------------------------------------------------------------------------------------ */

#define GET(object, name) PyObject_GetAttr(object, self->names[N_##name])
#define SET(object, name, value) (PyObject_SetAttr(object, self->names[N_##name], value) == 0)
#define READ(object, class, name) self->get(self->slots[S_##class##_##name], object, self->kit[K_##class])
#define WRITE(object, class, name, value) (self->set(self->slots[S_##class##_##name], object, value) == 0)
#define CLASS(name) ((PyTypeObject *)self->kit[K_##name])
#define CALL(function, ...) PyObject_CallFunctionObjArgs(self->kit[K_##function], __VA_ARGS__, NULL)
#define METHOD(object, name, ...) PyObject_CallMethodObjArgs(object, self->names[N_##name], ##__VA_ARGS__, NULL)

/* dict[key], or NULL without an exception: the caller asks PyErr_Occurred. A new reference. */
static PyObject *found_in(PyObject *dict, PyObject *key)
{
#ifdef Py_GIL_DISABLED
    PyObject *value;
    return PyDict_GetItemRef(dict, key, &value) < 0 ? NULL : value;
#else
    return Py_XNewRef(PyDict_GetItemWithError(dict, key));
#endif
}

/* A plain tuple, whose reference it takes over, as an instance of a named tuple; NULL stays NULL. By `tuple.__new__`:
 * tuples know of themselves more than their items. */
static PyObject *as_named(PyTypeObject *type, PyObject *plain)
{
    PyObject *args = plain ? PyTuple_New(1) : NULL;
    if (args == NULL) {
        Py_XDECREF(plain);
        return NULL;
    }
    PyTuple_SetItem(args, 0, plain);
    PyObject *made = ((newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new))(type, args, NULL);
    Py_DECREF(args);
    return made;
}

/* Takes over the references, also where it fails, one of which may be NULL then. */
static PyObject *plain_tuple(Py_ssize_t n, PyObject **items)
{
    bool good = true;
    for (Py_ssize_t i = 0; i < n; i++)
        good = good && items[i];
    PyObject *plain = good ? PyTuple_New(n) : NULL;
    for (Py_ssize_t i = 0; i < n; i++)
        if (plain)
            PyTuple_SetItem(plain, i, items[i]);
        else
            Py_XDECREF(items[i]);
    return plain;
}

/* An instance of a named tuple; takes over the references as `plain_tuple` does. */
static PyObject *named_tuple(PyTypeObject *type, Py_ssize_t n, PyObject **items)
{
    return as_named(type, plain_tuple(n, items));
}

static PyObject *new_handle(const xp_hand_over *self, const xp_types *types, const xp_handle *h)
{
    PyObject *raw = PyBytes_FromStringAndSize((const char *)h, sizeof *h);
    PyObject *fields = raw ? xp_fields_new(types->fields, h) : NULL;
    PyObject *made = fields ? PyType_GenericAlloc(CLASS(Handle), 0) : NULL;
    if (made && !(WRITE(made, Handle, _raw, raw) && WRITE(made, Handle, _fields, fields)))
        Py_CLEAR(made);
    Py_XDECREF(raw);
    Py_XDECREF(fields);
    return made;
}

static PyObject *new_array_handle(const xp_hand_over *self, PyObject *raw, PyObject *parts, PyObject *owner)
{
    PyObject *made = PyType_GenericAlloc(CLASS(ArrayHandle), 0);
    if (made && !(WRITE(made, ArrayHandle, _raw, raw) && WRITE(made, ArrayHandle, _parts, parts) &&
                  WRITE(made, ArrayHandle, _held, parts) && WRITE(made, ArrayHandle, _dtype, Py_None) &&
                  WRITE(made, ArrayHandle, _owner, owner)))
        Py_CLEAR(made);
    return made;
}

/* The only item of a list that loses none, borrowed; NULL if it has none yet. */
static PyObject *only(const xp_hand_over *self, int list)
{
    if (PyList_Size(self->kit[list]) == 0)
        return NULL;
#ifdef Py_GIL_DISABLED
    PyObject *item = PyList_GetItemRef(self->kit[list], 0); /* it may be growing: the list's storage moves then */
    Py_XDECREF(item);
    return item;
#else
    return PyList_GetItem(self->kit[list], 0);
#endif
}

static bool has_items(const xp_hand_over *self, int list) { return PyList_Size(self->kit[list]) != 0; }

/* NULL where Python goes all of its way, or has not made the seal yet. */
static const xp_key *key_if_on(const xp_hand_over *self, const xp_types *types)
{
    PyObject *seal = has_items(self, K_off) || has_items(self, K_layers_on) ? NULL : only(self, K_sealings);
    return seal ? xp_key_of(types, seal) : NULL;
}

/* None unless the last call failed. */
static PyObject *declined(void) { return PyErr_Occurred() ? NULL : Py_NewRef(Py_None); }

/* --- attach ------------------------------------------------------------------------------------------------------- */

static bool of_boot(const xp_handle *h, const char *boot) { return memcmp(h->boot_id, boot, sizeof h->boot_id) == 0; }

static PyObject *key_of(const xp_handle *h, PyObject *opener)
{
    PyObject *items[] = {PyBytes_FromStringAndSize((const char *)h->cookie, sizeof h->cookie),
                         PyLong_FromUnsignedLongLong(h->object), Py_NewRef(opener),
                         PyLong_FromUnsignedLong(h->flags & (XP_ENTRY_READ_ONLY | XP_ENTRY_PICKLED))};
    return plain_tuple(4, items);
}

/* Whether what is opened so comes mapped, and is not kept for a moment when it is closed. */
static bool only_maps(const xp_hand_over *self, PyObject *opener)
{
    PyObject *admit = READ(opener, Opener, admit), *maps = READ(opener, Opener, maps);
    PyObject *room = READ(opener, Opener, room);
    bool found = admit == Py_None && maps == Py_True && room == Py_None;
    Py_XDECREF(admit);
    Py_XDECREF(maps);
    Py_XDECREF(room);
    return found;
}

/* The allocation of a mapping: what `Opener.make` makes of it. `forget`: called with the key when it has died. */
static PyObject *imported(const xp_hand_over *self, PyObject *memory, const xp_entry *e, PyObject *mapping,
                          PyObject *device, PyObject *forget, PyObject *key)
{
    PyObject *items[] = {PyLong_FromUnsignedLongLong(e->nbytes), PyLong_FromUnsignedLongLong(e->exposed_nbytes),
                         PyBytes_FromStringAndSize(NULL, 0), PyList_New(0),
                         PyBool_FromLong(e->flags & XP_ENTRY_READ_ONLY), Py_NewRef(mapping),
                         Py_NewRef(self->kit[K_memfd]), PyLong_FromUnsignedLongLong(e->offset), Py_NewRef(Py_None),
                         Py_NewRef(Py_False)};
    PyObject *what = named_tuple(CLASS(Import), 10, items), *adapter = READ(device, Device, _adapter);
    PyObject *info = READ(device, Device, _info), *made = NULL;
    PyObject *driver = what && adapter && info ? METHOD(adapter, import_memory, info, what) : NULL;
    PyObject *forks = PyLong_FromUnsignedLong(XP_RELAXED(&xp_fork_count)), *zero = PyLong_FromLong(0);
    PyObject *none = PyTuple_New(0), *earlier = PyDict_New(), *forgets = PyTuple_Pack(2, forget, key);
    PyObject *release = driver ? GET(driver, release) : NULL;
    PyObject *address = release ? GET(driver, address) : NULL, *nbytes = address ? GET(driver, nbytes) : NULL;
    PyObject *accessible = nbytes ? GET(driver, host_accessible) : NULL;
    PyObject *end = accessible && forks && zero && none && earlier && forgets ? PyType_GenericAlloc(CLASS(End), 0) : NULL;
    if (end && WRITE(end, End, forget, forgets) && WRITE(end, End, keep, Py_None) && WRITE(end, End, _release, release) &&
        WRITE(end, End, _arguments, none) && WRITE(end, End, _forks, forks))
        made = PyType_GenericAlloc(CLASS(Allocation), 0);
    if (made &&
        !(WRITE(made, Allocation, device, device) && WRITE(made, Allocation, driver, driver) &&
          WRITE(made, Allocation, forks, forks) && WRITE(made, Allocation, _end, end) &&
          WRITE(made, Allocation, kind, self->names[N_device]) && WRITE(made, Allocation, address, address) &&
          WRITE(made, Allocation, nbytes, nbytes) && WRITE(made, Allocation, host_accessible, accessible) &&
          WRITE(made, Allocation, imported, Py_True) && WRITE(made, Allocation, foreign, Py_False) &&
          WRITE(made, Allocation, source, Py_None) && WRITE(made, Allocation, prepared, Py_None) &&
          WRITE(made, Allocation, _handle, memory) && WRITE(made, Allocation, _earlier, earlier) &&
          WRITE(made, Allocation, _serial, zero) && WRITE(made, Allocation, _name, Py_None)))
        Py_CLEAR(made);
    PyObject *all[] = {what, adapter, info, driver, forks, zero, none, earlier, forgets, release, address, nbytes,
                       accessible, end};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XDECREF(all[i]);
    return made;
}

/* What the cache has under the key from now on: the allocation, or what another thread made first. */
static PyObject *remember(const xp_hand_over *self, PyObject *peers, PyObject *cache, PyObject *key, PyObject *made)
{
    PyObject *own = PyWeakref_NewRef(made, NULL), *found = own ? METHOD(cache, setdefault, key, own) : NULL;
    PyObject *kept = found == NULL ? NULL : found == own ? Py_NewRef(made) : METHOD(peers, _remember, key, made);
    Py_XDECREF(own);
    Py_XDECREF(found);
    return kept;
}

/* (the allocation, the hold) where that is a mapping that this process does not have yet; NULL: see `declined`. */
static PyObject *open_mapped(const xp_hand_over *self, const xp_types *types, const xp_handle *h, PyObject *memory,
                             PyObject *peers, PyObject *cache, PyObject *peer, PyObject *device, PyObject *key)
{
    PyObject *table = READ(peer, Peer, table), *lease = NULL, *forget = NULL, *found = NULL;
    xp_entry e;
    PyObject *mapping = table ? xp_open_mapped(types, table, h, peer, &e, &lease) : NULL;
    if (mapping)
        forget = GET(peers, forget);
    PyObject *made = forget ? imported(self, memory, &e, mapping, device, forget, key) : NULL;
    PyObject *kept = made ? remember(self, peers, cache, key, made) : NULL;
    if (kept)
        found = PyTuple_Pack(2, kept, lease);
    PyObject *all[] = {table, forget, mapping, made, kept, lease};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XDECREF(all[i]);
    return found;
}

/* As the property's setter does it. */
static bool set_handle(const xp_hand_over *self, const xp_types *types, const xp_handle *h, PyObject *memory,
                       PyObject *allocation)
{
    PyObject *before = READ(allocation, Allocation, _handle);
    PyObject *fields = before && Py_TYPE(before) == CLASS(Handle) ? READ(before, Handle, _fields) : NULL;
    const xp_handle *old = fields ? xp_fields_of(types, fields) : NULL;
    bool same = old && (h->flags & XP_ENTRY_PICKLED ? old->generation == h->generation
                                                    : old->offset == h->offset && old->nbytes == h->nbytes);
    Py_XDECREF(fields);
    Py_XDECREF(before);
    return same ? WRITE(allocation, Allocation, _handle, memory) : before && SET(allocation, handle, memory);
}

/* (the allocation, the hold) of what is open already, by a weak reference to it. The hold is first: a handle that is
 * refused renews nothing. NULL: see `declined`. */
static PyObject *open_again(const xp_hand_over *self, const xp_types *types, const xp_handle *h, PyObject *memory,
                            PyObject *peer, PyObject *known)
{
    PyObject *table = READ(peer, Peer, table), *lease = table ? xp_hold_live(types, table, h, peer) : NULL;
    PyObject *allocation = lease ? PyObject_CallNoArgs(known) : NULL, *found = NULL;
    if (allocation && allocation != Py_None && set_handle(self, types, h, memory, allocation))
        found = PyTuple_Pack(2, allocation, lease);
    Py_XDECREF(table);
    Py_XDECREF(lease);
    Py_XDECREF(allocation);
    return found;
}

/* What `acquire_known` returns. Where that fails, Python tries again: it may find room, or another way. */
static PyObject *acquire_known(const xp_hand_over *self, PyObject *memory, PyObject *peers, PyObject *key,
                               PyObject *opener)
{
    PyObject *acquired = METHOD(peers, acquire_known, memory, key, opener);
    if (acquired == NULL && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear();
    if (acquired && !(PyTuple_Check(acquired) && PyTuple_Size(acquired) == 2 &&
                      SET(PyTuple_GetItem(acquired, 0), handle, memory)))
        Py_CLEAR(acquired); /* None */
    return acquired;
}

/* (what is mapped, the hold) from an exporter that this process has met; NULL: see `declined`. */
static PyObject *acquire_from(const xp_hand_over *self, const xp_types *types, const xp_handle *h, PyObject *memory,
                              PyObject *peers, PyObject *cache, PyObject *peer, PyObject *opener, PyObject *device,
                              PyObject *key)
{
    PyObject *known = found_in(cache, key), *acquired = NULL;
    if (known)
        acquired = open_again(self, types, h, memory, peer, known);
    else if (!PyErr_Occurred() && only_maps(self, opener))
        acquired = open_mapped(self, types, h, memory, peers, cache, peer, device, key);
    Py_XDECREF(known);
    if (acquired == NULL && (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_Exception))) {
        PyErr_Clear();
        acquired = acquire_known(self, memory, peers, key, opener);
    }
    return acquired;
}

/* The same from an exporter that it has not met. Where nothing comes of it, nothing of the acquaintance stays. */
static PyObject *acquire_first(const xp_hand_over *self, const xp_types *types, const xp_handle *h, PyObject *memory,
                               PyObject *node, PyObject *peers, PyObject *cache, PyObject *opener, PyObject *device,
                               PyObject *key)
{
    PyObject *peer = METHOD(node, meet, memory), *acquired = NULL;
    if (peer && Py_TYPE(peer) == CLASS(Peer)) {
        acquired = acquire_from(self, types, h, memory, peers, cache, peer, opener, device, key);
        if (acquired == NULL) {
            PyObject *type, *value, *trace; /* of an interrupt */
            PyErr_Fetch(&type, &value, &trace);
            PyObject *left = METHOD(peers, _discard, PyTuple_GetItem(key, 0));
            if (left == NULL && type)
                PyErr_WriteUnraisable(peers);
            if (type)
                PyErr_Restore(type, value, trace);
            Py_XDECREF(left);
        }
    }
    Py_XDECREF(peer);
    return acquired;
}

/* (what is mapped, the hold); NULL: see `declined`. */
static PyObject *acquire(const xp_hand_over *self, const xp_types *types, const xp_handle *h, PyObject *memory,
                         PyObject *node, PyObject *peers, PyObject *opener, PyObject *device)
{
    PyObject *key = key_of(h, opener), *met = READ(peers, Peers, _peers), *cache = READ(peers, Peers, _cache);
    PyObject *swept = key && met && cache && PyDict_Size(met) > 1 ? METHOD(peers, sweep) : Py_NewRef(Py_None);
    PyObject *acquired = NULL;
    if (swept && key && met && cache) {
        PyObject *peer = found_in(met, PyTuple_GetItem(key, 0));
        if (peer)
            acquired = acquire_from(self, types, h, memory, peers, cache, peer, opener, device, key);
        else if (!PyErr_Occurred())
            acquired = acquire_first(self, types, h, memory, node, peers, cache, opener, device, key);
        Py_XDECREF(peer);
    }
    PyObject *all[] = {key, met, cache, swept};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XDECREF(all[i]);
    return acquired;
}

/* Whether the range lies in what is mapped; -1 with an exception set. */
static int lies_in(const xp_hand_over *self, const xp_handle *h, PyObject *allocation)
{
    uint64_t total;
    PyObject *nbytes = READ(allocation, Allocation, nbytes);
    int rc = nbytes ? xp_as_u64(nbytes, &total) : -1;
    Py_XDECREF(nbytes);
    return rc < 0 ? -1 : h->offset <= total && h->nbytes <= total - h->offset;
}

/* What `decode_dtype` returns. */
static PyObject *dtype_of(const xp_hand_over *self, const xp_array_parts *a)
{
    PyObject *text = PyBytes_FromStringAndSize((const char *)a->text, a->head.text_nbytes), *itemsize = NULL;
    PyObject *known = text ? found_in(self->kit[K_dtypes], text) : NULL, *dtype = NULL; /* the dtype, its item size */
    uint32_t found;
    if (known && xp_as_u32(PyTuple_GetItem(known, 1), &found) == 0 && found == a->head.itemsize)
        dtype = Py_NewRef(PyTuple_GetItem(known, 0));
    else if (!PyErr_Occurred() && (itemsize = PyLong_FromUnsignedLong(a->head.itemsize)))
        dtype = CALL(decode_dtype, text, itemsize);
    Py_XDECREF(text);
    Py_XDECREF(known);
    Py_XDECREF(itemsize);
    return dtype;
}

/* What readers have to wait for, or None. */
static PyObject *order_of(const xp_hand_over *self, const xp_types *types, const xp_array_parts *a, PyObject *device)
{
    if (!a->has_event)
        return Py_NewRef(Py_None);
    PyObject *event = new_handle(self, types, &a->event), *point = PyLong_FromUnsignedLongLong(a->head.point);
    PyObject *order = event && point ? CALL(order_of, event, device, point) : NULL;
    Py_XDECREF(event);
    Py_XDECREF(point);
    return order;
}

/* It keeps the message: its handle is made of that when somebody asks. */
static PyObject *new_array(const xp_hand_over *self, const xp_array_parts *a, PyObject *range, PyObject *dtype,
                           PyObject *message, PyObject *order)
{
    PyObject *forks = PyLong_FromUnsignedLong(XP_RELAXED(&xp_fork_count)), *shape = xp_shape(a);
    PyObject *strides = xp_strides(a), *offset = PyLong_FromUnsignedLongLong(a->head.offset);
    PyObject *made = forks && shape && strides && offset ? xp_base_new(CLASS(SharedArray)) : NULL;
    if (made && !(WRITE(made, SharedArray, _held, range) && WRITE(made, SharedArray, _forks, forks) &&
                  WRITE(made, SharedArray, _shape, shape) && WRITE(made, SharedArray, _strides, strides) &&
                  WRITE(made, SharedArray, _offset, offset) && WRITE(made, SharedArray, _dtype, dtype) &&
                  WRITE(made, SharedArray, _pinned, Py_None) && WRITE(made, SharedArray, _handle, message) &&
                  WRITE(made, SharedArray, _order, order) && WRITE(made, SharedArray, _implicit, Py_None)))
        Py_CLEAR(made);
    Py_XDECREF(forks);
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    Py_XDECREF(offset);
    return made;
}

/* The array over what was acquired. */
static PyObject *attached(const xp_hand_over *self, const xp_types *types, const xp_array_parts *a, PyObject *message,
                          PyObject *memory, PyObject *acquired, PyObject *device, PyObject *context)
{
    const xp_handle *h = &a->memory;
    PyObject *allocation = PyTuple_GetItem(acquired, 0), *lease = PyTuple_GetItem(acquired, 1);
    int lies = lies_in(self, h, allocation);
    if (lies <= 0)
        return lies < 0 ? NULL : Py_NewRef(Py_None);
    PyObject *items[] = {Py_NewRef(allocation),
                         PyLong_FromUnsignedLongLong(h->offset),
                         PyLong_FromUnsignedLongLong(h->nbytes),
                         Py_NewRef(device),
                         Py_NewRef(context),
                         PyBool_FromLong(h->flags & XP_ENTRY_READ_ONLY),
                         Py_NewRef(memory),
                         Py_NewRef(lease)};
    PyObject *range = named_tuple(CLASS(Range), 8, items);
    PyObject *order = range ? order_of(self, types, a, device) : NULL;
    PyObject *dtype = order ? dtype_of(self, a) : NULL;
    PyObject *array = dtype ? new_array(self, a, range, dtype, message, order) : NULL;
    Py_XDECREF(range);
    Py_XDECREF(order);
    Py_XDECREF(dtype);
    return array;
}

static PyObject *over_attach(PyObject *object, PyObject *message)
{
    const xp_hand_over *self = (xp_hand_over *)object;
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    const xp_key *key = key_if_on(self, types);
    PyObject *boot_id = only(self, K_boot_ids), *node = only(self, K_here);
    char *raw, *boot;
    Py_ssize_t nbytes, boot_nbytes;
    xp_array_parts a;
    if (key == NULL || boot_id == NULL || node == NULL || !PyBytes_CheckExact(message))
        return declined();
    if (PyBytes_AsStringAndSize(message, &raw, &nbytes) < 0 ||
        PyBytes_AsStringAndSize(boot_id, &boot, &boot_nbytes) < 0)
        return NULL;
    if (boot_nbytes != sizeof a.memory.boot_id || !xp_read_array(key, raw, (size_t)nbytes, &a) || !a.fits ||
        (a.memory.flags & (XP_ENTRY_COUNTED | XP_ENTRY_PICKLED)) || !of_boot(&a.memory, boot) ||
        (a.has_event && !of_boot(&a.event, boot)))
        Py_RETURN_NONE;
    PyObject *names = PyBytes_FromStringAndSize((const char *)a.memory.backend,
                                                sizeof a.memory.backend + sizeof a.memory.device_uuid);
    PyObject *decided = names ? found_in(self->kit[K_decided], names) : NULL; /* opener, device, context */
    Py_XDECREF(names);
    PyObject *memory = decided ? new_handle(self, types, &a.memory) : NULL;
    PyObject *peers = memory ? READ(node, Node, peers) : NULL;
    PyObject *acquired = peers ? acquire(self, types, &a.memory, memory, node, peers, PyTuple_GetItem(decided, 0),
                                         PyTuple_GetItem(decided, 1))
                               : NULL;
    PyObject *array = acquired ? attached(self, types, &a, message, memory, acquired, PyTuple_GetItem(decided, 1),
                                          PyTuple_GetItem(decided, 2))
                               : declined();
    Py_XDECREF(acquired);
    Py_XDECREF(peers);
    Py_XDECREF(memory);
    Py_XDECREF(decided);
    return array;
}

/* --- share -------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject *allocation, *device, *keep, *prepared, *shape, *strides, *text; /* owned */
    PyObject *number; /* owned: of another library's stream that works on it now; NULL for an array of ours */
    PyObject *mark;   /* owned: what readers wait for, or None */
    xp_array head;
    int ndim;
    int64_t lengths[XP_MAX_DIMS], steps[XP_MAX_DIMS];
    uint64_t offset, nbytes; /* of the bytes that the elements span, in the allocation */
    bool read_only;
    xp_foreign found; /* where it is new */
    xp_handle made;
} source;

/* Takes the reference over. */
static bool as_u64(PyObject *value, uint64_t *out)
{
    bool good = value && xp_as_u64(value, out) == 0;
    Py_XDECREF(value);
    return good;
}

/* Takes the reference over. */
static bool this_process(PyObject *forks)
{
    uint64_t found;
    return as_u64(forks, &found) && found == XP_RELAXED(&xp_fork_count);
}

static bool has_streams(const xp_hand_over *self, PyObject *device)
{
    PyObject *adapter = READ(device, Device, _adapter), *found = adapter ? GET(adapter, has_streams) : NULL;
    Py_XDECREF(adapter);
    Py_XDECREF(found);
    return found != Py_False;
}

/* The dtype's text and its item size. */
static bool name_dtype(const xp_hand_over *self, PyObject *array, source *s)
{
    PyObject *dtype = READ(array, SharedArray, _dtype), *id = dtype ? PyLong_FromVoidPtr(dtype) : NULL;
    PyObject *known = id ? found_in(self->kit[K_texts], id) : NULL;
    bool good = known && PyTuple_GetItem(known, 0) == dtype;
    if (good) {
        s->text = Py_NewRef(PyTuple_GetItem(known, 1));
        good = xp_as_u32(PyTuple_GetItem(known, 2), &s->head.itemsize) == 0 && PyBytes_Size(s->text) <= UINT16_MAX;
    }
    Py_XDECREF(dtype);
    Py_XDECREF(id);
    Py_XDECREF(known);
    return good;
}

/* Where the elements lie in their range, and which of its bytes they span. */
static bool span(const xp_hand_over *self, PyObject *array, source *s)
{
    uint64_t first;
    int nsteps;
    if (!as_u64(READ(array, SharedArray, _offset), &first) || (s->shape = READ(array, SharedArray, _shape)) == NULL ||
        xp_as_dims(s->shape, "shape", s->lengths, &s->ndim) < 0 ||
        (s->strides = READ(array, SharedArray, _strides)) == NULL ||
        xp_as_dims(s->strides, "strides", s->steps, &nsteps) < 0)
        return false;
    int64_t dims[2 * XP_ARRAY_DIMS], low, high;
    if (s->ndim < 0 || s->ndim > (int)XP_ARRAY_DIMS || nsteps != s->ndim)
        return false;
    memcpy(dims, s->lengths, 8u * (size_t)s->ndim);
    memcpy(dims + s->ndim, s->steps, 8u * (size_t)s->ndim);
    if (!xp_extent(dims, (unsigned)s->ndim, s->head.itemsize, &low, &high))
        return false;
    s->head.offset = (uint64_t)-low;
    s->offset += first + (uint64_t)low;
    s->nbytes = (uint64_t)(high - low);
    return true;
}

/* Whether the range lies in memory that this process can export. */
static bool lies(const xp_hand_over *self, PyObject *range, source *s)
{
    bool good = range && Py_TYPE(range) == CLASS(Range) && PyTuple_GetItem(range, 6) == Py_None &&
                Py_TYPE(PyTuple_GetItem(range, 0)) == CLASS(Allocation) &&
                this_process(READ(PyTuple_GetItem(range, 0), Allocation, forks)) &&
                xp_as_u64(PyTuple_GetItem(range, 1), &s->offset) == 0;
    if (good) {
        s->allocation = Py_NewRef(PyTuple_GetItem(range, 0));
        s->device = Py_NewRef(PyTuple_GetItem(range, 3));
        s->keep = Py_NewRef(PyTuple_GetItem(range, 7));
        s->read_only = PyTuple_GetItem(range, 5) == Py_True;
    }
    return good;
}

/* Whether it is an array of ours, in memory that this process allocated. */
static bool describe(const xp_hand_over *self, PyObject *array, source *s)
{
    PyObject *range = READ(array, SharedArray, _held);
    bool good = range && lies(self, range, s) && this_process(READ(array, SharedArray, _forks)) &&
                name_dtype(self, array, s) && span(self, array, s);
    Py_XDECREF(range);
    return good;
}

/* False, for what Python will say better; an interrupt stays set. */
static bool quietly(void)
{
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear();
    return false;
}

/* Look at the array by its library's exchange API; NULL where it has none, or does not say all. */
static const dl_exchange *view(const xp_hand_over *self, PyObject *array, dl_tensor *t)
{
    PyObject *capsule = CALL(exchange_of, (PyObject *)Py_TYPE(array));
    const dl_exchange *api = capsule ? xp_exchange_of(capsule) : NULL;
    Py_XDECREF(capsule); /* the type has it, for good */
    if (api == NULL || api->view == NULL)
        return NULL;
    PyObject *differs = GET(array, requires_grad); /* of that the view says nothing */
    if (differs == NULL && !PyErr_ExceptionMatches(PyExc_AttributeError))
        return NULL;
    PyErr_Clear();
    int other = differs ? PyObject_IsTrue(differs) : 0;
    Py_XDECREF(differs);
    return other == 0 && api->view(array, t) == 0 ? api : NULL;
}

/* What Python says of all arrays that are alike: (dtype, its text, item size, device, backend). NULL: see `declined`. */
static PyObject *kind_of(const xp_hand_over *self, PyObject *array, const dl_tensor *t)
{
    const long numbers[] = {t->device.type, t->device.id, t->dtype.code, t->dtype.bits, t->dtype.lanes};
    PyObject *of[5], *found = NULL;
    bool good = true;
    for (int i = 0; i < 5; i++)
        good = (of[i] = PyLong_FromLong(numbers[i])) && good;
    if (good)
        found = CALL(kind_of, (PyObject *)Py_TYPE(array), of[0], of[1], of[2], of[3], of[4]);
    for (int i = 0; i < 5; i++)
        Py_XDECREF(of[i]);
    if (found == NULL || !PyTuple_Check(found))
        Py_CLEAR(found);
    return found;
}

/* The number of the stream that the array's library works on now. NULL: see `declined`. */
static PyObject *stream_number(const dl_exchange *api, const dl_tensor *t)
{
    void *stream = NULL;
    return api->stream && api->stream(t->device.type, t->device.id, &stream) == 0 ? PyLong_FromVoidPtr(stream) : NULL;
}

/* Whether nothing of ours, and nothing that is open here, is at an address. */
static bool nobodys(const xp_hand_over *self, PyObject *node, uint64_t address)
{
    PyObject *ours = READ(node, Node, allocations), *starts = ours ? GET(ours, _starts) : NULL, *at = NULL;
    PyObject *peers = starts ? READ(node, Node, peers) : NULL, *opened = peers ? READ(peers, Peers, _cache) : NULL;
    bool good = opened != NULL;
    if (good && PyList_Size(starts) != 0) {
        PyObject *found = (at = PyLong_FromUnsignedLongLong(address)) ? METHOD(ours, find, at) : NULL;
        good = found == Py_None;
        Py_XDECREF(found);
    }
    if (good && PyObject_Size(opened) != 0) {
        PyObject *found = at || (at = PyLong_FromUnsignedLongLong(address)) ? METHOD(peers, maps, at) : NULL;
        good = found == Py_False;
        Py_XDECREF(found);
    }
    Py_XDECREF(ours);
    Py_XDECREF(starts);
    Py_XDECREF(at);
    Py_XDECREF(peers);
    Py_XDECREF(opened);
    return good;
}

/* What `Allocation.__init__` makes of another library's memory. */
static PyObject *allocation_of(const xp_hand_over *self, PyObject *device, PyObject *driver, PyObject *name)
{
    PyObject *forks = PyLong_FromUnsignedLong(XP_RELAXED(&xp_fork_count)), *zero = PyLong_FromLong(0);
    PyObject *none = PyTuple_New(0), *earlier = PyDict_New(), *release = GET(driver, release), *made = NULL;
    PyObject *address = release ? GET(driver, address) : NULL, *nbytes = address ? GET(driver, nbytes) : NULL;
    PyObject *accessible = nbytes ? GET(driver, host_accessible) : NULL;
    PyObject *end = accessible && forks && zero && none && earlier ? PyType_GenericAlloc(CLASS(End), 0) : NULL;
    if (end && WRITE(end, End, forget, Py_None) && WRITE(end, End, keep, Py_None) &&
        WRITE(end, End, _release, release) && WRITE(end, End, _arguments, none) && WRITE(end, End, _forks, forks))
        made = PyType_GenericAlloc(CLASS(Allocation), 0);
    if (made &&
        !(WRITE(made, Allocation, device, device) && WRITE(made, Allocation, driver, driver) &&
          WRITE(made, Allocation, forks, forks) && WRITE(made, Allocation, _end, end) &&
          WRITE(made, Allocation, kind, self->names[N_device]) && WRITE(made, Allocation, address, address) &&
          WRITE(made, Allocation, nbytes, nbytes) && WRITE(made, Allocation, host_accessible, accessible) &&
          WRITE(made, Allocation, imported, Py_False) && WRITE(made, Allocation, foreign, Py_True) &&
          WRITE(made, Allocation, source, Py_None) && WRITE(made, Allocation, prepared, Py_None) &&
          WRITE(made, Allocation, _handle, Py_None) && WRITE(made, Allocation, _earlier, earlier) &&
          WRITE(made, Allocation, _serial, zero) && WRITE(made, Allocation, _name, name)))
        Py_CLEAR(made);
    PyObject *all[] = {forks, zero, none, earlier, release, address, nbytes, accessible, end};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XDECREF(all[i]);
    return made;
}

/* What `range_at` makes of a new allocation of another library, or has made of it already. */
static PyObject *met(const xp_hand_over *self, PyObject *node, PyObject *recogniser, PyObject *device,
                     PyObject *backend, const xp_foreign *f)
{
    PyObject *items[] = {PyLong_FromUnsignedLongLong(f->ordinal), PyLong_FromUnsignedLongLong(f->start),
                         PyLong_FromUnsignedLongLong(f->nbytes), PyLong_FromUnsignedLongLong(f->number)};
    PyObject *identity = plain_tuple(4, items), *name = identity ? PyTuple_Pack(2, backend, identity) : NULL;
    PyObject *memory = name ? xp_foreign_memory(recogniser, f) : NULL;
    PyObject *made = memory ? allocation_of(self, device, memory, name) : NULL, *found = NULL;
    PyObject *foreign = made ? READ(node, Node, foreign) : NULL;
    if (foreign)
        found = METHOD(foreign, setdefault, name, made);
    if (found && Py_TYPE(found) == CLASS(Allocation))
        xp_remember(recogniser, f, found);
    Py_XDECREF(identity);
    Py_XDECREF(name);
    Py_XDECREF(memory);
    Py_XDECREF(made);
    Py_XDECREF(foreign);
    return found;
}

/* Whether the adapter's driver says, in one native call, all that `range_at` says of those bytes. */
static bool recognise(const xp_hand_over *self, const xp_types *types, PyObject *node, PyObject *array,
                      PyObject *device, PyObject *backend, uint64_t address, source *s)
{
    PyObject *adapter = READ(device, Device, _adapter), *info = adapter ? READ(device, Device, _info) : NULL;
    PyObject *recogniser = info ? GET(adapter, recogniser) : NULL;
    xp_foreign *f = &s->found;
    if (recogniser && xp_recognise(types, recogniser, info, address, s->nbytes, f)) {
        if (f->allocation == NULL && nobodys(self, node, address))
            f->allocation = met(self, node, recogniser, device, backend, f);
        s->allocation = f->allocation; /* with the reference */
        s->offset = address - f->start;
    }
    Py_XDECREF(adapter);
    Py_XDECREF(info);
    Py_XDECREF(recogniser);
    if (s->allocation == NULL) {
        f->payload_nbytes = 0; /* what Python finds there is something else */
        return false;
    }
    s->device = Py_NewRef(device);
    s->keep = Py_NewRef(array);
    return Py_TYPE(s->allocation) == CLASS(Allocation);
}

/* The same by Python. */
static bool look_there(const xp_hand_over *self, PyObject *array, PyObject *device, PyObject *backend,
                       uint64_t address, source *s)
{
    PyObject *items[] = {PyLong_FromUnsignedLongLong(address), PyLong_FromUnsignedLongLong(s->nbytes),
                         Py_NewRef(Py_False), Py_NewRef(backend)};
    PyObject *where = named_tuple(CLASS(Located), 4, items), *range = where ? CALL(range_at, where, array) : NULL;
    bool good = range && lies(self, range, s) && s->device == device;
    Py_XDECREF(where);
    Py_XDECREF(range);
    return good;
}

/* Whether it is an array of another library that says all by the exchange API, in memory that can be exported. */
static bool describe_other(const xp_hand_over *self, const xp_types *types, PyObject *node, PyObject *array, source *s)
{
    dl_tensor t = {0};
    const dl_exchange *api = view(self, array, &t);
    int64_t dims[2 * XP_ARRAY_DIMS], low, high, itemsize = (t.dtype.bits * t.dtype.lanes + 7) / 8;
    if (api == NULL || t.dtype.code == DL_COMPLEX || itemsize == 0 || t.ndim < 0 || t.ndim > (int)XP_ARRAY_DIMS ||
        (t.ndim && t.shape == NULL) || !xp_viewed_dims(&t, itemsize, dims, &low, &high))
        return quietly();
    uint64_t address = (uint64_t)(uintptr_t)t.data + t.byte_offset + (uint64_t)low;
    s->ndim = t.ndim;
    memcpy(s->lengths, dims, 8u * (size_t)t.ndim);
    memcpy(s->steps, dims + t.ndim, 8u * (size_t)t.ndim);
    s->head.offset = (uint64_t)-low;
    s->nbytes = (uint64_t)(high - low);
    PyObject *kind = kind_of(self, array, &t), *device = kind ? PyTuple_GetItem(kind, 3) : NULL;
    if (kind == NULL || xp_as_u32(PyTuple_GetItem(kind, 2), &s->head.itemsize) < 0 || s->head.itemsize != itemsize ||
        (has_streams(self, device) && (s->number = stream_number(api, &t)) == NULL)) {
        Py_XDECREF(kind);
        return quietly();
    }
    PyObject *backend = PyTuple_GetItem(kind, 4);
    bool good = (backend != Py_None && recognise(self, types, node, array, device, backend, address, s)) ||
                (!PyErr_Occurred() && look_there(self, array, device, backend, address, s));
    if (good) {
        s->text = Py_NewRef(PyTuple_GetItem(kind, 1));
        s->shape = xp_dims_tuple(s->lengths, s->ndim);
        s->strides = xp_dims_tuple(s->steps, s->ndim);
    }
    Py_XDECREF(kind);
    return good && s->shape && s->strides;
}

/* `current_mark`. Where the library's stream is one that never ends, it is found, and asked whether it is idle, here. */
static PyObject *mark_of(const xp_hand_over *self, const xp_types *types, PyObject *array, const source *s)
{
    PyObject *number = s->number ? s->number : Py_None, *id = PyLong_FromVoidPtr(s->device);
    PyObject *key = id ? PyTuple_Pack(3, id, Py_TYPE(array), number) : NULL, *mark = NULL;
    PyObject *known = key ? found_in(self->kit[K_lasting], key) : NULL; /* the device, its queue, the check */
    int idle = known ? xp_idle(types, PyTuple_GetItem(known, 2)) : -1;
    if (idle > 0)
        mark = Py_NewRef(Py_None);
    else if (idle == 0)
        mark = CALL(mark, PyTuple_GetItem(known, 1), s->device);
    else if (!PyErr_Occurred())
        mark = CALL(current_mark, s->device, array, number);
    Py_XDECREF(id);
    Py_XDECREF(key);
    Py_XDECREF(known);
    return mark;
}

/* After which point of which event the content is there. */
static bool order(const xp_hand_over *self, const xp_types *types, PyObject *array, source *s)
{
    s->mark = has_streams(self, s->device) ? mark_of(self, types, array, s) : Py_NewRef(Py_None);
    if (s->mark == NULL || s->mark == Py_None)
        return s->mark != NULL;
    PyObject *keep = PyTuple_Pack(2, s->keep, PyTuple_GetItem(s->mark, 0)); /* its export ends with the memory's */
    Py_DECREF(s->keep);
    s->keep = keep;
    return keep && xp_as_u64(PyTuple_GetItem(s->mark, 1), &s->head.point) == 0;
}

/* What the driver's `export` would return. */
static PyObject *said(const xp_hand_over *self, const xp_foreign *f)
{
    PyObject *items[] = {PyLong_FromUnsignedLongLong(f->nbytes),
                         PyLong_FromUnsignedLongLong(f->nbytes),
                         PyTuple_New(0),
                         PyLong_FromLong(0),
                         PyBytes_FromStringAndSize(f->payload, (Py_ssize_t)f->payload_nbytes),
                         Py_NewRef(Py_None),
                         PyLong_FromLong(0),
                         PyLong_FromLong(0)};
    return named_tuple(CLASS(Export), 8, items);
}

/* What `prepared_by` returns, where Python has prepared an export of that device before, and the driver says the same
 * each time. NULL without an exception: Python does it. */
static PyObject *prepare_anew(const xp_hand_over *self, const xp_types *types, PyObject *table, const source *s)
{
    PyObject *device = READ(s->allocation, Allocation, device), *driver = READ(s->allocation, Allocation, driver);
    PyObject *name = READ(s->allocation, Allocation, _name), *serial = READ(s->allocation, Allocation, _serial);
    PyObject *info = device ? READ(device, Device, _info) : NULL, *id = info ? PyLong_FromVoidPtr(info) : NULL;
    PyObject *exporting = id ? READ(table, Table, exporting) : NULL;
    PyObject *own = exporting ? READ(table, Table, _entries) : NULL;
    PyObject *known = own ? found_in(exporting, id) : NULL; /* the info, names, number */
    PyObject *lasting = known && driver ? GET(driver, lasting_export) : NULL, *what = NULL, *prepared = NULL;
    xp_entry e = {.kind = XP_KIND_MEMORY, .fd_count = 0};
    if (serial && lasting == Py_True && Py_TYPE(own) == types->own_table && xp_as_u64(serial, &e.object) == 0)
        what = s->found.payload_nbytes ? said(self, &s->found) : METHOD(driver, export, Py_False);
    uint32_t form;
    if (what && Py_TYPE(what) == CLASS(Export) && PyTuple_GetItem(what, 5) == Py_None &&
        PyTuple_Size(PyTuple_GetItem(what, 2)) <= (Py_ssize_t)XP_ENTRY_FDS &&
        PyBytes_Size(PyTuple_GetItem(what, 4)) <= (Py_ssize_t)sizeof e.payload &&
        xp_as_u64(PyTuple_GetItem(what, 0), &e.nbytes) == 0 &&
        xp_as_u64(PyTuple_GetItem(what, 1), &e.exposed_nbytes) == 0 &&
        xp_as_u64(PyTuple_GetItem(what, 3), &e.inode) == 0 && xp_as_u32(PyTuple_GetItem(what, 6), &form) == 0 &&
        xp_as_u64(PyTuple_GetItem(what, 7), &e.offset) == 0 &&
        xp_as_u32(PyTuple_GetItem(known, 2), &e.device) == 0) {
        e.flags = form << XP_ENTRY_FORM_BIT;
        e.fd_count = (uint32_t)PyTuple_Size(PyTuple_GetItem(what, 2));
        if (e.object == 0) {
            PyObject *number = name == Py_None ? PyLong_FromUnsignedLongLong(e.object = xp_new_object(own))
                                               : METHOD(table, object_named, name);
            if (number && name != Py_None)
                xp_as_u64(number, &e.object);
            if (number && !WRITE(s->allocation, Allocation, _serial, number))
                e.object = 0;
            Py_XDECREF(number);
        }
        if (!PyErr_Occurred())
            prepared = xp_prepare(types, own, PyTuple_GetItem(known, 1), PyTuple_GetItem(what, 2),
                                  PyTuple_GetItem(what, 4), &e, Py_None);
        if (prepared && !WRITE(s->allocation, Allocation, prepared, prepared))
            Py_CLEAR(prepared);
    }
    PyObject *all[] = {device, driver, name, serial, info, id, exporting, own, known, lasting, what};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XDECREF(all[i]);
    return prepared;
}

/* What all exports of the allocation say. */
static bool prepare(const xp_hand_over *self, const xp_types *types, PyObject *table, source *s)
{
    s->prepared = READ(s->allocation, Allocation, prepared);
    if (s->prepared == Py_None) {
        Py_DECREF(s->prepared);
        s->prepared = prepare_anew(self, types, table, s);
        if (s->prepared == NULL && !PyErr_Occurred())
            s->prepared = CALL(prepared_by, s->allocation, table, Py_False);
    }
    return s->prepared && Py_TYPE(s->prepared) == types->template;
}

/* Takes the reference over. */
static bool is_empty(PyObject *container)
{
    Py_ssize_t size = container ? PyObject_Size(container) : -1;
    Py_XDECREF(container);
    return size == 0;
}

/* exports[generation] = what holds the allocation */
static bool keep(const xp_hand_over *self, PyObject *exports, PyObject *handle, const source *s)
{
    PyObject *made = PyType_GenericAlloc(CLASS(Exported), 0), *foreign = READ(s->allocation, Allocation, foreign);
    PyObject *zero = PyLong_FromLong(0), *generation = PyLong_FromUnsignedLongLong(s->made.generation);
    PyObject *nbytes = PyLong_FromUnsignedLongLong(xp_prepared_nbytes(s->prepared));
    bool good = made && foreign && zero && generation && nbytes && WRITE(made, Exported, handle, handle) &&
                WRITE(made, Exported, source, s->allocation) && WRITE(made, Exported, keep, s->keep) &&
                WRITE(made, Exported, foreign, foreign) && WRITE(made, Exported, implicit, Py_False) &&
                WRITE(made, Exported, nbytes, nbytes) &&
                WRITE(made, Exported, outlives, Py_False) && WRITE(made, Exported, deadline, zero) &&
                PyObject_SetItem(exports, generation, made) == 0;
    Py_XDECREF(made);
    Py_XDECREF(foreign);
    Py_XDECREF(zero);
    Py_XDECREF(generation);
    Py_XDECREF(nbytes);
    return good;
}

/* Have fds handed out when importers ask, where the export says so. */
static bool offer(const xp_hand_over *self, uint32_t entry, const source *s)
{
    PyObject *what = xp_on_demand(s->prepared); /* function, objects, a, b */
    if (what == Py_None)
        return true;
    PyObject *number = PyLong_FromUnsignedLong(entry);
    PyObject *generation = PyLong_FromUnsignedLongLong(s->made.generation), *made = NULL;
    if (number && generation)
        made = CALL(offer, number, generation, PyTuple_GetItem(what, 0), PyTuple_GetItem(what, 1),
                    PyTuple_GetItem(what, 2), PyTuple_GetItem(what, 3));
    Py_XDECREF(number);
    Py_XDECREF(generation);
    Py_XDECREF(made);
    return made != NULL;
}

/* The handle of a new entry, which is live at once. With the lock of the table. NULL: see `declined`. */
static PyObject *enter(const xp_hand_over *self, const xp_types *types, const xp_key *key, PyObject *table, source *s)
{
    PyObject *own = READ(table, Table, _entries), *domain = READ(table, Table, domain);
    PyObject *exports = READ(table, Table, _exports), *handle = NULL;
    uint32_t entry = XP_ENTRIES;
    if (own && Py_TYPE(own) == types->own_table && domain && exports && xp_take_entry(own, domain, &entry) &&
        entry != XP_ENTRIES) {
        uint64_t generation = xp_next_generation(own);
        if (xp_enter(own, key, s->prepared, entry, generation,
                     s->read_only ? XP_ENTRY_READ_ONLY : 0, 0, s->offset, s->nbytes, &s->made))
            handle = new_handle(self, types, &s->made);
        if (handle && offer(self, entry, s) && keep(self, exports, handle, s)) {
            XP_STORE(&xp_own_entry(own, entry)->generation, generation);
        } else {
            Py_CLEAR(handle);
            Py_BEGIN_ALLOW_THREADS /* the warden may be in a driver's call for it */
            xp_withdraw(xp_own_entry(own, entry), XP_REASON_PUT);
            Py_END_ALLOW_THREADS
            xp_give_entry(own, entry);
        }
    }
    Py_XDECREF(own);
    Py_XDECREF(domain);
    Py_XDECREF(exports);
    return handle;
}

/* `enter`, after what an export does for those that are over. */
static PyObject *export(const xp_hand_over *self, const xp_types *types, const xp_key *key, PyObject *table, source *s)
{
    PyObject *lock = READ(table, Table, _lock), *taken = lock ? METHOD(lock, acquire) : NULL, *handle = NULL;
    if (taken) {
        PyObject *serving = READ(table, Table, _serving), *ended = NULL, *type, *value, *trace;
        bool due = !(is_empty(READ(table, Table, _lingering)) && is_empty(READ(table, Table, _ending)));
        if (serving == Py_True && (!due || (ended = METHOD(table, _sweep))))
            handle = enter(self, types, key, table, s);
        Py_XDECREF(serving);
        PyErr_Fetch(&type, &value, &trace);
        PyObject *released = METHOD(lock, release);
        Py_XDECREF(released);
        Py_XDECREF(ended); /* outside the lock: its release may call us */
        if (type)
            PyErr_Restore(type, value, trace);
    }
    Py_XDECREF(taken);
    Py_XDECREF(lock);
    return handle;
}

static PyObject *sealed(const xp_hand_over *self, const xp_types *types, const xp_key *key, PyObject *memory,
                        const source *s)
{
    PyObject *event = NULL, *fields = NULL;
    if (s->mark != Py_None) {
        event = READ(PyTuple_GetItem(s->mark, 0), Implicit, handle);
        fields = event ? READ(event, Handle, _fields) : NULL;
    }
    const xp_handle *raw_event = fields ? xp_fields_of(types, fields) : NULL;
    if (PyErr_Occurred()) {
        Py_XDECREF(event);
        return NULL;
    }
    PyObject *items[] = {Py_NewRef(memory),
                         Py_NewRef(event ? event : Py_None),
                         PyLong_FromUnsignedLongLong(s->head.point),
                         Py_NewRef(s->shape),
                         Py_NewRef(s->strides),
                         PyLong_FromUnsignedLongLong(s->head.offset),
                         PyLong_FromUnsignedLong(s->head.itemsize),
                         Py_NewRef(s->text),
                         PyLong_FromLong(0),
                         Py_NewRef(Py_True)};
    PyObject *parts = named_tuple(CLASS(Parts), 10, items);
    PyObject *raw = xp_seal_array(key, s->head, &s->made, raw_event, s->ndim, s->lengths, s->steps, s->text);
    PyObject *forks = PyLong_FromUnsignedLong(XP_RELAXED(&xp_fork_count));
    PyObject *handle = parts && raw && forks ? new_array_handle(self, raw, parts, forks) : NULL;
    Py_XDECREF(event);
    Py_XDECREF(fields);
    Py_XDECREF(parts);
    Py_XDECREF(raw);
    Py_XDECREF(forks);
    return handle;
}

/* End an export that nobody will own. The error that is set stays. */
static void withdraw(const xp_hand_over *self, PyObject *table, PyObject *memory)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *reason = PyLong_FromUnsignedLong(XP_REASON_PUT);
    PyObject *ended = reason ? METHOD(table, withdraw, memory, reason) : NULL;
    if (ended == NULL)
        PyErr_WriteUnraisable(memory);
    Py_XDECREF(reason);
    Py_XDECREF(ended);
    PyErr_Restore(type, value, trace);
}

static PyObject *over_share(PyObject *object, PyObject *array)
{
    const xp_hand_over *self = (xp_hand_over *)object;
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    const xp_key *key = key_if_on(self, types);
    bool own = Py_TYPE(array) == CLASS(SharedArray);
    PyObject *node = key ? only(self, K_here) : NULL, *table = node ? READ(node, Node, _table) : NULL;
    source s = {.ndim = 0};
    bool known = table && table != Py_None &&
                 (own ? describe(self, array, &s) : describe_other(self, types, node, array, &s)) &&
                 prepare(self, types, table, &s) && order(self, types, array, &s);
    PyObject *memory = known ? export(self, types, key, table, &s) : NULL;
    PyObject *handle = memory ? sealed(self, types, key, memory, &s) : declined();
    if (memory && handle == NULL)
        withdraw(self, table, memory);
    Py_XDECREF(memory);
    Py_XDECREF(table);
    PyObject *all[] = {s.allocation, s.device, s.keep, s.prepared, s.shape, s.strides, s.text, s.number, s.mark};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XDECREF(all[i]);
    return handle;
}

static PyMethodDef over_methods[] = {
    {"share", over_share, METH_O, NULL},
    {"attach", over_attach, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot over_slots[] = {
    {Py_tp_new, over_new},     {Py_tp_dealloc, over_dealloc}, {Py_tp_traverse, over_traverse},
    {Py_tp_clear, over_clear}, {Py_tp_methods, over_methods}, {0, NULL},
};
static PyType_Spec over_spec = {"xpushare._native.HandOver", sizeof(xp_hand_over), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, over_slots};

/* HandleBase: `_owner` is the fork in which the object owns an export, or None. Of an object that dies and may own one
 * Python is told. */
typedef struct {
    PyObject_HEAD
    PyObject *owner;
} xp_handle_base;

static void base_finalize(PyObject *self)
{
    PyObject *owner = ((xp_handle_base *)self)->owner, *type, *value, *trace;
    if (owner == NULL || owner == Py_None)
        return;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *told = PyObject_CallMethod(self, "_abandoned", NULL);
    if (told == NULL)
        PyErr_WriteUnraisable(self);
    Py_XDECREF(told);
    PyErr_Restore(type, value, trace);
}

static void base_dealloc(PyObject *self)
{
    Py_XDECREF(((xp_handle_base *)self)->owner);
    xp_free(self);
}

static PyMemberDef base_members[] = {
    {"_owner", T_OBJECT, offsetof(xp_handle_base, owner), 0, NULL}, {NULL, 0, 0, 0, NULL},
};
static PyType_Slot base_slots[] = {
    {Py_tp_finalize, base_finalize}, {Py_tp_dealloc, base_dealloc}, {Py_tp_members, base_members}, {0, NULL},
};
static PyType_Spec base_spec = {"xpushare._native.HandleBase", sizeof(xp_handle_base), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, base_slots};

int xp_init_hand_over(PyObject *module)
{
    return xp_add_type(module, &base_spec) < 0 ? -1 : xp_add_type(module, &over_spec);
}
