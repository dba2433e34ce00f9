"""Small tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["bundle", "facts", "table"]


def table(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return an HTML table with a header row."""
    head = "".join(f"<th>{escape(each)}</th>" for each in columns)
    rows = ("".join(f"<td>{escape(str(cell))}</td>" for cell in line) for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table>"


def facts(title: str, said: Mapping[str, object]) -> str:
    """Return an HTML table with a title and the names and values of `said`. Values that are None are left out."""
    rows = (
        f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>"
        for name, value in said.items()
        if value is not None
    )
    return f"<table><caption>{escape(title)}</caption><tbody>{''.join(rows)}</tbody></table>"


def bundle(thing: Any, include: Iterable[str] | None, exclude: Iterable[str] | None) -> dict[str, str]:
    """Return the result of an object's `_repr_mimebundle_`: its text and its HTML table. A notebook shows the table if
    it can, or else the text.
    """
    found = {"text/plain": repr(thing), "text/html": thing._repr_html_()}
    wanted = set(found if include is None else include) - set(exclude or ())
    return {kind: text for kind, text in found.items() if kind in wanted}
