"""Operations on events: shared, monotonic timelines."""

from __future__ import annotations

import contextlib
import math
import select
import threading
import time
import warnings
from collections.abc import Generator
from operator import call
from typing import Any, Final, NamedTuple, NoReturn

from xpushare._native import DONE, LOST, PENDING, Domain, End, Slot
from xpushare.adapters.base import Export, Profile
from xpushare.common import numbers
from xpushare.common.aspects import Aspect
from xpushare.common.errors import (
    DeviceError,
    FeatureNotSupportedError,
    ForkError,
    InvalidArgumentError,
    InvalidHandleError,
    OutOfMemoryError,
    PeerLostError,
    doing,
    from_os_error,
)
from xpushare.core import memory
from xpushare.core.declare import operation
from xpushare.core.device import Context, Device, DeviceLike, adapter_of, info_of, require, resolve, resolve_context
from xpushare.core.opening import OPEN_ERRORS, event_device, own_export
from xpushare.core.resources import Timeline, release_slot
from xpushare.sharing import node
from xpushare.sharing.handle import PICKLED, Handle, HandleLike, fields_of
from xpushare.sharing.table import Exported, label_argument, labels
from xpushare.timeline.loss import peer_lost
from xpushare.timeline.waiting import Told, readable
from xpushare.timeline.waiting import reached as _reached

__all__ = [
    "Opened",
    "Times",
    "create",
    "done",
    "get",
    "may_signal",
    "open_",
    "put",
    "quiet_if_leaving",
    "reached",
    "recovered",
    "recovered_in_loop",
    "role_of",
    "signal",
    "timeout_argument",
    "times",
    "wait",
    "waited_by",
]


_new: Any = tuple.__new__  # faster than a named tuple's own `__new__`
_NO_MEMORY: Final = Export(0, 0)
_LAST: Final = (1 << 43) - 1  # a point has 43 bits
_NOT_SUBMITTED: Final = (
    ": nobody has submitted it. If a child process was to signal, look for its traceback: it may have failed before it "
    "opened the event"
)


class Opened(NamedTuple):
    """The complete state of an `Event` object that this process created or opened."""

    timeline: Timeline
    device: Device
    context: Context
    ipc_enabled: bool
    profile: Profile | None
    handle: Handle | None  # None for an event that was made here
    lease: Any
    queue_refusal: str = ""  # why queues cannot signal this end, if the device lacks two_way_events
    host_refusal: str = ""  # why the host cannot signal this end
    signals: bool | None = None  # the `signals` argument with which it was made or opened
    # This object's own attachment, by which it waits and counts as a signaller while it is open.
    role: Slot | None = None


def refusal(device: Device, *aspects: Aspect) -> str:
    """Return why the device lacks one of these aspects, or "" if it has them all."""
    try:
        for aspect in aspects:
            require(device, aspect)
    except FeatureNotSupportedError as error:
        return error.message
    return ""


_opened_on: Final[dict[int, tuple[Device, Context, str, str]]] = {}
"""A cache for opening events with the default settings. It maps the id of a device to the device, its context and the
two results of `_refusals`, none of which ever changes.
"""


def _refusals(device: Device) -> tuple[str, str]:
    """Return two reasons: why queues may not signal an event opened on that device, and why the host may not. A reason
    is "" if signalling is allowed.
    """
    one_way = refusal(device, Aspect.two_way_events)
    return one_way, one_way or refusal(device, Aspect.host_signal_events)


def check_signals(signals: object) -> None:
    """Raise `InvalidArgumentError` unless `signals` is True, False or None."""
    if signals is not None and not isinstance(signals, bool):
        raise InvalidArgumentError(f"signals is None, True or False, not {signals!r}")


def role_of(domain: Domain, index: int, signals: bool | None) -> Slot:
    """Return a new slot object, through which one event object waits. Unless `signals` is False, the slot object counts
    as a possible signaller.
    """
    try:
        return Slot(domain, index, signals)
    except ValueError as error:
        raise InvalidHandleError(f"the exporter's commons has no such event any more: {error}") from error


def may_signal(event: Opened) -> None:
    """Raise `InvalidArgumentError` if the event was opened with `signals=False`. Other processes do not wait for
    signals from such an object.
    """
    if event.signals is False:
        raise InvalidArgumentError(
            "this event was opened with signals=False and only waits: open it without signals=False to signal"
        )


def point_argument(at_least: int | None, slot: Slot) -> int:
    """Return the number of the signal to wait for: `at_least`, or the newest signal known now."""
    if at_least is None:
        return slot.pending
    if type(at_least) is int and 0 <= at_least <= _LAST:
        return at_least
    words = "is the number of a signal: 0 or more, below 2**43"
    return numbers.integer("at_least", at_least, lambda point: 0 <= point <= _LAST, words)


def timeout_argument(timeout: float | None) -> float | None:
    """Return `timeout` as a number of seconds, 0 or more. It may be infinite. None means to wait without a limit.

    A time below 0, such as the time left until a deadline that has passed, counts as 0.
    """
    if timeout is None:
        return None
    if type(timeout) is float and timeout >= 0.0:
        return timeout
    return max(numbers.seconds("timeout", timeout, "a number of seconds or None"), 0.0)


@operation("Event", raises=(InvalidArgumentError, FeatureNotSupportedError, OutOfMemoryError, DeviceError))
def create(
    device: DeviceLike | None,
    context: Context | None,
    enable_ipc: bool,
    enable_profiling: bool,
    signals: bool | None = None,
    label: str | None = None,
) -> Opened:
    """Create an event. Its `value` and `pending` are 0, so it is complete."""
    check_signals(signals)
    text = label_argument(label)
    chosen, chosen_context = resolve(device, context)
    enable_ipc = bool(enable_ipc)
    if enable_ipc and enable_profiling:
        raise InvalidArgumentError("an event is either shared (enable_ipc) or profiled (enable_profiling), not both")
    if enable_ipc:
        for each in chosen_context.devices:
            require(each, Aspect.ext_oneapi_ipc_event)
    if enable_profiling:
        require(chosen, Aspect.ext_oneapi_per_event_profiling)
    here = node.current()
    domain = here.table().domain
    taken: list[int] = []  # emptied once the slot has been released
    with End(release_slot, domain, taken):
        try:
            taken.extend(map(call, (domain.new_slot,)))  # one C call, so that no interrupt can lose the slot
            timeline = Timeline(chosen, domain, Slot(domain, taken[0], False), release_slot, domain, taken)
            role = role_of(domain, taken[0], signals)
        except OSError as error:
            raise from_os_error(error, "making an event") from error
        except ValueError as error:
            if isinstance(error, InvalidArgumentError):
                raise
            raise InvalidArgumentError(str(error)) from None
    if text is not None:
        labels[timeline] = text
    profile = Profile() if enable_profiling else None
    host_refusal = refusal(chosen, Aspect.host_signal_events)
    return Opened(timeline, chosen, chosen_context, enable_ipc, profile, None, None, "", host_refusal, signals, role)


@operation(
    "ipc.event.get",
    rules=(1, 5, 8, 9),
    raises=(InvalidArgumentError, OutOfMemoryError, ForkError, DeviceError),
    makes="event handle",
)
def get(
    source: Opened, context: Context | None = None, implicit: bool = False, into: list[Handle] | None = None
) -> Handle:
    """Export an event that was created here with `enable_ipc=True`. The handle keeps the event alive until `put`. The
    handle is also appended to `into`.
    """
    if source.handle is not None:
        raise InvalidArgumentError(
            "an imported event cannot be exported again: send on the handle that it was opened from (`.handle`)"
        )
    if not source.ipc_enabled:
        raise InvalidArgumentError("this event was not made for sharing: make it with xs.Event(enable_ipc=True)")
    if context is not None:
        resolve_context(source.device, context)
    timeline = source.timeline
    table = node.here[0].table_if_any or node.here[0].table()
    prepared = timeline.prepared
    if prepared is None or timeline.foreign_process:
        prepared = timeline.prepared = table.prepare("event", info_of(source.device), _NO_MEMORY, 0)
    return table.export([Exported(prepared, timeline, implicit=implicit, slot=timeline.slot.index)], into=into)[0]


@operation(
    "ipc.event.open",
    rules=(2, 3, 4, 7, 8, 9),
    raises=OPEN_ERRORS,
)
def open_(
    handle: HandleLike,
    device: DeviceLike | None = None,
    context: Context | None = None,
    signals: bool | None = None,
) -> Opened:
    """Open a handle. The new event shares its state with the exporter's event. Both processes can signal it and wait
    for it.
    """
    found = memory.expect_kind(handle, "event")
    if signals is not None and signals is not False:
        check_signals(signals)
    known = None
    if context is None and type(device) is Device:
        known = _opened_on.get(id(device))
    if known is None:
        chosen, chosen_context = event_device(found, device, context)
        for each in chosen_context.devices:
            require(each, Aspect.ext_oneapi_ipc_event)
        known = chosen, chosen_context, *_refusals(chosen)
        if chosen_context is chosen.context:
            _opened_on[id(chosen)] = known
    chosen, chosen_context, queue_refusal, host_refusal = known
    here = node.here[0]
    fields = fields_of(found)
    pickle = bool(fields.flags & PICKLED)
    table = here.table_if_any
    if table is not None and table.cookie == fields.cookie:
        own: Timeline = own_export(here, found).source
        role = role_of(own.driver, own.slot.index, signals)
        if pickle:
            own.slot.taken()
        return Opened(own, chosen, chosen_context, False, None, found, None, queue_refusal, host_refusal, signals, role)

    def make(domain: Domain, index: int) -> Timeline:
        try:
            return Timeline(chosen, domain, Slot(domain, index, False), None)
        except ValueError as error:
            raise InvalidHandleError(f"the exporter's table names no event: {error}") from error

    timeline, lease = here.peers.open_slot(found, make)
    role = role_of(timeline.driver, timeline.slot.index, signals)
    if pickle:
        timeline.slot.taken()
    facts = timeline, chosen, chosen_context, False, None, found, lease, queue_refusal, host_refusal, signals, role
    opened: Opened = _new(Opened, facts)
    return opened


@operation(
    "ipc.event.put",
    rules=(5,),
    raises=(InvalidHandleError, InvalidArgumentError),
    ends="event handle",
)
def put(handle: Handle | bytes | str) -> None:
    """Withdraw a handle of this process, so that no process can open it any more. Events that are already open stay
    valid.
    """
    memory.withdraw(handle, "event")


@operation("Event.signal", raises=(InvalidArgumentError, FeatureNotSupportedError))
def signal(event: Opened) -> int:
    """Signal from the host. Returns the number of the new signal, which is complete at once."""
    if event.signals is False:
        may_signal(event)  # raises the reason if this end may not signal
    if event.host_refusal:
        raise FeatureNotSupportedError(event.host_refusal)
    try:
        point = event.timeline.slot.signal()
    except InvalidArgumentError:
        raise
    except ValueError as error:
        raise InvalidArgumentError(f"{error} (use one event per producer)") from None
    if event.profile is not None:
        now, _ = adapter_of(event.device).clock(info_of(event.device))
        event.profile.begin(now)
        event.profile.end = now
    return point


class Times(NamedTuple):
    """The times at which a signal was processed, in nanoseconds of the device's clock.

    Attributes:
        queued: When the signal was queued.
        submit: When it was submitted to the device.
        start: When the queue reached it.
        end: The same time, since a signal takes none.
    """

    queued: int
    submit: int
    start: int
    end: int


def times(event: Opened) -> Times:
    """Return the times of a profiling event's newest signal."""
    profile = event.profile
    if profile is None:
        raise InvalidArgumentError("this event is not profiled: make it with xs.Event(enable_profiling=True)")
    if not done(event) or not profile.known().end:
        raise InvalidArgumentError("no signal of this event is complete: wait for one")
    return Times(profile.queued, profile.submit, profile.end, profile.end)


def quiet_if_leaving() -> None:
    """End a waiting thread without a traceback if the interpreter is shutting down."""
    if node.left() and threading.current_thread() is not threading.main_thread():
        raise SystemExit from None


def waited_by(event: Opened) -> Slot:
    """Return the slot through which this event object waits. Closing the event object ends its waits."""
    return event.timeline.slot if event.role is None else event.role


def _detached(error: Exception) -> NoReturn:
    """Raise the error for an object that was closed during a wait."""
    quiet_if_leaving()
    raise InvalidArgumentError(str(error)) from None


def _lost(slot: Slot, point: int) -> NoReturn:
    quiet_if_leaving()
    try:
        raise peer_lost(slot, point)
    except ValueError as detached:
        _detached(detached)


def warn_vacuous(call: str, advice: str, stacklevel: int) -> None:
    """Warn that a wait without a number has nothing to wait for. 0 seconds ask for the state, and are no wait."""
    warnings.warn(
        f"{call} returns at once, since no signal of this event is pending yet: {advice} waits for the first one",
        stacklevel=stacklevel,
    )


@operation("Event.wait", raises=(InvalidArgumentError, PeerLostError, TimeoutError, OutOfMemoryError, DeviceError))
def wait(event: Opened, timeout: float | None, at_least: int | None) -> None:
    """Wait on the host for the newest signal known now, or for signal `at_least`."""
    slot = event.timeline.slot if event.role is None else event.role
    # The usual arguments are checked inline, since each round trip would pay for a call twice.
    seconds = timeout if type(timeout) is float and timeout >= 0 else timeout_argument(timeout)
    if type(at_least) is int and 0 <= at_least <= _LAST:
        point = at_least
    else:
        point = slot.pending if at_least is None else point_argument(at_least, slot)
        if not point and at_least is None and seconds != 0:
            limit = "" if seconds is None else f"{seconds:g}"
            warn_vacuous(f"wait({limit})", f"wait({limit}{', ' * bool(limit)}at_least=1)", stacklevel=4)
    try:
        state = slot.wait(point, seconds)
    except ValueError as error:
        _detached(error)
    except OSError as error:
        raise from_os_error(error, "waiting for an event") from error
    if state == DONE:
        return
    if state == LOST:
        _lost(slot, point)
    raise TimeoutError(
        f"signal {point} of the event has not completed within {seconds:g} s (value {slot.value}, "
        f"pending {slot.pending})" + (_NOT_SUBMITTED if slot.pending < point else "")
    )


@operation("Event.done", raises=(PeerLostError, OutOfMemoryError, DeviceError))
def done(event: Opened, at_least: int | None = None) -> bool:
    """Return whether the newest signal known now, or signal `at_least`, is complete. Raises `PeerLostError` if this
    signal was lost, so that no caller polls forever.
    """
    slot = event.timeline.slot
    point = slot.pending if at_least is None else at_least
    state = slot.state(point)
    if state == PENDING:
        with doing("watching an event"):
            slot.watch()  # the caller may be polling, so the warden has to notice a death
            state = slot.wait(point, 0.0)  # like any wait, this notices a death before anybody has recorded the loss
    if state == LOST:
        _lost(slot, point)
    return state == DONE


@operation("Event.reached", raises=(InvalidArgumentError, PeerLostError, OutOfMemoryError, DeviceError))
async def reached(event: Opened, at_least: int | None) -> None:
    """Wait in an event loop for the newest signal known now, or for signal `at_least`."""
    slot = waited_by(event)
    point = point_argument(at_least, slot)
    try:
        with doing("waiting for an event"):
            await _reached(slot, point)
            done = slot.state(point) == DONE or slot.wait(point, 0.0) == DONE
    except ValueError as error:
        _detached(error)
    if not done:
        _lost(slot, point)


def _recovered(event: Opened) -> bool:
    """Return False as long as the event's next signal counts as lost, otherwise True. Raises `PeerLostError` if this
    can never end, because the exporter has exited.
    """
    slot = waited_by(event)
    try:
        lost = slot.state(slot.pending + 1) == LOST
    except ValueError as error:
        _detached(error)
    if lost and event.lease is not None and not event.lease.peer.alive():
        _lost(slot, slot.pending + 1)
    return not lost


_LOOK: Final = 1.0  # seconds between checks for the exporter's end, which wakes no waiter


@operation("Event.recovered", raises=(InvalidArgumentError, PeerLostError, TimeoutError, OutOfMemoryError, DeviceError))
def recovered(event: Opened, timeout: float | None) -> None:
    """After a signal was lost, wait on the host until another process can signal the event again."""
    seconds = timeout_argument(timeout)
    end = math.inf if seconds is None else time.monotonic() + seconds
    while not _recovered(event):
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"the loss of the event has not ended within {seconds:g} s")
        with doing("waiting for an event"), select.epoll() as poll, _told(event, poll) as told:
            poll.poll(min(left, _LOOK))
            told.look()


async def recovered_in_loop(event: Opened) -> None:
    """Wait as `recovered` does, inside an event loop."""
    while not _recovered(event):
        with doing("waiting for an event"), select.epoll() as poll, _told(event, poll) as told:
            await readable(poll.fileno(), _LOOK)
            told.look()


@contextlib.contextmanager
def _told(event: Opened, poll: select.epoll) -> Generator[Told]:
    """Register with `poll` the file descriptors that become readable once another process may be able to signal the
    event again.
    """
    try:
        with Told([(waited_by(event), None)]) as told:
            for fd in told.fds:
                poll.register(fd, select.EPOLLIN)
            yield told
    except ValueError as error:
        if isinstance(error, InvalidArgumentError):
            raise
        _detached(error)
