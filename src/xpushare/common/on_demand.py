"""File descriptors that are made when an importer asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["OnDemand"]


class OnDemand(NamedTuple):
    """Descriptors that are made one by one when an importer asks, by `int function(int *fd, uint64 objects[i], int64 a,
    uint64 b)`, which returns 0 for success.

    The calling thread holds neither the GIL nor a current context.
    """

    function: int
    objects: Sequence[int]
    a: int
    b: int
