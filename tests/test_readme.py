"""The examples in the documentation run, and print what the documentation says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "docs/index.md", "docs/guide.md"]
# A python block, and the block of its output when one follows.
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
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    if output is not None:
        assert done.stdout == output


def test_the_readme_has_an_example_with_output() -> None:
    assert any(match["output"] for match in BLOCK.finditer((ROOT / "README.md").read_text()))


def test_named_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in [*PAGES, "CONTRIBUTING.md"]:
        for target in re.findall(r"(?:^\$ |`)make ([a-z]+)", (ROOT / page).read_text(), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page} names make {target}"


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()):
            if "://" not in target:
                assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"
