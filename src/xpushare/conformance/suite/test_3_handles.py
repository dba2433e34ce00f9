"""Section 3, rules 0 to 2, 4 and 5, and pickling: the form of a handle, the objects that can be exported, the ways to
send a handle, open, close and put, and objects, imports and errors as bytes.
"""

# pyright: basic, reportPossiblyUnboundVariable=false, reportOptionalMemberAccess=false

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import re
import string
import time
import uuid
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import xpushare as xs
from xpushare import adapters
from xpushare.conformance import actions
from xpushare.conformance.actions import NBYTES, granule, make, read_bytes, verbs, write_bytes
from xpushare.conformance.harness import Child, kept, wait_until
from xpushare.conformance.plugin import Pair
from xpushare.conformance.refusals import refused, unpickling
from xpushare.conformance.rules import rule
from xpushare.conformance.samples import samples

PATTERN = bytes(at % 251 for at in range(NBYTES))


# --- the handle -------------------------------------------------------------------------------------------------------


@rule("3.0a")
def test_bytes_and_text(pair: Pair) -> None:
    with xs.malloc_device(NBYTES, pair.exporter) as memory:
        handle = xs.ipc.memory.get(memory)
        raw, text = bytes(handle), str(handle)
        assert len(raw) == xs.ipc.Handle.NBYTES == 256
        assert set(text) <= set(string.ascii_letters + string.digits + "-_.~")
        again = [xs.ipc.Handle(each) for each in (raw, text, handle, bytearray(raw), memoryview(raw))]
        assert all(each == handle and hash(each) == hash(handle) and bytes(each) == raw for each in again)
        other = xs.ipc.memory.get(memory)
        assert other != handle
        assert len({*again, handle, other}) == 2
        assert repr(handle) != text
        assert pickle.loads(pickle.dumps(handle)) == handle
        for each in (handle, other):
            xs.ipc.memory.put(each)


@rule("3.0b")
def test_fields(pair: Pair, kind: str) -> None:
    with make(kind, pair.exporter) as thing:
        handle = verbs(kind).get(thing)
        device = xs.Device(pair.exporter)
        assert (handle.kind, handle.backend, handle.read_only) == (kind, device.backend, False)
        assert uuid.UUID(handle.device_uuid) == uuid.UUID(device.uuid)
        assert handle.nbytes == (0 if kind == "event" else thing.nbytes)
        assert handle.exposed_nbytes >= handle.nbytes
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert handle.exporter.pid == os.getpid()
        assert uuid.UUID(handle.exporter.boot_id) == uuid.UUID(boot)
        assert handle.exporter.pid_namespace == os.stat("/proc/self/ns/pid").st_ino
        verbs(kind).put(handle)
    if kind == "memory":
        with make(kind, pair.exporter) as thing:
            handle = xs.ipc.memory.get(thing, read_only=True)
            assert handle.read_only
            xs.ipc.memory.put(handle)


@rule("3.0c")
def test_device_of_an_import(pair: Pair, peer: Child) -> None:
    handle = peer.call(actions.export, "memory", "memory", pair.exporter)
    with xs.ipc.memory.open(handle) as memory:
        assert memory.device == xs.Device(pair.exporter)
    with xs.ipc.memory.open(handle, device=pair.importer) as memory:
        assert memory.device == xs.Device(pair.importer)
        assert bytes(memory.handle) == handle
        assert memory.is_imported
    with xs.ipc.memory.open(handle, context=xs.Context([pair.importer])) as memory:
        assert memory.device == xs.Device(pair.importer)


# --- 1: get -----------------------------------------------------------------------------------------------------------


@rule("3.1a")
def test_distinct(pair: Pair, kind: str) -> None:
    with make(kind, pair.exporter) as thing:
        found = [verbs(kind).get(thing) for _ in range(20)]
        assert len({bytes(each) for each in found}) == 20
        for each in found:
            verbs(kind).put(each)


@rule("3.1b")
def test_ranges(pair: Pair, peer: Child) -> None:
    memory = kept["memory"] = xs.malloc_device(3 * NBYTES, pair.exporter)
    write_bytes(memory, PATTERN * 3)
    for offset, nbytes in ((0, 3 * NBYTES), (1, 1), (NBYTES - 1, 2), (7, NBYTES), (3 * NBYTES - 1, 1), (5, 0)):
        handle = xs.ipc.memory.get(memory.slice(offset, nbytes))
        assert handle.nbytes == nbytes
        peer.call(actions.open_, "piece", "memory", bytes(handle), pair.importer)
        assert peer.call(_size, "piece") == nbytes
        if nbytes:
            assert peer.call(actions.read, "piece") == (PATTERN * 3)[offset : offset + nbytes]
        with xs.ipc.memory.open(handle) as here:
            assert here.nbytes == nbytes
            assert not nbytes or read_bytes(here) == (PATTERN * 3)[offset : offset + nbytes]
        xs.ipc.memory.put(handle)
    inner = memory.slice(NBYTES, NBYTES).slice(10, 20)
    handle = xs.ipc.memory.get(inner)
    peer.call(actions.open_, "piece", "memory", bytes(handle), pair.importer)
    assert peer.call(actions.read, "piece") == PATTERN[10:30]
    xs.ipc.memory.put(handle)


def _size(name: str) -> int:
    nbytes: int = kept[name].nbytes
    return nbytes


@rule("3.1c")
@pytest.mark.parametrize("kind", ["memory", "event"])
def test_import_is_not_exported(pair: Pair, peer: Child, kind: str) -> None:
    theirs = peer.call(actions.export, "thing", kind, pair.exporter)
    ours = actions.export("own", kind, pair.exporter)
    for handle in (theirs, ours):
        with verbs(kind).open(handle, device=pair.importer) as thing:
            with pytest.raises(xs.InvalidArgumentError):
                verbs(kind).get(thing)
            if kind == "memory":
                with pytest.raises(xs.InvalidArgumentError):
                    xs.ipc.memory.get(thing.slice(0, 1))
                with pytest.raises(xs.InvalidArgumentError):
                    xs.ipc.memory.get(thing.as_array(4, "uint8"))
            else:
                assert not thing.ipc_enabled
    if kind == "memory" and xs.Device(pair.importer).has("outlives_exporter"):
        with xs.attach(peer.call(_share_array, pair.exporter), device=pair.importer, own=True) as owned:
            assert owned.is_imported
            assert xs.ipc.Handle(xs.ipc.memory.get(owned.memory)).exporter.pid == os.getpid()


def _share_array(device: str) -> bytes:
    kept["array"] = xs.empty(64, "u1", device=device)
    kept["handle of array"] = xs.share(kept["array"])
    return bytes(kept["handle of array"])


@rule("3.1d")
def test_import_is_exported(pair: Pair, peer: Child, other: Child) -> None:
    first = actions.export("pages", "physical_memory", pair.exporter, b"far away", pair.granule)
    peer.call(actions.open_, "import", "physical_memory", first, pair.importer)
    second = peer.call(actions.get, "import", "physical_memory")
    assert second != first
    assert xs.ipc.Handle(second).exporter.pid == peer.pid
    actions.put("physical_memory", first)
    actions.drop()
    other.call(actions.open_, "again", "physical_memory", second, pair.importer)
    assert other.call(actions.read, "again", 8) == b"far away"
    peer.call(actions.drop, "import")  # the export keeps the memory alive
    other.call(actions.open_, "more", "physical_memory", second, pair.importer)
    assert other.call(actions.read, "more", 8) == b"far away"


@rule("3.1e")
@pytest.mark.parametrize("kind", ["physical_memory", "event"])
def test_not_made_for_sharing(pair: Pair, kind: str) -> None:
    def plain() -> Any:
        return xs.Event(pair.exporter) if kind == "event" else xs.PhysicalMemory(granule(pair.exporter), pair.exporter)

    with plain() as thing, make(kind, pair.exporter) as shared:
        assert (thing.ipc_enabled, shared.ipc_enabled) == (False, True)
        with pytest.raises(xs.InvalidArgumentError):
            verbs(kind).get(thing)
        with pytest.raises(xs.InvalidArgumentError):
            pickle.dumps(thing)
    things: list[Any] = [None, 3, b"bytes", "text"]
    for wrong in things:
        with pytest.raises(xs.InvalidArgumentError):
            verbs(kind).get(wrong)


@rule("3.1f")
def test_exposed(pair: Pair) -> None:
    found = [xs.malloc_device(nbytes, pair.exporter) for nbytes in (1, 100, NBYTES, NBYTES + 1, 3, NBYTES)]
    reach: list[tuple[int, int]] = []
    for memory in found:
        handle = xs.ipc.memory.get(memory)
        assert handle.exposed_nbytes >= memory.nbytes
        piece = xs.ipc.memory.get(memory.slice(0, 1))
        assert piece.exposed_nbytes == handle.exposed_nbytes
        reach.append((memory.ptr, memory.ptr + handle.exposed_nbytes))
        xs.ipc.memory.put(handle)
        xs.ipc.memory.put(piece)
    reach.sort()
    assert all(one[1] <= two[0] for one, two in pairwise(reach))


@rule("3.1g")
def test_arrays_over_own_memory(pair: Pair, peer: Child) -> None:
    memory = kept["memory"] = xs.malloc_device(NBYTES, pair.exporter)
    write_bytes(memory, PATTERN)
    found: list[Any] = [memory.as_array(16, "uint8", 64)]
    try:
        memoryview(memory).release()
    except BufferError:
        pass
    else:
        import numpy

        found.append(numpy.asarray(memory.as_array(NBYTES, "uint8"))[64:80])
    for array in found:
        handle = xs.ipc.memory.get(array)
        assert handle.nbytes == 16
        peer.call(actions.open_, "array", "memory", bytes(handle), pair.importer)
        assert peer.call(actions.read, "array") == PATTERN[64:80]
        xs.ipc.memory.put(handle)


@rule("3.1h")
def test_foreign(pair: Pair, peer: Child) -> None:
    library = samples(pair.exporter)
    array = library.array(pair.exporter, PATTERN)
    handle = xs.ipc.memory.get(array)
    peer.call(actions.open_, "foreign", "memory", bytes(handle), pair.importer)
    assert peer.call(actions.read, "foreign", NBYTES) == PATTERN
    peer.call(actions.write, "foreign", b"from the importer")
    assert library.content(array)[:17] == b"from the importer"
    xs.ipc.memory.put(handle)
    import numpy

    with pytest.raises(xs.FeatureNotSupportedError) as caught:
        xs.ipc.memory.get(numpy.zeros(8))
    assert "copy" in str(caught.value)


# --- 2: the bytes are the whole handle --------------------------------------------------------------------------------


@rule("3.2a")
def test_channels(pair: Pair, peer: Child, other: Child, kind: str) -> None:
    handle = actions.export("thing", kind, pair.exporter)
    text = str(xs.ipc.Handle(handle))
    for child in (peer, other):
        for spelling in (handle, text, json.loads(json.dumps(text)), handle):
            assert child.call(actions.open_, spelling, kind, spelling, pair.importer) == (True, pair.importer)
    with Child(env={"XPUSHARE_CONFORMANCE_HANDLE": text}) as third:
        assert third.call(_open_from_environment, kind, pair.importer)


def _open_from_environment(kind: str, device: str) -> bool:
    with verbs(kind).open(os.environ["XPUSHARE_CONFORMANCE_HANDLE"], device=device) as thing:
        imported: bool = thing.is_imported
        return imported


@rule("3.2b")
@pytest.mark.parametrize("kind", ["memory", "physical_memory"])
def test_shared_content(pair: Pair, peer: Child, kind: str) -> None:
    nbytes = NBYTES if kind == "memory" else pair.granule
    handle = peer.call(actions.export, "thing", kind, pair.exporter, b"from the exporter", nbytes)
    with verbs(kind).open(handle, device=pair.importer) as thing:
        assert thing.nbytes == nbytes
        assert read_bytes(thing, 17) == b"from the exporter"
        write_bytes(thing, b"from the importer")
        assert peer.call(actions.read, "thing", 17) == b"from the importer"
        peer.call(actions.write, "thing", b"once more........")
        assert read_bytes(thing, 17) == b"once more........"


@rule("3.2b")
@pytest.mark.parametrize("kind", ["event"])
def test_shared_event(pair: Pair, peer: Child, kind: str) -> None:
    handle = peer.call(actions.export, "thing", kind, pair.exporter)
    with xs.ipc.event.open(handle, device=pair.importer) as event:
        assert (event.value, event.pending, event.done, event.is_imported, event.ipc_enabled) == (
            0,
            0,
            True,
            True,
            False,
        )
        assert event.device == xs.Device(pair.importer)
        assert peer.call(actions.queue_signal, "thing", pair.exporter) == 1
        event.wait(5, at_least=1)
        assert (event.value, event.pending) == (1, 1)


@rule("3.2c")
def test_own_process(pair: Pair, kind: str) -> None:
    handle = actions.export("thing", kind, pair.exporter, b"own" if kind != "event" else b"", pair.granule)
    thing = kept["thing"]
    with verbs(kind).open(handle) as again:
        assert again is not thing
        assert again.is_imported
        assert not thing.is_imported
        if kind == "event":
            actions.queue_signal("thing", pair.exporter)
            again.wait(5, at_least=1)
            assert (again.value, thing.value) == (1, 1)
        else:
            assert read_bytes(again, 3) == b"own"
            write_bytes(again, b"new")
            assert read_bytes(thing, 3) == b"new"


# --- 4: open and close ------------------------------------------------------------------------------------------------


@rule("3.4a")
@pytest.mark.parametrize("kind", ["memory", "event"])
def test_new_objects(pair: Pair, peer: Child, kind: str) -> None:
    handle = peer.call(actions.export, "thing", kind, pair.exporter, PATTERN if kind == "memory" else b"")
    found = [verbs(kind).open(handle, device=pair.importer) for _ in range(10)]
    assert len({id(each) for each in found}) == 10
    last = found[-1]
    for each in found[:-1]:
        each.close()
        assert each.closed
        assert not last.closed
        if kind == "memory":
            assert read_bytes(last, 8) == PATTERN[:8]
        else:
            assert last.value == 0
    last.close()


@rule("3.4b")
@pytest.mark.misuse
def test_close_verb(pair: Pair) -> None:
    handle = actions.export("own", "memory", pair.exporter)
    memory = xs.ipc.memory.open(handle)
    xs.ipc.memory.close(memory)
    assert memory.closed
    with pytest.raises(xs.InvalidArgumentError):
        xs.ipc.memory.close(memory)
    with pytest.raises(xs.InvalidArgumentError):
        xs.ipc.memory.close(kept["own"])
    assert not kept["own"].closed
    with pytest.raises(xs.InvalidArgumentError):
        xs.ipc.memory.close(None)  # type: ignore[arg-type]


@rule("3.4c")
def test_closing_harms_nobody(pair: Pair, peer: Child, other: Child) -> None:
    handle = actions.export("own", "memory", pair.exporter, b"still here")
    for child in (peer, other):
        child.call(actions.open_, "opened", "memory", handle, pair.importer)
    peer.call(actions.close, "opened")
    peer.call(actions.drop)
    assert other.call(actions.read, "opened", 10) == b"still here"
    assert read_bytes(kept["own"], 10) == b"still here"
    peer.call(actions.open_, "opened", "memory", handle, pair.importer)
    assert peer.call(actions.read, "opened", 10) == b"still here"


@rule("3.4d")
def test_counted(pair: Pair, peer: Child, nothing_left: Callable[[], None]) -> None:
    handle = peer.call(actions.export, "thing", "memory", pair.exporter, PATTERN)
    first = xs.ipc.memory.open(handle, device=pair.importer)
    before = len(os.listdir("/proc/self/fd"))
    default = pair.importer if pair.importer != pair.exporter else None
    found = [xs.ipc.memory.open(handle, device=pair.importer if each % 2 else default) for each in range(20)]
    assert len(os.listdir("/proc/self/fd")) <= before
    assert {each.ptr for each in found} == {first.ptr}
    assert peer.call(actions.importers, "thing") == 1
    first.close()
    for each in found[1:]:
        xs.ipc.memory.close(each)
    assert read_bytes(found[0], 8) == PATTERN[:8]
    assert peer.call(actions.importers, "thing") == 1
    found.pop(0).close()
    found.clear()
    del first, each
    assert peer.call(actions.importers, "thing") == 0
    nothing_left()


# --- 5: put -----------------------------------------------------------------------------------------------------------


@rule("3.5a")
def test_export_holds(pair: Pair, peer: Child, kind: str) -> None:
    content = b"" if kind == "event" else b"held"
    handle = peer.call(actions.export, "thing", kind, pair.exporter, content)
    peer.call(actions.close, "thing")
    peer.call(actions.drop)
    for _ in range(2):
        with verbs(kind).open(handle, device=pair.importer) as thing:
            assert kind == "event" or read_bytes(thing, 4) == b"held"
    peer.call(actions.put, kind, handle)
    refused(xs.HandleExpiredError, kind, handle)


@rule("3.5a")
def test_export_holds_in_the_own_process(pair: Pair, kind: str, nothing_left: Callable[[], None]) -> None:
    handle = actions.export("thing", kind, pair.exporter)
    actions.drop()
    verbs(kind).open(handle).close()
    verbs(kind).put(handle)
    gc.collect()
    nothing_left()  # the export holds nothing after it is withdrawn


@rule("3.5b")
def test_put_leaves_opened(pair: Pair, peer: Child, kind: str) -> None:
    content = b"" if kind == "event" else b"open"
    handle = peer.call(actions.export, "thing", kind, pair.exporter, content)
    thing = verbs(kind).open(handle, device=pair.importer)
    peer.call(actions.put, kind, handle)
    refused(xs.HandleExpiredError, kind, handle)
    if kind == "event":
        peer.call(actions.queue_signal, "thing", pair.exporter)
        thing.wait(5, at_least=1)
    else:
        assert read_bytes(thing, 4) == b"open"
    thing.close()


@rule("3.5c")
@pytest.mark.misuse
def test_put_twice(pair: Pair, kind: str) -> None:
    for spelling in (bytes, str, xs.ipc.Handle):
        raw = xs.ipc.Handle(actions.export("thing", kind, pair.exporter))
        handle: Any = spelling(raw)
        verbs(kind).put(handle)
        for _ in range(2):
            with pytest.raises(xs.InvalidArgumentError):
                verbs(kind).put(handle)


@rule("3.5d")
def test_put_elsewhere(pair: Pair, peer: Child, kind: str) -> None:
    actions.export("own", kind, pair.exporter)  # so that this process has a table
    handle = peer.call(actions.export, "thing", kind, pair.exporter)
    for _ in range(2):
        with pytest.raises(xs.InvalidArgumentError):
            verbs(kind).put(handle)
        verbs(kind).open(handle, device=pair.importer).close()
    with Child() as stranger:  # a process that has never exported anything
        assert stranger.call(actions.attempt, actions.put, kind, handle) == "InvalidArgumentError"


@rule("3.5e")
def test_put_after_free(pair: Pair, kind: str, nothing_left: Callable[[], None]) -> None:
    thing = make(kind, pair.exporter)
    found = [verbs(kind).get(thing) for _ in range(3)]
    thing.close()
    del thing
    for spelling, handle in zip((bytes, str, xs.ipc.Handle), found, strict=True):
        verbs(kind).put(spelling(handle))
    nothing_left()


@rule("3.5f")
def test_put_of_one(pair: Pair, peer: Child, kind: str) -> None:
    one = peer.call(actions.export, "thing", kind, pair.exporter)
    two = peer.call(actions.get, "thing", kind)
    peer.call(actions.put, kind, one)
    with verbs(kind).open(two, device=pair.importer):
        refused(xs.HandleExpiredError, kind, one, pair.importer)


@rule("3.5g")
def test_foreign_stays(pair: Pair, peer: Child) -> None:
    handle, alive = peer.call(_export_foreign, pair.exporter)
    assert alive
    memory = xs.ipc.memory.open(handle, device=pair.importer)
    assert peer.call(_end_foreign, pair.exporter, handle)
    assert read_bytes(memory, NBYTES) == PATTERN
    memory.close()
    del memory
    gc.collect()
    wait_until(lambda: not peer.call(_foreign_alive, pair.exporter), "it is free")


@rule("3.5g")
def test_foreign_stays_for_devices(pair: Pair, peer: Child) -> None:
    if adapters.adapter(xs.Device(pair.importer).backend).after_work is None:
        return  # no work continues on the device after a close
    handle, _alive = peer.call(_export_foreign, pair.exporter)
    with actions.held(pair.importer) as work:
        memory = xs.ipc.memory.open(handle, device=pair.importer)
        memory.close()
        del memory
        gc.collect()
        assert peer.call(_end_foreign, pair.exporter, handle)
        assert peer.call(_foreign_alive, pair.exporter)
        work.release()
        wait_until(lambda: not peer.call(_foreign_alive, pair.exporter), "it is free")


def _export_foreign(device: str) -> tuple[bytes, bool]:
    import weakref

    array = samples(device).array(device, PATTERN)
    kept["alive"] = weakref.ref(array)
    kept["foreign"] = array
    return bytes(xs.ipc.memory.get(array)), True


def _end_foreign(device: str, handle: bytes) -> bool:
    """Withdraw the export of another library's array, and drop the array as its user would. Returns whether the array
    is still alive.
    """
    xs.ipc.memory.put(handle)
    array = kept.pop("foreign")
    samples(device).forget(array)
    del array
    gc.collect()
    return kept["alive"]() is not None


def _foreign_alive(device: str) -> bool:
    with xs.malloc_device(NBYTES, device) as memory:  # a new export releases what expired exports held
        xs.ipc.memory.put(xs.ipc.memory.get(memory))
    gc.collect()
    return kept["alive"]() is not None


# --- pickling ---------------------------------------------------------------------------------------------------------


@rule("3.12a")
def test_pickling(pair: Pair, peer: Child, kind: str) -> None:
    actions.export("thing", kind, pair.exporter, b"" if kind == "event" else b"sent")
    thing = kept["thing"]
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        name = f"received{protocol}"
        found = peer.call(actions.unpickle, name, pickle.dumps(thing, protocol))
        assert found == (type(thing).__name__, True)
        if kind != "event":
            assert peer.call(actions.read, name, 4) == b"sent"
    again = pickle.loads(pickle.dumps(thing))
    assert again.is_imported
    again.close()
    if kind == "memory":
        for part in (thing.slice(1, 2), thing.as_array(2, "uint8", 1)):
            assert peer.call(actions.unpickle, "part", pickle.dumps(part)) == (type(part).__name__, True)
        device = xs.Device(pair.exporter)
        assert pickle.loads(pickle.dumps(device)) == device
        assert peer.call(str, device) == str(device)


@rule("3.12b")
def test_forwarding(pair: Pair, peer: Child, other: Child, kind: str) -> None:
    handle = actions.export("thing", kind, pair.exporter)
    peer.call(actions.open_, "import", kind, handle, pair.importer)
    data = peer.call(actions.pickled, "import")
    assert other.call(actions.unpickle, "forwarded", data)[1]
    assert other.call(_handle_of, "forwarded") == handle
    peer.call(actions.drop)
    assert bytes(pickle.loads(data).handle) == handle


def _handle_of(name: str) -> bytes:
    return bytes(kept[name].handle)


@rule("3.12c")
def test_kept(pair: Pair, peer: Child, kind: str) -> None:
    for call in peer.call, _here:
        data = call(actions.pickle_and_close, kind, pair.exporter, "60")
        with pickle.loads(data) as thing:
            assert thing.is_imported
        data = call(actions.pickle_and_close, kind, pair.exporter, "0")
        assert re.search("closed|kept|keep|alive", unpickling(data))
        data = call(actions.pickle_and_close, kind, pair.exporter, "0.2")
        deadline = time.monotonic() + 0.2
        pickle.loads(data).close()
        wait_until(partial(_after, deadline), "the grace to be over")
        assert re.search("closed|kept|keep|alive", unpickling(data))
    data = peer.call(_make_and_pickle, kind, pair.exporter)
    pickle.loads(data).close()
    peer.call(actions.drop, "dropped")
    assert re.search("closed|kept|keep|alive", unpickling(data))


def _after(deadline: float) -> bool:
    return time.monotonic() > deadline


def _here(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


def _make_and_pickle(kind: str, device: str) -> bytes:
    kept["dropped"] = make(kind, device)
    return pickle.dumps(kept["dropped"])


@rule("3.12d")
def test_not_pickled(pair: Pair) -> None:
    device = xs.Device(pair.exporter)
    with xs.Queue(device) as queue:
        things: list[Any] = [queue, device.context]
        if device.has("ext_oneapi_virtual_mem"):
            kept["range"] = xs.VirtualRange(granule(pair.exporter), device)
            things.append(kept["range"])
        for thing in things:
            with pytest.raises(TypeError):
                pickle.dumps(thing)


@rule("3.12e")
def test_not_copied(pair: Pair, kind: str) -> None:
    with make(kind, pair.exporter) as thing:
        for function in (copy.copy, copy.deepcopy):
            with pytest.raises(TypeError):
                function(thing)


@rule("3.12f")
def test_errors_pickle() -> None:
    from xpushare import ur

    names = ["InvalidArgumentError", "HandleExpiredError", "FeatureNotSupportedError", "RouteError", "PeerLostError",
             "OutOfMemoryError", "ForkError", "DeviceError", "XpuShareError"]  # fmt: skip
    bases = {
        "InvalidArgumentError": ValueError, "FeatureNotSupportedError": NotImplementedError,
        "RouteError": PermissionError,
        "PeerLostError": ConnectionError, "OutOfMemoryError": MemoryError, "ForkError": RuntimeError,
        "DeviceError": RuntimeError,
    }  # fmt: skip
    errors = [*(getattr(xs, name) for name in names), xs.InvalidHandleError, ur.URError]
    for error in errors:
        made = error("what", result=ur.Result.ERROR_INVALID_SIZE, native=7, reasons=("one", "two"))
        made.add_note("where")
        again = pickle.loads(pickle.dumps(made))
        assert type(again) is error
        assert (again.message, again.result, again.native, again.reasons) == ("what", made.result, 7, ("one", "two"))
        assert str(again) == str(made)
        assert again.__notes__ == ["where"]
        assert isinstance(made, bases.get(error.__name__, xs.XpuShareError))
        assert isinstance(made, xs.XpuShareError)
