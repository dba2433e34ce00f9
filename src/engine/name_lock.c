#include "name_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t name_locks_mu = PTHREAD_MUTEX_INITIALIZER; /* inside all others */
static xp_name_lock *held;

static int ofd(int fd, int command, short *type)
{
    struct flock l = {.l_type = *type, .l_whence = SEEK_SET, .l_start = XP_NAME_LOCK, .l_len = 1};
    int rc = fcntl(fd, command, &l);
    *type = l.l_type;
    return rc == 0 ? 0 : errno == EACCES ? EAGAIN : errno;
}

static bool is_file(const xp_name_lock *l, const struct stat *found) { return l->dev == found->st_dev && l->ino == found->st_ino; }

static void write_pid(const xp_name_lock *l, int pid)
{
    int32_t number = pid;
    ssize_t n = l->pid_at < 0 ? 0 : pwrite(l->fd, &number, sizeof number, l->pid_at);
    (void)n; /* it is for messages alone */
}

/* Close the description, unless something has closed it behind our back. With name_locks_mu, as those below. */
static void shut(xp_name_lock *l, bool unlock)
{
    struct stat found;
    short type = F_UNLCK;
    if (fstat(l->fd, &found) == 0 && is_file(l, &found)) {
        if (unlock) {
            write_pid(l, 0);
            ofd(l->fd, F_OFD_SETLK, &type);
        }
        close(l->fd);
    }
    l->fd = -1;
}

static int open_locked(xp_name_lock *l, const char *path)
{
    struct stat found;
    short type = F_WRLCK;
    l->fd = -1;
    int fd = xp_above_stdio(open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), close);
    if (fd < 0)
        return errno;
    int rc = fstat(fd, &found) < 0                                   ? errno
             : !S_ISREG(found.st_mode) || found.st_uid != geteuid() ? EPERM
                                                                     : ofd(fd, F_OFD_SETLK, &type);
    if (rc) {
        close(fd);
        return rc;
    }
    *l = (xp_name_lock){held, fd, getpid(), -1, found.st_dev, found.st_ino};
    held = l;
    return 0;
}

static void drop(xp_name_lock *l)
{
    xp_name_lock **p = &held;
    while (*p != l)
        p = &(*p)->next;
    *p = l->next;
    shut(l, l->pid == getpid()); /* a bare clone has the same description, which its parent unlocks */
}

int xp_name_lock_take(xp_name_lock *l, const char *path, const dev_t *dev, const ino_t *ino, int64_t pid_at)
{
    struct stat there;
    bool replaced;
    int rc;
    pthread_mutex_lock(&name_locks_mu);
    do {
        replaced = false;
        if ((rc = open_locked(l, path)) != 0)
            break;
        if (dev && (l->dev != *dev || l->ino != *ino))
            rc = ENOENT;
        else if (lstat(path, &there) < 0)
            rc = errno;
        else if (!is_file(l, &there)) { /* it was replaced before we had locked it */
            rc = ENOENT;
            replaced = dev == NULL;
        }
        if (rc) {
            drop(l);
        } else {
            l->pid_at = pid_at;
            write_pid(l, l->pid);
        }
    } while (replaced);
    pthread_mutex_unlock(&name_locks_mu);
    return rc;
}

void xp_name_lock_release(xp_name_lock *l)
{
    pthread_mutex_lock(&name_locks_mu);
    if (l->fd >= 0)
        drop(l);
    pthread_mutex_unlock(&name_locks_mu);
}

int xp_name_lock_holder(int fd, int64_t pid_at, int *pid)
{
    int32_t number = 0;
    short type = F_WRLCK;
    int rc = ofd(fd, F_OFD_GETLK, &type);
    if (rc) {
        errno = rc;
        return -1;
    }
    if (type == F_UNLCK)
        return 0;
    if (pid_at >= 0 && pread(fd, &number, sizeof number, pid_at) != (ssize_t)sizeof number)
        number = 0;
    *pid = number > 0 ? number : 0;
    return 1;
}

void xp_name_locks_fork_prepare(void) { pthread_mutex_lock(&name_locks_mu); }
void xp_name_locks_fork_parent(void) { pthread_mutex_unlock(&name_locks_mu); }

void xp_name_locks_forked(void) /* with name_locks_mu */
{
    for (xp_name_lock *l = held; l; l = l->next)
        shut(l, false);
    held = NULL;
}
