/* Traverse, clear and dealloc of all types: see life.h. */
#include "objects.h"

static PyObject **object_at(PyObject *self, uint16_t place) { return (PyObject **)((char *)self + place); }

int xp_object_traverse(const xp_lifetime *life, PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (; life; life = life->base) {
        for (const uint16_t *at = life->fixed; at && *at; at++)
            Py_VISIT(*object_at(self, *at));
        for (const uint16_t *at = life->cleared; at && *at; at++)
            Py_VISIT(*object_at(self, *at));
        int rc = life->visit ? life->visit(self, visit, arg) : 0;
        if (rc)
            return rc;
    }
    return 0;
}

/* Each field is empty before Python runs. Other threads may set it meanwhile. */
static void drop(PyObject *self, const uint16_t *at)
{
    for (; at && *at; at++) {
        PyObject **field = object_at(self, *at), *before;
        Py_BEGIN_CRITICAL_SECTION(self);
        before = *field;
        *field = NULL;
        Py_END_CRITICAL_SECTION();
        Py_XDECREF(before);
    }
}

int xp_object_clear(const xp_lifetime *life, PyObject *self)
{
    for (; life; life = life->base) {
        drop(self, life->cleared);
        if (life->drop)
            life->drop(self);
    }
    return 0;
}

/* The same for an object that nobody else can reach. */
static inline void release(PyObject *self, const uint16_t *at)
{
    for (; at && *at; at++)
        Py_CLEAR(*object_at(self, *at));
}

void xp_object_dealloc(const xp_lifetime *life, PyObject *self)
{
    if (PyType_HasFeature(Py_TYPE(self), Py_TPFLAGS_HAVE_GC)) /* also a Python subclass of a type without objects */
        PyObject_GC_UnTrack(self);
    for (const xp_lifetime *each = life; each; each = each->base)
        if (each->weakrefs && *object_at(self, each->weakrefs))
            PyObject_ClearWeakRefs(self);
    for (const xp_lifetime *each = life; each; each = each->base)
        if (each->end) {
            PyObject *error = NULL, *value, *trace;
            if (PyErr_Occurred())
                PyErr_Fetch(&error, &value, &trace);
            each->end(self);
            if (error)
                PyErr_Restore(error, value, trace);
        }
    for (; life; life = life->base) {
        release(self, life->cleared);
        release(self, life->fixed);
    }
    xp_free(self);
}
