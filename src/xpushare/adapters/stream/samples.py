"""Arrays of "another library" for the conformance suite. The driver allocates them. As with any other library's arrays,
this package knows only what the arrays report about themselves.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final, final

from xpushare.adapters.base import Adapter, DeviceInfo

__all__ = ["DriverSamples"]

_SECONDS: Final = 10.0


@final
class DriverSamples:
    """Implements `xpushare.conformance.samples`, without streams. `make(device, nbytes)` allocates memory. It returns
    an object with the attributes `address`, `nbytes` and `info` (the device).
    """

    def __init__(self, adapter: Adapter, make: Callable[[DeviceInfo, int], Any]) -> None:
        self._adapter = adapter
        self._make = make

    def array(self, device: str, content: bytes) -> Any:
        array = self._make(self._adapter.devices()[int(device.partition(":")[2])], len(content))
        self._copy(array, content)
        return array

    def content(self, array: Any) -> bytes:
        return self._copy(array, None)

    def _copy(self, array: Any, content: bytes | None) -> bytes:
        """Copy `content` into the array, or read the array if `content` is None. Returns the bytes. The copy goes
        through host memory.
        """
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

    def forget(self, array: Any) -> None:
        del array
