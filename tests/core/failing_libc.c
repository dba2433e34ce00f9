/* Preloaded: has the nth call of one function of the C library fail, once it is armed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static char what[32];
static int error, left;
static bool hit;

void arm(const char *call, int number, int nth)
{
    strncpy(what, call, sizeof what - 1);
    error = number;
    left = nth;
    hit = false;
}

int disarm(void)
{
    left = 0;
    return hit;
}

static bool fails(const char *call)
{
    if (left <= 0 || strcmp(what, call) != 0 || --left > 0)
        return false;
    hit = true;
    errno = error;
    return true;
}

#define PASS_ON(result, name, types, ...)                                                                              \
    static result(*real) types;                                                                                        \
    if (real == NULL)                                                                                                  \
        real = (result(*) types)dlsym(RTLD_NEXT, name);                                                                \
    return real(__VA_ARGS__)

static int control(int fd, int command, void *argument)
{
    if (fails("fcntl"))
        return -1;
    PASS_ON(int, "fcntl64", (int, int, ...), fd, command, argument);
}

int fcntl(int fd, int command, ...)
{
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    return control(fd, command, argument);
}

int fcntl64(int fd, int command, ...)
{
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    return control(fd, command, argument);
}

#define FAILS(result, name, as, types, declared, ...)                                                                  \
    result name declared                                                                                               \
    {                                                                                                                  \
        if (fails(as))                                                                                                 \
            return -1;                                                                                                 \
        PASS_ON(result, #name, types, __VA_ARGS__);                                                                    \
    }

FAILS(int, fstat, "fstat", (int, struct stat *), (int fd, struct stat *found), fd, found)
FAILS(int, fstat64, "fstat", (int, struct stat64 *), (int fd, struct stat64 *found), fd, found)
FAILS(ssize_t, getrandom, "getrandom", (void *, size_t, unsigned), (void *to, size_t n, unsigned flags), to, n, flags)
FAILS(int, eventfd, "eventfd", (unsigned, int), (unsigned count, int flags), count, flags)
FAILS(int, epoll_create1, "epoll_create", (int), (int flags), flags)
FAILS(int, epoll_ctl, "epoll_ctl", (int, int, int, void *), (int ep, int op, int fd, void *event), ep, op, fd, event)
FAILS(ssize_t, pread64, "pread", (int, void *, size_t, off64_t), (int fd, void *to, size_t n, off64_t at), fd, to, n, at)

long syscall(long number, ...)
{
    va_list rest;
    va_start(rest, number);
    long x[6];
    for (int i = 0; i < 6; i++)
        x[i] = va_arg(rest, long);
    va_end(rest);
    if ((number == SYS_futex && fails("futex")) || (number == SYS_getrandom && fails("getrandom")))
        return -1;
    PASS_ON(long, "syscall", (long, ...), number, x[0], x[1], x[2], x[3], x[4], x[5]);
}
