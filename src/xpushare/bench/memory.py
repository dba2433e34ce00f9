"""Scenarios about memory. Sharing, opening and reading another process's memory is compared with
`multiprocessing.shared_memory`. The memory use of an array that many processes share is compared with copies sent by
`multiprocessing.Pipe`.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from contextlib import ExitStack
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, Final

from xpushare.bench.measure import Kept, Row, Settings, Worker, alternate, compare

__all__ = ["already_open", "eight_workers", "footprint", "fresh_array", "hand_over", "new_handle", "read_once"]

_MIB: Final = 1 << 20
_FRAME: Final = 3840 * 2160 * 3
_WORKERS: Final = 8
_OTHER: Final = "multiprocessing.shared_memory"
# An attaching process does not own the segment. `track=False`, new in Python 3.13, says so. Before, it is registered.
_ATTACH: Final[dict[str, Any]] = {"track": False} if sys.version_info >= (3, 13) else {}
_TRACKED: Final = (
    "shared_memory attaches with track=False"
    if _ATTACH
    else "shared_memory registers at its resource tracker, as this Python always does when attaching"
)


# --- in the two processes: each function returns the microseconds that it took ----------------------------------------


def _make_ours(kept: Kept, nbytes: int, device: str) -> bytes:
    """Make a new allocation, write every page, and export it. The previous allocation is released. Returns the
    handle.
    """
    import xpushare as xs

    memory = xs.malloc_host(nbytes, device)
    with memoryview(memory) as view:
        view[:] = bytes([7]) * nbytes
    kept["ours"] = memory
    if "handle" in kept:
        xs.ipc.memory.put(kept["handle"])
    kept["handle"] = xs.ipc.memory.get(memory)
    return bytes(kept["handle"])


def _make_theirs(kept: Kept, nbytes: int) -> tuple[str, float]:
    """Make a new segment of `multiprocessing.shared_memory` and write every page. Returns the segment's name, and the
    time to make the segment in microseconds. The time does not include writing.
    """
    _end_theirs(kept)
    start = time.perf_counter_ns()
    segment = kept["theirs"] = SharedMemory(f"xpushare-bench-{os.getpid()}-{start}", create=True, size=nbytes)
    took = (time.perf_counter_ns() - start) / 1000
    _view(segment, nbytes)[:] = 7
    return segment.name, took


def _end_theirs(kept: Kept) -> None:
    former: SharedMemory | None = kept.pop("theirs", None)
    if former is not None:
        former.close()
        former.unlink()


def _view(segment: SharedMemory, nbytes: int) -> Any:
    import numpy

    return numpy.ndarray(nbytes, "uint8", segment.buf)


def _open_ours(kept: Kept, handle: bytes) -> float:  # noqa: ARG001
    import xpushare as xs

    start = time.perf_counter_ns()
    with xs.ipc.memory.open(handle) as memory, memoryview(memory) as view:
        first = view[0]
    end = time.perf_counter_ns()
    assert first == 7
    return (end - start) / 1000


def _open_theirs(kept: Kept, name: str) -> float:  # noqa: ARG001
    start = time.perf_counter_ns()
    segment = SharedMemory(name, **_ATTACH)
    first = segment.buf[0]  # type: ignore[index]  # typeshed: None after close
    segment.close()
    end = time.perf_counter_ns()
    assert first == 7
    return (end - start) / 1000


def _share(kept: Kept, device: str) -> tuple[bytes, float]:
    """Make a new array, write every byte and share the array. The previous array is released. Returns the handle, and
    the time that sharing took in microseconds.
    """
    import numpy

    import xpushare as xs

    if "handed" in kept:
        kept.pop("handed").close()
    array = xs.empty(_MIB, "uint8", device=device)
    numpy.asarray(array)[:] = 7
    start = time.perf_counter_ns()
    handle = kept["handed"] = xs.share(array)
    return bytes(handle), (time.perf_counter_ns() - start) / 1000


def _attach(kept: Kept, handle: bytes) -> float:  # noqa: ARG001
    """Attach an array, read its first element and close it. Returns the time that this took in microseconds."""
    import numpy

    import xpushare as xs

    start = time.perf_counter_ns()
    array = xs.attach(handle)
    first = numpy.asarray(array)[0]
    array.close()
    end = time.perf_counter_ns()
    assert first == 7
    return (end - start) / 1000


def _attach_by_name(kept: Kept, name: str) -> float:  # noqa: ARG001
    start = time.perf_counter_ns()
    segment = SharedMemory(name, **_ATTACH)
    values = _view(segment, _MIB)
    first = values[0]
    del values
    segment.close()
    end = time.perf_counter_ns()
    assert first == 7
    return (end - start) / 1000


# --- scenarios --------------------------------------------------------------------------------------------------------


def _hand_over(exporter: Worker, importer: Worker, device: str) -> float:
    handle, shared = exporter.call(_share, device)
    return float(shared + importer.call(_attach, handle))


def _hand_by_name(exporter: Worker, importer: Worker) -> float:
    name, made = exporter.call(_make_theirs, _MIB)
    return float(made + importer.call(_attach_by_name, name))


def hand_over(settings: Settings) -> list[Row]:
    """Share a new array of 1 MiB, attach it, read its first element, close it. From a known and from a new exporter."""
    with Worker(settings) as importer:
        with Worker(settings) as exporter:
            ours, theirs = alternate(
                settings.count(1000, 20),
                lambda: _hand_over(exporter, importer, settings.device),
                lambda: _hand_by_name(exporter, importer),
            )
            exporter.call(_end_theirs)
        contacts: tuple[list[float], list[float]] = ([], [])
        for turn in range(settings.count(40, 3)):
            with Worker(settings) as exporter:
                exporter.call(_share, settings.device)  # the exporter does this once for all importers
                exporter.call(_make_theirs, _MIB)
                for which in (turn % 2, 1 - turn % 2):
                    contacts[which].append(
                        _hand_by_name(exporter, importer) if which else _hand_over(exporter, importer, settings.device)
                    )
                exporter.call(_end_theirs)
    what = "share and attach of a new array of 1 MiB, to its first element"
    once = "once per pair of processes: the exporter's table is mapped, its commons joined"
    first = "the same, first contact of the two processes"
    return [
        compare("hand_over", what, ours, _OTHER, theirs, notes=[_TRACKED]),
        compare("hand_over", first, contacts[0], _OTHER, contacts[1], notes=[once, _TRACKED]),
    ]


def new_handle(settings: Settings) -> list[Row]:
    """Open a new handle in another process, map 1 MiB, read the first byte and close."""
    with Worker(settings) as exporter, Worker(settings) as importer:
        ours, theirs = alternate(
            settings.count(1000, 20),
            lambda: importer.call(_open_ours, exporter.call(_make_ours, _MIB, settings.device)),
            lambda: importer.call(_open_theirs, exporter.call(_make_theirs, _MIB)[0]),
        )
        exporter.call(_end_theirs)
    name = "first open to first byte, 1 MiB, known exporter"
    return [compare("new_handle", name, ours, _OTHER, theirs, notes=[_TRACKED])]


def _reopen(kept: Kept, handle: bytes, name: str, count: int) -> tuple[list[float], ...]:  # noqa: ARG001
    import xpushare as xs

    segment = SharedMemory(name, **_ATTACH)

    def ours() -> float:
        start = time.perf_counter_ns()
        xs.ipc.memory.open(handle).close()
        return (time.perf_counter_ns() - start) / 1000

    def theirs() -> float:
        start = time.perf_counter_ns()
        SharedMemory(name, **_ATTACH).close()
        return (time.perf_counter_ns() - start) / 1000

    with xs.ipc.memory.open(handle):
        found = alternate(count, ours, theirs)
    segment.close()
    return found


def already_open(settings: Settings) -> list[Row]:
    """Open and close a handle of memory that this process already has open."""
    with Worker(settings) as exporter, Worker(settings) as importer:
        handle = exporter.call(_make_ours, _MIB, settings.device)
        name, _ = exporter.call(_make_theirs, _MIB)
        ours, theirs = importer.call(_reopen, handle, name, settings.count(5000, 100))
        exporter.call(_end_theirs)
    other = f"{_OTHER} attach and close"
    return [compare("already_open", "open and close, already open", ours, other, theirs, notes=[_TRACKED])]


def _read(kept: Kept, handle: bytes, name: str, nbytes: int, count: int) -> tuple[list[float], ...]:  # noqa: ARG001
    import numpy as np

    import xpushare as xs

    want = 0x0707070707070707 * (nbytes // 8) % 2**64

    def ours() -> float:
        start = time.perf_counter_ns()
        with xs.ipc.memory.open(handle) as memory, memoryview(memory) as view:
            total = int(np.frombuffer(view, np.uint64).sum())
        end = time.perf_counter_ns()
        assert total == want
        return (end - start) / 1000

    def theirs() -> float:
        start = time.perf_counter_ns()
        segment = SharedMemory(name, **_ATTACH)
        total = int(_view(segment, nbytes).view(np.uint64).sum())
        segment.close()
        end = time.perf_counter_ns()
        assert total == want
        return (end - start) / 1000

    return alternate(count, ours, theirs, warm_up=2)


def read_once(settings: Settings) -> list[Row]:
    """Map 64 MiB, sum every byte once with NumPy, and close."""
    nbytes, rounds = 64 * _MIB, settings.count(16, 2)
    ours: list[float] = []
    theirs: list[float] = []
    with Worker(settings) as importer:
        # Each sample has new allocations, and the order alternates, since the kernel's placement of pages makes a
        # difference of its own.
        for turn in range(rounds):
            with Worker(settings) as exporter:
                made: dict[int, Any] = {}
                for which in (turn % 2, 1 - turn % 2):
                    if which:
                        made[which] = exporter.call(_make_theirs, nbytes)[0]
                    else:
                        made[which] = exporter.call(_make_ours, nbytes, settings.device)
                mine, other = importer.start(_read, made[0], made[1], nbytes, settings.count(6, 2)).result(300)
                ours += mine
                theirs += other
                exporter.call(_end_theirs)
    row = compare("read_once", "64 MiB mapped, read once, closed", ours, _OTHER, theirs)
    assert row.theirs is not None
    speeds = (nbytes / us / 1000 for us in (row.ours.median, row.theirs.median))
    row.notes += [f"{rounds} pairs of allocations", "bandwidth {:.2f} GB/s, theirs {:.2f} GB/s".format(*speeds)]
    return [row]


def _fresh(kept: Kept, nbytes: int, count: int, device: str, shared: bool) -> tuple[list[float], ...]:  # noqa: ARG001
    """Make, write and free arrays of xpushare and segments of `multiprocessing.shared_memory`, `count` times each. If
    `shared` is true, each array is also shared. Returns the times in microseconds for arrays and for segments.
    """
    import numpy

    import xpushare as xs

    xs.share(xs.empty(1, device=device)).close()  # once a process has shared memory, it caches freed memory

    def ours() -> float:
        start = time.perf_counter_ns()
        with xs.empty(nbytes, "uint8", device=device) as array:
            numpy.asarray(array)[:] = 7
            if shared:
                xs.share(array).close()
        del array
        return (time.perf_counter_ns() - start) / 1000

    def theirs() -> float:
        start = time.perf_counter_ns()
        segment = SharedMemory(create=True, size=nbytes)
        _view(segment, nbytes)[:] = 7
        segment.close()
        segment.unlink()
        return (time.perf_counter_ns() - start) / 1000

    return alternate(count, ours, theirs)


def fresh_array(settings: Settings) -> list[Row]:
    """A new array each time, made, written, shared, opened in another process and freed. Freed memory is reused."""
    rows: list[Row] = []
    with Worker(settings) as worker:
        for shared in (False, True):
            for nbytes, name in ((64 << 10, "64 KiB"), (_MIB, "1 MiB"), (64 * _MIB, "64 MiB")):
                count = settings.count(20 if nbytes > _MIB else 200, 3)
                ours, theirs = worker.call(_fresh, nbytes, count, settings.device, shared)
                what = f"a fresh array of {name}, written{', shared' if shared else ''} and freed"
                rows.append(compare("fresh_array", what, ours, _OTHER, theirs))
    return rows + _handed(settings)


def _handed(settings: Settings) -> list[Row]:
    """Measure the time from making an array to freeing it, if another process opens, reads and closes the array in
    between.
    """
    rows: list[Row] = []
    near, far = multiprocessing.Pipe()
    with Worker(settings, {"pipe": near}) as maker, Worker(settings, {"pipe": far}) as reader:
        near.close()
        far.close()
        looked = reader.start(_look)
        for nbytes, name, pickled in (
            (_FRAME, "a 4K frame", False),
            (64 << 10, "64 KiB", False),
            (64 << 10, "64 KiB", True),
            (_MIB, "1 MiB", True),
        ):
            count = settings.count(60 if nbytes > _MIB else 200, 3)
            ours, theirs = maker.call(_hand, nbytes, count, settings.device, pickled)
            way = "pickled" if pickled else "shared"
            what = f"a fresh array of {name}, written, {way}, opened and closed elsewhere, freed"
            rows.append(compare("fresh_array", what, ours, _OTHER, theirs))
        maker.call(_stop)
        looked.result()
    return rows


def _look(kept: Kept) -> None:
    """Open each array that arrives, read its first and last element, close it, and reply."""
    import pickle

    import numpy

    import xpushare as xs

    pipe = kept["pipe"]
    while message := pipe.recv_bytes():
        if message[:1] == b"h":
            opened: Any = xs.attach(message[1:])
        else:
            opened = SharedMemory(message[1:].decode(), **_ATTACH) if message[:1] == b"n" else pickle.loads(message[1:])
        values = _view(opened, opened.size) if isinstance(opened, SharedMemory) else numpy.asarray(opened)
        seen = bytes((int(values[0]), int(values[-1])))
        del values
        opened.close()
        pipe.send_bytes(seen)


def _hand(kept: Kept, nbytes: int, count: int, device: str, pickled: bool) -> tuple[list[float], ...]:
    import pickle

    import numpy

    import xpushare as xs

    pipe = kept["pipe"]

    def told(message: bytes) -> None:
        pipe.send_bytes(message)
        if pipe.recv_bytes() != b"\7\7":
            raise RuntimeError("the other process has seen something else")

    def ours() -> float:
        start = time.perf_counter_ns()
        with xs.empty(nbytes, "uint8", device=device) as array:
            numpy.asarray(array)[:] = 7
            if pickled:
                told(b"p" + pickle.dumps(array))
            else:
                with xs.share(array) as handle:
                    told(b"h" + bytes(handle))
        del array
        return (time.perf_counter_ns() - start) / 1000

    def theirs() -> float:
        start = time.perf_counter_ns()
        segment = SharedMemory(create=True, size=nbytes)
        _view(segment, nbytes)[:] = 7
        told(b"p" + pickle.dumps(segment) if pickled else b"n" + segment.name.encode())
        segment.close()
        segment.unlink()
        return (time.perf_counter_ns() - start) / 1000

    return alternate(count, ours, theirs)


def _stop(kept: Kept) -> None:
    kept["pipe"].send_bytes(b"")


# --- the memory of all processes together -----------------------------------------------------------------------------


def _pss(worker: Worker) -> int:
    """Return how many bytes of memory the worker uses. A page that several processes map counts only in part for each
    process (PSS), so that the sum over all processes counts each page once.
    """
    text = Path(f"/proc/{worker.pid}/smaps_rollup").read_text()
    return int(text.split("\nPss:")[1].split()[0]) * 1024


def _warm_up(kept: Kept) -> None:  # noqa: ARG001
    """Import the modules and start the threads that both of the compared methods need."""
    import numpy as np

    import xpushare as xs

    np.asarray(xs.empty(_MIB, "u1")).sum()


def _share_large(kept: Kept, nbytes: int) -> bytes:
    import numpy as np

    import xpushare as xs

    array = kept["array"] = xs.empty(nbytes, "u1")
    np.asarray(array)[:] = 7
    kept["handle"] = xs.share(array)
    return bytes(kept["handle"])


def _attach_and_sum(kept: Kept, handle: bytes) -> int:
    """Attach an array, and return the sum of all its bytes. The array stays attached."""
    import numpy as np

    import xpushare as xs

    kept["array"] = xs.attach(handle)
    return int(np.asarray(kept["array"]).sum(dtype="u8"))


def _send_copies(kept: Kept, nbytes: int) -> None:
    import numpy as np

    array = kept["array"] = np.full(nbytes, 7, "u1")
    for pipe in kept["pipes"]:
        pipe.send(array)


def _receive_and_sum(kept: Kept) -> int:
    kept["array"] = kept["pipe"].recv()
    return int(kept["array"].sum(dtype="u8"))


def footprint(settings: Settings, nbytes: int, shared: bool) -> float:
    """Return how much memory an array takes in its owner and all workers together, divided by the array's size."""
    pipes = [multiprocessing.get_context("spawn").Pipe(duplex=False) for _ in range(_WORKERS)]
    with ExitStack() as stack:
        owner = stack.enter_context(Worker(settings, {"pipes": [there for _, there in pipes]}))
        workers = [stack.enter_context(Worker(settings, {"pipe": here})) for here, _ in pipes]
        processes = [owner, *workers]
        for warmed in [worker.start(_warm_up) for worker in processes]:
            warmed.result()
        before = sum(map(_pss, processes))
        totals: list[Any]
        if shared:
            handle = owner.call(_share_large, nbytes)
            totals = [worker.call(_attach_and_sum, handle) for worker in workers]
        else:
            sent = owner.start(_send_copies, nbytes)
            totals = [worker.call(_receive_and_sum) for worker in workers]
            sent.result()
        assert totals == [7 * nbytes] * _WORKERS
        return (sum(map(_pss, processes)) - before) / nbytes


def eight_workers(settings: Settings) -> list[Row]:
    """The memory that an array takes while eight workers have it open, as a multiple of its size."""
    ours, theirs = settings.count(1024, 64) * _MIB, settings.count(256, 16) * _MIB
    return [
        compare(
            "eight_workers",
            f"memory of {ours // _MIB} MiB handed to {_WORKERS} workers, in all processes",
            [footprint(settings, ours, shared=True)],
            f"{theirs // _MIB} MiB by multiprocessing.Pipe, a copy in each",
            [footprint(settings, theirs, shared=False)],
            unit="times the array",
            notes=["Pss of owner and workers from /proc/PID/smaps_rollup, less what they had before"],
        )
    ]
