"""`share` and `attach` by one native call: what it makes is what Python makes, and the rest it leaves to Python."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from array_peer import long_way
from peering import nothing_left

import xpushare as xs
from harness import Child, HarnessError, kept
from xpushare import _hand_over
from xpushare._array_handle import checked_parts
from xpushare._device import adapter_of
from xpushare._errors import OutOfMemoryError
from xpushare._native import HandOver, OwnTable, Span
from xpushare.adapters.base import Export, OnDemand
from xpushare.adapters.host.memory import HostMemory
from xpushare.adapters.mock.others import MockStream, default_stream
from xpushare.adapters.mock.script import driver
from xpushare.adapters.native_cpu import NativeCpu
from xpushare.adapters.stream.queue import DeviceQueue
from xpushare.core.layers import enable_layers
from xpushare.core.ordering import current_work
from xpushare.sharing import layout, node, routes
from xpushare.sharing.handle import Handle, fields_of
from xpushare.sharing.peers import Entry, Peers
from xpushare.sharing.routes import pidfd

pytestmark = pytest.mark.skipif(bool(_hand_over.off), reason="the native way is switched off")


def shared(name: str, shape: tuple[int, ...], dtype: str, **options: Any) -> bytes:
    """In the peer: a new array, shared; `kept` holds both."""
    array = kept[name] = xs.empty(shape, dtype, isolated=True)
    np.asarray(array)[...] = 3
    handle = kept[f"handle of {name}"] = xs.share(array, **options)
    return bytes(handle)


def withdraw(name: str) -> None:
    kept.pop(f"handle of {name}").close()


def put_back(name: str) -> bytes:
    """In the peer: another handle of the same array."""
    handle = kept[f"handle of {name}"] = xs.share(kept[name])
    return bytes(handle)


@pytest.fixture
def met(peer: Child) -> bytes:
    """A handle of an exporter that this process has met."""
    raw: bytes = peer.call(shared, "met", (4, 6), "f4")
    xs.attach(raw).close()
    return raw


# --- share


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((), "u1"), ((7,), "<i2"), ((3, 0, 2), "f8"), ((2, 3, 4), "c16"), ((1,) * 64, "u1"), ((5,), ">f4")],
    ids=str,
)
def test_share_makes_what_python_makes(shape: tuple[int, ...], dtype: str) -> None:
    array = xs.empty(shape, dtype)
    with xs.share(array) as first, nothing_left():  # the first export makes the table
        handle = _hand_over.share(array)
        assert handle is not None
        expected = long_way(xs.share, array)
        same(handle, expected)
        assert xs.ArrayHandle(bytes(handle)) == handle
        assert {first, handle, expected} == {xs.ArrayHandle(bytes(each)) for each in (first, handle, expected)}
        handle.close()
        assert not node.current().table()._exports.keys() & {fields_of(handle.handle).generation}
        expected.close()
        del handle, expected


def same(found: xs.ArrayHandle, expected: xs.ArrayHandle) -> None:
    """All but what each handle has of its own."""
    assert found._owner == expected._owner is not None
    assert found.dtype == expected.dtype
    parts, others = checked_parts(found), checked_parts(expected)
    assert parts[1:] == others[1:]
    assert [type(each) for each in parts] == [type(each) for each in others]
    own = {"entry", "generation", "nonce"}
    for name in dir(fields_of(parts.memory)):
        if not name.startswith("_") and name not in own:
            assert getattr(fields_of(parts.memory), name) == getattr(fields_of(others.memory), name), name
    exports = node.current().table()._exports
    export, other = (exports[fields_of(each.memory).generation] for each in (parts, others))
    for name in set(type(export).__slots__) - {"handle"}:
        assert getattr(export, name) is getattr(other, name) or getattr(export, name) == getattr(other, name), name
    assert export.handle == parts.memory


def entry_of(handle: xs.ArrayHandle) -> Entry:
    table = node.current().table()
    found = Span(table._entry_address(fields_of(handle.handle).entry), layout.ENTRY_NBYTES, True, table)
    return Entry._make(layout.ENTRY.unpack(bytes(memoryview(found))))


def test_the_first_share_of_an_allocation() -> None:
    """What all of its exports say is prepared then."""
    xs.share(xs.empty(3), ttl=60)  # of the device, the first is Python's
    arrays = [xs.empty(5000) for _ in range(2)]
    handle, expected = _hand_over.share(arrays[0]), long_way(xs.share, arrays[1])
    assert handle is not None
    mine, other = entry_of(handle), entry_of(expected)
    own = {"generation", "nonce", "object", "inode", "fds", "retired", "reason"}
    for name in set(Entry._fields) - own:
        assert getattr(mine, name) == getattr(other, name), name
    for array, each, entry in (arrays[0], handle, mine), (arrays[1], expected, other):
        allocation = array._held.allocation  # type: ignore[union-attr]
        assert fields_of(each.handle).object == entry.object == allocation.serial
        assert os.fstat(layout.FDS.unpack(entry.fds)[0]).st_ino == entry.inode
        assert allocation.prepared is not None
        assert (allocation.prepared.nbytes, allocation.prepared.on_demand) == (allocation.nbytes, None)
        each.close()


def test_what_the_driver_refuses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    xs.share(xs.empty(3), ttl=60)
    array = xs.empty(5000)

    def refuse(*_arguments: Any) -> Any:
        raise xs.FeatureNotSupportedError("not this one")

    with monkeypatch.context() as patch:
        patch.setattr(HostMemory, "export", refuse)
        with pytest.raises(xs.FeatureNotSupportedError, match="not this one"):
            xs.share(array)
        patch.setattr(HostMemory, "lasting_export", False)
        with pytest.raises(xs.FeatureNotSupportedError, match="not this one"):
            xs.share(array)
    xs.share(array).close()


def test_share_of_views_of_an_allocation() -> None:
    """Steps that go back, gaps, and a beginning within: exactly the bytes that the elements span."""
    memory = xs.malloc_host(4096)
    array = memory.slice(64, 1024).as_array((8, 4), "i4", 16)
    view = array._view(3 * 16, (4, 2), np.dtype("i4"), (-16, 8))
    xs.share(array).close()
    for each in array, view:
        handle = _hand_over.share(each)
        assert handle is not None
        expected = long_way(xs.share, each)
        same(handle, expected)
        handle.close()
        expected.close()


def share_when_another_is_over() -> tuple[int, int]:
    """How many exports there are before one ends by itself, and after the next `share`."""
    array = xs.empty(3)
    table = node.current().table()
    with xs.share(array), xs.share(array, opens=1) as counted:
        before = table.statistics()["exports"]
        xs.attach(bytes(counted)).close()
        handle = _hand_over.share(array)
        assert handle is not None
        after = table.statistics()["exports"]
        handle.close()
        return before, after


def test_share_ends_what_is_over() -> None:
    """As each export does, of a few that it looks at: in a process that has no others."""
    with Child() as child:
        assert child.call(share_when_another_is_over) == (2, 2)


OUT_OF_MEMORY = """
import _testcapi
import xpushare as xs
from xpushare import _hand_over
from xpushare.sharing import node

array, failed = xs.empty(3), 0
xs.share(array).close()
before = len(node.current().table().exports())
for nth in range(100):
    handle = None
    _testcapi.set_nomemory(nth, nth + 1)
    try:
        handle = _hand_over.share(array)
    except MemoryError:
        failed += 1
    finally:
        _testcapi.remove_mem_hooks()
    if handle is not None:
        handle.close()
print(failed > 3, len(node.current().table().exports()) - before)
"""


@pytest.mark.skipif(importlib.util.find_spec("_testcapi") is None, reason="this Python has no _testcapi")
def test_share_without_memory_exports_nothing() -> None:
    """In a process of its own: what runs out of memory is whatever thread asks for some."""
    done = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "0"], done.stderr


def test_share_on_a_device_with_streams(peer: Child) -> None:
    array = xs.empty((2, 3), "u1", device="mock:0")
    with xs.share(array) as contact:
        peer.call(content_of, bytes(contact))
    with nothing_left():
        handle, expected = _hand_over.share(array), long_way(xs.share, array)
        assert handle is not None
        assert handle.event is None, "nothing is queued"
        same(handle, expected)
        handle.close()
        expected.close()
        del handle, expected
    gate, stream = threading.Event(), default_stream(0)
    stream.call(gate.wait)
    stream.call(lambda: np.asarray(array.memory).fill(9))
    before = node.current().table().statistics()["exports"]
    first, second = _hand_over.share(array), long_way(xs.share, array)
    assert first is not None
    parts, others = checked_parts(first), checked_parts(second)
    assert (parts.event, parts.point + 1) == (others.event, others.point)
    assert xs.ArrayHandle(bytes(first)) == first
    assert checked_parts(xs.ArrayHandle(bytes(first)))[1:] == parts[1:]
    exports = node.current().table()._exports
    keep, other = (exports[fields_of(each.handle).generation].keep for each in (first, second))
    assert keep[0] is other[0] is None
    assert keep[1] is other[1], "the event's export"
    del keep, other
    pending = peer.start(content_of, bytes(first))
    with pytest.raises(HarnessError):
        pending.result(0.1)
    gate.set()
    assert pending.result() == [9] * 6
    first.close()
    second.close()
    del first, second, parts, others
    assert node.current().table().statistics()["exports"] == before, "the event's export has ended, too"


def content_of(raw: bytes) -> list[int]:
    with xs.attach(raw) as array:
        found: list[int] = np.asarray(array).ravel().tolist()
        return found


def test_the_queue_over_a_stream_that_never_ends_is_made_once() -> None:
    device, array = xs.Device("mock:0"), xs.empty(3, device="mock:0")
    work = current_work(device, array)
    assert work is not None
    assert current_work(device, array) is work
    assert current_work(xs.Device("mock:1"), xs.empty(3, device="mock:1")) is not work
    assert current_work(xs.Device("native_cpu:0"), xs.empty(3)) is None

    class OfALibrary:
        mock_stream = MockStream()

    named = current_work(device, array, 7)
    assert current_work(device, OfALibrary(), 7) is not named, "another library may call another stream the same"
    made = [current_work(device, OfALibrary(), 7) for _ in range(2)]
    assert made[0] is not made[1], "that stream may end, and its number be another's"
    OfALibrary.mock_stream.close()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = int(current_work(device, array) in (None, work))  # the parent's has no thread here
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_stream_that_fails_is_pythons_error(monkeypatch: pytest.MonkeyPatch) -> None:
    array = xs.empty(3, device="mock:0")
    xs.share(array).close()

    def fail(_queue: DeviceQueue) -> bool:
        raise xs.DeviceError("no such luck")

    monkeypatch.setattr(DeviceQueue, "idle", fail)
    before = node.current().table().statistics()["exports"]
    with pytest.raises(xs.DeviceError, match="no such luck"):
        xs.share(array)
    assert node.current().table().statistics()["exports"] == before


def test_fds_are_handed_out_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    xs.share(xs.empty(3), ttl=60)
    array = xs.empty(5000)
    monkeypatch.setattr(HostMemory, "lasting_export", False)
    export = HostMemory.export

    def on_demand(self: HostMemory, read_only: bool) -> Export:
        return export(self, read_only)._replace(fds=(), on_demand=OnDemand(1 << 20, (3, 4), -5, 6))

    monkeypatch.setattr(HostMemory, "export", on_demand)
    handle, expected = _hand_over.share(array), long_way(xs.share, array)
    assert handle is not None
    same(handle, expected)
    assert entry_of(handle).fd_count == entry_of(expected).fd_count == 2
    assert entry_of(handle).flags == entry_of(expected).flags
    handle.close()
    expected.close()
    monkeypatch.setattr(HostMemory, "export", lambda self, read_only: on_demand(self, read_only)._replace(
        on_demand=OnDemand(0, (3,), 0, 0)
    ))  # fmt: skip
    before = node.current().table().statistics()["exports"]
    with pytest.raises(ValueError, match="no such entry"):
        _hand_over.share(array)
    assert node.current().table().statistics()["exports"] == before


def test_share_leaves_the_rest_to_python(met: bytes) -> None:
    """None, and nothing exported: for what Python alone decides, refuses, or has more to do for."""
    array = xs.empty(3)
    xs.share(array).close()
    imported = xs.attach(met)
    closed = xs.empty(3)
    closed.close()
    table = node.current().table()
    before = table.statistics()["exports"]
    for each in imported, closed, xs.malloc_host(8), np.empty(3), None:
        assert _hand_over.share(each) is None  # type: ignore[arg-type]
    enable_layers("UR_LAYER_LEAK_CHECKING")
    try:
        assert _hand_over.share(array) is None
    finally:
        enable_layers()
    assert table.statistics()["exports"] == before
    handle = _hand_over.share(array)
    assert handle is not None
    handle.close()
    imported.close()


def test_a_forked_child_leaves_it_to_python() -> None:
    array = xs.empty(3)
    xs.share(array).close()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            own = xs.empty(3)
            xs.share(own).close()  # a table of its own
            if _hand_over.share(array) is None and _hand_over.share(own) is not None:
                try:
                    xs.share(array)
                except xs.ForkError:
                    code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_share_that_fails_gives_its_entry_back(monkeypatch: pytest.MonkeyPatch) -> None:
    array = xs.empty(3)
    xs.share(array).close()
    table = node.current().table()

    class Full(dict[int, Any]):
        def __setitem__(self, key: int, value: Any) -> None:
            raise MemoryError

    used = table.statistics()["entries_used"]
    with monkeypatch.context() as patch:
        patch.setattr(table, "_exports", Full())
        for _ in range(3):
            with pytest.raises(MemoryError):
                _hand_over.share(array)
    xs.share(array).close()
    assert table.statistics()["entries_used"] <= used + 1
    handles: list[xs.ArrayHandle] = []
    other = threading.Thread(target=lambda: handles.append(xs.share(array)))
    other.start()
    other.join(10)
    assert handles, "the lock was let go"
    handles[0].close()


def test_threads_share_at_once() -> None:
    """Each gets an entry and a generation of its own."""
    array = xs.empty(3)
    xs.share(array).close()
    handles: list[xs.ArrayHandle] = []

    def work() -> None:
        handles.extend(xs.share(array) for _ in range(200))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len({fields_of(each.handle).entry for each in handles}) == len(handles) == 800
    assert len({fields_of(each.handle).generation for each in handles}) == 800
    for handle in handles:
        handle.close()


# --- attach


@pytest.mark.parametrize(("shape", "dtype"), [((), "f8"), ((2, 3, 4), "<i2"), ((5,), ">c8")], ids=str)
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.usefixtures("met")
def test_attach_makes_what_python_makes(peer: Child, shape: tuple[int, ...], dtype: str, read_only: bool) -> None:
    raw = peer.call(shared, "array", shape, dtype, read_only=read_only)
    with nothing_left():
        array = _hand_over.attach(raw)
        assert array is not None
        other = long_way(xs.attach, raw)
        for name in set(type(array).__slots__) - {"_held", "_handle"}:
            mine, its = getattr(array, name), getattr(other, name)
            assert (type(mine), mine) == (type(its), its), name
        mine, its = array._held, other._held
        assert mine is not None
        assert type(mine) is type(its)
        assert mine[:7] == its[:7], "the same mapping"
        assert type(mine.lease) is type(its.lease)
        assert mine.lease.peer is its.lease.peer
        assert mine.allocation.handle == array.handle.handle
        assert (array.handle, checked_parts(array.handle)) == (other.handle, checked_parts(other.handle))
        assert array.handle._owner is None
        values = np.asarray(array)
        assert (values.dtype, values.shape, values.flags.writeable) == (np.dtype(dtype), shape, not read_only)
        assert (values == 3).all()
        array.close()
        other.close()
        del array, other, values, mine, its


def test_attach_leaves_the_rest_to_python(peer: Child, met: bytes) -> None:
    """None, and nothing left open: opens that are counted, handles that lie or have expired, layers, strangers."""
    counted = peer.call(shared, "counted", (2,), "u1", opens=2)
    with nothing_left():
        assert _hand_over.attach(counted) is None
        for _ in range(2):
            xs.attach(counted).close()
        with pytest.raises(xs.HandleExpiredError, match="used up"):
            xs.attach(counted)
    enable_layers("UR_LAYER_LEAK_CHECKING")
    try:
        assert _hand_over.attach(met) is None
    finally:
        enable_layers()
    own = xs.share(xs.empty(2))
    assert _hand_over.attach(bytes(own)) is None
    own.close()
    with Child() as stranger:
        raw = stranger.call(shared, "one", (2,), "u1")
        xs.attach(raw).close()
        array = _hand_over.attach(raw)
        assert array is not None
        array.close()
    assert _hand_over.attach(raw) is None, "its exporter has ended"
    with pytest.raises(xs.HandleExpiredError):
        xs.attach(raw)


@pytest.mark.usefixtures("met")
def test_attach_meets_an_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call for each of the steps, and none of Python's; where nothing comes of it, no acquaintance is left."""
    peers = node.current().peers
    with Child() as stranger:
        raw = stranger.call(shared, "one", (2,), "u1")
        cookie = fields_of(xs.ArrayHandle(raw).handle).cookie
        gone = stranger.call(shared, "gone", (2,), "u1")
        stranger.call(withdraw, "gone")
        counted = stranger.call(shared, "counted", (2,), "u1", opens=1)
        with nothing_left():
            assert _hand_over.attach(gone) is _hand_over.attach(counted) is None
            assert not peers.stands(xs.ArrayHandle(raw).handle)
        with monkeypatch.context() as patch, nothing_left():
            patch.setattr(pidfd, "meet", lambda _handle: None)
            assert _hand_over.attach(raw) is None, "the socket may go"
        with monkeypatch.context() as patch, nothing_left():
            patch.setattr(NativeCpu, "import_memory", interrupted)
            with pytest.raises(KeyboardInterrupt):
                _hand_over.attach(raw)
            assert cookie not in peers._peers
        with monkeypatch.context() as patch, nothing_left():
            patch.setattr(Peers, "_know", interrupted_once())
            with pytest.raises(KeyboardInterrupt) as caught:  # whose traceback holds what was made
                _hand_over.attach(raw)
            assert cookie not in peers._peers
        with monkeypatch.context() as patch:
            for way in ("acquire", "acquire_known"):
                patch.delattr(Peers, way)
            array = _hand_over.attach(raw)
        assert array is not None
        assert np.asarray(array).tolist() == [3, 3]
        assert peers.stands(array.handle.handle)
        assert stranger.call(lambda: len(node.current().table().domain.members())) == 2
        array.close()
        del array, caught
    with nothing_left():
        assert _hand_over.attach(raw) is None, "its exporter has ended"


def interrupted(*_arguments: object) -> None:
    raise KeyboardInterrupt


def interrupted_once() -> Callable[[Peers], None]:
    know, left = Peers._know, [True]

    def first(peers: Peers) -> None:
        know(peers)
        if left:
            left.clear()
            raise KeyboardInterrupt

    return first


@pytest.mark.usefixtures("met")
def test_others_are_met_while_one_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that this process holds meanwhile is in their way."""
    real, asked, go = routes.meet, threading.Event(), threading.Event()
    with Child() as slow, Child() as other:
        first, second = (each.call(shared, "one", (2,), "u1") for each in (slow, other))
        cookie = fields_of(xs.ArrayHandle(first).handle).cookie

        def meet(handle: Handle) -> Any:
            if fields_of(handle).cookie == cookie:
                asked.set()
                assert go.wait(20)
            return real(handle)

        monkeypatch.setattr(routes, "meet", meet)
        thread = threading.Thread(target=lambda: xs.attach(first).close())
        thread.start()
        assert asked.wait(20)
        with xs.attach(second) as array:
            assert np.asarray(array).tolist() == [3, 3]
        go.set()
        thread.join()


@pytest.mark.usefixtures("met")
@pytest.mark.parametrize("native", [True, False])
def test_who_comes_while_an_exporter_is_being_met_waits(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    real, joined, go = routes.meet, threading.Event(), threading.Event()
    attached: list[object] = []

    def meet(handle: Handle) -> Any:
        found = real(handle)
        if not joined.is_set():
            joined.set()
            assert go.wait(20)
        return found

    def attach(way: Any) -> None:
        try:
            attached.append(way(raw))
        except BaseException as error:
            attached.append(error)

    monkeypatch.setattr(routes, "meet", meet)
    with Child() as stranger:
        raw = stranger.call(shared, "one", (2,), "u1")
        ways = [xs.attach, xs.attach if native else lambda raw: long_way(xs.attach, raw)]
        threads = [threading.Thread(target=attach, args=(way,)) for way in ways]
        threads[0].start()
        assert joined.wait(20)
        threads[1].start()
        threads[1].join(0.2)  # it cannot be seen to wait
        assert attached == []
        go.set()
        for each in threads:
            each.join()
        assert [type(each) for each in attached] == [xs.SharedArray] * 2, attached


@pytest.mark.usefixtures("met")
def test_a_withdrawn_handle(peer: Child) -> None:
    raw = peer.call(shared, "short", (2,), "u1")
    with nothing_left():
        array = _hand_over.attach(raw)
        peer.call(withdraw, "short")
        assert _hand_over.attach(raw) is None, "not from what is open, either"
        with pytest.raises(xs.HandleExpiredError):
            xs.attach(raw)
        assert array is not None
        again = _hand_over.attach(peer.call(put_back, "short"))
        assert again is not None
        held, other = again._held, array._held
        assert held is not None
        assert other is not None
        assert held.allocation is other.allocation
        del held, other
        del array, again


def test_altered_bytes(met: bytes) -> None:
    """Each bit flipped, each length: nothing is opened."""
    with nothing_left():
        for at in range(len(met) * 8):
            wrong = bytearray(met)
            wrong[at // 8] ^= 1 << at % 8
            assert _hand_over.attach(bytes(wrong)) is None
        for length in range(len(met)):
            assert _hand_over.attach(met[:length]) is None
        assert _hand_over.attach(met + b"\0") is None


def test_what_is_open_is_attached_again_without_python(
    peer: Child, met: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwanted(*_arguments: object) -> None:
        pytest.fail("this is Python's way")

    with xs.attach(met) as first:
        other = peer.call(put_back, "met")
        monkeypatch.setattr(Peers, "acquire_known", unwanted)
        for raw in met, other:
            with nothing_left(), xs.attach(raw) as again:
                assert again.memory.ptr == first.memory.ptr
                assert again.handle is again.handle == xs.ArrayHandle(raw)
                assert again._held is not None
                assert again._held.allocation.handle == again.handle.handle


def test_an_open_that_fails_is_tried_in_python(met: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python may find room, or another way, and has the errors."""
    failures: list[int] = []
    importing = NativeCpu.import_memory

    def fail(*arguments: Any) -> Any:
        if not failures:
            failures.append(1)
            raise OutOfMemoryError("full")
        return importing(*arguments)

    monkeypatch.setattr(NativeCpu, "import_memory", fail)
    with nothing_left(), xs.attach(met) as array:
        assert np.asarray(array).sum() == 4 * 6 * 3
    assert failures


def test_an_interrupt_passes(met: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(NativeCpu, "import_memory", interrupt)
    with nothing_left(), pytest.raises(KeyboardInterrupt):
        xs.attach(met)


def test_what_another_thread_maps_first_is_used(met: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    importing = NativeCpu.import_memory
    others: list[xs.SharedArray] = []

    def slowly(*arguments: Any) -> Any:
        monkeypatch.setattr(NativeCpu, "import_memory", importing)
        others.append(long_way(xs.attach, met))
        return importing(*arguments)

    monkeypatch.setattr(NativeCpu, "import_memory", slowly)
    with nothing_left():
        array = _hand_over.attach(met)
        assert array is not None
        assert array.memory.ptr == others[0].memory.ptr
        others.pop().close()
        assert (np.asarray(array) == 3).all()
        array.close()
        del array


def slots_of(owner: Any) -> dict[str, Any]:
    return {
        name: getattr(owner, name)
        for each in type(owner).__mro__
        for name in getattr(each, "__slots__", ())
        if name != "__weakref__"
    }


def test_its_allocations_are_what_python_makes(met: bytes) -> None:
    made: list[dict[str, Any]] = []
    for way in _hand_over.attach, lambda raw: long_way(xs.attach, raw):
        with nothing_left():
            array = way(met)
            assert array is not None
            allocation = array._held.allocation
            end = {f"end {name}": each for name, each in slots_of(allocation._end).items()}
            made.append(slots_of(allocation) | end)
            array.close()
            del array, allocation, end
            made[-1]["driver"] = type(made[-1]["driver"])  # the last that hold it
            for name in "end forget", "end _release", "_end":
                made[-1][name] = type(made[-1][name])
    own = {"address"}
    assert {name: (type(each), each) for name, each in made[0].items() if name not in own} == {
        name: (type(each), each) for name, each in made[1].items() if name not in own
    }


# --- attach, of a device's memory


def shared_behind(name: str) -> bytes:
    """In the peer: an array that its stream has yet to fill, once `open_gate` is called."""
    array = kept[name] = xs.empty((4,), "u1", device="mock:0")
    gate = kept["gate"] = threading.Event()
    stream = default_stream(0)
    stream.call(gate.wait)
    stream.call(lambda: np.asarray(array.memory).fill(9))
    handle = kept[f"handle of {name}"] = xs.share(array)
    return bytes(handle)


def open_gate() -> None:
    kept["gate"].set()
    default_stream(0).synchronize()


def shared_on_mock(name: str) -> bytes:
    array = kept[name] = xs.empty((4,), "u1", device="mock:0")
    np.asarray(array)[...] = 3
    handle = kept[f"handle of {name}"] = xs.share(array)
    return bytes(handle)


@pytest.fixture
def met_on_mock(peer: Child) -> None:
    """Python has opened both an array and an event on the device."""
    raw = peer.call(shared_behind, "first")
    peer.call(open_gate)
    long_way(xs.attach, raw).close()
    peer.call(withdraw, "first")
    unmapped()


def unmapped() -> None:
    """What was closed is unmapped, too."""
    xs.trim()
    assert adapter_of(xs.Device("mock:0")).engine.teardown.settle(20)


def unwanted(*_arguments: object) -> Any:
    pytest.fail("this is Python's way")


def without_python(raw: bytes) -> xs.SharedArray:
    with pytest.MonkeyPatch.context() as patch:
        for way in ("acquire", "acquire_known", "acquire_slot", "_open_known", "_cached"):
            patch.setattr(Peers, way, unwanted)
        array = _hand_over.attach(raw)
    assert array is not None
    return array


def opened_of(array: xs.SharedArray) -> Any:
    assert array._order is not None
    return array._order._event


@pytest.mark.usefixtures("met_on_mock")
def test_its_readers_wait_for_what_is_pending(peer: Child) -> None:
    raw = peer.call(shared_behind, "pending")
    before = node.current().peers.statistics()
    array, expected = without_python(raw), long_way(xs.attach, raw)
    mine, other = opened_of(array), opened_of(expected)
    assert mine.timeline is other.timeline, "an event has one timeline in a process"
    assert mine._replace(lease=None) == other._replace(lease=None)
    assert [type(each) for each in mine] == [type(each) for each in other]
    assert array._order._point == expected._order._point  # type: ignore[union-attr]
    again = without_python(raw)
    assert opened_of(again).timeline is mine.timeline
    found: list[list[int]] = []
    reader = threading.Thread(target=lambda each: found.append(np.asarray(each).tolist()), args=(array,))
    reader.start()
    reader.join(0.2)  # it cannot be seen to wait
    assert not found
    peer.call(open_gate)
    reader.join(20)
    assert found == [[9] * 4]
    del mine, other, array, expected, again
    unmapped()
    assert node.current().peers.statistics() == before
    peer.call(withdraw, "pending")


@pytest.mark.usefixtures("met_on_mock")
def test_its_timelines_are_what_python_makes(peer: Child) -> None:
    raw = peer.call(shared_behind, "pending")
    made: list[dict[str, Any]] = []
    for way in without_python, lambda raw: long_way(xs.attach, raw):
        with nothing_left():
            array = way(raw)
            timeline = opened_of(array).timeline
            end = {f"end {name}": each for name, each in slots_of(timeline._end).items()}
            made.append(slots_of(timeline) | end)
            made[-1]["slot"] = made[-1]["slot"].index, type(made[-1]["slot"])
            made[-1]["end forget"] = made[-1]["end forget"][1]
            del made[-1]["_end"]
            array.close()
            del array, timeline, end
            unmapped()
    assert made[0] == made[1]
    peer.call(open_gate)
    peer.call(withdraw, "pending")


@pytest.mark.usefixtures("met_on_mock")
def test_nothing_is_opened_of_an_event_that_has_come(peer: Child) -> None:
    raw = peer.call(shared_behind, "there")
    peer.call(open_gate)
    with nothing_left():
        with without_python(raw) as array:
            assert array._order is None
            assert np.asarray(array).tolist() == [9] * 4
        unmapped()
    peer.call(withdraw, "there")


@pytest.mark.usefixtures("met_on_mock")
def test_a_new_allocation_of_a_device(peer: Child) -> None:
    """It is what Python makes, also of what keeps it for a moment when it is closed."""
    made: list[dict[str, Any]] = []
    raw = peer.call(shared_on_mock, "new")
    for way in without_python, lambda raw: long_way(xs.attach, raw):
        with nothing_left():
            array = way(raw)
            assert np.asarray(array).tolist() == [3] * 4
            allocation = array._held.allocation  # type: ignore[union-attr]
            end = {f"end {name}": each for name, each in slots_of(allocation._end).items()}
            made.append(slots_of(allocation) | end)
            keep = made[-1].pop("end keep")
            *arguments, reopen = keep.args
            assert not keep.keywords
            made[-1] |= {"keep": (keep.func, arguments), "reopen": (reopen.func, reopen.args[::2])}
            del keep, reopen
            for name in "driver", "end forget", "end _release", "_end":
                made[-1][name] = type(made[-1][name])
            del made[-1]["address"]
            array.close()
            del array, allocation, end
            unmapped()
    assert made[0] == made[1]
    peer.call(withdraw, "new")


@pytest.mark.usefixtures("met_on_mock")
@pytest.mark.parametrize("error", [OutOfMemoryError("full"), KeyboardInterrupt()], ids=type)
def test_a_turn_ends_with_what_fails(peer: Child, error: BaseException) -> None:
    raw = peer.call(shared_on_mock, "fails")
    driver().fail("Mapping", error, nth=1)
    with nothing_left():
        if isinstance(error, KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                xs.attach(raw)
        else:
            xs.attach(raw).close()
        assert not node.current().peers._opening
        with xs.attach(raw) as array:
            assert np.asarray(array).tolist() == [3] * 4
        del array
        unmapped()
    peer.call(withdraw, "fails")


# --- the parts


CLASSES = (
    "SharedArray", "ArrayHandle", "Handle", "Range", "Parts", "Allocation", "Exported", "End", "Opener", "Device",
    "Import", "Export", "Node", "Table", "Implicit", "Located", "Timeline", "Opened", "Order", "Turn", "Peers", "Peer",
)  # fmt: skip


def test_hand_over_takes_its_kit() -> None:
    for kit in ({}, {"SharedArray": 1}):
        with pytest.raises(TypeError, match="keyword arguments"):
            HandOver(**kit)
    for nonsense in ("text", None, b"", bytearray(1)):
        assert _hand_over.attach(nonsense) is _hand_over.share(nonsense) is None
    dicts = ("decided", "opened_on", "texts", "dtypes", "lasting", "started")
    kit = dict.fromkeys(CLASSES, object) | {name: {} for name in dicts}
    steps = "prepared_by", "decode_dtype", "order_of", "exchange_of", "kind_of", "range_at", "current_mark", "offer"
    kit |= dict.fromkeys(("forms", *steps, "mark", "release_slot", "reopened", "partial", "rlock"))
    lists = ("off", "layers_on", "here", "sealings", "boot_ids")
    with pytest.raises(TypeError, match="off is a list"):
        HandOver(**kit, **dict.fromkeys(lists))
    with pytest.raises(AttributeError, match="_held"):
        HandOver(**kit, **{name: list[Any]() for name in lists})


def test_entries_are_used_again_once_nobody_holds_them() -> None:
    table = node.current().table()
    common = bytes(224)
    own = OwnTable(table._mapping, common)
    assert [own.take(table.domain) for _ in range(3)] == [0, 1, 2]
    own.give(1)
    assert [own.take(table.domain), own.take(table.domain), own.used] == [1, 3, 4]
    with pytest.raises(ValueError, match="not taken"):
        own.give(4)
    assert [own.next_generation(), own.next_generation()] == [1, 2]


def test_the_switch() -> None:
    code = "from xpushare import _hand_over; print(_hand_over.off)"
    for value, expected in (("0", f"['{_hand_over.SWITCH}']"), ("1", "[]")):
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, _hand_over.SWITCH: value}, capture_output=True, text=True
        )
        assert done.stdout.strip() == expected, done.stderr
