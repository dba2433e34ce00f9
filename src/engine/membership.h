/* A process's membership in memory that processes share (an exporter's commons, a group), and the life of the others.
 *
 * Each member holds a lock byte of the memory's file while it lives, and has a record in the memory, which anybody may have
 * written. The kernel names the holder of a lock. */
#ifndef XP_MEMBERSHIP_H
#define XP_MEMBERSHIP_H

#include "xp.h"

#include <sys/types.h>

#define XP_MASK_MOST 16u /* words of a mask of members: 1,024 of them */

typedef struct { /* how the record of a member begins */
    uint32_t state, pid; /* state: 0 nobody */
    uint64_t pid_namespace, since_ns; /* since_ns: tells it from others with the same index */
} xp_member_record;

typedef struct { /* of another member */
    int pidfd, pid;              /* if it is watched */
    uint64_t dying_since;        /* when its lock was first found released, while its process lived; or 0 */
    uint64_t until, since;       /* how long the last result is used for a member that does not live, and which member it was */
    int life;
} xp_other;

/* Only `watched` is read without `mu`. */
#define XP_MEMBERSHIP                                                                                                     \
    struct {                                                                                                             \
        pthread_mutex_t mu;                                                                                              \
        int fd;          /* of the file. Closing any other fd of it would release the lock */                            \
        uint32_t member; /* or one that nobody has */                                                                    \
        uint32_t count;  /* of records */                                                                                \
        int ready;       /* XP_READY_…: what the loop reports when a pidfd is readable */                                \
        uint64_t serial; /* never used twice; epoll events name the membership by it */                                  \
        char *records;                                                                                                   \
        size_t record_nbytes;                                                                                            \
        xp_other *seen;                                                                                                   \
        uint64_t watched[XP_MASK_MOST]; /* their pidfds are in the warden's epoll */                                     \
    }

typedef XP_MEMBERSHIP xp_membership;

enum { XP_LIVING, XP_DYING, XP_DEAD, XP_NOBODY }; /* a dying process counts as alive until all its fds are closed */
enum { XP_WATCHED, XP_RETRY, XP_POLLED, XP_GONE };

static inline xp_member_record *xp_member_record_of(const xp_membership *s, uint32_t m)
{
    return (xp_member_record *)(s->records + (size_t)m * s->record_nbytes);
}

/* Called with s->mu. */
int xp_life(xp_membership *s, uint32_t m, int *pid); /* pid: as seen from here, 0 if it cannot be seen */
bool xp_alive(xp_membership *s, uint32_t m);
/* Have the loop report when the member's process ends: XP_WATCHED. XP_POLLED: it cannot be watched; XP_GONE: its lock is
 * free. */
int xp_watch_member(xp_membership *s, uint32_t m);
void xp_unwatch(xp_membership *s, uint32_t m);
void xp_unwatch_all(xp_membership *s);
bool xp_watched_ends(xp_membership *s, uint32_t m); /* it is watched, and its process has ended */
void xp_membership_forked(xp_membership *s);        /* in a child */

#endif
