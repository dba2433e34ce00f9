/* What the Python types share: Python itself, and the helpers between it and the engine. */
#ifndef XP_OBJECTS_H
#define XP_OBJECTS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "../engine/events.h"
#include "../engine/seal.h"
#include "../engine/table.h"

#define XP_FAST(f) ((PyCFunction)(void (*)(void))(f))
#define XP_WEAKREFS(type) {"__weaklistoffset__", T_PYSSIZET, offsetof(type, weakrefs), READONLY, NULL}

#define XP_LEAST_ADDRESS 4096 /* a smaller address is a mistake: nothing is ever mapped there, whatever the page size */

/* support.c */
PyObject *xp_oserror(const char *call);
PyObject *xp_oserror_of(int error, const char *call);
PyObject *xp_raise(const xp_error *error); /* OSError, MemoryError or ValueError */
void xp_unusable(const char *why); /* InvalidArgumentError: the process, not a peer, is why the object cannot be used */
int xp_seconds(PyObject *obj, uint64_t *ns); /* None: XP_FOREVER; -1 with an exception set */
void xp_free(PyObject *self);                /* tp_free and the type's reference */
void xp_clear_weakrefs(PyObject *self, PyObject *list);
int xp_add_type(PyObject *module, PyType_Spec *spec);
int xp_keep_type(PyObject *module, PyType_Spec *spec, PyTypeObject **kept); /* and keep it in the module's state */
int xp_arity(const char *name, Py_ssize_t got, Py_ssize_t least, Py_ssize_t most);
int xp_as_u64(PyObject *obj, uint64_t *out);
int xp_as_u32(PyObject *obj, uint32_t *out);
int xp_as_int(PyObject *obj, int *out);
/* shape or strides: a tuple of at most 64 ints; *n = -1 where obj is None */
#define XP_MAX_DIMS 64
int xp_as_dims(PyObject *obj, const char *what, int64_t *out, int *n);
PyObject *xp_dims_tuple(const int64_t *values, int n);

/* The types of which C makes objects; each interpreter has its own. From a type, PyType_GetModuleState returns it. */
typedef struct {
    PyTypeObject *fields, *lease, *mapping, *span, *queue_calls, *owned_fd, *seal, *template, *own_table,
        *peer_table, *tree_parts, *leaves, *domain, *slot, *importer, *stream_queue, *idle_check, *scopes, *with, *recogniser;
    PyObject *held_name; /* "_held" */
} xp_types;
xp_types *xp_types_of(PyObject *module);

/* fds.c */
PyObject *xp_own_fd(PyTypeObject *type, int number, const char *call); /* takes it over, also where this fails */
int xp_take_fd(PyObject *owned_fd); /* its number, which the caller owns from now on; -1 if it has none */

/* peer.c, seal.c */
PyObject *xp_fields_new(PyTypeObject *type, const xp_handle *h);
const xp_handle *xp_fields_of(const xp_types *types, PyObject *fields); /* borrowed; NULL: they are no Fields */
const xp_key *xp_key_of(const xp_types *types, PyObject *seal); /* borrowed; NULL with TypeError */

/* seal.c */
PyObject *xp_shape(const xp_array_parts *a);
PyObject *xp_strides(const xp_array_parts *a);
/* Of `head` it takes point, item size, offset and copied. */
PyObject *xp_seal_array(const xp_key *key, xp_array head, const void *memory, const void *event, int ndim,
                        const int64_t *shape, const int64_t *strides, PyObject *text);

/* peer.c, of a PeerTable: a hold of what is open already, and an event's slot; NULL: declined */
PyObject *xp_hold_live(const xp_types *types, PyObject *table, const xp_handle *h, PyObject *peer, uint32_t *slot);
/* peer.c, of a PeerTable: the handle's entry, a hold of it, and its fds, or with `maps` its memfd mapped. false:
 * declined, or failed with an exception set */
typedef struct {
    xp_entry e;
    PyObject *lease, *mapping, *fds;
} xp_opened;
bool xp_open_entry(const xp_types *types, PyObject *table, const xp_handle *h, PyObject *peer, bool maps, xp_opened *o);
void xp_close_opened(xp_opened *o);
bool xp_still_live(const xp_types *types, PyObject *table, const xp_handle *h); /* the entry is still the handle's */
/* allocations.c, of an Importer: the driver's memory of an entry without fds; NULL: declined, or failed */
PyObject *xp_import(const xp_types *types, PyObject *importer, const xp_opened *o);
/* peer.c, of a PeerTable from which an entry is held: whether a point is done in the slot; counts the open of a pickle */
bool xp_point_done(PyObject *table, uint32_t slot, uint64_t point); /* false, perhaps with an exception set */
bool xp_count_open(PyObject *table, const xp_handle *h);           /* false with an exception set */

/* peer.c, of an OwnTable: a template. Of `common` it takes all but fds and payload */
PyObject *xp_prepare(const xp_types *types, PyObject *own, PyObject *names, PyObject *fds, PyObject *payload,
                     const xp_entry *common, PyObject *on_demand);
PyObject *xp_on_demand(PyObject *template); /* borrowed */
uint64_t xp_prepared_nbytes(PyObject *template);
uint64_t xp_new_object(PyObject *own);

/* peer.c, of an OwnTable: an export in steps, all with the lock of the Python table */
bool xp_take_entry(PyObject *own, PyObject *domain, uint32_t *entry); /* XP_ENTRIES: there is none; false: exception */
void xp_give_entry(PyObject *own, uint32_t entry);
uint64_t xp_next_generation(PyObject *own);
xp_entry *xp_own_entry(PyObject *own, uint32_t entry);
bool xp_enter(PyObject *own, const xp_key *key, PyObject *template, uint32_t entry, uint64_t generation, uint32_t flags,
              uint32_t slot, uint64_t offset, uint64_t nbytes, xp_handle *made);

/* dlpack.c: gives up an object that a DLPack consumer has held; from any thread, also after the interpreter's end */
void xp_drop_owner(PyObject *owner);

/* span.c */
PyObject *xp_base_new(PyTypeObject *type); /* an unbound BufferBase */

/* memory.c */
PyObject *xp_mapping_new(PyTypeObject *type, char *base, uint64_t nbytes); /* takes over the mapped bytes */
const char *xp_mapping_base(PyObject *mapping, uint64_t *nbytes);

/* domain.c, slot.c: borrowed; NULL with TypeError, or ValueError where it is not usable */
xp_domain *xp_domain_of(PyObject *object);
xp_slot *xp_slot_of(PyObject *object);
PyObject *xp_slot_new(PyTypeObject *type, PyObject *domain, uint32_t index, int role);
PyObject *xp_lease_new(PyTypeObject *type, PyObject *domain, uint32_t entry, PyObject *peer);
int xp_as_point(PyObject *arg, uint64_t *point);
int xp_guarded(int rc); /* of xp_guard: 0, or -1 with an exception set */

/* queue.c, of an IdleCheck: whether nothing is queued there. -1: Python has to ask */
int xp_idle(const xp_types *types, PyObject *check);

/* Each file adds its own functions and types. */
int xp_init_process(PyObject *module);
int xp_init_fds(PyObject *module);
int xp_init_memory(PyObject *module);
int xp_init_span(PyObject *module);
int xp_init_dlpack(PyObject *module);
int xp_init_domain(PyObject *module);
int xp_init_peer(PyObject *module);
int xp_init_seal(PyObject *module);
int xp_init_slot(PyObject *module);
int xp_init_queue(PyObject *module);
int xp_init_warden(PyObject *module);
int xp_init_serve(PyObject *module);
int xp_init_hand_over(PyObject *module);
int xp_init_tree(PyObject *module);
int xp_init_allocations(PyObject *module);
int xp_init_scope(PyObject *module);
int xp_init_foreign(PyObject *module);

#endif
