/* HandOver: `share` and `attach` of the common case, one call each. They take the steps that Python takes, by the same C
 * or by Python's own functions; whatever else comes is None, and then Python goes all of its way, with its decisions and
 * errors. `attach` is in attach.c. */
#include "dlpack.h"
#include "foreign.h"
#include "hand_over.h"
#include "tree.h"

#define TEXT(name) #name,
static const char *const kit_texts[] = {KIT(TEXT)}, *const name_texts[] = {NAMES(TEXT)};
#define CLASS_AND_TEXT(class, name) {K_##class, #name},
static const struct {
    int class;
    const char *name;
} slot_texts[] = {SLOTS(CLASS_AND_TEXT)};

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
    for (int i = K_decided; good && i <= K_started; i++)
        if (!(good = PyDict_Check(self->kit[i])))
            PyErr_Format(PyExc_TypeError, "%s is a dict", kit_texts[i]);
    for (int i = K_off; good && i <= K_boot_ids; i++)
        if (!(good = PyList_Check(self->kit[i])))
            PyErr_Format(PyExc_TypeError, "%s is a list", kit_texts[i]);
    if (!good || !find_slots(self))
        Py_CLEAR(self);
    return (PyObject *)self;
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
    bool read_only, implicit; /* implicit: a pickle's, which counts its opens */
    xp_foreign found;         /* where it is new */
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

/* The allocation, where the adapter's driver says, in one native call, all that `range_at` says of those bytes. NULL:
 * see `declined`. */
static PyObject *recognise(const xp_hand_over *self, const xp_types *types, PyObject *node, PyObject *device,
                           PyObject *backend, uint64_t address, uint64_t nbytes, xp_foreign *f)
{
    PyObject *adapter = READ(device, Device, _adapter), *info = adapter ? READ(device, Device, _info) : NULL;
    PyObject *recogniser = info ? GET(adapter, recogniser) : NULL, *found = NULL;
    if (recogniser && xp_recognise(types, recogniser, info, address, nbytes, f)) {
        if (f->allocation == NULL && nobodys(self, node, address))
            f->allocation = met(self, node, recogniser, device, backend, f);
        found = f->allocation; /* with the reference */
    }
    Py_XDECREF(adapter);
    Py_XDECREF(info);
    Py_XDECREF(recogniser);
    if (found && Py_TYPE(found) != CLASS(Allocation))
        Py_CLEAR(found);
    if (found == NULL)
        f->payload_nbytes = 0; /* what Python finds there is something else */
    return found;
}

/* The same for an array. */
static bool look_natively(const xp_hand_over *self, const xp_types *types, PyObject *node, PyObject *array,
                          PyObject *device, PyObject *backend, uint64_t address, source *s)
{
    s->allocation = recognise(self, types, node, device, backend, address, s->nbytes, &s->found);
    if (s->allocation == NULL)
        return false;
    s->offset = address - s->found.start;
    s->device = Py_NewRef(device);
    s->keep = Py_NewRef(array);
    return true;
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
    bool good = (backend != Py_None && look_natively(self, types, node, array, device, backend, address, s)) ||
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
                WRITE(made, Exported, foreign, foreign) &&
                WRITE(made, Exported, implicit, s->implicit ? Py_True : Py_False) &&
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
    xp_domain *d = domain ? xp_domain_of(domain) : NULL;
    if (own && Py_TYPE(own) == types->own_table && d && exports && xp_take_entry(own, domain, &entry) &&
        entry != XP_ENTRIES) {
        uint64_t generation = xp_next_generation(own);
        uint32_t flags = (s->read_only ? XP_ENTRY_READ_ONLY : 0) | (s->implicit ? XP_ENTRY_PICKLED : 0);
        if (xp_enter(own, key, s->prepared, entry, generation, flags, 0, s->offset, s->nbytes, &s->made))
            handle = new_handle(self, types, &s->made);
        if (s->implicit)
            xp_set_opens(d, entry, 0);
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

/* `enter` for each of `n`, after what that many exports do for those that are over; how many handles there are then. */
static Py_ssize_t export(const xp_hand_over *self, const xp_types *types, const xp_key *key, PyObject *table,
                         source *s, Py_ssize_t n, PyObject **handles)
{
    PyObject *lock = READ(table, Table, _lock), *taken = lock ? METHOD(lock, acquire) : NULL;
    Py_ssize_t made = 0;
    if (taken) {
        PyObject *serving = READ(table, Table, _serving), *ended = NULL, *type, *value, *trace;
        PyObject *count = PyLong_FromSsize_t(n);
        bool due = !(is_empty(READ(table, Table, _lingering)) && is_empty(READ(table, Table, _ending)));
        if (serving == Py_True && count && (!due || (ended = METHOD(table, _sweep_for, count))))
            while (made < n && (handles[made] = enter(self, types, key, table, &s[made])))
                made++;
        Py_XDECREF(serving);
        Py_XDECREF(count);
        PyErr_Fetch(&type, &value, &trace);
        PyObject *released = METHOD(lock, release);
        Py_XDECREF(released);
        Py_XDECREF(ended); /* outside the lock: its release may call us */
        if (type)
            PyErr_Restore(type, value, trace);
    }
    Py_XDECREF(taken);
    Py_XDECREF(lock);
    return made;
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

/* What it owns. */
static void forget(source *s)
{
    PyObject *all[] = {s->allocation, s->device, s->keep, s->prepared, s->shape, s->strides, s->text, s->number, s->mark};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XDECREF(all[i]);
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
    PyObject *memory = NULL;
    if (known)
        export(self, types, key, table, &s, 1, &memory);
    PyObject *handle = memory ? sealed(self, types, key, memory, &s) : declined();
    if (memory && handle == NULL)
        withdraw(self, table, memory);
    Py_XDECREF(memory);
    Py_XDECREF(table);
    forget(&s);
    return handle;
}

/* --- the same for trees, step by step ------------------------------------------------------------------------------ */

/* The allocation of another library that has those bytes, prepared for exports where it can be. NULL: see `declined`. */
static PyObject *find(const xp_hand_over *self, const xp_types *types, PyObject *node, PyObject *table,
                      PyObject *device, PyObject *backend, uint64_t address, uint64_t nbytes)
{
    source s = {.ndim = 0};
    s.allocation = recognise(self, types, node, device, backend, address, nbytes, &s.found);
    if (s.allocation && s.found.payload_nbytes) { /* it is new */
        s.prepared = READ(s.allocation, Allocation, prepared);
        if (s.prepared == Py_None) {
            Py_DECREF(s.prepared);
            s.prepared = prepare_anew(self, types, table, &s);
        }
    }
    quietly();
    PyObject *found = PyErr_Occurred() ? NULL : Py_XNewRef(s.allocation);
    forget(&s);
    return found;
}

/* find(device, backend, address, nbytes): the same; None where Python has to look. */
static PyObject *over_find(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_hand_over *self = (xp_hand_over *)object;
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    uint64_t address, nbytes;
    if (xp_arity("find", n, 4, 4) < 0 || xp_as_u64(args[2], &address) < 0 || xp_as_u64(args[3], &nbytes) < 0)
        return NULL;
    bool on = key_if_on(self, types) && Py_TYPE(args[0]) == CLASS(Device) && args[1] != Py_None;
    PyObject *node = on ? only(self, K_here) : NULL, *table = node ? READ(node, Node, _table) : NULL, *found = NULL;
    if (table && table != Py_None)
        found = find(self, types, node, table, args[0], args[1], address, nbytes);
    Py_XDECREF(table);
    return found ? found : declined();
}

/* Have the leaves learn the allocation of the bytes, where it is on the device of the arrays that are alike. */
static bool find_next(const xp_hand_over *self, const xp_types *types, PyObject *node, PyObject *table,
                      PyObject *leaves, PyObject *alike, uint64_t address, uint64_t nbytes)
{
    PyObject *device = PyTuple_GetItem(alike, 0), *backend = device ? PyTuple_GetItem(alike, 1) : NULL;
    if (backend == NULL || Py_TYPE(device) != CLASS(Device) || backend == Py_None)
        return false;
    PyObject *found = find(self, types, node, table, device, backend, address, nbytes);
    PyObject *on = found ? READ(found, Allocation, device) : NULL, *prepared = on ? READ(found, Allocation, prepared) : NULL;
    PyObject *start = prepared ? READ(found, Allocation, address) : NULL;
    PyObject *size = start ? READ(found, Allocation, nbytes) : NULL;
    uint64_t first, length;
    bool good = size && on == device && prepared != Py_None && xp_as_u64(start, &first) == 0 &&
                xp_as_u64(size, &length) == 0 && xp_leaves_learn(leaves, first, length, device, found) == 0;
    PyObject *all[] = {found, on, prepared, start, size};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XDECREF(all[i]);
    return good;
}

/* find_all(leaves, alike): `find` for the next arrays, as far as it goes, and have the leaves place them. alike: by the
 * numbers of their kinds, tuples that begin with the device and the backend. */
static PyObject *over_find_all(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_hand_over *self = (xp_hand_over *)object;
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    if (xp_arity("find_all", n, 2, 2) < 0)
        return NULL;
    if (Py_TYPE(args[0]) != types->leaves || !PyDict_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "find_all() takes leaves and a dict");
        return NULL;
    }
    PyObject *node = key_if_on(self, types) ? only(self, K_here) : NULL;
    PyObject *table = node ? READ(node, Node, _table) : NULL;
    bool going = table && table != Py_None;
    uint64_t address, nbytes, before = 0;
    uint32_t number;
    while (going && xp_leaves_next(args[0], &number, &address, &nbytes) && address != before) {
        PyObject *kind = PyLong_FromUnsignedLong(number), *alike = kind ? found_in(args[1], kind) : NULL;
        before = address; /* one that is not placed then is left to Python */
        going = alike && PyTuple_Check(alike) &&
                find_next(self, types, node, table, args[0], alike, address, nbytes);
        Py_XDECREF(kind);
        Py_XDECREF(alike);
    }
    Py_XDECREF(table);
    quietly();
    return declined();
}

/* export_all(ranges, implicit): the handles of as many exports of prepared allocations; None, and no export, for
 * others. */
static PyObject *over_export_all(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    const xp_hand_over *self = (xp_hand_over *)object;
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    if (xp_arity("export_all", count, 2, 2) < 0)
        return NULL;
    const xp_key *key = key_if_on(self, types);
    PyObject *ranges = args[0];
    Py_ssize_t n = PyList_Check(ranges) ? PyList_Size(ranges) : 0;
    PyObject *node = key ? only(self, K_here) : NULL, *table = node ? READ(node, Node, _table) : NULL, *found = NULL;
    source *s = PyMem_Calloc((size_t)n + 1, sizeof *s);
    PyObject **handles = PyMem_Calloc((size_t)n + 1, sizeof *handles);
    bool known = table && table != Py_None && s && handles;
    for (Py_ssize_t i = 0; i < n && known; i++) {
        PyObject *range = PyList_GetItem(ranges, i);
        s[i].implicit = args[1] == Py_True;
        known = lies(self, range, &s[i]) && xp_as_u64(PyTuple_GetItem(range, 2), &s[i].nbytes) == 0 &&
                (s[i].prepared = READ(s[i].allocation, Allocation, prepared)) &&
                Py_TYPE(s[i].prepared) == types->template;
    }
    if (known && export(self, types, key, table, s, n, handles) == n && (found = PyList_New(n)))
        for (Py_ssize_t i = 0; i < n; i++)
            PyList_SetItem(found, i, Py_NewRef(handles[i]));
    for (Py_ssize_t i = 0; i < n && s && handles; i++) {
        if (found == NULL && handles[i])
            withdraw(self, table, handles[i]);
        forget(&s[i]);
        Py_XDECREF(handles[i]);
    }
    PyMem_Free(s);
    PyMem_Free(handles);
    Py_XDECREF(table);
    return found ? found : declined();
}

static PyMethodDef over_methods[] = {
    {"share", over_share, METH_O, NULL},
    {"attach", xp_over_attach, METH_O, NULL},
    {"attach_as", XP_FAST(xp_over_attach_as), METH_FASTCALL, NULL},
    {"find", XP_FAST(over_find), METH_FASTCALL, NULL},
    {"find_all", XP_FAST(over_find_all), METH_FASTCALL, NULL},
    {"export_all", XP_FAST(over_export_all), METH_FASTCALL, NULL},
    {"open_all", XP_FAST(xp_over_open_all), METH_FASTCALL, NULL},
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
