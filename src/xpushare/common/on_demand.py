"""File descriptors that are made when an importer asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["OnDemand"]


class OnDemand(NamedTuple):
    """File descriptors that a C function makes, one by one, once an importer asks for them.

    `function` is the address of that function: `int function(int *fd, uint64 objects[i], int64 a, uint64 b)`. It
    returns 0 for success. The thread that calls the function does not hold the GIL, and has no current CUDA context.
    """

    function: int
    objects: Sequence[int]
    a: int
    b: int
