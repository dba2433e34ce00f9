"""CUDA's memory and semaphores outside CUDA: imports memory and timeline semaphores that Vulkan programs export, as
CUDA's external resources. Exports dma-bufs, by which other drivers import CUDA's memory, and fabric handles, by which
the transports of inference engines reach an allocation from other nodes.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final, final
from weakref import WeakKeyDictionary

from xpushare._native import End
from xpushare.adapters.base import DriverMemory, Import, TimelinePoint, TimelineSemaphore
from xpushare.adapters.cuda import _numbers as n
from xpushare.adapters.cuda._driver import FABRIC, Gpu, struct_bytes
from xpushare.adapters.cuda._numbers import Attribute, Error
from xpushare.adapters.stream.background import quietly
from xpushare.adapters.stream.hooks import Calls
from xpushare.adapters.virtual_memory.engine import Engine
from xpushare.adapters.virtual_memory.memory import Mapped
from xpushare.common import system
from xpushare.common.aspects import Support
from xpushare.common.errors import DeviceError, FeatureNotSupportedError, XpuShareError
from xpushare.common.fds import OwnedFd

__all__ = ["Point", "dma_buf", "fabric_handle", "open_opaque", "fabric_support"]


def open_opaque(engine: Engine, gpu: Gpu, what: Import) -> DriverMemory:
    """Map a Vulkan allocation (cuImportExternalMemory)."""
    doing = f"mapping {what.exposed_nbytes} bytes of a Vulkan program on {gpu}"
    if what.read_only:
        raise FeatureNotSupportedError(f"{doing}: CUDA cannot import it read-only")
    driver, api = gpu.driver, gpu.driver.api
    wanted = api.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
    wanted.type = api.CUexternalMemoryHandleType(n.EXTERNAL_OPAQUE_FD)
    wanted.handle.fd = what.only_fd(doing).number
    wanted.size = what.exposed_nbytes
    wanted.flags = n.EXTERNAL_DEDICATED if what.payload[:1] == b"\1" else 0
    whole = api.CUDA_EXTERNAL_MEMORY_BUFFER_DESC()
    whole.offset = 0
    whole.size = what.exposed_nbytes
    with gpu.current():
        memory = driver(doing, "cuImportExternalMemory", wanted)
        what.fds[0].take()  # the driver owns it now
        with End(api.cuDestroyExternalMemory, memory):
            address = int(driver(doing, "cuExternalMemoryGetMappedBuffer", memory, whole))

    def close() -> None:
        closing = "closing a Vulkan program's memory"
        try:
            driver(closing, "cuMemFree", address)
        finally:
            driver(closing, "cuDestroyExternalMemory", memory)

    return Mapped(engine, gpu, address, what.nbytes, close)


def dma_buf(gpu: Gpu, address: int, nbytes: int) -> tuple[OwnedFd, int]:
    """Make a dma-buf of the pages that contain these bytes. Returns the dma-buf and the offset of the bytes in it."""
    doing = f"making a dma-buf of {nbytes} bytes on {gpu}"
    if not gpu.attribute(Attribute.DMA_BUF_SUPPORTED):
        raise FeatureNotSupportedError(
            f"{doing}: the driver says that the device lacks DMA_BUF_SUPPORTED (attribute 124): it takes NVIDIA's open "
            "kernel modules and Linux 5.12"
        )
    driver, page = gpu.driver, system.page_nbytes()
    first, last = address // page * page, -(-(address + nbytes) // page) * page
    kind = driver.api.CUmemRangeHandleType(n.RANGE_DMA_BUF)
    try:
        with gpu.current():
            fd = OwnedFd(int(driver(doing, "cuMemGetHandleForAddressRange", first, last - first, kind, 0)))
    except DeviceError as error:
        if error.native != Error.INVALID_VALUE:
            raise
        raise FeatureNotSupportedError(
            f"{doing}: {error}; the driver makes dma-bufs of whole pages of cudaMalloc memory in the process that "
            "allocated it, and of memory of xs.malloc_device, xs.empty and expandable_segments:True in every process",
            native=error.native,
        ) from error
    os.set_inheritable(fd.number, False)
    return fd, address - first


@final
class _Semaphore:
    """A timeline semaphore of Vulkan, imported for a device (cuImportExternalSemaphore)."""

    def __init__(self, gpu: Gpu, semaphore: TimelineSemaphore) -> None:
        driver, api = gpu.driver, gpu.driver.api
        wanted = api.CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC()
        wanted.type = api.CUexternalSemaphoreHandleType(n.EXTERNAL_TIMELINE_FD)
        fd = system.dup(semaphore.fd.number)
        wanted.handle.fd = fd.number
        with gpu.current():
            self._raw = driver("importing a timeline semaphore", "cuImportExternalSemaphore", wanted)
        fd.take()  # the driver owns it now
        self._gpu = gpu
        self.list = (ctypes.c_uint64 * 1)(int(self._raw))

    def __del__(self) -> None:
        if hasattr(self, "_raw"):
            with self._gpu.current():
                self._gpu.driver.api.cuDestroyExternalSemaphore(self._raw)


_imported: Final[WeakKeyDictionary[Any, _Semaphore]] = WeakKeyDictionary()


@final
class Point:
    """A wait for a value of a timeline semaphore, or a signal of that value. Keep this object alive until the queued
    wait or signal has completed.
    """

    def __init__(self, gpu: Gpu, point: TimelinePoint) -> None:
        found = _imported.get(point.semaphore)
        if found is None:
            found = _imported[point.semaphore] = _Semaphore(gpu, point.semaphore)
        self._semaphore = found
        api = gpu.driver.api
        kind = "SIGNAL" if point.signals else "WAIT"
        self._parameters = getattr(api, f"CUDA_EXTERNAL_SEMAPHORE_{kind}_PARAMS")()
        self._parameters.params.fence.value = point.value
        name = "cuSignalExternalSemaphoresAsync" if point.signals else "cuWaitExternalSemaphoresAsync"
        self._function = gpu.driver.stream_functions()[name]

    def calls(self, stream: int) -> Calls:
        parameters = int(self._parameters.getPtr())
        return ((self._function, ctypes.addressof(self._semaphore.list), parameters, 1, stream),)


# --- fabric handles ---------------------------------------------------------------------------------------------------


def fabric_support(gpu: Gpu) -> Support:
    """Return whether allocations with a file descriptor and a fabric handle can be made. Asks the driver, then makes
    one such allocation as a test.
    """
    doing = "trying an allocation with a fabric handle"
    try:
        with gpu.current():
            gpu.release(doing, gpu.create_for_fabric(doing, gpu.granularity(False)))
    except XpuShareError as error:
        return Support("no", str(error))
    return Support("yes", "an allocation with both handles was made")


def fabric_handle(gpu: Gpu, address: int) -> bytes:
    """Return the fabric handle (CUmemFabricHandle) of the allocation that is mapped at an address."""
    doing, driver = f"asking for a fabric handle on {gpu}", gpu.driver
    kind = driver.api.CUmemAllocationHandleType(n.FABRIC)
    allocation = gpu.retain(doing, address)
    try:
        return struct_bytes(driver(doing, "cuMemExportToShareableHandle", allocation, kind, 0))
    except DeviceError as error:
        if error.native != Error.INVALID_VALUE:
            raise
        raise FeatureNotSupportedError(
            f"{doing}: the allocation was made without one: set {FABRIC}=1 before it is made", native=error.native
        ) from error
    finally:
        quietly(gpu.release, doing, allocation)
