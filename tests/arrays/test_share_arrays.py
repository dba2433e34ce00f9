"""`share` of one array: what its handle and its entry say, and what is left of a `share` that fails."""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from peering import nothing_left

import xpushare as xs
from harness import Child, HarnessError, kept
from xpushare._native import STRUCTS, Exported, OwnTable, Seal, Span
from xpushare.adapters.base import Export, Form, OnDemand
from xpushare.adapters.host.memory import HostMemory
from xpushare.adapters.mock.adapter import MockStream, default_stream
from xpushare.adapters.stream.queue import DeviceQueue
from xpushare.common.elements import c_strides
from xpushare.core.layers import enable_layers
from xpushare.core.ordering import current_work
from xpushare.objects.array import covered_by, view_of
from xpushare.sharing import layout, node
from xpushare.sharing.handle import fields_of


def shared(name: str) -> bytes:
    """In the peer: a new array, shared; `kept` holds both."""
    array = kept[name] = xs.empty((4, 6), "f4", isolated=True)
    handle = kept[f"handle of {name}"] = xs.share(array)
    return bytes(handle)


def content_of(raw: bytes) -> list[int]:
    with xs.attach(raw) as array:
        found: list[int] = np.asarray(array).ravel().tolist()
        return found


def export_of(handle: xs.ArrayHandle) -> Any:
    found = node.current().table().find(handle.handle)
    assert found is not None
    return found


def exports() -> int:
    count: int = node.current().table().statistics()["exports"]
    return count


def entry_of(handle: xs.ArrayHandle) -> Any:
    table = node.current().table()
    found = Span(table._entry_address(fields_of(handle.handle).entry), layout.ENTRY_NBYTES, True, table)
    names = (field for field in STRUCTS["entry"] if field != "since")
    return SimpleNamespace(**dict(zip(names, layout.ENTRY.unpack(bytes(memoryview(found))), strict=True)))


def expect_of(handle: xs.ArrayHandle, array: xs.SharedArray) -> None:
    """It says what the array is, and names exactly the bytes that the elements span."""
    covered, first = covered_by(array)
    allocation, fields, export = covered.allocation, fields_of(handle.handle), export_of(handle)
    assert (handle.shape, handle.strides, handle.dtype) == (array.shape, array.strides, array.dtype)
    assert (handle.nbytes, handle.copied_nbytes, handle.read_only) == (array.nbytes, 0, array.read_only)
    assert [each[-1] for each in handle._elements] == [first]
    assert (fields.offset, fields.nbytes) == (covered.offset, covered.nbytes)
    assert (fields.object, fields.pid, handle.handle.kind) == (allocation.serial, os.getpid(), "memory")
    assert (handle.handle.backend, handle.handle.device_uuid) == (array.device.backend, array.device.uuid)
    assert (export.handle, export.source, export.implicit, export.foreign) == (handle.handle, allocation, False, False)
    assert xs.ArrayHandle(bytes(handle)) == handle


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((), "u1"), ((7,), "<i2"), ((3, 0, 2), "f8"), ((2, 3, 4), "c16"), ((1,) * 64, "u1"), ((5,), ">f4")],
    ids=str,
)
def test_a_handle_says_what_the_array_is(shape: tuple[int, ...], dtype: str) -> None:
    array = xs.empty(shape, dtype)
    with xs.share(array) as first, nothing_left():  # the first export makes the table
        handle, other = xs.share(array), xs.share(array)
        expect_of(handle, array)
        assert (handle.shape, handle.dtype) == (shape, np.dtype(dtype))
        assert handle.strides == c_strides(shape, np.dtype(dtype).itemsize)
        assert (handle.event, handle._events, export_of(handle).keep) == (None, (), None)
        assert {first, handle, other} == {xs.ArrayHandle(bytes(each)) for each in (first, handle, other)}
        assert len({first, handle, other}) == 3, "each is an export of its own"
        handle.close()
        assert handle.handle not in [each.handle for each in node.current().table().exports()]
        other.close()
        del handle, other


def test_share_of_views_of_an_allocation() -> None:
    """Steps that go back, gaps, and a beginning within: exactly the bytes that the elements span."""
    memory = xs.malloc_host(4096)
    array = memory.slice(64, 1024).as_array((8, 4), "i4", 16)
    view = view_of(array, 3 * 16, (4, 2), np.dtype("i4"), (-16, 8))
    for each, offset, nbytes in (array, 64 + 16, 128), (view, 64 + 16, 3 * 16 + 8 + 4):
        with xs.share(each) as handle:
            expect_of(handle, each)
            assert (fields_of(handle.handle).offset, handle.handle.nbytes) == (offset, nbytes)


def test_the_first_share_of_an_allocation() -> None:
    """What all of its exports say is prepared then."""
    for array in [xs.empty(5000) for _ in range(2)]:
        covered, _ = covered_by(array)
        assert covered.allocation.prepared is None
        for _ in range(2):
            with xs.share(array) as handle:
                fields, entry, prepared = fields_of(handle.handle), entry_of(handle), covered.allocation.prepared
                assert (entry.generation, entry.nonce, entry.kind) == (fields.generation, fields.nonce, fields.kind)
                assert (entry.object, fields.object) == (covered.allocation.serial, covered.allocation.serial)
                assert (entry.nbytes, entry.exposed_nbytes) == (covered.allocation.nbytes, fields.exposed_nbytes)
                form = Form.MEMFD << layout.ENTRY_FORM_BIT
                assert (entry.flags, entry.offset, entry.fd_count) == (form, 0, 1)
                assert os.fstat(layout.FDS.unpack(entry.fds)[0]).st_ino == entry.inode
                assert prepared is not None
        assert covered.allocation.prepared is prepared


def test_what_the_driver_refuses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    xs.share(xs.empty(3), ttl=60)
    array = xs.empty(5000, isolated=True)  # memory that served before is exported as before

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


def share_when_another_is_over() -> tuple[int, int]:
    """How many exports there are before one ends by itself, and after the next `share`."""
    array = xs.empty(3)
    table = node.current().table()
    with xs.share(array), xs.share(array, opens=1) as counted:
        before = table.statistics()["exports"]
        xs.attach(bytes(counted)).close()
        with xs.share(array):
            return before, table.statistics()["exports"]


def test_share_ends_what_is_over() -> None:
    """As each export does, of a few that it looks at: in a process that has no others."""
    with Child() as child:
        assert child.call(share_when_another_is_over) == (2, 2)


OUT_OF_MEMORY = """
import _testcapi
import xpushare as xs
from xpushare.sharing import node

array, failed = xs.empty(3), 0
xs.share(array).close()
before, used = len(node.current().table().exports()), node.current().table().statistics()["entries_used"]
for nth in range(250):
    handle = None
    _testcapi.set_nomemory(nth, nth + 1)
    try:
        handle = xs.share(array)
    except MemoryError:
        failed += 1
    finally:
        _testcapi.remove_mem_hooks()
    if handle is not None:
        handle.close()
table = node.current().table()
print(failed > 3, len(table.exports()) - before, table.statistics()["entries_used"] - used)
"""


@pytest.mark.skipif(importlib.util.find_spec("_testcapi") is None, reason="this Python has no _testcapi")
def test_share_without_memory_exports_nothing() -> None:
    """In a process of its own: what runs out of memory is whatever thread asks for some."""
    done = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "0", "0"], done.stderr


class Interrupted:
    """The native table, but an interrupt comes as soon as it has exported."""

    def __init__(self, entries: OwnTable) -> None:
        self._entries = entries
        self.exported: list[int] = []

    def export(self, seal: Seal, exports: list[Exported], *limits: Any) -> None:
        self.exported.append(len(self._entries.export(seal, exports, *limits) or ()))
        raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entries, name)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_share_that_fails_gives_its_entry_back(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the message is sealed, and after. The table's lock is free then."""
    array = xs.empty(3)
    xs.share(array).close()
    table = node.current().table()
    before, used = exports(), table.statistics()["entries_used"]

    def fail(*_arguments: Any) -> Any:
        raise error

    for name in "arrays.share._message", "ArrayHandle._own":
        with monkeypatch.context() as patch:
            patch.setattr(f"xpushare.{name}", fail)
            for _ in range(3):
                with pytest.raises(error):
                    xs.share(array)
    if error is KeyboardInterrupt:
        with monkeypatch.context() as patch:
            patch.setattr(table, "_entries", Interrupted(table._entries))
            with pytest.raises(KeyboardInterrupt):
                xs.share(array)
            assert table._entries.exported == [1]  # type: ignore[attr-defined]
    assert exports() == before
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


def test_what_cannot_be_shared_exports_nothing(peer: Child) -> None:
    array = xs.empty(3)
    xs.share(array).close()
    imported = xs.attach(peer.call(shared, "theirs"))
    closed = xs.empty(3)
    closed.close()
    before = exports()
    for each, error, match in (
        (closed, xs.InvalidArgumentError, "closed"),
        (np.empty(3), xs.FeatureNotSupportedError, "private"),
        (np.empty(3, "O"), xs.InvalidArgumentError, "object"),
        (None, xs.InvalidArgumentError, "NoneType"),
        (xs.share(array, ttl=60), xs.InvalidArgumentError, "already"),
    ):
        with pytest.raises(error, match=match):
            xs.share(each)
    assert exports() == before + 1
    with xs.share(xs.malloc_host(8)) as handle:
        assert (handle.shape, handle.dtype) == ((8,), np.dtype("u1"))
    imported.close()


def test_layers_see_each_export() -> None:
    array = xs.empty(3)
    enable_layers("UR_LAYER_LEAK_CHECKING")
    try:
        with xs.share(array) as handle:
            expect_of(handle, array)
    finally:
        enable_layers()


def test_a_forked_child_shares_only_its_own() -> None:
    array = xs.empty(3)
    xs.share(array).close()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            own = xs.empty(3)
            xs.share(own).close()  # a table of its own
            before = exports()
            for each in array, [own, array]:
                try:
                    xs.share(each)
                except xs.ForkError:
                    code += 1
            code = int((code, exports()) != (3, before))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# --- streams and fds


def test_share_on_a_device_with_streams(peer: Child) -> None:
    array = xs.empty((2, 3), "u1", device="mock:0")
    with xs.share(array) as contact:
        peer.call(content_of, bytes(contact))
    with nothing_left():
        with xs.share(array) as handle:
            assert handle.event is None, "nothing is queued"
            expect_of(handle, array)
        del handle
    gate, stream = threading.Event(), default_stream(0)
    stream.call(gate.wait)
    stream.call(lambda: np.asarray(array.memory).fill(9))
    before = exports()
    first, second = xs.share(array), xs.share(array)
    ((event, point),), ((other, later),) = first._events, second._events
    assert (event, point + 1) == (other, later), "one event, a point each"
    assert first.event == event
    expect_of(first, array)
    parsed = xs.ArrayHandle(bytes(first))
    assert all(getattr(parsed, name) == getattr(first, name) for name in ("_events", "_memory", "_elements"))
    keep, another = (export_of(each).keep for each in (first, second))
    assert keep[0] is another[0] is None
    assert keep[-1] is another[-1], "the event's export"
    del keep, another
    pending = peer.start(content_of, bytes(first))
    with pytest.raises(HarnessError):
        pending.result(0.1)
    gate.set()
    assert pending.result() == [9] * 6
    first.close()
    second.close()
    del first, second, event, other, parsed
    gc.collect()
    assert exports() == before, "the event's export has ended, too"


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


def test_a_stream_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    array = xs.empty(3, device="mock:0")
    xs.share(array).close()

    def fail(_queue: DeviceQueue) -> bool:
        raise xs.DeviceError("no such luck")

    monkeypatch.setattr(DeviceQueue, "idle", fail)
    before = exports()
    with pytest.raises(xs.DeviceError, match="no such luck"):
        xs.share(array)
    assert exports() == before


def test_fds_are_handed_out_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    array = xs.empty(5000, isolated=True)  # memory that an earlier array used may have been exported already
    xs.share(xs.empty(3), ttl=60)
    monkeypatch.setattr(HostMemory, "lasting_export", False)
    export, demand = HostMemory.export, [OnDemand(1 << 20, (3, 4), -5, 6)]

    def on_demand(self: HostMemory, read_only: bool) -> Export:
        return export(self, read_only)._replace(fds=(), on_demand=demand[0])

    monkeypatch.setattr(HostMemory, "export", on_demand)
    with xs.share(array) as handle:
        assert entry_of(handle).fd_count == 2
        assert entry_of(handle).flags & layout.ENTRY_ON_DEMAND
        assert covered_by(array)[0].allocation.prepared is None, "it is asked each time"
    before, demand[0] = exports(), OnDemand(0, (3,), 0, 0)
    with pytest.raises(ValueError, match="no such function"):
        xs.share(array)
    assert exports() == before
