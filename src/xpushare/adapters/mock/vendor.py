"""The vendor record of `mock`."""

from __future__ import annotations

import sys
from typing import Any, Final

from xpushare.adapters.base import Adapter
from xpushare.adapters.vendor import DLPackType, Vendor

__all__ = ["vendor"]


def _make() -> Adapter:
    from xpushare.adapters.mock import Mock

    return Mock()


def _if_a(name: str, native: object) -> object | None:
    """Return `native` if it is an instance of that class. If the module of the class has not been imported, there can
    be no instance, so return None.
    """
    adapter: Any = sys.modules.get("xpushare.adapters.mock.adapter")
    return native if adapter is not None and isinstance(native, getattr(adapter, name)) else None


def _stream_of(native: object) -> object | None:
    return _if_a("MockStream", native)


def _event_of(native: object) -> object | None:
    return _if_a("MockEvent", native)


vendor: Final = Vendor(
    backend="mock",
    make=_make,
    order=99,
    selected_only=True,
    dlpack=(DLPackType(1, kinds=("device", "host", "shared"), foreign=False, host=True),),
    streams="its own streams",
    stream_of=_stream_of,
    event_of=_event_of,
)
