/* Domains, slots and the warden.
 *
 * Mutexes, outermost first: xp_life_mu (start and stop of the warden), send_mu (serve.c), xp_mu (domain list, nodes,
 * due tokens), a queue's `mu`, domain->mu (its fd, watches, reaping), a slot's `mu`, warden_mu (warden.c: epoll),
 * relay_mu (relay.c). Outermost of all is a queue's `order`, see queue.c. Where a function says that it blocks, Python
 * calls it without the GIL, and nobody takes the GIL while holding one of these mutexes. */
#ifndef XP_EVENTS_H
#define XP_EVENTS_H

#include "xp.h"

#include <sys/types.h>
#include <sys/un.h>

#define XP_NO_MEMBER UINT32_MAX
#define XP_LEFT 1
#define XP_ROBBED 2 /* somebody in this process closed fds that are not theirs: the numbers may be anybody's by now */
#define XP_LEAVING 4
#define XP_TRIES (1 << 20) /* of a compare-and-swap that a hostile peer may disturb for ever */

typedef struct { /* whether a member lives, as it was found last, and of whom that is */
    uint64_t until, since;
    int life;
} xp_verdict;

typedef struct { /* how far the sweep of a dead member has come, and of whom that is; 0: none has begun */
    uint64_t since;
    uint32_t next;
    bool put_off;
} xp_sweep;

/* Counts of this process, one for each entry or slot up to the last one that needed its own. */
typedef struct {
    uint32_t *at, length;
} xp_counts;

typedef struct xp_domain {
    unsigned refs, born; /* born: fork count at its making */
    int left;            /* no member any more (or not yet): XP_LEFT, XP_ROBBED, XP_LEAVING */
    bool owner;
    uint32_t member;
    uint64_t serial; /* never used twice: what epoll events name */
    char *base;
    dev_t dev;
    ino_t ino;
    uint8_t cookie[XP_COOKIE];
    struct xp_domain *next; /* xp_mu */
    int rescan;             /* the warden shall look at this domain's nodes */

    pthread_mutex_t mu;
    int fd;   /* xp_leave closes it, under mu; closing any other fd of this file would drop the lock */
    int last_fd; /* that of a process that has left, but still owes; 0: none */
    int bell; /* open until the last reference is dropped, so that signallers need no mutex */
    bool bell_watched;
    uint64_t watched[XP_MASK_WORDS]; /* their pidfds are in the warden's epoll; read without mu */
    uint64_t polled[XP_MASK_WORDS];  /* they cannot be watched: their locks are polled while nodes exist */
    uint64_t retry[XP_MASK_WORDS];   /* dead, but not reaped yet */
    int pidfds[XP_MEMBERS], pids[XP_MEMBERS]; /* of whom is watched */
    uint64_t dying_since[XP_MEMBERS];
    xp_verdict verdicts[XP_MEMBERS];
    xp_sweep sweeps[XP_MEMBERS];
    uint64_t sweep_at; /* when the sweeps so far will be paid for with rest; mu */
    uint32_t attached_below; /* this process was never attached to a slot at or above it; mu */
    /* owner only: slots */
    uint32_t next_slot, released_at, released_count; /* a ring of released indices */
    uint32_t *released;
    uint64_t *slots_live; /* bits */
    xp_counts holds, attaches; /* counted in this process, per entry and per slot; mu */
    uint64_t uses;             /* their sum; mu */
    xp_counts able;            /* of the attachments, those that may signal; mu */
} xp_domain;

enum { XP_ONLY_WAITS, XP_MAY_SIGNAL, XP_WILL_SIGNAL }; /* what an attachment is for */

typedef struct xp_slot {
    unsigned refs;
    int gone; /* detached */
    uint32_t index;
    int role;
    xp_domain *d;
    xp_words *w;
    xp_roles *roles;
    int64_t credit; /* ns that spins may burn; see xp_spin */
    unsigned sleeps, backoff; /* without credit: waits since the last spin, and the log2 of how many lie between two */
    pthread_mutex_t mu;
    uint64_t last_point, last_queue; /* of this process's submits; mu */
    uint64_t last_host;              /* the newest of them that a host function completes; mu */
    uint64_t handed; /* the newest of them that is certain: a driver has its store, and nothing holds that up for ever */
    uint64_t address; /* of a timeline of a queue's own: where devices see its word */
    uint64_t *released; /* points whose guard has seen the loss, until somebody asks; xp_mu */
    uint32_t released_count, released_room;
    uint32_t guards;            /* how many nodes guard waits on it; xp_mu */
    uint64_t lost_at, lost_hi;  /* a loss that devices here are still to be let go for: since when, up to which point */
    bool held, reached; /* a queue here still has to lose what is queued behind the wait; one may have come to the wait */
} xp_slot;

typedef struct xp_queue xp_queue;

enum { XP_TOKEN, XP_GUARD, XP_MEND, XP_HOLD, XP_HOLD_RECORDED /* a loss counts once it is recorded */ };
#define XP_UNSURE 16 /* with XP_GUARD: the point may never come */

/* One thing that the warden looks after: a token to report, a device's wait to guard, late stores of a device to mend,
 * or a wait for which a queue holds work. */
typedef struct xp_node {
    struct xp_node *next;
    xp_slot *slot;
    uint64_t point, token; /* of a guard: the place of the wait in its queue; of a mend: since when */
    int kind;
    bool lost, served; /* a guard: its point was seen lost; its queue has lost what is queued behind */
    bool met;          /* its queue knows that it has met a loss */
    bool unsure;       /* a guard: its point may never come */
    xp_queue *queue;   /* or NULL */
} xp_node;

extern pthread_mutex_t xp_life_mu, xp_mu;
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

static inline bool xp_bit(const uint64_t *mask, uint32_t m) { return XP_LOAD(&mask[m / 64]) >> (m % 64) & 1; }
static inline void xp_set(uint64_t *mask, uint32_t m)
{
    __atomic_fetch_or(&mask[m / 64], 1ull << m % 64, __ATOMIC_SEQ_CST);
}
static inline void xp_clear(uint64_t *mask, uint32_t m)
{
    __atomic_fetch_and(&mask[m / 64], ~(1ull << m % 64), __ATOMIC_SEQ_CST);
}
#define XP_EACH_BIT(word, bits) for (uint64_t bits = (word); bits; bits &= bits - 1)

/* May objects of this domain touch shared memory? */
static inline bool xp_usable(const xp_domain *d)
{
    return XP_LIKELY(!XP_RELAXED(&d->left) && d->born == XP_RELAXED(&xp_fork_count));
}

/* --- domain.c ----------------------------------------------------------------------------------------------------- */
/* Become a member. Takes over both fds; where it returns NULL, they stay the caller's. Blocks. */
xp_domain *xp_join(int fd, int bell, const uint8_t *cookie, bool owner, xp_error *error);
/* What an importer has of an exporter, and owns. */
typedef struct {
    int pidfd, table_fd;
    char *table; /* XP_TABLE_SIZE bytes, mapped */
    xp_domain *domain;
} xp_met;
/* Meet the exporter of a handle by pidfd_getfd: map its table, join its commons. False: something is in the way, or is
 * not as it has to be; nothing is left behind. Why, tells who takes these steps one by one. Blocks. */
bool xp_meet(const xp_handle *h, xp_met *met);
void xp_leave(xp_domain *d); /* the clean exit; a forked child has only the mapping left to give up. Blocks */
const char *xp_domain_wrong(const xp_domain *d); /* why it may not touch shared memory, NULL if it may */
bool xp_look(xp_domain *d, uint32_t m, int *pid, uint64_t *since, bool *alive); /* false: nobody has the index */
long xp_reap_all(xp_domain *d);
bool xp_leave_if_idle(xp_domain *d); /* only if it holds nothing and is attached to nothing. Blocks */
bool xp_hold(xp_domain *d, uint32_t entry); /* false: no memory, or this process has left */
void xp_drop(xp_domain *d, uint32_t entry);
bool xp_may_hold(const xp_domain *d, uint32_t entry); /* false: nobody holds it, for which no lock is taken */
uint32_t xp_holders(xp_domain *d, uint32_t entry, uint32_t *found); /* the other living holders, at most XP_MEMBERS */
void xp_set_opens(xp_domain *d, uint32_t entry, int32_t count);
bool xp_take_open(xp_domain *d, uint32_t entry);
void xp_give_open(xp_domain *d, uint32_t entry);
void xp_renew(xp_domain *d, uint32_t entry, uint64_t until); /* one pickle more, good until then */
uint64_t xp_renewed(xp_domain *d, uint32_t entry);
int32_t xp_opens_left(xp_domain *d, uint32_t entry);
uint32_t xp_new_slot(xp_domain *d); /* for the owner; XP_SLOTS: none is left */
bool xp_release_slot(xp_domain *d, uint32_t index); /* false: not in use */
/* The domain's fd is open still. If not, every domain of this process is robbed, and `xp_on_robbed` is called, once. Takes
 * xp_mu. */
bool xp_stands(xp_domain *d);
void xp_rob(void); /* takes xp_mu */
extern void (*xp_on_robbed)(void); /* NULL, or what tells people; called without locks, from any thread */
void xp_domain_ref(xp_domain *d);
void xp_domain_unref(xp_domain *d);
bool xp_count_in(xp_domain *d, xp_counts *counts, uint32_t i, uint64_t *mask); /* takes d->mu */
bool xp_counts_reach(xp_counts *counts, uint32_t i); /* there is one for `i`; false: there is no memory for it */
void xp_count_out(xp_domain *d, xp_counts *counts, uint32_t i, uint64_t *mask);
bool xp_alive(xp_domain *d, uint32_t m);         /* with d->mu */
uint32_t xp_slots_used(const xp_domain *d); /* no slot at or above it was ever used */
/* Is anybody in the mask dead whom we could not reap? Another reaper may be stopped, or never mean to. With d->mu. */
bool xp_unreaped(xp_domain *d, const uint64_t *mask);
/* Where the sweep of a member stands; whether it has come further than `before`, and may go on now. With d->mu. */
uint32_t xp_swept(const xp_domain *d, uint32_t m);
bool xp_sweeping(const xp_domain *d, uint32_t m, uint32_t before);
int xp_reap(xp_domain *d, uint32_t m, bool sure); /* with d->mu: 1 reaped, 0 nothing to do, -1 to be tried again */

/* --- slot.c ------------------------------------------------------------------------------------------------------- */
enum { XP_PENDING = 0, XP_DONE = 1, XP_LOST = 2 };

typedef struct {
    uint64_t pending, top, value, hi, lo, effective, lost;
} xp_view;

void xp_read(const xp_words *w, xp_view *v);
int xp_state(const xp_view *v, uint64_t point);
/* Futures that nobody is left to signal too, and with `deaths` points that a dead one owes; may take d->mu. */
int xp_full_state(xp_slot *s, uint64_t point, bool deaths);
/* The lowest outstanding point that `m` owes, 0 if none, UINT64_MAX if it cannot be told now; fills `v`. */
uint64_t xp_lowest_owed(const xp_words *w, xp_view *v, uint32_t m);
bool xp_owes(const xp_words *w, const xp_view *v, uint32_t m);
void xp_owing(const xp_words *w, uint64_t *mask); /* adds everybody who owes */
void xp_lose(xp_domain *d, xp_words *w, uint32_t cause, uint64_t pid);
/* The same where a device may still store the points. With `from` only from that point on; false if earlier ones are
 * outstanding. */
bool xp_lose_late(xp_slot *s, uint64_t from, uint32_t cause, uint64_t pid);
/* The same where no device has a store of them. */
bool xp_lose_from(xp_slot *s, uint64_t from, uint32_t cause, uint64_t pid);
void xp_complete(xp_slot *s, uint64_t point);
void xp_release(xp_words *w, uint64_t point); /* release the devices that wait for points up to that lost one */
bool xp_abandon(xp_slot *s, uint64_t point); /* lose a future point, for a device; false: not now */
void xp_wake_all(xp_words *w); /* also sleepers whose waker died half-way */
void xp_ring(xp_domain *d);
void xp_finish(xp_words *w); /* raise the value to what is complete, or lost without guards: a peer may have died half-way */
void xp_note_released(xp_slot *s, uint64_t point); /* with xp_mu */
void xp_wake(xp_domain *d, xp_words *w); /* whoever waits here */
xp_slot *xp_attach(xp_domain *d, uint32_t index, int role, xp_error *error); /* NULL: `error` */
void xp_detach(xp_slot *s);
const char *xp_slot_wrong(const xp_slot *s); /* why it may not be used, NULL if it may */
const char *xp_signal(xp_slot *s, uint64_t *point); /* from the host; NULL, or what is wrong */
void xp_fail(xp_slot *s, uint32_t cause); /* lose what this process owes, if anything */
/* Wait by spinning, for `full` ns at most. Returns a state, as xp_sleep does. */
int xp_spin(xp_slot *s, uint64_t point, uint64_t start, uint64_t end, uint64_t full);
/* One sleep at most: the state if it is no longer pending; else *rc is 0 or the futex's errno. Call it again until
 * `end`. */
int xp_sleep(xp_slot *s, uint64_t point, uint64_t start, uint64_t end, int *rc);
bool xp_take_released(xp_slot *s, uint64_t point); /* has a guard seen the loss of that point? true once */
/* NULL, or what is wrong. `after`: the point to wait for first, or 0; `host`: no device may complete the point by a
 * plain store. Does not block. */
const char *xp_submit(xp_slot *s, uint64_t queue, bool device, uint64_t *point, uint64_t *after, bool *host);
/* Call it before a device waits for `point`, so that a loss releases the device. Returns 0; 1: done or lost, so there
 * is nothing to wait for; -1: no memory; XP_TOO_FAR; else errno + 1. */
#define XP_TOO_FAR (-2)
int xp_guard(xp_slot *s, uint64_t point, xp_queue *queue, uint64_t at, bool unsure);
void xp_slot_ref(xp_slot *s);
void xp_slot_unref(xp_slot *s);

/* --- roster.c ----------------------------------------------------------------------------------------------------- */
bool xp_future_lost(xp_slot *s, const xp_view *v); /* a point above `v->top`, to this process; takes d->mu */
void xp_roster_watch(const xp_slot *s, uint64_t *mask); /* adds those whose going could lose future points */
bool xp_roster_attach(xp_slot *s); /* after `attached` says so; false: no memory. Takes d->mu, as do the next two */
/* Before this process signals: it is a signaller from now on. True: it was none, and its waits for the very point to come
 * would find no other signaller, so nobody here may look before `xp_roster_signalled`. */
bool xp_roster_signals(xp_slot *s);
void xp_roster_signalled(xp_slot *s);
void xp_roster_detach(xp_slot *s);  /* before `attached` is cleared */
/* With d->mu: `m` goes from that slot; `owed`: it has just lost what it owed. */
void xp_roster_lose(xp_words *w); /* a dead process owed here; others keep us from reaping it */
void xp_roster_leave(xp_domain *d, uint32_t index, uint32_t m, uint32_t cause, bool owed);

/* --- warden.c ----------------------------------------------------------------------------------------------------- */
enum { XP_WATCHED, XP_RETRY, XP_POLLED };

void xp_engine_init(void);                        /* call it first; calling it again does nothing */
int xp_warden_start(void);                        /* 0 or errno */
void xp_warden_stop(void);
bool xp_warden_running(void);
int xp_watch(xp_domain *d, uint32_t m);           /* with d->mu: one of the above; XP_WATCHED also for a dead member */
void xp_unwatch(xp_domain *d, uint32_t m);        /* with d->mu */
void xp_unwatch_bell(xp_domain *d);               /* with d->mu */
int xp_watch_relied(xp_slot *s);                /* and those who owe; takes d->mu; the worst of xp_watch */
/* 0, 1 already done or lost, -1 no memory, else errno + 1 */
int xp_node_add(xp_slot *s, uint64_t point, uint64_t token, int kind, xp_queue *queue);
void xp_guards_look(void); /* end unsure guards whose points are done; else the warden does in its own time */
void xp_mend(xp_slot *s, xp_queue *queue); /* with xp_mu: late stores of that queue may come */
bool xp_mending(xp_slot *s, const xp_queue *queue, bool end);
void xp_node_cancel(xp_slot *s, uint64_t token);
void xp_nodes_drop(xp_domain *d, xp_slot *s); /* with xp_mu: the nodes of a slot, or all of d's; tokens become due */

int xp_notification_fd(void); /* made at the first call; -1 and errno */
xp_node *xp_due(void);        /* a list for the caller to free; clears the notification */
/* Listen at that name, and if that can be at `file`, when it is not NULL: 0 or errno and who says so. */
int xp_warden_listen(const struct sockaddr_un *name, size_t size, const char *file, const char **call);
void xp_warden_deaf(void); /* listen no more */

void xp_warden_kick(void); /* it shall look at once when to wake next */

/* --- kept.c ------------------------------------------------------------------------------------------------------- */
extern uint64_t xp_kept_ns; /* for how long; tests make it short */
extern unsigned xp_forks_begun; /* of this process and those before it; read with XP_RELAXED */
/* Keep freed memory for the next allocation of that size; `forks`: xp_forks_begun at its allocation. False: the caller
 * has to free it. */
bool xp_keep(char *base, uint64_t nbytes, int fd, unsigned forks);
bool xp_take_kept(uint64_t nbytes, char **base, int *fd); /* zeroed; false: there is none. Blocks */
uint64_t xp_trim(void); /* give all of it back: how many bytes. Blocks */
uint64_t xp_trim_old(uint64_t now); /* and what is too much; returns when to call it again. Blocks */
uint64_t xp_kept_nbytes(void);
void xp_kept_fork_prepare(void);
void xp_kept_fork_parent(void);
void xp_kept_forked(void);

/* --- serve.c ------------------------------------------------------------------------------------------------------ */
/* Makes one fd of an entry on demand; 0 is success. */
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

/* One table per process at a time. `file`: NULL, or where to listen, too, if that can be. */
bool xp_serve(xp_table *table, int table_fd, xp_domain *d, const char *file, xp_error *error);
void xp_withdraw(xp_entry *e, uint32_t reason);
void xp_make_offer(xp_offer *o); /* takes over `o`, which malloc made */
bool xp_answer(int fd, const void *packet, size_t size); /* false: the connection is of no more use */
void xp_refuse(int fd);
void xp_serving_end(const xp_domain *d); /* if it is of `d`; NULL: in any case */
void xp_serving_forked(void);

#endif
