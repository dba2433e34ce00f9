"""`PhysicalMemory` and `VirtualRange`: the public classes for virtual memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, final

from xpushare._native import BufferBase, Span
from xpushare.common.elements import as_dtype, as_shape
from xpushare.common.errors import InvalidArgumentError
from xpushare.core import growth as growing
from xpushare.core import memory
from xpushare.core import physical as core
from xpushare.core.declare import closing, made, watchers
from xpushare.core.growth import Growth
from xpushare.core.memory import Range
from xpushare.core.physical import Held, Reserved
from xpushare.objects.array import SharedArray, array_over, span_of
from xpushare.objects.event import Event, event_over
from xpushare.objects.lifecycle import DeviceObject, Exportable, unpickles, use, why_unusable

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from xpushare.core.device import Context, DeviceLike

__all__ = ["PhysicalMemory", "VirtualRange", "growth_of", "physical_memory_over", "range_over", "whole_range"]


@final
class PhysicalMemory(Exportable[Held]):
    """Physical memory of a device: pages without an address, which `VirtualRange.map` maps.

    A mapping keeps the pages alive, so this object may be closed while they are mapped. An object that was opened from
    a handle is also closed when its last reference is dropped. (urPhysicalMemCreate)

    Args:
        nbytes: A multiple of `device.memory_granularity()`.
        device: The device. None means `default_device()`: the first GPU, if there is one.
        context: The context to allocate in, by default the device's own.
        enable_ipc: Allows `ipc.physical_memory.get` to export the memory.

    Raises:
        InvalidArgumentError: The size is not a multiple of the granularity.
        FeatureNotSupportedError: The device has no physical memory, or cannot share it.
        OutOfMemoryError: The device does not have enough memory.

    Examples:
        >>> size = xs.Device("native_cpu:0").memory_granularity()
        >>> with xs.PhysicalMemory(size, "native_cpu:0", enable_ipc=True) as pages:
        ...     pages.nbytes == size, pages.ipc_enabled
        (True, True)
    """

    __slots__ = ()

    _kind = "physical_memory"
    _copy_advice = "it is the memory. Open its handle for another object over the same pages"

    def __init__(
        self,
        nbytes: int,
        device: DeviceLike | None = None,
        *,
        context: Context | None = None,
        enable_ipc: bool = False,
    ) -> None:
        _hold(self, core.create(nbytes, device, context, enable_ipc))

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return use(self).pages.nbytes

    @property
    def ipc_enabled(self) -> bool:
        """Whether `ipc.physical_memory.get` accepts the object. True for objects that were opened from a handle."""
        return use(self).pages.ipc_enabled

    def close(self) -> None:
        """End this object's use of the pages. Idempotent. The pages exist as long as they are
        mapped or exported.

        Examples:
            >>> pages = xs.PhysicalMemory(xs.Device("cpu").memory_granularity(), "cpu")
            >>> pages.close()
            >>> pages
            <PhysicalMemory closed>
        """
        if watchers:
            closing(self)
        self._give_up()

    def statistics(self) -> dict[str, Any]:
        """Report the size and the handles of these pages.

        Returns:
            A dict with `nbytes`, `imported` (whether the memory was opened from a handle), `ipc_enabled` and `exports`.
            `exports` lists the live handles, each with `generation`, `nbytes`, `read_only` and the number of
            `importers`.

        Raises:
            InvalidArgumentError: The object is closed.

        Examples:
            >>> with xs.PhysicalMemory(xs.Device("cpu").memory_granularity(), "cpu") as pages:
            ...     pages.statistics()["imported"]
            False
        """
        from xpushare.core.statistics import physical_statistics

        return physical_statistics(use(self))

    def __repr__(self) -> str:
        found: Held | None = self._held
        why = why_unusable(found)
        if found is None or why:
            return f"<PhysicalMemory {why}>"
        how = "imported " if found.handle is not None else ""
        return f"<PhysicalMemory {how}{found.pages.nbytes} bytes on {found.device}>"

    def _reduce(self) -> tuple[Any, ...]:
        return _reopen, (bytes(self._handle_to_pickle(use(self), core.get)),)


def _hold(thing: PhysicalMemory, held: Held) -> None:
    thing._hold(held, held.pages.forks)
    if watchers:
        made(thing)


def physical_memory_over(held: Held) -> PhysicalMemory:
    """Make the `PhysicalMemory` object for pages that were allocated or opened."""
    self = object.__new__(PhysicalMemory)
    _hold(self, held)
    return self


@unpickles(PhysicalMemory)
def _reopen(handle: bytes) -> PhysicalMemory:
    return physical_memory_over(core.open_(handle))


@final
class VirtualRange(BufferBase, DeviceObject[Reserved]):
    """A range of reserved addresses, into which physical memory can be mapped.

    `memoryview(r)` covers all `nbytes` of the range, and `as_array` a part of them. The bytes must be mapped with read
    or write access. As long as such a view exists, its bytes cannot be unmapped. (urVirtualMemReserve)

    A call that Ctrl-C interrupts takes effect as a whole or not at all. If the handler of a signal, or a finaliser,
    interrupts a call on a range, it cannot change the same range: such a change raises `InvalidArgumentError`.

    With `growable=True` the range maps memory of its own: `grow` adds bytes at the end, and `shrink` removes them.
    `share` makes a handle of a growable range. `attach` opens the handle as a *follower*: a range with the same bytes
    at a fixed address. `refresh` brings a follower up to date.

    Args:
        nbytes (int): The size of the range in bytes, a multiple of `device.memory_granularity()`.
        device (Device | str | None): The device. None means `default_device()`: the first GPU, if there is one.
        context (Context | None): The context to reserve in, by default the device's own.
        address (int | None): The address at which the range begins. None lets the driver choose one.
        growable (bool): Makes a range that maps memory of its own. Its length is 0 at first, and at most `nbytes`.

    Raises:
        InvalidArgumentError: The size is not a multiple of the granularity, or the address is in use.
        FeatureNotSupportedError: The device has no virtual memory.
        OutOfMemoryError: There are not enough free addresses.

    Examples:
        >>> with xs.VirtualRange(1 << 30, "native_cpu:0", growable=True) as log:
        ...     log.grow(1000)
        ...     log.nbytes
        1000
    """

    __slots__ = ("_growth",)

    _growth: Growth | None

    _copy_advice = "it is the addresses. Map the PhysicalMemory in another range"
    _pickle_advice = "addresses belong to their process. Send the PhysicalMemory"

    def __new__(
        cls,
        nbytes: int,
        device: DeviceLike | None = None,
        *,
        context: Context | None = None,
        address: int | None = None,
        growable: bool = False,
    ) -> VirtualRange:
        reserved = core.reserve(nbytes, device, context, address)
        return range_over(reserved, growing.start(reserved) if growable else None)

    def map(
        self,
        pm: PhysicalMemory,
        at: int = 0,
        *,
        offset: int = 0,
        nbytes: int | None = None,
        access: Literal["rw", "r", "none"] = "rw",
    ) -> None:
        """Map physical memory into the range. The mapping keeps the pages alive.

        Args:
            pm: The physical memory.
            at: Offset in the range, in bytes, at which the mapping begins.
            offset: Offset of the mapped part in the memory, in bytes.
            nbytes: The number of bytes, by default all from `offset` to the end of the memory.
            access: "rw", "r" or "none".

        Raises:
            InvalidArgumentError: A number is not a multiple of the granularity, the addresses are mapped already or lie
                outside the range, or the device cannot map a part of the memory (it lacks `partial_map`).
            FeatureNotSupportedError: The memory is on another device, which this device cannot reach.
            DeviceError: The driver failed.

        Examples:
            >>> size = xs.Device("cpu").memory_granularity()
            >>> with xs.VirtualRange(2 * size, "cpu") as addresses, xs.PhysicalMemory(size, "cpu") as pages:
            ...     addresses.map(pages, at=size)
            ...     addresses.access(0), addresses.access(size)
            ('none', 'rw')
        """
        if not isinstance(pm, PhysicalMemory):
            raise InvalidArgumentError(f"map takes a PhysicalMemory, not {type(pm).__name__}")
        core.map_(self._mapped_by_hand(), use(pm), at, offset, nbytes, access)

    def unmap(self, at: int, nbytes: int) -> None:
        """Unmap whole mappings.

        Args:
            at: Offset in the range, in bytes, at which the first mapping begins.
            nbytes: Total length of the mappings, in bytes.

        Raises:
            InvalidArgumentError: This would unmap only a part of a mapping, or a view of the bytes still exists.
            DeviceError: The driver failed.

        Examples:
            >>> size = xs.Device("cpu").memory_granularity()
            >>> with xs.VirtualRange(size, "cpu") as addresses, xs.PhysicalMemory(size, "cpu") as pages:
            ...     addresses.map(pages)
            ...     addresses.unmap(0, size)
            ...     addresses.mapped()
            []
        """
        core.unmap(self._mapped_by_hand(), at, nbytes)

    def set_access(self, at: int, nbytes: int, access: Literal["rw", "r", "none"]) -> None:
        """Change the access of whole mappings.

        Args:
            at: Offset in the range, in bytes, at which the first mapping begins.
            nbytes: Total length of the mappings, in bytes.
            access: "rw", "r" or "none".

        Raises:
            InvalidArgumentError: This would change only a part of a mapping.
            DeviceError: The driver failed.

        Examples:
            >>> size = xs.Device("cpu").memory_granularity()
            >>> with xs.VirtualRange(size, "cpu") as addresses, xs.PhysicalMemory(size, "cpu") as pages:
            ...     addresses.map(pages)
            ...     addresses.set_access(0, size, "r")
            ...     addresses.access(0)
            'r'
        """
        core.set_access(self._mapped_by_hand(), at, nbytes, access)

    def _mapped_by_hand(self) -> Reserved:
        if self._growth is not None:
            raise InvalidArgumentError("this range maps its own memory: grow and shrink it, or refresh a follower")
        return use(self)

    def grow(self, nbytes: int) -> None:
        """Add bytes at the end of a growable range. Their content is unspecified.

        Whole granules are mapped, and the next call uses the rest of the last granule. Followers see the new bytes
        after `refresh`. A call that fails changes nothing.

        Args:
            nbytes: How many bytes.

        Raises:
            InvalidArgumentError: There are not enough reserved addresses, or the range is not growable or follows
                another range.
            FeatureNotSupportedError: The device has no physical memory that can be shared.
            OutOfMemoryError: The device does not have enough memory.

        Examples:
            >>> with xs.VirtualRange(1 << 30, "native_cpu:0", growable=True) as log:
            ...     log.grow(24)
            ...     np.asarray(log.as_array(3, "float64")).shape
            (3,)
        """
        growing.grow(*growth_of(self), nbytes)

    def shrink(self, nbytes: int) -> None:
        """Remove bytes from the end of a growable range.

        Whole pieces of memory beyond the end are unmapped once this process's queue operations on them have finished.
        Followers keep these pieces until `refresh`.

        Args:
            nbytes: How many bytes.

        Raises:
            InvalidArgumentError: A view uses memory that would be unmapped, the range has fewer than `nbytes` bytes, or
                it is not growable or follows another range.
            DeviceError: The driver failed.

        Examples:
            >>> with xs.VirtualRange(1 << 30, "native_cpu:0", growable=True) as log:
            ...     log.grow(24)
            ...     log.shrink(8)
            ...     log.nbytes
            16
        """
        growing.shrink(*growth_of(self), nbytes)

    def refresh(self) -> None:
        """Bring a follower up to date: map the memory that the other range added, and unmap the
        memory that it removed.

        `refresh` waits for the queue operations of this process that use the removed memory.

        Raises:
            InvalidArgumentError: A view uses the removed memory, or this range is not a follower.
            HandleExpiredError: The process that owns the range has closed it, or has exited.
            InvalidHandleError: A handle in the owner's list of memory is damaged.
            RouteError: Every route to the owner's memory is blocked.
            FeatureNotSupportedError: The device cannot open the owner's memory.

        Examples:
            >>> log = xs.VirtualRange(1 << 30, "native_cpu:0", growable=True)
            >>> with xs.share(log) as handle, xs.attach(handle) as follower:
            ...     log.grow(1000)
            ...     before = follower.nbytes
            ...     follower.refresh()
            ...     before, follower.nbytes
            (0, 1000)
        """
        growing.refresh(*growth_of(self))

    @property
    def changed(self) -> Event:
        """The event that `grow` and `shrink` signal. Read `n = changed.pending`, call `refresh()`, and then wait for
        signal `n + 1`.
        """
        return event_over(growth_of(self)[1].changed)

    def access(self, at: int) -> Literal["rw", "r", "none"]:
        """Return the access mode with which a byte is mapped.

        Args:
            at: Offset of the byte in the range.

        Returns:
            "rw", "r" or "none". The result is also "none" if no memory is mapped at the byte.

        Raises:
            InvalidArgumentError: The byte lies outside the range.

        Examples:
            >>> with xs.VirtualRange(xs.Device("cpu").memory_granularity(), "cpu") as addresses:
            ...     addresses.access(0)
            'none'
        """
        return core.access_of(use(self), at)

    def mapped(self) -> list[tuple[int, int, str]]:
        """List the mappings of the range.

        Returns:
            `(at, nbytes, access)` for each mapping, in the order of their offsets.

        Examples:
            >>> size = xs.Device("cpu").memory_granularity()
            >>> with xs.VirtualRange(size, "cpu") as addresses, xs.PhysicalMemory(size, "cpu") as pages:
            ...     addresses.map(pages)
            ...     addresses.mapped() == [(0, size, "rw")]
            True
        """
        return use(self).listed()

    def as_array(self, shape: int | tuple[int, ...], dtype: DTypeLike, offset: int = 0) -> SharedArray:
        """Return an array over bytes of the range, which must be mapped when the array is used.

        Args:
            shape: Number of elements per dimension.
            dtype: A NumPy dtype or its name.
            offset: Offset in the range, in bytes, at which the first element begins.

        Returns:
            A C-ordered array. Use it only while its bytes are mapped.

        Raises:
            InvalidArgumentError: The array does not fit.

        Examples:
            >>> with xs.VirtualRange(1 << 20, "native_cpu:0", growable=True) as log:
            ...     log.grow(32)
            ...     log.as_array((2, 2), "float64").shape
            (2, 2)
        """
        found, lengths = as_dtype(dtype), as_shape(shape)
        # Only over the array's own bytes: the rest of the range may be unmapped, and is not pinned.
        piece = memory.slice_(whole_range(self), offset, math.prod(lengths) * found.itemsize)
        return array_over(piece, lengths, found)

    def _span(self) -> Span:
        return span_of(memory.slice_(whole_range(self), 0, self.nbytes))

    @property
    def ptr(self) -> int:
        """Address of the first byte of the range in this process."""
        return use(self).address

    @property
    def nbytes(self) -> int:
        """The number of reserved bytes. For a growable range or a follower, its current length in bytes."""
        found = use(self)
        return found.nbytes if self._growth is None else self._growth.length()

    def close(self) -> None:
        """End this object's use of the addresses. Idempotent. Once no view is left, all of the range is unmapped. A
        handle of a growable range keeps the memory of the range alive.

        Examples:
            >>> addresses = xs.VirtualRange(xs.Device("cpu").memory_granularity(), "cpu")
            >>> addresses.close()
            >>> addresses
            <VirtualRange closed>
        """
        if watchers:
            closing(self)
        self._give_up()
        self._growth = None

    def __repr__(self) -> str:
        found: Reserved | None = self._held
        if found is None:
            return "<VirtualRange closed>"
        size = f"{found.nbytes} bytes" if self._growth is None else f"{self._growth.length()} of {found.nbytes} bytes"
        return f"<VirtualRange {size} at {found.address:#x}, {len(found.mapped)} mappings, on {found.device}>"


# For the other modules of the package.
def range_over(reserved: Reserved, growth: Growth | None) -> VirtualRange:
    """Make the `VirtualRange` object for reserved addresses. `growth` is None unless the range is growable or a
    follower.
    """
    self = BufferBase.__new__(VirtualRange)  # `_span` looks up what is mapped at that moment
    self._hold(reserved, reserved.forks)
    self._growth = growth  # pyright: ignore[reportPrivateUsage]
    if watchers:
        made(self)
    return self


def whole_range(addresses: VirtualRange) -> Range:
    """Return a `Range` that covers the whole virtual range, for operations on memory."""
    found = use(addresses)
    allocation: Any = found
    return Range(allocation, 0, found.nbytes, found.device, found.context, False, None, None)


def growth_of(addresses: VirtualRange) -> tuple[Reserved, Growth]:
    """Return the reserved addresses of a growable range, and the `Growth` that manages its memory. Raises
    `InvalidArgumentError` for any other range.
    """
    found, growth = use(addresses), addresses._growth  # pyright: ignore[reportPrivateUsage]
    if growth is None:
        raise InvalidArgumentError("this range cannot grow: make it with xs.VirtualRange(nbytes, growable=True)")
    return found, growth


def is_growable(addresses: VirtualRange) -> bool:
    """Return whether a range, which must not be closed, is growable or is a follower of a growable range."""
    return addresses._growth is not None  # pyright: ignore[reportPrivateUsage]
