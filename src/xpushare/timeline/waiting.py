"""Waiting for points in event loops (asyncio and trio), with one watcher per loop and no thread for a waiter.

The warden makes one eventfd of this process readable when a registered point is done or lost. Each loop that has
waiters watches that fd; whichever loop sees it first hands every due waiter its wake-up, to whichever loop that waiter
is in.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from xpushare import _native

__all__ = ["reached"]

_tokens = itertools.count(1)
_lock = threading.RLock()  # re-entrant: a garbage collection inside may end another waiter
_waiters: dict[int, Callable[[], None]] = {}
_watched: dict[Any, int] = {}  # asyncio loop -> number of its waiters
_trio_runs: set[Any] = set()  # trio tokens of runs that have a watching task


def _dispatch() -> None:
    """Wake the waiters that are due."""
    for token in _native.due():
        with _lock:
            wake = _waiters.pop(token, None)
        if wake is not None:
            wake()


async def reached(slot: _native.Slot, point: int) -> None:
    """Return once `point` is done or lost (or cannot come any more). Can be cancelled; leaves nothing registered."""
    trio = sys.modules.get("trio")
    if trio is not None:
        try:
            trio.lowlevel.current_task()
        except RuntimeError:
            pass
        else:
            await _under_trio(trio, slot, point)
            return
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
        _waiters[token] = wake
        _watched[loop] = _watched.get(loop, 0) + 1
        if _watched[loop] == 1:
            loop.add_reader(fd, _dispatch)
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
        _waiters[token] = wake
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
        while True:
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
    _trio_runs.clear()


os.register_at_fork(after_in_child=_forget_parent)
