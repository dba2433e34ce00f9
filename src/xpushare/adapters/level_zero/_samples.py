"""Arrays of SYCL libraries, for the conformance suite."""

from __future__ import annotations

from typing import Any, Final

from xpushare.adapters.base import DeviceInfo
from xpushare.adapters.level_zero import _bindings as ze
from xpushare.adapters.level_zero._device import Gpu

__all__ = ["UsmArray"]

_NBYTES: Final = 8 << 20  # drivers put smaller arrays on shared pages


class UsmArray:
    """Bytes in device memory."""

    def __init__(self, gpu: Gpu, info: DeviceInfo, nbytes: int) -> None:
        self._gpu = gpu
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
