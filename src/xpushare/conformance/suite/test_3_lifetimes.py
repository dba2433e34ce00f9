"""Section 3, rules 6 to 10: objects that outlive others, the state after a failure, forked children, and threads."""

# pyright: basic, reportPossiblyUnboundVariable=false, reportOptionalMemberAccess=false

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import xpushare as xs
from xpushare.conformance import actions
from xpushare.conformance.actions import KINDS, NBYTES, granule, make, read_bytes, verbs, write_bytes
from xpushare.conformance.harness import Child, kept
from xpushare.conformance.plugin import Pair
from xpushare.conformance.refusals import GENERATION, reseal
from xpushare.conformance.rules import rule

PATTERN = bytes(at % 251 for at in range(NBYTES))


# --- 6 and 7: lifetimes -----------------------------------------------------------------------------------------------


@rule("3.6a")
def test_outlives_free(pair: Pair, peer: Child) -> None:
    handle = peer.call(actions.export, "thing", "memory", pair.exporter, b"remains")
    memory = xs.ipc.memory.open(handle, device=pair.importer)
    peer.call(actions.put, "memory", handle)
    peer.call(actions.close, "thing")
    peer.call(actions.drop)
    for each in range(3):  # would reuse its memory if that were free
        peer.call(actions.export, f"other{each}", "memory", pair.exporter, b"\xff" * 16)
    assert read_bytes(memory, 7) == b"remains"
    write_bytes(memory, b"written")
    assert read_bytes(memory, 7) == b"written"
    memory.close()


@rule("3.6b")
def test_outlives_death(pair: Pair) -> None:
    has_pages = all(
        xs.Device(device).has("ext_oneapi_ipc_physical_memory") for device in (pair.exporter, pair.importer)
    )
    pages = None
    with Child() as child:
        memory = xs.ipc.memory.open(
            child.call(actions.export, "thing", "memory", pair.exporter, b"remains"), device=pair.importer
        )
        if has_pages:
            handle = child.call(actions.export, "pages", "physical_memory", pair.exporter, b"too", pair.granule)
            pages = xs.ipc.physical_memory.open(handle, device=pair.importer)
        child.kill()
    assert read_bytes(memory, 7) == b"remains"
    write_bytes(memory, b"written")
    assert read_bytes(memory, 7) == b"written"
    if pages is not None:
        assert read_bytes(pages, 3) == b"too"
        pages.close()
    memory.close()


@rule("3.7a")
def test_verbs() -> None:
    for kind in KINDS:
        names = {name for name in ("get", "put", "open", "close") if hasattr(verbs(kind), name)}
        assert names == {"get", "put", "open"} | ({"close"} if kind == "memory" else set())


@rule("3.7b")
def test_teardown(pair: Pair, peer: Child, kind: str, nothing_left: Callable[[], None]) -> None:
    handle = peer.call(actions.export, "thing", kind, pair.exporter)
    count = actions.processes if kind == "event" else actions.importers
    alone = 1 if kind == "event" else 0
    assert peer.call(count, "thing") == alone
    one, two = (verbs(kind).open(handle, device=pair.importer) for _ in range(2))
    assert peer.call(count, "thing") == alone + 1
    one.close()
    assert peer.call(count, "thing") == alone + 1
    del two, one
    gc.collect()
    assert peer.call(count, "thing") == alone
    nothing_left()


@rule("3.7c")
def test_import_outlives_source(pair: Pair, peer: Child, kind: str) -> None:
    if kind == "memory" and not xs.Device(pair.exporter).has("outlives_exporter"):
        pytest.skip("memory is rule 3.6")
    handle = peer.call(actions.export, "thing", kind, pair.exporter, b"" if kind == "event" else b"lives")
    thing = verbs(kind).open(handle, device=pair.importer)
    peer.call(actions.put, kind, handle)
    peer.call(actions.close, "thing")
    peer.call(actions.drop)
    fresh = [f"fresh{each}" for each in range(20)]
    for each in fresh:
        peer.call(actions.export, each, kind, pair.exporter)
    if kind == "event":
        with xs.Queue(pair.importer) as queue:
            assert queue.signal(thing) == 1
            queue.synchronize(5)
        assert (thing.value, thing.done) == (1, True)
        assert all(peer.call(actions.numbers, each) == (0, 0) for each in fresh)  # the old event is not reused
    else:
        assert read_bytes(thing, 5) == b"lives"
        write_bytes(thing, b"alone")
        assert all(peer.call(actions.read, each, 5) != b"alone" for each in fresh[:3])
    thing.close()


# --- 8: failures leave nothing ----------------------------------------------------------------------------------------


@rule("3.8a")
def test_failed_opens(pair: Pair, peer: Child, kind: str, nothing_left: Callable[[], None]) -> None:
    good = peer.call(actions.export, "good", kind, pair.exporter)
    gone = peer.call(actions.export, "gone", kind, pair.exporter)
    verbs(kind).open(good, device=pair.importer).close()
    gc.collect()
    peer.call(actions.put, kind, gone)
    for _ in range(20):
        for handle in (gone, good[:-1], reseal(good, GENERATION, gone[GENERATION : GENERATION + 8])):
            with pytest.raises((xs.HandleExpiredError, xs.InvalidHandleError)):
                verbs(kind).open(handle, device=pair.importer)
        with pytest.raises(xs.InvalidArgumentError):
            verbs(kind).open(good, device="nonsense")
    count = actions.processes if kind == "event" else actions.importers
    assert peer.call(count, "good") == (1 if kind == "event" else 0)
    nothing_left()


@rule("3.8b")
@pytest.mark.misuse
def test_failed_gets(pair: Pair, kind: str, nothing_left: Callable[[], None]) -> None:
    context: Any = "a context"
    for _ in range(20):
        with make(kind, pair.exporter) as thing, pytest.raises(xs.InvalidArgumentError):
            verbs(kind).get(thing, context=context)
        thing = make(kind, pair.exporter)
        thing.close()
        with pytest.raises(xs.InvalidArgumentError):
            verbs(kind).get(thing)
        if kind == "physical_memory":
            with make(kind, pair.exporter) as pages, xs.VirtualRange(granule(pair.exporter), pair.exporter) as place:
                for at, offset in ((1, 0), (0, 1), (granule(pair.exporter), 0)):
                    with pytest.raises(xs.InvalidArgumentError):
                        place.map(pages, at, offset=offset)
                assert place.mapped() == []
    del thing
    nothing_left()


# --- 9: fork ----------------------------------------------------------------------------------------------------------


def _everything(device: str) -> None:
    memory = kept["memory"] = xs.malloc_device(granule(device), device)
    write_bytes(memory, b"parent")
    kept["event"] = xs.Event(device, enable_ipc=xs.Device(device).has("ext_oneapi_ipc_event"))
    kept["queue"] = xs.Queue(device)
    kept["array"] = memory.as_array(4, "uint8")
    if xs.Device(device).has("ext_oneapi_virtual_mem"):
        kept["physical"] = xs.PhysicalMemory(granule(device), device)
        kept["range"] = xs.VirtualRange(granule(device), device)
        kept["range"].map(kept["physical"])


def _use_after_fork() -> list[str]:
    """Use the parent's objects in a forked child. Return the names of the calls that do not raise the expected
    error.
    """
    calls: dict[str, Callable[[], Any]] = {
        "ipc.memory.get": lambda: xs.ipc.memory.get(kept["memory"]),
        "ipc.memory.close": lambda: xs.ipc.memory.close(kept["memory"]),
        "memoryview": lambda: memoryview(kept["memory"]),
        "slice": lambda: kept["memory"].slice(0, 1),
        "as_array": lambda: kept["memory"].as_array(1, "uint8"),
        "ptr": lambda: kept["memory"].ptr,
        "pickle": lambda: pickle.dumps(kept["memory"]),
        "array": lambda: kept["array"].__dlpack__(),
        "ipc.event.get": lambda: xs.ipc.event.get(kept["event"]),
        "signal": lambda: kept["event"].signal(),
        "wait": lambda: kept["event"].wait(0),
        "done": lambda: kept["event"].done,
        "value": lambda: kept["event"].value,
        "fill": lambda: kept["queue"].fill(kept["memory"], b"x"),
        "copy": lambda: kept["queue"].copy(kept["memory"], kept["memory"]),
        "queue signal": lambda: kept["queue"].signal(kept["event"]),
        "queue wait": lambda: kept["queue"].wait(kept["event"]),
        "synchronize": lambda: kept["queue"].synchronize(1),
    }
    if "range" in kept:
        calls |= {
            "ipc.physical_memory.get": lambda: xs.ipc.physical_memory.get(kept["physical"]),
            "map": lambda: kept["range"].map(kept["physical"]),
            "unmap": lambda: kept["range"].unmap(0, kept["range"].nbytes),
            "set_access": lambda: kept["range"].set_access(0, 1, "r"),
            "mapped": lambda: kept["range"].mapped(),
            "range view": lambda: kept["range"].as_array(1, "uint8"),
        }
    wrong = []
    for name, call in calls.items():
        error, text = actions.outcome(call)
        if error != "ForkError":
            wrong.append(f"{name}: {error or 'works'} {text}")
        elif "spawn" not in text and "handle" not in text:
            wrong.append(f"{name}: does not say what to do")
    return wrong


@rule("3.9a")
def test_fork_use(pair: Pair) -> None:
    _everything(pair.exporter)
    with Child(method="fork") as child:
        assert child.call(_use_after_fork) == []


def _close_everything() -> bool:
    for name in ("array", "memory", "physical", "event", "range", "queue", "import"):
        if name in kept:
            kept[name].close()
            kept[name].close()
            assert kept[name].closed
    actions.drop()
    return True


@rule("3.9b")
def test_fork_close(pair: Pair, peer: Child) -> None:
    _everything(pair.exporter)
    handle = None
    if all(xs.Device(device).has("ext_oneapi_ipc_memory") for device in (pair.exporter, pair.importer)):
        handle = actions.get("memory", "memory")
        peer.call(actions.open_, "opened", "memory", handle, pair.importer)
        kept["import"] = xs.ipc.memory.open(
            peer.call(actions.export, "theirs", "memory", pair.exporter, b"theirs"), device=pair.importer
        )
    with Child(method="fork") as child:
        assert child.call(_close_everything)
        if handle is not None:
            assert child.call(actions.attempt, actions.put, "memory", handle) == "InvalidArgumentError"
    assert read_bytes(kept["memory"], 6) == b"parent"
    if handle is not None:
        assert peer.call(actions.read, "opened", 6) == b"parent"
        assert peer.call(actions.importers, "theirs") == 1
        assert read_bytes(kept["import"], 6) == b"theirs"
        peer.call(actions.open_, "again", "memory", handle, pair.importer)
    kept["queue"].fill(kept["memory"], b"!")
    events = xs.Device(pair.exporter).has("ext_oneapi_ipc_event")
    if events:
        assert kept["queue"].signal(kept["event"]) == 1
    kept["queue"].synchronize(5)
    assert not events or kept["event"].done
    if "range" in kept:
        assert len(kept["range"].mapped()) == 1
        kept["range"].unmap(0, kept["range"].nbytes)


@rule("3.9c")
def test_fork_open(pair: Pair, peer: Child) -> None:
    theirs = peer.call(actions.export, "theirs", "memory", pair.exporter, b"theirs")
    ours = actions.export("ours", "memory", pair.exporter, b"parent")
    host = actions.runs_callables(pair.exporter)
    with Child(method="fork") as child:
        for handle, content in ((theirs, b"theirs"), (ours, b"parent")):
            error, text = child.call(actions.outcome, actions.open_, "opened", "memory", handle)
            if error:  # the driver does not permit it
                assert error in ("ForkError", "FeatureNotSupportedError", "DeviceError"), text
                assert not host
            else:
                assert child.call(actions.read, "opened", 6) == content
        child.kill()
    assert read_bytes(kept["ours"], 6) == b"parent"


# --- 10: threads ------------------------------------------------------------------------------------------------------


@rule("3.10a")
def test_threads_open(pair: Pair, kind: str, nothing_left: Callable[[], None]) -> None:
    with Child() as fresh:  # many threads make the first open of this process's handles
        handles = [fresh.call(actions.export, f"thing{each}", kind, pair.exporter) for each in range(8)]
        start = threading.Barrier(8)

        def work(thread: int) -> set[int]:
            seen = set()
            start.wait(10)
            for turn in range(24):
                with verbs(kind).open(handles[(turn * (thread + 1)) % 8], device=pair.importer) as thing:
                    seen.add(handles.index(bytes(thing.handle)))
            return seen

        with ThreadPoolExecutor(8) as pool:
            found = [job.result(30) for job in [pool.submit(work, thread) for thread in range(8)]]
        assert set().union(*found) == set(range(8))
        count = actions.processes if kind == "event" else actions.importers
        alone = 1 if kind == "event" else 0
        gc.collect()
        assert [fresh.call(count, f"thing{each}") for each in range(8)] == [alone] * 8
    xs.Device(pair.importer)
    with pytest.raises(xs.HandleExpiredError):
        verbs(kind).open(handles[0], device=pair.importer)
    nothing_left()


@rule("3.10b")
@pytest.mark.misuse
def test_threads_put(pair: Pair, kind: str, nothing_left: Callable[[], None]) -> None:
    with make(kind, pair.exporter) as thing, ThreadPoolExecutor(6) as pool:

        def work() -> set[bytes]:
            seen = set()
            for _ in range(20):
                handle = verbs(kind).get(thing)
                seen.add(bytes(handle))
                verbs(kind).open(handle).close()
                verbs(kind).put(handle)
            return seen

        assert len(set().union(*[job.result(30) for job in [pool.submit(work) for _ in range(6)]])) == 120
        handle = verbs(kind).get(thing)
        start = threading.Barrier(6)

        def once() -> bool:
            start.wait(10)
            return not actions.attempt(verbs(kind).put, handle)

        assert sum(job.result(30) for job in [pool.submit(once) for _ in range(6)]) == 1
    nothing_left()
