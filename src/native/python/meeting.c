/* meet(): attaches to an exporter. Refusal: why an exporter could not be reached. */
#include "meeting.h"

static PyStructSequence_Field fields[] = {
    {"code", "one of the constants REFUSED_…"},
    {"errno", "of the system call that failed, or 0"},
    {"what", "that call, or what is wrong"},
    {"detail", "the number that does not fit"},
    {NULL, NULL},
};
static PyStructSequence_Desc refusal_desc = {"xpushare._native.Refusal", NULL, fields, 4};

PyObject *xp_refused(const xp_types *types, const xp_refusal *why)
{
    PyObject *refusal = PyStructSequence_New(types->refusal);
    PyObject *all[] = {PyLong_FromLong(why->code), PyLong_FromLong(why->error),
                       PyUnicode_FromString(why->what ? why->what : ""), PyLong_FromUnsignedLongLong(why->detail)};
    for (Py_ssize_t i = 0; i < 4; i++) {
        if (refusal && all[i]) {
            PyStructSequence_SetItem(refusal, i, all[i]);
        } else {
            Py_CLEAR(refusal);
            Py_XDECREF(all[i]);
        }
    }
    return refusal;
}

/* Make the Python objects of an exporter that was met. Takes over `met`. */
static PyObject *own_met(const xp_types *types, const xp_met *met, PyObject *table, PyObject *pidfd)
{
    PyObject *all[] = {xp_mapping_new(types->mapping, met->table, XP_TABLE_SIZE),
                       xp_domain_new(types->domain, met->domain), Py_XNewRef(table), Py_XNewRef(pidfd)};
    return xp_tuple_of(all, 4);
}

static PyObject *meet_directly(const xp_types *types, const xp_handle *h)
{
    xp_exporter_fds r;
    xp_met met;
    xp_refusal why;
    bool good;
    Py_BEGIN_ALLOW_THREADS
    good = xp_fetch_exporter_fds(h, &r, &why);
    if (good && !xp_meet(h, &r, &met, &why)) {
        xp_close_exporter_fds(&r);
        good = false;
    }
    Py_END_ALLOW_THREADS
    if (!good)
        return xp_refused(types, &why);
    PyObject *table = xp_own_fd(types->owned_fd, r.table, "pidfd_getfd");
    PyObject *pidfd = xp_own_fd(types->owned_fd, r.pidfd, "pidfd_open");
    PyObject *found = own_met(types, &met, table, pidfd);
    Py_XDECREF(table);
    Py_XDECREF(pidfd);
    return found;
}

/* Meet it by three OwnedFds and perhaps a pidfd, which some route brought. */
static PyObject *meet_by(const xp_types *types, const xp_handle *h, PyObject *const *fds, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        if (!PyObject_TypeCheck(fds[i], types->owned_fd))
            return xp_refuse(PyExc_TypeError, "meet() takes Fields, then OwnedFds");
    xp_exporter_fds r = {xp_fd_number(fds[0]), xp_fd_number(fds[1]), xp_fd_number(fds[2]), -1};
    xp_met met;
    xp_refusal why;
    bool good = XP_UNLOCKED(xp_meet(h, &r, &met, &why));
    if (!good)
        return xp_refused(types, &why);
    xp_take_fd(fds[1]); /* they are the domain's */
    xp_take_fd(fds[2]);
    return own_met(types, &met, fds[0], n > 3 ? fds[3] : Py_None);
}

static PyObject *meet(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    const xp_types *types = xp_types_of(module);
    if (xp_arity("meet", n, 1, 5) < 0)
        return NULL;
    const xp_handle *h = xp_fields_of(types, args[0]);
    if (h == NULL || n == 2 || n == 3)
        return xp_refuse(PyExc_TypeError, "meet() takes Fields, then none or at least three descriptors");
    return n == 1 ? meet_directly(types, h) : meet_by(types, h, args + 1, n - 1);
}

static PyMethodDef functions[] = {
    {"meet", XP_FAST(meet), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

int xp_init_meeting(PyObject *module)
{
    PyTypeObject *type = PyStructSequence_NewType(&refusal_desc);
    xp_types_of(module)->refusal = type;
    int rc = type ? PyModule_AddObjectRef(module, "Refusal", (PyObject *)type) : -1;
    return rc < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
