"""Calls of the kernel that fail come out as errors of this package, whatever was under way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOME = ("share again", "wait", "await", "publish", "watch a peer")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no cc")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "operations",
    [
        pytest.param(SOME[:2], id="two"),
        pytest.param(SOME[2:], marks=pytest.mark.exhaustive, id="some"),
        pytest.param((), marks=pytest.mark.soak, id="all"),
    ],
)
def test_each_call_fails_in_turn(operations: tuple[str, ...], tmp_path: Path) -> None:
    library = tmp_path / "failing_libc.so"
    compiler = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(HERE / "failing_libc.c"), "-ldl"]
    subprocess.run(compiler, check=True)
    done = subprocess.run(
        [sys.executable, str(HERE / "failing_libc.py"), str(library), *operations],
        env={**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}
