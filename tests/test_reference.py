"""Every public callable has Args, Returns, Raises and a running example; every public attribute says what it is."""

from __future__ import annotations

import ast
import doctest
import inspect
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from xpushare.arrays.names import Watch
from xpushare.channels.ends import Frame, Loan
from xpushare.core.layers import operations

RAISE_NOTHING = {"close", "has", "mapped", "release", "trim"}
SHOWN = [*(name for name in xs.__all__ if name not in ("ipc", "ur")), "Watch", "Loan", "Frame"]


def thing(name: str) -> Any:
    extra = {"Watch": Watch, "Loan": Loan, "Frame": Frame}
    return extra[name] if name in extra else getattr(xs, name)


def members(name: str, kind: type) -> Iterator[tuple[str, Any]]:
    """The public members that this package has written in Python, or in C for its Python classes."""
    for each in dir(kind):
        owner = next(base for base in kind.__mro__ if each in vars(base))
        if not each.startswith("_") and owner.__module__.startswith("xpushare"):
            yield f"{name}.{each}", inspect.getattr_static(kind, each)


def everything() -> Iterator[tuple[str, Any]]:
    for name in SHOWN:
        found = thing(name)
        yield name, found
        if inspect.isclass(found) and not issubclass(found, xs.XpuShareError) and found is not xs.Aspect:
            yield from members(name, found)
    for module in (xs.ipc.memory, xs.ipc.physical_memory, xs.ipc.event):
        for name in module.__all__:
            yield f"{module.__name__.removeprefix('xpushare.')}.{name}", getattr(module, name)
    yield "ipc.Handle", xs.ipc.Handle
    yield from members("ipc.Handle", xs.ipc.Handle)


def function_of(found: Any) -> Any:
    return found.__func__ if isinstance(found, classmethod | staticmethod) else found


CALLABLES = {
    name: function_of(found) for name, found in everything() if isinstance(function_of(found), types.FunctionType)
}
CLASSES = {
    name: found for name, found in everything() if inspect.isclass(found) and not issubclass(found, BaseException)
}
ATTRIBUTES = {name: found for name, found in everything() if isinstance(found, property)}


def sections(text: str) -> dict[str, str]:
    """The sections of a docstring in Google's style."""
    parts = re.split(r"^(Args|Returns|Raises|Examples|Attributes):$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def described(there: dict[str, str]) -> list[str]:
    return re.findall(r"^    (\w+)(?: \([^)]*\))?: ", there.get("Args", ""), re.MULTILINE)


def native_methods() -> dict[str, str]:
    """What the stub of the native part says of the public methods that are written in C."""
    tree = ast.parse(Path(xs.__file__).with_name("_native.pyi").read_text(encoding="utf-8"))
    bases = {"LockMember": ("release",), "AtomicMember": ("add", "load", "store"), "FrameBase": ("close",)}
    return {
        f"{base.name}.{each.name}": inspect.cleandoc(ast.get_docstring(each) or "")
        for base in tree.body
        if isinstance(base, ast.ClassDef) and base.name in bases
        for each in base.body
        if isinstance(each, ast.FunctionDef) and each.name in bases[base.name]
    }


SIGNATURES = {  # as `help` shows them
    "LockMember.release": "(self, /)", "FrameBase.close": "(self, /)",
    "AtomicMember.add": "(self, n, /)", "AtomicMember.load": "(self, /)", "AtomicMember.store": "(self, value, /)",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(native_methods()))
def test_native_methods(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = native_methods()[name]
    assert "Examples" in sections(text)
    owner, _, method = name.partition(".")
    found = getattr({"LockMember": xs.Lock, "AtomicMember": xs.Atomic, "FrameBase": Frame}[owner], method)
    assert str(inspect.signature(found)) == SIGNATURES[name]
    if name != "FrameBase.close":
        assert "Raises" in sections(text)
        assert inspect.getdoc(found) == text
    run(name, text, monkeypatch)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_arguments_of_classes(name: str) -> None:
    there = described(sections(inspect.getdoc(CLASSES[name]) or ""))
    if there:
        assert there == list(inspect.signature(CLASSES[name]).parameters)


OF_EVERY_CALL = {xs.InvalidArgumentError, xs.ForkError, xs.OutOfMemoryError, xs.DeviceError}


PUBLIC_OPERATIONS = {each.name: each for each in operations() if each.name in {*CALLABLES, *CLASSES}}
assert len(PUBLIC_OPERATIONS) > 25


@pytest.mark.parametrize("operation", PUBLIC_OPERATIONS.values(), ids=PUBLIC_OPERATIONS)
def test_raises_of_operations(operation: Any) -> None:
    """Each docstring lists the errors of its operation, except those that the reference describes for every call."""
    text = inspect.getdoc({**CALLABLES, **CLASSES}[operation.name]) or ""
    listed = set(re.findall(r"^    (\w+): ", sections(text).get("Raises", ""), re.MULTILINE))
    assert {error.__name__ for error in operation.raises if error not in OF_EVERY_CALL} <= listed
    page = (Path(__file__).parent.parent / "docs" / "reference" / "errors.md").read_text()
    assert all(f"| `{error.__name__}` | " in page for error in OF_EVERY_CALL)


@pytest.mark.parametrize("name", CALLABLES)
def test_sections(name: str) -> None:
    found = CALLABLES[name]
    text = inspect.getdoc(found) or ""
    there = sections(text)
    parameters = [each for each in inspect.signature(found).parameters if each not in ("self", "cls")]
    assert described(there) == parameters
    returns = inspect.signature(found).return_annotation
    assert ("Returns" in there) == (returns not in (None, "None"))
    if name.rpartition(".")[2] not in RAISE_NOTHING:
        assert "Raises" in there
    assert "Examples" in there


@pytest.mark.parametrize("name", sorted({**CALLABLES, **CLASSES}))
def test_signature_has_no_internal_names(name: str) -> None:
    assert not re.findall(r"\b_[A-Za-z]\w*", str(inspect.signature({**CALLABLES, **CLASSES}[name])))


@pytest.mark.parametrize("name", sorted({**CALLABLES, **CLASSES}))
def test_example(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(name, inspect.getdoc({**CALLABLES, **CLASSES}[name]) or "", monkeypatch)


def run(name: str, text: str, monkeypatch: pytest.MonkeyPatch, devices: str = "native_cpu:*") -> None:
    """The examples run as they stand, and show a result."""
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", devices)
    test = doctest.DocTestParser().get_doctest(text, {"np": np, "xs": xs}, name, None, 0)
    assert any(each.want for each in test.examples)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert not said, "".join(said)


ALONE = """
import doctest, json, os, sys

import numpy as np
import xpushare as xs

for name, text in json.load(sys.stdin).items():
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    test = doctest.DocTestParser().get_doctest(text, {"np": np, "xs": xs}, name, None, 0)
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    print(name, "ran", file=sys.stderr)
    break
"""


@pytest.mark.exhaustive
def test_examples_pass_alone() -> None:
    """Each in a process that has done nothing else. Doctest prints what fails."""
    texts = {name: inspect.getdoc(found) or "" for name, found in {**CALLABLES, **CLASSES}.items()}
    environment = {**os.environ, "ONEAPI_DEVICE_SELECTOR": "native_cpu:*"}
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(
        command, input=json.dumps(texts), capture_output=True, text=True, env=environment, timeout=300, check=True
    )
    assert done.stdout == ""
    assert set(done.stderr.splitlines()) >= {f"{name} ran" for name in texts}


INTEGRATIONS = [
    f"{library}.{name}" for library in ("torch", "cupy", "jax") for name in ("install", "uninstall", "pool")
    if (library, name) != ("jax", "pool")
] + ["otel.install", "otel.uninstall"]  # fmt: skip


@pytest.mark.parametrize("name", INTEGRATIONS)
def test_integrations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library, _, function = name.partition(".")
    pytest.importorskip("opentelemetry.sdk" if library == "otel" else library)
    found = getattr(import_module(f"xpushare.integrations.{library}"), function)
    there = sections(inspect.getdoc(found) or "")
    assert described(there) == list(inspect.signature(found).parameters)
    if function != "uninstall":
        assert "Raises" in there
    on_gpu = function == "pool" or library == "cupy"
    if on_gpu and not xs.devices("cuda:*"):
        pytest.skip("its example needs a GPU")
    run(name, inspect.getdoc(found) or "", monkeypatch, "cuda:*;native_cpu:*" if on_gpu else "native_cpu:*")


OTHER_INTEGRATIONS = {
    "dma_buf": ("memory_fd", "adopt", "access"), "vulkan": ("device", "memory_fd"), "dask": ("register", "leases"),
    "ray": ("register",),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [f"{module}.{name}" for module in OTHER_INTEGRATIONS for name in OTHER_INTEGRATIONS[module]]
)
def test_other_integrations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their examples are skipped where these need more than this package."""
    library, _, function = name.partition(".")
    if library in ("dask", "ray"):
        pytest.importorskip({"dask": "distributed"}.get(library, library))
    found = getattr(import_module(f"xpushare.integrations.{library}"), function)
    text = inspect.getdoc(found) or ""
    there = sections(text)
    assert described(there) == list(inspect.signature(found).parameters)
    assert ("Returns" in there) == (inspect.signature(found).return_annotation not in (None, "None"))
    assert "Raises" in there or function == "leases"
    run(name, text, monkeypatch)


def test_arguments_of_batches() -> None:
    pytest.importorskip("torch")
    batches = import_module("xpushare.integrations.torch").Batches
    there = sections(inspect.getdoc(batches) or "")
    assert described(there) == list(inspect.signature(batches).parameters)
    assert "Raises" in there


def test_types_for_annotations() -> None:
    text = (Path(__file__).parent.parent / "docs" / "reference" / "types.md").read_text()
    found = re.findall(r"^    from (xpushare\.[\w.]+) import (.*)$", text, re.MULTILINE)
    types = {name: getattr(import_module(module), name) for module, names in found for name in names.split(", ")}
    assert types.keys() == {"Watch"}
    with (
        xs.Lock() as held, xs.Channel.create("frames", 3) as writer, xs.Channel.open("frames") as reader,
        xs.watch("none") as watch,
    ):  # fmt: skip
        with writer.loan() as loan:
            pass
        assert {type(each) for each in (held, loan, reader.receive(), watch)} == {
            xs.Held,
            xs.Loan,
            xs.Frame,
            *types.values(),
        }


def keys_of(found: Any) -> set[str]:
    """The keys of a dict, and of those in its lists."""
    if isinstance(found, list):
        return set().union(*map(keys_of, found))
    return {*found, *set().union(*map(keys_of, found.values()))} if isinstance(found, dict) else set()


def test_keys_of_statistics() -> None:
    pages = xs.PhysicalMemory(xs.Device("cpu").memory_granularity(), "cpu", enable_ipc=True)
    handle = xs.ipc.physical_memory.get(pages)
    with (
        xs.malloc_host(64, "native_cpu:0") as memory, xs.share(memory), pages,
        xs.Channel.create("frames", 3) as channel, xs.Event("native_cpu:0", enable_ipc=True) as event,
    ):  # fmt: skip
        for each in memory, pages, event, channel:
            returns = sections(inspect.getdoc(type(each).statistics) or "")["Returns"]
            found = each.statistics()
            assert {"exports", "processes", "members"} & found.keys()
            assert keys_of(found) <= set(re.findall(r"`(\w+)`", returns)), type(each)
        xs.ipc.physical_memory.put(handle)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attribute(name: str) -> None:
    assert ATTRIBUTES[name].__doc__


def test_no_text_stands_twice() -> None:
    """What one name says, another one need not say again."""
    seen: dict[str, str] = {}
    for name, found in {**CALLABLES, **CLASSES}.items():
        first = (inspect.getdoc(found) or "").partition("\n\n")[0]
        if name.rpartition(".")[2] != "close":
            assert seen.setdefault(first, name) == name
