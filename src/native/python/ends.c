/* How the ends of channels, their loans and their frames wait: attempts in the engine, and sleeps without the GIL. */
#include "ends.h"

int xp_end_until(PyObject *self, xp_end *e, xp_attempt try, void *argument, PyObject *timeout)
{
    uint64_t ns, finish = 0;
    bool timed = false, last = false, looked = false;
    for (;;) {
        uint32_t changes = XP_LOAD(&e->w->changes);
        xp_end_hurry = true;
        int got = try(e, argument);
        xp_end_hurry = false;
        if (got == XP_UNUSABLE) { /* rare: the lock is taken, and this thread must not wait for it with the GIL */
            Py_BEGIN_ALLOW_THREADS
            got = try(e, argument);
            Py_END_ALLOW_THREADS
        }
        if (got == XP_NO_ROOM && !looked) { /* the holders of the slots may be dead, and perhaps no other process checks */
            int watch;
            looked = true;
            Py_BEGIN_ALLOW_THREADS
            watch = xp_end_watch(e);
            Py_END_ALLOW_THREADS
            if (watch == XP_CREW_GONE)
                continue;
        }
        if (got != XP_WAIT && got != XP_UNUSABLE)
            return got;
        if (!timed) {
            if (timeout == NULL)
                ns = XP_LOCK_MOST;
            else if (xp_seconds(timeout, &ns) < 0)
                return -1;
            finish = ns == XP_FOREVER ? XP_FOREVER : xp_now() + ns;
            timed = true;
        }
        if (last && timeout == NULL) {
            PyErr_SetString(PyExc_TimeoutError, "another process has kept the channel's lock for 10 s: it seems to be stopped");
            return -1;
        }
        if (last)
            return XP_WAIT;
        int rc = 0;
        if (got == XP_WAIT) {
            Py_BEGIN_ALLOW_THREADS
            rc = xp_end_sleep(e, changes, finish);
            Py_END_ALLOW_THREADS
        }
        if (rc && rc != EAGAIN && rc != EINTR && rc != ETIMEDOUT) {
            xp_oserror_of(rc, "futex");
            return -1;
        }
        if (PyErr_CheckSignals() < 0 || xp_end_of(self) == NULL)
            return -1;
        last = xp_now() >= finish;
    }
}

PyObject *xp_end_refused(PyObject *self, int got, const char *wanted, PyObject *timeout)
{
    PyObject *found = PyObject_CallFunction(((xp_end_object *)self)->refuse, "OisO", self, got, wanted, timeout);
    if (found)
        PyErr_SetString(PyExc_RuntimeError, "nothing came of it");
    Py_XDECREF(found);
    return NULL;
}
