"""Operations on USM memory."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias
from weakref import ref

from xpushare._aspects import Aspect
from xpushare._device import Context, Device, DeviceLike, device_for_handle, resolve, resolve_context
from xpushare._errors import (
    DeviceError,
    FeatureNotSupportedError,
    ForkError,
    HandleExpiredError,
    InvalidArgumentError,
    InvalidHandleError,
    OutOfMemoryError,
    RouteError,
)
from xpushare._native import Lease, load64
from xpushare.adapters.base import Import, UsmKind
from xpushare.core.declare import operation
from xpushare.core.resources import Allocation, End
from xpushare.sharing import layout, node
from xpushare.sharing.handle import COUNTED, KIND_NUMBERS, READ_ONLY, Handle
from xpushare.sharing.peers import Peer

__all__ = [
    "Implicit",
    "Range",
    "allocate",
    "expect_kind",
    "get",
    "open_",
    "put",
    "slice_",
]

FORK_ADVICE = (
    "belongs to the parent of this process: after a fork the child cannot use it. Start the child with the spawn "
    "or forkserver "
    "method, or send it the handle and open that in the child"
)


class Range(NamedTuple):
    """A piece of an allocation, and what keeps it open: the whole state of a `Memory`."""

    allocation: Allocation
    offset: int
    nbytes: int
    device: Device
    context: Context
    read_only: bool
    handle: Handle | None  # of an import
    lease: Any  # of an import; the array of another library that foreign memory belongs to

    @property
    def address(self) -> int:
        return self.allocation.address + self.offset

    def hold(self) -> tuple[object, bool]:
        """What keeps these bytes in place for a buffer, capsule or queue operation, and whether they are read-only."""
        return self.allocation.hold(self)


def size_argument(nbytes: int, name: str = "nbytes") -> int:
    """`nbytes` as a positive int."""
    try:
        value = operator.index(nbytes)
    except TypeError:
        raise InvalidArgumentError(f"{name} is an integer, not {type(nbytes).__name__}") from None
    if value <= 0:
        raise InvalidArgumentError(f"{name} must be positive, not {value}")
    return value


def piece(what: str, total: int, offset: int, nbytes: int | None) -> tuple[int, int]:
    """`offset` and `nbytes` (None: to the end), checked to lie in [0, total)."""
    try:
        offset = operator.index(offset)
        nbytes = total - offset if nbytes is None else operator.index(nbytes)
    except TypeError:
        raise InvalidArgumentError(f"offset and nbytes of {what} are integers") from None
    if offset < 0 or nbytes < 0 or offset + nbytes > total:
        raise InvalidArgumentError(f"bytes {offset} to {offset + nbytes} do not lie in {what} of {total} bytes")
    return offset, nbytes


@operation("malloc", raises=(InvalidArgumentError, OutOfMemoryError, FeatureNotSupportedError, DeviceError))
def allocate(kind: UsmKind, nbytes: int, device: DeviceLike | None, context: Context | None) -> Range:
    """Allocate USM memory of that kind. Its bytes are zero on the host, unspecified on other devices."""
    chosen, chosen_context = resolve(device, context)
    nbytes = size_argument(nbytes)
    if nbytes >= 1 << 62:
        raise OutOfMemoryError(f"no device has {nbytes} bytes")
    driver = chosen._adapter.allocate(chosen._info, kind, nbytes)
    return Range(Allocation(chosen, driver, kind), 0, nbytes, chosen, chosen_context, False, None, None)


@operation("memory.slice", raises=(InvalidArgumentError,))
def slice_(source: Range, offset: int, nbytes: int) -> Range:
    """The piece [offset, offset + nbytes) of a range; shares its ownership."""
    offset, nbytes = piece("memory", source.nbytes, offset, nbytes)
    return source._replace(offset=source.offset + offset, nbytes=nbytes)


@operation(
    "ipc.memory.get",
    rules=(1, 5, 8, 9, 11),
    raises=(InvalidArgumentError, FeatureNotSupportedError, OutOfMemoryError, ForkError, DeviceError),
    makes="memory handle",
)
def get(
    source: Range,
    context: Context | None = None,
    read_only: bool = False,
    opens: int | None = None,
    implicit: bool = False,
) -> Handle:
    """Export a range of an allocation of this process; every call makes a distinct handle, which holds the allocation
    until `put`.
    """
    if source.handle is not None:
        raise InvalidArgumentError(
            "imported memory cannot be exported again: send on the handle that it was opened from (`.handle`)"
        )
    if context is not None:
        resolve_context(source.device, context)
    allocation = source.allocation
    if not isinstance(allocation, Allocation):  # what is mapped at reserved addresses
        raise FeatureNotSupportedError(
            "the addresses of a VirtualRange cannot be exported: export the PhysicalMemory that is mapped there, "
            "or copy "
            "the elements with xs.share(array, copy=True)"
        )
    if allocation.foreign_process:
        raise ForkError(f"this memory {FORK_ADVICE}")
    device = allocation.device
    device.require(Aspect.ext_oneapi_ipc_memory)
    return (
        node.current()
        .table()
        .export(
            "memory",
            *device._names,
            allocation.driver.export(read_only),
            allocation,
            serial=allocation.serial,
            offset=source.offset,
            nbytes=source.nbytes,
            read_only=read_only or source.read_only,
            keep=source.lease,
            foreign=allocation.foreign,
            implicit=implicit,
            opens=opens,
        )
    )


_new: Any = tuple.__new__


class Implicit:
    """The handle that pickling an object makes; withdrawn with that object."""

    # Two threads that pickle one object must make one export: the other's bytes would expire. Re-entrant for the
    # collector.
    lock: ClassVar[Any] = threading.RLock()

    __slots__ = ("__weakref__", "_end", "handle")

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self._end = End(_withdraw, handle)


def _withdraw(handle: Handle) -> None:
    table = node.current().table_if_any
    if table is not None:
        table.withdraw(handle, layout.REASON_FREED)


def expect_kind(handle: Handle | bytes | str, kind: str) -> Handle:
    """The verified handle, which must be of that kind."""
    found = Handle(handle)
    if found._fields.kind != KIND_NUMBERS[kind]:
        raise InvalidHandleError(f"this is a handle of {found.kind}, not of {kind}: open it with ipc.{found.kind}.open")
    return found


@operation(
    "ipc.memory.open",
    rules=(2, 3, 4, 6, 8, 9),
    raises=(
        InvalidHandleError,
        InvalidArgumentError,
        HandleExpiredError,
        RouteError,
        FeatureNotSupportedError,
        OutOfMemoryError,
        DeviceError,
    ),
)
def open_(handle: Handle | bytes | str, device: DeviceLike | None = None, context: Context | None = None) -> Range:
    """Open a handle: that very range, mapped here. Cheap when this process has the allocation open already."""
    found = expect_kind(handle, "memory")
    fields = found._fields
    here = node.current()
    if device is None and context is None:
        ready = None if found._hot is None else reopen(here, found)
        if ready is None:
            ready = open_new(here, found)
        if ready is not None:
            return ready
    chosen, chosen_context = opening_device(found, device, context)
    if here.is_own(fields.cookie):
        allocation: Allocation = own_source(here, found)
        lease = None
    else:

        def make(what: Import) -> Allocation:
            chosen.require(Aspect.ext_oneapi_ipc_memory)
            return import_on(chosen, what)

        allocation, lease = here.acquire(found, (id(chosen), fields.flags & READ_ONLY), make)
        if fields.offset + fields.nbytes > allocation.nbytes:  # a cached one: nobody has compared yet
            raise InvalidHandleError(f"the handle does not fit what process {fields.pid} exports under it")
        if device is None and context is None and not fields.flags & COUNTED:
            found._hot = (here, ref(allocation), ref(lease.peer), chosen, chosen_context)
            _importers[found._raw[NAMES_DEVICE]] = (id(chosen), partial(import_on, chosen), chosen, chosen_context)
    return Range(allocation, fields.offset, fields.nbytes, chosen, chosen_context, found.read_only, found, lease)


# What an open found, kept on its handle (`Handle._hot`) so that the next one is cheap. Holds nothing open.
Hot: TypeAlias = tuple[node.Node, "ref[Allocation]", "ref[Peer]", Device, Context]

# By what handles name their device with, once one was opened on that: the id of the device and what imports there.
NAMES_DEVICE = slice(16, 48)
_importers: dict[bytes, tuple[int, Callable[[Import], Allocation], Device, Context]] = {}


def import_on(device: Device, what: Import) -> Allocation:
    """The allocation of an import, on a device that can."""
    return Allocation(device, device._adapter.import_memory(device._info, what), "device", imported=True)


def open_new(here: node.Node, handle: Handle) -> Range | None:
    """The range, if it is one that `Peers.acquire_new` opens; else None: take the long way."""
    known = _importers.get(handle._raw[NAMES_DEVICE])
    if known is None:
        return None
    device_id, importer, device, context = known
    fields = handle._fields
    read_only = fields.flags & READ_ONLY
    acquired = here.peers.acquire_new(handle, (device_id, read_only), importer)
    if acquired is None:
        return None
    allocation, lease = acquired
    handle._hot = (here, ref(allocation), ref(lease.peer), device, context)
    made: Range = _new(  # past the named tuple's own, which is slower
        Range, (allocation, fields.offset, fields.nbytes, device, context, bool(read_only), handle, lease)
    )
    return made


def reopen(here: node.Node, handle: Handle) -> Range | None:
    """The range again, if it is still open here and its exporter still stands by the handle; else None: take the long
    way.
    """
    hot: Hot = handle._hot
    opener, allocation_ref, peer_ref, device, context = hot
    allocation = allocation_ref()
    peer = peer_ref()
    if allocation is None or peer is None or opener is not here:
        return None
    fields = handle._fields
    lease = Lease(peer.domain, fields.entry, peer)
    here.peers.sweep()
    if not here.peers.knows(peer) or load64(peer.entry_address(fields.entry)) != fields.generation:
        return None
    read_only = bool(fields.flags & READ_ONLY)
    return Range(allocation, fields.offset, fields.nbytes, device, context, read_only, handle, lease)


def opening_device(handle: Handle, device: DeviceLike | None, context: Context | None) -> tuple[Device, Context]:
    """The device to open on: the asked one, else the one of the context, else the one that the handle names."""
    if device is not None:
        chosen = Device(device)
    else:
        chosen = device_for_handle(handle.backend, handle._fields.device_uuid)
        if context is not None and isinstance(context, Context) and chosen not in context.devices:
            chosen = context.devices[0]
    if chosen.backend != handle.backend:
        raise InvalidArgumentError(f"the handle is of backend {handle.backend}; it cannot be opened on {chosen}")
    return chosen, resolve_context(chosen, context)


def own_source(here: node.Node, handle: Handle) -> Any:
    """The object behind a handle of this very process."""
    table = here.table()
    exported = table.find(handle)
    if handle._fields.flags & COUNTED and not table.domain.take_open(handle._fields.entry):
        raise HandleExpiredError(f"the handle has expired: {layout.REASONS[layout.REASON_OPENS]}")
    return exported.source


@operation(
    "ipc.memory.put",
    rules=(5,),
    raises=(InvalidHandleError, InvalidArgumentError),
    ends="memory handle",
)
def put(handle: Handle | bytes | str, kind: str = "memory") -> None:
    """Withdraw a handle of this process for new opens; what is open stays so."""
    found = expect_kind(handle, kind)
    table = node.current().table_if_any
    if table is None:
        raise InvalidArgumentError(f"put is for the process that exported: this handle is from pid {found._fields.pid}")
    table.put(found)
