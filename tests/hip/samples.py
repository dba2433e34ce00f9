"""Arrays of "another library" for the conformance suite: memory of hipMalloc, which DLPack says to be ROCm's."""

from __future__ import annotations

from typing import Any

from xpushare._native import dlpack_capsule
from xpushare.adapters.base import DeviceInfo
from xpushare.adapters.hip._adapter import Hip
from xpushare.adapters.stream.adapter import DriverSamples

__all__ = ["RocmArray", "samples"]

_ROCM = 10  # kDLROCM


class RocmArray:
    """Bytes in device memory."""

    def __init__(self, adapter: Hip, info: DeviceInfo, nbytes: int) -> None:
        self.info = info
        self.gpu = adapter.device(info)
        self.nbytes = nbytes
        with self.gpu.current():
            self.address = self.gpu.driver.made("making another library's array", "hipMalloc", nbytes)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self.gpu.driver.code("hipFree", self.address)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _ROCM, self.info.ordinal

    def __dlpack__(self, *, max_version: object = None, **_options: object) -> Any:
        device, kind, shape = self.__dlpack_device__(), (1, 8, 1), (self.nbytes,)
        return dlpack_capsule(self, self.address, device, kind, shape, None, False, max_version is not None)


def samples(adapter: Hip) -> DriverSamples:
    """There are no streams: HIP's take no work of ours."""
    return DriverSamples(adapter, lambda info, nbytes: RocmArray(adapter, info, nbytes))
