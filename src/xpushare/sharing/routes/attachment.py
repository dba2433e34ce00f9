"""The request to a route, the route's result, and the error for a blocked route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from xpushare import _native
from xpushare._native import Domain, Mapping, Refusal
from xpushare.common.errors import XpuShareError
from xpushare.common.fds import OwnedFd
from xpushare.sharing.handle import Handle, fields_of
from xpushare.sharing.refusals import Blocked, error_of

__all__ = ["Blocked", "Fetched", "Met", "Wanted", "met"]


class Wanted(NamedTuple):
    """A request for the `fd_count` descriptors of a handle's entry."""

    handle: Handle
    fd_count: int


Fetched: TypeAlias = list[OwnedFd] | Blocked | XpuShareError


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


def met(handle: Handle, *fds: OwnedFd) -> Met:
    """Attach to the exporter of `handle`, by pidfd_getfd or by these descriptors: those of its table, its commons and
    its bell, and its pidfd if there is one. Raises the error with the reason if a step fails or a value is wrong.
    """
    fields = fields_of(handle)
    found = _native.meet(fields, *fds)
    if isinstance(found, Refusal):
        raise error_of(found, fields)
    mapping, domain, table, pidfd = found
    return Met(mapping, domain, table, not fds, pidfd)
