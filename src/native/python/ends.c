/* How the ends of channels, their loans and their frames wait: attempts in the engine, and sleeps without the GIL. */
#include "ends.h"

/* Whether another thread has to be served before this one. A signal handler may run in a thread that waits, and one
 * that has a loan must not wait for itself. */
static bool behind(xp_line *line, const xp_end *e)
{
    uint64_t self = (uint64_t)pthread_self();
    if (line == NULL || XP_RELAXED(&line->first) == NULL || XP_RELAXED(&e->loaned_by) == self)
        return false;
    pthread_mutex_lock(&line->mu);
    bool found = line->first && line->first->thread != self;
    pthread_mutex_unlock(&line->mu);
    return found;
}

static void queue(xp_line *line, xp_turn *turn)
{
    turn->thread = (uint64_t)pthread_self();
    pthread_mutex_lock(&line->mu);
    xp_turn **at = line->first ? line->last : &line->first;
    line->last = &turn->next;
    XP_STORE_RELAXED(at, turn);
    pthread_mutex_unlock(&line->mu);
}

/* The next thread wakes to try. */
static void leave_line(xp_line *line, xp_turn *turn, xp_end *e)
{
    if (e->c->born != XP_RELAXED(&xp_fork_count))
        return; /* a child: nobody else waits, and the mutex may be held for ever */
    pthread_mutex_lock(&line->mu);
    xp_turn **at = &line->first;
    while (*at != turn)
        at = &(*at)->next;
    if (line->last == &turn->next)
        line->last = at;
    XP_STORE_RELAXED(at, turn->next);
    bool more = line->first != NULL;
    pthread_mutex_unlock(&line->mu);
    if (more && !XP_RELAXED(&e->closed) && xp_group_usable(e->c))
        xp_end_stir(e);
}

static int until(PyObject *self, xp_end *e, xp_attempt try, void *argument, PyObject *timeout, xp_line *line, xp_turn *turn)
{
    uint64_t ns, finish = 0;
    bool timed = false, last = false, looked = false;
    for (;;) {
        uint32_t changes = XP_LOAD(&e->w->changes);
        int got = XP_WAIT;
        if (XP_LIKELY(!behind(line, e))) {
            xp_end_hurry = true;
            got = try(e, argument);
            xp_end_hurry = false;
        }
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
            if (watch == XP_GONE)
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
            if (line && ns) {
                queue(line, turn);
                continue; /* it may be the first */
            }
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

int xp_end_until(PyObject *self, xp_end *e, xp_attempt try, void *argument, PyObject *timeout, xp_line *line)
{
    xp_turn turn = {0};
    int got = until(self, e, try, argument, timeout, line, &turn);
    if (XP_UNLIKELY(turn.thread))
        leave_line(line, &turn, e);
    return got;
}

PyObject *xp_end_refused(PyObject *self, int got, const char *wanted, PyObject *timeout)
{
    PyObject *found = PyObject_CallFunction(((xp_end_object *)self)->refuse, "OisO", self, got, wanted, timeout);
    if (found)
        PyErr_SetString(PyExc_RuntimeError, "nothing came of it");
    Py_XDECREF(found);
    return NULL;
}
