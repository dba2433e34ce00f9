"""Formats sizes and counts for people."""

from __future__ import annotations

from typing import Final

__all__ = ["counted", "readable"]

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
