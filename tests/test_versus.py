"""`scripts/versus` compares two states of the package: it finds the text that differs, and nothing else."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import xpushare
from xpushare.sharing.layout import wrong_version

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


@pytest.mark.exhaustive
def test_a_text_that_no_tree_shows(copied: Path) -> None:
    same = versus(copied, "faces")
    assert (same.returncode, same.stdout[-13:]) == (0, " 0 different\n"), same.stdout
    advice = copied / "xpushare" / "__init__.py"
    advice.write_text(advice.read_text().replace("fill a NumPy view", "fill a view"))
    found = versus(copied, "faces", "--shown", "9")
    assert found.returncode == 1, found.stderr
    assert " 4 different\n" in found.stdout, found.stdout  # two texts each are not in the other


def test_another_version_is_told_apart() -> None:
    refused = runpy.run_path(str(VERSUS))["ANOTHER_VERSION"]
    assert refused.search(str(wrong_version("the table", 4, 5)))
    assert not refused.search("HandleExpiredError: the handle has expired")
