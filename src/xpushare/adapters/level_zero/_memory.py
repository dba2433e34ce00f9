"""Allocations that are not physical memory: those of older drivers, those of other libraries, and those that cannot be
shared.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, Final, final

from xpushare._native import End
from xpushare.adapters.base import DeviceInfo, DriverMemory, Export, Foreign, Form, Import, UsmKind
from xpushare.adapters.level_zero import _bindings as n
from xpushare.adapters.level_zero import _bindings as ze
from xpushare.adapters.level_zero._bindings import MemoryType
from xpushare.adapters.level_zero._device import Gpu
from xpushare.adapters.level_zero._driver import Driver, Platform
from xpushare.adapters.stream.background import quietly
from xpushare.adapters.stream.driver import address_of
from xpushare.adapters.stream.memory import described
from xpushare.adapters.virtual_memory.counted import DriverFds, duplicate, fd_nbytes
from xpushare.adapters.virtual_memory.engine import Engine
from xpushare.adapters.virtual_memory.memory import DeviceMemory, Mapped, require_shareable, with_room
from xpushare.common.errors import FeatureNotSupportedError, InvalidHandleError
from xpushare.common.fds import OwnedFd

__all__ = ["Adopted", "Allocated", "allocate_private", "locate", "open_own"]

_FD: Final = 2  # a kind of memory in a payload: the origin's uuid, then the driver's handle if it is needed
_UUID: Final = 16
_PAGE: Final = 1 << 16  # for small allocations


def _rounded(nbytes: int, unit: int) -> int:
    return (nbytes + unit - 1) // unit * unit


def _allocate(gpu: Gpu, doing: str, nbytes: int, chained: Any) -> int:
    """Allocate memory of the device. Drivers limit the size of an allocation unless the call lifts the limit."""
    if nbytes > gpu.properties.maxMemAllocSize:
        chained = ze.ze_relaxed_allocation_limits_exp_desc_t(chained, flags=n.MAX_SIZE)
    description = ze.ze_device_mem_alloc_desc_t(chained)
    return gpu.driver.made(doing, "zeMemAllocDevice", gpu.platform.context, description, nbytes, 0, gpu.handle)


def _free(gpu: Gpu, address: int) -> None:
    gpu.driver("freeing memory", "zeMemFree", gpu.platform.context, address)


def allocate_private(engine: Engine, gpu: Gpu, kind: UsmKind, nbytes: int) -> DriverMemory:
    """Allocate memory that Level Zero cannot share: memory of the kind "shared", or of the kind "host" if the driver
    cannot use our pages.
    """
    doing, context = f"allocating {nbytes} bytes of {kind} memory", gpu.platform.context
    host, device = ze.ze_host_mem_alloc_desc_t(), ze.ze_device_mem_alloc_desc_t()
    if kind == "host":
        address = gpu.driver.made(doing, "zeMemAllocHost", context, host, nbytes, 0)
    else:
        address = gpu.driver.made(doing, "zeMemAllocShared", context, device, host, nbytes, 0, gpu.handle)
    return _Private(engine, gpu, address, nbytes, _free, gpu, address)


@final
class _Private(Mapped):
    host_accessible = True

    def export(self, read_only: bool) -> Export:
        raise FeatureNotSupportedError(
            "this memory of Level Zero cannot be shared between processes: use malloc_device, or malloc_host with a "
            "driver that uses the pages of memfds (xpushare doctor says whether it does)"
        )


# --- exports ------------------------------------------------------------------------------------------------


class _Exported(DriverMemory):
    """Another library's allocation. This object acquires nothing from the driver before the first export."""

    host_accessible = False

    def __init__(self, gpu: Gpu, address: int, nbytes: int) -> None:
        self._gpu = gpu
        self.address = address
        self.nbytes = nbytes
        self._lock = threading.Lock()
        self._made: tuple[OwnedFd, bytes, int] | None = None

    def export(self, read_only: bool) -> Export:
        gpu, doing = self._gpu, f"exporting {self.nbytes} bytes of {self._gpu}"
        require_shareable(gpu, doing)
        with self._lock:
            if self._made is None:
                self._made = self._make(doing)
            fd, raw, mapped = self._made
        form = Form.DRIVER if raw else gpu.form
        return described(_FD, self.nbytes, mapped, (fd.number,), own=gpu.origin + raw, form=form)

    def _make(self, doing: str) -> tuple[OwnedFd, bytes, int]:
        """Return a duplicate of the driver's file descriptor, the driver's handle, and the size of the memory behind
        the descriptor, all of which importers map. The handle is empty if the driver imports file descriptors. Older
        drivers import only their own handles, which begin with the descriptor's number.
        """
        driver, context = self._gpu.driver, self._gpu.platform.context
        if self._gpu.shares_by_fd:
            exported = ze.ze_external_memory_export_fd_t(flags=n.DMA_BUF, fd=-1)
            about = ze.ze_memory_allocation_properties_t(exported)
            driver(doing, "zeMemGetAllocProperties", context, self.address, about, None)
            number, raw = exported.fd, b""
        else:
            call = "zeMemGetIpcHandle", context, self.address
            raw = bytes(driver.asked(doing, *call, into=ze.ze_ipc_mem_handle_t()).data)
            number = int.from_bytes(raw[:4], "little", signed=True)
        fd = OwnedFd(duplicate(doing, number))
        with End(fd.close):
            found = fd_nbytes(doing, fd.number)
            self.check(doing, found)
        return fd, raw, found

    def check(self, doing: str, mapped: int) -> None:
        if mapped < self.nbytes:
            raise FeatureNotSupportedError(f"{doing}: the driver's file descriptor has {mapped} bytes of it only")

    def release(self) -> None:
        if self._made is not None:
            self._made[0].close()


@final
class Allocated(Mapped):
    """An allocation of our own. The allocation is made for export, so its pages contain no other allocation."""

    def __init__(self, engine: Engine, gpu: Gpu, nbytes: int) -> None:
        doing, whole = f"allocating {nbytes} bytes on {gpu}", _rounded(nbytes, gpu.granularity(False))
        export = ze.ze_external_memory_export_desc_t(flags=n.DMA_BUF) if gpu.shares_by_fd else None
        address = with_room(engine, _allocate, gpu, doing, whole, export)
        super().__init__(engine, gpu, address, nbytes, _free, gpu, address)
        self._exported = _Exported(gpu, address, nbytes)

    def export(self, read_only: bool) -> Export:
        return self._exported.export(read_only)

    def release(self) -> None:
        super().release()
        self._exported.release()


@final
class Adopted(Mapped):
    """Memory in another driver's dma-buf. Importers receive that dma-buf, as they would receive a dma-buf of this
    driver.
    """

    def __init__(self, engine: Engine, gpu: Gpu, doing: str, fd: OwnedFd, nbytes: int) -> None:
        if not gpu.shares_by_fd:
            raise FeatureNotSupportedError(f"{doing}: the driver imports no dma-bufs")
        address = _import(engine, gpu, doing, fd.number, nbytes)
        super().__init__(engine, gpu, address, nbytes, _free, gpu, address)
        self._gpu = gpu
        self._fd = OwnedFd(fd)

    def export(self, read_only: bool) -> Export:
        gpu, fds = self._gpu, (self._fd.number,)
        return described(_FD, self.nbytes, self.nbytes, fds, own=gpu.origin, form=gpu.form)

    def release(self) -> None:
        super().release()
        self._fd.close()


def _import(engine: Engine, gpu: Gpu, doing: str, fd: int, nbytes: int) -> int:
    """Allocate memory in a dma-buf, which the caller still owns. Returns the memory's address."""
    with DriverFds() as fds:
        try:
            imported = ze.ze_external_memory_import_fd_t(flags=n.DMA_BUF, fd=fds.give(doing, fd))
            return with_room(engine, _allocate, gpu, doing, nbytes, imported)
        finally:
            fds.close()  # unless the driver has closed it, as Intel's does when it imports an allocation


# --- imports ------------------------------------------------------------------------------------------------


def open_own(engine: Engine, gpu: Gpu, kind: int, doing: str, what: Import, own: bytes) -> DriverMemory:
    """Map a peer's allocation on its device. Allocations are always imported writable. Physical memory can be mapped
    read-only.
    """
    if kind != _FD:
        raise InvalidHandleError(f"{doing}: this version does not know the kind of the exporter's memory ({kind})")
    uuid, raw, fd = own[:_UUID], own[_UUID:], what.only_fd(doing).number
    if what.read_only:
        if lacking := gpu.lacks_physical_ipc() or ("a handle for memory that is only read" if raw else ""):
            raise FeatureNotSupportedError(f"{doing}: it cannot be mapped read-only, since the driver lacks {lacking}")
        return DeviceMemory.imported(engine, gpu, doing, what, [what.exposed_nbytes], uuid)
    origin = gpu.find_origin(doing, uuid)
    found = fd_nbytes(doing, fd)
    if found != what.exposed_nbytes:
        raise InvalidHandleError(
            f"{doing}: the exporter's table says {what.exposed_nbytes} bytes, its file descriptor has {found}"
        )
    if raw:
        with DriverFds() as fds:
            try:
                return _open_handle(engine, origin, doing, fds.give(doing, fd), raw, what.nbytes)
            finally:
                fds.close()
    address = _import(engine, origin, doing, fd, found)
    return Mapped(engine, gpu, address, what.nbytes, _free, origin, address)


def _open_handle(engine: Engine, gpu: Gpu, doing: str, fd: int, raw: bytes, nbytes: int) -> DriverMemory:
    """Open memory by the handle of an older driver. The descriptor number in the handle is replaced by the descriptor
    that this process has received.
    """
    driver, context = gpu.driver, gpu.platform.context
    if len(raw) != ctypes.sizeof(ze.ze_ipc_mem_handle_t):
        raise InvalidHandleError(f"{doing}: the exporter's table contradicts itself")
    handle = ze.ze_ipc_mem_handle_t.from_buffer_copy(fd.to_bytes(4, "little") + raw[4:])
    address = driver.made(doing, "zeMemOpenIpcHandle", context, gpu.handle, handle, 0)
    close = "closing another process's memory", "zeMemCloseIpcHandle", context, address
    with End(quietly, driver, *close):
        known = _range(gpu.platform, doing, address)[1]
        if known < nbytes:
            raise InvalidHandleError(f"{doing}: the exporter's table says {nbytes} bytes, its memory has {known}")
        return Mapped(engine, gpu, address, nbytes, driver, *close)


# --- other libraries' memory --------------------------------------------------------------------------------


def _range(platform: Platform, doing: str, address: int) -> tuple[int, int]:
    """Return the start and the size of an allocation."""
    start, nbytes = ctypes.c_void_p(), ctypes.c_size_t()
    call = "zeMemGetAddressRange", platform.context, address, address_of(start), address_of(nbytes)
    platform.driver(doing, *call)
    return start.value or 0, nbytes.value


@final
class _ForeignMemory(_Exported):
    """An allocation of another library, which may share its pages with other allocations."""

    def check(self, doing: str, mapped: int) -> None:
        unit = self._gpu.granularity(False)
        if mapped >= self.nbytes + unit or (mapped >= unit > self.nbytes and mapped > _rounded(self.nbytes, _PAGE)):
            raise FeatureNotSupportedError(
                f"{doing}: the driver has put this small allocation beside others ({mapped} bytes), which would be "
                f"shared with it: allocate {unit} bytes or more at a time, use malloc_device, or copy it "
                "(share(copy=True))"
            )
        super().check(doing, mapped)


def locate(driver: Driver[Gpu], info_of: Callable[[Gpu], DeviceInfo], address: int) -> Foreign | None:
    """Return another library's allocation at `address`."""
    doing = f"exporting the memory at {address:#x}"
    for platform in driver.platforms:
        found, device = ze.ze_memory_allocation_properties_t(), ctypes.c_void_p()
        code = driver.code("zeMemGetAllocProperties", platform.context, address, found, address_of(device))
        if code or found.type == MemoryType.UNKNOWN:
            continue
        gpu = driver.by_handle(device.value or 0)
        if found.type != MemoryType.DEVICE or gpu is None:
            kind = MemoryType(found.type).name.lower() if found.type in iter(MemoryType) else str(found.type)
            raise FeatureNotSupportedError(
                f"{doing}: Level Zero cannot share USM of the kind {kind} between processes: allocate it as device "
                "memory (dpctl: usm_type='device'), use xs.malloc_host, or copy it (share(copy=True))"
            )
        start, nbytes = _range(platform, doing, address)
        memory = _ForeignMemory(gpu, start, nbytes)
        return Foreign(memory, address - start, info_of(gpu), "device", (gpu.ordinal, start, nbytes, found.id))
    return None
