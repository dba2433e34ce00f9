/* Exposure: which other processes may have memory that this process exported, and whether the memory may be reused. */
#include "exports.h"
#include "resources.h"

#include <stdlib.h>

static void lock(xp_exposure *x) { pthread_mutex_lock(&x->mu); }
static void unlock(xp_exposure *x) { pthread_mutex_unlock(&x->mu); }

static PyObject *exposure_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    xp_exposure *x = (xp_exposure *)PyType_GenericAlloc(type, 0);
    if (x) {
        pthread_mutex_init(&x->mu, NULL);
        x->forks = XP_RELAXED(&xp_forks_begun);
    }
    return (PyObject *)x;
}

static int exposure_traverse(PyObject *self, visitproc visit, void *arg)
{
    const xp_exposure *x = (const xp_exposure *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(x->own);
    Py_VISIT(x->prepared);
    return 0;
}

/* With the mutex. */
static void give_back(xp_exposure *x)
{
    while (x->count)
        xp_give_entry((xp_own_table *)x->own, x->entries[--x->count]);
}

static void exposure_dealloc(PyObject *self)
{
    xp_exposure *x = (xp_exposure *)self;
    PyObject_GC_UnTrack(self);
    give_back(x);
    free(x->entries);
    pthread_mutex_destroy(&x->mu);
    Py_XDECREF(x->own);
    Py_XDECREF(x->prepared);
    xp_free(self);
}

/* Called with the mutex. The memory is never reused, so nobody asks who has it. */
static void spoil(xp_exposure *x)
{
    x->never = true;
    give_back(x);
}

/* Called with the mutex. Give back the entries that nobody has any more. `reap`: remove dead processes first;
 * blocks. */
static void settle(xp_exposure *x, bool reap)
{
    xp_own_table *own = (xp_own_table *)x->own;
    uint32_t left = 0;
    for (uint32_t i = 0; i < x->count && !x->never; i++) {
        uint32_t entry = x->entries[i];
        if (xp_may_reach(own->d, entry) && (!reap || xp_reached(own->d, entry)))
            x->entries[left++] = entry;
        else if (xp_marked(own->d, entry)) /* asked last, since a mark is set before a bit is cleared */
            x->never = true;
        else
            xp_give_entry(own, entry);
        if (x->never) { /* this one, and those that were not checked */
            for (; i < x->count; i++)
                x->entries[left++] = x->entries[i];
        }
    }
    x->count = left;
    if (x->never)
        spoil(x);
}

static bool has_room(xp_exposure *x)
{
    if (x->count < x->room)
        return true;
    settle(x, false);
    if (x->never || (x->room && x->count <= x->room / 2))
        return !x->never;
    uint32_t room = x->room ? 2 * x->room : 4;
    uint32_t *entries = realloc(x->entries, room * sizeof *entries);
    if (entries) {
        x->entries = entries;
        x->room = room;
    }
    return entries != NULL;
}

bool xp_exposure_add(PyObject *exposure, xp_own_table *own, uint32_t entry)
{
    xp_exposure *x = (xp_exposure *)exposure;
    bool added = false;
    if (x->never)
        return false;
    if (!xp_usable(own->d) || (!xp_may_reach(own->d, entry) && xp_marked(own->d, entry))) {
        lock(x);
        spoil(x);
        unlock(x);
    } else if (xp_may_reach(own->d, entry)) {
        lock(x);
        if (x->own == NULL)
            x->own = Py_NewRef((PyObject *)own);
        added = !x->never && has_room(x);
        if (added)
            x->entries[x->count++] = entry;
        else
            spoil(x);
        unlock(x);
    }
    return added;
}

/* free(): see _native.pyi */
static PyObject *exposure_free(PyObject *self, PyObject *Py_UNUSED(a))
{
    xp_exposure *x = (xp_exposure *)self;
    bool never, some = false;
    Py_BEGIN_ALLOW_THREADS
    lock(x);
    if (x->forks != XP_RELAXED(&xp_forks_begun) || (x->count && !xp_usable(((xp_own_table *)x->own)->d)))
        spoil(x);
    else if (x->count)
        settle(x, true);
    never = x->never;
    some = x->count != 0;
    unlock(x);
    Py_END_ALLOW_THREADS
    if (never)
        Py_RETURN_NONE;
    return PyBool_FromLong(!some);
}

static PyObject *exposure_spoil(PyObject *self, PyObject *Py_UNUSED(a))
{
    lock((xp_exposure *)self);
    spoil((xp_exposure *)self);
    unlock((xp_exposure *)self);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"free", exposure_free, METH_NOARGS, NULL},
    {"spoil", exposure_spoil, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef members[] = {
    {"prepared", T_OBJECT, offsetof(xp_exposure, prepared), 0, NULL},
    {"serial", T_ULONGLONG, offsetof(xp_exposure, serial), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, exposure_new},   {Py_tp_dealloc, exposure_dealloc}, {Py_tp_traverse, exposure_traverse},
    {Py_tp_methods, methods},    {Py_tp_members, members},          {0, NULL},
};
static PyType_Spec spec = {"xpushare._native.Exposure", sizeof(xp_exposure), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

int xp_init_exposure(PyObject *module)
{
    return xp_keep_type(module, &spec, &xp_types_of(module)->exposure);
}
