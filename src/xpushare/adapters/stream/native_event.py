"""Events of a driver that other processes can open by the driver's own IPC handles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from xpushare.adapters.base import NativeEvent
from xpushare.adapters.stream.hooks import Scope

__all__ = ["IpcEvent"]


@final
class IpcEvent(NativeEvent):
    """An event that other processes can open by `handle`. `release` calls `destroy` inside the scope `current()`."""

    def __init__(
        self, native: int, handle: bytes, current: Callable[[], Scope], destroy: Callable[..., object], *what: Any
    ) -> None:
        self.native = native
        self.handle = handle
        self._current = current
        self._destroy = destroy, what

    def release(self) -> None:
        destroy, what = self._destroy
        with self._current():
            destroy("destroying an IPC event", *what)
