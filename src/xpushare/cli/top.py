"""Show a live view of shared arrays and other memory, events and channels, with rates.

The view of objects comes first. Rates are measured between two updates. The keys p, o and c show processes, objects and
channels. The keys < and > choose the column to sort by, and r reverses the order. The key / filters the lines by a
text, which Enter completes. Space pauses and resumes, and q quits. Without a terminal, with TERM=dumb, and with --json,
the command measures once over --interval seconds, prints the result and ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final, NamedTuple

import xpushare
from xpushare.arrays.names import survey_named
from xpushare.channels.survey import channels
from xpushare.cli import screen as output
from xpushare.cli import seconds
from xpushare.common.texts import counted
from xpushare.sharing.survey import command_line

__all__ = ["Look", "add_arguments", "look", "run", "tables"]

_MIB: Final = 1 << 20
_LEAST: Final = 12  # characters that a name or a label keeps on a narrow terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval", type=seconds, default=1.0, metavar="SECONDS", help="seconds between updates (default: 1)"
    )
    parser.add_argument(
        "--view",
        choices=tuple(_VIEWS.values()),
        help="what to show first (default: objects); without a terminal, the only view in the text (default: all)",
    )
    parser.add_argument("--filter", default="", metavar="TEXT", help="show only lines that contain this text")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


# --- the data


class Look(NamedTuple):
    """The shared objects and channels at one moment. `at` is the time."""

    at: float
    rows: list[dict[str, Any]]
    channels: list[dict[str, Any]]


def look() -> Look:
    """Find the objects and channels that are shared now."""
    return Look(time.monotonic(), [dict(row) for row in survey_named().rows], channels())


class Table(NamedTuple):
    """The columns and lines of one view."""

    columns: tuple[str, ...]
    lines: list[tuple[Any, ...]]


def _identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["kind"], row["exporter"], row["device"], row["nbytes"], tuple(row["names"]), row["label"]


def _rate(now: float | None, before: float | None, seconds: float) -> float | None:
    if now is None or before is None or seconds <= 0 or now < before:
        return None
    return round((now - before) / seconds, 1)


def _channel_lines(new: Look, old: Look) -> Iterator[tuple[Any, ...]]:
    """Yield a line for each member of each channel. The rate is the number of frames per second that a writer sends or
    a reader receives.
    """
    seconds, devices = new.at - old.at, _device_names()
    before = {(each["name"], member["pid"], member["member"]): (each["sent"], member["received"])
              for each in old.channels for member in each["members"]}  # fmt: skip
    for each in new.channels:
        for member in each["members"]:
            sent, received = before.get((each["name"], member["pid"], member["member"]), (None, None))
            reads = member["mode"] is not None
            rate = _rate(member["received"], received, seconds) if reads else _rate(each["sent"], sent, seconds)
            does = "+".join((["writes"] if member["writes"] else []) + ([member["mode"]] if reads else []))
            yield (
                each["name"] or "(without a name)", member["pid"], member["label"], does or "-", each["sent"],
                member["lag"], member["missed"], member["held"], rate,
                None if rate is None else round(rate * each["frame_nbytes"] / _MIB, 1),
                devices.get(each["device"], each["backend"]),
            )  # fmt: skip


def _object_lines(new: Look, old: Look) -> Iterator[tuple[Any, ...]]:
    """Yield a line for each object. For an event, the rate is the growth of its value per second."""
    before = {_identity(row): row["value"] for row in old.rows}
    devices = _device_names()
    for row in new.rows:
        yield (
            row["kind"], row["state"], row["exporter"], " ".join(row["names"]), row["label"],
            len(row["importers"]), round(row["nbytes"] / _MIB, 1),
            row["value"], None if row["value"] is None else max(row["pending"] - row["value"], 0),
            _rate(row["value"], before.get(_identity(row)), new.at - old.at), row["age"],
            devices.get(row["device"] or "", row["backend"] or "?"),
        )  # fmt: skip


def _process_lines(new: Look, old: Look) -> Iterator[tuple[Any, ...]]:
    """Yield a line for each process, with the numbers of its exports and open objects, and its roles in channels."""
    pids = {pid for row in new.rows for pid in (row["exporter"], *row["importers"])}
    pids |= {member["pid"] for each in new.channels for member in each["members"]}
    ends = [(line[1], line) for line in _channel_lines(new, old)]
    for pid in sorted(pids):
        exports = [row for row in new.rows if row["exporter"] == pid]
        imports = [row for row in new.rows if pid in row["importers"]]
        mine = [line for owner, line in ends if owner == pid]
        labels = dict.fromkeys([row["label"] for row in exports] + [line[2] for line in mine])
        yield (
            pid, ", ".join(each for each in labels if each), len(exports),
            round(sum(row["nbytes"] for row in exports) / _MIB, 1), len(imports),
            round(sum(row["nbytes"] for row in imports) / _MIB, 1), len(mine), sum(line[5] for line in mine),
            sum(line[6] for line in mine), sum(line[7] for line in mine), round(sum(line[8] or 0 for line in mine), 1),
            command_line(pid) or "",
        )  # fmt: skip


def _device_names() -> dict[str, str]:
    try:
        return {device.uuid: str(device) for device in xpushare.devices()}
    except xpushare.InvalidArgumentError:
        return {}  # an invalid selector hides the devices' names, but not the shared objects


_VIEWS: Final = {"p": "processes", "o": "objects", "c": "channels"}
_LINES: Final[dict[str, tuple[tuple[str, ...], Callable[[Look, Look], Iterator[tuple[Any, ...]]]]]] = {
    "processes": (
        ("PID", "LABELS", "EXPORTS", "MIB", "OPEN", "OPEN_MIB", "ENDS", "LAG", "MISSED", "HELD", "FRAMES/S", "COMMAND"),
        _process_lines,
    ),
    "objects": (
        (
            "KIND", "STATE", "PID", "NAMES", "LABEL", "IMPORTERS", "MIB", "VALUE", "PENDING", "SIGNALS/S", "AGE",
            "DEVICE",
        ),
        _object_lines,
    ),
    "channels": (
        ("CHANNEL", "PID", "LABEL", "DOES", "SENT", "LAG", "MISSED", "HELD", "FRAMES/S", "MIB/S", "DEVICE"),
        _channel_lines,
    ),
}  # fmt: skip


def tables(new: Look, old: Look) -> dict[str, Table]:
    """Return every view as a table, by name. Rates are the differences between `old` and `new` divided by the time
    between them.
    """
    return {view: Table(columns, list(lines(new, old))) for view, (columns, lines) in _LINES.items()}


# --- the display


class _Screen:
    """The view, order and filter that the user has chosen with keys."""

    def __init__(self, view: str | None, text: str) -> None:
        self.view = view or "objects"
        self.text = text
        self.typing = False
        self.paused = False
        self.ended = False
        self._sort = dict.fromkeys(_LINES, 0)
        self._reverse = dict.fromkeys(_LINES, False)

    def key(self, key: str) -> None:
        if self.typing:
            if key in "\r\n\x1b":
                self.typing = False
            elif key in "\x7f\b":
                self.text = self.text[:-1]
            elif key.isprintable():
                self.text += key
        elif key in _VIEWS:
            self.view = _VIEWS[key]
        elif key in "<>":
            count = len(_LINES[self.view][0])
            self._sort[self.view] = (self._sort[self.view] + (1 if key == ">" else -1)) % count
        elif key == "r":
            self._reverse[self.view] = not self._reverse[self.view]
        elif key == "/":
            self.text, self.typing = "", True
        elif key == " ":
            self.paused = not self.paused
        elif key == "q":
            self.ended = True

    def lines(self, shown: dict[str, Table], width: int | None = None) -> list[str]:
        """Return the current view as lines of text that fit `width`, sorted and filtered. A star marks the column by
        which the lines are sorted.
        """
        columns, found = shown[self.view]
        sort = self._sort[self.view]
        found = [line for line in found if _has(line, self.text)]
        numbers = _is_number(found, sort)
        found.sort(
            key=lambda line: (line[sort] is None, line[sort] or 0) if numbers else str(line[sort]),
            reverse=self._reverse[self.view],
        )
        head = [f"*{name}" if i == sort else name for i, name in enumerate(columns)]
        cells = [head, *([_text(each) for each in line] for line in found)]
        lines = output.table(cells, [_is_number(found, i) for i in range(len(columns))], width, _LEAST)
        return lines if found or not self.text else [*lines, f"no line contains {self.text!r}"]

    def keys(self, width: int) -> str:
        """Return the help line for the keys. Leaves out the last keys if `width` is too small."""
        views = [f"{key} {view}" for key, view in _VIEWS.items() if view != self.view]
        shown = [*views, "q quit", "< > sort", "r reverse", "/ filter", "space pause"]
        while len("  ".join(shown)) > width:
            shown.pop()
        return "  ".join(shown)

    def status(self, seen: Look) -> str:
        total = sum(row["nbytes"] for row in seen.rows) / _MIB
        state = f"filter: {self.text}_" if self.typing else f"filter: {self.text}" if self.text else ""
        return (
            f"{self.view}: {counted(len(seen.rows), 'object')}, {total:.1f} MiB, "
            f"{counted(len(seen.channels), 'channel')}"
            f"{'  PAUSED' if self.paused else ''}  {state}"
        ).rstrip()


def _has(line: tuple[Any, ...], text: str) -> bool:
    """Return whether the line contains the text, ignoring case."""
    return text.lower() in " ".join(map(str, line)).lower()


def _is_number(lines: Sequence[tuple[Any, ...]], column: int) -> bool:
    return all(isinstance(line[column], int | float | None) for line in lines)


def _text(value: Any) -> str:
    return "-" if value is None else str(value)


def _draw(screen: _Screen, shown: dict[str, Table], seen: Look) -> None:
    width, height = shutil.get_terminal_size()
    body = [screen.status(seen), *screen.lines(shown, width)][: height - 1]
    text = "".join(f"{line[:width]}\x1b[K\r\n" for line in body)
    sys.stdout.write(f"\x1b[H{text}\x1b[J\x1b[{height};1H{screen.keys(width - 1)}\x1b[K")
    sys.stdout.flush()


@contextlib.contextmanager
def _terminal() -> Generator[None]:
    """Switch the terminal to its alternate screen, and make each key arrive without Enter. The previous state is
    restored at the end, even after a signal.
    """
    before = termios.tcgetattr(0)
    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        tty.setcbreak(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


def _live(screen: _Screen, interval: float) -> None:
    with _terminal():
        old = new = look()
        while not screen.ended:
            _draw(screen, tables(new, old), new)
            ready, _, _ = select.select([0], [], [], max(new.at + interval - time.monotonic(), 0))
            if ready:
                typed = os.read(0, 64).decode(errors="replace")
                if not typed:
                    return
                for key in typed:
                    screen.key(key)
            elif time.monotonic() >= new.at + interval:
                if screen.paused:
                    new = new._replace(at=time.monotonic())
                    old = old._replace(at=new.at)
                else:
                    old, new = new, look()


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Always returns 0."""
    screen = _Screen(arguments.view, arguments.filter)
    interval = max(arguments.interval, 0.05)
    if not arguments.json and not output.is_dumb() and sys.stdin.isatty() and sys.stdout.isatty():
        _live(screen, interval)
        return 0
    old = look()
    time.sleep(interval)
    new = look()
    shown = tables(new, old)
    if arguments.json:
        found = {
            view: [dict(zip(columns, line, strict=True)) for line in lines] for view, (columns, lines) in shown.items()
        }
        print(json.dumps(found, indent=2))
        return 0
    print(screen.status(new))
    for view in [arguments.view] if arguments.view else _LINES:
        screen.view = view
        print(f"\n{view}", *screen.lines(shown, output.columns()), sep="\n")
    return 0
