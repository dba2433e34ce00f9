"""Functions for events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from xpushare.adapters.base import Profile
from xpushare.common.errors import InvalidArgumentError, PeerLostError
from xpushare.common.result import Result
from xpushare.core import event as core_event
from xpushare.objects.event import Event as SharedEvent
from xpushare.objects.lifecycle import use
from xpushare.ur._callbacks import call_after, call_soon
from xpushare.ur._enums import Command, EventInfo, EventStatus, ExecutionInfo, ExpEventFlags, ProfilingInfo
from xpushare.ur._error import URError
from xpushare.ur._objects import Context, Device, Event
from xpushare.ur._spec import UNSUPPORTED_QUERY, EventCallback, Info, UserData, function, rule
from xpushare.ur._structs import ExpEventDesc


def _tell(event: Event) -> None:
    """Record that the program knows about the failure of an event's command. The command's queue then accepts further
    commands.
    """
    queue, event.failed_on = event.failed_on, None
    if queue is not None and queue.references:
        use(queue.shared).driver.told()


def _status(event: Event) -> EventStatus:
    """Return the state of the newest command that signals the event."""
    try:
        return EventStatus.COMPLETE if core_event.done(use(event.shared), event.point) else EventStatus.SUBMITTED
    except PeerLostError:
        _tell(event)
        return EventStatus.ERROR


_EVENT: Final = Info(
    EventInfo,
    {
        "handle:queue": "COMMAND_QUEUE",
        "handle:context": "CONTEXT",
        "enum:Command": "COMMAND_TYPE",
        "enum:EventStatus": "COMMAND_EXECUTION_STATUS",
        "uint32": "REFERENCE_COUNT",
    },
    answers={
        EventInfo.COMMAND_EXECUTION_STATUS: _status,
        EventInfo.COMMAND_QUEUE: lambda event: event.queue,
        EventInfo.COMMAND_TYPE: lambda event: event.command,
        EventInfo.CONTEXT: lambda event: event.context,
        EventInfo.REFERENCE_COUNT: lambda event: event.references,
    },
)


def _not_available(why: str) -> URError:
    return URError(why, result=Result.ERROR_PROFILING_INFO_NOT_AVAILABLE)


def _profile(event: Event) -> Profile:
    if event.profile is None:
        raise _not_available(f"{event!r} and its queue have no profiling")
    return event.profile.known()


def _started(event: Event) -> Profile:
    """Return the profile that was recorded when the event's command started. If the command did nothing, only its end
    was recorded, and the profile of the end is returned.
    """
    return event.started.known() if event.started else _profile(event)


def _early(read: Callable[[Profile], int]) -> Callable[[Event], int]:
    """Return a function that answers a profiling query about an event, for a time that is known once the command is
    enqueued. `read` returns the time from the profile of the command's start.
    """

    def ask(event: Event) -> int:
        found = read(_started(event))
        if not found:
            raise _not_available(f"{event!r} stands for no command yet")
        return found

    return ask


def _late(read: Callable[[Profile, Profile], int]) -> Callable[[Event], int]:
    """Return a function that answers a profiling query about an event, for a time that is known once the command is
    complete. `read` returns the time from the profiles of the command's start and end.
    """

    def ask(event: Event) -> int:
        profile = _profile(event)
        if not profile.end or _status(event) is not EventStatus.COMPLETE:
            raise _not_available(f"the command of {event!r} is not complete")
        return read(_started(event), profile)

    return ask


_PROFILING: Final = Info(
    ProfilingInfo,
    {"uint64": "COMMAND_QUEUED COMMAND_SUBMIT COMMAND_START COMMAND_END COMMAND_COMPLETE"},
    answers={
        ProfilingInfo.COMMAND_QUEUED: _early(lambda started: started.queued),
        ProfilingInfo.COMMAND_SUBMIT: _early(lambda started: started.submit),
        ProfilingInfo.COMMAND_START: _late(lambda started, _ended: started.end),
        ProfilingInfo.COMMAND_END: _late(lambda _started, ended: ended.end),
        ProfilingInfo.COMMAND_COMPLETE: _late(lambda _started, ended: ended.end),
    },
    optional="COMMAND_QUEUED COMMAND_SUBMIT COMMAND_START COMMAND_END COMMAND_COMPLETE",
)


@function(
    322,
    "INVALID_CONTEXT",
    (
        "UNSUPPORTED_FEATURE",
        "`pEventDesc.flags` has `ENABLE_PROFILING` and the platform cannot profile single events",
    ),
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(
        rule(
            "INVALID_VALUE",
            "pEventDesc.flags & ExpEventFlags.IPC_EXP and pEventDesc.flags & ExpEventFlags.ENABLE_PROFILING",
            "`pEventDesc.flags` has both `IPC_EXP` and `ENABLE_PROFILING`",
            "adapter",
        ),
    ),
    operations=("Event",),
    makes="event",
    python="`xs.Event(device, context=…, enable_ipc=…, enable_profiling=…)`",
)
def urEventCreateExp(hContext: Context, hDevice: Device, pEventDesc: ExpEventDesc) -> Event:
    """Create a reusable event, which belongs to no command yet. `urEnqueueEventsWaitWithBarrierExt` can signal it."""
    event = SharedEvent(
        hDevice.shared,
        context=hContext.shared,
        enable_ipc=bool(pEventDesc.flags & ExpEventFlags.IPC_EXP),
        enable_profiling=bool(pEventDesc.flags & ExpEventFlags.ENABLE_PROFILING),
    )
    made = Event.make(hContext, event, Command.EVENTS_WAIT_WITH_BARRIER, True)
    made.profile = use(event).profile
    return made


@function(
    40,
    UNSUPPORTED_QUERY,
    "INVALID_EVENT",
    "OUT_OF_RESOURCES",
    "OUT_OF_HOST_MEMORY",
    operations=("Event.done",),
    handles=(PeerLostError,),
    python="`event.done`",
)
def urEventGetInfo(hEvent: Event, propName: EventInfo) -> Any:
    """Return the property `propName` of an event."""
    return _EVENT.answer(propName, hEvent)


@function(
    41,
    (
        "PROFILING_INFO_NOT_AVAILABLE",
        "the queue of `hEvent` was made without `QueueFlags.PROFILING_ENABLE`, or the time is not known yet",
    ),
    "INVALID_EVENT",
    "OUT_OF_RESOURCES",
    "OUT_OF_HOST_MEMORY",
    UNSUPPORTED_QUERY,
    unchecked=("pPropValue",),
)
def urEventGetProfilingInfo(hEvent: Event, propName: ProfilingInfo) -> int:
    """Return the time at which the command of an event was enqueued, submitted, started or completed.

    `COMMAND_QUEUED` and `COMMAND_SUBMIT` are known once the command is enqueued, the other times once it is complete. A
    command that only marks a place in its queue, such as a barrier, starts when it ends. A reusable event that was
    created with `ExpEventFlags.ENABLE_PROFILING` has these times on any queue.
    """
    found: int = _PROFILING.answer(propName, hEvent)
    return found


@function(
    42,
    ("IN_EVENT_LIST_EXEC_STATUS", "an event in `phEventWaitList` has the status `EventStatus.ERROR`"),
    "INVALID_EVENT",
    "INVALID_CONTEXT",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(
        rule("INVALID_VALUE", "len(phEventWaitList) == 0", "`phEventWaitList` is empty"),
        rule(
            "INVALID_EVENT",
            "any(event is None for event in phEventWaitList)",
            "an element of `phEventWaitList` is null",
            "documented",
        ),
    ),
    operations=("Event.wait",),
    python="`event.wait()`",
)
def urEventWait(phEventWaitList: tuple[Event, ...]) -> None:
    """Wait until all the given events are complete."""
    for event in phEventWaitList:
        opened = use(event.shared)
        try:  # a fresh event is complete, as Unified Runtime's are
            core_event.wait(opened, None, event.point or opened.timeline.slot.pending)
        except PeerLostError:
            _tell(event)
            raise


@function(
    47,
    "INVALID_EVENT",
    rules=(
        rule(
            "UNSUPPORTED_ENUMERATION",
            "execStatus == ExecutionInfo.QUEUED",
            "`execStatus` is `ExecutionInfo.QUEUED`, the state in which every event begins",
        ),
    ),
    operations=("Event.reached",),
    handles=(InvalidArgumentError, PeerLostError),
    python="`await event`",
)
def urEventSetCallback(hEvent: Event, execStatus: ExecutionInfo, pfnNotify: EventCallback, pUserData: UserData) -> None:
    """Register a callback that is called when the command of an event reaches the state `execStatus`.

    A single thread makes all callbacks, as `pfnNotify(hEvent, execStatus, pUserData)`. The event is retained until the
    callback. The callback is also made if the command fails, so it should query the state of the event. The state
    `RUNNING` is reported only when the command is complete.
    """
    opened = use(hEvent.shared)
    point = hEvent.point or opened.timeline.slot.pending
    come = core_event.reached(opened, point) if execStatus is not ExecutionInfo.SUBMITTED else None
    hEvent.take()

    def notify() -> None:
        try:
            pfnNotify(hEvent, execStatus, pUserData)
        finally:
            hEvent.release()

    if come is None:
        call_soon(notify)
    else:
        call_after(come, notify)


@function(43, "INVALID_EVENT", "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", makes="event")
def urEventRetain(hEvent: Event) -> None:
    """Add a reference to an event."""
    hEvent.retain()


@function(44, "INVALID_EVENT", "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", ends="event", python="`event.close()`")
def urEventRelease(hEvent: Event) -> None:
    """Release a reference to an event."""
    hEvent.release()
