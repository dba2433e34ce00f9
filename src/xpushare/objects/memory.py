"""The public functions `malloc_device`, `malloc_host`, `malloc_shared` and `trim`. The class `Memory` is in
`objects.array`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpushare.core import memory as core
from xpushare.objects.array import Memory, memory_over

if TYPE_CHECKING:
    from xpushare._device import Context, DeviceLike

__all__ = ["Memory", "malloc_device", "malloc_host", "malloc_shared", "memory_over", "trim"]


def malloc_device(nbytes: int, device: DeviceLike | None = None, *, context: Context | None = None) -> Memory:
    """Allocate memory on a device, which other processes can open once it is exported.

    Args:
        nbytes: How many bytes.
        device: The device. None means `default_device()`: the first GPU, if there is one.
        context: The context to allocate in, by default the device's own.

    Returns:
        The memory, which the returned object owns.

    Raises:
        InvalidArgumentError: The size is not positive, or there is no such device.
        OutOfMemoryError: The device does not have enough memory.
        DeviceError: The driver failed.

    Examples:
        >>> xs.malloc_device(4096, "native_cpu:0").nbytes
        4096
    """
    return memory_over(core.allocate("device", nbytes, device, context))


def malloc_host(nbytes: int, device: DeviceLike | None = None, *, context: Context | None = None) -> Memory:
    """Allocate host memory that a device can reach, too.

    Args:
        nbytes: How many bytes.
        device: The device that reaches it. None means `default_device()`: the first GPU, if there is one.
        context: The context to allocate in, by default the device's own.

    Returns:
        The memory, which the returned object owns.

    Raises:
        InvalidArgumentError: The size is not positive, or there is no such device.
        OutOfMemoryError: The host does not have enough memory.
        DeviceError: The driver failed.

    Examples:
        >>> memory = xs.malloc_host(8, "native_cpu:0")
        >>> memoryview(memory)[:3] = b"abc"
        >>> bytes(memory)[:3]
        b'abc'
    """
    return memory_over(core.allocate("host", nbytes, device, context))


def malloc_shared(nbytes: int, device: DeviceLike | None = None, *, context: Context | None = None) -> Memory:
    """Allocate memory that the driver moves between the host and a device.

    Args:
        nbytes: How many bytes.
        device: The device. None means `default_device()`: the first GPU, if there is one.
        context: The context to allocate in, by default the device's own.

    Returns:
        The memory, which the returned object owns.

    Raises:
        InvalidArgumentError: The size is not positive, or there is no such device.
        FeatureNotSupportedError: The device has no such memory.
        OutOfMemoryError: There is not enough memory.
        DeviceError: The driver failed.

    Examples:
        >>> xs.malloc_shared(64, "native_cpu:0").nbytes
        64
    """
    return memory_over(core.allocate("shared", nbytes, device, context))


def trim() -> int:
    """Give back freed memory that this process keeps.

    Once this process has shared something, freed host memory that no other process could reach is
    kept for the next allocation of its size: for 5 s, up to 256 MiB and an eighth of the free memory.
    Memory of a device that another process shares stays mapped for 2 s after it was closed, up to a
    quarter of the device's memory. An allocation that fails gives all of this back by itself.

    Another library's array whose handle was closed is held while an importer has it open. The next
    `share`, `close` or `trim` releases it after that; its memory is not counted.

    Returns:
        How many bytes were given back.

    Raises:
        DeviceError: The driver failed.

    Examples:
        >>> with xs.share(xs.zeros(3)):
        ...     xs.malloc_host(1 << 20, "native_cpu:0").close()
        ...     xs.trim() >= 1 << 20
        True
    """
    return core.trim()
