"""Arrays of "another library" for the conformance suite: allocations that the driver made, which this package knows
only by what they say of themselves.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from xpushare.adapters.level_zero import _bindings as ze
from xpushare.adapters.level_zero._device import Gpu
from xpushare.adapters.level_zero._driver import address_of

__all__ = ["Samples", "UsmArray"]

_NBYTES: Final = 8 << 20  # drivers put smaller ones beside others
_SECONDS: Final = 10 * 10**9  # nanoseconds


class UsmArray:
    """Bytes in device memory, as SYCL libraries have them."""

    def __init__(self, gpu: Gpu, device: str, nbytes: int) -> None:
        self._gpu = gpu
        self.nbytes = nbytes
        description = ze.ze_device_mem_alloc_desc_t()
        call = "zeMemAllocDevice", gpu.platform.context, address_of(description), max(nbytes, _NBYTES), 0, gpu.handle
        self.address = gpu.driver.made("making another library's array", *call)
        self.__sycl_usm_array_interface__: dict[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 1,
            "syclobj": device.replace(":", ":gpu:"),
        }

    def copy(self, address: int, content: bytes, inwards: bool) -> bytes:
        """Copy by way of the driver's own host memory, to or from `address`."""
        gpu, doing = self._gpu, "copying for another library"
        driver, context, nbytes = gpu.driver, gpu.platform.context, len(content)
        host = ze.ze_host_mem_alloc_desc_t()
        staging = driver.made(doing, "zeMemAllocHost", context, address_of(host), nbytes, 0)
        handle = gpu.new_list(doing)
        try:
            ctypes.memmove(staging, content, nbytes)
            dst, src = (address, staging) if inwards else (staging, address)
            driver(doing, "zeCommandListAppendMemoryCopy", handle, dst, src, nbytes, None, 0, None)
            driver(doing, "zeCommandListHostSynchronize", handle, _SECONDS)
            return ctypes.string_at(staging, nbytes)
        finally:
            driver.code("zeCommandListDestroy", handle)
            driver.code("zeMemFree", context, staging)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._gpu.driver.code("zeMemFree", self._gpu.platform.context, self.address)


class Samples:
    """What `xpushare.conformance.samples` asks for. There are no streams: SYCL's take no work of ours."""

    def __init__(self, gpu_of: Callable[[str], Gpu]) -> None:
        self._gpu_of = gpu_of

    def array(self, device: str, content: bytes) -> UsmArray:
        array = UsmArray(self._gpu_of(device), device, len(content))
        array.copy(array.address, content, True)
        return array

    def content(self, array: UsmArray) -> bytes:
        return array.copy(array.address, bytes(array.nbytes), False)

    def forget(self, array: UsmArray) -> None:
        del array
