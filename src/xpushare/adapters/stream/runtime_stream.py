"""Calls on streams whose driver has CUDA's functions, as HIP's has, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from xpushare.adapters.stream.hooks import Calls

__all__ = ["FUNCTIONS", "RuntimeStream"]

# Their names, which each driver begins in its own way.
FUNCTIONS: Final = (
    "MemcpyAsync",
    "MemsetD8Async",
    "MemsetD16Async",
    "MemsetD32Async",
    "EventRecord",
    "StreamWaitEvent",
)


class RuntimeStream:
    """Fills in `copy`, `fill` and `wait_native` of `hooks.Stream`."""

    fill_units: Sequence[int] = (1, 2, 4)

    def __init__(self, handle: int, functions: Mapping[str, int], prefix: str, *copying: int) -> None:
        """`functions` are addresses by name; `copying` is what a copy is told besides its operands."""
        self.handle = handle
        self._copy, *fills, self.record, self._wait_event = (functions[prefix + name] for name in FUNCTIONS)
        self._fills = dict(zip(self.fill_units, fills, strict=True))
        self._copying = copying

    def copy(self, doing: str, dst: int, src: int, nbytes: int) -> Calls:
        return ((self._copy, dst, src, nbytes, *self._copying, self.handle),)

    def fill(self, doing: str, dst: int, pattern: bytes, times: int) -> Calls:
        return ((self._fills[len(pattern)], dst, int.from_bytes(pattern, "little"), times, self.handle),)

    def wait_native(self, doing: str, event: Any) -> Calls:
        return ((self._wait_event, self.handle, event, 0),)
