"""Functions for contexts."""

from __future__ import annotations

from typing import Any, Final

from xpushare.common.result import Result
from xpushare.ur._enums import ContextInfo
from xpushare.ur._objects import Context, Device
from xpushare.ur._spec import UNSUPPORTED_QUERY, Info, function, rule
from xpushare.ur._structs import ContextProperties

_CONTEXT: Final = Info(
    ContextInfo,
    {
        "uint32": "NUM_DEVICES REFERENCE_COUNT",
        "handle:device[]": "DEVICES",
        "bool": "USM_MEMCPY2D_SUPPORT USM_FILL2D_SUPPORT",
    },
    answers={
        ContextInfo.NUM_DEVICES: lambda context: len(context.devices),
        ContextInfo.DEVICES: lambda context: list(context.devices),
        ContextInfo.REFERENCE_COUNT: lambda context: context.references,
        ContextInfo.USM_MEMCPY2D_SUPPORT: lambda _context: True,
        ContextInfo.USM_FILL2D_SUPPORT: lambda _context: True,
    },
    changing="REFERENCE_COUNT",
)


@function(
    1,
    ("INVALID_NULL_HANDLE", "an element of `phDevices` is not a valid device"),
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_DEVICE_MEMORY",
    rules=(
        rule("INVALID_SIZE", "len(phDevices) == 0", "`phDevices` is empty"),
        rule(
            "INVALID_NULL_HANDLE",
            "any(device is None for device in phDevices)",
            "an element of `phDevices` is null",
            "documented",
        ),
    ),
    invalid=Result.ERROR_INVALID_VALUE,
    makes="context",
    python="`xs.Context(devices)`",
)
def urContextCreate(phDevices: tuple[Device, ...], pProperties: ContextProperties | None) -> Context:
    """Create a context for devices of one platform."""
    return Context.make(phDevices)


@function(2, makes="context")
def urContextRetain(hContext: Context) -> None:
    """Add a reference to a context."""
    hContext.retain()


@function(3, ends="context")
def urContextRelease(hContext: Context) -> None:
    """Release a reference to a context."""
    hContext.release()


@function(
    4,
    UNSUPPORTED_QUERY,
    "INVALID_CONTEXT",
    "OUT_OF_RESOURCES",
    "OUT_OF_HOST_MEMORY",
    python="`context.devices`",
)
def urContextGetInfo(hContext: Context, propName: ContextInfo) -> Any:
    """Return the property `propName` of a context."""
    return _CONTEXT.answer(propName, hContext)
