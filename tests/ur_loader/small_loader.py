"""Builds a small loader of the tests' own: with the names of the real one's functions, the library takes it for that
build.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from xpushare.ur.loader._builds import ORDER, TABLES

__all__ = ["CC", "SOURCE", "Run", "compiled", "names"]

CC = os.environ.get("CC", "cc")
SOURCE = Path(__file__).with_name("loader.c")
Run = Callable[..., "subprocess.Popen[str]"]


def names(build: str) -> str:
    """What stands in the tables of a build, for the loader's source."""
    lines: list[str] = []
    for getter in ORDER[build].split():
        [text] = [text for builds, text in TABLES[getter].items() if build in builds.split()]
        lines += [f'{{"{name}", "{getter}", {i}}},' for i, name in enumerate(text.split())]
    return "\n".join(lines)


def compiled(folder: Path, text: str, target: str, *options: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "names.h").write_text(text)
    command = [
        CC,
        "-std=gnu11",
        "-O1",
        "-w",
        *options,
        f"-I{folder}",
        str(SOURCE),
        "-o",
        str(folder / target),
        "-ldl",
        "-lpthread",
    ]
    subprocess.run(command, check=True, timeout=60)
    return folder / target
