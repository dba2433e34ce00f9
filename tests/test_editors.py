"""What editors and type checkers know of the package: the stub is current, and two language servers are asked."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import xpushare as xs

ROOT = Path(__file__).parent.parent
CALLS = Path(__file__).with_name("typed_calls.py")


def test_stub_is_current() -> None:
    stub = runpy.run_path(str(ROOT / "scripts" / "stub"))["stub"]()
    assert (ROOT / "src" / "xpushare" / "__init__.pyi").read_text() == stub, "run scripts/stub"


def completions(source: str) -> set[str]:
    """What Jedi offers at the end of a program."""
    jedi = pytest.importorskip("jedi")
    script = jedi.Script(source, project=jedi.Project(ROOT, sys_path=[str(Path(xs.__file__).parent.parent), *sys.path]))
    lines = source.split("\n")
    return {each.name for each in script.complete(len(lines), len(lines[-1]))}


def test_jedi_knows_every_public_name() -> None:
    found = completions("import xpushare as xs\nxs.")
    assert found >= {*xs.__all__, "__version__"}
    assert not found & {"import_module", "importlib", "annotations", "TYPE_CHECKING"}


@pytest.mark.parametrize("handle", ["xs.share([])", "b''"])
def test_jedi_knows_an_attached_array_alone(handle: str) -> None:
    """Nothing of the other libraries whose arrays `like=` gives."""
    assert not completions(f"import xpushare as xs\nhandle = {handle}\nxs.attach(handle).") & {"abs_", "sum", "numpy"}


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


def test_dir_has_public_names_alone() -> None:
    """A REPL completes them."""
    array = xs.zeros(3)
    with xs.share(array) as handle:
        assert {name for name in dir(array) if name[0] != "_"} == BOTH | {
            "device", "is_imported", "memory", "ndim", "ptr", "size", "statistics",
        }  # fmt: skip
        assert {name for name in dir(handle) if name[0] != "_"} == BOTH | {
            "copied_nbytes", "event", "handles", "version"
        }  # fmt: skip
        assert {name for name in dir(xs.Lock()) if name[0] != "_"} == {"acquire", "close", "closed", "release"}
        event = set(dir(xs.Event("native_cpu:0")))
        assert event >= {"signal", "wait", "reached", "pending"}
        assert not event & {"set", "clear", "held", "forks", "pickled"}
        assert {"__array_interface__", "__dlpack__", "__enter__"} <= set(dir(array))


@pytest.mark.parametrize(
    ("made", "names"),
    [
        ("xs.share([])", {"shape", "nbytes", "handle", "handles", "close", "closed", "copied_nbytes"}),
        ("xs.ipc.memory", {"get", "open", "put", "close"}),
        *(
            pytest.param(*each, marks=pytest.mark.exhaustive)
            for each in (
                (
                    "xs.attach(b'')",
                    {"shape", "dtype", "strides", "nbytes", "device", "memory", "read_only", "handle", "close"},
                ),
                ("xs.Device('cpu')", {"name", "uuid", "type", "backend", "ordinal", "aspects", "has", "support"}),
                ("xs.Event()", {"signal", "wait", "reached", "value", "pending", "done"}),
                ("xs.malloc_host(8)", {"slice", "as_array", "ptr", "nbytes"}),
                ("xs.Channel.create('frames')", {"loan", "send", "receive", "finish"}),
            )
        ),
    ],
)
def test_jedi_knows_results(made: str, names: set[str]) -> None:
    assert completions(f"import xpushare as xs\n{made}.") >= names


def wanted() -> dict[int, str]:
    """By line, the type that the comment beside `reveal_type` names."""
    found = {at: re.search(r"reveal_type\(.*\)  # (.*)", text) for at, text in enumerate(CALLS.read_text().split("\n"))}
    return {at: match[1] for at, match in found.items() if match}


def test_pyright_knows_types() -> None:
    pytest.importorskip("pyright")
    if importlib.util.find_spec("torch") is None:
        pytest.skip("asks for the type of tensors, too: needs torch")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", str(CALLS)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)
    found: list[dict[str, Any]] = json.loads(done.stdout)["generalDiagnostics"]
    types: dict[int, str] = {}
    for each in found:
        assert each["severity"] == "information", each
        types[each["range"]["start"]["line"]] = re.search(r' is "(.*)"$', each["message"])[1]  # type: ignore[index]
    assert {at: types[at][: len(name)] for at, name in wanted().items()} == wanted()
