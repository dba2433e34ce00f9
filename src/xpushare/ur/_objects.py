"""The handles of `xpushare.ur`, which are reference-counted wrappers around objects of `xpushare`, and the tables in
which the object at an address is found.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right, insort
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, NoReturn, Self, final

from xpushare.common.result import Result
from xpushare.core.device import Context as SharedContext
from xpushare.core.device import Device as SharedDevice
from xpushare.core.device import devices as shared_devices
from xpushare.core.device import devices_of_backends
from xpushare.core.memory import HostBytes, Range, host_bytes
from xpushare.objects.lifecycle import use
from xpushare.sharing import node
from xpushare.ur._error import URError

if TYPE_CHECKING:
    from xpushare.adapters.base import Profile
    from xpushare.core.event import Opened
    from xpushare.objects.event import Event as SharedEvent
    from xpushare.objects.memory import Memory
    from xpushare.objects.physical_memory import PhysicalMemory, VirtualRange
    from xpushare.objects.queue import Queue as WorkQueue
    from xpushare.ur._callbacks import LogSink
    from xpushare.ur._enums import Command

__all__ = [
    "HANDLES",
    "Adapter",
    "Context",
    "Counted",
    "Device",
    "Event",
    "Mapped",
    "Mem",
    "PhysicalMem",
    "Places",
    "Platform",
    "Queue",
    "USMPool",
    "adapters",
    "device_of",
    "places",
    "selected_by_loader",
]

_lock = threading.RLock()


class Counted:
    """The base class of handles, with Unified Runtime's reference count. A handle becomes invalid when the count
    reaches 0, even if the program still has the Python object.

    Most subclasses have an attribute `shared`, which is the object of `xpushare` that the handle wraps.
    """

    __slots__ = ("__weakref__", "references")

    references: int
    dead: ClassVar[Result]
    """The result code of a function that gets a released handle, or an object of another class."""

    @property
    def backend(self) -> str:
        raise NotImplementedError

    def __new__(cls, *_args: object, **_options: object) -> Self:
        raise TypeError(f"ur.{cls.__name__} objects are made by the functions of xpushare.ur")

    @classmethod
    def _new(cls) -> Self:
        self = object.__new__(cls)
        self.references = 1
        return self

    def retain(self) -> None:
        with _lock:
            if not self.references:
                raise URError(f"{self!r} was released before", result=self.dead)
            self.references += 1

    def take(self) -> None:
        """Add a reference. Unlike `retain`, this is allowed while the count is 0."""
        with _lock:
            self.references += 1

    def release(self) -> None:
        with _lock:
            if not self.references:
                raise URError(f"{self!r} was released before", result=self.dead)
            self.references -= 1
            last = not self.references
        if last:
            self._end()

    def _end(self) -> None:
        """Close the wrapped object. Called after the last reference has been released."""

    def _about(self) -> str:
        return ""

    def __repr__(self) -> str:
        state = "" if self.references else " released"
        return f"<ur.{type(self).__name__} {self.backend}{self._about()}{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a ur.{type(self).__name__} belongs to its process: send IPC handle data")


@final
class Adapter(Counted):
    """`ur_adapter_handle_t`: a driver adapter, which provides the devices of one backend."""

    __slots__ = ("_backend", "log", "platform")

    dead = Result.ERROR_INVALID_VALUE
    _backend: str
    platform: Platform
    log: LogSink | None

    @classmethod
    def make(cls, backend: str) -> Adapter:
        self = cls._new()
        self._backend = backend
        self.references = 0
        self.log = None
        self.platform = Platform.make(self)
        return self

    @property
    def backend(self) -> str:
        return self._backend


@final
class Platform(Counted):
    """`ur_platform_handle_t`: the platform of an adapter, with all its devices. Each adapter has one platform."""

    __slots__ = ("adapter",)

    dead = Result.ERROR_INVALID_PLATFORM
    adapter: Adapter

    @classmethod
    def make(cls, adapter: Adapter) -> Platform:
        self = cls._new()
        self.adapter = adapter
        return self

    @property
    def backend(self) -> str:
        return self.adapter.backend


@final
class Device(Counted):
    """`ur_device_handle_t`: a device. `shared` is the `xpushare.Device` that it wraps."""

    __slots__ = ("platform", "shared")

    dead = Result.ERROR_INVALID_DEVICE
    shared: SharedDevice
    platform: Platform

    @classmethod
    def make(cls, device: SharedDevice, platform: Platform) -> Device:
        self = cls._new()
        self.shared = device
        self.platform = platform
        return self

    @property
    def backend(self) -> str:
        return self.shared.backend

    def release(self) -> None:
        """Release a reference. The last reference is never released, since a device lives until the process exits."""
        if self.references > 1:
            super().release()

    def _about(self) -> str:
        return f":{self.shared.ordinal} {self.shared.name}"


@final
class Context(Counted):
    """`ur_context_handle_t`: a group of devices of one platform that can use the same objects."""

    __slots__ = ("chosen_pools", "default_pools", "devices", "shared")

    dead = Result.ERROR_INVALID_CONTEXT
    shared: SharedContext
    devices: tuple[Device, ...]
    default_pools: dict[Device, USMPool]
    chosen_pools: dict[Device, USMPool]
    """The pools that `urUSMPoolSetDevicePoolExp` has set, by device."""

    @classmethod
    def make(cls, devices: tuple[Device, ...]) -> Context:
        self = cls._new()
        self.shared = SharedContext([each.shared for each in devices])
        self.devices = devices
        self.default_pools = {}
        self.chosen_pools = {}
        return self

    def default_pool(self, device: Device) -> USMPool:
        """Return the device's default pool, which always exists."""
        with _lock:
            found = self.default_pools.get(device)
            if found is None or not found.references:
                found = self.default_pools[device] = USMPool.make(self, 0, device)
            return found

    def pool(self, device: Device) -> USMPool:
        """Return the pool from which `urEnqueueUSMDeviceAllocExp` allocates memory of a device if its caller passes no
        pool.
        """
        found = self.chosen_pools.get(device)
        return found if found is not None and found.references else self.default_pool(device)

    def _end(self) -> None:
        self.default_pools.clear()
        self.chosen_pools.clear()

    @property
    def backend(self) -> str:
        return self.devices[0].backend

    def _about(self) -> str:
        return ":" + ",".join(str(each.shared.ordinal) for each in self.devices)


@final
class Queue(Counted):
    """`ur_queue_handle_t`: an in-order queue."""

    __slots__ = ("context", "device", "flags", "profiling", "shared", "timelines")

    dead = Result.ERROR_INVALID_QUEUE
    shared: WorkQueue
    context: Context
    device: Device
    flags: int
    """The flags with which the queue was created."""
    profiling: bool
    timelines: list[Opened]
    """The timelines (events that only this queue signals) of the commands that native code has enqueued. Native code
    uses the last one.
    """

    @classmethod
    def make(cls, context: Context, device: Device, queue: WorkQueue, flags: int, profiling: bool) -> Queue:
        self = cls._new()
        self.context = context
        self.device = device
        self.shared = queue
        self.flags = flags
        self.profiling = profiling
        self.timelines = []
        return self

    @property
    def backend(self) -> str:
        return self.device.backend

    def _about(self) -> str:
        return f":{self.device.shared.ordinal} at {id(self):#x}"

    def _end(self) -> None:
        self.shared.close()


@final
class PhysicalMem(Counted):
    """`ur_physical_mem_handle_t`: physical memory, which has no address until it is mapped."""

    __slots__ = ("context", "device", "shared")

    dead = Result.ERROR_INVALID_MEM_OBJECT
    shared: PhysicalMemory
    context: Context
    device: Device

    @classmethod
    def make(cls, context: Context, device: Device, memory: PhysicalMemory) -> PhysicalMem:
        self = cls._new()
        self.context = context
        self.device = device
        self.shared = memory
        return self

    @property
    def backend(self) -> str:
        return self.device.backend

    def _about(self) -> str:
        return f":{self.device.shared.ordinal} {self.shared!r}"

    def _end(self) -> None:
        self.shared.close()


@final
class Event(Counted):
    """`ur_event_handle_t`: an event, which belongs to one command or is reusable."""

    __slots__ = (
        *("command", "context", "failed_on", "native", "point", "profile", "queue", "reusable", "shared", "started"),
    )

    dead = Result.ERROR_INVALID_EVENT
    shared: SharedEvent
    point: int | None
    """The number of the signal of `shared` that this event stands for, or None for the newest signal."""
    context: Context
    reusable: bool
    command: Command
    """The kind of command whose end this event reports."""
    queue: Queue | None
    """The queue in which this process enqueued the command. None if another process enqueued it, or if there was no
    command yet.
    """
    failed_on: Queue | None
    """The queue of a command that was lost, until the program has learned of the loss from this event."""
    profile: Profile | None
    started: Profile | None
    """The times of the marker that was enqueued before the command. It is None if the command does no work, or if the
    queue has no profiling.
    """
    native: tuple[int, int, object] | None
    """The handle of a driver event that the program passed in or received, the number of the signal to which it
    belongs, and an object that keeps it alive.
    """

    @classmethod
    def make(cls, context: Context, event: SharedEvent, command: Command, reusable: bool) -> Event:
        self = cls._new()
        self.context = context
        self.shared = event
        self.command = command
        self.reusable = reusable
        self.queue = self.failed_on = self.profile = self.started = self.native = self.point = None
        return self

    @property
    def backend(self) -> str:
        return self.context.backend

    def _about(self) -> str:
        return f" {self.shared!r}"

    def _end(self) -> None:
        self.shared.close()
        self.native = None


@final
class Mem(Counted):
    """`ur_mem_handle_t`: a buffer, or a part of another buffer."""

    __slots__ = ("_bytes", "context", "flags", "is_part", "maps", "nbytes")

    dead = Result.ERROR_INVALID_MEM_OBJECT
    _bytes: Memory | Range
    """The buffer's memory: a `Memory` that the buffer owns, or a `Range` of the program's own memory."""
    context: Context
    nbytes: int
    flags: int
    """How kernels may use the buffer (`MemFlags`)."""
    is_part: bool
    """Whether the buffer is a part of another buffer (`urMemBufferPartition`)."""
    maps: dict[int, list[Mapped]]
    """The parts of the buffer that are mapped for the program, by address."""

    @classmethod
    def make(cls, context: Context, memory: Memory | Range, nbytes: int, flags: int, is_part: bool) -> Mem:
        self = cls._new()
        self.context = context
        self._bytes = memory
        self.nbytes = nbytes
        self.flags = flags
        self.is_part = is_part
        self.maps = {}
        return self

    @property
    def backend(self) -> str:
        return self.context.backend

    @property
    def piece(self) -> Range:
        """The range of memory that the buffer covers, for operations on memory."""
        return self._bytes if isinstance(self._bytes, Range) else use(self._bytes)

    def _about(self) -> str:
        return f" of {self.nbytes} bytes"

    def _end(self) -> None:
        self.maps.clear()
        if not isinstance(self._bytes, Range):
            self._bytes.close()


class Mapped(NamedTuple):
    """A part of a buffer that is mapped, so that the program can access it at an address."""

    offset: int
    nbytes: int
    flags: int
    staged: Range | None
    """The copy of the bytes that the program accesses, or None if it accesses the buffer itself."""


@final
class USMPool(Counted):
    """`ur_usm_pool_handle_t`: a pool of USM memory. It only counts the bytes that are allocated from it."""

    __slots__ = ("context", "device", "flags", "most", "threshold", "used")

    dead = Result.ERROR_INVALID_VALUE
    context: Context
    device: Device | None
    """The device for which the pool was created, or None for all devices of the context."""
    flags: int
    used: int
    """How many bytes are allocated from the pool."""
    most: int
    """The highest value of `used` so far."""
    threshold: int
    """How many bytes of freed memory the pool may cache. This is only stored, since pools cache no freed memory."""

    @classmethod
    def make(cls, context: Context, flags: int, device: Device | None = None) -> USMPool:
        self = cls._new()
        self.context = context
        self.device = device
        self.flags = flags
        self.used = self.most = self.threshold = 0
        return self

    @property
    def backend(self) -> str:
        return self.context.backend

    def count(self, nbytes: int) -> None:
        """Record an allocation of `nbytes`, or a free if `nbytes` is negative."""
        with _lock:
            self.used += nbytes
            self.most = max(self.most, self.used)

    def begin_anew(self) -> None:
        """Reset the pool's peak size to the current size."""
        with _lock:
            self.most = self.used


HANDLES: Final[Mapping[str, type[Counted]]] = {
    "adapter": Adapter,
    "platform": Platform,
    "device": Device,
    "context": Context,
    "queue": Queue,
    "event": Event,
    "physical_mem": PhysicalMem,
    "mem": Mem,
    "usm_pool": USMPool,
}
"""The classes of handles, by their kinds."""

# --- adapters, platforms and devices: one object each, so that queries return the original objects ---

_adapters: Final[dict[str, Adapter]] = {}
_devices: Final[dict[SharedDevice, Device]] = {}


def device_of(device: SharedDevice) -> Device:
    """Return the handle for an `xpushare.Device`. The same device always has the same handle."""
    found = _devices.get(device)
    if found is None:
        with _lock:
            adapter = _adapters.get(device.backend)
            if adapter is None:
                adapter = _adapters[device.backend] = Adapter.make(device.backend)
            found = _devices.get(device)
            if found is None:
                found = _devices[device] = Device.make(device, adapter.platform)
    return found


_loader_selects: Final = ContextVar("loader_selects", default=False)


def selected_by_loader(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function `call` for use by Unified Runtime's loader. `ONEAPI_DEVICE_SELECTOR` hides no devices inside
    the call, since the loader itself applies the variable.
    """

    def answer(*arguments: Any) -> Any:
        before = _loader_selects.set(True)
        try:
            return call(*arguments)
        finally:
            _loader_selects.reset(before)

    return answer


def adapters() -> dict[Adapter, list[Device]]:
    """Return the adapters that have devices in this process, each with a list of these devices."""
    found: dict[Adapter, list[Device]] = {}
    for device in map(device_of, devices_of_backends() if _loader_selects.get() else shared_devices()):
        found.setdefault(device.platform.adapter, []).append(device)
    return found


# --- addresses ------------------------------------------------------------------------------------


@final
class Places:
    """Tables of the objects at the addresses that functions of `xpushare.ur` have returned. The keys are the first
    addresses of the objects.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # re-entrant: a finalizer that the garbage collector runs may call us
        self.allocated: dict[int, Memory] = {}
        self.opened: dict[int, dict[Memory, None]] = {}  # in the order of opening
        self.ranges: dict[int, VirtualRange] = {}
        self.registered: dict[int, HostBytes] = {}
        self.pools: dict[int, USMPool] = {}  # allocations from a pool
        self._starts: list[int] = []
        self._mapped: dict[int, Any] = {}  # opened allocations, reserved ranges and registered memory

    def add(self, found: Any) -> None:
        """Add opened memory, a reserved range or registered memory, so that `locate` finds it. The caller holds the
        lock.
        """
        if found.address not in self._mapped:
            insort(self._starts, found.address)
            self._mapped[found.address] = found

    def remove(self, found: Any) -> None:
        """Remove an object that `add` added, even if the object is still alive. The caller holds the lock."""
        start: int = found.address
        if start in self._mapped and self._mapped[start] is found:
            del self._mapped[start]
            self._starts.pop(bisect_right(self._starts, start) - 1)

    def locate(self, address: int) -> Any | None:
        """Return the allocation or reserved range that contains `address`, or None if there is none."""
        allocation = node.current().allocations.find(address)
        if allocation is not None:
            return allocation
        with self.lock:
            at = bisect_right(self._starts, address) - 1
            if at < 0:
                return None
            found = self._mapped[self._starts[at]]
        return found if address < found.address + found.nbytes else None

    def find(self, address: int) -> Range:
        """Return the memory from `address` to the end of its allocation or range. This also finds memory that was
        allocated without `xpushare.ur`. Raise `ERROR_INVALID_MEM_OBJECT` for an unknown address.
        """
        found = self.known(address)
        if found is None:
            raise URError(
                f"{address:#x} lies in no memory that this process allocated or reserved, or opened by urIPCOpen…",
                result=Result.ERROR_INVALID_MEM_OBJECT,
            )
        return found

    def known(self, address: int) -> Range | None:
        """Return the same memory as `find`, or None for an unknown address."""
        exact = self.allocated.get(address)
        if exact is not None:
            return use(exact)
        allocation = self.locate(address)
        if allocation is None:
            return None
        start: int = allocation.address
        memory = self.allocated.get(start)
        if memory is None:
            with self.lock:
                memory = next(reversed(self.opened.get(start, {})), None)
        known = None if memory is None else use(memory)
        read_only, handle = (False, None) if known is None else (known.read_only, known.handle)
        device: SharedDevice = allocation.device
        offset = address - start
        return Range(allocation, offset, allocation.nbytes - offset, device, device.context, read_only, handle, None)

    def operand(self, address: int, size: int, device: SharedDevice, context: SharedContext) -> Range:
        """Return the memory from `address` on, for a command that uses `size` bytes of it. If `find` does not know the
        address, return ordinary memory of this process. Raise `URError` if fewer bytes are available.
        """
        found = self.known(address)
        if found is None:
            found = host_bytes(address, size, device, context)
        if found is None:
            raise URError(f"this process has no {size} bytes at {address:#x}", result=Result.ERROR_INVALID_MEM_OBJECT)
        if size > found.nbytes:
            raise URError(
                f"{size} bytes from {address:#x} on exceed the allocation, which ends after {found.nbytes}",
                result=Result.ERROR_INVALID_SIZE,
            )
        return found

    def range_at(self, address: int) -> VirtualRange:
        """Return the reserved range of virtual addresses that contains `address`."""
        reserved = self.locate(address)
        found = None if reserved is None else self.ranges.get(reserved.address)
        if found is None:
            raise URError(f"{address:#x} lies in no reserved range", result=Result.ERROR_INVALID_VALUE)
        return found


places = Places()
_parents: Final[list[Places]] = []


def _after_fork() -> None:
    global places, _lock
    _parents.append(places)  # the child must not end the parent's objects
    places = Places()
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
