"""A small loader of the tests' own: with the names of the real one's functions, the library takes it for that build."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from xpushare.ur.loader import LIBRARY, interpreter
from xpushare.ur.loader._builds import BUILDS, ORDER, TABLES

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
    cc = os.environ.get("CC", "cc")
    command = [
        cc,
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


@pytest.fixture(scope="session")
def library() -> Path:
    if not LIBRARY.exists():
        pytest.skip("this installation has no library for Unified Runtime's loader")
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("no C compiler is here")
    return LIBRARY


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ur_loader")


@pytest.fixture(scope="session")
def shim(library: Path, folder: Path) -> Path:
    """The loader as a library, for a process that runs Python."""
    assert library.exists()
    return compiled(folder / "shim", names(BUILDS[0]), "loader.so", "-shared", "-fPIC")


@pytest.fixture(scope="session")
def program(library: Path, folder: Path) -> Run:
    """Starts the loader as a program without Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XPUSHARE_PYTHON", sys.executable)
        if interpreter().wrong:
            pytest.skip(interpreter().wrong)
    binary = compiled(folder / "program", names(BUILDS[0]), "loader")

    def run(*arguments: object, **settings: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(binary), str(library), *map(str, arguments)],
            env={**os.environ, "XPUSHARE_PYTHON": sys.executable, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run
