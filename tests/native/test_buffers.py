"""Mappings, reservations, spans and DLPack."""

import ctypes
import gc
import mmap
import os
import threading
import weakref

import numpy as np
import pytest
from native_peer import load32, n, store32

PAGE = mmap.PAGESIZE


def get_buffer(thing, flags):
    view = ctypes.create_string_buffer(256)
    get = ctypes.pythonapi.PyObject_GetBuffer
    get.argtypes = [ctypes.py_object, ctypes.c_char_p, ctypes.c_int]
    get(thing, view, flags)
    ctypes.pythonapi.PyBuffer_Release(view)


class Owner:
    """Something that a weak reference can watch."""


@pytest.fixture
def fd():
    fd = os.memfd_create("memory")
    os.ftruncate(fd, 4 * PAGE)
    yield fd
    os.close(fd)


def test_mapping(fd):
    whole, second = n.Mapping(fd, 4 * PAGE, populate=True), n.Mapping(fd, PAGE, PAGE)
    assert whole.nbytes == 4 * PAGE
    store32(second.address, 77)
    assert load32(whole.address + PAGE) == 77
    watch = weakref.ref(whole)
    del whole
    assert watch() is None
    with pytest.raises(OSError, match="mmap"):
        n.Mapping(fd, 0)
    with pytest.raises(OSError, match="mmap"):
        n.Mapping(-1, PAGE)
    with pytest.raises(ValueError):
        n.Mapping(fd, 2**64 - 1)


def maps(address):
    with open("/proc/self/maps") as f:
        for line in f:
            low, high = (int(x, 16) for x in line.split()[0].split("-"))
            if low <= address < high:
                return line.split()[1]
    return None


def test_reservation(fd):
    r = n.Reservation(8 * PAGE)
    assert maps(r.address) == "---p"
    r.map(PAGE, fd, 2 * PAGE, PAGE, 2)
    r.map(2 * PAGE, fd, 0, PAGE, 1)
    store32(r.address + PAGE, 5)
    assert np.frombuffer(os.pread(fd, 4, 2 * PAGE), "i4")[0] == 5
    assert maps(r.address + 2 * PAGE) == "r--s"
    r.protect(2 * PAGE, PAGE, 2)
    assert maps(r.address + 2 * PAGE) == "rw-s"
    r.unmap(PAGE, 2 * PAGE)
    assert maps(r.address + PAGE) == "---p"
    for at, nbytes in ((0, 9 * PAGE), (8 * PAGE, PAGE), (1, PAGE), (0, 1), (0, 0), (2**63, PAGE)):
        with pytest.raises(ValueError, match="inside"):
            r.map(at, fd, 0, nbytes, 2)
        with pytest.raises(ValueError, match="inside"):
            r.unmap(at, nbytes)
    with pytest.raises(ValueError, match="access"):
        r.map(0, fd, 0, PAGE, 3)
    with pytest.raises(FileExistsError):
        n.Reservation(PAGE, r.address)
    address = r.address
    del r
    assert maps(address) is None
    again = n.Reservation(8 * PAGE, address)
    assert again.address == address


def test_span_plain():
    data, owner = bytearray(range(16)), Owner()
    a = ctypes.addressof(ctypes.c_char.from_buffer(data))
    s = n.Span(a, 16, False, owner)
    assert (s.address, s.nbytes, s.readonly, s.owner) == (a, 16, False, owner)
    view = memoryview(s)
    assert (view.format, view.shape, view.nbytes, view.readonly) == ("B", (16,), 16, False)
    view[0] = 9
    assert data[0] == 9
    assert memoryview(n.Span(a, 16, True, None)).readonly
    assert memoryview(n.Span(0, 0, False, None)).nbytes == 0
    with pytest.raises(BufferError, match="read-only"):
        get_buffer(n.Span(a, 16, True, None), 1)
    watch, span = weakref.ref(owner), weakref.ref(s)
    del owner, s
    assert watch() is not None
    part = view[4:8]
    view.release()
    assert span() is not None
    part.release()
    assert watch() is None
    assert span() is None


def test_span_shaped():
    data = np.arange(24, dtype="i4").reshape(4, 6)
    a = data.ctypes.data

    def view(base, **kw):
        return n.Span(base, kw.pop("nbytes", 96), False, data, format="i", itemsize=4, **kw)

    got = np.asarray(view(a, shape=(4, 6)))
    assert got.dtype == data.dtype
    assert (got == data).all()
    turned = view(a, shape=(6, 4), strides=(4, 24))
    assert (np.asarray(turned) == data.T).all()
    assert np.asarray(turned).flags.f_contiguous
    with pytest.raises(BufferError, match="contiguous"):
        get_buffer(turned, 0)
    get_buffer(turned, 0x18 | 0x40)  # Fortran order
    with pytest.raises(BufferError, match="C-contiguous"):
        get_buffer(turned, 0x18 | 0x20)
    sparse = view(a, shape=(2, 3), strides=(48, 8))
    assert (np.asarray(sparse) == data[::2, ::2]).all()
    assert view(a, shape=(0, 5)).nbytes == 96
    assert memoryview(view(a, shape=())).ndim == 0
    huge = (2**40, 2**40)
    for shape, strides in (((5, 6), None), ((4, 6), (24, 8)), ((4, 6), (-24, 4)), (huge, None), ((-1,), None)):
        with pytest.raises(ValueError):
            view(a, shape=shape, strides=strides)
    with pytest.raises(ValueError, match="multiple"):
        n.Span(a, 95, False, data, format="i", itemsize=4)
    with pytest.raises(ValueError, match="length"):
        view(a, shape=(4, 6), strides=(4,))


def test_buffer_base():
    class Memory(n.BufferBase):
        __slots__ = ("data",)

        def _span(self):
            if self.data is None:
                raise LookupError("closed")
            return n.Span(ctypes.addressof(ctypes.c_char.from_buffer(self.data)), len(self.data), False, self.data)

    m = Memory()
    m.data = bytearray(b"abc")
    view = memoryview(m)
    assert bytes(view) == b"abc"
    assert isinstance(view.obj, n.Span)
    watch = weakref.ref(m)
    del m
    assert watch() is None  # the view holds the span, not the object
    m = Memory()
    m.data = None
    with pytest.raises(LookupError, match="closed"):
        memoryview(m)

    class Wrong(n.BufferBase):
        def _span(self):
            return b"no"

    with pytest.raises(TypeError, match="Span"):
        memoryview(Wrong())
    with pytest.raises(NotImplementedError):
        memoryview(n.BufferBase())
    cycle = Wrong()
    cycle.me, watch = cycle, weakref.ref(cycle)
    del cycle
    gc.collect()
    assert watch() is None


class Producer:
    def __init__(self, read_only=False, **kw):
        self.data = np.arange(12, dtype="f4")
        self.read_only, self.kw = read_only, kw

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, *, max_version=None, **_):
        versioned = max_version is not None and max_version[0] >= 1
        args = {"shape": (3, 4), "strides": None, **self.kw}
        return n.dlpack_capsule(
            self, self.data.ctypes.data, (1, 0), (2, 32, 1), args["shape"], args["strides"], self.read_only, versioned
        )


@pytest.mark.parametrize("versioned", [False, True])
def test_dlpack_lifetime(versioned):
    p = Producer(strides=(1, 3))
    watch = weakref.ref(p)
    capsule = p.__dlpack__(max_version=(1, 0) if versioned else None)
    assert f'"{"dltensor_versioned" if versioned else "dltensor"}"' in repr(capsule)
    t = n.DLTensor(capsule)
    assert "used_dltensor" in repr(capsule)
    assert (t.address, t.device, t.dtype) == (p.data.ctypes.data, (1, 0), (2, 32, 1))
    assert (t.shape, t.strides, t.read_only) == ((3, 4), (1, 3), False)
    with pytest.raises(ValueError, match="unused"):
        n.DLTensor(capsule)
    del p, capsule
    assert watch() is not None
    del t
    assert watch() is None
    p = Producer()
    watch = weakref.ref(p)
    capsule = p.__dlpack__(max_version=(1, 0) if versioned else None)
    del p, capsule  # nobody took it
    assert watch() is None


def test_dlpack_numpy():
    p = Producer()
    watch = weakref.ref(p)
    a = np.from_dlpack(p)
    assert (a == np.arange(12, dtype="f4").reshape(3, 4)).all()
    del p
    row = a[1]
    del a
    assert watch() is not None
    del row
    assert watch() is None
    t = n.DLTensor(np.arange(6, dtype="i2").reshape(2, 3).__dlpack__())
    assert (t.dtype, t.shape) == ((0, 16, 1), (2, 3))


def test_dlpack_refusals():
    with pytest.raises(BufferError, match="read-only"):
        Producer(read_only=True).__dlpack__()
    assert n.DLTensor(Producer(read_only=True).__dlpack__(max_version=(1, 1))).read_only
    with pytest.raises(ValueError):
        Producer(shape=(3,), strides=(1, 2)).__dlpack__()
    for bad in (None, 3, object()):
        with pytest.raises(ValueError, match="unused"):
            n.DLTensor(bad)
    future = (ctypes.c_uint32 * 32)(2, 0)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    with pytest.raises(BufferError, match="version"):
        n.DLTensor(new(ctypes.addressof(future), b"dltensor_versioned", None))


def test_dlpack_one_capsule_many_threads():
    for _ in range(20):
        capsule, taken, gate = Producer().__dlpack__(), [], threading.Barrier(4)

        def take(capsule=capsule, taken=taken, gate=gate):
            gate.wait()
            try:
                taken.append(n.DLTensor(capsule))
            except ValueError:
                pass

        threads = [threading.Thread(target=take) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(taken) == 1


def test_a_view_needs_the_exchange_api():
    """Which the capsule of a type is, and nothing else."""
    capsule = n.dlpack_capsule(None, 0, (1, 0), (0, 8, 1), (0,), None, False, True)
    for nothing in None, "api", capsule:
        kind = type("Kind", (), {"__dlpack_c_exchange_api__": nothing})
        assert n.view_array(kind()) is None
    assert n.view_array(b"") is None
    with pytest.raises(TypeError):
        n.view_array()
