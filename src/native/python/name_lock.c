/* NameLock: the lock on a file with a path, which a process takes before it creates, replaces or removes the file. */
#include "objects.h"

#include "../../engine/name_lock.h"

typedef struct {
    PyObject_HEAD
    xp_name_lock lock;
} xp_name_lock_object;

static void let_go(PyObject *self)
{
    xp_name_lock *l = &((xp_name_lock_object *)self)->lock;
    Py_BEGIN_ALLOW_THREADS
    xp_name_lock_release(l);
    Py_END_ALLOW_THREADS
}

XP_LIFE_PLAIN(name_lock, .end = let_go)

static PyObject *name_lock_take(PyObject *cls, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"path", "inode", "pid_at", NULL};
    PyObject *path, *inode = Py_None;
    long long pid_at = -1;
    unsigned long long device = 0, number = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|OL:take", names, PyUnicode_FSConverter, &path, &inode, &pid_at))
        return NULL;
    xp_name_lock_object *self = NULL;
    if (inode == Py_None || PyArg_ParseTuple(inode, "KK", &device, &number))
        self = (xp_name_lock_object *)PyType_GenericAlloc((PyTypeObject *)cls, 0);
    if (self == NULL) {
        Py_DECREF(path);
        return NULL;
    }
    dev_t dev = (dev_t)device;
    ino_t ino = (ino_t)number;
    bool any = inode == Py_None;
    int rc;
    const char *bytes = PyBytes_AsString(path);
    self->lock.fd = -1;
    Py_BEGIN_ALLOW_THREADS
    rc = xp_name_lock_take(&self->lock, bytes, any ? NULL : &dev, any ? NULL : &ino, pid_at);
    Py_END_ALLOW_THREADS
    Py_DECREF(path);
    if (rc == 0)
        return (PyObject *)self;
    Py_DECREF(self);
    if (rc != EAGAIN)
        return xp_oserror_of(rc, "locking a file");
    Py_RETURN_NONE;
}

static PyObject *name_lock_holder(PyObject *Py_UNUSED(cls), PyObject *args)
{
    int fd, pid, held;
    long long pid_at = -1;
    if (!PyArg_ParseTuple(args, "i|L:holder", &fd, &pid_at))
        return NULL;
    held = xp_name_lock_holder(fd, pid_at, &pid);
    if (held < 0)
        return xp_oserror("fcntl(F_OFD_GETLK)");
    if (!held)
        Py_RETURN_NONE;
    return PyLong_FromLong(pid);
}

static PyObject *name_lock_release(PyObject *self, PyObject *Py_UNUSED(a))
{
    let_go(self);
    Py_RETURN_NONE;
}

/* In C, so that no interrupt comes between the end of a block and the release. */
static PyObject *name_lock_enter(PyObject *self, PyObject *Py_UNUSED(a)) { return Py_NewRef(self); }
static PyObject *name_lock_exit(PyObject *self, PyObject *Py_UNUSED(error)) { return name_lock_release(self, NULL); }

static PyMethodDef name_lock_methods[] = {
    {"take", (PyCFunction)(void (*)(void))name_lock_take, METH_VARARGS | METH_KEYWORDS | METH_CLASS, NULL},
    {"holder", name_lock_holder, METH_VARARGS | METH_STATIC, NULL},
    {"release", name_lock_release, METH_NOARGS, NULL},
    {"__enter__", name_lock_enter, METH_NOARGS, NULL},
    {"__exit__", name_lock_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot name_lock_slots[] = {{Py_tp_dealloc, name_lock_dealloc}, {Py_tp_methods, name_lock_methods}, {0, NULL}};
static PyType_Spec name_lock_spec = {"xpushare._native.NameLock", sizeof(xp_name_lock_object), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, name_lock_slots};

int xp_init_name_lock(PyObject *module) { return xp_keep_type(module, &name_lock_spec, &xp_types_of(module)->name_lock); }
