"""Waiting for changes to a published name. `Changes` wakes the waiting thread when the folder of names changes, the
publisher ends, or the watch is closed. `Patience` limits the time of such a wait.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from xpushare.common import system
from xpushare.common.errors import from_os_error
from xpushare.common.fds import OwnedFd
from xpushare.common.loading import logger
from xpushare.timeline.waiting import readable

__all__ = ["NAP_MAX", "WARN_AFTER", "Awaitable", "Changes", "Patience", "woken_by"]

_IN_MODIFY: Final = 0x2
_IN_CREATE: Final = 0x100
_IN_MOVED_TO: Final = 0x80
_IN_IGNORED: Final = 0x8000
_EVENT: Final = struct.Struct("iIII")
_LONGEST: Final = 1 << 20  # seconds of one wait: the kernel counts milliseconds in an int
WARN_AFTER: Final = 10.0  # seconds of waiting for an unpublished name, after which a warning is logged
_COMPLETE: Final = 0.5  # seconds after which a removed folder is made again, although the folder above it is there
NAP_MAX: Final = 0.2  # seconds between two checks if the kernel does not report changes; one takes 0.4 ms of CPU time


class Awaitable:
    """An object other than an event that `wait_any` and `any_of` can wait for."""

    __slots__ = ()

    def ready(self) -> bool:
        """Return whether the next item is available. The item is not consumed. Raises the error that consuming it would
        raise.
        """
        raise NotImplementedError

    def _woken_by(self) -> tuple[Changes, OwnedFd | None, bool]:
        raise NotImplementedError


def woken_by(awaitable: Awaitable) -> tuple[Changes, OwnedFd | None, bool]:
    """Return the `Changes` object that reports when `awaitable` may be ready, and the `pidfd` and `look` arguments for
    its methods.
    """
    return awaitable._woken_by()  # pyright: ignore[reportPrivateUsage]


@final
class Patience:
    """Counts down the timeout of one wait for a name. If there is no timeout, a long wait is logged once."""

    __slots__ = ("_start", "_timeout", "_warned")

    def __init__(self, timeout: float | None) -> None:
        self._start = time.monotonic()
        self._timeout = timeout
        self._warned = False

    def left(self, warn: Callable[[float], None] | None) -> float | None:
        """Return how many seconds the caller may wait before it checks again. Return 0 if the timeout has passed, and
        None if there is no limit. If there is no timeout, a long wait calls `warn` once with the seconds waited so far.
        `warn` may be None.
        """
        waited = time.monotonic() - self._start
        if self._timeout is not None:
            return max(self._timeout - waited, 0.0)
        if warn is None or self._warned:
            return None
        if waited < WARN_AFTER:
            return WARN_AFTER - waited
        self._warned = True
        warn(waited)
        return None


@final
class Changes:
    """Watches a folder or a file for changes. Each wait covers the changes since the previous wait, or since this
    object was made. Uses inotify(7) if the user may create another inotify instance (the default limit is 128).
    Otherwise polls.

    If the folder is removed during a wait, the wait calls `again`, which has to make it again.
    """

    __slots__ = ("_again", "_closing", "_events", "_folder", "_fresh", "_inotify", "_nap", "_removed")

    def __init__(self, folder: Path, *, file: bool = False, again: Callable[[], object] | None = None) -> None:
        self._folder = folder
        self._events = _IN_MODIFY if file else _IN_CREATE | _IN_MOVED_TO
        self._again = again
        self._removed: float | None = None  # when the folder was found removed, until it is made again
        self._fresh = True  # the caller has to check once for changes made before this object existed
        self._nap = 0.001
        try:
            self._closing = system.wakeup()
        except OSError as error:
            raise from_os_error(error, f"waiting for a change in {folder}") from error
        self._inotify = _inotify(folder, self._events)

    def close(self) -> None:
        """End all current and later waits."""
        os.eventfd_write(self._closing.number, 1)

    def wait(self, seconds: float | None, pidfd: OwnedFd | None, look: bool) -> None:
        """Wait until a name may have changed, or until `seconds` have passed. The wait also ends when the process of
        `pidfd` ends. If `look` is true, this also polls, for changes that the kernel does not report.
        """
        if self._begun():
            return
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            with self.ready(pidfd) as ready:
                limit = self.limit(seconds, look)
                found = ready.poll(-1 if limit is None else max(limit, 0.0))
            self.drain()
            # While somebody removes the folder, the caller's look at it would make it again, and the removal fail.
            if self._removed is None or self._again is None or (self._closing.number, select.EPOLLIN) in found:
                return
            seconds = None if end is None else end - time.monotonic()
            if seconds is not None and seconds <= 0:
                return

    async def changed(self, seconds: float | None, pidfd: OwnedFd | None, look: bool) -> None:
        """Wait for a change under asyncio or trio, as `wait` does in a thread."""
        if self._begun():
            return
        limit = self.limit(seconds, look)
        with self.ready(pidfd) as ready:
            await readable(ready.fileno(), limit)
        self.drain()

    def _begun(self) -> bool:
        """Return True on the first call only. The first wait then returns at once, so that the caller checks for
        changes made before this object existed.
        """
        fresh, self._fresh = self._fresh, False
        return fresh

    def ready(self, pidfd: OwnedFd | None) -> select.epoll:
        """Return an epoll object that becomes readable once the folder or file has changed, the process of `pidfd` has
        ended, or this object was closed.
        """
        try:
            ready = select.epoll()
            for fd in (self._closing, self._inotify, pidfd):
                if fd is not None:
                    ready.register(fd.number, select.EPOLLIN)
        except OSError as error:
            raise from_os_error(error, "waiting for a name") from error
        return ready

    def limit(self, seconds: float | None, look: bool) -> float | None:
        """Return how many seconds a wait may last: until the next poll if this object has to poll, and at most
        `seconds`. Return None for no limit.
        """
        if self._inotify is None or look:
            self._nap = min(self._nap * 2, NAP_MAX)
            return self._nap if seconds is None else min(self._nap, seconds)
        return None if seconds is None else min(seconds, _LONGEST)

    def drain(self) -> None:
        """Discard pending inotify events after a wait. If the folder was removed, this object polls until it is made
        again.
        """
        if self._inotify is not None:
            try:
                events = os.read(self._inotify.number, 1 << 16)
            except BlockingIOError:
                return  # another thread has read it, or the wait ended for another reason
            if _removed(events):
                self._inotify = None
                self._removed, self._nap = time.monotonic(), 0.001
        elif self._removed is None and self._again is not None and not os.path.lexists(self._folder):
            self._removed = time.monotonic()
        if self._removed is not None and self._again is not None and self._removal_is_complete(self._removed):
            self._again()
            self._removed = None
            self._inotify = _inotify(self._folder, self._events)
            self._fresh = True  # something may have changed before that

    def _removal_is_complete(self, since: float) -> bool:
        """Return whether nobody is removing the folder above any more, which would fail if this process made the
        folder again.
        """
        return not os.path.lexists(self._folder.parent) or time.monotonic() - since >= _COMPLETE


def _removed(events: bytes) -> bool:
    """Return whether the kernel has stopped to watch, since the folder or file was removed."""
    at = 0
    while at < len(events):
        _watch, mask, _cookie, length = _EVENT.unpack_from(events, at)
        if mask & _IN_IGNORED:
            return True
        at += _EVENT.size + length
    return False


def _inotify(folder: Path, events: int) -> OwnedFd | None:
    try:
        return system.inotify(folder, events)
    except OSError as error:
        why = error.strerror
    logger().info("no inotify to watch %s (%s): looking every %g s", folder, why, NAP_MAX)
    return None
