"""File descriptors that are closed by their owner objects, or made when an importer asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from typing import NamedTuple

from xpushare._native import OwnedFd

__all__ = ["OnDemand", "OwnedFd", "close_all", "own_fd"]


def own_fd(call: Callable[..., int], *arguments: object) -> OwnedFd:
    """Call the C function `call`, which opens a descriptor, and return an owner of the descriptor. An interrupt
    (Ctrl-C) cannot come between the two steps and leak the descriptor.
    """
    return next(map(OwnedFd, starmap(call, (arguments,))))


def close_all(fds: Iterable[OwnedFd]) -> None:
    for fd in fds:
        fd.close()


class OnDemand(NamedTuple):
    """File descriptors that a C function makes, one by one, once an importer asks for them.

    `function` is the address of that function: `int function(int *fd, uint64 objects[i], int64 a, uint64 b)`. It
    returns 0 for success. The thread that calls the function does not hold the GIL, and has no current CUDA context.
    """

    function: int
    objects: Sequence[int]
    a: int
    b: int
