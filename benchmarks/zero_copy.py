"""Writes docs/zero-copy.md from results/zero-copy-*.json, which `tests/arrays/test_consumers.py` leaves there.

XPUSHARE_ZERO_COPY=results python -m pytest tests/arrays/test_consumers.py && python -m benchmarks.zero_copy

With --check nothing is written: exit status 1 when the page is not what the results say.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "zero-copy.md"
HEAD = """\
---
tags: [copy, copies]
---

# Zero copy

These tables show which library's array another process can use, by which call, and how many bytes are copied on the
way. Each cell is a test of two processes (`tests/arrays/test_consumers.py`). 0 means:

- `xs.share` copied nothing, and the consumer's library reads at exactly the address of the mapping;
- what one process writes without its library, the other process's library reads: in both directions, or only from the
  producer to the consumer if the memory is read-only;
- the consumer's array keeps the mapping: it reads the same after the `SharedArray` that it was made from was closed.

The first column says how the array was made. "refused" means that the memory is read-only (JAX shares its own arrays
that way), and that the consumer's call takes only writable memory; nothing is copied in that case either. Libraries of
the host (NumPy, pyarrow, `memoryview`) refuse memory of a GPU with a `BufferError` that says what to use.
"""
TAIL = """
`python -m benchmarks.zero_copy` makes this page from `results/zero-copy-*.json`; its head says how to measure again.
"""


def section(found: dict[str, Any]) -> str:
    """One backend: where it ran, the table, and the reasons for what is not 0."""
    rows: dict[str, dict[str, str]] = found["pairs"]
    consumers = list(dict.fromkeys(consumer for row in rows.values() for consumer in row))
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    where = "{device} ({cpu}), driver {driver}, kernel {kernel}, {date}; {python}".format(**found)
    lines = [
        f"## {found['backend']}",
        "",
        f"{where}, {versions}.",
        "",
        f"| made by | {' | '.join(f'`{consumer}`' for consumer in consumers)} |",
        "|---" * (len(consumers) + 1) + "|",
    ]
    reasons: list[str] = []

    def cell(verdict: str) -> str:
        if verdict == "zero copy":
            return "0"
        what, _, reason = verdict.partition(": ")
        if reason not in reasons:
            reasons.append(reason)
        return f"{what} ({reasons.index(reason) + 1})"

    for producer, row in rows.items():
        cells = [cell(row[consumer]) if consumer in row else "-" for consumer in consumers]
        lines.append(f"| `{producer}` | {' | '.join(cells)} |")
    if reasons:
        lines += ["", *(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))]
    return "\n".join([*lines, ""])


def page() -> str:
    files = sorted((ROOT / "results").glob("zero-copy-*.json"), reverse=True)  # native_cpu first
    return "\n".join([HEAD, *(section(json.loads(file.read_text())) for file in files)]) + TAIL


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text() == page():
            return 0
        print(
            "docs/zero-copy.md is not what results/zero-copy-*.json say: run python -m benchmarks.zero_copy",
            file=sys.stderr,
        )
        return 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
