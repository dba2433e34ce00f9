"""The eleven rules of sharing, each on native_cpu and on mock, across processes and inside the exporter's own: what the
conformance suite does not ask, such as the texts of errors and what only these backends promise.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from peering import (
    GRANULE,
    MAKERS,
    NAMES,
    PAGE,
    call_on,
    content,
    exported,
    exported_event,
    exported_physical,
    holdings,
    make,
    mappings,
    nothing_left,
    opened,
    read_physical,
    verbs,
    write_physical,
)

import xpushare as xs
from harness import Child, kept, wait_until
from xpushare.sharing import handle as handles
from xpushare.sharing import layout, node

Pair = tuple[str, str]


def expired(call: Callable[..., Any], *arguments: Any, match: str) -> None:
    with nothing_left(), pytest.raises(xs.HandleExpiredError, match=match):
        call(*arguments)


# --- 1: get ---------------------------------------------------------------------------------------


def test_rule_1_slices_keep_their_offset(pair: Pair, peer: Child) -> None:
    with xs.malloc_device(3 * PAGE, pair[0]) as memory:
        view = memoryview(memory)
        view[:] = bytes(at % 251 for at in range(len(view)))
        for offset, nbytes in ((0, 3 * PAGE), (1, 1), (PAGE - 1, 2), (7, PAGE), (3 * PAGE - 1, 1), (5, 0)):
            handle = xs.ipc.memory.get(memory.slice(offset, nbytes))
            assert (handle.nbytes, handle.exposed_nbytes) == (nbytes, 3 * PAGE)
            peer.call(opened, handle, pair[1])
            assert peer.call(lambda: kept["opened"].nbytes) == nbytes
            assert peer.call(content) == bytes(view[offset : offset + nbytes])
            with xs.ipc.memory.open(handle, device=pair[1]) as here:
                assert (here.ptr - memory.ptr, here.nbytes) == (offset, nbytes)
            xs.ipc.memory.put(handle)
        view.release()


def test_rule_1_a_slice_of_a_slice(device: str) -> None:
    with xs.malloc_device(PAGE, device) as memory:
        inner = memory.slice(100, 1000).slice(10, 20)
        assert inner.ptr == memory.ptr + 110
        handle = xs.ipc.memory.get(inner)
        assert (handles.fields_of(handle).offset, handle.nbytes) == (110, 20)
        xs.ipc.memory.put(handle)


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 1), (0, PAGE + 1), (PAGE, 1), (1, PAGE), (0, -1), (2**70, 1)])
@pytest.mark.misuse
def test_rule_1_a_slice_lies_inside(offset: int, nbytes: int) -> None:
    with xs.malloc_device(PAGE, "native_cpu:0") as memory, pytest.raises(xs.InvalidArgumentError):
        memory.slice(offset, nbytes)


def test_rule_1_sizes_that_are_no_pages(pair: Pair, peer: Child) -> None:
    for nbytes in (1, 100, PAGE - 1, PAGE + 1):
        handle = exported(pair[0], nbytes, b"x" * nbytes)
        assert (handle.nbytes, handle.exposed_nbytes) == (nbytes, -(-nbytes // PAGE) * PAGE)
        peer.call(opened, handle, pair[1])
        assert peer.call(content) == b"x" * nbytes
        xs.ipc.memory.put(handle)
    kept.clear()


@pytest.mark.parametrize("nbytes", [0, -1, "4", None, 1.5])
def test_rule_1_sizes_that_are_none(device: str, nbytes: Any) -> None:
    for call in (xs.malloc_device, xs.malloc_host, xs.malloc_shared, xs.PhysicalMemory, xs.VirtualRange):
        with pytest.raises(xs.InvalidArgumentError):
            call(nbytes, device)


def test_rule_1_sizes_that_nobody_has(device: str) -> None:
    with nothing_left():
        for call in (xs.malloc_device, xs.PhysicalMemory, xs.VirtualRange):
            for nbytes in (1 << 62, 1 << 80):
                with pytest.raises(xs.OutOfMemoryError):
                    call(nbytes, device)


@pytest.mark.parametrize("kind", ["memory", "event"])
def test_rule_1_imports_cannot_be_exported_again(pair: Pair, peer: Child, kind: str) -> None:
    handle = peer.call(MAKERS[kind], pair[0])
    with verbs(kind).open(handle, device=pair[1]) as thing, pytest.raises(xs.InvalidArgumentError, match="imported"):
        verbs(kind).get(thing)
    with make(kind, pair[0]) as own:
        handle = verbs(kind).get(own)
        with verbs(kind).open(handle) as thing:
            assert thing.is_imported
            with pytest.raises(xs.InvalidArgumentError, match="imported"):
                verbs(kind).get(thing)
            if kind == "memory":
                with pytest.raises(xs.InvalidArgumentError, match="imported"):
                    verbs(kind).get(thing.slice(0, 1))
        verbs(kind).put(handle)


def test_rule_1_imported_physical_memory_can(pair: Pair, peer: Child, other: Child) -> None:
    first = exported_physical(pair[0], content=b"far away")

    def forward(handle: xs.ipc.Handle) -> xs.ipc.Handle:
        kept["import"] = physical = xs.ipc.physical_memory.open(handle)
        assert physical.is_imported
        assert physical.ipc_enabled
        return xs.ipc.physical_memory.get(physical)

    second = peer.call(forward, first)
    assert second != first
    assert second.exporter.pid == peer.pid
    kept.clear()
    xs.ipc.physical_memory.put(first)
    gc.collect()  # the source is gone; the import lives on

    def read(handle: xs.ipc.Handle) -> bytes:
        with xs.ipc.physical_memory.open(handle) as physical:
            return read_physical(physical, 8)

    assert other.call(read, second) == b"far away"
    assert read(second) == b"far away"


def test_rule_1_pickling_an_import_forwards_its_handle(pair: Pair, peer: Child, other: Child, kind: str) -> None:
    handle = MAKERS[kind](pair[0])
    peer.call(opened, handle, pair[1], kind=kind)
    text = peer.call(lambda: pickle.dumps(kept["opened"]))

    def again(text: bytes) -> tuple[bytes, bool]:
        thing = kept["again"] = pickle.loads(text)
        return bytes(thing.handle), thing.is_imported

    assert other.call(again, text) == (bytes(handle), True)
    assert again(text) == (bytes(handle), True)
    verbs(kind).put(handle)
    kept.clear()


def test_rule_1_what_was_not_made_for_sharing(device: str) -> None:
    with (
        xs.PhysicalMemory(GRANULE, device) as physical,
        xs.Event(device) as event,
        xs.Event("native_cpu:0", enable_profiling=True) as profiled,
    ):
        for call, thing in (
            (xs.ipc.physical_memory.get, physical),
            (xs.ipc.event.get, event),
            (xs.ipc.event.get, profiled),
            (pickle.dumps, physical),
            (pickle.dumps, event),
        ):
            with pytest.raises(xs.InvalidArgumentError, match="enable_ipc"):
                call(thing)
    with pytest.raises(xs.InvalidArgumentError, match="not both"):
        xs.Event(device, enable_ipc=True, enable_profiling=True)


@pytest.mark.parametrize("thing", [None, 3, b"bytes", "text", [1]], ids=repr)
def test_rule_1_what_is_no_object_at_all(thing: Any) -> None:
    for call in (xs.ipc.memory.get, xs.ipc.physical_memory.get, xs.ipc.event.get, xs.ipc.memory.close):
        with pytest.raises((xs.InvalidArgumentError, xs.FeatureNotSupportedError)):
            call(thing)


def test_rule_1_an_array_over_memory_is_exported_as_its_range(device: str, peer: Child) -> None:
    import numpy as np

    with xs.malloc_device(PAGE, device) as memory:
        array = np.asarray(memory.as_array(16, "int32", 64))
        array[:] = range(16)
        handle = xs.ipc.memory.get(array[4:8])
        assert (handles.fields_of(handle).offset, handle.nbytes) == (80, 16)
        peer.call(opened, handle)
        assert peer.call(content) == struct.pack("4i", 4, 5, 6, 7)
        xs.ipc.memory.put(handle)
        del array


def test_rule_1_private_memory_is_refused_with_advice() -> None:
    import numpy as np

    with pytest.raises(xs.FeatureNotSupportedError, match="copy=True"):
        xs.ipc.memory.get(np.zeros(8))


# --- 2: the bytes are the whole handle ------------------------------------------------------------


def test_rule_2_any_number_of_importers_by_any_channel(pair: Pair, peer: Child, other: Child, kind: str) -> None:
    handle = MAKERS[kind](pair[0])
    spellings: list[Any] = [bytes(handle), str(handle), handle, bytearray(bytes(handle))]
    for child in (peer, other):
        for spelling in spellings:
            for _ in range(3):
                child.call(opened, spelling, pair[1], name=f"opened-{type(spelling)}", kind=kind)
    for spelling in spellings:
        with verbs(kind).open(spelling) as here:
            assert here.is_imported
            assert here.handle == handle
    verbs(kind).put(handle)
    kept.clear()


def test_rule_2_events_are_shared_in_both_directions(pair: Pair, peer: Child) -> None:
    handle = peer.call(exported_event, pair[0])
    with xs.ipc.event.open(handle, device=pair[1]) as event:
        assert (str(event.device), event.is_imported, event.ipc_enabled) == (pair[1], True, False)
        assert (event.value, event.pending, event.done) == (0, 0, True)
        assert peer.call(lambda: kept["event"].signal()) == 1
        assert (event.value, event.pending) == (1, 1)
        assert event.signal() == 2
        assert peer.call(lambda: (kept["event"].value, kept["event"].pending, kept["event"].is_imported)) == (
            2,
            2,
            False,
        )


def test_rule_2_in_the_exporters_own_process(pair: Pair) -> None:
    with xs.malloc_device(PAGE, pair[0]) as memory:
        handle = xs.ipc.memory.get(memory)
        with xs.ipc.memory.open(handle, device=pair[1]) as again:
            assert again is not memory
            memoryview(memory)[:3] = b"own"
            assert bytes(memoryview(again)[:3]) == b"own"
            assert str(again.device) == pair[1]
        xs.ipc.memory.put(handle)
    with xs.PhysicalMemory(GRANULE, pair[0], enable_ipc=True) as physical:
        handle = xs.ipc.physical_memory.get(physical)
        write_physical(physical, b"own")
        with xs.ipc.physical_memory.open(handle, device=pair[1]) as copy:
            assert read_physical(copy, 3) == b"own"
        xs.ipc.physical_memory.put(handle)
    with xs.Event(pair[0], enable_ipc=True) as event:
        handle = xs.ipc.event.get(event)
        with xs.ipc.event.open(handle, device=pair[1]) as twin:
            assert twin.signal() == 1
            assert event.value == 1
        assert event.signal() == 2
        xs.ipc.event.put(handle)


# --- 3: refusals (the handle's own are in tests/sharing/test_handles.py) --------------------------


@pytest.mark.misuse
def test_rule_3_after_put(pair: Pair, peer: Child, kind: str) -> None:
    handle = peer.call(MAKERS[kind], pair[0])
    first = verbs(kind).open(handle)
    peer.call(lambda kind, handle: verbs(kind).put(handle), kind, handle)
    expired(verbs(kind).open, handle, match="the exporter closed it")
    first.close()
    own = MAKERS[kind](pair[0])
    verbs(kind).put(own)
    expired(verbs(kind).open, own, match="the exporter closed it")
    kept.clear()


def test_rule_3_after_put_and_reuse_of_the_entry(pair: Pair, peer: Child, kind: str) -> None:
    old = peer.call(MAKERS[kind], pair[0])
    verbs(kind).open(old).close()
    peer.call(lambda kind, handle: verbs(kind).put(handle), kind, old)

    def reuse(kind: str, device: str, entry: int) -> xs.ipc.Handle:
        for _ in range(1000):  # entries are used again in turn
            handle = MAKERS[kind](device)
            if handles.fields_of(handle).entry == entry:
                return handle
            verbs(kind).put(handle)
        raise AssertionError("the entry is not used again")

    new = peer.call(reuse, kind, pair[0], handles.fields_of(old).entry)
    expired(verbs(kind).open, old, match="put|withdr")
    verbs(kind).open(new).close()


@pytest.mark.parametrize("grace", ["", "0"])
def test_rule_3_the_pickled_object_was_closed(pair: Pair, peer: Child, kind: str, grace: str) -> None:
    def pickled(kind: str, device: str, grace: str) -> bytes:
        os.environ["XPUSHARE_PICKLE_GRACE"] = grace
        thing = make(kind, device)
        text = pickle.dumps(thing)
        assert pickle.dumps(thing) == text  # one implicit handle an object
        del thing
        os.environ.pop("XPUSHARE_PICKLE_GRACE")
        return text

    def sweep() -> None:  # as the next export does
        node.current().table().sweep(everything=True)

    def first_use(text: bytes) -> None:
        loaded = pickle.loads(text)  # never raises
        assert not loaded.closed
        assert "not opened" in repr(loaded)
        assert pickle.dumps(loaded) == text
        loaded.statistics()

    for call in peer.call, lambda function, *arguments: function(*arguments):
        text = call(pickled, kind, pair[0], grace)
        for _ in range(0 if grace == "0" else 2):  # each pickle is good for one open
            pickle.loads(text).close()
        gc.collect()
        call(sweep)
        expired(first_use, text, match="keep what you pickle")


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_rule_3_the_exporter_is_gone(pair: Pair, kind: str, end: str) -> None:
    # One handle opened before, one never: neither opens, whatever is cached.
    with Child() as child:
        known = child.call(MAKERS[kind], pair[0])
        never = child.call(lambda kind: verbs(kind).get(kept[NAMES[kind]]), kind)
        thing = verbs(kind).open(known, device=pair[1])
        child.kill() if end == "kill" else child.exit()
    for handle in (known, never):
        for _ in range(2):
            with pytest.raises(xs.HandleExpiredError, match="has exited"):
                verbs(kind).open(handle, device=pair[1])
    thing.close()
    expired(verbs(kind).open, known, match="has exited")


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_rule_3_an_exporter_nobody_knew_is_gone(device: str, kind: str, end: str) -> None:
    with Child() as child:
        handle = child.call(MAKERS[kind], device)
        child.kill() if end == "kill" else child.exit()
    expired(verbs(kind).open, handle, match="has exited")


def with_fields(handle: xs.ipc.Handle, **changes: int) -> bytes:
    """The handle's bytes, without the seal, with other fields."""
    values = {name: getattr(handles.fields_of(handle), name) for name, _code in handles.FIELDS} | changes
    return handles._STRUCT.pack(*values.values())


def test_rule_3_the_pid_was_reused(pair: Pair, peer: Child, kind: str) -> None:
    with Child() as child:
        dead = child.call(MAKERS[kind], pair[0])
        child.kill()
    alive = peer.call(MAKERS[kind], pair[0])
    # As if the dead exporter's pid and fd number were now those of a process that has a table of its own.
    body = with_fields(dead, pid=handles.fields_of(alive).pid, table_fd=handles.fields_of(alive).table_fd)
    forged = body + handles.keyed_hash(body)
    expired(verbs(kind).open, forged, match="has exited.*used again")
    verbs(kind).open(alive).close()
    expired(verbs(kind).open, forged, match="has exited.*used again")
    # … or those of the importer itself, or of a process without such an fd.
    for pid, fd in ((os.getpid(), handles.fields_of(dead).table_fd), (peer.pid, 1023), (peer.pid, 0)):
        body = with_fields(dead, pid=pid, table_fd=fd)
        expired(verbs(kind).open, body + handles.keyed_hash(body), match="has exited")


def test_rule_3_a_reused_fd_number_in_the_exporter(pair: Pair, peer: Child) -> None:
    # The entry says which file it is: an fd number that now is another file is refused.
    handle = peer.call(exported, pair[0])

    def swap() -> None:
        from xpushare.sharing import node

        table = node.current().table()
        (export,) = [each for each in table.exports() if each.handle.kind == "memory"]
        at = layout.TABLE_ENTRIES + handles.fields_of(export.handle).entry * layout.ENTRY_NBYTES
        number = struct.unpack_from("<i", table._view, at + 88)[0]
        kept["dup"] = os.dup(number)
        fresh = os.memfd_create("xpushare-memory", os.MFD_ALLOW_SEALING)
        os.ftruncate(fresh, PAGE)
        os.dup2(fresh, number)
        os.close(fresh)

    peer.call(swap)
    with nothing_left(), pytest.raises((xs.HandleExpiredError, xs.InvalidHandleError)):
        xs.ipc.memory.open(handle)

    def restore() -> None:
        os.close(kept.pop("dup"))

    peer.call(restore)


def test_rule_3_another_backend_or_device() -> None:
    handle = exported("native_cpu:0")
    with nothing_left():
        with pytest.raises(xs.InvalidArgumentError, match="native_cpu:9"):
            xs.ipc.memory.open(handle, device="native_cpu:9")
        with pytest.raises(xs.InvalidArgumentError, match="not in"):
            xs.ipc.memory.open(handle, device="native_cpu:0", context=xs.Context("mock:0"))
        with pytest.raises(xs.InvalidArgumentError, match="Context"):
            xs.ipc.memory.open(handle, context="native_cpu:0")  # type: ignore[arg-type]
    xs.ipc.memory.put(handle)
    kept.clear()


def test_rule_3_a_device_that_this_process_may_not_see() -> None:
    handle = exported("mock:1")
    with Child(env={"ONEAPI_DEVICE_SELECTOR": "native_cpu:*;mock:0"}) as child:

        def attempt(handle: bytes) -> tuple[str, str]:
            with pytest.raises(xs.InvalidArgumentError, match="may not see") as caught:
                xs.ipc.memory.open(handle)
            return str(caught.value), str(xs.ipc.memory.open(handle, device="mock:0").device)

        message, where = child.call(attempt, bytes(handle))
        assert xs.Device("mock:1").uuid in message
        assert "ONEAPI_DEVICE_SELECTOR" in message
        assert where == "mock:0"
    xs.ipc.memory.put(handle)
    kept.clear()


# --- 4: open and close ----------------------------------------------------------------------------


def test_rule_4_every_open_is_a_new_object_with_its_own_close(pair: Pair, peer: Child) -> None:
    handle = peer.call(exported, pair[0], PAGE, b"content")
    before = holdings()
    found = [xs.ipc.memory.open(handle, device=pair[1]) for _ in range(10)]
    assert len({id(each) for each in found}) == 10
    assert mappings().count("xpushare-memory") == before["mappings"].count("xpushare-memory") + 1
    assert peer.call(lambda: kept["memory"].statistics()["exports"][0]["importers"]) == 1
    for each in found[:-1]:
        xs.ipc.memory.close(each)
        assert each.closed
        assert bytes(memoryview(found[-1])[:7]) == b"content"
    last = found.pop()
    found.clear()
    last.close()
    assert mappings().count("xpushare-memory") == before["mappings"].count("xpushare-memory")
    assert peer.call(lambda: kept["memory"].statistics()["exports"][0]["importers"]) == 0


def test_rule_4_every_open_of_an_event_is_a_new_object(pair: Pair, peer: Child) -> None:
    handle = peer.call(exported_event, pair[0])
    one, two = xs.ipc.event.open(handle), xs.ipc.event.open(handle)
    assert one is not two
    one.close()
    assert two.signal() == 1
    two.close()
    three = xs.ipc.event.open(handle)
    assert three.value == 1
    three.close()


@pytest.mark.misuse
def test_rule_4_close_is_an_error_where_it_has_nothing_to_do(device: str) -> None:
    handle = exported(device)
    memory = xs.ipc.memory.open(handle)
    xs.ipc.memory.close(memory)
    with pytest.raises(xs.InvalidArgumentError, match="closed"):
        xs.ipc.memory.close(memory)
    memory.close()
    with pytest.raises(xs.InvalidArgumentError, match="not opened from a handle"):
        xs.ipc.memory.close(kept["memory"])
    assert not kept["memory"].closed
    xs.ipc.memory.put(handle)
    kept.clear()


# --- 5: put ---------------------------------------------------------------------------------------


def test_rule_5_put_ends_the_hold(device: str, kind: str) -> None:
    before = holdings()
    thing = make(kind, device)
    found = [verbs(kind).get(thing) for _ in range(3)]
    thing.close()
    for each in found:
        assert holdings() != before
        verbs(kind).put(each)  # allowed after the object's free
    assert holdings() == before


@pytest.mark.parametrize("spelling", [bytes, str, xs.ipc.Handle])
@pytest.mark.misuse
def test_rule_5_put_twice(kind: str, spelling: Callable[[Any], Any]) -> None:
    handle = MAKERS[kind]("native_cpu:0")
    verbs(kind).put(spelling(handle))
    with pytest.raises(xs.InvalidArgumentError, match="put already"):
        verbs(kind).put(spelling(handle))
    kept.clear()


def test_rule_5_put_of_a_handle_of_another_process(peer: Child, kind: str) -> None:
    handle = peer.call(MAKERS[kind], "native_cpu:0")
    with pytest.raises(xs.InvalidArgumentError, match=f"from pid {peer.pid}"):
        verbs(kind).put(handle)
    verbs(kind).open(handle).close()
    with pytest.raises(xs.InvalidArgumentError, match=f"from pid {peer.pid}"):
        verbs(kind).put(handle)


@pytest.mark.parametrize("by", ["an export", "trim"])
def test_rule_5_foreign_memory_stays_held_while_somebody_has_it_open(peer: Child, by: str) -> None:
    def make_foreign() -> xs.ipc.Handle:
        from xpushare.adapters.mock import ForeignArray

        kept["array"] = ForeignArray(PAGE)
        return xs.ipc.memory.get(kept["array"])

    handle = peer.call(make_foreign)
    memory = xs.ipc.memory.open(handle)

    def put(handle: xs.ipc.Handle) -> tuple[int, int]:
        import sys

        table = node.current().table()
        xs.ipc.memory.put(handle)
        held = table.statistics()["lingering"]
        return held, sys.getrefcount(kept["array"])

    held, _references = peer.call(put, handle)
    assert held == 1

    def sweep() -> int:
        if by == "trim":
            xs.trim()
        else:
            with xs.malloc_device(PAGE, "mock:0") as memory:
                xs.ipc.memory.put(xs.ipc.memory.get(memory))
        return node.current().table().statistics()["lingering"]

    assert peer.call(sweep) == 1
    memory.close()
    wait_until(lambda: peer.call(sweep) == 0)
    peer.call(lambda: kept["array"].free())


def test_rule_5_an_interrupt_frees_nothing_that_somebody_has_open(peer: Child) -> None:
    def export() -> xs.ipc.Handle:
        from xpushare.adapters.mock import ForeignArray

        kept["array"] = ForeignArray(PAGE)
        return xs.ipc.memory.get(kept["array"])

    def interrupted_sweep(handle: xs.ipc.Handle) -> int:
        class Interrupted:
            def reached(self, _entry: int) -> bool:
                raise KeyboardInterrupt

            def __getattr__(self, name: str) -> object:
                return getattr(domain, name)

        table = node.current().table()
        xs.ipc.memory.put(handle)
        domain, table.domain = table.domain, Interrupted()  # type: ignore[assignment]
        try:
            with pytest.raises(KeyboardInterrupt):
                table.sweep()
        finally:
            table.domain = domain
        return table.statistics()["lingering"]

    handle = peer.call(export)
    with xs.ipc.memory.open(handle):
        assert peer.call(interrupted_sweep, handle) == 1

    def sweep() -> int:
        node.current().table().sweep()
        return node.current().table().statistics()["lingering"]

    wait_until(lambda: peer.call(sweep) == 0)
    peer.call(lambda: kept["array"].free())


# --- 6: outlives_exporter -------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["free", "exit", "kill"])
def test_rule_6_a_mapping_outlives_its_exporter(pair: Pair, end: str) -> None:
    assert xs.Device(pair[0]).has("outlives_exporter")
    with Child() as child:
        handle = child.call(exported, pair[0], PAGE, b"remains")
        physical = child.call(exported_physical, pair[0], GRANULE, b"remains too")
        memory = xs.ipc.memory.open(handle, device=pair[1])
        pages = xs.ipc.physical_memory.open(physical, device=pair[1])
        view = memoryview(memory)
        if end == "free":
            child.call(lambda handle: (xs.ipc.memory.put(handle), kept.clear(), gc.collect()), handle)
        else:
            child.kill() if end == "kill" else child.exit()
        assert bytes(view[:7]) == b"remains"
        view[:7] = b"written"
        assert bytes(memoryview(memory.slice(0, 7))) == b"written"
        assert read_physical(pages, 11) == b"remains too"
        again = pickle.dumps(memory)
    with pytest.raises(xs.HandleExpiredError):
        memoryview(pickle.loads(again))
    view.release()
    memory.close()
    pages.close()


# --- 7: no close verbs ----------------------------------------------------------------------------


def test_rule_7_physical_memory_and_events_have_no_close_verb() -> None:
    assert set(xs.ipc.memory.__all__) == {"close", "get", "open", "put"}
    for module in (xs.ipc.physical_memory, xs.ipc.event):
        assert set(module.__all__) == {"get", "open", "put"}
        assert not hasattr(module, "close")


# --- 8: failures leave nothing (more in test_faults.py) -------------------------------------------


def test_rule_8_failed_operations_leave_nothing(pair: Pair, peer: Child, kind: str) -> None:
    handle = peer.call(MAKERS[kind], pair[0])
    verbs(kind).open(handle).close()
    gone = peer.call(lambda kind: verbs(kind).get(kept[NAMES[kind]]), kind)
    peer.call(lambda kind, handle: verbs(kind).put(handle), kind, gone)
    with make(kind, pair[0]) as thing, nothing_left():
        for _ in range(3):
            with pytest.raises(xs.HandleExpiredError):
                verbs(kind).open(gone)
            with pytest.raises(xs.InvalidArgumentError):
                verbs(kind).get(thing, context=xs.Context("mock:0" if "native" in pair[0] else "native_cpu:0"))
            with pytest.raises(xs.InvalidArgumentError):
                verbs(kind).open(handle, device="nonsense")


# --- 9: fork --------------------------------------------------------------------------------------


def everything(device: str) -> dict[str, Any]:
    """One object of each kind, own and imported, and a child's view of what each allows."""
    memory = xs.malloc_device(GRANULE, device)
    physical = xs.PhysicalMemory(GRANULE, device, enable_ipc=True)
    event = xs.Event(device, enable_ipc=True)
    place = xs.VirtualRange(GRANULE, device)
    place.map(physical)
    found = {
        "memory": memory,
        "physical": physical,
        "event": event,
        "range": place,
        "queue": xs.Queue(device),
        "array": memory.as_array(4, "uint8"),
    }
    found["memory handle"] = xs.ipc.memory.get(memory)
    found["physical handle"] = xs.ipc.physical_memory.get(physical)
    found["event handle"] = xs.ipc.event.get(event)
    return found


def use_after_fork(things: dict[str, Any]) -> list[str]:
    """What a forked child could do although it must not."""
    memory, physical, event = things["memory"], things["physical"], things["event"]
    place, queue, array = things["range"], things["queue"], things["array"]
    calls: dict[str, Callable[[], Any]] = {
        "get memory": lambda: xs.ipc.memory.get(memory),
        "get physical": lambda: xs.ipc.physical_memory.get(physical),
        "get event": lambda: xs.ipc.event.get(event),
        "close verb": lambda: xs.ipc.memory.close(memory),
        "memoryview": lambda: memoryview(memory),
        "dlpack": lambda: memory.__dlpack__(),
        "slice": lambda: memory.slice(0, 1),
        "as_array": lambda: memory.as_array(1, "uint8"),
        "interface": lambda: memory.__array_interface__,
        "ptr": lambda: memory.ptr,
        "enter": lambda: memory.__enter__(),
        "pickle memory": lambda: pickle.dumps(memory),
        "pickle physical": lambda: pickle.dumps(physical),
        "pickle event": lambda: pickle.dumps(event),
        "signal": lambda: event.signal(),
        "wait": lambda: event.wait(0),
        "done": lambda: event.done,
        "value": lambda: event.value,
        "map": lambda: place.map(physical),
        "unmap": lambda: place.unmap(0, GRANULE),
        "set_access": lambda: place.set_access(0, GRANULE, "r"),
        "access": lambda: place.access(0),
        "mapped": lambda: place.mapped(),
        "range array": lambda: place.as_array(1, "uint8"),
        "submit": lambda: queue.submit(print),
        "fill": lambda: queue.fill(memory, b"x"),
        "copy": lambda: queue.copy(memory, memory),
        "queue signal": lambda: queue.signal(event),
        "queue wait": lambda: queue.wait(event),
        "synchronize": lambda: queue.synchronize(),
        "array view": lambda: memoryview(array),
        "array dlpack": lambda: array.__dlpack__(),
        "statistics": lambda: memory.statistics(),
    }
    wrong = []
    for name, call in calls.items():
        try:
            call()
        except xs.ForkError as error:
            if "spawn" not in str(error) or "handle" not in str(error):
                wrong.append(f"{name}: advice is missing")
        except BaseException as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
        else:
            wrong.append(f"{name} works")
    return wrong


@pytest.fixture
def things(device: str) -> Any:
    things = everything(device)
    yield things
    for kind, name in NAMES.items():
        verbs(kind).put(things[f"{name} handle"])
    things.clear()


def test_rule_9_a_forked_child_may_not_use_the_parents_objects(things: dict[str, Any]) -> None:
    kept["things"] = things
    with Child(method="fork") as child:
        assert child.call(lambda: use_after_fork(kept["things"])) == []
        for name in ("memory", "physical", "event", "range", "queue", "array"):
            assert child.call(lambda name: repr(kept["things"][name]).startswith("<"), name)
    kept.clear()


def test_rule_9_closing_in_the_child_harms_nothing(things: dict[str, Any], peer: Child) -> None:
    kept["things"] = things
    memoryview(things["memory"])[:6] = b"parent"
    peer.call(opened, things["memory handle"])

    def close_all() -> None:
        for name in ("array", "memory", "physical", "event", "range", "queue"):
            kept["things"][name].close()
            assert kept["things"][name].closed
        kept.clear()
        gc.collect()

    with Child(method="fork") as child:
        child.call(close_all)
        # and what is put is put in the parent's table only
        with pytest.raises(xs.InvalidArgumentError, match="process that exported"):
            child.call(lambda handle: xs.ipc.memory.put(handle), things["memory handle"])
    assert peer.call(content, "opened", 6) == b"parent"
    assert bytes(memoryview(things["memory"])[:6]) == b"parent"
    for kind, name in NAMES.items():
        with verbs(kind).open(things[f"{name} handle"]):
            pass
        assert peer.call(lambda kind, handle: verbs(kind).open(handle).is_imported, kind, things[f"{name} handle"])
    assert things["event"].signal() == 1
    call_on(things["queue"], lambda: None)
    things["queue"].synchronize(10)
    kept.clear()


def test_rule_9_the_child_opens_and_exports_anew(things: dict[str, Any], pair: Pair) -> None:
    memoryview(things["memory"])[:6] = b"parent"
    write_physical(things["physical"], b"parent")
    with Child(method="fork") as child:
        handle, physical, event = (things[f"{name} handle"] for name in ("memory", "physical", "event"))
        child.call(opened, handle)
        assert child.call(content, "opened", 6) == b"parent"
        child.call(lambda: memoryview(kept["opened"]).__setitem__(slice(0, 6), b"child!"))
        assert bytes(memoryview(things["memory"])[:6]) == b"child!"
        assert child.call(lambda handle: read_physical(xs.ipc.physical_memory.open(handle), 6), physical) == b"parent"
        assert child.call(lambda handle: xs.ipc.event.open(handle).signal(), event) == 1
        assert things["event"].value == 1
        back = child.call(exported, pair[0], PAGE, b"exported by the child")
        assert back.exporter.pid == child.pid
        with xs.ipc.memory.open(back, device=pair[1]) as memory:
            assert bytes(memoryview(memory)[:21]) == b"exported by the child"
        signals = child.call(exported_event, pair[0])
        with xs.ipc.event.open(signals) as ours:
            waiting = child.start(lambda: kept["event"].wait(10, at_least=1))
            assert ours.signal() == 1
            waiting.result()
        child.call(kept.clear)


def test_rule_9_a_forked_childs_death_is_seen(pair: Pair) -> None:
    # The child's membership and locks are its own, not the parent's.
    with xs.Event(pair[0], enable_ipc=True) as event:
        handle = xs.ipc.event.get(event)
        with Child(method="fork") as child:

            def owe(handle: xs.ipc.Handle, device: str) -> None:
                kept["event"] = xs.ipc.event.open(handle, device=device)
                kept["queue"] = queue = xs.Queue(device)
                call_on(queue, threading.Event().wait)
                queue.signal(kept["event"])

            child.call(owe, handle, pair[1])
            assert (event.pending, event.value) == (1, 0)
            child.kill()
        with pytest.raises(xs.PeerLostError, match=f"process {child.pid} died"):
            event.wait(5)
        xs.ipc.event.put(handle)


def test_rule_9_an_importer_that_forks_keeps_its_imports(pair: Pair, peer: Child) -> None:
    handle, signals = peer.call(exported, pair[0], PAGE, b"import"), peer.call(exported_event, pair[0])
    memory, event = xs.ipc.memory.open(handle), xs.ipc.event.open(signals)
    kept["import"] = memory
    with Child(method="fork") as child:

        def attempt() -> str:
            with pytest.raises(xs.ForkError):
                kept["import"].nbytes  # noqa: B018
            kept["import"].close()
            kept.clear()
            gc.collect()
            return "closed"

        assert child.call(attempt) == "closed"
        child.call(opened, handle)
        assert child.call(content, "opened", 6) == b"import"
        child.call(kept.clear)
    assert bytes(memoryview(memory)[:6]) == b"import"
    assert peer.call(lambda: kept["memory"].statistics()["exports"][0]["importers"]) == 1
    assert event.signal() == 1
    kept.clear()
    memory.close()
    event.close()


# --- 10: threads ----------------------------------------------------------------------------------


def test_rule_10_ten_threads_on_a_hundred_handles(pair: Pair, peer: Child) -> None:
    def export_many(device: str) -> list[xs.ipc.Handle]:
        kept["many"] = []
        found = []
        for number in range(100):
            memory = xs.malloc_device(PAGE, device)
            memoryview(memory)[:4] = struct.pack("I", number)
            kept["many"].append(memory)
            found.append(xs.ipc.memory.get(memory))
        return found

    found = peer.call(export_many, pair[0])
    xs.ipc.memory.open(found[0]).close()
    with nothing_left(), ThreadPoolExecutor(10) as pool:
        start = threading.Barrier(10)

        def work(thread: int) -> None:
            start.wait()
            mine = found[thread * 10 : thread * 10 + 10]  # handles of its own, then everybody's
            for round_ in range(3):
                for handle in mine if not round_ else found:
                    with xs.ipc.memory.open(handle, device=pair[1]) as memory:
                        number = struct.unpack("I", bytes(memoryview(memory)[:4]))[0]
                        assert found[number] == handle

        for job in [pool.submit(work, thread) for thread in range(10)]:
            job.result()
    assert peer.call(lambda: [each.statistics()["exports"][0]["importers"] for each in kept["many"]]) == [0] * 100


def test_rule_10_the_first_open_from_many_threads_at_once(pair: Pair, kind: str) -> None:
    with Child() as child:
        handle = child.call(MAKERS[kind], pair[0])
        start = threading.Barrier(10)

        def work() -> Any:
            start.wait()
            return verbs(kind).open(handle, device=pair[1])

        with ThreadPoolExecutor(10) as pool:
            found = [job.result() for job in [pool.submit(work) for _ in range(10)]]
        assert len({id(each) for each in found}) == 10
        assert all(each.handle == handle for each in found)
        if kind == "memory":
            assert len({each.ptr for each in found}) == 1
        for each in found:
            each.close()


def test_rule_10_opening_while_the_exporter_puts(pair: Pair, peer: Child) -> None:
    # Each open either fails as expired or sees the very object that the handle names.
    stop = threading.Event()
    handle = peer.call(exported, pair[0], PAGE, struct.pack("I", 0))
    current = [(0, handle)]
    errors: list[BaseException] = []
    opens = [0]

    def work() -> None:
        try:
            while not stop.is_set():
                number, handle = current[0]
                try:
                    memory = xs.ipc.memory.open(handle)
                except xs.HandleExpiredError:
                    continue
                assert struct.unpack("I", bytes(memoryview(memory)[:4]))[0] == number
                opens[0] += 1
                memory.close()
        except BaseException as error:
            errors.append(error)

    def replace(device: str, old: xs.ipc.Handle, number: int) -> xs.ipc.Handle:
        kept.clear()
        xs.ipc.memory.put(old)
        return exported(device, PAGE, struct.pack("I", number))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 60):
        current[0] = (number, peer.call(replace, pair[0], current[0][1], number))
    wait_until(lambda: opens[0] or errors)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []


# --- 11: read_only --------------------------------------------------------------------------------


def test_rule_11_a_read_only_import_gives_no_writable_view(pair: Pair, peer: Child) -> None:
    import numpy as np

    handle = peer.call(exported, pair[0], PAGE, b"look", read_only=True)
    assert handle.read_only
    memory = xs.ipc.memory.open(handle, device=pair[1])
    assert memory.read_only
    view = memoryview(memory)
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 1
    array = np.asarray(memory.as_array(4, "uint8"))
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    assert memory.__array_interface__["data"] == (memory.ptr, True)
    assert not np.from_dlpack(memory).flags.writeable
    assert memory.slice(0, 2).read_only
    with pytest.raises(BufferError):
        memory.__dlpack__()  # the unversioned capsule cannot say that it is read-only
    with xs.Queue(pair[1]) as queue, xs.malloc_device(PAGE, pair[1]) as source:
        with pytest.raises(xs.InvalidArgumentError, match="read-only"):
            queue.copy(memory, source)
        with pytest.raises(xs.InvalidArgumentError, match="read-only"):
            queue.fill(memory, b"x")
        queue.copy(source, memory)
        queue.synchronize(10)
        assert bytes(memoryview(source)[:4]) == b"look"
    del array
    view.release()
    memory.close()


def test_rule_11_a_read_only_import_is_mapped_so(pair: Pair) -> None:
    handle = exported(pair[0], PAGE, b"look", read_only=True)

    def write(handle: xs.ipc.Handle, device: str) -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        memory = kept["memory"] = xs.ipc.memory.open(handle, device=device)
        assert ctypes.string_at(memory.ptr, 4) == b"look"
        ctypes.memset(memory.ptr, 1, 1)

    with Child() as child:
        pending = child.start(write, handle, pair[1])
        wait_until(lambda: not child.alive)
        assert child._status == -signal.SIGSEGV
        with pytest.raises(Exception, match="exit status -11"):
            pending.result()
    assert bytes(memoryview(kept["memory"])[:4]) == b"look"
    xs.ipc.memory.put(handle)
    kept.clear()


def test_rule_11_the_same_memory_writable_and_read_only(pair: Pair, peer: Child) -> None:
    writable = peer.call(exported, pair[0], PAGE, b"both")
    read_only = peer.call(lambda: xs.ipc.memory.get(kept["memory"], read_only=True))
    one, two = xs.ipc.memory.open(read_only), xs.ipc.memory.open(writable)
    memoryview(two)[:4] = b"seen"
    assert bytes(memoryview(one)[:4]) == b"seen"
    assert (one.read_only, two.read_only) == (True, False)
    one.close()
    two.close()


def test_rule_11_a_read_only_import_in_the_own_process(device: str) -> None:
    handle = exported(device, read_only=True)
    with xs.ipc.memory.open(handle) as memory:
        assert memory.read_only
        assert memoryview(memory).readonly
    assert not memoryview(kept["memory"]).readonly
    xs.ipc.memory.put(handle)
    kept.clear()


def test_rule_11_the_aspect_is_not_claimed() -> None:
    for name in ("native_cpu:0", "mock:0"):
        assert xs.Device(name).support("enforced_read_only").state == "no"
