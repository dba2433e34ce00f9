/* The processes that share a channel, or locks and atomics: docs/channels-protocol.md.
 *
 * A group is memory that its members, which are processes, map. Nobody owns it. Each member holds a lock byte of the
 * memory's file while it lives. The objects in a group are its places: a channel's group has one, and a home, in which
 * a process makes its locks and atomics, has many. No value in the memory is trusted. */
#ifndef XP_GROUP_H
#define XP_GROUP_H

#include "bell.h"
#include "membership.h"

#define XP_GROUP_MEMBERS 1024u /* the most processes */
#define XP_GROUP_MASK XP_MASK_MOST
#define XP_GROUP_MAGIC "XPUSHGRP"
#define XP_GROUP_VERSION 2u
#define XP_GROUP_NOBODY UINT32_MAX
#define XP_GROUP_HANDLES 2u /* a member's handles of the group's memory, and of a channel's slots */
#define XP_HOME_PLACES 65536u
#define XP_PLACE_WORDS 64u /* bytes of the words of a lock or an atomic */
#define XP_NAME_RECORDS 64u /* where the members' handles begin in the file under a name */

enum { XP_HOME = 1, XP_CHANNEL_GROUP };            /* a group's kind */
enum { XP_PLACE_LOCK = 1, XP_PLACE_ATOMIC, XP_PLACE_CHANNEL }; /* a place's kind */

typedef struct {
    xp_member_record who; /* state: 1 a member */
    uint64_t reserved;
    uint8_t handles[XP_GROUP_HANDLES][sizeof(xp_handle)]; /* by which others open them from this process; zeros: none */
} xp_group_member;

typedef struct {
    char magic[8]; /* XPUSHGRP; written last */
    uint32_t version, kind;
    uint64_t nbytes;
    uint32_t members, places; /* how many records there are */
    uint32_t places_used;     /* no place at or above it was ever used */
    uint32_t listeners;       /* of a home: 1 if a task may wait for one of its locks by the file's time */
    uint8_t reserved[24];
} xp_group_head;

typedef struct {
    uint64_t generation; /* odd: the object stands. Grows when it begins and when it ends */
    uint32_t kind, reserved;
    uint64_t attached[XP_GROUP_MASK]; /* the members that have it open; bits of the dead do not count */
} xp_place;

typedef struct { /* the beginning of the file under a name, which leads to a place */
    uint32_t version, pid; /* pid: who has the lock of the file, for people to read */
    uint32_t place, kind;
    uint64_t generation;
    uint8_t id[16]; /* random: inodes are used again */
    uint8_t reserved[24];
} xp_name_file;

_Static_assert(sizeof(xp_group_head) == 64 && sizeof(xp_group_member) == 544 && sizeof(xp_place) == 144, "group");
_Static_assert(sizeof(xp_name_file) == XP_NAME_RECORDS, "the records follow");

typedef struct { /* of a place, in this process */
    uint32_t objects;
    uint64_t thread; /* that holds the lock, for the error of acquiring it twice */
} xp_own_place;

/* This process's membership in a group. */
typedef struct xp_group {
    unsigned refs, born;
    int gone; /* not a member any more: it has left, or its fd was closed by somebody else */
    union {
        xp_membership ms; /* its `fd` is that of the memory, whose owner closes it; `count`: how many processes may be members */
        XP_MEMBERSHIP;
    };
    uint32_t kind, places;
    bool maker;
    uint32_t next_place; /* of a home's maker: where it looks next for a place that has ended */
    dev_t dev;
    ino_t ino;
    struct xp_group *next; /* xp_mu */
    char *base, *words;
    uint64_t nbytes;
    xp_bell *bells[2];   /* of a channel: rung when a member dies */
    uint32_t *listeners; /* a word that is 1 if somebody also waits for a change of the file's time */

    xp_own_place *own;
    xp_other others[];
} xp_group;

/* The size of a group whose words have that size, or 0 if there is no such group. */
uint64_t xp_group_nbytes(uint32_t members, uint32_t places, uint64_t words);
/* MAKE: become the first member of fresh memory, which nobody has used before. LOOK: only read; the result is no member.
 * `members` and `places` are given to MAKE. NULL: `error`, with ENOSPC if there is no room for another process, and EEXIST if
 * this process is a member already. Blocks. */
enum { XP_GROUP_MAKE, XP_GROUP_JOIN, XP_GROUP_LOOK };
xp_group *xp_group_open(int fd, char *base, uint64_t nbytes, uint32_t kind, int how, uint32_t members, uint32_t places,
                        xp_error *error);
void xp_group_ref(xp_group *g);
void xp_group_unref(xp_group *g);
void xp_group_leave(xp_group *g);          /* idempotent */
const char *xp_group_wrong(xp_group *g);   /* why it may not be used, or NULL */
bool xp_group_stands(xp_group *g);         /* whether its fd is still ours; makes a system call */

static inline xp_group_head *xp_group_head_of(const xp_group *g) { return (xp_group_head *)g->base; }
static inline xp_group_member *xp_group_member_at(const xp_group *g, uint32_t m)
{
    return (xp_group_member *)(g->base + sizeof(xp_group_head)) + m;
}
static inline xp_place *xp_place_at(const xp_group *g, uint32_t p)
{
    return (xp_place *)(g->base + sizeof(xp_group_head) + g->count * sizeof(xp_group_member)) + p;
}
static inline void *xp_place_words(const xp_group *g, uint32_t p) { return g->words + (size_t)p * XP_PLACE_WORDS; }
static inline bool xp_group_usable(const xp_group *g)
{
    return XP_LIKELY(!XP_RELAXED(&g->gone) && g->born == XP_RELAXED(&xp_fork_count));
}

/* --- places: these take g->mu ---
 * An object ends by the lock of its name's file, whose holder has looked whether anybody has it open. A process that opens
 * an object says so first (xp_place_attach), and waits until nobody holds that lock before it looks at the place
 * (xp_place_state), so at least one of the two sees the other. */
enum { XP_PLACE_OVER, XP_PLACE_ALONE, XP_PLACE_SHARED }; /* ALONE: no other living member has it open */
/* Begin an object. Returns its place, or XP_GROUP_NOBODY if the group has no room for another. This process is attached. */
uint32_t xp_place_begin(xp_group *g, uint32_t kind, uint64_t *generation);
void xp_place_attach(xp_group *g, uint32_t p);
int xp_place_state(xp_group *g, uint32_t p, uint64_t generation, uint32_t kind);
/* Called with the lock of the name's file. End the object, unless another living member has it open. This process is not
 * attached then. */
bool xp_place_end(xp_group *g, uint32_t p, uint64_t generation);
void xp_place_detach(xp_group *g, uint32_t p);
void xp_place_count(xp_group *g, uint32_t p, int more); /* the objects of this process there */

/* --- members: these take g->mu ---
 * Gone: nobody holds its life byte, so it no longer writes to host memory. Dead: its process has ended, so no device works
 * for it either. */
bool xp_group_is_gone(xp_group *g, uint32_t m);
bool xp_group_is_dead(xp_group *g, uint32_t m);
int xp_group_watch(xp_group *g, uint32_t m); /* have the member's death ring the bells: XP_WATCHED, XP_POLLED or XP_GONE */
int xp_group_pid(xp_group *g, uint32_t m);   /* its pid as seen from here, 0 if it cannot be seen, -1 if it is gone */

void xp_ring_all(xp_group *g);      /* wake all that sleep for a channel, and those that listen to a group's file */
void xp_group_tell(xp_group *g);    /* wake those that listen to the file, if there are any */
/* Sleep until the bell rings after `seq` was read, until `end`, or until it is time to check the polled members. Set
 * `sleepers` and check the state before. Returns 0 or the futex's errno. */
int xp_bell_sleep(xp_group *g, xp_bell *bell, uint32_t seq, uint64_t end, int watch);

/* For the warden. */
void xp_group_ready(uint64_t serial, uint32_t m);
void xp_groups_end(void);    /* with xp_mu: no loop watches any more */
void xp_groups_forked(void); /* with xp_mu */

#endif
