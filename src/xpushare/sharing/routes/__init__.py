"""The routes by which an exporter's file descriptors reach an importer, in the order in which they are tried.

A route is a module with `name`, `meet(handle) -> Met` and `fetch(peer, wanted) -> list[Fetched]`. Both raise `Blocked`
if something refuses them (the next route is tried). `meet` raises `HandleExpiredError` if the exporter is certainly
gone. `fetch` returns for each entry its descriptors or an error, which is `Blocked` if the next route may still get the
descriptors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple, Protocol, TypeAlias, cast

from xpushare import _native
from xpushare._native import Domain, End, Mapping, PeerTable, Refusal
from xpushare.common.errors import RouteError, XpuShareError
from xpushare.common.fds import OwnedFd, close_all
from xpushare.common.loading import load
from xpushare.sharing.handle import Handle, fields_of
from xpushare.sharing.refusals import Blocked, error_of

__all__ = ["Blocked", "Fetched", "Met", "Wanted", "fetch", "meet", "met", "routes", "use_only"]


class Wanted(NamedTuple):
    """A request for the `fd_count` descriptors of a handle's entry."""

    handle: Handle
    fd_count: int


Fetched: TypeAlias = list[OwnedFd] | Blocked | XpuShareError


class Met(NamedTuple):
    """An exporter that this process is attached to. Its table of exports is mapped, and this process has joined its
    commons, the memory that the exporter and its importers write.
    """

    mapping: Mapping
    domain: Domain
    table: OwnedFd  # stays open with the rest, so that `xpushare ls` finds what a dead exporter left here
    direct: bool
    pidfd: OwnedFd | None


class Route(Protocol):
    """The functions of a route module."""

    name: str

    def meet(self, handle: Handle) -> Met: ...
    def fetch(self, peer: PeerTable, wanted: Sequence[Wanted]) -> list[Fetched]: ...


_known: tuple[str, ...] = ("pidfd", "socket")  # the modules


@cache
def _route(module: str) -> Route:
    return cast("Route", load(f"{__name__}.{module}"))


def routes() -> Iterator[Route]:
    """Yield the routes that this process tries. A route is loaded once those before it are blocked."""
    return map(_route, _known)


def use_only(name: str) -> None:
    """Make this process try only the route of that name, to find out whether it works."""
    global _known
    _known = tuple(module for module in _known if _route(module).name == name)


def _refused(handle: Handle, reasons: list[str]) -> RouteError:
    fields = fields_of(handle)
    listed = "".join(f"\n  - {reason}" for reason in reasons)
    return RouteError(
        f"no way to the objects of process {fields.pid}:{listed}\n(`xpushare doctor` tries each way on this machine)",
        reasons=tuple(reasons),
    )


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


def meet(handle: Handle) -> Met:
    """Attach to the exporter of `handle` by the first route that works. Raises `RouteError` if all are blocked."""
    reasons: list[str] = []
    for route in routes():
        try:
            return route.meet(handle)
        except Blocked as blocked:
            reasons.append(f"{route.name}: {blocked}")
    raise _refused(handle, reasons)


def fetch(peer: PeerTable, wanted: Sequence[Wanted]) -> list[list[OwnedFd] | XpuShareError]:
    """Fetch the descriptors of entries of one exporter, with as few requests as possible. Returns for each entry all of
    them, or the error.
    """
    found: dict[int, list[OwnedFd] | XpuShareError] = {}
    reasons: list[list[str]] = [[] for _ in wanted]
    brought: list[Fetched] = []
    with End(_close_fetched, brought):
        for route in routes():
            left = [at for at in range(len(wanted)) if at not in found]
            if not left:
                break
            try:
                got = route.fetch(peer, [wanted[at] for at in left])
            except Blocked as blocked:
                got = [blocked.with_traceback(None)] * len(left)
            brought += got
            for at, each in zip(left, got, strict=True):
                if isinstance(each, Blocked):
                    reasons[at].append(f"{route.name}: {each}")
                else:
                    found[at] = each
        return [found[at] if at in found else _refused(each.handle, reasons[at]) for at, each in enumerate(wanted)]


def _close_fetched(brought: list[Fetched]) -> None:
    close_all(fd for each in brought if isinstance(each, list) for fd in each)
