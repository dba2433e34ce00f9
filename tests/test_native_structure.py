"""The files of the native parts: who calls whom, what they know of Python, and who knows a vendor."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from sampling import sampled
from test_structure import circles

SOURCES = Path(__file__).parent.parent / "src"
FLAGS = ["-O0", "-w", "-D_GNU_SOURCE", f"-I{sysconfig.get_path('include')}"]
if not sysconfig.get_config_var("Py_GIL_DISABLED"):
    FLAGS.append("-DPy_LIMITED_API=0x030B0000")


def call_graph(files: list[Path], objects: Path) -> dict[str, set[str]]:
    """Return which file takes functions or data from which. Each file is compiled alone, into `objects`."""
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


@pytest.mark.parametrize("folder", sampled(["engine", "native/python", "native/ur_adapter"], ["native/ur_adapter"]))
def test_no_circles(folder: str, tmp_path: Path) -> None:
    """No file calls a file that calls it, directly or through others."""
    files = sorted((SOURCES / folder).glob("*.c"))
    graph = call_graph(files + [SOURCES / "native/cuda/driver.c"] * (folder == "native/python"), tmp_path)
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
    files = sorted(tmp_path.glob("*.c"))
    graph = call_graph(files, tmp_path)
    assert graph == {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"b"}}
    assert circles(graph) == [frozenset("abc")]
    (tmp_path / "c.c").write_text("int data;")
    assert circles(call_graph(files, tmp_path)) == []


# --- what C knows of Python -------------------------------------------------------------------------------------------

ASKS = re.compile(
    r"(?:ImportModule|[GHS]\w*AttrString|CallMethod\w*|InternFromString)\s*\((?:[^()\"]|\([^()]*\))*?(\"[^\"]+\"|[A-Z]+_NAME)"
)
PRIVATE = re.compile(r"(?:\{|XP_(?:ANY_)?OBJECT\()\"(_[a-z]\w*)\"")  # attributes of native types
OURS = {  # names of ours that C looks up, each with the reason
    "xpushare.common.errors",  # where the errors are
    "unusable",  # the error for an object that this process may not use
    "_span",  # the buffer of a subclass
    "_abandoned",  # an ArrayHandle dies that owns exports
    "_converted",  # a frame's array, if a consumer wants another dtype or a copy
}
THEIRS = {
    "__dlpack_c_exchange_api__",
    "requires_grad",
    "is_neg",
    "dtype",
    "strides",
    "itemsize",
    "ndarray",
}  # attributes of other libraries


def names_known(source: str) -> set[str]:
    """Return the names of Python's that a C source looks up."""
    macros = dict(re.findall(r"#define (\w+_NAME) (\"[^\"]+\")", source))
    interned = re.findall(r'\bX\(\w+, "(\w+)"\)', source)  # of XP_EVERY_NAME
    return {macros.get(name, name).strip('"') for name in ASKS.findall(source)}.union(interned)


def test_c_knows_few_names_of_python() -> None:
    assert len(OURS) <= 5
    sources = [
        file.read_text()
        for folder in ("native/python", "engine", "native/mock", "native/cuda")
        for file in (SOURCES / folder).glob("*.[ch]")
    ]
    assert set().union(*map(names_known, sources)) == OURS | THEIRS
    # Type checkers know who uses those that the stub declares.
    stub = (SOURCES / "xpushare" / "_native.pyi").read_text()
    declared = set(re.findall(r"^    (?:def )?(_[a-z]\w*)[:(]", stub, re.MULTILINE))
    assert {name for source in sources for name in PRIVATE.findall(source)} == declared


def test_c_makes_objects_of_few_classes() -> None:
    table = (
        (SOURCES / "native" / "python" / "register.c").read_text().partition("registrable[] = {")[2].partition("};")[0]
    )
    assert re.findall(r"\{\"(\w+)\"", table) == ["Allocation", "ArrayHandle", "Handle", "Range", "SharedArray"]


def test_a_name_is_found() -> None:
    source = (
        '#define OF_NAME "of"\nPyObject_GetAttrString(f(x, y), OF_NAME); PyObject_CallMethod(object, "_call", NULL);'
    )
    assert names_known(source) == {"of", "_call"}
    assert names_known('PyImport_ImportModule("a.b"); PyUnicode_InternFromString("c")') == {"a.b", "c"}
    assert names_known('#define XP_EVERY_NAME(X) X(one, "first") X(two, "second")') == {"first", "second"}


# --- who knows a vendor ----------------------------------------------------------------------------------------------

# Vendors by name, and the shape of CUDA's calls: attributes of addresses, handles of 64 bytes, pushed contexts.
VENDORS = re.compile(r"(?i:cuda|nvidia|level.?zero|opencl|vulkan)|\b(?i:hip|rocm)|\bcu[A-Z]")
SHAPE = re.compile(r"\bint \*?attributes?\b|HANDLE_NBYTES|64-byte|\b(?:push|pop)\b|uint64_t context\b")


def vendor_words(source: str) -> set[str]:
    return {*VENDORS.findall(source), *SHAPE.findall(source)}


def test_only_the_vendors_files_know_a_vendor() -> None:
    files = (SOURCES / "native" / "python").glob("*.[ch]")
    assert {file.name: found for file in files if (found := vendor_words(file.read_text()))} == {}
    engine = (SOURCES / "engine").glob("*.[ch]")
    assert {file.name: found for file in engine if (found := set(VENDORS.findall(file.read_text())))} == {}


def test_a_vendor_is_found() -> None:
    words = {"CUDA", "HIP", "int attribute", "HANDLE_NBYTES", "push", "pop", "uint64_t context"}
    assert words <= vendor_words((SOURCES / "native/cuda/driver.c").read_text())
    assert vendor_words("cuInit(current, shipped); a 64-byte handle") == {"cuI", "64-byte"}
