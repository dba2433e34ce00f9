"""Passing on arrays in another process's memory, for `share` and `publish`."""

from __future__ import annotations

from typing import Final

from xpushare.common.aspects import Aspect
from xpushare.common.errors import FeatureNotSupportedError, HandleExpiredError, InvalidArgumentError
from xpushare.core.memory import Range
from xpushare.core.pickles import forwards
from xpushare.sharing import node
from xpushare.sharing.handle import COUNTED, PICKLED, Handle, fields_of

__all__ = ["OWN", "passed_on"]

OWN: Final = "xs.attach(handle, own=True) makes this process an owner, which can export the memory itself"


def passed_on(place: Range, read_only: bool, lasting: bool) -> Range:
    """Return the memory to export if the caller shares `place`, which this process opened by a handle.

    If the process that made the handle is alive, the result is all memory behind that handle, which is then passed on.
    Memory that arrived in a pickle is an exception. This process exports such memory itself if the other process has
    ended or `lasting` is true. The result is then `place`. Raises `HandleExpiredError` if the handle has expired.
    """
    handle = place.handle
    assert handle is not None
    alive = forwards(handle)
    if fields_of(handle).flags & PICKLED and (lasting or not alive) and _owned_now(place, handle):
        return place
    if not alive:
        raise HandleExpiredError(
            f"the process that shared this (pid {fields_of(handle).pid}) has exited, and only it could pass this on: "
            f"{OWN}, even after that"
        )
    _expect_live(handle)
    if read_only and not handle.read_only:
        raise InvalidArgumentError(
            f"memory of another process is passed on by its original handle, which is not read-only: {OWN}"
        )
    fields, device = fields_of(handle), place.device
    return Range(
        place.allocation, fields.offset, fields.nbytes, device, place.context, handle.read_only, handle, place.lease
    )


def _owned_now(place: Range, handle: Handle) -> bool:
    """Make this process an owner of memory that arrived in a pickle. Returns False if the device or driver does not
    support that.
    """
    allocation = place.allocation
    if not allocation.owned:
        if not allocation.imported or not place.device.has(Aspect.outlives_exporter):
            return False
        try:
            allocation.driver.export(place.read_only)
        except FeatureNotSupportedError:
            return False
        peer = node.current().peers.known(fields_of(handle).cookie)
        if peer is not None:
            peer.domain.own(fields_of(handle).entry)
        allocation.owned = True
    return True


def _expect_live(handle: Handle) -> None:
    """Raise `HandleExpiredError` if the handle has expired."""
    here, fields = node.current(), fields_of(handle)
    if here.is_own(fields.cookie):
        here.table().find(handle)
        domain = here.table().domain
    else:
        peer = here.peers.known(fields.cookie)
        assert peer is not None  # its exporter is alive
        peer.expect_live(handle)
        domain = peer.domain
    if fields.flags & COUNTED and not domain.opens_left(fields.entry):
        raise HandleExpiredError(
            f"the handle that this memory came by was shared with opens=, and all its opens are used: {OWN}"
        )
