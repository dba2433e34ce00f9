"""What the first call of a new process costs: python -m benchmarks.first_uses [--rounds N] [FOLDER …]

Each call is the first one in a fresh interpreter, but for what its arguments need. The table has, for each state of the
package, the median time of the call alone, and after it the modules of the package that are loaded, the descriptors
that are open and the resident memory. A FOLDER has a built package. Several of them take turns. Without one it is the
package that is importable.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import xpushare

CALLS = {  # what comes before it, and the call
    "import xpushare": ("", "import xpushare"),
    "empty": ("import xpushare as xs", "xs.empty(1 << 20, 'u1', device='native_cpu:0')"),
    "share": ("import xpushare as xs; a = xs.empty(1 << 20, 'u1', device='native_cpu:0')", "xs.share(a)"),
    "attach": ("import xpushare as xs, sys; raw = bytes.fromhex(sys.argv[1])", "xs.attach(raw)"),
    "Channel.open": ("import xpushare as xs", "xs.Channel.open('first')"),
    "Lock": ("import xpushare as xs", "xs.Lock('first')"),
}
OTHER = """
import xpushare as xs
array = xs.empty(1 << 20, 'u1', device='native_cpu:0')
handle, channel = xs.share(array), xs.Channel.create('first', 64, 'u1')
print(bytes(handle).hex(), flush=True)
input()
"""
PROGRAM = """
import json, os, sys, time
exec({before!r})
call = compile({call!r}, "call", "eval" if "import" not in {call!r} else "exec")
begin = time.perf_counter_ns()
kept = eval(call)
ns = time.perf_counter_ns() - begin
pages = int(open("/proc/self/statm").read().split()[1])
modules = sum(name.partition(".")[0] == "xpushare" for name in sys.modules)
print(json.dumps([ns / 1e6, modules, len(os.listdir("/proc/self/fd")) - 4, pages * os.sysconf("SC_PAGE_SIZE") / 2**20]))
"""


def fresh(folder: Path, call: str, environ: dict[str, str], handle: str) -> Any:
    before, expression = CALLS[call]
    program = PROGRAM.format(before=before, call=expression)
    environ = {**environ, "PYTHONPATH": str(folder)}
    return json.loads(subprocess.check_output([sys.executable, "-c", program, handle], env=environ, timeout=60))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=[Path(xpushare.__file__).parent.parent])
    parser.add_argument("--rounds", type=int, default=15)
    wanted = parser.parse_args()
    folders = [folder.resolve() for folder in wanted.folders]
    found: dict[tuple[Path, str], list[Any]] = {}
    with tempfile.TemporaryDirectory(prefix="first-uses-") as runtime:
        environ = {**os.environ, "XPUSHARE_RUNTIME_DIR": runtime}
        for number in range(1 + wanted.rounds):  # the first one compiles and fills the page cache
            for folder in folders:
                with subprocess.Popen(
                    [sys.executable, "-c", OTHER],
                    env={**environ, "PYTHONPATH": str(folder)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                ) as other:
                    handle = other.stdout.readline().strip()  # type: ignore[union-attr]
                    for call in CALLS:
                        row = fresh(folder, call, environ, handle)
                        if number:
                            found.setdefault((folder, call), []).append(row)
                    other.communicate("\n")
    print(f"{'call':18}{'ms':>9}{'modules':>9}{'fds':>6}{'MiB':>7}")
    for call in CALLS:
        for folder in folders:
            ms, modules, fds, resident = (statistics.median(each) for each in zip(*found[folder, call], strict=True))
            print(f"{call:18}{ms:9.2f}{modules:9.0f}{fds:6.0f}{resident:7.1f}  {folder}")


if __name__ == "__main__":
    main()
