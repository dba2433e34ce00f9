"""Owned file descriptors."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import final

__all__ = ["OwnedFd", "close_all"]


@final
class OwnedFd:
    """One file descriptor with one owner: closed when this dies, unless taken out by `take`."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    @property
    def number(self) -> int:
        return self._number

    def take(self) -> int:
        """Give the ownership to the caller."""
        number, self._number = self._number, -1
        return number

    def close(self, _close: object = os.close) -> None:  # kept as a default: module globals go at interpreter exit
        number, self._number = self._number, -1
        if number >= 0:
            _close(number)  # type: ignore[operator]

    __del__ = close

    def __repr__(self) -> str:
        return f"<OwnedFd {self._number}>"


def close_all(fds: Iterable[OwnedFd]) -> None:
    for fd in fds:
        fd.close()
