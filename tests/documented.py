"""The python blocks of the documentation, and how each is run as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from harness import program

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
# A python block, and the block of its output, which may come after a paragraph.
BLOCK = re.compile(
    r"^```python(?: title=\"from (?P<file>[^\"]+)\")?\n(?P<source>.*?)^```\n"
    r"(?:\n(?:(?:[^\n`#][^\n]*\n)+\n)?```text\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)

# What needs an interpreter of its own: processes that import the program, tests, other libraries, a runtime folder.
FRESH = re.compile(
    r"__main__|subprocess|fork|keep=True|^def test_|"
    r"^(?:import|from) (?!(?:xpushare|numpy|asyncio|threading|pickle|logging|time|os|warnings)\b)",
    re.MULTILINE,
)
FIRST = ("README.md", "docs/index.md", "docs/guide.md", "docs/guide-arrays.md")  # pages whose programs `make test` runs
LONG = {"ray", "distributed"}  # libraries whose start takes long


class Block(NamedTuple):
    page: str
    line: int
    file: str | None  # that it is an excerpt of
    source: str
    output: str | None

    @property
    def needs(self) -> str:
        """The device it needs: native_cpu, cuda or opencl."""
        code = re.sub(r"#.*", "", self.source)
        if re.search(r"cuda:0|^import cupy|^from cuda\.", code, re.MULTILINE):
            return "cuda"
        return "opencl" if "import pyopencl" in code else "native_cpu"

    @property
    def libraries(self) -> set[str]:
        return set(re.findall(r"^(?:import|from) (\w+)", self.source, re.MULTILINE))


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            found.append(Block(page, line, match["file"], match["source"], match["output"]))
    return found


def _long(block: Block) -> bool:
    return bool(block.libraries & LONG) or (bool(FRESH.search(block.source)) and block.page not in FIRST)


def to_run(needs: str) -> list[object]:
    """Parameters of a test: the blocks that this device runs."""
    return [
        pytest.param(block, id=f"{block.page}:{block.line}", marks=pytest.mark.exhaustive if _long(block) else ())
        for block in blocks()
        if block.needs == needs and block.file is None
    ]


def run(block: Block, folder: Path) -> None:
    """Run a block in a process of its own: it ends well, is silent on stderr, and prints what the page says."""
    for library in block.libraries:
        pytest.importorskip(library)
    script = folder / "example.py"
    script.write_text(block.source)
    if not FRESH.search(block.source):
        source = f"import os, warnings; os.chdir({str(folder)!r}); warnings.simplefilter('error'); "
        done = program(f"{source}exec(compile({block.source!r}, 'example.py', 'exec'))")
        _check(block, done)
        return
    paths = [str(ROOT / "tests"), *(os.path.abspath(path) for path in sys.path if path)]  # its `conftest`, not another
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    keeps = "publish(" in block.source and "keep=True" in block.source
    if keeps:  # a keeper of its own, which the page leaves running
        environment["XPUSHARE_RUNTIME_DIR"] = str(folder)
        folder.chmod(0o700)
    command = [sys.executable, "-W", "error", str(script)]
    if "pyopencl" in block.libraries:  # drivers' compilers say what they did
        command[3:3] = ["-W", "ignore::pyopencl.CompilerWarning"]
    if re.search(r"^def test_", block.source, re.MULTILINE):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(folder),
            str(script),
        ]
        if "harness" in block.libraries:  # a test of this project's own
            command += ["-p", "conftest"]
    with tempfile.TemporaryDirectory(prefix="ray-") as short:  # a short path: Ray's sockets are in it
        if "ray" in block.libraries:
            environment |= {"RAY_TMPDIR": short, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 32}
            environment |= {"RAY_USAGE_STATS_ENABLED": "0"}
            command[1:3] = []  # warnings of Ray's own are none of ours
        if block.libraries & {"dask", "distributed"}:
            environment["DASK_TEMPORARY_DIRECTORY"] = short  # Dask leaves lock files there
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            env=environment,
        )
    if keeps:
        subprocess.run([sys.executable, "-m", "xpushare", "keep", "--stop"], env=environment, check=True, timeout=60)
    _check(block, done)


def _check(block: Block, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    if not block.libraries & LONG:  # which log to stderr, Dask on a busy machine
        assert done.stderr == ""
    if block.output is not None:
        assert done.stdout == block.output
