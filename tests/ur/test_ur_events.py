"""Events: of commands and reusable ones, profiling, IPC within one process."""

from __future__ import annotations

import gc
import threading
from queue import SimpleQueue

import pytest
from ur_runtime import IPC_EVENT, Runtime, called_back, refused

import xpushare as xs
from xpushare import ur
from xpushare.common.aspects import Aspect

R = ur.Result
E = ur.EventInfo
S = ur.EventStatus
T = ur.ProfilingInfo
PROFILED = ur.ExpEventDesc(ur.ExpEventFlags.ENABLE_PROFILING)


def signal(rt: Runtime, event: ur.Event | None, waits: list[ur.Event] | None = None) -> ur.Event:
    return ur.urEnqueueEventsWaitWithBarrierExt(rt.queue, None, waits, event)


def test_new_event_is_complete(rt: Runtime) -> None:
    event = rt.event(ur.ExpEventDesc())
    assert rt.status(event) is S.COMPLETE
    ur.urEventWait([event])
    assert ur.urEventGetInfo(event, E.COMMAND_QUEUE) is None
    assert ur.urEventGetInfo(event, E.COMMAND_TYPE) is ur.Command.EVENTS_WAIT_WITH_BARRIER
    assert ur.urEventGetInfo(event, E.CONTEXT) is rt.context
    assert ur.urEventGetInfo(event, E.REFERENCE_COUNT) == 1


def test_signal_again_and_again(rt: Runtime) -> None:
    event = rt.event()
    for _ in range(3):
        with rt.held() as let_go:
            assert signal(rt, event) is event
            assert rt.status(event) is S.SUBMITTED
            let_go()
            ur.urEventWait([event])
            assert rt.status(event) is S.COMPLETE
    assert ur.urEventGetInfo(event, E.COMMAND_QUEUE) is rt.queue
    assert ur.urEventGetInfo(event, E.REFERENCE_COUNT) == 1


@pytest.mark.parametrize(
    ("enqueue", "command"),
    [
        (lambda q, waits: ur.urEnqueueEventsWait(q, waits), ur.Command.EVENTS_WAIT),
        (lambda q, waits: ur.urEnqueueEventsWaitWithBarrier(q, waits), ur.Command.EVENTS_WAIT_WITH_BARRIER),
        (
            lambda q, waits: ur.urEnqueueEventsWaitWithBarrierExt(q, None, waits, None),
            ur.Command.EVENTS_WAIT_WITH_BARRIER,
        ),
    ],
)
def test_waiting_commands(rt: Runtime, enqueue: object, command: ur.Command) -> None:
    other = ur.urQueueCreate(rt.context, rt.device, None)
    with rt.held(other) as let_go:
        first = ur.urEnqueueEventsWait(other, None)
        waiting = enqueue(rt.queue, [first, rt.event()])  # type: ignore[operator]
        assert (rt.status(first), rt.status(waiting)) == (S.SUBMITTED, S.SUBMITTED)
        let_go()
        ur.urEventWait([waiting, first])
    assert ur.urEventGetInfo(waiting, E.COMMAND_TYPE) is command
    assert ur.urEventGetInfo(waiting, E.COMMAND_QUEUE) is rt.queue
    for waits in (None, []):
        ur.urEventWait([enqueue(rt.queue, waits)])  # type: ignore[operator]


def test_a_dependency_is_the_association_of_its_moment(rt: Runtime) -> None:
    other = ur.urQueueCreate(rt.context, rt.device, None)
    event = rt.event()
    ur.urEventWait([signal(rt, event)])
    waiting = ur.urEnqueueEventsWait(other, [event])  # on the signal that has completed
    with rt.held():
        signal(rt, event)
        ur.urEventWait([waiting])
        assert rt.status(event) is S.SUBMITTED


def test_events_that_cannot_be_signalled(rt: Runtime) -> None:
    event = rt.event()
    with refused(R.ERROR_INVALID_EVENT):
        signal(rt, ur.urEnqueueEventsWait(rt.queue, None))
    with refused(R.ERROR_INVALID_EVENT_WAIT_LIST):
        signal(rt, event, [event])
    assert rt.status(event) is S.COMPLETE


def test_event_released_before_its_command_completes(rt: Runtime) -> None:
    pointer = rt.memory(64)
    with rt.held() as let_go:
        for _ in range(50):
            ur.urEventRelease(ur.urEnqueueUSMFill(rt.queue, pointer, b"r", 64, None))
        last = signal(rt, None)
        reusable = rt.event()
        ur.urEventRelease(signal(rt, reusable))
        gc.collect()
        fresh = [rt.event() for _ in range(60)]  # none of them gets a slot that is still to be signalled
        let_go()
        ur.urQueueFinish(rt.queue)
    assert rt.status(last) is S.COMPLETE
    assert all(each.shared.value == 0 for each in fresh)


def test_creation_errors(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(R.ERROR_INVALID_VALUE):
        rt.event(ur.ExpEventDesc(ur.ExpEventFlags.IPC_EXP | ur.ExpEventFlags.ENABLE_PROFILING))
    with refused(R.ERROR_INVALID_ENUMERATION):
        rt.event(ur.ExpEventDesc(4))
    rt.without(monkeypatch, Aspect.ext_oneapi_per_event_profiling)
    with refused(R.ERROR_UNSUPPORTED_FEATURE):
        rt.event(PROFILED)
    rt.without(monkeypatch, Aspect.ext_oneapi_ipc_event)
    with refused(R.ERROR_UNSUPPORTED_FEATURE):
        rt.event()
    rt.event(ur.ExpEventDesc())


# --- profiling ------------------------------------------------------------------------------------------


def times(event: ur.Event) -> list[int]:
    return [ur.urEventGetProfilingInfo(event, asked) for asked in T]


def test_profiling_event(rt: Runtime) -> None:
    event = rt.event(PROFILED)
    with refused(R.ERROR_PROFILING_INFO_NOT_AVAILABLE):  # no command yet
        times(event)
    before: list[int] = []
    for _ in range(2):
        with rt.held() as let_go:
            signal(rt, event)
            with refused(R.ERROR_PROFILING_INFO_NOT_AVAILABLE):
                times(event)
            let_go()
            ur.urEventWait([event])
        found = times(event)
        assert found == sorted(found)
        assert not before or before[-1] <= found[0]
        before = found


def test_profiling_queue(rt: Runtime) -> None:
    queue = ur.urQueueCreate(rt.context, rt.device, ur.QueueProperties(ur.QueueFlags.PROFILING_ENABLE))
    pointer = rt.memory(1 << 20)
    fill = ur.urEnqueueUSMFill(queue, pointer, b"p", 1 << 20, None)
    barrier = ur.urEnqueueEventsWaitWithBarrier(queue, None)
    plain = rt.event(ur.ExpEventDesc())
    ur.urEnqueueEventsWaitWithBarrierExt(queue, None, None, plain)
    shared = rt.event()
    for each in (shared, ur.urIPCOpenEventHandleExp(rt.context, ur.urIPCGetEventHandleExp(shared))):
        with refused(R.ERROR_INVALID_EVENT):  # as in SYCL: shared events are never profiled
            ur.urEnqueueEventsWaitWithBarrierExt(queue, None, None, each)
    ur.urQueueFinish(queue)
    queued, submitted, start, end, complete = times(fill)
    assert queued <= submitted <= start < end == complete  # the fill takes its time
    assert times(barrier) == sorted(times(barrier))
    assert end <= times(barrier)[3] <= times(plain)[3]
    assert fill.shared.times.end == end
    with pytest.raises(xs.InvalidArgumentError, match="not profiled"):
        _ = plain.shared.times


def test_a_signal_in_another_context(rt: Runtime) -> None:
    """As in SYCL; a wait may be in any."""
    other = Runtime()
    event = rt.event()
    with refused(R.ERROR_INVALID_CONTEXT):
        signal(other, event)
    signal(rt, event)
    signal(other, None, [event])
    ur.urQueueFinish(other.queue)


def test_what_is_enqueued_after_a_loss_was_told(rt: Runtime) -> None:
    """What was enqueued before fails; later commands do not, whether the queue is finished or not."""

    def fail() -> None:
        raise xs.PeerLostError("a test says so")

    for told_by in ("a wait", "the status"):
        queue, gate = ur.urQueueCreate(rt.context, rt.device, None), threading.Event()
        queue.shared.submit(gate.wait)
        queue.shared.submit(fail)
        before = [ur.urEnqueueEventsWait(queue, None) for _ in range(2)]
        gate.set()
        if told_by == "a wait":
            with refused(R.ERROR_IN_EVENT_LIST_EXEC_STATUS):
                ur.urEventWait(before[:1])
        else:
            with pytest.raises(xs.PeerLostError):
                before[0].shared.wait(10.0)
            assert rt.status(before[0]) is S.ERROR
        ur.urEventWait([ur.urEnqueueEventsWait(queue, None)])
        assert rt.status(before[1]) is S.ERROR
        with refused(R.ERROR_IN_EVENT_LIST_EXEC_STATUS):  # once
            ur.urQueueFinish(queue)
        ur.urQueueFinish(queue)


def test_timestamps(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "native_cpu:*;mock:*")
    mock = Runtime("mock")
    before, same = ur.urDeviceGetGlobalTimestamps(rt.device)
    event = ur.urEnqueueTimestampRecordingExp(rt.queue, True, None)
    after, _ = ur.urDeviceGetGlobalTimestamps(rt.device)
    assert before == same < times(event)[0] <= times(event)[3] < after
    assert ur.urEventGetInfo(event, E.COMMAND_TYPE) is ur.Command.TIMESTAMP_RECORDING_EXP
    for wrong in (
        lambda: ur.urDeviceGetGlobalTimestamps(mock.device),
        lambda: ur.urEnqueueTimestampRecordingExp(mock.queue, True, None),
        lambda: ur.urEnqueueHostTaskExp(mock.queue, print, None, None, None),
    ):
        with refused(R.ERROR_UNSUPPORTED_FEATURE):
            wrong()


def test_host_tasks(rt: Runtime) -> None:
    told: list[object] = []
    with rt.held() as go:
        event = ur.urEnqueueHostTaskExp(rt.queue, told.append, 1, None, None)
        second = ur.urEnqueueHostTaskExp(rt.queue, told.append, 2, None, [event])
        assert not told
        go()
    ur.urEventWait([second])
    assert told == [1, 2]


@pytest.mark.parametrize(
    ("raised", "result"),
    [
        (ZeroDivisionError("no"), R.ERROR_UNKNOWN),
        (SystemExit(3), R.ERROR_UNKNOWN),
        (KeyboardInterrupt(), R.ERROR_UNKNOWN),
        (xs.DeviceError("no"), R.ERROR_ADAPTER_SPECIFIC),
        (ur.URError("no", result=R.ERROR_INVALID_EVENT), R.ERROR_INVALID_EVENT),
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_a_host_task_raises(rt: Runtime, raised: BaseException, result: ur.Result) -> None:
    def fail(_data: object) -> None:
        raise raised

    event = ur.urEnqueueHostTaskExp(rt.queue, fail, None, None, None)
    with pytest.raises(ur.URError, match=f"urQueueFinish: a host task raised {type(raised).__name__}") as told:
        ur.urQueueFinish(rt.queue)
    assert told.value.result is result
    assert told.value.__cause__ is raised
    assert rt.status(event) is S.ERROR
    ur.urQueueFinish(rt.queue)
    ur.urEventWait([ur.urEnqueueEventsWait(rt.queue, None)])


def test_no_profiling(rt: Runtime) -> None:
    event = ur.urEnqueueEventsWait(rt.queue, None)
    ur.urEventWait([event])
    for asked in T:
        with refused(R.ERROR_PROFILING_INFO_NOT_AVAILABLE):
            ur.urEventGetProfilingInfo(event, asked)


# --- IPC ------------------------------------------------------------------------------------------------


def test_opened_event_shares_the_state(rt: Runtime) -> None:
    event = rt.event()
    data = ur.urIPCGetEventHandleExp(event)
    opened = ur.urIPCOpenEventHandleExp(rt.context, data)
    again = ur.urIPCOpenEventHandleExp(rt.context, data)
    assert len({event, opened, again}) == 3
    with rt.held() as let_go:
        signal(rt, opened)
        assert [rt.status(each) for each in (event, opened, again)] == [S.SUBMITTED] * 3
        let_go()
        ur.urEventWait([event, again])
    assert rt.status(opened) is S.COMPLETE
    assert ur.urEventGetInfo(opened, E.REFERENCE_COUNT) == 1
    assert ur.urEventGetInfo(opened, E.CONTEXT) is rt.context
    assert ur.urEventGetInfo(again, E.COMMAND_QUEUE) is None
    ur.urEventRelease(event)
    ur.urEventWait([signal(rt, again)])  # outlives its source
    ur.urEventRetain(opened)
    ur.urEventRelease(opened)
    assert rt.status(opened) is S.COMPLETE
    ur.urEventRelease(opened)


def test_get_errors(rt: Runtime) -> None:
    opened = ur.urIPCOpenEventHandleExp(rt.context, ur.urIPCGetEventHandleExp(rt.event()))
    command = ur.urEnqueueEventsWait(rt.queue, None)
    for event in (opened, command, rt.event(ur.ExpEventDesc()), rt.event(PROFILED)):
        with refused(R.ERROR_INVALID_EVENT):
            ur.urIPCGetEventHandleExp(event)


def test_put_event(rt: Runtime) -> None:
    event = rt.event()
    data = ur.urIPCGetEventHandleExp(event)
    assert data != ur.urIPCGetEventHandleExp(event)
    opened = ur.urIPCOpenEventHandleExp(rt.context, data)
    ur.urIPCPutEventHandleExp(rt.context, data)
    for function in (ur.urIPCPutEventHandleExp, ur.urIPCOpenEventHandleExp):
        with refused(R.ERROR_INVALID_VALUE):
            function(rt.context, data)
    ur.urEventWait([signal(rt, opened)])
    assert event.shared.value == 1


def test_open_in_a_context_without_support(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    data = ur.urIPCGetEventHandleExp(rt.event())
    rt.without(monkeypatch, Aspect.ext_oneapi_ipc_event)
    with refused(R.ERROR_INVALID_VALUE):  # looked at first
        ur.urIPCOpenEventHandleExp(rt.context, data[:-1])
    with refused(R.ERROR_UNSUPPORTED_FEATURE):
        ur.urIPCOpenEventHandleExp(rt.context, data)


def test_both_faces_share_events(rt: Runtime) -> None:
    with xs.Event("native_cpu:0", enable_ipc=True) as event:
        handle = xs.ipc.event.get(event)
        opened = ur.urIPCOpenEventHandleExp(rt.context, bytes(handle))
        ur.urEventWait([signal(rt, opened)])
        assert event.value == 1
        ur.urIPCPutEventHandleExp(rt.context, bytes(handle))


def test_nothing_leaks(rt: Runtime, no_fd_leak: None) -> None:  # noqa: ARG001
    for _ in range(20):
        event = rt.event(IPC_EVENT)
        data = ur.urIPCGetEventHandleExp(event)
        opened = ur.urIPCOpenEventHandleExp(rt.context, data)
        ur.urEventWait([signal(rt, opened)])
        ur.urIPCPutEventHandleExp(rt.context, data)
        ur.urEventRelease(opened)
        ur.urEventRelease(event)


def test_callbacks(rt: Runtime) -> None:
    told: SimpleQueue[tuple[object, ...]] = SimpleQueue()
    notify = lambda *arguments: told.put((*arguments, threading.current_thread().name))  # noqa: E731
    I = ur.ExecutionInfo  # noqa: E741
    with rt.held() as go:
        event = ur.urEnqueueEventsWait(rt.queue, None)
        ur.urEventSetCallback(event, I.COMPLETE, notify, "complete")
        ur.urEventSetCallback(event, I.RUNNING, notify, "running")
        assert event.references == 3
        ur.urEventRelease(event)
        ur.urEventSetCallback(event, I.SUBMITTED, notify, "submitted")
        assert told.get(timeout=10.0) == (event, I.SUBMITTED, "submitted", "xpushare-callbacks")
        assert told.empty()
        go()
    assert {told.get(timeout=10.0)[1:3] for _ in range(2)} == {(I.COMPLETE, "complete"), (I.RUNNING, "running")}
    called_back()
    assert not event.references
    with refused(R.ERROR_UNSUPPORTED_ENUMERATION):
        ur.urEventSetCallback(rt.event(), I.QUEUED, notify, None)


def test_a_callback_that_fails_and_one_of_a_lost_command(rt: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    told: SimpleQueue[object] = SimpleQueue()

    def fail(*_arguments: object) -> None:
        raise ZeroDivisionError("a test says so")

    ur.urEventSetCallback(rt.event(), ur.ExecutionInfo.COMPLETE, fail, None)
    rt.queue.shared.submit(fail)
    event = ur.urEnqueueEventsWait(rt.queue, None)
    ur.urEventSetCallback(event, ur.ExecutionInfo.COMPLETE, lambda event, *_: told.put(event), None)
    assert told.get(timeout=10.0) is event
    assert rt.status(event) is ur.EventStatus.ERROR
    called_back()
    assert "a test says so" in caplog.text
    with pytest.raises(ZeroDivisionError):
        ur.urQueueFinish(rt.queue)
