"""Physical memory and reserved address ranges of vendors that implement `VirtualMemory`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, final

from xpushare._native import End
from xpushare.adapters.base import Access, DriverPhysical, DriverRange, Export, Import
from xpushare.adapters.stream.background import Job, quietly
from xpushare.adapters.stream.memory import ALLOCATION, read_head
from xpushare.adapters.virtual_memory.engine import Engine, VirtualMemory
from xpushare.adapters.virtual_memory.memory import AllocationFd, require_shareable
from xpushare.common.errors import (
    DeviceError,
    FeatureNotSupportedError,
    InvalidArgumentError,
    InvalidHandleError,
    XpuShareError,
)
from xpushare.common.fds import OwnedFd

__all__ = ["AddressRange", "PhysicalPages"]


@final
class PhysicalPages(DriverPhysical):
    """An allocation of physical memory. The fd of an imported allocation stays open, so that the allocation can be
    exported again.
    """

    def __init__(self, device: VirtualMemory, handle: Any, nbytes: int, location: int, fd: OwnedFd | None) -> None:
        self._device = device
        self._fd = AllocationFd(fd)
        self.handle = handle
        self.nbytes = nbytes
        self.location = location

    @classmethod
    def create(cls, device: VirtualMemory, nbytes: int, shareable: bool) -> PhysicalPages:
        doing = f"creating {nbytes} bytes of physical memory on {device}"
        if shareable:
            require_shareable(device, doing)
        with device.current():
            handle = device.create(doing, nbytes, shareable)
        return cls(device, handle, nbytes, device.ordinal, None)

    @classmethod
    def imported(cls, engine: Engine, device: VirtualMemory, what: Import) -> PhysicalPages:
        doing = f"importing {what.nbytes} bytes of physical memory on {device}"
        kind, origin = read_head(doing, what)
        if len(what.fds) != 1 or kind != ALLOCATION or what.nbytes != what.exposed_nbytes:
            raise InvalidHandleError(f"{doing}: the exporter's table contradicts itself")
        with device.current():
            handle = device.import_fd(doing, what.fds[0].number, origin)
            with End(quietly, device.release, doing, handle):
                location = device.location(doing, handle)
                if not device.reaches(location):
                    where = engine.devices()[location]
                    raise FeatureNotSupportedError(f"{doing}: it is memory of {where}, which it cannot reach")
                _check_size(device, doing, handle, what.nbytes)
                return cls(device, handle, what.nbytes, location, OwnedFd(what.fds[0]))

    def export(self) -> Export:
        return self._fd.export(self._device, self.nbytes, self.nbytes, self._make_fd)

    def _make_fd(self) -> int:
        with self._device.current():
            return self._device.export_fd(f"exporting {self.nbytes} bytes of physical memory", self.handle)

    def release(self) -> None:
        self._device.release("releasing physical memory", self.handle)  # mappings keep the pages
        self._fd.close()


def _check_size(device: VirtualMemory, doing: str, handle: Any, nbytes: int) -> None:
    """Check the size of an import by mapping it. The import does not report its size, but the driver refuses to map
    more than the allocation has.
    """
    address = device.reserve(doing, nbytes, 0)
    try:
        device.map(doing, address, nbytes, handle)
        quietly(device.unmap, doing, address, nbytes)
    except XpuShareError as error:
        if error.native not in device.codes.wrong_size:
            raise
        raise InvalidHandleError(
            f"{doing}: the exporter's table says {nbytes} bytes, its memory has another size"
        ) from error
    finally:
        quietly(device.free, doing, address, nbytes)


@final
class AddressRange(DriverRange):
    """Reserved addresses. `unmap` returns at once, but the driver keeps the memory mapped until no work uses it. A new
    mapping at the same addresses waits until the old mapping has been removed.
    """

    host_accessible = False

    def __init__(self, engine: Engine, device: VirtualMemory, nbytes: int, address: int) -> None:
        doing = f"reserving {nbytes} bytes of addresses" + (f" at {address:#x}" if address else "")
        self._engine = engine
        self._device = device
        # Start of each mapping -> device whose memory it is, bytes. An interrupted call may leave an entry for what is
        # not mapped, but never a mapping without an entry here or in `_leaving`.
        self._locations: dict[int, tuple[int, int]] = {}
        self._leaving: dict[int, tuple[int, Job]] = {}  # start -> (bytes, its teardown, which may not have begun)
        with device.current():
            found = device.reserve(doing, nbytes, address)
            if address and found != address:
                quietly(device.free, doing, found, nbytes)
                raise InvalidArgumentError(f"{doing}: these addresses are taken (the driver offers {found:#x})")
        self.address = found
        self.nbytes = nbytes

    def map(self, at: int, physical: DriverPhysical, offset: int, nbytes: int, access: Access) -> None:
        doing = f"mapping {nbytes} bytes"
        if not isinstance(physical, PhysicalPages):
            raise InvalidArgumentError(f"{doing}: this physical memory is not of this device's backend")
        if offset or nbytes != physical.nbytes:
            raise InvalidArgumentError(f"{doing}: this device maps whole physical memory objects only")
        self._wait_for_teardown(at, nbytes)
        device, address, location = self._device, self.address + at, physical.location
        again = at in self._locations
        self._locations[at] = location, nbytes
        with device.current():
            if again:  # if an interrupted call has mapped it, the driver can set the access
                with suppress(DeviceError):
                    self._engine.peer_access.grant(device, doing, address, nbytes, location, access)
                    return
            try:
                device.map(doing, address, nbytes, physical.handle)
            except XpuShareError:
                del self._locations[at]
                raise
            with End(self._locations.pop, at), End(quietly, device.unmap, doing, address, nbytes):
                if access != "none":  # a new mapping has none
                    self._engine.peer_access.grant(device, doing, address, nbytes, location, access)

    def _wait_for_teardown(self, at: int, nbytes: int) -> None:
        """Wait until earlier mappings at these addresses are torn down."""
        self._begin_teardown(at, nbytes)
        for job in self._torn_down(at, nbytes):
            while not job.done.wait(0.05):  # in short pieces, so that Ctrl-C works
                pass
        for start in [start for start, (_, job) in self._leaving.items() if job.done.is_set()]:
            del self._leaving[start]

    def _torn_down(self, at: int, nbytes: int) -> list[Job]:
        return [job for start, (size, job) in self._leaving.items() if start < at + nbytes and at < start + size]

    def unmap(self, at: int, nbytes: int) -> None:
        for start, (_, size) in list(self._locations.items()):
            if at <= start < at + nbytes:
                if start not in self._leaving:
                    job = self._engine.teardown.job(self._device, self._take_down, self.address + start, size)
                    self._leaving[start] = size, job
                del self._locations[start]
        self._begin_teardown(at, nbytes)

    def _begin_teardown(self, at: int, nbytes: int) -> None:
        """Begin the teardowns of these bytes. An interrupt may have come between the record of a teardown and its
        beginning, so they are begun again.
        """
        for job in self._torn_down(at, nbytes):
            self._engine.teardown.begin(job)

    def _take_down(self, address: int, nbytes: int) -> None:
        self._engine.peer_access.forget(address, nbytes)
        self._device.unmap(f"unmapping {nbytes} bytes", address, nbytes)

    def set_access(self, at: int, nbytes: int, access: Access) -> None:
        doing = f"setting the access of {nbytes} bytes"
        mapped = [(start, *found) for start, found in self._locations.items()]
        with self._device.current():
            for start, location, size in mapped:
                low, high = max(at, start), min(at + nbytes, start + size)
                if low < high:
                    self._engine.peer_access.grant(
                        self._device, doing, self.address + low, high - low, location, access
                    )

    def release(self) -> None:
        self.unmap(0, self.nbytes)
        device = self._device  # the addresses are freed after all teardowns that were submitted before
        self._engine.teardown.submit(device, device.free, "giving addresses back", self.address, self.nbytes)
