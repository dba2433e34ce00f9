/* Copies, mappings of fds and reserved address space. */
#include "objects.h"

#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

static int block_args(const char *name, uint64_t address, uint64_t nbytes)
{
    if (nbytes && (address < XP_LEAST_ADDRESS || address + nbytes < address)) {
        PyErr_Format(PyExc_ValueError, "%s(): no such address range", name);
        return -1;
    }
    return 0;
}

static PyObject *copy(PyObject *Py_UNUSED(m), PyObject *const *args, Py_ssize_t n)
{
    uint64_t dst, src, nbytes;
    if (xp_arity("copy", n, 3, 3) < 0 || xp_as_u64(args[0], &dst) < 0 || xp_as_u64(args[1], &src) < 0 ||
        xp_as_u64(args[2], &nbytes) < 0 || block_args("copy", dst, nbytes) < 0 || block_args("copy", src, nbytes) < 0)
        return NULL;
    if (nbytes)
        XP_UNLOCKED_DO(memmove((void *)(uintptr_t)dst, (void *)(uintptr_t)src, nbytes));
    Py_RETURN_NONE;
}

static PyObject *fill(PyObject *Py_UNUSED(m), PyObject *const *args, Py_ssize_t n)
{
    uint64_t dst, nbytes;
    Py_buffer pattern;
    if (xp_arity("fill", n, 3, 3) < 0 || xp_as_u64(args[0], &dst) < 0 || xp_as_u64(args[2], &nbytes) < 0 ||
        block_args("fill", dst, nbytes) < 0 || PyObject_GetBuffer(args[1], &pattern, PyBUF_SIMPLE) < 0)
        return NULL;
    uint64_t unit = (uint64_t)pattern.len;
    if (unit == 0 || nbytes % unit) {
        PyBuffer_Release(&pattern);
        return xp_refuse(PyExc_ValueError, "fill(): nbytes must be a multiple of the pattern's length");
    }
    XP_UNLOCKED_DO(xp_fill((char *)(uintptr_t)dst, pattern.buf, unit, nbytes));
    PyBuffer_Release(&pattern);
    Py_RETURN_NONE;
}

static PyObject *mapped(PyObject *Py_UNUSED(m), PyObject *const *args, Py_ssize_t n)
{
    static const char *const answers[] = {"", "r", "rw"};
    uint64_t address, nbytes;
    bool ours;
    int found;
    if (xp_arity("mapped", n, 2, 2) < 0 || xp_as_u64(args[0], &address) < 0 || xp_as_u64(args[1], &nbytes) < 0)
        return NULL;
    found = XP_UNLOCKED(xp_mapped(address, nbytes, &ours));
    return found < 0 ? xp_oserror_of(errno, "/proc/self/maps") : PyUnicode_FromString(answers[found]);
}

/* readable(address, nbytes): any integers. Numbers that are no address are not readable. */
static PyObject *readable(PyObject *Py_UNUSED(m), PyObject *const *args, Py_ssize_t n)
{
    uint64_t address, nbytes;
    bool found;
    if (xp_arity("readable", n, 2, 2) < 0)
        return NULL;
    if (xp_as_u64(args[0], &address) < 0 || xp_as_u64(args[1], &nbytes) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return NULL;
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    found = XP_UNLOCKED(address >= XP_LEAST_ADDRESS && xp_readable(address, nbytes));
    return PyBool_FromLong(found);
}

/* --- Mapping and Reservation: the same object with different methods ---------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    char *base;
    uint64_t nbytes;
    unsigned forks; /* begun before the mapping was made */
} xp_range;

static void range_end(PyObject *self)
{
    xp_range *r = (xp_range *)self;
    if (r->base)
        munmap(r->base, r->nbytes);
}

XP_LIFE_PLAIN(range, .end = range_end, .weakrefs = offsetof(xp_range, weakrefs))

static PyObject *range_new(PyTypeObject *type, char *base, uint64_t nbytes)
{
    xp_range *r = (xp_range *)PyType_GenericAlloc(type, 0);
    if (r == NULL) {
        munmap(base, nbytes);
        return NULL;
    }
    r->base = base;
    r->nbytes = nbytes;
    r->forks = XP_RELAXED(&xp_forks_begun);
    return (PyObject *)r;
}

static PyMemberDef range_members[] = {
    XP_WEAKREFS(xp_range),
    {"address", T_ULONGLONG, offsetof(xp_range, base), READONLY, NULL},
    {"nbytes", T_ULONGLONG, offsetof(xp_range, nbytes), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *mapping_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", "nbytes", "offset", "writable", "populate", NULL};
    int fd, writable = 1, populate = 0;
    PyObject *o_nbytes, *o_offset = NULL;
    uint64_t nbytes, offset = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO|Opp", names, &fd, &o_nbytes, &o_offset, &writable, &populate) ||
        xp_as_u64(o_nbytes, &nbytes) < 0 || (o_offset && xp_as_u64(o_offset, &offset) < 0))
        return NULL;
    if (nbytes > INT64_MAX || offset > INT64_MAX - nbytes)
        return xp_refuse(PyExc_ValueError, "a mapping of that size or offset cannot be");
    char *base = XP_UNLOCKED(mmap(NULL, nbytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                             MAP_SHARED | (populate ? MAP_POPULATE : 0), fd, (off_t)offset));
    return base == MAP_FAILED ? xp_oserror("mmap") : range_new(type, base, nbytes);
}

static PyObject *reservation_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nbytes", "address", NULL};
    PyObject *o_nbytes, *o_address = NULL;
    uint64_t nbytes, address = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O", names, &o_nbytes, &o_address) ||
        xp_as_u64(o_nbytes, &nbytes) < 0 || (o_address && xp_as_u64(o_address, &address) < 0))
        return NULL;
    if (nbytes > INT64_MAX)
        return xp_refuse(PyExc_ValueError, "a reservation of that size cannot be");
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (address ? MAP_FIXED_NOREPLACE : 0);
    char *base = mmap((void *)(uintptr_t)address, nbytes, PROT_NONE, flags, -1, 0);
    if (base == MAP_FAILED)
        return xp_oserror("mmap");
    if (address && base != (char *)(uintptr_t)address) { /* kernels before 4.17 treat the address as a hint */
        munmap(base, nbytes);
        return xp_oserror_of(EEXIST, "mmap");
    }
    return range_new(type, base, nbytes);
}

static int range_part(xp_range *r, uint64_t at, uint64_t nbytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (nbytes == 0 || at % page || nbytes % page || at > r->nbytes || nbytes > r->nbytes - at)
        return xp_invalid("not whole pages inside the reservation");
    return 0;
}

static int access_bits(int access)
{
    if (access < 0 || access > 2)
        return xp_invalid("access must be 0, 1 or 2");
    return access == 0 ? PROT_NONE : access == 1 ? PROT_READ : PROT_READ | PROT_WRITE;
}

static PyObject *reservation_map(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    xp_range *r = (xp_range *)self;
    uint64_t at, offset, nbytes;
    int fd, access, bits;
    if (xp_arity("map", n, 5, 5) < 0 || xp_as_u64(args[0], &at) < 0 || xp_as_int(args[1], &fd) < 0 ||
        xp_as_u64(args[2], &offset) < 0 || xp_as_u64(args[3], &nbytes) < 0 || xp_as_int(args[4], &access) < 0 ||
        range_part(r, at, nbytes) < 0 || (bits = access_bits(access)) < 0)
        return NULL;
    if (offset > INT64_MAX - nbytes)
        return xp_refuse(PyExc_ValueError, "not an offset of a file");
    if (mmap(r->base + at, nbytes, bits, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) == MAP_FAILED)
        return xp_oserror("mmap");
    Py_RETURN_NONE;
}

static PyObject *reservation_unmap(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    xp_range *r = (xp_range *)self;
    uint64_t at, nbytes;
    if (xp_arity("unmap", n, 2, 2) < 0 || xp_as_u64(args[0], &at) < 0 || xp_as_u64(args[1], &nbytes) < 0 ||
        range_part(r, at, nbytes) < 0)
        return NULL;
    void *p = mmap(r->base + at, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (p == MAP_FAILED)
        return xp_oserror("mmap");
    Py_RETURN_NONE;
}

static PyObject *reservation_protect(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"at", "nbytes", "access", NULL};
    xp_range *r = (xp_range *)self;
    PyObject *o_at, *o_nbytes;
    uint64_t at, nbytes;
    int access, bits;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOi", names, &o_at, &o_nbytes, &access) ||
        xp_as_u64(o_at, &at) < 0 || xp_as_u64(o_nbytes, &nbytes) < 0 || range_part(r, at, nbytes) < 0 ||
        (bits = access_bits(access)) < 0)
        return NULL;
    if (mprotect(r->base + at, nbytes, bits) < 0)
        return xp_oserror("mprotect");
    Py_RETURN_NONE;
}

PyObject *xp_mapping_new(PyTypeObject *type, char *base, uint64_t nbytes) { return range_new(type, base, nbytes); }

const char *xp_mapping_base(PyObject *mapping, uint64_t *nbytes)
{
    *nbytes = ((xp_range *)mapping)->nbytes;
    return ((xp_range *)mapping)->base;
}

static PyObject *mapping_imported(PyObject *cls, PyObject *args)
{
    int fd, writable;
    unsigned long long inode, nbytes;
    char *base;
    xp_error error;
    if (!PyArg_ParseTuple(args, "iKKp", &fd, &inode, &nbytes, &writable))
        return NULL;
    xp_memfd wanted = {.inode = inode, .nbytes = nbytes};
    base = XP_UNLOCKED(xp_map_memfd(fd, &wanted, writable, NULL, &error));
    return base ? range_new((PyTypeObject *)cls, base, nbytes) : xp_raise(&error);
}

static PyObject *mapping_keep(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    xp_range *r = (xp_range *)self;
    PyObject *o_fd = xp_arity("keep", n, 2, 2) < 0 ? NULL : args[0];
    int owned = o_fd ? PyObject_IsTrue(args[1]) : -1;
    if (owned < 0)
        return NULL;
    if (o_fd != Py_None && PyObject_TypeCheck(o_fd, ((xp_types *)PyType_GetModuleState(Py_TYPE(self)))->owned_fd) == 0)
        return xp_refuse(PyExc_TypeError, "keep() takes an OwnedFd or None");
    int fd = o_fd == Py_None ? -1 : xp_take_fd(o_fd);
    char *base = r->base;
    uint64_t number = 0;
    r->base = NULL;
    if (base == NULL)
        return PyLong_FromLong(0);
    Py_BEGIN_ALLOW_THREADS
    number = xp_keep(base, r->nbytes, fd, r->forks, owned);
    if (number == 0) {
        munmap(base, r->nbytes);
        if (fd >= 0)
            xp_close_received(fd);
    }
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLongLong(number);
}

/* Return (mapping, fd), which take over both. */
static PyObject *with_fd(PyTypeObject *cls, char *base, uint64_t nbytes, int number)
{
    PyObject *fd = number < 0 ? Py_NewRef(Py_None)
                              : xp_own_fd(((xp_types *)PyType_GetModuleState(cls))->owned_fd, number, "dup");
    PyObject *mapping = range_new(cls, base, nbytes);
    if (fd && mapping)
        return Py_BuildValue("(NN)", mapping, fd);
    Py_XDECREF(fd);
    Py_XDECREF(mapping);
    return NULL;
}

static PyObject *mapping_kept(PyObject *cls, PyObject *arg)
{
    uint64_t nbytes;
    char *base;
    int number;
    bool found;
    if (xp_as_u64(arg, &nbytes) < 0)
        return NULL;
    found = XP_UNLOCKED(xp_take_kept(nbytes, &base, &number));
    if (!found)
        Py_RETURN_NONE;
    return with_fd((PyTypeObject *)cls, base, nbytes, number);
}

static PyObject *mapping_owned(PyObject *cls, PyObject *arg)
{
    uint64_t number, nbytes;
    char *base;
    int fd;
    bool found;
    if (xp_as_u64(arg, &number) < 0)
        return NULL;
    found = XP_UNLOCKED(xp_take_owned(number, &base, &nbytes, &fd));
    if (!found)
        Py_RETURN_NONE;
    return with_fd((PyTypeObject *)cls, base, nbytes, fd);
}

XP_TYPE(mapping_spec, "Mapping", xp_range, Py_TPFLAGS_DEFAULT, {Py_tp_new, mapping_new}, {Py_tp_dealloc, range_dealloc},
        {Py_tp_members, range_members},
        XP_METHODS({"keep", XP_FAST(mapping_keep), METH_FASTCALL, NULL},
                   {"kept", mapping_kept, METH_O | METH_CLASS, NULL},
                   {"owned", mapping_owned, METH_O | METH_CLASS, NULL},
                   {"imported", mapping_imported, METH_VARARGS | METH_CLASS, NULL}))

XP_TYPE(reservation_spec, "Reservation", xp_range, Py_TPFLAGS_DEFAULT, {Py_tp_new, reservation_new},
        {Py_tp_dealloc, range_dealloc}, {Py_tp_members, range_members},
        XP_METHODS({"map", XP_FAST(reservation_map), METH_FASTCALL, NULL},
                   {"unmap", XP_FAST(reservation_unmap), METH_FASTCALL, NULL},
                   {"protect", XP_FAST(reservation_protect), METH_VARARGS | METH_KEYWORDS, NULL}))

XP_METHOD(trim, PyLong_FromUnsignedLongLong(XP_UNLOCKED(xp_trim())))
XP_METHOD(kept_nbytes, PyLong_FromUnsignedLongLong(xp_kept_nbytes()))

XP_PART(memory,
        XP_FUNCTIONS({"trim", trim, METH_NOARGS, NULL},
                     {"kept_nbytes", kept_nbytes, METH_NOARGS, NULL},
                     {"copy", XP_FAST(copy), METH_FASTCALL, NULL},
                     {"fill", XP_FAST(fill), METH_FASTCALL, NULL},
                     {"mapped", XP_FAST(mapped), METH_FASTCALL, NULL},
                     {"readable", XP_FAST(readable), METH_FASTCALL, NULL}),
        XP_KEEP(mapping_spec, mapping), XP_ADD(reservation_spec))
