/* The common part of every file of the engine: system calls, atomics, errors. It contains no Python. */
#ifndef XP_H
#define XP_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "layout.h"

#define XP_LOAD(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define XP_ACQUIRE(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define XP_RELAXED(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define XP_STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)
#define XP_STORE_RELAXED(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define XP_EXCHANGE(p, v) __atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST)
/* `e` is a pointer; on failure, it points to the value that was found. */
#define XP_CAS(p, e, v) __atomic_compare_exchange_n((p), (e), (v), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
#define XP_LIKELY(x) __builtin_expect(!!(x), 1)
#define XP_UNLIKELY(x) __builtin_expect(!!(x), 0)

#if defined(__x86_64__)
#define xp_pause() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define xp_pause() __asm__ __volatile__("isb" ::: "memory")
#else
#define xp_pause() __asm__ __volatile__("" ::: "memory")
#endif

/* An error: the call `what` failed with errno `code`. `what` NULL means that there was no memory. If `code` is 0,
 * `what` says what is wrong with the arguments. */
typedef struct {
    int code;
    const char *what;
} xp_error;

static inline bool xp_failed(xp_error *e, int code, const char *what)
{
    *e = (xp_error){code, what};
    return false;
}

/* outside.c */
void xp_fill(char *to, const char *pattern, uint64_t unit, uint64_t nbytes); /* repeat it; the last time perhaps in part */

/* os.c */
#define XP_FOREVER UINT64_MAX
#define XP_ROBBED_TEXT                                                                                                \
    "something in this process has closed file descriptors of xpushare (os.closerange?): nothing shared can be used"
#define XP_LEFT_TEXT                                                                                                  \
    "this process has left, as it does at its exit: register atexit functions after the first use of xpushare"
extern unsigned xp_fork_count; /* read with XP_RELAXED */
uint64_t xp_now(void);         /* CLOCK_MONOTONIC in ns */
int xp_thread(pthread_t *thread, void *(*run)(void *)); /* one that takes no signals; returns 0 or errno */
bool xp_may_spin(void);        /* whether another thread may run on another CPU meanwhile */
/* How this process can reach all of these bytes: 2 if it can read and write them, 1 if it can read them, 0 if some
 * do not exist; -1 and errno on failure. `ours`: some lie in memory that this package shares. */
int xp_mapped(uint64_t address, uint64_t nbytes, bool *ours);
bool xp_readable(uint64_t address, uint64_t nbytes); /* the first and the last byte, and all bytes between exist */
int xp_futex_wait(uint32_t *word, uint32_t expected, uint64_t timeout_ns); /* 0 or errno: EAGAIN, EINTR, ETIMEDOUT */
int xp_futex_wake(uint32_t *word, int count);
/* Returns `fd`, or -1 with its errno kept. The fd is above 2: if a process began without stdio, anybody's output
 * goes to 0, 1 and 2. If the fd is not above 2, `end` closes it. */
int xp_above_stdio(int fd, int (*end)(int fd));
int xp_make_bell(void); /* or -1 and errno */
void xp_ring_bell(int bell);
int xp_pidfd_open(int pid);
bool xp_pid_ours(int pid); /* a process of this user, as members are */
bool xp_pid_exiting(int pid); /* the kernel tears it down: its threads run no more, and it has not ended; false: or not known */
bool xp_pidfd_readable(int pidfd);
int xp_lock(int fd, int64_t at, bool take);       /* 0 or errno (EAGAIN: another process holds it) */
int xp_lock_holder(int fd, int64_t at, int *pid); /* 1: another process holds it, 0: none does, -1: errno */
int xp_lock_holder_among(int fd, int64_t at, int64_t count, int *pid); /* any of so many bytes */
uint64_t xp_pid_namespace(void);                  /* 0: not known */

#endif
