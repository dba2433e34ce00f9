"""Converts other libraries' events into events of this package, and events of this package into the driver's own."""

from __future__ import annotations

from typing import Any

from xpushare import adapters
from xpushare.adapters.base import NativeEvent
from xpushare.common.errors import DeviceError, FeatureNotSupportedError, InvalidArgumentError, OutOfMemoryError
from xpushare.core import event as core_event
from xpushare.core.declare import operation
from xpushare.core.device import Context, Device, adapter_of, info_of, known_device
from xpushare.core.event import Opened
from xpushare.core.queue import Work
from xpushare.core.resources import Resource

__all__ = ["adopt_event", "adopt_event_handle", "adopt_stream_handle", "record_native"]


@operation("Event.from_native", raises=(FeatureNotSupportedError, OutOfMemoryError, DeviceError))
def adopt_event(native: object) -> Opened:
    """Return an event whose single signal completes when the other library's event, as recorded now, completes."""
    for record in adapters.search():
        if record.event_of(native) is None:
            continue
        adapter = adapters.adapter(record.backend)
        found = adapter.adopt_event(native)
        if found is not None:
            info, raw = found
            opened = core_event.create(known_device(adapter, info), None, enable_ipc=True, enable_profiling=False)
            _complete_with(opened, raw, (native, raw))
            return opened
    raise FeatureNotSupportedError(f"no adapter here takes events of {type(native).__name__}")


def _complete_with(opened: Opened, raw: Any, keep: object) -> None:
    """Signal an event once the driver's event has completed."""
    device = opened.device
    queue = Work(device, device.context, adapter_of(device).queue(info_of(device)))
    queue.reach(opened)
    queue.driver.wait_native(raw, keep)
    queue.driver.signal(opened.timeline.slot, None)


def adopt_event_handle(device: Device, context: Context, handle: int, owned: bool) -> tuple[Opened, object]:
    """Adopt an event by the driver's handle, as `adopt_event` does. Returns the new event, and an object that must be
    kept alive as long as the event. If `owned`, dropping this object destroys the driver's event.
    """
    opened = core_event.create(device, context, enable_ipc=False, enable_profiling=False)
    raw, keep = adapter_of(device).native_event(info_of(device), handle, owned)
    _complete_with(opened, raw, (raw, keep))
    return opened, keep


def adopt_stream_handle(device: Device, context: Context, handle: int, owned: bool) -> Work:
    """Return a queue over the stream with that driver handle. If `owned`, the stream is destroyed after the queue."""
    info, driver = adapter_of(device).native_queue(info_of(device), handle, False)
    there = known_device(adapter_of(device), info)
    if there != device:  # the caller keeps it
        driver.release()
        raise InvalidArgumentError(f"the stream {handle:#x} is not on {device}, but on {there}")
    if owned:
        driver.release()
        driver = adapter_of(device).native_queue(info_of(device), handle, True)[1]
    return Work(device, context, driver)


@operation("Event.native_ipc_handle", raises=(FeatureNotSupportedError, OutOfMemoryError, DeviceError))
def record_native(event: Opened, point: int | None = None) -> Resource:
    """Return a driver event that completes with signal `point` or, by default, with the newest signal known now."""
    device = event.device
    queue = Work(device, device.context, adapter_of(device).queue(info_of(device)))
    slot = event.timeline.slot
    queue.reach(event)
    queue.driver.wait(slot, slot.pending if point is None else point)
    native: NativeEvent = queue.driver.record_native()
    return Resource(device, native, native.release)
