"""The owners of driver resources. Each object has one driver resource, and releases it when its last reference is
dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Final, final

from xpushare._device import Device
from xpushare._native import Domain, Slot, Template, forks
from xpushare.adapters.base import DriverMemory, DriverPhysical, UsmKind
from xpushare.sharing import node
from xpushare.sharing.handle import PICKLED, Handle, fields_of

__all__ = ["Allocation", "End", "Pages", "Resource", "Timeline", "release_slot", "reopened"]

_EARLIER: Final = 64  # handles by which an allocation was opened before; of so many those that ended are forgotten


class End:
    """Releases a resource when its owner has died.

    The owner's own `__del__` would be too early: it runs while weak references to the owner still work, so that another
    thread could take the object out of a cache while it is being released.
    """

    __slots__ = ("_arguments", "_forks", "_release", "forget", "keep")

    def __init__(self, release: Callable[..., object], *arguments: Any) -> None:
        born = forks()
        self.forget: tuple[Callable[[Any], None], Any] | None = None
        self.keep: Callable[[End], None] | None = None
        self._release = release
        self._arguments = arguments
        self._forks: Final = born  # all or nothing is there, whenever an interrupt comes

    # The defaults keep what is needed at interpreter exit, when module globals are gone.
    def __del__(self, _forks: Callable[[], int] = forks, _left: list[bool] = node.left) -> None:
        if not _left and getattr(self, "_forks", -1) == _forks():
            if self.forget is not None:
                forget, key = self.forget
                forget(key)
            if self.keep is None:
                self._release(*self._arguments)
            else:
                self.keep(End(self._release, *self._arguments))


class Resource:
    """Owns `driver` and releases it once, in the process that made it, when the last reference goes."""

    __slots__ = ("__weakref__", "_end", "device", "driver", "forks")

    def __init__(self, device: Device, driver: Any, release: Callable[..., object] | End, *arguments: Any) -> None:
        """`release`: or the end that already owns the driver resource."""
        self.device = device
        self.driver = driver
        self.forks: Final = forks()  # how often this line of processes had forked when this was made
        self._end = release if isinstance(release, End) else End(release, *arguments)

    def on_death(self, forget: Callable[[Any], None], key: Any, keep: Callable[[End], None] | None = None) -> None:
        """Have `forget(key)` called when this has died, before its driver resource is given back: for a cache. With
        `keep`, the resource is not given back then: the end that `keep` is called with owns it.
        """
        self._end.forget = (forget, key)
        self._end.keep = keep

    def reopener(self) -> Callable[[End], Any] | None:
        """What makes this anew of the end that `on_death` hands on; None where nothing is gained by that."""
        return None

    @property
    def foreign_process(self) -> bool:
        """True in a child forked after this was made."""
        return self.forks != forks()


@final
class Allocation(Resource):
    """USM memory: made here, mapped from a peer, or another library's. Found by address in this process's map."""

    __slots__ = (
        "_earlier",
        "_handle",
        "_name",
        "_serial",
        "address",
        "foreign",
        "host_accessible",
        "imported",
        "kind",
        "nbytes",
        "prepared",
        "source",
    )

    driver: DriverMemory
    prepared: Template | None  # for exports by this process

    def __init__(
        self,
        device: Device,
        driver: DriverMemory,
        kind: UsmKind,
        *,
        imported: bool = False,
        foreign: bool = False,
        source: object = None,
        serial: int = 0,
        name: Hashable = None,
        end: End | None = None,
    ) -> None:
        """`name`: of foreign memory, which keeps its serial by it."""
        own = not (foreign or imported)  # the others are found by who made them
        if own:
            Resource.__init__(self, device, driver, _free, driver)
        else:
            Resource.__init__(self, device, driver, driver.release if end is None else end)
        self.kind: UsmKind = kind
        self.address = driver.address
        self.nbytes = driver.nbytes
        self.host_accessible = driver.host_accessible
        self.imported = imported
        self.foreign = foreign
        self.source = source  # what keeps foreign memory alive
        self._handle: Handle | None = None
        self._earlier: dict[Hashable, Handle] = {}  # by what tells them apart
        self._serial = serial
        self._name = name
        self.prepared = None
        if own:
            node.current().allocations.add(self)

    @property
    def serial(self) -> int:
        """The number that names this allocation in importers' caches; assigned at the first export."""
        if not self._serial:
            table = node.current().table()
            self._serial = table.new_object() if self._name is None else table.object_named(self._name)
        return self._serial

    @property
    def handle(self) -> Handle | None:
        """Of an import: by which it was opened last."""
        return self._handle

    @handle.setter
    def handle(self, handle: Handle) -> None:
        before, self._handle = self._handle, handle
        if before is not None:
            key = _told_apart(before)
            if key == _told_apart(handle):
                return
            self._earlier.pop(key, None)
            self._earlier[key] = before
            number = len(self._earlier)
            if number >= _EARLIER and number & (number - 1) == 0:  # now and then, since it looks at all of them
                peers = node.current().peers
                for key, each in list(self._earlier.items()):
                    if not peers.stands(each):
                        self._earlier.pop(key, None)

    def handle_covering(self, offset: int, nbytes: int) -> Handle | None:
        """The newest handle that this import was opened by, that has these bytes, and whose export has not ended; else
        the newest that has them. None if there is none.
        """
        peers, newest = node.current().peers, None
        for handle in (self._handle, *reversed(list(self._earlier.values()))):
            if handle is not None:
                fields = fields_of(handle)
                if fields.offset <= offset and offset + nbytes <= fields.offset + fields.nbytes:
                    if peers.stands(handle):
                        return handle
                    newest = newest or handle
        return newest

    def reopener(self) -> Callable[[End], Allocation] | None:
        return partial(reopened, self.device, self.driver, self.kind) if self.driver.keepable else None

    def hold(self, piece: Any) -> tuple[object, bool]:
        """See `Range.hold`: the piece itself holds this allocation."""
        return piece, piece.read_only


def _told_apart(handle: Handle) -> Hashable:
    """Equal for handles of an object of which the newer one will do. Those of pickles end one by one."""
    fields = fields_of(handle)
    return fields.generation if fields.flags & PICKLED else (fields.offset, fields.nbytes)


def reopened(device: Device, driver: DriverMemory, kind: UsmKind, end: End) -> Allocation:
    return Allocation(device, driver, kind, imported=True, end=end)


def _free(driver: DriverMemory) -> None:
    node.current().allocations.remove(driver.address)
    driver.release()


@final
class Pages(Resource):
    """Physical memory: made here or imported."""

    __slots__ = ("_serial", "imported", "ipc_enabled", "nbytes")

    driver: DriverPhysical

    def __init__(self, device: Device, driver: DriverPhysical, *, ipc_enabled: bool, imported: bool) -> None:
        super().__init__(device, driver, driver.release)
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
    """This process's attachment to an event's slot: one per event and process, however often it is opened."""

    __slots__ = ("prepared", "slot")

    prepared: Template | None  # for exports by this process

    def __init__(self, device: Device, slot: Slot, domain: Domain, own: list[int] | None = None) -> None:
        """`own`: the slot's index, if it is in this process's commons and to be released."""
        # The slot's object detaches when it dies: a queue that still has to signal it or wait for it holds it.
        super().__init__(device, domain, release_slot, domain, own or [])
        self.slot = slot
        self.prepared = None


def release_slot(domain: Domain, taken: list[int]) -> None:
    """Once, whoever comes first."""
    while taken:
        domain.release_slot(taken.pop())
