/* The loop: epoll, an eventfd that wakes it, and the thread. */
#include "loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

#define WAKE 15 /* the loop's own kind */
#define NAME(kind, serial, index) ((uint64_t)(kind) << 60 | ((serial) & ((1ull << 50) - 1)) << 10 | (index))

pthread_mutex_t xp_life_mu = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t loop_mu = PTHREAD_MUTEX_INITIALIZER; /* the fds below */
static const xp_loop_work *work;
static struct {
    bool running;
    int stop, robbed; /* robbed: the fds are not ours any more */
    pthread_t thread;
    int epoll, wake;
    dev_t dev; /* of `wake` */
    ino_t ino;
} L = {.epoll = -1, .wake = -1};

void xp_loop_init(const xp_loop_work *to_do) { work = to_do; }
bool xp_loop_running(void) { return XP_LOAD(&L.running); }
bool xp_loop_robbed(void) { return XP_LOAD(&L.robbed); }

int xp_loop_add(int fd, uint32_t events, int kind, uint64_t serial, uint32_t index)
{
    struct epoll_event e = {.events = events, .data.u64 = NAME(kind, serial, index)};
    pthread_mutex_lock(&loop_mu);
    int error = !L.running ? ESHUTDOWN : epoll_ctl(L.epoll, EPOLL_CTL_ADD, fd, &e) < 0 ? errno : 0;
    pthread_mutex_unlock(&loop_mu);
    errno = error;
    return error ? -1 : 0;
}

void xp_loop_remove(int fd)
{
    pthread_mutex_lock(&loop_mu);
    if (L.running)
        epoll_ctl(L.epoll, EPOLL_CTL_DEL, fd, NULL);
    pthread_mutex_unlock(&loop_mu);
}

void xp_loop_kick(void)
{
    uint64_t one = 1;
    struct stat found;
    pthread_mutex_lock(&loop_mu);
    if (L.running && (fstat(L.wake, &found) < 0 || found.st_dev != L.dev || found.st_ino != L.ino)) {
        XP_STORE(&L.robbed, 1); /* and never write into somebody else's file */
    } else if (L.running && write(L.wake, &one, sizeof one) < 0) {
        /* EAGAIN: it has been woken already */
    }
    pthread_mutex_unlock(&loop_mu);
}

static int wait_events(struct epoll_event *events, int most, uint64_t ns)
{
    static int no_pwait2;
    if (ns == XP_FOREVER)
        return epoll_wait(L.epoll, events, most, -1);
    if (!no_pwait2) {
        struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
        int n = (int)syscall(SYS_epoll_pwait2, L.epoll, events, most, &t, NULL, 0);
        if (n >= 0 || (errno != ENOSYS && errno != EPERM))
            return n;
        no_pwait2 = 1; /* an old kernel, or a container that hides the call */
    }
    return epoll_wait(L.epoll, events, most, (int)((ns + 999999u) / 1000000u));
}

static void *lose_fds(void)
{
    XP_STORE(&L.robbed, 1);
    work->robbed();
    return NULL;
}

static void *run(void *arg)
{
    (void)arg;
    prctl(PR_SET_NAME, work->name);
    prctl(PR_SET_TIMERSLACK, 1000);
    bool kicked = true;
    while (!XP_LOAD(&L.stop)) {
        uint64_t until = work->turn(xp_now(), kicked), now = xp_now(), drained;
        struct epoll_event events[32];
        int n = wait_events(events, 32, until == XP_FOREVER ? XP_FOREVER : until > now ? until - now : 0);
        kicked = false;
        if (n < 0 && errno != EINTR) /* EBADF, EINVAL: the number belongs to another file, or to nobody */
            return lose_fds();
        for (int i = 0; i < n; i++) {
            uint64_t name = events[i].data.u64;
            if (name >> 60 == WAKE)
                kicked = read(L.wake, &drained, sizeof drained) > 0 || kicked;
            else if (!work->ready((int)(name >> 60), name >> 10 & ((1ull << 50) - 1), (uint32_t)(name & 1023)))
                return lose_fds(); /* another epoll has the number */
        }
    }
    return NULL;
}

/* With loop_mu. */
static void close_fds(void)
{
    if (L.epoll >= 0 && !L.robbed)
        close(L.epoll);
    if (L.wake >= 0 && !L.robbed)
        close(L.wake);
    L.epoll = L.wake = -1;
}

/* With xp_life_mu and loop_mu. */
static int start(void)
{
    struct stat found;
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = NAME(WAKE, 0, 0)};
    L.epoll = xp_above_stdio(epoll_create1(EPOLL_CLOEXEC), close);
    L.wake = xp_above_stdio(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), close);
    int rc = 0;
    if (L.epoll < 0 || L.wake < 0 || fstat(L.wake, &found) < 0 || epoll_ctl(L.epoll, EPOLL_CTL_ADD, L.wake, &e) < 0)
        rc = errno;
    if (rc == 0) {
        L.dev = found.st_dev;
        L.ino = found.st_ino;
        L.stop = 0;
        rc = xp_thread(&L.thread, run);
    }
    if (rc)
        close_fds();
    XP_STORE(&L.running, rc == 0);
    return rc;
}

int xp_loop_start(void)
{
    if (XP_UNLIKELY(XP_LOAD(&L.robbed))) {
        work->robbed();
        return EBADF;
    }
    if (XP_LIKELY(XP_LOAD(&L.running)))
        return 0;
    pthread_mutex_lock(&xp_life_mu);
    pthread_mutex_lock(&loop_mu);
    int rc = L.running ? 0 : start();
    pthread_mutex_unlock(&loop_mu);
    pthread_mutex_unlock(&xp_life_mu);
    return rc;
}

void xp_loop_stop(void)
{
    pthread_mutex_lock(&xp_life_mu);
    if (L.running) {
        XP_STORE(&L.stop, 1);
        xp_loop_kick();
        if (XP_LOAD(&L.robbed)) /* it may sleep for ever on fds that are gone */
            pthread_detach(L.thread);
        else
            pthread_join(L.thread, NULL);
        work->end();
        pthread_mutex_lock(&loop_mu);
        close_fds();
        XP_STORE(&L.running, false);
        pthread_mutex_unlock(&loop_mu);
    }
    pthread_mutex_unlock(&xp_life_mu);
}

void xp_loop_fork_prepare(void) { pthread_mutex_lock(&loop_mu); }
void xp_loop_fork_parent(void) { pthread_mutex_unlock(&loop_mu); }

void xp_loop_forked(void) /* with loop_mu */
{
    close_fds();
    L.running = false;
    L.robbed = 0;
}
