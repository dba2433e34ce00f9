"""Memory from hipMalloc, shared by IPC handles: memory of other libraries, and our own if the driver does not support
allocations with POSIX fds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Final, final

from xpushare._native import End, Importer
from xpushare.adapters.base import DeviceInfo, DriverMemory, Export, Foreign, Import
from xpushare.adapters.hip import _numbers as n
from xpushare.adapters.hip._driver import Driver, Gpu
from xpushare.adapters.hip._numbers import Attribute, Handle, Pointer
from xpushare.adapters.stream.driver import address_of
from xpushare.adapters.stream.memory import described, unsized
from xpushare.adapters.virtual_memory.engine import Engine
from xpushare.adapters.virtual_memory.memory import Mapped, with_room
from xpushare.common.errors import DeviceError, FeatureNotSupportedError, InvalidHandleError

__all__ = ["allocate", "importer", "locate", "open_own"]

_LEGACY: Final = 2  # a kind of memory in a payload


def _handle_of(gpu: Gpu, doing: str, address: int) -> bytes:
    with gpu.current():
        return bytes(gpu.driver.asked(doing, "hipIpcGetMemHandle", address, into=Handle()))


class _Malloced(Mapped):
    """hipMalloc memory. The IPC handle identifies the whole allocation, and is valid as long as the allocation
    lives.
    """

    def __init__(self, engine: Engine, gpu: Gpu, address: int, nbytes: int, handle: bytes = b"") -> None:
        super().__init__(engine, gpu, address, nbytes, gpu.driver, "freeing memory", "hipFree", address)
        self._gpu = gpu
        self._handle = handle

    def export(self, read_only: bool) -> Export:
        self._handle = self._handle or _handle_of(self._gpu, f"exporting {self.nbytes} bytes", self.address)
        return described(_LEGACY, self.nbytes, self.nbytes, own=self._handle)


@final
class _Foreign(_Malloced):
    """Another library's allocation. Releasing this object does not free the allocation."""

    def release(self) -> None:
        pass


@final
class _Managed(_Malloced):
    """Memory that moves between the host and the devices."""

    def export(self, read_only: bool) -> Export:
        raise FeatureNotSupportedError(
            "HIP cannot share managed memory between processes: use malloc_device, or malloc_host for memory that the "
            "host touches too"
        )


def allocate(engine: Engine, gpu: Gpu, nbytes: int, managed: bool) -> DriverMemory:
    doing, made = f"allocating {nbytes} bytes on {gpu}", gpu.driver.made
    if managed and not gpu.attribute(Attribute.ManagedMemory):
        raise FeatureNotSupportedError(f"{doing}: it lacks hipDeviceAttributeManagedMemory")
    with gpu.current():
        if not managed:
            return _Malloced(engine, gpu, with_room(engine, made, doing, "hipMalloc", nbytes), nbytes)
        address = with_room(engine, made, doing, "hipMallocManaged", nbytes, n.ATTACH_GLOBAL)
        found = _Managed(engine, gpu, address, nbytes)
        found.host_accessible = bool(gpu.attribute(Attribute.ConcurrentManagedAccess))
        return found


def _range(driver: Driver, address: int) -> tuple[int, int]:
    """Return the start and the size of the allocation at an address."""
    nbytes = ctypes.c_size_t()
    start = driver.made("asking for an allocation", "hipMemGetAddressRange", address_of(nbytes), address)
    return start, nbytes.value


def open_own(engine: Engine, gpu: Gpu, kind: int, doing: str, what: Import, description: bytes) -> DriverMemory:
    """Map a peer's hipMalloc memory."""
    driver = gpu.driver
    if kind != _LEGACY or len(description) < ctypes.sizeof(Handle):
        raise InvalidHandleError(f"{doing}: this version does not know the kind of the exporter's memory ({kind})")
    handle = Handle.from_buffer_copy(description)
    with gpu.current():
        address = driver.made(doing, "hipIpcOpenMemHandle", handle, driver.lazy)
        with End(driver.code, "hipIpcCloseMemHandle", address):
            known = _range(driver, address)[1]
            if known < what.nbytes:
                raise InvalidHandleError(f"{doing}: the exporter's table says {what.nbytes} bytes, there are {known}")
            return Mapped(engine, gpu, address, what.nbytes, driver, "closing memory", "hipIpcCloseMemHandle", address)


def importer(engine: Engine, gpu: Gpu) -> Importer:
    """Return the native object that maps hipMalloc memory on a device, as `open_own` does."""
    head, size_at = unsized(_LEGACY)
    unmap = partial(gpu.driver, "closing memory", "hipIpcCloseMemHandle")
    return Importer(gpu.current, head[:size_at], partial(Mapped, engine, gpu), unmap)


def locate(engine: Engine, driver: Driver, info_of: Callable[[Gpu], DeviceInfo], address: int) -> Foreign | None:
    """Return another library's allocation at `address`."""
    buffer = driver.pointer(Pointer.BUFFER_ID, address)
    if buffer is None:
        return None
    doing = f"exporting the memory at {address:#x}"
    if driver.pointer(Pointer.IS_MANAGED, address) or driver.pointer(Pointer.HOST_POINTER, address):
        raise FeatureNotSupportedError(
            f"{doing}: HIP cannot share managed memory, or page-locked host memory of another library, between "
            "processes: use hipMalloc, xs.malloc_device or xs.malloc_host, or copy it (share(copy=True))"
        )
    ordinal = driver.pointer(Pointer.DEVICE_ORDINAL, address)
    if ordinal is None:
        raise FeatureNotSupportedError(f"{doing}: HIP does not say which device it is on")
    gpu = driver.gpus()[ordinal]
    start, nbytes = _range(driver, address)
    try:
        handle = _handle_of(gpu, doing, start)
    except DeviceError as error:
        raise FeatureNotSupportedError(
            f"{error}; HIP shares other libraries' memory of hipMalloc only. PyTorch: leave expandable_segments and "
            "backend:cudaMallocAsync out of PYTORCH_ALLOC_CONF; or copy it (share(copy=True))"
        ) from error
    identity = gpu.ordinal, start, nbytes, buffer
    return Foreign(_Foreign(engine, gpu, start, nbytes, handle), address - start, info_of(gpu), "device", identity)
