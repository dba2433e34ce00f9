/* System calls and clocks. */
#include "xp.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
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
    static int answer; /* 0: not asked yet */
    int cpus = XP_RELAXED(&answer);
    if (cpus == 0) {
        cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
        XP_STORE_RELAXED(&answer, cpus > 0 ? cpus : 2);
    }
    return cpus != 1;
}

__attribute__((visibility("default"))) int xp_mapped(uint64_t address, uint64_t nbytes, bool *ours)
{
    unsigned long first, last, end;
    char *line = NULL, access[8];
    size_t room = 0;
    int found = 2, name;
    *ours = false;
    if (__builtin_add_overflow(address, nbytes, &end))
        return 0;
    FILE *file = fopen("/proc/self/maps", "re");
    if (!file)
        return -1;
    while (address < end && found && getline(&line, &room, file) > 0) {
        name = 0;
        if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %n", &first, &last, access, &name) != 3 || last <= address)
            continue;
        found = first > address || access[0] == '-' ? 0 : access[1] == '-' ? 1 : found;
        *ours = *ours || !strncmp(line + name, "/memfd:xpushare", 15);
        address = last;
    }
    free(line);
    fclose(file);
    return address < end ? 0 : found;
}

/* The kernel reads 8 bytes there before it refuses the unknown `how`; 8 aligned bytes never cross a page. */
static bool readable(uint64_t address)
{
    return syscall(SYS_rt_sigprocmask, -1, address & ~7ul, NULL, 8) < 0 && errno != EFAULT;
}

/* Costs well under a microsecond, where `xp_mapped` reads all of /proc/self/maps. */
bool xp_readable(uint64_t address, uint64_t nbytes)
{
    unsigned char resident[4096]; /* a byte for each page */
    uint64_t last, page = (uint64_t)sysconf(_SC_PAGESIZE), most = page * sizeof resident;
    if (nbytes == 0)
        return true;
    if (__builtin_add_overflow(address, nbytes - 1, &last) || !readable(address) || !readable(last))
        return false;
    last &= -page;
    for (uint64_t at = (address & -page) + page; at < last; at += most)
        if (mincore((void *)(uintptr_t)at, last - at < most ? last - at : most, resident) < 0 && errno == ENOMEM)
            return false;
    return true;
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

int xp_above_stdio(int fd, int (*end)(int fd))
{
    if (XP_LIKELY(fd > 2 || fd < 0))
        return fd;
    int above = fcntl(fd, F_DUPFD_CLOEXEC, 3), error = errno;
    end(fd);
    errno = error;
    return above;
}

int xp_thread(pthread_t *thread, void *(*run)(void *))
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

/* close-on-exec by itself */
int xp_pidfd_open(int pid) { return xp_above_stdio((int)syscall(SYS_pidfd_open, pid, 0), close); }

/* A process never changes its PID namespace, and asking /proc is slow. */
uint64_t xp_pid_namespace(void)
{
    static uint64_t known;
    static unsigned asked = UINT_MAX; /* in which child */
    unsigned forks = XP_RELAXED(&xp_fork_count);
    struct stat st;
    if (XP_LOAD(&asked) != forks) {
        XP_STORE(&known, stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0);
        XP_STORE(&asked, forks);
    }
    return XP_LOAD(&known);
}

/* --- bells -------------------------------------------------------------------------------------------------------- */

/* An eventfd that all members have, and whose file status flags each of them can change. A write could block if a
 * peer fills it up, so nobody writes to it. It is a semaphore whose count is never used up, and reading it rings it:
 * that wakes every poller of EPOLLOUT, edge-triggered. */
int xp_make_bell(void)
{
    uint64_t count = 1ull << 62;
    int bell = xp_above_stdio(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE), close);
    if (bell >= 0 && write(bell, &count, sizeof count) < 0) {
        int error = errno;
        close(bell);
        errno = error;
        return -1;
    }
    return bell;
}

static bool no_nowait; /* Linux 5.6 and 5.7 cannot read an eventfd this way */

static void try_nowait(void)
{
    uint64_t one;
    struct iovec part = {&one, sizeof one};
    int bell = xp_make_bell();
    no_nowait = bell >= 0 && preadv2(bell, &part, 1, -1, RWF_NOWAIT) < 0 && (errno == EOPNOTSUPP || errno == ENOSYS);
    if (bell >= 0)
        close(bell);
}

void xp_ring_bell(int bell)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    uint64_t one;
    struct iovec part = {&one, sizeof one};
    pthread_once(&once, try_nowait);
    ssize_t n = no_nowait && !xp_pidfd_readable(bell) ? 0 : preadv2(bell, &part, 1, -1, no_nowait ? 0 : RWF_NOWAIT);
    (void)n; /* EAGAIN: a peer has used the count up, which could as well clear its sleepers' flags */
}

bool xp_pid_ours(int pid)
{
    char path[32];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%d", pid);
    return stat(path, &st) == 0 && st.st_uid == geteuid();
}

bool xp_pid_exiting(int pid)
{
    char path[32], text[512];
    unsigned flags;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[n < 0 ? 0 : n] = 0;
    const char *behind = strrchr(text, ')'); /* the name may have any characters */
    return behind && sscanf(behind + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) == 1 && flags & 4; /* PF_EXITING */
}

bool xp_pidfd_readable(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLIN);
}

static int set_lock(int fd, int64_t at, short type)
{
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    int rc;
    do
        rc = fcntl(fd, F_SETLK, &l);
    while (rc < 0 && errno == EINTR);
    return rc == 0 ? 0 : errno == EACCES ? EAGAIN : errno;
}

int xp_lock(int fd, int64_t at, bool take) { return set_lock(fd, at, take ? F_WRLCK : F_UNLCK); }

int xp_lock_holder(int fd, int64_t at, int *pid) { return xp_lock_holder_among(fd, at, 1, pid); }

int xp_lock_holder_among(int fd, int64_t at, int64_t count, int *pid)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = count};
    if (fcntl(fd, F_GETLK, &l) < 0)
        return -1;
    if (l.l_type == F_UNLCK)
        return 0;
    *pid = l.l_pid > 0 ? l.l_pid : 0;
    return 1;
}
