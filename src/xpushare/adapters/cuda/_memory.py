"""The kinds of memory that only the CUDA adapter handles: managed memory, cudaMalloc memory and pools of other
processes, memory of other libraries in this process, and pools of device memory for other libraries' allocators, built
on `device_pool.c`.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from xpushare._native import Importer, Recogniser
from xpushare.adapters.base import DeviceInfo, DriverMemory, DriverPool, Export, Foreign, Form, Import, Piece
from xpushare.adapters.cuda import BACKEND, in_use_here
from xpushare.adapters.cuda import _numbers as n
from xpushare.adapters.cuda._driver import Driver, Gpu, struct_bytes, struct_from
from xpushare.adapters.cuda._numbers import Attribute, Error, Pointer
from xpushare.adapters.stream.memory import described, export_of, unsized
from xpushare.adapters.virtual_memory.engine import Engine
from xpushare.adapters.virtual_memory.memory import Mapped, SegmentedMemory, require_shareable
from xpushare.common.errors import (
    DeviceError,
    FeatureNotSupportedError,
    InvalidHandleError,
    OutOfMemoryError,
    XpuShareError,
)
from xpushare.common.fds import OwnedFd

__all__ = ["ManagedMemory", "Pools", "importer", "locate", "name_all", "open_legacy", "open_own", "recogniser"]

_LEGACY_KNOWN: Final = 8192  # how many allocations of other libraries are cached, so that each is asked about once
_LEGACY: Final = 2  # kinds of memory in a payload
_POOL: Final = 3
_HANDLE_NBYTES: Final = 64
_LEGACY_HEAD: Final = unsized(_LEGACY)[0][: unsized(_LEGACY)[1]]  # of a payload, in front of the size
_CLOSING: Final = "closing another process's memory"


@final
class ManagedMemory(Mapped):
    """Memory that moves between the host and the devices of this process."""

    def __init__(self, engine: Engine, gpu: Gpu, nbytes: int) -> None:
        doing = f"allocating {nbytes} bytes of managed memory"
        if not gpu.attribute(Attribute.MANAGED_MEMORY):
            raise FeatureNotSupportedError(f"{doing}: {gpu} has no managed memory (attribute 83)")
        self.host_accessible = bool(gpu.attribute(Attribute.CONCURRENT_MANAGED_ACCESS))
        with gpu.current():
            address = int(gpu.driver(doing, "cuMemAllocManaged", nbytes, n.MEM_ATTACH_GLOBAL))
        super().__init__(engine, gpu, address, nbytes, gpu.driver, "freeing managed memory", "cuMemFree", address)

    def export(self, read_only: bool) -> Export:
        raise FeatureNotSupportedError(
            "CUDA cannot share managed memory between processes: use malloc_device, or malloc_host for memory that the "
            "host touches too"
        )


# --- imports ------------------------------------------------------------------------------------------------


def open_own(engine: Engine, gpu: Gpu, kind: int, doing: str, what: Import, description: bytes) -> DriverMemory:
    """Map a peer's memory from a pool. `open_legacy` maps memory of cudaMalloc, except read-only and invalid imports.
    For those, this function raises the error.
    """
    if kind not in (_LEGACY, _POOL) or len(description) < _HANDLE_NBYTES:
        raise InvalidHandleError(f"{doing}: this version does not know the kind of the exporter's memory ({kind})")
    if what.read_only:
        raise FeatureNotSupportedError(f"{doing}: memory of this kind cannot be mapped read-only")
    raw = description[:_HANDLE_NBYTES]
    with gpu.current():
        address, close = _open_pool(gpu, doing, what, raw)
    return Mapped(engine, gpu, address, what.nbytes, close)


def _expect_size(doing: str, known: int, nbytes: int) -> None:
    """Check the size that the driver has mapped. A legacy handle and a pool pointer do not contain a size, so the
    driver is asked.
    """
    if known < nbytes:
        raise InvalidHandleError(f"{doing}: the exporter's table says {nbytes} bytes, its memory has {known}")


def importer(engine: Engine, gpu: Gpu) -> Importer:
    """Return the native object that maps cudaMalloc memory on a device."""
    driver = gpu.driver
    if gpu.importer is None:
        gpu.importer = Importer(
            gpu.context.current,
            _LEGACY_HEAD,
            partial(Mapped, engine, gpu),
            partial(driver, _CLOSING, "cuIpcCloseMemHandle"),
        )
    return gpu.importer


def open_legacy(engine: Engine, gpu: Gpu, found: Sequence[Import]) -> list[DriverMemory] | None:
    """Map several imports of cudaMalloc memory in one native call. If one import is invalid or is another kind of
    memory, nothing is mapped and the result is None.
    """
    payloads: list[bytes] = []
    sizes: list[int] = []
    for what in found:
        nbytes = what.exposed_nbytes
        if what.exporter is not None or what.read_only or what.form is not Form.DRIVER or what.nbytes > nbytes:
            return None
        payloads.append(what.payload)
        sizes.append(nbytes)
    driver = gpu.driver
    opened = memoryview(bytearray(16 * len(found))).cast("Q")  # the address of each (0: not opened), and its bytes
    made: list[DriverMemory] = []
    try:
        with gpu.current():
            code = importer(engine, gpu).open_all(payloads, sizes, opened)
        if code is None:
            return None
        at = 0
        for what in found:
            if not opened[at] or opened[at + 1] < what.nbytes:
                doing = f"mapping {what.exposed_nbytes} bytes of another process on {gpu}"
                if not opened[at]:
                    raise _not_opened(driver.error(doing, "cuIpcOpenMemHandle", code))
                _expect_size(doing, opened[at + 1], what.nbytes)
            made.append(
                Mapped(engine, gpu, opened[at], what.nbytes, driver, _CLOSING, "cuIpcCloseMemHandle", opened[at])
            )
            at += 2
    except BaseException:
        with gpu.current():
            for address in filter(None, opened[::2]):
                driver.api.cuIpcCloseMemHandle(address)
        raise
    return made


def _not_opened(error: XpuShareError) -> XpuShareError:
    if not isinstance(error, DeviceError):
        return error
    if error.native == Error.INVALID_CONTEXT:  # this is how the driver answers to a handle of the process itself
        why = (
            f"the driver takes a handle of cudaMalloc memory for this process's own if its exporter has the same pid "
            f"({os.getpid()} here) in another PID namespace: share the PID namespace (--pid=container:…, hostPID, "
            "shareProcessNamespace), give one of the programs another pid"
        )
    else:
        why = "the driver refuses the exporter's handle of cudaMalloc memory: see that both see the same GPU"
    return DeviceError(
        f"{error}; {why}, or use memory that travels as a file descriptor: xs.malloc_device, xs.empty, PyTorch's "
        "expandable_segments:True",
        native=error.native,
    )


def _open_pool(gpu: Gpu, doing: str, what: Import, raw: bytes) -> tuple[int, Callable[[], object]]:
    driver, fd = gpu.driver, what.only_fd(doing).number
    with ExitStack() as undo:
        pool = driver(doing, "cuMemPoolImportFromShareableHandle", fd, driver.posix_fd(), 0)
        undo.callback(driver.api.cuMemPoolDestroy, pool)
        driver(doing, "cuMemPoolSetAccess", pool, gpu.access_list([gpu.ordinal], "rw"), 1)
        data = struct_from(driver.api.CUmemPoolPtrExportData(), raw)
        address = int(driver(doing, "cuMemPoolImportPointer", pool, data))
        undo.callback(driver.api.cuMemFree, address)
        known = driver.pointer(Pointer.RANGE_SIZE, address)
        if known is not None:
            _expect_size(doing, known, what.nbytes)
        undo.pop_all()

    def close() -> None:
        try:
            driver(_CLOSING, "cuMemFree", address)
        finally:
            driver("closing another process's pool", "cuMemPoolDestroy", pool)

    return address, close


# --- other libraries' memory --------------------------------------------------------------------------------


class _ForeignMemory(DriverMemory):
    """Another library's allocation. This object acquires nothing from the driver before the first export."""

    host_accessible = False

    def __init__(self, gpu: Gpu, address: int, nbytes: int) -> None:
        self.gpu = gpu
        self.address = address
        self.nbytes = nbytes

    @property
    def _doing(self) -> str:
        return f"exporting {self.nbytes} bytes of another library on {self.gpu}"

    def release(self) -> None:
        pass


@final
class _ForeignLegacy(_ForeignMemory):
    """Memory of cudaMalloc. A handle of 64 bytes identifies the whole allocation, and is valid as long as the
    allocation lives.
    """

    lasting_export = True

    def __init__(self, gpu: Gpu, address: int, nbytes: int, buffer: int, payload: bytes = b"") -> None:
        self.gpu = gpu
        self.address = address
        self.nbytes = nbytes
        self._payload = payload  # empty until it is named
        known = gpu.driver.legacy
        if len(known) >= _LEGACY_KNOWN:
            known.clear()
        known[buffer] = self

    @property
    def named(self) -> bool:
        return bool(self._payload)

    def export(self, read_only: bool) -> Export:
        if read_only:
            raise FeatureNotSupportedError(
                f"{self._doing}: cudaMalloc memory cannot be mapped read-only by another process: copy it "
                "(share(copy=True)), or use PyTorch's expandable_segments:True"
            )
        if not self._payload and (code := _ForeignLegacy.name([self])):
            raise self.gpu.driver.error(self._doing, "cuIpcGetMemHandle", code)
        return export_of(self.nbytes, self.nbytes, self._payload)

    @staticmethod
    def name(found: Sequence[_ForeignLegacy]) -> int:
        """Ask the driver for the handles of several allocations on one device, and store them in these objects. Returns
        the code of the call that failed, or 0.
        """
        with found[0].gpu.current():
            for each in found:
                handle = each.gpu.driver.native.name(each.address)
                if isinstance(handle, int):
                    return handle
                each._payload = described(_LEGACY, each.nbytes, each.nbytes, own=handle).payload
        return 0


def name_all(found: Iterable[DriverMemory]) -> None:
    """Request the handles of the allocations that have none yet. A failure is ignored here, since the later call of
    `export` fails in the same way and raises the error.
    """
    unnamed: dict[Gpu, list[_ForeignLegacy]] = {}
    for each in found:
        if isinstance(each, _ForeignLegacy) and not each.named:
            unnamed.setdefault(each.gpu, []).append(each)
    for several in unnamed.values():
        _ForeignLegacy.name(several)


@final
class _ForeignPool(_ForeignMemory):
    """Stream-ordered memory of a pool that was made to be shared."""

    def __init__(self, gpu: Gpu, address: int, nbytes: int, pool: int) -> None:
        super().__init__(gpu, address, nbytes)
        self._pool = pool
        self._lock = threading.Lock()
        self._fd: OwnedFd | None = None

    def export(self, read_only: bool) -> Export:
        if read_only:
            raise FeatureNotSupportedError(
                f"{self._doing}: pool memory cannot be mapped read-only by another process: copy it (share(copy=True))"
            )
        driver = self.gpu.driver
        with self._lock, self.gpu.current():
            if self._fd is None:
                pool, kind = driver.api.CUmemoryPool(self._pool), driver.posix_fd()
                self._fd = OwnedFd(int(driver(self._doing, "cuMemPoolExportToShareableHandle", pool, kind, 0)))
            data = struct_bytes(driver(self._doing, "cuMemPoolExportPointer", self.address))
            return described(_POOL, self.nbytes, self.nbytes, (self._fd.number,), own=data)

    def release(self) -> None:
        if self._fd is not None:
            self._fd.close()


_ASKED: Final = (
    Pointer.IS_MANAGED,
    Pointer.MEMORY_TYPE,
    Pointer.DEVICE_ORDINAL,
    Pointer.RANGE_START_ADDR,
    Pointer.RANGE_SIZE,
    Pointer.IS_LEGACY_CUDA_IPC_CAPABLE,
    Pointer.ALLOWED_HANDLE_TYPES,
    Pointer.MEMPOOL_HANDLE,
)
_TORCH: Final = "PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before PyTorch 2.9)"


def number_of(driver: Driver, address: int) -> int | None:
    """Return the driver's number in this process for the allocation at the address. No two allocations have the same
    number. Return None if the driver knows no allocation there. Does not start the driver.
    """
    if not driver.started:
        if not in_use_here():
            return None
        try:
            api = driver.binding()
        except FeatureNotSupportedError:
            return None
        if api.cuPointerGetAttribute(api.CUpointer_attribute(int(Pointer.BUFFER_ID)), address)[0]:
            return None
        driver.start()
    return driver.pointer(Pointer.BUFFER_ID, address)


def locate(
    engine: Engine, driver: Driver, info_of: Callable[[Gpu], DeviceInfo], address: int, nbytes: int | None
) -> Foreign | None:
    """Return another library's allocation at `address`. If several allocations are mapped side by side there, return
    those that contain the `nbytes` bytes from `address`, or all of them if `nbytes` is None.
    """
    buffer = number_of(driver, address)
    if buffer is None:
        return None
    known = driver.legacy.get(buffer)
    if known is not None and known.address <= address < known.address + known.nbytes:
        identity: tuple[Any, ...] = (known.gpu.ordinal, known.address, known.nbytes, buffer)
        return Foreign(known, address - known.address, info_of(known.gpu), "device", identity)
    doing = f"exporting the memory at {address:#x}"
    managed, kind, ordinal, start, size, legacy, allowed, pool = driver.pointers(_ASKED, address)
    if managed:
        raise FeatureNotSupportedError(
            f"{doing}: CUDA cannot share managed memory between processes: allocate it with cudaMalloc or "
            "xs.malloc_device, or copy it (share(copy=True))"
        )
    if kind == n.MEMORY_TYPE_HOST:
        raise FeatureNotSupportedError(
            f"{doing}: page-locked host memory of another library is private to its process: use "
            "xs.malloc_host, or copy it (share(copy=True))"
        )
    if ordinal >= len(driver.gpus()):  # it was freed in the meantime
        return None
    gpu = driver.by_ordinal(ordinal)
    if not start <= address < start + size:
        raise DeviceError(f"{doing}: the driver says that it lies in [{start:#x}, {start + size:#x})")
    identity = (gpu.ordinal, start, size, buffer)
    memory: DriverMemory
    if legacy:
        memory = _ForeignLegacy(gpu, start, size, buffer)
    elif not allowed & n.POSIX_FD and pool:
        raise FeatureNotSupportedError(
            f"{doing}: it comes from a stream-ordered pool (cudaMallocAsync) that was not made to be shared. "
            f"PyTorch: set {_TORCH} instead of backend:cudaMallocAsync; CuPy: use its default allocator; "
            "cudaMemPool: make it with cudaMemHandleTypePosixFileDescriptor; or copy it (share(copy=True))"
        )
    elif not allowed & n.POSIX_FD:
        raise FeatureNotSupportedError(
            f"{doing}: its allocator made it without a handle type that another process can open (allowed: {allowed}). "
            f"PyTorch: set {_TORCH}; cuMemCreate: requestedHandleTypes = POSIX_FILE_DESCRIPTOR; or copy it "
            "(share(copy=True))"
        )
    elif pool:
        memory = _ForeignPool(gpu, start, size, pool)
    else:
        found = _run(gpu, address, None if nbytes is None else address + nbytes, (start, start + size))
        start = found[0].start
        identity = (gpu.ordinal, *found)
        memory = SegmentedMemory(engine, gpu, start, [extent.nbytes for extent in found])
    return Foreign(memory, address - start, info_of(gpu), "device", identity)


def recogniser(driver: Driver) -> Recogniser:
    """Return a native object that finds cudaMalloc memory as `locate` does."""
    return Recogniser(driver.native, _ForeignLegacy, *unsized(_LEGACY), BACKEND)


class _Extent(NamedTuple):
    """One mapping of memory that can be shared."""

    start: int
    nbytes: int
    buffer: int


def _run(gpu: Gpu, address: int, end: int | None, reserved: tuple[int, int]) -> list[_Extent]:
    """Return the adjacent mappings from `address` to `end`. If `end` is None, return all mappings that adjoin each
    other around `address`.

    The driver reports the whole reservation as the range of an address. But every mapping has a buffer id of its own,
    so the ends of a mapping are found by comparing the ids of neighbouring granules.
    """
    unit = gpu.granularity(False)

    def buffer(at: int) -> int | None:
        return gpu.driver.pointer(Pointer.BUFFER_ID, at) if reserved[0] <= at < reserved[1] else None

    def edge(at: int, step: int) -> int:
        """Return the last granule, in the direction of `step`, of the mapping at `at`."""
        wanted, reach = buffer(at), 1
        while wanted is not None and buffer(at + step * reach) == wanted:  # None: it was freed just now
            reach *= 2
        good, bad = reach // 2, reach
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if buffer(at + step * middle) == wanted else (good, middle)
        return at + step * good

    def extent(at: int) -> _Extent:
        start = edge(at, -unit)
        return _Extent(start, edge(at, unit) + unit - start, buffer(at) or 0)

    def behind(last: _Extent) -> _Extent | None:
        """Return the mapping that follows `last`. The next mapping usually has the same size as `last`, so that size is
        tried first.
        """
        start, nbytes = last.start + last.nbytes, last.nbytes
        if (found := buffer(start)) is None:
            return None
        if buffer(start + nbytes - unit) != found or buffer(start + nbytes) == found:
            nbytes = edge(start, unit) + unit - start
        return _Extent(start, nbytes, found)

    found = [extent(address // unit * unit)]
    while end is None and buffer(before := found[0].start - unit) is not None:
        found.insert(0, extent(before))
    while (end is None or found[-1].start + found[-1].nbytes < end) and (after := behind(found[-1])) is not None:
        found.append(after)
    return found


# --- pools ------------------------------------------------------------------------------------------------------------

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
