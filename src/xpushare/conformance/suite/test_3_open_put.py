"""Section 3, rules 4 and 5: open, close and put."""

# pyright: basic, reportPossiblyUnboundVariable=false, reportOptionalMemberAccess=false

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any

import pytest

import xpushare as xs
from xpushare import adapters
from xpushare.conformance import actions
from xpushare.conformance.actions import NBYTES, make, read_bytes, verbs
from xpushare.conformance.forgery import refused
from xpushare.conformance.harness import Child, kept, wait_until
from xpushare.conformance.plugin import Pair
from xpushare.conformance.rules import rule
from xpushare.conformance.samples import samples

PATTERN = bytes(at % 251 for at in range(NBYTES))


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
