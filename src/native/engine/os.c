/* System calls and clocks. */
#include "xp.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

unsigned xp_fork_count;

uint64_t xp_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bool xp_may_spin(void)
{
    /* The answer is kept for a second: affinity changes seldom and asking costs as much as a short wait. */
    static uint64_t fresh_until;
    static int answer;
    uint64_t now = xp_now();
    if (now >= XP_RELAXED(&fresh_until)) {
        cpu_set_t set;
        /* EINVAL: more CPUs than the set has */
        int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 2;
        XP_STORE_RELAXED(&answer, n);
        XP_STORE_RELAXED(&fresh_until, now + 1000000000u);
    }
    return XP_RELAXED(&answer) > 1;
}

int xp_futex_wait(uint32_t *word, uint32_t expected, uint64_t timeout_ns)
{
    struct timespec t, *limit = NULL;
    if (timeout_ns != XP_FOREVER) {
        t.tv_sec = (time_t)(timeout_ns / 1000000000u);
        t.tv_nsec = (long)(timeout_ns % 1000000000u);
        limit = &t;
    }
    return syscall(SYS_futex, word, FUTEX_WAIT, expected, limit, NULL, 0) == 0 ? 0 : errno;
}

int xp_futex_wake(uint32_t *word, int count) { return (int)syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0); }

int xp_pidfd_open(int pid) { return (int)syscall(SYS_pidfd_open, pid, 0); /* close-on-exec by itself */ }

int xp_pidfd_getfd(int pidfd, int fd) { return (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0); /* likewise */ }

bool xp_pidfd_readable(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLIN);
}

int xp_lock(int fd, int64_t at, bool take)
{
    struct flock l = {.l_type = take ? F_WRLCK : F_UNLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    int rc;
    do
        rc = fcntl(fd, F_SETLK, &l);
    while (rc < 0 && errno == EINTR);
    return rc == 0 ? 0 : errno == EACCES ? EAGAIN : errno;
}

int xp_lock_holder(int fd, int64_t at, int *pid)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    if (fcntl(fd, F_GETLK, &l) < 0)
        return -1;
    if (l.l_type == F_UNLCK)
        return 0;
    *pid = l.l_pid > 0 ? l.l_pid : 0;
    return 1;
}
