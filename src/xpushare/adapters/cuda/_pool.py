"""Pools of device memory for other libraries' allocators, built on `device_pool.c`.

The chunks of a pool are VMM allocations with POSIX file descriptors, like this package's own memory.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, final

from xpushare.adapters.base import DeviceInfo, DriverPool, Foreign, Piece
from xpushare.adapters.cuda._driver import Driver, Gpu
from xpushare.adapters.virtual_memory.engine import Engine
from xpushare.adapters.virtual_memory.memory import SegmentedMemory, require_shareable
from xpushare.common.errors import FeatureNotSupportedError, OutOfMemoryError

__all__ = ["Pools"]

LIBRARY: Final = Path(__file__).with_name("device_pool.so")
_CALLS: Final = (
    "cuMemCreate",
    "cuMemRelease",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
    "cuThreadExchangeStreamCaptureMode",
    "cuMemHostRegister",
    "cuMemHostUnregister",
)  # in the order of `calls` there


class _Piece(ctypes.Structure):
    """The C struct `xp_piece` of `device_pool.c`."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("at", "nbytes", "handle", "serial", "used"))


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


@final
class Pools:
    """The pools of this process. The native library is loaded with the first pool."""

    def __init__(self, engine: Engine, driver: Driver) -> None:
        self._engine = engine
        self._driver = driver
        self._lock = threading.Lock()
        self._library: Any = None
        self._pools: dict[int, weakref.ref[_Pool]] = {}  # by number

    def make(self, gpu: Gpu) -> DriverPool:
        doing = f"making a pool of memory on {gpu}"
        require_shareable(gpu, doing)
        with self._lock:
            if self._library is None:
                self._library = ctypes.CDLL(str(LIBRARY))
                self._library.xp_pool_find.argtypes = ctypes.c_uint64, ctypes.c_void_p
        calls = (ctypes.c_void_p * len(_CALLS))(*map(self._driver.function, _CALLS))
        unit = ctypes.c_size_t(gpu.granularity(False))
        number = int(self._library.xp_pool_make(calls, ctypes.c_void_p(gpu.context.number), gpu.ordinal, unit))
        if number == -1:
            raise OutOfMemoryError(f"{doing}: this process has as many pools as it can have (16)")
        if number < 0:
            raise self._driver.error(doing, "cuMemHostRegister", -1 - number)
        made = _Pool(self._library, gpu, number)
        self._pools[number] = weakref.ref(made)
        return made

    def find(self, address: int, info_of: Callable[[Gpu], DeviceInfo]) -> Foreign | None:
        """Return the pool memory at an address. This does not ask the driver."""
        if not self._pools:
            return None
        found = _Piece()
        number = self._library.xp_pool_find(address, ctypes.addressof(found))
        pool = None if number < 0 else self._pools[number]()
        if pool is None:
            return None
        if not found.handle:
            raise FeatureNotSupportedError(f"the memory at {address:#x} was put to sleep: wake its pool first")
        memory = SegmentedMemory(self._engine, pool.gpu, found.at, [found.nbytes])
        pool.exported.add(memory)
        identity = pool.gpu.ordinal, found.at, found.nbytes, "pool", found.serial
        return Foreign(memory, address - found.at, info_of(pool.gpu), "device", identity)


@final
class _Pool(DriverPool):
    def __init__(self, library: Any, gpu: Gpu, number: int) -> None:
        self._library = library
        self._number = number
        self.gpu = gpu
        self.exported: weakref.WeakSet[SegmentedMemory] = weakref.WeakSet()  # each may hold part of the memory
        self.library = str(LIBRARY)
        self.functions = f"xp_pool_malloc_{number}", f"xp_pool_free_{number}"
        self.addresses = number, _address(library.xp_pool_malloc), _address(library.xp_pool_free)

    def pieces(self) -> list[Piece]:
        count = 0
        while True:
            found = (_Piece * count)()
            total = self._library.xp_pool_pieces(self._number, found, count)
            if total <= count:
                return [Piece(each.at, each.nbytes, each.used) for each in found[:total]]
            count = total

    def drain(self) -> None:
        self.gpu.drain()

    def sleep(self) -> None:
        for each in list(self.exported):
            each.release()
        self._call("putting a pool to sleep", "cuMemUnmap", self._library.xp_pool_sleep)

    def wake(self) -> None:
        self._call("waking a pool", "cuMemCreate", self._library.xp_pool_wake)

    def _call(self, doing: str, call: str, function: Callable[[int], int]) -> None:
        if code := function(self._number):
            raise self.gpu.driver.error(f"{doing} on {self.gpu}", call, code)

    def release(self) -> None:
        self._library.xp_pool_end(self._number)
