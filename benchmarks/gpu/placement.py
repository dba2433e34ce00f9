"""Where the value that one GPU writes and another waits for should lie.

One thread queues everything, the wait first: what is left is the devices' own time, and one call. A write without its
barrier is not measured: `cuStreamWriteValue64_v2` refuses CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from benchmarks.gpu.driver import MIB, Access, Page, Raw, Samples, page, row
from benchmarks.gpu.events import FULL, Busy
from xpushare.bench.measure import Row

ROUNDS, WARM_UP = 400, 50
HOST: Final = "in host memory"


class Property(ctypes.Structure):
    """CUmemAllocationProp, of pinned memory of a device."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", ctypes.c_int),
        ("device", ctypes.c_int),
        ("rest", ctypes.c_uint64 * 2),
    )


def word_of(raw: Raw, device: int, peers: int) -> int:
    """A word in a device's memory, mapped so that all GPUs reach it; it stays until the process ends."""
    cuda, handle, address = raw.cuda, ctypes.c_uint64(), ctypes.c_uint64()
    wanted, size = Property(1, 0, 1, device), 2 * MIB
    cuda.cuMemCreate.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64]
    cuda.cuMemsetD8_v2.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t]
    raw.check(cuda.cuMemCreate(ctypes.byref(handle), size, ctypes.byref(wanted), 0))
    raw.check(cuda.cuMemAddressReserve(ctypes.byref(address), size, 0, 0, 0))
    raw.check(cuda.cuMemMap(address, size, 0, handle, 0))
    allowed = (Access * peers)(*(Access(1, number, 3) for number in range(peers)))
    raw.check(cuda.cuMemSetAccess(address, size, ctypes.byref(allowed), peers))
    raw.check(cuda.cuMemsetD8_v2(address, 0, size))
    raw.synchronize()
    return address.value


def measure(busy: bool) -> dict[str, Samples]:
    """Seconds from the write on the first GPU until the host sees what the second wrote after its wait."""
    ends = [Raw(0), Raw(1)]
    streams = [_stream(raw) for raw in ends]
    load = [Busy(device, *FULL) for device in range(2)] if busy else []
    with page() as path:
        shared = Page(path)
        _current(ends[0])
        host = ends[0].register(shared.address, 4096)
        words = {HOST: host} | {
            f"in the {name} GPU's memory": word_of(ends[device], device, 2)
            for device, name in ((1, "waiting"), (0, "signalling"))
        }
        found: dict[str, Samples] = {}
        for name, word in words.items():
            found[name] = list(_trips(ends, streams, word, host + 8, shared.words, [each.feed for each in load]))
            _reset(ends[0], streams[0], word)
        for raw in ends:
            _current(raw)
            raw.synchronize()
        _current(ends[0])
        ends[0].unregister(shared.address)
    return found


def _current(raw: Raw) -> None:
    raw.check(raw.cuda.cuCtxSetCurrent(raw.context))


def _stream(raw: Raw) -> Any:
    _current(raw)
    return raw.stream().value


def _reset(raw: Raw, stream: Any, word: int) -> None:
    raw.check(raw.cuda.cuStreamWriteValue64_v2(stream, word, 0, 0))
    _current(raw)
    raw.synchronize()


def _trips(
    ends: list[Raw], streams: list[Any], word: int, back: int, words: Any, feed: list[Callable[[], None]]
) -> Iterator[float]:
    first, second = ends
    words[1] = 0
    for round_ in range(1, ROUNDS + 1):
        for each in feed:
            each()
        second.check(second.cuda.cuStreamWaitValue64_v2(streams[1], word, round_, 0))
        second.check(second.cuda.cuStreamWriteValue64_v2(streams[1], back, round_, 0))
        begin = time.perf_counter()
        first.check(first.cuda.cuStreamWriteValue64_v2(streams[0], word, round_, 0))
        while words[1] < round_:
            pass
        if round_ > WARM_UP:
            yield time.perf_counter() - begin


def placement() -> list[Row]:
    """Each place against a page of host memory, idle and busy."""
    rows = []
    for busy, name in ((False, "idle"), (True, "both busy")):
        found = measure(busy)
        for place, samples in found.items():
            if place != HOST:
                rows.append(row("placement", f"two GPUs, {name}: the value {place}", samples, HOST, found[HOST]))
    return rows
