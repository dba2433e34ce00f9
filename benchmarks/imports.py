"""What `import xpushare` costs, in fresh interpreters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import xpushare
from xpushare import adapters
from xpushare.bench.measure import Row, Settings, compare

_FOLDER: Final = str(Path(xpushare.__file__).parent.parent)
# The clock is inside the fresh interpreter: around the import alone.
_PROGRAM: Final = """
import sys, time, json
if sys.argv[2]: sys.path.insert(0, sys.argv[2])
code = compile(sys.argv[1], "<bench>", "exec")
start = time.perf_counter_ns()
exec(code)
us = (time.perf_counter_ns() - start) / 1000
print(json.dumps({"us": us, "modules": sorted({name.partition(".")[0] for name in sys.modules})}))
"""
_LIBRARIES: Final = ("numpy", "torch", "cupy", "jax")


def _fresh(source: str, folder: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", _PROGRAM, source, folder],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def import_time(settings: Settings) -> list[Row]:
    """`import xpushare` against `import socket, mmap, ctypes`, each in a fresh interpreter."""
    sources = {
        "import xpushare": _FOLDER,
        "import xpushare; xpushare.Memory; xpushare.Event; xpushare.ipc.memory.open": _FOLDER,
        "import socket, mmap, ctypes": "",
    }
    samples: dict[str, list[float]] = {source: [] for source in sources}
    loaded: dict[str, set[str]] = {source: set() for source in sources}
    warm_up = 2  # compiles what is not compiled, fills the page cache
    for turn in range(warm_up + settings.count(40, 3)):
        for source, folder in sources.items():
            found = _fresh(source, folder)
            loaded[source].update(found["modules"])
            if turn >= warm_up:
                samples[source].append(found["us"])
    ours, used, theirs = samples
    slow = {*_LIBRARIES, *(module for record in adapters.vendors() for module in record.modules)}
    rows = []
    for source, name in ((ours, "import xpushare"), (used, "the same, and Memory, Event and ipc loaded")):
        row = compare("import_time", name, samples[source], theirs, samples[theirs])
        drivers = sorted(loaded[source] & slow)
        row.notes.append(f"imports {', '.join(drivers)}" if drivers else "imports neither numpy nor a driver")
        rows.append(row)
    return rows
