"""No file of the native parts calls a file that calls it, directly or through others."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from test_structure import circles

NATIVE = Path(__file__).parent.parent / "src" / "native"
FLAGS = ["-O0", "-w", "-D_GNU_SOURCE", f"-I{sysconfig.get_path('include')}"]
if not sysconfig.get_config_var("Py_GIL_DISABLED"):
    FLAGS.append("-DPy_LIMITED_API=0x030B0000")


def call_graph(folder: Path, objects: Path) -> dict[str, set[str]]:
    """Return which file takes functions or data from which. Each file is compiled alone, into `objects`."""
    files = sorted(folder.glob("*.c"))
    subprocess.run([os.environ.get("CC", "cc"), *FLAGS, "-c", *files], cwd=objects, check=True, timeout=100)
    needed: dict[str, set[str]] = {}
    owners: dict[str, str] = {}
    for file in files:
        listed = ["nm", "--portability", "--extern-only", f"{file.stem}.o"]
        done = subprocess.run(listed, cwd=objects, capture_output=True, text=True, check=True, timeout=100)
        symbols = [line.split()[:2] for line in done.stdout.splitlines()]
        needed[file.stem] = {name for name, kind in symbols if kind == "U"}
        owners |= {name: file.stem for name, kind in symbols if kind != "U"}
    return {file: {owners[name] for name in names & owners.keys()} - {file} for file, names in needed.items()}


@pytest.mark.parametrize("folder", ["engine", "python", "ur_adapter"])
def test_no_circles(folder: str, tmp_path: Path) -> None:
    graph = call_graph(NATIVE / folder, tmp_path)
    assert sum(map(len, graph.values())) > len(graph)
    assert [sorted(circle) for circle in circles(graph)] == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    sources = {
        "a": "int b(void); static int own(void) { return b(); } int a(void) { return own(); }",
        "b": "extern int data; void (*registered)(void); int b(void) { return data; }",
        "c": "int a(void); int data; int c(void) { return a(); }",
        "d": "extern void (*registered)(void); static void own(void) {} int d(void) { registered(); own(); }",
    }
    for name, text in sources.items():
        (tmp_path / f"{name}.c").write_text(text)
    graph = call_graph(tmp_path, tmp_path)
    assert graph == {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"b"}}
    assert circles(graph) == [frozenset("abc")]
    (tmp_path / "c.c").write_text("int data;")
    assert circles(call_graph(tmp_path, tmp_path)) == []
