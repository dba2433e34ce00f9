"""The structure of the package: no import circles, and each room imports only from the rooms below it
(docs/architecture.md).
"""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import xpushare

PACKAGE = Path(xpushare.__file__).parent
Graph = Mapping[str, set[str]]

# From the bottom up. A module belongs to the longest name here that it begins with; those of one row may import each
# other. Names relative to the package; "" is the package itself, which loads all others at their first use.
ROOMS: tuple[tuple[str, ...], ...] = (
    ("", "_native", "common"),
    ("timeline",),
    ("adapters",),
    ("sharing",),
    ("core",),
    ("objects",),
    ("arrays", "ipc"),
    ("channels",),
    ("ur",),
    ("keeper",),
    ("integrations", "cli", "bench", "conformance", "__main__"),
)


# The only imports for type checkers alone that go up, or in a circle: whoever reads a module reads what it names, too.
# `vendor` and `adapters` hand out what `base` defines, `ArrayHandle` is generic with `SharedArray` as its default, and
# the waits for several objects take channels.
TYPES_ONLY = {
    ("adapters", "adapters.base"),
    ("adapters.vendor", "adapters.base"),
    ("objects.array_handle", "objects.array"),
    ("arrays.waits", "channels.channel"),
}


# --- the import graph -------------------------------------------------------------------------------------------------


def _name(file: Path, root: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _imported(node: ast.AST) -> list[tuple[int, str]]:
    """What one statement or call imports: how many packages up it begins (0: it says the whole name), and the name.

    `from a import b` is a.b, which may be a name in a. What `import_module` is given as anything but a plain string
    (the package's own names, commands and adapters, which load each other at first use) is not followed.
    """
    if isinstance(node, ast.Import):
        return [(0, alias.name) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = f"{node.module}." if node.module else ""
        return [(node.level, base + alias.name) for alias in node.names]
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        if name in ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
            return [(0, str(node.args[0].value))]
    return []


def _imports(node: ast.AST, late: bool = True, types: bool = False) -> Iterator[tuple[int, str]]:
    """Every import under `node`; `late` ones are in functions, `types` what only type checkers see."""
    yield from _imported(node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not late:
        return
    children = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and _is_type_checking(node.test) and not types:
        children = iter(node.orelse)
    for child in children:
        yield from _imports(child, late, types)


def import_graph(root: Path, package: str, types: bool = False) -> dict[str, set[str]]:
    """What each module of the package imports of it, at any time, and with `types` for type checkers alone. Names are
    relative to the package, which is "".
    """
    files = {_name(file, root): file for file in sorted(root.rglob("*.py"))}
    known = {*files, *(_name(file, root) for file in root.rglob("*.pyi"))}
    graph: dict[str, set[str]] = {}
    for module, file in files.items():
        found: set[str] = set()
        here = [package, *filter(None, module.split(".")), *(["__init__"] if file.name == "__init__.py" else [])]
        for up, name in _imports(ast.parse(file.read_text(), str(file)), types=types):
            whole = ".".join([*here[:-up], name]) if up else name
            if whole == package or whole.startswith(f"{package}."):
                inner = whole[len(package) + 1 :]
                while inner not in known:  # a name in a module, not a module
                    inner = inner.rpartition(".")[0]
                found.add(inner)
        graph[module] = found - {module}
    return graph


def circles(graph: Graph) -> list[frozenset[str]]:
    """The strongly connected components of more than one module (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[frozenset[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(graph.get(module, ())):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            at = stack.index(module)
            component = frozenset(stack[at:])
            del stack[at:]
            if len(component) > 1:
                found.append(component)

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return found


def room_of(module: str) -> int:
    """The number of the row in ROOMS, from the bottom."""
    found = {
        name: number
        for number, names in enumerate(ROOMS)
        for name in names
        if module == name or (name and module.startswith(f"{name}."))
    }
    assert found, f"{module} is in no room: add it to ROOMS, and to docs/architecture.md"
    return found[max(found, key=len)]


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Of the package; it takes a second."""
    return import_graph(PACKAGE, "xpushare")


@pytest.fixture(scope="module")
def typed_graph() -> Graph:
    """The same with what only type checkers see, but `TYPES_ONLY`."""
    graph = import_graph(PACKAGE, "xpushare", types=True)
    for module, other in TYPES_ONLY:
        graph[module].remove(other)
    return graph


# --- the package ------------------------------------------------------------------------------------------------------


def test_no_circles(graph: Graph, typed_graph: Graph) -> None:
    assert [sorted(circle) for each in (graph, typed_graph) for circle in circles(each)] == []


def test_rooms_import_from_below(graph: Graph, typed_graph: Graph) -> None:
    found = {
        (module, other)
        for each in (graph, typed_graph)
        for module, others in each.items()
        for other in others
        if room_of(other) > room_of(module)
    }
    assert sorted(found) == []


def test_what_only_types_need_is_needed(typed_graph: Graph) -> None:
    """None of `TYPES_ONLY` stays when it is no longer a circle, or a way up."""
    for module, other in TYPES_ONLY:
        graph = {**typed_graph, module: {*typed_graph[module], other}}
        assert circles(graph) or room_of(other) > room_of(module), (module, other)


def test_the_leaf_imports_only_errors(graph: Graph) -> None:
    assert graph["common.elements"] == {"common.errors", "common.numbers"}
    assert graph["common.numbers"] == {"common.errors"}
    assert graph["common.errors"] <= {"common.result"}


def test_nothing_imports_what_is_optional(graph: Graph) -> None:
    optional = ("integrations", "cli", "conformance", "bench")
    for module, others in graph.items():
        if not module.startswith((*optional, "__main__")):
            assert not [other for other in others if other.startswith(optional)], module


@pytest.mark.parametrize("heavy", ["numpy", "ml_dtypes", "torch", "cupy", "jax", "cuda", "socket", "multiprocessing"])
def test_importing_the_package_imports_little(heavy: str) -> None:
    source = "import sys, xpushare; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    assert heavy not in {name.partition(".")[0] for name in done.stdout.split()}


def test_no_array_library_is_imported_with_a_module() -> None:
    """NumPy is there when an array is; the others are never imported outside of the optional rooms."""
    for file in PACKAGE.rglob("*.py"):
        module = _name(file, PACKAGE)
        late = module.startswith(("integrations", "bench", "conformance", "cli"))
        for _up, name in () if late else _imports(ast.parse(file.read_text()), late=False):
            assert name.partition(".")[0] not in {"numpy", "ml_dtypes", "torch", "cupy", "jax"}, module


# --- private names ----------------------------------------------------------------------------------------------------

BY_NAME = {"attrgetter", "methodcaller", "getattr", "setattr", "delattr", "hasattr", "__getattribute__", "__setattr__"}


def private_by_name(source: str) -> list[str]:
    """Return the private names that a source reaches by strings, which hides the use from every checker."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        strings: list[ast.expr] = []
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            own = bool(node.args) and isinstance(node.args[0], ast.Name) and node.args[0].id == "self"
            strings = node.args if called in BY_NAME and not own else []
            inner = node.func.value if isinstance(node.func, ast.Attribute) and called in ("get", "pop") else None
            strings = node.args if inner is not None and _is_namespace(inner) else strings
        elif isinstance(node, ast.Subscript) and _is_namespace(node.value):
            strings = [node.slice]
        names = [each.value for each in strings if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        parts = [part for name in names for part in name.split(".")]
        found += [
            part for part in parts if part.startswith("_") and not (part.startswith("__") and part.endswith("__"))
        ]
    return found


def _is_namespace(node: ast.expr) -> bool:
    """Whether it is `vars(…)` or `….__dict__`."""
    called = node.func if isinstance(node, ast.Call) else None
    return (isinstance(called, ast.Name) and called.id in ("vars", "globals")) or (
        isinstance(node, ast.Attribute) and node.attr == "__dict__"
    )


# Names of others, which have no public ones: whether the GIL is on, what ends a DataLoader's workers, and the fields
# that a named tuple documents.
FOREIGN_NAMES = {
    ("integrations.batches", "_shutdown_workers"),
    ("bench.measure", "_is_gil_enabled"),
    ("arrays.containers", "_fields"),
    ("conformance.suite.test_6_trees", "_fields"),
}


def test_no_private_name_is_reached_by_a_string() -> None:
    found = {
        (_name(file, PACKAGE), name) for file in PACKAGE.rglob("*.py") for name in private_by_name(file.read_text())
    }
    assert found == FOREIGN_NAMES


@pytest.mark.parametrize(
    "trick",
    [
        'attrgetter("_x")(Class)',
        'operator.attrgetter("held._x")',
        'methodcaller("_x", 1)',
        'getattr(thing, "_x", None)',
        'hasattr(thing, "_x")',
        'object.__getattribute__(thing, "_x")',
        'vars(thing)["_x"]',
        'thing.__dict__.get("_x")',
    ],
)
def test_a_hidden_use_is_found(trick: str) -> None:
    assert private_by_name(trick) == ["_x"]
    assert private_by_name(trick.replace("_x", "__x__")) == []


def test_rooms_exist(graph: Graph) -> None:
    for name in (name for names in ROOMS for name in names if name):
        assert name in graph or (PACKAGE / f"{name}.pyi").exists(), f"there is no {name}: take it out of ROOMS"


# Lines of code, as scripts/lines counts them. A plug-in that needs more does what belongs into the rooms below.
PLUGIN_LINES, HELPER_LINES = 150, 200


def test_plugins_for_engines_are_small() -> None:
    count = runpy.run_path(str(Path(__file__).parent.parent / "scripts" / "lines"))["python_lines"]
    most = dict.fromkeys(("vllm", "checkpoint_engine", "sglang", "verl", "lmcache"), PLUGIN_LINES)
    helpers = "_engines", "_after_import", "_sglang_session", "_verl_worker", "_vllm_model", "_written"
    most |= dict.fromkeys(helpers, HELPER_LINES)
    lines = {name: count((PACKAGE / "integrations" / f"{name}.py").read_text()) for name in most}
    assert {name: number for name, number in lines.items() if number > most[name]} == {}


# --- the test itself --------------------------------------------------------------------------------------------------


@pytest.fixture
def small_root(tmp_path: Path) -> Path:
    sources = {
        "__init__.py": "from small import a\n",
        "a.py": "import small.b\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import small.sub.d\n",
        "b.py": "def late():\n    from small.sub import c, name_of_sub\n",
        "sub/__init__.py": "from .. import errors\nfrom . import d\n",
        "sub/c.py": "class C:\n    def m(self):\n        from small.a import name\n",
        "sub/d.py": (
            "import typing, os, smaller\n"
            "if typing.TYPE_CHECKING:\n    from .c import C\nelse:\n    from ..errors import E\n"
        ),
        "errors.py": "import importlib\ndef late(name):\n    importlib.import_module('small.leaf'), __import__(name)\n",
        "leaf.py": "",
    }
    for name, text in sources.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return tmp_path


@pytest.fixture
def small(small_root: Path) -> dict[str, set[str]]:
    return import_graph(small_root, "small")


def test_the_graph_sees_every_import(small: dict[str, set[str]]) -> None:
    assert small == {
        "": {"a"},
        "a": {"b"},
        "b": {"sub.c", "sub"},
        "sub": {"errors", "sub.d"},
        "sub.c": {"a"},
        "sub.d": {"errors"},
        "errors": {"leaf"},
        "leaf": set(),
    }


def test_the_graph_sees_what_only_type_checkers_do(small: dict[str, set[str]], small_root: Path) -> None:
    expected = {**small, "a": {"b", "sub.d"}, "sub.d": {"errors", "sub.c"}}
    assert import_graph(small_root, "small", types=True) == expected


def test_circles_are_found(small: dict[str, set[str]]) -> None:
    assert circles(small) == [frozenset({"a", "b", "sub.c"})]
    small["b"].clear()
    assert circles(small) == []
    assert set(circles({"a": {"b"}, "b": {"a"}, "c": {"a", "d"}, "d": {"c"}})) == {
        frozenset({"a", "b"}),
        frozenset({"c", "d"}),
    }


# --- what takes every exception ---------------------------------------------------------------------------------------

# The handlers of every exception, Ctrl-C included. What is undone if a block raises is an `End` of the block instead,
# which no interrupt can prevent. Here code of others runs, whose every error is passed on in another form, or the
# failure itself is needed, or another call for each message would cost too much.
TAKE_ALL = {
    "adapters/base.py": 1,  # what imports have made has no owner that releases it until the caller has it: also these
    "adapters/cuda/_memory.py": 1,
    "adapters/virtual_memory/adapter.py": 1,
    "adapters/virtual_memory/memory.py": 4,
    "adapters/host/queue.py": 1,  # an operation of the caller: its error is the queue's
    "adapters/stream/queue.py": 3,  # the driver's error is the queue's; called for each operation
    "adapters/virtual_memory/counted.py": 1,  # after an error nothing is mapped, after an interrupt perhaps
    "arrays/attach.py": 1,
    "arrays/share.py": 1,
    "channels/groups.py": 4,
    "cli/doctor/processes.py": 1,  # in a child, which ends after it
    "common/leaving.py": 1,  # Ctrl-C at the exit
    "conformance/actions.py": 1,
    "conformance/harness.py": 2,  # functions of tests
    "conformance/plugin.py": 1,
    "conformance/suite/test_9_waits.py": 1,
    "core/printing.py": 1,  # the result of a call, whichever
    "core/recording.py": 1,
    "integrations/batches.py": 1,  # the loop of the caller, and torch's loader
    "integrations/_vllm_model.py": 1,  # vLLM's code
    "integrations/verl.py": 1,  # verl's code
    "objects/array_handle.py": 1,
    "sharing/idle.py": 1,
    "sharing/locked_files.py": 1,
    "sharing/peers.py": 1,
    "sharing/table.py": 1,
    "ur/_functions/enqueue.py": 1,  # a function of the caller
}


def _names(node: ast.AST) -> tuple[str, str]:
    return getattr(node, "id", ""), getattr(node, "attr", "")


def _takes_all(node: ast.AST) -> bool:
    """Whether this handles every exception, in any spelling: `except BaseException`, among others too, a bare
    `except`, `suppress(BaseException)`, or a `finally` that looks at a flag which the block sets.
    """

    def everything(named: ast.expr | None) -> bool:
        names = () if named is None else ast.walk(named)
        return named is None or any(
            "BaseException" in (getattr(each, "id", ""), getattr(each, "attr", "")) for each in names
        )

    if isinstance(node, ast.ExceptHandler):
        return everything(node.type)
    if isinstance(node, ast.Call):
        return "suppress" in _names(node.func) and any(map(everything, node.args))
    if isinstance(node, ast.Try) and node.finalbody:
        flags = {
            target.id
            for part in node.body
            for each in ast.walk(part)
            if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant)
            for target in each.targets
            if isinstance(target, ast.Name)
        }
        tests = [
            each.test for part in node.finalbody for each in ast.walk(part) if isinstance(each, ast.If | ast.IfExp)
        ]
        return any(isinstance(each, ast.Name) and each.id in flags for test in tests for each in ast.walk(test))
    return False


def test_few_places_take_every_exception() -> None:
    def name_in(file: Path) -> str:
        return str(file.relative_to(PACKAGE))

    found = {
        name_in(file): count
        for file in PACKAGE.rglob("*.py")
        if (count := sum(map(_takes_all, ast.walk(ast.parse(file.read_text()))))) > TAKE_ALL.get(name_in(file), 0)
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "try: f()\nexcept: g()",
        "try: f()\nexcept BaseException as e: g()",
        "try: f()\nexcept (ValueError, builtins.BaseException): g()",
        "with contextlib.suppress(BaseException): f()",
        "done = False\ntry:\n f()\n done = True\nfinally:\n if not done: g()",
    ],
)
def test_what_takes_every_exception_is_seen(source: str) -> None:
    assert sum(map(_takes_all, ast.walk(ast.parse(source)))) == 1
    assert not any(map(_takes_all, ast.walk(ast.parse("try: f()\nexcept Exception: g()\nfinally: h()"))))
