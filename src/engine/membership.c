/* Which members live, and the watch for their deaths: the same for commons and groups. */
#include "membership.h"

#include "events.h"
#include "loop.h"

#include <sys/epoll.h>
#include <unistd.h>

/* The kernel drops the locks of a dying process before it closes the process's driver fds. The pidfd shows when the
 * process has ended. Wait for that, but not for ever: an exec drops the lock, too, and the pid in the member record
 * may be wrong. */
#define DYING_NS 300000000u
/* How long the last result is used for a member that does not live: waiters check again and again, and a peer can
 * fake a thousand members. */
#define VERDICT_NS 50000000u
#define PIDFDS 64u /* how many members are watched: a peer may claim any number. The locks of the others are polled. */
#define TRIES 8

static int judged(xp_membership *s, uint32_t m, int life, uint64_t since, uint64_t now)
{
    s->seen[m].until = now + VERDICT_NS;
    s->seen[m].since = since;
    return s->seen[m].life = life;
}

int xp_life(xp_membership *s, uint32_t m, int *pid)
{
    *pid = 0;
    if (m == s->member || s->fd < 0) {
        *pid = m == s->member ? getpid() : 0;
        return XP_LIVING;
    }
    const xp_member_record *record = xp_member_record_of(s, m);
    xp_other *seen = &s->seen[m];
    bool nobody = XP_LOAD(&record->state) == 0;
    uint64_t now = xp_now(), since = XP_RELAXED(&record->since_ns);
    if (now < seen->until && since == seen->since && nobody == (seen->life == XP_NOBODY))
        return seen->life; /* no other process has got the index */
    if (xp_lock_holder(s->fd, XP_LIFE_BYTE + (int64_t)m, pid) != 0) {
        seen->dying_since = 0;
        return XP_LIVING;
    }
    if (nobody)
        return judged(s, m, XP_NOBODY, since, now);
    bool watched = xp_bit(s->watched, m);
    int pidfd = watched ? seen->pidfd : -1, mine = -1;
    int declared = (int)XP_RELAXED(&record->pid);
    if (!watched && declared > 0 && XP_RELAXED(&record->pid_namespace) == xp_pid_namespace())
        pidfd = mine = xp_pidfd_open(declared);
    bool lie = mine >= 0 && !xp_pid_ours(declared); /* a peer writes the record */
    bool ended = pidfd < 0 || lie || xp_pidfd_readable(pidfd);
    if (mine >= 0)
        close(mine);
    if (!ended && seen->dying_since == 0)
        seen->dying_since = now;
    return judged(s, m, ended || now - seen->dying_since > DYING_NS ? XP_DEAD : XP_DYING, since, now);
}

bool xp_alive(xp_membership *s, uint32_t m)
{
    int pid;
    return xp_life(s, m, &pid) <= XP_DYING;
}

/* --- watching ----------------------------------------------------------------------------------------------------- */

/* Nobody is two members: a hostile peer holds several locks. */
static bool may_watch(const xp_membership *s, int pid)
{
    uint32_t watched = 0;
    XP_EACH(s->watched, m) {
        if (s->seen[m].pid == pid)
            return false;
        watched++;
    }
    return watched < PIDFDS;
}

int xp_watch_member(xp_membership *s, uint32_t m)
{
    if (m == s->member || s->fd < 0 || xp_bit(s->watched, m))
        return XP_WATCHED;
    for (int i = 0; i < TRIES; i++) {
        int pid, again;
        if (xp_lock_holder(s->fd, XP_LIFE_BYTE + (int64_t)m, &pid) <= 0)
            return XP_GONE;
        if (pid == 0 || !may_watch(s, pid))
            break;
        int pidfd = xp_pidfd_open(pid);
        if (pidfd < 0 && errno == ESRCH)
            continue;
        if (pidfd < 0)
            break;
        /* If that process still holds the byte, the pidfd belongs to it, not to a later process with the same pid. */
        if (xp_lock_holder(s->fd, XP_LIFE_BYTE + (int64_t)m, &again) != 1 || again != pid) {
            close(pidfd);
            continue;
        }
        if (xp_loop_add(pidfd, EPOLLIN, s->ready, s->serial, m) < 0) {
            close(pidfd);
            break;
        }
        s->seen[m].pidfd = pidfd;
        s->seen[m].pid = pid;
        xp_set(s->watched, m);
        return XP_WATCHED;
    }
    return XP_POLLED;
}

void xp_unwatch(xp_membership *s, uint32_t m)
{
    if (!xp_bit(s->watched, m))
        return;
    xp_clear(s->watched, m);
    xp_loop_remove(s->seen[m].pidfd);
    close(s->seen[m].pidfd);
}

void xp_unwatch_all(xp_membership *s)
{
    XP_EACH(s->watched, m)
        xp_unwatch(s, m);
}

bool xp_watched_ends(xp_membership *s, uint32_t m)
{
    return xp_bit(s->watched, m) && xp_pidfd_readable(s->seen[m].pidfd);
}

void xp_membership_forked(xp_membership *s)
{
    XP_EACH(s->watched, m)
        close(s->seen[m].pidfd);
    memset(s->watched, 0, sizeof s->watched);
    s->fd = -1;
    pthread_mutex_init(&s->mu, NULL);
}
