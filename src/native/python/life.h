/* The life of an object: each type names its object fields once, in a table, and traverse, clear and dealloc are one
 * function each over that table.
 *
 * Py_TYPE of an object may be a Python subclass, whose slots are Python's own and do not lead to the table. So each
 * type has a thunk for each slot, which passes the type's table. The thunk of dealloc also identifies the type.
 *
 * A type takes part in garbage collection if its table has objects, and only then: its flags say so by XP_WITH_GC. */
#ifndef XP_LIFE_H
#define XP_LIFE_H

#include <Python.h>

typedef struct xp_lifetime {
    const struct xp_lifetime *base;      /* of the native type that this one derives from, or NULL */
    uint16_t weakrefs;               /* where the list of weak references is, or 0 */
    /* Releases what is no object, and may run Python, but never passes `self` to it. Called once the object cannot be
     * found any more, with all its objects still there. An exception that is set stays set. NULL if there is nothing. */
    void (*end)(PyObject *self);
    /* Places of objects, 0 behind the last. The collector clears those in `cleared`: the methods have to do without.
     * Those in `fixed` are set when the object is made, and stay until it dies, as a tuple's items do: each cycle
     * through them passes through something that was set later. NULL if there are none. */
    const uint16_t *fixed, *cleared;
    /* Objects in arrays and lists: `visit` visits them, and `drop` releases those that the collector may clear. `end`
     * releases them, too. NULL if there are none. */
    int (*visit)(PyObject *self, visitproc visit, void *arg);
    void (*drop)(PyObject *self);
} xp_lifetime;

int xp_object_traverse(const xp_lifetime *life, PyObject *self, visitproc visit, void *arg);
int xp_object_clear(const xp_lifetime *life, PyObject *self);
void xp_object_dealloc(const xp_lifetime *life, PyObject *self);

#define XP_WITH_GC (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC)

/* The places of fields: XP_OBJECTS(type, field, ...), of at most 8 */
#define XP_OBJECTS(...) XP_PLACES_(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1)(__VA_ARGS__)
#define XP_PLACES_(type, a, b, c, d, e, f, g, h, n, ...) XP_PLACES_##n
#define XP_PLACES_1(t, a) (const uint16_t[]){offsetof(t, a), 0}
#define XP_PLACES_2(t, a, b) (const uint16_t[]){offsetof(t, a), offsetof(t, b), 0}
#define XP_PLACES_3(t, a, b, c) (const uint16_t[]){offsetof(t, a), offsetof(t, b), offsetof(t, c), 0}
#define XP_PLACES_4(t, a, b, c, d)                                                                                     \
    (const uint16_t[]){offsetof(t, a), offsetof(t, b), offsetof(t, c), offsetof(t, d), 0}
#define XP_PLACES_5(t, a, b, c, d, e)                                                                                  \
    (const uint16_t[]){offsetof(t, a), offsetof(t, b), offsetof(t, c), offsetof(t, d), offsetof(t, e), 0}
#define XP_PLACES_6(t, a, b, c, d, e, f)                                                                               \
    (const uint16_t[]){offsetof(t, a), offsetof(t, b), offsetof(t, c), offsetof(t, d), offsetof(t, e), offsetof(t, f), 0}

/* Define the table of a type, and the thunk NAME_dealloc */
#define XP_LIFE_PLAIN(name, ...)                                                                                       \
    static const xp_lifetime name##_life = {__VA_ARGS__};                                                                  \
    static void name##_dealloc(PyObject *self) { xp_object_dealloc(&name##_life, self); }
/* The same with the thunks NAME_traverse and NAME_clear, for a type with objects */
#define XP_LIFE(name, ...)                                                                                             \
    XP_LIFE_PLAIN(name, __VA_ARGS__)                                                                                   \
    static int name##_traverse(PyObject *self, visitproc visit, void *arg)                                             \
    {                                                                                                                  \
        return xp_object_traverse(&name##_life, self, visit, arg);                                                            \
    }                                                                                                                  \
    static int name##_clear(PyObject *self) { return xp_object_clear(&name##_life, self); }
#define XP_LIFE_SLOTS(name)                                                                                            \
    {Py_tp_dealloc, name##_dealloc}, {Py_tp_traverse, name##_traverse}, { Py_tp_clear, name##_clear }

/* Define the PyType_Spec of a type: XP_TYPE(variable, name, struct, flags, slot, ...) */
#define XP_TYPE(spec, name, object, flags, ...)                                                                        \
    static PyType_Slot spec##_slots[] = {__VA_ARGS__, {0, NULL}};                                                      \
    static PyType_Spec spec = {"xpushare._native." name, sizeof(object), 0, flags, spec##_slots};
/* Its tables */
#define XP_FUNCTIONS(...) ((PyMethodDef[]){__VA_ARGS__, {NULL, NULL, 0, NULL}})
#define XP_METHODS(...) {Py_tp_methods, XP_FUNCTIONS(__VA_ARGS__)}
#define XP_FIELDS(...) {Py_tp_members, (PyMemberDef[]){__VA_ARGS__, {NULL, 0, 0, 0, NULL}}}
#define XP_GETSET(...) {Py_tp_getset, (PyGetSetDef[]){__VA_ARGS__, {NULL, NULL, NULL, NULL, NULL}}}

#endif
