"""Add the examples to the site, to be downloaded, link each page that names one to its file, and describe each page."""

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


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for example in sorted((ROOT / "examples").rglob("*")):
        if example.suffix in {".py", ".cpp"} and "adapter" not in example.parts:
            where = f"examples/{example.relative_to(ROOT / 'examples')}"
            files.append(File.generated(config, where, abs_src_path=str(example)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - by name
    """Link each example that a page names to its file."""

    def link(match: re.Match[str]) -> str:
        if files.get_file_from_path(f"examples/{match[1]}") is None:
            return match[0]
        up = "../" * page.file.src_uri.count("/")
        return f"[`examples/{match[1]}`]({up}examples/{match[1]}){{ download }}"

    found = FIRST.search(markdown + "\n\n")
    if found is not None and "description" not in page.meta:
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", found[1])  # links become their texts
        page.meta["description"] = " ".join(re.sub(r"[`*]", "", text).split())[:200]
    return EXAMPLE.sub(link, markdown)
