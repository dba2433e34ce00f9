"""The short form of soak/keeper_kills.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
def test_publishers_heirs_and_keepers_are_killed() -> None:
    from keepers import environment

    command = [sys.executable, "-m", "soak.keeper_kills", "--quick", "--seed", "1"]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
