"""The owners of driver resources. Each object has one driver resource, and releases it when its last reference is
dropped.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Self, final

from xpushare import _native
from xpushare._native import AllocationBase, Domain, End, PagesBase, Pin, Pinned, Resource, Template, Timeline
from xpushare.adapters.base import DriverMemory, DriverPhysical, UsmKind
from xpushare.core.device import Device
from xpushare.sharing import node
from xpushare.sharing.handle import Handle, fields_of

__all__ = [
    "Allocation",
    "End",
    "Pages",
    "Pin",
    "Pinned",
    "Resource",
    "Timeline",
    "imported",
    "release_slot",
]


@final
class Allocation(AllocationBase):
    """USM memory: allocated by this process, mapped from a peer, or allocated by another library. Memory of the first
    two kinds can be looked up by address.
    """

    __slots__ = ()

    driver: DriverMemory
    kind: UsmKind
    prepared: Template | None  # for exports by this process
    newest: Handle | None
    earlier: dict[Hashable, Handle]  # by the bytes that they cover, or by the pickle

    def __new__(
        cls,
        device: Device,
        driver: DriverMemory,
        kind: UsmKind,
        *,
        foreign: bool = False,
        source: object = None,
        serial: int = 0,
        name: Hashable = None,
        end: End | None = None,
    ) -> Self:
        """Make the object that owns memory. This process has allocated or imported the memory or, if `foreign` is true,
        another library has allocated it. `source` keeps foreign memory alive. Allocations with the same `name` have the
        same serial number.
        """
        if end is None:
            end = End(driver.release)
        address, nbytes, accessible = driver.address, driver.nbytes, driver.host_accessible
        made = AllocationBase.__new__(
            cls, device, driver, end, kind, address, nbytes, accessible, foreign, source, serial, name
        )
        if not foreign:  # foreign memory is found by who made it
            node.current().allocations.add(made)
        return made

    @property
    def serial(self) -> int:
        """The number that identifies this allocation in importers' caches. It is assigned at the first export."""
        if not self.known_serial:
            table = node.here[0].table_if_any or node.here[0].table()
            self.known_serial: int = table.new_object() if self.name is None else table.object_named(self.name)
        return self.known_serial

    def forget_ended(self) -> None:
        """Forget earlier handles whose exports have ended."""
        peers = node.current().peers
        for key, each in list(self.earlier.items()):
            if not peers.stands(each):
                self.earlier.pop(key, None)

    def handle_covering(self, offset: int, nbytes: int) -> Handle | None:
        """Return the newest handle of this import that covers these bytes and whose export has not ended. If there is
        none, return the newest handle that covers the bytes, even if its export has ended. Returns None if no handle
        covers the bytes.
        """
        peers, newest = node.current().peers, None
        for handle in (self.newest, *reversed(list(self.earlier.values()))):
            if handle is not None:
                fields = fields_of(handle)
                if fields.offset <= offset and offset + nbytes <= fields.offset + fields.nbytes:
                    if peers.stands(handle):
                        return handle
                    newest = newest or handle
        return newest

    def hold(self, piece: Any) -> tuple[object, bool]:
        """Return the object that keeps this piece mapped, as `Range.hold` does. The object is the piece itself, since
        the piece holds the allocation.
        """
        return piece, piece.read_only

    def is_read_only(self, piece: Any) -> bool:
        """Whether views of this piece are read-only."""
        return bool(piece.read_only)


_native.register(Allocation=Allocation)


def imported(device: Device, driver: DriverMemory, kind: UsmKind, end: End, owned: object = None) -> Allocation:
    """Return the `Allocation` that owns the mapping of another process's memory. `owned`, if given, is the object
    through which this process can export the memory itself.
    """
    found: Allocation = _native.imported(
        device, driver, kind, driver.address, driver.nbytes, driver.host_accessible, owned, end, driver.keepable
    )
    return found


@final
class Pages(PagesBase):
    """Physical memory, allocated here or imported."""

    __slots__ = ()

    driver: DriverPhysical

    def __new__(cls, device: Device, driver: DriverPhysical, *, ipc_enabled: bool, imported: bool) -> Self:
        return PagesBase.__new__(cls, device, driver, End(driver.release), driver.nbytes, ipc_enabled, imported)

    @property
    def serial(self) -> int:
        """The number that identifies this memory in importers' caches. It is assigned at the first export."""
        if not self.known_serial:
            self.known_serial: int = node.current().table().new_object()
        return self.known_serial


def release_slot(domain: Domain, taken: list[int]) -> None:
    """Release an event's slot in this process's own shared words (its commons), and remove its number from `taken`.
    Only the first call has an effect.
    """
    while taken:
        domain.release_slot(taken.pop())
