/* OwnedFd: a file descriptor that has one owner from the start, so that no interrupt can leak it. */
#include "objects.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct {
    PyObject_HEAD
    int number;
} xp_owned_fd;

static void let_go(PyObject *self)
{
    xp_owned_fd *o = (xp_owned_fd *)self;
    int number = o->number;
    o->number = -1;
    if (number < 0)
        return;
    XP_UNLOCKED_DO(xp_close_received(number));
}

XP_LIFE_PLAIN(fd, .end = let_go)

/* Takes over `number`, even if it fails. A number below 0 is an error of `call`. */
PyObject *xp_own_fd(PyTypeObject *type, int number, const char *call)
{
    number = xp_above_stdio(number, xp_close_received);
    if (number < 0)
        return xp_oserror(call);
    xp_owned_fd *self = (xp_owned_fd *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        xp_close_received(number);
    else
        self->number = number;
    return (PyObject *)self;
}

int xp_fd_number(PyObject *owned_fd) { return ((xp_owned_fd *)owned_fd)->number; }

int xp_take_fd(PyObject *owned_fd)
{
    int number = ((xp_owned_fd *)owned_fd)->number;
    ((xp_owned_fd *)owned_fd)->number = -1;
    return number;
}

static PyObject *fd_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"number", NULL};
    PyObject *from;
    int number;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &from))
        return NULL;
    if (Py_TYPE(from) == type) /* here, so that no interrupt comes between the former owner and this one */
        number = xp_take_fd(from);
    else if (xp_as_int(from, &number) < 0)
        return NULL;
    if (number >= 0)
        return xp_own_fd(type, number, "fcntl(F_DUPFD_CLOEXEC)");
    return xp_refuse(PyExc_ValueError, "a file descriptor is not negative");
}

static PyObject *fd_memfd(PyObject *cls, PyObject *arg)
{
    const char *name = PyUnicode_AsUTF8AndSize(arg, NULL);
    return name ? xp_own_fd((PyTypeObject *)cls, memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd_create") : NULL;
}

static PyObject *fd_bell(PyObject *cls, PyObject *Py_UNUSED(a)) { return xp_own_fd((PyTypeObject *)cls, xp_make_bell(), "eventfd"); }

static PyObject *fd_copied(PyObject *cls, PyObject *arg)
{
    int fd;
    return xp_as_int(arg, &fd) < 0 ? NULL : xp_own_fd((PyTypeObject *)cls, fcntl(fd, F_DUPFD_CLOEXEC, 3), "fcntl(F_DUPFD_CLOEXEC)");
}

static PyObject *fd_of_process(PyObject *cls, PyObject *arg)
{
    int pid;
    return xp_as_int(arg, &pid) < 0 ? NULL : xp_own_fd((PyTypeObject *)cls, xp_pidfd_open(pid), "pidfd_open");
}

static PyObject *fd_fetched(PyObject *cls, PyObject *args)
{
    int pidfd, fd;
    return PyArg_ParseTuple(args, "ii", &pidfd, &fd) ? xp_own_fd((PyTypeObject *)cls, xp_pidfd_getfd(pidfd, fd), "pidfd_getfd")
                                                     : NULL;
}

static PyObject *fd_received(PyObject *cls, PyObject *args)
{
    int connection;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "in", &connection, &size))
        return NULL;
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(XP_FDS_AT_ONCE * sizeof(int))];
    } control;
    char packet[sizeof(xp_reply)];
    struct iovec part = {packet, size < 0 || (size_t)size > sizeof packet ? sizeof packet : (size_t)size};
    struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n;
    int error;
    Py_BEGIN_ALLOW_THREADS
    n = recvmsg(connection, &msg, MSG_CMSG_CLOEXEC);
    error = errno;
    Py_END_ALLOW_THREADS
    if (n < 0)
        return xp_oserror_of(error, "recvmsg");
    PyObject *list = PyList_New(0);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
            int number;
            memcpy(&number, CMSG_DATA(c) + at, sizeof number);
            xp_append(&list, xp_own_fd((PyTypeObject *)cls, number, "fcntl(F_DUPFD_CLOEXEC)"));
        }
    }
    return list ? Py_BuildValue("(y#N)", packet, (Py_ssize_t)n, list) : NULL;
}

static PyObject *fd_take(PyObject *self, PyObject *Py_UNUSED(a))
{
    PyObject *number = PyLong_FromLong(((xp_owned_fd *)self)->number);
    if (number)
        ((xp_owned_fd *)self)->number = -1;
    return number;
}

XP_METHOD(fd_close, XP_NONE_BY(let_go(self)))

/* In C, so that no interrupt comes between the end of a block and the close. */
XP_METHOD(fd_enter, Py_NewRef(self))
XP_METHOD(fd_exit, XP_NONE_BY(let_go(self)))

static PyObject *fd_repr(PyObject *self) { return PyUnicode_FromFormat("<OwnedFd %d>", ((xp_owned_fd *)self)->number); }

XP_TYPE(fd_spec, "OwnedFd", xp_owned_fd, Py_TPFLAGS_DEFAULT, {Py_tp_new, fd_new}, {Py_tp_dealloc, fd_dealloc},
        {Py_tp_repr, fd_repr}, XP_FIELDS({"number", T_INT, offsetof(xp_owned_fd, number), READONLY, NULL}),
        XP_METHODS({"memfd", fd_memfd, METH_O | METH_CLASS, NULL},
                   {"bell", fd_bell, METH_NOARGS | METH_CLASS, NULL},
                   {"copied", fd_copied, METH_O | METH_CLASS, NULL},
                   {"of_process", fd_of_process, METH_O | METH_CLASS, NULL},
                   {"fetched", fd_fetched, METH_VARARGS | METH_CLASS, NULL},
                   {"received", fd_received, METH_VARARGS | METH_CLASS, NULL},
                   {"take", fd_take, METH_NOARGS, NULL},
                   {"close", fd_close, METH_NOARGS, NULL},
                   {"__enter__", fd_enter, METH_NOARGS, NULL},
                   {"__exit__", fd_exit, METH_VARARGS, NULL}))

XP_PART(fds, NULL, XP_KEEP(fd_spec, owned_fd))
