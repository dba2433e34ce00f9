/* Recogniser: finds an adapter's allocation at an address. It asks the driver once for each hand-over. For an allocation
 * that it knows already, it only asks for the number. */
#include "foreign.h"
#include "driver.h"
#include "exports.h"
#include "resources.h"

#include <pthread.h>

#define KNOWN 8192       /* how many allocations are remembered, each at its number's place; a power of two */
#define HINTS 8192       /* for how many addresses the number is guessed; a power of two */
#define HINT_SHIFT 21    /* allocators get 2 MiB and more from the driver */
#define MOST_DEVICES 64
#define XP_PAYLOAD sizeof(((xp_entry *)0)->payload)

typedef struct {
    xp_found at;
    PyObject *allocation;     /* owned: its known state; NULL if it is new */
    char payload[XP_PAYLOAD]; /* the template of its exports, if it is new */
} xp_foreign;

typedef struct {
    uint64_t number, start, nbytes;
    PyObject *info, *allocation; /* owned; NULL if nothing is known */
} known;

typedef struct {
    PyObject *info, *scopes, *place; /* owned; NULL if the device is not known yet */
    PyObject *first; /* owned: the first allocation on the device, whose template serves all others; NULL if there is none yet */
} device;

typedef struct {
    PyObject_HEAD
    xp_driver *driver; /* owned; set for good */
    PyObject *make, *backend;
    unsigned forks;
    char payload[XP_PAYLOAD];
    unsigned size_at, handle_at, payload_nbytes;
    pthread_mutex_t mu; /* protects the following; no Python runs with it */
    known *known;
    uint64_t hints[HINTS]; /* numbers */
    device devices[MOST_DEVICES];
} xp_recogniser;

static int visit_known(PyObject *object, visitproc visit, void *arg)
{
    xp_recogniser *self = (xp_recogniser *)object;
    for (int i = 0; i < MOST_DEVICES; i++) {
        Py_VISIT(self->devices[i].info);
        Py_VISIT(self->devices[i].scopes);
        Py_VISIT(self->devices[i].place);
        Py_VISIT(self->devices[i].first);
    }
    for (int i = 0; self->known && i < KNOWN; i++) {
        Py_VISIT(self->known[i].info);
        Py_VISIT(self->known[i].allocation);
    }
    return 0;
}

static void drop_known(PyObject *object)
{
    xp_recogniser *self = (xp_recogniser *)object;
    for (int i = 0; i < MOST_DEVICES; i++) {
        Py_CLEAR(self->devices[i].info);
        Py_CLEAR(self->devices[i].scopes);
        Py_CLEAR(self->devices[i].place);
        Py_CLEAR(self->devices[i].first);
    }
    for (int i = 0; self->known && i < KNOWN; i++) {
        Py_CLEAR(self->known[i].info);
        Py_CLEAR(self->known[i].allocation);
    }
}

static void end(PyObject *object)
{
    xp_recogniser *self = (xp_recogniser *)object;
    drop_known(object);
    PyMem_Free(self->known);
    pthread_mutex_destroy(&self->mu);
}

XP_LIFE(recogniser, .end = end, .visit = visit_known, .drop = drop_known, .fixed = XP_OBJECTS(xp_recogniser, driver),
        .cleared = XP_OBJECTS(xp_recogniser, make, backend))

static PyObject *new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"driver", "make", "payload", "size_at", "backend", NULL};
    const xp_types *types = PyType_GetModuleState(type);
    xp_driver *driver;
    PyObject *make, *backend;
    const char *payload;
    Py_ssize_t nbytes;
    unsigned size_at;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!Oy#IU", names, types->driver, &driver, &make, &payload, &nbytes,
                                     &size_at, &backend))
        return NULL;
    if ((size_t)nbytes + driver->handle_nbytes > XP_PAYLOAD || nbytes < 8 || size_at > (size_t)nbytes - 8) {
        xp_invalid("the payload has room for the size, and the driver's handle follows it");
        return NULL;
    }
    xp_recogniser *self = (xp_recogniser *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    pthread_mutex_init(&self->mu, NULL);
    self->driver = (xp_driver *)Py_NewRef((PyObject *)driver);
    self->make = Py_NewRef(make);
    self->backend = Py_NewRef(backend);
    self->forks = XP_RELAXED(&xp_fork_count);
    self->handle_at = (unsigned)nbytes;
    self->payload_nbytes = (unsigned)(nbytes + (Py_ssize_t)driver->handle_nbytes);
    self->size_at = size_at;
    memcpy(self->payload, payload, (size_t)nbytes);
    if ((self->known = PyMem_Calloc(KNOWN, sizeof *self->known)) == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

/* add(ordinal, info, scopes, place): see _native.pyi */
static PyObject *add(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    xp_recogniser *self = (xp_recogniser *)object;
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    uint64_t ordinal;
    if (xp_arity("add", n, 4, 4) < 0 || xp_as_u64(args[0], &ordinal) < 0)
        return NULL;
    if (ordinal >= MOST_DEVICES || xp_scope_of(types, args[2]) == NULL)
        Py_RETURN_NONE; /* Python looks at its memory */
    device *to = &self->devices[ordinal];
    pthread_mutex_lock(&self->mu);
    if (to->info == NULL) /* what is there stays */
        *to = (device){Py_NewRef(args[1]), Py_NewRef(args[2]), Py_NewRef(args[3]), NULL};
    pthread_mutex_unlock(&self->mu);
    Py_RETURN_NONE;
}

/* --- finding ------------------------------------------------------------------------------------------------------ */

static bool covers(uint64_t start, uint64_t size, uint64_t address, uint64_t nbytes)
{
    return address >= start && address - start <= size && nbytes <= size - (address - start);
}

/* Return the allocation with that number, if it has those bytes on that device. */
static bool find(xp_recogniser *self, PyObject *info, uint64_t address, uint64_t nbytes, uint64_t number, xp_foreign *f)
{
    pthread_mutex_lock(&self->mu);
    const known *at = &self->known[number % KNOWN];
    bool found = number && at->number == number && at->info == info && covers(at->start, at->nbytes, address, nbytes);
    if (found) {
        self->hints[(address >> HINT_SHIFT) % HINTS] = number; /* another's may be there */
        f->at = (xp_found){number, at->start, at->nbytes, f->at.ordinal};
        f->allocation = Py_NewRef(at->allocation);
    }
    pthread_mutex_unlock(&self->mu);
    return found;
}

/* The same by the address alone. The driver must confirm that the number is still the same. */
static uint64_t guessed(xp_recogniser *self, uint64_t address)
{
    pthread_mutex_lock(&self->mu);
    uint64_t number = self->hints[(address >> HINT_SHIFT) % HINTS];
    const known *at = &self->known[number % KNOWN];
    if (at->number != number || !covers(at->start, at->nbytes, address, 1))
        number = 0;
    pthread_mutex_unlock(&self->mu);
    return number;
}

/* Make its payload. Runs without the GIL, like everything that blocks in the driver. */
static bool name(const xp_recogniser *self, const xp_scope *scope, xp_foreign *f)
{
    xp_before before;
    memcpy(f->payload, self->payload, sizeof f->payload);
    memcpy(f->payload + self->size_at, &f->at.nbytes, 8);
    if (xp_scope_enter(scope, &before))
        return false;
    int code = self->driver->table->name(self->driver, f->at.start, f->payload + self->handle_at);
    xp_scope_leave(scope, &before);
    return code == 0;
}

bool xp_is_recogniser(const xp_types *types, PyObject *object) { return Py_TYPE(object) == types->recogniser; }

PyObject *xp_recognised(PyObject *recogniser, PyObject *info, uint64_t address, uint64_t nbytes)
{
    xp_recogniser *self = (xp_recogniser *)recogniser;
    xp_foreign f = {.allocation = NULL};
    uint64_t number = 0, guess = self->forks == XP_RELAXED(&xp_fork_count) ? guessed(self, address) : 0;
    bool good;
    if (guess == 0)
        return NULL;
    good = XP_UNLOCKED(self->driver->table->number(self->driver, address, &number));
    if (good && number == guess)
        find(self, info, address, nbytes, number, &f);
    return f.allocation;
}

/* Return whether `nbytes` at `address` belong to an allocation that can be shared, on the device that `info`
 * describes. False without an exception: Python has to look at it. */
static bool recognise(xp_recogniser *self, const xp_types *types, PyObject *info, uint64_t address, uint64_t nbytes,
                      xp_foreign *f)
{
    bool good;
    if (self->forks != XP_RELAXED(&xp_fork_count))
        return false;
    good = XP_UNLOCKED(self->driver->table->find(self->driver, address, &f->at));
    if (!good || !covers(f->at.start, f->at.nbytes, address, nbytes) || f->at.ordinal >= MOST_DEVICES)
        return false;
    if (find(self, info, address, nbytes, f->at.number, f))
        return true;
    const device *on = &self->devices[f->at.ordinal];
    pthread_mutex_lock(&self->mu);
    good = on->info == info; /* an existing entry stays, and so does its scope */
    pthread_mutex_unlock(&self->mu);
    const xp_scope *scope = good ? xp_scope_of(types, on->scopes) : NULL;
    if (scope == NULL)
        return false;
    good = XP_UNLOCKED(name(self, scope, f));
    return good;
}

/* --- new allocations ---------------------------------------------------------------------------------------------- */

/* Remember that allocation from now on. */
static void remember(xp_recogniser *self, const xp_foreign *f, PyObject *allocation)
{
    device *on = &self->devices[f->at.ordinal];
    known *at = &self->known[f->at.number % KNOWN], before;
    known now = {f->at.number, f->at.start, f->at.nbytes, Py_NewRef(on->info), Py_NewRef(allocation)};
    pthread_mutex_lock(&self->mu);
    if (on->first == NULL)
        on->first = Py_NewRef(allocation);
    before = *at;
    *at = now;
    uint64_t last = (f->at.start + f->at.nbytes - 1) >> HINT_SHIFT;
    for (uint64_t a = f->at.start >> HINT_SHIFT, i = 0; i < HINTS && a <= last; a++, i++)
        self->hints[a % HINTS] = f->at.number;
    pthread_mutex_unlock(&self->mu);
    Py_XDECREF(before.info);
    Py_XDECREF(before.allocation); /* outside the lock, since dropping it may run any code */
}

/* The template of its exports. NULL, with or without an exception, if none was made on that device. */
static PyObject *template_of(xp_recogniser *self, const xp_types *types, PyObject *own, const xp_foreign *f, uint64_t serial)
{
    pthread_mutex_lock(&self->mu);
    xp_allocation *first = (xp_allocation *)self->devices[f->at.ordinal].first; /* once set, it never changes */
    pthread_mutex_unlock(&self->mu);
    PyObject *like = first ? xp_field(first, &first->prepared) : NULL;
    PyObject *made =
        like ? xp_prepare_like(types, own, like, serial, f->at.nbytes, f->payload, self->payload_nbytes) : NULL;
    Py_XDECREF(like);
    return made;
}

/* Return the Allocation, which `add` may know already. NULL with an exception set. */
static PyObject *made(xp_recogniser *self, const xp_types *types, const xp_foreign *f, PyObject *device, PyObject *add_,
                      PyObject *own)
{
    uint64_t serial = 0;
    PyObject *what[] = {PyLong_FromUnsignedLongLong(f->at.ordinal), PyLong_FromUnsignedLongLong(f->at.start),
                        PyLong_FromUnsignedLongLong(f->at.nbytes), PyLong_FromUnsignedLongLong(f->at.number)};
    PyObject *identity = xp_tuple_of(what, 4);
    PyObject *name = identity ? PyTuple_Pack(2, self->backend, identity) : NULL, *given = NULL, *memory = NULL;
    PyObject *payload = PyBytes_FromStringAndSize(f->payload, self->payload_nbytes);
    PyObject *template = NULL, *fresh = NULL, *kept = NULL;
    if (name && payload) {
        PyObject *place = self->devices[f->at.ordinal].place;
        given = PyTuple_Pack(5, place, what[1], what[2], what[3], payload); /* the identity holds references to them */
        memory = given ? PyObject_Call(self->make, given, NULL) : NULL;
    }
    if (memory && own && (serial = xp_object_named(own, name)))
        template = template_of(self, types, own, f, serial);
    if (memory && !PyErr_Occurred())
        fresh = xp_foreign_allocation(types, device, memory, name, f->at.nbytes, f->at.start, template, serial);
    Py_CLEAR(given);
    if (fresh && (given = PyTuple_Pack(2, name, fresh))) {
        kept = PyObject_Call(add_, given, NULL);
        Py_DECREF(given);
    }
    if (kept && xp_allocation_of(types, kept))
        remember(self, f, kept);
    PyObject *rest[] = {template, fresh, memory, payload, name, identity};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        Py_XDECREF(rest[i]);
    return kept;
}

PyObject *xp_recognise(const xp_types *types, PyObject *recogniser, PyObject *device, PyObject *info, uint64_t address,
                       uint64_t nbytes, PyObject *add_, PyObject *own)
{
    xp_recogniser *self = (xp_recogniser *)recogniser;
    xp_foreign f = {.allocation = NULL};
    if (!recognise(self, types, info, address, nbytes, &f))
        return NULL;
    return f.allocation ? f.allocation : made(self, types, &f, device, add_, own);
}

/* find(device, info, address, nbytes, known, add, own): see _native.pyi */
static PyObject *recogniser_find(PyObject *object, PyObject *const *args, Py_ssize_t n)
{
    const xp_types *types = PyType_GetModuleState(Py_TYPE(object));
    uint64_t address, nbytes;
    if (xp_arity("find", n, 7, 7) < 0 || xp_as_u64(args[2], &address) < 0 || xp_as_u64(args[3], &nbytes) < 0)
        return NULL;
    if (args[6] != Py_None && Py_TYPE(args[6]) != types->own_table) {
        PyErr_SetString(PyExc_TypeError, "find() takes an OwnTable or None last");
        return NULL;
    }
    PyObject *found = args[4] == Py_True ? xp_recognised(object, args[1], address, nbytes) : NULL;
    if (found == NULL)
        found = xp_recognise(types, object, args[0], args[1], address, nbytes, args[5], args[6] == Py_None ? NULL : args[6]);
    return found || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}

XP_TYPE(spec, "Recogniser", xp_recogniser, XP_WITH_GC, {Py_tp_new, new}, XP_LIFE_SLOTS(recogniser),
        XP_METHODS({"add", XP_FAST(add), METH_FASTCALL, NULL}, {"find", XP_FAST(recogniser_find), METH_FASTCALL, NULL}))

XP_PART(foreign, NULL, XP_KEEP(spec, recogniser))
