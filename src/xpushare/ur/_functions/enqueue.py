"""Functions that enqueue commands in queues."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Annotated, Final, NamedTuple

from xpushare._native import DONE
from xpushare.adapters.base import Profile
from xpushare.adapters.stream.queue import DeviceQueue
from xpushare.common.aspects import Aspect
from xpushare.common.errors import XpuShareError
from xpushare.common.result import Result
from xpushare.core import event as core_event
from xpushare.core import memory as core_memory
from xpushare.core import queue as core_queue
from xpushare.core.device import adapter_of, info_of
from xpushare.core.memory import Range
from xpushare.core.queue import Work
from xpushare.objects.event import Event as SharedEvent
from xpushare.objects.event import event_over
from xpushare.objects.lifecycle import use
from xpushare.objects.memory import memory_over
from xpushare.timeline.loss import QUEUE_FAILED, note_failure
from xpushare.ur import _objects
from xpushare.ur._enums import Command, USMAdviceFlags, USMMigrationFlags
from xpushare.ur._error import HostTaskError, URError
from xpushare.ur._objects import Event, Queue
from xpushare.ur._spec import HostTask, Pattern, Pointer, Size, Touched, UserData, WaitList, function, rule
from xpushare.ur._structs import ExpEnqueueExtProperties, ExpHostTaskProperties

WAIT_LIST_RULE = rule(
    "INVALID_EVENT_WAIT_LIST",
    "any(event is None for event in phEventWaitList or ())",
    "an element of `phEventWaitList` is null",
)

WAIT_LIST_OTHERS = (
    ("INVALID_EVENT_WAIT_LIST", "an element of `phEventWaitList` is not a valid event"),
    ("IN_EVENT_LIST_EXEC_STATUS", "an event in `phEventWaitList` has the status `EventStatus.ERROR`"),
)


class Handover(NamedTuple):
    """A command that a C program submitted earlier to native code, and that Python now enqueues."""

    points: tuple[int | None, ...]
    """For each event in the wait list, the number of its newest signal when the command was submitted. None if that
    signal belonged to a command that Python had not enqueued yet.
    """
    queued: int
    """When the program submitted the command, by the host's monotonic clock."""
    fill: Callable[[Event], object] | None
    """A function that binds the command's event to the handle that the program already has, or None."""


class _Current(threading.local):
    handover: Handover | None = None


_current: Final = _Current()


@contextmanager
def handing_over(handover: Handover) -> Generator[None]:
    """A context manager. Commands that this thread enqueues inside it count as enqueued when the program submitted them
    (`handover.queued`).
    """
    _current.handover = handover
    try:
        yield
    finally:
        _current.handover = None


def complete(queue: Queue, command: Command) -> Event:
    """Return a new event for a command that is already complete."""
    shared = SharedEvent(queue.device.shared, context=queue.context.shared)
    event = Event.make(queue.context, shared, command, False)
    event.queue = event.failed_on = queue
    return event


def renew(queue: Queue) -> None:
    """Give the queue a new timeline (an event that only the queue signals) if it needs one. Native code can then
    enqueue commands in the queue.
    """
    work = use(queue.shared)
    assert isinstance(work.driver, DeviceQueue)
    if work.driver.spent:
        opened = core_event.create(queue.device.shared, queue.context.shared, False, False, signals=False)
        work.reach(opened)
        queue.timelines.append(opened)  # events that were made before still belong to the old timelines
        work.driver.own(opened.timeline.slot)


def handed_over(queue: Queue, command: Command, engine: int, point: int) -> Event:
    """Return the event of a command that native code has enqueued. The command's signal is the point `point` of one of
    the queue's timelines (events that only the queue signals). `engine` is the address of that timeline.
    """
    [opened] = [each for each in queue.timelines if each.timeline.slot.engine == engine]
    event = Event.make(queue.context, event_over(opened), command, False)
    event.queue = event.failed_on = queue
    event.point = point
    return event


def failed(queue: Queue, command: Command, error: URError) -> Event:
    """Return an event with the status ERROR for a command that native code accepted but that could not be enqueued. If
    the queue can run Python functions, `urQueueFinish` also reports `error`.
    """

    def fail() -> None:
        raise error

    with suppress(XpuShareError):
        core_queue.submit(use(queue.shared), fail, ())
    event = complete(queue, command)
    slot = use(event.shared).timeline.slot
    slot.submit(1)  # no later point may follow it
    note_failure(slot.domain, error)
    slot.fail(QUEUE_FAILED)
    return event


def _hold_back(work: Work, events: tuple[Event, ...]) -> None:
    """Make the queue wait for events, and raise `PeerLostError` if one of them is lost. If native code accepted the
    command, it has already checked for lost events, and this raises nothing for them.
    """
    opened = [(use(event.shared), event.point) for event in events]
    handover = _current.handover
    if handover is None:
        for each, own in [each for each in opened if not core_event.done(*each)]:
            core_queue.wait(work, each, own)
        return
    for (each, own), point in zip(opened, handover.points, strict=True):
        slot = each.timeline.slot
        newest = own or (slot.pending if point is None else point)
        if slot.state(newest) != DONE:
            core_queue.wait(work, each, newest)


def command(
    queue: Queue,
    command: Command,
    events: tuple[Event, ...],
    submit: Callable[[Work], None] | None = None,
    profiling: bool = False,
) -> Event:
    """Enqueue a command followed by a signal, and return the event of that signal. `submit` enqueues the work of the
    command. If it is None, the command does nothing. The event has timestamps if the queue has profiling or if
    `profiling` is true.
    """
    work = use(queue.shared)
    device, context = queue.device.shared, queue.context.shared
    shared = SharedEvent(device, context=context, enable_profiling=queue.profiling or profiling)
    event = Event.make(queue.context, shared, command, False)
    event.queue = event.failed_on = queue
    opened = use(shared)
    event.profile = opened.profile
    if events:
        _hold_back(work, events)
    if submit is not None:
        if queue.profiling:
            marker = core_event.create(device, context, False, True)
            core_queue.signal(work, marker)
            event.started = marker.profile
        submit(work)
    core_queue.signal(work, opened)
    handover = _current.handover
    if handover is not None:
        first = event.started or event.profile
        if first is not None:  # Python came to it later than the program called
            device_now, host_now = adapter_of(device).clock(info_of(device))
            first.queued = first.submit = handover.queued + device_now - host_now
        if handover.fill is not None:
            handover.fill(event)
    return event


def _operand(queue: Queue, address: int, size: int) -> tuple[Range, int, int]:
    found = _objects.places.operand(address, size, queue.device.shared, queue.context.shared)
    return found, 0, found.nbytes


def fill(work: Work, queue: Queue, target: tuple[Range, int, int], pattern: bytes, size: int) -> None:
    if isinstance(target[0].allocation, core_memory.HostBytes) and queue.device.shared.type != "cpu":
        staged = core_memory.allocate("host", size, queue.device.shared, queue.context.shared)
        memoryview(memory_over(staged))[:] = pattern * (size // len(pattern))
        core_queue.copy(work, target, (staged, 0, size), size)  # a device fills its own memory only
    else:
        core_queue.fill(work, target, pattern, size)


@function(
    33,
    "INVALID_QUEUE",
    "INVALID_EVENT",
    ("INVALID_SIZE", "`size` exceeds the allocation of `pSrc` or `pDst`"),
    *WAIT_LIST_OTHERS,
    "INVALID_MEM_OBJECT",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(rule("INVALID_SIZE", "size == 0", "`size` is 0"), WAIT_LIST_RULE),
    operations=("Queue.copy",),
    invalid=Result.ERROR_INVALID_MEM_OBJECT,
    makes="event",
    touches=(Touched("pDst", "size", "writes"), Touched("pSrc", "size", "reads")),
    python="`queue.copy(dst, src, nbytes)`",
)
def urEnqueueUSMMemcpy(
    hQueue: Queue, blocking: bool, pDst: Pointer, pSrc: Pointer, size: Size, phEventWaitList: WaitList
) -> Event:
    """Enqueue a copy of `size` bytes. If `blocking` is true, wait until the copy is complete.

    Each address can be in USM memory, in a mapped range of virtual memory or in other memory of the process. The caller
    must keep other memory of the process alive until the copy is complete.
    """
    target, source = _operand(hQueue, pDst, size), _operand(hQueue, pSrc, size)
    event = command(
        hQueue, Command.USM_MEMCPY, phEventWaitList, lambda work: core_queue.copy(work, target, source, size)
    )
    if blocking:
        core_event.wait(use(event.shared), None, None)
    return event


@function(
    32,
    "INVALID_QUEUE",
    "INVALID_EVENT",
    ("INVALID_SIZE", "`size` exceeds the allocation of `pMem`"),
    *WAIT_LIST_OTHERS,
    "INVALID_MEM_OBJECT",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(
        rule("INVALID_SIZE", "len(pPattern) == 0 or size == 0", "`pPattern` is empty or `size` is 0"),
        rule("INVALID_SIZE", "len(pPattern) > size", "`pPattern` is longer than `size`"),
        rule("INVALID_SIZE", "size % len(pPattern)", "`size` is not a multiple of the length of `pPattern`"),
        WAIT_LIST_RULE,
    ),
    operations=("Queue.fill",),
    invalid=Result.ERROR_INVALID_MEM_OBJECT,
    makes="event",
    touches=(Touched("pMem", "size", "writes"),),
    python="`queue.fill(dst, pattern, nbytes)`",
)
def urEnqueueUSMFill(hQueue: Queue, pMem: Pointer, pPattern: Pattern, size: Size, phEventWaitList: WaitList) -> Event:
    """Enqueue a command that fills `size` bytes with repetitions of a pattern. The address can be in USM memory, in a
    mapped range of virtual memory or in other memory of the process.

    The length of `pPattern` must be a power of two. Unified Runtime defines no error code for other lengths.
    """
    target = _operand(hQueue, pMem, size)

    return command(hQueue, Command.USM_FILL, phEventWaitList, lambda work: fill(work, hQueue, target, pPattern, size))


def _known(address: int, size: int) -> None:
    """Raise an error if `address` is not in USM memory, or if its allocation ends less than `size` bytes after it."""
    if size > _objects.places.find(address).nbytes:
        raise URError(f"{size} bytes from {address:#x} on exceed the allocation", result=Result.ERROR_INVALID_SIZE)


@function(
    34,
    "INVALID_QUEUE",
    "INVALID_EVENT",
    ("INVALID_SIZE", "`size` exceeds the allocation of `pMem`"),
    *WAIT_LIST_OTHERS,
    "INVALID_MEM_OBJECT",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(rule("INVALID_SIZE", "size == 0", "`size` is 0"), WAIT_LIST_RULE),
    makes="event",
    touches=(Touched("pMem", "size", "hints"),),
)
def urEnqueueUSMPrefetch(
    hQueue: Queue, pMem: Pointer, size: Size, flags: Annotated[int, USMMigrationFlags], phEventWaitList: WaitList
) -> Event:
    """Hint that memory will be used on a device or on the host.

    The command does nothing, since drivers move memory when it is used. The command completes after the earlier
    commands in the queue.
    """
    _known(pMem, size)
    return command(hQueue, Command.USM_PREFETCH, phEventWaitList)


@function(
    35,
    "INVALID_QUEUE",
    "INVALID_EVENT",
    ("INVALID_SIZE", "`size` exceeds the allocation of `pMem`"),
    "INVALID_MEM_OBJECT",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(rule("INVALID_SIZE", "size == 0", "`size` is 0"),),
    makes="event",
    touches=(Touched("pMem", "size", "hints"),),
)
def urEnqueueUSMAdvise(hQueue: Queue, pMem: Pointer, size: Size, advice: Annotated[int, USMAdviceFlags]) -> Event:
    """Hint how memory will be used. The command does nothing, and completes after the earlier commands in the queue."""
    _known(pMem, size)
    return command(hQueue, Command.USM_ADVISE, ())


@function(
    152,
    ("INVALID_SIZE", "`srcPitch * height` exceeds the allocation of `pSrc`, or `dstPitch * height` that of `pDst`"),
    *WAIT_LIST_OTHERS,
    "INVALID_MEM_OBJECT",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(
        rule("INVALID_SIZE", "srcPitch == 0 or dstPitch == 0", "`srcPitch` or `dstPitch` is 0"),
        rule("INVALID_SIZE", "srcPitch < width or dstPitch < width", "`width` exceeds `srcPitch` or `dstPitch`"),
        rule("INVALID_SIZE", "height == 0", "`height` is 0"),
        WAIT_LIST_RULE,
    ),
    operations=("Queue.copy",),
    invalid=Result.ERROR_INVALID_MEM_OBJECT,
    makes="event",
    touches=(Touched("pDst", "dstPitch * height", "writes"), Touched("pSrc", "srcPitch * height", "reads")),
    python="`queue.copy(dst, src, nbytes)` for each row",
)
def urEnqueueUSMMemcpy2D(
    hQueue: Queue,
    blocking: bool,
    pDst: Pointer,
    dstPitch: Size,
    pSrc: Pointer,
    srcPitch: Size,
    width: Size,
    height: Size,
    phEventWaitList: WaitList,
) -> Event:
    """Enqueue a copy of `height` rows of `width` bytes. If `blocking` is true, wait until the copy is complete. The
    memory can be of the same kinds as for `urEnqueueUSMMemcpy`.
    """
    target, _, _ = _operand(hQueue, pDst, dstPitch * height)
    source, _, _ = _operand(hQueue, pSrc, srcPitch * height)

    def submit(work: Work) -> None:
        for row in range(height) if width else ():
            core_queue.copy(work, (target, row * dstPitch, width), (source, row * srcPitch, width), width)

    event = command(hQueue, Command.USM_MEMCPY_2D, phEventWaitList, submit)
    if blocking:
        core_event.wait(use(event.shared), None, None)
    return event


@function(
    151,
    ("INVALID_SIZE", "`pitch * height` exceeds the allocation of `pMem`"),
    *WAIT_LIST_OTHERS,
    "INVALID_MEM_OBJECT",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(
        rule("INVALID_SIZE", "pitch == 0 or pitch < width", "`pitch` is 0 or less than `width`"),
        rule("INVALID_SIZE", "len(pPattern) == 0", "`pPattern` is empty"),
        rule("INVALID_SIZE", "len(pPattern) > width * height", "`pPattern` is longer than `width * height`"),
        rule("INVALID_SIZE", "len(pPattern) & (len(pPattern) - 1)", "the length of `pPattern` is not a power of two"),
        rule("INVALID_SIZE", "width == 0 or height == 0", "`width` or `height` is 0"),
        rule(
            "INVALID_SIZE",
            "width * height % len(pPattern)",
            "`width * height` is not a multiple of the length of `pPattern`",
        ),
        WAIT_LIST_RULE,
    ),
    operations=("Queue.fill",),
    invalid=Result.ERROR_INVALID_MEM_OBJECT,
    makes="event",
    touches=(Touched("pMem", "pitch * height", "writes"),),
    python="`queue.fill(dst, pattern, nbytes)` for each row",
)
def urEnqueueUSMFill2D(
    hQueue: Queue,
    pMem: Pointer,
    pitch: Size,
    pPattern: Pattern,
    width: Size,
    height: Size,
    phEventWaitList: WaitList,
) -> Event:
    """Enqueue a command that fills `height` rows of `width` bytes with repetitions of a pattern. The pattern continues
    from one row to the next. The memory can be of the same kinds as for `urEnqueueUSMFill`.
    """
    target, _, _ = _operand(hQueue, pMem, pitch * height)

    def submit(work: Work) -> None:
        length = len(pPattern)
        for row in range(height):
            begin = row * width % length
            turned = pPattern[begin:] + pPattern[:begin]
            line = turned if width % length == 0 else (turned * (width // length + 1))[:width]
            fill(work, hQueue, (target, row * pitch, width), line, width)

    return command(hQueue, Command.USM_FILL_2D, phEventWaitList, submit)


@function(
    223,
    ("INVALID_EVENT_WAIT_LIST", "an element of `phEventWaitList` is not a valid event"),
    ("UNSUPPORTED_FEATURE", "the device answers false to `DeviceInfo.TIMESTAMP_RECORDING_SUPPORT_EXP`"),
    rules=(WAIT_LIST_RULE,),
    operations=("Queue.signal",),
    makes="event",
    needs=Aspect.ext_oneapi_per_event_profiling,
    python="`queue.signal(xs.Event(device, enable_profiling=True))`",
)
def urEnqueueTimestampRecordingExp(hQueue: Queue, blocking: bool, phEventWaitList: WaitList) -> Event:
    """Enqueue a command that does nothing but record the times at which it runs. Its event has these times even if the
    queue has no profiling. If `blocking` is true, wait until the command is complete.
    """
    event = command(hQueue, Command.TIMESTAMP_RECORDING_EXP, phEventWaitList, profiling=True)
    if blocking:
        core_event.wait(use(event.shared), None, None)
    return event


@function(
    309,
    ("INVALID_EVENT_WAIT_LIST", "an element of `phEventWaitList` is not a valid event"),
    ("UNSUPPORTED_FEATURE", "the device answers false to `DeviceInfo.ENQUEUE_HOST_TASK_SUPPORT_EXP`"),
    rules=(WAIT_LIST_RULE,),
    operations=("Queue.submit",),
    makes="event",
    python="`queue.submit(function, data)`",
)
def urEnqueueHostTaskExp(
    hQueue: Queue,
    pfnHostTask: HostTask,
    data: UserData,
    pProperties: ExpHostTaskProperties | None,
    phEventWaitList: WaitList,
) -> Event:
    """Enqueue a call of `pfnHostTask(data)`, which a thread of the queue makes after the earlier commands in the queue.

    If the function raises an exception, `urQueueFinish` raises a `URError` with that exception as its cause. The
    `result` of the `URError` is `ERROR_UNKNOWN` or, if this package raised the exception, the exception's own `result`.
    """
    return command(
        hQueue, Command.HOST_TASK_EXP, phEventWaitList, lambda work: core_queue.submit(work, _run, (pfnHostTask, data))
    )


def _run(task: HostTask, data: UserData) -> None:
    try:
        task(data)
    except BaseException as error:  # SystemExit, too, which would end the thread that waits for the queue
        raise HostTaskError(f"a host task raised {type(error).__name__}: {error}") from error


@function(
    18,
    "INVALID_QUEUE",
    "INVALID_EVENT",
    *WAIT_LIST_OTHERS,
    "INVALID_VALUE",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(WAIT_LIST_RULE,),
    operations=("Queue.wait",),
    makes="event",
    python="`queue.wait(event)`",
)
def urEnqueueEventsWait(hQueue: Queue, phEventWaitList: WaitList) -> Event:
    """Enqueue a command that completes once the events in `phEventWaitList` are complete. If the list is empty, the
    command completes after all earlier commands in the queue.
    """
    return command(hQueue, Command.EVENTS_WAIT, phEventWaitList)


@function(
    19,
    "INVALID_QUEUE",
    "INVALID_EVENT",
    *WAIT_LIST_OTHERS,
    "INVALID_VALUE",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(WAIT_LIST_RULE,),
    operations=("Queue.wait",),
    makes="event",
    python="`queue.wait(event)`",
)
def urEnqueueEventsWaitWithBarrier(hQueue: Queue, phEventWaitList: WaitList) -> Event:
    """Enqueue the same command as `urEnqueueEventsWait`. Later commands in the queue wait until it is complete."""
    return command(hQueue, Command.EVENTS_WAIT_WITH_BARRIER, phEventWaitList)


@function(
    246,
    "INVALID_QUEUE",
    "INVALID_EVENT",
    ("INVALID_CONTEXT", "`phEvent` belongs to another context than `hQueue`"),
    *WAIT_LIST_OTHERS,
    "INVALID_VALUE",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(WAIT_LIST_RULE,),
    operations=(
        "Queue.wait",
        "Queue.signal",
    ),
    invalid=Result.ERROR_INVALID_EVENT,
    python="`queue.signal(event)`",
)
def urEnqueueEventsWaitWithBarrierExt(
    hQueue: Queue,
    pProperties: ExpEnqueueExtProperties | None,  # low power is only a permission
    phEventWaitList: WaitList,
    phEvent: Event | None,
) -> Event:
    """Enqueue a barrier as `urEnqueueEventsWaitWithBarrier` does, with properties and optionally with a reusable event.

    If `phEvent` is `None`, the command signals a new event. Otherwise it signals `phEvent`, which must come from
    `urEventCreateExp` or `urIPCOpenEventHandleExp`. The function returns the event that the command signals. `phEvent`
    must belong to the context of `hQueue`. If `hQueue` has profiling, `phEvent` must not be shared with other
    processes. `phEvent` must not be an element of `phEventWaitList`, and the device of `hQueue` must support
    `DeviceInfo.REUSABLE_EVENTS_SUPPORT_EXP`. Unified Runtime defines no error code for violations of the last two
    rules.
    """
    if phEvent is None:
        return command(hQueue, Command.EVENTS_WAIT_WITH_BARRIER, phEventWaitList)
    if not phEvent.reusable:
        raise URError(
            f"{phEvent!r} belongs to its command: only events of urEventCreateExp and urIPCOpenEventHandleExp can be "
            "signalled again",
            result=Result.ERROR_INVALID_EVENT,
        )
    if phEvent in phEventWaitList:
        raise URError(
            "`phEvent` is in `phEventWaitList`: it cannot wait for itself",
            result=Result.ERROR_INVALID_EVENT_WAIT_LIST,
        )
    if phEvent.context is not hQueue.context:
        raise URError(f"{phEvent!r} is of another context than {hQueue!r}", result=Result.ERROR_INVALID_CONTEXT)
    work = use(hQueue.shared)
    opened = use(phEvent.shared)
    if hQueue.profiling and (opened.ipc_enabled or opened.handle is not None):
        raise URError(
            f"{phEvent!r} is shared, and so it is not profiled: {hQueue!r} profiles what it does",
            result=Result.ERROR_INVALID_EVENT,
        )
    if hQueue.profiling and opened.profile is None:
        opened = opened._replace(profile=Profile())
    _hold_back(work, phEventWaitList)
    core_queue.signal(work, opened)
    phEvent.profile = opened.profile
    phEvent.queue = phEvent.failed_on = hQueue
    return phEvent
