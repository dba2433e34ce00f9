"""Colours and line lengths for output to a terminal."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Final

__all__ = ["Help", "coloured", "columns", "is_dumb", "narrow", "table", "wrapped"]

_COLOURS: Final = {"red": "31", "green": "32", "yellow": "33", "dim": "2", "bold": "1"}
_LEAST: Final = 4  # characters that a cut column keeps at least


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def is_dumb() -> bool:
    """Return whether the terminal can only print lines, without colours and cursor movement."""
    return os.environ.get("TERM") == "dumb"


def columns() -> int | None:
    """Return the width of the terminal, or None if the output goes to a file or pipe."""
    return shutil.get_terminal_size().columns if _is_terminal() else None


def table(rows: Sequence[Sequence[str]], numbers: Sequence[bool], width: int | None, least: int = _LEAST) -> list[str]:
    """Return the lines of a table. The first row is the header, and columns of numbers are aligned to the right.

    A table that is wider than `width` first loses its empty columns. Then its longest text columns are cut, each to no
    fewer than `least` characters. Columns of numbers are never cut. If the table is still too wide, the last columns
    are left out.
    """
    used: Sequence[int] = range(len(numbers))
    widths = [max(len(row[i]) for row in rows) for i in used]
    if width is not None:
        gaps = 2 * (len(numbers) - 1)
        if sum(widths) + gaps > width:
            used = [i for i in used if len(rows) == 1 or any(row[i] not in ("", "-") for row in rows[1:])] or used
            gaps = 2 * (len(used) - 1)
        needed = [widths[i] if number else least for i, number in enumerate(numbers)]
        while sum(widths[i] for i in used) + gaps > width:
            longer = [i for i in used if widths[i] > needed[i]]
            if not longer:
                break
            widths[max(longer, key=widths.__getitem__)] -= 1
        while len(used) > 1 and sum(widths[i] for i in used) + 2 * (len(used) - 1) > width:
            used = used[:-1]
    lines = (
        "  ".join(f"{_cut(row[i], widths[i]):{'>' if numbers[i] else '<'}{widths[i]}}" for i in used).rstrip()
        for row in rows
    )
    return [line if width is None else _cut(line, width) for line in lines]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"


def coloured(text: str, colour: str) -> str:
    """Return the text in this colour. The text stays plain in files and pipes, and if NO_COLOR is set."""
    plain = not colour or os.environ.get("NO_COLOR") or is_dumb() or not _is_terminal()
    return text if plain else f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def narrow() -> bool:
    """Return whether the output is a terminal that is too narrow for tables."""
    width = columns()
    return width is not None and width < 80


def wrapped(head: str, text: str, indent: int | None = None) -> str:
    """Return `head` and `text`, wrapped at the terminal's width. Later lines are indented by `indent` spaces, by
    default to the end of `head`. If the output is a file or a pipe, the result is one line.
    """
    width = columns()
    if width is None:
        return f"{head}{text}".rstrip()
    within = len(head) if indent is None else indent
    if within > width // 2:  # a narrower terminal would get one word a line
        within = 8
    lines = textwrap.wrap(
        f"{head}{text}".rstrip(), max(width, 20), subsequent_indent=" " * within, break_on_hyphens=False,
        drop_whitespace=False,
    )  # fmt: skip
    return "\n".join(each.rstrip() for each in lines)


class Help(argparse.HelpFormatter):
    """A formatter that wraps the paragraphs of a description at the terminal's width. Indented lines stay as
    they are.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            part
            if part.startswith(" ")
            else textwrap.fill(part, width, initial_indent=indent, subsequent_indent=indent)
            for part in re.split(r"\n\n", text.strip("\n"))
        )
