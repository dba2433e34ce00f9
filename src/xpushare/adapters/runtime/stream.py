"""Calls on streams whose driver has CUDA's functions, as HIP's does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from xpushare.adapters.stream.hooks import Calls

__all__ = ["FUNCTIONS", "RuntimeStream", "copy_and_fills"]

# Their names, which each driver begins in its own way.
FUNCTIONS: Final = (
    "MemcpyAsync",
    "MemsetD8Async",
    "MemsetD16Async",
    "MemsetD32Async",
    "EventRecord",
    "StreamWaitEvent",
)


def copy_and_fills(functions: Mapping[str, int], prefix: str, *copying: int) -> dict[str, Any]:
    """Return the arguments `copy` and `fills` of `_native.QueueCalls`, which describe how native code calls the driver.
    This function takes the same arguments as `RuntimeStream`, except the handle.
    """
    copy, *fills = (functions[prefix + name] for name in FUNCTIONS[:4])
    return {
        "copy": (copy, ("to", "from", "nbytes", *copying, "queue")),
        "fills": tuple((fill, ("to", "value", "times", "queue")) for fill in fills),
    }


class RuntimeStream:
    """Implements `copy`, `fill` and `wait_native` of `hooks.Stream`."""

    fill_units: Sequence[int] = (1, 2, 4)

    def __init__(self, handle: int, functions: Mapping[str, int], prefix: str, *copying: int) -> None:
        """Wrap the driver's stream `handle`. `functions` maps the names of driver functions to their addresses.
        `prefix` precedes the names. `copying` are the arguments that the copy function takes after destination, source
        and size.
        """
        self.handle = handle
        self._copy, *fills, self.record, self._wait_event = (functions[prefix + name] for name in FUNCTIONS)
        self._fills = dict(zip(self.fill_units, fills, strict=True))
        self._copying = copying

    def new_stamp(self, doing: str) -> None:
        return None  # it does not time its work

    def copy(self, doing: str, dst: int, src: int, nbytes: int) -> Calls:
        return ((self._copy, dst, src, nbytes, *self._copying, self.handle),)

    def fill(self, doing: str, dst: int, pattern: bytes, times: int) -> Calls:
        return ((self._fills[len(pattern)], dst, int.from_bytes(pattern, "little"), times, self.handle),)

    def wait_native(self, doing: str, event: Any) -> Calls:
        return ((self._wait_event, self.handle, event, 0),)
