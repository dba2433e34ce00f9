"""`scripts/instructions.py` counts, and what it counts stays below what it was; `scripts/own_time.py` measures."""

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "instructions.py"
# `share` and `attach` took 256,000 once, 160,000 in Python, and 46,000 and 30,000 when this was written.
MOST, MOST_SAME = 50_000, 33_000


@pytest.mark.skipif(platform.machine() != "x86_64" or shutil.which(os.environ.get("CC", "cc")) is None, reason="no cc")
@pytest.mark.parametrize(("options", "most"), [([], MOST), (["--same"], MOST_SAME)], ids=["new", "same"])
def test_share_and_attach_take_few_instructions(options: list[str], most: int) -> None:
    command = [sys.executable, SCRIPT, "--rounds", "3", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode and ("ptrace" in done.stderr or "Python.h" in done.stderr):
        pytest.skip("no tracing, or no headers, here")
    assert done.returncode == 0, done.stderr
    found = {name: int(count.replace(",", "")) for name, count in re.findall(r"^(\S.*?) +([\d,]+)", done.stdout, re.M)}
    assert found["share"] + found["attach"] == found["share + attach"]
    assert len(found) == 7, done.stdout
    if sys.version_info[:2] == (3, 11) and not sysconfig.get_config_var("Py_DEBUG"):
        assert found["share + attach"] < most


@pytest.mark.parametrize("device", ["native_cpu:0", "mock:0"])
def test_the_time_of_our_own_code(device: str) -> None:
    command = [sys.executable, SCRIPT.with_name("own_time.py"), "--rounds", "3", "--device", device]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    lines = done.stdout.splitlines()[1:]
    assert [line[:22].split() for line in lines] == [
        ["open", "before", "hot"], ["open", "before", "cold"], ["new", "hot"], ["new", "cold"],
    ]  # fmt: skip
    for line in lines:
        share, attach, both = (float(text) for text in re.findall(r"([\d.]+) \[", line))
        assert 0 < max(share, attach) < both
