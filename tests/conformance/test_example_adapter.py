"""The adapter in a package of its own, as docs/adding-an-adapter.md walks through it: found by its entry point."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from xpushare.conformance import rules

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "adapter"
SOURCES = sorted(PACKAGE.glob("src/xpushare_example/*.py"))
PAGE = (ROOT / "docs" / "adding-an-adapter.md").read_text()
BLOCKS = re.findall(r"^```(\w+)(?: title=\"[^\"]+\")?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line.removeprefix("$ ") for kind, text in BLOCKS if kind == "console" for line in text.splitlines() if "$ " in line
]
INSTALLS = [command for command in COMMANDS if command.startswith("pip ")]
PARTS = [command for command in COMMANDS if "--rules" in command]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """With the package on the path and its entry point in a distribution, as pip would have it; without a build."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    folder = tmp_path_factory.mktemp("installed")
    (folder / "xpushare_example").symlink_to(PACKAGE / "src" / "xpushare_example")
    distribution = folder / f"xpushare_example-{project['version']}.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    points = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (distribution / "entry_points.txt").write_text("\n".join(points))
    path = [str(folder), *(str(Path(each).resolve()) for each in os.environ.get("PYTHONPATH", "").split(":") if each)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1"}


def run(environment: dict[str, str], *arguments: str, timeout: float = 60, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        env={**environment, **variables}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
        cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{shlex.join(arguments)}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


# --- the package ------------------------------------------------------------------------------------------------------


def test_it_is_small_and_imports_nothing_private() -> None:
    texts = [path.read_text() for path in SOURCES]
    assert sum(len(text.splitlines()) for text in texts) <= 200
    imports = [line for text in texts for line in text.splitlines() if re.match(r"\s*(from|import) ", line)]
    assert any("xpushare.adapters" in line for line in imports)
    private = [line for line in imports if re.search(r"[ .]_(?!_future__)", line)]
    assert not private, "what an adapter in another package needs has a public name"


def test_it_is_found_by_its_entry_point(environment: dict[str, str]) -> None:
    code = "import xpushare as xs; print(*xs.devices())"
    found = run(environment, "-c", code).split()
    assert "example:0" in found
    assert "native_cpu:0" in found
    assert run(environment, "-c", code, ONEAPI_DEVICE_SELECTOR="example:*").split() == ["example:0"]
    assert "example:0" not in run(environment, "-c", code, ONEAPI_DEVICE_SELECTOR="*:*;!example:*")


def test_finding_it_makes_no_adapter(environment: dict[str, str]) -> None:
    code = """
        import sys
        from xpushare import adapters
        assert adapters.record("example").backend == "example"
        assert "xpushare_example.adapter" not in sys.modules
        assert adapters.adapter("example") is adapters.adapter("example")
        assert "xpushare_example.adapter" in sys.modules
    """
    run(environment, "-c", textwrap.dedent(code))


def test_its_memory_is_limited(environment: dict[str, str]) -> None:
    code = """
        import os
        import xpushare as xs
        for _ in range(3):
            with xs.malloc_device(60_000, "example:0") as one, xs.malloc_device(40_000, "example:0") as two:
                for nbytes in (1, 1 << 20):
                    try:
                        xs.malloc_device(nbytes, "example:0")
                    except xs.OutOfMemoryError as error:
                        assert "left of 100000" in str(error)
                    else:
                        raise AssertionError("it was not full")
                handle = xs.ipc.memory.get(one)
                with xs.ipc.memory.open(handle) as again:  # costs nothing of it
                    assert again.nbytes == 60_000
                xs.ipc.memory.put(handle)
        for _ in range(3):
            with xs.PhysicalMemory(65536, "example:0"):
                pass
    """
    run(environment, "-c", textwrap.dedent(code), XPUSHARE_EXAMPLE_NBYTES="100000")


# --- the page ---------------------------------------------------------------------------------------------------------


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in textwrap.dedent(text).strip("\n").splitlines()]


def occurs(wanted: list[str], text: str) -> bool:
    """Whether these lines follow each other in the text, at one depth of indentation."""
    found = text.splitlines()
    for start in range(len(found) - len(wanted) + 1):
        if lines("\n".join(found[start : start + len(wanted)])) == wanted:
            return True
    return False


@pytest.mark.parametrize("number", [at for at, (kind, text) in enumerate(BLOCKS) if kind in ("python", "toml")])
def test_quotations(environment: dict[str, str], number: int) -> None:
    kind, text = BLOCKS[number]
    if "import pytest" in text:  # not of the example: it runs as it stands
        run(environment, "-c", text, ONEAPI_DEVICE_SELECTOR="mock:*")
        return
    files = SOURCES if kind == "python" else [PACKAGE / "pyproject.toml"]
    assert any(occurs(lines(text), path.read_text()) for path in files), f"the example has not (any more):\n{text}"


def test_rules_are_named_right() -> None:
    assert len(BLOCKS) > 12
    for number in re.findall(
        r"\b\d\.\d+[a-z]?\b", re.sub(r"\A---$.*?^---$|^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    ):
        assert number in rules.RULES, number
    for command in PARTS:  # the whole, below, has them all
        assert command.startswith("xpushare conformance --device example:0 --rules ")
        assert rules.select(command.rpartition(" ")[2].split(","))


def test_ci_installs_it() -> None:
    assert INSTALLS == ["pip install examples/adapter"]
    assert "examples/adapter" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(each, marks=pytest.mark.exhaustive if re.search("conformance|faults", each) else ())
        for each in COMMANDS
        if each not in INSTALLS + PARTS
    ],
)
def test_commands(environment: dict[str, str], command: str) -> None:
    words = shlex.split(command)
    if words[0] == "python":
        arguments = words[1:]
    else:
        assert words[0] == "xpushare"
        arguments = ["-m", *words]
    out = run(environment, *arguments, timeout=880)
    assert "example" in out or "PASSED" in out or "mutants caught" in out
