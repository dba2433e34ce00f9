"""Exchange of memory and timeline semaphores with Vulkan programs: `xpushare.integrations.vulkan`.

The program itself calls Vulkan to allocate, export and import, through any binding it likes. This module takes and
returns the file descriptors. It does not load Vulkan.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final

from xpushare import adapters
from xpushare.adapters.base import TimelinePoint
from xpushare.adapters.vulkan._adapter import OpaqueMemory
from xpushare.common.errors import FeatureNotSupportedError, InvalidArgumentError, from_os_error
from xpushare.common.fds import OwnedFd
from xpushare.core.device import adapter_of, info_of, known_device
from xpushare.objects.lifecycle import use
from xpushare.objects.memory import Memory
from xpushare.objects.queue import Queue

if TYPE_CHECKING:
    from xpushare.core.device import Device

__all__ = ["ExternalMemory", "MemoryFd", "TimelineSemaphore", "device", "memory_fd"]

_BACKEND = "vulkan"


def device(
    device_uuid: bytes,
    driver_uuid: bytes,
    *,
    name: str = "Vulkan device",
    type: Literal["cpu", "gpu", "accelerator"] = "gpu",
) -> Device:
    """Return the `Device` for a Vulkan device with these uuids. The same uuids always return the same `Device`.

    Handles identify the memory's device by `device_uuid`, which equals CUDA's uuid of the same GPU. Use the result only
    to export and to open memory.

    Args:
        device_uuid: `deviceUUID` of the device's VkPhysicalDeviceIDProperties, 16 bytes.
        driver_uuid: `driverUUID` of the same structure, 16 bytes.
        name: The device's name.
        type: The device's type.

    Returns:
        The device.

    Raises:
        InvalidArgumentError: A uuid does not have 16 bytes, or an earlier call had the same device with another driver.

    Examples:
        >>> from xpushare.integrations import vulkan
        >>> where = vulkan.device(b"a Vulkan device!", b"a Vulkan driver!")
        >>> where.uuid
        '61205675-6c6b-616e-2064-657669636521'
    """
    given = bytes(device_uuid), bytes(driver_uuid)
    if any(len(each) != 16 for each in given):
        raise InvalidArgumentError("deviceUUID and driverUUID have 16 bytes each")
    adapter: Any = adapters.adapter(_BACKEND)
    return known_device(adapter, adapter.name_device(*given, name, type))


def _is_vulkan(on: Device) -> None:
    if getattr(on, "backend", None) != _BACKEND:
        raise InvalidArgumentError("device is what xpushare.integrations.vulkan.device returned")


def _copied(fd: int, what: str) -> OwnedFd:
    try:
        return OwnedFd.copied(operator.index(fd))
    except OSError as error:
        raise from_os_error(error, f"taking the file descriptor of {what}") from error


@final
class ExternalMemory:
    """A VkDeviceMemory that this program allocated for export, or a part of it.

    Pass it to `xs.ipc.memory.get` or `xs.share`. Other processes open it without a copy: in CUDA on the same GPU, or in
    Vulkan (`open` on their own Vulkan device, then `memory_fd`). As an array, it consists of bytes (uint8).

    - `fd`: the result of vkGetMemoryFdKHR for VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT. The caller closes it
    - `allocation_nbytes`: VkMemoryAllocateInfo::allocationSize
    - `device`: the result of the function `device`
    - `offset`, `nbytes`: the part of the allocation to export, by default all of it
    - `dedicated`: whether the allocation was made with VkMemoryDedicatedAllocateInfo, which importers then have to use,
      too

    The exports of this object hold the memory, even after the program has freed it. Raises `InvalidArgumentError`,
    `OutOfMemoryError`.
    """

    def __init__(
        self,
        fd: int,
        allocation_nbytes: int,
        *,
        device: Device,
        offset: int = 0,
        nbytes: int | None = None,
        dedicated: bool = False,
    ) -> None:
        _is_vulkan(device)
        total, start = operator.index(allocation_nbytes), operator.index(offset)
        length = total - start if nbytes is None else operator.index(nbytes)
        if not 0 <= start < start + length <= total:
            raise InvalidArgumentError(
                f"{length} bytes from {start} do not lie in an allocation of {total} bytes, or are none"
            )
        adapter: Any = adapters.adapter(_BACKEND)
        self._memory = adapter.offer(info_of(device), _copied(fd, "a Vulkan allocation"), total, dedicated)
        self._offset = start
        self.nbytes = length
        self.device = device

    @property
    def __vulkan_memory__(self) -> dict[str, Any]:
        """The memory's address, in the form of NumPy's array interface. It only identifies the memory, which cannot be
        read at this address.
        """
        address = self._memory.address + self._offset
        return {"version": 3, "shape": (self.nbytes,), "typestr": "|u1", "data": (address, False), "strides": None}

    def __repr__(self) -> str:
        return f"<ExternalMemory of {self.nbytes} bytes on {self.device}>"


class MemoryFd(NamedTuple):
    """The parameters with which vkAllocateMemory imports another process's memory (VkImportMemoryFdInfoKHR, as an
    opaque fd).
    """

    fd: int  # the caller owns it; a successful import takes it over
    allocation_nbytes: int  # VkMemoryAllocateInfo::allocationSize
    offset: int  # the size of the memory behind the handle
    nbytes: int
    dedicated: bool  # the import needs VkMemoryDedicatedAllocateInfo, too


def memory_fd(memory: Memory) -> MemoryFd:
    """Return a new file descriptor of memory that was opened on a Vulkan device, for Vulkan to import.

    `xs.ipc.memory.open(handle, device=vulkan_device)` opens memory that other Vulkan programs exported on the same
    device and driver. It also opens CUDA memory of `xs.malloc_device` and `xs.empty` on the same GPU.

    Args:
        memory: The opened memory. Keep it open while Vulkan uses the import, so that the exporter sees that the memory
            is in use.

    Returns:
        The file descriptor, and the other parameters of the import.

    Raises:
        InvalidArgumentError: The memory was not opened on a Vulkan device, or is closed.
        OutOfMemoryError: File descriptors ran out.

    Examples:
        >>> from xpushare.integrations import vulkan
        >>> opened = xs.ipc.memory.open(handle, device=where)  # doctest: +SKIP
        >>> found = vulkan.memory_fd(opened)  # doctest: +SKIP
        >>> found.allocation_nbytes, found.offset, found.dedicated  # doctest: +SKIP
        (65536, 0, False)
    """
    if not isinstance(memory, Memory):
        raise InvalidArgumentError(f"memory_fd takes an opened Memory, not {type(memory).__name__}")
    found = use(memory)
    driver: Any = found.allocation.driver
    if not isinstance(driver, OpaqueMemory):
        raise InvalidArgumentError(f"this Memory was opened on {found.device}: open it with device=, on a Vulkan one")
    fd = _copied(driver.fd.number, "an allocation").take()
    return MemoryFd(fd, driver.exposed_nbytes, found.offset, found.nbytes, driver.dedicated)


@final
class TimelineSemaphore:
    """A timeline semaphore of this program, for use on queues of the same GPU. It orders rendering and CUDA work.

    `fd` is the result of vkGetSemaphoreFdKHR for VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT. The caller still owns
    it.

    Use the semaphore only in the process that renders. To order other processes, use an `Event`: `semaphore.wait(queue,
    n)`, then `queue.signal(event)`. If a process waited for another process's semaphore and that process died, the wait
    would never end. A wait for an `Event` does end in this case.
    """

    def __init__(self, fd: int, *, device: Device) -> None:
        _is_vulkan(device)
        self.fd: OwnedFd = _copied(fd, "a timeline semaphore")
        self.device = device
        self.device_uuid: str = device.uuid

    def wait(self, queue: Queue, value: int) -> None:
        """Hold back later operations of the queue until the semaphore has reached a value
        (cuWaitExternalSemaphoresAsync).

        Args:
            queue: A queue of the same GPU.
            value: The value to reach.

        Raises:
            FeatureNotSupportedError: The queue's driver or GPU does not import the semaphore.
            InvalidArgumentError: The value has more than 64 bits, or the queue is closed.
            DeviceError: The driver failed.
        """
        self._enqueue(queue, value, False)

    def signal(self, queue: Queue, value: int) -> None:
        """Raise the semaphore to a value once the earlier operations of the queue have finished
        (cuSignalExternalSemaphoresAsync).

        Args:
            queue: A queue of the same GPU.
            value: The new value.

        Raises:
            FeatureNotSupportedError: The queue's driver or GPU does not import the semaphore.
            InvalidArgumentError: The value has more than 64 bits, or the queue is closed.
            DeviceError: The driver failed.
        """
        self._enqueue(queue, value, True)

    def _enqueue(self, queue: Queue, value: int, signals: bool) -> None:
        number = operator.index(value)
        if not 0 <= number < 1 << 64:
            raise InvalidArgumentError(f"a semaphore's value has 64 bits: {number} does not fit")
        work = use(queue)
        found = adapter_of(work.device).adopt_event(TimelinePoint(self, number, signals))
        if found is None or found[0] != info_of(work.device):
            raise FeatureNotSupportedError(
                f"a timeline semaphore of the device with uuid {self.device_uuid} cannot be used by a queue of "
                f"{work.device}: a driver that imports it does so on the same GPU"
            )
        work.driver.wait_native(found[1], (self, found[1]))

    def __repr__(self) -> str:
        return f"<TimelineSemaphore of {self.device}>"
