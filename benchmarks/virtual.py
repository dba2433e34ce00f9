"""Virtual memory: map and unmap in a reserved range, against the bare system calls."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Final

from xpushare.bench.measure import Kept, Row, Settings, Worker, alternate, compare

_NBYTES: Final = 2 << 20
_PROT_NONE, _PROT_RW = 0, 3
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 0x01, 0x02, 0x10, 0x20, 0x4000


def _samples(kept: Kept, device: str, count: int) -> tuple[list[float], list[float]]:  # noqa: ARG001
    import xpushare as xs

    clock = time.perf_counter_ns
    libc = ctypes.CDLL(None, use_errno=True)
    mmap = libc.mmap
    mmap.restype = ctypes.c_void_p
    mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    fd = os.memfd_create("bench")
    os.ftruncate(fd, _NBYTES)
    reserve = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
    base = mmap(None, _NBYTES, _PROT_NONE, reserve, -1, 0)
    place = xs.VirtualRange(_NBYTES, device)
    pages = xs.PhysicalMemory(_NBYTES, device)

    def ours() -> float:
        start = clock()
        place.map(pages)
        place.unmap(0, _NBYTES)
        return (clock() - start) / 1000

    def theirs() -> float:
        start = clock()
        mapped = mmap(base, _NBYTES, _PROT_RW, _MAP_SHARED | _MAP_FIXED, fd, 0)
        unmapped = mmap(base, _NBYTES, _PROT_NONE, reserve | _MAP_FIXED, -1, 0)
        end = clock()
        assert mapped == unmapped == base
        return (end - start) / 1000

    mine, other = alternate(count, ours, theirs)
    os.close(fd)
    return mine, other


def map_unmap(settings: Settings) -> list[Row]:
    """map and unmap of 2 MiB in a VirtualRange, against the two mmap calls through ctypes."""
    with Worker(settings) as worker:
        ours, theirs = worker.call(_samples, settings.device, settings.count(5000, 100))
    return [compare("map_unmap", "map and unmap of 2 MiB", ours, "bare mmap calls by ctypes", theirs)]
