"""An array is shared with its meaning or refused: never other values, another class or another type of elements."""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import Child
from xpushare._native import LEAST_ADDRESS, dlpack_capsule, readable

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
with_torch = pytest.mark.skipif(torch is None, reason="needs torch")

Take = Callable[[Any], Any]


def received_in_channel(x: Any) -> Any:
    with xs.Channel.create(None, nbytes=1 << 16) as writer, xs.Channel.open(writer.handle) as reader:
        writer.send(x)
        return np.array(reader.receive(5).array)


def received_in_frame(x: Any) -> Any:
    dtype = x.dtype if getattr(x.dtype, "names", None) else str(x.dtype).removeprefix("torch.")
    with xs.Channel.create(None, tuple(x.shape), dtype) as writer, xs.Channel.open(writer.handle) as reader:
        writer.send(x)
        return np.array(reader.receive(5))


def shared(x: Any) -> Any:
    with xs.share(x) as handle:
        return np.array(xs.attach(handle))


def shared_copy(x: Any) -> Any:
    with xs.share(x, copy=True) as handle:
        return np.array(xs.attach(handle))


def shared_in_tree(x: Any) -> Any:
    with xs.share({"a": [x]}, copy=True) as handle:
        return np.array(xs.attach(handle)["a"][0])


def shared_array(x: Any) -> Any:
    return np.array(xs.array(x))


def published_copy(x: Any) -> Any:
    handle = xs.share(x, copy=True)
    xs.publish("meaning", handle, replace=True)
    try:
        return np.array(xs.attach(xs.lookup("meaning", timeout=5)))
    finally:
        xs.unpublish("meaning")
        handle.close()


COPIES = [shared_copy, shared_in_tree, shared_array, received_in_channel, received_in_frame, published_copy]
EVERY = [shared, *COPIES]


@pytest.fixture
def child() -> Iterator[Child]:
    """A process for arrays whose addresses are wrong: reading them would end it."""
    with Child(imports=["torch"] if torch is not None else []) as made:
        yield made


# --- addresses that another library gives


def test_what_this_process_can_read() -> None:
    page = mmap.PAGESIZE
    base = mmap.mmap(-1, 4 * page)
    at = ctypes.addressof(ctypes.c_char.from_buffer(base))
    libc = ctypes.CDLL(None, use_errno=True)
    for address, nbytes, expected in (
        (at, 0, True), (at, 1, True), (at, 4 * page, True), (at + 3, 4 * page - 3, True), (at + 4 * page - 1, 1, True),
        (0, 1, False), (400, 8, False), (LEAST_ADDRESS - 1, 8, False), (-8, 4, False), (1 << 64, 4, False),
        ((1 << 64) - 4, 8, False), (at, 1 << 62, False), (at, -1, False), ((1 << 64) - page, page, False),
    ):  # fmt: skip
        assert readable(address, nbytes) is expected, (address, nbytes)
    assert libc.mprotect(ctypes.c_void_p(at + 3 * page), page, 0) == 0
    assert not readable(at, 3 * page + 1)
    assert readable(at, 3 * page)
    assert libc.munmap(ctypes.c_void_p(at + page), page) == 0
    assert not readable(at, 3 * page), "the hole is in the middle"


class Interface:
    """An array of 100 floats that says any address."""

    dtype = np.dtype("f4")

    def __init__(self, address: int, shape: tuple[int, ...] = (100,), strides: Any = None) -> None:
        self.shape = shape
        self.__array_interface__ = {
            "shape": shape, "typestr": "<f4", "data": (address, False), "version": 3, "strides": strides,
        }  # fmt: skip


class Exchange:
    """The same by DLPack."""

    dtype = np.dtype("f4")
    shape = (100,)

    def __init__(self, address: int) -> None:
        self.address = address

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_options: Any) -> Any:
        return dlpack_capsule(self, self.address, (1, 0), (2, 32, 1), (100,), (1,), False, False)


def refuse_wrong_addresses(takes: list[Take], end: int) -> None:
    """`end` is where a page ends behind which none can be read."""
    for take in takes:
        for make in (Interface, Exchange):
            for address in (0, 8, 400, end - 8, (1 << 64) - 8, 1 << 47, 0xDEAD0000000):
                with pytest.raises(xs.XpuShareError, match=r"address|private to its library"):
                    take(make(address))
        with pytest.raises(xs.XpuShareError):
            take(Interface(end - 400, strides=(-400_000_000_000,)))
        with pytest.raises(xs.XpuShareError):
            take(Interface(end - 400, (-1,)))


def at_the_end() -> int:
    """Return an address behind which no page can be read. It stays reserved, so that nothing else comes there."""
    page = mmap.PAGESIZE
    base = mmap.mmap(-1, 2 * page)
    at = ctypes.addressof(ctypes.c_char.from_buffer(base)) + page
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(at), page, 0) == 0
    KEPT.append(base)
    return at


KEPT: list[Any] = []


def _refuse_in_child(names: list[str]) -> None:
    refuse_wrong_addresses([globals()[name] for name in names], at_the_end())


def test_wrong_addresses_are_refused(child: Child) -> None:
    child.call(_refuse_in_child, [each.__name__ for each in EVERY])


def _wrapper(offset: int, flatten: bool) -> Any:
    """A tensor subclass without memory, which says the storage offset of the tensor that it wraps."""

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls: Any, inner: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(
                cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype
            )

        @classmethod
        def __torch_dispatch__(cls, function: Any, _types: Any, args: Any = (), options: Any = None) -> Any:
            return cls(torch.arange(1000.0)[100:200]) if "detach" in str(function) else function(*args, **options)

    if flatten:
        Wrapper.__tensor_flatten__ = lambda _self: (["inner", "scale"], None)  # type: ignore[attr-defined]
    return Wrapper(torch.arange(1000.0)[offset : offset + 100])


def _refuse_wrappers(names: list[str]) -> None:
    for name in names:
        for offset in (0, 100):
            with pytest.raises(xs.InvalidArgumentError, match=r"__tensor_flatten__\(\), which are x.inner, x.scale"):
                globals()[name](_wrapper(offset, True))
            with pytest.raises(xs.InvalidArgumentError, match="as_subclass"):
                globals()[name](_wrapper(offset, False))
    with pytest.raises(xs.InvalidArgumentError, match=r"at 'layers\.0\.w': "):
        xs.share({"layers": [{"v": 1, "w": _wrapper(100, True)}]}, copy=True)


@with_torch
def test_tensors_that_wrap_others_are_refused(child: Child) -> None:
    child.call(_refuse_wrappers, [each.__name__ for each in EVERY])


# --- values that are computed when they are read


def _lazy() -> dict[str, tuple[Any, list[Any]]]:
    """Tensors that mean other values than their memory has, and those values."""
    pair = torch.view_as_complex(torch.from_dlpack(xs.empty((3, 2), "f4")))
    pair.copy_(torch.complex(torch.ones(3), torch.tensor([4.0, 5.0, 6.0])))
    private = torch.complex(torch.ones(3), torch.tensor([4.0, 5.0, 6.0]))
    return {
        "resolve_neg": (private.conj().imag, [-4, -5, -6]),
        "resolve_neg in place": (pair.conj().imag, [-4, -5, -6]),
        "resolve_neg of one": (torch._neg_view(torch.ones(1, dtype=torch.int64)), [-1]),
        "resolve_conj": (private.conj(), [1 - 4j, 1 - 5j, 1 - 6j]),
        "resolve_conj in place": (pair.conj()[1:], [1 - 5j, 1 - 6j]),
        "clone": (torch._efficientzerotensor(3), [0, 0, 0]),
    }


@with_torch
@pytest.mark.parametrize("take", COPIES)
def test_a_copy_has_the_values(take: Take) -> None:
    for tensor, values in _lazy().values():
        assert take(tensor).tolist() == values


@with_torch
def test_without_a_copy_they_are_refused() -> None:
    for advice, (tensor, _values) in _lazy().items():
        for tree in (tensor, [torch.from_dlpack(xs.zeros(3, "f4")), tensor]):
            with pytest.raises(xs.InvalidArgumentError, match=advice.partition(" ")[0]):
                xs.share(tree)


# --- classes


class Metres(np.ndarray[Any, Any]):
    """An array with a unit."""


def _subclasses() -> list[Any]:
    return [
        np.asmatrix(np.ones((2, 2))), np.ones(3).view(Metres), np.ma.masked_array([1.0, 2.0], [True, False]),
        np.char.array(["a", "b"]), np.asarray(xs.zeros(3)).view(Metres),
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("take", EVERY)
def test_other_subclasses_of_ndarray_are_refused(take: Take) -> None:
    for each in _subclasses():
        with pytest.raises(xs.InvalidArgumentError, match=r"np.asarray\(x\)"):
            take(each)


@pytest.mark.parametrize("take", [each for each in COPIES if each is not received_in_frame])
def test_memmap_and_recarray_arrive_as_ndarray(take: Take, tmp_path: Any) -> None:
    records = np.rec.array([(1, 2.5), (3, 4.5)], dtype=[("id", "i8"), ("x", "f4")])
    mapped = np.memmap(tmp_path / "file", "i4", "w+", shape=3)
    mapped[:] = 7
    for each in (records, mapped):
        found = take(each)
        assert type(found) is np.ndarray
        assert found.tolist() == each.tolist()
        assert found.dtype.names == each.dtype.names


@pytest.mark.parametrize("take", EVERY)
def test_metadata_of_dtypes_is_refused(take: Take) -> None:
    unit = np.dtype("f8", metadata={"unit": "m"})
    for dtype in (unit, np.dtype([("x", "i4"), ("y", unit)]), np.dtype([("x", [("y", unit, 2)])])):
        with pytest.raises(xs.InvalidArgumentError, match=r"metadata.*np.asarray\(x\)"):
            take(np.zeros(3, dtype))
        with pytest.raises(xs.InvalidArgumentError, match="metadata"):
            xs.empty(3, dtype)
    if take is not shared:
        assert take(np.asarray(np.ones(3, unit)).view("<f8")).tolist() == [1, 1, 1]


def _refused_tensors() -> dict[str, Any]:
    class Ordinary(torch.Tensor):
        pass

    class Spread(torch.Tensor):
        def to_local(self) -> Any:
            return self

    nothing = torch.ones(3)
    nothing.untyped_storage().resize_(0)
    inside: list[Any] = []
    torch.vmap(lambda x: (inside.append(x), x)[1])(torch.ones(2, 2))
    with importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode():
        fake = torch.ones(3)
    return {
        "as_subclass": torch.ones(3).as_subclass(Ordinary),
        "to_local": torch.ones(3).as_subclass(Spread),
        "FakeTensor has no values": fake,
        "lazy module": torch.nn.LazyLinear(3).weight,
        "sparse": torch.eye(3).to_sparse(),
        "sparse.*csr": torch.eye(3).to_sparse_csr(),
        "unbind": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "is nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "int_repr": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
        "meta device": torch.empty(3, device="meta"),
        "view.torch.uint8": torch.empty(4, dtype=torch.uint4),
        "torch.int3": torch.empty(4, dtype=torch.int3),
        "of 0 bytes": nothing,
        "function transform": inside[0],
    }


@with_torch
@pytest.mark.filterwarnings("ignore:.*(sparse|nested|quantize).*:UserWarning")
@pytest.mark.parametrize("take", [each for each in EVERY if each is not received_in_frame])
def test_tensors_that_mean_more_are_refused(take: Take) -> None:
    for match, tensor in _refused_tensors().items():
        with pytest.raises(xs.InvalidArgumentError, match=match):
            take(tensor)


@with_torch
def test_elements_below_a_byte_are_no_bytes() -> None:
    """DLPack says `uint8` for `uint4`, in memory that could be shared, and after an array of bytes was shared."""
    memory = torch.from_dlpack(xs.zeros(8, "u1"))
    xs.share(memory, ttl=60)
    for tree in (memory.view(torch.uint4), [memory, memory.view(torch.uint4)]):
        with pytest.raises(xs.InvalidArgumentError, match="uint4"):
            xs.share(tree)
    for dtype in (torch.uint8, torch.int8, torch.bool):
        with xs.share(memory.view(dtype)) as handle:
            assert xs.attach(handle, like=torch).dtype is dtype


@with_torch
def test_parameters_and_buffers_are_tensors() -> None:
    made = torch.from_dlpack(xs.zeros(3, "f4"))
    for each in (torch.nn.Parameter(made), torch.nn.Buffer(made), torch.nn.Parameter(made, requires_grad=False)):
        for take in EVERY:
            assert take(each).tolist() == [0, 0, 0]


# --- objects whose protocols raise


class Raises:
    """An object whose attributes raise what another library may raise."""

    def __init__(self, name: str, error: Exception) -> None:
        self._raises = name, error

    def __getattr__(self, name: str) -> Any:
        wanted, error = object.__getattribute__(self, "_raises")
        if name == wanted:
            raise error
        if name == "__dlpack_device__":
            return lambda: (1, 0)
        raise AttributeError(name)


@pytest.mark.parametrize("take", [each for each in EVERY if each is not received_in_frame])
def test_exceptions_of_other_libraries_are_documented_errors(take: Take) -> None:
    for name in ("__array_interface__", "__dlpack__", "__dlpack_device__", "__cuda_array_interface__", "requires_grad"):
        for error in (ValueError("no"), TypeError("no"), RuntimeError("no"), RecursionError(), OverflowError("no")):
            with pytest.raises(xs.XpuShareError):
                take(Raises(name, error))


class Shaped:
    """An object whose DLPack capsule has this shape and these strides."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.values = np.arange(4.0)
        self._layout = shape, strides

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_options: Any) -> Any:
        return dlpack_capsule(self, self.values.ctypes.data, (1, 0), (2, 64, 1), *self._layout, False, False)


@pytest.mark.parametrize("take", [each for each in EVERY if each is not received_in_frame])
@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((1,), (1 << 60,)),
        ((1, 4), (-(1 << 62), 1)),
        ((1,), (-(1 << 63),)),
        ((0,), (1 << 61,)),
        ((1 << 62, 0, 1 << 62), (1, 1, 1)),
        ((0, 1 << 62), (1, 1)),
    ],
)
def test_shapes_and_strides_beyond_64_bits_are_refused(
    take: Take, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    with pytest.raises(xs.InvalidArgumentError):
        take(Shaped(shape, strides))
