#!/usr/bin/env python3
"""Build the coverage-guided fuzzers of what comes from peers, and run each from the corpus that is kept here.

    tests/native/fuzz/run.py [--seconds N] [--merge] [exports] [message] [table] [socket] [slot]

Needs clang with libFuzzer (Debian: clang and libclang-rt-dev or libclang-rt-VERSION-dev)."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENGINE = HERE.parents[2] / "src" / "engine"
FLAGS = [
    "-std=c11",
    "-g",
    "-O1",
    "-Wall",
    "-Wextra",
    "-fsanitize=fuzzer,address,undefined",
    "-fno-sanitize-recover=all",
]


def build(name: str, into: Path) -> Path:
    program = into / f"fuzz_{name}"
    sources = [HERE / f"fuzz_{name}.c", *sorted(ENGINE.glob("*.c"))]
    subprocess.run([os.environ.get("CLANG", "clang"), *FLAGS, *sources, "-o", program, "-lpthread"], check=True)
    return program


def fuzz(name: str, program: Path, seconds: int, work: Path) -> bool:
    """What is new goes into the work folder: the corpus here grows by `--merge` only."""
    found = work / name
    found.mkdir()
    print(f"--- {name}: {seconds} s", flush=True)
    options = [
        f"-max_total_time={seconds}",
        "-timeout=20",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        "-verbosity=0",
        "-max_len=1024",
    ]
    done = subprocess.run(
        [program, *options, f"-artifact_prefix={Path.cwd()}/fuzz-{name}-", found, HERE / "corpus" / name],
        stderr=subprocess.PIPE, text=True, errors="replace", check=False,
    )  # fmt: skip
    executions = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    if done.returncode or executions is None:
        print(done.stderr, file=sys.stderr)
        return False
    print(f"{int(executions[1]):,} executions, {len(list(found.iterdir()))} new inputs, nothing found", flush=True)
    return True


def merge(name: str, program: Path, work: Path) -> None:
    """Keep the fewest inputs that reach everything that was reached."""
    small, corpus = work / f"{name}-small", HERE / "corpus" / name
    small.mkdir()
    subprocess.run(
        [program, "-set_cover_merge=1", "-max_len=1024", "-verbosity=0", small, corpus, work / name],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    for old in corpus.iterdir():
        old.unlink()
    for new in small.iterdir():
        shutil.copy(new, corpus)


def main() -> int:
    names = sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.c"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=1800, help="for each fuzzer (default: half an hour)")
    parser.add_argument("--merge", action="store_true", help="put what was found into the corpus, minimised")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)} (default: all)")
    wanted = parser.parse_args()
    if unknown := set(wanted.names) - set(names):
        parser.error(f"no such fuzzer: {', '.join(sorted(unknown))}")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted.names or names:
            program = build(name, Path(folder))
            good = fuzz(name, program, wanted.seconds, Path(folder)) and good
            if wanted.merge:
                merge(name, program, Path(folder))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
