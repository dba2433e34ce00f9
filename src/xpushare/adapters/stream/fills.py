"""Pattern fills, made of copies and of the fills that a device supports. These take patterns of a few lengths only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

__all__ = ["Copy", "Fill", "fill_steps"]

_PIECEWISE_MAX: Final = 64  # longest pattern, in bytes, that is written piece by piece


class Fill(NamedTuple):
    """A fill of `times` patterns, starting at the address `dst`."""

    dst: int
    pattern: bytes
    times: int


class Copy(NamedTuple):
    dst: int
    src: int
    nbytes: int


def fill_steps(
    dst: int, pattern: bytes, nbytes: int, units: Sequence[int], stage: Callable[[bytes], int]
) -> list[Fill | Copy]:
    """Return the fills and copies that fill `nbytes` bytes with a pattern. `nbytes` is a multiple of the pattern's
    length. `units` are the lengths of the patterns that the device can fill with.

    `stage` copies a long pattern into memory that the device can read, and returns its address.
    """
    if len(set(pattern)) == 1:
        return [Fill(dst, pattern[:1], nbytes)]
    length = len(pattern)
    if length in units and dst % length == 0:
        return [Fill(dst, pattern, nbytes // length)]
    # Write the pattern once, then double the filled part by copies.
    steps: list[Fill | Copy]
    if length > _PIECEWISE_MAX:
        steps = [Copy(dst, stage(pattern), length)]
    else:
        unit = max(unit for unit in units if length % unit == 0 and dst % unit == 0)
        steps = [Fill(dst + at, pattern[at : at + unit], 1) for at in range(0, length, unit)]
    done = length
    while done < nbytes:
        part = min(done, nbytes - done)
        steps.append(Copy(dst + done, dst, part))
        done += part
    return steps
