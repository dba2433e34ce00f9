"""Commands in queues."""

from __future__ import annotations

from collections.abc import Callable

from xpushare._event import Event as SharedEvent
from xpushare._lifecycle import use
from xpushare._memory import memory_over
from xpushare._result import Result
from xpushare.adapters.base import Profile
from xpushare.core import event as core_event
from xpushare.core import memory as core_memory
from xpushare.core import queue as core_queue
from xpushare.core.memory import Range
from xpushare.core.queue import Work
from xpushare.ur import _objects
from xpushare.ur._enums import Command
from xpushare.ur._error import URError
from xpushare.ur._objects import Event, Queue
from xpushare.ur._spec import Pattern, Pointer, Size, WaitList, function, rule
from xpushare.ur._structs import ExpEnqueueExtProperties

_WAIT_LIST_RULE = rule(
    "INVALID_EVENT_WAIT_LIST",
    "any(event is None for event in phEventWaitList or ())",
    "an element of `phEventWaitList` is null",
)

_WAIT_LIST_OTHERS = (
    ("INVALID_EVENT_WAIT_LIST", "an element of `phEventWaitList` is not a valid event"),
    ("IN_EVENT_LIST_EXEC_STATUS", "an event in `phEventWaitList` has the status `EventStatus.ERROR`"),
)


def _hold_back(work: Work, events: tuple[Event, ...]) -> None:
    """Let the queue wait for events, none of which may be lost."""
    opened = [use(event.shared) for event in events]
    for each in [each for each in opened if not core_event.done(each)]:
        core_queue.wait(work, each, None)


def _command(
    queue: Queue, command: Command, events: tuple[Event, ...], submit: Callable[[Work], None] | None = None
) -> Event:
    """Enqueue a command and a signal after it; the event of that."""
    work = use(queue.shared)
    device, context = queue.device.shared, queue.context.shared
    shared = SharedEvent(device, context=context, enable_profiling=queue.profiling)
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
    return event


def _operand(queue: Queue, address: int, size: int) -> tuple[Range, int, int]:
    """The bytes there: of memory that is known here, else ordinary memory of this process."""
    found = _objects.places.known(address)
    if found is None:
        found = core_memory.host_bytes(address, size, queue.device.shared, queue.context.shared)
    if found is None:
        raise URError(f"this process has no {size} bytes at {address:#x}", result=Result.ERROR_INVALID_MEM_OBJECT)
    if size > found.nbytes:
        raise URError(
            f"{size} bytes from {address:#x} on exceed the allocation, which ends after {found.nbytes}",
            result=Result.ERROR_INVALID_SIZE,
        )
    return found, 0, found.nbytes


@function(
    33,
    "INVALID_QUEUE",
    "INVALID_EVENT",
    ("INVALID_SIZE", "`size` exceeds the allocation of `pSrc` or `pDst`"),
    *_WAIT_LIST_OTHERS,
    "INVALID_MEM_OBJECT",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(rule("INVALID_SIZE", "size == 0", "`size` is 0"), _WAIT_LIST_RULE),
    operations=("Queue.copy",),
    invalid=Result.ERROR_INVALID_MEM_OBJECT,
    makes="event",
    python="`queue.copy(dst, src, nbytes)`",
)
def urEnqueueUSMMemcpy(
    hQueue: Queue, blocking: bool, pDst: Pointer, pSrc: Pointer, size: Size, phEventWaitList: WaitList
) -> Event:
    """Copies memory: USM memory, a mapped range, or ordinary memory of the process, which the caller keeps."""
    target, source = _operand(hQueue, pDst, size), _operand(hQueue, pSrc, size)
    event = _command(
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
    *_WAIT_LIST_OTHERS,
    "INVALID_MEM_OBJECT",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(
        rule("INVALID_SIZE", "len(pPattern) == 0 or size == 0", "`pPattern` is empty or `size` is 0"),
        rule("INVALID_SIZE", "len(pPattern) > size", "`pPattern` is longer than `size`"),
        rule("INVALID_SIZE", "size % len(pPattern)", "`size` is no multiple of the length of `pPattern`"),
        _WAIT_LIST_RULE,
    ),
    operations=("Queue.fill",),
    invalid=Result.ERROR_INVALID_MEM_OBJECT,
    makes="event",
    python="`queue.fill(dst, pattern, nbytes)`",
)
def urEnqueueUSMFill(hQueue: Queue, pMem: Pointer, pPattern: Pattern, size: Size, phEventWaitList: WaitList) -> Event:
    """Fills memory with a pattern: USM memory, a mapped range, or ordinary memory of the process.

    The length of `pPattern` must be a power of two; UR names no result for the contrary.
    """
    target = _operand(hQueue, pMem, size)

    def submit(work: Work) -> None:
        if isinstance(target[0].allocation, core_memory.HostBytes) and hQueue.device.shared.type != "cpu":
            staged = core_memory.allocate("host", size, hQueue.device.shared, hQueue.context.shared)
            memoryview(memory_over(staged))[:] = pPattern * (size // len(pPattern))
            core_queue.copy(work, target, (staged, 0, size), size)  # a device fills its own memory only
        else:
            core_queue.fill(work, target, pPattern, size)

    return _command(hQueue, Command.USM_FILL, phEventWaitList, submit)


@function(
    18,
    "INVALID_QUEUE",
    "INVALID_EVENT",
    *_WAIT_LIST_OTHERS,
    "INVALID_VALUE",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(_WAIT_LIST_RULE,),
    operations=("Queue.wait",),
    makes="event",
    python="`queue.wait(event)`",
)
def urEnqueueEventsWait(hQueue: Queue, phEventWaitList: WaitList) -> Event:
    """A command that completes after the events, or after all commands before it if there are none."""
    return _command(hQueue, Command.EVENTS_WAIT, phEventWaitList)


@function(
    19,
    "INVALID_QUEUE",
    "INVALID_EVENT",
    *_WAIT_LIST_OTHERS,
    "INVALID_VALUE",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(_WAIT_LIST_RULE,),
    operations=("Queue.wait",),
    makes="event",
    python="`queue.wait(event)`",
)
def urEnqueueEventsWaitWithBarrier(hQueue: Queue, phEventWaitList: WaitList) -> Event:
    """As `urEnqueueEventsWait`, and the commands after it wait for it."""
    return _command(hQueue, Command.EVENTS_WAIT_WITH_BARRIER, phEventWaitList)


@function(
    246,
    "INVALID_QUEUE",
    "INVALID_EVENT",
    ("INVALID_CONTEXT", "`phEvent` is of another context than `hQueue`"),
    *_WAIT_LIST_OTHERS,
    "INVALID_VALUE",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(_WAIT_LIST_RULE,),
    operations=(
        "Queue.wait",
        "Queue.signal",
    ),
    invalid=Result.ERROR_INVALID_EVENT,
    python="`queue.signal(event)`",
)
def urEnqueueEventsWaitWithBarrierExt(
    hQueue: Queue,
    pProperties: ExpEnqueueExtProperties | None,  # low power is a permission
    phEventWaitList: WaitList,
    phEvent: Event | None,
) -> Event:
    """As `urEnqueueEventsWaitWithBarrier`, with properties; it can signal a reusable event.

    `phEvent` is an event of `urEventCreateExp`, which is signalled and returned; `None` makes a new event. It must
    be of the context of `hQueue`; one with IPC cannot be signalled by a queue with profiling. It must not be an element
    of `phEventWaitList`, and the device of `hQueue` must answer true to
    `DeviceInfo.REUSABLE_EVENTS_SUPPORT_EXP`; UR names no result for the contrary.
    """
    if phEvent is None:
        return _command(hQueue, Command.EVENTS_WAIT_WITH_BARRIER, phEventWaitList)
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
