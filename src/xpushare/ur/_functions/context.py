"""Contexts."""

from __future__ import annotations

from xpushare._result import Result
from xpushare.ur._objects import Context, Device
from xpushare.ur._spec import function, rule
from xpushare.ur._structs import ContextProperties


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
    """Makes a context of devices of one platform."""
    return Context.make(phDevices)


@function(2, makes="context")
def urContextRetain(hContext: Context) -> None:
    """Takes a reference to a context."""
    hContext.retain()


@function(3, ends="context")
def urContextRelease(hContext: Context) -> None:
    """Gives up a reference to a context."""
    hContext.release()
