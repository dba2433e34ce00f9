"""Memory: opening and reading what another process allocated, against multiprocessing.shared_memory."""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Final

from xpushare.bench.measure import Row, Settings, alternate, compare
from xpushare.bench.worker import Kept, Worker

__all__ = ["already_open", "fresh_array", "hand_over", "new_handle", "read_once"]

_MIB: Final = 1 << 20
OTHER: Final = "multiprocessing.shared_memory"
# An attaching process does not own the segment; from 3.13 on Python can be told so, else it registers it.
_ATTACH: Final[dict[str, Any]] = {"track": False} if sys.version_info >= (3, 13) else {}
_TRACKED: Final = (
    "shared_memory attaches with track=False"
    if _ATTACH
    else "shared_memory registers at its resource tracker, as this Python always does when attaching"
)


def _make_ours(kept: Kept, nbytes: int, device: str) -> bytes:
    """A new allocation, every page written, exported; the former one is given up."""
    import xpushare as xs

    memory = xs.malloc_host(nbytes, device)
    with memoryview(memory) as view:
        view[:] = bytes([7]) * nbytes
    kept["ours"] = memory
    if "handle" in kept:
        xs.ipc.memory.put(kept["handle"])
    kept["handle"] = xs.ipc.memory.get(memory)
    return bytes(kept["handle"])


def _buffer(segment: SharedMemory) -> memoryview:
    buffer = segment.buf
    assert buffer is not None
    return buffer


def _make_theirs(kept: Kept, nbytes: int) -> str:
    _end_theirs(kept)
    kept["segments"] = kept.get("segments", 0) + 1
    segment = SharedMemory(f"xpushare-bench-{os.getpid()}-{kept['segments']}", create=True, size=nbytes)
    _buffer(segment)[:nbytes] = bytes([7]) * nbytes
    kept["theirs"] = segment
    return segment.name


def _end_theirs(kept: Kept) -> None:
    former = kept.pop("theirs", None)
    if former is not None:
        former.close()
        former.unlink()


def _open_ours(handle: bytes) -> float:
    import xpushare as xs

    clock = time.perf_counter_ns
    start = clock()
    memory = xs.ipc.memory.open(handle)
    view = memoryview(memory)
    first = view[0]
    view.release()
    memory.close()
    end = clock()
    assert first == 7
    return (end - start) / 1000


def _open_theirs(name: str) -> float:
    clock = time.perf_counter_ns
    start = clock()
    segment = SharedMemory(name, **_ATTACH)
    first = segment.buf[0]  # type: ignore[index]  # typeshed: None after close
    segment.close()
    end = clock()
    assert first == 7
    return (end - start) / 1000


def _sample_ours(kept: Kept, handle: bytes) -> float:  # noqa: ARG001
    return _open_ours(handle)


def _sample_theirs(kept: Kept, name: str) -> float:  # noqa: ARG001
    return _open_theirs(name)


def new_handle(settings: Settings) -> list[Row]:
    """A new handle to the first byte read in another process (1 MiB): open, map, read, close."""
    name = "new_handle"
    rows: list[Row] = []
    with Worker(settings) as exporter, Worker(settings) as importer:
        ours, theirs = alternate(
            settings.count(1000, 20),
            lambda: importer.call(_sample_ours, exporter.call(_make_ours, _MIB, settings.device)),
            lambda: importer.call(_sample_theirs, exporter.call(_make_theirs, _MIB)),
        )
        exporter.call(_end_theirs)
    rows.append(
        compare(
            name,
            "first open to first byte, 1 MiB, known exporter",
            ours,
            OTHER,
            theirs,
            most=1.0,
            wanted="not slower",
            notes=[_TRACKED],
        )
    )
    first_ours: list[float] = []
    first_theirs: list[float] = []
    with Worker(settings) as importer:
        with Worker(settings) as exporter:  # warm-up: what a first open imports and reads (key, modules)
            importer.call(_sample_ours, exporter.call(_make_ours, _MIB, settings.device))
            importer.call(_sample_theirs, exporter.call(_make_theirs, _MIB))
            exporter.call(_end_theirs)
        for turn in range(settings.count(40, 3)):
            with Worker(settings) as exporter:
                handle = exporter.call(_make_ours, _MIB, settings.device)
                other = exporter.call(_make_theirs, _MIB)
                for which in (turn, turn + 1):
                    if which % 2:
                        first_ours.append(importer.call(_sample_ours, handle))
                    else:
                        first_theirs.append(importer.call(_sample_theirs, other))
                exporter.call(_end_theirs)
    rows.append(
        compare(
            name,
            "the same, first contact with that exporter",
            first_ours,
            OTHER,
            first_theirs,
            most=1.0,
            wanted="not slower",
            notes=["ours maps the exporter's table and joins its commons; once per pair of processes", _TRACKED],
        )
    )
    return rows


def _made_and_shared(kept: Kept, device: str) -> tuple[bytes, float]:
    """A new array, every byte written; the handle, and how long `share` took. The former array is given up."""
    import numpy

    import xpushare as xs

    clock = time.perf_counter_ns
    if "handed" in kept:
        kept.pop("handed").close()
    array = xs.empty(_MIB, "uint8", device=device)
    numpy.asarray(array)[:] = 7
    start = clock()
    handle = xs.share(array)
    end = clock()
    kept["handed"] = handle
    return bytes(handle), (end - start) / 1000


def _made_by_name(kept: Kept) -> tuple[str, float]:
    """The same by theirs: who makes a segment gives it its name, so all of that counts but the pages."""
    _end_theirs(kept)
    clock = time.perf_counter_ns
    start = clock()
    segment = SharedMemory(create=True, size=_MIB)
    end = clock()
    _buffer(segment)[:_MIB] = bytes([7]) * _MIB
    kept["theirs"] = segment
    return segment.name, (end - start) / 1000


def _attached(kept: Kept, handle: bytes) -> float:  # noqa: ARG001
    """Attach, see the first element, close."""
    import numpy

    import xpushare as xs

    clock = time.perf_counter_ns
    start = clock()
    array = xs.attach(handle)
    first = numpy.asarray(array)[0]
    array.close()
    end = clock()
    assert first == 7
    return (end - start) / 1000


def _attached_by_name(kept: Kept, name: str) -> float:  # noqa: ARG001
    import numpy

    clock = time.perf_counter_ns
    start = clock()
    segment = SharedMemory(name, **_ATTACH)
    values: Any = numpy.ndarray(_MIB, "uint8", segment.buf)
    first = values[0]
    del values
    segment.close()
    end = clock()
    assert first == 7
    return (end - start) / 1000


def _handed_over(exporter: Worker, importer: Worker, device: str) -> float:
    handle, shared = exporter.call(_made_and_shared, device)
    return float(shared + importer.call(_attached, handle))


def _handed_by_name(exporter: Worker, importer: Worker) -> float:
    name, made = exporter.call(_made_by_name)
    return float(made + importer.call(_attached_by_name, name))


def hand_over(settings: Settings) -> list[Row]:
    """A new array of 1 MiB, `share`, `attach`, its first element, close; and the same with an exporter never met."""
    with Worker(settings) as importer:
        with Worker(settings) as exporter:
            ours, theirs = alternate(
                settings.count(1000, 20),
                lambda: _handed_over(exporter, importer, settings.device),
                lambda: _handed_by_name(exporter, importer),
            )
            exporter.call(_end_theirs)
        contacts: tuple[list[float], list[float]] = ([], [])
        for turn in range(settings.count(40, 3)):
            with Worker(settings) as exporter:
                exporter.call(_made_and_shared, settings.device)  # what it does once, whoever is going to attach
                exporter.call(_made_by_name)
                for which in (turn, turn + 1):
                    if which % 2:
                        contacts[0].append(_handed_over(exporter, importer, settings.device))
                    else:
                        contacts[1].append(_handed_by_name(exporter, importer))
                exporter.call(_end_theirs)
    what = "share and attach of a new array of 1 MiB, to its first element"
    return [
        compare("hand_over", what, ours, OTHER, theirs, most=1.0, wanted="not slower", notes=[_TRACKED]),
        compare(
            "hand_over",
            "the same, first contact of the two processes",
            contacts[0],
            OTHER,
            contacts[1],
            most=2.5,
            wanted="at most 2.5 times slower",
            notes=["once per pair of processes: the exporter's table is mapped, its commons joined", _TRACKED],
        ),
    ]


def _keep_open(kept: Kept, handle: bytes, name: str) -> None:
    import xpushare as xs

    kept["memory"] = xs.ipc.memory.open(handle)
    kept["segment"] = SharedMemory(name, **_ATTACH)


def _let_go(kept: Kept) -> None:
    kept.pop("memory").close()
    kept.pop("segment").close()


def _reopen_samples(kept: Kept, handle: bytes, name: str, count: int) -> tuple[list[float], list[float]]:  # noqa: ARG001
    import xpushare as xs

    clock = time.perf_counter_ns

    def ours() -> float:
        start = clock()
        xs.ipc.memory.open(handle).close()
        return (clock() - start) / 1000

    def theirs() -> float:
        start = clock()
        SharedMemory(name, **_ATTACH).close()
        return (clock() - start) / 1000

    mine, other = alternate(count, ours, theirs)
    return mine, other


def already_open(settings: Settings) -> list[Row]:
    """Open and close of a handle that this process has open already."""
    with Worker(settings) as exporter, Worker(settings) as importer:
        handle = exporter.call(_make_ours, _MIB, settings.device)
        other = exporter.call(_make_theirs, _MIB)
        importer.call(_keep_open, handle, other)
        ours, theirs = importer.call(_reopen_samples, handle, other, settings.count(5000, 100))
        importer.call(_let_go)
        exporter.call(_end_theirs)
    return [
        compare(
            "already_open",
            "open and close, already open",
            ours,
            f"{OTHER} attach and close",
            theirs,
            most=1 / 3,
            wanted="3 times faster",
            notes=[_TRACKED],
        )
    ]


def _read_samples(kept: Kept, handle: bytes, name: str, nbytes: int, count: int) -> tuple[list[float], list[float]]:  # noqa: ARG001
    import numpy as np

    import xpushare as xs

    clock = time.perf_counter_ns
    want = 0x0707070707070707 * (nbytes // 8) % 2**64

    def ours() -> float:
        start = clock()
        memory = xs.ipc.memory.open(handle)
        view = memoryview(memory)
        array = np.frombuffer(view, dtype=np.uint64)
        total = int(array.sum())
        del array
        view.release()
        memory.close()
        end = clock()
        assert total == want
        return (end - start) / 1000

    def theirs() -> float:
        start = clock()
        segment = SharedMemory(name, **_ATTACH)
        array = np.frombuffer(_buffer(segment), dtype=np.uint64, count=nbytes // 8)
        total = int(array.sum())
        del array
        segment.close()
        end = clock()
        assert total == want
        return (end - start) / 1000

    mine, other = alternate(count, ours, theirs, warm_up=2)
    return mine, other


def read_once(settings: Settings) -> list[Row]:
    """64 MiB mapped, summed once by numpy (every byte), closed."""
    nbytes = 64 * _MIB
    ours: list[float] = []
    theirs: list[float] = []
    rounds = settings.count(16, 2)
    with Worker(settings) as importer:
        # New allocations, and who comes first changes: where the kernel places the pages makes a difference of its own.
        for turn in range(rounds):
            with Worker(settings) as exporter:
                made: dict[str, Any] = {}
                for which in (turn, turn + 1):
                    if which % 2:
                        made["ours"] = exporter.call(_make_ours, nbytes, settings.device)
                    else:
                        made["theirs"] = exporter.call(_make_theirs, nbytes)
                count = settings.count(6, 2)
                mine, other = importer.call(_read_samples, made["ours"], made["theirs"], nbytes, count, timeout=300)
                ours += mine
                theirs += other
                exporter.call(_end_theirs)
    row = compare("read_once", "64 MiB mapped, read once, closed", ours, OTHER, theirs, most=1.0, wanted="not slower")
    assert row.theirs is not None
    speeds = (nbytes / us / 1000 for us in (row.ours.median, row.theirs.median))
    row.notes.append(f"{rounds} pairs of allocations")
    row.notes.append("bandwidth {:.2f} GB/s, theirs {:.2f} GB/s".format(*speeds))
    return [row]


def _fresh_samples(kept: Kept, nbytes: int, count: int, device: str, shared: bool) -> tuple[list[float], ...]:  # noqa: ARG001
    """A new array each time, every page written once, and freed."""
    import numpy

    import xpushare as xs

    clock = time.perf_counter_ns
    xs.share(xs.empty(1, device=device), ttl=3600.0)  # freed memory is kept by processes that share

    def ours() -> float:
        start = clock()
        with xs.empty(nbytes, "uint8", device=device) as array:
            numpy.asarray(array)[:] = 7
            if shared:
                xs.share(array).close()
        del array
        return (clock() - start) / 1000

    def theirs() -> float:
        start = clock()
        segment = SharedMemory(create=True, size=nbytes)
        values: Any = numpy.ndarray(nbytes, "uint8", segment.buf)
        values[:] = 7
        del values
        segment.close()
        segment.unlink()
        return (clock() - start) / 1000

    return alternate(count, ours, theirs)


def fresh_array(settings: Settings) -> list[Row]:
    """A fresh array each time: made, written, freed; the memory of one that was shared does not serve again."""
    rows: list[Row] = []
    with Worker(settings) as worker:
        for shared in (False, True):
            for nbytes, name in ((64 << 10, "64 KiB"), (_MIB, "1 MiB"), (64 * _MIB, "64 MiB")):
                count = settings.count(20 if nbytes > _MIB else 200, 3)
                ours, theirs = worker.call(_fresh_samples, nbytes, count, settings.device, shared)
                what = f"a fresh array of {name}, written{', shared' if shared else ''} and freed"
                rows.append(compare("fresh_array", what, ours, OTHER, theirs))
    return rows
