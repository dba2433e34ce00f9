"""Arrays of "another library" for the conformance suite: allocations that the driver made, which this package knows
only by what they say of themselves.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

from xpushare.adapters.base import DeviceInfo
from xpushare.adapters.level_zero import _bindings as ze

if TYPE_CHECKING:
    from xpushare.adapters.level_zero._adapter import LevelZero

__all__ = ["Samples", "UsmArray"]

_NBYTES: Final = 8 << 20  # drivers put smaller ones beside others
_SECONDS: Final = 10.0


class UsmArray:
    """Bytes in device memory, as SYCL libraries have them."""

    def __init__(self, adapter: LevelZero, info: DeviceInfo, nbytes: int) -> None:
        self._gpu = gpu = adapter.device(info)
        self.info = info
        self.nbytes = nbytes
        call = "zeMemAllocDevice", gpu.platform.context, ze.ze_device_mem_alloc_desc_t(), max(nbytes, _NBYTES), 0
        self.address = gpu.driver.made("making another library's array", *call, gpu.handle)
        self.__sycl_usm_array_interface__: dict[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 1,
            "syclobj": f"level_zero:gpu:{info.ordinal}",
        }

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._gpu.driver.code("zeMemFree", self._gpu.platform.context, self.address)


class Samples:
    """What `xpushare.conformance.samples` asks for. There are no streams: SYCL's take no work of ours."""

    def __init__(self, adapter: LevelZero) -> None:
        self._adapter = adapter

    def array(self, device: str, content: bytes) -> UsmArray:
        info = self._adapter.devices()[int(device.partition(":")[2])]
        array = UsmArray(self._adapter, info, len(content))
        self._copy(array, content)
        return array

    def content(self, array: UsmArray) -> bytes:
        return self._copy(array, None)

    def _copy(self, array: UsmArray, content: bytes | None) -> bytes:
        """Write `content`, or read, by way of memory of the host."""
        staging = self._adapter.allocate(array.info, "host", array.nbytes)
        queue = self._adapter.queue(array.info)
        try:
            ends = array.address, staging.address
            if content is not None:
                ctypes.memmove(staging.address, content, array.nbytes)
            else:
                ends = staging.address, array.address
            queue.copy(*ends, array.nbytes, staging)
            queue.synchronize(_SECONDS)
            return ctypes.string_at(staging.address, array.nbytes)
        finally:
            queue.release()
            staging.release()

    def forget(self, array: UsmArray) -> None:
        del array
