"""Operations on physical memory and virtual ranges."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self, final

from xpushare._native import End, Lease
from xpushare.adapters.base import Access, DeviceInfo, DriverRange, Import, UsmKind
from xpushare.common.aspects import Aspect
from xpushare.common.errors import (
    DeviceError,
    FeatureNotSupportedError,
    ForkError,
    InvalidArgumentError,
    InvalidHandleError,
    OutOfMemoryError,
    XpuShareError,
)
from xpushare.common.threads import holds
from xpushare.core import memory
from xpushare.core.declare import operation
from xpushare.core.device import Context, Device, DeviceLike, adapter_of, info_of, require, resolve, resolve_context
from xpushare.core.opening import OPEN_ERRORS, Openers, import_own, opening_device, own_export
from xpushare.core.resources import Pages, Pin, Pinned, Resource
from xpushare.sharing import node
from xpushare.sharing.handle import Handle, HandleLike, fields_of
from xpushare.sharing.table import Exported

__all__ = [
    "Held",
    "Mapped",
    "Reserved",
    "access_of",
    "create",
    "exclusive",
    "get",
    "map_",
    "open_",
    "put",
    "reserve",
    "set_access",
    "unmap",
]


class Held(NamedTuple):
    """The complete state of a `PhysicalMemory`: the memory, and the objects that keep it alive."""

    pages: Pages
    device: Device
    context: Context
    handle: Handle | None  # None for memory that was made here
    lease: Any


def multiple(name: str, value: int, granularity: int) -> None:
    if value % granularity:
        raise InvalidArgumentError(f"{name} must be a multiple of the granularity, {granularity} bytes; {value} is not")


@operation("PhysicalMemory", raises=(InvalidArgumentError, FeatureNotSupportedError, OutOfMemoryError, DeviceError))
def create(nbytes: int, device: DeviceLike | None, context: Context | None, enable_ipc: bool) -> Held:
    """Allocate physical memory, which has no address until it is mapped. `nbytes` is a multiple of the granule."""
    chosen, chosen_context = resolve(device, context)
    require(chosen, Aspect.ext_oneapi_virtual_mem)
    enable_ipc = bool(enable_ipc)
    if enable_ipc:
        require(chosen, Aspect.ext_oneapi_ipc_physical_memory)
    nbytes = memory.size_argument(nbytes)
    multiple("nbytes", nbytes, chosen.memory_granularity())
    if nbytes >= 1 << 62:
        raise OutOfMemoryError(f"no device has {nbytes} bytes")
    driver = memory.with_trim(partial(adapter_of(chosen).physical, info_of(chosen), nbytes, enable_ipc))
    return Held(Pages(chosen, driver, ipc_enabled=enable_ipc, imported=False), chosen, chosen_context, None, None)


@operation(
    "ipc.physical_memory.get",
    rules=(1, 5, 8, 9),
    raises=(InvalidArgumentError, FeatureNotSupportedError, OutOfMemoryError, ForkError, DeviceError),
    makes="physical memory handle",
)
def get(
    source: Held, context: Context | None = None, implicit: bool = False, into: list[Handle] | None = None
) -> Handle:
    """Export physical memory that was created with `enable_ipc=True`, or imported. The handle keeps the memory alive
    until `put`. The handle is also appended to `into`.
    """
    pages = source.pages
    if not pages.ipc_enabled:
        raise InvalidArgumentError(
            "this physical memory was not made for sharing: make it with xs.PhysicalMemory(…, enable_ipc=True)"
        )
    if context is not None:
        resolve_context(source.device, context)
    what = pages.driver.export()
    table = node.current().table()
    prepared = table.prepare("physical_memory", info_of(pages.device), what, pages.serial)
    exported = Exported(prepared, pages, source.lease, nbytes=pages.nbytes, implicit=implicit)
    return table.export([exported], into=into)[0]


@operation(
    "ipc.physical_memory.open",
    rules=(2, 3, 4, 6, 7, 8, 9),
    raises=OPEN_ERRORS,
)
def open_(handle: HandleLike, device: DeviceLike | None = None, context: Context | None = None) -> Held:
    """Open a handle as physical memory over the same pages. The import outlives its source, and it can be exported
    again.
    """
    found = memory.expect_kind(handle, "physical_memory")
    chosen, chosen_context = opening_device(found, device, context)
    opener = _openers.on(chosen, found)
    here = node.current()
    if not here.is_own(fields_of(found).cookie):
        taken: list[tuple[Pages, Lease]] = []
        here.peers.acquire([(found, opener)], taken)
        return Held(taken[0][0], chosen, chosen_context, found, taken[0][1])
    exported = own_export(here, found)
    pages: Pages = exported.source
    if opener.admit is not None:
        pages = import_own(here, found, opener, pages, pages.driver.export)
    return Held(pages, chosen, chosen_context, found, exported.keep)


def import_on(device: Device, adapter: Any, info: DeviceInfo, what: Import) -> Pages:
    """Import physical memory on a device."""
    if what.exporter is not None and what.nbytes % device.memory_granularity():
        raise FeatureNotSupportedError(
            f"physical memory of {what.exporter.backend} cannot be opened on {device}: its {what.nbytes} bytes are no "
            f"multiple of the granularity there, {device.memory_granularity()}"
        )
    return Pages(device, adapter.import_physical(info, what), ipc_enabled=True, imported=True)


_openers = Openers(Aspect.ext_oneapi_ipc_physical_memory, import_on)


@operation(
    "ipc.physical_memory.put",
    rules=(5,),
    raises=(InvalidHandleError, InvalidArgumentError),
    ends="physical memory handle",
)
def put(handle: Handle | bytes | str) -> None:
    """Withdraw a handle of this process, so that no process can open it any more. Memory that is already open stays
    open.
    """
    memory.withdraw(handle, "physical_memory")


@final
class Mapped(Pinned):
    """One mapping in a range. It keeps its pages alive, and counts the buffers and operations that use it.

    `piece` is what a growable range keeps with the mapping, None in other ranges.
    """

    __slots__ = ("access", "at", "held", "nbytes", "offset", "piece")

    def __init__(self, at: int, nbytes: int, access: Access, held: Held, offset: int, piece: Any) -> None:
        self.at = at
        self.nbytes = nbytes
        self.access: Access = access
        self.held = held
        self.offset = offset
        self.piece = piece


_at: Final = attrgetter("at")


@final
class Reserved(Resource):
    """Reserved addresses and their mappings, in order. The `Range` of a virtual range has this object as its
    allocation.

    The handler of a signal can run between any two steps of a change, use the range itself, or end the change by an
    exception. So a change first writes down its bytes in `unsettled`, then calls the driver, and then changes `mapped`
    in one step. While `unsettled` is set, the driver's mappings of these bytes may differ from `mapped`. If the change
    did not end, `settle` makes the driver's mappings follow `mapped` again.
    """

    __slots__ = ("address", "context", "granularity", "kind", "lock", "mapped", "nbytes", "unsettled")

    driver: DriverRange
    mapped: list[Mapped]
    context: Context
    kind: UsmKind
    address: int
    nbytes: int
    granularity: int
    lock: Any
    unsettled: tuple[int, int] | None
    imported = False

    def __new__(cls, device: Device, context: Context, driver: DriverRange, granularity: int) -> Self:
        self = super().__new__(cls, device, driver, driver.release)
        self.mapped = []
        self.context = context
        self.kind = "device"
        self.address = driver.address
        self.nbytes = driver.nbytes
        self.granularity = granularity
        self.lock = threading.RLock()
        self.unsettled = None
        return self

    @property
    def host_accessible(self) -> bool:
        return self.driver.host_accessible

    def check(self, at: int, nbytes: int) -> tuple[int, int]:
        """Check that the bytes lie in the range, and that `at` and `nbytes` are multiples of the granule. Returns both
        numbers.
        """
        at, nbytes = memory.piece("the range", self.nbytes, at, nbytes)
        if not nbytes:
            raise InvalidArgumentError("nbytes must be positive")
        if (at | nbytes) & (self.granularity - 1):  # the granularity is a power of two
            multiple("the address", at, self.granularity)
            multiple("nbytes", nbytes, self.granularity)
        return at, nbytes

    def changing(self) -> Any:
        """Return the lock, for a change of the mappings. Raises `InvalidArgumentError` if this thread holds the lock
        already: then it runs the handler of a signal, or a finaliser, in the midst of another call.
        """
        return exclusive(self.lock)

    def overlapping(self, at: int, nbytes: int) -> list[Mapped]:
        first = max(bisect_right(self.mapped, at, key=_at) - 1, 0)
        found: list[Mapped] = []
        for mapped in islice(self.mapped, first, None):
            if mapped.at >= at + nbytes:
                break
            if mapped.at + mapped.nbytes > at:
                found.append(mapped)
        return found

    def whole(self, at: int, nbytes: int) -> list[Mapped]:
        """Return the mappings that fill [at, at + nbytes) exactly."""
        at, nbytes = self.check(at, nbytes)
        found = self.overlapping(at, nbytes)
        end = at
        for mapped in found:
            if mapped.at != end:
                break
            end += mapped.nbytes
        if not found or end != at + nbytes:
            listed = ", ".join(f"[{each.at}, {each.at + each.nbytes})" for each in found) or "none there"
            raise InvalidArgumentError(f"[{at}, {at + nbytes}) is not made of whole mappings ({listed})")
        return found

    def settle(self) -> None:
        """Make the driver's mappings follow `mapped` again, if a change was interrupted. The caller holds the lock."""
        if self.unsettled is None:
            return
        at, nbytes = self.unsettled
        found = self.overlapping(at, nbytes)
        for each in found:
            if each.pins:  # it is mapped, since no change unmaps what is in use
                self.driver.set_access(each.at, each.nbytes, each.access)
            else:
                self.driver.map(each.at, each.held.pages.driver, each.offset, each.nbytes, each.access)
        if not found:
            self.driver.unmap(at, nbytes)
        self.unsettled = None

    def try_settle(self) -> None:
        """Call `settle`. If the driver fails, `unsettled` stays, and the next change calls it again."""
        with suppress(XpuShareError):
            self.settle()

    def hold(self, piece: Any) -> tuple[object, bool]:
        """Pin the mappings under a piece. Every byte of the piece must be mapped with read or write access. Returns the
        pin, and whether a mapping is read-only.
        """
        nested = holds(self.lock)
        with self.lock:
            if self.unsettled is not None:
                if not nested:
                    self.try_settle()
                self._expect_settled(piece)
            found = self.overlapping(piece.offset, max(piece.nbytes, 1))
            end = piece.offset
            for mapped in found:
                if mapped.at > end or mapped.access == "none":
                    break
                end = mapped.at + mapped.nbytes
            if end < piece.offset + piece.nbytes:
                raise InvalidArgumentError(f"byte {end} of the range is not mapped with access")
            return Pin(piece, found), any(mapped.access == "r" for mapped in found)

    def _expect_settled(self, piece: Any) -> None:
        if self.unsettled is not None:
            at, nbytes = self.unsettled
            if at < piece.offset + max(piece.nbytes, 1) and piece.offset < at + nbytes:
                raise InvalidArgumentError(_CHANGING)

    def is_read_only(self, piece: Any) -> bool:
        """Whether a mapping under the piece is read-only."""
        with self.lock:
            return any(mapped.access == "r" for mapped in self.overlapping(piece.offset, piece.nbytes))

    def listed(self) -> list[tuple[int, int, str]]:
        """Return `(at, nbytes, access)` for each mapping, in the order of their offsets."""
        nested = holds(self.lock)
        with self.lock:
            if not nested:
                self.try_settle()
            return [(each.at, each.nbytes, each.access) for each in self.mapped]


_CHANGING: Final = (
    "this thread is in the midst of another call that changes this range: the handler of a signal, or a finaliser, has "
    "interrupted that call. Have the handler set a flag, and use the range after the call"
)


def exclusive(lock: Any) -> Any:
    """Return the re-entrant lock, unless this thread holds it. A call that changes a range must not run within another
    one of the same thread.
    """
    if holds(lock):
        raise InvalidArgumentError(_CHANGING)
    return lock


def access_argument(access: str) -> Access:
    for known in ("rw", "r", "none"):
        if access == known:
            return known
    raise InvalidArgumentError(f'access is "rw", "r" or "none", not {access!r}')


@operation("VirtualRange", raises=(InvalidArgumentError, FeatureNotSupportedError, OutOfMemoryError, DeviceError))
def reserve(nbytes: int, device: DeviceLike | None, context: Context | None, address: int | None) -> Reserved:
    """Reserve a range of addresses, without mapping any memory."""
    chosen, chosen_context = resolve(device, context)
    require(chosen, Aspect.ext_oneapi_virtual_mem)
    nbytes = memory.size_argument(nbytes)
    granularity = chosen.memory_granularity()
    multiple("nbytes", nbytes, granularity)
    if nbytes >= 1 << 62:
        raise OutOfMemoryError(f"no process has {nbytes} bytes of addresses")
    where = 0
    if address is not None:
        where = memory.size_argument(address, "address")
        multiple("address", where, granularity)
        if where + nbytes > 1 << 64:
            raise InvalidArgumentError(f"an address has 64 bits: no {nbytes} bytes are at {where:#x}")

    def reserved(at: int) -> Reserved:
        return Reserved(chosen, chosen_context, adapter_of(chosen).reserve(info_of(chosen), nbytes, at), granularity)

    try:
        return reserved(where)
    except OutOfMemoryError as error:
        if not where:
            raise
        reserved(0)  # raises a better error unless that many addresses are free elsewhere
        raise InvalidArgumentError(f"the range cannot be at {where:#x}: {error.message}") from error


@operation(
    "VirtualRange.map",
    rules=(8,),
    raises=(InvalidArgumentError, FeatureNotSupportedError, OutOfMemoryError, DeviceError),
)
def map_(
    reserved: Reserved, source: Held, at: int, offset: int, nbytes: int | None, access: str, piece: Any = None
) -> None:
    """Map physical memory, or a part of it, at offset `at` of the range. The mapping keeps the pages alive."""
    wanted = access_argument(access)
    offset, nbytes = memory.piece("the physical memory", source.pages.nbytes, offset, nbytes)
    if offset:
        multiple("offset", offset, reserved.granularity)
    at, nbytes = reserved.check(at, nbytes)
    if reserved.device.backend != source.device.backend:
        raise InvalidArgumentError(
            f"physical memory of {source.device} cannot be mapped in a range of {reserved.device}"
        )
    if (offset or nbytes != source.pages.nbytes) and not reserved.device.has(Aspect.partial_map):
        raise InvalidArgumentError(f"{reserved.device} maps whole physical memory objects only (it lacks partial_map)")
    with reserved.changing():
        reserved.settle()
        if reserved.overlapping(at, nbytes):
            raise InvalidArgumentError(f"[{at}, {at + nbytes}) is mapped already: unmap it first")
        new = Mapped(at, nbytes, wanted, source, offset, piece)
        place = bisect_right(reserved.mapped, at, key=_at)
        reserved.unsettled = at, nbytes
        with End(reserved.try_settle):
            reserved.driver.map(at, source.pages.driver, offset, nbytes, wanted)
            reserved.mapped.insert(place, new)
            reserved.unsettled = None


def release_finished(reserved: Reserved, at: int, nbytes: int) -> None:
    """Remove the pins of finished operations from these mappings. The caller must not hold the range's lock, which
    another thread that removes pins may need.
    """
    with reserved.changing():
        pinned = any(mapped.pins for mapped in reserved.whole(at, nbytes))
    if pinned:
        adapter_of(reserved.device).settle()


def expect_free(reserved: Reserved, found: list[Mapped]) -> None:
    """Raise `InvalidArgumentError` if a buffer or an operation uses these mappings. Then nothing is unsettled."""
    if any(mapped.pins for mapped in found):
        reserved.unsettled = None
        raise InvalidArgumentError(
            "arrays, buffers or unfinished queue operations still look at these bytes: drop them first"
        )


@operation("VirtualRange.unmap", raises=(InvalidArgumentError, OutOfMemoryError, DeviceError))
def unmap(reserved: Reserved, at: int, nbytes: int, before: Callable[[], None] | None = None) -> None:
    """Unmap one or several whole mappings. Raises `InvalidArgumentError` while a buffer or an unfinished queue
    operation uses them. `before` is called once nothing but the driver can refuse.
    """
    release_finished(reserved, at, nbytes)
    with reserved.changing():
        reserved.settle()
        found = reserved.whole(at, nbytes)
        place = bisect_right(reserved.mapped, found[0].at, key=_at) - 1
        reserved.unsettled = at, nbytes  # from here on, a handler can make no view of them
        with End(reserved.try_settle):
            expect_free(reserved, found)
            if before is not None:
                before()
            for mapped in found:
                reserved.driver.unmap(mapped.at, mapped.nbytes)
            del reserved.mapped[place : place + len(found)]
            reserved.unsettled = None


@operation("VirtualRange.set_access", raises=(InvalidArgumentError, OutOfMemoryError, DeviceError))
def set_access(reserved: Reserved, at: int, nbytes: int, access: str) -> None:
    """Change the access mode of one or several whole mappings."""
    wanted = access_argument(access)
    if wanted != "rw":
        release_finished(reserved, at, nbytes)
    with reserved.changing():
        reserved.settle()
        found = reserved.whole(at, nbytes)
        before: list[Access] = [mapped.access for mapped in found]

        def undo() -> None:
            for mapped, access_before in zip(found, before, strict=True):
                mapped.access = access_before
            reserved.try_settle()

        reserved.unsettled = at, nbytes
        with End(undo):
            if wanted != "rw":
                expect_free(reserved, found)
            for mapped in found:
                reserved.driver.set_access(mapped.at, mapped.nbytes, wanted)
            for mapped in found:
                mapped.access = wanted
            reserved.unsettled = None


@operation("VirtualRange.access", raises=(InvalidArgumentError,))
def access_of(reserved: Reserved, at: int) -> Access:
    """Return the access mode of the byte at offset `at`, or "none" if no memory is mapped at this offset."""
    at, _ = memory.piece("the range", reserved.nbytes, at, 1)
    nested = holds(reserved.lock)
    with reserved.lock:
        if not nested:
            reserved.try_settle()
        found = reserved.overlapping(at, 1)
        return found[0].access if found else "none"
