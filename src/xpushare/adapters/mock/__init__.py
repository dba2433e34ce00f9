"""`mock`: a device for tests, whose streams are threads. It exists only if a selector names it.

It has two devices over host memory that is really shared, on the stream engine that GPUs use. `mock:0` waits for events
on the device. The queues of `mock:1` hold the operations behind a wait. The driver follows a script. It counts every
call, and any call can be made to fail or to stall. The script belongs to this process: `driver().fail("Mapping")`,
`driver().stall("copy")`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xpushare.adapters.mock.adapter import Mock
    from xpushare.adapters.mock.others import ForeignArray, MockEvent, MockSamples, MockStream, default_stream
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

        where = "adapter" if name == "Mock" else "script" if name in ("ScriptedDriver", "driver") else "others"
        return getattr(import_module(f"{__name__}.{where}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
