/* The table of this process's exports, for Python and for native code. */
#ifndef XP_EXPORTS_H
#define XP_EXPORTS_H

#include "handle.h"

#include <pthread.h>

/* Template: what all exports of one object have in common. It never changes. */
typedef struct {
    PyObject_HEAD
    xp_handle h;
    xp_entry e;
    xp_offer *offer; /* NULL, or how fds are made on demand; each export gets a copy */
} xp_template;

/* Exported: one export. It is made first, and exported later. Once it has ended, it never comes back. */
typedef struct {
    PyObject_HEAD
    PyObject *template;
    PyObject *source; /* the object that an open in this very process gets */
    PyObject *keep;   /* an object that must live as long: another library's array */
    PyObject *handle; /* NULL until it is exported */
    PyObject *made;   /* the same, for an export that is being made */
    uint64_t offset, length, nbytes; /* the exported bytes; nbytes: of the whole object */
    uint64_t generation, deadline;
    uint32_t entry, flags, slot; /* entry: XP_ENTRIES until it has one; its own while the table keeps it */
    uint32_t fds;                /* descriptors that this process holds for the object */
    bool foreign;                /* importers may use the memory even after the export has ended */
    bool implicit;               /* made by pickling */
    bool outlives;               /* made by pickling, and its object has died */
    bool begun, live;
    uint8_t seal[XP_SEAL]; /* of its handle; no other handle has it */
    xp_offer *offer;       /* likewise */
} xp_exported;

typedef struct {
    PyObject_HEAD
    PyObject *mapping, *domain;
    char *base;
    xp_domain *d;
    xp_handle common;
    uint64_t objects; /* how many have a number */
    PyObject *named, *named_before; /* may change: dicts of the numbers of other libraries' objects; see `object_named` */
    /* The lock protects the following. While it is held, no Python object is made or dropped: the garbage collector
     * could run then, and end exports. */
    pthread_mutex_t lock;
    uint64_t generation;   /* the last one that was assigned */
    uint32_t used;         /* how many entries have ever been used, from the first one on */
    uint32_t live;         /* exports */
    xp_exported **exports; /* by entry, with a reference: live ones, and those that importers may still use */
    uint8_t nonces[16][sizeof ((xp_handle *)0)->nonce]; /* random bytes for the next exports */
    uint32_t nonces_left;
    uint32_t *free;        /* a ring of unused entries */
    uint32_t first, count; /* of those */
} xp_own_table;

/* Exposure: which other processes may have memory that was exported. It keeps the entries of exports that ended
 * while another process had them open or mapped. No other export gets these entries until then. */
typedef struct {
    PyObject_HEAD
    PyObject *own;      /* NULL before the first entry */
    PyObject *prepared; /* the template of its allocation's exports, made by Python, or NULL */
    uint64_t serial;    /* likewise */
    pthread_mutex_t mu; /* what follows */
    uint32_t *entries, count, room;
    unsigned forks; /* xp_forks_begun when the memory was allocated */
    bool never;
} xp_exposure;

/* An export of that memory has ended. Returns true if the entry now belongs to the exposure. */
bool xp_exposure_add(PyObject *exposure, xp_own_table *own, uint32_t entry);

/* Other exports may have the entry. */
static inline void xp_give_entry(xp_own_table *own, uint32_t entry)
{
    pthread_mutex_lock(&own->lock);
    if (own->count < XP_ENTRIES)
        own->free[(own->first + own->count++) % XP_ENTRIES] = entry;
    pthread_mutex_unlock(&own->lock);
}

/* A template with all of `common` but payload, fds and their number. `offer`: taken over, even if this fails; NULL
 * if the fds exist already. */
PyObject *xp_prepare(const xp_types *types, PyObject *own, PyObject *names, PyObject *fds, PyObject *payload,
                     const xp_entry *common, xp_offer *offer);
/* The template of another object of the same device and kind as the Template `like`, with `nbytes` and no fds. NULL,
 * without an exception, if `like` is not from this table, or has fds. */
PyObject *xp_prepare_like(const xp_types *types, PyObject *own, PyObject *like, uint64_t serial, uint64_t nbytes,
                          const char *payload, uint32_t payload_nbytes);
uint64_t xp_new_object(PyObject *own);
uint64_t xp_object_named(PyObject *own, PyObject *name); /* Returns 0 with an exception set. */

/* `flags`: XP_ENTRY_READ_ONLY, XP_ENTRY_PICKLED */
PyObject *xp_exported_new(const xp_types *types, PyObject *template, PyObject *source, PyObject *keep, uint64_t offset,
                          uint64_t length, uint32_t flags, bool foreign);
/* Export `n` Exported at once: all of them, or none. Each then has its handle. `opens`: how often each can be
 * opened, or -1 for no limit. `deadline`: when they end, on the monotonic clock, or 0. Returns false on failure,
 * without an exception if the table is full. */
bool xp_export(const xp_types *types, PyObject *own, const xp_key *key, PyObject *const *exports, Py_ssize_t n,
               int opens, uint64_t deadline);
/* The live export of a handle: a new reference, or NULL without an exception if it has ended. */
PyObject *xp_export_of(PyObject *own, const xp_handle *h);
/* End an export, unless it has ended. Returns true if importers may still use its memory, and the table holds it
 * until xp_release_export. An exception that is set stays. */
bool xp_end_export(PyObject *own, PyObject *exported, uint32_t reason);
void xp_release_export(PyObject *own, PyObject *exported);

#endif
