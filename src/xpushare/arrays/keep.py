"""Implementation of `publish(keep=True)`, which hands the memory behind a name to the keeper. The keeper is a process
that holds published memory after the publisher has ended.
"""

from __future__ import annotations

from typing import Any, Final

from xpushare.adapters.base import Export, Hardware
from xpushare.arrays.attach import attach
from xpushare.arrays.place import OWN
from xpushare.arrays.share import Placed, placed_for_others
from xpushare.common.errors import FeatureNotSupportedError, InvalidArgumentError
from xpushare.common.fds import OwnedFd, close_all
from xpushare.core import memory
from xpushare.core.device import info_of
from xpushare.core.memory import Range
from xpushare.core.physical import Held
from xpushare.objects.array import Memory, memory_over
from xpushare.objects.array_handle import ArrayHandle
from xpushare.objects.event import Event
from xpushare.objects.lifecycle import use
from xpushare.objects.physical_memory import PhysicalMemory
from xpushare.sharing import keeping, naming, node
from xpushare.sharing.handle import Handle, fields_of
from xpushare.sharing.keeping import Fact
from xpushare.sharing.table import descriptors, expect_lasting

__all__ = ["handed_over", "keep_by_name"]

_TRIES: Final = 3  # attempts before the last one
_handed_over: Final[list[Range]] = []
"""Other libraries' memory that was handed to the keeper. It is referenced here, so that their allocators do not reuse
it.
"""


def handed_over() -> tuple[Range, ...]:
    """Return the memory of other libraries that this process has handed to the keeper. Memory that the keeper has freed
    since then is included.
    """
    return tuple(_handed_over)


def keep_by_name(name: str, obj: Any, replace: bool, versions: int, copy: bool = False) -> int:
    """Hand the memory of `obj` to the keeper, which publishes it under `name`. Returns the version number. With `copy`,
    arrays that cannot be shared in place are copied.
    """
    mine = name in naming.names
    if mine and not replace:
        raise InvalidArgumentError(f"this process has published {name!r} already: pass replace=True, or unpublish it")
    obj = _opened(obj)
    placed: Placed | None = None
    pieces: list[Range | Held]
    if isinstance(obj, Memory | PhysicalMemory):
        held: Any = obj
        pieces = [use(held)]
    else:
        placed = placed_for_others(obj, copy)
        pieces = [*placed.ranges]
    fds: list[OwnedFd] = []
    version = 0
    try:
        for each in pieces:
            if isinstance(each, Range):
                memory.never_again(each)
        facts = [_fact(each, fds) for each in pieces]
        _handed_over.extend(each for each in pieces if isinstance(each, Range) and each.allocation.foreign)
        for last in (*[False] * _TRIES, True):
            try:
                version = _publish(name, replace, versions, mine, placed, facts, fds)
                break
            except keeping.KeeperGone:  # its successor has its names, or there is none, and one is started
                if last:
                    raise
    finally:
        close_all(fds)
    if mine:
        naming.taken_over(name)
    return version


def _publish(
    name: str, replace: bool, versions: int, mine: bool, placed: Placed | None, facts: list[Fact], fds: list[OwnedFd]
) -> int:
    with keeping.connected(start=True) as keeper:
        assert keeper is not None  # one has been started
        handles = [Handle(raw) for raw in keeper.hold(facts, fds)]
        message = bytes(handles[0]) if placed is None else placed.sealed(handles)
        return keeper.publish(name, message, replace, versions, mine)


def _opened(obj: Any) -> Any:
    """If the object is a handle made by this process, open it as an owner, and return its memory or arrays. Return any
    other object unchanged. Raises `FeatureNotSupportedError` for events, which the keeper cannot hold.
    """
    if isinstance(obj, Event) or (isinstance(obj, Handle) and obj.kind == "event"):
        raise FeatureNotSupportedError(
            "events are not kept: a process that signals has to live. Publish the event without keep=True, beside "
            "what is kept"
        )
    if not isinstance(obj, Handle | ArrayHandle):
        return obj
    first = obj if isinstance(obj, Handle) else obj.handles[0]
    if first.kind != "memory" or not node.current().is_own(fields_of(first).cookie):
        raise InvalidArgumentError(
            "keep=True takes a handle of an array or of memory of this process, or the arrays themselves"
        )
    return memory_over(memory.open_(obj, own=True)) if isinstance(obj, Handle) else attach(obj, own=True)


def _fact(piece: Range | Held, fds: list[OwnedFd]) -> Fact:
    """Return the metadata by which the keeper exports a piece of memory. The memory's file descriptors are appended to
    `fds`.
    """
    on: Any
    if isinstance(piece, Held):
        kind, on, what = "physical_memory", info_of(piece.pages.device), piece.pages.driver.export()
        offset, nbytes, read_only = 0, piece.pages.nbytes, False
        if not piece.pages.ipc_enabled:
            raise InvalidArgumentError("this physical memory was not made for sharing: say enable_ipc=True")
    else:
        if piece.borrowed:
            raise InvalidArgumentError(f"only an owner has memory of another process kept: {OWN}")
        on, what = memory.said_by(memory.expect_exportable(piece))
        kind, offset, nbytes, read_only = "memory", piece.offset, piece.nbytes, piece.read_only
    expect_lasting(what.form, _count(what))
    more = descriptors(what)
    fds += more
    hardware = Hardware(on.backend, on.uuid, on.pci, on.driver_uuid)
    return Fact.of(kind, hardware, what, len(more), offset, nbytes, read_only)


def _count(what: Export) -> int:
    return len(what.fds) if what.on_demand is None else len(what.on_demand.objects)
