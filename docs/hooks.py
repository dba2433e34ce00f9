"""Add the examples to the site, to be downloaded, and link each page that names one to its file."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
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

    return EXAMPLE.sub(link, markdown)
