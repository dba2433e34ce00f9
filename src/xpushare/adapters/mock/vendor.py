"""The record of `mock`."""

from __future__ import annotations

from typing import Final

from xpushare.adapters.mock import Mock, MockEvent, MockStream
from xpushare.adapters.vendor import DLPackType, Vendor

__all__ = ["vendor"]


def _stream_of(native: object) -> object | None:
    return native if isinstance(native, MockStream) else None


def _event_of(native: object) -> object | None:
    return native if isinstance(native, MockEvent) else None


vendor: Final = Vendor(
    backend="mock",
    make=Mock,
    order=99,
    selected_only=True,
    dlpack=(DLPackType(1, kinds=("device", "host", "shared"), foreign=False, host=True),),
    streams="its own streams",
    stream_of=_stream_of,
    event_of=_event_of,
)
