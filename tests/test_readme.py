"""The examples in the documentation run, and print what the documentation says."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

import documented
import xpushare as xs
from documented import PAGES, ROOT, Block

FRAGMENTS = ("docs/engines/", "docs/dma-bufs.md")  # need a program of vLLM, SGLang …, or a driver's dma-buf
# Classes that have a page though they are not in `xpushare`: what channels give, and an integration's.
UNNAMED = {
    "arrays.names.Watch", "core.event.Times", "sharing.handle.Exporter", "sharing.survey.Row",
    "integrations.batches.Batches",
    *(f"integrations.{name}" for name in ("torch", "cupy", "jax", "otel")),
}  # fmt: skip


@pytest.mark.parametrize("block", documented.to_run("native_cpu"))
def test_example(block: Block, tmp_path: Path) -> None:
    documented.run(block, tmp_path)


def test_every_block_is_run_somewhere() -> None:
    """No page has python in a block that no test knows, but for lines to put into other projects' programs."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        starts = re.findall(r"^```(?:py|python)\b.*$", text, re.MULTILINE)
        fragments = starts.count("```py") if page.startswith(FRAGMENTS) else 0
        assert len(starts) == fragments + sum(block.page == page for block in documented.blocks()), page


@pytest.mark.parametrize("block", [block for block in documented.blocks() if block.file], ids=lambda block: block.file)
def test_an_excerpt_is_in_the_file_that_it_names(block: Block) -> None:
    assert block.file is not None
    file = (ROOT / block.file).read_text()
    assert any(textwrap.indent(block.source, " " * 4 * depth) in file for depth in range(4))


def test_the_readme_has_an_example_with_output() -> None:
    assert any(block.output for block in documented.blocks() if block.page == "README.md")


def test_named_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
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
    overview = (ROOT / "docs" / "reference" / "index.md").read_text()
    errors = {
        name for name in xs.__all__ if isinstance(kind := getattr(xs, name), type) and issubclass(kind, Exception)
    }
    assert {*xs.__all__} - errors - {"ipc"} <= {*re.findall(r"`(?:xpushare\.)?(\w+)`", overview)}
    functions = {name for name in xs.ur.__all__ if name.startswith("ur")}
    headings = [
        name
        for path in (ROOT / "docs" / "ur").glob("*.md")
        for name in re.findall(r"^(?:## |- )`(ur[A-Z]\w+)`$", path.read_text(), re.MULTILINE)
    ]
    assert sorted(headings) == sorted(functions)  # each has one section, or is in the list of the unsupported ones
