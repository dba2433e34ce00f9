"""The driver's own handles, on the mock adapter, whose handles are made up."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref

import pytest
from ur_runtime import Runtime, refused

from xpushare import ur
from xpushare.adapters.mock.adapter import MockEvent, MockStream
from xpushare.ur._functions import FUNCTIONS

R = ur.Result
OWNED_QUEUE, OWNED_EVENT = ur.QueueNativeProperties(True), ur.EventNativeProperties(True)


def test_the_host_has_no_handles(rt: Runtime) -> None:
    for ask, of in (
        (ur.urPlatformGetNativeHandle, (rt.platform,)),
        (ur.urPlatformCreateWithNativeHandle, (1, rt.adapter, None)),
        (ur.urDeviceGetNativeHandle, (rt.device,)),
        (ur.urDeviceCreateWithNativeHandle, (1, rt.adapter, None)),
        (ur.urContextGetNativeHandle, (rt.context,)),
        (ur.urContextCreateWithNativeHandle, (1, rt.adapter, [rt.device], None)),
        (ur.urQueueGetNativeHandle, (rt.queue, None)),
        (ur.urQueueCreateWithNativeHandle, (1, rt.context, rt.device, None)),
        (ur.urEventGetNativeHandle, (rt.event(),)),
        (ur.urEventCreateWithNativeHandle, (1, rt.context, None)),
    ):
        with refused(R.ERROR_UNSUPPORTED_FEATURE):
            ask(*of)  # type: ignore[operator]
    assert sum("NativeHandle" in name for name in FUNCTIONS) == 10


def test_devices_platforms_and_contexts(mock: Runtime) -> None:
    for device in mock.devices:
        handle = ur.urDeviceGetNativeHandle(device)
        assert ur.urDeviceCreateWithNativeHandle(handle, mock.adapter, None) is device
        assert ur.urDeviceGetInfo(device, ur.DeviceInfo.REFERENCE_COUNT) == 1
    with refused(R.ERROR_INVALID_DEVICE):
        ur.urDeviceCreateWithNativeHandle(7, mock.adapter, None)
    platform = ur.urPlatformGetNativeHandle(mock.platform)
    assert ur.urPlatformCreateWithNativeHandle(platform, mock.adapter, None) is mock.platform
    with refused(R.ERROR_INVALID_VALUE):
        ur.urPlatformCreateWithNativeHandle(platform + 1, mock.adapter, None)
    handle = ur.urContextGetNativeHandle(mock.context)
    found = ur.urContextCreateWithNativeHandle(handle, mock.adapter, mock.devices, None)
    assert ur.urContextGetInfo(found, ur.ContextInfo.DEVICES) == mock.devices
    for wrong, properties in ((handle + 1, None), (handle, ur.ContextNativeProperties(True))):
        with refused(R.ERROR_UNSUPPORTED_FEATURE):
            ur.urContextCreateWithNativeHandle(wrong, mock.adapter, mock.devices, properties)


def test_a_queue_over_a_stream_of_others(mock: Runtime) -> None:
    """In order with what the other library queues there."""
    stream, gate, pointer = MockStream(), threading.Event(), mock.memory()
    stream.call(gate.wait)
    queue = ur.urQueueCreateWithNativeHandle(stream.handle, mock.context, None, None)
    assert ur.urQueueGetNativeHandle(queue, None) == stream.handle
    assert ur.urQueueGetInfo(queue, ur.QueueInfo.CONTEXT) is mock.context
    event = ur.urEnqueueUSMFill(queue, pointer, b"n", 64, None)
    assert mock.status(event) is ur.EventStatus.SUBMITTED
    gate.set()
    ur.urQueueFinish(queue)
    assert mock.read(pointer, 1) == b"n"
    ur.urQueueRelease(queue)
    stream.call(int)  # it is still the other library's
    stream.synchronize()
    other = ur.urContextCreate(mock.devices, None)
    with refused(R.ERROR_INVALID_DEVICE):
        ur.urQueueCreateWithNativeHandle(stream.handle, other, None, None)
    for properties in None, OWNED_QUEUE:  # refused, it stays the caller's
        with refused(R.ERROR_INVALID_VALUE):
            ur.urQueueCreateWithNativeHandle(stream.handle, other, mock.devices[1], properties)
    stream.call(int)
    stream.synchronize()
    with refused(R.ERROR_INVALID_VALUE):
        ur.urQueueCreateWithNativeHandle(7, mock.context, None, None)


@pytest.mark.parametrize("owned", [False, True])
def test_a_stream_that_is_handed_over_ends_with_its_queue(mock: Runtime, owned: bool) -> None:
    stream, gone = MockStream(), threading.Event()
    handle, weak = stream.handle, weakref.ref(stream, lambda _gone: gone.set())
    queue = ur.urQueueCreateWithNativeHandle(handle, mock.context, None, OWNED_QUEUE if owned else None)
    del stream
    ur.urEventWait([ur.urEnqueueUSMFill(queue, mock.memory(), b"n", 64, None)])
    ur.urQueueFinish(queue)
    assert not gone.is_set()
    ur.urQueueRelease(queue)
    if owned:
        assert gone.wait(20.0)
    else:
        found = weak()
        assert found is not None
        found.close()


def test_a_kind_of_stream_is_told(mock: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    told = ctypes.c_int32(-1)
    desc = ur.QueueNativeDesc(ctypes.addressof(told))
    ur.urQueueGetNativeHandle(mock.queue, desc)
    assert told.value == -1
    monkeypatch.setattr("xpushare.adapters.mock.adapter.Mock.stream_kind", 1)
    assert ur.urQueueGetNativeHandle(mock.queue, desc)
    assert told.value == 1


@pytest.mark.parametrize("owned", [False, True])
def test_an_event_of_others(mock: Runtime, owned: bool) -> None:
    gate = threading.Event()
    native = MockEvent(gate.wait)
    event = ur.urEventCreateWithNativeHandle(native.handle, mock.context, OWNED_EVENT if owned else None)
    assert mock.status(event) is ur.EventStatus.SUBMITTED
    assert ur.urEventGetInfo(event, ur.EventInfo.COMMAND_TYPE) is ur.Command.EVENTS_WAIT
    assert ur.urEventGetNativeHandle(event) == native.handle
    gate.set()
    ur.urEventWait([event])
    gc.collect()
    assert not native.destroyed
    ur.urEventRelease(event)
    ur.urDeviceWaitExp(mock.device)
    gc.collect()
    assert native.destroyed is owned
    with refused(R.ERROR_INVALID_VALUE):
        ur.urEventCreateWithNativeHandle(1 << 40, mock.context, None)


class Recorded:
    """What a driver records on a stream."""

    handle = bytes(64)

    def __init__(self, native: int) -> None:
        self.native = native
        self.released = False

    def release(self) -> None:
        self.released = True


def test_an_event_for_others(mock: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is recorded behind the newest command, once for each."""
    made: list[Recorded] = []

    def record(_stream: object, _doing: str) -> Recorded:
        made.append(Recorded(0x1000 + len(made)))
        return made[-1]

    event = mock.event()
    with refused(R.ERROR_UNSUPPORTED_FEATURE):
        ur.urEventGetNativeHandle(event)
    monkeypatch.setattr("xpushare.adapters.mock.adapter.Stream.record_native", record)
    assert [ur.urEventGetNativeHandle(event) for _ in range(2)] == [0x1000, 0x1000]
    ur.urEnqueueEventsWaitWithBarrierExt(mock.queue, None, None, event)
    assert ur.urEventGetNativeHandle(event) == 0x1001
    ur.urEventRelease(event)
    assert [each.released for each in made] == [True, True]
