"""What the project measures of itself. `README.md` lists the programs; each is `python -m benchmarks.NAME`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xpushare.bench.measure import Row, as_json, table


def show(where: Mapping[str, Any], rows: Sequence[Row], file: str | None, **more: Any) -> None:
    """Print the rows as a table. With a file, write them there as JSON, too, with `more`."""
    print(table(where, rows, {}))
    if file:
        Path(file).write_text(as_json({"machine": where, **more, "rows": rows}) + "\n")
