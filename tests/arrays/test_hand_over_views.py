"""`share` of other libraries' arrays by one native call, where DLPack's exchange API says all."""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from typing import Any

import numpy as np
import pytest
from array_peer import long_way

import xpushare as xs
from exchange import Tensor, capsule
from xpushare import _hand_over
from xpushare._array_handle import checked_parts, encode_dtype
from xpushare._native import HandOver
from xpushare.adapters.mock import ForeignArray, MockStream
from xpushare.adapters.mock.others import default_stream
from xpushare.sharing import node
from xpushare.sharing.handle import fields_of

pytestmark = pytest.mark.skipif(bool(_hand_over.off), reason="the native way is switched off")


def same(found: xs.ArrayHandle | None, expected: xs.ArrayHandle) -> None:
    """All but the entry of each."""
    assert found is not None
    parts, others = checked_parts(found), checked_parts(expected)
    assert parts[1:] == others[1:]
    assert [type(each) for each in parts] == [type(each) for each in others]
    mine, other = fields_of(parts.memory), fields_of(others.memory)
    for name in ("backend", "device_uuid", "object", "offset", "nbytes", "exposed_nbytes", "flags", "kind"):
        assert getattr(mine, name) == getattr(other, name), name
    exports = node.current().table()._exports
    export, another = exports[mine.generation], exports[other.generation]
    assert export.source is another.source
    assert (export.foreign, export.implicit) == (another.foreign, another.implicit)
    assert xs.ArrayHandle(bytes(found)) == found
    found.close()
    expected.close()


# --- torch's tensors on the host


torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
with_exchange = pytest.mark.skipif(
    torch is None or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="needs torch 2.11"
)


@pytest.fixture
def base() -> Any:
    return torch.from_dlpack(xs.malloc_host(1 << 12).as_array(512, "f4", 64))


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
def test_tensors_over_memory_of_ours(base: Any, view: Any) -> None:
    xs.share(base, ttl=60)  # the first export makes the table
    tensor = view(base)
    same(_hand_over.share(tensor), long_way(xs.share, tensor))


@with_exchange
def test_what_the_view_does_not_say_is_pythons(base: Any) -> None:
    xs.share(base, ttl=60)
    before = node.current().table().statistics()["exports"]
    grown = base[:4].requires_grad_()
    turned = base.view(torch.complex64)[:4].conj()
    for each in grown, turned, base[:0], torch.nn.Parameter(base[:4]), {"tree": base}, torch.zeros(3, device="meta"):
        assert _hand_over.share(each) is None
    with pytest.raises(xs.InvalidArgumentError, match="gradient"):
        xs.share(grown)
    with pytest.raises(xs.FeatureNotSupportedError, match="private to its library"):
        xs.share(torch.zeros(3))
    with xs.share(base[:0]) as none:
        assert none.shape == (0,)
    assert node.current().table().statistics()["exports"] == before


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
def native() -> HandOver:
    """Takes `Rows` for arrays of a library of mock devices."""
    dtype = np.dtype("u1")
    kind = dtype, encode_dtype(dtype), 1, xs.Device("mock:0"), "mock"
    return HandOver(**_hand_over._kit | {"exchange_of": lambda _type: _capsule, "kind_of": lambda *_of: kind})


@pytest.mark.parametrize("own_stream", [False, True])
def test_arrays_of_a_library_with_streams(native: HandOver, own_stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    xs.share(xs.empty(3, device="mock:0"), ttl=60)
    stream = MockStream() if own_stream else default_stream(0)
    monkeypatch.setattr(Rows, "stream", stream if own_stream else None)
    foreign = ForeignArray(100)
    rows = Rows(foreign)
    for _ in range(2):
        found = native.share(rows)
        assert checked_parts(found).event is None
        same(found, long_way(xs.share, rows))
    assert asked == [77, 77]
    asked.clear()
    gate = threading.Event()
    stream.call(gate.wait)
    found, expected = native.share(rows), long_way(xs.share, rows)
    parts, others = checked_parts(found), checked_parts(expected)
    assert None not in (parts.event, others.event)
    if not own_stream:  # whose queue ends with what was queued
        assert (parts.event, parts.point + 1) == (others.event, others.point)
    exports = node.current().table()._exports
    for each in found, expected:
        keep = exports[fields_of(each.handle).generation].keep
        assert keep[0] is rows
        del keep
        each.close()
    gate.set()
    stream.synchronize()
    asked.clear()
    foreign.free()
    if own_stream:
        stream.close()


def test_an_array_of_another_device_is_pythons() -> None:
    xs.share(xs.empty(3, device="mock:0"), ttl=60)
    foreign = ForeignArray(100)
    elsewhere = (np.dtype("u1"), b'"|u1"', 1, xs.Device("mock:1"), "mock")
    kit = {"exchange_of": lambda _type: _capsule, "kind_of": lambda *_of: elsewhere}
    assert HandOver(**_hand_over._kit | kit).share(Rows(foreign)) is None
    kit["kind_of"] = lambda *_of: None
    assert HandOver(**_hand_over._kit | kit).share(Rows(foreign)) is None
    asked.clear()
    foreign.free()
