"""`share` of other libraries' arrays, where DLPack's exchange API says all."""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from exchange import Tensor, capsule
from xpushare.adapters.mock import ForeignArray, MockStream
from xpushare.adapters.mock.adapter import default_stream
from xpushare.arrays import description, place
from xpushare.sharing import node
from xpushare.sharing.handle import fields_of


def export_of(handle: xs.ArrayHandle) -> Any:
    found = node.current().table().find(handle.handle)
    assert found is not None
    return found


def exports() -> int:
    count: int = node.current().table().statistics()["exports"]
    return count


# --- torch's tensors on the host


torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
with_exchange = pytest.mark.skipif(
    torch is None or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="needs torch 2.11"
)


@pytest.fixture
def base() -> Any:
    return torch.from_dlpack(xs.malloc_host(1 << 12).as_array(512, "f4", 64))


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arrays that were described one by one, not by their kind."""
    seen: list[Any] = []
    describe = description.describe
    monkeypatch.setattr(description, "describe", lambda array, *more: seen.append(array) or describe(array, *more))
    return seen


@with_exchange
@pytest.mark.parametrize(
    "view",
    [
        lambda base: base,
        lambda base: base[64:128].view(8, 8).t(),
        lambda base: base[3::5],
        lambda base: base[7],
        lambda base: base[:1].expand(4, 2),
        lambda base: base.view(torch.bfloat16)[:10],
        lambda base: base.view(torch.bool)[9:10],
    ],
)
def test_tensors_over_memory_of_ours(base: Any, view: Any, described: list[Any]) -> None:
    """The handle says what the tensor is, and names the bytes that its elements span."""
    tensor = view(base)
    whole = fields_of(xs.share(base, ttl=60).handle)
    itemsize = tensor.element_size()
    steps = tuple(step * itemsize for step in tensor.stride())
    span = itemsize + sum((length - 1) * step for length, step in zip(tensor.shape, steps, strict=True))
    with xs.share(tensor) as handle:
        assert not described
        assert (handle.shape, handle.strides) == (tuple(tensor.shape), steps)
        assert str(handle.dtype) == str(tensor.dtype).removeprefix("torch.")
        mine = fields_of(handle.handle)
        assert mine.offset - whole.offset == tensor.data_ptr() - base.data_ptr()
        assert (mine.nbytes, mine.object, mine.flags) == (span, whole.object, whole.flags)
        assert [each[-1] for each in handle._elements] == [0]
        assert (export_of(handle).foreign, export_of(handle).implicit) == (False, False)
        assert xs.ArrayHandle(bytes(handle)) == handle
        again = xs.attach(handle, like=torch)
        assert torch.equal(again, tensor)
        assert again.stride() == tensor.stride()


@with_exchange
def test_what_the_view_does_not_say(base: Any, described: list[Any]) -> None:
    """Such arrays are described one by one, which says what is wrong with some."""
    xs.share(base, ttl=60)
    before = exports()
    grown = base[:4].requires_grad_()
    turned = base.view(torch.complex64)[:4].conj()
    for each, error, match in (
        (grown, xs.InvalidArgumentError, "gradient"),
        (turned, xs.InvalidArgumentError, "conjugate"),
        (torch.zeros(3), xs.FeatureNotSupportedError, "private to its library"),
        (torch.zeros(3, device="meta"), xs.InvalidArgumentError, "meta"),
    ):
        described.clear()
        with pytest.raises(error, match=match):
            xs.share(each)
        assert len(described) == 1
    with xs.share(base[:0]) as none:
        assert none.shape == (0,)
    with xs.share({"tree": base}) as tree:
        assert len(tree.handles) == 1
    assert exports() == before


# --- a library of devices with streams


class Rows:
    """Bytes of a foreign array from the fourth on, in rows of 4; their library says its stream."""

    stream: MockStream | None = None

    def __init__(self, array: ForeignArray) -> None:
        self.array = array
        self._dims = (ctypes.c_int64 * 2)(2, 4)

    @property
    def mock_stream(self) -> MockStream | None:
        return Rows.stream

    @property
    def __array_interface__(self) -> dict[str, Any]:
        data = (self.array.memory.address + 4, False)
        return {"shape": (2, 4), "typestr": "|u1", "data": data, "version": 3}

    def fill(self, tensor: Tensor) -> None:
        tensor.data, tensor.byte_offset = self.array.memory.address, 4
        tensor.on, tensor.ordinal, tensor.ndim, tensor.shape = 77, 0, 2, ctypes.addressof(self._dims)
        tensor.code, tensor.bits, tensor.lanes = 1, 8, 1


asked: list[int] = []


def _stream(on: int, ordinal: int) -> int:
    asked.append(on)
    return (Rows.stream or default_stream(ordinal)).handle


_capsule = capsule(Rows.fill, _stream)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> type[Rows]:
    """`Rows` are arrays of a library of mock devices, and say all by its exchange API."""
    kind = np.dtype("u1"), xs.Device("mock:0")
    place.KINDS.clear()  # it is told anew what they are
    monkeypatch.setattr(Rows, "__dlpack_c_exchange_api__", _capsule, raising=False)
    monkeypatch.setattr(description, "kind_of", lambda own, *_of: kind if own is Rows else None)
    return Rows


def expect_rows(handle: xs.ArrayHandle, foreign: ForeignArray) -> None:
    found, fields = export_of(handle), fields_of(handle.handle)
    assert (handle.shape, handle.strides, handle.dtype) == ((2, 4), (4, 1), np.dtype("u1"))
    assert (fields.offset, fields.nbytes, fields.object) == (4, 8, found.source.serial)
    assert (found.source.address, found.foreign, found.implicit) == (foreign.memory.address, True, False)
    assert xs.ArrayHandle(bytes(handle)) == handle


@pytest.mark.parametrize("own_stream", [False, True])
def test_arrays_of_a_library_with_streams(
    library: type[Rows], own_stream: bool, described: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    xs.share(xs.empty(3, device="mock:0"), ttl=60)
    stream = MockStream() if own_stream else default_stream(0)
    monkeypatch.setattr(Rows, "stream", stream if own_stream else None)
    foreign = ForeignArray(100)
    rows = library(foreign)
    for _ in range(2):
        with xs.share(rows) as found:
            assert found.event is None
            expect_rows(found, foreign)
    assert asked == [77, 77]
    gate = threading.Event()
    stream.call(gate.wait)
    with xs.share(rows) as found, xs.share(rows) as later:
        (event, point), (other, next_) = *found._events, *later._events
        if not own_stream:  # whose queue ends with what was queued
            assert (event, point + 1) == (other, next_)
        for each in found, later:
            expect_rows(each, foreign)
            assert export_of(each).keep[0] == [rows]
    assert not described
    gate.set()
    stream.synchronize()
    asked.clear()
    foreign.free()
    if own_stream:
        stream.close()


def test_what_counts_is_where_it_lies(
    library: type[Rows], described: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the device that an array's kind says; and one without a kind is described by its other protocols."""
    xs.share(xs.empty(3, device="mock:0"), ttl=60)
    monkeypatch.setattr(description, "view_array", lambda _array: None)  # as for a vendor with an array interface
    foreign = ForeignArray(100)
    for kind in (np.dtype("u1"), xs.Device("mock:1")), None:
        place.KINDS.clear()
        monkeypatch.setattr(description, "kind_of", lambda *_of, kind=kind: kind)
        with xs.share(library(foreign)) as handle:
            assert export_of(handle).source.device == xs.Device("mock:0")
            expect_rows(handle, foreign)
        assert len(described) == 1
        described.clear()
    asked.clear()
    foreign.free()


def test_buffers_over_our_memory_are_described_by_kind(described: list[Any]) -> None:
    """NumPy's arrays and memoryviews, whatever their strides, offsets and access."""
    arrays = [xs.array(np.arange(24).reshape(4, 6).astype(dtype)) for dtype in ("u1", "i4", "f8", "c16", "?", "M8[s]")]
    views: list[Any] = []
    for array in map(np.asarray, arrays):
        fixed = array[1:]
        fixed.flags.writeable = False
        views += [array, array[1:, ::2], array[::-1, ::-1], array.T, array[2:3], array[1, 2, ...], array[:, :1], fixed]
        views += [memoryview(array)[1:]] if array.dtype.kind in "uif" else []
    with xs.share(views) as handle:
        assert not described
        for view, found in zip(views, xs.attach(handle), strict=True):
            expected = np.asarray(view)
            assert (found.shape, found.strides, found.dtype) == (expected.shape, expected.strides, expected.dtype)
            assert found.__array_interface__["data"] == expected.__array_interface__["data"]
            assert np.asarray(found).flags.writeable == expected.flags.writeable


def test_a_dtype_is_in_the_message_once() -> None:
    """Though a buffer of characters gets another one from NumPy each time, and memory of others has no kind."""
    with xs.share(xs.array(np.frombuffer(b"characters", "u1"))) as original:
        attached = np.asarray(xs.attach(original))
        with xs.share(memoryview(attached).cast("c")) as handle:
            assert xs.attach(handle).dtype == np.dtype("S1")
