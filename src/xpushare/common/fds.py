"""File descriptors that are closed by their owner objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import starmap

from xpushare._native import OwnedFd

__all__ = ["OwnedFd", "close_all", "own_fd"]


def own_fd(call: Callable[..., int], *arguments: object) -> OwnedFd:
    """Call the C function `call`, which opens a descriptor, and return an owner of the descriptor. An interrupt
    (Ctrl-C) cannot come between the two steps and leak the descriptor.
    """
    return next(map(OwnedFd, starmap(call, (arguments,))))


def close_all(fds: Iterable[OwnedFd]) -> None:
    for fd in fds:
        fd.close()
