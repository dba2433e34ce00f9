/* Processes, lock bytes, atomics and futexes as module functions. */
#include "objects.h"

#include <dirent.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif

XP_METHOD(forks, PyLong_FromUnsignedLong(XP_RELAXED(&xp_fork_count)))

/* left([value]): see _native.pyi */
static PyObject *left(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    unsigned *left = &xp_types_of(module)->left;
    int value = xp_arity("left", n, 0, 1) < 0 ? -1 : n ? PyObject_IsTrue(args[0]) : XP_RELAXED(left) != 0;
    if (value < 0)
        return NULL;
    if (n)
        XP_STORE(left, (unsigned)value);
    return PyBool_FromLong(value);
}

static PyObject *dead(PyObject *Py_UNUSED(m), PyObject *arg)
{
    Py_ssize_t n = PySequence_Size(arg);
    if (n < 0)
        return NULL;
    struct pollfd *p = PyMem_Calloc((size_t)n + 1, sizeof *p);
    PyObject *list = p ? PyList_New(0) : PyErr_NoMemory();
    for (Py_ssize_t i = 0; list && i < n; i++) {
        PyObject *item = PySequence_GetItem(arg, i);
        p[i].events = POLLIN;
        if (item == NULL || xp_as_int(item, &p[i].fd) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    int rc = 0;
    if (list) {
        do
            rc = poll(p, (nfds_t)n, 0);
        while (rc < 0 && errno == EINTR);
        if (rc < 0) {
            xp_oserror("poll");
            Py_CLEAR(list);
        }
    }
    for (Py_ssize_t i = 0; list && rc > 0 && i < n; i++) {
        if (!(p[i].revents & POLLIN))
            continue;
        xp_append(&list, PyLong_FromLong(p[i].fd));
    }
    PyMem_Free(p);
    return list;
}

static int lock_args(const char *name, PyObject *const *args, Py_ssize_t n, Py_ssize_t most, int *fd, int64_t *at)
{
    if (xp_arity(name, n, 2, most) < 0 || xp_as_int(args[0], fd) < 0)
        return -1;
    *at = PyLong_AsLongLong(args[1]);
    return *at == -1 && PyErr_Occurred() ? -1 : 0;
}

static PyObject *lock(PyObject *Py_UNUSED(m), PyObject *const *args, Py_ssize_t n)
{
    int fd;
    int64_t at;
    if (lock_args("lock", args, n, 2, &fd, &at) < 0)
        return NULL;
    int rc = xp_lock(fd, at, true);
    return rc && rc != EAGAIN ? xp_oserror_of(rc, "fcntl(F_SETLK)") : PyBool_FromLong(rc == 0);
}

static PyObject *lock_holder(PyObject *Py_UNUSED(m), PyObject *const *args, Py_ssize_t n)
{
    int fd, pid, count = 1;
    int64_t at;
    if (lock_args("lock_holder", args, n, 3, &fd, &at) < 0 || (n > 2 && xp_as_int(args[2], &count) < 0))
        return NULL;
    int held = xp_lock_holder_among(fd, at, count, &pid);
    if (held < 0)
        return xp_oserror("fcntl(F_GETLK)");
    if (!held)
        Py_RETURN_NONE;
    return PyLong_FromLong(pid);
}

/* --- atomics ------------------------------------------------------------------------------------------------------ */

static int word_args(const char *name, PyObject *const *args, Py_ssize_t n, Py_ssize_t want, unsigned size,
                     uint64_t *out)
{
    if (n != want) {
        PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, got %zd", name, want, n);
        return -1;
    }
    if (xp_as_u64(args[0], &out[0]) < 0)
        return -1;
    if (out[0] < XP_LEAST_ADDRESS || out[0] % size) {
        PyErr_Format(PyExc_ValueError, "%s(): no address of an aligned word", name);
        return -1;
    }
    for (Py_ssize_t i = 1; i < n; i++) {
        out[i] = PyLong_AsUnsignedLongLongMask(args[i]);
        if (out[i] == UINT64_MAX && PyErr_Occurred())
            return -1;
    }
    return 0;
}

static PyObject *load64(PyObject *Py_UNUSED(m), PyObject *const *args, Py_ssize_t n)
{
    uint64_t a[1];
    if (word_args("load64", args, n, 1, 8, a) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(XP_LOAD((uint64_t *)(uintptr_t)a[0]));
}

static PyObject *store64(PyObject *Py_UNUSED(m), PyObject *const *args, Py_ssize_t n)
{
    uint64_t a[2];
    if (word_args("store64", args, n, 2, 8, a) < 0)
        return NULL;
    XP_STORE((uint64_t *)(uintptr_t)a[0], a[1]);
    Py_RETURN_NONE;
}

static PyObject *futex_wait(PyObject *Py_UNUSED(m), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"address", "expected", "timeout", "spin", NULL};
    PyObject *o_address, *o_expected, *o_timeout = NULL;
    double spin = 0;
    uint64_t a[1], timeout;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|Od", names, &o_address, &o_expected, &o_timeout, &spin) ||
        word_args("futex_wait", &o_address, 1, 1, 4, a) < 0 || xp_seconds(o_timeout, &timeout) < 0)
        return NULL;
    uint64_t wide = PyLong_AsUnsignedLongLongMask(o_expected);
    if (wide == UINT64_MAX && PyErr_Occurred())
        return NULL;
    uint32_t *word = (uint32_t *)(uintptr_t)a[0], expected = (uint32_t)wide;
    if (XP_LOAD(word) != expected)
        Py_RETURN_TRUE;
    if (timeout == 0)
        Py_RETURN_FALSE;
    uint64_t start = xp_now(), end = timeout == XP_FOREVER ? XP_FOREVER : start + timeout;
    if (spin > 0 && xp_may_spin()) {
        uint64_t until = start + (uint64_t)(spin < 1 ? spin * 1e9 : 1e9);
        bool differs = false;
        Py_BEGIN_ALLOW_THREADS
        do {
            for (int i = 0; i < 32 && !differs; i++) {
                xp_pause();
                differs = XP_ACQUIRE(word) != expected;
            }
        } while (!differs && xp_now() < (until < end ? until : end));
        Py_END_ALLOW_THREADS
        if (differs)
            Py_RETURN_TRUE;
    }
    for (;;) {
        uint64_t now = xp_now();
        if (now >= end)
            Py_RETURN_FALSE;
        int rc = XP_UNLOCKED(xp_futex_wait(word, expected, end == XP_FOREVER ? XP_FOREVER : end - now));
        if (rc == 0 || rc == EAGAIN)
            Py_RETURN_TRUE;
        if (rc == ETIMEDOUT)
            return PyBool_FromLong(XP_LOAD(word) != expected);
        if (rc != EINTR)
            return xp_oserror_of(rc, "futex");
        if (PyErr_CheckSignals() < 0)
            return NULL;
    }
}

static PyObject *futex_wake(PyObject *Py_UNUSED(m), PyObject *const *args, Py_ssize_t n)
{
    uint64_t a[1];
    int count = INT32_MAX;
    if (xp_arity("futex_wake", n, 1, 2) < 0 || word_args("futex_wake", args, 1, 1, 4, a) < 0 ||
        (n > 1 && xp_as_int(args[1], &count) < 0))
        return NULL;
    int rc = xp_futex_wake((uint32_t *)(uintptr_t)a[0], count);
    return rc < 0 ? xp_oserror("futex") : PyLong_FromLong(rc);
}

static int loads_of(struct dl_phdr_info *info, size_t size, void *loads)
{
    (void)size;
    *(unsigned long long *)loads = info->dlpi_adds;
    return 1;
}

static PyObject *library_loads(PyObject *Py_UNUSED(m), PyObject *Py_UNUSED(a))
{
    unsigned long long loads = 0;
    dl_iterate_phdr(loads_of, &loads);
    return PyLong_FromUnsignedLongLong(loads);
}

/* Names of links in a folder: the first `n` of `found`, which have room for `room`. */
typedef struct {
    int *found;
    size_t n, room;
} links;

static bool note_link(links *l, int number)
{
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 16;
        int *found = realloc(l->found, room * sizeof *found);
        if (found == NULL)
            return false;
        l->found = found;
        l->room = room;
    }
    l->found[l->n++] = number;
    return true;
}

/* Without the interpreter. 0, or an errno. */
static int find_links(const char *folder, const char *first, const char *second, links *l)
{
    DIR *d = opendir(folder);
    if (d == NULL)
        return errno;
    const struct dirent *e;
    for (errno = 0; (e = readdir(d)) != NULL; errno = 0) {
        char to[64] = "", *end;
        long number = strtol(e->d_name, &end, 10);
        if (*end || end == e->d_name)
            continue;
        if (readlinkat(dirfd(d), e->d_name, to, sizeof to - 1) < 0) {
            if (errno == ENOENT)
                continue; /* closed since */
            break;
        }
        if ((strncmp(to, first, strlen(first)) == 0 || strncmp(to, second, strlen(second)) == 0) &&
            !note_link(l, (int)number)) {
            errno = ENOMEM;
            break;
        }
    }
    int error = errno;
    closedir(d);
    return error;
}

static PyObject *fds_linked_to(PyObject *Py_UNUSED(m), PyObject *args)
{
    const char *folder, *first, *second;
    if (!PyArg_ParseTuple(args, "sss", &folder, &first, &second))
        return NULL;
    links l = {0};
    int error = XP_UNLOCKED(find_links(folder, first, second, &l));
    PyObject *list = error ? xp_oserror_of(error, folder) : PyList_New(0);
    for (size_t i = 0; list && i < l.n; i++) {
        xp_append(&list, PyLong_FromLong(l.found[i]));
    }
    free(l.found);
    return list;
}

/* Called by its number, since not every C library has a name for it. */
static PyObject *exchange(PyObject *Py_UNUSED(m), PyObject *args)
{
    PyObject *one = NULL, *other = NULL;
    if (!PyArg_ParseTuple(args, "O&O&", PyUnicode_FSConverter, &one, PyUnicode_FSConverter, &other)) {
        Py_XDECREF(one);
        return NULL;
    }
    const char *from = PyBytes_AsString(one), *to = PyBytes_AsString(other);
    long rc = -1;
    if (from && to)
        rc = XP_UNLOCKED(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE));
    int error = errno;
    Py_DECREF(one);
    Py_DECREF(other);
    if (PyErr_Occurred())
        return NULL;
    if (rc < 0 && error != EINVAL && error != ENOSYS)
        return xp_oserror_of(error, "renameat2");
    return PyBool_FromLong(rc == 0);
}

XP_PART(process,
        XP_FUNCTIONS({"forks", forks, METH_NOARGS, NULL},
                     {"exchange", exchange, METH_VARARGS, NULL},
                     {"left", XP_FAST(left), METH_FASTCALL, NULL},
                     {"dead", dead, METH_O, NULL},
                     {"library_loads", library_loads, METH_NOARGS, NULL},
                     {"fds_linked_to", fds_linked_to, METH_VARARGS, NULL},
                     {"lock", XP_FAST(lock), METH_FASTCALL, NULL},
                     {"lock_holder", XP_FAST(lock_holder), METH_FASTCALL, NULL},
                     {"load64", XP_FAST(load64), METH_FASTCALL, NULL},
                     {"store64", XP_FAST(store64), METH_FASTCALL, NULL},
                     {"futex_wait", XP_FAST(futex_wait), METH_VARARGS | METH_KEYWORDS, NULL},
                     {"futex_wake", XP_FAST(futex_wake), METH_FASTCALL, NULL}))
