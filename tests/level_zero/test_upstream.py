"""What docs/backends/level_zero_upstream.md reports of others' code, by the small programs that show it.

The packages float: a finding must be seen with the versions that the page names. With others the program must still run,
and says whether it is so.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import unified_runtime
from level_zero_driver import ROOT

FOLDER = Path(__file__).parent / "upstream"
PAGE = Path(__file__).parents[2] / "docs" / "backends" / "level_zero_upstream.md"


def recorded() -> bool:
    """Whether the packages here are those of the page."""
    here = dict(line.split() for line in (ROOT / "versions.txt").read_text().splitlines())
    named = dict(re.findall(r"`(libze1|libze-intel-gpu1) ([^`]+)`", PAGE.read_text()))
    assert len(named) == 2, "the page names the versions of the loader and of Intel's driver"
    return named.items() <= here.items()


@pytest.mark.drivers("soft", "neo")
@pytest.mark.parametrize("program", sorted(path.name for path in FOLDER.glob("*.py")))
def test_a_finding(program: str) -> None:
    driver = os.environ["XPUSHARE_LEVEL_ZERO"]
    page = PAGE.read_text()
    assert program in page
    source = (FOLDER / program).read_text()
    command = re.search(r"^    (.*)build/level-zero/(\w+)/bin/python tests/level_zero/upstream/" + program, source, re.M)
    assert command is not None, "the program says how to start it"
    if command[2] != driver:
        pytest.skip(f"shown on {command[2]}")
    if "unified_runtime" in source and not unified_runtime.LIBRARY.exists():
        pytest.skip("Unified Runtime is not here: scripts/level_zero oneapi")
    settings = dict(each.split("=") for each in command[1].split())
    done = subprocess.run(
        [sys.executable, str(FOLDER / program)],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("SEEN: ") or last.startswith("not seen")
    if recorded():
        assert last.startswith("SEEN: "), done.stdout
