"""Texts and small tables for people: sizes, counts, and what notebooks show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

__all__ = ["bundle", "counted", "facts", "readable", "table"]

_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def readable(nbytes: int) -> str:
    """Format a size in the largest binary unit that fits: `80 bytes`, `4 KiB`, `1.5 GiB`."""
    step = min(max(nbytes.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    if nbytes.bit_length() > 100:  # beyond all units
        return f"2**{nbytes.bit_length() - 1} bytes"
    return f"{nbytes / (1 << 10 * step):.1f}".removesuffix(".0") + f" {_UNITS[step]}"


def counted(number: int, what: str, plural: str = "") -> str:
    """Return a count with its noun: `1 object`, `2 objects`."""
    return f"{number} {what if number == 1 else plural or what + 's'}"


# --- for notebooks


def _escaped(value: object) -> str:
    from html import escape  # slow to import

    return escape(str(value))


def table(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return an HTML table with a header row."""
    head = "".join(f"<th>{_escaped(each)}</th>" for each in columns)
    rows = ("".join(f"<td>{_escaped(cell)}</td>" for cell in line) for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table>"


def facts(title: str, said: Mapping[str, object]) -> str:
    """Return an HTML table with a title and the names and values of `said`. Values that are None are left out."""
    rows = (
        f"<tr><th>{_escaped(name)}</th><td>{_escaped(value)}</td></tr>"
        for name, value in said.items()
        if value is not None
    )
    return f"<table><caption>{_escaped(title)}</caption><tbody>{''.join(rows)}</tbody></table>"


def bundle(thing: Any, include: Iterable[str] | None, exclude: Iterable[str] | None) -> dict[str, str]:
    """Return the result of an object's `_repr_mimebundle_`: its text and its HTML table. A notebook shows the table if
    it can, or else the text.
    """
    found = {"text/plain": repr(thing), "text/html": thing._repr_html_()}
    wanted = set(found if include is None else include) - set(exclude or ())
    return {kind: text for kind, text in found.items() if kind in wanted}
