"""Implements the driver contract for the software stream device, with the other modules of this package."""

from __future__ import annotations

import os
import uuid
from typing import Any, Final, Literal

from xpushare.adapters.base import (
    DeviceInfo,
    DriverQueue,
    Foreign,
    Properties,
)
from xpushare.adapters.mock.hooks import Device, Stream
from xpushare.adapters.mock.others import (
    MockEvent,
    MockSamples,
    MockStream,
    default_stream,
    event_by_handle,
    found_array,
    found_stream,
    stream_by_handle,
)
from xpushare.adapters.mock.script import LIBRARY, driver
from xpushare.adapters.stream.adapter import HostStreamAdapter
from xpushare.adapters.stream.engine import Engine
from xpushare.common import system
from xpushare.common.aspects import Aspect, Support
from xpushare.common.errors import InvalidArgumentError
from xpushare.common.system import boot_id

__all__ = ["Mock"]

DEVICES: Final = 2
_MISSING: Final = {
    Aspect.enforced_read_only: "the mock driver maps memfds, which an importer can map again",
    Aspect.ext_oneapi_per_event_profiling: "the stream engine does not time its signals",
}
_HELD: Final = {
    Aspect.device_ordering: "the queues of this device hold what is behind a wait",
    Aspect.adopted_queues: "another library's stream takes work that cannot be held, and this device waits for nothing",
}


class _Owned:
    """An event that is destroyed with this object."""

    def __init__(self, event: MockEvent) -> None:
        self._event = event

    def __del__(self) -> None:
        self._event.destroy()


class Mock(HostStreamAdapter):
    """The adapter of the two mock devices, whose streams are threads of this process."""

    backend = "mock"

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Start with no threads and no resources. A forked child calls this again."""
        found = self._devices = [Device(driver(), ordinal) for ordinal in range(DEVICES)]
        super().__init__(Engine(self.backend, lambda: found, calls=driver()))

    def device(self, info: DeviceInfo) -> Device:
        return self._devices[info.ordinal]

    def devices(self) -> list[DeviceInfo]:
        found = []
        for ordinal in range(DEVICES if LIBRARY.exists() else 0):
            identity = str(uuid.uuid5(uuid.NAMESPACE_OID, f"xpushare/mock/{boot_id().hex()}/{ordinal}"))
            found.append(DeviceInfo(self.backend, ordinal, f"Mock device {ordinal}", identity, "accelerator", "1.0"))
        return found

    def why_none(self) -> str:
        return f"{LIBRARY.name} was not built: see CONTRIBUTING.md"

    def support(self, device: DeviceInfo, aspect: Aspect) -> Support:
        missing = _MISSING | _HELD if driver().ordering(device.ordinal) == "held" else _MISSING
        return Support("no", missing[aspect]) if aspect in missing else Support("yes", "the mock driver says so")

    def properties(self, device: DeviceInfo) -> Properties:
        return Properties("xpushare", 1, 1 << 40, 1 << 39, False)

    def granularity(self, device: DeviceInfo, recommended: bool) -> int:
        return max(1 << 16, system.page_nbytes())

    # --- memory ----------------------------------------------------------------------------------------------

    def foreign(self, address: int, nbytes: int | None = None) -> Foreign | None:
        array = found_array(address)
        if array is None:
            return None
        return Foreign(array.lent, address - array.memory.address, self.devices()[0], "device", array.identity)

    # --- queues ----------------------------------------------------------------------------------------------

    def new_stream(self, info: DeviceInfo, doing: str) -> Stream:
        return Stream(self.device(info), driver().new_stream(doing, info.ordinal), None)

    def adopt_queue(self, native: object) -> tuple[DeviceInfo, DriverQueue] | None:
        if not isinstance(native, MockStream):
            return None
        info = self.devices()[native.ordinal]
        stream = Stream(self.device(info), native.handle, native)
        return info, self.adopted.queue(native.number, stream, native is default_stream(native.ordinal))

    def stream(self, device: DeviceInfo, number: int | None, array: object) -> object | None:
        if number is None:
            return getattr(array, "mock_stream", None) or default_stream(device.ordinal)
        return found_stream(number)

    def adopt_event(self, native: object) -> tuple[DeviceInfo, Any] | None:
        return (self.devices()[native.ordinal], native) if isinstance(native, MockEvent) else None

    def native(self, device: DeviceInfo, what: Literal["platform", "device", "context"]) -> int:
        return {"platform": 0x100, "device": 0x200 + device.ordinal, "context": 0x300}[what]

    def native_queue(self, device: DeviceInfo, handle: int, owned: bool) -> tuple[DeviceInfo, DriverQueue]:
        stream = stream_by_handle(handle)
        found = None if stream is None else self.adopt_queue(stream)
        if stream is None or found is None:
            raise InvalidArgumentError(f"{handle:#x} is not a stream")
        if owned:
            stream.close()  # it is destroyed with its last user
        return found

    def native_event(self, device: DeviceInfo, handle: int, owned: bool) -> tuple[MockEvent, object]:
        event = event_by_handle(handle)
        if event is None:
            raise InvalidArgumentError(f"{handle:#x} is not an event")
        return event, _Owned(event) if owned else event

    def samples(self) -> MockSamples:
        return MockSamples()
