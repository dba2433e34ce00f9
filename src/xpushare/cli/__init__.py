"""The commands of `xpushare <command>`, which `python -m xpushare <command>` runs, too.

Each command is one module of this package. `COMMANDS` lists the commands, and the module's name has `_` for `-`. The
first line of the module's docstring is the command's help. `add_arguments(parser)` declares its arguments.
`run(arguments)` does the work and returns the exit status: 0 for success, 1 if the command failed, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import ast
import os
import signal
import sys
import threading
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NoReturn

import xpushare
from xpushare import FeatureNotSupportedError
from xpushare.cli.screen import Help
from xpushare.common.foreign import printable

__all__ = [
    "COMMANDS",
    "main",
    "misused",
    "module_of",
    "native_part_missing",
    "parser",
    "pid_argument",
    "seconds",
    "write_file",
]

_WITHOUT_NATIVE_PART: Final = ("info",)
COMMANDS: Final = (
    "demo", "info", "doctor", "ls", "top", "metrics", "keep", "bench", "trace", "conformance", "ur-adapter",
    "completion",
)  # fmt: skip


class _Parser(argparse.ArgumentParser):
    """A parser that does not hide that its help could not be written, for example to a full disk."""

    def _print_message(self, message: str, file: Any = None) -> None:
        print(message, end="", file=sys.stderr if file is None else file)


def parser(wanted: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the argument parser for these commands. This imports the module of each command."""
    made = _Parser(
        prog="xpushare",
        description="Share arrays in CPU and GPU memory between Python processes, without copying them.",
        epilog='The page "Common mistakes" of the documentation explains the errors that beginners meet.',
    )
    made.add_argument("--version", action="version", version=f"xpushare {xpushare.__version__}")
    made.set_defaults(run=None, parser=made)
    commands = made.add_subparsers(metavar="command")
    missing = native_part_missing()
    for name in wanted:
        module = import_module(module_of(name)) if missing is None or name in _WITHOUT_NATIVE_PART else None
        text = _docstring(name) if module is None else module.__doc__ or ""
        summary, _, rest = text.partition("\n")
        command = commands.add_parser(
            name,
            help=summary.rstrip("."),
            description=f"{summary}\n{rest}".strip(),
            formatter_class=Help,
        )
        if module is None:
            command.add_argument("arguments", nargs=argparse.REMAINDER)
            command.set_defaults(run=_refuse, parser=command)
        else:
            module.add_arguments(command)
            command.set_defaults(run=module.run, parser=command)
    return made


def misused(arguments: argparse.Namespace, why: str) -> NoReturn:
    """Print an error message and the usage of the parsed command, and exit with status 2. `why` says why the arguments
    are wrong.
    """
    command: argparse.ArgumentParser = arguments.parser
    command.error(why)


def seconds(text: str) -> float:
    """Parse an argument that is a number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return value


def pid_argument(text: str) -> int:
    """Parse an argument that is a process id."""
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 31):
        raise argparse.ArgumentTypeError(f"{text!r} is not a pid")
    return int(text)


def module_of(command: str) -> str:
    """Return the name of a command's module."""
    return f"xpushare.cli.{command.replace('-', '_')}"


def native_part_missing() -> FeatureNotSupportedError | None:
    """Return the error that importing the package's native part raises, or None if the import succeeds."""
    try:
        import_module("xpushare._native")
    except FeatureNotSupportedError as error:
        return error
    return None


def _docstring(name: str) -> str:
    """Return the docstring of a command's module without importing the module."""
    spec = find_spec(module_of(name))
    assert spec is not None
    assert spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        return ast.get_docstring(ast.parse(file.read())) or ""


def _refuse(_arguments: argparse.Namespace) -> int:
    import_module("xpushare._native")  # raises
    return 1


def _terminated(_number: int, _frame: object) -> None:
    sys.exit(128 + signal.SIGTERM)  # as a shell reports it; the running command ends its children first


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Exits with status 2 if it is wrong, or with 0 if it asks for help."""
    made = parser([each for each in COMMANDS if each in words[:1]] or COMMANDS)
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        near = get_close_matches(words[0], COMMANDS, 1)
        hint = f"did you mean {near[0]}?" if near else f"the commands are {', '.join(COMMANDS)}"
        made.error(f"there is no command {words[0]!r}: {hint}")
    arguments, unknown = made.parse_known_args(words)
    if unknown:
        command = f"xpushare {words[0]}" if words[0] in COMMANDS else "xpushare"
        near = get_close_matches("--" + unknown[0].lstrip("-"), arguments.parser._option_string_actions, 1, 0.75)
        hint = f"did you mean {near[0]}?" if near else f"see `{command} --help`"
        misused(arguments, f"unknown argument {unknown[0]!r}: {hint}")
    if arguments.run is None:
        made.print_help(sys.stderr)
        sys.exit(2)
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`, by default the arguments of this process. Returns the exit status."""
    unhandled = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    handles = unhandled and threading.current_thread() is threading.main_thread()
    if handles:
        signal.signal(signal.SIGTERM, _terminated)
    try:
        try:
            arguments = _parsed(sys.argv[1:] if argv is None else argv)
            status: int = arguments.run(arguments)
        finally:  # also after the help, with which the parser exits
            if sys.stdout is not None:
                sys.stdout.flush()
    except xpushare.XpuShareError as error:
        print(
            *map(printable, f"xpushare: {error}".split("\n")),
            *map(printable, error.reasons),
            sep="\n  ",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        return 130  # what a shell reports for SIGINT
    except BrokenPipeError:  # the reader of the output (head, a pager) has exited
        return 1
    except OSError as error:  # a disk is full or read-only, there is no temporary folder, …
        where = "" if error.filename is None else f": {error.filename}"
        print(f"xpushare: {error.strerror or error}{where}", file=sys.stderr)
        return 1
    finally:
        if handles:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _give_up_output()
    return status


def _give_up_output() -> None:
    """Redirect stdout to /dev/null if it can no longer be written. Otherwise the interpreter would print an error at
    exit.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def write_file(path: str | os.PathLike[str], text: str) -> None:
    """Write text to a file. Raises `OSError` with the file's name, even if the system's error (such as for a full disk)
    does not name the file.
    """
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
