"""Colours and line lengths for output to a terminal."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
from typing import Final

__all__ = ["Help", "coloured", "narrow", "wrapped"]

_COLOURS: Final = {"red": "31", "green": "32", "yellow": "33", "dim": "2", "bold": "1"}


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def coloured(text: str, colour: str) -> str:
    """Return the text in that colour. Files, pipes and terminals under NO_COLOR get the plain text."""
    plain = not colour or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not _is_terminal()
    return text if plain else f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def narrow() -> bool:
    """Return whether the output is a terminal that is too narrow for tables."""
    return _is_terminal() and shutil.get_terminal_size().columns < 80


def wrapped(head: str, text: str, indent: int | None = None) -> str:
    """Return `head` and `text`, broken at the terminal's width. Later lines are indented, by default to the end of
    `head`. If the output is a file or a pipe, the result is one line.
    """
    if not _is_terminal():
        return f"{head}{text}".rstrip()
    columns = shutil.get_terminal_size().columns
    within = len(head) if indent is None else indent
    if within > columns // 2:  # a narrower terminal would get one word a line
        within = 8
    lines = textwrap.wrap(
        f"{head}{text}".rstrip(), max(columns, 20), subsequent_indent=" " * within, break_on_hyphens=False,
        drop_whitespace=False,
    )  # fmt: skip
    return "\n".join(each.rstrip() for each in lines)


class Help(argparse.HelpFormatter):
    """Breaks the paragraphs of a description at the terminal's width. Indented lines stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            part
            if part.startswith(" ")
            else textwrap.fill(part, width, initial_indent=indent, subsequent_indent=indent)
            for part in re.split(r"\n\n", text.strip("\n"))
        )
