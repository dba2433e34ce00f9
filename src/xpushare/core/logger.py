"""The layers' loggers, configured by Unified Runtime's variables `UR_LOG_VALIDATION` and `UR_LOG_TRACING`, each in the
form `level:<level>;flush:<level>;output:stdout|stderr|file,<path>;fileline:<bool>`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, final

from xpushare.common.leaving import Stage, at_leave

__all__ = ["Level", "Logger", "listeners"]


class Level(IntEnum):
    """The levels of `ur_logger_level_t`."""

    DEBUG = 0
    INFO = 1
    WARNING = 2
    ERROR = 3
    QUIET = 4


listeners: Final[list[Callable[[str, Level, str], object]]] = []
"""Each is called with the logger's name, the level and the text of every message that a logger writes."""

_KEYS: Final = ("level", "flush", "output", "fileline")
_TRUE: Final = ("y", "yes", "t", "true", "1")
_loggers: Final[list[Logger]] = []


@final
class Logger:
    """Writes the messages of one layer.

    If the layer's environment variable is not set, messages of `default` and above go to stderr. (Unified Runtime's own
    loggers are silent then, but a user who switches a layer on wants to see its findings.) Buffered messages are
    flushed by a message of level `flush` (default `error`) or above, before a fork, and at exit.
    """

    def __init__(self, name: str, default: Level, prefix: bool = True) -> None:
        self.name = name
        self._prefix = prefix
        self._lock = threading.RLock()  # re-entrant, since the garbage collector may run a destructor that logs
        self._file: Any = None
        self._set(default)
        try:
            self._read(os.environ.get(f"UR_LOG_{name}", ""))
        except (ValueError, OSError) as error:
            self._set(default)
            print(f"xpushare: UR_LOG_{name} is ignored: {error}", file=sys.stderr)
        _loggers.append(self)

    def _set(self, level: Level) -> None:
        self.level = level
        self._flush = Level.ERROR
        self._output = "stderr"
        self.fileline = False

    def _read(self, text: str) -> None:
        found: dict[str, str] = {}
        for part in filter(None, text.split(";")):
            key, colon, value = part.partition(":")
            if not colon or not value or key in found:
                raise ValueError(f"{part!r} is not a key:value, or the second of its key")
            if key not in _KEYS:
                raise ValueError(f"it has no key {key!r}; the keys are {', '.join(_KEYS)}")
            found[key] = value
        self.level = _level(found["level"]) if "level" in found else self.level
        self._flush = _level(found["flush"]) if "flush" in found else self._flush
        self.fileline = found.get("fileline", "").lower() in _TRUE
        output, _, path = found.get("output", self._output).partition(",")
        if output not in ("stdout", "stderr", "file") or (output == "file") != bool(path):
            raise ValueError(f"output is stdout, stderr or file,<path>, not {found['output']!r}")
        if path:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC  # every process appends to it
            file = os.open(path.strip("'\""), flags, 0o666)
            self._file = open(file, "a", encoding="utf-8", closefd=False)  # noqa: SIM115 it serves until the very end
        self._output = output

    def log(self, level: Level, text: str, place: str = "") -> None:
        """Write a message. `place` is the program's source location, which `fileline:true` adds."""
        if level < self.level or self.level is Level.QUIET:
            return
        for each in listeners:
            each(self.name, level, text)
        prefix = f"<{self.name}>[{level.name}]: " if self._prefix else ""
        where = f" <{place}>" if self.fileline and place else ""
        stream = self._file if self._file is not None else getattr(sys, self._output)
        if stream is None:  # Python runs without that stream
            return
        with self._lock:
            stream.write(f"{prefix}{text}{where}\n")
            if level >= self._flush or self._output == "stderr":
                stream.flush()

    def flush(self) -> None:
        if self._file is not None:
            with self._lock:
                self._file.flush()

    def renew_lock(self) -> None:
        self._lock = threading.RLock()


def _level(text: str) -> Level:
    try:
        return {each.name.lower(): each for each in Level}[text]
    except KeyError:
        levels = ", ".join(each.name.lower() for each in Level)
        raise ValueError(f"there is no level {text!r}; they are {levels}") from None


def _flush_all(_deadline: float = 0.0) -> None:
    for each in _loggers:
        each.flush()


def _after_fork() -> None:
    for each in _loggers:
        each.renew_lock()  # another thread of the parent may have held it


os.register_at_fork(before=_flush_all, after_in_child=_after_fork)
at_leave(_flush_all, Stage.STOP)
