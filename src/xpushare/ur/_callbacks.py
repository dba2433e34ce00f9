"""Calls the program's callbacks. Callbacks for completed events run on a separate thread. Callbacks for log messages
run on the thread that logs the message.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from xpushare.common.errors import XpuShareError
from xpushare.ur._enums import LoggerLevel

if TYPE_CHECKING:
    import asyncio

__all__ = ["LogSink", "call_after", "call_soon"]

_log: Final = logging.getLogger("xpushare")
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None  # the functions to call; the first one starts the thread


def _after_fork() -> None:
    global _loop, _lock
    _loop = None  # the child does not have the parent's thread
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _running() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            import asyncio

            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="xpushare-callbacks", daemon=True).start()
            _loop = loop
        return _loop


def _call(function: Callable[[], object]) -> None:
    try:
        function()
    except Exception:
        _log.exception("a callback of the program failed")


def call_soon(function: Callable[[], object]) -> None:
    """Call `function` on the callback thread."""
    _running().call_soon_threadsafe(_call, function)


def call_after(come: Awaitable[None], function: Callable[[], object]) -> None:
    """Call `function` on the callback thread once the awaitable `come` returns or fails."""
    import asyncio

    async def wait() -> None:
        try:
            await come
        except XpuShareError:
            pass  # lost: the program learns it by asking the event
        _call(function)

    asyncio.run_coroutine_threadsafe(wait(), _running())


_LEVELS: Final = {
    LoggerLevel.DEBUG: logging.DEBUG,
    LoggerLevel.INFO: logging.INFO,
    LoggerLevel.WARN: logging.WARNING,
    LoggerLevel.ERROR: logging.ERROR,
    LoggerLevel.QUIET: logging.CRITICAL + 1,
}


class LogSink(logging.Handler):
    """A logging handler that passes the package's log messages to a callback of the program."""

    def __init__(self, notify: Callable[[LoggerLevel, str, object], object], data: object) -> None:
        super().__init__()
        self._notify = notify
        self._data = data

    def open(self, level: LoggerLevel) -> None:
        """Start passing on messages of `level` and above. A second call changes the level."""
        self.setLevel(_LEVELS[level])
        if level is not LoggerLevel.QUIET and _log.getEffectiveLevel() > self.level:
            _log.setLevel(self.level)
        _log.addHandler(self)

    def close(self) -> None:
        _log.removeHandler(self)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        level = max(each for each, number in _LEVELS.items() if number <= max(record.levelno, logging.DEBUG))
        try:
            self._notify(level, self.format(record), self._data)
        except Exception:
            self.handleError(record)
