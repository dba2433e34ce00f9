"""Memory of hipMalloc, which IPC handles share: ours where the driver has no other way, and that of other libraries."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final, final

from xpushare._errors import DeviceError, FeatureNotSupportedError, InvalidHandleError
from xpushare.adapters.base import DeviceInfo, DriverMemory, Export, Foreign, Import
from xpushare.adapters.hip import _numbers as n
from xpushare.adapters.hip._driver import Driver, Gpu
from xpushare.adapters.hip._numbers import Attribute, Handle, Pointer
from xpushare.adapters.stream.library import address_of
from xpushare.adapters.stream.payload import described
from xpushare.adapters.virtual_memory.engine import Engine
from xpushare.adapters.virtual_memory.memory import Mapped, with_room

__all__ = ["Allocated", "locate", "open_own"]

_LEGACY: Final = 2  # a kind of memory in a payload
_HIP_6: Final = 60_000_000


def _handle_of(gpu: Gpu, doing: str, address: int) -> bytes:
    handle = Handle()
    with gpu.current():
        gpu.driver(doing, "hipIpcGetMemHandle", handle, address)
    return bytes(handle)


@final
class Allocated(Mapped):
    """Memory of ours from hipMalloc, or, with `managed`, memory that moves between the host and the devices."""

    def __init__(self, engine: Engine, gpu: Gpu, nbytes: int, managed: bool) -> None:
        doing, driver = f"allocating {nbytes} bytes on {gpu}", gpu.driver
        if managed and not gpu.attribute(Attribute.ManagedMemory):
            raise FeatureNotSupportedError(f"{doing}: it lacks hipDeviceAttributeManagedMemory")
        call, flags = ("hipMallocManaged", (n.ATTACH_GLOBAL,)) if managed else ("hipMalloc", ())
        with gpu.current():
            address = with_room(engine, driver.made, doing, call, nbytes, *flags)
        self.host_accessible = managed and bool(gpu.attribute(Attribute.ConcurrentManagedAccess))
        self._gpu, self._managed, self._handle = gpu, managed, b""
        super().__init__(engine, gpu, address, nbytes, driver, "freeing memory", "hipFree", address)

    def export(self, read_only: bool) -> Export:
        if self._managed:
            raise FeatureNotSupportedError(
                "HIP cannot share managed memory between processes: use malloc_device, or malloc_host for memory that "
                "the host touches too"
            )
        self._handle = self._handle or _handle_of(self._gpu, f"exporting {self.nbytes} bytes", self.address)
        return described(_LEGACY, self.nbytes, self.nbytes, own=self._handle)


def _range(driver: Driver, address: int) -> tuple[int, int]:
    """The allocation at an address: its start and its size."""
    start, nbytes = ctypes.c_void_p(), ctypes.c_size_t()
    driver("asking for an allocation", "hipMemGetAddressRange", address_of(start), address_of(nbytes), address)
    return start.value or 0, nbytes.value


def open_own(engine: Engine, gpu: Gpu, kind: int, doing: str, what: Import, description: bytes) -> DriverMemory:
    """Map a peer's memory of hipMalloc."""
    driver, out = gpu.driver, ctypes.c_void_p()
    if kind != _LEGACY or len(description) < ctypes.sizeof(Handle):
        raise InvalidHandleError(f"{doing}: this version does not know the kind of the exporter's memory ({kind})")
    handle = Handle.from_buffer_copy(description)
    # hipIpcMemLazyEnablePeerAccess was 0 before release 6; each takes its own number only.
    lazy = int(driver.version >= _HIP_6)
    if driver.ended or "hipIpcOpenMemHandle" not in driver.functions:
        raise driver.error(doing, "hipIpcOpenMemHandle", driver.exiting if driver.ended else driver.missing)
    with gpu.current():
        code = driver.functions["hipIpcOpenMemHandle"](address_of(out), handle, lazy)  # by value
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
        self.address = address
        self.nbytes = nbytes
        self._handle = handle

    def export(self, read_only: bool) -> Export:
        return described(_LEGACY, self.nbytes, self.nbytes, own=self._handle)

    def release(self) -> None:
        pass


def locate(driver: Driver, info_of: Callable[[Gpu], DeviceInfo], address: int) -> Foreign | None:
    """The allocation of another library at `address`."""
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
    return Foreign(_Foreign(start, nbytes, handle), address - start, info_of(gpu), "device", identity)
