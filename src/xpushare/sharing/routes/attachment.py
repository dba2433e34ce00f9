"""The request to a route, the route's result, and the error for a blocked route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from xpushare._native import Domain, Mapping
from xpushare.common.errors import XpuShareError
from xpushare.common.fds import OwnedFd
from xpushare.sharing.handle import Handle

__all__ = ["Attachment", "Blocked", "Fetched", "Met", "Wanted"]


class Blocked(Exception):
    """Raised if a route is blocked. The text names the obstacle, and how to remove it."""


class Wanted(NamedTuple):
    """A request for the `fd_count` descriptors of a handle's entry. `fds` are their numbers in the exporter. If `fds`
    is None, the exporter makes the descriptors on demand.
    """

    handle: Handle
    fds: tuple[int, ...] | None
    fd_count: int


Fetched: TypeAlias = list[OwnedFd] | Blocked | XpuShareError


@dataclass(slots=True)
class Attachment:
    """The descriptors with which an importer reaches an exporter."""

    table: OwnedFd
    commons: OwnedFd
    bell: OwnedFd
    direct: bool  # pidfd_getfd works on this exporter
    pidfd: OwnedFd | None  # None if the kernel or a namespace denies it


@dataclass(slots=True)
class Met:
    """An exporter that this process is attached to. Its table of exports is mapped, and this process has joined its
    commons, the memory that the exporter and its importers write.
    """

    mapping: Mapping
    domain: Domain
    table: OwnedFd  # stays open with the rest, so that `xpushare ls` finds what a dead exporter left here
    direct: bool
    pidfd: OwnedFd | None
