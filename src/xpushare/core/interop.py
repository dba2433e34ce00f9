"""Other libraries' events."""

from __future__ import annotations

from typing import NoReturn

from xpushare._errors import FeatureNotSupportedError
from xpushare.core.event import Opened

__all__ = ["adopt_event", "native_ipc_handle"]


def adopt_event(native: object) -> NoReturn:
    raise FeatureNotSupportedError(f"no adapter here takes events of {type(native).__name__}")


def native_ipc_handle(event: Opened) -> NoReturn:
    raise FeatureNotSupportedError(f"{event.device} has no IPC event handles of its own: ipc.event.get makes a handle")
