/* The lock on a file with a path. It answers only whether a process may create, replace or remove the file, and never
 * proves that a process lives.
 *
 * It is an OFD lock on a description that is opened for it alone. So a process that opens and closes the file by other
 * means loses nothing. A forked child closes its copy of the description. Any other copy (of a bare clone) keeps no
 * lock, since the holder unlocks before it closes. */
#ifndef XP_NAME_LOCK_H
#define XP_NAME_LOCK_H

#include "xp.h"

#include <sys/types.h>

#define XP_NAME_LOCK 0x60000000 /* the byte of the file */

typedef struct xp_name_lock {
    struct xp_name_lock *next;
    int fd;         /* -1: it is not held */
    int pid;        /* of its holder */
    int64_t pid_at; /* where the file says so while the lock is held; below 0: nowhere */
    dev_t dev;
    ino_t ino;
} xp_name_lock;

/* The calls of one lock exclude each other. */

/* Take the lock on the file at `path`, without waiting. Returns 0, or errno with l->fd = -1. EAGAIN means that another
 * has the lock. ENOENT means that there is no such file, and EPERM that it is not a regular file of this user. `dev` and
 * `ino` may be NULL. If not, the file has to have this inode, or the result is ENOENT. */
int xp_name_lock_take(xp_name_lock *l, const char *path, const dev_t *dev, const ino_t *ino, int64_t pid_at);
void xp_name_lock_release(xp_name_lock *l); /* calling it again does nothing */
/* Whether any process has the lock on the file behind `fd`, this process included: 1 or 0, or -1 and errno. With 1,
 * `pid` is the number in the file at `pid_at`, 0 if there is none. */
int xp_name_lock_holder(int fd, int64_t pid_at, int *pid);

void xp_name_locks_fork_prepare(void);
void xp_name_locks_fork_parent(void);
void xp_name_locks_forked(void); /* a child has none of its parent's locks */

#endif
