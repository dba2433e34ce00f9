/* Driver: CUDA's driver, or HIP's library, by the addresses of its functions. HIP's have the shape of CUDA's, except that
 * a thread has a current device and no stack of contexts. */
#include "../python/driver.h"

#define HANDLE_NBYTES 64 /* of a handle of an allocation, which calls take by value */
#define MOST_ASKED 16    /* attributes */

typedef struct {
    char raw[HANDLE_NBYTES];
} handle_value;

/* In the order of the constructor's arguments. Those from `ask_all` on are NULL if the driver lacks them. */
typedef struct {
    int (*ask)(void *value, int attribute, uint64_t address);
    int (*name)(handle_value *handle, uint64_t address);
    int (*open)(uint64_t *address, handle_value handle, unsigned flags);
    int (*close)(uint64_t address);
    int (*exchange)(int *mode);
    int (*ask_all)(unsigned count, const int *attributes, void **values, uint64_t address); /* else nothing is found */
    int (*range)(uint64_t *start, uint64_t *nbytes, uint64_t address);                      /* else by `ask` */
    int (*push)(uint64_t context);                                                          /* else `get` and `set` */
    int (*pop)(uint64_t *context);
    int (*get)(int *device);
    int (*set)(int device);
    int (*clear)(void); /* clears the error that this thread has met last, which other libraries read */
} functions;
#define FUNCTIONS (sizeof(functions) / sizeof(void *))

enum { NUMBER, ORDINAL, START, NBYTES, FACTS }; /* the attributes' order. The others have wanted values. */

typedef struct {
    xp_driver driver;
    functions call;
    unsigned flags; /* of `open` */
    int mode;       /* that of a thread that disturbs no capture */
    unsigned asked;
    int attributes[MOST_ASKED];
    uint64_t wanted[MOST_ASKED];
    bool ended; /* the process exits: no call is made any more */
} cuda_driver;

static bool ended(const cuda_driver *d) { return __atomic_load_n(&d->ended, __ATOMIC_RELAXED); }

/* Returns that code. A failure leaves no trace in this thread. */
static int checked(const cuda_driver *d, int code)
{
    if (code && d->call.clear)
        d->call.clear();
    return code;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

/* Drivers write some attributes in fewer than 8 bytes. */
static int ask(const cuda_driver *d, int attribute, uint64_t address, uint64_t *value)
{
    *value = 0;
    return ended(d) ? -1 : checked(d, d->call.ask(value, attribute, address));
}

static int ask_all(const cuda_driver *d, unsigned count, const int *attributes, uint64_t address, uint64_t *values)
{
    void *places[MOST_ASKED];
    for (unsigned i = 0; i < count; i++) {
        values[i] = 0;
        places[i] = &values[i];
    }
    return checked(d, d->call.ask_all(count, attributes, places, address));
}

static bool number(const xp_driver *driver, uint64_t address, uint64_t *found)
{
    const cuda_driver *d = (const cuda_driver *)driver;
    return ask(d, d->attributes[NUMBER], address, found) == 0;
}

static bool find(const xp_driver *driver, uint64_t address, xp_found *found)
{
    const cuda_driver *d = (const cuda_driver *)driver;
    uint64_t values[MOST_ASKED];
    if (d->call.ask_all == NULL || ask_all(d, d->asked, d->attributes, address, values))
        return false;
    for (unsigned i = FACTS; i < d->asked; i++)
        if (values[i] != d->wanted[i])
            return false;
    *found = (xp_found){values[NUMBER], values[START], values[NBYTES], values[ORDINAL]};
    return found->number != 0;
}

static int name(const xp_driver *driver, uint64_t start, char *handle)
{
    const cuda_driver *d = (const cuda_driver *)driver;
    handle_value made = {{0}};
    int code = checked(d, d->call.name(&made, start));
    memcpy(handle, &made, sizeof made);
    return code;
}

static int open_(const xp_driver *driver, const char *handle, xp_driver_mapping *mapped)
{
    const cuda_driver *d = (const cuda_driver *)driver;
    handle_value given;
    uint64_t start;
    *mapped = (xp_driver_mapping){0, UINT64_MAX};
    memcpy(&given, handle, sizeof given);
    int code = ended(d) ? -1 : checked(d, d->call.open(&mapped->address, given, d->flags));
    if (code == 0 && (d->call.range ? checked(d, d->call.range(&start, &mapped->nbytes, mapped->address))
                                    : ask(d, d->attributes[NBYTES], mapped->address, &mapped->nbytes)))
        mapped->nbytes = UINT64_MAX;
    return code;
}

static int close_(const xp_driver *driver, uint64_t address)
{
    const cuda_driver *d = (const cuda_driver *)driver;
    return ended(d) ? 0 : checked(d, d->call.close(address));
}

static int place(const cuda_driver *d, uint64_t at, xp_before *before)
{
    before->step = 1;
    if (d->call.push)
        return d->call.push(at);
    int code = d->call.get(&before->place);
    if (code || before->place == (int)at)
        return code;
    before->step = 2;
    return d->call.set((int)at);
}

static int enter(const xp_driver *driver, const xp_scope *scope, xp_before *before)
{
    const cuda_driver *d = (const cuda_driver *)driver;
    int code = 0;
    *before = (xp_before){.mode = d->mode};
    if (ended(d) || (scope->relaxed && (code = d->call.exchange(&before->mode))))
        return checked(d, code);
    if (scope->placed && (code = place(d, scope->place, before)) && scope->relaxed)
        d->call.exchange(&before->mode);
    return checked(d, code);
}

static void leave(const xp_driver *driver, const xp_scope *scope, const xp_before *before)
{
    const cuda_driver *d = (const cuda_driver *)driver;
    int mode = before->mode;
    uint64_t context;
    if (ended(d))
        return;
    if (scope->placed && d->call.push)
        d->call.pop(&context);
    else if (scope->placed && before->place != (int)scope->place)
        checked(d, d->call.set(before->place));
    if (scope->relaxed)
        checked(d, d->call.exchange(&mode));
}

static const xp_driver_table table = {number, find, name, open_, close_, enter, leave};

/* --- for Python --------------------------------------------------------------------------------------------------- */

static int take_attributes(cuda_driver *d, PyObject *attributes, PyObject *wanted)
{
    Py_ssize_t n = PyTuple_Size(attributes), rest = PyTuple_Size(wanted);
    if (n > MOST_ASKED || n != rest + (d->call.ask_all ? FACTS : 0)) {
        PyErr_Format(PyExc_ValueError, "with ask_all(), the attributes are 4, and those that are wanted, %d at most", MOST_ASKED);
        return -1;
    }
    d->asked = (unsigned)n;
    for (unsigned i = 0; i < d->asked; i++)
        if (xp_as_int(PyTuple_GetItem(attributes, i), &d->attributes[i]) < 0 ||
            (i >= FACTS && xp_as_u64(PyTuple_GetItem(wanted, i - FACTS), &d->wanted[i]) < 0))
            return -1;
    return 0;
}

static bool is_whole(const functions *f)
{
    bool whole = f->ask && f->name && f->open && f->close && f->exchange && (f->push ? f->pop != NULL : f->get && f->set);
    return whole || xp_invalid("Driver() lacks one of the functions that every driver has") == 0;
}

static PyObject *new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"failed", "attributes", "wanted", "flags", "mode", "ask", "name", "open", "close", "exchange",
                            "ask_all", "range", "push", "pop", "get", "set", "clear", NULL};
    unsigned long long at[FUNCTIONS] = {0};
    PyObject *failed, *attributes, *wanted;
    unsigned flags;
    int mode;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!IiKKKKK|KKKKKKK", names, &failed, &PyTuple_Type, &attributes,
                                     &PyTuple_Type, &wanted, &flags, &mode, &at[0], &at[1], &at[2], &at[3], &at[4], &at[5],
                                     &at[6], &at[7], &at[8], &at[9], &at[10], &at[11]))
        return NULL;
    cuda_driver *self = (cuda_driver *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->driver.table = &table;
    self->driver.handle_nbytes = HANDLE_NBYTES;
    self->driver.failed = Py_NewRef(failed);
    self->flags = flags;
    self->mode = mode;
    memcpy(&self->call, at, sizeof self->call);
    if (take_attributes(self, attributes, wanted) == 0 && is_whole(&self->call))
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

XP_LIFE(driver, .cleared = XP_OBJECTS(xp_driver, failed))

/* ask(attribute, address): see _native.pyi */
static PyObject *driver_ask(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    uint64_t address, value;
    int attribute, code;
    if (xp_arity("ask", n, 2, 2) < 0 || xp_as_int(args[0], &attribute) < 0 || xp_as_u64(args[1], &address) < 0)
        return NULL;
    code = XP_UNLOCKED(ask((const cuda_driver *)self, attribute, address, &value));
    if (code)
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(value);
}

/* ask_all(attributes, address): see _native.pyi */
static PyObject *driver_ask_all(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    uint64_t address, values[MOST_ASKED];
    int attributes[MOST_ASKED], code;
    if (xp_arity("ask_all", n, 2, 2) < 0 || xp_as_u64(args[1], &address) < 0)
        return NULL;
    Py_ssize_t count = PyTuple_Check(args[0]) ? PyTuple_Size(args[0]) : -1;
    if (count < 0 || count > MOST_ASKED) {
        PyErr_Format(PyExc_ValueError, "ask_all(): attributes are a tuple of at most %d", MOST_ASKED);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (xp_as_int(PyTuple_GetItem(args[0], i), &attributes[i]) < 0)
            return NULL;
    code = XP_UNLOCKED(ask_all((const cuda_driver *)self, (unsigned)count, attributes, address, values));
    if (code)
        return PyLong_FromLong(code);
    PyObject *found[MOST_ASKED];
    for (Py_ssize_t i = 0; i < count; i++)
        found[i] = PyLong_FromUnsignedLongLong(values[i]);
    return xp_tuple_of(found, (size_t)count);
}

/* name(address): see _native.pyi */
static PyObject *driver_name(PyObject *self, PyObject *arg)
{
    uint64_t address;
    char handle[HANDLE_NBYTES];
    int code;
    if (xp_as_u64(arg, &address) < 0)
        return NULL;
    code = XP_UNLOCKED(name((const xp_driver *)self, address, handle));
    return code ? PyLong_FromLong(code) : PyBytes_FromStringAndSize(handle, sizeof handle);
}

/* end(): see _native.pyi */
static PyObject *driver_end(PyObject *self, PyObject *Py_UNUSED(a))
{
    __atomic_store_n(&((cuda_driver *)self)->ended, true, __ATOMIC_RELAXED);
    Py_RETURN_NONE;
}

XP_TYPE(spec, "Driver", cuda_driver, XP_WITH_GC, {Py_tp_new, new}, XP_LIFE_SLOTS(driver),
        XP_METHODS({"ask", XP_FAST(driver_ask), METH_FASTCALL, NULL}, {"ask_all", XP_FAST(driver_ask_all), METH_FASTCALL, NULL},
                   {"name", driver_name, METH_O, NULL}, {"end", driver_end, METH_NOARGS, NULL}))

XP_PART(driver, NULL, XP_KEEP(spec, driver))
