"""Trees of tensors: how they are described and made, by what calls, and what is opened and exported at one go."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import warnings
import weakref
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
from peering import mappings, nothing_left

import xpushare as xs
from harness import Child, kept
from xpushare._native import (
    CONSTANTS,
    KINDS_MOST,
    Exported,
    Leaves,
    OwnTable,
    Seal,
)
from xpushare.adapters import native_cpu
from xpushare.adapters.mock.adapter import default_stream
from xpushare.adapters.stream.queue import DeviceQueue
from xpushare.arrays import description
from xpushare.core import memory
from xpushare.core.layers import enable_layers
from xpushare.core.ordering import Order
from xpushare.objects.array import covered_by
from xpushare.objects.message import content_of
from xpushare.sharing import identity, layout, node
from xpushare.sharing.handle import PICKLED, fields_of

torch: Any = pytest.importorskip("torch")
torch_reductions: Any = pytest.importorskip("xpushare.integrations.torch")
pytestmark = [
    pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="torch is older than 2.11"),
]


def model() -> dict[str, Any]:
    """Tensors in three allocations, and arrays of other libraries."""
    slabs = [xs.malloc_host(1 << 12) for _ in range(3)]
    base = [torch.from_dlpack(each.as_array(512, "f4")) for each in slabs]
    return {
        "whole": base[0],
        "rows": base[0][64:128].view(8, 8),
        "turned": base[0][64:128].view(8, 8).t(),
        "steps": base[1][::3],
        "scalar": base[1][7],
        "spread": base[1][:1].expand(4, 2),
        "other elements": base[2].view(torch.bfloat16)[:10],
        "a gap": base[2][500:],
        "bytes": base[2].view(torch.uint8)[3:9],
        "none": base[2][:0],
        "numpy": np.asarray(slabs[0].as_array(3, "i2", 100)),
        "ours": slabs[1].as_array(5, "f8", 8),
        "complex": base[2].view(torch.complex64)[:4],
        "twice": base[0],
    }


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arrays that were described one by one, not by their kind."""
    seen: list[Any] = []
    describe = description.describe
    monkeypatch.setattr(description, "describe", lambda array, *more: seen.append(array) or describe(array, *more))
    return seen


def strides_of(array: Any) -> tuple[int, ...]:
    """In bytes."""
    if isinstance(array, torch.Tensor):
        return tuple(step * array.element_size() for step in array.stride())
    found: tuple[int, ...] = array.strides
    return found


def address_of(array: Any) -> int:
    if isinstance(array, torch.Tensor):
        return int(array.data_ptr())
    return int(array.ptr if isinstance(array, xs.SharedArray) else array.__array_interface__["data"][0])


# --- share


@pytest.mark.parametrize("options", [{}, {"read_only": True}, {"stream": -1}], ids=str)
def test_a_message_says_what_the_tensors_are(options: dict[str, Any], described: list[Any]) -> None:
    tree = model()
    del tree["none"]  # gets new memory each time
    arrays = list({id(each): each for each in tree.values()}.values())
    with xs.share(tree, **options) as found:
        assert found._count == len(arrays) == len(tree) - 1, "one is there twice"
        assert len(found.handles) == 3
        assert not [each for each in described if isinstance(each, torch.Tensor) and not each.is_complex()]
        dtypes = content_of(found).dtypes
        assert len(set(dtypes)) == len(dtypes) == 6
        table = node.current().table()
        spans: dict[int, list[int]] = {}
        for array, (memory_, event, shape, strides, dtype, offset) in zip(arrays, found._elements, strict=True):
            assert (shape, strides, event) == (tuple(array.shape), strides_of(array), -1)
            assert str(dtypes[dtype]) == str(array.dtype).removeprefix("torch.")
            handle = found.handles[memory_]
            export = table.find(handle)
            assert export is not None
            start = export.source.address + fields_of(handle).offset
            assert start + offset == address_of(array)
            reach = sum((length - 1) * step for length, step in zip(shape, strides, strict=True))
            spans.setdefault(memory_, []).extend(
                (address_of(array), address_of(array) + reach + dtypes[dtype].itemsize)
            )
            assert fields_of(handle).object == export.source.serial
            assert handle.read_only is ("read_only" in options)
        for memory_, ends in spans.items():
            assert max(ends) - min(ends) == found.handles[memory_].nbytes, "exactly what its arrays span"
        assert xs.ArrayHandle(bytes(found))._elements == found._elements


def test_the_first_has_no_dimensions() -> None:
    """As an optimiser's state begins."""
    base = torch.from_dlpack(xs.malloc_host(1 << 12).as_array(8, "f4"))
    base[:] = torch.arange(8.0)
    with xs.share({"step": base[3], "rate": base[4]}) as handle:
        found = xs.attach(handle, like=torch)
        assert [(value.item(), value.dim()) for value in found.values()] == [(3, 0), (4, 0)]


@pytest.mark.parametrize("devices", ["0011", "0cc0", "cc00", "01c"])
def test_one_kind_of_tensor_on_several_devices(devices: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each array's readers wait for the stream of its own device."""
    names = {"0": "mock:0", "1": "mock:1", "c": "native_cpu:0"}
    bases = {each: torch.from_dlpack(xs.malloc_host(1 << 12, names[each]).as_array(64, "f4")) for each in set(devices)}
    tree = [bases[each][8 * index :][:8] for index, each in enumerate(devices)]
    monkeypatch.setattr(DeviceQueue, "idle", lambda _queue: False)
    with xs.share(tree) as found:
        waits: dict[int, set[str]] = {}  # devices of the arrays, by their event
        for wanted, (memory_, event, *_) in zip(devices, found._elements, strict=True):
            assert xs.Device(names[wanted]).uuid == found.handles[memory_].device_uuid
            assert (event < 0) is (wanted == "c"), "the host's content is there"
            waits.setdefault(event, set()).add(wanted)
        assert all(len(each) == 1 for each in waits.values())
        for event, (wanted,) in waits.items():
            if event >= 0:
                assert found._events[event][0].device_uuid == xs.Device(names[wanted]).uuid


def test_what_is_shared_is_held_until_its_end() -> None:
    tree = {name: value for name, value in model().items() if name != "none"}
    expected = tree["rows"].clone()
    with xs.share(tree) as handle:
        tree.clear()
        gc.collect()
        found = xs.attach(handle, like=torch)
        assert torch.equal(found["rows"], expected)
        del found


def test_tensors_that_are_private() -> None:
    """They are refused by name, and copied with `copy=True`; the others stay where they are."""
    tree = model()
    tree["mine"] = torch.arange(6.0)
    tree["last"] = tree["whole"][3:5]
    with pytest.raises(xs.FeatureNotSupportedError) as refusal:
        xs.share(tree)
    assert str(refusal.value).startswith("at 'mine': ")
    with xs.share(tree, copy=True) as handle:
        assert handle.copied_nbytes == 24
        found = xs.attach(handle, like=torch)
        assert found["mine"].tolist() == list(range(6))
        found["last"][:] = 9
        assert tree["whole"][3:5].tolist() == [9, 9]
        del found


def test_a_tensor_with_a_gradient_is_refused_wherever_it_stands() -> None:
    base = model()["whole"]
    for tree in ([base[:2].requires_grad_(), base[2:4]], [base[:2].detach(), base[2:4].requires_grad_()]):
        with pytest.raises(xs.InvalidArgumentError, match=r"require.*grad"):
            xs.share(tree)


def test_streams_of_a_device() -> None:
    """One mark for all tensors, and a wait for it; a named stream stands for all."""
    with xs.malloc_device(1 << 12, "mock:0") as place, xs.Queue("mock:0") as queue:
        slab = torch.from_dlpack(place.as_array(1 << 12, "u1"))
        tree = [slab[:64], slab[64:128], slab[128:192]]
        release = threading.Event()
        default_stream(0).call(release.wait)  # what the library works on is busy
        handles = [xs.share(tree), xs.share(tree, stream=-1), xs.share(tree, stream=queue)]
        assert [len(each._events) for each in handles] == [1, 0, 1]
        assert [[one[1] for one in each._elements] for each in handles] == [[0] * 3, [-1] * 3, [0] * 3]
        unordered = xs.attach(handles[0], like=torch, stream=-1)
        timer = threading.Timer(0.05, release.set)
        timer.start()
        tensors = xs.attach(handles[0], like=torch)  # returns once the stream is done
        assert release.is_set()
        assert torch.equal(tensors[1], tree[1])
        timer.join()
        del tensors, unordered
        for handle in handles:
            handle.close()


def test_a_producer_that_dies_before_its_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of its tree are not made, and the error holds no memory open."""
    with Child(env={"ONEAPI_DEVICE_SELECTOR": "mock:*;native_cpu:*"}) as child:
        message = child.call(_unfinished)
        gc.collect()
        wait, before = Order.before_host, memories()

        def kill_first(order: Order) -> None:
            child.kill()
            wait(order)

        monkeypatch.setattr(Order, "before_host", kill_first)
        with pytest.raises(xs.PeerLostError) as lost:
            xs.attach(message, like=torch)
        gc.collect()
        assert memories() == before
        del lost


def memories() -> list[str]:
    """What is mapped, but tables and the commons of those whom this process knows."""
    return [each for each in mappings() if "memory" in each]


def _unfinished() -> bytes:
    place = kept["memory"] = xs.malloc_device(1 << 12, "mock:0")
    kept["tree"] = [torch.from_dlpack(place.as_array(64, "f4", 256 * number)) for number in range(3)]
    default_stream(0).call(threading.Event().wait)
    kept["handle"] = xs.share(kept["tree"])
    return bytes(kept["handle"])


# --- one array


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What torch was given."""
    seen: list[str] = []
    from_dlpack = torch.from_dlpack

    def note(given: Any) -> Any:
        seen.append(type(given).__name__)
        return from_dlpack(given)

    monkeypatch.setattr(torch, "from_dlpack", note)
    return seen


def test_a_tensor_of_one_array(peer: Child, taken: list[str]) -> None:
    """torch's own function makes those of which it has to warn."""
    whole = peer.call(share_one)
    xs.attach(whole)  # so that the exporter is known
    xs.attach(whole, like=torch)
    taken.clear()
    with nothing_left():
        tensor = xs.attach(whole, like="torch")
        assert not taken
        assert (tensor.tolist(), tensor.stride()) == ([[0, 2], [4, 6]], (4, 2))
        tensor[1, 1] = 7
        assert np.asarray(xs.attach(whole))[1, 1] == 7
        expected = torch.from_dlpack(xs.attach(whole))
        for name in "data_ptr", "storage_offset", "stride", "size", "is_contiguous", "get_device":
            assert getattr(expected, name)() == getattr(tensor, name)(), name
        assert (expected.dtype, expected.device, type(expected)) == (tensor.dtype, tensor.device, type(tensor))
        assert peer.call(importers) == 1
        row = tensor[1]
        del tensor, expected
        assert peer.call(importers) == 1
        del row
        assert peer.call(importers) == 0
    with pytest.warns(UserWarning, match="read-only"):
        xs.attach(peer.call(share_one, read_only=True), like=torch)
    assert taken == ["SharedArray"] * 2
    odd = peer.call(share_one, dtype=">i4")  # DLPack has no foreign byte order
    for _ in range(2):
        with pytest.raises(BufferError, match="byte order"):
            xs.attach(odd, like=torch)


def share_one(dtype: str = "i4", **options: Any) -> bytes:
    """In the peer."""
    numbers = np.asarray(xs.empty((2, 4), dtype))
    numbers[:] = np.arange(8).reshape(2, 4)
    handle = kept["one", len(kept)] = xs.share(numbers[:, ::2], **options)
    return bytes(handle)


def test_torch_waits_for_one_array(taken: list[str]) -> None:
    with xs.malloc_device(1 << 12, "mock:0") as place:
        tensor = torch.from_dlpack(place.as_array(64, "u1"))
        taken.clear()
        release = threading.Event()
        default_stream(0).call(release.wait)
        with xs.share(tensor) as handle:
            timer = threading.Timer(0.05, release.set)
            timer.start()
            found = xs.attach(bytes(handle), like=torch)  # returns once the stream is done
            assert release.is_set()
            assert not taken
            assert found.data_ptr() == tensor.data_ptr()
            timer.join()
            del found


def test_each_kind_of_element(peer: Child) -> None:
    for dtype in "?bBhHiIlLefdFD":
        whole = peer.call(share_one, dtype=dtype)
        expected = torch.from_dlpack(xs.attach(whole))
        for _ in range(2):
            assert torch.equal(xs.attach(whole, like=torch), expected), dtype
            assert xs.attach(whole, like=torch).dtype is expected.dtype


def test_a_forked_child_makes_tensors(peer: Child, taken: list[str]) -> None:
    """What torch had started is the parent's."""
    whole = peer.call(share_one)
    for _ in range(2):
        xs.attach(whole, like=torch)
    taken.clear()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for _ in range(2):
                assert xs.attach(whole, like=torch).tolist() == [[0, 2], [4, 6]]
            code = 2 if taken else 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not taken


def test_what_a_consumer_does_not_take_is_closed(peer: Child) -> None:
    whole = peer.call(share_one)
    xs.attach(whole)

    def refuse(_given: object) -> Any:
        raise BufferError("not this one")

    with nothing_left(), pytest.raises(BufferError):
        xs.attach(whole, like=refuse)


# --- attach


def share_model(**options: Any) -> bytes:
    """In the peer."""
    tree = kept["model"] = {name: value for name, value in model().items() if name not in ("numpy", "complex", "ours")}
    tree["whole"][:] = torch.arange(512.0)
    handle = kept["handle"] = xs.share(tree, **options)
    return bytes(handle)


def close_model() -> None:
    kept.pop("handle").close()
    kept.clear()


def importers() -> int:
    """In the peer."""
    table = node.current().table()
    return sum(len(table.domain.holders(fields_of(each.handle).entry)) for each in table.exports())


@pytest.fixture
def message(peer: Child) -> Iterator[bytes]:
    raw = peer.call(share_model)
    xs.attach(raw)  # so that the exporter is known
    yield raw
    peer.call(close_model)


def test_tensors_are_made_at_one_go(message: bytes, taken: list[str]) -> None:
    with nothing_left():
        found = xs.attach(message, like=torch)
        assert not taken
        expected = {name: torch.from_dlpack(array) for name, array in xs.attach(message).items()}
        assert list(found) == list(expected)
        for name, tensor in found.items():
            other = expected[name]
            assert type(tensor) is type(other)
            assert (tensor.dtype, tensor.shape, tensor.device) == (other.dtype, other.shape, other.device), name
            assert (tensor.stride(), tensor.storage_offset()) == (other.stride(), other.storage_offset()), name
            assert tensor.data_ptr() == other.data_ptr() or not tensor.numel()
            assert torch.equal(tensor, other), name
        assert found["whole"] is found["twice"]
        del found, expected, tensor, other


def test_each_memory_is_held_by_its_own_tensors(peer: Child, message: bytes) -> None:
    """The last tensor of a memory closes that; any thread may drop it."""
    found = xs.attach(message, like=torch)
    assert peer.call(importers) == 4
    view = found["whole"][3:5]
    drop = threading.Thread(target=found.clear)
    drop.start()
    drop.join()
    gc.collect()
    assert peer.call(importers) == 1
    assert view.tolist() == [3, 4]
    del view
    assert peer.call(importers) == 0


def test_read_only_trees_are_warned_of(peer: Child) -> None:
    message = peer.call(share_model, read_only=True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = xs.attach(message, like=torch)
    assert any("read-only" in str(each.message) for each in told)
    assert found["whole"][1] == 1
    del found
    peer.call(close_model)


def test_what_torch_refuses_is_told_as_ever(peer: Child) -> None:
    """By its own function; nothing stays open."""
    message = peer.call(_odd)
    xs.attach(message)  # so that the exporter is known
    with nothing_left(), pytest.raises(BufferError, match="byte order"):
        xs.attach(message, like=torch)
    peer.call(_forget)


def _odd() -> bytes:
    kept["slab"] = xs.malloc_host(64)
    fine, odd = kept["slab"].as_array(2, "f4"), kept["slab"].as_array(2, ">f4", 16)  # DLPack has no foreign byte order
    kept["handle"] = xs.share([fine, odd])
    return bytes(kept["handle"])


def _forget() -> None:
    kept["handle"].close()
    kept.clear()


def test_layers_see_each_open(message: bytes) -> None:
    enable_layers("UR_LAYER_LEAK_CHECKING")
    try:
        found = xs.attach(message, like=torch)
        assert torch.equal(found["whole"], torch.arange(512.0))
        del found
    finally:
        enable_layers()


def test_a_handle_of_this_process() -> None:
    tree = model()
    with xs.share([tree["whole"], tree["steps"]]) as handle:
        found = xs.attach(bytes(handle), like=torch)
        assert found[0].data_ptr() == tree["whole"].data_ptr()
        assert found[1].stride() == (3,)
        del found


@pytest.fixture
def opened_at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many handles each time."""
    seen: list[int] = []
    open_all = memory.open_all

    def note(handles: Any, *rest: Any) -> None:
        seen.append(len(handles))
        open_all(handles, *rest)

    monkeypatch.setattr(memory, "open_all", note)
    return seen


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The imports by the host's adapter so far. What was closed before is not mapped any more."""
    xs.trim()
    seen: list[str] = []
    adapter = native_cpu.NativeCpu
    importing = adapter.import_memory
    monkeypatch.setattr(adapter, "import_memory", lambda *given: seen.append("import") or importing(*given))
    return seen


def test_memory_is_opened_at_one_go(message: bytes, opened_at_once: list[int], imported: list[str]) -> None:
    """Each allocation once, however often it is attached, also on a device that is named."""
    with nothing_left():
        trees = [xs.attach(message), xs.attach(message), xs.attach(message, device="native_cpu:0")]
        assert opened_at_once == [4, 4, 4]
        assert len(imported) == 4
        first, *others = trees
        for other in others:
            for name, array in first.items():
                mine, its = array._held, other[name]._held
                assert mine.allocation is its.allocation, name
                assert (mine.offset, mine.nbytes, mine.device, mine.read_only) == (
                    its.offset, its.nbytes, its.device, its.read_only,
                )  # fmt: skip
                assert mine.handle == its.handle
                assert mine.lease.peer is its.lease.peer
        del trees, first, others, other, array, mine, its


def test_what_is_open_may_have_expired(peer: Child, message: bytes) -> None:
    found = xs.attach(message, like=torch)
    peer.call(withdraw_model)
    with pytest.raises(xs.HandleExpiredError):
        xs.attach(message, like=torch)
    assert found["whole"][3] == 3
    del found


def withdraw_model() -> None:
    """In the peer."""
    kept["handle"].close()


def pickled_model(opens: int) -> bytes:
    """In the peer."""
    share_model()
    gone = kept.pop("model")
    torch_reductions.install(opens=opens)
    found = ForkingPickler.dumps(gone)
    torch_reductions.uninstall()
    return bytes(found)


def opens_left() -> list[int]:
    """In the peer: of what pickles export."""
    table = node.current().table()
    exported = [each for each in table.exports() if each.implicit]
    assert all(fields_of(each.handle).flags & PICKLED for each in exported)
    return [table.domain.opens_left(fields_of(each.handle).entry) for each in exported]


def test_opens_of_pickles_count(peer: Child, imported: list[str]) -> None:
    """Also those of what is open already."""
    xs.attach(peer.call(share_one))  # so that the exporter is known
    message = peer.call(pickled_model, 2)
    assert peer.call(opens_left) == [2, 2, 2]
    first = pickle.loads(message)
    assert peer.call(opens_left) == [1, 1, 1]
    before = len(imported)
    again = pickle.loads(peer.call(lambda raw: raw, message))
    assert len(imported) == before
    assert first["whole"][3] == again["whole"][3] == 3
    assert first["whole"].data_ptr() == again["whole"].data_ptr()
    with pytest.raises(xs.HandleExpiredError, match="opened"):  # though its memory is open here
        pickle.loads(peer.call(lambda raw: raw, message))
    assert peer.call(opens_left) == [0, 0, 0]
    del first, again
    peer.call(close_model)


def test_pickled_exports_are_all_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt after they were published leaves none, and nothing waits to be opened."""
    tree = [torch.from_dlpack(xs.malloc_host(64).as_array(8, "u1")) for _ in range(5)]
    xs.share(tree).close()
    table = node.current().table()
    before = table.statistics()["exports"]
    torch_reductions.install()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(table, "_entries", _Interrupted(table._entries))
            with pytest.raises(KeyboardInterrupt):
                ForkingPickler.dumps(tree)
            assert table._entries.exported == [5]  # type: ignore[attr-defined]
    finally:
        torch_reductions.uninstall()
    assert table.statistics()["exports"] == before
    assert not table.waiting_pickles()


@pytest.mark.parametrize("options", [{"read_only": True}, {"opens": 3}, {"ttl": 60}], ids=str)
def test_what_is_open_keeps_what_its_handles_say(peer: Child, options: dict[str, Any], imported: list[str]) -> None:
    xs.attach(peer.call(share_one))  # so that the exporter is known
    imported.clear()
    message = peer.call(share_model, **options)
    first, again = xs.attach(message), xs.attach(message)
    assert len(imported) == 4
    assert all(array.read_only is ("read_only" in options) for array in again.values())
    if "opens" in options:
        xs.attach(message)
        with pytest.raises(xs.HandleExpiredError):
            xs.attach(message)
    del first, again
    peer.call(close_model)


# --- many exports at once


def linger(count: int) -> None:
    """Have the table look at that many exports that have ended."""
    table, some = node.current().table(), xs.malloc_host(64)
    handles = [xs.ipc.memory.get(some) for _ in range(count)]
    found = [table.find(each) for each in handles]
    table.withdraw_all(handles, layout.REASON_PUT)
    table._lingering.update({each.entry: each for each in found})


def test_exports_look_at_some_of_what_lingers() -> None:
    """Not each at all of it, which would take ever longer; but at more than they may add."""
    xs.share(xs.empty(1)).close()
    table = node.current().table()
    assert not table._lingering
    linger(40)
    assert table.sweep()
    left = len(table._lingering)
    assert 0 < left < 40
    with xs.share([xs.malloc_host(64).as_array(8, "u1") for _ in range(20)]):
        assert len(table._lingering) <= max(left - 20, 0)
    linger(20)
    table.sweep(everything=True)
    assert not table._lingering


class _Interrupted:
    """The native table, but an interrupt comes as soon as it has exported."""

    def __init__(self, entries: OwnTable) -> None:
        self._entries = entries
        self.exported: list[int] = []

    def export(self, seal: Seal, exports: list[Exported], *limits: Any) -> None:
        self.exported.append(len(self._entries.export(seal, exports, *limits) or ()))
        raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entries, name)


def test_exports_of_a_tree_are_all_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [xs.malloc_host(64).as_array(8, "u1") for _ in range(5)]
    xs.share(arrays).close()
    table = node.current().table()
    before = table.statistics()["exports"]
    with monkeypatch.context() as patch:
        patch.setattr(table, "_entries", _Interrupted(table._entries))
        with pytest.raises(KeyboardInterrupt):
            xs.share(arrays)
        assert table._entries.exported == [4]  # type: ignore[attr-defined]
    assert table.statistics()["exports"] == before
    with xs.share(arrays) as handle:
        assert table.statistics()["exports"] == before + 5
        assert len(handle.handles) == 5
    assert table.statistics()["exports"] == before


# --- the parts


def test_leaves_refuse_what_makes_no_message() -> None:
    slab = xs.malloc_host(64)
    array = slab.as_array(2, "f4")
    leaves = Leaves([array, 1], False)
    covered, _ = covered_by(array)
    assert (leaves.next(), leaves.where()) == (0, None)
    leaves.skip()
    assert leaves.next() == 1
    leaves.skip()
    assert leaves.next() is None
    for index, what, shape, strides, kind in (
        (2, covered, (1,), (8,), KINDS_MOST),
        (0, covered, (1,), (), KINDS_MOST),
        (0, covered, (1,), (8,), 0),
        (0, slab, (1,), (8,), KINDS_MOST),
    ):
        with pytest.raises(ValueError, match="not a range of an allocation, or shape and strides differ"):
            leaves.put(index, what, 0, shape, strides, array.dtype, kind)
    leaves.put(0, covered, 0, (1,), (8,), array.dtype, KINDS_MOST)
    with pytest.raises(TypeError, match="once all arrays are placed"):
        leaves.groups({}, -1, False)
    seal = identity.sealing()
    with pytest.raises(TypeError, match="after `groups`"):
        leaves.seal(seal, (), (), b"")
    leaves.put(1, covered, 0, (1,), (8,), array.dtype, KINDS_MOST + 1)
    assert leaves.dtypes == [array.dtype]
    with pytest.raises(TypeError):
        leaves.groups({KINDS_MOST + 1: "0"}, -1, False)  # type: ignore[dict-item]
    assert len(leaves.groups({KINDS_MOST: 0}, -1, False)) == 1
    handle = xs.ipc.memory.get(slab)
    with pytest.raises(TypeError, match="not a handle"):
        leaves.seal(seal, (b"short",), (), b"")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one memory"):
        leaves.seal(seal, (), ((handle, 1),), b"")
    with pytest.raises(TypeError):
        leaves.seal(seal, (handle,), ((handle, handle),), b"")  # type: ignore[arg-type]
    assert leaves.seal(seal, (handle,), (), b"x" * (64 << 20)) is None, "too large"
    xs.ipc.memory.put(handle)
    with pytest.raises(xs.InvalidArgumentError, match="64 MiB"):
        xs.share([array, "x" * (64 << 20)])


def test_many_kinds_of_arrays(described: list[Any]) -> None:
    """More of them than are told apart: the others are described one by one."""
    slab = torch.from_dlpack(xs.malloc_host(1 << 14).as_array(1 << 14, "u1"))
    kinds = [type(f"Kind{number}", (), {
        "__init__": lambda self, tensor: setattr(self, "tensor", tensor),
        "__dlpack__": lambda self, **options: self.tensor.__dlpack__(**options),
        "__dlpack_device__": lambda self: self.tensor.__dlpack_device__(),
    }) for number in range(70)]  # fmt: skip
    tree = [kind(slab[16 * at : 16 * at + 8]) for at, kind in enumerate(kinds)] + [slab[:4], slab[4:8], slab[8:12]]
    with xs.share(tree) as handle:
        assert len(described) >= 70
        assert [each.shape for each in xs.attach(handle)] == [(8,)] * 70 + [(4,)] * 3


def test_tensors_are_for_lists_of_their_sizes(message: bytes) -> None:
    parts = xs.ArrayHandle(message)
    exchange = torch.Tensor.__dlpack_c_exchange_api__
    assert parts._tensors(None, [], ()) is None
    with pytest.raises(TypeError, match="one for each memory"):
        parts._tensors(exchange, [], ())
    places = [(object(), 4096, (1, 0))] * 4
    assert parts._tensors(exchange, places, ()) is None, "no dtypes"
    with pytest.raises(TypeError):
        parts._tensors(exchange, [(1,)] * 4, ())  # type: ignore[list-item]
    places.clear()

    class Ordinal:
        """A number that changes the list that it is in."""

        def __index__(self) -> int:
            places.clear()
            return 0

    places += [(object(), 4096, (1, Ordinal()))] * 4  # type: ignore[list-item]
    assert parts._tensors(exchange, places, ()) is None
    assert not places
    with pytest.raises(TypeError):
        parts._flaw([4])  # type: ignore[arg-type]
    assert parts._flaw((4,)) == (CONSTANTS["FLAW_LEAF_PART"], 6)
    with pytest.raises(xs.InvalidHandleError):
        xs.ArrayHandle(message[:-1])


def test_tensors_give_back_what_a_library_does_not_take(message: bytes) -> None:
    """A dtype that torch does not know: nothing holds the owner afterwards."""
    parts = xs.ArrayHandle(message)

    class Owner:
        pass

    gone: list[int] = []
    owner = Owner()
    weakref.finalize(owner, gone.append, 1)
    places = [(owner, 4096, (1, 0))] * 4
    dtypes = tuple(((0, 7, 1), each) for each in (4, 2, 1))
    assert parts._tensors(torch.Tensor.__dlpack_c_exchange_api__, places, dtypes) is None
    del owner, places
    assert gone
