"""A process has one engine, `libxpushare.so.1`, which is private to its build."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import xpushare as xs
from xpushare import _native

ENGINE = Path(_native.__file__ or "").with_name("libxpushare.so.1")
_READ_MAPS = "print(*sorted({line.split()[-1] for line in open('/proc/self/maps') if 'libxpushare' in line}))"


def run(program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(xs.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_engine_comes_from_the_package() -> None:
    done = run(f"import xpushare as xs; xs.zeros(3); {_READ_MAPS}")
    assert (done.returncode, done.stdout) == (0, f"{ENGINE.resolve()}\n"), done.stderr


def test_only_private_functions_are_exported() -> None:
    done = subprocess.run(
        ["nm", "-D", "--defined-only", ENGINE], capture_output=True, text=True, timeout=60, check=True
    )
    names = [line.split()[-1] for line in done.stdout.splitlines()]
    assert any(name.startswith("xp_signal@@XPUSHARE_PRIVATE_") for name in names)
    assert [name for name in names if "XPUSHARE_PRIVATE_" not in name] == []


@pytest.mark.parametrize("script", ["XPUSHARE_PRIVATE_0 { global: xp_now; local: *; };", ""])
def test_the_engine_of_another_build_is_refused_by_its_file(script: str, tmp_path: Path) -> None:
    other = tmp_path / "libxpushare.so.1"
    (tmp_path / "engine.c").write_text("unsigned long xp_now(void) { return 0; }")
    (tmp_path / "engine.map").write_text(script)
    scripted = [f"-Wl,--version-script={tmp_path / 'engine.map'}"] if script else []
    flags = ["-shared", "-fPIC", "-Wl,-soname,libxpushare.so.1", *scripted]
    subprocess.run([os.environ.get("CC", "cc"), *flags, tmp_path / "engine.c", "-o", other], check=True, timeout=60)
    done = run(f"import ctypes; ctypes.CDLL({str(other)!r}); import xpushare as xs; xs.zeros(3)")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: this process has loaded the engine (libxpushare.so.1) of another build"), last
    assert str(other) in last or not script
