"""The package's own threads that run Python code.

They avoid two problems of `threading.Thread.start`, which waits until the new thread reports that it runs. If the new
thread has too little memory for its first call, the wait never ends. If the wait is interrupted, the thread runs but
counts as not started.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any, Final, final
from weakref import ref

from xpushare.common.errors import OutOfMemoryError

__all__ = ["Worker", "holds", "name_here"]

_LOOK: Final = 0.05  # seconds between checks that a thread that has not begun still exists
_names: dict[int, str] = {}  # of the threads that run, by their identity


@final
class _Life:
    """An object that lives as long as the thread that it was passed to."""

    __slots__ = ("__weakref__",)


def _nobody() -> None:
    return None


@final
class Worker:
    """A thread that does not keep the process from exiting."""

    __slots__ = ("_life", "_lives", "_lock", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._life: Callable[[], _Life | None] = _nobody
        self._lives: dict[int, ref[_Life]] = {}  # of each thread that was started, by their order
        self._lock = threading.RLock()  # re-entrant, for signal handlers and finalisers

    def alive(self) -> bool:
        """Return whether the thread is running or starting."""
        return self._life() is not None

    def start(self, work: Callable[[], None]) -> None:
        """Run `work` in the thread unless the thread runs already. Raises `OutOfMemoryError` if no thread can be
        created.
        """
        with self._lock:
            if self.alive():
                return
            life, number = _Life(), 0
            alive = ref(life)
            # One C call looks and claims: the handler of a signal that came since may have started the thread.
            while (found := self._lives.setdefault(number, alive)) is not alive:
                if found() is not None:
                    return
                number += 1
            self._life = alive
        begun = _thread.allocate_lock()
        begun.acquire()
        try:
            _thread.start_new_thread(_run, (work, self._name, begun, life))
        except (RuntimeError, MemoryError) as error:
            raise OutOfMemoryError(f"{self._name}: a thread cannot be started: {error} (`ulimit -u`)") from None
        finally:
            del life
        while not begun.acquire(timeout=_LOOK):
            if alive() is None:
                raise OutOfMemoryError(f"{self._name}: the thread ended as it began, for want of memory")


def _run(work: Callable[[], None], name: str, begun: _thread.LockType, _life: _Life) -> None:
    try:
        _names[_thread.get_ident()] = name
        begun.release()
        work()
    finally:
        _names.pop(_thread.get_ident(), None)


def holds(lock: Any) -> bool:
    """Return whether this thread holds the `RLock`. Code that does not call itself finds it held if the handler of a
    signal, or a finaliser, has interrupted the code that holds it.
    """
    return bool(lock._is_owned())


def name_here() -> str:
    """Return the name of the current thread."""
    return _names.get(_thread.get_ident()) or threading.current_thread().name
