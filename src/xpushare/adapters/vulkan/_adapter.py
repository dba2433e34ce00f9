"""The adapter: the driver contract, as far as it makes sense without a driver."""

from __future__ import annotations

import threading
import uuid
from typing import Any, Final, Literal, NoReturn, final
from weakref import WeakValueDictionary

from xpushare import _system
from xpushare._aspects import Aspect, Support
from xpushare._errors import FeatureNotSupportedError, InvalidArgumentError, InvalidHandleError
from xpushare._native import Domain
from xpushare.adapters.base import (
    Adapter,
    DeviceInfo,
    DriverMemory,
    DriverPhysical,
    DriverQueue,
    DriverRange,
    Foreign,
    Form,
    Import,
    Properties,
    Same,
    UsmKind,
)
from xpushare.adapters.vulkan._memory import DRIVER_NBYTES, OpaqueMemory, imported

__all__ = ["Vulkan"]

_WHY: Final = "the program does that with Vulkan itself: only its memory and its semaphores pass here"
_SUPPORT: Final = {
    Aspect.ext_oneapi_ipc_memory: "Vulkan exports and imports opaque file descriptors",
    Aspect.foreign_memory: "all memory here is the program's",
    Aspect.outlives_exporter: "the kernel counts the references on an allocation",
}


@final
class Vulkan(Adapter):
    """The devices that a Vulkan program of this process has named."""

    backend = "vulkan"
    maps_memfds = False
    has_streams = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._devices: list[DeviceInfo] = []
        self._offered: WeakValueDictionary[int, Offered] = WeakValueDictionary()  # by address

    def name_device(
        self, device_uuid: bytes, driver_uuid: bytes, name: str, kind: Literal["cpu", "gpu", "accelerator"]
    ) -> DeviceInfo:
        """The device with these uuids of VkPhysicalDeviceIDProperties, listed from now on."""
        text, driver = str(uuid.UUID(bytes=device_uuid)), str(uuid.UUID(bytes=driver_uuid))
        with self._lock:
            for known in self._devices:
                if known.uuid == text:
                    if known.driver_uuid != driver:
                        raise InvalidArgumentError(
                            f"device {text} was named with driver {known.driver_uuid} before, now with {driver}"
                        )
                    return known
            made = DeviceInfo(self.backend, len(self._devices), name, text, kind, "", driver_uuid=driver)
            self._devices.append(made)
            return made

    def offer(self, device: DeviceInfo, memory: OpaqueMemory) -> Offered:
        """Memory that can be exported as long as the answer is held."""
        offered = Offered(device, memory)
        self._offered[memory.address] = offered
        return offered

    def devices(self) -> list[DeviceInfo]:
        return list(self._devices)

    def why_none(self) -> str:
        return "no Vulkan program here has named a device: xpushare.integrations.vulkan.device"

    def support(self, device: DeviceInfo, aspect: Aspect) -> Support:
        if aspect in _SUPPORT:
            return Support("yes", _SUPPORT[aspect])
        if aspect is Aspect.enforced_read_only:
            return Support("no", "whoever holds the file descriptor of an allocation can write to it")
        return Support("no", _WHY)

    def properties(self, device: DeviceInfo) -> Properties:
        return Properties("", 0, 0, 0, False)

    def granularity(self, device: DeviceInfo, recommended: bool) -> int:
        return _system.page_nbytes()

    def dlpack_device(self, device: DeviceInfo, kind: UsmKind) -> tuple[int, int]:
        raise FeatureNotSupportedError(
            "memory that was opened on a Vulkan device has no address: import it with Vulkan "
            "(xpushare.integrations.vulkan.memory_fd), or open it on another device"
        )

    # --- memory --------------------------------------------------------------------------------------------

    def import_memory(self, device: DeviceInfo, what: Import) -> DriverMemory:
        doing = f"opening {what.exposed_nbytes} bytes for Vulkan"
        driver = uuid.UUID(device.driver_uuid).bytes
        if what.read_only:
            raise FeatureNotSupportedError(f"{doing}: Vulkan cannot import memory read-only")
        if what.exporter is None:
            if len(what.payload) != 1 + DRIVER_NBYTES:
                raise InvalidHandleError(f"{doing}: the exporter's table does not say its driver")
            if what.payload[1:] != driver:
                raise FeatureNotSupportedError(
                    f"{doing}: an opaque fd is imported by the same driver only: it is of the driver "
                    f"{uuid.UUID(bytes=what.payload[1:])}, this one is {device.driver_uuid}"
                )
        return imported(doing, what, driver)

    def imports(self, device: DeviceInfo, physical: bool) -> dict[Form, Same]:
        return {} if physical else {Form.VMM_FD: Same.DEVICE}

    def foreign(self, address: int, nbytes: int | None = None) -> Foreign | None:
        for offered in list(self._offered.values()):
            memory = offered.memory
            if memory.address <= address < memory.address + memory.nbytes:
                offset = address - memory.address
                return Foreign(memory, offset, offered.device, "device", offered)
        return None

    # --- what Vulkan programs do themselves --------------------------------------------------------------------

    def allocate(self, device: DeviceInfo, kind: UsmKind, nbytes: int) -> DriverMemory:
        _refuse("allocating memory on a Vulkan device")

    def physical(self, device: DeviceInfo, nbytes: int, enable_ipc: bool) -> DriverPhysical:
        _refuse("creating physical memory on a Vulkan device")

    def import_physical(self, device: DeviceInfo, what: Import) -> DriverPhysical:
        _refuse("opening physical memory on a Vulkan device")

    def reserve(self, device: DeviceInfo, nbytes: int, address: int) -> DriverRange:
        _refuse("reserving addresses of a Vulkan device")

    def reaches(self, device: DeviceInfo, peer: DeviceInfo) -> bool:
        return False

    def queue(self, device: DeviceInfo) -> DriverQueue:
        _refuse("making a queue on a Vulkan device")

    def adopt_queue(self, native: object) -> tuple[DeviceInfo, DriverQueue] | None:
        return None

    def stream(self, device: DeviceInfo, number: int | None, array: object) -> object | None:
        return None

    def adopt_event(self, native: object) -> tuple[DeviceInfo, Any] | None:
        return None

    def settle(self) -> None:
        pass  # there are no queues

    def adopt_domain(self, device: DeviceInfo, domain: Domain) -> None:
        _refuse("using an event on a Vulkan device")


@final
class Offered:
    """An allocation of the program that may be exported. Exports hold this object, and with it the memory."""

    __slots__ = ("__weakref__", "device", "memory")

    def __init__(self, device: DeviceInfo, memory: OpaqueMemory) -> None:
        self.device = device
        self.memory = memory


def _refuse(doing: str) -> NoReturn:
    raise FeatureNotSupportedError(f"{doing}: {_WHY}")
