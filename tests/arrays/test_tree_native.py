"""Trees in native code: what it makes is what Python makes, and the rest it leaves to Python."""

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
from array_peer import long_way
from peering import nothing_left

import xpushare as xs
from harness import Child, kept
from xpushare import _hand_over, _tree
from xpushare._native import Leaves, read_tree
from xpushare._tree_handle import Content, Dtypes, content_of, seal_tree
from xpushare.adapters.mock.others import default_stream
from xpushare.adapters.stream.queue import DeviceQueue
from xpushare.core import memory
from xpushare.core.layers import enable_layers
from xpushare.core.ordering import Order
from xpushare.sharing import identity, node
from xpushare.sharing.handle import PICKLED, fields_of

torch: Any = pytest.importorskip("torch")
torch_reductions: Any = pytest.importorskip("xpushare.integrations.torch")
pytestmark = [
    pytest.mark.skipif(bool(_hand_over.off), reason="the native way is switched off"),
    pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="torch is older than 2.11"),
]


def model() -> dict[str, Any]:
    """Tensors in three allocations, and what Python alone describes."""
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
def placed_by_python(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arrays that Python placed."""
    seen: list[Any] = []
    add = _tree._Placing._add

    def note(self: Any, array: Any) -> Any:
        seen.append(array)
        return add(self, array)

    monkeypatch.setattr(_tree._Placing, "_add", note)
    return seen


def in_objects(content: Content) -> list[Any]:
    """The arrays, by the objects that they lie in."""
    found: list[Any] = []
    for each in content.elements():
        fields = fields_of(content.memory[each.memory])
        found.append((fields.object, fields.offset + each.offset, fields.flags, each[1:5]))
    return found


def ranges(content: Content) -> set[tuple[int, int, int]]:
    return {(each.object, each.nbytes, each.offset) for each in map(fields_of, content.memory)}


# --- share


@pytest.mark.parametrize("options", [{}, {"read_only": True}, {"stream": -1}], ids=str)
def test_share_says_what_python_says(options: dict[str, Any], placed_by_python: list[Any]) -> None:
    tree = model()
    del tree["none"]  # gets new memory each time
    with xs.share(tree, **options) as found:
        short = len(placed_by_python)
        assert short < len(tree) - 3, "most tensors are placed by the native way"
        with long_way(xs.share, tree, **options) as expected:
            assert len(placed_by_python) - short == len(tree) - 1  # one is there twice
            mine, other = content_of(found), content_of(expected)  # type: ignore[arg-type]
            assert in_objects(mine) == in_objects(other)
            assert ranges(mine) == ranges(other)
            assert mine.tree == other.tree
            assert sorted(map(str, mine.dtypes)) == sorted(map(str, other.dtypes))


def test_the_first_has_no_dimensions() -> None:
    """As an optimiser's state begins."""
    base = torch.from_dlpack(xs.malloc_host(1 << 12).as_array(8, "f4"))
    base[:] = torch.arange(8.0)
    for share in xs.share, lambda tree: long_way(xs.share, tree):
        with share({"step": base[3], "rate": base[4]}) as handle:
            found = xs.attach(handle, like=torch)
            assert [(value.item(), value.dim()) for value in found.values()] == [(3, 0), (4, 0)]


@pytest.mark.parametrize("devices", ["0011", "0cc0", "cc00", "01c"])
def test_one_kind_of_tensor_on_several_devices(devices: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each array's readers wait for the stream that Python says."""
    names = {"0": "mock:0", "1": "mock:1", "c": "native_cpu:0"}
    bases = {each: torch.from_dlpack(xs.malloc_host(1 << 12, names[each]).as_array(64, "f4")) for each in set(devices)}
    tree = [bases[each][8 * index :][:8] for index, each in enumerate(devices)]
    monkeypatch.setattr(DeviceQueue, "idle", lambda _queue: False)
    with xs.share(tree) as found, long_way(xs.share, tree) as expected:
        waits = [
            [(fields_of(content.memory[each.memory]).object, each.event) for each in content.elements()]
            for content in map(content_of, (found, expected))
        ]
    assert waits[0] == waits[1]
    assert any(event >= 0 for _memory, event in waits[0])


def test_what_is_shared_is_held_until_its_end() -> None:
    tree = {name: value for name, value in model().items() if name != "none"}
    expected = tree["rows"].clone()
    with xs.share(tree) as handle:
        tree.clear()
        gc.collect()
        found = xs.attach(handle, like=torch)
        assert torch.equal(found["rows"], expected)
        del found


@pytest.mark.usefixtures("placed_by_python")
def test_tensors_that_are_private() -> None:
    """They are refused by name, and copied with `copy=True`; the others stay where they are."""
    tree = model()
    tree["mine"] = torch.arange(6.0)
    tree["last"] = tree["whole"][3:5]
    with pytest.raises(xs.FeatureNotSupportedError) as refusal:
        xs.share(tree)
    assert "['mine']" in str(refusal.value.__notes__)
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
    """One mark for all tensors, and a wait for it; a named stream stands for all, which is Python's to say."""
    with xs.malloc_device(1 << 12, "mock:0") as place, xs.Queue("mock:0") as queue:
        slab = torch.from_dlpack(place.as_array(1 << 12, "u1"))
        tree = [slab[:64], slab[64:128], slab[128:192]]
        release = threading.Event()
        default_stream(0).call(release.wait)  # what the library works on is busy
        handles = [xs.share(tree), xs.share(tree, stream=-1), xs.share(tree, stream=queue)]
        contents = [content_of(handle) for handle in handles]  # type: ignore[arg-type]
        assert [len(each.events) for each in contents] == [1, 0, 1]
        assert [[one.event for one in each.elements()] for each in contents] == [[0] * 3, [-1] * 3, [0] * 3]
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
        wait = Order.before_host

        def kill_first(order: Order) -> None:
            child.kill()
            wait(order)

        monkeypatch.setattr(Order, "before_host", kill_first)
        with pytest.raises(xs.PeerLostError) as lost:
            xs.attach(message, like=torch)
        gc.collect()
        cookie = fields_of(xs.ArrayHandle(message).handles[0]).cookie
        cache: dict[Any, Any] = node.current().peers._cache  # type: ignore[assignment]
        opened = [known() for key, known in cache.items() if key[0] == cookie]
        assert not [each for each in opened if hasattr(each, "address")]
        del lost


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
    """torch's own function makes the first on a device, and those of which it has to warn."""
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
        expected = long_way(xs.attach, whole, like=torch)
        assert taken == ["SharedArray"]
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
    assert taken[1:] == ["SharedArray"]
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
            assert taken == ["SharedArray"]
            assert found.data_ptr() == tensor.data_ptr()
            timer.join()
            del found


def test_each_kind_of_element(peer: Child) -> None:
    for dtype in "?bBhHiIlLefdFD":
        whole = peer.call(share_one, dtype=dtype)
        expected = long_way(xs.attach, whole, like=torch)
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
            code = 0 if taken == ["SharedArray"] else 2
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


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arrays that were made each for itself."""
    seen: list[Any] = []
    make = _tree.array_of
    monkeypatch.setattr(_tree, "array_of", lambda *arguments: seen.append(arguments) or make(*arguments))
    return seen


def test_attach_makes_what_python_makes(message: bytes, one_by_one: list[Any]) -> None:
    with nothing_left():
        found = xs.attach(message, like=torch)
        assert not one_by_one
        expected = long_way(xs.attach, message, like=torch)
        assert len(one_by_one) == len(found) - 1
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
        one_by_one.clear()


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
    said: list[str] = []
    with nothing_left():
        for way in xs.attach, lambda *arguments, **options: long_way(xs.attach, *arguments, **options):
            try:
                way(message, like=torch)
            except BufferError as error:
                said.append(str(error))
    assert said[0] == said[1]
    peer.call(_forget)


def _odd() -> bytes:
    kept["slab"] = xs.malloc_host(64)
    fine, odd = kept["slab"].as_array(2, "f4"), kept["slab"].as_array(2, ">f4", 16)  # DLPack has no foreign byte order
    kept["handle"] = xs.share([fine, odd])
    return bytes(kept["handle"])


def _forget() -> None:
    kept["handle"].close()
    kept.clear()


def test_layers_take_the_long_way(message: bytes, one_by_one: list[Any]) -> None:
    enable_layers("UR_LAYER_LEAK_CHECKING")
    try:
        found = xs.attach(message, like=torch)
        assert one_by_one
        del found
        one_by_one.clear()
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
def opened_by_python(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many handles each time."""
    seen: list[int] = []
    open_all = memory.open_all

    def note(handles: Any, device: Any, opened: Any) -> None:
        seen.append(len(handles))
        open_all(handles, device, opened)

    monkeypatch.setattr(memory, "open_all", note)
    return seen


def test_memory_is_opened_without_python(message: bytes, opened_by_python: list[int]) -> None:
    """Of an exporter that is known; a device that is named is Python's to choose."""
    with nothing_left():
        first, again, other = xs.attach(message), xs.attach(message), long_way(xs.attach, message)
        assert opened_by_python == [4]
        for name, array in first.items():
            assert array._held[:7] == again[name]._held[:7] == other[name]._held[:7], name
            assert type(array._held) is type(again[name]._held) is type(other[name]._held)
            assert array._held.lease.peer is other[name]._held.lease.peer
        xs.attach(message, device="native_cpu:0")
        assert opened_by_python == [4, 4]
        del first, again, other, array


def test_what_is_open_may_have_expired(peer: Child, message: bytes, opened_by_python: list[int]) -> None:
    found = xs.attach(message, like=torch)
    peer.call(withdraw_model)
    with pytest.raises(xs.HandleExpiredError):
        xs.attach(message, like=torch)
    assert opened_by_python == [4]
    assert found["whole"][3] == 3
    del found


def withdraw_model() -> None:
    """In the peer."""
    kept["handle"].close()


def pickled_model(by_python: bool) -> bytes:
    """In the peer."""
    share_model()
    gone = kept.pop("model")
    torch_reductions.install()
    found: Any = long_way(ForkingPickler.dumps, gone) if by_python else ForkingPickler.dumps(gone)
    torch_reductions.uninstall()
    return bytes(found)


def opens_left() -> list[int]:
    """In the peer: of what pickles export."""
    table = node.current().table()
    exported = [each for each in table.exports() if each.implicit]
    assert all(fields_of(each.handle).flags & PICKLED for each in exported)
    return [table.domain.opens_left(fields_of(each.handle).entry) for each in exported]


@pytest.mark.parametrize("by_python", [False, True])
def test_pickles_are_exported_and_opened_without_python(
    peer: Child, by_python: bool, opened_by_python: list[int]
) -> None:
    """Their opens count, also of what is open already."""
    xs.attach(peer.call(share_one))  # so that the exporter is known
    message = peer.call(pickled_model, by_python)
    assert peer.call(opens_left) == [1, 1, 1]
    first = pickle.loads(message)
    assert opened_by_python == []
    assert peer.call(opens_left) == [0, 0, 0]
    again = pickle.loads(peer.call(lambda raw: raw, message))
    assert first["whole"][3] == again["whole"][3] == 3
    assert first["whole"].data_ptr() == again["whole"].data_ptr()
    assert opened_by_python == []
    assert peer.call(opens_left) == [0, 0, 0]
    del first, again
    peer.call(close_model)


def test_pickled_exports_are_all_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt between two of them leaves none, and nothing waits to be opened."""
    tree = [torch.from_dlpack(xs.malloc_host(64).as_array(8, "u1")) for _ in range(5)]
    xs.share(tree).close()
    table = node.current().table()
    before = table.statistics()["exports"]
    torch_reductions.install()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(table, "_exports", _Interrupted(table._exports))
            with pytest.raises(KeyboardInterrupt):
                ForkingPickler.dumps(tree)
            assert table._exports.left == 0  # type: ignore[attr-defined]
    finally:
        torch_reductions.uninstall()
    assert table.statistics()["exports"] == before
    assert not table.pickles_wait()


@pytest.mark.parametrize("options", [{"read_only": True}, {"opens": 3}, {"ttl": 60}], ids=str)
def test_what_is_open_keeps_what_its_handles_say(
    peer: Child, options: dict[str, Any], opened_by_python: list[int]
) -> None:
    xs.attach(peer.call(share_one))  # so that the exporter is known
    message = peer.call(share_model, **options)
    first, again = xs.attach(message), xs.attach(message)
    assert opened_by_python == ([4, 4] if "opens" in options else [])
    assert all(array.read_only is ("read_only" in options) for array in again.values())
    if "opens" in options:
        xs.attach(message)
        with pytest.raises(xs.HandleExpiredError):
            xs.attach(message)
    del first, again
    peer.call(close_model)


# --- many exports at once


def test_exports_look_at_some_of_what_lingers() -> None:
    """Not each at all of it, which would take ever longer; but at more than they may add."""
    xs.share(xs.empty(1)).close()
    table = node.current().table()
    assert not table._lingering
    for _ in range(40):
        table._lingering[table._take_entry()] = object()
    assert table.sweep()
    left = len(table._lingering)
    assert 0 < left < 40
    with xs.share([xs.malloc_host(64).as_array(8, "u1") for _ in range(20)]):
        assert len(table._lingering) <= max(left - 20, 0)
    for _ in range(20):
        table._lingering[table._take_entry()] = object()
    table.sweep(everything=True)
    assert not table._lingering


class _Interrupted(dict[int, Any]):
    """What is exported; the third that comes is not taken."""

    left = 3

    def __setitem__(self, generation: int, exported: Any) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        super().__setitem__(generation, exported)


def test_exports_of_a_tree_are_all_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [xs.malloc_host(64).as_array(8, "u1") for _ in range(5)]
    xs.share(arrays).close()
    table = node.current().table()
    before = table.statistics()["exports"]
    publish = table._publish
    calls: list[int] = []

    def fail(_table: object, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError
        return publish(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(type(table), "_publish", fail)
        with pytest.raises(MemoryError):
            long_way(xs.share, arrays)
    assert table.statistics()["exports"] == before
    with monkeypatch.context() as patch:  # the same in native code, where an interrupt comes between two of them
        patch.setattr(table, "_exports", _Interrupted(table._exports))
        with pytest.raises(KeyboardInterrupt):
            xs.share(arrays)
        assert table.statistics()["exports"] == before
        assert table._exports.left == 0  # type: ignore[attr-defined]
    with xs.share(arrays) as handle:
        assert table.statistics()["exports"] == before + 5
        assert len(handle.handles) == 5
    assert table.statistics()["exports"] == before


# --- the parts


def test_leaves_refuse_what_makes_no_handle() -> None:
    leaves = Leaves([torch.ones(2), 1])
    assert leaves.where() is None
    assert leaves.next() == 0
    leaves.skip(None)
    assert leaves.next() == 1
    leaves.skip(None)
    assert leaves.next() is None
    with pytest.raises(IndexError):
        leaves.skip(None)
    for wrong in (2, 0, 0, 0, (1,), (8,), 0), (0, 0, 0, 0, (1,), (), 0):
        with pytest.raises(ValueError, match="differ in length"):
            leaves.set(*wrong)
    leaves.set(0, 0, -1, 0, (1,), (8,), 0)
    with pytest.raises(ValueError, match="not all arrays"):
        leaves.seal(identity.sealing(), [bytes(256)], [], [], b"", 0)
    leaves.set(1, 0, -1, 0, (1,), (8,), 0)
    with pytest.raises(ValueError, match="no handle"):
        leaves.seal(identity.sealing(), [b"short"], [], [], b"", 0)
    with pytest.raises(TypeError, match="as many points"):
        leaves.seal(identity.sealing(), [], [bytes(256)], [], b"", 0)
    with pytest.raises(TypeError):
        leaves.assign([], {})  # type: ignore[arg-type]
    with pytest.raises(xs.InvalidArgumentError, match="64 MiB"):
        seal_tree([], [], leaves, Dtypes(), "x" * (64 << 20), 0)


def test_many_kinds_of_arrays(placed_by_python: list[Any]) -> None:
    """More of them than the native way tells apart."""
    slab = torch.from_dlpack(xs.malloc_host(1 << 14).as_array(1 << 14, "u1"))
    kinds = [type(f"Kind{number}", (), {
        "__init__": lambda self, tensor: setattr(self, "tensor", tensor),
        "__dlpack__": lambda self, **options: self.tensor.__dlpack__(**options),
        "__dlpack_device__": lambda self: self.tensor.__dlpack_device__(),
    }) for number in range(70)]  # fmt: skip
    tree = [kind(slab[16 * at : 16 * at + 8]) for at, kind in enumerate(kinds)] + [slab[:4], slab[4:8], slab[8:12]]
    with xs.share(tree) as handle:
        assert len(placed_by_python) == 71
        assert [each.shape for each in xs.attach(handle)] == [(8,)] * 70 + [(4,)] * 3


def test_tensors_are_for_lists_of_their_sizes(message: bytes) -> None:
    parts = read_tree(identity.sealing(), message)
    assert parts is not None
    exchange = torch.Tensor.__dlpack_c_exchange_api__
    assert parts.tensors(None, [], []) is None
    with pytest.raises(TypeError, match="one place"):
        parts.tensors(exchange, [], [])
    places = [(object(), 4096, (1, 0))] * 4
    assert parts.tensors(exchange, places, []) is None, "no dtypes"
    with pytest.raises(TypeError):
        parts.tensors(exchange, [(1,)] * 4, [])
    with pytest.raises(TypeError):
        parts.good([4])  # type: ignore[arg-type]
    assert not parts.good((4,))
    assert read_tree(identity.sealing(), message[:-1]) is None


def test_tensors_give_back_what_a_library_does_not_take(message: bytes) -> None:
    """A dtype that torch does not know: nothing holds the owner afterwards."""
    parts = read_tree(identity.sealing(), message)
    assert parts is not None

    class Owner:
        pass

    gone: list[int] = []
    owner = Owner()
    weakref.finalize(owner, gone.append, 1)
    places = [(owner, 4096, (1, 0))] * 4
    dtypes = [((0, 7, 1), each) for each in (4, 2, 1)]
    assert parts.tensors(torch.Tensor.__dlpack_c_exchange_api__, places, dtypes) is None
    del owner, places
    assert gone
