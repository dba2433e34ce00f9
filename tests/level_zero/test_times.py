"""Signals and commands are timed by the device's own clock."""

from __future__ import annotations

from typing import Any

import pytest

import xpushare as xs
from harness import TIMEOUT
from xpushare import adapters, ur

DEVICE = "level_zero:0"
T = ur.ProfilingInfo


@pytest.fixture
def device() -> xs.Device:
    found = xs.Device(DEVICE)
    support = found.support(xs.Aspect.ext_oneapi_per_event_profiling)
    if support.state != "yes":
        pytest.skip(support.reason)
    return found


def times(event: Any) -> list[int]:
    return [ur.urEventGetProfilingInfo(event, query) for query in (T.COMMAND_QUEUED, T.COMMAND_START, T.COMMAND_END)]


def test_the_times_of_a_signal(device: xs.Device) -> None:
    with (
        xs.Queue(device) as queue,
        xs.Event(device, enable_profiling=True) as event,
        xs.Event(device) as gate,
        xs.malloc_device(device.memory_granularity(), device) as memory,
    ):
        ends = [0]
        for turn in (1, 2):
            queue.wait(gate, at_least=turn)
            queue.fill(memory, b"x")
            queue.signal(event)
            with pytest.raises(xs.InvalidArgumentError, match="complete"):
                _ = event.times
            gate.signal()
            event.wait(TIMEOUT)
            found = event.times
            assert ends[-1] < found.queued <= found.submit <= found.start == found.end
            ends.append(found.end)


@pytest.mark.usefixtures("device")
def test_the_times_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", DEVICE)
    [adapter] = ur.urAdapterGet()
    [platform] = ur.urPlatformGet(adapter)
    [target] = ur.urDeviceGet(platform, ur.DeviceType.ALL)
    context = ur.urContextCreate([target], None)
    flags = ur.urDeviceGetInfo(target, ur.DeviceInfo.QUEUE_PROPERTIES)
    assert flags & ur.QueueFlags.PROFILING_ENABLE
    queue = ur.urQueueCreate(context, target, ur.QueueProperties(flags=ur.QueueFlags.PROFILING_ENABLE))
    memory = ur.urUSMDeviceAlloc(context, target, None, None, 4096)
    before, _ = ur.urDeviceGetGlobalTimestamps(target)
    event = ur.urEnqueueUSMFill(queue, memory, b"x", 4096, [])
    ur.urEventWait([event])
    after, _ = ur.urDeviceGetGlobalTimestamps(target)
    queued, start, end = times(event)
    assert before <= queued <= start <= end <= after
    ur.urUSMFree(context, memory)


def test_a_clock_that_begins_anew(device: xs.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a submission and its end, too: the times go on."""
    from xpushare.adapters.level_zero._device import Gpu, Stamp

    adapter: Any = adapters.adapter("level_zero")
    gpu: Gpu = adapter.device(adapter.devices()[device.ordinal])
    stamp = Stamp(gpu, "a test")
    monkeypatch.setattr(gpu, "tick_mask", 0xFF)
    stamp.first, stamp.since = 0xFA, gpu.nanoseconds(0xFA)
    stamp._noted.value = 0x05
    end = gpu.nanoseconds(0xFA) + gpu.nanoseconds(11)
    assert stamp.read() == end
