"""Have the children of the conformance suite and of a soak program use the package of another folder.

XPUSHARE_CONFORMANCE_SETUP=soak.mixed xpushare conformance
python -m soak.mixed PROGRAM …

`XPUSHARE_MIXED` names the two folders, separated by ":". A process that has imported the package of one of them starts
its children with that of the other one. Each process writes a line into the file `XPUSHARE_MIXED_LOG`: the number of
its folder. `scripts/versus` runs both and reads these lines.
"""

from __future__ import annotations

import ast
import importlib.util
import multiprocessing.spawn
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import xpushare

_FOLDERS = os.environ["XPUSHARE_MIXED"].split(":")
_OWN = str(Path(xpushare.__file__).parents[1])
_OTHER = _FOLDERS[1 - _FOLDERS.index(_OWN)]
if __name__ != "soak.mixed":  # a soak program: both states' processes talk to each other by the tools of the second
    for _tools in "conformance", "bench":
        _folder = f"{_FOLDERS[1]}/xpushare/{_tools}"
        _spec: Any = importlib.util.spec_from_file_location(
            f"xpushare.{_tools}", f"{_folder}/__init__.py", submodule_search_locations=[_folder]
        )
        sys.modules[_spec.name] = _module = importlib.util.module_from_spec(_spec)
        _spec.loader.exec_module(_module)

from xpushare.conformance import forkserver  # noqa: E402


class _Popen(subprocess.Popen[Any]):
    """Starts the suite's children, whose program has its import path in it, with the other package."""

    def __init__(self, args: Any, *rest: Any, **options: Any) -> None:
        if isinstance(args, list) and len(args) == 3 and "from xpushare.conformance import" in args[2]:
            args = [*args[:2], args[2].replace(repr(_OWN), repr(_OTHER))]
        super().__init__(args, *rest, **options)


def _preparation(*arguments: Any) -> dict[str, Any]:
    """Return what multiprocessing tells a process that it spawns, with the other package."""
    found = _prepared(*arguments)
    found["sys_path"] = [_OTHER if path == _OWN else path for path in found["sys_path"]]
    return found


def _modules() -> tuple[str, ...]:
    """Return the modules that the other package's children have imported when they start."""
    source = Path(_OTHER, "xpushare", "conformance", "forkserver.py").read_text()
    declared = (each for each in ast.parse(source).body if isinstance(each, ast.AnnAssign))
    found: tuple[str, ...] = next(
        ast.literal_eval(each.value) for each in declared if each.value and ast.unparse(each.target) == "IMPORTS"
    )
    return found


forkserver.IMPORTS = _modules()  # type: ignore[misc]
_prepared = multiprocessing.spawn.get_preparation_data
multiprocessing.spawn.get_preparation_data = _preparation
subprocess.Popen = _Popen  # type: ignore[misc]
with open(os.environ["XPUSHARE_MIXED_LOG"], "a") as log:
    log.write(f"{_FOLDERS.index(_OWN)}\n")

if __name__ == "__main__":
    from soak.common import main

    _program = sys.argv.pop(1)
    sys.exit(main(_program, importlib.import_module(f"soak.{_program}").run))
