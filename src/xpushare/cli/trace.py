"""Run a program and write a timeline of its processes that Perfetto opens.

The timeline has every operation of xpushare in the program and in the Python processes that it starts, and every call
that shares, publishes, sends, receives, locks or waits. It shows when each of them ran, how long, in which thread, with
what arguments, and its error. Arrows lead from the creation of a handle to its opening, from a signal to the wait that
it ended, and from the sending of a frame to its receipt. The operations of killed processes are included.

The exit status is the program's, or 128 plus the signal if a signal killed it. The file is Chrome trace-event JSON.
Open it in https://ui.perfetto.dev (it stays on your machine). No file is written if the program fails before it uses
xpushare.

  xpushare trace program.py its arguments
  xpushare trace -o load.json -m package.module its arguments
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import xpushare
from xpushare.cli import write_file
from xpushare.common.foreign import skipping

__all__ = ["add_arguments", "merge", "run"]

_LAYERS: Final = "UR_ENABLE_LAYERS"
_LAYER: Final = "UR_LAYER_TRACING"
_PIDS: Final = 1 << 22  # no Linux pid is larger
_ORDER: Final = {"M": 0, "X": 1, "B": 1, "b": 1, "s": 2, "f": 2, "e": 3}  # the order of events that have the same time
_SIGNALS: Final = ("Event.signal", "Queue.signal")


class _Slice(NamedTuple):
    """An operation in one thread. Times are in nanoseconds."""

    pid: int
    tid: int
    start: int
    end: int
    details: dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="trace.json", help="where to write the timeline (default: trace.json)"
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as in python -m")
    parser.add_argument("--json", action="store_true", help="report what was written, as one JSON object on stderr")
    parser.add_argument("program", help="the Python program to run")
    own = parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own arguments")
    own.required = False


def _records(file: Path) -> list[list[Any]]:
    """Return the records that one process has written. Ignores the last line if it is incomplete."""
    *lines, _rest = file.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines]


class _Merger:
    """Converts the records of processes to trace events."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._ids: set[int] = set()
        self._made: dict[str, _Slice] = {}  # by handle
        self._opened: list[_Slice] = []
        self._signals: dict[tuple[str, int], list[_Slice]] = {}  # by event and number
        self._waits: list[_Slice] = []
        self._sent: dict[str, list[_Slice]] = {}  # by frame
        self._received: list[_Slice] = []

    def add(self, records: list[list[Any]]) -> None:
        """Add the records of one process to the trace."""
        _kind, pid, name = records[0]
        threads = {record[1]: record[2] for record in records if record[0] == "thread"}
        # A pid that was used again, or that means another process in another PID namespace, is replaced by an unused
        # number.
        shift = 0
        while self._ids & {shift + each for each in (pid, *threads)}:
            shift += _PIDS
        self._ids |= {shift + each for each in (pid, *threads)}
        self._name("process_name", shift + pid, shift + pid, f"{name} ({pid})")
        for tid, thread in threads.items():
            self._name("thread_name", shift + pid, shift + tid, thread)
        ends = {(record[1], record[2]): record[3:] for record in records if record[0] == "end"}
        for record in records:
            if record[0] == "begin":
                _kind, tid, at, operation, is_async, details = record
                end = ends.get((tid, at))
                self._operation(shift + pid, shift + tid, operation, is_async, at, end, details)

    def _name(self, what: str, pid: int, tid: int, name: str) -> None:
        self.events.append({"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}})

    def _operation(
        self, pid: int, tid: int, name: str, is_async: bool, at: int, end: list[Any] | None, details: dict[str, Any]
    ) -> None:
        event = {"name": name, "cat": "xpushare", "pid": pid, "tid": tid, "args": details}
        if end is None:  # the process ended during the operation
            more = {"id": len(self.events)} if is_async else {}
            self.events.append({**event, "ph": "b" if is_async else "B", "ts": at, **more})
            return
        start, stop, found = end
        details.update(found)
        if is_async:  # asynchronous operations overlap in a thread
            both = {**event, "id": len(self.events)}
            self.events.append({**both, "ph": "b", "ts": start})
            self.events.append({**both, "ph": "e", "ts": stop})
            return
        self.events.append({**event, "ph": "X", "ts": start, "dur": stop - start})
        slice_ = _Slice(pid, tid, start, stop, details)
        if "error" in details:
            return
        if "handle" in found:  # an operation that makes or opens one
            if name.endswith(".get"):
                self._made[found["handle"]] = slice_
            else:
                self._opened.append(slice_)
        elif name == "Loan.send":
            self._sent.setdefault(found["frame"], []).append(slice_)
        elif name == "Channel.receive":
            self._received.append(slice_)
        elif name in _SIGNALS:
            self._signals.setdefault((details["event"], details["result"]), []).append(slice_)
        elif name == "Event.wait":
            self._waits.append(slice_)

    def draw(self) -> None:
        """Add the arrows between operations. Call this once the records of all processes have been added."""
        for opened in self._opened:
            made = self._made.get(opened.details["handle"])
            if made is not None:
                self._arrow("handle", made, opened, opened.start)
        for wait in self._waits:
            self._ended_by("signal", self._signals.get((wait.details["event"], wait.details["at_least"]), ()), wait)
        for received in self._received:
            self._ended_by("frame", self._sent.get(received.details["frame"], ()), received)

    def _ended_by(self, what: str, sources: Iterable[_Slice], wait: _Slice) -> None:
        # A freed event's id, or a channel's name, may be reused. The wait belongs to the last such source before it.
        before = [each for each in sources if each.start < wait.end]
        if before:
            last = max(before, key=lambda each: each.start)
            self._arrow(what, last, wait, max(wait.end - 1, wait.start))

    def _arrow(self, name: str, source: _Slice, target: _Slice, at: int) -> None:
        flow = {"name": name, "cat": "xpushare", "id": len(self.events)}
        self.events.append({**flow, "ph": "s", "pid": source.pid, "tid": source.tid, "ts": source.start})
        self.events.append({**flow, "ph": "f", "bp": "e", "pid": target.pid, "tid": target.tid, "ts": at})


def merge(folder: Path) -> list[dict[str, Any]]:
    """Return the trace events of all processes that wrote into `folder`, in order of time. Times are in microseconds
    from the first event.
    """
    merger = _Merger()
    found: list[tuple[int, list[list[Any]]]] = []
    for file in folder.iterdir():
        with skipping(f"the trace {file.name!r} of a process"):
            if records := _records(file):
                found.append((int(_first_time(records)), records))
    for _time, records in sorted(found, key=itemgetter(0)):
        with skipping("the trace of a process"):
            merger.add(records)
    merger.draw()
    timed = [event for event in merger.events if event["ph"] != "M"]
    zero = min((event["ts"] for event in timed), default=0)
    merger.events.sort(key=lambda event: (event["ts"], _ORDER[event["ph"]]))
    for event in timed:
        event["ts"] = (event["ts"] - zero) / 1000
        if "dur" in event:
            event["dur"] /= 1000
    return merger.events


def _first_time(records: list[list[Any]]) -> int:
    return next((record[2] for record in records if record[0] == "begin"), 0)


def _run(command: list[str], folder: str) -> int:
    """Run the program. Returns its exit status in the form that a shell reports."""
    from xpushare.core.layers import TRACE_FOLDER

    layers = [name for name in os.environ.get(_LAYERS, "").split(",") if name.strip()]
    environment = {**os.environ, TRACE_FOLDER: folder, _LAYERS: ",".join([*layers, _LAYER])}
    # Ctrl-C reaches the program directly, and its exit status shows the result. This is a function because SIG_IGN
    # would be inherited.
    before = {signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None)}
    try:
        process = subprocess.Popen(command, env=environment)
        before[signal.SIGTERM] = signal.signal(signal.SIGTERM, lambda number, _frame: process.send_signal(number))
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the program's exit status."""
    if sys.platform != "linux":
        raise xpushare.FeatureNotSupportedError("the native part of xpushare is built for Linux only: nothing to trace")
    output = Path(arguments.output)
    is_new = not output.exists()
    try:
        with output.open("a"):  # checked before the program runs, which may take long
            pass
    except OSError as error:
        print(f"xpushare trace: cannot write {output}: {error.strerror}", file=sys.stderr)
        return 2
    program = ["-m", arguments.program] if arguments.module else [arguments.program]
    with tempfile.TemporaryDirectory(prefix="xpushare-trace-", ignore_cleanup_errors=True) as folder:
        status = _run([sys.executable, *program, *arguments.arguments], folder)
        events = merge(Path(folder))
    if status and not events:  # the program was not started, or failed before it imported the package
        if is_new:
            output.unlink(missing_ok=True)
        if arguments.json:
            print(json.dumps({"trace": None, "processes": 0, "operations": 0, "status": status}), file=sys.stderr)
        else:
            why = f"the program ended with status {status} before it used xpushare"
            print(f"xpushare trace: {output} was not written: {why}", file=sys.stderr)
        return status
    about = {"command": [*program, *arguments.arguments], "xpushare": xpushare.__version__}
    write_file(output, json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}))
    processes = sum(event["name"] == "process_name" for event in events)
    operations = sum(event["ph"] in "XBb" for event in events)
    if arguments.json:
        found = {"trace": str(output), "processes": processes, "operations": operations, "status": status}
        print(json.dumps(found), file=sys.stderr)
    else:
        told = f"{operations} operations of {processes} processes"
        print(f"xpushare trace: {output}: {told}; https://ui.perfetto.dev opens it", file=sys.stderr)
    return status
