/* Domains, slots and the warden.
 *
 * Mutexes, outermost first: xp_life_mu (start and stop of the loop), send_mu (serve.c), xp_mu (domain list, nodes,
 * due tokens, sockets), a queue's `mu`, an exposure's `mu`, domain->mu (its fd, watches, reaping), a slot's `mu`,
 * loop_mu (loop.c: epoll), relay_mu (relay.c), life_locks_mu (peer.c), name_locks_mu (name_lock.c), xp_exports_mu (entries.c). A queue's `order` is
 * outside all of them, see held.h. If a function is documented to block, Python calls it without the GIL. No thread
 * takes the GIL while it holds one of these mutexes.
 *
 * The sections below are the files, from the lowest to the highest. Each calls only files above it in this list. A
 * file reaches code below it through a pointer: the loop's work, the operations of a queue. */
#ifndef XP_EVENTS_H
#define XP_EVENTS_H

#include "membership.h"
#include "table.h"
#include "words.h"

#include <sys/types.h>

#define XP_NO_MEMBER UINT32_MAX
#define XP_LEFT 1
#define XP_ROBBED 2 /* somebody in this process closed fds that they do not own, so the numbers may belong to anybody by now */
#define XP_LEAVING 4

typedef struct { /* how far the sweep of a dead member has come, and which member it is; 0 if none has begun */
    uint64_t since;
    uint32_t next;
    bool put_off;
} xp_sweep;

/* Counts of this process, one for each entry or slot up to the last that needed one. */
typedef struct {
    uint32_t *at, length;
} xp_counts;

typedef struct xp_domain {
    unsigned refs, born; /* born: the fork count when it was made */
    int left;            /* why it is not a member (or not yet): XP_LEFT, XP_ROBBED, XP_LEAVING */
    bool owner;
    union {
        xp_membership ms;
        XP_MEMBERSHIP;
    };
    char *base;
    dev_t dev;
    ino_t ino;
    uint8_t cookie[XP_COOKIE];
    struct xp_domain *next; /* xp_mu */
    int rescan;             /* the warden has to check the nodes of this domain */

    int last_fd; /* of a process that has left but still owes points; 0 if there is none */
    int bell; /* open until the last reference is dropped, so that signallers need no mutex */
    bool bell_watched;
    uint64_t polled[XP_MASK_WORDS];  /* they cannot be watched: their locks are polled while nodes exist */
    uint64_t retry[XP_MASK_WORDS];   /* dead, but not reaped yet */
    xp_other others[XP_MEMBERS];
    xp_sweep sweeps[XP_MEMBERS];
    int unopened;      /* a waiter of this process checks whether pickles are opened in time */
    uint64_t sweep_at; /* when the rest that pays for the sweeps so far will end; protected by mu */
    uint32_t attached_below; /* this process was never attached to a slot at or above this; protected by mu */
    /* owner only: slots */
    uint32_t next_slot, released_at, released_count; /* a ring of released indices */
    uint32_t *released;
    uint64_t *slots_live; /* bits */
    xp_counts holds, users, attaches; /* counts of this process, two per entry and one per slot; protected by mu */
    uint64_t uses;             /* their sum; mu */
    xp_counts able;            /* the attachments that may signal; protected by mu */
    uint8_t *acts;             /* per slot: this process's XP_ACT_… since the first attachment */
} xp_domain;

enum { XP_ONLY_WAITS, XP_MAY_SIGNAL, XP_WILL_SIGNAL }; /* what an attachment is for */
/* What a process has done with an event. `signalled` counts from its declaration, if it made one. */
enum { XP_ACT_WAITED = 1, XP_ACT_SIGNALLED = 2, XP_ACT_DECLARED = 4, XP_ACT_DROPPED = 8 /* an object, unclosed */ };

typedef struct xp_slot {
    unsigned refs;
    int gone; /* detached */
    uint32_t index;
    int role;
    xp_domain *d;
    xp_words *w;
    xp_roles *roles;
    uint8_t *act; /* of this process, over all its attachments */
    int64_t credit; /* nanoseconds that spins may use; see xp_spin */
    unsigned sleeps, backoff; /* without credit: the number of waits since the last spin, and the log2 of how many to wait between two spins */
    pthread_mutex_t mu;
    uint64_t last_point, last_queue; /* the newest point that this process has submitted; protected by mu */
    uint64_t last_host;              /* the newest of these points that a host function completes; protected by mu */
    uint64_t handed; /* The newest of these points that is certain: the driver has its store, and nothing can delay that store for ever. */
    uint64_t address; /* of a queue's own timeline: the address of its word on devices */
    uint64_t *released; /* points whose guard has seen the loss, until they are asked for; protected by xp_mu */
    uint32_t released_count, released_room;
    uint32_t guards;            /* how many nodes guard waits on it; protected by xp_mu */
    /* A loss for which devices of this process have yet to be released: up to which point, when it was last checked
     * (0 if there is none), and how much of the grace period is over. */
    uint64_t lost_hi, lost_at, grace;
    bool held, reached; /* a queue of this process has yet to lose what is queued behind the wait; one queue may have reached the wait */
} xp_slot;

typedef struct xp_queue xp_queue;

enum { XP_TOKEN, XP_RECOVERY /* a token, once no future point is lost */, XP_GUARD, XP_MEND, XP_HOLD, XP_HOLD_RECORDED /* a loss counts once it is recorded */ };
#define XP_UNSURE 16 /* with XP_GUARD: the point may never come */

/* One thing that the warden tends: a token to report, a device's wait to guard, late stores of a device to correct,
 * or a wait for which a queue holds work. */
typedef struct xp_node {
    struct xp_node *next;
    xp_slot *slot;
    uint64_t point, token; /* guard: the place of the wait in its queue; correction: since when */
    int kind;
    bool lost, served; /* guard: its point was seen lost, and its queue has lost what is queued behind */
    bool met;          /* its queue has been notified of the loss */
    bool unsure;       /* guard: its point may never come */
    xp_queue *queue;   /* or NULL */
} xp_node;

extern pthread_mutex_t xp_mu;
extern xp_domain *xp_domains; /* xp_mu */

static inline xp_member *xp_member_at(const xp_domain *d, uint32_t m)
{
    return (xp_member *)(d->base + XP_COMMONS_MEMBERS) + m;
}

static inline xp_words *xp_words_at(const xp_domain *d, uint32_t i)
{
    return (xp_words *)(d->base + XP_COMMONS_SLOTS) + i;
}

static inline xp_roles *xp_roles_at(const xp_domain *d, uint32_t i)
{
    return (xp_roles *)(d->base + XP_COMMONS_ROLES) + i;
}

static inline uint64_t *xp_pickles_at(const xp_domain *d, uint32_t i)
{
    return (uint64_t *)(d->base + XP_COMMONS_PICKLES) + i;
}

static inline xp_opens *xp_opens_at(const xp_domain *d, uint32_t entry)
{
    return (xp_opens *)(d->base + XP_COMMONS_OPENS) + entry;
}

static inline bool xp_bit(const uint64_t *mask, uint32_t m) { return XP_LOAD(&mask[m / 64]) >> (m % 64) & 1; }
static inline void xp_set(uint64_t *mask, uint32_t m)
{
    __atomic_fetch_or(&mask[m / 64], 1ull << m % 64, __ATOMIC_SEQ_CST);
}
static inline void xp_clear(uint64_t *mask, uint32_t m)
{
    __atomic_fetch_and(&mask[m / 64], ~(1ull << m % 64), __ATOMIC_SEQ_CST);
}
/* Return the first member in the mask from `m` on, or XP_MEMBERS if there is none. */
static inline uint32_t xp_next(const uint64_t *mask, uint32_t m)
{
    for (uint64_t word; m < XP_MEMBERS; m = (m | 63) + 1)
        if ((word = XP_LOAD(&mask[m / 64]) >> m % 64))
            return m + (uint32_t)__builtin_ctzll(word);
    return XP_MEMBERS;
}
#define XP_EACH(mask, m) for (uint32_t m = 0; (m = xp_next(mask, m)) < XP_MEMBERS; m++)
#define XP_EACH_BIT(word, bits) for (uint64_t bits = (word); bits; bits &= bits - 1)

static inline void xp_note_act(xp_slot *s, uint8_t act)
{
    if (XP_UNLIKELY(!(XP_RELAXED(s->act) & act)))
        __atomic_fetch_or(s->act, act, __ATOMIC_RELAXED);
}

/* Whether a process that did only this, and ends without closing the event, abandons the event. */
static inline bool xp_abandons(uint8_t acts)
{
    return !(acts & (acts & XP_ACT_DECLARED ? XP_ACT_SIGNALLED : XP_ACT_SIGNALLED | XP_ACT_WAITED));
}

/* Whether objects of this domain may touch shared memory. */
static inline bool xp_usable(const xp_domain *d)
{
    return XP_LIKELY(!XP_RELAXED(&d->left) && d->born == XP_RELAXED(&xp_fork_count));
}

/* --- members.c ---------------------------------------------------------------------------------------------------- */
void xp_domain_ref(xp_domain *d);
void xp_domain_unref(xp_domain *d);
xp_domain *xp_domain_find(uint64_t serial); /* a new reference, or NULL if it is gone; takes xp_mu */
void xp_domain_unlist(xp_domain *d);        /* with xp_mu */
void xp_domains_forked(void);               /* with xp_mu */
const char *xp_domain_wrong(const xp_domain *d); /* why it may not touch shared memory, or NULL */
/* Return whether the domain's fd is still open. If it is not, every domain of this process becomes robbed, and
 * `xp_on_robbed` is called once. Takes xp_mu. */
bool xp_stands(xp_domain *d);
void xp_rob(void); /* takes xp_mu */
extern void (*xp_on_robbed)(void); /* NULL, or the function that reports it to the user; called without locks, from any thread */
bool xp_counts_reach(xp_counts *counts, uint32_t i); /* there is one for `i`; false if there is no memory for it */
bool xp_count_in(xp_domain *d, xp_counts *counts, uint32_t i, uint64_t *mask); /* takes d->mu */
void xp_count_out(xp_domain *d, xp_counts *counts, uint32_t i, uint64_t *mask);
uint32_t xp_slots_used(const xp_domain *d); /* no slot at or above this was ever used */
/* Whether the mask has a dead member that we could not reap. Another reaper may be stopped, or may never finish. Called
 * with d->mu. */
bool xp_unreaped(xp_domain *d, const uint64_t *mask);
bool xp_look(xp_domain *d, uint32_t m, int *pid, uint64_t *since, bool *alive); /* false if nobody has the index */

/* --- marks.c ------------------------------------------------------------------------------------------------------ */
void xp_mark(xp_domain *d, uint32_t entry); /* XP_MARK_FOREVER */
/* Called by the holder of the entry. From now on, this process may pass the memory on to processes that the table's
 * owner does not see. */
void xp_own(xp_domain *d, uint32_t entry);
bool xp_owned(const xp_domain *d, uint32_t entry);
bool xp_marked(const xp_domain *d, uint32_t entry);
void xp_clear_marks(xp_domain *d, uint32_t entry);  /* called by the owner, before an export */
void xp_mark_at_fork(xp_domain *d, uint32_t entry); /* if this process is being forked; called after it is counted */
void xp_marks_fork_prepare(void); /* Called with xp_mu. Mark what this process has open, since a child will have it, too. */
void xp_marks_fork_parent(void);

/* --- roster.c: who may still signal ------------------------------------------------------------------------------- */
bool xp_future_lost(xp_slot *s, const xp_view *v); /* a point above `v->top`, to this process; takes d->mu */
const uint64_t *xp_relied(const xp_roles *r);     /* the members whose exit could lose future points */
void xp_roster_watch(const xp_slot *s, uint64_t *mask); /* adds them */
/* Called with d->mu, like all that follow. */
void xp_roster_join(xp_slot *s, bool signaller);
/* A signaller closes the event. If it was the last one, the candidates count from now on. Candidates that died
 * earlier do not. */
void xp_roster_close(xp_domain *d, xp_roles *r, uint32_t m);
/* A pickle of the event was made. Until `until`, the process that opens it may signal. */
void xp_pickle_made(xp_slot *s, uint64_t until);
void xp_pickle_taken(xp_slot *s);               /* a pickle was opened; called after its opener has joined */
bool xp_pickles_wait(const xp_slot *s);         /* a pickle may still wait for its first open */
void xp_roster_lose(xp_words *w); /* a dead process owed points here; other members prevent its reaping */
/* Remove `m` from that slot. `owed`: the points that it owed have just been lost. */
void xp_roster_leave(xp_domain *d, uint32_t index, uint32_t m, uint32_t cause, bool owed);

/* --- deaths.c ----------------------------------------------------------------------------------------------------- */
enum { XP_READY_LISTEN = 1, XP_READY_CONNECTION, XP_READY_BELL, XP_READY_PIDFD, XP_READY_GROUP }; /* what the loop watches */

/* Called with d->mu, except for xp_watch_relied. */
int xp_reap(xp_domain *d, uint32_t m, bool sure); /* 1 if reaped, 0 if there was nothing to do, -1 to try again */
int xp_reap_by_steps(xp_domain *d, uint32_t m);   /* as far as it may go now; others get d->mu between two steps */
bool xp_vacant(xp_domain *d, uint32_t m); /* the index is swept, and anybody may use it */
/* What the process of a member that goes can still reach of what it has open. NOTHING: it has ended. UNSEEN: nobody sees it
 * end, so what it has open is marked. KEPT: until it ends, so the member stays its holder and user. The last two combine. */
enum { XP_REACH_NOTHING, XP_REACH_UNSEEN = 1, XP_REACH_KEPT = 2 };
/* Remove `m` from the slots and entries from `from` up to `to`, and mark the points that it owes as lost. Returns
 * false if it stays a holder or user, or if a loss is postponed, because a living member's earlier point is outstanding
 * or a device may still store the point: call again. */
bool xp_sweep_out(xp_domain *d, uint32_t m, uint32_t cause, uint32_t from, uint32_t to, int reach);
int xp_watch(xp_domain *d, uint32_t m); /* XP_WATCHED, also for a dead member, XP_RETRY or XP_POLLED */
int xp_watch_bell(xp_domain *d); /* 0 or errno; 0 if there is no loop */
void xp_unwatch_bell(xp_domain *d);
int xp_watch_relied(xp_slot *s); /* and the members that owe points; takes d->mu; returns the worst result of xp_watch */

/* --- slot.c ------------------------------------------------------------------------------------------------------- */
/* Also future points that nobody is left to signal and, with `deaths`, points that a dead member owes. May take
 * d->mu. */
int xp_full_state(xp_slot *s, uint64_t point, bool deaths);
/* Like xp_lose, for the case that a device may still store the points. */
bool xp_lose_late(xp_slot *s, uint64_t from, uint32_t cause, uint64_t pid);
void xp_complete(xp_slot *s, uint64_t point);
bool xp_abandon(xp_slot *s, uint64_t point); /* mark a future point as lost, for a device; false if that is impossible now */
void xp_note_released(xp_slot *s, uint64_t point); /* with xp_mu */
xp_slot *xp_attach(xp_domain *d, uint32_t index, int role, xp_error *error); /* NULL: `error` */
void xp_slot_drop(xp_slot *s); /* before xp_detach, if nobody has closed it */
void xp_slot_end(xp_slot *s); /* of an attachment that nothing uses any more: see xp_detach */
const char *xp_slot_wrong(const xp_slot *s); /* why it may not be used, or NULL */
const char *xp_signal(xp_slot *s, uint64_t *point); /* from the host; returns NULL, or the error */
void xp_fail(xp_slot *s, uint32_t cause); /* mark the points that this process owes as lost, if there are any */
/* Wait by spinning, for at most `full` ns. Returns a state, as xp_sleep does. */
int xp_spin(xp_slot *s, uint64_t point, uint64_t start, uint64_t end, uint64_t full);
/* Sleep at most once. Returns the state if it is no longer pending; otherwise *rc is 0 or the futex's errno. Call it
 * again until `end`. */
int xp_sleep(xp_slot *s, uint64_t point, uint64_t start, uint64_t end, int *rc);
bool xp_take_released(xp_slot *s, uint64_t point); /* whether a guard has seen the loss of that point; true only once */
/* Returns NULL, or the error. `after`: the point to wait for first, or 0. `host`: no device may complete the point
 * by a plain store. Does not block. */
const char *xp_submit(xp_slot *s, uint64_t queue, bool device, uint64_t *point, uint64_t *after, bool *host);
void xp_slot_ref(xp_slot *s);
void xp_slot_unref(xp_slot *s);

/* --- nodes.c ------------------------------------------------------------------------------------------------------ */
/* The functions of a queue that the warden calls with xp_mu. A queue begins with a pointer to these. */
typedef struct {
    void (*ref)(xp_queue *queue), (*unref)(xp_queue *queue);
    void (*waits)(xp_queue *queue, int more); /* waits that are guarded */
    void (*sure)(xp_queue *queue);            /* a wait for a point that might never have come has ended */
    /* Lose what was signalled behind the wait at `at`, for that cause (not 0). It is called again until all is done. */
    int (*lose)(xp_queue *queue, uint64_t at, uint32_t cause, uint64_t pid, bool first);
    void (*resume)(xp_queue *queue); /* the wait that the queue holds has ended; takes over the reference */
} xp_queue_ops;
enum { XP_ALL_LOST, XP_STORES_TO_COME /* of lost points */, XP_PUT_OFF /* a point submitted before the wait is outstanding */ };

/* 0, 1 if already done or lost, -1 without memory, else errno + 1 */
int xp_node_add(xp_slot *s, uint64_t point, uint64_t token, int kind, xp_queue *queue);
/* Call this before a device waits for `point`, so that a loss releases the device. Returns as xp_node_add does, or: */
#define XP_TOO_FAR (-2)
int xp_guard(xp_slot *s, uint64_t point, xp_queue *queue, uint64_t at, bool unsure);
void xp_guards_look(void); /* end uncertain guards whose points are done, which the warden would otherwise do later */
void xp_mend(xp_slot *s, xp_queue *queue); /* with xp_mu: late stores of that queue may come */
bool xp_mending(xp_slot *s, const xp_queue *queue, bool end);
void xp_node_cancel(xp_slot *s, uint64_t token);
void xp_nodes_drop(xp_domain *d, xp_slot *s); /* with xp_mu: drop the nodes of a slot, or all of d's; tokens become due */
void xp_detach(xp_slot *s);
bool xp_nodes_wait(const xp_domain *d); /* with xp_mu: whether that domain has some */
/* For the warden. Returns what the nodes need next: 2 for tokens or held waits that a device completes, or for
 * losses; 1 for guards alone; 0 for nothing. */
int xp_nodes_look(void);
void xp_nodes_forked(void); /* with xp_mu */
int xp_notification_fd(void); /* made at the first call; -1 and errno on failure */
xp_node *xp_due(void);        /* returns a list that the caller frees; clears the notification */

/* --- kept.c ------------------------------------------------------------------------------------------------------- */
extern uint64_t xp_kept_ns; /* how long; tests shorten it */
extern unsigned xp_forks_begun; /* of this process and its ancestors; read with XP_RELAXED */
/* Cache freed memory for the next allocation of that size. `forks`: xp_forks_begun at its allocation. `owned`: it is
 * reserved for its owner, who names it by the returned number. Returns 0 if the caller has to free it. */
uint64_t xp_keep(char *base, uint64_t nbytes, int fd, unsigned forks, bool owned);
bool xp_take_kept(uint64_t nbytes, char **base, int *fd); /* zeroed; false if there is none; blocks */
bool xp_take_owned(uint64_t number, char **base, uint64_t *nbytes, int *fd); /* as cached; false if it was given back; blocks */
uint64_t xp_trim(void); /* give all of it back, and return how many bytes; blocks */
uint64_t xp_trim_old(uint64_t now); /* give back what is too much, and return when to call again; blocks */
uint64_t xp_kept_nbytes(void);
void xp_kept_fork_prepare(void);
void xp_kept_fork_parent(void);
void xp_kept_forked(void);

/* --- serve.c ------------------------------------------------------------------------------------------------------ */
/* Makes one fd of an entry on demand. Returns 0 for success. */
typedef int (*xp_make_fd)(int *fd, uint64_t object, int64_t a, uint64_t b);
typedef struct xp_offer {
    struct xp_offer *next;
    uint32_t entry, count;
    uint64_t generation;
    xp_make_fd make;
    int64_t a;
    uint64_t b;
    uint64_t objects[];
} xp_offer;

/* A process serves one table at a time. `file`: NULL, or a path to listen on as well if possible. */
bool xp_serve(xp_table *table, int table_fd, xp_domain *d, const char *file, xp_error *error);
void xp_withdraw(xp_entry *e, uint32_t reason);
void xp_make_offer(xp_offer *o); /* takes over `o`, which malloc made */
bool xp_answer(int fd, const void *packet, size_t size); /* false if the connection is of no more use */
void xp_serving_end(const xp_domain *d); /* only if it belongs to `d`; NULL for any */
/* For the warden. */
void xp_on_listen(uint32_t i, uint64_t now);
void xp_on_connection(uint64_t serial, uint32_t i);
uint64_t xp_connections_check(uint64_t now); /* close those whose deadline has passed, and return the earliest of the other deadlines */
void xp_serving_stop(void);
void xp_serving_forked(void); /* with xp_mu */

/* --- domain.c ----------------------------------------------------------------------------------------------------- */
/* Become a member. Takes over both fds, unless it returns NULL. Blocks. */
xp_domain *xp_join(int fd, int bell, const uint8_t *cookie, bool owner, xp_error *error);
void xp_leave(xp_domain *d); /* a clean exit; a forked child has only the mapping to release; blocks */
bool xp_leave_if_idle(xp_domain *d); /* only if it holds nothing and is attached to nothing; blocks */
long xp_reap_all(xp_domain *d);
bool xp_hold(xp_domain *d, uint32_t entry); /* false if there is no memory, or this process has left */
void xp_drop(xp_domain *d, uint32_t entry);
bool xp_may_hold(const xp_domain *d, uint32_t entry); /* false if nobody holds it; takes no lock for that answer */
uint32_t xp_holders(xp_domain *d, uint32_t entry, uint32_t *found); /* the other living holders, at most XP_MEMBERS */
/* A user still has mapped what it opened: device work from before its close may be under way. Returns false as
 * xp_hold does. */
bool xp_use(xp_domain *d, uint32_t entry);
void xp_unuse(xp_domain *d, uint32_t entry);
/* Whether any other process may have what was exported there open or mapped. A dead process counts until it is
 * reaped. Blocks. */
bool xp_reached(xp_domain *d, uint32_t entry);
bool xp_may_reach(const xp_domain *d, uint32_t entry); /* false if nobody does; takes no lock for that answer */
bool xp_may_use(const xp_domain *d, uint32_t entry);   /* likewise */
void xp_set_opens(xp_domain *d, uint32_t entry, int32_t count);
bool xp_take_open(xp_domain *d, uint32_t entry);
void xp_give_open(xp_domain *d, uint32_t entry);
void xp_renew(xp_domain *d, uint32_t entry, uint64_t until); /* count another pickle, valid until then */
uint64_t xp_renewed(xp_domain *d, uint32_t entry);
int32_t xp_opens_left(xp_domain *d, uint32_t entry);
uint32_t xp_new_slot(xp_domain *d); /* for the owner; XP_SLOTS if none is left */
bool xp_release_slot(xp_domain *d, uint32_t index); /* false: not in use */

/* --- peer.c: another process, of which nothing is trusted --------------------------------------------------------- */
int xp_pidfd_getfd(int pidfd, int fd); /* an fd, or -1 and errno */
int xp_close_received(int fd);         /* an fd that a peer gave us; as close() */
int xp_lock_for_life(int fd, int64_t at); /* as xp_lock, as long as `fd` is open, whatever else xp_close_received closes */
int xp_unlock_for_life(int fd, int64_t at);
void xp_close_locked(int fd);                  /* `fd` and its locks; as close() */
void xp_life_locks_fork_prepare(void);
void xp_life_locks_fork_parent(void);
void xp_life_locks_forked(void); /* a child has none of its parent's locks */

/* --- warden.c ----------------------------------------------------------------------------------------------------- */
void xp_engine_init(void); /* call it first; calling it again does nothing */

#endif
