"""Keep objects published with `keep=True` alive after the processes that published them have ended.

Without an option, this command is the keeper, and runs until Ctrl-C, SIGTERM or `--stop`. `publish(keep=True)` starts a
keeper in the background if none runs. Each runtime folder has one keeper. The exit status is 1 if no keeper runs, if
the keeper does not have the name that `--drop` gives, or if another keeper is already running.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any, Final

from xpushare.cli import misused, seconds
from xpushare.common.foreign import printable, skipping
from xpushare.common.texts import counted, readable
from xpushare.keeper.process import serve
from xpushare.sharing import identity, keeping

__all__ = ["add_arguments", "age", "kept_lines", "kept_rows", "run"]

_UNIT: Final = """\
# systemd keeps what the keeper has in its file-descriptor store, even when the keeper is restarted or killed.
[Unit]
Description=Memory that xpushare keeps for this user
Documentation=man:sd_notify(3)

[Service]
Type=notify
ExecStart={python} -m xpushare keep{options}
FileDescriptorStoreMax=16384
Restart=on-failure
LimitNOFILE=65536

[Install]
WantedBy=default.target
"""
_TIMES: Final = ((86400, "d"), (3600, "h"), (60, "min"))
_COMMAND: Final = 60  # characters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="list what is kept, since when, and who published it")
    what.add_argument("--drop", metavar="NAME", help="stop keeping NAME; processes that have it open keep it")
    what.add_argument("--replace", action="store_true", help="run the keeper, and take over from the one that runs")
    what.add_argument("--unit", action="store_true", help="print a systemd unit that runs the keeper for this user")
    what.add_argument("--stop", action="store_true", help="stop the keeper, and drop what only the keeper holds")
    parser.add_argument(
        "--max-bytes", type=_bytes, default=0, metavar="N", help="keep at most N bytes, such as 20G (default: no limit)"
    )
    parser.add_argument(
        "--ttl",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="how long to keep each name, while the machine is not suspended (default: until it is dropped)",
    )
    parser.add_argument("--json", action="store_true", help="with --list, print JSON instead of text")


def _options(arguments: argparse.Namespace) -> str:
    """Format the limits in `arguments` as options of the command `xpushare keep`."""
    limits = {"--max-bytes": arguments.max_bytes, "--ttl": arguments.ttl}
    return "".join(f" {name} {value}" for name, value in limits.items() if value)


def _bytes(text: str) -> int:
    """Parse a number of bytes, such as 1000000, 64M or 2G."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}.get(text[-1:].upper(), 1)
    digits = text[:-1] if factor > 1 else text
    if not (digits.isascii() and digits.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 1000000, 64M or 2G")
    return int(digits) * factor


def age(passed: int | None) -> str:
    """Format a time in seconds for display."""
    if passed is None:
        return "?"
    for length, unit in _TIMES:
        if passed >= length:
            return f"{passed // length} {unit}"
    return f"{passed} s"


def kept_rows() -> list[dict[str, Any]]:
    """Return a row for each name that the keeper keeps alive. Return an empty list if no keeper runs or the keeper does
    not answer.
    """
    rows: list[dict[str, Any]] = []
    with skipping("the keeper"), keeping.connected() as keeper:
        if keeper is not None:
            rows = _checked(keeper.listed())
    return rows


def _checked(listed: Any) -> list[dict[str, Any]]:
    """Return the rows of the keeper's list that are sound, with text that can be printed."""
    rows: list[dict[str, Any]] = []
    for each in listed:
        with skipping("a row of the keeper's list"):
            rows.append(
                {key: printable(value) if type(value) is str else int(value) for key, value in dict(each).items()}
            )
            kept_lines(rows[-1:])
    return rows


def kept_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Format the rows of `kept_rows` as lines of text."""
    return [
        f"{each['name']}  version {each['version']}, {readable(each['nbytes'])} in "
        f"{counted(each['objects'], 'allocation')}, for {age(max(int(time.time()) - each['since'], 0))}, "
        f"published by {each['publisher']} "
        f"{each['command'][:_COMMAND]}".rstrip()
        for each in rows
    ]


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns 0, or 1 if no keeper runs or another one is already running. Wrong usage exits with
    status 2.
    """
    if arguments.json and not arguments.list:
        misused(arguments, "--json goes with --list")
    if arguments.unit:
        print(_UNIT.format(python=sys.executable, options=_options(arguments)), end="")
        return 0
    if not (arguments.list or arguments.drop or arguments.stop):
        print(f"keeping in {identity.runtime_dir()}", file=sys.stderr, flush=True)
        status = serve(-1, arguments.max_bytes, arguments.ttl, arguments.replace)
        if status:
            print("another keeper has this folder: xpushare keep --stop ends it", file=sys.stderr)
        return min(status, 1)
    with keeping.connected() as keeper:
        if keeper is None:
            print("no keeper runs", file=sys.stderr)
            return 1
        if arguments.drop:
            keeper.drop(arguments.drop)
        elif arguments.stop:
            keeper.stop()
        else:
            _print(_checked(keeper.listed()), arguments.json)
    return 0


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        print(*(kept_lines(rows) or ["nothing is kept"]), sep="\n")
