/* Leaves: the base of `Placing`. The arrays of one `share`, until they are sealed as a message. It handles this
 * package's arrays, and arrays that a view describes (see views.c). Python describes the others, one by one. */
#include "addresses.h"
#include "array.h"
#include "foreign.h"
#include "message.h"
#include "resources.h"
#include "views.h"

#include <stdlib.h>

#define AHEAD_GAP 4096u /* bytes between arrays that lie end to end: fewer than a page of any device */
#define BEHIND_MOST 1024 /* how many arrays that lie before another one are examined */
#define AHEAD_MOST (500u << 20) /* with pages of 2 MiB, about as many as one answer of an exporter has descriptors */

/* Arrays that are described alike. */
typedef struct {
    xp_kind_key key; /* borrowed from `first` */
    const dl_exchange *api;
    uint32_t itemsize;
    PyObject *first;        /* the first array of the kind; borrowed from `arrays` */
    PyObject *named;        /* owned: the array's own dtype, if it is a part of the key; or NULL */
    PyObject *on, *context; /* on which device, and its context; borrowed from `first` or `said`; NULL if not settled */
    xp_kind said;
} leaf_kind;

/* An allocation in which arrays lie, and the access to it. Or the range of another process's handle that is passed
 * on. */
typedef struct {
    uint64_t start, end, low, high; /* low, high: of the arrays that were placed here */
    PyObject *allocation, *device, *context, *handle; /* owned; handle: the one that is passed on, or NULL */
    PyObject *keep; /* owned: a list of further objects that the export has to hold; NULL for none */
    bool read_only, foreign, numbered;
    uint32_t number; /* of the message's memory */
} leaf_place;

typedef struct {
    uint64_t address; /* of the first element */
    uint64_t start;   /* the number of its place, whose index changes */
    PyObject *handle; /* of its place; borrowed */
    int64_t low, high;
    size_t dims; /* where lengths and strides begin in the pool; strides in bytes */
    uint32_t kind;
    bool viewed, placed, read_only;
    xp_leaf as;
} leaf;

/* The bytes of an array. */
typedef struct {
    uint64_t first, last;
    uint32_t kind;
} leaf_span;

typedef struct {
    PyObject_HEAD
    const xp_types *types;
    PyObject *arrays; /* a tuple */
    PyObject *known;  /* Kinds, or NULL if nothing is known */
    Py_ssize_t n, at; /* at: the first array that is not placed */
    Py_ssize_t asked; /* one more than the index of the array whose finder was last asked whether it knows the memory */
    leaf *leaves, one;
    PyObject *dtypes; /* a list, by their numbers in the message */
    leaf_kind *kinds;
    uint32_t kind_count, kind_room, place_count, place_room;
    leaf_place *places; /* sorted by their starts, then by the access, then by the handle */
    leaf_span *spans; /* NULL until needed: the viewed arrays, sorted by `first` */
    Py_ssize_t span_count, ahead; /* ahead: the span that `first_of` found */
    uint64_t chain_first, chain_last; /* what `ahead_of` found last */
    int64_t *pool;
    size_t pool_used, pool_room;
    uint64_t copied;  /* bytes that Python has copied */
    bool read_only, grouped; /* read_only: all of it is shared read-only, whatever this process may do with it */
    bool unknown;            /* the finder does not find the array at `at` */
} xp_leaves;

static int visit_parts(PyObject *object, visitproc visit, void *arg)
{
    xp_leaves *self = (xp_leaves *)object;
    for (uint32_t i = 0; i < self->kind_count; i++) {
        Py_VISIT(self->kinds[i].named);
        XP_KIND_VISIT(&self->kinds[i].said);
    }
    for (uint32_t i = 0; i < self->place_count; i++) {
        Py_VISIT(self->places[i].allocation);
        Py_VISIT(self->places[i].device);
        Py_VISIT(self->places[i].context);
        Py_VISIT(self->places[i].handle);
        Py_VISIT(self->places[i].keep);
    }
    return 0;
}

static void release_parts(PyObject *object)
{
    xp_leaves *self = (xp_leaves *)object;
    for (uint32_t i = 0; i < self->kind_count; i++) {
        Py_XDECREF(self->kinds[i].named);
        xp_kind_drop(&self->kinds[i].said);
    }
    for (uint32_t i = 0; i < self->place_count; i++) {
        PyObject *all[] = {self->places[i].allocation, self->places[i].device, self->places[i].context,
                           self->places[i].handle, self->places[i].keep};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            Py_XDECREF(all[j]);
    }
    if (self->leaves != &self->one)
        PyMem_Free(self->leaves);
    PyMem_Free(self->kinds);
    PyMem_Free(self->places);
    PyMem_Free(self->spans);
    PyMem_Free(self->pool);
}

/* The collector clears nothing: its objects never refer to it, since only a call of `share` has it. */
XP_LIFE(leaves, .end = release_parts, .visit = visit_parts, .fixed = XP_OBJECTS(xp_leaves, arrays, known, dtypes))

static PyObject *leaves_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    const xp_types *types = xp_types_by(type, leaves_dealloc);
    Py_ssize_t n = kwargs && PyDict_Size(kwargs) ? 0 : PyTuple_Size(args);
    PyObject *arrays = n > 0 ? PyTuple_GetItem(args, 0) : NULL, *known = n > 2 ? PyTuple_GetItem(args, 2) : NULL;
    if (n < 2 || n > 3 || !PyList_Check(arrays) || (known && !xp_is_kinds(types, known)))
        return xp_refuse(PyExc_TypeError, "Leaves() takes a list, whether it is shared read-only, and perhaps Kinds");
    int read_only = PyObject_IsTrue(PyTuple_GetItem(args, 1));
    if (read_only < 0)
        return NULL;
    xp_leaves *self = (xp_leaves *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->types = types;
    self->read_only = read_only != 0;
    self->known = Py_XNewRef(known);
    self->arrays = PyList_AsTuple(arrays); /* nobody changes it during this */
    self->n = self->arrays ? PyTuple_Size(self->arrays) : 0;
    self->dtypes = PyList_New(0);
    self->leaves = self->n <= 1 ? &self->one : PyMem_Calloc((size_t)self->n, sizeof *self->leaves);
    if (self->leaves == NULL)
        PyErr_NoMemory();
    if (!(self->arrays && self->dtypes && self->leaves))
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* Make room for one more of `count` items. Returns false with an exception set. */
static bool grow(void *items, uint32_t count, uint32_t *room, size_t nbytes)
{
    if (count < *room)
        return true;
    uint32_t wanted = 2 * *room + 2;
    void *grown = PyMem_Realloc(*(void **)items, wanted * nbytes);
    if (grown == NULL)
        return PyErr_NoMemory();
    *(void **)items = grown;
    *room = wanted;
    return true;
}

/* Make room for so many lengths and strides. NULL with an exception set. */
static int64_t *room_for(xp_leaves *self, size_t n)
{
    if (self->pool == NULL || self->pool_used + n > self->pool_room) {
        size_t room = 2 * self->pool_room + n + 8;
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

/* --- places ------------------------------------------------------------------------------------------------------- */

/* Return the index of the place with that start, access and handle, or the index at which to insert it. */
static uint32_t index_of(const xp_leaves *self, uint64_t start, bool read_only, const PyObject *handle)
{
    uint32_t low = 0, high = self->place_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        const leaf_place *p = &self->places[middle];
        if (p->start < start ||
            (p->start == start && (p->read_only < read_only ||
                                   (p->read_only == read_only && (uintptr_t)p->handle < (uintptr_t)handle))))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static leaf_place *place_at(const xp_leaves *self, uint64_t start, bool read_only, const PyObject *handle)
{
    uint32_t at = index_of(self, start, read_only, handle);
    leaf_place *p = &self->places[at];
    return at < self->place_count && p->start == start && p->read_only == read_only && p->handle == handle ? p : NULL;
}

/* Return the place, which is made if necessary. NULL with an exception set. */
static leaf_place *learn(xp_leaves *self, uint64_t start, uint64_t nbytes, bool read_only, bool foreign,
                         PyObject *allocation, PyObject *device, PyObject *context, PyObject *handle)
{
    leaf_place *known = place_at(self, start, read_only, handle);
    if (known && start + nbytes <= known->end)
        return known;
    if (known) { /* a longer run of allocations, which includes the arrays placed there */
        PyObject *before = known->allocation;
        known->allocation = Py_NewRef(allocation);
        known->end = start + nbytes;
        Py_DECREF(before);
        return place_at(self, start, read_only, handle); /* dropping it may have run any code */
    }
    if (!grow(&self->places, self->place_count, &self->place_room, sizeof *self->places))
        return NULL;
    leaf_place *at = &self->places[index_of(self, start, read_only, handle)];
    memmove(at + 1, at, (size_t)(&self->places[self->place_count] - at) * sizeof *at);
    *at = (leaf_place){.start = start, .end = start + nbytes, .low = UINT64_MAX, .allocation = Py_NewRef(allocation),
                       .device = Py_NewRef(device), .context = Py_NewRef(context), .handle = Py_XNewRef(handle),
                       .read_only = read_only, .foreign = foreign};
    self->place_count++;
    return at;
}

/* Return the place with that access that has these bytes and may be exported from here, or NULL. */
static leaf_place *place_of(const xp_leaves *self, uint64_t first, uint64_t last, bool read_only)
{
    uint32_t at = index_of(self, first + 1, false, NULL);
    while (at > 0 && (self->places[at - 1].read_only != read_only || self->places[at - 1].handle))
        at--;
    leaf_place *p = at ? &self->places[at - 1] : NULL;
    const xp_allocation *m = p ? xp_allocation_of(self->types, p->allocation) : NULL;
    return p && first >= p->start && last <= p->end && !(m && m->lent) ? p : NULL;
}

/* Record that the array lies there, with these bytes. Returns false with an exception set. */
static bool put_into(leaf_place *p, leaf *l, uint64_t first, uint64_t last, PyObject *keep)
{
    if (keep) {
        if (p->keep == NULL && (p->keep = PyList_New(0)) == NULL)
            return false;
        if (PyList_Append(p->keep, keep) < 0)
            return false;
    }
    p->low = first < p->low ? first : p->low;
    p->high = last > p->high ? last : p->high;
    l->start = p->start;
    l->handle = p->handle;
    l->read_only = p->read_only;
    l->placed = true;
    return true;
}

/* --- looking at arrays -------------------------------------------------------------------------------------------- */

/* Return the kind like this one, which is made if necessary. NULL if there are too many, or with an exception set. */
static leaf_kind *kind_like(xp_leaves *self, const leaf_kind *wanted)
{
    for (uint32_t i = 0; i < self->kind_count; i++)
        if (xp_same_kind(&self->kinds[i].key, &wanted->key))
            return &self->kinds[i];
    if (self->kind_count == XP_KINDS_MOST || !grow(&self->kinds, self->kind_count, &self->kind_room, sizeof *self->kinds))
        return NULL;
    leaf_kind *made = &self->kinds[self->kind_count];
    *made = *wanted;
    Py_XINCREF(made->named);
    if (self->known)
        xp_known_kind(self->known, &made->key, &made->said);
    self->kind_count++;
    return made;
}

/* Return the number of a dtype in the message, by identity: structures that compare equal may differ. -1 with an
 * exception set. */
static int dtype_number(const xp_leaves *self, PyObject *dtype, uint32_t *number)
{
    uint32_t n = (uint32_t)PyList_Size(self->dtypes);
    for (*number = 0; *number < n; ++*number)
        if (PyList_GetItem(self->dtypes, *number) == dtype)
            return 0;
    return PyList_Append(self->dtypes, dtype);
}

static int view_range(xp_leaves *self, const xp_types *types, leaf *l, PyObject *array, const xp_array_state *a,
                      const xp_range *r)
{
    const xp_allocation *m = r ? xp_allocation_of(types, r->allocation) : NULL;
    if (m == NULL || m->resource.forks != XP_RELAXED(&xp_fork_count) || r->read_only ||
        (m->owned ? a->order && a->order != Py_None : m->imported || r->handle != Py_None || r->lease != Py_None))
        return 0;
    leaf_kind wanted = {.key = {.device = r->device, .dtype = a->dtype}, .first = array};
    leaf_kind *kind = kind_like(self, &wanted);
    if (kind && kind->itemsize == 0) {
        PyObject *itemsize = PyObject_GetAttr(a->dtype, types->itemsize);
        int rc = itemsize ? xp_as_u32(itemsize, &kind->itemsize) : -1;
        Py_XDECREF(itemsize);
        if (rc < 0)
            return -1;
        kind->on = r->device;
        kind->context = r->context;
    }
    int64_t lengths[XP_MAX_DIMS], steps[XP_MAX_DIMS];
    int ndim, nsteps;
    size_t used = self->pool_used;
    if (kind == NULL || kind->itemsize == 0 || xp_as_dims(a->shape, "shape", lengths, &ndim) < 0 ||
        xp_as_dims(a->strides, "strides", steps, &nsteps) < 0 || ndim < 0 || nsteps != ndim)
        return PyErr_Occurred() ? -1 : 0;
    int64_t *dims = room_for(self, 2 * (size_t)ndim);
    if (dims == NULL)
        return -1;
    memcpy(dims, lengths, 8u * (size_t)ndim);
    memcpy(dims + ndim, steps, 8u * (size_t)ndim);
    uint64_t base = m->address + r->offset + (uint64_t)a->offset;
    leaf_place *p = NULL;
    if (!xp_extent(dims, (unsigned)ndim, kind->itemsize, &l->low, &l->high)) {
        self->pool_used = used;
        return 0;
    }
    l->dims = used;
    l->as.ndim = (uint16_t)ndim;
    l->address = base;
    l->kind = (uint32_t)(kind - self->kinds);
    l->viewed = true;
    p = learn(self, m->address, m->nbytes, false, m->foreign || m->imported, r->allocation, r->device, r->context, NULL);
    PyObject *keep = m->owned ? (PyObject *)(uintptr_t)r : NULL; /* the array may be closed */
    return p && put_into(p, l, base + (uint64_t)l->low, base + (uint64_t)l->high, keep) ? 1 : -1;
}

/* Return whether the array is one of ours, in memory that this process made or owns and may write, with content that
 * nobody has to wait for. -1 with an exception set. Another thread may close it meanwhile. */
static int view_own(xp_leaves *self, const xp_types *types, leaf *l, PyObject *array)
{
    xp_array_state *a = xp_array_of(types, array);
    PyObject *held = a ? xp_field(array, &a->base.base.held) : NULL;
    const xp_range *r = held ? xp_range_of(types, held) : NULL;
    int viewed = r ? view_range(self, types, l, array, a, r) : 0;
    Py_XDECREF(held);
    return viewed;
}

/* View another library's array. -1 with an exception set. */
static int view_other(xp_leaves *self, leaf *l, PyObject *array, xp_viewer *viewer)
{
    xp_seen d;
    int viewed = xp_view_array(self->types, self->known, viewer, array, &d);
    if (viewed <= 0)
        return viewed;
    leaf_kind wanted = {.key = d.key, .api = d.api, .itemsize = d.itemsize, .first = array, .named = d.dtype};
    leaf_kind *kind = d.address < XP_LEAST_ADDRESS ? NULL : kind_like(self, &wanted); /* Python says why */
    Py_XDECREF(d.dtype);
    size_t used = self->pool_used;
    int64_t *dims = kind ? room_for(self, 2 * (size_t)d.ndim) : NULL;
    if (dims == NULL)
        return PyErr_Occurred() ? -1 : 0;
    memcpy(dims, d.dims, 16u * (size_t)d.ndim);
    l->dims = used;
    l->address = d.address;
    l->low = d.low;
    l->high = d.high;
    l->read_only = d.read_only && !self->read_only;
    l->as.ndim = (uint16_t)d.ndim;
    l->kind = (uint32_t)(kind - self->kinds);
    l->viewed = true;
    return 0;
}

/* Get the number of the stream that the kind's library works on now. Returns false if it reports none, perhaps with
 * an exception set. */
static bool stream_of(const leaf_kind *k, uint64_t *number)
{
    void *stream = NULL;
    if (k->api == NULL || k->api->stream == NULL || k->api->stream(k->key.on.type, k->key.on.id, &stream) != 0) {
        if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
            PyErr_Clear();
        return false;
    }
    *number = (uint64_t)(uintptr_t)stream;
    return true;
}

/* Return whether Python need not be asked about a kind, because its earlier answer is still valid. `ordered`:
 * somebody waits for the stream that produces the arrays. -1 with an exception set. */
static int is_decided(leaf_kind *k, bool ordered)
{
    uint64_t number;
    if (k->key.type && k->said.device == NULL)
        return 0;
    if (k->key.type && k->on == NULL) {
        k->on = k->said.device;
        k->context = k->said.context;
    }
    if (ordered && k->said.stream == XP_STREAM_NUMBERED) {
        bool same = stream_of(k, &number) && number == k->said.number;
        return PyErr_Occurred() ? -1 : same;
    }
    return !ordered || k->said.stream != XP_STREAM_UNKNOWN;
}

/* For each kind that is not decided: its number, an array of it, the device of ours or None, and None or of an array
 * with DLPack's exchange API DLPack's device type and number, code, bits and lanes of an element. */
static PyObject *undecided(xp_leaves *self, bool ordered)
{
    PyObject *found = PyList_New(0);
    for (uint32_t i = 0; found && i < self->kind_count; i++) {
        leaf_kind *k = &self->kinds[i];
        int decided = is_decided(k, ordered);
        if (decided > 0)
            continue;
        Py_CLEAR(k->said.work); /* of a stream that its library does not work on now */
        PyObject *device = k->key.device;
        PyObject *all[] = {PyLong_FromUnsignedLong(i), Py_NewRef(k->first), Py_NewRef(device ? device : Py_None),
                           xp_kind_element(&k->key)};
        xp_append(&found, xp_tuple_of(all, 4));
        if (decided < 0)
            Py_CLEAR(found);
    }
    return found;
}

/* view(ordered=True): look at the arrays, and return the kinds that are not decided */
static PyObject *leaves_view(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    xp_leaves *self = (xp_leaves *)object;
    const xp_types *types = ((xp_leaves *)object)->types;
    xp_viewer viewer = {.type = NULL};
    int ordered = xp_arity("view", n, 0, 1) < 0 ? -1 : n == 0 || args[0] == Py_True;
    bool good = ordered >= 0;
    for (Py_ssize_t i = 0; good && i < self->n; i++) {
        PyObject *array = PyTuple_GetItem(self->arrays, i);
        int rc = view_own(self, types, &self->leaves[i], array);
        good = rc >= 0;
        if (rc == 0 && xp_array_of(types, array) == NULL)
            good = view_other(self, &self->leaves[i], array, &viewer) == 0;
    }
    Py_XDECREF(viewer.negated);
    return good ? undecided(self, ordered) : NULL;
}

/* Return the kind of that number. NULL with an exception set. */
static leaf_kind *kind_arg(const xp_leaves *self, PyObject *number)
{
    uint32_t at;
    if (xp_as_u32(number, &at) < 0)
        return NULL;
    if (at < self->kind_count)
        return &self->kinds[at];
    return xp_refuse(PyExc_IndexError, "there is no such kind");
}

/* stream(kind): the number of the stream that the kind's library works on now, or None */
static PyObject *leaves_stream(PyObject *object, PyObject *number)
{
    const leaf_kind *k = kind_arg((xp_leaves *)object, number);
    uint64_t stream;
    if (k == NULL)
        return NULL;
    if (stream_of(k, &stream))
        return PyLong_FromUnsignedLongLong(stream);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static void know(const xp_leaves *self, const leaf_kind *k)
{
    if (self->known)
        xp_learn_kind(self->known, &k->key, &k->said);
}

/* settle(kind, dtype, device, context): the kind's arrays have that dtype, and are on that device */
static PyObject *leaves_settle(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    xp_leaves *self = (xp_leaves *)object;
    leaf_kind *k = xp_arity("settle", n, 4, 4) < 0 ? NULL : kind_arg(self, args[0]);
    if (k == NULL)
        return NULL;
    if (k->on == NULL) {
        k->said = (xp_kind){.dtype = Py_NewRef(args[1]), .device = Py_NewRef(args[2]), .context = Py_NewRef(args[3]),
                            .api = k->api};
        k->on = k->said.device;
        k->context = k->said.context;
        know(self, k);
    }
    Py_RETURN_NONE;
}

/* finds(kind, finder, info): a Recogniser finds the memory of the kind's arrays, and calls their device `info` */
static PyObject *leaves_finds(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    xp_leaves *self = (xp_leaves *)object;
    leaf_kind *k = xp_arity("finds", n, 3, 3) < 0 ? NULL : kind_arg(self, args[0]);
    if (k == NULL)
        return NULL;
    if (!xp_is_recogniser(self->types, args[1]) || k->said.device == NULL)
        return xp_refuse(PyExc_TypeError, "finds() takes a kind that is settled, and a Recogniser");
    if (k->said.finder == NULL) {
        k->said.finder = Py_NewRef(args[1]);
        k->said.info = Py_NewRef(args[2]);
        know(self, k);
    }
    Py_RETURN_NONE;
}

/* produce(kind, work, number, lasting): set the queue over the stream that produces the kind's arrays, or None, and
 * the stream's number in its library, or None. lasting: the number always means this queue. */
static PyObject *leaves_produce(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    xp_leaves *self = (xp_leaves *)object;
    const xp_types *types = ((xp_leaves *)object)->types;
    leaf_kind *k = xp_arity("produce", n, 4, 4) < 0 ? NULL : kind_arg(self, args[0]);
    if (k == NULL || (args[2] != Py_None && xp_as_u64(args[2], &k->said.number) < 0))
        return NULL;
    if (args[1] != Py_None && !xp_is_resource(types, args[1]))
        return xp_refuse(PyExc_TypeError, "that is not a Resource");
    PyObject *before = k->said.work;
    k->said.work = args[1] == Py_None ? NULL : Py_NewRef(args[1]);
    Py_XDECREF(before);
    if (args[3] != Py_True)
        k->said.stream = XP_STREAM_UNKNOWN;
    else if (k->said.work == NULL)
        k->said.stream = XP_STREAM_NONE;
    else
        k->said.stream = args[2] == Py_None ? XP_STREAM_ALWAYS : XP_STREAM_NUMBERED;
    if (args[3] == Py_True)
        know(self, k);
    Py_RETURN_NONE;
}

/* producers(): by kind, the producer of its arrays, the same object for each queue; None if there is none */
static PyObject *leaves_producers(PyObject *object, PyObject *Py_UNUSED(none))
{
    const xp_leaves *self = (xp_leaves *)object;
    PyObject *found = NULL;
    for (uint32_t i = 0; i < self->kind_count && !PyErr_Occurred(); i++) {
        PyObject *work = self->kinds[i].said.work;
        if (work && found == NULL && (found = PyDict_New()) == NULL)
            return NULL;
        for (uint32_t j = 0; work && j < i; j++) {
            PyObject *other = self->kinds[j].said.work;
            if (other && ((const xp_resource *)other)->driver == ((const xp_resource *)work)->driver) {
                work = other;
                break;
            }
        }
        PyObject *number = work ? PyLong_FromUnsignedLong(i) : NULL;
        if (work && (number == NULL || PyDict_SetItem(found, number, work) < 0))
            Py_CLEAR(found);
        Py_XDECREF(number);
    }
    return found || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}

/* --- placing them ------------------------------------------------------------------------------------------------- */

/* What is needed to find new memory: see `next`. */
typedef struct {
    PyObject *maps, *add, *own; /* borrowed; own: NULL if there is none */
} finding;

static bool is_buffer(const leaf_kind *k) { return k->key.type && k->key.on.type == XP_BUFFER; }

/* Return whether memory of ours, or memory that is open here, lies at that address. */
static bool is_mapped(const finding *with, uint64_t address)
{
    PyObject *found = NULL;
    for (Py_ssize_t i = 0; found == NULL && i < PyTuple_Size(with->maps); i++)
        found = xp_address_find(PyTuple_GetItem(with->maps, i), address);
    Py_XDECREF(found);
    return found != NULL;
}

/* Return the place of bytes in another library's allocation that its finder knows, or finds now; the place is made
 * if necessary. NULL with or without an exception. */
static leaf_place *found_place(xp_leaves *self, const xp_types *types, uint32_t kind, uint64_t first, uint64_t last,
                               const finding *with)
{
    xp_kind *said = &self->kinds[kind].said;
    PyObject *found = NULL;
    if (said->finder && self->asked != self->at + 1)
        found = xp_recognised(said->finder, said->info, first, last - first);
    self->asked = self->at + 1;
    if (found == NULL && said->finder && with && !PyErr_Occurred() && !is_mapped(with, first)) {
        found = xp_recognise(types, said->finder, said->device, said->info, first, last - first, with->add, with->own);
        self->unknown = found == NULL;
    }
    const xp_allocation *m = found ? xp_allocation_of(types, found) : NULL;
    leaf_place *p = NULL;
    if (m && m->foreign && m->resource.device == said->device)
        p = learn(self, m->address, m->nbytes, false, true, found, said->device, said->context, NULL);
    Py_XDECREF(found);
    return p;
}

/* Return the place of a buffer's bytes in memory of ours on its kind's device, which is made if necessary. NULL with or
 * without an exception. */
static leaf_place *own_place(xp_leaves *self, const leaf *l, uint64_t first, uint64_t last, const finding *with)
{
    const xp_kind *said = &self->kinds[l->kind].said;
    PyObject *found = PyTuple_Size(with->maps) ? xp_address_find(PyTuple_GetItem(with->maps, 0), first) : NULL;
    const xp_allocation *m = found ? xp_allocation_of(self->types, found) : NULL;
    leaf_place *p = NULL;
    if (m && !m->foreign && !m->imported && !m->lent && m->resource.device == said->device &&
        m->resource.forks == XP_RELAXED(&xp_fork_count) && last <= m->address + m->nbytes)
        p = learn(self, m->address, m->nbytes, l->read_only, false, found, said->device, said->context, NULL);
    Py_XDECREF(found);
    return p;
}

/* The arguments of `next`. Returns false with an exception set. */
static bool as_finding(const xp_types *types, PyObject *const *args, Py_ssize_t n, finding *with)
{
    bool good = n == 3 && PyTuple_Check(args[0]) && (args[2] == Py_None || Py_TYPE(args[2]) == types->own_table);
    for (Py_ssize_t i = 0; good && i < PyTuple_Size(args[0]); i++)
        good = xp_is_addresses(types, PyTuple_GetItem(args[0], i));
    if (good)
        *with = (finding){args[0], args[1], args[2] == Py_None ? NULL : args[2]};
    else
        PyErr_SetString(PyExc_TypeError, "next() takes nothing, or a tuple of AddressMaps, a function, and an OwnTable or None");
    return good;
}

/* next(maps, add, own): place the arrays that lie in places that are known, up to the next at which somebody has to look:
 * its index, or None */
static PyObject *leaves_next(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    xp_leaves *self = (xp_leaves *)object;
    const xp_types *types = self->types;
    finding with;
    if (n && !as_finding(types, args, n, &with))
        return NULL;
    self->unknown = false;
    for (; self->at < self->n; self->at++) {
        leaf *l = &self->leaves[self->at];
        if (l->placed)
            continue;
        if (!l->viewed || self->kinds[l->kind].on == NULL)
            return PyLong_FromSsize_t(self->at);
        uint64_t first = l->address + (uint64_t)l->low, last = l->address + (uint64_t)l->high;
        leaf_place *p = place_of(self, first, last, l->read_only);
        if (p == NULL && !is_buffer(&self->kinds[l->kind]))
            p = found_place(self, types, l->kind, first, last, n ? &with : NULL);
        else if (p == NULL && n)
            p = own_place(self, l, first, last, &with);
        if (p == NULL || p->device != self->kinds[l->kind].on)
            return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(self->at);
        if (!put_into(p, l, first, last, p->foreign ? PyTuple_GetItem(self->arrays, self->at) : NULL))
            return NULL;
    }
    Py_RETURN_NONE;
}

static int by_first(const void *one, const void *other)
{
    uint64_t a = ((const leaf_span *)one)->first, b = ((const leaf_span *)other)->first;
    return (a > b) - (a < b);
}

static bool sort_spans(xp_leaves *self)
{
    self->spans = PyMem_Malloc((size_t)self->n * sizeof *self->spans);
    if (self->spans == NULL)
        return PyErr_NoMemory() != NULL;
    for (Py_ssize_t i = 0; i < self->n; i++) {
        const leaf *l = &self->leaves[i];
        if (l->viewed && !is_buffer(&self->kinds[l->kind]))
            self->spans[self->span_count++] =
                (leaf_span){l->address + (uint64_t)l->low, l->address + (uint64_t)l->high, l->kind};
    }
    qsort(self->spans, (size_t)self->span_count, sizeof *self->spans, by_first);
    return true;
}

/* Return whether the arrays lie end to end, as far as one export goes. No page lies between such arrays, and so no
 * other allocation does. `s`: of the array in question, which must be of that device and in no known place. */
static bool adjoins(const xp_leaves *self, const leaf_span *s, const PyObject *device, uint64_t first, uint64_t last)
{
    return s->first < last + AHEAD_GAP && s->last + AHEAD_GAP > first && self->kinds[s->kind].on == device &&
           (s->last <= last || s->last - first <= AHEAD_MOST) && (s->first >= first || last - s->first <= AHEAD_MOST) &&
           place_of(self, s->first, s->last, false) == NULL;
}

/* Return the first of the arrays that lie end to end with this one. If they lie in a run of allocations, the run is
 * exported from there on. */
static leaf_span first_of(xp_leaves *self, leaf_span own, const PyObject *device)
{
    Py_ssize_t low = 0, high = self->span_count;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (self->spans[middle].first < own.first)
            low = middle + 1;
        else
            high = middle;
    }
    leaf_span found = own;
    self->ahead = low;
    for (int step = 0; step < BEHIND_MOST && self->ahead > 0; step++) {
        const leaf_span *s = &self->spans[self->ahead - 1];
        if (!adjoins(self, s, device, found.first, own.last > found.last ? own.last : found.last))
            break;
        found = *s;
        self->ahead--;
    }
    return found;
}

/* Return how many bytes from there on have arrays end to end. */
static uint64_t ahead_of(xp_leaves *self, leaf_span own, const PyObject *device)
{
    if (own.first < self->chain_first || own.last > self->chain_last) {
        uint64_t last = own.last;
        for (Py_ssize_t i = self->ahead; i < self->span_count; i++) {
            const leaf_span *s = &self->spans[i];
            if (!adjoins(self, s, device, own.first, last))
                break;
            last = s->last > last ? s->last : last;
        }
        self->chain_first = own.first;
        self->chain_last = last;
    }
    return self->chain_last - own.first;
}

/* where(): (kind, address of the lowest byte, bytes, device, context, finder or None if it has none that may know
 * it, its name of the device, `ahead_of`) of the array that `next` named, or of the first one that it lies end to
 * end with, if its kind is settled; else None */
static PyObject *leaves_where(PyObject *object, PyObject *Py_UNUSED(none))
{
    xp_leaves *self = (xp_leaves *)object;
    const leaf *l = self->at < self->n ? &self->leaves[self->at] : NULL;
    const leaf_kind *k = l && l->viewed ? &self->kinds[l->kind] : NULL;
    if (k == NULL || k->said.device == NULL || is_buffer(k))
        Py_RETURN_NONE;
    if (self->spans == NULL && self->n > 1 && !sort_spans(self))
        return NULL;
    leaf_span s = {l->address + (uint64_t)l->low, l->address + (uint64_t)l->high, l->kind};
    s = first_of(self, s, k->on);
    PyObject *all[] = {PyLong_FromUnsignedLong(l->kind),
                       PyLong_FromUnsignedLongLong(s.first),
                       PyLong_FromUnsignedLongLong(s.last - s.first),
                       Py_NewRef(k->said.device),
                       Py_NewRef(k->said.context),
                       Py_NewRef(k->said.finder && !self->unknown ? k->said.finder : Py_None),
                       Py_NewRef(k->said.info ? k->said.info : Py_None),
                       PyLong_FromUnsignedLongLong(ahead_of(self, s, k->on))};
    return xp_tuple_of(all, sizeof all / sizeof *all);
}

/* learn(allocation, context): arrays may lie there */
static PyObject *leaves_learn(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_types *types = ((xp_leaves *)object)->types;
    const xp_allocation *m = xp_arity("learn", n, 2, 2) < 0 ? NULL : xp_allocation_of(types, args[0]);
    if (m == NULL)
        return xp_refuse(PyExc_TypeError, "that is not an Allocation");
    bool kept = m->foreign || m->imported; /* the arrays there hold it */
    if (learn((xp_leaves *)object, m->address, m->nbytes, false, kept, args[0], m->resource.device, args[1], NULL) == NULL)
        return NULL;
    Py_RETURN_NONE;
}

/* skip(): the array that `next` named is placed later */
static PyObject *leaves_skip(PyObject *object, PyObject *Py_UNUSED(none))
{
    xp_leaves *self = (xp_leaves *)object;
    self->at += self->at < self->n;
    Py_RETURN_NONE;
}

/* put(index, range, first, shape, strides, dtype, kind): an array covers that range, and its first element is
 * `first` bytes into it. kind: a number of Python's, from XP_KINDS_MOST on */
static PyObject *leaves_put(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    xp_leaves *self = (xp_leaves *)object;
    const xp_types *types = ((xp_leaves *)object)->types;
    int64_t lengths[XP_MAX_DIMS], steps[XP_MAX_DIMS];
    int ndim, nsteps;
    uint64_t index, first;
    uint32_t kind;
    if (xp_arity("put", n, 7, 7) < 0 || xp_as_u64(args[0], &index) < 0 || xp_as_u64(args[2], &first) < 0 ||
        xp_as_dims(args[3], "shape", lengths, &ndim) < 0 || xp_as_dims(args[4], "strides", steps, &nsteps) < 0 ||
        xp_as_u32(args[6], &kind) < 0)
        return NULL;
    const xp_range *r = xp_range_of(types, args[1]);
    const xp_allocation *m = r ? xp_allocation_of(types, r->allocation) : NULL;
    if (m == NULL || index >= (uint64_t)self->n || ndim < 0 || nsteps != ndim || kind < XP_KINDS_MOST)
        return xp_refuse(PyExc_ValueError,
                         "that is not a range of an allocation, or shape and strides differ in length");
    leaf *l = &self->leaves[index];
    uint32_t number;
    if (dtype_number(self, args[5], &number) < 0)
        return NULL;
    l->as.dtype = number;
    l->dims = self->pool_used;
    int64_t *dims = room_for(self, 2 * (size_t)ndim);
    if (dims == NULL)
        return NULL;
    memcpy(dims, lengths, 8u * (size_t)ndim);
    memcpy(dims + ndim, steps, 8u * (size_t)ndim);
    l->as.ndim = (uint16_t)ndim;
    uint64_t low = m->address + r->offset;
    l->address = low + first;
    l->kind = kind;
    bool passed_on = r->handle != Py_None && !m->owned;
    leaf_place *p = learn(self, passed_on ? low : m->address, passed_on ? r->nbytes : m->nbytes,
                          r->read_only && !self->read_only, m->foreign || m->imported, r->allocation, r->device,
                          r->context, passed_on ? r->handle : NULL);
    if (p == NULL || !put_into(p, l, low, low + r->nbytes, r->lease == Py_None ? NULL : r->lease))
        return NULL;
    Py_RETURN_NONE;
}

/* --- describing them ---------------------------------------------------------------------------------------------- */

/* Return the part of a place to export: the bytes that its arrays span, or all of it. NULL with an exception set. */
static PyObject *range_of(const xp_leaves *self, const xp_types *types, const leaf_place *p, bool whole)
{
    const xp_allocation *m = xp_allocation_of(types, p->allocation);
    uint64_t low = whole ? p->start : p->low, high = whole ? p->end : p->high;
    if (m == NULL)
        return xp_refuse(PyExc_TypeError, "that is not an Allocation");
    return xp_range_new(types, p->allocation, low - m->address, high - low, p->device, p->context,
                        self->read_only || p->read_only, p->handle ? p->handle : Py_None, p->keep ? p->keep : Py_None);
}

/* groups(events={}, event=-1, whole=False): a range for each place in which arrays lie: the bytes that they span,
 * or, with `whole`, all of the allocation. events: by kind, the number of the event that orders its arrays (-1:
 * none); event: of all other kinds */
static PyObject *leaves_groups(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    xp_leaves *self = (xp_leaves *)object;
    const xp_types *types = ((xp_leaves *)object)->types;
    int others = -1, event = -1;
    if ((n && xp_arity("groups", n, 3, 3) < 0) || (n && xp_as_int(args[1], &others) < 0))
        return NULL;
    bool placed = n == 0 || PyDict_Check(args[0]);
    for (Py_ssize_t i = 0; i < self->n && placed; i++)
        placed = self->leaves[i].placed;
    if (!placed)
        return xp_refuse(PyExc_TypeError, "groups() takes a dict, once all arrays are placed");
    bool whole = n && args[2] == Py_True, some = n && PyDict_Size(args[0]);
    for (uint32_t i = 0; i < self->place_count; i++)
        self->places[i].numbered = false;
    PyObject *found = PyList_New(0);
    uint32_t last = UINT32_MAX, number = 0;
    for (Py_ssize_t i = 0; found && i < self->n; i++) {
        leaf *l = &self->leaves[i];
        leaf_place *p = place_at(self, l->start, l->read_only, l->handle);
        if (p && !p->numbered) { /* in the order of their first arrays */
            PyObject *range = range_of(self, types, p, whole);
            p->number = (uint32_t)PyList_Size(found);
            p->numbered = true;
            xp_append(&found, range);
        }
        if (found && l->kind != last) {
            PyObject *key = some ? PyLong_FromUnsignedLong(l->kind) : NULL;
            PyObject *named = key ? PyDict_GetItemWithError(args[0], key) : NULL;
            event = others;
            if ((named && xp_as_int(named, &event) < 0) || PyErr_Occurred())
                Py_CLEAR(found);
            Py_XDECREF(key);
            const leaf_kind *k = l->kind < XP_KINDS_MOST ? &self->kinds[l->kind] : NULL;
            if (k && dtype_number(self, k->key.type ? k->said.dtype : k->key.dtype, &number) < 0)
                Py_CLEAR(found);
            last = l->kind;
        }
        l->as.memory = p ? p->number : 0;
        l->as.event = (uint32_t)(event + 1);
        if (l->kind < XP_KINDS_MOST)
            l->as.dtype = number;
        l->as.offset = p ? l->address - (whole ? p->start : p->low) : 0;
    }
    self->grouped = found != NULL;
    return found;
}

/* Return the bytes of all handles of a tuple, or with points those of a tuple of (handle, point). NULL with an
 * exception set. Runs no Python, which could place more arrays. */
static char *copy_handles(const xp_types *types, char *at, PyObject *handles, bool points)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(handles); i++) {
        PyObject *item = PyTuple_GetItem(handles, i), *handle = item, *number;
        uint64_t point = 0;
        if (points && (!PyArg_ParseTuple(item, "OO!", &handle, &PyLong_Type, &number) || xp_as_u64(number, &point) < 0))
            return NULL;
        const xp_handle *h = xp_handle_of(types, handle);
        if (h == NULL)
            return xp_refuse(PyExc_TypeError, "that is not a handle");
        at = (char *)memcpy(at, h, sizeof *h) + sizeof *h;
        if (points)
            at = (char *)memcpy(at, &point, sizeof point) + sizeof point;
    }
    return at;
}

/* Return the message of a tuple of handles and one of (handle, point), or None if it would be too large. */
static PyObject *sealed(const xp_leaves *self, const xp_types *types, const xp_key *key, PyObject *handles,
                        PyObject *events, const char *text, uint64_t text_nbytes)
{
    uint64_t memory = (uint64_t)PyTuple_Size(handles), marks = (uint64_t)PyTuple_Size(events), steps = 0;
    for (Py_ssize_t i = 0; i < self->n; i++)
        steps += 2u * self->leaves[i].as.ndim;
    uint64_t nbytes = sizeof(xp_message) + memory * sizeof(xp_handle) + marks * XP_EVENT_NBYTES +
                      (uint64_t)self->n * sizeof(xp_leaf) + 8 * steps + text_nbytes + XP_SEAL;
    if (nbytes > XP_MESSAGE_MOST)
        Py_RETURN_NONE;
    const xp_message head = {.magic = XP_MESSAGE_MAGIC, .version = XP_MESSAGE_VERSION, .length = (uint32_t)nbytes,
                             .memory = (uint32_t)memory, .events = (uint32_t)marks, .arrays = (uint32_t)self->n,
                             .steps = (uint32_t)steps, .text_nbytes = (uint32_t)text_nbytes, .copied = self->copied};
    PyObject *raw = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)nbytes), *made = NULL;
    char *begin = raw ? PyBytes_AsString(raw) : NULL;
    char *at = begin ? (char *)memcpy(begin, &head, sizeof head) + sizeof head : NULL;
    if (at)
        at = copy_handles(types, at, handles, false);
    if (at)
        at = copy_handles(types, at, events, true);
    if (at) {
        for (Py_ssize_t i = 0; i < self->n; i++)
            at = (char *)memcpy(at, &self->leaves[i].as, sizeof(xp_leaf)) + sizeof(xp_leaf);
        for (Py_ssize_t i = 0; i < self->n; i++) {
            const leaf *l = &self->leaves[i];
            at = (char *)memcpy(at, self->pool + l->dims, 16u * l->as.ndim) + 16u * l->as.ndim;
        }
        memcpy(at, text, text_nbytes);
        xp_parts m;
        if (memory && xp_parts_of(begin, (size_t)nbytes, &m)) {
            xp_hash_message(key, &m, (uint8_t *)begin + nbytes - XP_SEAL);
            made = xp_message_new(types, raw, &m, handles, events);
        } else {
            PyErr_SetString(PyExc_ValueError, "a message has at least one memory");
        }
    }
    Py_XDECREF(raw);
    return made;
}

/* seal(seal, memory, events, text): the message, or None if it would be too large. Tuples of handles, of (handle,
 * point). */
static PyObject *leaves_seal(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_leaves *self = (xp_leaves *)object;
    const xp_types *types = ((xp_leaves *)object)->types;
    const xp_key *key = xp_arity("seal", n, 4, 4) < 0 ? NULL : xp_key_of(types, args[0]);
    char *text;
    Py_ssize_t text_nbytes;
    if (key == NULL || PyBytes_AsStringAndSize(args[3], &text, &text_nbytes) < 0)
        return NULL;
    if (!PyTuple_Check(args[1]) || !PyTuple_Check(args[2]) || !self->grouped)
        return xp_refuse(PyExc_TypeError, "seal() takes tuples, after `groups`");
    return sealed(self, types, key, args[1], args[2], text, (uint64_t)text_nbytes);
}

XP_TYPE(leaves_spec, "Leaves", xp_leaves, XP_WITH_GC | Py_TPFLAGS_BASETYPE, {Py_tp_new, leaves_new},
        XP_LIFE_SLOTS(leaves),
        XP_METHODS({"view", XP_FAST(leaves_view), METH_FASTCALL, NULL},
                   {"stream", leaves_stream, METH_O, NULL},
                   {"settle", XP_FAST(leaves_settle), METH_FASTCALL, NULL},
                   {"finds", XP_FAST(leaves_finds), METH_FASTCALL, NULL},
                   {"produce", XP_FAST(leaves_produce), METH_FASTCALL, NULL},
                   {"producers", leaves_producers, METH_NOARGS, NULL},
                   {"next", XP_FAST(leaves_next), METH_FASTCALL, NULL},
                   {"where", leaves_where, METH_NOARGS, NULL},
                   {"learn", XP_FAST(leaves_learn), METH_FASTCALL, NULL},
                   {"skip", leaves_skip, METH_NOARGS, NULL},
                   {"put", XP_FAST(leaves_put), METH_FASTCALL, NULL},
                   {"groups", XP_FAST(leaves_groups), METH_FASTCALL, NULL},
                   {"seal", XP_FAST(leaves_seal), METH_FASTCALL, NULL}),
        XP_FIELDS({"arrays", T_OBJECT_EX, offsetof(xp_leaves, arrays), READONLY, NULL},
                  {"dtypes", T_OBJECT_EX, offsetof(xp_leaves, dtypes), READONLY, NULL},
                  {"copied", T_ULONGLONG, offsetof(xp_leaves, copied), 0, NULL},
                  {"read_only", T_BOOL, offsetof(xp_leaves, read_only), READONLY, NULL}))

XP_PART(leaves, NULL, XP_ADD(leaves_spec))
