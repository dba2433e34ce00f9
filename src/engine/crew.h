/* The processes that share one lock, atomic or channel: docs/channels-protocol.md.
 *
 * A crew has a file in the runtime folder, in which each member holds a lock byte while it lives, and control words
 * in memory that all of them map. A process has one crew for each file, and one member for each of its objects. No
 * value in the words is trusted. */
#ifndef XP_CREW_H
#define XP_CREW_H

#include "xp.h"

#define XP_CREW_MEMBERS 128u
#define XP_CREW_MASK (XP_CREW_MEMBERS / 64u)
#define XP_CREW_LIFE 0x40000000 /* lock bytes of the file: one for each member, */
#define XP_CREW_JOIN 0x50000000 /* and one that processes share while they join, and that one has while it makes the crew
                                 * or removes the file */
#define XP_CREW_MAGIC "XPUSHCRW"
#define XP_CREW_VERSION 1u
#define XP_CREW_WORDS 0x4000u /* where the words of the lock, the atomic or the channel begin */
#define XP_CREW_LABEL 64u
#define XP_CREW_RECORDS 4096u /* where the members' records begin in the file */
#define XP_NOBODY_OF_CREW UINT32_MAX

typedef struct {
    uint32_t state, pid; /* state: 0 free, 1 a member */
    uint64_t pid_namespace, since_ns;
    char label[XP_CREW_LABEL]; /* for people to read, as are the following */
    uint64_t reserved;
} xp_crew_member;

typedef struct {
    char magic[8]; /* XPUSHCRW; written last */
    uint32_t version, kind;
    uint64_t nbytes;
    uint8_t reserved[40];
    xp_crew_member members[XP_CREW_MEMBERS];
} xp_crew_head;

_Static_assert(sizeof(xp_crew_member) == 96 && sizeof(xp_crew_head) <= XP_CREW_WORDS, "the members fit");

typedef struct { /* the beginning of the file */
    uint8_t changed[8]; /* a write to the first byte notifies listeners */
    uint32_t version;
} xp_crew_file;

/* A crew's members sleep on this word. A member that changes the words wakes them. */
typedef struct {
    uint32_t seq, sleepers; /* sleepers: 1 if somebody may sleep on `seq` */
} xp_bell;

typedef struct xp_crew {
    unsigned refs, born;
    int gone; /* not a member any more: it was closed, or its fd was closed by somebody else */
    int fd;
    uint64_t serial, inode, device;
    struct xp_crew *next; /* xp_mu */
    char *base;
    uint64_t nbytes;
    xp_bell *bells[2]; /* rung when a member dies; the second may be NULL */
    uint32_t *listeners; /* NULL, or a word that is 1 if somebody also waits for a change of the file */
    uint64_t holder;     /* the thread of this process that holds the lock, for the error of acquiring it twice */

    pthread_mutex_t mu;
    uint64_t mine[XP_CREW_MASK]; /* members of this process */
    int pidfds[XP_CREW_MEMBERS], pids[XP_CREW_MEMBERS];
    uint64_t dying_since[XP_CREW_MEMBERS];
} xp_crew;

enum { XP_CREW_WATCHED, XP_CREW_POLLED, XP_CREW_GONE };

/* Takes over `fd`, unless it returns NULL. `fresh`: nobody has used these words before. */
xp_crew *xp_crew_open(int fd, char *base, uint64_t nbytes, uint32_t kind, bool fresh, xp_error *error);
void xp_crew_ref(xp_crew *c);
void xp_crew_unref(xp_crew *c);
void xp_crew_close(xp_crew *c); /* its remaining members die */
const char *xp_crew_wrong(xp_crew *c); /* why it may not be used, or NULL */
bool xp_crew_stands(xp_crew *c);       /* whether its fd is still ours; makes a system call */

static inline xp_crew_head *xp_crew_head_of(const xp_crew *c) { return (xp_crew_head *)c->base; }
static inline void *xp_crew_words(const xp_crew *c) { return c->base + XP_CREW_WORDS; }
static inline bool xp_crew_usable(const xp_crew *c)
{
    return XP_LIKELY(!XP_RELAXED(&c->gone) && c->born == XP_RELAXED(&xp_fork_count));
}

/* Become another member. The caller has at least a share of the join byte of the file, as other processes that join
 * may have, and no other thread of this process joins.
 * `sweep` removes from the words what the last member with the index left. Returns 0 or errno (ENOSPC: all indices
 * are taken). */
typedef void (*xp_crew_sweep)(xp_crew *c, uint32_t m);
int xp_crew_claim(xp_crew *c, const char *label, xp_crew_sweep sweep, uint32_t *m);
int xp_crew_move(xp_crew *c, int fd); /* `fd`, which it takes, is the crew's file from now on; no other process is in the crew */
void xp_crew_leave(xp_crew *c, uint32_t m); /* call it once the words no longer contain `m` */

/* These take c->mu. Gone: nobody holds its life byte, so it no longer writes to host memory. Dead: its process has
 * ended, so no device works for it either. */
bool xp_crew_is_gone(xp_crew *c, uint32_t m);
bool xp_crew_is_dead(xp_crew *c, uint32_t m);
int xp_crew_watch(xp_crew *c, uint32_t m); /* have the member's death ring the bells */
int xp_crew_pid(xp_crew *c, uint32_t m);   /* its pid as seen from here, 0 if it cannot be seen, -1 if it is gone */

void xp_ring(xp_bell *bell);     /* if anybody sleeps */
void xp_ring_all(xp_crew *c);    /* wake all sleepers, and processes that wait for a change of the file */
void xp_crew_tell(xp_crew *c);   /* wake processes that wait for a change of the file, if there are any */
/* Sleep until the bell rings after `seq` was read, until `end`, or until it is time to check the polled members. Set
 * `sleepers` and check the state before. Returns 0 or the futex's errno. */
int xp_bell_sleep(xp_crew *c, xp_bell *bell, uint32_t seq, uint64_t end, int watch);

/* For the warden. */
void xp_crew_ready(uint64_t serial, uint32_t m);
void xp_crews_end(void);    /* with xp_mu: no loop watches any more */
void xp_crews_forked(void); /* with xp_mu */

#endif
