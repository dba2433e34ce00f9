/* A peer's fds: how they are fetched and closed. */
#include "events.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

/* --- locks by which others see that this process lives ------------------------------------------------------------- */

#define LIFE_LOCK_BUCKETS 1024u

typedef struct life_lock {
    struct life_lock *next;
    dev_t dev;
    ino_t ino;
    int fd;
    int64_t at; /* or KEPT */
} life_lock;

#define KEPT (-1)       /* no lock: an fd that is closed once this process has no lock on the file any more */
#define KEPT_MOST 64u   /* on one file: a peer may send it again and again */

static pthread_mutex_t life_locks_mu = PTHREAD_MUTEX_INITIALIZER; /* inside all others */
static life_lock *life_locks[LIFE_LOCK_BUCKETS];

static bool is_file(const life_lock *l, const struct stat *file) { return l->dev == file->st_dev && l->ino == file->st_ino; }

/* The first lock on that file from `l` on. */
static life_lock *next_on(life_lock *l, const struct stat *file)
{
    while (l && (l->at == KEPT || !is_file(l, file)))
        l = l->next;
    return l;
}

static life_lock **bucket_of(const struct stat *file) { return &life_locks[file->st_ino % LIFE_LOCK_BUCKETS]; }

int xp_lock_for_life(int fd, int64_t at)
{
    struct stat file;
    life_lock *made = malloc(sizeof *made);
    int rc = made == NULL ? ENOMEM : fstat(fd, &file) < 0 ? errno : 0;
    pthread_mutex_lock(&life_locks_mu);
    if (rc == 0 && (rc = xp_lock(fd, at, true)) == 0) {
        life_lock **first = bucket_of(&file);
        *made = (life_lock){*first, file.st_dev, file.st_ino, fd, at};
        *first = made;
        made = NULL;
    }
    pthread_mutex_unlock(&life_locks_mu);
    free(made);
    return rc;
}

static void remove_at(life_lock **p)
{
    life_lock *l = *p;
    *p = l->next;
    free(l);
}

/* Forget the locks that were taken by `fd`, or the one on byte `at`. With life_locks_mu. */
static void forget(int fd, const struct stat *file, int64_t at)
{
    for (life_lock **p = bucket_of(file); *p;)
        if ((*p)->fd == fd && (*p)->at != KEPT && is_file(*p, file) && (at < 0 || (*p)->at == at))
            remove_at(p);
        else
            p = &(*p)->next;
    if (next_on(*bucket_of(file), file))
        return;
    for (life_lock **p = bucket_of(file); *p;)
        if (is_file(*p, file)) {
            close((*p)->fd);
            remove_at(p);
        } else {
            p = &(*p)->next;
        }
}

/* Closing any fd of a file drops all locks of this process on it, so one by which there is no lock stays open as long as
 * there is one. False if too many do. With life_locks_mu. */
static bool keep(int fd, const struct stat *file)
{
    uint32_t kept = 0;
    for (life_lock *l = *bucket_of(file); l; l = l->next) {
        if (is_file(l, file) && l->fd == fd)
            return false;
        kept += is_file(l, file) && l->at == KEPT;
    }
    life_lock *made = kept < KEPT_MOST ? malloc(sizeof *made) : NULL;
    if (made == NULL)
        return false;
    *made = (life_lock){*bucket_of(file), file->st_dev, file->st_ino, fd, KEPT};
    *bucket_of(file) = made;
    return true;
}

int xp_unlock_for_life(int fd, int64_t at)
{
    struct stat file;
    if (fstat(fd, &file) < 0)
        return errno;
    pthread_mutex_lock(&life_locks_mu);
    forget(fd, &file, at);
    int rc = xp_lock(fd, at, false);
    pthread_mutex_unlock(&life_locks_mu);
    return rc;
}

/* Close an fd of a file on which there are such locks. False if there are none. */
static bool close_locked(int fd, const struct stat *file)
{
    pthread_mutex_lock(&life_locks_mu);
    life_lock *l = next_on(*bucket_of(file), file);
    bool ours = l != NULL;
    if (ours && !keep(fd, file)) {
        struct stat there;
        forget(fd, file, -1);
        close(fd);
        for (l = next_on(*bucket_of(file), file); l; l = next_on(l->next, file))
            if (fstat(l->fd, &there) == 0 && is_file(l, &there)) /* nobody has closed it behind our back */
                xp_lock(l->fd, l->at, true);
    }
    pthread_mutex_unlock(&life_locks_mu);
    return ours;
}

void xp_close_locked(int fd)
{
    struct stat file;
    if (fstat(fd, &file) < 0 || !close_locked(fd, &file))
        close(fd);
}

void xp_life_locks_fork_prepare(void) { pthread_mutex_lock(&life_locks_mu); }
void xp_life_locks_fork_parent(void) { pthread_mutex_unlock(&life_locks_mu); }

void xp_life_locks_forked(void) /* with life_locks_mu */
{
    for (uint32_t i = 0; i < LIFE_LOCK_BUCKETS; i++)
        while (life_locks[i]) {
            if (life_locks[i]->at == KEPT)
                close(life_locks[i]->fd);
            remove_at(&life_locks[i]);
        }
}

/* --- fds of a peer ------------------------------------------------------------------------------------------------ */

/* A peer may send us any file, even one by whose lock others see that we live. Closing that one drops our lock, so we
 * take the lock again. Nobody reaps a member of a commons in between: without the lock it counts as dying for a while,
 * as long as its process lives. */
static void close_file(int fd, const struct stat *found)
{
    xp_domain *d = NULL;
    if (S_ISREG(found->st_mode)) {
        if (close_locked(fd, found))
            return;
        pthread_mutex_lock(&xp_mu);
        for (d = xp_domains; d && (d->dev != found->st_dev || d->ino != found->st_ino); d = d->next)
            ;
        if (d)
            xp_domain_ref(d);
        pthread_mutex_unlock(&xp_mu);
    }
    if (d)
        pthread_mutex_lock(&d->mu);
    close(fd);
    if (d) {
        if (d->fd >= 0)
            xp_lock(d->fd, XP_LIFE_BYTE + (int64_t)d->member, true);
        pthread_mutex_unlock(&d->mu);
        xp_domain_unref(d);
    }
}

int xp_close_received(int fd)
{
    struct stat found;
    if (fstat(fd, &found) == 0)
        close_file(fd, &found);
    else
        close(fd);
    return 0;
}

int xp_pidfd_getfd(int pidfd, int fd)
{
    return xp_above_stdio((int)syscall(SYS_pidfd_getfd, pidfd, fd, 0), xp_close_received); /* close-on-exec by itself */
}
