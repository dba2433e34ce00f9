"""What is generated from the declarations is up to date, and what is derived from them agrees with them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import xpushare as xs
from xpushare import ur
from xpushare.conformance.rules import RULES
from xpushare.core.layers import operations
from xpushare.ur import _generate
from xpushare.ur._derived import MEANINGS, meaning
from xpushare.ur._spec import FUNCTIONS

CHECKOUT = Path(__file__).resolve().parents[2]  # the package may be an installed one
GENERATED = (
    "src/xpushare/ur/__init__.pyi",
    *(
        f"docs/ur/{page}.md"
        for page in (
            *("index", "devices", "contexts", "queues", "commands", "events", "memory", "buffers", "virtual-memory"),
            *("ipc", "native-handles", "structs", "enumerations", "unsupported"),
        )
    ),
    "docs/reference/operations.md",
    "docs/reference/aspects.md",
    "src/native/ur_adapter/functions.h",
)


@pytest.mark.parametrize("path", GENERATED)
def test_generated_files_are_fresh(path: str) -> None:
    assert len(_generate.targets()) == len(GENERATED)
    texts = {target.name: text for target, text in _generate.targets().items()}
    assert (CHECKOUT / path).read_text("utf-8") == texts[Path(path).name], "run python -m xpushare.ur._generate"


def test_check_finds_what_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_generate, "targets", lambda: {tmp_path / "a": "new"})
    assert _generate.main(["--check"]) == 1
    assert _generate.main([]) == 0
    assert _generate.main(["--check"]) == 0
    (tmp_path / "a").write_text("old")
    assert _generate.main(["--check"]) == 1


def test_the_stub_has_all_public_names() -> None:
    tree = ast.parse(_generate.stub())
    names = {alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    names |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert names - {None} == set(ur.__all__)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_stub_has_the_real_signatures(name: str) -> None:
    tree = ast.parse(_generate.stub())
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    real = inspect.signature(getattr(ur, name))
    for node in found:
        assert [arg.arg for arg in node.args.args] == list(real.parameters)
    if len(found) == 1:  # no overloads
        assert [ast.unparse(arg.annotation) for arg in found[0].args.args if arg.annotation] == [
            parameter.annotation for parameter in real.parameters.values()
        ]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_annotations_resolve(name: str) -> None:
    hints = typing.get_type_hints(getattr(ur, name))
    assert list(hints) == [*(arg.name for arg in FUNCTIONS[name].args), "return"]


def test_each_argument_has_a_meaning_and_each_meaning_an_argument() -> None:
    every = {(name, arg.name) for name, function in FUNCTIONS.items() for arg in function.args}
    assert all(meaning(*each).endswith(".") for each in every)
    used = {f"{name}.{arg}" if f"{name}.{arg}" in MEANINGS else arg for name, arg in every}
    assert used == set(MEANINGS)


def test_each_field_of_a_struct_is_described() -> None:
    page = (CHECKOUT / "docs" / "ur" / "structs.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| .* \| `[^`]*` \| (.*) \|$", page, re.MULTILINE)
    assert [name for name, _text in rows] == [
        field.name for name in _generate.STRUCTS for field in dataclasses.fields(getattr(ur, name))
    ]
    assert all(text.endswith(".") for _name, text in rows)


def test_links_between_the_pages() -> None:
    """What one page links to is a heading of the other."""
    operations_page, errors_page = (CHECKOUT / "docs" / "reference" / name for name in ("operations.md", "errors.md"))
    paths = [*(CHECKOUT / "docs" / "ur").glob("*.md"), operations_page, errors_page]
    pages = {path: path.read_text("utf-8") for path in paths}
    anchors = {
        path: {
            re.sub(r"[^\w\s-]", "", heading).lower().replace(" ", "-")
            for heading in re.findall(r"^## (.+)$", text, re.MULTILINE)
        }
        for path, text in pages.items()
    }
    linked = {
        path: {
            ((path.parent / page).resolve(), anchor) for page, anchor in re.findall(r"\]\(([\w./-]+)#([\w-]+)\)", text)
        }
        for path, text in pages.items()
    }
    for path, links in linked.items():
        assert all(anchor in anchors[page] for page, anchor in links), path
    assert linked[operations_page]
    assert len(linked[CHECKOUT / "docs" / "ur" / "index.md"]) == len(FUNCTIONS)
    assert any(
        page == operations_page for path, links in linked.items() if path != operations_page for page, _ in links
    )


def test_every_function_is_on_one_page_of_the_reference() -> None:
    modules = [module for _title, modules in _generate.GROUPS.values() for module in modules]
    assert sorted(modules) == sorted({each.body.__module__.rpartition(".")[2] for each in FUNCTIONS.values()})


def test_every_operation_is_described() -> None:
    for each in operations():
        assert each.doc.strip().endswith("."), each.name
        assert (not each.raises) == (each.name == "trim"), f"{each.name}: only trim raises nothing"
        assert {f"3.{rule}" for rule in each.rules} <= {re.sub(r"\D+$", "", number) for number in RULES}, each.name
        assert f"## `{each.name}`" in _generate.operations_page()


def test_aspects_are_answered_by_queries() -> None:
    asked = [aspect.query for aspect in xs.Aspect if aspect.query]
    assert len(asked) == len(set(asked)) == 5
    assert all(ur.DeviceInfo[name].name.split("_EXP")[0].endswith("SUPPORT") for name in asked)
    assert all(aspect.doc and aspect.doc in _generate.aspects_page() for aspect in xs.Aspect)


def test_the_lazy_attribute() -> None:
    assert xs.ur is ur
    assert issubclass(ur.URError, xs.XpuShareError)


def test_importing_starts_nothing() -> None:
    code = (
        "import threading, sys, xpushare.ur; from xpushare.sharing import node; from xpushare import adapters; "
        "sys.exit(threading.active_count() != 1 or node.current().table_if_any is not None or bool(adapters._adapters))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
