"""The result of a route, and the error for a blocked one."""

from __future__ import annotations

from dataclasses import dataclass

from xpushare._native import Domain, Mapping
from xpushare.common.fds import OwnedFd

__all__ = ["Attachment", "Blocked", "Met"]


class Blocked(Exception):
    """This route is blocked. The text names the obstacle, and how to remove it."""


@dataclass(slots=True)
class Attachment:
    """The descriptors with which an importer reaches an exporter."""

    table: OwnedFd
    commons: OwnedFd
    bell: OwnedFd
    direct: bool  # pidfd_getfd works on this exporter
    pidfd: OwnedFd | None  # None where the kernel or a namespace keeps it from us


@dataclass(slots=True)
class Met:
    """An attachment in use: the table mapped, the commons joined."""

    mapping: Mapping
    domain: Domain
    table: OwnedFd  # stays open with the rest: by it `xpushare ls` tells what a dead exporter left here
    direct: bool
    pidfd: OwnedFd | None
