"""A C program without Python exports an array from its own commons, and Python attaches it."""

from __future__ import annotations

import os
import subprocess
import uuid
from pathlib import Path

import numpy as np
import pytest

import xpushare as xs
from xpushare import _native
from xpushare.common.system import boot_id
from xpushare.sharing import identity

SOURCE = Path(__file__).resolve().parents[1] / "native" / "c" / "exporter.c"
LIBRARIES = Path(_native.__file__).parent  # with the engine


@pytest.fixture
def exporter(tmp_path: Path) -> Path:
    """Return the program, which takes its functions from the package's own engine."""
    program = tmp_path / "exporter"
    flags = [f"-L{LIBRARIES}", "-l:libxpushare.so.1", f"-Wl,-rpath,{LIBRARIES}", "-lpthread"]
    command = [os.environ.get("CC", "cc"), "-std=c11", "-O1", str(SOURCE), "-o", str(program), *flags]
    subprocess.run(command, check=True, timeout=100)
    return program


def test_python_attaches_what_a_c_program_exports(exporter: Path) -> None:
    host = xs.Device("native_cpu:0")
    names = host.backend.encode().ljust(16, b"\0") + uuid.UUID(host.uuid).bytes
    said = [str(identity.runtime_dir() / "key"), boot_id().hex(), names.hex()]
    with subprocess.Popen([exporter, *said], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        raw = bytes.fromhex(program.stdout.readline())
        array = xs.attach(raw)
        values = np.asarray(array)
        assert values.tolist() == [[100, 101, 102], [103, 104, 105], [106, 107, 108], [109, 110, 111]]
        values[0, 0] = 7
        program.stdin.write("r")
        program.stdin.flush()
        assert program.stdout.readline() == "ended\n", "it sees the 7, and that this process holds the entry"
        array.close()
        with pytest.raises(xs.HandleExpiredError):
            xs.attach(raw)
        assert values[3, 2] == 111, "a view stays"
        program.stdin.close()
        assert program.wait(60) == 0
