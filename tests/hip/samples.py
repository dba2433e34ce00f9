"""Arrays of "another library" for the conformance suite: memory of hipMalloc, which DLPack says to be ROCm's."""

from __future__ import annotations

import ctypes
from typing import Any

from xpushare._native import dlpack_capsule
from xpushare.adapters.hip._adapter import Hip

__all__ = ["RocmArray", "Samples"]

_ROCM = 10  # kDLROCM
_SECONDS = 10.0


class RocmArray:
    """Bytes in device memory."""

    def __init__(self, adapter: Hip, ordinal: int, nbytes: int) -> None:
        self.info = adapter.devices()[ordinal]
        self.gpu = adapter.device(self.info)
        self.nbytes = nbytes
        with self.gpu.current():
            self.address = self.gpu.driver.address_from("making another library's array", "hipMalloc", nbytes)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self.gpu.driver.code("hipFree", self.address)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _ROCM, self.info.ordinal

    def __dlpack__(self, *, max_version: object = None, **_options: object) -> Any:
        device, kind, shape = self.__dlpack_device__(), (1, 8, 1), (self.nbytes,)
        return dlpack_capsule(self, self.address, device, kind, shape, None, False, max_version is not None)


class Samples:
    """What `xpushare.conformance.samples` asks for. There are no streams: HIP's take no work of ours."""

    def __init__(self, adapter: Hip) -> None:
        self._adapter = adapter

    def array(self, device: str, content: bytes) -> RocmArray:
        array = RocmArray(self._adapter, int(device.partition(":")[2]), len(content))
        self._copy(array, content)
        return array

    def content(self, array: RocmArray) -> bytes:
        return self._copy(array, None)

    def _copy(self, array: RocmArray, content: bytes | None) -> bytes:
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

    def forget(self, array: RocmArray) -> None:
        del array
