/* Kinds: Python's answers about kinds of arrays, so that it need not be asked at every `share`. */
#include "kinds.h"

#include <pthread.h>

#define MOST 64 /* kinds; beyond that it forgets them all */

typedef struct {
    xp_kind_key key; /* its references are owned */
    xp_kind said;
} known;

typedef struct {
    PyObject_HEAD
    pthread_mutex_t mu; /* no Python runs while it is held */
    known *all;
    uint32_t count;
} xp_kinds;

void xp_kind_copy(xp_kind *to, const xp_kind *from)
{
    *to = *from;
    PyObject *all[] = {to->dtype, to->device, to->context, to->finder, to->info, to->work};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        Py_XINCREF(all[i]);
}

void xp_kind_drop(xp_kind *kind)
{
    Py_CLEAR(kind->dtype);
    Py_CLEAR(kind->device);
    Py_CLEAR(kind->context);
    Py_CLEAR(kind->finder);
    Py_CLEAR(kind->info);
    Py_CLEAR(kind->work);
}

static void drop(known *all, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        Py_XDECREF((PyObject *)all[i].key.type);
        Py_XDECREF(all[i].key.device);
        Py_XDECREF(all[i].key.dtype);
        xp_kind_drop(&all[i].said);
    }
    PyMem_Free(all);
}

bool xp_same_kind(const xp_kind_key *a, const xp_kind_key *b)
{
    return a->type == b->type && a->device == b->device && a->dtype == b->dtype && a->on.type == b->on.type &&
           a->on.id == b->on.id && a->elements.code == b->elements.code && a->elements.bits == b->elements.bits &&
           a->elements.lanes == b->elements.lanes;
}

PyObject *xp_kind_element(const xp_kind_key *key)
{
    if (key->type == NULL || key->on.type == XP_BUFFER)
        Py_RETURN_NONE;
    return Py_BuildValue("(iibbH)", key->on.type, key->on.id, key->elements.code, key->elements.bits, key->elements.lanes);
}

/* With the lock. */
static known *find(const xp_kinds *self, const xp_kind_key *key)
{
    for (uint32_t i = 0; i < self->count; i++)
        if (xp_same_kind(&self->all[i].key, key))
            return &self->all[i];
    return NULL;
}

bool xp_is_kinds(const xp_types *types, PyObject *object) { return Py_TYPE(object) == types->kinds; }

bool xp_known_kind(PyObject *kinds, const xp_kind_key *key, xp_kind *found)
{
    xp_kinds *self = (xp_kinds *)kinds;
    pthread_mutex_lock(&self->mu);
    const known *at = find(self, key);
    if (at)
        xp_kind_copy(found, &at->said);
    pthread_mutex_unlock(&self->mu);
    return at != NULL;
}

const dl_exchange *xp_known_exchange(PyObject *kinds, const PyTypeObject *type)
{
    xp_kinds *self = (xp_kinds *)kinds;
    const dl_exchange *found = NULL;
    pthread_mutex_lock(&self->mu);
    for (uint32_t i = 0; i < self->count && found == NULL; i++)
        if (self->all[i].key.type == type)
            found = self->all[i].said.api;
    pthread_mutex_unlock(&self->mu);
    return found;
}

void xp_learn_kind(PyObject *kinds, const xp_kind_key *key, const xp_kind *said)
{
    xp_kinds *self = (xp_kinds *)kinds;
    known made = {.key = *key}, *full = NULL;
    known *room = PyMem_Calloc(MOST, sizeof *room); /* in case there is none yet; unlikely to be needed twice */
    xp_kind_copy(&made.said, said);
    Py_XINCREF((PyObject *)key->type);
    Py_XINCREF(key->device);
    Py_XINCREF(key->dtype);
    uint32_t dropped = 0;
    pthread_mutex_lock(&self->mu);
    known *at = find(self, key);
    if (at == NULL && self->count == MOST) {
        full = self->all;
        dropped = self->count;
        self->all = NULL;
        self->count = 0;
    }
    if (self->all == NULL) {
        self->all = room;
        room = NULL;
    }
    if (at == NULL && self->all)
        at = &self->all[self->count++];
    if (at) { /* the old entry is dropped outside the lock */
        known before = *at;
        *at = made;
        made = before;
    }
    pthread_mutex_unlock(&self->mu);
    PyMem_Free(room);
    drop(full, dropped);
    xp_kind_drop(&made.said);
    Py_XDECREF((PyObject *)made.key.type);
    Py_XDECREF(made.key.device);
    Py_XDECREF(made.key.dtype);
}

static PyObject *new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (PyTuple_Size(args) || (kwargs && PyDict_Size(kwargs)))
        return xp_refuse(PyExc_TypeError, "Kinds() takes no arguments");
    xp_kinds *self = (xp_kinds *)PyType_GenericAlloc(type, 0);
    if (self)
        pthread_mutex_init(&self->mu, NULL);
    return (PyObject *)self;
}

static int visit_all(PyObject *object, visitproc visit, void *arg)
{
    const xp_kinds *self = (const xp_kinds *)object;
    for (uint32_t i = 0; i < self->count; i++) { /* without the lock: no thread can be inside now */
        Py_VISIT(self->all[i].key.type);
        Py_VISIT(self->all[i].key.device);
        Py_VISIT(self->all[i].key.dtype);
        XP_KIND_VISIT(&self->all[i].said);
    }
    return 0;
}

static void drop_all(PyObject *object)
{
    xp_kinds *self = (xp_kinds *)object;
    pthread_mutex_lock(&self->mu);
    known *all = self->all;
    uint32_t count = self->count;
    self->all = NULL;
    self->count = 0;
    pthread_mutex_unlock(&self->mu);
    drop(all, count);
}

static void end(PyObject *object)
{
    drop_all(object);
    pthread_mutex_destroy(&((xp_kinds *)object)->mu);
}

XP_LIFE(kinds, .end = end, .visit = visit_all, .drop = drop_all)

XP_METHOD(forget, XP_NONE_BY(drop_all(self)))

XP_TYPE(spec, "Kinds", xp_kinds, XP_WITH_GC, {Py_tp_new, new}, XP_LIFE_SLOTS(kinds),
        XP_METHODS({"clear", forget, METH_NOARGS, NULL}))

XP_PART(kinds, NULL, XP_KEEP(spec, kinds))
