"""The examples of channels run, and are as short as they are said to be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "says"),
    [("camera_channel", "the recorder saw all 40 frames"), ("work_queue", "12 jobs are done; 1 worker died")],
)
def test_it_runs(name: str, says: str) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
