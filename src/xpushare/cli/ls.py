"""Who shares what on this machine, for this user: objects, sizes, devices, exporters, importers, ages.

Looks into every process of this user through /proc, read-only. State `shared`: handles of the object can be opened;
`withdrawn`: they cannot any more, but importers have it open; `LEFT`: the same, and the exporter is dead: the object is
freed when its last importer closes it or ends. Exit status 1 when a dead process left something, else 0.
"""

from __future__ import annotations

import argparse
import gc
import json
from fnmatch import fnmatchcase
from typing import Any, Final

import xpushare
from xpushare.arrays.names import survey_named
from xpushare.channels.survey import channels
from xpushare.cli.keep import age, kept_lines, kept_rows
from xpushare.common.sizes import readable
from xpushare.sharing.survey import Row, Survey, command_line

__all__ = ["add_arguments", "run"]

_LISTED: Final = 8
_MANY: Final = 4  # objects alike, from which on they are one line
_LINE: Final = 120  # characters of a command line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pid", type=int, help="only what this process exports or has open")
    parser.add_argument("--name", help="only what is published under this name (* and ? match any characters)")
    parser.add_argument("--all", action="store_true", help="a line for each object, also where a process exports many")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def _device_names() -> dict[str, str]:
    try:
        return {device.uuid: str(device) for device in xpushare.devices()}
    except xpushare.InvalidArgumentError:
        return {}  # a selector that does not parse hides names, not shares


def _who(pid: int, name: str | None) -> str:
    return f"{pid or '?'}" + (f" {name}" if name else "")


def _wanted(row: Row, arguments: argparse.Namespace) -> bool:
    pid, name = arguments.pid, arguments.name
    return (pid is None or pid == row["exporter"] or pid in row["importers"]) and (
        name is None or any(fnmatchcase(each, name) for each in row["names"])
    )


def _grouped(rows: list[Row], every: bool) -> list[list[Row]]:
    """Rows that differ in size and age only are one line where there are many of them."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        alike = (row["state"], row["kind"], row["device"], row["exporter"], *row["importers"], *row["names"])
        groups.setdefault(alike, []).append(row)
    return [
        lines
        for group in groups.values()
        for lines in ([group] if len(group) >= _MANY and not every else [[row] for row in group])
    ]


def _line(group: list[Row], devices: dict[str, str]) -> tuple[str, ...]:
    row = group[0]
    ages = [each["age"] for each in group if each["age"] is not None]
    return (
        "LEFT" if row["state"] == "left" else row["state"],
        row["kind"] if len(group) == 1 else f"{len(group)} x {row['kind']}",
        "-" if row["kind"] == "event" else readable(sum(each["nbytes"] for each in group)),
        devices.get(row["device"] or "", f"{row['backend'] or '?'} {(row['device'] or '?')[:8]}"),
        f"{row['exporter']} (dead)" if row["state"] == "left" else _who(row["exporter"], row["exporter_name"]),
        " ".join(str(pid or "?") for pid in row["importers"]) or "-",
        str(sum(each["handles"] for each in group)),
        age(max(ages, default=None)),
        " ".join(row["names"]),
        " ".join(dict.fromkeys(each["label"] for each in group if each["label"])),
    )


def _print_table(groups: list[list[Row]]) -> None:
    devices = _device_names()
    header = ("STATE", "KIND", "SIZE", "DEVICE", "EXPORTER", "IMPORTERS", "HANDLES", "AGE", "NAMES", "LABEL")
    lines = [_line(group, devices) for group in groups]
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    for line in (header, *lines):
        cells = [
            text.rjust(width) if title in ("SIZE", "HANDLES", "AGE") else text.ljust(width)
            for title, text, width in zip(header, line, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())


def _processes(rows: list[Row]) -> dict[int, str]:
    """The command line of each process that has a part in the rows."""
    pids = {pid for row in rows for pid in (row["exporter"], *row["importers"]) if pid}
    found = {pid: command_line(pid) for pid in sorted(pids)}
    return {pid: line for pid, line in found.items() if line}


def _found() -> Survey:
    """What is shared. Where that is much, looking for garbage meanwhile takes a seventh of the time, and finds none."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return survey_named()
    finally:
        if collects:
            gc.enable()


def _print_channels(found: list[dict[str, Any]]) -> None:
    """A line for each member of each channel."""
    devices = _device_names()
    for each in found:
        print(
            f"\nchannel {each['name'] or '(without a name)'}, {each['sent']} frames sent, {each['slots']} slots, "
            f"{readable(each['nbytes'])} on {devices.get(each['device'], each['backend'])}"
        )
        for member in each["members"]:
            does = (["finished writing" if member["finished"] else "writes"] if member["writes"] else []) + (
                [f"reads {member['mode']}: {member['lag']} behind, {member['missed']} missed, {member['held']} held"]
                if member["mode"]
                else []
            )
            print(f"  {_who(member['pid'], member['label'])} {', '.join(does)}")


def run(arguments: argparse.Namespace) -> int:
    """0, or 1 when a dead process left something."""
    found = _found()
    rows = [row for row in found.rows if _wanted(row, arguments)]
    left = [row for row in rows if row["state"] == "left"]
    processes = _processes(rows)
    some = arguments.pid, arguments.name
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
            print(f"{pid}: {line if len(line) <= _LINE else line[: _LINE - 1] + '…'}")
        total = sum(row["nbytes"] for row in rows)
        exporters = len({row["exporter"] for row in rows})
        print(f"\n{len(rows)} objects of {exporters} processes, {readable(total)}")
    elif found.rows:
        print(f"nothing of that is shared ({len(found.rows)} other objects are)")
    else:
        print("nothing is shared")
    if kept := kept_rows():
        print(f"kept by process {kept[0]['keeper']}:", *kept_lines(kept), sep="\n  ")
    _print_channels(open_channels)
    if left:
        size = readable(sum(row["nbytes"] for row in left))
        print(f"{len(left)} of them, {size}, were left by dead processes: they go "
              "when their importers close them or end")  # fmt: skip
    if found.unread:
        listed = ", ".join(f"{each.pid} {each.name}" for each in found.unread[:_LISTED])
        more = len(found.unread) - _LISTED
        print(f"could not be looked into (it takes the right to ptrace them), so may share more: {listed}"
              + (f" and {more} others" if more > 0 else ""))  # fmt: skip
    return 1 if left else 0
