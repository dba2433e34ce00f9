"""The routes by which an exporter's file descriptors reach an importer, in the order in which they are tried.

A route is a module with `name`, `meet(handle) -> Met` and `fetch(peer, wanted) -> list[Fetched]`. Both raise `Blocked`
if something refuses them (the next route is tried). `meet` raises `HandleExpiredError` if the exporter is certainly
gone. `fetch` returns for each entry its descriptors or an error, which is `Blocked` if the next route may still get the
descriptors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from xpushare._native import PeerTable
from xpushare.common.errors import RouteError, XpuShareError
from xpushare.common.fds import OwnedFd, close_all
from xpushare.sharing.handle import Handle, fields_of
from xpushare.sharing.routes import pidfd, socket
from xpushare.sharing.routes.attachment import Blocked, Fetched, Met, Wanted

__all__ = ["Blocked", "Met", "Wanted", "fetch", "meet", "routes", "use_only"]


class Route(Protocol):
    """The functions of a route module."""

    name: str

    def meet(self, handle: Handle) -> Met: ...
    def fetch(self, peer: PeerTable, wanted: Sequence[Wanted]) -> list[Fetched]: ...


_known: tuple[Route, ...] = (pidfd, socket)


def routes() -> tuple[Route, ...]:
    """Return the routes that this process tries."""
    return _known


def use_only(name: str) -> None:
    """Make this process try only the route of that name, to find out whether it works."""
    global _known
    _known = tuple(route for route in routes() if route.name == name)


def _refused(handle: Handle, reasons: list[str]) -> RouteError:
    fields = fields_of(handle)
    listed = "".join(f"\n  - {reason}" for reason in reasons)
    return RouteError(
        f"no way to the objects of process {fields.pid}:{listed}\n(`xpushare doctor` tries each way on this machine)",
        reasons=tuple(reasons),
    )


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
    got: list[Fetched] = []
    try:
        for route in routes():
            left = [at for at in range(len(wanted)) if at not in found]
            if not left:
                break
            try:
                got = route.fetch(peer, [wanted[at] for at in left])
            except Blocked as blocked:
                got = [blocked.with_traceback(None)] * len(left)
            for at, each in zip(left, got, strict=True):
                if isinstance(each, Blocked):
                    reasons[at].append(f"{route.name}: {each}")
                else:
                    found[at] = each
        return [found[at] if at in found else _refused(each.handle, reasons[at]) for at, each in enumerate(wanted)]
    except BaseException:  # an interrupt
        close_all(fd for each in (*got, *found.values()) if isinstance(each, list) for fd in each)
        raise
