/* Kinds of arrays: arrays that are described alike, and Python's answers about them. */
#ifndef XP_KINDS_H
#define XP_KINDS_H

#define XP_KINDS_MOST 64u /* kinds that `Leaves` distinguishes; Python's numbers begin after them */

#include "dlpack.h"
#include "objects.h"

#define XP_BUFFER 0 /* the device type of NumPy's arrays and other buffers: DLPack's own begin at 1 */

/* Arrays of ours of one device and dtype, or of another library's type, DLPack device and type of element. */
typedef struct {
    PyTypeObject *type;       /* of another library; NULL: ours */
    PyObject *device, *dtype; /* device: of ours; dtype: of ours, or what a view does not show; else NULL */
    dl_device on;             /* or XP_BUFFER */
    dl_dtype elements;
} xp_kind_key;

typedef enum {
    XP_STREAM_UNKNOWN,  /* Python has to be asked each time */
    XP_STREAM_NONE,     /* nobody waits for these arrays */
    XP_STREAM_ALWAYS,   /* always the same */
    XP_STREAM_NUMBERED, /* the queue of a number of its library, which lives as long as the process */
} xp_stream_kind;

/* All references are owned, or NULL. */
typedef struct {
    PyObject *dtype, *device, *context; /* of another library's kind */
    PyObject *finder, *info;            /* the Recogniser that finds their memory, and its name for the device */
    PyObject *work;                     /* over the stream that produces them */
    xp_stream_kind stream;
    uint64_t number;        /* of the stream */
    const dl_exchange *api; /* of another library; its type keeps it for good */
} xp_kind;

void xp_kind_copy(xp_kind *to, const xp_kind *from); /* with references of its own */
void xp_kind_drop(xp_kind *kind);
#define XP_KIND_VISIT(k)                                                                                               \
    do {                                                                                                               \
        Py_VISIT((k)->dtype);                                                                                          \
        Py_VISIT((k)->device);                                                                                         \
        Py_VISIT((k)->context);                                                                                        \
        Py_VISIT((k)->finder);                                                                                         \
        Py_VISIT((k)->info);                                                                                           \
        Py_VISIT((k)->work);                                                                                           \
    } while (0)

bool xp_same_kind(const xp_kind_key *a, const xp_kind_key *b);
PyObject *xp_kind_element(const xp_kind_key *key); /* None, or as `Leaves.view` has it in _native.pyi */
bool xp_is_kinds(const xp_types *types, PyObject *object);
bool xp_known_kind(PyObject *kinds, const xp_kind_key *key, xp_kind *found);     /* with references of its own */
const dl_exchange *xp_known_exchange(PyObject *kinds, const PyTypeObject *type); /* NULL: no kind of that type is known */
void xp_learn_kind(PyObject *kinds, const xp_kind_key *key, const xp_kind *said);

#endif
