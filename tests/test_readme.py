"""The examples in the documentation run, and print what the documentation says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import xpushare as xs

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "docs/index.md",
    "docs/guide.md",
    "docs/guide-arrays.md",
    "docs/weights.md",
    "docs/keeper.md",
    "docs/forks-and-servers.md",
    "docs/which-call.md",
    "docs/coming-from.md",
    "docs/mistakes.md",
]
# Classes that have a page though they are not in `xpushare`: what channels give, and an integration's.
UNNAMED = {"arrays.names.Watch", "channels.ends.Frame", "channels.ends.Loan", "integrations.batches.Batches"}
# A python block, and the block of its output when one follows. What needs other libraries is a `py` block, and not run.
BLOCK = re.compile(r"^```python\n(?P<source>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def examples() -> list[object]:
    found: list[object] = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            found.append(pytest.param(match["source"], match["output"], id=f"{page}:{line}"))
    return found


@pytest.mark.parametrize(("source", "output"), examples())
def test_example(source: str, output: str | None, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(source)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path)}
    if "keep=True" in source:  # a keeper of its own, which the page leaves running
        environment["XPUSHARE_RUNTIME_DIR"] = str(tmp_path)
        tmp_path.chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    if "keep=True" in source:
        subprocess.run([sys.executable, "-m", "xpushare", "keep", "--stop"], env=environment, check=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    if output is not None:
        assert done.stdout == output


def test_the_readme_has_an_example_with_output() -> None:
    assert any(match["output"] for match in BLOCK.finditer((ROOT / "README.md").read_text()))


def test_named_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in [*PAGES, "CONTRIBUTING.md"]:
        for target in re.findall(r"(?:^\$ |`)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page} names make {target}"


def test_links_lead_somewhere() -> None:
    pages = [ROOT / page for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for page in [*pages, *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page}: {target}"


def test_the_reference_has_every_public_name() -> None:
    pages = [path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md")]
    named = [name for page in pages for name in re.findall(r"^::: xpushare\.([\w.]+)$", page, re.MULTILINE)]
    assert len(named) == len(set(named))
    assert set(named) == {*xs.__all__} - {"ipc", "ur"} | {f"ipc.{name}" for name in xs.ipc.__all__} | UNNAMED
    functions = {name for name in xs.ur.__all__ if name.startswith("ur")}
    assert functions <= set(re.findall(r"\bur[A-Z]\w+", (ROOT / "docs" / "ur-reference.md").read_text()))
