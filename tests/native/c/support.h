/* What the C tests and fuzzers of the engine share. */
#ifndef XP_TEST_SUPPORT_H
#define XP_TEST_SUPPORT_H

#include "../../../src/engine/loop.h"
#include "../../../src/engine/events.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

/* Says what was expected and where, and ends the program. */
#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: expected: %s\n", __FILE__, __LINE__, #condition);                                 \
            abort();                                                                                                  \
        }                                                                                                             \
    } while (0)
#define EQUAL(got, wanted)                                                                                            \
    do {                                                                                                              \
        unsigned long long got_ = (unsigned long long)(got), wanted_ = (unsigned long long)(wanted);                  \
        if (got_ != wanted_) {                                                                                        \
            fprintf(stderr, "%s:%d: %s is %llu, expected %llu\n", __FILE__, __LINE__, #got, got_, wanted_);           \
            abort();                                                                                                  \
        }                                                                                                             \
    } while (0)
/* Another process or thread brings the condition about. */
#define UNTIL(condition)                                                                                              \
    do {                                                                                                              \
        uint64_t end_ = xp_now() + 20000000000u;                                                                      \
        while (!(condition)) {                                                                                        \
            CHECK(xp_now() < end_ && "the following comes true in time:" && #condition);                              \
            usleep(500);                                                                                              \
        }                                                                                                             \
    } while (0)

static uint8_t cookie[XP_COOKIE]; /* of this program's commons: another may run beside it */

static inline int memfd(uint64_t nbytes, int seals)
{
    int fd = memfd_create("xpushare-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)nbytes) == 0 && (seals == 0 || fcntl(fd, F_ADD_SEALS, seals) == 0));
    return fd;
}

static inline xp_domain *new_commons(void)
{
    xp_error error;
    while (cookie[0] == 0)
        CHECK(getrandom(cookie, sizeof cookie, 0) == sizeof cookie);
    int fd = memfd(XP_COMMONS_SIZE, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    xp_domain *d = xp_join(fd, xp_make_bell(), cookie, true, &error);
    if (d == NULL)
        fprintf(stderr, "joining: %s (%d)\n", error.what, error.code);
    CHECK(d != NULL);
    return d;
}

/* Another process, which runs `body` and ends with 0; it dies with its parent. Fork before there are threads. */
typedef struct {
    pid_t pid;
    int tell, hear; /* a byte at a time */
} process;

static inline process start(void (*body)(process *parent, xp_domain *d, uint32_t index), xp_domain *d, uint32_t index)
{
    int down[2], up[2];
    /* A fork closes the child's fd of the commons, and closing a copy here would end our membership. */
    int fd = dup(d->fd), bell = dup(d->bell);
    CHECK(fd >= 0 && bell >= 0 && pipe(down) == 0 && pipe(up) == 0);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        close(down[1]);
        close(up[0]);
        xp_error error;
        xp_domain *mine = xp_join(fd, bell, cookie, false, &error);
        CHECK(mine != NULL);
        body(&(process){getppid(), up[1], down[0]}, mine, index);
        _exit(0);
    }
    close(down[0]);
    close(up[1]);
    return (process){pid, down[1], up[0]};
}

static inline void tell(const process *other) { CHECK(write(other->tell, "x", 1) == 1); }

/* False: the other one has ended. */
static inline bool hear(const process *other)
{
    char byte;
    return read(other->hear, &byte, 1) == 1;
}

static inline void reap_process(process *other, int signal)
{
    int status;
    if (signal)
        CHECK(kill(other->pid, signal) == 0);
    EQUAL(waitpid(other->pid, &status, 0), other->pid);
    CHECK(signal ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(other->tell);
    close(other->hear);
}

#define RUN(test)                                                                                                     \
    do {                                                                                                              \
        printf("%s\n", #test);                                                                                        \
        fflush(stdout);                                                                                               \
        test();                                                                                                       \
    } while (0)

static inline xp_slot *attach(xp_domain *d, uint32_t index)
{
    xp_error error;
    xp_slot *s = xp_attach(d, index, XP_MAY_SIGNAL, &error);
    CHECK(s != NULL);
    return s;
}

static inline void detach(xp_slot *s)
{
    xp_detach(s);
    xp_slot_unref(s);
}

static inline void leave(xp_domain *d)
{
    xp_leave(d);
    xp_domain_unref(d);
}

static inline uint64_t submit(xp_slot *s, uint64_t queue)
{
    uint64_t point = 0, after = 0;
    bool host;
    const char *wrong = xp_submit(s, queue, false, &point, &after, &host);
    if (wrong)
        fprintf(stderr, "submit: %s\n", wrong);
    CHECK(wrong == NULL);
    return point;
}

/* XP_DONE or XP_LOST; XP_PENDING after `ns`. */
static inline int wait_for(xp_slot *s, uint64_t point, uint64_t ns)
{
    uint64_t start = xp_now(), end = ns == XP_FOREVER ? ns : start + ns;
    int rc, state = XP_PENDING;
    while (state == XP_PENDING && (state = xp_sleep(s, point, start, end, &rc)) == XP_PENDING && xp_now() < end)
        ;
    return state;
}

#endif
