"""One device of a driver, with the hooks that the stream engine calls. Determines, by trying the driver's functions,
how the queues of a device complete signals of events and wait for them.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol, final
from weakref import WeakSet

from xpushare import _native
from xpushare._native import End
from xpushare.adapters.base import Access, Form, OnDemand
from xpushare.adapters.host.memory import page_of_memfd
from xpushare.adapters.level_zero import _bindings as n
from xpushare.adapters.level_zero import _bindings as ze
from xpushare.adapters.level_zero._bindings import Code, Handle
from xpushare.adapters.level_zero._driver import CODES, Driver, Platform
from xpushare.adapters.stream.background import quietly
from xpushare.adapters.stream.driver import address_of
from xpushare.adapters.stream.engine import unreach
from xpushare.adapters.stream.hooks import Device, Feature, QueueCalls, Scope
from xpushare.adapters.virtual_memory.counted import CountedMemory, DriverFds, Pages, fd_nbytes
from xpushare.adapters.virtual_memory.engine import find_origin
from xpushare.common.errors import FeatureNotSupportedError, InvalidHandleError, OutOfMemoryError, XpuShareError

__all__ = ["Gpu", "Stamp", "Words", "try_words"]

_STORE: Final = "zexCommandListAppendWriteToMemory"
_WAIT: Final = {64: "zexCommandListAppendWaitOnMemory64", 32: "zexCommandListAppendWaitOnMemory"}
_HOST: Final = "zeCommandListAppendHostFunction"
_TRIED: Final = 0x123456789ABCDEF0  # these bits show a half-written or torn store
_SECOND: Final = 10**9  # the longest time of a trial, in nanoseconds

# Read by the driver when native code calls it.
_to_host: Final = ze.zex_write_to_mem_desc_t(n.SCOPE_HOST)
_at_least: Final = ze.zex_wait_on_mem_desc_t(n.WAIT_AT_LEAST, n.SCOPE_HOST)
_refuse: Final = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)(
    lambda _function, _data: Code.UNSUPPORTED_FEATURE
)
_called: Final[list[object]] = []  # host functions of trials, which a driver may call late
_refused: Final = ctypes.cast(_refuse, ctypes.c_void_p).value or 0


class Words(NamedTuple):
    """Addresses of the driver's functions that complete signals of events and wait for them. An address is 0 if the
    function did not work on the device.
    """

    host: int = 0
    host_name: str = ""
    store: int = 0
    wait: int = 0
    wait_bits: int = 64
    registered: bool = True  # the driver must be told about the pages first
    lacking: str = ""  # why the device has no events
    slower: str = ""  # what it lacks for the fastest route, and the route that it uses

    def how(self) -> str:
        if self.slower:
            return f"the driver lacks {self.slower}"
        return f"tried: the device stores points, and queues wait on it ({self.wait_bits} bits)"

    def calls(self, handle: int, raw: int, copy: int, fill: int) -> QueueCalls:
        """Return the calls that native code makes on a command list. `handle` is the handle that the loader knows, and
        `raw` is the handle that the driver knows. `copy` and `fill` are functions of the loader.
        """
        function: tuple[int, tuple[int | str, ...]] = (_refused, ("function", "data"))
        if self.host:
            of_loader = self.host_name in ze.FUNCTIONS
            function = (self.host, (handle if of_loader else raw, "function", "data", 0, 0, 0, 0))
        store = (self.store, (raw, address_of(_to_host), "address", "point")) if self.store else None
        value = "point" if self.wait_bits == 64 else "point_low"
        wait = (self.wait, (raw, address_of(_at_least), "address", value, 0)) if self.wait else None
        native: Any = _native.QueueCalls
        made = native(
            function,
            store,
            wait,
            wait_bits=self.wait_bits,
            copy=(copy, ("queue", "to", "from", "nbytes", 0, 0, 0)),
            fills=((fill, ("queue", "to", "value_at", 1, "times", 0, 0, 0)),),
        )
        return QueueCalls(made, self.host_name, _STORE, _WAIT[self.wait_bits])


class _Gpu(Device, Protocol):
    """The members of a device that `try_words` needs to test the driver's functions."""

    platform: Platform
    driver: Driver[Any]

    @property
    def counter_max(self) -> int: ...
    def new_list(self, doing: str) -> int: ...


def try_words(gpu: _Gpu) -> Words:
    """Test the driver's write and wait functions on a command list and a page that are made for the test. Never raises.
    If a function fails, the result contains the reason.
    """
    try:
        with ExitStack() as undo:
            return _try(gpu, undo)
    except (XpuShareError, OSError) as error:
        return Words(lacking=f"a trial that works: {error}")


def _try(gpu: _Gpu, undo: ExitStack) -> Words:
    doing = f"trying events on {gpu}"
    driver, platform = gpu.driver, gpu.platform
    handle = gpu.new_list(doing)
    undo.callback(driver.code, "zeCommandListDestroy", handle)
    raw = driver.raw(doing, Handle.COMMAND_LIST, handle)
    page = page_of_memfd()
    at = page.address + page.nbytes // 2 + 8  # not at the start, where Intel's driver stores whatever the address
    word = ctypes.c_uint64.from_address(at)

    def works(name: str, function: int, *arguments: Any) -> str:
        """Return "" if the driver accepted the call and the command ran, otherwise the reason."""
        kinds = ze.EXTENSIONS.get(name) or ze.FUNCTIONS[name][1]
        code = ctypes.CFUNCTYPE(ctypes.c_uint32, *kinds)(function)(*arguments)
        if not code:
            code = driver.code("zeCommandListHostSynchronize", handle, _SECOND)
        return f"it answers {ze.RESULTS.get(code, hex(code))}" if code else ""

    found = Words(lacking=_HOST)
    for name in (_HOST, "zexCommandListAppendHostFunction"):
        of_loader = name in ze.FUNCTIONS
        host = driver.address(name) if of_loader else platform.extension(name)
        ran: list[object] = []
        callback = ze.HOST_FUNCTION(ran.append)
        _called.append(callback)
        arguments = (ctypes.cast(callback, ctypes.c_void_p), 1, None, None, 0, None)
        why = works(name, host, handle if of_loader else raw, *arguments) if host else "it is missing"
        if ran and not why:
            found = Words(host, name)
            break
        found = Words(lacking=f"functions of the host in order ({name}: {why or 'it did not run'})")
    if found.lacking:
        return found
    store = platform.extension(_STORE)
    if not platform.host_route or not store:
        missing = _STORE if platform.host_route else "a way to use the host's pages in place"
        return found._replace(slower=f"{missing}: host functions complete points")
    why = ""
    for registered in (True, False):
        with ExitStack() as undo:
            if registered:
                gpu.reach(doing, page.address, page.nbytes, False)
                undo.callback(unreach, gpu, doing, page)
            why = works(_STORE, store, raw, address_of(_to_host), at, _TRIED)
            if not why and word.value == _TRIED:
                return _try_wait(gpu, found._replace(store=store, registered=registered), works, raw, at)
            why = why or f"it wrote {word.value:#x}"
    return found._replace(slower=f"a {_STORE} that works ({why}): host functions complete points")


def _try_wait(gpu: _Gpu, found: Words, works: Callable[..., str], raw: int, at: int) -> Words:
    """Try the wait function on a word that is already past the awaited number, so it must return at once."""
    why = ""
    for bits in (64, 32) if gpu.counter_max > 0xFFFFFFFF else (32,):
        wait = gpu.platform.extension(_WAIT[bits])
        why = works(_WAIT[bits], wait, raw, address_of(_at_least), at, 2, None) if wait else "it is missing"
        if not why:
            return found._replace(wait=wait, wait_bits=bits)
    return found._replace(slower=f"a {_WAIT[32]} that works ({why}): queues hold what waits")


_SLOWEST: Final = 1_000_000  # ticks in a second
_TRIAL: Final = 10_000_000_000  # nanoseconds that a trial of the clock may take
_LARGE: Final = 1 << 30  # a size that has pages of the largest kind


class _List(Protocol):
    def finish(self, doing: str) -> None: ...


@final
class Stamp:
    """The memory into which a command list writes the time."""

    def __init__(self, gpu: Gpu, doing: str) -> None:
        self._gpu = gpu
        context, description = gpu.platform.context, ze.ze_host_mem_alloc_desc_t()
        self._address = gpu.driver.made(doing, "zeMemAllocHost", context, description, 8, 8)
        self._noted = ctypes.c_uint64.from_address(self._address)
        self._noted.value = 0
        self.first = gpu.ticks(doing)
        self.since = gpu.nanoseconds(self.first)

    def noting(self, queue: int) -> Sequence[tuple[int, ...]]:
        append = self._gpu.driver.address("zeCommandListAppendWriteGlobalTimestamp")
        return ((append, queue, self._address, 0, 0, 0),)

    def read(self) -> int | None:
        """Return the written time, or None if the device has not written it. The result is right even if the device's
        clock has wrapped around once since this object was made.
        """
        noted = self._noted.value
        if not noted:
            return None
        return self.since + self._gpu.nanoseconds((noted - self.first) & self._gpu.tick_mask)

    def __del__(self) -> None:
        if hasattr(self, "_address") and self._gpu.driver.started:
            self._gpu.driver.code("zeMemFree", self._gpu.platform.context, self._address)


@final
class Gpu(CountedMemory):
    """A root device, with the hooks that the stream engine calls. Unlike in CUDA, no context has to be current for a
    call.
    """

    def __init__(self, platform: Platform, ordinal: int, handle: int, properties: ze.ze_device_properties_t) -> None:
        super().__init__()
        self.platform = platform
        self.driver: Driver[Gpu] = platform.driver
        self.ordinal = ordinal
        self.handle = handle
        self.properties = properties
        self.origin = bytes(properties.uuid)
        self.uuid = str(uuid.UUID(bytes=self.origin))
        self.name: str = properties.name.decode(errors="replace")
        self.codes = CODES
        self.form = Form.DMA_BUF
        self.one_access = False  # Intel's driver (26.27) changes the first mapping only, and reports success
        self.error = self.driver.error
        self.current: Callable[[], Scope] = nullcontext
        self._peers = functools.cache(self._can_access)
        self.streams: WeakSet[_List] = WeakSet()
        self._trying = threading.RLock()
        self._words: Words | None = None
        self._turn = itertools.count()

    def __str__(self) -> str:
        return f"Level Zero device {self.ordinal}"

    def active(self) -> bool:
        return True  # the default context contains every device

    # --- what it has ---------------------------------------------------------------------------------------

    def _asked(self, name: str, into: Any) -> Any:
        return self.driver.asked("asking a device", name, self.handle, into=into)

    @cached_property
    def shares_by_fd(self) -> bool:
        """Whether allocations are exported and imported as file descriptors, without the driver's IPC handles."""
        found = self._asked("zeDeviceGetExternalMemoryProperties", ze.ze_device_external_memory_properties_t())
        return bool(found.memoryAllocationExportTypes & found.memoryAllocationImportTypes & n.DMA_BUF)

    def how_shared(self) -> str:
        return "by file descriptor" if self.shares_by_fd else "by its IPC handles, which begin with a file descriptor"

    @cached_property
    def tiles(self) -> int:
        return len(self.driver.several("asking a device", "zeDeviceGetSubDevices", ctypes.c_void_p, self.handle)) or 1

    @property
    def counter_max(self) -> int:
        """The largest counter value that the hardware compares correctly. If the driver does not report it, 32 bits are
        assumed.
        """
        name, found = "zeDeviceGetCounterBasedEventMaxValue", ctypes.c_uint64()
        answered = self.platform.has(name) and not self.driver.code(name, self.handle, address_of(found))
        return found.value if answered else 0xFFFFFFFF

    @cached_property
    def memory_nbytes(self) -> int:
        kind = ze.ze_device_memory_properties_t
        found = self.driver.several("asking for the memory", "zeDeviceGetMemoryProperties", kind, self.handle)
        return sum(int(each.totalSize) for each in found)

    @cached_property
    def _granularity(self) -> int:
        doing, call = "asking for the granularity", ("zeVirtualMemQueryPageSize", self.platform.context, self.handle)
        return self.driver.asked(doing, *call, _LARGE, into=ctypes.c_size_t()).value

    def granularity(self, recommended: bool) -> int:
        """Return the size of large pages, which is a valid granularity for objects of any size."""
        return self._granularity

    @cached_property
    def _group(self) -> tuple[int, int]:
        """Return (ordinal, number of queues) of the group of engines that our lists use: engines that only copy, or
        else the first group that also computes. On engines that only copy, a waiting list blocks no kernel.
        """
        call, kind = "zeDeviceGetCommandQueueGroupProperties", ze.ze_command_queue_group_properties_t
        copying = [
            (bool(each.flags & n.GROUP_COMPUTE), ordinal, each.numQueues)
            for ordinal, each in enumerate(self.driver.several("asking for engines", call, kind, self.handle))
            if each.flags & (n.GROUP_COPY | n.GROUP_COMPUTE) and each.numQueues
        ]
        if not copying:
            raise FeatureNotSupportedError(f"{self} has no engine that can copy")
        return min(copying)[1:]

    @property
    def words(self) -> Words:
        """How the device's queues complete signals of events and wait for them. Determined once, by trying the driver's
        functions.
        """
        with self._trying:
            if self._words is None:
                self._words = try_words(self)
            return self._words

    def registers_slots(self) -> bool:
        return self.words.registered

    def lacking(self, feature: Feature) -> str:
        if feature == "shareable memory" and self.tiles > 1:
            return (
                f"memory in one piece: each allocation lies on {self.tiles} tiles and would need a file descriptor for "
                "each (ZE_FLAT_DEVICE_HIERARCHY=FLAT makes every tile a device)"
            )
        if feature == "event slots":
            return self.words.lacking
        if feature == "host registration" and not self.platform.host_route:
            return (
                "a way to use the host's pages in place (ZE_extension_external_memmap_sysmem, or "
                "zexDriverImportExternalPointer)"
            )
        if feature == "read-only host registration":
            return "a way to use read-only pages of the host: Level Zero has no flag for it"
        return ""

    def lacks_physical_ipc(self) -> str:
        """Return the feature that is missing for sharing physical memory, or "" if none is."""
        if not self.platform.has("zePhysicalMemGetProperties"):
            return f"zePhysicalMemGetProperties (it is of API {self.platform.version}, 1.15 has it)"
        return self.lacking("shareable memory")

    def listed(self) -> tuple[str, str, str, str, str]:
        """Return the uuid, name, driver version, driver uuid and PCI address for the list of devices."""
        bus, about = ze.ze_pci_ext_properties_t(), self.platform.about
        known = not self.driver.code("zeDevicePciGetPropertiesExt", self.handle, bus)
        pci = f"{bus.domain:04x}:{bus.bus:02x}:{bus.device:02x}.{bus.function:x}" if known else ""
        version = n.driver_version(about.driverVersion)
        return self.uuid, self.name, version, str(uuid.UUID(bytes=bytes(about.uuid))), pci

    # --- lists ---------------------------------------------------------------------------------------------

    def new_list(self, doing: str) -> int:
        """Make an in-order immediate command list. Our lists are spread over the engines in turn."""
        ordinal, queues = self._group
        description = ze.ze_command_queue_desc_t(
            ordinal=ordinal, index=next(self._turn) % queues, flags=n.QUEUE_IN_ORDER, mode=n.QUEUE_ASYNCHRONOUS
        )
        call = "zeCommandListCreateImmediate", self.platform.context, self.handle, description
        return self.driver.made(doing, *call)

    def drain(self) -> None:
        """Wait for the work on the device. If the driver lacks `zeDeviceSynchronize`, this waits only for our own
        command lists, and not for work that other libraries have queued.
        """
        doing, call = f"waiting for the work on {self}", "zeDeviceSynchronize"
        code = self.driver.code(call, self.handle)
        if code == Code.UNSUPPORTED_FEATURE:
            for stream in list(self.streams):
                stream.finish(doing)
        elif code:
            raise self.error(doing, call, code)

    # --- the clock -----------------------------------------------------------------------------------------

    def ticks(self, doing: str) -> int:
        """Return the time of the device's clock, which wraps around after `timestampValidBits` bits."""
        host, found = ctypes.c_uint64(), ctypes.c_uint64()
        self.driver(doing, "zeDeviceGetGlobalTimestamps", self.handle, address_of(host), address_of(found))
        return found.value & self.tick_mask

    @cached_property
    def tick_mask(self) -> int:
        return (1 << (self.properties.timestampValidBits or 64)) - 1

    @cached_property
    def _ticks_per_second(self) -> int:
        """The clock's frequency in Hz, as the driver reports it. A driver older than API 1.2 reports the nanoseconds
        per tick instead, so a value far below a million is not a frequency.
        """
        found = ze.ze_device_properties_t()
        found.stype = n.DEVICE_PROPERTIES_1_2
        return int(self._asked("zeDeviceGetProperties", found).timerResolution)

    def nanoseconds(self, ticks: int) -> int:
        return ticks * 10**9 // self._ticks_per_second

    @cached_property
    def untimed(self) -> str:
        """The feature that is missing for timing signals, or "" if none is. Determined by a test: the time that a
        command list writes must lie between two readings of the clock.
        """
        doing = f"trying the clock of {self}"
        try:
            if self._ticks_per_second < _SLOWEST:
                return "the frequency of its clock (API 1.2)"
            stamp, handle = Stamp(self, doing), self.new_list(doing)
            try:
                address, *arguments = stamp.noting(handle)[0]
                assert address
                self.driver(doing, "zeCommandListAppendWriteGlobalTimestamp", *arguments)
                done = self.driver.ready(doing, "zeCommandListHostSynchronize", handle, _TRIAL)
            finally:
                self.driver.code("zeCommandListDestroy", handle)
            noted, last = stamp.read(), self.ticks(doing)
        except XpuShareError as error:
            return f"a clock: {error}"
        latest = stamp.since + self.nanoseconds((last - stamp.first) & self.tick_mask)
        good = done and noted is not None and stamp.since <= noted <= latest
        return "" if good else "times of its lists by the clock of zeDeviceGetGlobalTimestamps"

    # --- pages of the host ---------------------------------------------------------------------------------

    def reach(self, doing: str, address: int, nbytes: int, read_only: bool) -> None:
        """Let the devices use these pages. If the driver has no way to do that, this does nothing. In that case, the
        pages contain event slots, which only functions on the host access.
        """
        with ExitStack() as undo:
            for platform in self.driver.platforms:
                platform.reach(doing, address, nbytes)
                undo.callback(quietly, platform.unreach, doing, address)
            undo.pop_all()

    def reached(self, doing: str, address: int) -> int:
        return address

    def unreach(self, doing: str, address: int) -> None:
        for platform in self.driver.platforms:
            platform.unreach(doing, address)

    # --- physical memory -----------------------------------------------------------------------------------

    def find_origin(self, doing: str, raw: bytes) -> Gpu:
        return find_origin(self, self.driver.by_uuid, doing, raw)

    def reaches(self, location: int) -> bool:
        return self._peers(location)

    def _can_access(self, location: int) -> bool:
        other = self.driver.gpus()[location]
        if other is self or other.platform is not self.platform:
            return other is self
        call = "zeDeviceCanAccessPeer", self.handle, other.handle
        return bool(self.driver.asked("asking for peer access", *call, into=ctypes.c_uint8()).value)

    def create(self, doing: str, nbytes: int, shareable: bool) -> Pages:
        lacking = self.lacks_physical_ipc()
        if shareable and lacking:
            raise FeatureNotSupportedError(f"{doing}: the driver lacks {lacking}")
        # All memory is made exportable, since mapping it twice requires that, too.
        chained = None if lacking else ze.ze_external_memory_export_desc_t(flags=n.DMA_BUF)
        return self._create(doing, nbytes, chained, DriverFds())

    def _create(self, doing: str, nbytes: int, chained: Any, fds: DriverFds) -> Pages:
        has = self.memory_nbytes
        if nbytes > has:  # Intel's driver (26.27) aborts the process if a size exceeds the device's addresses
            raise OutOfMemoryError(f"{doing}: the device has {has} bytes", native=Code.OUT_OF_DEVICE_MEMORY)
        description = ze.ze_physical_mem_desc_t(chained, flags=n.ON_DEVICE, size=nbytes)
        call = "zePhysicalMemCreate", self.platform.context, self.handle, description
        return Pages(self, self.driver.made(doing, *call), nbytes, fds)

    def import_pages(self, doing: str, nbytes: int, fd: int) -> Pages:
        """Import physical memory. Intel's driver (26.27) keeps the descriptor that it is given. When the memory is
        destroyed, the driver closes that descriptor number.
        """
        with DriverFds() as fds:
            given = ze.ze_external_memory_import_fd_t(flags=n.DMA_BUF, fd=fds.give(doing, fd))
            with End(fds.close):
                return self._create(doing, nbytes, given, fds)

    def destroy_pages(self, doing: str, pages: Pages) -> None:
        with pages.fds:
            self.driver(doing, "zePhysicalMemDestroy", self.platform.context, pages.handle)
            pages.fds.close()  # Intel's driver does not close the descriptors that it has handed out

    def export_fd(self, doing: str, handle: Pages) -> int:
        """Export physical memory as a file descriptor. The driver returns the same descriptor each time and owns it, so
        this method returns a duplicate.
        """
        exported = ze.ze_external_memory_export_fd_t(flags=n.DMA_BUF, fd=-1)
        call = "zePhysicalMemGetProperties", self.platform.context, handle.handle
        self.driver(doing, *call, ze.ze_physical_mem_properties_t(exported))
        with handle.fds:
            return handle.fds.take(doing, exported.fd)

    def export_on_demand(self, handles: Sequence[Pages]) -> OnDemand:
        raise FeatureNotSupportedError("the driver cannot report the physical memory behind another library's mapping")

    def import_fd(self, doing: str, fd: int, origin: bytes) -> Pages:
        """Import physical memory by file descriptor. The size is read from the descriptor, since the driver would
        accept a wrong size.
        """
        nbytes = fd_nbytes(doing, fd)
        if nbytes % self._granularity:
            raise InvalidHandleError(f"{doing}: the exporter's file descriptor has {nbytes} bytes, not whole pages")
        return self.find_origin(doing, origin).import_shared(doing, nbytes, fd)

    def reserve(self, doing: str, nbytes: int, address: int) -> int:
        return self.driver.made(doing, "zeVirtualMemReserve", self.platform.context, address, nbytes)

    def free(self, doing: str, address: int, nbytes: int) -> None:
        self.driver(doing, "zeVirtualMemFree", self.platform.context, address, nbytes)

    def map_pages(self, doing: str, address: int, pages: Pages) -> bool:
        """Map physical memory. Intel's driver can map a physical memory object at only one address at a time."""
        call = "zeVirtualMemMap", self.platform.context, address, pages.nbytes, pages.handle, 0, n.ACCESS["none"]
        code = self.driver.code(*call)
        if code == Code.INVALID_ARGUMENT and pages.original is None and not self.lacks_physical_ipc():
            return False
        if code:
            raise self.error(doing, call[0], code)
        return True

    def unmap_pages(self, doing: str, address: int, nbytes: int) -> None:
        self.driver(doing, "zeVirtualMemUnmap", self.platform.context, address, nbytes)

    def set_access(self, doing: str, address: int, nbytes: int, ordinals: Sequence[int], access: Access) -> None:
        """Set the access for all devices of the context at once."""
        self.driver(doing, "zeVirtualMemSetAccessAttribute", self.platform.context, address, nbytes, n.ACCESS[access])
