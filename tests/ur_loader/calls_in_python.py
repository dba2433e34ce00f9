"""A process that runs Python and calls through the small loader: python calls_in_python.py SCENARIO SHIM LIBRARY …"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from xpushare.ur import (
    BufferCreateType,
    Command,
    ContextInfo,
    DeviceInfo,
    EventInfo,
    EventStatus,
    ExecutionInfo,
    ExpEventFlags,
    MemFlags,
    PhysicalMemFlags,
    ProfilingInfo,
    QueueFlags,
    QueueInfo,
    Result,
    VirtualMemAccessFlags,
)
from xpushare.ur._functions import FUNCTIONS
from xpushare.ur._structs import STRUCTURE_TYPES
from xpushare.ur.loader._tables import NUMBERED, takes_memory

SIZE: Final = 1 << 20

loader = ctypes.CDLL(sys.argv[2])
keeping = ctypes.PyDLL(sys.argv[2])  # calls that keep Python's lock
loader.get_context.restype = loader.get_device.restype = ctypes.c_void_p


def _word(value: Any) -> int:
    return value if isinstance(value, int) else ctypes.addressof(value)


def call(name: str, *arguments: Any, by: Any = loader) -> int:
    words = (ctypes.c_uint64 * 24)(*map(_word, arguments))
    result: int = by.call(name.encode(), words) & (2**32 - 1)
    return result


def must(name: str, *arguments: Any, by: Any = loader) -> None:
    result = call(name, *arguments, by=by)
    assert result == 0, f"{name}: {result}"


def made(name: str, *arguments: Any) -> int:
    """What comes out through the last parameter."""
    out = ctypes.c_uint64()
    must(name, *arguments, out)
    return out.value


def queue() -> int:
    return made("urQueueCreate", loader.get_context(), loader.get_device(), 0)


def memory(size: int = SIZE) -> int:
    return made("urUSMDeviceAlloc", loader.get_context(), loader.get_device(), 0, 0, size)


def status(event: int) -> int:
    found = ctypes.c_uint32(77)
    must("urEventGetInfo", event, EventInfo.COMMAND_EXECUTION_STATUS, 4, found, 0)
    return found.value


def listed(*events: int) -> tuple[int, Any]:
    return len(events), (ctypes.c_uint64 * len(events))(*events)


def fill(on: int, to: int, value: int, size: int = SIZE) -> int:
    return made("urEnqueueUSMFill", on, to, 1, ctypes.c_uint8(value), size, 0, 0)


def by_python(on: int, to: int) -> int:
    """A fill that a device gets from Python: its pattern is long."""
    pattern = (ctypes.c_uint8 * 128)(*range(128))
    return made("urEnqueueUSMFill", on, to, 128, pattern, SIZE, 0, 0)


def held_up(here: int) -> Any:
    """An event whose first signal the queue waits for."""
    import xpushare as xs
    from xpushare.ur.loader._bridge import boxes

    shared = boxes.objects[here].shared
    gate = xs.Event(shared.device)
    shared.wait(gate, at_least=1)
    return gate


def about(thread: int | str, what: str) -> str:
    """What the kernel says of a thread; nothing once it has ended."""
    try:
        return Path(f"/proc/self/task/{thread}/{what}").read_text()
    except OSError:
        return ""


def lanes() -> set[int]:
    """The threads that carry out the commands of queues."""
    return {int(each) for each in os.listdir("/proc/self/task") if about(each, "comm") == "xpushare-lane\n"}


def sleeps(thread: int) -> bool:
    return about(thread, "stat").rpartition(")")[2].split()[:1] == ["S"]


@contextmanager
def held_lane(here: int) -> Generator[Callable[[], None]]:
    """Hold the thread that carries out a new queue's commands; what comes from it lets the thread go."""
    before, left = lanes(), [1]
    must("urEventWait", *listed(fill(here, memory(), 1)))
    [lane] = lanes() - before
    until(sleeps, lane)  # it waits for a command
    loader.hold(lane)

    def let_go() -> None:
        if left:
            left.pop()
            loader.let_go()

    yield let_go
    let_go()


def byte(address: int) -> int:
    return ctypes.string_at(address, 1)[0]


def until(true: Callable[[int], bool], handle: int) -> None:
    deadline = time.monotonic() + 20
    while not true(handle):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def inversion() -> None:
    """One thread calls under a lock of its own, which another wants while it has Python's lock, as dpctl may."""
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(loader.call_under_lock()))
    thread.start()
    while not loader.is_taken():
        time.sleep(0.001)
    keeping.want_lock()
    thread.join()
    assert answers == [0]


def waits_with_pythons_lock() -> None:
    """Who has Python's lock waits for what Python has to do first."""
    here, there = queue(), memory()
    for _ in range(20):
        event = fill(here, there, 3)
        must("urEventWait", *listed(event), by=keeping)
        assert status(event) == EventStatus.COMPLETE
        must("urEventRelease", event)
    event = fill(here, there, 4)
    must("urQueueFinish", here, by=keeping)
    assert status(event) == EventStatus.COMPLETE


def order() -> None:
    """Commands that need Python, in between those that do not: each sees what those before it did."""
    here, a, b = queue(), memory(), memory()
    own = (ctypes.c_uint8 * SIZE)()
    seen: list[int] = []
    task = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _data: seen.append(byte(a + SIZE - 1)))
    for value in range(1, 40):
        fill(here, a, value)
        must("urEnqueueUSMMemcpy", here, 0, ctypes.addressof(own), a, SIZE, 0, 0, 0)  # ordinary memory
        must("urEnqueueHostTaskExp", here, ctypes.cast(task, ctypes.c_void_p).value, 0, 0, 0, 0, 0)
        must("urEnqueueUSMMemcpy", here, 0, b, a, SIZE, 0, 0, 0)
        last = made("urEnqueueEventsWaitWithBarrier", here, 0, 0)
        fill(here, a, 99)
        must("urEventWait", *listed(last))
        assert (own[SIZE - 1], byte(b + SIZE - 1), seen[-1]) == (value, value, value)
        assert seen == list(range(1, value + 1))
    must("urQueueFinish", here)
    first, second = queue(), queue()  # across queues
    for value in range(1, 40):
        event = fill(first, a, value)
        must("urEnqueueUSMMemcpy", second, 1, b, a, SIZE, *listed(event), 0)
        assert byte(b + SIZE - 1) == value


def rows() -> None:
    """Rows of a pattern that runs on, and copies of rows, are those of `xpushare.ur`."""
    import xpushare.ur as ur

    [device] = ur.urDeviceGet(ur.urPlatformGet(ur.urAdapterGet()[0])[0], ur.DeviceType.ALL)
    context = ur.urContextCreate([device], None)
    work = ur.urQueueCreate(context, device, None)
    pitch, width, height, pattern = 640, 126, 32, b"12345678abcdefgh" * 4
    one, two = (ur.urUSMDeviceAlloc(context, device, None, None, pitch * (height + 1)) for _ in range(2))
    ur.urEnqueueUSMFill2D(work, one, pitch, pattern, width, height, [])
    ur.urEnqueueUSMMemcpy2D(work, True, two, pitch, one + 64, pitch, 100, height, [])
    here, a, b = queue(), memory(pitch * (height + 1)), memory(pitch * (height + 1))
    text = ctypes.create_string_buffer(pattern)
    must("urEnqueueUSMFill2D", here, a, pitch, len(pattern), text, width, height, 0, 0, 0)
    must("urEnqueueUSMMemcpy2D", here, 1, b, pitch, a + 64, pitch, 100, height, 0, 0, 0)
    for mine, theirs in ((a, one), (b, two)):
        assert ctypes.string_at(mine, pitch * height) == ctypes.string_at(theirs, pitch * height)


def references() -> None:
    """What is released before its command was carried out, or given to Python, is gone after that."""
    from xpushare.ur.loader import _bridge

    there = memory()
    before = len(_bridge.boxes.objects)
    for _ in range(10):
        here, waiting = queue(), queue()
        events = [fill(here, there, value) for value in range(10)]
        held = made("urEnqueueEventsWait", waiting, *listed(*events))
        for each in events:
            must("urEventRelease", each)
            assert call("urEventRelease", each) == Result.ERROR_INVALID_EVENT
        must("urQueueRelease", here)
        assert call("urQueueRetain", here) == Result.ERROR_INVALID_QUEUE
        must("urQueueRelease", waiting)
        must("urEventRelease", held)
    deadline = time.monotonic() + 20
    while len(_bridge.boxes.objects) > before:
        assert time.monotonic() < deadline, len(_bridge.boxes.objects) - before
        call("urContextRetain", 0)
        time.sleep(0.01)
    must("urUSMFree", loader.get_context(), there)


def asked() -> None:
    """Python makes the object of an event whose command was carried out without it."""
    here, there = queue(), memory()
    event = fill(here, there, 1, 64)
    found = ctypes.c_uint32()
    for name, wanted in ((EventInfo.COMMAND_TYPE, Command.USM_FILL), (EventInfo.REFERENCE_COUNT, 1)):
        must("urEventGetInfo", event, name, 4, found, 0)
        assert found.value == wanted
    of = ctypes.c_uint64()
    must("urEventGetInfo", event, EventInfo.COMMAND_QUEUE, 8, of, 0)
    assert of.value == here
    must("urEnqueueHostTaskExp", here, ctypes.cast(_nothing, ctypes.c_void_p).value, 0, 0, *listed(event), 0)
    must("urEventRelease", event)
    assert call("urEventGetInfo", event, EventInfo.REFERENCE_COUNT, 4, found, 0) == Result.ERROR_INVALID_EVENT


_nothing = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _data: None)


def properties() -> None:
    """What was answered once is answered as it was, as long as the handle lives; what changes is asked each time."""
    here, written = queue(), ctypes.c_size_t()
    for name, handle, info in (
        ("urDeviceGetInfo", loader.get_device(), DeviceInfo),
        ("urContextGetInfo", loader.get_context(), ContextInfo),
        ("urQueueGetInfo", here, QueueInfo),
    ):
        answered = [each for each in info if call(name, handle, each, 0, 0, written) == 0]
        assert len(answered) > len(info) // 2
        for query in answered:
            values: list[bytes] = []
            for _ in range(2):
                must(name, handle, query, 0, 0, written)
                value = ctypes.create_string_buffer(written.value + 1)
                must(name, handle, query, written.value, value, 0)
                values.append(value.raw)
                if written.value:
                    assert call(name, handle, query, written.value - 1, value, 0) == Result.ERROR_INVALID_SIZE
                assert call(name, handle, query, written.value, 0, 0) == Result.ERROR_INVALID_NULL_POINTER
                assert call(name, handle, query, 0, 0, 0) == Result.ERROR_INVALID_NULL_POINTER
            assert values[0] == values[1] or query == DeviceInfo.GLOBAL_MEM_FREE, query
            assert call(name, handle + 1, query, 0, 0, written) != 0
    assert call("urContextGetInfo", here, ContextInfo.NUM_DEVICES, 0, 0, written) == Result.ERROR_INVALID_CONTEXT
    counted = ctypes.c_uint32()
    for references in (1, 2, 3):
        must("urQueueGetInfo", here, QueueInfo.REFERENCE_COUNT, 4, counted, 0)
        assert counted.value == references
        must("urQueueRetain", here)
    task, of = ctypes.cast(_nothing, ctypes.c_void_p).value, ctypes.c_uint64()
    tasks = os.environ["ONEAPI_DEVICE_SELECTOR"] == "native_cpu:0"
    event = made("urEnqueueHostTaskExp", here, task, 0, 0, 0, 0) if tasks else by_python(here, memory())
    for _ in range(4):
        must("urQueueRelease", here)
    assert call("urQueueGetInfo", here, QueueInfo.DEVICE, 0, 0, written) == Result.ERROR_INVALID_QUEUE
    call("urContextRetain", 0)  # Python ends the queue first
    must("urEventGetInfo", event, EventInfo.COMMAND_QUEUE, 8, of, 0)
    assert call("urQueueRetain", of.value) == Result.ERROR_INVALID_QUEUE


def references_of(event: int) -> int:
    found = ctypes.c_uint32()
    must("urEventGetInfo", event, EventInfo.REFERENCE_COUNT, 4, found, 0)
    return found.value


def every_function() -> None:
    """While a queue is busy, no function waits for it, but those of its commands, and those that take away memory."""
    here, context, device, size = queue(), loader.get_context(), loader.get_device(), 1 << 21
    mine, other, data = memory(), memory(), ctypes.c_uint64()
    own = (ctypes.c_uint8 * SIZE)()
    granule = made("urVirtualMemReserve", context, 0, size)
    properties = (ctypes.c_uint64 * 3)(STRUCTURE_TYPES["PhysicalMemProperties"], 0, PhysicalMemFlags.ENABLE_IPC)
    event_desc = (ctypes.c_uint64 * 3)(STRUCTURE_TYPES["ExpEventDesc"], 0, ExpEventFlags.IPC_EXP)
    event_of, told = (ctypes.c_uint64 * 1)(), SimpleQueue[tuple[int, int]]()
    notify = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)(
        lambda event, _status, data: told.put((event, data))
    )
    with held_lane(here):
        event = fill(here, mine, 7)
        must("urEnqueueUSMMemcpy", here, 0, mine, ctypes.addressof(own), 4096, 0, 0, 0)
        for name in NUMBERED:
            if name != "urAdapterRelease":
                call(name)  # nulls
        physical = made("urPhysicalMemCreate", context, device, size, properties)
        must("urVirtualMemMap", context, granule, size, physical, 0, VirtualMemAccessFlags.READ_WRITE)
        must("urVirtualMemSetAccess", context, granule, size, VirtualMemAccessFlags.READ_ONLY)
        must("urVirtualMemGetInfo", context, granule, size, 0, 4, data, 0)
        must("urVirtualMemUnmap", context, granule, size)
        must("urVirtualMemFree", context, granule, size)
        must("urPhysicalMemGetInfo", physical, 2, 8, data, 0)
        must("urUSMGetMemAllocInfo", context, mine, 0, 4, data, 0)
        must("urUSMGetMemAllocInfo", context, other, 0, 4, data, 0)
        must("urUSMImportExp", context, ctypes.addressof(own), SIZE)
        must("urUSMReleaseExp", context, ctypes.addressof(own))
        must("urUSMContextMemcpyExp", context, other, ctypes.addressof(own), SIZE)
        must("urEventCreateExp", context, device, event_desc, event_of)
        for kind, of in (("Mem", (context, other)), ("PhysMem", (context, physical)), ("Event", (event_of[0],))):
            must(f"urIPCGet{kind}HandleExp", *of, data, ctypes.c_uint64())
            opened = made(f"urIPCOpen{kind}HandleExp", context, *[device] * (kind != "Event"), data.value, 256)
            if kind != "Event":
                must(f"urIPCClose{kind}HandleExp", context, opened)
            must(f"urIPCPut{kind}HandleExp", context, data.value)
        must("urUSMFree", context, other)
        must("urUSMFree", context, memory())
        must("urPhysicalMemRelease", physical)
        must("urQueueFlush", here)
        for query in QueueInfo:
            call("urQueueGetInfo", here, query, 8, data, 0)
        must("urQueueGetInfo", here, QueueInfo.EMPTY, 1, data, 0)
        assert data.value & 0xFF == 0
        wanted = {
            EventInfo.COMMAND_QUEUE: here,
            EventInfo.CONTEXT: context,
            EventInfo.COMMAND_TYPE: Command.USM_FILL,
            EventInfo.COMMAND_EXECUTION_STATUS: EventStatus.SUBMITTED,
            EventInfo.REFERENCE_COUNT: 1,
        }
        for asked, value in wanted.items():
            data.value = 0
            must("urEventGetInfo", event, asked, 8, data, 0)
            assert data.value == value, asked
        for number in (1, 2):
            must(
                "urEventSetCallback", event, ExecutionInfo.COMPLETE, ctypes.cast(notify, ctypes.c_void_p).value, number
            )
        assert status(event) == EventStatus.SUBMITTED
        assert told.empty()
    must("urQueueFinish", here)
    assert [told.get(timeout=20) for _ in range(2)] == [(event, 1), (event, 2)]
    assert byte(mine + SIZE - 1) == 7
    for asked, value in wanted.items():
        data.value = 0
        until(lambda _: references_of(event) == 1, 0)  # the callbacks have returned
        must("urEventGetInfo", event, asked, 8, data, 0)
        assert data.value == (value if asked is not EventInfo.COMMAND_EXECUTION_STATUS else EventStatus.COMPLETE), asked


def takers() -> None:
    """Who takes away memory waits for the commands that use it, whichever queue has them."""
    context, device = loader.get_context(), loader.get_device()
    own, fresh, elsewhere = (ctypes.c_uint8 * SIZE)(), memory(), queue()
    data, size = ctypes.c_uint64(), ctypes.c_uint64()
    must("urIPCGetMemHandleExp", context, fresh, data, size)
    must("urUSMHostAllocRegisterExp", context, ctypes.addressof(own), SIZE, 0)
    used: dict[str, tuple[int, Callable[[int], tuple[int, ...]]]] = {
        "urUSMFree": (memory(), lambda there: (context, there)),
        "urMemoryExportFreeExportableMemoryExp": (memory(), lambda there: (context, device, there)),
        "urIPCCloseMemHandleExp": (
            made("urIPCOpenMemHandleExp", context, device, data.value, size.value),
            lambda there: (context, there),
        ),
        "urUSMHostAllocUnregisterExp": (ctypes.addressof(own), lambda there: (context, there)),
        "urEnqueueUSMFreeExp": (memory(), lambda there: (elsewhere, 0, there, 0, 0, 0)),
        "urDeviceWaitExp": (memory(), lambda _there: (device,)),
    }
    ranges = {"urVirtualMemFree"}  # no command without Python uses one
    assert used.keys() | ranges == {each for each in NUMBERED if takes_memory(FUNCTIONS[each])} | {"urDeviceWaitExp"}
    for name, (there, arguments) in used.items():
        assert taken(name, arguments(there), lambda here, there=there: fill(here, there + SIZE // 2, 9, SIZE // 2))
    for enqueue in (
        lambda here, there: made("urEnqueueUSMMemcpy", here, 0, fresh, there + SIZE // 2, SIZE // 2, 0, 0),
        lambda here, there: made("urEnqueueUSMMemcpy2D", here, 0, fresh, 512, there + SIZE // 2, 512, 500, 1024, 0, 0),
        lambda here, there: made("urEnqueueUSMPrefetch", here, there + 64, 64, 0, 0, 0),
    ):
        there = memory()
        assert taken("urUSMFree", (context, there), lambda here, do=enqueue, there=there: do(here, there))


def taken(name: str, words: tuple[int, ...], enqueue: Callable[[int], int]) -> bool:
    """Whether the function came back after the command that a queue was held up with."""
    here, found = queue(), list[int]()
    with held_lane(here) as let_go:
        event = enqueue(here)
        taker = threading.Thread(target=lambda: found.extend((call(name, *words), status(event))))
        taker.start()
        until(lambda _: len(found) == 2 or sleeps(taker.native_id or 0), 0)
        let_go()
        taker.join()
    return found == [0, EventStatus.COMPLETE]


def unmapped() -> None:
    """What is mapped stays until the commands that use it are done."""
    here, context, device, size = queue(), loader.get_context(), loader.get_device(), 1 << 21
    start, physical = (
        made("urVirtualMemReserve", context, 0, size),
        made("urPhysicalMemCreate", context, device, size, 0),
    )
    must("urVirtualMemMap", context, start, size, physical, 0, VirtualMemAccessFlags.READ_WRITE)
    gate = held_up(here)
    event = fill(here, start, 5)
    must("urUSMFree", context, memory())
    assert call("urVirtualMemUnmap", context, start, size) == Result.ERROR_INVALID_VALUE
    gate.signal()
    must("urEventWait", *listed(event))
    assert byte(start + SIZE - 1) == 5
    must("urVirtualMemUnmap", context, start, size)
    must("urVirtualMemFree", context, start, size)


def called_back() -> None:
    """An event lives until its callback has returned, and its references are the program's after that."""
    here, told, gate = queue(), SimpleQueue[tuple[int, ...]](), threading.Event()
    held = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _data: gate.wait())
    notify = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)(
        lambda event, status, data: told.put((event, status, data, status_of(event)))
    )

    def status_of(event: int) -> int:
        return call("urEventRetain", event) or call("urEventRelease", event)

    def references_of(event: int) -> int:
        found = ctypes.c_uint32()
        gone = call("urEventGetInfo", event, EventInfo.REFERENCE_COUNT, 4, found, 0) == Result.ERROR_INVALID_EVENT
        return 0 if gone else found.value

    for early in (True, False) * 5:
        gate.clear()
        must("urEnqueueHostTaskExp", here, ctypes.cast(held, ctypes.c_void_p).value, 0, 0, 0, 0, 0)
        event = made("urEnqueueEventsWaitWithBarrier", here, 0, 0)
        must("urEventSetCallback", event, ExecutionInfo.COMPLETE, ctypes.cast(notify, ctypes.c_void_p).value, 7)
        if early:
            must("urEventRelease", event)
        gate.set()
        assert told.get(timeout=20) == (event, ExecutionInfo.COMPLETE, 7, 0)
        if not early:
            until(lambda event: references_of(event) == 1, event)
            must("urEventRelease", event)
        until(lambda event: references_of(event) == 0, event)


def accepted_and_failed() -> None:
    """A command that was accepted and cannot be enqueued: its event says so."""
    from xpushare import OutOfMemoryError
    from xpushare.core import event as core_event

    here, there = queue(), memory()
    create, failing = core_event.create, [True]

    def scarce(*arguments: Any) -> Any:
        if failing and failing.pop():
            raise OutOfMemoryError("no slot is left")
        return create(*arguments)

    core_event.create = scarce
    event = by_python(here, there)
    assert call("urEventWait", *listed(event)) == Result.ERROR_IN_EVENT_LIST_EXEC_STATUS
    assert status(event) == EventStatus.ERROR
    assert not failing
    event = by_python(here, there)
    must("urEventWait", *listed(event))
    assert byte(there + SIZE - 1) == 127


def refused() -> None:
    """A command that the driver refuses: Python tells of it, and what comes later is done."""
    from xpushare.adapters.mock.script import driver

    here, there = queue(), memory()
    before = fill(here, there, 1)
    must("urEventWait", *listed(before))
    driver().fail("fill", nth=0)
    event = fill(here, there, 2)
    assert call("urEventWait", *listed(event)) == Result.ERROR_IN_EVENT_LIST_EXEC_STATUS
    driver().reset()
    must("urEventWait", *listed(fill(here, there, 3), before))
    assert byte(there + SIZE - 1) == 3
    driver().fail("store64", nth=1)  # the command is there, and its signal is not: Python queues both once more
    event = fill(here, there, 4)
    must("urEventWait", *listed(event, fill(here, there, 5)))
    assert byte(there + SIZE - 1) == 5
    must("urQueueFinish", here)


def accepted_and_nothing_left() -> None:
    """Nor is there room for an event that says so."""
    from xpushare import OutOfMemoryError
    from xpushare.core import event as core_event

    here, there = queue(), memory()
    create = core_event.create

    def scarce(*_arguments: Any) -> Any:
        raise OutOfMemoryError("no slot is left")

    core_event.create = scarce
    event = by_python(here, there)
    while (found := call("urEventWait", *listed(event))) == 0:
        time.sleep(0.01)
    assert found == Result.ERROR_INVALID_EVENT, found
    core_event.create = create
    must("urEventWait", *listed(by_python(here, there)))


def forked() -> None:
    """A child that ends as Python does leaves the commands to its parent."""
    here, there = queue(), memory(64 * SIZE)
    events = []
    for value in range(20):
        out = ctypes.c_uint64()
        must("urEnqueueUSMFill", here, there, 1, ctypes.c_uint8(value), 64 * SIZE, 0, 0, out)
        events.append(out.value)
    child = os.fork()
    if child == 0:
        sys.exit(0)
    end = time.monotonic() + 5  # of XPUSHARE_LINGER's 10
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        assert time.monotonic() < end, "the child waits for what nobody does there"
        time.sleep(0.01)
    must("urEventWait", *listed(*events))


def lost(folder: str) -> None:
    """The process that owes a signal is killed while commands wait for it."""
    data = (Path(folder) / "event").read_bytes()
    shared = made("urIPCOpenEventHandleExp", loader.get_context(), ctypes.create_string_buffer(data), len(data))
    here, there = queue(), memory()
    assert status(shared) == EventStatus.SUBMITTED
    must("urEnqueueEventsWaitWithBarrier", here, *listed(shared), 0)
    event = fill(here, there, 5)
    assert status(event) == EventStatus.SUBMITTED
    print("waiting", flush=True)
    assert call("urEventWait", *listed(event)) == Result.ERROR_IN_EVENT_LIST_EXEC_STATUS
    assert status(event) == EventStatus.ERROR
    if os.environ["ONEAPI_DEVICE_SELECTOR"] == "native_cpu:0":
        assert byte(there + SIZE - 1) == 5  # a device may come to it later: see below
    refused = call("urEnqueueUSMFill", here, there, 1, ctypes.c_uint8(6), SIZE, *listed(event), 0)
    assert refused == Result.ERROR_IN_EVENT_LIST_EXEC_STATUS
    assert call("urQueueFinish", here) != 0
    must("urQueueFinish", here)
    assert byte(there + SIZE - 1) == 5  # what comes after is done all the same
    must("urEventWait", *listed(fill(here, there, 7)))
    assert byte(there + SIZE - 1) == 7


def ends() -> None:
    """Python ends with commands that it has not got yet."""
    here, there = queue(), memory()
    for value in range(200):
        fill(here, there, value)


# --- what upstream's tests ask ------------------------------------------------------------------------------------

GUARD: Final = 0xA5A5A5A5A5A5A5A5


def guarded() -> Any:
    """Room for one word, between two that nobody may write to."""
    return (ctypes.c_uint64 * 3)(GUARD, 0, GUARD)


def word(room: Any) -> int:
    assert (room[0], room[2]) == (GUARD, GUARD), "more was written than one word"
    return int(room[1])


def at(room: Any) -> int:
    return ctypes.addressof(room) + 8


def adapter_and_platform() -> tuple[int, int]:
    adapters, platform = (ctypes.c_uint64 * 8)(), ctypes.c_uint64()
    must("urAdapterGet", 8, adapters, 0)
    must("urPlatformGet", adapters[0], 1, platform, 0)
    return adapters[0], platform.value


def texts() -> None:
    """A text that comes out is an address, and nothing is written beyond that."""
    from xpushare import DeviceError
    from xpushare.adapters.mock.script import driver

    adapter, platform = adapter_and_platform()
    message, number = guarded(), ctypes.c_int32(7)
    must("urAdapterGetLastError", adapter, at(message), number)
    assert (ctypes.string_at(word(message)), number.value) == (b"", 0)
    wrong = "the driver says at length what was wrong"
    driver().fail("range_map", DeviceError(wrong, native=-5))
    context, device, size = loader.get_context(), loader.get_device(), 1 << 21
    start = made("urVirtualMemReserve", context, 0, size)
    physical = made("urPhysicalMemCreate", context, device, size, 0)
    result = call("urVirtualMemMap", context, start, size, physical, 0, VirtualMemAccessFlags.READ_WRITE)
    assert result == Result.ERROR_ADAPTER_SPECIFIC
    driver().reset()
    must("urAdapterGetLastError", adapter, at(message), number)
    assert wrong.encode() in ctypes.string_at(word(message))
    assert number.value == -5
    option = guarded()
    must("urPlatformGetBackendOption", platform, ctypes.create_string_buffer(b"-O2"), at(option))
    assert ctypes.string_at(word(option)) == b""


def queue_flags() -> None:
    """A queue can be made with each property that the device has, and with no other."""
    found = ctypes.c_uint32()
    for query in (DeviceInfo.QUEUE_PROPERTIES, DeviceInfo.QUEUE_ON_HOST_PROPERTIES):
        must("urDeviceGetInfo", loader.get_device(), query, 4, found, 0)
        for flag in QueueFlags:
            properties = (ctypes.c_uint64 * 3)(STRUCTURE_TYPES["QueueProperties"], 0, flag)
            out = ctypes.c_uint64()
            result = call("urQueueCreate", loader.get_context(), loader.get_device(), properties, out)
            assert (result == 0) == bool(found.value & flag), flag
            if result == 0:
                must("urQueueRelease", out.value)


def host_tasks() -> None:
    """The device says whether its queues run functions of the program."""
    found, ran = ctypes.c_uint8(), []
    must("urDeviceGetInfo", loader.get_device(), DeviceInfo.ENQUEUE_HOST_TASK_SUPPORT_EXP, 1, found, 0)
    task, here = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _data: ran.append(1)), queue()
    result = call("urEnqueueHostTaskExp", here, ctypes.cast(task, ctypes.c_void_p).value, 0, 0, 0, 0, 0)
    must("urQueueFinish", here)
    assert (result, ran) == ((0, [1]) if found.value else (Result.ERROR_UNSUPPORTED_FEATURE, []))


def times() -> None:
    """QUEUED and SUBMIT are known before the command is complete; START and END are not."""
    properties = (ctypes.c_uint64 * 3)(STRUCTURE_TYPES["QueueProperties"], 0, QueueFlags.PROFILING_ENABLE)
    here = made("urQueueCreate", loader.get_context(), loader.get_device(), properties)
    gate = held_up(here)
    event = fill(here, memory(), 1)
    found = ctypes.c_uint64()
    early = []
    must("urDeviceGetGlobalTimestamps", loader.get_device(), found, 0)
    assert found.value
    clock = found.value
    for query in (ProfilingInfo.COMMAND_QUEUED, ProfilingInfo.COMMAND_SUBMIT):
        must("urEventGetProfilingInfo", event, query, 8, found, 0)
        early.append(found.value)
    for query in (ProfilingInfo.COMMAND_START, ProfilingInfo.COMMAND_END, ProfilingInfo.COMMAND_COMPLETE):
        result = call("urEventGetProfilingInfo", event, query, 8, found, 0)
        assert result == Result.ERROR_PROFILING_INFO_NOT_AVAILABLE
    gate.signal()
    must("urEventWait", *listed(event))
    for query in (ProfilingInfo.COMMAND_START, ProfilingInfo.COMMAND_END):
        must("urEventGetProfilingInfo", event, query, 8, found, 0)
        early.append(found.value)
    assert 0 < early[0] <= early[1] <= clock <= early[2] <= early[3]
    assert call("urEventGetProfilingInfo", event, ProfilingInfo.COMMAND_END, 0, found, 0) == Result.ERROR_INVALID_VALUE
    must("urEventGetProfilingInfo", event, ProfilingInfo.COMMAND_END, 0, 0, 0)
    plain = fill(queue(), memory(), 1)
    result = call("urEventGetProfilingInfo", plain, ProfilingInfo.COMMAND_QUEUED, 0, 0, 0)
    assert result == Result.ERROR_PROFILING_INFO_NOT_AVAILABLE


def instants() -> None:
    """What only marks a place in a queue takes no time: START equals END (upstream's timestamp recording)."""
    context, device, found = loader.get_context(), loader.get_device(), ctypes.c_uint64()
    properties = (ctypes.c_uint64 * 3)(STRUCTURE_TYPES["QueueProperties"], 0, QueueFlags.PROFILING_ENABLE)
    profiled = made("urQueueCreate", context, device, properties)
    desc = (ctypes.c_uint64 * 3)(STRUCTURE_TYPES["ExpEventDesc"], 0, ExpEventFlags.ENABLE_PROFILING)
    signalled = ctypes.c_uint64(made("urEventCreateExp", context, device, desc))
    for here in (queue(), profiled):
        fill(here, memory(), 1)
        must("urEnqueueEventsWaitWithBarrierExt", here, 0, 0, 0, signalled)
        events = [signalled.value, made("urEnqueueTimestampRecordingExp", here, 0, 0, 0)]
        if here == profiled:
            events += [made(name, here, 0, 0) for name in ("urEnqueueEventsWait", "urEnqueueEventsWaitWithBarrier")]
        must("urEventWait", *listed(*events))
        for event in events:
            times = []
            for query in (ProfilingInfo.COMMAND_SUBMIT, ProfilingInfo.COMMAND_START, ProfilingInfo.COMMAND_END):
                must("urEventGetProfilingInfo", event, query, 8, found, 0)
                times.append(found.value)
            assert 0 < times[0] <= times[1] == times[2], times


def timestamp() -> None:
    """A command is submitted when the program hands it in, however late this process's Python comes to it."""
    here, out, found = queue(), ctypes.c_uint64(), ctypes.c_uint64()
    before = time.monotonic_ns()
    must("urEnqueueTimestampRecordingExp", here, 0, 0, 0, out, by=keeping)  # Python's lock is not given up
    end = time.monotonic_ns() + 50_000_000
    handed_in = time.monotonic_ns()
    while time.monotonic_ns() < end:  # in C, without giving the lock up
        keeping.get_context()
    must("urEventWait", *listed(out.value))
    for query in (ProfilingInfo.COMMAND_QUEUED, ProfilingInfo.COMMAND_SUBMIT):
        must("urEventGetProfilingInfo", out.value, query, 8, found, 0)
        assert before <= found.value <= handed_in, (query, found.value - before, handed_in - before)


def a_device_is_not_counted() -> None:
    found = ctypes.c_uint32()
    for name in ("urDeviceRetain", "urDeviceRetain", "urDeviceRelease", "urDeviceRelease", "urDeviceRelease"):
        must(name, loader.get_device())
        must("urDeviceGetInfo", loader.get_device(), DeviceInfo.REFERENCE_COUNT, 4, found, 0)
        assert found.value == 1


def overlaps() -> None:
    """What the driver says of bytes that overlap is the answer, whoever enqueues the copy."""
    from xpushare.adapters.mock.script import driver

    here, there = queue(), memory()
    driver().fail("copy", nth=0)
    for blocking in (1, 0):
        result = call("urEnqueueUSMMemcpy", here, blocking, there, there + 64, 4096, 0, 0, 0)
        assert result == Result.ERROR_ADAPTER_SPECIFIC, result
        must("urEnqueueUSMMemcpy", here, blocking, there, there, 4096, 0, 0, 0)  # onto themselves: nothing to do
    driver().reset()
    must("urQueueFinish", here)


def own_buffers() -> None:
    """SYCL copies a buffer back to the memory that it lies in: the driver is not asked to."""
    data = (ctypes.c_uint8 * 4096)(*[7] * 4096)
    properties = (ctypes.c_uint64 * 3)(STRUCTURE_TYPES["BufferProperties"], 0, ctypes.addressof(data))
    flags = MemFlags.READ_WRITE | MemFlags.USE_HOST_POINTER
    buffer = made("urMemBufferCreate", loader.get_context(), flags, 4096, properties)
    must("urEnqueueMemBufferRead", queue(), buffer, 1, 0, 4096, data, 0, 0, 0)
    assert bytes(data) == bytes([7]) * 4096
    must("urMemRelease", buffer)


def own_host_pointer() -> None:
    """SYCL copies a buffer back to the memory that it lies in. Some drivers refuse that."""
    from xpushare.adapters.mock.script import driver

    data = (ctypes.c_uint8 * 4096)(*[7] * 4096)
    properties = (ctypes.c_uint64 * 3)(STRUCTURE_TYPES["BufferProperties"], 0, ctypes.addressof(data))
    flags = MemFlags.READ_WRITE | MemFlags.USE_HOST_POINTER
    buffer = made("urMemBufferCreate", loader.get_context(), flags, 4096, properties)
    here = queue()
    driver().fail("copy", nth=0)
    must("urEnqueueMemBufferRead", here, buffer, 1, 0, 4096, data, 0, 0, 0)
    must("urEnqueueMemBufferWrite", here, buffer, 1, 64, 64, ctypes.addressof(data) + 64, 0, 0, 0)
    driver().reset()
    assert bytes(data) == bytes([7]) * 4096
    must("urMemRelease", buffer)


def parts_of_buffers() -> None:
    """A part allows no more than its buffer."""
    write, read, both = MemFlags.WRITE_ONLY, MemFlags.READ_ONLY, MemFlags.READ_WRITE
    for whole, allowed in ((both, (both, read, write)), (read, (read,)), (write, (write,))):
        buffer = made("urMemBufferCreate", loader.get_context(), whole, 4096, 0)
        region = (ctypes.c_uint64 * 4)(STRUCTURE_TYPES["BufferRegion"], 0, 0, 1024)
        for flags in (both, read, write):
            out = ctypes.c_uint64()
            result = call("urMemBufferPartition", buffer, flags, BufferCreateType.REGION, region, out)
            assert result == (0 if flags in allowed else Result.ERROR_INVALID_VALUE), (whole, flags)
            if result == 0:
                must("urMemRelease", out.value)
        part = made("urMemBufferPartition", buffer, 0, BufferCreateType.REGION, region)  # as its buffer
        must("urMemRelease", part)
        must("urMemRelease", buffer)


def barriers(rounds: str = "200") -> None:
    """A barrier of one queue comes after a copy of another (upstream's `urEnqueueEventsWaitWithBarrierTest`)."""
    one, two = queue(), queue()
    size = 4096
    source, target = (made("urMemBufferCreate", loader.get_context(), MemFlags.READ_WRITE, size, 0) for _ in range(2))
    for number in range(int(rounds)):
        for here, there in ((one, two), (two, one)):
            wanted = bytes([number % 251 + (here == one)]) * size
            given, found = ctypes.create_string_buffer(wanted, size), ctypes.create_string_buffer(size)
            must("urEnqueueMemBufferWrite", here, source, 1, 0, size, given, 0, 0, 0)
            copied = made("urEnqueueMemBufferCopy", here, source, target, 0, 0, size, 0, 0)
            after = made("urEnqueueEventsWaitWithBarrier", there, *listed(copied))
            must("urQueueFlush", there)
            must("urQueueFlush", here)
            must("urEventWait", *listed(after))
            assert status(copied) == status(after) == EventStatus.COMPLETE
            must("urEnqueueMemBufferRead", here, target, 1, 0, size, found, 0, 0, 0)
            assert found.raw == wanted, f"round {number}: {found.raw[:4]!r}"
            must("urEventRelease", copied)
            must("urEventRelease", after)
    for buffer in (source, target):
        must("urMemRelease", buffer)


def no_native_event() -> None:
    """The native handle 0, a dummy in upstream's tests: an event that is complete."""
    event = made("urEventCreateWithNativeHandle", 0, loader.get_context(), 0)
    assert status(event) == EventStatus.COMPLETE
    must("urEnqueueEventsWait", queue(), *listed(event), 0)
    must("urEventRelease", event)


def queues_of_opencl() -> None:
    """A queue over a cl_command_queue, which the program keeps, or hands over."""
    opencl = ctypes.CDLL("libOpenCL.so.1")
    opencl.clRetainCommandQueue.argtypes = [ctypes.c_void_p]
    opencl.clGetCommandQueueInfo.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_size_t, *[ctypes.c_void_p] * 2]
    here, there, found = queue(), memory(), ctypes.c_uint64()
    handle = made("urQueueGetNativeHandle", here, 0)

    def references() -> int:
        found = ctypes.c_uint32()
        assert opencl.clGetCommandQueueInfo(handle, 0x1092, 4, ctypes.addressof(found), None) == 0
        return found.value

    before = references()
    for owned in (0, 1):
        if owned:
            assert opencl.clRetainCommandQueue(handle) == 0
        properties = (ctypes.c_uint64 * 3)(STRUCTURE_TYPES["QueueNativeProperties"], 0, owned)
        theirs = made("urQueueCreateWithNativeHandle", handle, loader.get_context(), loader.get_device(), properties)
        assert made("urQueueGetNativeHandle", theirs, 0) == handle
        must("urQueueGetInfo", theirs, QueueInfo.CONTEXT, 8, found, 0)
        assert found.value == loader.get_context()
        for on, value in ((here, 1), (theirs, 2), (here, 3)):
            must("urEventWait", *listed(fill(on, there, value)))
            assert byte(there) == value
        must("urQueueFinish", theirs)
        must("urQueueRelease", theirs)
        until(lambda _handle: references() == before, handle)
    result = call("urQueueCreateWithNativeHandle", 0, loader.get_context(), loader.get_device(), 0, found)
    assert result == Result.ERROR_INVALID_VALUE
    for name, holder in (("urPlatformGetNativeHandle", "urDeviceGetInfo"), ("urDeviceGetNativeHandle", "")):
        if holder:
            must(holder, loader.get_device(), DeviceInfo.PLATFORM, 8, found, 0)
        assert made(name, found.value if holder else loader.get_device())


def chains() -> None:
    """A struct that is chained to another (`pNext`) is honoured, or the call is refused."""
    context, device = loader.get_context(), loader.get_device()

    def made_with(function: str, name: str, *chained: Any, own: tuple[int, ...] = (0, 0, 0)) -> int:
        for each, after in itertools.pairwise(chained):
            each[1] = ctypes.addressof(after)
        head = ctypes.addressof(chained[0]) if chained else 0
        whole = (ctypes.c_uint64 * 8)(STRUCTURE_TYPES[name], head, *own)
        out = ctypes.c_uint64()
        return call(function, context, device, whole, *((0, 4096) if name == "USMDesc" else ()), out)

    def link(kind: int, value: int = 0) -> Any:
        return (ctypes.c_uint64 * 4)(kind, 0, value)

    refused = Result.ERROR_UNSUPPORTED_FEATURE
    event = "urEventCreateExp", "ExpEventDesc"
    assert made_with(*event) == 0
    for value, result in ((0, 0), (1, 0), (2, refused), (3, refused)):
        assert made_with(*event, link(0x8001, value)) == result, value  # sync mode: low power
    assert made_with(*event, link(0x8001, 1), link(0x8001)) == 0
    assert made_with(*event, link(0x8001, 1), link(0x8002)) == refused
    assert made_with(*event, link(15)) == refused
    for value, result in ((0, 0), (1, refused)):
        assert made_with("urQueueCreate", "QueueProperties", link(15, value)) == result
    assert made_with("urQueueCreate", "QueueProperties", link(0x4001)) == refused
    assert made_with("urUSMDeviceAlloc", "USMDesc", link(9), link(35)) == 0
    assert made_with("urUSMDeviceAlloc", "USMDesc", link(0x7FFF)) == refused


def half_a_handle() -> None:
    """A program may ask for the size of handle data alone, which exports nothing, or for their address alone."""
    import xpushare as xs
    from xpushare.sharing import node

    there, size, data = memory(), ctypes.c_uint64(), guarded()
    context = loader.get_context()
    must("urIPCGetMemHandleExp", context, there, 0, size)
    assert size.value == xs.ipc.Handle.NBYTES
    assert not list(node.current().table().exports())
    must("urIPCGetMemHandleExp", context, there, at(data), 0)
    handle = xs.ipc.Handle(ctypes.string_at(word(data), size.value))
    assert handle.nbytes == SIZE
    must("urIPCPutMemHandleExp", context, word(data))
    assert call("urIPCGetMemHandleExp", context, there, 0, 0) == Result.ERROR_INVALID_NULL_POINTER


if __name__ == "__main__":
    assert loader.begin(sys.argv[3].encode()) == 0
    loader.make()
    scenario: Callable[..., None] = globals()[sys.argv[1]]
    scenario(*sys.argv[4:])
    print("good", flush=True)
