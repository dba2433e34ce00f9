"""Functions that convert between handles of the driver and handles of `xpushare.ur`."""

from __future__ import annotations

import ctypes
from typing import Final, Literal

from xpushare.common.result import Result
from xpushare.core import interop
from xpushare.core.device import adapter_of, info_of
from xpushare.objects.event import Event as SharedEvent
from xpushare.objects.event import event_over
from xpushare.objects.lifecycle import use
from xpushare.objects.queue import queue_over
from xpushare.ur import _objects
from xpushare.ur._enums import Command
from xpushare.ur._error import URError
from xpushare.ur._objects import Adapter, Context, Device, Event, Platform, Queue
from xpushare.ur._spec import DeviceList, NativeHandle, function
from xpushare.ur._structs import (
    ContextNativeProperties,
    DeviceNativeProperties,
    EventNativeProperties,
    PlatformNativeProperties,
    QueueNativeDesc,
    QueueNativeProperties,
)

_NONE: Final = ("UNSUPPORTED_FEATURE", "the driver has no such handle")


def _native(device: Device, what: Literal["platform", "device", "context"]) -> int:
    found: int = adapter_of(device.shared).native(info_of(device.shared), what)
    return found


def _unsupported(why: str) -> URError:
    return URError(why, result=Result.ERROR_UNSUPPORTED_FEATURE)


def _platform(adapter: Adapter) -> int:
    found = {_native(device, "platform") for device in _objects.adapters().get(adapter, [])}
    if len(found) != 1:
        raise _unsupported(f"the devices of {adapter!r} are of {len(found)} platforms of drivers")
    return found.pop()


@function(75, _NONE)
def urPlatformGetNativeHandle(hPlatform: Platform) -> NativeHandle:
    """Return the driver's handle of a platform (Level Zero: `ze_driver_handle_t`)."""
    return _platform(hPlatform.adapter)


@function(76, ("INVALID_VALUE", "`hNativePlatform` is not the platform of `hAdapter`"), _NONE)
def urPlatformCreateWithNativeHandle(
    hNativePlatform: NativeHandle, hAdapter: Adapter, pProperties: PlatformNativeProperties | None
) -> Platform:
    """Return the platform that a driver's handle identifies. The platform does not own the handle."""
    if _platform(hAdapter) != hNativePlatform:
        raise URError(f"{hNativePlatform:#x} is not a platform of {hAdapter!r}", result=Result.ERROR_INVALID_VALUE)
    return hAdapter.platform


@function(14, _NONE)
def urDeviceGetNativeHandle(hDevice: Device) -> NativeHandle:
    """Return the driver's handle of a device (`CUdevice`, `ze_device_handle_t`)."""
    return _native(hDevice, "device")


@function(
    15,
    ("INVALID_DEVICE", "`hAdapter` has no device with that handle, or `ONEAPI_DEVICE_SELECTOR` hides the device"),
    _NONE,
    makes="device",
)
def urDeviceCreateWithNativeHandle(
    hNativeDevice: NativeHandle, hAdapter: Adapter, pProperties: DeviceNativeProperties | None
) -> Device:
    """Return the device that a driver's handle identifies. The caller owns a reference to the device. The device does
    not own the handle.
    """
    for device in _objects.adapters().get(hAdapter, []):
        if _native(device, "device") == hNativeDevice:
            device.take()
            return device
    raise URError(f"{hNativeDevice:#x} is not a device of {hAdapter!r}", result=Result.ERROR_INVALID_DEVICE)


@function(5, _NONE)
def urContextGetNativeHandle(hContext: Context) -> NativeHandle:
    """Return the handle of the driver's context (`CUcontext`, `ze_context_handle_t`) in which this package creates the
    objects of the context's first device.
    """
    return _native(hContext.devices[0], "context")


@function(
    6,
    "INVALID_DEVICE",
    (
        "UNSUPPORTED_FEATURE",
        (
            "`phDevices` is empty, `hNativeContext` is not the driver's context for all of them, or "
            "`pProperties.isNativeHandleOwned` is true"
        ),
    ),
    makes="context",
)
def urContextCreateWithNativeHandle(
    hNativeContext: NativeHandle,
    hAdapter: Adapter,
    phDevices: DeviceList,
    pProperties: ContextNativeProperties | None,
) -> Context:
    """Create a context from the handle of a driver's context. `hNativeContext` must be the driver's context in which
    this package creates the objects of all devices in `phDevices`.
    """
    if any(device.platform is not hAdapter.platform for device in phDevices):
        raise URError(f"a device is not of {hAdapter!r}", result=Result.ERROR_INVALID_DEVICE)
    if pProperties is not None and pProperties.isNativeHandleOwned:
        raise _unsupported("a context of the driver's is never owned: the devices' own is used")
    if not phDevices or any(_native(device, "context") != hNativeContext for device in phDevices):
        raise _unsupported(f"{hNativeContext:#x} is not the context in which objects of these devices are made")
    return Context.make(phDevices)


@function(95, _NONE)
def urQueueGetNativeHandle(hQueue: Queue, pDesc: QueueNativeDesc | None) -> NativeHandle:
    """Return the handle of the driver's stream behind a queue (`CUstream`). For Level Zero, this is the handle of an
    immediate command list, and the number 1 is written to the address `pDesc.pNativeData`.

    The handle is valid as long as the queue. While the queue waits for an event, the commands behind that wait are not
    in the stream yet.
    """
    handle = use(hQueue.shared).driver.native()
    kind: int | None = adapter_of(hQueue.device.shared).stream_kind
    if kind is not None and pDesc is not None and pDesc.pNativeData:
        ctypes.c_int32.from_address(pDesc.pNativeData).value = kind
    return handle


@function(
    96,
    ("INVALID_DEVICE", "`hDevice` is null and `hContext` has several devices"),
    ("INVALID_VALUE", "`hNativeQueue` is on another device"),
    ("UNSUPPORTED_FEATURE", "the adapter cannot use streams of other libraries"),
    invalid=Result.ERROR_INVALID_VALUE,
    makes="queue",
    python="`xs.Queue.from_native(stream)`",
)
def urQueueCreateWithNativeHandle(
    hNativeQueue: NativeHandle,
    hContext: Context,
    hDevice: Device | None,
    pProperties: QueueNativeProperties | None,
) -> Queue:
    """Create a queue on top of a driver's stream (`CUstream`, or the handle of an immediate command list of Level
    Zero). The commands of the queue and the commands that other code enqueues in the stream run in the order in which
    they are enqueued. On Level Zero the host waits to keep this order: a command returns when it is complete.
    """
    first, *others = hContext.devices
    if hDevice is None and others:
        raise URError("`hDevice` is null, and the context has several", result=Result.ERROR_INVALID_DEVICE)
    device = hDevice or first
    owned = pProperties is not None and pProperties.isNativeHandleOwned
    work = interop.adopt_stream_handle(device.shared, hContext.shared, hNativeQueue, owned)
    return Queue.make(hContext, device, queue_over(work), 0, False)


@function(
    45,
    ("UNSUPPORTED_FEATURE", "the driver has no such handle, or a queue still holds back the command of `hEvent`"),
)
def urEventGetNativeHandle(hEvent: Event) -> NativeHandle:
    """Return the handle of a driver's event (`CUevent`, `ze_event_handle_t`) that completes together with the newest
    command of `hEvent`. The handle is valid until `hEvent` is signalled again or released.
    """
    opened = use(hEvent.shared)
    point = hEvent.point or opened.timeline.slot.pending
    if hEvent.native is None or hEvent.native[1] != point:
        recorded = interop.record_native(opened, point)
        hEvent.native = recorded.driver.native, point, recorded
    return hEvent.native[0]


@function(
    46,
    ("INVALID_VALUE", "`hNativeEvent` is not an event"),
    ("UNSUPPORTED_FEATURE", "the adapter cannot use events of other libraries"),
    invalid=Result.ERROR_INVALID_VALUE,
    makes="event",
    python="`xs.Event.from_native(event)`",
)
def urEventCreateWithNativeHandle(
    hNativeEvent: NativeHandle, hContext: Context, pProperties: EventNativeProperties | None
) -> Event:
    """Create an event that completes together with a driver's event (`CUevent`, `ze_event_handle_t`). Recording the
    driver's event again later does not affect the new event. If the handle is 0, the new event is already complete.
    """
    if not hNativeEvent:
        complete = SharedEvent(hContext.devices[0].shared, context=hContext.shared)
        return Event.make(hContext, complete, Command.EVENTS_WAIT, False)
    owned = pProperties is not None and pProperties.isNativeHandleOwned
    device = hContext.devices[0].shared
    opened, keep = interop.adopt_event_handle(device, hContext.shared, hNativeEvent, owned)
    event = Event.make(hContext, event_over(opened), Command.EVENTS_WAIT, False)
    event.native = hNativeEvent, opened.timeline.slot.pending, keep
    return event
