"""One device of a driver, and the engine's hooks for it."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, final
from weakref import WeakSet

from xpushare._errors import FeatureNotSupportedError, InvalidHandleError, OutOfMemoryError, XpuShareError
from xpushare.adapters.base import Access, Form, OnDemand
from xpushare.adapters.level_zero import _bindings as ze
from xpushare.adapters.level_zero import _numbers as n
from xpushare.adapters.level_zero._driver import CODES, Driver, Platform, address_of
from xpushare.adapters.level_zero._fds import close_if, duplicate, fd_nbytes, file_of
from xpushare.adapters.level_zero._numbers import Code
from xpushare.adapters.level_zero._words import Words, try_words
from xpushare.adapters.stream.background import quietly
from xpushare.adapters.stream.hooks import Feature, Scope

if TYPE_CHECKING:
    from xpushare.adapters.level_zero._stream import Stream

__all__ = ["Gpu", "Pages"]

_numbers: Final = threading.RLock()  # of the descriptors that a driver has: nobody else gets one while it may be closed
_LARGE: Final = 1 << 30  # a size whose pages are of the largest kind


@dataclass(slots=True)
class Pages:
    """Physical memory. Level Zero frees it with its handle, whatever is mapped, so the last user destroys it."""

    handle: int
    nbytes: int
    location: int  # the ordinal of its device
    users: int = 1  # this handle, and mappings
    fds: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])  # the driver's, and their files
    original: Pages | None = None  # of an import of this process's own memory, which uses its original
    idle: list[Pages] = field(default_factory=list["Pages"])  # such imports that are not mapped now


@final
class Gpu:
    """A root device. Nothing has to be current for any call."""

    def __init__(self, platform: Platform, ordinal: int, handle: int, properties: ze.ze_device_properties_t) -> None:
        self.platform = platform
        self.driver: Driver = platform.driver
        self.ordinal = ordinal
        self.handle = handle
        self.properties = properties
        self.origin = bytes(properties.uuid)
        self.uuid = str(uuid.UUID(bytes=self.origin))
        self.name: str = properties.name.decode(errors="replace")
        self.codes = CODES
        self.form = Form.DMA_BUF
        self.streams: WeakSet[Stream] = WeakSet()
        self._lock = threading.RLock()
        self._words: Words | None = None
        self._peers: dict[int, bool] = {}
        self._mapped: dict[int, Pages] = {}  # by address
        self._turn = itertools.count()

    def __str__(self) -> str:
        return f"Level Zero device {self.ordinal}"

    def error(self, doing: str, call: str, code: int) -> XpuShareError:
        return self.driver.error(doing, call, code)

    def current(self) -> Scope:
        return nullcontext()

    def active(self) -> bool:
        return True  # the default context has every device

    # --- what it has ---------------------------------------------------------------------------------------

    @cached_property
    def external(self) -> ze.ze_device_external_memory_properties_t:
        found = ze.ze_device_external_memory_properties_t()
        self.driver("asking a device", "zeDeviceGetExternalMemoryProperties", self.handle, address_of(found))
        return found

    @cached_property
    def shares_by_fd(self) -> bool:
        """Whether allocations are exported and imported as file descriptors, without the driver's IPC handles."""
        both = self.external.memoryAllocationExportTypes & self.external.memoryAllocationImportTypes
        return bool(both & n.DMA_BUF)

    @cached_property
    def tiles(self) -> int:
        found = ctypes.c_uint32()
        self.driver("asking a device", "zeDeviceGetSubDevices", self.handle, address_of(found), None)
        return max(found.value, 1)

    @cached_property
    def counter_max(self) -> int:
        """The largest number that the hardware compares whole; a driver that does not say it compares 32 bits."""
        found = ctypes.c_uint64()
        answered = self.platform.has("zeDeviceGetCounterBasedEventMaxValue") and not self.driver.code(
            "zeDeviceGetCounterBasedEventMaxValue", self.handle, address_of(found)
        )
        return found.value if answered else 0xFFFFFFFF

    @cached_property
    def _group(self) -> tuple[int, int]:
        """(ordinal, queues) of the engines that our lists use: those that only copy, else the first that copy, too.
        What a list of ours waits for then holds up no kernel.
        """
        groups = self.driver.several(
            "asking for engines",
            "zeDeviceGetCommandQueueGroupProperties",
            ze.ze_command_queue_group_properties_t,
            self.handle,
        )
        copying = [
            (bool(each.flags & n.GROUP_COMPUTE), ordinal, each.numQueues)
            for ordinal, each in enumerate(groups)
            if each.flags & (n.GROUP_COPY | n.GROUP_COMPUTE) and each.numQueues
        ]
        if not copying:
            raise FeatureNotSupportedError(f"{self} has no engine that copies")
        return min(copying)[1:]

    @property
    def words(self) -> Words:
        """How its queues complete and await points; tried once."""
        with self._lock:
            if self._words is None:
                self._words = try_words(self)
            return self._words

    def lacking(self, feature: Feature) -> str:
        if feature == "shareable memory":
            return (
                ""
                if self.tiles == 1
                else (
                    f"memory in one piece: each allocation lies on {self.tiles} tiles and would need a file descriptor "
                    "for each (ZE_FLAT_DEVICE_HIERARCHY=FLAT makes every tile a device)"
                )
            )
        if feature == "event slots":
            return self.words.lacking
        if feature == "host registration":
            return (
                ""
                if self.platform.host_route
                else (
                    "a way to use the host's pages in place (ZE_extension_external_memmap_sysmem, or "
                    "zexDriverImportExternalPointer)"
                )
            )
        return "a way to use read-only pages of the host: Level Zero has no flag for it"

    def lacks_physical_ipc(self) -> str:
        """What the driver lacks to share physical memory."""
        if not self.platform.has("zePhysicalMemGetProperties"):
            return f"the driver has no zePhysicalMemGetProperties (it is of API {self.platform.version}, 1.15 has it)"
        return self.lacking("shareable memory")

    def listed(self) -> tuple[str, str, str, str, str]:
        """What a listing says: uuid, name, the driver's version and uuid, and the address on the PCI bus."""
        bus, about = ze.ze_pci_ext_properties_t(), self.platform.about
        known = not self.driver.code("zeDevicePciGetPropertiesExt", self.handle, address_of(bus))
        pci = f"{bus.domain:04x}:{bus.bus:02x}:{bus.device:02x}.{bus.function:x}" if known else ""
        version = n.driver_version(about.driverVersion)
        return self.uuid, self.name, version, str(uuid.UUID(bytes=bytes(about.uuid))), pci

    def report(self) -> Iterator[tuple[str, str, bool]]:
        """(what, which way it goes or what the driver lacks for it, whether it lacks something), for `doctor`."""
        yield (
            "API",
            f"{self.platform.version}, {'a context of ours' if self.platform.own_context else 'the default context'}",
            self.platform.own_context,
        )
        lacking = self.lacking("shareable memory")
        how = "by file descriptor" if self.shares_by_fd else "by the driver's handles, which begin with one"
        yield "memory", lacking or how, bool(lacking)
        lacking = self.lacks_physical_ipc()
        yield "physical memory", lacking or "by file descriptor", bool(lacking)
        lacking = self.lacking("host registration")
        yield (
            "host memory",
            f"lacks {lacking}" if lacking else f"pages of memfds, {self.platform.host_route}",
            bool(lacking),
        )
        words = self.words
        how = f"the device stores points and compares {words.wait_bits} bits" if words.wait else "host functions"
        yield (
            "events",
            (f"lacks {words.lacking}" if words.lacking else words.slower or how),
            bool(words.lacking or words.slower),
        )

    @cached_property
    def memory_nbytes(self) -> int:
        found = self.driver.several(
            "asking for the memory", "zeDeviceGetMemoryProperties", ze.ze_device_memory_properties_t, self.handle
        )
        return sum(int(each.totalSize) for each in found)

    # --- lists ---------------------------------------------------------------------------------------------

    def new_list(self, doing: str) -> int:
        """An in-order immediate command list of ours; they take the engines in turn."""
        ordinal, queues = self._group
        description = ze.ze_command_queue_desc_t(
            ordinal=ordinal, index=next(self._turn) % queues, flags=n.QUEUE_IN_ORDER, mode=n.QUEUE_ASYNCHRONOUS
        )
        return self.driver.made(
            doing, "zeCommandListCreateImmediate", self.platform.context, self.handle, address_of(description)
        )

    def drain(self) -> None:
        """Without `zeDeviceSynchronize` only our lists are waited for: what other libraries queue is missed."""
        doing = f"waiting for the work on {self}"
        code = self.driver.code("zeDeviceSynchronize", self.handle)
        if code not in (0, Code.UNSUPPORTED_FEATURE):
            raise self.error(doing, "zeDeviceSynchronize", code)
        if code:
            for stream in list(self.streams):
                stream.finish(doing)

    # --- pages of the host ---------------------------------------------------------------------------------

    def reach(self, doing: str, address: int, nbytes: int, read_only: bool) -> None:
        """Without a route the device only ever sees slots, and those through host functions."""
        done: list[Platform] = []
        for platform in self.driver.platforms:
            try:
                platform.reach(doing, address, nbytes)
            except BaseException:
                for each in done:
                    quietly(each.unreach, doing, address)
                raise
            done.append(platform)

    def reached(self, doing: str, address: int) -> int:
        return address

    def unreach(self, doing: str, address: int) -> None:
        for platform in self.driver.platforms:
            platform.unreach(doing, address)

    # --- physical memory -----------------------------------------------------------------------------------

    def find_origin(self, doing: str, raw: bytes) -> Gpu:
        """The device of a peer's memory, which imports it: a device that only reaches it must not."""
        name = str(uuid.UUID(bytes=raw)) if len(raw) == 16 else "unknown"
        found = self.driver.by_uuid(name)
        if found is None:
            raise FeatureNotSupportedError(f"{doing}: the memory is on device {name}, which this process may not see")
        if not self.reaches(found.ordinal):
            raise FeatureNotSupportedError(
                f"{doing}: it is memory of {found}, which {self} cannot reach: open it there"
            )
        return found

    @cached_property
    def _granularity(self) -> int:
        found = ctypes.c_size_t()
        self.driver(
            "asking for the granularity",
            "zeVirtualMemQueryPageSize",
            self.platform.context,
            self.handle,
            _LARGE,
            address_of(found),
        )
        return found.value

    def granularity(self, recommended: bool) -> int:
        """Larger objects have larger pages; what fits those fits every object."""
        return self._granularity

    def reaches(self, location: int) -> bool:
        if location == self.ordinal:
            return True
        found = self._peers.get(location)
        if found is None:
            other = self.driver.gpus()[location]
            answer = ctypes.c_uint8()
            if other.platform is self.platform:
                doing, call = "asking for peer access", "zeDeviceCanAccessPeer"
                self.driver(doing, call, self.handle, other.handle, address_of(answer))
            found = self._peers[location] = bool(answer.value)
        return found

    def create(self, doing: str, nbytes: int, shareable: bool) -> Pages:
        lacking = self.lacks_physical_ipc()
        if shareable and lacking:
            raise FeatureNotSupportedError(f"{doing}: {lacking}")
        # All of it can be exported: `map` needs that, too.
        return self._create(doing, nbytes, None if lacking else ze.ze_external_memory_export_desc_t(flags=n.DMA_BUF))

    def _create(self, doing: str, nbytes: int, chained: Any) -> Pages:
        has = self.memory_nbytes
        if nbytes > has:  # Intel's driver (26.27) aborts the process when a size is beyond the addresses it has
            raise OutOfMemoryError(f"{doing}: the device has {has} bytes", native=Code.OUT_OF_DEVICE_MEMORY)
        description = ze.ze_physical_mem_desc_t(chained, flags=n.ON_DEVICE, size=nbytes)
        context = self.platform.context
        handle = self.driver.made(doing, "zePhysicalMemCreate", context, self.handle, address_of(description))
        return Pages(handle, nbytes, self.ordinal)

    def _import(self, doing: str, nbytes: int, fd: int) -> Pages:
        """Intel's driver (26.27) keeps the descriptor that it gets, and closes that number with the memory."""
        with _numbers:
            given = duplicate(doing, fd, high=True)  # a number that nobody else gets
            file = file_of(given)
            try:
                pages = self._create(doing, nbytes, ze.ze_external_memory_import_fd_t(flags=n.DMA_BUF, fd=given))
            except BaseException:
                close_if(given, file)
                raise
            pages.fds[given] = file
            return pages

    def retain(self, doing: str, address: int) -> Pages:
        with self._lock:
            found = self._mapped[address]
            found.users += 1
            return found

    def release(self, doing: str, handle: Pages) -> None:
        with self._lock:
            handle.users -= 1
            if handle.users:
                return
            if handle.original is not None:
                handle.original.idle.append(handle)
        if handle.original is not None:
            self.release(doing, handle.original)
            return
        for again in handle.idle:
            quietly(self._destroy, doing, again)
        self._destroy(doing, handle)

    def _destroy(self, doing: str, handle: Pages) -> None:
        with _numbers:
            self.driver(doing, "zePhysicalMemDestroy", self.platform.context, handle.handle)
            for fd, file in handle.fds.items():
                close_if(fd, file)  # Intel's driver forgets those that it has given

    def export_fd(self, doing: str, handle: Pages) -> int:
        """The driver answers with one descriptor of its own again and again, so with a copy of it."""
        exported = ze.ze_external_memory_export_fd_t(flags=n.DMA_BUF, fd=-1)
        properties = ze.ze_physical_mem_properties_t(exported)
        context = self.platform.context
        self.driver(doing, "zePhysicalMemGetProperties", context, handle.handle, address_of(properties))
        with _numbers:
            copy = duplicate(doing, exported.fd)
            handle.fds[exported.fd] = file_of(copy)
        return copy

    def export_on_demand(self, handles: Sequence[Pages]) -> OnDemand:
        raise FeatureNotSupportedError("the driver does not find the physical memory behind another library's mapping")

    def import_fd(self, doing: str, fd: int, origin: bytes) -> Pages:
        """The driver would take half or double the size, so it gets what the file descriptor says."""
        nbytes = fd_nbytes(doing, fd)
        if nbytes % self._granularity:
            raise InvalidHandleError(f"{doing}: the exporter's file descriptor has {nbytes} bytes, not whole pages")
        return self.find_origin(doing, origin)._import(doing, nbytes, fd)

    def location(self, doing: str, handle: Pages) -> int:
        return handle.location

    def reserve(self, doing: str, nbytes: int, address: int) -> int:
        return self.driver.made(doing, "zeVirtualMemReserve", self.platform.context, address, nbytes)

    def free(self, doing: str, address: int, nbytes: int) -> None:
        self.driver(doing, "zeVirtualMemFree", self.platform.context, address, nbytes)

    def map(self, doing: str, address: int, nbytes: int, handle: Pages) -> None:
        if nbytes != handle.nbytes:
            said = f"the exporter's table says {nbytes} bytes, its memory has {handle.nbytes}"
            raise InvalidHandleError(f"{doing}: {said}", native=Code.INVALID_SIZE)
        pages = self._map(doing, address, handle)
        with self._lock:
            if pages is handle:
                handle.users += 1
            self._mapped[address] = pages

    def _map(self, doing: str, address: int, pages: Pages) -> Pages:
        """What is mapped. Intel's driver maps an object once only: what is mapped is imported anew, beside itself."""
        call = "zeVirtualMemMap", self.platform.context, address, pages.nbytes, pages.handle, 0, n.ACCESS["none"]
        code = self.driver.code(*call)
        if code == Code.INVALID_ARGUMENT and pages.users > 1 and not self.lacks_physical_ipc():
            again = self._again(doing, pages)
            try:
                return self._map(doing, address, again)
            except BaseException:
                quietly(self.release, doing, again)
                raise
        if code:
            raise self.error(doing, call[0], code)
        return pages

    def _again(self, doing: str, pages: Pages) -> Pages:
        """Another import of pages of this process. Intel's driver (26.27) has one handle of the kernel's for it and for
        the original, and closes that with the first of them. So it stays until the original goes, and is used again.
        """
        with self._lock:
            pages.users += 1
            if pages.idle:
                again = pages.idle.pop()
                again.users = 1
                return again
        try:
            fd = self.export_fd(doing, pages)
            try:
                again = self.driver.gpus()[pages.location]._import(doing, pages.nbytes, fd)
            finally:
                os.close(fd)
        except BaseException:
            quietly(self.release, doing, pages)
            raise
        again.original = pages
        return again

    def unmap(self, doing: str, address: int, nbytes: int) -> None:
        with self._lock:
            pages = self._mapped.pop(address)
        try:
            self.driver(doing, "zeVirtualMemUnmap", self.platform.context, address, nbytes)
        finally:
            self.release(doing, pages)

    def set_access(self, doing: str, address: int, nbytes: int, ordinals: Sequence[int], access: Access) -> None:
        """For all devices of the context at once."""
        self.driver(doing, "zeVirtualMemSetAccessAttribute", self.platform.context, address, nbytes, n.ACCESS[access])
