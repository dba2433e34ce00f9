"""The Vulkan adapter. It implements only the parts of the driver contract that need no driver in this process.

Vulkan exports and imports device memory by opaque file descriptors. This process cannot map such memory. It reserves an
inaccessible range of addresses for it instead, so that parts of the memory can be identified by address, like parts of
other memory.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from typing import Any, Final, Literal, NoReturn, final
from weakref import WeakValueDictionary

from xpushare._native import Domain
from xpushare.adapters import base
from xpushare.adapters.base import DeviceInfo, DriverMemory, Export, Form, Import, Same, UsmKind
from xpushare.common import system
from xpushare.common.aspects import Aspect, Support
from xpushare.common.errors import FeatureNotSupportedError, InvalidArgumentError, InvalidHandleError, from_os_error
from xpushare.common.fds import OwnedFd

__all__ = ["OpaqueMemory", "Vulkan", "origin_of"]

_numbers: Final = itertools.count(1)


def origin_of(doing: str, what: Import) -> tuple[str, str]:
    """Return the uuids of the exporter's driver and device, which follow the first byte in the payload of
    `OpaqueMemory.export`.
    """
    if len(what.payload) != 33:
        raise InvalidHandleError(f"{doing}: the exporter's table does not say its driver and device")
    return str(uuid.UUID(bytes=what.payload[1:17])), str(uuid.UUID(bytes=what.payload[17:]))


@final
class OpaqueMemory(DriverMemory):
    """An allocation behind an opaque file descriptor. Either this program has exported the allocation, or another
    process has exported it and this program can import it.
    """

    host_accessible = False
    lasting_export = True

    def __init__(self, device: DeviceInfo, fd: OwnedFd, exposed_nbytes: int, nbytes: int, dedicated: bool) -> None:
        """Take over `fd`. This memory is the first `nbytes` of an allocation of `exposed_nbytes`."""
        try:
            self._place = system.Reservation(exposed_nbytes, 0)
        except OSError as error:
            raise from_os_error(error, f"reserving {exposed_nbytes} bytes of addresses") from error
        self.device = device
        self.fd = fd
        self.dedicated = dedicated
        self.exposed_nbytes = exposed_nbytes
        self.address = self._place.address
        self.nbytes = nbytes
        self.number = next(_numbers)

    def export(self, read_only: bool) -> Export:
        if read_only:
            raise FeatureNotSupportedError("neither Vulkan nor CUDA can import Vulkan's memory read-only")
        origin = uuid.UUID(self.device.driver_uuid).bytes + uuid.UUID(self.device.uuid).bytes
        payload = bytes([self.dedicated]) + origin
        return Export(self.nbytes, self.exposed_nbytes, (self.fd.number,), payload=payload, form=Form.OPAQUE_FD)

    def release(self) -> None:
        """Do nothing. The descriptor and the addresses are released with this object, to which the program may still
        have a reference.
        """


_WHY: Final = "the program does that with Vulkan itself: only its memory and its semaphores pass here"
_SUPPORT: Final = {
    Aspect.ext_oneapi_ipc_memory: "Vulkan exports and imports opaque file descriptors",
    Aspect.foreign_memory: "all memory here is the program's",
    Aspect.outlives_exporter: "the kernel counts the references on an allocation",
}


def _refuse(doing: str) -> NoReturn:
    raise FeatureNotSupportedError(f"{doing}: {_WHY}")


@final
class Vulkan(base.Adapter):
    """The adapter of the devices that a Vulkan program of this process has named."""

    backend = "vulkan"
    maps_memfds = False
    has_streams = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._devices: list[DeviceInfo] = []
        self._offered: WeakValueDictionary[int, OpaqueMemory] = WeakValueDictionary()  # by address

    def name_device(
        self, device_uuid: bytes, driver_uuid: bytes, name: str, kind: Literal["cpu", "gpu", "accelerator"]
    ) -> DeviceInfo:
        """Return the device that has these uuids in its VkPhysicalDeviceIDProperties, and list it from now on."""
        device, driver = str(uuid.UUID(bytes=device_uuid)), str(uuid.UUID(bytes=driver_uuid))
        with self._lock:
            known = next((each for each in self._devices if each.uuid == device), None)
            if known is None:
                known = DeviceInfo(self.backend, len(self._devices), name, device, kind, "", driver_uuid=driver)
                self._devices.append(known)
        if known.driver_uuid != driver:
            raise InvalidArgumentError(
                f"device {device} was named with driver {known.driver_uuid} before, now with {driver}"
            )
        return known

    def offer(self, device: DeviceInfo, fd: OwnedFd, nbytes: int, dedicated: bool) -> OpaqueMemory:
        """Offer an allocation of the program for export. It can be exported for as long as the returned object
        lives.
        """
        memory = OpaqueMemory(device, fd, nbytes, nbytes, dedicated)
        self._offered[memory.address] = memory
        return memory

    def devices(self) -> list[DeviceInfo]:
        return list(self._devices)

    def why_none(self) -> str:
        return "no Vulkan program here has named a device: xpushare.integrations.vulkan.device"

    def support(self, device: DeviceInfo, aspect: Aspect) -> Support:
        if aspect is Aspect.enforced_read_only:
            return Support("no", "a process that holds the file descriptor of an allocation can write to it")
        return Support("yes", _SUPPORT[aspect]) if aspect in _SUPPORT else Support("no", _WHY)

    def properties(self, device: DeviceInfo) -> base.Properties:
        return base.Properties("", 0, 0, 0, False)

    def granularity(self, device: DeviceInfo, recommended: bool) -> int:
        return system.page_nbytes()

    def dlpack_device(self, device: DeviceInfo, kind: UsmKind) -> tuple[int, int]:
        raise FeatureNotSupportedError(
            "memory that was opened on a Vulkan device has no address: import it with Vulkan "
            "(xpushare.integrations.vulkan.memory_fd), or open it on another device"
        )

    # --- memory --------------------------------------------------------------------------------------------

    def import_memory(self, device: DeviceInfo, what: base.Import) -> base.DriverMemory:
        """Accept another process's memory. The program imports it into Vulkan later, by its file descriptor."""
        doing = f"opening {what.exposed_nbytes} bytes for Vulkan"
        if what.read_only:
            raise FeatureNotSupportedError(f"{doing}: Vulkan cannot import memory read-only")
        if what.exporter is None and (origin := origin_of(doing, what)) != (device.driver_uuid, device.uuid):
            raise FeatureNotSupportedError(
                f"{doing}: an opaque fd can be imported only by the driver and device that made it: it comes from "
                f"driver {origin[0]}, device {origin[1]}, and this is driver {device.driver_uuid}, device {device.uuid}"
            )
        dedicated = what.form is Form.OPAQUE_FD and what.payload[:1] == b"\1"
        return OpaqueMemory(device, OwnedFd(what.only_fd(doing)), what.exposed_nbytes, what.nbytes, dedicated)

    def imports(self, device: DeviceInfo, physical: bool) -> dict[Form, Same]:
        return {} if physical else {Form.VMM_FD: Same.DEVICE}

    def foreign(self, address: int, nbytes: int | None = None) -> base.Foreign | None:
        for memory in list(self._offered.values()):
            if memory.address <= address < memory.address + memory.nbytes:
                offset = address - memory.address
                return base.Foreign(memory, offset, memory.device, "device", memory.number, memory)
        return None

    # --- what Vulkan programs do themselves --------------------------------------------------------------------

    def allocate(self, device: DeviceInfo, kind: UsmKind, nbytes: int) -> base.DriverMemory:
        _refuse("allocating memory on a Vulkan device")

    def physical(self, device: DeviceInfo, nbytes: int, enable_ipc: bool) -> base.DriverPhysical:
        _refuse("creating physical memory on a Vulkan device")

    def import_physical(self, device: DeviceInfo, what: base.Import) -> base.DriverPhysical:
        _refuse("opening physical memory on a Vulkan device")

    def reserve(self, device: DeviceInfo, nbytes: int, address: int) -> base.DriverRange:
        _refuse("reserving addresses of a Vulkan device")

    def reaches(self, device: DeviceInfo, peer: DeviceInfo) -> bool:
        return False

    def queue(self, device: DeviceInfo) -> base.DriverQueue:
        _refuse("making a queue on a Vulkan device")

    def adopt_queue(self, native: object) -> tuple[DeviceInfo, base.DriverQueue] | None:
        return None

    def stream(self, device: DeviceInfo, number: int | None, array: object) -> object | None:
        return None

    def adopt_event(self, native: object) -> tuple[DeviceInfo, Any] | None:
        return None

    def settle(self) -> None:
        pass  # there are no queues

    def adopt_domain(self, device: DeviceInfo, domain: Domain) -> None:
        _refuse("using an event on a Vulkan device")
