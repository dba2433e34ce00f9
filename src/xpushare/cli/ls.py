"""List what the processes of this user share: objects, sizes, devices, exporters, importers and ages.

The command looks into every process of this user through /proc, and changes nothing. An object is `shared` if a handle
can open it. It is `withdrawn` if no handle opens it any more, but importers still have it open. It is `LEFT` if, in
addition, every process that exported it has died. Memory that several processes export, such as that of a channel, is
listed and counted once. The exit status is 1 if an object is LEFT, or if no process has the pid of --pid.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from fnmatch import fnmatchcase
from typing import Any, Final

import xpushare
from xpushare.arrays.names import survey_named
from xpushare.channels.survey import channels
from xpushare.cli import pid_argument
from xpushare.cli.keep import age, kept_lines, kept_rows
from xpushare.cli.screen import coloured, columns, narrow, table, wrapped
from xpushare.common.texts import counted, readable
from xpushare.sharing.survey import Row, Survey, command_line

__all__ = ["add_arguments", "run"]

_LISTED: Final = 8
_MANY: Final = 4  # so many similar objects or more are shown as one line
_LINE: Final = 120  # the length of a command line, in characters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pid", type=pid_argument, help="list only what this process exports or has open")
    parser.add_argument("--name", help="list only what is published under this name (* and ? are wildcards)")
    parser.add_argument(
        "--all", action="store_true", help="print a line for each object, even if a process exports many"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def _device_names() -> dict[str, str]:
    try:
        return {device.uuid: str(device) for device in xpushare.devices()}
    except xpushare.InvalidArgumentError:
        return {}  # an invalid selector hides the devices' names, but not the shared objects


def _who(pid: int, name: str | None) -> str:
    return f"{pid or '?'}" + (f" {name}" if name else "")


def _wanted(row: Row, arguments: argparse.Namespace) -> bool:
    pid, name = arguments.pid, arguments.name
    return (pid is None or pid == row["exporter"] or pid in row["importers"]) and (
        name is None or any(fnmatchcase(each, name) for each in row["names"])
    )


def _grouped(rows: list[Row], every: bool) -> list[list[Row]]:
    """Group similar rows, so that each group is shown as one line. Rows are similar if they differ only in size and
    age. Small groups are split into single rows, and so are all groups if `every` is true.
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        alike = (row["state"], row["kind"], row["device"], row["exporter"], *row["importers"], *row["names"])
        groups.setdefault(alike, []).append(row)
    return [
        lines
        for group in groups.values()
        for lines in ([group] if len(group) >= _MANY and not every else [[row] for row in group])
    ]


def _size(group: list[Row]) -> str:
    """Format the size of a group of rows. If the allocation is larger than its published part, format both sizes."""
    whole = sum(each["nbytes"] for each in group)
    part = sum(each["nbytes"] if each["published_nbytes"] is None else each["published_nbytes"] for each in group)
    return readable(whole) if part == whole else f"{readable(part)} of {readable(whole)}"


def _line(group: list[Row], devices: dict[str, str]) -> tuple[str, ...]:
    row = group[0]
    ages = [each["age"] for each in group if each["age"] is not None]
    return (
        "LEFT" if row["state"] == "left" else row["state"],
        row["kind"] if len(group) == 1 else f"{len(group)} x {row['kind']}",
        "-" if row["kind"] == "event" else _size(group),
        devices.get(row["device"] or "", f"{row['backend'] or '?'} {(row['device'] or '?')[:8]}"),
        f"{row['exporter']} (dead)" if row["state"] == "left" else _who(row["exporter"], row["exporter_name"]),
        " ".join(str(pid or "?") for pid in row["importers"]) or "-",
        str(sum(each["handles"] for each in group)),
        age(max(ages, default=None)),
        " ".join(row["names"]),
        ", ".join(dict.fromkeys(each["label"] for each in group if each["label"])),
    )


def _print_table(groups: list[list[Row]]) -> None:
    devices = _device_names()
    header = ("STATE", "KIND", "SIZE", "DEVICE", "EXPORTER", "IMPORTERS", "HANDLES", "AGE", "NAMES", "LABEL")
    lines = [_line(group, devices) for group in groups]
    if narrow():
        for line in lines:
            print(
                *(wrapped(f"{title:<9}  ", text) for title, text in zip(header, line, strict=True) if text),
                "",
                sep="\n",
            )
        return
    rows = (header, *lines)
    numbers = [title in ("SIZE", "HANDLES", "AGE") for title in header]
    for row, text in zip(rows, table(rows, numbers, columns()), strict=True):
        print(coloured(text, "bold" if row is header else "red" if row[0] == "LEFT" else ""))


def _processes(rows: list[Row]) -> dict[int, str]:
    """Return the command lines, by pid, of the processes that share an object of the rows or have opened one."""
    pids = {pid for row in rows for pid in (row["exporter"], *row["importers"]) if pid}
    found = {pid: command_line(pid) for pid in sorted(pids)}
    return {pid: line for pid, line in found.items() if line}


def _found() -> Survey:
    """Find all shared objects. Garbage collection is disabled meanwhile, because with many objects it would take most
    of the time and free nothing.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return survey_named()
    finally:
        if collects:
            gc.enable()


def _print_channels(found: list[dict[str, Any]]) -> None:
    """Print a line for each member of each channel."""
    devices = _device_names()
    for each in found:
        where = devices.get(each["device"], each["backend"])
        said = f"{counted(each['sent'], 'frame')} sent, {counted(each['slots'], 'slot')}"
        line = f"channel {each['name'] or '(without a name)'}, {said}, {readable(each['nbytes'])} on {where}"
        print(f"\n{wrapped('', line, 4)}")
        for member in each["members"]:
            does = (["finished writing" if member["finished"] else "writes"] if member["writes"] else []) + (
                [f"reads {member['mode']}: {member['lag']} behind, {member['missed']} missed, {member['held']} held"]
                if member["mode"]
                else []
            )
            print(wrapped("", f"  {_who(member['pid'], member['label'])} {', '.join(does)}", 6))


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns 0, or 1 if a process has died and left an object behind, or if no process has the pid of
    `--pid`.
    """
    found = _found()
    rows = [row for row in found.rows if _wanted(row, arguments)]
    left = [row for row in rows if row["state"] == "left"]
    processes = _processes(rows)
    some = arguments.pid, arguments.name
    if arguments.pid is not None and not rows and not os.path.exists(f"/proc/{arguments.pid}"):
        print(f"xpushare ls: no process has pid {arguments.pid}", file=sys.stderr)
        return 1
    open_channels = [
        each
        for each in channels()
        if (some[0] is None or some[0] in [member["pid"] for member in each["members"]])
        and (some[1] is None or fnmatchcase(each["name"] or "", some[1]))
    ]
    if arguments.json:
        unread = [each._asdict() for each in found.unread]
        everything = {
            "rows": rows, "processes": processes, "unread": unread, "channels": open_channels, "kept": kept_rows(),
        }  # fmt: skip
        print(json.dumps(everything, indent=2))
        return 1 if left else 0
    if rows:
        _print_table(_grouped(rows, arguments.all))
        print()
        for pid, line in processes.items():
            print(wrapped(f"{pid}: ", line if len(line) <= _LINE else line[: _LINE - 1] + "…"))
        total = sum(row["nbytes"] for row in rows)
        exporters = len({row["exporter"] for row in rows})
        print(f"\n{counted(len(rows), 'object')} of {counted(exporters, 'process', 'processes')}, {readable(total)}")
    elif found.rows:
        print(f"no object matches ({counted(len(found.rows), 'other object is', 'other objects are')} shared)")
    else:
        print("nothing is shared")
    if kept := kept_rows():
        print(f"kept by process {kept[0]['keeper']}:")
        print(*(wrapped("", f"  {line}", 6) for line in kept_lines(kept)), sep="\n")
    _print_channels(open_channels)
    if left:
        size = readable(sum(row["nbytes"] for row in left))
        what = "1 of them, {}, was" if len(left) == 1 else f"{len(left)} of them, {{}}, were"
        print(wrapped("", f"{what.format(size)} left by dead processes: freed once no process has them open", 4))
    if found.unread:
        listed = ", ".join(f"pid {each.pid} ({each.name})" for each in found.unread[:_LISTED])
        more = len(found.unread) - _LISTED
        rest = f" and {counted(more, 'other')}" if more > 0 else ""
        said = "these processes may share more, but this user may not look into them (that takes the right to ptrace): "
        print(wrapped("", f"{said}{listed}{rest}", 4))
    return 1 if left else 0
