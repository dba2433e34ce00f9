"""Add the examples and the files of excerpts to the site, to be downloaded, link each page that names one to its file,
and describe each page.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
# The first paragraph of plain text: what a search engine shows of a page
FIRST = re.compile(r"^(?=[A-Z`*])(?!\*\*\*)(.+?)\n\s*\n", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"(?<!\[)`examples/([\w/]+\.\w+)`(?!\])")
EXCERPT = re.compile(r'^```python title="from ([^"]+)"\n.*?^```\n', re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for example in sorted((ROOT / "examples").rglob("*")):
        if example.suffix in {".py", ".cpp"} and "adapter" not in example.parts:
            where = f"examples/{example.relative_to(ROOT / 'examples')}"
            files.append(File.generated(config, where, abs_src_path=str(example)))
    excerpts = {name for page in (ROOT / "docs").rglob("*.md") for name in EXCERPT.findall(page.read_text())}
    for name in sorted(excerpts):
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - by name
    """Link each example that a page names, and each excerpt, to its file."""
    up = "../" * page.file.src_uri.count("/")

    def link(match: re.Match[str]) -> str:
        if files.get_file_from_path(f"examples/{match[1]}") is None:
            return match[0]
        return f"[`examples/{match[1]}`]({up}examples/{match[1]}){{ download }}"

    if page.file.src_uri == "results.md":  # a record of all runs, not for readers who search
        page.meta["search"] = {"exclude": True}
    found = FIRST.search(markdown + "\n\n")
    if found is not None and "description" not in page.meta:
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", found[1])  # links become their texts
        page.meta["description"] = " ".join(re.sub(r"[`*]", "", text).split())[:200]
    markdown = EXCERPT.sub(lambda found: f"{found[0]}\n[The whole file]({up}{found[1]}){{ download }}\n", markdown)
    return EXAMPLE.sub(link, markdown)
