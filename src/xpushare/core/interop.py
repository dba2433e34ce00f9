"""Other libraries' events, and the driver's own IPC events for code that knows only those."""

from __future__ import annotations

from xpushare import adapters
from xpushare._device import adapter_of, info_of, known_device
from xpushare._errors import DeviceError, FeatureNotSupportedError, OutOfMemoryError
from xpushare.adapters.base import NativeEvent
from xpushare.core import event as core_event
from xpushare.core.declare import operation
from xpushare.core.event import Opened
from xpushare.core.queue import Work
from xpushare.core.resources import Resource

__all__ = ["adopt_event", "record_native"]


@operation("Event.from_native", raises=(FeatureNotSupportedError, OutOfMemoryError, DeviceError))
def adopt_event(native: object) -> Opened:
    """An event whose one signal completes when the other library's event does, as it is recorded now."""
    for record in adapters.search():
        if record.event_of(native) is None:
            continue
        adapter = adapters.adapter(record.backend)
        found = adapter.adopt_event(native)
        if found is not None:
            info, raw = found
            device = known_device(adapter, info)
            opened = core_event.create(device, None, enable_ipc=True, enable_profiling=False)
            queue = Work(device, device.context, adapter.queue(info))
            queue.reach(opened)
            queue.driver.wait_native(raw, (native, raw))
            queue.driver.signal(opened.timeline.slot, None)
            return opened
    raise FeatureNotSupportedError(f"no adapter here takes events of {type(native).__name__}")


@operation("Event.native_ipc_handle", raises=(FeatureNotSupportedError, OutOfMemoryError, DeviceError))
def record_native(event: Opened) -> Resource:
    """A driver event that completes with the newest signal known now."""
    device = event.device
    queue = Work(device, device.context, adapter_of(device).queue(info_of(device)))
    slot = event.timeline.slot
    queue.reach(event)
    queue.driver.wait(slot, slot.pending)
    native: NativeEvent = queue.driver.record_native()
    return Resource(device, native, native.release)
