"""The driver contract: the methods that a vendor's adapter provides, and the guarantees that it must give.

An adapter translates these methods to driver calls, and driver errors to the package's own errors. Tables, the caching
of imports, reference counts, the checks of handles and all knowledge of processes are the same for every vendor, and
belong to the core. No default implementation here hides a missing feature: `support` returns what a device lacks, and
the core calls `support` first.

Guarantees asked of every method:

1. It raises only errors of this package: `OutOfMemoryError`, `FeatureNotSupportedError`, `InvalidArgumentError`, and
   `DeviceError` with the driver's name and number for the failure, and the name of the call.
2. When it raises, it has released everything that it acquired before.
3. It creates a context only on the device that it was asked to use. It leaves the caller's current context and stream
   captures alone.
4. The objects that it returns own their driver resource. Their `release` is called exactly once, from any thread, never
   in a forked child.
5. Several threads may call it at once.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, Self

from xpushare import adapters
from xpushare._native import Domain, Importer, Mapping, Recogniser, Slot
from xpushare.common.aspects import Aspect, Support
from xpushare.common.errors import FeatureNotSupportedError, InvalidHandleError
from xpushare.common.fds import OnDemand, OwnedFd

__all__ = [
    "Access",
    "Adapter",
    "DeviceInfo",
    "Domain",
    "DriverMemory",
    "DriverPhysical",
    "DriverPool",
    "DriverQueue",
    "DriverRange",
    "Export",
    "Foreign",
    "Form",
    "Hardware",
    "Import",
    "NativeEvent",
    "OnDemand",
    "Piece",
    "Profile",
    "Properties",
    "Same",
    "Slot",
    "Stamp",
    "TimelinePoint",
    "TimelineSemaphore",
    "UsmKind",
]

UsmKind = Literal["device", "host", "shared"]
Access = Literal["none", "r", "rw"]


class Form(enum.IntEnum):
    """The kind of an export's file descriptors, which decides which devices can import the export. The entries of the
    table of exports contain this number (docs/layout.md).
    """

    DRIVER = 0  # the driver's own kind of descriptors, or none; only devices of the same backend can import it
    MEMFD = 1  # one sealed memfd of exposed_nbytes, with the memory at its start; an importer only has to map it
    VMM_FD = 2  # of CUDA's virtual memory management
    OPAQUE_FD = 3  # "opaque fds" of Vulkan's external memory; the payload's first byte is 1 for a dedicated allocation
    DMA_BUF = 4


class Same(enum.Enum):
    """How much an importer's device and an exporter's device of another backend must have in common for an import: the
    same host, the same physical device, or the same physical device and driver.
    """

    HOST = "host"
    DEVICE = "device"
    DRIVER = "driver"  # and the device


class Hardware(NamedTuple):
    """The identity by which devices of two backends are recognised as the same hardware."""

    backend: str
    uuid: str
    pci: str
    driver_uuid: str


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device as the adapter lists it. Listing devices must not start a driver in this process that would make a
    later fork unsafe.
    """

    backend: str
    ordinal: int
    name: str
    uuid: str
    type: Literal["cpu", "gpu", "accelerator"]
    driver_version: str
    # The address of a whole device on the PCI bus, as sysfs writes it ("0000:3b:00.0"); "" for other devices, and for
    # parts of one.
    pci: str = field(default="", compare=False)
    # Two devices with the same driver uuid can import each other's opaque fds. "" if the driver has none.
    driver_uuid: str = field(default="", compare=False)
    native: Any = field(default=None, compare=False, repr=False)

    @property
    def hardware(self) -> Hardware:
        return Hardware(self.backend, self.uuid, self.pci, self.driver_uuid)


class Properties(NamedTuple):
    """The driver's description of a device. Unknown values are 0 or empty."""

    vendor: str
    compute_units: int
    memory_nbytes: int
    free_nbytes: int
    integrated: bool  # the device has no memory of its own
    vendor_id: int = 0  # on the PCI bus
    device_id: int = 0
    clock_mhz: int = 0
    memory_clock_mhz: int = 0
    memory_bus_bits: int = 0
    error_correction: bool = False
    cache_nbytes: int = 0  # of the last-level cache
    cache_line_nbytes: int = 0
    local_nbytes: int = 0  # of the local memory of a work-group
    constant_nbytes: int = 0
    registers: int = 0  # of a work-group
    group_items: int = 0  # work-items of a work-group
    group_sizes: tuple[int, ...] = ()  # the same along each dimension; x first
    grid_sizes: tuple[int, ...] = ()  # work-groups along each dimension
    sub_group_sizes: tuple[int, ...] = ()


class Export(NamedTuple):
    """The data with which another process can reach a driver object. The file descriptors still belong to the object
    that returned the export.
    """

    nbytes: int
    exposed_nbytes: int
    fds: tuple[int, ...] = ()
    inode: int = 0  # of fds[0], if it distinguishes that file from others
    payload: bytes = b""  # at most 128 bytes, the adapter's own
    on_demand: OnDemand | None = None
    form: Form = Form.DRIVER
    offset: int = 0  # of the memory in the exposed_nbytes that the fds stand for


class Import(NamedTuple):
    """An export as the importer received it, with sizes checked against the exporter's table. Descriptors that the
    adapter does not take over are closed afterwards.
    """

    nbytes: int
    exposed_nbytes: int
    payload: bytes
    fds: Sequence[OwnedFd]
    read_only: bool
    mapping: Mapping | None = None  # of a `Form.MEMFD`, checked, where `Adapter.maps_memfds`; there are no fds then
    form: Form = Form.DRIVER
    offset: int = 0
    exporter: Hardware | None = None  # of another backend, to which the payload then belongs; None: of this backend
    again: bool = False  # it may have to be exported from here, once its exporter is gone: a memfd comes unmapped

    def only_fd(self, doing: str) -> OwnedFd:
        """Return the only file descriptor. Raises `InvalidHandleError` if there is not exactly one."""
        if len(self.fds) != 1:
            raise InvalidHandleError(f"{doing}: the exporter sent {len(self.fds)} file descriptors, 1 expected")
        return self.fds[0]


class DriverMemory(abc.ABC):
    """An allocation of this process, or a mapping of another process's memory, at [address, address + nbytes)."""

    address: int
    nbytes: int
    host_accessible: bool  # plain loads and stores of this process reach it
    lasting_export: bool = False  # the result of `export(False)` never changes, and is requested once
    # Of an import: opening it again is so expensive that it may stay mapped for a moment. See `Adapter.look_after`.
    keepable: bool = False
    descriptors: int = 1  # of this process, that an import holds at most: a cache of closed imports counts them
    # Of an allocation: it may be reused, with any content, and be exported by the same `export` as before. The
    # host's own waits for that in `rest`; an adapter's that has `look_after`, as it is.
    reusable: bool = False

    def rest(self) -> None:
        """Put the memory aside for reuse. The driver object may free the memory at any moment until `wake` is
        called.
        """
        raise NotImplementedError

    def wake(self) -> bool:
        """Start using the memory again. Returns False if the memory was freed in the meantime."""
        raise NotImplementedError

    @abc.abstractmethod
    def export(self, read_only: bool) -> Export:
        """Return the data that another process needs to map this memory. May be called many times, and is cheap. Raises
        `FeatureNotSupportedError` with the reason if this memory cannot be exported.
        """

    @abc.abstractmethod
    def release(self) -> None:
        """Free or unmap the memory once device work submitted before has finished, without blocking the caller."""


class TimelineSemaphore(Protocol):
    """A timeline semaphore of Vulkan."""

    fd: OwnedFd  # an opaque fd of it
    device_uuid: str


class TimelinePoint(NamedTuple):
    """A value of a timeline semaphore, which `Adapter.adopt_event` converts for `DriverQueue.wait_native`. If `signals`
    is true, the queue signals the value. Otherwise the queue waits for the value.
    """

    semaphore: TimelineSemaphore
    value: int
    signals: bool


class Foreign(NamedTuple):
    """Memory that another library has allocated in this process, found by its address."""

    memory: DriverMemory  # the whole allocation; its `release` frees nothing of the other library's
    offset: int  # of the address inside it
    device: DeviceInfo  # that the memory is on
    kind: UsmKind
    # An identity that no other allocation of this process ever has. It is
    # cached, so it must hold no reference.
    identity: Hashable
    keep: object = None  # an object that exports keep alive


class DriverPhysical(abc.ABC):
    """Physical memory: pages without an address."""

    nbytes: int

    @abc.abstractmethod
    def export(self) -> Export: ...
    @abc.abstractmethod
    def release(self) -> None:
        """Release this handle of the pages. Existing mappings keep the pages alive."""


class DriverRange(abc.ABC):
    """Reserved addresses [address, address + nbytes).

    `core` calls these methods one at a time. The handler of a signal may end each of them by an exception, at any
    point. Afterwards `core` calls `map` or `unmap` for the same bytes again, so both must do their work whatever the
    earlier call had done.
    """

    address: int
    nbytes: int
    host_accessible: bool

    @abc.abstractmethod
    def map(self, at: int, physical: DriverPhysical, offset: int, nbytes: int, access: Access) -> None:
        """Map memory. An earlier call, or a call of `unmap`, that was interrupted may have left the same memory
        mapped.
        """

    @abc.abstractmethod
    def unmap(self, at: int, nbytes: int) -> None:
        """Unmap one whole mapping, once device work submitted before has finished. After an interrupt, unmap what is
        still mapped of these bytes.
        """

    @abc.abstractmethod
    def set_access(self, at: int, nbytes: int, access: Access) -> None: ...
    @abc.abstractmethod
    def release(self) -> None:
        """Unmap what is mapped, once device work submitted before has finished, and release the addresses."""


class Piece(NamedTuple):
    """One allocation of a pool. Another library's allocator has handed out parts of it."""

    address: int
    nbytes: int
    used: int  # bytes from its start on, behind which no part is in use


class DriverPool(abc.ABC):
    """Memory for another library's allocator. `Adapter.foreign` finds memory of the pool as it finds other memory of
    that library. The memory can be returned to the device, and later provided again with unspecified content at the
    same addresses.

    The allocator calls C functions, from any thread. The file `library` contains the functions named `functions`: `void
    *malloc(ssize_t nbytes, int device, void *stream)` and `void free(void *, ssize_t nbytes, int device, void
    *stream)`. `addresses` are the addresses of similar functions, which take no stream but an additional first
    argument, `addresses[0]`. Each `malloc` returns NULL if no memory is free, between `sleep` and `wake`, and in a
    forked child.
    """

    library: str
    functions: tuple[str, str]
    addresses: tuple[int, int, int]  # the parameter, and the two functions

    @abc.abstractmethod
    def pieces(self) -> list[Piece]: ...
    @abc.abstractmethod
    def drain(self) -> None:
        """Wait for the work that was submitted to the device so far."""

    @abc.abstractmethod
    def sleep(self) -> None:
        """Return the pool's memory to the device. The caller has called `drain` before, and no export of the memory is
        live.
        """

    @abc.abstractmethod
    def wake(self) -> None:
        """Map memory at the pool's addresses again. If this raises, the pool still has no memory."""

    @abc.abstractmethod
    def release(self) -> None:
        """End the pool once the last allocation from it has been freed."""


class Stamp(Protocol):
    """The driver's record of the time at which a device reaches a place in a queue."""

    # When the device reached the place, in ns of `Adapter.clock`. None until this is known.
    def read(self) -> int | None: ...


@dataclass(slots=True)
class Profile:
    """Times of a profiling event's last signal, in nanoseconds of the device's clock (urEventGetProfilingInfo). A
    signal takes no time, so it starts when it ends. `end` is 0 until the time is known.
    """

    queued: int = 0
    submit: int = 0
    end: int = 0
    stamp: Stamp | None = None

    def begin(self, now: int, stamp: Stamp | None = None) -> None:
        """Start the times of a new signal. If `stamp` is given, it provides the last time. Otherwise the queue that
        executes the signal sets it.
        """
        self.queued = self.submit = now
        self.end = 0
        self.stamp = stamp

    def known(self) -> Self:
        """Return the times that are known by now."""
        found = self.stamp.read() if self.stamp is not None else None
        if found is not None:
            self.end = found
            self.stamp = None
        return self


class NativeEvent(Protocol):
    """A driver event that other processes can open by the driver's own handle."""

    handle: bytes
    native: int  # the driver's handle of it in this process

    def release(self) -> None: ...


class DriverQueue(abc.ABC):
    """An in-order queue of device work. Operations return once they are queued; `synchronize` raises their failures."""

    lasting: bool = False  # it lives as long as the process, like the stream of another library below it
    signalled: Any = None  # used by the core: the event that the queue signals for other libraries

    @abc.abstractmethod
    def copy(self, dst: int, src: int, nbytes: int, keep: object) -> None:
        """Queue a copy, and keep a reference to `keep` until the copy has finished. `fill` treats its parameter `keep`
        in the same way.
        """

    @abc.abstractmethod
    def fill(self, dst: int, pattern: bytes, nbytes: int, keep: object) -> None: ...
    @abc.abstractmethod
    def call(self, function: Callable[[], object]) -> None:
        """Queue a call of `function`. Raises `FeatureNotSupportedError` unless the device is the host."""

    @abc.abstractmethod
    def signal(self, slot: Slot, profile: Profile | None) -> int:
        """Submit a signal of the event in `slot`. The signal completes once the work queued before has finished.
        Returns the number of the signal, its *point*. Follows docs/events-protocol.md.

        A ValueError of `slot.submit` is not caught. Fills in `profile` if the device has
        `ext_oneapi_per_event_profiling`.
        """

    @abc.abstractmethod
    def wait(self, slot: Slot, point: int) -> None:
        """Hold back work that is queued from now on until `point` is done or lost. If the point is lost, the next call
        of `synchronize` raises the error.
        """

    @abc.abstractmethod
    def wait_native(self, event: Any, keep: object) -> None:
        """Hold back work that is queued from now on until another library's event (from `Adapter.adopt_event`) has
        completed. The queue keeps a reference to `keep` until then.
        """

    @abc.abstractmethod
    def record_native(self) -> NativeEvent:
        """Record and return a shareable event of the driver, which completes once the work queued before has finished.
        Raises `FeatureNotSupportedError` if the driver has no shareable events.
        """

    def native(self) -> int:
        """Return the driver's handle of the queue's stream."""
        raise FeatureNotSupportedError("this device's queues are not streams of a driver")

    @abc.abstractmethod
    def synchronize(self, timeout: float | None) -> None:
        """Wait until everything queued has finished. Raises `TimeoutError` after `timeout` seconds, or the oldest error
        of the queue that was not raised before.
        """

    @abc.abstractmethod
    def told(self) -> None:
        """Record that the program has learned, through an event, of the failures of this queue so far. These failures
        do not affect work queued from now on. `synchronize` still reports them, once.
        """

    @abc.abstractmethod
    def idle(self) -> bool:
        """Return whether everything queued has finished."""

    @abc.abstractmethod
    def unfinished(self) -> bool | tuple[Slot, int]:
        """Return whether queued work can still finish. If only a wait for a point of an event holds the work up, return
        the event's slot and that point instead. Returns False for a broken device. Does not block. The process calls
        this at its exit, to wait for work that can still finish.
        """

    @abc.abstractmethod
    def release(self) -> None:
        """Finish queued work, in the background if that would block, then end the queue."""


class Adapter(abc.ABC):
    """The adapter of one vendor. Created once per process, when its devices are first needed."""

    backend: str
    maps_memfds: bool  # memory in a memfd comes to `import_memory` as a mapping of it, else as its fd
    has_streams: bool = True  # False: `stream` always returns None for no number
    # The number that Unified Runtime returns with a stream's handle, if there are several kinds of streams.
    stream_kind: int | None = None
    runs_functions: bool = False  # its queues run functions of this process
    recogniser: Recogniser | None = None  # finds most allocations that `foreign` finds, in native code
    least_per_fd: int = 0  # the least bytes behind each of several fds; 0 if imports have one fd
    # Makes the thread that unmaps closed imports call a function every 50 ms, until the function returns False. Returns
    # whether that thread exists. Finalisers may call it. None: no import of this adapter is `keepable`.
    look_after: Callable[[Callable[[], bool]], bool] | None = None
    # Makes another thread call a function once the work that was submitted to the device before has finished.
    # Finalisers may call it. None: all work is that of the host's own threads, which hold what they
    # use. An adapter with this function also has `look_after`.
    after_work: Callable[[DeviceInfo, Callable[[], object]], object] | None = None

    # Returns the native object that does most of the work of `import_memory`, once that has mapped something. None:
    # there is none.
    importer: Callable[[DeviceInfo], Importer] | None = None

    @abc.abstractmethod
    def devices(self) -> list[DeviceInfo]:
        """Return the devices that this process may use, or an empty list if there is no driver. `why_none` then says
        what is missing.
        """

    @abc.abstractmethod
    def why_none(self) -> str: ...
    def refused(self) -> list[str]:
        """Return the devices that `devices` leaves out because they cannot be used: name and reason of each."""
        return []

    @abc.abstractmethod
    def support(self, device: DeviceInfo, aspect: Aspect) -> Support: ...
    @abc.abstractmethod
    def properties(self, device: DeviceInfo) -> Properties: ...
    @abc.abstractmethod
    def granularity(self, device: DeviceInfo, recommended: bool) -> int:
        """Return the granularity in bytes: sizes of physical memory and of mappings are multiples of it."""

    @abc.abstractmethod
    def allocate(self, device: DeviceInfo, kind: UsmKind, nbytes: int) -> DriverMemory: ...
    @abc.abstractmethod
    def import_memory(self, device: DeviceInfo, what: Import) -> DriverMemory: ...
    def import_all(self, device: DeviceInfo, found: Sequence[Import]) -> list[DriverMemory]:
        """Import each export as `import_memory` does. If one import fails, none is made. All exports are of this
        backend and have file descriptors instead of a `mapping`.
        """
        made: list[DriverMemory] = []
        try:
            for what in found:
                made.append(self.import_memory(device, what))  # noqa: PERF401 - those before an error are released
        except BaseException:
            for each in made:
                each.release()
            raise
        return made

    def export_all(self, found: Iterable[DriverMemory]) -> None:
        """Prepare the exports of several memories with fewer driver calls than one export at a time takes. The core
        then calls `export` of each memory. An error in the preparation is ignored, since `export` raises the error
        again.
        """
        return

    def pool(self, device: DeviceInfo) -> DriverPool:
        """Create a pool of device memory for another library's allocator."""
        raise FeatureNotSupportedError(f"{self.backend} has no memory for the allocators of other libraries")

    def dma_buf(
        self, device: DeviceInfo, memory: DriverMemory, address: int, nbytes: int
    ) -> tuple[OwnedFd, int] | None:
        """Make a dma-buf of these bytes of this adapter's memory, which may be another library's or an import. Returns
        the dma-buf and the offset of the bytes in it, or None if importers can only use the descriptors of
        `memory.export`.
        """
        return None

    def adopt_dma_buf(self, device: DeviceInfo, doing: str, fd: OwnedFd, nbytes: int) -> DriverMemory:
        """Import a dma-buf of `nbytes` bytes. This process can then export the memory like an allocation of its own.
        Takes over `fd` on success.
        """
        raise FeatureNotSupportedError(f"{doing}: {self.backend} imports no dma-bufs of other drivers")

    @abc.abstractmethod
    def imports(self, device: DeviceInfo, physical: bool) -> dict[Form, Same]:
        """Return the forms in which `import_memory` accepts exports of another backend. If `physical` is true, return
        the forms that `import_physical` accepts. Each form comes with the properties that the two devices must have in
        common. The core requests an import only if the form is in the result and the two devices have these properties
        in common.
        """

    @abc.abstractmethod
    def foreign(self, address: int, nbytes: int | None = None) -> Foreign | None:
        """Return the allocation of another library that contains `address`, or None if this adapter's driver does not
        know it.

        If `nbytes` is given, the bytes from `address` on may lie in several adjacent allocations. The result then
        covers exactly these allocations.

        If the driver knows the allocation but it cannot be shared, `FeatureNotSupportedError` names the allocator, and
        the setting that would help.
        """

    def knows(self, address: int) -> bool:
        """Return whether this adapter's driver knows another library's allocation that contains `address`."""
        try:
            return self.foreign(address, 1) is not None
        except FeatureNotSupportedError:
            return True

    @abc.abstractmethod
    def physical(self, device: DeviceInfo, nbytes: int, enable_ipc: bool) -> DriverPhysical: ...
    @abc.abstractmethod
    def import_physical(self, device: DeviceInfo, what: Import) -> DriverPhysical: ...
    @abc.abstractmethod
    def reserve(self, device: DeviceInfo, nbytes: int, address: int) -> DriverRange:
        """Reserve a range of addresses. If `address` is not 0, the range starts exactly at `address`, or the method
        raises.
        """

    @abc.abstractmethod
    def reaches(self, device: DeviceInfo, peer: DeviceInfo) -> bool:
        """Return whether work on `device` can use memory of `peer`, another device of this adapter."""

    @abc.abstractmethod
    def queue(self, device: DeviceInfo) -> DriverQueue: ...
    @abc.abstractmethod
    def adopt_queue(self, native: object) -> tuple[DeviceInfo, DriverQueue] | None:
        """Return a queue over another library's stream, which still belongs to that library, or None if `native` is not
        a stream of this vendor.
        """

    @abc.abstractmethod
    def stream(self, device: DeviceInfo, number: int | None, array: object) -> object | None:
        """Return a stream of the device for `adopt_queue`: the stream with DLPack's `number`. If `number` is None,
        return the stream that the library of `array` uses now, or else the device's default stream. Return None if the
        device has no streams.
        """

    @abc.abstractmethod
    def adopt_event(self, native: object) -> tuple[DeviceInfo, Any] | None:
        """Return the device of another library's event, and the driver's own event. Return None if `native` is not an
        event of this vendor.
        """

    def native(self, device: DeviceInfo, what: Literal["platform", "device", "context"]) -> int:
        """Return the driver's handle of the device, of its platform, or of the context that contains this adapter's
        objects.
        """
        raise FeatureNotSupportedError(f"{self.backend} has no native handle of a {what}")

    def native_queue(self, device: DeviceInfo, handle: int, owned: bool) -> tuple[DeviceInfo, DriverQueue]:
        """Adopt a stream by the driver's handle, and return a queue over it. If `owned` is true, the stream is
        destroyed when the queue has ended.
        """
        raise FeatureNotSupportedError(
            f"{self.backend} cannot use another library's stream by its handle: use xs.Queue"
        )

    def native_event(self, device: DeviceInfo, handle: int, owned: bool) -> tuple[Any, object]:
        """Adopt an event by the driver's handle. Return the argument of `DriverQueue.wait_native` for the event, and an
        object that the caller keeps alive as long as the event is used. If `owned` is true, the event is destroyed with
        that object.
        """
        raise FeatureNotSupportedError(f"{self.backend} cannot use another library's event by its handle: use xs.Event")

    @abc.abstractmethod
    def settle(self) -> None:
        """Release the memory that finished queue operations have used. Does not wait for operations that are still
        running.
        """

    def clock(self, device: DeviceInfo) -> tuple[int, int]:
        """Read the clock of `Profile` and the host's monotonic clock at the same moment. Return both times in
        nanoseconds. Called only for devices with `ext_oneapi_per_event_profiling`.
        """
        raise FeatureNotSupportedError(f"the clock of {self.backend}'s devices cannot be read")

    @abc.abstractmethod
    def adopt_domain(self, device: DeviceInfo, domain: Domain) -> None:
        """Make the event slots of `domain` accessible to work on `device`. Called once per device and domain, before
        the first use.
        """

    def dlpack_device(self, device: DeviceInfo, kind: UsmKind) -> tuple[int, int]:
        """Return DLPack's (device type, device id) for memory of that kind. The device type comes from the vendor's
        record (`dlpack_type`).
        """
        record = adapters.record(self.backend)
        assert record is not None
        number = record.dlpack_type(kind)
        return number, 0 if adapters.on_host(number) else device.ordinal
