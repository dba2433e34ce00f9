"""Physical memory and address ranges."""

from __future__ import annotations

import threading
from typing import Any, final

from xpushare._errors import FeatureNotSupportedError, InvalidArgumentError, InvalidHandleError
from xpushare._fds import OwnedFd
from xpushare.adapters.base import Access, DriverPhysical, DriverRange, Export, Form, Import
from xpushare.adapters.cuda._driver import Gpu
from xpushare.adapters.cuda._later import Job, Later
from xpushare.adapters.cuda._memory import (
    _HEAD,
    VMM,
    allocation_properties,
    export_fd,
    import_fd,
    location_of,
    set_access,
)
from xpushare.adapters.cuda._numbers import Attribute, Error

__all__ = ["AddressRange", "PhysicalPages"]


@final
class PhysicalPages(DriverPhysical):
    """A VMM allocation. An import keeps the fd it came by: that is what it is exported again by."""

    def __init__(self, gpu: Gpu, handle: Any, nbytes: int, location: int, shareable: bool, fd: OwnedFd | None) -> None:
        self._gpu = gpu
        self._lock = threading.Lock()
        self._shareable = shareable
        self._fd = fd
        self.handle = handle
        self.nbytes = nbytes
        self.location = location  # ordinal of the device whose memory it is

    @classmethod
    def create(cls, gpu: Gpu, nbytes: int, shareable: bool) -> PhysicalPages:
        doing = f"creating {nbytes} bytes of physical memory on GPU {gpu.ordinal}"
        if shareable and not gpu.attribute(Attribute.HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED):
            raise FeatureNotSupportedError(f"{doing}: the device has no memory with POSIX fds (attribute 103)")
        with gpu.context.current():
            handle = gpu.driver(doing, "cuMemCreate", nbytes, allocation_properties(gpu, shareable), 0)
        return cls(gpu, handle, nbytes, gpu.ordinal, shareable, None)

    @classmethod
    def imported(cls, gpu: Gpu, what: Import) -> PhysicalPages:
        doing = f"importing {what.nbytes} bytes of physical memory on GPU {gpu.ordinal}"
        payload = what.payload
        if len(what.fds) != 1 or len(payload) < _HEAD.size or _HEAD.unpack_from(payload) != (VMM, what.nbytes):
            raise InvalidHandleError(f"{doing}: the exporter's table contradicts itself")
        with gpu.context.current():
            handle = import_fd(gpu, doing, what.fds[0])
            try:
                location = location_of(gpu, doing, handle)
                if not gpu.reachable_from(location):
                    raise FeatureNotSupportedError(f"{doing}: it is memory of GPU {location}, which it cannot reach")
                _check_size(gpu, doing, handle, what.nbytes)
                fd = OwnedFd(what.fds[0].take())
            except BaseException:
                gpu.driver.api.cuMemRelease(handle)
                raise
        return cls(gpu, handle, what.nbytes, location, True, fd)

    def export(self) -> Export:
        doing = f"exporting {self.nbytes} bytes of physical memory"
        with self._lock:
            if self._fd is None:
                with self._gpu.context.current():
                    self._fd = export_fd(self._gpu, doing, self.handle)
            payload = _HEAD.pack(VMM, self.nbytes)
            return Export(self.nbytes, self.nbytes, (self._fd.number,), 0, payload, form=Form.VMM_FD)

    def release(self) -> None:
        self._gpu.driver("releasing physical memory", "cuMemRelease", self.handle)  # mappings keep the pages
        if self._fd is not None:
            self._fd.close()


def _check_size(gpu: Gpu, doing: str, handle: Any, nbytes: int) -> None:
    """An import carries no size, but the driver maps no more than there is: try."""
    api = gpu.driver.api
    address = int(gpu.driver(doing, "cuMemAddressReserve", nbytes, 0, 0, 0))
    try:
        code = int(api.cuMemMap(address, nbytes, 0, handle, 0)[0])
        if code in (Error.INVALID_VALUE, Error.NOT_SUPPORTED):
            raise InvalidHandleError(f"{doing}: the exporter's table says {nbytes} bytes, its memory has another size")
        if code:
            raise gpu.driver.error(doing, "cuMemMap", code)
        api.cuMemUnmap(address, nbytes)
    finally:
        api.cuMemAddressFree(address, nbytes)


@final
class AddressRange(DriverRange):
    """Reserved addresses. What is unmapped stays mapped until no work uses it; a new mapping over it waits for that."""

    host_accessible = False

    def __init__(self, gpu: Gpu, later: Later, nbytes: int, address: int) -> None:
        doing = f"reserving {nbytes} bytes of addresses" + (f" at {address:#x}" if address else "")
        self._gpu = gpu
        self._later = later
        self._lock = threading.Lock()
        self._locations: dict[int, tuple[int, int]] = {}  # start of each mapping -> device whose memory it is, bytes
        self._leaving: dict[int, tuple[int, Job]] = {}  # start -> (bytes, its teardown)
        with gpu.context.current():
            found = int(gpu.driver(doing, "cuMemAddressReserve", nbytes, 0, address, 0))
            if address and found != address:
                gpu.driver.api.cuMemAddressFree(found, nbytes)
                raise InvalidArgumentError(f"{doing}: these addresses are taken (the driver offers {found:#x})")
        self.address = found
        self.nbytes = nbytes

    def map(self, at: int, physical: DriverPhysical, offset: int, nbytes: int, access: Access) -> None:
        doing = f"mapping {nbytes} bytes"
        if not isinstance(physical, PhysicalPages):
            raise InvalidArgumentError(f"{doing}: this physical memory is not CUDA's")
        if offset or nbytes != physical.nbytes:
            raise InvalidArgumentError(f"{doing}: CUDA maps whole physical memory objects only")
        self._settle(at, nbytes)
        driver = self._gpu.driver
        address = self.address + at
        with self._gpu.context.current():
            driver(doing, "cuMemMap", address, nbytes, 0, physical.handle, 0)
            try:
                if access != "none":  # a new mapping has none
                    set_access(self._gpu, doing, address, nbytes, physical.location, access)
            except BaseException:
                driver.api.cuMemUnmap(address, nbytes)
                raise
        with self._lock:
            self._locations[at] = physical.location, nbytes

    def _settle(self, at: int, nbytes: int) -> None:
        """Wait until what was unmapped from this place has left."""
        with self._lock:
            for start in [start for start, (_, job) in self._leaving.items() if job.wait(0)]:
                del self._leaving[start]
            leaving = [job for start, (size, job) in self._leaving.items() if start < at + nbytes and at < start + size]
        for job in leaving:
            while not job.wait(0.05):  # in pieces, so that Ctrl-C comes through
                pass

    def unmap(self, at: int, nbytes: int) -> None:
        gpu, address = self._gpu, self.address + at

        def take_down() -> None:
            with gpu.context.current():
                gpu.driver.reach.forget(address, nbytes)
                gpu.driver(f"unmapping {nbytes} bytes", "cuMemUnmap", address, nbytes)

        with self._lock:
            self._locations.pop(at, None)
            self._leaving[at] = (nbytes, self._later.do(take_down))

    def set_access(self, at: int, nbytes: int, access: Access) -> None:
        doing = f"setting the access of {nbytes} bytes"
        with self._lock:
            mapped = [(start, *found) for start, found in self._locations.items()]
        gpu = self._gpu
        with gpu.context.current():
            for start, location, size in mapped:
                low, high = max(at, start), min(at + nbytes, start + size)
                if low < high:
                    set_access(gpu, doing, self.address + low, high - low, location, access)

    def release(self) -> None:
        gpu, address, nbytes = self._gpu, self.address, self.nbytes

        def free() -> None:
            with gpu.context.current():
                gpu.driver("giving addresses back", "cuMemAddressFree", address, nbytes)

        self._later.do(free)  # after the unmaps asked for before
