"""Operations on USM (unified shared memory) allocations."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NoReturn, TypeVar, final
from weakref import ref

from xpushare import _native
from xpushare._native import Lease, RangeBase, Template
from xpushare.adapters.base import DeviceInfo, DriverMemory, Export, Form, Hardware, Import, UsmKind
from xpushare.common import numbers
from xpushare.common.aspects import Aspect
from xpushare.common.errors import (
    DeviceError,
    FeatureNotSupportedError,
    ForkError,
    InvalidArgumentError,
    InvalidHandleError,
    OutOfMemoryError,
)
from xpushare.common.system import mapped
from xpushare.core import reuse
from xpushare.core.declare import layers_on, misused, operation
from xpushare.core.device import Context, Device, DeviceLike, adapter_of, info_of, require, resolve, resolve_context
from xpushare.core.opening import OPEN_ERRORS, Openers, give_open, import_own, opening_device, own_export
from xpushare.core.resources import Allocation, End, imported
from xpushare.sharing import layout, node
from xpushare.sharing.handle import KIND_NUMBERS, Handle, HandleLike, fields_of
from xpushare.sharing.idle import Cache, on_trim
from xpushare.sharing.peers import Opener, OpenNative
from xpushare.sharing.table import Exported, Owned, Table

__all__ = [
    "HostBytes",
    "Range",
    "allocate",
    "expect_kind",
    "get",
    "get_all",
    "host_bytes",
    "is_zero",
    "kept_nbytes",
    "never_again",
    "open_",
    "open_all",
    "prepared_by",
    "put",
    "said_by",
    "slice_",
    "trim",
    "with_trim",
    "withdraw",
]

T = TypeVar("T")
_new: Any = tuple.__new__  # faster than a named tuple's own `__new__`

FORK_ADVICE = (
    "belongs to the parent of this process: after a fork the child cannot use it. Start the child with the spawn "
    "or forkserver "
    "method, or send it the handle and open that in the child"
)


@final
class Range(RangeBase):
    """The complete state of a `Memory`: a piece of an allocation, and the objects that keep the allocation open.

    `handle` is None unless the memory was opened from a handle. `lease` keeps the exporter's entry in use. For another
    library's memory, `lease` is that library's array.
    """

    __slots__ = ()

    allocation: Allocation
    device: Device
    context: Context
    handle: Handle | None

    @property
    def address(self) -> int:
        return self.allocation.address + self.offset

    @property
    def borrowed(self) -> bool:
        """Whether the range was opened from a handle, and can be exported only by the process that made the handle."""
        return self.handle is not None and not self.allocation.owned

    def hold(self) -> tuple[object, bool]:
        """Return the object that keeps these bytes mapped for a buffer, a capsule or a queue operation, and whether the
        bytes are read-only.
        """
        return self.allocation.hold(self)

    @property
    def views_read_only(self) -> bool:
        """Whether views of these bytes are read-only, because this range is, or because a `VirtualRange` maps them with
        access "r".
        """
        return self.allocation.is_read_only(self)


_native.register(Range=Range)


class HostBytes:
    """Ordinary memory of this process that xpushare did not allocate. This object does not keep the memory alive. The
    code that queues work on the memory has to do that.
    """

    host_accessible = True
    imported = False
    kind: UsmKind = "host"

    def __init__(self, address: int, nbytes: int, device: Device) -> None:
        self.address = address
        self.nbytes = nbytes
        self.device = device

    def hold(self, piece: Any) -> tuple[object, bool]:
        return piece, piece.read_only


def host_bytes(address: int, nbytes: int, device: Device, context: Context) -> Range | None:
    """Return the `nbytes` bytes at an address of this process, no matter who allocated them, or None if some are not
    mapped.
    """
    access = mapped(address, nbytes)
    if not access:
        return None
    found: Any = HostBytes(address, nbytes, device)
    return Range(found, 0, nbytes, device, context, access == "r", None, None)


def size_argument(nbytes: int, name: str = "nbytes") -> int:
    """Return `nbytes` as an int. Raises `InvalidArgumentError` unless it is a positive integer."""
    if type(nbytes) is int and 0 < nbytes < 1 << 64:
        return nbytes
    return numbers.integer(name, nbytes, _is_positive, "must be positive")


def _is_positive(nbytes: int) -> bool:
    return nbytes > 0


def piece(what: str, total: int, offset: int, nbytes: int | None) -> tuple[int, int]:
    """Check that the `nbytes` bytes from `offset` on lie in [0, total). If `nbytes` is None, the piece ends at `total`.
    Returns the offset and the size.
    """
    if type(offset) is not int or offset >> 64:
        offset = numbers.integer(f"offset in {what}", offset)
    if type(nbytes) is not int or nbytes >> 64:
        nbytes = total - offset if nbytes is None else numbers.integer(f"nbytes of {what}", nbytes)
    if offset < 0 or nbytes < 0 or offset + nbytes > total:
        text = f"bytes {offset} to {offset + nbytes} do not lie in {what} of {total} bytes"
        if offset < 0 or nbytes < 0:
            text = f"offset and nbytes of {what} are 0 or more, not {offset} and {nbytes}"
        raise misused("bounds", InvalidArgumentError(text))
    return offset, nbytes


def _aligned(nbytes: int) -> int:
    """Round a size up to the alignment of an arena's parts."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class _Arena:
    """An allocation that small arrays share.

    No part of the allocation is used twice, so a new array never reuses the bytes of a freed one. The whole allocation
    can be reused after its last array has been freed. `trim` releases the arena that the next arrays would use.
    """

    def __init__(self, allocation: Allocation) -> None:
        self.allocation = allocation
        self._begin = [0]  # start of the unused part. Threads and signal handlers take turns by popping it

    def take(self, nbytes: int) -> int | None:
        """Return the offset of the next `nbytes` bytes, or None if fewer bytes are left."""
        try:
            begin = self._begin.pop()
        except IndexError:
            return None
        end = begin + _aligned(nbytes)
        fits = end <= self.allocation.nbytes
        self._begin.append(end if fits else begin)
        return begin if fits else None

    def left(self) -> int:
        """Return the number of bytes that are left for new arrays."""
        begin = self._begin[-1:]
        return self.allocation.nbytes - begin[0] if begin else 0


_SMALL_NBYTES: Final = 16 << 10
_ARENA_NBYTES: Final = 256 << 10
_ALIGNMENT: Final = 256


class _Arenas(Cache):
    """The arenas from which the next small arrays are cut."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # re-entrant, for signal handlers
        self.next: dict[tuple[Device, UsmKind], _Arena] = {}

    @property
    def nbytes(self) -> int:
        return sum(arena.left() for arena in list(self.next.values()))

    def trim(self) -> int:
        gone, idle = 0, node.here[0].idle
        with self.lock:
            before = idle.freed_nbytes()
            while self.next:
                allocation = ref(self.next.popitem()[1].allocation)
                gone += _ARENA_NBYTES if allocation() is None else 0
        return gone - (idle.freed_nbytes() - before)  # what another cache took over is counted there


def _after_fork() -> None:
    _owning.forget()
    _openers.forget()  # their caches belong to threads of the parent


os.register_at_fork(after_in_child=_after_fork)


@operation("malloc", raises=(InvalidArgumentError, OutOfMemoryError, FeatureNotSupportedError, DeviceError))
def allocate(
    kind: UsmKind,
    nbytes: int,
    device: DeviceLike | None,
    context: Context | None,
    isolated: bool = True,
    small: bool = False,
) -> Range:
    """Allocate USM memory of the given kind.

    If `isolated`, the memory is new. Its bytes are zero on the host and unspecified on other devices. Otherwise the
    memory may come from freed arrays and still contain their data. If `small`, the result may be a part of a host
    allocation that other small arrays also use.
    """
    chosen, chosen_context = resolve(device, context)
    nbytes = size_argument(nbytes)
    if nbytes >= 1 << 62:
        raise OutOfMemoryError(f"no device has {nbytes} bytes")
    table = None if node.left() else node.current().table_if_any
    if table is not None:
        table.sweep()
    if not small or nbytes > _SMALL_NBYTES or not adapter_of(chosen).maps_memfds:
        made = _allocate(kind, nbytes, chosen, table, isolated)
        return Range(made, 0, nbytes, chosen, chosen_context, False, None, None)
    arenas = node.here[0].idle.own(_Arenas)
    with arenas.lock:
        arena = arenas.next.get((chosen, kind))
        begin = None if arena is None else arena.take(nbytes)
        while arena is None or begin is None:
            arenas.next.pop((chosen, kind), None)
            arena = None  # first, since the new arena may reuse the memory of the old one
            arena = _Arena(_allocate(kind, _ARENA_NBYTES, chosen, table, False))
            begin = arena.take(nbytes)
            arenas.next[chosen, kind] = arena
    part = Range(arena.allocation, begin, nbytes, chosen, chosen_context, False, None, None)
    if not is_zero(part):  # a process that opens an array can reach its neighbours
        _native.fill(part.address, b"\0", _aligned(nbytes))
    return part


def _allocate(kind: UsmKind, nbytes: int, device: Device, table: Table | None, isolated: bool) -> Allocation:
    def allocate() -> DriverMemory:
        driver: DriverMemory = adapter_of(device).allocate(info_of(device), kind, nbytes)
        return driver

    block = None if isolated else reuse.take(device, kind, nbytes)
    if block is None:
        driver = with_trim(allocate, table)
        block = None if isolated else reuse.new_block(device, driver, kind)
        if block is None:
            return Allocation(device, driver, kind)
    return reuse.allocation_of(block)


def is_zero(source: Range) -> bool:
    """Return whether newly allocated memory is known to contain only zeros."""
    allocation = source.allocation
    block = allocation.exposure
    return adapter_of(source.device).maps_memfds and (block is None or not block.used)


def never_again(source: Range) -> None:
    """Exclude the memory from reuse. Another process may keep access to it for an unknown time."""
    if isinstance(source.allocation, Allocation):
        _spoil(source.allocation)


def _spoil(allocation: Allocation) -> None:
    if allocation.exposure is not None:
        allocation.exposure.spoil()


def with_trim(take: Callable[[], T], table: Table | None = None) -> T:
    """Return `take()`. If memory or file descriptors run out, release cached memory and the expired exports of `table`,
    and call `take` once more.
    """
    try:
        return take()
    except OutOfMemoryError:
        swept = table is not None and table.sweep(everything=True)
        if not trim() and not swept:
            raise
    return take()


def kept_nbytes() -> int:
    """Return how many bytes of memory this process caches: freed memory, closed imports, and unused space for small
    arrays.
    """
    return node.current().idle.total()


@on_trim
def _trim_exports() -> None:
    """Release other libraries' arrays that were kept alive for importers and that no importer uses any more. Only those
    libraries know when the memory is free.
    """
    table = None if node.left() else node.current().table_if_any
    if table is not None:
        table.sweep(everything=True)


@operation("trim", raises=())
def trim() -> int:
    """Release the memory that this process caches: freed memory kept for later allocations, the allocation for the next
    small arrays if it is unused, and closed imports that are still mapped.

    Returns the number of released bytes. Mappings on a device are removed in the background, as after a close. This
    also releases other libraries' arrays that were kept alive for importers, if every importer has closed them and all
    device work on them has finished. They do not count towards the result.
    """
    return node.current().idle.trim()


@operation("memory.slice", raises=(InvalidArgumentError,))
def slice_(source: Range, offset: int, nbytes: int) -> Range:
    """Return the piece [offset, offset + nbytes) of a range. The piece shares the ownership of the range."""
    offset, nbytes = piece("memory", source.nbytes, offset, nbytes)
    return source.replace(offset=source.offset + offset, nbytes=nbytes)


def expect_exportable(source: Range, implicit: bool = False) -> Allocation:
    """Return the allocation of a range, or raise the error that explains why this process cannot export it. `implicit`
    means that the export is for a pickle, which may export imported memory again.
    """
    allocation = source.allocation
    if source.handle is not None and not allocation.owned and not implicit:
        raise InvalidArgumentError(
            "imported memory cannot be exported again: attach it with xs.attach(…, own=True), which makes this process "
            "an owner, or pass on the handle that it was opened from (`.handle`), which is valid while its exporter "
            "lives"
        )
    if not isinstance(allocation, Allocation):  # memory that is mapped at reserved addresses
        raise FeatureNotSupportedError(
            "the addresses of a VirtualRange cannot be exported: export the PhysicalMemory that is mapped there, "
            "or copy the elements with xs.share(array, copy=True)"
        )
    if allocation.foreign_process:
        raise ForkError(f"this memory {FORK_ADVICE}")
    return allocation


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
    ttl: int | None = None,
    into: list[Handle] | None = None,
) -> Handle:
    """Export a range of an allocation of this process. Every call makes a distinct handle, which keeps the allocation
    alive until `put`. The handle is also appended to `into`, which the caller can end if an interrupt comes.
    """
    if context is not None:
        resolve_context(source.device, context)
    table = node.here[0].table_if_any or node.here[0].table()
    exported = table.of_range(source, None, read_only, implicit)
    if exported is None:
        prepared = prepared_by(expect_exportable(source, implicit), table, read_only)
        exported = table.of_range(source, prepared, read_only, implicit)
    return table.export((exported,), opens, ttl, into)[0]


def get_each(sources: list[Range], read_only: bool, implicit: bool = False) -> list[Handle]:
    """Export each range by a call of `get`. If a call fails, withdraw the exports of the earlier calls."""
    made: list[Handle] = []
    with End(_withdraw_all, made):
        for each in sources:
            made.append(get(each, None, read_only, None, implicit))  # noqa: PERF401 - those before an error are withdrawn
    return made


def _withdraw_all(made: list[Handle]) -> None:
    node.current().table().withdraw_all(made, layout.REASON_PUT)


def get_all(sources: list[Range], read_only: bool, implicit: bool = False) -> list[Handle]:
    """Export the ranges in one step, each with a handle of its own. If one of them fails, none is exported."""
    if layers_on:
        return get_each(sources, read_only, implicit)  # the layers wrap `get`
    table = node.current().table()
    found: list[Exported | None] = [table.of_range(source, None, read_only, implicit) for source in sources]
    unprepared: dict[Device, list[DriverMemory]] = {}
    for at, source in enumerate(sources):
        if found[at] is None:
            allocation = expect_exportable(source, implicit)
            if allocation.prepared is None and not allocation.owned:
                unprepared.setdefault(allocation.device, []).append(allocation.driver)
    for device, drivers in unprepared.items():
        require(device, _SHARED)
        if not read_only:
            adapter_of(device).export_all(drivers)
    exports: list[Exported] = []
    for source, exported in zip(sources, found, strict=True):
        if exported is None:
            prepared = prepared_by(source.allocation, table, read_only)
            exported = table.of_range(source, prepared, read_only, implicit)
        exports.append(exported)
    return table.export(exports)


_SHARED: Final = Aspect.ext_oneapi_ipc_memory  # a global, since looking up an enum's member costs a call


def said_by(allocation: Allocation) -> tuple[DeviceInfo | Hardware, Export]:
    """Return the device that an export of this allocation names, and the facts that the export publishes."""
    require(allocation.device, _SHARED)
    owned = allocation.source
    if isinstance(owned, Owned):
        return owned.exporter or info_of(allocation.device), owned.export()
    return info_of(allocation.device), allocation.driver.export(False)


def prepared_by(allocation: Allocation, table: Table, read_only: bool) -> Template:
    """Return the facts that all exports of an allocation share. They are cached if the driver reports the same every
    time.
    """
    prepared = None if read_only else allocation.prepared
    if prepared is None:
        device = allocation.device
        require(device, _SHARED)
        driver = allocation.driver
        if isinstance(allocation.source, Owned):
            prepared = allocation.prepared = table.prepare("memory", *said_by(allocation), allocation.serial)
            return prepared
        prepared = table.prepare("memory", info_of(device), driver.export(read_only), allocation.serial)
        if driver.lasting_export and not read_only:
            allocation.prepared = prepared
            if (block := allocation.exposure) is not None:
                block.prepared, block.serial = prepared, allocation.serial
    return prepared


def expect_kind(handle: HandleLike, kind: str) -> Handle:
    """Verify the handle and return it. Raises `InvalidHandleError` if the handle is of another kind."""
    found = handle if type(handle) is Handle else Handle.__new__(Handle, handle)  # faster than calling the type
    if fields_of(found).kind != KIND_NUMBERS[kind]:
        text = f"this is a handle of {found.kind}, not of {kind}: open it with ipc.{found.kind}.open"
        raise misused("lifetime", InvalidHandleError(text))
    return found


@operation(
    "ipc.memory.open",
    rules=(2, 3, 4, 6, 8, 9),
    raises=OPEN_ERRORS,
)
def open_(
    handle: HandleLike,
    device: DeviceLike | None = None,
    context: Context | None = None,
    anew: bool = False,
    own: bool = False,
) -> Range:
    """Open a handle, and map exactly its range into this process. This is cheap if the allocation is already open here.

    With `anew`, a handle of one of this process's own allocations maps that allocation again, at a second address. With
    `own`, this process can export the opened memory.
    """
    found = expect_kind(handle, "memory")
    opener, chosen, chosen_context = opener_for(found, device, context, own)
    here = node.current()
    if not here.is_own(fields_of(found).cookie):
        opened: list[Range] = []
        _open_others([(found, opener, chosen, chosen_context)], opened)
        return opened.pop()
    exported = own_export(here, found)
    allocation: Allocation = exported.source
    lease: Any = None
    if chosen is not allocation.device and opener.admit is None and allocation.kind == "device":
        _expect_reach(found, chosen, allocation.device)
    if opener.admit is not None or (anew and not exported.foreign):
        lease = exported if exported.foreign else None
        _spoil(allocation)
        export = partial(allocation.driver.export, found.read_only)
        allocation = import_own(here, found, opener, allocation, export)
    elif own:  # this process owns the memory anyway
        fields, keep = fields_of(found), exported.keep
        return Range(allocation, fields.offset, fields.nbytes, chosen, chosen_context, found.read_only, None, keep)
    return Range.opened(found, allocation, chosen, chosen_context, lease) or _misfit(found)


_Decision = tuple[Opener, Device, Context]
_Wanted = tuple[Handle, Opener, Device, Context]


def _open_others(wanted: list[_Wanted], opened: list[Range]) -> None:
    """Open handles of other processes in order, and append their ranges to `opened` until one fails. If memory or
    descriptors run out, release cached memory and try the rest once more.
    """
    peers, again = node.here[0].peers, False
    taken: list[tuple[Any, Lease]] = []
    allocation: Any = None
    lease: Any = None
    try:
        try:
            peers.acquire(wanted, taken)
        except OutOfMemoryError:
            again = trim() > 0
            if not again:
                raise
        if again:
            peers.acquire(wanted[len(taken) :], taken)
    finally:
        try:
            for (handle, _opener, device, context), (allocation, lease) in zip(wanted, taken, strict=False):
                if allocation.opened_by(handle):
                    allocation.forget_ended()
                opened.append(Range.opened(handle, allocation, device, context, lease) or _misfit(handle))
        finally:
            taken.clear()  # released here, not when the traceback is
            allocation = lease = None


def _misfit(handle: Handle) -> NoReturn:
    """Raise `InvalidHandleError` for a handle that reaches beyond the end of the allocation that another handle has
    opened.
    """
    raise InvalidHandleError(f"the handle does not fit what process {fields_of(handle).pid} exports under it")


def open_all(handles: tuple[Handle, ...], device: DeviceLike | None, opened: list[Range], own: bool = False) -> None:
    """Open memory handles of one process in order, and append their ranges to `opened`, which is empty at first. If a
    handle fails, `opened` contains the ranges of the handles before it.
    """
    here, wanted = node.here[0], None
    if device is None and not own and not layers_on:
        wanted = here.peers.imports.open(handles, opened)
    if wanted is None:
        if layers_on or here.is_own(fields_of(handles[0]).cookie):
            for each in handles:
                opened.append(open_(each, device, own=own))  # noqa: PERF401 - those before an error must be given back
            return
        wanted, decisions = [], dict[bytes, _Decision]()
        for handle in handles[len(opened) :]:
            names = fields_of(handle).names
            decision = decisions.get(names)
            if decision is None:
                decision = decisions[names] = opener_for(handle, device, None, own)
            wanted.append((handle, *decision))
    if wanted:
        _open_others(wanted, opened)


def _expect_reach(handle: Handle, device: Device, home: Device) -> None:
    """Raise `FeatureNotSupportedError` unless the device can use memory of `home`, a device of the same backend."""
    if device != home and not adapter_of(device).reaches(info_of(device), info_of(home)):
        give_open(handle)
        raise FeatureNotSupportedError(f"memory on {home} cannot be opened on {device}, which does not reach it")


def import_on(device: Device, adapter: Any, info: DeviceInfo, what: Import, own: bool = False) -> Allocation:
    """Import an allocation on a device. `info` is the adapter's description of the device. With `own`, keep the
    allocation's file descriptors so that this process can export it.
    """
    kind: UsmKind = "host" if what.exporter is not None and what.form is Form.MEMFD else "device"
    owned = Owned.of(what) if own else None
    with End(owned and owned.close):
        driver: DriverMemory = adapter.import_memory(info, what)
    end = End(driver.release)
    keepable = driver.keepable and owned is None
    made: Allocation = _native.imported(
        device, driver, kind, driver.address, driver.nbytes, driver.host_accessible, owned, end, keepable
    )
    return made


def _import_all_on(device: Device, found: Sequence[Import]) -> list[Allocation]:
    """Import several allocations from the device's own backend."""
    drivers: list[DriverMemory] = adapter_of(device).import_all(info_of(device), found)
    ends: list[End] = []
    with End(_release_rest, drivers, ends):
        ends.extend(End(driver.release) for driver in drivers)
    return [imported(device, driver, "device", end) for driver, end in zip(drivers, ends, strict=True)]


def _release_rest(drivers: Sequence[DriverMemory], ends: Sequence[End]) -> None:
    for driver in drivers[len(ends) :]:
        driver.release()


def _native_on(device: Device) -> OpenNative:
    """Return a native function that opens memory of the device's own backend. The function returns None for memory that
    it cannot open.
    """
    return partial(adapter_of(device).importer(info_of(device)).open, device, _release)


_release: Final = operator.methodcaller("release")
_openers = Openers(Aspect.ext_oneapi_ipc_memory, import_on, _import_all_on, find_native=_native_on)
_owning = Openers(Aspect.ext_oneapi_ipc_memory, partial(import_on, own=True), own=True)


def opener_for(handle: Handle, device: DeviceLike | None, context: Context | None, own: bool = False) -> _Decision:
    """Return the device on which to open a handle, and the opener that opens the handle there."""
    if own:
        chosen, chosen_context = opening_device(handle, device, context)
        return _owning.on(chosen, handle), chosen, chosen_context
    imports = node.here[0].peers.imports
    known = imports.decided(handle) if device is None and context is None else None
    if known is None:
        chosen, chosen_context = opening_device(handle, device, context)
        known = _openers.on(chosen, handle), chosen, chosen_context
        if device is None and context is None:
            imports.decide(handle, known[0], known[0].number, chosen, chosen_context)
    return known


@operation(
    "ipc.memory.put",
    rules=(5,),
    raises=(InvalidHandleError, InvalidArgumentError),
    ends="memory handle",
)
def put(handle: Handle | bytes | str) -> None:
    """Withdraw a handle of this process, so that no process can open it any more. Memory that is already open stays
    open.
    """
    withdraw(handle, "memory")


def withdraw(handle: Handle | bytes | str, kind: str) -> None:
    """Withdraw a handle of this process. Raises `InvalidHandleError` if the handle is not of the given kind."""
    found = expect_kind(handle, kind)
    table = node.current().table_if_any
    if table is None:
        raise InvalidArgumentError(
            f"put is for the process that exported: this handle is from pid {fields_of(found).pid}"
        )
    table.put(found)
