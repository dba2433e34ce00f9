"""The owners of driver resources. An object here has one driver resource and gives it back when its last reference goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

from xpushare._device import Device
from xpushare._native import Domain, Slot, forks
from xpushare.adapters.base import DriverMemory, DriverPhysical, UsmKind
from xpushare.sharing import node

__all__ = ["Allocation", "Pages", "Resource", "Timeline"]


class Resource:
    """Owns `driver` and releases it once, in the process that made it, when the last reference goes."""

    __slots__ = ("__weakref__", "_forks", "device", "driver", "on_death")

    def __init__(self, device: Device, driver: Any) -> None:
        self.on_death: tuple[Callable[[Any], None], Any] | None = None  # a cache that has to forget this
        self.device = device
        self.driver = driver
        self._forks: Final = forks()

    @property
    def foreign_process(self) -> bool:
        """True in a child forked after this was made."""
        return self._forks != forks()

    # The defaults keep what is needed at interpreter exit, when module globals are gone.
    def __del__(self, _forks: Callable[[], int] = forks, _left: list[bool] = node.left) -> None:
        if not _left and hasattr(self, "_forks") and self._forks == _forks():
            if self.on_death is not None:
                forget, key = self.on_death
                forget(key)
            self._release()

    def _release(self) -> None:
        self.driver.release()


@final
class Allocation(Resource):
    """USM memory: made here, mapped from a peer, or another library's. Found by address in this process's map."""

    __slots__ = ("_serial", "address", "foreign", "imported", "kind", "nbytes", "source")

    driver: DriverMemory

    def __init__(
        self,
        device: Device,
        driver: DriverMemory,
        kind: UsmKind,
        *,
        imported: bool = False,
        foreign: bool = False,
        source: object = None,
    ) -> None:
        super().__init__(device, driver)
        self.kind: UsmKind = kind
        self.address = driver.address
        self.nbytes = driver.nbytes
        self.imported = imported
        self.foreign = foreign
        self.source = source  # what keeps foreign memory alive
        self._serial = 0
        if not (foreign or imported):  # the others are found by who made them
            node.current().allocations.add(self)

    @property
    def serial(self) -> int:
        """Names this allocation to the importers' caches; given at the first export."""
        if not self._serial:
            self._serial = node.current().table().new_object()
        return self._serial

    @property
    def host_accessible(self) -> bool:
        return self.driver.host_accessible

    def hold(self, piece: Any) -> tuple[object, bool]:
        """The piece itself holds this; see `Range.hold`."""
        return piece, piece.read_only

    def _release(self) -> None:
        if not (self.foreign or self.imported):
            node.current().allocations.remove(self.address, self)
        self.driver.release()


@final
class Pages(Resource):
    """Physical memory: made here or imported."""

    __slots__ = ("_serial", "imported", "ipc_enabled", "nbytes")

    driver: DriverPhysical

    def __init__(self, device: Device, driver: DriverPhysical, *, ipc_enabled: bool, imported: bool) -> None:
        super().__init__(device, driver)
        self.nbytes = driver.nbytes
        self.ipc_enabled = ipc_enabled
        self.imported = imported
        self._serial = 0

    @property
    def serial(self) -> int:
        if not self._serial:
            self._serial = node.current().table().new_object()
        return self._serial


@final
class Timeline(Resource):
    """This process's attachment to an event's slot; one per event and process, however often it is opened."""

    __slots__ = ("_own", "slot")

    def __init__(self, device: Device, slot: Slot, domain: Domain, *, own: bool) -> None:
        super().__init__(device, domain)
        self.slot = slot
        self._own = own  # the slot is in this process's commons

    def _release(self) -> None:
        # The slot's object detaches when it dies: a queue that still has to signal it or wait for it holds it.
        if self._own:
            self.driver.release_slot(self.slot.index)
