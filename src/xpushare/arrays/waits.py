"""`wait_any` and `any_of` wait for the first of several events, channels and watches."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, final, overload

from xpushare.arrays.changes import Awaitable, woken_by
from xpushare.common.errors import InvalidArgumentError, doing
from xpushare.core import event as events
from xpushare.core.declare import public
from xpushare.objects.event import Event
from xpushare.objects.lifecycle import use
from xpushare.timeline.waiting import Told, readable

__all__ = ["any_of", "wait_any"]

if TYPE_CHECKING:
    from xpushare.arrays.names import Watch
    from xpushare.channels.channel import Channel  # a room above, for type checkers alone

    Waitable: TypeAlias = Event | tuple[Event, int] | Channel | Watch[Any]
    Given = TypeVar("Given", bound=Waitable)

_LOOK: Final = 1.0  # seconds between checks for objects that were closed meanwhile, which wakes no waiter


# For objects of several classes mypy takes their common base, which the bound refuses. It then takes the second
# overload.
@overload
def wait_any(objects: Iterable[Given], timeout: float | None = None) -> list[Given]: ...
@overload
def wait_any(  # type: ignore[overload-cannot-match]
    objects: Iterable[Waitable], timeout: float | None = None
) -> list[Waitable]: ...
def wait_any(objects: Iterable[Any], timeout: float | None = None) -> list[Any]:
    """Wait for the first of several events, channels and watches.

    Frames and items are not consumed. Call `receive` or `next` afterwards to get them.

    Args:
        objects: The objects to wait for. An event stands for its newest signal known now, and a tuple `(event, number)`
            for that signal. A channel stands for its next frame or the end of its stream, and a `Watch` for its next
            item.
        timeout: Seconds to wait. None waits as long as it takes.

    Returns:
        The objects that are ready, in the order of `objects` and in the form in which they were passed.

    Raises:
        TimeoutError: Nothing was ready in time.
        PeerLostError: A signal is lost, and nothing earlier in the list is ready.
        InvalidArgumentError: The list is empty, holds anything else, or another thread closed one
            of the objects.

    Examples:
        >>> with xs.Event("native_cpu:0") as slow, xs.Event("native_cpu:0") as fast:
        ...     number = fast.signal()
        ...     [each is fast for each, _ in xs.wait_any([(slow, 1), (fast, number)])]
        [True]
    """
    wanted = _Wanted(objects)
    seconds = events.timeout_argument(timeout)
    if seconds != 0 and wanted.vacuous():
        events.warn_vacuous("wait_any([event])", "wait_any([(event, 1)])", stacklevel=3)
    end = None if seconds is None else time.monotonic() + seconds
    while not (found := wanted.ready()):
        with wanted.waiting(_left(end, seconds)) as (poll, limit):
            if limit:
                poll.poll(limit)
    return found


@overload
async def any_of(objects: Iterable[Given]) -> list[Given]: ...
@overload
async def any_of(objects: Iterable[Waitable]) -> list[Waitable]: ...  # type: ignore[overload-cannot-match]
async def any_of(objects: Iterable[Any]) -> list[Any]:
    """Wait in an event loop for the first of several events, channels and watches.

    The wait can be cancelled, and uses no thread. For a timeout, use `asyncio.timeout` or `trio.move_on_after`.

    Args:
        objects: Events, tuples `(event, number)`, channels and watches, as for `wait_any`.

    Returns:
        The objects that are ready, in the order of `objects` and in the form in which they were passed.

    Raises:
        PeerLostError: A signal is lost, and nothing earlier in the list is ready.
        InvalidArgumentError: The list is empty or holds anything else, or another thread closed one of the objects.

    Examples:
        >>> import asyncio
        >>> with xs.Event("native_cpu:0") as event:
        ...     number = event.signal()
        ...     len(asyncio.run(xs.any_of([(event, number)])))
        1
    """
    wanted = _Wanted(objects)
    while not (found := wanted.ready()):
        with wanted.waiting(_LOOK) as (poll, limit):
            if limit:
                await readable(poll.fileno(), limit)
    return found


def _left(end: float | None, seconds: float | None) -> float:
    if end is None:
        return _LOOK
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"none of the objects was ready within {seconds:g} s")
    return min(left, _LOOK)


class _Point(NamedTuple):
    given: Any
    event: Event
    number: int

    def ready(self) -> bool:
        return events.done(use(self.event), self.number)


@final
class _Wanted:
    """The events, channels and watches that one `wait_any` waits for."""

    def __init__(self, objects: Iterable[Any]) -> None:
        if isinstance(objects, Event | Awaitable):
            raise InvalidArgumentError("wait_any takes a list of objects: pass [event]")
        self._all: Final = [_wanted(each) for each in objects]
        if not self._all:
            raise InvalidArgumentError("there is nothing to wait for: the list of objects is empty")

    def vacuous(self) -> bool:
        """Return whether the caller passed an event without a signal number, and no signal of the event had been
        submitted at that time. Such a wait has nothing to wait for.
        """
        return any(isinstance(each, _Point) and each.given is each.event and not each.number for each in self._all)

    def ready(self) -> list[Any]:
        """Return the objects that are ready. If an object has failed, for example because a signal is lost, raises its
        error unless an earlier object in the list is ready.
        """
        found: list[Any] = []
        for each in self._all:
            try:
                if each.ready():
                    found.append(each.given if isinstance(each, _Point) else each)
            except Exception:
                if not found:
                    raise
                # otherwise the next wait reports it
        return found

    @contextlib.contextmanager
    def waiting(self, limit: float) -> Generator[tuple[select.epoll, float]]:
        """Yield an epoll object that becomes readable once an object may be ready, and the seconds to wait for it. The
        seconds are 0 if an object is ready already.
        """
        points = [(events.waited_by(use(each.event)), each.number) for each in self._all if isinstance(each, _Point)]
        watches = [woken_by(each) for each in self._all if isinstance(each, Awaitable)]
        with contextlib.ExitStack() as stack, doing("waiting for the first of several"):
            poll = stack.enter_context(select.epoll())
            told = stack.enter_context(Told(points))
            for fd in told.fds:
                poll.register(fd, select.EPOLLIN)
            for changes, pidfd, look in watches:
                ready = stack.enter_context(changes.ready(pidfd))
                poll.register(ready.fileno(), select.EPOLLIN)
                left = changes.limit(limit, look)
                limit = limit if left is None else min(limit, left)
            yield poll, 0.0 if self.ready() else limit
            told.look()
            for changes, _pidfd, _look in watches:
                changes.drain()


def _wanted(given: Any) -> _Point | Awaitable:
    if isinstance(given, Awaitable):
        return given
    event, number = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if not isinstance(event, Event):
        raise InvalidArgumentError(
            "wait_any takes events, tuples of an event and the number of a signal, channels and watches, not "
            f"{given!r:.100}"
        )
    return _Point(given, event, events.point_argument(number, use(event).timeline.slot))


public(__name__, "wait_any", "any_of")
