"""`mock`: a device for tests, whose streams are threads. The device exists only if a selector names it.

There are two devices, whose memory is host memory that processes really share. Both use the stream engine that GPUs
use. On `mock:0`, the device waits for events. On `mock:1`, operations behind a wait are held back in this process. The
driver counts every call, and follows a script that can make any call fail or stall. Each process has its own script:
`driver().fail("Mapping")`, `driver().stall("copy")`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xpushare.adapters.mock.adapter import ForeignArray, Mock, MockEvent, MockSamples, MockStream, default_stream
    from xpushare.adapters.mock.script import ScriptedDriver, driver

__all__ = [
    "ForeignArray",
    "Mock",
    "MockEvent",
    "MockSamples",
    "MockStream",
    "ScriptedDriver",
    "default_stream",
    "driver",
]


def __getattr__(name: str) -> Any:
    """Import the names above at their first use, since listing the vendors does not need the stream engine."""
    if name in __all__:
        from importlib import import_module

        where = "script" if name in ("ScriptedDriver", "driver") else "adapter"
        return getattr(import_module(f"{__name__}.{where}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
