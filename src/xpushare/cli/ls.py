"""Who shares what on this machine, for this user: objects, sizes, devices, exporters, importers, ages.

Looks into every process of this user through /proc, read-only. State `shared`: handles of the object can be opened;
`withdrawn`: they cannot any more, but importers have it open; `LEFT`: the same, and the exporter is dead: the object is
freed when its last importer closes it or ends. Exit status 1 when a dead process left something, else 0.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Final

import xpushare
from xpushare import FeatureNotSupportedError

__all__ = ["add_arguments", "human", "run"]

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_LISTED: Final = 8
_TIMES: Final = ((86400, "d"), (3600, "h"), (60, "min"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def human(nbytes: int) -> str:
    """A size for people: `4.0 KiB`."""
    step = min(max(nbytes.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{nbytes / (1 << 10 * step):.1f} {_UNITS[step]}" if step else f"{nbytes} B"


def _age(seconds: int | None) -> str:
    if seconds is None:
        return "?"
    for length, unit in _TIMES:
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def _device_names() -> dict[str, str]:
    try:
        return {device.uuid: str(device) for device in xpushare.devices()}
    except xpushare.InvalidArgumentError:
        return {}  # a selector that does not parse hides names, not shares


def _who(pid: int, name: str | None) -> str:
    return f"{pid or '?'}" + (f" {name}" if name else "")


def run(arguments: argparse.Namespace) -> int:
    """0, or 1 when a dead process left something."""
    if sys.platform != "linux":
        raise FeatureNotSupportedError("the native part of xpushare is built for Linux only: nothing is shared here")
    from xpushare.sharing.survey import survey

    try:
        found = survey()
    except OSError as error:
        raise FeatureNotSupportedError(f"/proc cannot be read ({error.strerror}): mount -t proc proc /proc") from error
    left = [row for row in found.rows if row["state"] == "left"]
    if arguments.json:
        print(json.dumps({"rows": found.rows, "unread": [each._asdict() for each in found.unread]}, indent=2))
        return 1 if left else 0
    names = _device_names()
    header = ("STATE", "KIND", "SIZE", "DEVICE", "EXPORTER", "IMPORTERS", "HANDLES", "AGE")
    lines = [
        (
            "LEFT" if row["state"] == "left" else row["state"],
            row["kind"],
            "-" if row["kind"] == "event" else human(row["nbytes"]),
            names.get(row["device"] or "", f"{row['backend'] or '?'} {(row['device'] or '?')[:8]}"),
            f"{row['exporter']} (dead)" if row["state"] == "left" else _who(row["exporter"], row["exporter_name"]),
            " ".join(str(pid or "?") for pid in row["importers"]) or "-",
            str(row["handles"]),
            _age(row["age"]),
        )
        for row in found.rows
    ]
    if lines:
        widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
        for line in (header, *lines):
            cells = [
                text.rjust(width) if title in ("SIZE", "HANDLES", "AGE") else text.ljust(width)
                for title, text, width in zip(header, line, widths, strict=True)
            ]
            print("  ".join(cells).rstrip())
        total = sum(row["nbytes"] for row in found.rows)
        exporters = len({row["exporter"] for row in found.rows})
        print(f"\n{len(lines)} objects of {exporters} processes, {human(total)}")
    else:
        print("nothing is shared")
    if left:
        print(f"{len(left)} of them, {human(sum(row['nbytes'] for row in left))}, were left by dead processes: they go "
              "when their importers close them or end")  # fmt: skip
    if found.unread:
        listed = ", ".join(f"{each.pid} {each.name}" for each in found.unread[:_LISTED])
        more = len(found.unread) - _LISTED
        print(f"could not be looked into (it takes the right to ptrace them), so may share more: {listed}"
              + (f" and {more} others" if more > 0 else ""))  # fmt: skip
    return 1 if left else 0
