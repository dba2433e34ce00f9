"""Section 2: memory."""

# pyright: basic, reportPossiblyUnboundVariable=false, reportOptionalMemberAccess=false

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

import xpushare as xs
from xpushare import adapters
from xpushare.conformance import actions
from xpushare.conformance.actions import NBYTES, granule, held, read_bytes, write_bytes
from xpushare.conformance.harness import TIMEOUT, Child, kept
from xpushare.conformance.plugin import Pair
from xpushare.conformance.rules import rule

PATTERN = bytes(at % 251 for at in range(NBYTES))
MALLOCS: dict[str, Callable[..., xs.Memory]] = {
    "device": xs.malloc_device,
    "host": xs.malloc_host,
    "shared": xs.malloc_shared,
}


@rule("2.1")
@pytest.mark.parametrize("malloc", MALLOCS)
def test_mallocs(pair: Pair, malloc: str) -> None:
    device = xs.Device(pair.exporter)
    for nbytes in (1, 100, NBYTES, 3 * NBYTES + 1):
        with MALLOCS[malloc](nbytes, pair.exporter) as memory:
            assert (memory.nbytes, memory.device, memory.context) == (nbytes, device, device.context)
            assert memory.ptr
            assert not memory.is_imported
            assert not memory.read_only
            content = PATTERN[: min(nbytes, NBYTES)]
            write_bytes(memory, content)
            assert read_bytes(memory, len(content)) == content
            with pytest.raises(xs.InvalidArgumentError):
                memory.handle  # noqa: B018 memory allocated here has no handle


@rule("2.2")
@pytest.mark.parametrize("malloc", MALLOCS)
@pytest.mark.misuse
def test_sizes(pair: Pair, malloc: str) -> None:
    sizes: list[Any] = [0, -1, "4", None, 1.5]
    for nbytes in sizes:
        with pytest.raises(xs.InvalidArgumentError):
            MALLOCS[malloc](nbytes, pair.exporter)
    for nbytes in (1 << 61, 1 << 62, 1 << 80):
        with pytest.raises(xs.OutOfMemoryError):
            MALLOCS[malloc](nbytes, pair.exporter)


@rule("2.3")
@pytest.mark.misuse
def test_slices(pair: Pair) -> None:
    memory = xs.malloc_device(NBYTES, pair.exporter)
    write_bytes(memory, PATTERN)
    piece = memory.slice(100, 1000)
    inner = piece.slice(10, 20)
    assert (piece.ptr - memory.ptr, inner.ptr - memory.ptr) == (100, 110)
    assert (piece.nbytes, inner.nbytes, memory.slice(5, 0).nbytes) == (1000, 20, 0)
    for offset, nbytes in ((-1, 1), (0, NBYTES + 1), (NBYTES, 1), (1, NBYTES), (0, -1), (2**70, 1)):
        with pytest.raises(xs.InvalidArgumentError):
            memory.slice(offset, nbytes)
    with pytest.raises(xs.InvalidArgumentError):
        piece.slice(990, 11)  # within the memory, but not within the slice
    memory.close()
    piece.close()
    del memory, piece
    gc.collect()
    assert read_bytes(inner) == PATTERN[110:130]


@rule("2.4")
@pytest.mark.parametrize("malloc", MALLOCS)
def test_buffers(pair: Pair, malloc: str) -> None:
    with MALLOCS[malloc](NBYTES, pair.exporter) as memory:
        if not _accessible(memory):
            assert malloc != "host"
            with pytest.raises(BufferError, match=r"from_dlpack|Queue\.copy"):
                memoryview(memory)
            return
        view = memoryview(memory)
        with view:
            assert (view.format, view.ndim, view.nbytes, view.readonly) == ("B", 1, NBYTES, False)
            view[:3] = b"abc"
        assert read_bytes(memory, 3) == b"abc"


@rule("2.5")
@pytest.mark.misuse
def test_arrays(pair: Pair) -> None:
    with xs.malloc_device(NBYTES, pair.exporter) as memory:
        array = memory.as_array((4, 8), "int32", 64)
        assert (array.shape, str(array.dtype), array.nbytes, array.strides) == ((4, 8), "int32", 128, (32, 4))
        assert array.device == memory.device
        assert not array.is_imported
        write_bytes(memory, b"below")
        with xs.Queue(pair.exporter) as queue:
            queue.fill(array, b"\x07")
            queue.synchronize(TIMEOUT)
        content = read_bytes(memory)
        assert content[:5] == b"below"
        assert content[64:192] == b"\x07" * 128
        assert len(content[192:]) == NBYTES - 192
        wrong: list[tuple[Any, Any, Any]] = [
            (NBYTES + 1, "uint8", 0), (1, "uint8", NBYTES), (1, "uint8", -1), (-1, "uint8", 0), (4, "no dtype", 0),
            ("x", "uint8", 0),
            (NBYTES // 4, "int32", 4),
        ]  # fmt: skip
        for shape, dtype, offset in wrong:
            with pytest.raises(xs.InvalidArgumentError):
                memory.as_array(shape, dtype, offset)


def _accessible(memory: xs.Memory) -> bool:
    try:
        memoryview(memory).release()
    except BufferError:
        return False
    return True


@rule("2.6")
def test_dlpack(pair: Pair) -> None:
    with xs.malloc_device(NBYTES, pair.exporter) as memory:
        kind, number = memory.__dlpack_device__()
        assert isinstance(kind, int)
        assert isinstance(number, int)
        assert "dltensor_versioned" in repr(memory.__dlpack__(max_version=(1, 0), stream=None))
        assert '"dltensor"' in repr(memory.__dlpack__())
        if _accessible(memory):
            import numpy

            array = numpy.from_dlpack(memory)
            assert array.nbytes == NBYTES
            array[:3] = (1, 2, 3)
            assert read_bytes(memory, 3) == b"\1\2\3"
            memory.close()
            gc.collect()
            assert bytes(array[:3]) == b"\1\2\3"  # the capsule keeps the memory alive


@rule("2.7")
def test_interfaces(pair: Pair) -> None:
    record = adapters.record(xs.Device(pair.exporter).backend)
    assert record is not None
    given = {each.name for each in record.interfaces if each.given}
    known = {each.name for vendor in adapters.vendors() for each in vendor.interfaces}
    with xs.malloc_device(NBYTES, pair.exporter) as memory:
        found = {name: getattr(memory, name) for name in known if hasattr(memory, name)}
        assert ("__array_interface__" in found) == _accessible(memory)
        assert found.keys() - {"__array_interface__"} == given - {"__array_interface__"}
        for interface in found.values():
            assert interface["data"] == (memory.ptr, False)
            assert interface["shape"] == (NBYTES,)


def resources(device: str) -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Map the name of each class that has a method `close` to a pair: an object of the class, and a function that uses
    the object.
    """
    found: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "Memory": (xs.malloc_device(NBYTES, device), lambda thing: thing.ptr),
        "Event": (xs.Event(device), lambda thing: thing.value),
        "Queue": (xs.Queue(device), lambda thing: thing.synchronize(TIMEOUT)),
        "SharedArray": (xs.malloc_device(NBYTES, device).as_array(4, "uint8"), lambda thing: thing.__dlpack__()),
    }
    if xs.Device(device).has("ext_oneapi_virtual_mem"):
        found["PhysicalMemory"] = xs.PhysicalMemory(granule(device), device), lambda thing: thing.nbytes
        found["VirtualRange"] = xs.VirtualRange(granule(device), device), lambda thing: thing.mapped()
    return found


@rule("2.8")
@pytest.mark.misuse
def test_close(pair: Pair) -> None:
    for name, (thing, use) in resources(pair.exporter).items():
        assert not thing.closed, name
        use(thing)
        for _ in range(2):
            thing.close()
            assert thing.closed, name
        with pytest.raises(xs.InvalidArgumentError, match="closed"):
            use(thing)
        assert "closed" in repr(thing)
        with pytest.raises(xs.InvalidArgumentError), thing:
            pass


@rule("2.9")
def test_with(pair: Pair) -> None:
    for name, (thing, use) in resources(pair.exporter).items():
        with thing as same:
            assert same is thing
            use(thing)
        assert thing.closed, name


@rule("2.10")
def test_held_by_views(pair: Pair, nothing_left: Callable[[], None]) -> None:
    memory = xs.malloc_device(NBYTES, pair.exporter)
    write_bytes(memory, PATTERN)
    array = memory.as_array(NBYTES, "uint8")
    piece = memory.slice(8, 8)
    memory.close()
    gc.collect()
    assert read_bytes(piece) == PATTERN[8:16]
    if _accessible(piece):
        view = memoryview(array)
        array.close()
        piece.close()
        gc.collect()
        assert bytes(view[:8]) == PATTERN[:8]
        view.release()
        del view
    del array, piece
    nothing_left()


@rule("2.10")
@pytest.mark.parametrize("kind", ["memory"])
def test_held_by_an_import(pair: Pair, peer: Child, kind: str, nothing_left: Callable[[], None]) -> None:
    handle = peer.call(actions.export, "memory", kind, pair.exporter, PATTERN)
    memory = xs.ipc.memory.open(handle, device=pair.importer)
    array = memory.as_array(16, "uint8", 16)
    memory.close()
    gc.collect()
    peer.call(actions.put, "memory", handle)
    with xs.Queue(pair.importer) as queue, xs.malloc_host(16, pair.importer) as host:
        queue.copy(host, array)
        queue.synchronize(TIMEOUT)
        assert read_bytes(host) == PATTERN[16:32]
    array.close()
    del array, memory
    nothing_left()


@rule("2.10")
def test_held_by_a_queue(pair: Pair) -> None:
    with xs.malloc_device(NBYTES, pair.exporter) as target:
        with held(pair.exporter) as gate:
            memory = xs.malloc_device(NBYTES, pair.exporter)
            write_bytes(memory, PATTERN)
            gate.queue.copy(target, memory)
            gate.queue.fill(memory, b"z")
            memory.close()
            del memory
            gc.collect()
            others = [xs.malloc_device(NBYTES, pair.exporter) for _ in range(4)]  # would reuse freed memory
            for each in others:
                write_bytes(each, b"\xff" * NBYTES)
            gate.release()
            gate.queue.synchronize(TIMEOUT)
        assert read_bytes(target) == PATTERN
        assert all(read_bytes(each) == b"\xff" * NBYTES for each in others)


@rule("2.11")
def test_dropping(pair: Pair, peer: Child, nothing_left: Callable[[], None]) -> None:
    handle = peer.call(actions.export, "memory", "memory", pair.exporter)
    memory = xs.ipc.memory.open(handle, device=pair.importer)
    assert peer.call(actions.importers, "memory") == 1
    del memory
    gc.collect()
    assert peer.call(actions.importers, "memory") == 0
    for thing, _use in resources(pair.importer).values():
        del thing
    nothing_left()
    kept.clear()


@rule("2.12")
def test_contexts(pair: Pair) -> None:
    device = xs.Device(pair.exporter)
    with xs.malloc_device(NBYTES, context=xs.Context([device])) as memory:
        assert (memory.device, memory.context) == (device, device.context)
    others = [each for each in xs.devices() if each != device]
    wrong: list[Any] = ["text", 3, device, *(xs.Context([each]) for each in others)]
    for context in wrong:
        for call in (
            lambda context: xs.malloc_device(NBYTES, device, context=context),
            lambda context: xs.Event(device, context=context),
            lambda context: xs.Queue(device, context=context),
        ):
            with pytest.raises(xs.InvalidArgumentError):
                call(context)
    with pytest.raises(xs.InvalidArgumentError):
        xs.Context([])
    with pytest.raises(xs.InvalidArgumentError):
        xs.Device("no device")
