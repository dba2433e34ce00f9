/* What every file of the native part shares: Python, system calls, atomics. */
#ifndef XP_H
#define XP_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

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
/* `e` is a pointer; it holds what was found when this fails. */
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

#define XP_FAST(f) ((PyCFunction)(void (*)(void))(f))
#define XP_WEAKREFS(type) {"__weaklistoffset__", T_PYSSIZET, offsetof(type, weakrefs), READONLY, NULL}

/* os.c: no Python in here but the error helpers. */
#define XP_FOREVER UINT64_MAX
extern unsigned xp_fork_count; /* read with XP_RELAXED */
uint64_t xp_now(void);         /* CLOCK_MONOTONIC in ns */
bool xp_may_spin(void);        /* more than one CPU is ours */
int xp_futex_wait(uint32_t *word, uint32_t expected, uint64_t timeout_ns); /* 0 or errno: EAGAIN, EINTR, ETIMEDOUT */
int xp_futex_wake(uint32_t *word, int count);
int xp_pidfd_open(int pid);
bool xp_pidfd_readable(int pidfd);
int xp_lock(int fd, int64_t at, bool take);       /* 0 or errno (EAGAIN: somebody else holds it) */
int xp_lock_holder(int fd, int64_t at, int *pid); /* 1 held by another process, 0 not, -1 errno */

PyObject *xp_oserror(const char *call);
PyObject *xp_oserror_of(int error, const char *call);
int xp_seconds(PyObject *obj, uint64_t *ns); /* None: XP_FOREVER; -1 with an exception set */
void xp_free(PyObject *self);                /* tp_free and the type's reference */
void xp_clear_weakrefs(PyObject *self, PyObject *list);
int xp_add_type(PyObject *module, PyType_Spec *spec);
int xp_keep_type(PyObject *module, PyType_Spec *spec, PyTypeObject **kept); /* and keep it in the module's state */
int xp_arity(const char *name, Py_ssize_t got, Py_ssize_t least, Py_ssize_t most);
int xp_as_u64(PyObject *obj, uint64_t *out);
int xp_as_u32(PyObject *obj, uint32_t *out);
int xp_as_int(PyObject *obj, int *out);
/* shape or strides: a tuple of at most 64 ints; *n = -1 where obj is None */
#define XP_MAX_DIMS 64
int xp_as_dims(PyObject *obj, const char *what, int64_t *out, int *n);
PyObject *xp_dims_tuple(const int64_t *values, int n);

/* What C makes objects of; each interpreter has its own. From a type: PyType_GetModuleState. */
typedef struct {
    PyTypeObject *fields, *lease, *mapping, *span, *queue_calls;
    PyObject *range_name; /* "_range" */
} xp_types;
xp_types *xp_types_of(PyObject *module);

/* memory.c: a peer's memfd that is to be mapped, and what came in between. No GIL needed. */
typedef struct {
    uint64_t inode, nbytes;
    bool writable;
    const char *wrong, *call; /* what is wrong with it, or the call that failed with `error` */
    int error;
} xp_memfd;
char *xp_fetch_memfd(xp_memfd *m, int pidfd, int fd, const uint64_t *generation, uint64_t expected);
PyObject *xp_mapping_new(PyTypeObject *type, char *base, uint64_t nbytes); /* takes the mapped bytes over */
const char *xp_mapping_base(PyObject *mapping, uint64_t *nbytes);

void xp_close_received(int fd); /* domain.c: an fd that a peer gave us */

/* Each file adds its own functions and types. */
int xp_init_process(PyObject *module);
int xp_init_memory(PyObject *module);
int xp_init_span(PyObject *module);
int xp_init_dlpack(PyObject *module);
int xp_init_domain(PyObject *module);
int xp_init_peer(PyObject *module);
int xp_init_slot(PyObject *module);
int xp_init_queue(PyObject *module);
int xp_init_warden(PyObject *module);
int xp_init_serve(PyObject *module);

#endif
