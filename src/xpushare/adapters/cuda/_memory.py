"""Memory: what we allocate, what we map from other processes, and what other libraries allocated."""

from __future__ import annotations

import os
import stat
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import groupby
from typing import Any, Final, NamedTuple, final

from xpushare._errors import (
    DeviceError,
    FeatureNotSupportedError,
    InvalidArgumentError,
    InvalidHandleError,
    OutOfMemoryError,
)
from xpushare._fds import OwnedFd
from xpushare.adapters._host import Calls, check_imported, memfd_of, pages
from xpushare.adapters.base import Access, DeviceInfo, DriverMemory, Export, Foreign, Form, Import, OnDemand
from xpushare.adapters.cuda import _numbers as n
from xpushare.adapters.cuda._driver import Driver, Gpu, in_use_here, struct_bytes, struct_from
from xpushare.adapters.cuda._later import Later, register_flags
from xpushare.adapters.cuda._numbers import Attribute, Pointer

__all__ = [
    "DeviceMemory",
    "HostUsm",
    "ManagedMemory",
    "access_list",
    "allocation_properties",
    "granularity",
    "import_memory",
    "locate",
]

# Payload of an export: kind, bytes mapped, then the kind's own.
_HEAD: Final = struct.Struct("<B7xQ")
_RUN: Final = struct.Struct("<QI")  # segments of one size, one after the other: bytes each, how many
_RUNS_MAX: Final = (128 - _HEAD.size) // _RUN.size
_TEARDOWN: Final = 5.0  # seconds that an allocation waits for teardowns when memory is short
_LEGACY_KNOWN: Final = 1024  # allocations of other libraries about which nothing needs asking twice
VMM, LEGACY, POOL, SEGMENTS, HOST = 1, 2, 3, 4, 5


# --- virtual memory management ------------------------------------------------------------------------------


def allocation_properties(gpu: Gpu, shareable: bool) -> Any:
    """CUmemAllocationProp of memory on `gpu`."""
    api = gpu.driver.api
    properties = api.CUmemAllocationProp()
    properties.type = api.CUmemAllocationType(n.ALLOCATION_PINNED)
    properties.location.type = api.CUmemLocationType(n.LOCATION_DEVICE)
    properties.location.id = gpu.ordinal
    if shareable:
        properties.requestedHandleTypes = gpu.driver.posix_fd()
    return properties


def granularity(gpu: Gpu, recommended: bool) -> int:
    """Bytes of which allocations and mappings are multiples."""

    def ask() -> int:
        option = gpu.driver.api.CUmemAllocationGranularity_flags(
            n.GRANULARITY_RECOMMENDED if recommended else n.GRANULARITY_MINIMUM
        )
        properties = allocation_properties(gpu, True)
        return int(gpu.driver("asking for the granularity", "cuMemGetAllocationGranularity", properties, option))

    return int(gpu.once(("granularity", recommended), ask))


def access_list(driver: Driver, gpus: Sequence[Gpu], access: Access) -> list[Any]:
    """CUmemAccessDesc of each."""
    found = []
    for gpu in gpus:
        one = driver.api.CUmemAccessDesc()
        one.location.type = driver.api.CUmemLocationType(n.LOCATION_DEVICE)
        one.location.id = gpu.ordinal
        one.flags = driver.api.CUmemAccess_flags(n.ACCESS[access])
        found.append(one)
    return found


def set_access(gpu: Gpu, doing: str, address: int, nbytes: int, location: int, access: Access) -> None:
    """Let `gpu` use the mapping, and every device in use here that can reach memory on `location`.

    A device that nobody here has started yet gets access when a queue on it first uses the mapping (`Reach`): each
    further device costs a millisecond (measured).
    """
    driver = gpu.driver
    if not gpu.reachable_from(location):
        raise FeatureNotSupportedError(
            f"{doing}: GPU {gpu.ordinal} cannot reach memory of GPU {location} (no peer access): open it on that one"
        )
    found = driver.gpus()
    reaching = [gpu]
    if len(found) > 1:
        reaching += [each for each in found if each is not gpu and each.active() and each.reachable_from(location)]
    descriptors = access_list(driver, reaching, access)
    driver(doing, "cuMemSetAccess", address, nbytes, descriptors, len(descriptors))
    if len(found) > 1:
        driver.reach.note(address, nbytes, location, access, frozenset(each.ordinal for each in reaching))


class Piece(NamedTuple):
    """One allocation of a mapping."""

    handle: Any
    nbytes: int


def map_pieces(gpu: Gpu, doing: str, pieces: Sequence[Piece], location: int, access: Access) -> int:
    """Map allocations side by side; the address. The context is current. The pieces stay the caller's."""
    driver = gpu.driver
    total = sum(piece.nbytes for piece in pieces)
    with ExitStack() as undo:
        address = int(driver(doing, "cuMemAddressReserve", total, 0, 0, 0))
        undo.callback(driver.api.cuMemAddressFree, address, total)
        at = address
        for piece in pieces:
            driver(doing, "cuMemMap", at, piece.nbytes, 0, piece.handle, 0)
            undo.callback(driver.api.cuMemUnmap, at, piece.nbytes)
            at += piece.nbytes
        set_access(gpu, doing, address, total, location, access)
        undo.pop_all()
    return address


def unmap_pieces(gpu: Gpu, address: int, sizes: Sequence[int]) -> None:
    """Undo `map_pieces`, once no work uses it. The context is current."""
    driver = gpu.driver
    doing = f"unmapping {sum(sizes)} bytes"
    driver.reach.forget(address, sum(sizes))
    at = address
    for nbytes in sizes:
        driver(doing, "cuMemUnmap", at, nbytes)
        at += nbytes
    driver(doing, "cuMemAddressFree", address, sum(sizes))


def create_pages(gpu: Gpu, later: Later, doing: str, nbytes: int, shareable: bool) -> Any:
    """Physical memory; where it does not fit, once more after the teardowns under way. The context is current."""
    try:
        return gpu.driver(doing, "cuMemCreate", nbytes, allocation_properties(gpu, shareable), 0)
    except OutOfMemoryError:
        if not later.settle(_TEARDOWN):
            raise
    return gpu.driver(doing, "cuMemCreate", nbytes, allocation_properties(gpu, shareable), 0)


def can_map_read_only(gpu: Gpu) -> bool:
    """Whether the driver maps memory read-only for a device; tried once."""

    def attempt() -> bool:
        doing = "trying a read-only mapping"
        driver = gpu.driver
        nbytes = granularity(gpu, False)
        with gpu.context.current():
            handle = driver(doing, "cuMemCreate", nbytes, allocation_properties(gpu, True), 0)
            try:
                address = map_pieces(gpu, doing, [Piece(handle, nbytes)], gpu.ordinal, "r")
            except (DeviceError, FeatureNotSupportedError):
                return False
            finally:
                driver.api.cuMemRelease(handle)
            unmap_pieces(gpu, address, [nbytes])
        return True

    return bool(gpu.once("read only", attempt))


def require_read_only(gpu: Gpu, doing: str) -> None:
    if not can_map_read_only(gpu):
        raise FeatureNotSupportedError(f"{doing}: this driver does not map memory read-only on GPU {gpu.ordinal}")


def export_fd(gpu: Gpu, doing: str, handle: Any) -> OwnedFd:
    """The fd of an allocation; close-on-exec as the driver makes it."""
    return OwnedFd(int(gpu.driver(doing, "cuMemExportToShareableHandle", handle, gpu.driver.posix_fd(), 0)))


def import_fd(gpu: Gpu, doing: str, fd: OwnedFd) -> Any:
    """The allocation behind a peer's fd. The fd stays the caller's."""
    if not stat.S_ISCHR(os.fstat(fd.number).st_mode):
        raise InvalidHandleError(f"{doing}: the exporter's file descriptor is not one of the NVIDIA driver")
    return gpu.driver(doing, "cuMemImportFromShareableHandle", fd.number, gpu.driver.posix_fd())


def location_of(gpu: Gpu, doing: str, handle: Any) -> int:
    """The ordinal of the device on which an allocation lies."""
    properties = gpu.driver(doing, "cuMemGetAllocationPropertiesFromHandle", handle)
    ordinal = int(properties.location.id)
    if int(properties.location.type) != n.LOCATION_DEVICE or not 0 <= ordinal < len(gpu.driver.gpus()):
        raise FeatureNotSupportedError(f"{doing}: the memory is on a device that this process may not see")
    return ordinal


@final
class DeviceMemory(DriverMemory):
    """VMM allocations mapped side by side: one of ours, or those of another process."""

    host_accessible = False

    def __init__(self, gpu: Gpu, later: Later, address: int, nbytes: int, sizes: Sequence[int]) -> None:
        self._gpu = gpu
        self._later = later
        self._sizes = tuple(sizes)
        self._fd: OwnedFd | None = None
        self._lock = threading.Lock()
        self.address = address
        self.nbytes = nbytes

    @classmethod
    def allocate(cls, gpu: Gpu, later: Later, nbytes: int) -> DeviceMemory:
        doing = f"allocating {nbytes} bytes on GPU {gpu.ordinal}"
        if not gpu.attribute(Attribute.HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED):
            raise FeatureNotSupportedError(f"{doing}: the device has no memory with POSIX fds (attribute 103)")
        unit = granularity(gpu, False)
        mapped = (nbytes + unit - 1) // unit * unit
        with gpu.context.current():
            handle = create_pages(gpu, later, doing, mapped, True)
            try:
                address = map_pieces(gpu, doing, [Piece(handle, mapped)], gpu.ordinal, "rw")
            finally:
                gpu.driver.api.cuMemRelease(handle)  # the mapping keeps the memory
        return cls(gpu, later, address, nbytes, [mapped])

    @classmethod
    def imported(cls, gpu: Gpu, later: Later, what: Import, sizes: Sequence[int]) -> DeviceMemory:
        doing = f"mapping {what.exposed_nbytes} bytes of another process on GPU {gpu.ordinal}"
        if sum(sizes) != what.exposed_nbytes or what.nbytes > what.exposed_nbytes or len(what.fds) != len(sizes):
            raise InvalidHandleError(f"{doing}: the exporter's table contradicts itself")
        if what.read_only:
            require_read_only(gpu, doing)
        driver = gpu.driver
        pieces: list[Piece] = []
        with gpu.context.current():
            try:
                for fd, nbytes in zip(what.fds, sizes, strict=True):
                    pieces.append(Piece(import_fd(gpu, doing, fd), nbytes))
                    fd.close()  # the handle holds the memory; many fds would be too many
                location = location_of(gpu, doing, pieces[0].handle)
                address = map_pieces(gpu, doing, pieces, location, "r" if what.read_only else "rw")
            finally:
                for piece in pieces:
                    driver.api.cuMemRelease(piece.handle)
        return cls(gpu, later, address, what.nbytes, sizes)

    def export(self, read_only: bool) -> Export:
        doing = f"exporting {self.nbytes} bytes of GPU {self._gpu.ordinal}"
        if read_only:
            require_read_only(self._gpu, doing)
        with self._lock:
            if self._fd is None:
                with self._gpu.context.current():
                    handle = self._gpu.driver(doing, "cuMemRetainAllocationHandle", self.address)
                    try:
                        self._fd = export_fd(self._gpu, doing, handle)
                    finally:
                        self._gpu.driver.api.cuMemRelease(handle)
            mapped = sum(self._sizes)
            return Export(self.nbytes, mapped, (self._fd.number,), 0, _HEAD.pack(VMM, mapped), form=Form.VMM_FD)

    def release(self) -> None:
        gpu, address, sizes = self._gpu, self.address, self._sizes

        def take_down() -> None:
            with gpu.context.current():
                unmap_pieces(gpu, address, sizes)

        self._later.do(take_down)
        if self._fd is not None:
            self._fd.close()


# --- host memory --------------------------------------------------------------------------------------------


@final
class HostUsm(DriverMemory):
    """Pages of a memfd, registered with the driver of every process that maps them."""

    host_accessible = True
    calls = Calls()

    def __init__(self, gpu: Gpu, later: Later, fd: OwnedFd | None, inode: int, mapping: Any, nbytes: int) -> None:
        self._gpu = gpu
        self._later = later
        self._fd = fd
        self._inode = inode
        self._mapping = mapping
        self.address: int = mapping.address
        self.nbytes = nbytes

    @staticmethod
    def _map(gpu: Gpu, doing: str, fd: int, nbytes: int, read_only: bool) -> Any:
        needed = (Attribute.HOST_REGISTER_SUPPORTED, Attribute.READ_ONLY_HOST_REGISTER_SUPPORTED)
        for attribute in needed[: 1 + read_only]:
            if not gpu.attribute(attribute):
                raise FeatureNotSupportedError(f"{doing}: GPU {gpu.ordinal} lacks {attribute.name}")
        mapping = HostUsm.calls.checked(doing, "Mapping", fd, nbytes, 0, not read_only)
        with gpu.context.current():
            gpu.driver(doing, "cuMemHostRegister", mapping.address, nbytes, register_flags(read_only))
        return mapping

    @classmethod
    def allocate(cls, gpu: Gpu, later: Later, nbytes: int) -> HostUsm:
        doing = f"allocating {nbytes} bytes of host memory"
        mapped = pages(nbytes)
        fd = memfd_of(cls.calls, doing, "xpushare-memory", mapped)
        try:
            inode = cls.calls.checked(doing, "fstat", fd.number).st_ino
            return cls(gpu, later, fd, inode, cls._map(gpu, doing, fd.number, mapped, False), nbytes)
        except BaseException:
            fd.close()
            raise

    @classmethod
    def imported(cls, gpu: Gpu, later: Later, what: Import) -> HostUsm:
        doing = f"mapping {what.exposed_nbytes} bytes of host memory of another process"
        fd = check_imported(cls.calls, doing, what)
        mapping = cls._map(gpu, doing, fd, what.exposed_nbytes, what.read_only)
        return cls(gpu, later, None, 0, mapping, what.nbytes)

    def export(self, read_only: bool) -> Export:
        assert self._fd is not None
        assert self._mapping is not None
        mapped = self._mapping.nbytes
        return Export(self.nbytes, mapped, (self._fd.number,), self._inode, _HEAD.pack(HOST, mapped), form=Form.MEMFD)

    def release(self) -> None:
        gpu, mapping = self._gpu, self._mapping
        self._mapping = None

        def unregister(mapping: Any = mapping) -> None:
            with gpu.context.current():
                gpu.driver("unregistering host memory", "cuMemHostUnregister", mapping.address)

        self._later.do(unregister)
        if self._fd is not None:
            self._fd.close()


@final
class ManagedMemory(DriverMemory):
    """Memory that moves between the host and the devices of this process."""

    def __init__(self, gpu: Gpu, later: Later, nbytes: int) -> None:
        doing = f"allocating {nbytes} bytes of managed memory"
        if not gpu.attribute(Attribute.MANAGED_MEMORY):
            raise FeatureNotSupportedError(f"{doing}: GPU {gpu.ordinal} has no managed memory (attribute 83)")
        self._gpu = gpu
        self._later = later
        with gpu.context.current():
            self.address = int(gpu.driver(doing, "cuMemAllocManaged", nbytes, n.MEM_ATTACH_GLOBAL))
        self.nbytes = nbytes
        self.host_accessible = bool(gpu.attribute(Attribute.CONCURRENT_MANAGED_ACCESS))

    def export(self, read_only: bool) -> Export:
        raise FeatureNotSupportedError(
            "CUDA cannot share managed memory between processes: use malloc_device, or malloc_host for memory that the "
            "host touches too"
        )

    def release(self) -> None:
        gpu, address = self._gpu, self.address

        def free() -> None:
            with gpu.context.current():
                gpu.driver("freeing managed memory", "cuMemFree", address)

        self._later.do(free)


# --- imports ------------------------------------------------------------------------------------------------


@final
class OtherImport(DriverMemory):
    """A mapping of a peer's legacy or pool memory."""

    host_accessible = False

    def __init__(self, later: Later, address: int, nbytes: int, close: Callable[[], None]) -> None:
        self._later = later
        self._close = close
        self.address = address
        self.nbytes = nbytes

    def export(self, read_only: bool) -> Export:
        raise InvalidArgumentError("imported memory cannot be exported again")

    def release(self) -> None:
        self._later.do(self._close)


def import_memory(gpu: Gpu, later: Later, what: Import) -> DriverMemory:
    """Map another process's memory; the payload says of which kind it is. Of another backend it is host memory."""
    if what.exporter is not None:
        return HostUsm.imported(gpu, later, what)
    doing = f"mapping {what.exposed_nbytes} bytes of another process on GPU {gpu.ordinal}"
    if len(what.payload) < _HEAD.size:
        raise InvalidHandleError(f"{doing}: the exporter's table says nothing about the kind of memory")
    kind, mapped = _HEAD.unpack_from(what.payload)
    rest = what.payload[_HEAD.size :]
    if mapped != what.exposed_nbytes:
        raise InvalidHandleError(f"{doing}: the exporter's table contradicts itself")
    if kind == HOST:
        return HostUsm.imported(gpu, later, what)
    if kind == VMM:
        return DeviceMemory.imported(gpu, later, what, [mapped])
    if kind == SEGMENTS:
        return DeviceMemory.imported(gpu, later, what, _sizes(doing, rest, mapped, len(what.fds)))
    if kind not in (LEGACY, POOL) or len(rest) < 64:
        raise InvalidHandleError(f"{doing}: this version does not know the kind of the exporter's memory ({kind})")
    if what.read_only:
        raise FeatureNotSupportedError(f"{doing}: memory of this kind cannot be mapped read-only")
    return (_import_legacy if kind == LEGACY else _import_pool)(gpu, later, doing, what, rest[:64])


def _sizes(doing: str, raw: bytes, mapped: int, count: int) -> list[int]:
    """The sizes of `count` segments, from a peer's runs."""
    sizes: list[int] = []
    for at in range(0, len(raw) - _RUN.size + 1, _RUN.size):
        nbytes, times = _RUN.unpack_from(raw, at)
        if times > count - len(sizes) or nbytes * times > mapped:
            raise InvalidHandleError(f"{doing}: the exporter's segments do not fit its memory")
        sizes += [nbytes] * times
    return sizes


def _check_range(gpu: Gpu, doing: str, address: int, nbytes: int) -> None:
    """A legacy handle and a pool pointer carry no size: ask what was mapped."""
    known = gpu.driver.pointer(Pointer.RANGE_SIZE, address)
    if known is not None and known < nbytes:
        raise InvalidHandleError(f"{doing}: the exporter's table says {nbytes} bytes, its memory has {known}")


def _import_legacy(gpu: Gpu, later: Later, doing: str, what: Import, raw: bytes) -> DriverMemory:
    driver = gpu.driver
    with gpu.context.current():
        try:
            handle = struct_from(driver.api.CUipcMemHandle(), raw)
            address = int(driver(doing, "cuIpcOpenMemHandle", handle, n.IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
        except DeviceError as error:
            raise DeviceError(
                f"{error}; handles of cudaMalloc memory do not cross PID namespaces or containers: memory of "
                "xs.malloc_device and of PyTorch's expandable_segments:True does",
                native=error.native,
            ) from error
        try:
            _check_range(gpu, doing, address, what.nbytes)
        except BaseException:
            driver.api.cuIpcCloseMemHandle(address)
            raise

    def close() -> None:
        with gpu.context.current():
            driver("closing another process's memory", "cuIpcCloseMemHandle", address)

    return OtherImport(later, address, what.nbytes, close)


def _import_pool(gpu: Gpu, later: Later, doing: str, what: Import, raw: bytes) -> DriverMemory:
    driver = gpu.driver
    if len(what.fds) != 1:
        raise InvalidHandleError(f"{doing}: the exporter sent {len(what.fds)} file descriptors, 1 expected")
    with gpu.context.current(), ExitStack() as undo:
        pool = driver(doing, "cuMemPoolImportFromShareableHandle", what.fds[0].number, driver.posix_fd(), 0)
        undo.callback(driver.api.cuMemPoolDestroy, pool)
        driver(doing, "cuMemPoolSetAccess", pool, access_list(driver, [gpu], "rw"), 1)
        data = struct_from(driver.api.CUmemPoolPtrExportData(), raw)
        address = int(driver(doing, "cuMemPoolImportPointer", pool, data))
        undo.callback(driver.api.cuMemFree, address)
        _check_range(gpu, doing, address, what.nbytes)
        undo.pop_all()

    def close() -> None:
        with gpu.context.current():
            try:
                driver("closing another process's memory", "cuMemFree", address)
            finally:
                driver("closing another process's pool", "cuMemPoolDestroy", pool)

    return OtherImport(later, address, what.nbytes, close)


# --- other libraries' memory --------------------------------------------------------------------------------


class ForeignMemory(DriverMemory):
    """Another library's allocation. Acquires nothing before it is exported."""

    host_accessible = False

    def __init__(self, gpu: Gpu, address: int, nbytes: int) -> None:
        self._gpu = gpu
        self._lock = threading.Lock()
        self._fd: OwnedFd | None = None
        self._payload = b""
        self.address = address
        self.nbytes = nbytes

    @property
    def _doing(self) -> str:
        return f"exporting {self.nbytes} bytes of another library on GPU {self._gpu.ordinal}"

    def release(self) -> None:
        if self._fd is not None:
            self._fd.close()


@final
class ForeignLegacy(ForeignMemory):
    """cudaMalloc memory: a handle of 64 bytes names the whole allocation."""

    def export(self, read_only: bool) -> Export:
        if read_only:
            raise FeatureNotSupportedError(
                f"{self._doing}: cudaMalloc memory cannot be mapped read-only by another process: copy it "
                "(share(copy=True)), or use PyTorch's expandable_segments:True"
            )
        if not self._payload:  # it names the allocation for as long as that lives
            with self._gpu.context.current():
                handle = self._gpu.driver(self._doing, "cuIpcGetMemHandle", self.address)
            self._payload = _HEAD.pack(LEGACY, self.nbytes) + struct_bytes(handle)
        return Export(self.nbytes, self.nbytes, payload=self._payload)


@final
class ForeignSegments(ForeignMemory):
    """VMM memory: one allocation, or several mapped side by side.

    From the first export on it holds them, whatever the library does with its mappings.
    """

    def __init__(self, gpu: Gpu, address: int, sizes: Sequence[int]) -> None:
        super().__init__(gpu, address, sum(sizes))
        self._sizes = tuple(sizes)
        self._handles: list[Any] = []

    def _hold(self) -> None:
        if self._handles:
            return
        at, found = self.address, []
        try:
            for nbytes in self._sizes:
                found.append(self._gpu.driver(self._doing, "cuMemRetainAllocationHandle", at))
                at += nbytes
        except BaseException:
            self._let_go(found)
            raise
        self._handles = found

    def _let_go(self, handles: Sequence[Any]) -> None:
        for handle in handles:
            self._gpu.driver.api.cuMemRelease(handle)

    def export(self, read_only: bool) -> Export:
        if read_only:
            require_read_only(self._gpu, self._doing)
        with self._lock:
            self._hold()
            if len(self._sizes) == 1:
                if self._fd is None:
                    self._fd = export_fd(self._gpu, self._doing, self._handles[0])
                payload = _HEAD.pack(VMM, self.nbytes)
                return Export(self.nbytes, self.nbytes, (self._fd.number,), 0, payload, form=Form.VMM_FD)
        runs = [(nbytes, len(list(same))) for nbytes, same in groupby(self._sizes)]
        if len(runs) > _RUNS_MAX:
            raise FeatureNotSupportedError(
                f"{self._doing}: it lies over allocations of too many sizes ({len(runs)} runs of one size, at most "
                f"{_RUNS_MAX}): copy it (share(copy=True))"
            )
        payload = _HEAD.pack(SEGMENTS, self.nbytes) + b"".join(_RUN.pack(*run) for run in runs)
        function = self._gpu.driver.function("cuMemExportToShareableHandle", 10020)
        demand = OnDemand(function, [int(handle) for handle in self._handles], n.POSIX_FD, 0)
        return Export(self.nbytes, self.nbytes, payload=payload, on_demand=demand, form=Form.VMM_FD)

    def release(self) -> None:
        handles, self._handles = self._handles, []
        self._let_go(handles)
        super().release()


@final
class ForeignPool(ForeignMemory):
    """Stream-ordered memory of a pool that was made to be shared."""

    def __init__(self, gpu: Gpu, address: int, nbytes: int, pool: int) -> None:
        super().__init__(gpu, address, nbytes)
        self._pool = pool

    def export(self, read_only: bool) -> Export:
        if read_only:
            raise FeatureNotSupportedError(
                f"{self._doing}: pool memory cannot be mapped read-only by another process: copy it (share(copy=True))"
            )
        driver = self._gpu.driver
        with self._lock, self._gpu.context.current():
            if self._fd is None:
                pool, kind = driver.api.CUmemoryPool(self._pool), driver.posix_fd()
                self._fd = OwnedFd(int(driver(self._doing, "cuMemPoolExportToShareableHandle", pool, kind, 0)))
            data = struct_bytes(driver(self._doing, "cuMemPoolExportPointer", self.address))
            return Export(self.nbytes, self.nbytes, (self._fd.number,), 0, _HEAD.pack(POOL, self.nbytes) + data)


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


def _known(driver: Driver, address: int) -> int | None:
    """What the driver of this process numbers the allocation at the address with: no two have the same one. None where
    it knows none; starts nothing that nobody else has started.
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


def locate(driver: Driver, info_of: Callable[[Gpu], DeviceInfo], address: int, nbytes: int | None) -> Foreign | None:
    """The allocation of another library at `address`; of a run of allocations, as much as `nbytes` need (None: all)."""
    buffer = _known(driver, address)
    if buffer is None:
        return None
    known = driver.legacy.get(buffer)
    if known is not None and known[1] <= address < known[1] + known[2]:
        gpu, start, size = known
        return Foreign(
            ForeignLegacy(gpu, start, size), address - start, info_of(gpu), "device", (gpu.ordinal, start, size, buffer)
        )
    doing = f"exporting the memory at {address:#x}"
    managed, kind, ordinal, start, size, legacy, allowed, pool = driver.pointers(doing, _ASKED, address)
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
    gpu = driver.by_ordinal(ordinal)
    if not start <= address < start + size:
        raise DeviceError(f"{doing}: the driver says that it lies in [{start:#x}, {start + size:#x})")
    identity: tuple[Any, ...] = (gpu.ordinal, start, size, buffer)
    memory: ForeignMemory
    if legacy:
        memory = ForeignLegacy(gpu, start, size)
        if len(driver.legacy) >= _LEGACY_KNOWN:
            driver.legacy.clear()
        driver.legacy[buffer] = (gpu, start, size)
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
        memory = ForeignPool(gpu, start, size, pool)
    else:
        found = _run(gpu, address, None if nbytes is None else address + nbytes, (start, start + size))
        start = found[0].start
        identity = (gpu.ordinal, *found)
        memory = ForeignSegments(gpu, start, [extent.nbytes for extent in found])
    return Foreign(memory, address - start, info_of(gpu), "device", identity)


class Extent(NamedTuple):
    """One mapping of shareable memory."""

    start: int
    nbytes: int
    buffer: int


def _run(gpu: Gpu, address: int, end: int | None, reserved: tuple[int, int]) -> list[Extent]:
    """The mappings side by side from `address` to `end`; without `end`, the longest such run around `address`.

    The driver tells the whole reservation as the range of an address, but every mapping has a buffer id of its own
    (measured), so the ends of a mapping are found by asking for the ids of other granules.
    """
    unit = granularity(gpu, False)

    def buffer(at: int) -> int | None:
        return gpu.driver.pointer(Pointer.BUFFER_ID, at) if reserved[0] <= at < reserved[1] else None

    def edge(at: int, step: int) -> int:
        """The last granule of the mapping at `at` in the direction of `step`."""
        wanted, reach = buffer(at), 1
        while buffer(at + step * reach) == wanted:
            reach *= 2
        good, bad = reach // 2, reach
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if buffer(at + step * middle) == wanted else (good, middle)
        return at + step * good

    def extent(at: int) -> Extent:
        start = edge(at, -unit)
        return Extent(start, edge(at, unit) + unit - start, buffer(at) or 0)

    found = [extent(address // unit * unit)]
    while end is None and buffer(before := found[0].start - unit) is not None:
        found.insert(0, extent(before))
    while buffer(after := found[-1].start + found[-1].nbytes) is not None and (end is None or after < end):
        found.append(extent(after))
    return found
