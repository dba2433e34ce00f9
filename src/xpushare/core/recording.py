"""The records that the tracing layer makes for `xpushare trace`. Each process appends every record to its own file at
once, so that the records of a killed process survive. `cli/trace.py` reads the files.

A file has one JSON array per line. The first line is `["process", pid, name]`. A line `["thread", tid, name]` comes
before a thread's first operation. Each operation has two lines: `["begin", tid, at, operation, is_async, details]` and
`["end", tid, at of the beginning, start, end, details]`. Times are nanoseconds of CLOCK_MONOTONIC, which all processes
share.
"""

from __future__ import annotations

import errno
import functools
import inspect
import json
import math
import numbers
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

from xpushare._native import LAYOUT, load64
from xpushare.common.threads import name_here
from xpushare.core.declare import Call, Traced, briefs
from xpushare.core.device import Device
from xpushare.core.event import Opened
from xpushare.core.memory import Range
from xpushare.core.physical import Held
from xpushare.core.resources import Resource
from xpushare.sharing.handle import Handle, fields_of

__all__ = ["arguments_of", "brief", "names_of", "record", "result_of"]

_TEXT_MAX: Final = 200
_NAME_MAX: Final = 64
_ITEMS_MAX: Final = 8
_CONTENT: Final = frozenset({"array_or_tree", "meta", "obj", "x"})  # arguments that may be data: their types alone


class _File:
    """This process's file. It is opened at the first record, and again after a fork."""

    def __init__(self, folder: str = "") -> None:
        self.folder = folder
        self._lock = threading.RLock()  # re-entrant, since a destructor may run an operation
        self._fd = -1
        self._inode = (0, 0)
        self._threads: dict[int, str] = {}
        self._over = False

    def write(self, *record: Any) -> None:
        with self._lock:
            if self._over:
                return
            try:
                self._expect_open()
                self._append(record)
            except OSError as error:  # the program continues without a trace
                self._over = True
                if sys.stderr is not None:
                    print(f"xpushare: process {os.getpid()} is traced no further: {error}", file=sys.stderr)

    def thread(self) -> int:
        """Return the calling thread's id, and record its name the first time."""
        tid = threading.get_native_id()
        if tid not in self._threads:
            self._threads[tid] = name = name_here()
            self.write("thread", tid, name)
        return tid

    def _append(self, record: tuple[Any, ...]) -> None:
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        if os.write(self._fd, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the disk took only a part

    def _is_open(self) -> bool:
        """Return whether the file is still open. If the program has closed it, its descriptor's number may now belong
        to another file.
        """
        try:
            found = os.fstat(self._fd)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._inode

    def _expect_open(self) -> None:
        if not self._is_open():
            self._fd, _ = tempfile.mkstemp(prefix=f"{os.getpid()}-", dir=self.folder)
            found = os.fstat(self._fd)
            self._inode = found.st_dev, found.st_ino
            self._append(("process", os.getpid(), _process_name()))
            for thread in self._threads.items():
                self._append(("thread", *thread))

    def close(self) -> None:
        if self._is_open():
            os.close(self._fd)


def _process_name() -> str:
    script = os.path.basename((getattr(sys, "argv", None) or [""])[0]) or "python"
    multiprocessing = sys.modules.get("multiprocessing.process")
    name = multiprocessing.current_process().name if multiprocessing is not None else "MainProcess"
    return script if name == "MainProcess" else f"{script} {name}"


_file = _File()


def _after_fork() -> None:
    global _file
    _file.close()  # the parent's file
    _file = _File(_file.folder)


os.register_at_fork(after_in_child=_after_fork)


def event_key(event: Opened) -> str:
    """Return a name for an event's slot that is the same in all processes."""
    if event.timeline.foreign_process:  # after a fork, the event is not mapped here
        return "an event of the parent process"
    domain = event.timeline.driver
    at = domain.address + LAYOUT["commons.cookie"]
    return f"{load64(at):016x}{load64(at + 8):016x}/{event.timeline.slot.index}"


def handle_key(handle: Handle) -> str:
    """Return a name for an export that is the same in all processes."""
    fields = fields_of(handle)
    return f"{fields.cookie.hex()}/{fields.generation}"


def brief(value: Any) -> Any:
    """Return a short text for an argument or a result. Never calls `repr` of a user's object, since that may run any
    code.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):  # NumPy's, too
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON has no infinity
    if isinstance(value, str):  # never record a whole handle, with which anybody could open the memory
        return value if len(value) <= _NAME_MAX else f"{len(value)} characters"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    if isinstance(value, Handle):
        return repr(value)
    if isinstance(value, Device):
        return str(value)
    if isinstance(value, Range | Held):
        nbytes = value.nbytes if isinstance(value, Range) else value.pages.nbytes
        return f"{nbytes} bytes on {value.device}"
    if isinstance(value, Opened):
        return event_key(value)
    if isinstance(value, Resource):
        return f"{type(value).__name__} on {value.device}"
    if isinstance(value, tuple | list):
        return [brief(each) for each in value[:_ITEMS_MAX]]
    if (shown := briefs.get(type(value))) is not None:
        return shown(value)
    return getattr(value, "__qualname__", None) or type(value).__qualname__


def names_of(traced: Traced) -> tuple[str, ...]:
    """Return the names of a call's arguments. An object whose method is called goes by the name of its class."""
    try:
        names = list(inspect.signature(traced.function).parameters)
    except ValueError:  # native code says none
        names = ["self"]
    return tuple(traced.name.partition(".")[0].lower() if name == "self" else name for name in names)


def arguments_of(traced: Traced) -> Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]:
    """Return a function that describes a call's arguments, given as a tuple and a dictionary."""
    names = names_of(traced)
    waits = traced.name in ("Event.wait", "Event.reached")

    def described(values: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
        given = {**dict(zip(names, values, strict=False)), **options}
        given.pop("cls", None)
        found = {
            name: type(value).__qualname__ if name in _CONTENT else brief(value)
            for name, value in given.items()
            if value is not None and value is not False
        }
        if waits and given.get("at_least") is None and not given["event"].timeline.foreign_process:
            found["at_least"] = given["event"].timeline.slot.pending
        return found

    return described


def result_of(traced: Traced, subject: Any, value: Any) -> dict[str, Any]:
    """Describe the result of a call, whose first argument was `subject`."""
    found = {} if value is None else {"result": brief(value)}
    if isinstance(traced, Call):
        return found if traced.outcome is None else {**found, **traced.outcome(subject, value)}
    handle = value if isinstance(value, Handle) else getattr(value, "handle", None)
    if isinstance(handle, Handle) and traced.name.endswith((".get", ".open")):
        found["handle"] = handle_key(handle)
    return found


def _failure(error: BaseException) -> dict[str, Any]:
    return {"error": f"{type(error).__name__}: {error}"[:_TEXT_MAX]}


def record(traced: Traced, call: Callable[..., Any], folder: str) -> Callable[..., Any]:
    """Wrap `call` so that its beginning and end are written to this process's file in `folder`."""
    _file.folder = folder
    described = arguments_of(traced)
    clock = time.monotonic_ns
    is_async = inspect.iscoroutinefunction(traced.function)

    @contextmanager
    def noted(values: tuple[Any, ...], options: dict[str, Any]) -> Generator[list[Any]]:
        tid, at = _file.thread(), clock()
        _file.write("begin", tid, at, traced.name, is_async, described(values, options))
        start = clock()
        result: list[Any] = []
        try:
            yield result
        except BaseException as error:
            _file.write("end", tid, at, start, clock(), _failure(error))
            raise
        _file.write("end", tid, at, start, clock(), result_of(traced, values[0] if values else None, result[0]))

    @functools.wraps(traced.function)
    async def recorded_async(*values: Any, **options: Any) -> Any:
        with noted(values, options) as result:
            result.append(await call(*values, **options))
        return result[0]

    @functools.wraps(traced.function)
    def recorded(*values: Any, **options: Any) -> Any:
        with noted(values, options) as result:
            result.append(call(*values, **options))
        return result[0]

    return recorded_async if is_async else recorded
