/* AddressMap: allocations by their addresses. It keeps none of them alive. */
#include "addresses.h"

typedef struct {
    uint64_t start, nbytes;
    PyObject *reference; /* owned: weak */
} place;

typedef struct {
    PyObject_HEAD
    place *places; /* sorted by their starts; of those with one start, the newest last */
    size_t count, room;
    size_t looked; /* where `add` has looked for dead allocations */
} xp_addresses;

static int visit_places(PyObject *object, visitproc visit, void *arg)
{
    const xp_addresses *self = (const xp_addresses *)object;
    for (size_t i = 0; i < self->count; i++)
        Py_VISIT(self->places[i].reference);
    return 0;
}

static void release_places(PyObject *object)
{
    xp_addresses *self = (xp_addresses *)object;
    for (size_t i = 0; i < self->count; i++)
        Py_DECREF(self->places[i].reference);
    PyMem_Free(self->places);
}

XP_LIFE(addresses, .visit = visit_places, .end = release_places)

/* Return how many begin at that address, or before it. */
static size_t up_to(const xp_addresses *self, uint64_t address)
{
    size_t low = 0, high = self->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (self->places[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Copy the place at an index, if there is one, with its own reference. */
static bool copy_of(PyObject *object, size_t index, place *copy)
{
    const xp_addresses *self = (const xp_addresses *)object;
    bool there = index < self->count;
    if (there) {
        *copy = self->places[index];
        Py_INCREF(copy->reference);
    }
    return there;
}

/* Return the object of a weak reference: a new reference, or NULL. */
static PyObject *living(PyObject *reference)
{
    PyObject *found;
#ifdef Py_GIL_DISABLED
    PyWeakref_GetRef(reference, &found);
#else
    found = PyWeakref_GetObject(reference);
    found = found == Py_None ? NULL : Py_XNewRef(found);
#endif
    return found;
}

/* Return the object of a place: a new reference, or NULL if it has died, and then the place is forgotten. Takes over
 * the copy. */
static PyObject *taken(PyObject *object, place *copy)
{
    xp_addresses *self = (xp_addresses *)object;
    PyObject *found = living(copy->reference), *gone = NULL;
    if (found == NULL) {
        Py_BEGIN_CRITICAL_SECTION(object);
        for (size_t i = up_to(self, copy->start); gone == NULL && i-- > 0 && self->places[i].start == copy->start;)
            if (self->places[i].reference == copy->reference) {
                gone = copy->reference;
                self->count--;
                memmove(&self->places[i], &self->places[i + 1], (self->count - i) * sizeof *self->places);
            }
        Py_END_CRITICAL_SECTION();
    }
    Py_XDECREF(gone);
    Py_DECREF(copy->reference);
    return found;
}

bool xp_is_addresses(const xp_types *types, PyObject *object) { return Py_TYPE(object) == types->addresses; }

PyObject *xp_address_find(PyObject *object, uint64_t address)
{
    const xp_addresses *self = (const xp_addresses *)object;
    place near;
    for (;;) {
        bool there;
        Py_BEGIN_CRITICAL_SECTION(object);
        size_t n = up_to(self, address);
        there = n && copy_of(object, n - 1, &near);
        Py_END_CRITICAL_SECTION();
        if (!there)
            return NULL;
        PyObject *found = taken(object, &near);
        if (found && address - near.start >= near.nbytes)
            Py_CLEAR(found);
        else if (found == NULL)
            continue;
        return found;
    }
}

static PyObject *addresses_find(PyObject *object, PyObject *arg)
{
    uint64_t address;
    if (xp_as_u64(arg, &address) < 0)
        return NULL;
    PyObject *found = xp_address_find(object, address);
    return found ? found : Py_NewRef(Py_None);
}

/* Forget the place at an index if its object has died. */
static void look_at(PyObject *object, size_t index)
{
    place one;
    bool there;
    Py_BEGIN_CRITICAL_SECTION(object);
    there = copy_of(object, index, &one);
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(there ? taken(object, &one) : NULL);
}

/* Look at the newest allocation that began there, or at two others in turn. Dead ones that nobody asks for must go
 * as fast as new ones come. */
static void look_around(PyObject *object, uint64_t start)
{
    xp_addresses *self = (xp_addresses *)object;
    size_t n, first;
    bool known;
    Py_BEGIN_CRITICAL_SECTION(object);
    n = up_to(self, start);
    known = n && self->places[n - 1].start == start;
    first = self->looked = self->looked + 2 < self->count ? self->looked + 2 : 0;
    Py_END_CRITICAL_SECTION();
    look_at(object, known ? n - 1 : first + 1);
    if (!known)
        look_at(object, first);
}

/* Takes over the reference. Returns false with an exception set. */
static bool insert(xp_addresses *self, uint64_t start, uint64_t nbytes, PyObject *reference)
{
    if (self->count == self->room) {
        size_t room = 2 * self->room + 8;
        place *grown = PyMem_Realloc(self->places, room * sizeof *grown);
        if (grown == NULL) {
            Py_DECREF(reference);
            PyErr_NoMemory();
            return false;
        }
        self->places = grown;
        self->room = room;
    }
    place *at = &self->places[up_to(self, start)];
    memmove(at + 1, at, (size_t)(&self->places[self->count] - at) * sizeof *at);
    *at = (place){start, nbytes ? nbytes : 1, reference};
    self->count++;
    return true;
}

/* add(made): see _native.pyi */
static PyObject *addresses_add(PyObject *object, PyObject *made)
{
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    const xp_allocation *a = PyObject_TypeCheck(made, types->allocation_base) ? (const xp_allocation *)made : NULL;
    if (a == NULL)
        Py_RETURN_NONE;
    look_around(object, a->address);
    PyObject *reference = PyWeakref_NewRef(made, NULL);
    bool good = false;
    if (reference) {
        Py_BEGIN_CRITICAL_SECTION(object);
        good = insert((xp_addresses *)object, a->address, a->nbytes, reference);
        Py_END_CRITICAL_SECTION();
    }
    return good ? Py_NewRef(Py_None) : NULL;
}

/* all(): the living ones, by their addresses */
static PyObject *addresses_all(PyObject *object, PyObject *Py_UNUSED(none))
{
    const xp_addresses *self = (const xp_addresses *)object;
    PyObject *references = PyList_New(0), *found = PyList_New(0);
    bool good = references && found;
    Py_BEGIN_CRITICAL_SECTION(object);
    for (size_t i = 0; good && i < self->count; i++)
        good = PyList_Append(references, self->places[i].reference) == 0;
    Py_END_CRITICAL_SECTION();
    for (Py_ssize_t i = 0; good && i < PyList_Size(references); i++) {
        PyObject *each = living(PyList_GetItem(references, i));
        good = each == NULL || PyList_Append(found, each) == 0;
        Py_XDECREF(each);
    }
    Py_XDECREF(references);
    if (!good)
        Py_CLEAR(found);
    return found;
}

XP_METHOD(addresses_sizeof, PyLong_FromSize_t(sizeof(xp_addresses) + ((const xp_addresses *)self)->room * sizeof(place)))

XP_TYPE(spec, "AddressMap", xp_addresses, XP_WITH_GC, XP_LIFE_SLOTS(addresses),
        XP_METHODS({"add", addresses_add, METH_O, NULL},
                   {"find", addresses_find, METH_O, NULL},
                   {"all", addresses_all, METH_NOARGS, NULL},
                   {"__sizeof__", addresses_sizeof, METH_NOARGS, NULL}))

XP_PART(addresses, NULL, XP_KEEP(spec, addresses))
