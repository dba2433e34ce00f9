"""File descriptors that are made when somebody asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["OnDemand"]


class OnDemand(NamedTuple):
    """Fds made one by one when an importer asks: `int function(int *fd, uint64 objects[i], int64 a, uint64 b)`, 0 is
    success.

    The function is called by a thread that holds neither the GIL nor a current context."""

    function: int
    objects: Sequence[int]
    a: int
    b: int
