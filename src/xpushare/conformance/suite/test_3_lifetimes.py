"""Section 3, rules 6 to 8: objects that outlive others, and the state after a failure."""

# pyright: basic, reportPossiblyUnboundVariable=false, reportOptionalMemberAccess=false

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

import xpushare as xs
from xpushare.conformance import actions
from xpushare.conformance.actions import KINDS, NBYTES, granule, make, read_bytes, verbs, write_bytes
from xpushare.conformance.forgery import GENERATION, reseal
from xpushare.conformance.harness import Child
from xpushare.conformance.plugin import Pair
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
