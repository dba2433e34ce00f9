"""The architecture page names files and functions that exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

import xpushare

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
# `sharing/table.py`: `Table.put`, `Table.withdraw`
STEP = re.compile(r"`(?P<file>[\w/]+\.(?:py|c))`: (?P<functions>`[\w.]+`(?:, `[\w.]+`)*)")
PATHS = ("The path of a handle", "The path of an array", "The path of a signal")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def source(name: str) -> Path:
    return ROOT / "src" / name if name.startswith(("native/", "engine/")) else Path(xpushare.__file__).parent / name


def names_in(body: list[ast.stmt], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(prefix + node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {prefix + node.name, *names_in(node.body, f"{prefix}{node.name}.")}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {prefix + target.id for target in targets if isinstance(target, ast.Name)}
    return found


@functools.cache
def functions_of(path: Path) -> set[str]:
    """What a file defines: functions, and in Python also methods, by their class, and what is assigned to a name."""
    text = path.read_text()
    if path.suffix == ".py":
        return names_in(ast.parse(text).body)
    return set(re.findall(r"^(?:\w[\w *]*[ *])(\w+)\([^;]*?\)\n?[ ]?\{", text, re.MULTILINE))


def steps() -> list[tuple[str, str]]:
    return [
        (match["file"], function)
        for title in PATHS
        for match in STEP.finditer(section(title))
        for function in re.findall(r"`([\w.]+)`", match["functions"])
    ]


@pytest.mark.parametrize(("file", "function"), sorted(set(steps())))
def test_a_step_names_a_function_that_exists(file: str, function: str) -> None:
    assert source(file).is_file()
    assert function in functions_of(source(file))


@pytest.mark.parametrize("title", PATHS)
def test_every_step_says_where(title: str) -> None:
    rows = re.findall(r"^\| (?!step \||---)(.*) \|$", section(title), re.MULTILINE)
    assert rows
    for row in rows:
        rest = STEP.sub("", row.rpartition(" | ")[2])
        assert rest.strip("; ") == "", f"{row}: {rest}"


def test_what_is_defined_is_told_from_what_is_not() -> None:
    table, slot = (functions_of(source(file)) for file in ("sharing/table.py", "engine/slot.c"))
    assert {"Table.put", "deadline_in"} <= table
    assert {"xp_signal", "xp_sleep", "submit"} <= slot
    assert not {"put", "Table.gone"} & table
    assert not {"xp_lock", "xp_futex_wait", "pthread_mutex_lock", "while"} & slot  # called there, defined elsewhere


def test_the_first_files_to_read_exist() -> None:
    first = section("Start reading here")
    named = re.findall(r"`((?:src|docs|tests)/[\w/.]+)`", first)
    assert len(named) > 5
    for name in named:
        assert (ROOT / name).is_file(), name


def test_rooms_exist() -> None:
    rooms = section("Rooms, top to bottom")
    named = re.findall(r"`([\w/]+/|_\w+\.py|adapters/\w+\.py|src/(?:native/)?\w+/)`", rooms)
    assert len(named) > 15
    for name in named:
        assert (ROOT / name if name.startswith("src/") else source(name)).exists(), name


def test_the_glossary_is_in_order_and_says_each_word_once() -> None:
    parts = (ROOT / "docs" / "glossary.md").read_text().split("\n## ")[1:]
    found = [re.findall(r"^\| ([\w ,]+?) \|", part, re.MULTILINE)[1:] for part in parts]
    assert [words == sorted(words, key=str.lower) for words in found] == [True, True]
    assert sum(map(len, found)) == len({word for words in found for word in words}) > 55
