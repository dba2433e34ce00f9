"""Waiting for points in event loops (asyncio and trio), with one watcher per loop and without a thread per waiter. A
*point* is one signal of an event, given by its number.

The warden, this process's native background thread, makes one eventfd readable when a registered point is done or lost.
Each loop that has waiters watches that fd. Whichever loop sees the change first wakes every due waiter, in any loop. If
the program closes the package's file descriptors (`os.closerange`), nothing becomes readable any more, so each loop
with waiters also checks now and then.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Self, final

from xpushare import _native
from xpushare._native import End
from xpushare.common import system

if TYPE_CHECKING:
    import asyncio

__all__ = ["Told", "in_loop", "reached", "readable", "trio_here"]

_tokens = itertools.count(1)
_LOOK: Final = 1.0  # seconds between checks that our fds are still open
_lock = threading.RLock()  # re-entrant, since a garbage collection inside may end another waiter
_waiters: dict[int, tuple[Callable[[], None], _native.Slot]] = {}
_watched: dict[Any, int] = {}  # asyncio loop -> number of its waiters
_looks: dict[Any, asyncio.TimerHandle] = {}  # asyncio loop -> its next check
_trio_runs: set[Any] = set()  # trio tokens of runs that have a watching task


def _dispatch() -> None:
    """Wake every waiter whose signal is complete or lost."""
    for token in _native.due():
        with _lock:
            waiter = _waiters.pop(token, None)
        if waiter is not None:
            waiter[0]()


def _look() -> bool:
    """Return whether waiters can still be notified. If they cannot, wake all waiters. Each waiter then raises the error
    that explains why its event can no longer be used.
    """
    with _lock:
        waiters = list(_waiters.values())
    if all(domain.stands() for domain in {slot.domain for _, slot in waiters}):
        return True
    for wake, _ in waiters:
        wake()
    return False


def _look_again(loop: asyncio.AbstractEventLoop) -> None:
    if _look():
        _looks[loop] = loop.call_later(_LOOK, _look_again, loop)


def trio_here() -> Any:
    """Return the module `trio` if trio's event loop runs the current task, else None."""
    trio = sys.modules.get("trio")
    lowlevel = getattr(trio, "lowlevel", None)  # missing while another thread imports trio
    if lowlevel is None:
        return None
    try:
        lowlevel.current_task()
    except RuntimeError:
        return None
    return trio


def in_loop() -> bool:
    """Return whether this thread currently runs an event loop of asyncio or trio."""
    asyncio = sys.modules.get("asyncio")
    try:
        running = asyncio is not None and asyncio._get_running_loop() is not None
    except AttributeError:  # another thread imports asyncio
        running = False
    return running or trio_here() is not None


@final
class Told:
    """A context manager for one thread or task that waits for points of events. One of `fds` becomes readable once any
    of these points may be complete or lost.

    If None is given instead of a point, the wait ends when the event, one of whose signals was lost, can be signalled
    again by another process.
    """

    def __init__(self, points: Iterable[tuple[_native.Slot, int | None]]) -> None:
        self._points = list(points)
        self._tokens: list[tuple[_native.Slot, int]] = []
        self._wakeup = system.wakeup()
        self.fds: Final = self._wakeup.number, _native.notification_fd()

    def __enter__(self) -> Self:
        wakeup = self._wakeup
        with End(self.__exit__):
            for slot, point in self._points:
                slot.state(0)  # raises if the event cannot be used
                token = next(_tokens)
                self._tokens.append((slot, token))
                with _lock:
                    _waiters[token] = lambda: os.eventfd_write(wakeup.number, 1), slot
                if slot.notify_recovery(token) if point is None else slot.notify(point, token):
                    os.eventfd_write(wakeup.number, 1)
        return self

    def look(self) -> None:
        """After a wait, notify every waiter in this process that is due, and check that notification still works."""
        _dispatch()
        _look()

    def __exit__(self, *_error: object) -> None:
        with _lock:
            for _slot, token in self._tokens:
                _waiters.pop(token, None)
        for slot, token in self._tokens:
            slot.cancel(token)


async def reached(slot: _native.Slot, point: int) -> None:
    """Wait until `point` is complete or lost, or can no longer be signalled. The wait can be cancelled. In every case,
    the waiter is unregistered afterwards.
    """
    slot.state(point)  # raises if the event cannot be used, since our fd numbers may then belong to other files
    trio = trio_here()
    if trio is not None:
        await _under_trio(trio, slot, point)
    else:
        await _under_asyncio(slot, point)


async def _under_asyncio(slot: _native.Slot, point: int) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not future.done():
            future.set_result(None)

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:
            pass  # the loop is closed, and has no waiters any more

    fd: Final = _native.notification_fd()
    token = next(_tokens)
    with _lock:
        _waiters[token] = wake, slot
        _watched[loop] = _watched.get(loop, 0) + 1
        if _watched[loop] == 1:
            loop.add_reader(fd, _dispatch)
            _looks[loop] = loop.call_later(_LOOK, _look_again, loop)
    try:
        if not slot.notify(point, token):
            await future
    finally:
        slot.cancel(token)
        with _lock:
            _waiters.pop(token, None)
            _watched[loop] -= 1
            if not _watched[loop]:
                del _watched[loop]
                _looks.pop(loop).cancel()
                loop.remove_reader(fd)


async def _under_trio(trio: Any, slot: _native.Slot, point: int) -> None:
    await trio.lowlevel.checkpoint_if_cancelled()
    run = trio.lowlevel.current_trio_token()
    ready = trio.Event()

    def wake() -> None:
        try:
            run.run_sync_soon(ready.set)
        except trio.RunFinishedError:
            pass

    token = next(_tokens)
    with _lock:
        _waiters[token] = wake, slot
        first = run not in _trio_runs
        _trio_runs.add(run)
    if first:
        trio.lowlevel.spawn_system_task(_watch_under_trio, trio, run)
    try:
        if slot.notify(point, token):
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            await ready.wait()
    finally:
        slot.cancel(token)
        with _lock:
            _waiters.pop(token, None)


async def _watch_under_trio(trio: Any, run: Any) -> None:
    try:
        while _look():
            with trio.move_on_after(_LOOK):
                await trio.lowlevel.wait_readable(_native.notification_fd())
                _dispatch()
    finally:
        with _lock:
            _trio_runs.discard(run)


async def readable(fd: int, seconds: float | None) -> None:
    """Wait under asyncio or trio until `fd` is readable, for at most `seconds`. None waits without a limit."""
    trio = trio_here()
    if trio is None:
        await _readable_under_asyncio(fd, seconds)
    elif seconds is None:
        await trio.lowlevel.wait_readable(fd)
    else:
        with trio.move_on_after(seconds):
            await trio.lowlevel.wait_readable(fd)


async def _readable_under_asyncio(fd: int, seconds: float | None) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not future.done():
            future.set_result(None)

    loop.add_reader(fd, settle)
    timer = None if seconds is None else loop.call_later(seconds, settle)
    try:
        await future
    finally:
        loop.remove_reader(fd)
        if timer is not None:
            timer.cancel()


def _forget_parent() -> None:
    """Discard the parent's event loops and waiters in a forked child."""
    global _lock
    _lock = threading.RLock()
    _waiters.clear()
    _watched.clear()
    _looks.clear()
    _trio_runs.clear()


os.register_at_fork(after_in_child=_forget_parent)
