"""pidfd_getfd(2): the fastest route. Many containers refuse it, since it needs the right to ptrace the exporter."""

from __future__ import annotations

from collections.abc import Sequence

from xpushare._native import PeerTable, Refusal
from xpushare.sharing import identity
from xpushare.sharing.handle import Handle, fields_of
from xpushare.sharing.refusals import error_of
from xpushare.sharing.routes import Blocked, Fetched, Met, Wanted, met

__all__ = ["fetch", "meet", "name"]

name = "pidfd_getfd"


def meet(handle: Handle) -> Met:
    return met(handle)


def fetch(peer: PeerTable, wanted: Sequence[Wanted]) -> list[Fetched]:
    """Fetch the descriptors one by one, since the kernel has no call for several."""
    if peer.pidfd_number < 0 or fields_of(wanted[0].handle).pid_namespace != identity.namespace("pid"):
        raise Blocked("the exporter is in another PID namespace")
    found: list[Fetched] = []
    for each in wanted:
        got = peer.fetch(fields_of(each.handle))
        found.append(error_of(got, fields_of(each.handle)) if isinstance(got, Refusal) else got)
    blocked = [each for each in found if isinstance(each, Blocked)]
    if len(blocked) == len(found):
        raise blocked[0]
    return found
