"""SYCL's fills on Level Zero, without SYCL: who asks libsycl for the backend gets an answer that needs no kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from small_loader import CC

ASKED = "_ZNK4sycl3_V17handler16getDeviceBackendEv"
LEVEL_ZERO, OPENCL = 2, 1

SCRIPT = """
import ctypes, sys
library, *programs = map(ctypes.CDLL, sys.argv[1:])
print(*[each.backend(None) for each in programs])
library.xpushare_ur_fills()
print(*[each.backend(None) for each in programs])
late = ctypes.CDLL(sys.argv[2] + ".late")
print(late.backend(None))
library.xpushare_ur_fills()
library.xpushare_ur_fills()
print(late.backend(None), *[each.backend(None) for each in programs])
print(ctypes.CDLL("libsycl.so.9")._ZNK4sycl3_V17handler16getDeviceBackendEv(None))
"""


def built(folder: Path, name: str, source: str, *options: str) -> Path:
    (folder / "source.c").write_text(source)
    command = [CC, "-w", "-shared", "-fPIC", "-O1", str(folder / "source.c"), "-o", str(folder / name), *options]
    subprocess.run(command, check=True, timeout=60)
    return folder / name


def test_calls_that_are_bound_at_once_or_later(library: Path, tmp_path: Path) -> None:
    built(tmp_path, "libsycl.so.9", f"char {ASKED}(void *self) {{ return {LEVEL_ZERO}; }}", "-Wl,-soname,libsycl.so.9")
    source = f"extern char {ASKED}(void *); int backend(void *self) {{ return {ASKED}(self); }}"
    with_sycl = (f"-L{tmp_path}", "-l:libsycl.so.9", f"-Wl,-rpath,{tmp_path}")
    ways = {
        "lazy": ["-Wl,-z,lazy"],
        "now": ["-Wl,-z,relro,-z,now"],
        "no-plt": ["-fno-plt"],
        "lazy.late": ["-Wl,-z,now"],
    }
    programs = [built(tmp_path, name, source, *options, *with_sycl) for name, options in ways.items()]
    own = built(
        tmp_path, "own", f"char {ASKED}(void *self) {{ return 7; }} int backend(void *self) {{ return {ASKED}(self); }}"
    )
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(library), *map(str, [*programs[:-1], own])],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, after, late, again, sycl = done.stdout.splitlines()
    assert before == f"{LEVEL_ZERO} {LEVEL_ZERO} {LEVEL_ZERO} 7"
    assert after == f"{OPENCL} {OPENCL} {OPENCL} 7"
    assert late == str(LEVEL_ZERO)
    assert again == f"{OPENCL} {OPENCL} {OPENCL} {OPENCL} 7"
    assert sycl == str(LEVEL_ZERO)  # libsycl itself is as it was
