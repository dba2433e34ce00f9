"""Let C++ SYCL programs use these devices: the setting by which Unified Runtime's own loader loads this package.

Prints one environment variable, as in `env $(xpushare ur-adapter) ./program`. A program that runs no Python needs a
libpython; exit status 1 when none was found: XPUSHARE_PYTHON then names the interpreter to use.
"""

from __future__ import annotations

import argparse
import sys

from xpushare.ur.loader import LIBRARY, interpreter

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="also print, to stderr, the interpreter that starts"
    )


def run(arguments: argparse.Namespace) -> int:
    found = interpreter()
    print(f"UR_ADAPTERS_FORCE_LOAD={LIBRARY}")
    if found.wrong:
        print(f"xpushare: only programs that run Python can load this: {found.wrong}", file=sys.stderr)
        return 1
    if arguments.verbose:
        print(f"starts {found.executable}, by {found.library}", file=sys.stderr)
    return 0
