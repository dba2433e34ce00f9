/* What this process exports: the entries of its table, and who may still reach what was exported.
 *
 * An export is reserved first: it gets an entry, a generation and a sealed handle, but nobody can open it yet. Then it is
 * published, or cancelled. Generations count up, so a stale handle never reaches the next export of its entry. An
 * entry is not reused while a living importer holds it. A forked child never writes its parent's table.
 *
 * The files, from the lowest to the highest: entries.c, exposure.c, exports.c. */
#ifndef XP_EXPORTS_H
#define XP_EXPORTS_H

#include "events.h"
#include "seal.h"

#define XP_NONCE (sizeof((xp_handle *)0)->nonce)

/* What all exports of one object have in common. It never changes. */
typedef struct {
    xp_handle h;
    xp_entry e;
    xp_offer *offer; /* NULL, or how fds are made on demand; each export gets a copy */
} xp_template;

/* One export. Once it has ended, it never comes back. The caller makes it, with zeros for what is set later. */
typedef struct {
    const xp_template *template;
    uint64_t offset, nbytes; /* the exported bytes of the object */
    uint32_t flags, slot;    /* flags: XP_ENTRY_READ_ONLY, XP_ENTRY_PICKLED */
    uint32_t entry;          /* XP_ENTRIES until it has one; its own while the table keeps it */
    bool foreign;            /* importers may use the memory even after the export has ended */
    bool reserved, live;     /* set later, like all that follow */
    uint64_t generation, deadline;
    uint8_t seal[XP_SEAL]; /* of its handle; no other handle has it */
    xp_offer *offer;       /* its copy, until it is published */
} xp_export;

/* The exports of one table. */
typedef struct {
    unsigned refs;
    xp_domain *d;
    char *base; /* the mapped table, which the caller unmaps after the last call for an export */
    xp_handle common;
    void (*hold)(xp_export *e); /* NULL, or called with the lock for each export that a look-up returns */
    uint64_t objects;           /* how many have a number */
    /* xp_exports_mu protects the following. */
    uint64_t generation;        /* the last one that was assigned */
    uint32_t used;              /* how many entries have ever been used, from the first one on */
    uint32_t live;              /* exports */
    xp_export **exports;        /* by entry: live ones, and those that importers may still use */
    uint8_t nonces[16][XP_NONCE]; /* random bytes for the next exports */
    uint32_t nonces_left;
    uint32_t *free; /* a ring of unused entries */
    uint32_t first, count; /* of those */
} xp_exports;

/* The outcome of a call, and its details. */
enum {
    XP_EXPORT_GOOD,
    XP_EXPORT_WOULD_BLOCK, /* call again, and let it block */
    XP_EXPORT_TABLE_FULL,
    XP_EXPORT_RESERVED_BEFORE,
    XP_EXPORT_UNUSABLE,   /* xp_domain_wrong says why */
    XP_EXPORT_OVER,       /* it has ended, or is of another table */
    XP_EXPORT_LINGERS,    /* it has ended, and importers may still use its memory */
    XP_EXPORT_NO_MEMORY,
    XP_EXPORT_NO_RANDOM,
};
typedef struct {
    int code;
    int error;      /* errno of XP_EXPORT_NO_RANDOM */
    uint32_t entry; /* the one that the export had by then, or XP_ENTRIES */
} xp_export_error;

/* --- entries.c ---------------------------------------------------------------------------------------------------- */
extern pthread_mutex_t xp_exports_mu; /* of all tables; no other lock is taken while it is held */

/* `common`: an unsealed handle with what all handles of this table have in common. NULL without memory. */
xp_exports *xp_exports_new(char *base, xp_domain *d, const xp_handle *common);
void xp_exports_ref(xp_exports *t);
void xp_exports_unref(xp_exports *t);
/* Take an unused entry. `block`: ask whether importers hold it; without that, the result may be
 * XP_EXPORT_WOULD_BLOCK. */
int xp_entry_take(xp_exports *t, bool block, uint32_t *entry);
void xp_entry_return(xp_exports *t, uint32_t entry); /* other exports may have it */
void xp_exports_fork_prepare(void);
void xp_exports_fork_parent(void); /* in the child, too */

/* --- exposure.c: which other processes may have memory that was exported ------------------------------------------- */
/* It keeps the entries of exports that ended while another process had them open or mapped. No other export gets these
 * entries until then. */
typedef struct {
    xp_exports *exports; /* NULL before the first entry */
    pthread_mutex_t mu;  /* what follows */
    uint32_t *entries, count, room;
    unsigned forks, born; /* xp_forks_begun and xp_fork_count when the memory was allocated */
    bool never;
} xp_exposure;
enum { XP_EXPOSED_NOT, XP_EXPOSED, XP_EXPOSED_FOREVER /* or nobody can tell, for example after a fork */ };

void xp_exposure_begin(xp_exposure *x);
void xp_exposure_end(xp_exposure *x);
/* An export of that memory has ended. Returns true if the entry now belongs to the exposure. */
bool xp_exposure_add(xp_exposure *x, xp_exports *t, uint32_t entry);
int xp_exposure_state(xp_exposure *x); /* blocks */
void xp_exposure_spoil(xp_exposure *x); /* from now on it is exposed for ever */

/* --- exports.c ---------------------------------------------------------------------------------------------------- */
/* Fill in a template with all of `common` but payload, fds and their number. `names`: the device's backend and uuid.
 * `offer`: NULL, or how fds are made on demand, which the template then owns. Returns false if no entry has room for
 * that. */
bool xp_template_fill(xp_template *p, const xp_exports *t, const xp_entry *common, const char *names, const int *fds,
                      size_t fd_count, const void *payload, size_t payload_nbytes, xp_offer *offer);
/* The template of another object of the same device and kind, with `nbytes` and no fds. Returns false if `from` is
 * not from this table, or has fds. */
bool xp_template_like(xp_template *p, const xp_exports *t, const xp_template *from, uint64_t serial, uint64_t nbytes,
                      const void *payload, size_t payload_nbytes);
uint64_t xp_exports_new_object(xp_exports *t); /* a serial number */

/* Returns false if it failed, and leaves nothing behind. `opens`: how often it can be opened, or -1 for no limit.
 * `deadline`: when it ends, on the monotonic clock, or 0. `block`: see xp_entry_take. */
bool xp_export_reserve(xp_exports *t, const xp_key *key, xp_export *e, int opens, uint64_t deadline, bool block,
                       xp_handle *h, xp_export_error *error);
void xp_export_cancel(xp_exports *t, xp_export *e); /* one that is reserved; it can be reserved again */
void xp_export_publish(xp_exports *t, xp_export *e); /* likewise; blocks if it has an offer */
/* Returns XP_EXPORT_GOOD, XP_EXPORT_LINGERS or XP_EXPORT_OVER. The table keeps what has ended until it is released.
 * Blocks. */
int xp_export_end(xp_exports *t, xp_export *e, uint32_t reason);
/* Drop an export that has ended. Its entry becomes free, or belongs to `x`, which may be NULL. Returns false if the
 * table does not keep it, or it is live. */
bool xp_export_release(xp_exports *t, xp_export *e, xp_exposure *x);
xp_export *xp_export_find(xp_exports *t, const xp_handle *h); /* the live export of a handle, or NULL */
/* Find all live exports, the oldest first. Returns how many there are; if `found` has no room for all, it finds none. */
uint32_t xp_exports_list(xp_exports *t, xp_export **found, uint32_t room);
int xp_export_set_deadline(xp_exports *t, xp_export *e, uint64_t deadline); /* GOOD, OVER or UNUSABLE, like the next */
/* Allow one more open of a handle. `until`: NULL, or when the pickle that was made of it expires. */
int xp_export_allow_open(xp_exports *t, const xp_handle *h, const uint64_t *until);

#endif
