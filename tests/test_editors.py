"""What editors and type checkers know of the package: the stub is current, and Jedi, pyright and mypy are asked."""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import inspect
import json
import operator
import os
import pydoc
import re
import runpy
import shutil
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

import documented
import test_reference
import xpushare as xs
from language_server import LanguageServer
from xpushare.channels.ends import Frame

ROOT = Path(__file__).parent.parent
CALLS = Path(__file__).with_name("typed_calls.py")


needs_libraries = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("jax", "torch"))),
    reason="asks for the types of JAX's and torch's arrays, too",
)


def test_stub_is_current() -> None:
    stub = runpy.run_path(str(ROOT / "scripts" / "stub"))["stub"]()
    assert (ROOT / "src" / "xpushare" / "__init__.pyi").read_text() == stub, "run scripts/stub"


def jedi_script(source: str) -> Any:
    jedi = pytest.importorskip("jedi")
    return jedi.Script(source, project=jedi.Project(ROOT, sys_path=[str(Path(xs.__file__).parent.parent), *sys.path]))


def completions(source: str) -> set[str]:
    """What Jedi offers at the end of a program."""
    lines = source.split("\n")
    return {each.name for each in jedi_script(source).complete(len(lines), len(lines[-1]))}


def test_jedi_knows_every_public_name() -> None:
    found = completions("import xpushare as xs\nxs.")
    assert found >= {*xs.__all__, "__version__"}
    # Jedi lists the folders of every package, whatever its `__all__` or stub says (`ModuleMixin.get_filters`).
    folders = {each.parent.name for each in Path(xs.__file__).parent.glob("[!_]*/__init__.py")}
    assert {name for name in found if not name.startswith("_")} == {*xs.__all__, *folders}


@pytest.mark.parametrize(
    "program",
    [
        "handle = xs.share([])",
        "handle = b''",
        "handle = xs.share(xs.zeros(3))",
        "handle = xs.lookup('frames')",
        "def attached(handle: xs.ArrayHandle):",
    ],
)
def test_jedi_knows_an_attached_array_alone(program: str) -> None:
    """Nothing of the other libraries whose arrays `like=` gives."""
    indent = "    " if program.endswith(":") else ""
    found = completions(f"import xpushare as xs\n{program}\n{indent}xs.attach(handle).")
    assert {name for name in found if not name.startswith("_")} == OFFERED["xs.zeros(3)"]


@pytest.mark.parametrize(
    ("made", "names"),
    [
        ("xs.share([])", {"shape", "handle", "copied_nbytes"}),
        ("xs.Lock()", {"owner_died"}),
        ("xs.Channel.open('frames').receive()", {"array", "meta", "close", "missed"}),
        pytest.param("xs.Event()", {"signal", "wait"}, marks=pytest.mark.exhaustive),
    ],
)
def test_jedi_knows_what_a_with_block_gets(made: str, names: set[str]) -> None:
    assert completions(f"import xpushare as xs\nwith {made} as it:\n    it.") >= names


BOTH = {"close", "closed", "dtype", "handle", "nbytes", "read_only", "shape", "strides"}


CLOSED = {"close", "closed"}
ON_DEVICE = {*CLOSED, "context", "device"}
SHARED = {*ON_DEVICE, "handle", "is_imported", "statistics"}
OFFERED = {  # all that an editor offers, but for names with an underscore
    "xs.zeros(3)": {
        *BOTH, "device", "is_imported", "memory", "ndim", "ptr", "size", "statistics",
    },
    "xs.share([])": {*BOTH, "copied_nbytes", "event", "handles", "version"},
    "xs.ipc.Handle(b'')": {
        "NBYTES", "backend", "device_uuid", "exporter", "exposed_nbytes", "kind", "nbytes", "read_only", "version",
    },
    "xs.malloc_host(8)": {*SHARED, "as_array", "nbytes", "ptr", "read_only", "slice"},
    "xs.PhysicalMemory(8)": {*SHARED, "ipc_enabled", "nbytes"},
    "xs.VirtualRange(8)": {
        *ON_DEVICE, "access", "as_array", "changed", "grow", "map", "mapped", "nbytes", "ptr", "refresh", "set_access",
        "shrink", "unmap",
    },
    "xs.Event()": {
        *SHARED, "done", "from_native", "ipc_enabled", "native_ipc_handle", "pending", "reached", "recovered", "signal",
        "times", "value", "wait",
    },
    "xs.Queue()": {*ON_DEVICE, "copy", "fill", "from_native", "signal", "submit", "synchronize", "wait"},
    "xs.Channel.create('frames')": {
        *CLOSED, "create", "device", "failed", "finish", "handle", "loan", "name", "open", "ready", "reader_count",
        "receive", "send", "statistics", "writer_count",
    },
    "xs.Channel.create('frames').loan()": {"array", "meta", "seq"},
    "xs.Channel.open('frames').receive()": {
        *CLOSED, "array", "deliveries", "gap", "meta", "missed", "seq", "time_ns", "writer",
    },
    "xs.Lock()": {*CLOSED, "acquire", "release"},
    "xs.Atomic()": {*CLOSED, "add", "compare_exchange", "load", "store", "wait"},
    "xs.watch('frames')": {"close", "next", "ready"},
    "xs.Device('cpu')": {
        "aspects", "backend", "context", "driver_version", "has", "memory_granularity", "name", "ordinal", "support",
        "type", "uuid",
    },
    "xs.Context([])": {"devices"},
}  # fmt: skip


def test_dir_has_public_names_alone() -> None:
    """A REPL completes them."""
    with (
        xs.share(array := xs.zeros(3)) as handle, xs.Event("native_cpu:0") as event, xs.Queue("native_cpu:0") as queue,
        xs.Channel.create("frames", 2) as channel, contextlib.closing(xs.Lock()) as lock,
    ):  # fmt: skip
        for thing, made in (
            (array, "xs.zeros(3)"), (array.memory, "xs.malloc_host(8)"), (event, "xs.Event()"), (queue, "xs.Queue()"),
            (handle, "xs.share([])"), (handle.handle, "xs.ipc.Handle(b'')"), (lock, "xs.Lock()"),
            (xs.Atomic, "xs.Atomic()"), (channel, "xs.Channel.create('frames')"),
            (Frame, "xs.Channel.open('frames').receive()"), (channel.loan(), "xs.Channel.create('frames').loan()"),
            (xs.PhysicalMemory, "xs.PhysicalMemory(8)"), (xs.VirtualRange, "xs.VirtualRange(8)"),
        ):  # fmt: skip
            for each in (thing, thing if isinstance(thing, type) else type(thing)):
                assert {name for name in dir(each) if not name.startswith("_")} == OFFERED[made]
    assert {"__array_interface__", "__dlpack__", "__enter__"} <= set(dir(array))


@pytest.mark.parametrize(("kind", "name"), [(xs.SharedArray, "astype"), (xs.Channel, "put"), (xs.Event, "is_set")])
def test_help_shows_no_attribute_that_does_not_exist(kind: type, name: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}': "):
        getattr(kind, name)
    assert name not in re.findall(r"^ \|  (\w+)", pydoc.plain(pydoc.render_doc(kind)), re.MULTILINE)


@pytest.mark.parametrize("made", OFFERED)
def test_jedi_offers_public_names_alone(made: str) -> None:
    found = completions(f"import xpushare as xs\n{made}.")
    assert {name for name in found if not name.startswith("_")} == OFFERED[made]


@pytest.mark.parametrize("module", [xs.ipc.memory, xs.ipc.physical_memory, xs.ipc.event])
def test_dir_of_a_module_has_its_functions_alone(module: Any) -> None:
    assert dir(module) == sorted(module.__all__)
    assert set(dir(module)) <= {"close", "get", "open", "put"}


@pytest.mark.parametrize("module", ["ipc", "ipc.memory", "ipc.physical_memory", "ipc.event", "ur"])
def test_jedi_knows_modules(module: str) -> None:
    found = {name for name in completions(f"import xpushare as xs\nxs.{module}.") if not name.startswith("_")}
    assert found - {"loader"} == set(importlib.import_module(f"xpushare.{module}").__all__)


@pytest.mark.exhaustive
def test_pyright_offers_public_names_alone(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT / "src")]}))
    with LanguageServer(tmp_path) as server:

        def offered(made: str) -> set[str]:
            found = server.offered(f"import xpushare as xs\n{made}.")
            return {name for name in found if not name.startswith("_")}

        assert offered("xs") == set(xs.__all__)
        for module in "ipc", "ipc.memory", "ipc.physical_memory", "ipc.event", "ur":
            assert offered(f"xs.{module}") == set(importlib.import_module(f"xpushare.{module}").__all__)
        assert {made: offered(made) for made in OFFERED} == OFFERED


CONSTRUCTED = ["ArrayHandle", "Atomic", "Context", "Device", "Event", "Lock", "PhysicalMemory", "Queue", "VirtualRange"]


@pytest.mark.parametrize(
    "name", [*CONSTRUCTED, "Channel.create", "Channel.open", "Event.from_native", "publish", "empty"]
)
def test_jedi_knows_parameters(name: str) -> None:
    (found,) = jedi_script(f"import xpushare as xs\nxs.{name}(").get_signatures()
    assert [each.name for each in found.params] == list(inspect.signature(operator.attrgetter(name)(xs)).parameters)


def test_editors_show_a_single_array_first() -> None:
    """Editors show the overloads in this order."""
    first = typing.get_overloads(xs.share)[0]
    assert inspect.signature(first).parameters["array"].annotation == "Array"
    (shown, *_) = jedi_script("import xpushare as xs\nxs.share(").get_signatures()
    assert shown.params[0].to_string() == "array: Array"
    first = typing.get_overloads(xs.attach)[0]
    assert inspect.signature(first).parameters["h"].annotation == "ArrayHandleLike[T]"


def wanted() -> dict[int, str]:
    """By line, the type that the comment beside `reveal_type` names."""
    found = {at: re.search(r"reveal_type\(.*\)  # (.*)", text) for at, text in enumerate(CALLS.read_text().split("\n"))}
    return {at: match[1] for at, match in found.items() if match}


def check_calls(revealed: dict[int, str]) -> None:
    assert {at: revealed[at][: len(name)] for at, name in wanted().items()} == wanted()


def pyright(*arguments: str) -> list[dict[str, Any]]:
    pytest.importorskip("pyright")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)
    found: list[dict[str, Any]] = json.loads(done.stdout)["generalDiagnostics"]
    return found


@needs_libraries
def test_pyright_knows_types() -> None:
    types: dict[int, str] = {}
    for each in pyright(str(CALLS)):
        assert each["severity"] == "information", each
        types[each["range"]["start"]["line"]] = re.search(r' is "(.*)"$', each["message"])[1]  # type: ignore[index]
    check_calls(types)


@needs_libraries
@pytest.mark.exhaustive
def test_mypy_knows_types() -> None:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(CALLS)]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, env=environment, check=False)
    types: dict[int, str] = {}
    for line in done.stdout.splitlines():
        match = re.search(r':(\d+): note: Revealed type is "(.*)"$', line)
        assert match, line
        types[int(match[1]) - 1] = re.sub(r"\b[\w.]+\.(?=\w)", "", match[2])
    check_calls(types)


@pytest.mark.exhaustive
def test_pyright_verifies_public_types(tmp_path: Path) -> None:
    """No public name has a type that is unknown, or that type checkers infer differently."""
    pytest.importorskip("pyright")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    command += ["--verifytypes", "xpushare", "--ignoreexternal"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300, check=False
    )
    found: dict[str, bool] = {}
    for each in json.loads(done.stdout)["typeCompleteness"]["symbols"]:
        name = each["name"].removeprefix("xpushare.")
        if re.fullmatch(r"\w+|(?:ipc|objects|ur)\.\w+(?:\.\w+)*", name):
            found[name] = each["isTypeKnown"] and not each["isTypeAmbiguous"]
    assert set(xs.__all__) - {"ipc", "ur"} <= found.keys()
    assert [name for name, known in found.items() if not known] == []


UNKNOWN = {"dask", "distributed", "pyarrow", "ray"}  # libraries whose functions pyright does not know
REFUSED = "<!-- Type checkers refuse this program. -->"  # before a block that shows a mistake


@pytest.mark.exhaustive
def test_pyright_accepts_documented_programs(tmp_path: Path) -> None:
    """For Python 3.12: before that version NumPy's stubs take no buffers of other libraries."""
    pytest.importorskip("torch")  # without its types, pyright refuses `like=torch`
    settings: dict[str, Any] = {"extraPaths": [str(ROOT / "src"), str(ROOT / "tests")], "pythonVersion": "3.12"}
    for rule in "MissingImports", "PossiblyUnboundVariable", "UnusedExpression":
        settings[f"report{rule}"] = False
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    for example in (ROOT / "examples").glob("*.py"):
        if not UNKNOWN & set(re.findall(r"^ *(?:import|from) (\w+)", example.read_text(), re.MULTILINE)):
            shutil.copy(example, tmp_path)
    for name, found in {**test_reference.CALLABLES, **test_reference.CLASSES}.items():
        examples = doctest.DocTestParser().get_examples(inspect.getdoc(found) or "", name)
        lines = ["import numpy as np\n", "import xpushare as xs\n", *(example.source for example in examples)]
        (tmp_path / f"xs.{name}.py").write_text("".join(lines))
    refused: set[str] = set()
    for block in documented.blocks():
        if block.file or block.libraries & UNKNOWN:
            continue
        name = f"{block.page}:{block.line}"
        (tmp_path / f"{name.replace('/', '+')}.py").write_text(block.source)
        if (ROOT / block.page).read_text().split("\n")[block.line - 4] == REFUSED:
            refused.add(name)
    wrong: dict[str, list[str]] = {}
    for each in pyright("--project", str(tmp_path)):
        name = Path(each["file"]).stem.replace("+", "/")
        wrong.setdefault(name, []).append(f"{each['range']['start']['line']}: {each['message']}")
    assert {name: texts for name, texts in wrong.items() if name not in refused} == {}
    assert refused == wrong.keys()
