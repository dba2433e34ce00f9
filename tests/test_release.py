"""What a release is made of: scripts/release prepares the tree, and the bars of the performance page are current."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from benchmarks import chart

ROOT = Path(__file__).parent.parent
HOME = "https://example.org/owner/xpushare"


# How the pages and messages that are part of a release say how to install it.
INSTALLS = {
    "docs/engines/vllm.md": "$ pip install xpushare\n",
    "docs/tracing.md": "`pip install 'xpushare[otel]'`, and",
    "src/xpushare/cli/metrics.py": "needs prometheus-client: pip install 'xpushare[metrics]'\"",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files that a release changes."""
    for name in (
        "pyproject.toml",
        "README.md",
        "CHANGELOG.md",
        "src/xpushare/__init__.py",
        "scripts/release",
        *INSTALLS,
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def release(tree: Path, tag: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(tree / "scripts" / "release"), tag, HOME]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_version_is_that_of_the_tag_and_links_are_absolute(tree: Path) -> None:
    changelog = tree / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## [0.1.0] - Unreleased", "## [7.8.9] - 2030-01-02"))
    done = release(tree, "v7.8.9")
    assert done.returncode == 0, done.stderr
    assert '\nversion = "7.8.9"\n' in (tree / "pyproject.toml").read_text()
    urls = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Repository"] == HOME
    assert urls["Common mistakes"] == f"{HOME}/blob/v7.8.9/docs/mistakes.md"
    assert all((ROOT / url.removeprefix(f"{HOME}/blob/v7.8.9/")).is_file() for url in urls.values() if url != HOME)
    assert '\n__version__ = "7.8.9"\n' in (tree / "src/xpushare/__init__.py").read_text()
    readme = (tree / "README.md").read_text()
    targets = re.findall(r"\]\(([^)]+)\)", readme)
    assert len(targets) > 20
    assert all(target.startswith(f"{HOME}/") for target in targets)
    assert f"]({HOME}/raw/v7.8.9/docs/images/share.svg)" in readme
    assert "$ pip install xpushare " in readme
    for name, text in INSTALLS.items():
        assert text in (tree / name).read_text()
        assert text not in (ROOT / name).read_text()


@pytest.mark.parametrize(("tag", "message"), [("v0.1.0", "CHANGELOG.md has no entry"), ("1.0", "is not a version")])
def test_a_tag_that_is_not_ready_is_refused(tree: Path, tag: str, message: str) -> None:
    done = release(tree, tag)
    assert done.returncode == 1
    assert message in done.stderr
    assert (tree / "README.md").read_text() == (ROOT / "README.md").read_text()


def test_the_bars_of_the_performance_page_are_those_of_the_results() -> None:
    assert chart.PAGE.read_text() == chart.page(), "stale: python -m benchmarks.chart"
