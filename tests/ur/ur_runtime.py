"""What the tests of `xpushare.ur` share: the objects of one adapter, and helpers that make more."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from xpushare import ur
from xpushare.adapters.mock.adapter import MockEvent, MockStream
from xpushare.common.aspects import Aspect, Support
from xpushare.ur import _objects
from xpushare.ur._callbacks import call_soon
from xpushare.ur._functions import device

IPC = ur.PhysicalMemProperties(ur.PhysicalMemFlags.ENABLE_IPC)
IPC_EVENT = ur.ExpEventDesc(ur.ExpEventFlags.IPC_EXP)


class Runtime:
    """Objects of one adapter, and helpers that make more."""

    def __init__(self, backend: str = "native_cpu") -> None:
        self._streams: list[MockStream] = []
        self._events: list[MockEvent] = []
        self._ordinary: list[ctypes.Array[ctypes.c_char]] = []
        self.adapter = next(each for each in ur.urAdapterGet() if each.backend == backend)
        [self.platform] = ur.urPlatformGet(self.adapter)
        self.devices = ur.urDeviceGet(self.platform, ur.DeviceType.ALL)
        self.device = self.devices[0]
        self.context = ur.urContextCreate([self.device], None)
        self.queue = ur.urQueueCreate(self.context, self.device, None)
        self.granule = ur.urVirtualMemGranularityGetInfo(
            self.context, self.device, 1, ur.VirtualMemGranularityInfo.MINIMUM
        )

    def memory(self, size: int = 4096) -> int:
        return ur.urUSMDeviceAlloc(self.context, self.device, None, None, size)

    def ordinary(self, size: int = 4096) -> int:
        """Memory that nobody allocated as USM memory."""
        self._ordinary.append((ctypes.c_char * size)())
        return ctypes.addressof(self._ordinary[-1])

    def registered(self, size: int = 4096) -> int:
        address = self.ordinary(size)
        ur.urUSMHostAllocRegisterExp(self.context, address, size, None)
        return address

    def no_peer(self) -> ur.Device:
        """The device itself, without access enabled."""
        device._enabled.clear()
        return self.device

    def peer(self) -> ur.Device:
        """The same with it."""
        ur.urUsmP2PEnablePeerAccessExp(self.device, self.no_peer())
        return self.device

    def physical(self, granules: int = 1, ipc: bool = True) -> ur.PhysicalMem:
        return ur.urPhysicalMemCreate(self.context, self.device, granules * self.granule, IPC if ipc else None)

    def reserve(self, granules: int = 1) -> int:
        return ur.urVirtualMemReserve(self.context, None, granules * self.granule)

    def mapped(self, access: int = ur.VirtualMemAccessFlags.READ_WRITE) -> int:
        start = self.reserve()
        ur.urVirtualMemMap(self.context, start, self.granule, self.physical(), 0, access)
        return start

    def pool(self, flags: int = 0) -> ur.USMPool:
        return ur.urUSMPoolCreate(self.context, ur.USMPoolDesc(flags))

    def default_pool(self) -> ur.USMPool:
        return ur.urUSMPoolGetDefaultDevicePoolExp(self.context, self.device)

    def buffer(self, size: int = 4096) -> ur.Mem:
        return ur.urMemBufferCreate(self.context, ur.MemFlags.READ_WRITE, size, None)

    def mapped_bytes(self, buffer: ur.Mem) -> int:
        """The address of its first bytes."""
        event, address = ur.urEnqueueMemBufferMap(self.queue, buffer, True, ur.MapFlags.WRITE, 0, 64, None)
        ur.urEventRelease(event)
        return address

    def native_stream(self) -> int:
        """The handle of a stream of "another library" on a mock device."""
        self._streams.append(MockStream(self.device.shared.ordinal))
        return self._streams[-1].handle

    def native_event(self) -> int:
        """The handle of an event of such a library, which completes at once."""
        self._events.append(MockEvent(int, self.device.shared.ordinal))
        return self._events[-1].handle

    def given_event(self) -> ur.Event:
        return ur.urEventCreateWithNativeHandle(self.native_event(), self.context, None)

    def event(self, desc: ur.ExpEventDesc = IPC_EVENT) -> ur.Event:
        return ur.urEventCreateExp(self.context, self.device, desc)

    def status(self, event: ur.Event) -> ur.EventStatus:
        return ur.urEventGetInfo(event, ur.EventInfo.COMMAND_EXECUTION_STATUS)

    def read(self, pointer: int, size: int) -> bytes:
        """The bytes behind an address, copied by the queue to ordinary memory."""
        target = (ctypes.c_char * size)()
        ur.urEnqueueUSMMemcpy(self.queue, True, ctypes.addressof(target), pointer, size, None)
        return bytes(target)

    def fill(self, pointer: int, pattern: bytes, size: int) -> None:
        ur.urEventWait([ur.urEnqueueUSMFill(self.queue, pointer, pattern, size, [])])

    @contextmanager
    def held(self, queue: ur.Queue | None = None) -> Iterator[Callable[[], None]]:
        """Keep a queue from running what is enqueued inside; calling the value lets it go."""
        gate = threading.Event()
        held = queue or self.queue
        held.shared.submit(gate.wait)
        try:
            yield gate.set
        finally:
            gate.set()
            if held.references:
                ur.urQueueFinish(held)

    def without(self, monkeypatch: pytest.MonkeyPatch, aspect: Aspect) -> None:
        """Let the device lack an aspect."""
        monkeypatch.setitem(self.device.shared._aspects, aspect, Support("no", "a test says so"))


def called_back() -> None:
    """Return once the thread of the callbacks has come to the end of what it had to call."""
    done = threading.Event()
    call_soon(done.set)
    assert done.wait(10.0)


def leave_nothing() -> None:
    """Close whatever a test left, and forget it."""
    places = _objects.places
    for memory in (*places.allocated.values(), *(each for opened in places.opened.values() for each in opened)):
        memory.close()
    for found in places.ranges.values():
        found.close()
    _objects.places = _objects.Places()
    for adapter in _objects.adapters():
        if adapter.log is not None:
            adapter.log.close()
            adapter.log = None
    logging.getLogger("xpushare").setLevel(logging.NOTSET)


class refused:
    """`with refused(result):` the block raises URError with that result. Keeps nothing of the error."""

    def __init__(self, result: ur.Result) -> None:
        self.result = result

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        assert kind is not None, f"{self.result!r} expected, but the call succeeded"
        if not isinstance(error, ur.URError):
            return False
        assert error.result is self.result, f"{self.result!r} expected: {error}"
        return True
