"""The clean exit of this process: it finishes pending work, within a bounded time, before other processes see that it
has ended.

It runs after `multiprocessing` has sent the content of its queues and joined its children. It also runs in forked
children, which run no `atexit` before Python 3.13.
"""

from __future__ import annotations

import atexit
import enum
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, final

from xpushare.common.errors import XpuShareError
from xpushare.common.loading import logger

__all__ = ["Notice", "Stage", "at_leave", "leave"]

_LINGER: Final = 10.0  # seconds, for all callbacks together
_SILENT: Final = 0.5  # seconds after which a wait is reported
# Runs after multiprocessing's finalisers, which join the feeder threads of queues at priority -5.
_LAST: Final = -(1 << 30)


class Stage(enum.IntEnum):
    """The stage of the exit in which a callback runs. The stages run in this order."""

    WITHDRAW = 0  # other processes can discover nothing new of this one
    REPORT = 1  # the leak layer reports
    FINISH = 2  # queues finish their work
    LINGER = 3  # other processes open the pickles that were sent to them
    LEAVE = 4  # this process stops sharing
    STOP = 5  # threads of this process stop


@final
class Notice:
    """Says once what the exit waits for, if it takes long enough for a user to notice."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at = time.monotonic() + _SILENT

    def waits(self, what: str, *arguments: object, seconds: float) -> None:
        """Report that the exit waits for `what`, a format for `arguments`, for `seconds` more at most."""
        if time.monotonic() >= self._at:
            self._at = math.inf
            logger().warning(
                f"process %d waits up to %d s at its exit for {what}. Ctrl-C ends the wait, and XPUSHARE_LINGER says "
                "how long it may take (0: no wait)",
                os.getpid(),
                math.ceil(seconds),
                *arguments,
            )


_callbacks: dict[Callable[[float], object], Stage] = {}
_hooked: list[Any] = []  # multiprocessing's finaliser of this process, if it has one
_by_atexit = _remembered = False  # a forked child inherits both
_over = False


def at_leave(callback: Callable[[float], object], stage: Stage) -> None:
    """Call `callback(deadline)` at the clean exit of this process, and of its forked children.

    The callback may block until `deadline` (in seconds of `time.monotonic`), but not longer. It must not start a new
    thread. If Ctrl-C interrupts the callback, it is called once more, with a deadline that has passed. Exceptions are
    logged. Within a stage, callbacks run in the order of registration. Registering a callback a second time has no
    effect.
    """
    _callbacks.setdefault(callback, stage)


def leave() -> None:
    """Run the registered callbacks, once in the life of a process. Never raises an error, so that the exit status stays
    the same.
    """
    global _over
    if _over:
        return
    _over = True
    _hush()
    deadline = 0.0 if _interrupted() else time.monotonic() + _linger()
    todo = sorted(_callbacks, key=_callbacks.__getitem__)[::-1]
    while todo:
        try:
            todo[-1](deadline)
            todo.pop()
        except Exception:
            logger().exception("at the exit of process %d", os.getpid())
            todo.pop()
        except BaseException:  # Ctrl-C or another signal: the user does not want to wait
            if not deadline:
                todo.pop()
            deadline = 0.0


def _hush() -> None:
    """Suppress the tracebacks of this package's errors in threads that the exit interrupts."""
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if not issubclass(args.exc_type, XpuShareError):
            before(args)

    threading.excepthook = hook


def _linger() -> float:
    text = os.environ.get("XPUSHARE_LINGER", "")
    try:
        seconds = float(text) if text else _LINGER
    except ValueError:
        seconds = math.nan
    if seconds >= 0:
        return min(seconds, threading.TIMEOUT_MAX)
    logger().warning("XPUSHARE_LINGER is a number of seconds, not %r: %g is used", text, _LINGER)
    return _LINGER


def _interrupted() -> bool:
    """Return whether this process is ending because of Ctrl-C."""
    ended_by = sys.exc_info()[0] or (None if hasattr(sys, "ps1") else getattr(sys, "last_type", None))
    return ended_by is KeyboardInterrupt


# --- the exit of a process ----------------------------------------------------------------------------------------


def _hook(_anchor: object = None) -> None:
    """Register `leave` to run at exit, after multiprocessing's own work."""
    global _by_atexit, _remembered
    util: Any = sys.modules.get("multiprocessing.util")
    if util is None:
        if not _by_atexit:  # before multiprocessing registers, so that its function runs first
            _by_atexit = True
            atexit.register(leave)
        return
    if not (_hooked and _hooked[0].still_active()):
        _hooked[:] = [util.Finalize(None, leave, exitpriority=_LAST)]
    if not _remembered:  # a child of multiprocessing drops inherited finalisers, and then calls this
        _remembered = True
        util.register_after_fork(at_leave, _hook)


def _after_fork() -> None:
    global _over
    _over = False
    _hooked.clear()  # the parent's finaliser
    _hook()


os.register_at_fork(after_in_child=_after_fork)
_hook()
