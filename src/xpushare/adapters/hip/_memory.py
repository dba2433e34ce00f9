"""Memory of hipMalloc, which IPC handles share: ours where the driver has no other way, and that of other libraries."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final, final

from xpushare._errors import DeviceError, FeatureNotSupportedError, InvalidHandleError
from xpushare.adapters.base import DeviceInfo, DriverMemory, Export, Foreign, Import
from xpushare.adapters.hip._driver import Driver, Gpu
from xpushare.adapters.hip._numbers import CONSTANTS, Attribute, Handle, Pointer
from xpushare.adapters.stream.library import address_of
from xpushare.adapters.stream.payload import described
from xpushare.adapters.virtual_memory.engine import Engine
from xpushare.adapters.virtual_memory.memory import Mapped, with_room

__all__ = ["Allocated", "ManagedMemory", "locate", "open_own"]

_LEGACY: Final = 2  # a kind of memory in a payload
_HIP_6: Final = 60_000_000


def _handle_of(gpu: Gpu, doing: str, address: int) -> bytes:
    handle = Handle()
    with gpu.current():
        gpu.driver(doing, "hipIpcGetMemHandle", handle, address)
    return bytes(handle)


def _free(gpu: Gpu, address: int) -> None:
    gpu.driver("freeing memory", "hipFree", address)


def _allocated(engine: Engine, gpu: Gpu, doing: str, call: str, *arguments: int) -> int:
    with gpu.current():
        return with_room(engine, gpu.driver.address_from, doing, call, *arguments)


@final
class Allocated(Mapped):
    """Memory of ours from hipMalloc."""

    def __init__(self, engine: Engine, gpu: Gpu, nbytes: int) -> None:
        self._doing = f"exporting {nbytes} bytes of {gpu}"
        self._gpu = gpu
        self._handle = b""
        address = _allocated(engine, gpu, f"allocating {nbytes} bytes on {gpu}", "hipMalloc", nbytes)
        super().__init__(engine, gpu, address, nbytes, _free, gpu, address)

    def export(self, read_only: bool) -> Export:
        self._handle = self._handle or _handle_of(self._gpu, self._doing, self.address)
        return described(_LEGACY, self.nbytes, self.nbytes, own=self._handle)


@final
class ManagedMemory(Mapped):
    """Memory that moves between the host and the devices of this process."""

    def __init__(self, engine: Engine, gpu: Gpu, nbytes: int) -> None:
        doing = f"allocating {nbytes} bytes of managed memory"
        if not gpu.attribute(Attribute.ManagedMemory):
            raise FeatureNotSupportedError(f"{doing}: {gpu} lacks hipDeviceAttributeManagedMemory")
        self.host_accessible = bool(gpu.attribute(Attribute.ConcurrentManagedAccess))
        address = _allocated(engine, gpu, doing, "hipMallocManaged", nbytes, CONSTANTS["hipMemAttachGlobal"])
        super().__init__(engine, gpu, address, nbytes, _free, gpu, address)

    def export(self, read_only: bool) -> Export:
        raise FeatureNotSupportedError(
            "HIP cannot share managed memory between processes: use malloc_device, or malloc_host for memory that the "
            "host touches too"
        )


def _range(driver: Driver, address: int) -> tuple[int, int]:
    """The allocation at an address: its start and its size."""
    start, nbytes = ctypes.c_void_p(), ctypes.c_size_t()
    driver("asking for an allocation", "hipMemGetAddressRange", address_of(start), address_of(nbytes), address)
    return start.value or 0, nbytes.value


def open_own(engine: Engine, gpu: Gpu, kind: int, doing: str, what: Import, description: bytes) -> DriverMemory:
    """Map a peer's memory of hipMalloc."""
    driver = gpu.driver
    if kind != _LEGACY or len(description) < ctypes.sizeof(Handle):
        raise InvalidHandleError(f"{doing}: this version does not know the kind of the exporter's memory ({kind})")
    handle = Handle.from_buffer_copy(description)
    # hipIpcMemLazyEnablePeerAccess was 0 before release 6; each takes its own number only.
    lazy = int(driver.version >= _HIP_6)
    out = ctypes.c_void_p()
    with gpu.current():
        code = driver.functions["hipIpcOpenMemHandle"](address_of(out), handle, lazy)
        if code:
            raise driver.error(doing, "hipIpcOpenMemHandle", code)
        address = out.value or 0
        try:
            known = _range(driver, address)[1]
            if known < what.nbytes:
                raise InvalidHandleError(f"{doing}: the exporter's table says {what.nbytes} bytes, there are {known}")
        except BaseException:
            driver.code("hipIpcCloseMemHandle", address)
            raise
    return Mapped(engine, gpu, address, what.nbytes, driver, "closing memory", "hipIpcCloseMemHandle", address)


@final
class _Foreign(DriverMemory):
    """Another library's allocation; releasing frees nothing."""

    host_accessible = False

    def __init__(self, address: int, nbytes: int, handle: bytes) -> None:
        self._handle = handle
        self.address = address
        self.nbytes = nbytes

    def export(self, read_only: bool) -> Export:
        return described(_LEGACY, self.nbytes, self.nbytes, own=self._handle)

    def release(self) -> None:
        pass


def locate(driver: Driver, info_of: Callable[[Gpu], DeviceInfo], address: int) -> Foreign | None:
    """The allocation of another library at `address`."""
    buffer = driver.pointer(Pointer.BUFFER_ID, address)
    if buffer is None:
        return None
    doing, copy = f"exporting the memory at {address:#x}", "or copy it (share(copy=True))"
    if driver.pointer(Pointer.IS_MANAGED, address):
        raise FeatureNotSupportedError(
            f"{doing}: HIP cannot share managed memory between processes: allocate it with hipMalloc, {copy}"
        )
    if driver.pointer(Pointer.HOST_POINTER, address):
        raise FeatureNotSupportedError(
            f"{doing}: page-locked host memory of another library is private to its process: use xs.malloc_host, {copy}"
        )
    gpu = driver.gpus()[driver.pointer(Pointer.DEVICE_ORDINAL, address) or 0]
    start, nbytes = _range(driver, address)
    try:
        handle = _handle_of(gpu, doing, start)
    except DeviceError as error:
        raise FeatureNotSupportedError(
            f"{error}; HIP shares other libraries' memory of hipMalloc only. PyTorch: leave expandable_segments and "
            f"backend:cudaMallocAsync out of PYTORCH_ALLOC_CONF; or use xs.malloc_device, {copy}"
        ) from error
    memory = _Foreign(start, nbytes, handle)
    return Foreign(memory, address - start, info_of(gpu), "device", (gpu.ordinal, start, nbytes, buffer))
