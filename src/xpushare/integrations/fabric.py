"""Fabric handles of CUDA memory, for transports to other nodes: `xpushare.integrations.fabric`.

With `XPUSHARE_CUDA_FABRIC=1` in the environment, `xs.malloc_device`, `xs.empty` and
`xs.PhysicalMemory(enable_ipc=True)` on CUDA make allocations that have a fabric handle in addition to the file
descriptor. On this host the memory is shared like any other memory. On the other nodes of an NVLink domain, a transport
such as NIXL, UCX or NCCL opens the memory by the fabric handle.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from xpushare.arrays.description import range_of
from xpushare.common.aspects import Support
from xpushare.common.errors import FeatureNotSupportedError
from xpushare.core.device import Device, DeviceLike, adapter_of, info_of
from xpushare.core.memory import never_again
from xpushare.objects.lifecycle import use
from xpushare.objects.memory import Memory

__all__ = ["FabricHandle", "handle", "support"]

_BACKEND = "cuda"


class FabricHandle(NamedTuple):
    """The fabric handle of an allocation, and the place of an object's memory in this allocation."""

    handle: bytes  # the 64 bytes of CUmemFabricHandle, for cuMemImportFromShareableHandle
    offset: int  # the memory's offset in the allocation, in bytes
    nbytes: int  # the memory's size
    allocation_nbytes: int


def support(device: DeviceLike = "cuda:0") -> Support:
    """Return whether memory of the device can have a fabric handle, and the reason if it cannot. This asks the driver
    and makes a test allocation, even if `XPUSHARE_CUDA_FABRIC` is not set.
    """
    chosen = device if isinstance(device, Device) else Device(device)
    if chosen.backend != _BACKEND:
        return Support("no", f"{chosen} is not a CUDA device")
    adapter: Any = adapter_of(chosen)
    found: Support = adapter.fabric(info_of(chosen))
    return found


def handle(obj: Any) -> FabricHandle:
    """Return the fabric handle of the allocation that contains `obj`, a `Memory` or an array.

    The handle opens the whole allocation. It does not keep the memory alive, so do not free the memory while another
    node uses it. Raises `FeatureNotSupportedError` if the memory was made without a fabric handle. Also raises
    `InvalidArgumentError` and `DeviceError`.
    """
    source = use(obj) if isinstance(obj, Memory) else range_of(obj)
    if source.device.backend != _BACKEND:
        raise FeatureNotSupportedError(f"memory on {source.device} has no fabric handle: only CUDA memory has one")
    never_again(source)  # this process is not notified when another node closes it
    driver = source.allocation.driver
    adapter: Any = adapter_of(source.device)
    raw = adapter.fabric_handle(info_of(source.device), source.address)
    export = driver.export(False)
    return FabricHandle(raw, export.offset + source.address - driver.address, source.nbytes, export.exposed_nbytes)
