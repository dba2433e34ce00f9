"""The small loader, as a program without Python and as a library for one that has it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_loader import CC, Run, compiled, names

from xpushare.ur.loader import LIBRARY, interpreter
from xpushare.ur.loader._builds import BUILDS


@pytest.fixture(scope="session")
def library() -> Path:
    if not LIBRARY.exists():
        pytest.skip("this installation has no library for Unified Runtime's loader")
    if shutil.which(CC) is None:
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
