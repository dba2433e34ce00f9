"""The public functions `malloc_device`, `malloc_host`, `malloc_shared` and `trim`. The class `Memory` is in
`objects.array`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpushare.core import memory as core
from xpushare.objects.array import Memory, memory_over

if TYPE_CHECKING:
    from xpushare.core.device import Context, DeviceLike

__all__ = ["Memory", "malloc_device", "malloc_host", "malloc_shared", "memory_over", "trim"]


def malloc_device(nbytes: int, device: DeviceLike | None = None, *, context: Context | None = None) -> Memory:
    """Allocate memory on a device, which other processes can open once it is exported.

    Args:
        nbytes: The number of bytes.
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
    """Allocate host memory that a device can also access.

    Args:
        nbytes: The number of bytes.
        device: The device that can access the memory. None means `default_device()`: the first GPU, if there is one.
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
    """Allocate memory that the host and a device can both access. The driver moves it between them.

    Args:
        nbytes: The number of bytes.
        device: The device. None means `default_device()`: the first GPU, if there is one.
        context: The context to allocate in, by default the device's own.

    Returns:
        The memory, which the returned object owns.

    Raises:
        InvalidArgumentError: The size is not positive, or there is no such device.
        FeatureNotSupportedError: The device does not support shared memory.
        OutOfMemoryError: There is not enough memory.
        DeviceError: The driver failed.

    Examples:
        >>> xs.malloc_shared(64, "native_cpu:0").nbytes
        64
    """
    return memory_over(core.allocate("shared", nbytes, device, context))


def trim() -> int:
    """Release the freed memory that this process caches.

    Once this process has shared something, it caches freed host memory that no other process could access. The next
    allocation of the same size reuses that memory. It is cached for 5 s, up to 256 MiB and an eighth of the free
    memory. Device memory of another process stays mapped for 2 s after it was closed, up to a quarter of the device's
    memory. If an allocation fails, all cached memory is released automatically.

    If the handle of another library's array is closed, xpushare keeps the array alive as long as an importer has it
    open. After that, the next `share`, `close` or `trim` releases the array. Its memory does not count towards the
    result.

    Small arrays share allocations of 256 KiB. If an array in one of them still lives, its unused rest is not reused any
    more and does not count towards the result, either.

    Returns:
        The number of released bytes.

    Raises:
        DeviceError: The driver failed.

    Examples:
        >>> with xs.share(xs.zeros(3)):
        ...     xs.malloc_host(1 << 20, "native_cpu:0").close()
        ...     xs.trim() >= 1 << 20
        True
    """
    return core.trim()
