"""The routes by which an exporter's file descriptors reach an importer, in the order in which they are tried.

A route is a module with `name`, `attach(handle) -> Attachment` and `fetch(pidfd, handle, fds, count) -> list[OwnedFd]`.
Both raise `Blocked` if something refuses them (the next route is tried) and `HandleExpiredError` if the exporter is
certainly gone. `meet(handle) -> Met | None` is a fast path that returns None if it is blocked.
"""

from __future__ import annotations

from typing import Protocol

from xpushare.common.errors import RouteError
from xpushare.common.fds import OwnedFd
from xpushare.sharing.handle import Handle, fields_of
from xpushare.sharing.routes import pidfd, socket
from xpushare.sharing.routes.attachment import Attachment, Blocked, Met
from xpushare.sharing.routes.socket import together

__all__ = ["Attachment", "Blocked", "Met", "attach", "fetch", "meet", "routes", "together", "use_only"]


class Route(Protocol):
    """The functions of a route module."""

    name: str

    def meet(self, handle: Handle) -> Met | None: ...
    def attach(self, handle: Handle) -> Attachment: ...
    def fetch(
        self, pidfd: OwnedFd | None, handle: Handle, fds: tuple[int, ...] | None, count: int
    ) -> list[OwnedFd]: ...


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


def meet(handle: Handle) -> Met | None:
    """Attach to the exporter of `handle` by the first route's fast path. Returns None if that is blocked; `attach`
    raises the reason.
    """
    return routes()[0].meet(handle)


def attach(handle: Handle) -> Attachment:
    """Attach to the exporter of `handle`. Raises `RouteError` if every route is blocked."""
    reasons: list[str] = []
    for route in routes():
        try:
            return route.attach(handle)
        except Blocked as blocked:
            reasons.append(f"{route.name}: {blocked}")
    raise _refused(handle, reasons)


def fetch(pidfd: OwnedFd | None, handle: Handle, fds: tuple[int, ...] | None, count: int) -> list[OwnedFd]:
    """Fetch the `count` descriptors of the handle's entry. `fds` are their numbers in the exporter (None: made on
    demand, by the socket only).
    """
    reasons: list[str] = []
    for route in routes():
        try:
            return route.fetch(pidfd, handle, fds, count)
        except Blocked as blocked:
            reasons.append(f"{route.name}: {blocked}")
    raise _refused(handle, reasons)
