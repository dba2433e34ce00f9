"""`mock`: a device for tests, whose streams are threads. Exists only when a selector names it.

Two devices over host memory that really is shared, on the stream engine that GPUs run on. `mock:0` waits for events on
the device; the queues of `mock:1` hold what is behind a wait. The driver follows a script: every call is counted, any
call can be made to fail or to stall. The script belongs to this process: `driver().fail("Mapping")`,
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
    """The names above are imported at their first use: whoever lists vendors does not want the stream engine."""
    if name in __all__:
        from importlib import import_module

        where = "adapter" if name == "Mock" else "script" if name in ("ScriptedDriver", "driver") else "others"
        return getattr(import_module(f"{__name__}.{where}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
