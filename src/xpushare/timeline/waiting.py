"""Waiting for points in event loops (asyncio and trio), with one watcher per loop and no thread for a waiter.

The warden makes one eventfd of this process readable when a registered point is done or lost. Each loop that has
waiters watches that fd; whichever loop sees it first hands every due waiter its wake-up, to whichever loop that waiter
is in. Where something in this process closes our fds (`os.closerange`), nothing becomes readable any more. So each loop
with waiters looks for that now and then.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from xpushare import _native

if TYPE_CHECKING:
    import asyncio

__all__ = ["reached", "trio_here"]

_tokens = itertools.count(1)
_LOOK: Final = 1.0  # seconds between looks whether our fds are open
_lock = threading.RLock()  # re-entrant: a garbage collection inside may end another waiter
_waiters: dict[int, tuple[Callable[[], None], _native.Slot]] = {}
_watched: dict[Any, int] = {}  # asyncio loop -> number of its waiters
_looks: dict[Any, asyncio.TimerHandle] = {}  # asyncio loop -> its next look
_trio_runs: set[Any] = set()  # trio tokens of runs that have a watching task


def _dispatch() -> None:
    """Wake the waiters that are due."""
    for token in _native.due():
        with _lock:
            waiter = _waiters.pop(token, None)
        if waiter is not None:
            waiter[0]()


def _look() -> bool:
    """Whether waiters can still be told. If not, wake them all: they find that nothing can be used any more."""
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
    """The module trio where its loop runs the current task, else None."""
    trio = sys.modules.get("trio")
    if trio is not None:
        try:
            trio.lowlevel.current_task()
        except RuntimeError:
            return None
    return trio


async def reached(slot: _native.Slot, point: int) -> None:
    """Return once `point` is done or lost (or cannot come any more). Cancellable; leaves nothing registered."""
    slot.state(point)  # raises where nothing can be used: our fds may be anybody's
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
            pass  # that loop is closed: nobody waits any more

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


def _forget_parent() -> None:
    """In a forked child: the parent's loops and waiters are not here."""
    global _lock
    _lock = threading.RLock()
    _waiters.clear()
    _watched.clear()
    _looks.clear()
    _trio_runs.clear()


os.register_at_fork(after_in_child=_forget_parent)
