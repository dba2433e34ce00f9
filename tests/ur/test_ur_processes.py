"""Inter-process communication between real processes, by Unified Runtime's functions on both sides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ur_peer
from ur_runtime import Runtime, refused

import harness
import xpushare as xs
from harness import Child
from xpushare import ur

R = ur.Result
S = ur.EventStatus


@pytest.fixture
def peer() -> Iterator[Child]:
    with Child(env={"XPUSHARE_LINGER": "0.1"}) as child:  # nobody opens all that it exports
        child.call(ur_peer.start)
        yield child


def test_handles_of_another_backend(peer: Child, mock: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A context of another backend opens all three kinds, and the two processes then share them."""
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "native_cpu:*;mock:*")
    data = peer.call(ur_peer.export_memory, bytes(range(64)))
    pointer = ur.urIPCOpenMemHandleExp(mock.context, mock.device, data)
    assert mock.read(pointer, 64) == bytes(range(64))
    mock.fill(pointer, b"w", 64)
    assert peer.call(ur_peer.content) == b"w" * 64
    ur.urIPCCloseMemHandleExp(mock.context, pointer)

    def export() -> tuple[bytes, bytes]:
        pages = ur_peer.made["large"] = ur_peer.runtime.physical(mock_granule // ur_peer.runtime.granule)
        event = ur_peer.made["crossing"] = ur_peer.runtime.event()
        return ur.urIPCGetPhysMemHandleExp(ur_peer.runtime.context, pages), ur.urIPCGetEventHandleExp(event)

    mock_granule = mock.granule
    pages_data, event_data = peer.call(export)
    pages = ur.urIPCOpenPhysMemHandleExp(mock.context, mock.device, pages_data)
    start = mock.reserve()
    ur.urVirtualMemMap(mock.context, start, mock.granule, pages, 0, ur.VirtualMemAccessFlags.READ_WRITE)
    mock.fill(start, b"p", mock.granule)
    ur.urVirtualMemUnmap(mock.context, start, mock.granule)
    ur.urIPCClosePhysMemHandleExp(mock.context, pages)
    event = ur.urIPCOpenEventHandleExp(mock.context, event_data)
    ur.urEnqueueEventsWaitWithBarrierExt(mock.queue, None, [], event)
    ur.urQueueFinish(mock.queue)
    assert peer.call(lambda: ur_peer.runtime.status(ur_peer.made["crossing"])) is S.COMPLETE
    ur.urEventRelease(event)


def test_memory(rt: Runtime, peer: Child) -> None:
    data = peer.call(ur_peer.export_memory, bytes(range(64)))
    first = ur.urIPCOpenMemHandleExp(rt.context, rt.device, data)
    second = ur.urIPCOpenMemHandleExp(rt.context, rt.device, data)
    assert rt.read(first, 64) == bytes(range(64))
    assert ur.urUSMGetMemAllocInfo(rt.context, first, ur.USMAllocInfo.SIZE) == 64
    assert ur.urUSMGetMemAllocInfo(rt.context, first, ur.USMAllocInfo.DEVICE) is rt.device
    rt.fill(second, b"w", 64)
    assert peer.call(ur_peer.content) == b"w" * 64
    ur.urIPCCloseMemHandleExp(rt.context, first)
    assert rt.read(second, 64) == b"w" * 64
    for call in (ur.urUSMFree, ur.urIPCGetMemHandleExp):
        with refused(R.ERROR_INVALID_MEM_OBJECT if call is ur.urUSMFree else R.ERROR_INVALID_ARGUMENT):
            call(rt.context, second)
    with refused(R.ERROR_INVALID_CONTEXT):
        ur.urIPCCloseMemHandleExp(ur.urContextCreate([rt.device], None), second)
    ur.urIPCCloseMemHandleExp(rt.context, second)
    with refused(R.ERROR_INVALID_ARGUMENT):
        ur.urIPCCloseMemHandleExp(rt.context, second)
    with refused(R.ERROR_INVALID_MEM_OBJECT):  # no access once it is closed
        ur.urEnqueueUSMFill(rt.queue, second, b"x", 64, None)


def test_an_address_inside_the_allocation(rt: Runtime, peer: Child) -> None:
    data = peer.call(ur_peer.export_memory, b"inner", 100)
    pointer = ur.urIPCOpenMemHandleExp(rt.context, rt.device, data)
    assert rt.read(pointer, 5) == b"inner"
    assert ur.urUSMGetMemAllocInfo(rt.context, pointer, ur.USMAllocInfo.BASE_PTR) == pointer - 100
    with refused(R.ERROR_INVALID_ARGUMENT):
        ur.urIPCCloseMemHandleExp(rt.context, pointer - 100)
    ur.urIPCCloseMemHandleExp(rt.context, pointer)


def test_put_belongs_to_the_exporter(rt: Runtime, peer: Child) -> None:
    data = peer.call(ur_peer.export_memory, b"abc")
    with refused(R.ERROR_INVALID_VALUE):
        ur.urIPCPutMemHandleExp(rt.context, data)
    pointer = ur.urIPCOpenMemHandleExp(rt.context, rt.device, data)
    peer.call(ur_peer.put)
    assert peer.call(ur_peer.result_of, "urIPCPutMemHandleExp", ".context", data) == R.ERROR_INVALID_VALUE
    with pytest.raises(ur.URError, match="put") as raised:
        ur.urIPCOpenMemHandleExp(rt.context, rt.device, data)
    assert raised.value.result is R.ERROR_INVALID_VALUE
    assert rt.read(pointer, 3) == b"abc"


def test_free_in_the_exporter(rt: Runtime, peer: Child) -> None:
    data = peer.call(ur_peer.export_memory, b"abc")
    pointer = ur.urIPCOpenMemHandleExp(rt.context, rt.device, data)
    peer.call(ur_peer.free)
    with pytest.raises(ur.URError, match="closed") as raised:
        ur.urIPCOpenMemHandleExp(rt.context, rt.device, data)
    assert raised.value.result is R.ERROR_INVALID_VALUE
    assert isinstance(raised.value.__cause__, xs.HandleExpiredError)
    assert rt.read(pointer, 3) == b"abc"  # outlives_exporter
    peer.call(ur_peer.put)


def test_death_of_the_exporter(rt: Runtime) -> None:
    with Child() as peer:
        peer.call(ur_peer.start)
        memory = peer.call(ur_peer.export_memory, b"abc")
        physical = peer.call(ur_peer.export_physical, b"p")
        event = peer.call(ur_peer.export_event)
        pointer = ur.urIPCOpenMemHandleExp(rt.context, rt.device, memory)
        peer.kill()
    assert rt.read(pointer, 3) == b"abc"
    for function, arguments in (
        (ur.urIPCOpenMemHandleExp, (rt.context, rt.device, memory)),
        (ur.urIPCOpenPhysMemHandleExp, (rt.context, rt.device, physical)),
        (ur.urIPCOpenEventHandleExp, (rt.context, event)),
    ):
        with refused(R.ERROR_INVALID_VALUE):
            function(*arguments)


def test_physical_memory(rt: Runtime, peer: Child) -> None:
    data = peer.call(ur_peer.export_physical, b"ab")
    opened = ur.urIPCOpenPhysMemHandleExp(rt.context, rt.device, data)
    size = ur.urPhysicalMemGetInfo(opened, ur.PhysicalMemInfo.SIZE)
    assert size == 2 * rt.granule
    assert ur.urPhysicalMemGetInfo(opened, ur.PhysicalMemInfo.CONTEXT) is rt.context
    peer.call(ur_peer.release_physical)
    start = ur.urVirtualMemReserve(rt.context, None, size)
    ur.urVirtualMemMap(rt.context, start, size, opened, 0, ur.VirtualMemAccessFlags.READ_WRITE)
    assert rt.read(start, size) == b"ab" * (size // 2)
    # Opened physical memory can be exported again: back to the process it came from, and on to a third.
    again = ur.urIPCGetPhysMemHandleExp(rt.context, opened)
    rt.fill(start, b"zz", size)
    ur.urIPCClosePhysMemHandleExp(rt.context, opened)
    assert peer.call(ur_peer.open_physical_and_read, again, 4) == b"zzzz"
    with Child() as third:
        third.call(ur_peer.start)
        assert third.call(ur_peer.open_physical_and_read, again, 2) == b"zz"
    ur.urIPCPutPhysMemHandleExp(rt.context, again)
    assert peer.call(ur_peer.result_of, "urIPCOpenPhysMemHandleExp", ".context", ".device", again) == (
        R.ERROR_INVALID_VALUE
    )


def test_event_and_memory(rt: Runtime, peer: Child) -> None:
    """The flow of SYCL's own test: poison, fill behind an event in one process, wait for it in the other."""
    pointer = ur.urIPCOpenMemHandleExp(rt.context, rt.device, peer.call(ur_peer.export_memory, bytes(64)))
    event = ur.urIPCOpenEventHandleExp(rt.context, peer.call(ur_peer.export_event))
    target = rt.memory(64)
    peer.call(ur_peer.hold)
    peer.call(ur_peer.fill_behind_event, b"v")
    assert ur.urEventGetInfo(event, ur.EventInfo.COMMAND_EXECUTION_STATUS) is S.SUBMITTED
    copied = ur.urEnqueueUSMMemcpy(rt.queue, False, target, pointer, 64, [event])
    assert rt.status(copied) is S.SUBMITTED
    peer.call(ur_peer.let_go)
    ur.urEventWait([copied])
    assert rt.read(target, 64) == b"v" * 64
    # And the other way round: the importer signals, the exporter waits.
    with rt.held() as let_go:
        ur.urEnqueueEventsWaitWithBarrierExt(rt.queue, None, None, event)
        waiting = peer.start(ur_peer.wait_event)
        let_go()
        assert waiting.result() == S.COMPLETE
    with refused(R.ERROR_INVALID_EVENT):
        ur.urIPCGetEventHandleExp(event)


def test_lost_event(rt: Runtime) -> None:
    with Child() as peer:
        peer.call(ur_peer.start)
        event = ur.urIPCOpenEventHandleExp(rt.context, peer.call(ur_peer.export_event))
        peer.call(ur_peer.hold)
        peer.call(ur_peer.signal_event)
        waiting = ur.urEnqueueEventsWait(rt.queue, [event])
        peer.kill()
    with refused(R.ERROR_IN_EVENT_LIST_EXEC_STATUS):
        ur.urEventWait([event])
    assert rt.status(event) is S.ERROR
    for enqueue in (ur.urEnqueueEventsWait, ur.urEnqueueEventsWaitWithBarrier):
        with refused(R.ERROR_IN_EVENT_LIST_EXEC_STATUS):
            enqueue(rt.queue, [event])
    with refused(R.ERROR_IN_EVENT_LIST_EXEC_STATUS):  # the queue that waited says so, once
        ur.urQueueFinish(rt.queue)
    ur.urQueueFinish(rt.queue)
    assert rt.status(waiting) is S.ERROR  # signalled behind a released wait
    # A signal that is submitted before the loss is recorded waits for the lost one, and is lost as well.
    harness.wait_until(lambda: event.shared.value == 1, what="the recorded loss")
    ur.urEventWait([ur.urEnqueueEventsWaitWithBarrierExt(rt.queue, None, None, event)])
    assert rt.status(event) is S.COMPLETE  # healed by a later signal


def test_a_failed_open_leaves_nothing(rt: Runtime, peer: Child, no_fd_leak: None) -> None:  # noqa: ARG001
    data = peer.call(ur_peer.export_memory, b"abc")
    ur.urIPCCloseMemHandleExp(rt.context, ur.urIPCOpenMemHandleExp(rt.context, rt.device, data))
    before = harness.open_fds()
    peer.call(ur_peer.put)
    for _ in range(10):
        with refused(R.ERROR_INVALID_VALUE):
            ur.urIPCOpenMemHandleExp(rt.context, rt.device, data)
    assert not harness.new_fds(before)


def test_forked_child(rt: Runtime) -> None:
    """The parent's objects are no use to a child, and it cannot harm them; what it opens anew works."""
    pointer, pages, event = rt.memory(64), rt.physical(), rt.event()
    rt.fill(pointer, b"k", 64)
    data = ur.urIPCGetMemHandleExp(rt.context, pointer)
    ur_peer.runtime = rt
    ur_peer.made.update(pages=pages, event=event, pointer=pointer)
    with Child(method="fork") as child:
        for function in (use_queue, use_pages, use_event):
            assert child.call(function) == R.ERROR_INVALID_OPERATION
        for name in ("urUSMFree", "urIPCGetMemHandleExp"):
            expected = R.ERROR_INVALID_MEM_OBJECT if name == "urUSMFree" else R.ERROR_INVALID_ARGUMENT
            assert child.call(ur_peer.result_of, name, ".context", pointer) == expected
        child.call(release_all)
        assert child.call(open_anew, data) == b"k" * 64
    assert rt.read(pointer, 64) == b"k" * 64
    assert ur.urPhysicalMemGetInfo(pages, ur.PhysicalMemInfo.SIZE) == rt.granule
    ur.urEventWait([ur.urEnqueueEventsWaitWithBarrierExt(rt.queue, None, None, event)])


def outcome(function: object, *arguments: object) -> int:
    try:
        function(*arguments)  # type: ignore[operator]
    except ur.URError as error:
        return int(error.result)
    return 0


def use_queue() -> int:
    return outcome(ur.urQueueFinish, ur_peer.runtime.queue)


def use_pages() -> int:
    return outcome(ur.urIPCGetPhysMemHandleExp, ur_peer.runtime.context, ur_peer.made["pages"])


def use_event() -> int:
    return outcome(ur.urEventWait, [ur_peer.made["event"]])


def release_all() -> None:
    ur.urPhysicalMemRelease(ur_peer.made["pages"])
    ur.urEventRelease(ur_peer.made["event"])
    ur.urQueueRelease(ur_peer.runtime.queue)


def open_anew(data: bytes) -> bytes:
    fresh = Runtime()
    pointer = ur.urIPCOpenMemHandleExp(fresh.context, fresh.device, data)
    return fresh.read(pointer, 64)
