"""Owned file descriptors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import final

from xpushare._native import close_received

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

    # The default is there at interpreter exit, too, when module globals are gone.
    def close(self, _close: Callable[[int], None] = close_received) -> None:
        number, self._number = self._number, -1
        if number >= 0:
            _close(number)

    __del__ = close

    def __repr__(self) -> str:
        return f"<OwnedFd {self._number}>"


def close_all(fds: Iterable[OwnedFd]) -> None:
    for fd in fds:
        fd.close()
