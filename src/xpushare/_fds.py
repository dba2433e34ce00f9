"""Owned file descriptors."""

from __future__ import annotations

from collections.abc import Iterable

from xpushare._native import OwnedFd

__all__ = ["OwnedFd", "close_all"]


def close_all(fds: Iterable[OwnedFd]) -> None:
    for fd in fds:
        fd.close()
