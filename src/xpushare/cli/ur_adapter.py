"""Print settings with which C++ SYCL programs use these devices, through Unified Runtime's own loader.

The command prints environment variables, for use as in `env $(xpushare ur-adapter) ./program`. A program that does not
run Python needs an interpreter and its libpython. If the library would not find these by itself, the command also
prints XPUSHARE_PYTHON, which names the interpreter that runs this command. The exit status is 1 if no libpython was
found. In that case, set XPUSHARE_PYTHON to the interpreter to use.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Final

from xpushare.ur.loader import LIBRARY, interpreter

__all__ = ["add_arguments", "run"]

_VARIABLE: Final = "UR_ADAPTERS_FORCE_LOAD"
_PYTHON: Final = "XPUSHARE_PYTHON"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="also print, to stderr, the interpreter that is started"
    )
    parser.add_argument("--json", action="store_true", help="print the variable and the interpreter as JSON")


def run(arguments: argparse.Namespace) -> int:
    found, environment = interpreter(), {_VARIABLE: str(LIBRARY)}
    if found.wrong and not os.environ.get(_PYTHON):
        running = interpreter(sys.executable)
        if not running.wrong:
            found, environment[_PYTHON] = running, running.executable
    if arguments.json:
        print(json.dumps({"environment": environment, "interpreter": found._asdict()}, indent=2))
        return int(bool(found.wrong))
    for name, text in environment.items():
        print(f"{name}={text}")
    if found.wrong:
        print(f"xpushare: only programs that run Python can load this: {found.wrong}", file=sys.stderr)
        return 1
    if arguments.verbose:
        print(f"starts {found.executable}, by {found.library}", file=sys.stderr)
    return 0
