"""`scripts/versus` compares two states of the package: it finds the text that differs, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import xpushare

PACKAGE = Path(xpushare.__file__).parent
TREES = "--seed", "50", "--trees", "10"  # one of them is attached with `only=`, and is no tree
VERSUS = Path(__file__).parent.parent / "scripts" / "versus"


def versus(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(VERSUS), str(folder), *arguments, "--folder", str(PACKAGE.parent)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(PACKAGE, tmp_path / "xpushare")
    return tmp_path


def test_one_text_of_an_error_differs(copied: Path) -> None:
    same = versus(copied, "trees", *TREES)
    assert (same.returncode, same.stdout) == (0, "trees: 11 compared, 0 different\n"), same.stderr
    texts = copied / "xpushare" / "arrays" / "attach.py"
    texts.write_text(texts.read_text().replace("chooses arrays of a tree", "chooses arrays in a tree"))
    found = versus(copied, "trees", *TREES)
    assert found.returncode == 1, found.stderr
    assert "only= chooses arrays in a tree" in found.stdout
    assert "only= chooses arrays of a tree" in found.stdout
