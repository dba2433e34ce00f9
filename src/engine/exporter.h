/* An exporter, as an importer reaches it: meeting it, and opening the entries of its table. Nothing of it is trusted.
 * Each function that fails returns false, leaves nothing behind, and says why in an `xp_refusal`. */
#ifndef XP_EXPORTER_H
#define XP_EXPORTER_H

#include "events.h"

#define XP_EVERY_REFUSAL(X)                                                                                           \
    X(OTHER_PIDS)      /* no pidfd_getfd: the exporter is in another PID namespace, */                                \
    X(PIDFD_BLOCKED)   /* or the system call `what` is refused with `error`, */                                       \
    X(PID_OURS)        /* The exporter has ended: its pid is this process's, */                                       \
    X(PID_UNUSED)      /* nobody's, */                                                                                \
    X(PID_REUSED)      /* or that of a process without such a descriptor, */                                          \
    X(FD_REUSED)       /* or its descriptor is another file now, */                                                   \
    X(MET_ENDING)      /* or it ended between two steps. */                                                           \
    X(CALL_FAILED)     /* `what` failed here with `error`: descriptors or memory ran out */                           \
    X(TABLE_UNREAD)    /* the same of a call that looks at what may be the table */                                   \
    X(TABLE_FAILED)    /* the same of a call that maps the table or joins the commons */                              \
    X(TABLE_UNFIT)     /* `what` is wrong with the table or the commons */                                            \
    X(TABLE_OTHER)     /* the table is not the one that the handle names */                                           \
    X(TABLE_VERSION)   /* the table has version `detail` */                                                           \
    X(COMMONS_OTHER)   /* the commons is not the one that the table names */                                          \
    X(COMMONS_VERSION) /* the commons has version `detail` */                                                         \
    X(COMMONS_FULL)    /* there is no room for another member */                                                      \
    X(EXPORTER_ENDED)  /* An exporter that was met has ended. */                                                      \
    X(ENTRY_NONE)      /* No table has the handle's entry; */                                                         \
    X(ENTRY_ENDED)     /* or the export has ended, for reason `detail`; */                                            \
    X(ENTRY_UNFIT)     /* or the entry does not fit the handle. */                                                    \
    X(NOT_DIRECT)      /* Another route than pidfd_getfd has to bring the descriptors: the exporter was met by one, */ \
    X(ON_DEMAND)       /* or it makes them on demand. */                                                              \
    X(FD_FREED)        /* The exporter has closed a descriptor of the object, */                                      \
    X(FD_OTHER)        /* or it is another file now. */                                                               \
    X(OBJECT_UNREAD)   /* `what` failed here with `error`: a call that looks at a descriptor of the object, */        \
    X(MEMORY_FAILED)   /* or one that maps the object's `detail` bytes */                                             \
    X(MEMORY_UNFIT)    /* `what` is wrong with the memfd of the object's `detail` bytes */

typedef enum {
    XP_NOT_REFUSED,
#define XP_REFUSAL(name) XP_REFUSED_##name,
    XP_EVERY_REFUSAL(XP_REFUSAL)
#undef XP_REFUSAL
} xp_refusal_code;

typedef struct {
    xp_refusal_code code;
    int error;        /* errno of the system call, or 0 */
    const char *what; /* that call, or what is wrong; NULL: nothing to add */
    uint64_t detail;  /* the number that does not fit */
} xp_refusal;

/* The descriptors by which an exporter is met, as a route brings them. Those that are missing are -1. */
typedef struct {
    int table, commons, bell, pidfd;
} xp_exporter_fds;

/* The exporter's objects that an importer has and owns. */
typedef struct {
    char *table; /* XP_TABLE_SIZE bytes, mapped */
    xp_domain *domain;
} xp_met;

/* Fetch the descriptors of a handle's exporter by pidfd_getfd. Blocks. */
bool xp_fetch_exporter_fds(const xp_handle *h, xp_exporter_fds *r, xp_refusal *why);
/* Map the table of a handle's exporter, and join its commons. Takes over the commons and the bell if it succeeds, and
 * never the others. Blocks. */
bool xp_meet(const xp_handle *h, const xp_exporter_fds *r, xp_met *met, xp_refusal *why);
void xp_close_exporter_fds(xp_exporter_fds *r);

/* An exporter that was met, as its entries are opened. */
typedef struct {
    const char *table;  /* mapped */
    xp_domain *domain;  /* or NULL: that a pickle was passed on is then not known */
    int pidfd;          /* or -1 */
} xp_exporter;

bool xp_exporter_lives(const xp_exporter *x, xp_refusal *why);
/* Whether a handle's export has not ended: the cheap half of `xp_find_entry`, to be made after it. */
bool xp_entry_stands(const xp_exporter *x, const xp_handle *h, xp_refusal *why);
/* Copy the entry of a handle, which it fits. */
bool xp_find_entry(const xp_exporter *x, const xp_handle *h, xp_entry *e, xp_refusal *why);
/* Fetch the exporter's fds of an entry by pidfd_getfd. They certainly belong to this handle. Blocks. */
bool xp_fetch_fds(const xp_exporter *x, const xp_handle *h, const xp_entry *e, int *fds, xp_refusal *why);
/* The same for a mapping of its memfd. NULL: refused. */
char *xp_fetch_mapping(const xp_exporter *x, const xp_handle *h, const xp_entry *e, xp_refusal *why);
/* Whether fds of an entry that some route has brought belong to this handle. `fd`: the first of them. */
bool xp_fd_belongs(const xp_exporter *x, const xp_handle *h, const xp_entry *e, int fd, xp_refusal *why);
/* Map a memfd that belongs to the handle. NULL: refused. Blocks. */
char *xp_map_fetched(const xp_entry *e, int fd, xp_refusal *why);

#endif
