"""Sends CuPy arrays through `multiprocessing` by handle: `xpushare.integrations.cupy.install()`.
`xpushare.integrations.cupy.pool()` puts CuPy arrays into memory that can be shared, handed to the keeper, and put to
sleep.
"""

from __future__ import annotations

import importlib
import weakref
from contextlib import AbstractContextManager
from typing import Any, final

from xpushare.integrations import _pools
from xpushare.integrations import _reductions as common

__all__ = ["Pool", "install", "pool", "uninstall"]

cupy: Any = importlib.import_module("cupy")  # if CuPy is missing, type checkers take `import cupy` for this module


def install(*, opens: int = 1) -> None:
    """Send CuPy arrays by handle, without a copy, through every queue, pipe, pool and process argument.

    This works for arrays whose allocator's memory can be shared. CuPy sends all other arrays by value. The memory stays
    allocated until the receiver has released the array. If a message is never received, its memory is released after
    `XPUSHARE_PICKLE_GRACE` seconds. The receiver needs this package, but need not call this function. Idempotent.

    Args:
        opens: How often each message can be received, in any processes. Use more than one for a pool
            that retries, or for several receivers.

    Raises:
        InvalidArgumentError: `opens` is below 1.

    Examples:
        >>> import cupy
        >>> from multiprocessing.reduction import ForkingPickler
        >>> from xpushare.integrations.cupy import install, uninstall
        >>> install()
        >>> sent = cupy.zeros(1 << 20)
        >>> received = ForkingPickler.loads(ForkingPickler.dumps(sent))
        >>> sent[0] = 5
        >>> float(received[0])
        5.0
        >>> uninstall()
    """
    common.install("cupy", {cupy.ndarray: _Reduction}, opens)


def uninstall() -> None:
    """Restore the reductions that were registered before `install`. Idempotent.

    Examples:
        >>> from xpushare.integrations.cupy import install, uninstall
        >>> install()
        >>> uninstall() is None
        True
    """
    common.uninstall("cupy")


class _Reduction:
    """The reduction for CuPy arrays: called with an array, it returns what a pickle contains in place of the array.
    `before` is the reduction that was registered before, or None.
    """

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, array: Any) -> Any:
        found = common.sent(array, "cupy")
        if found is not None:
            return found
        return array.__reduce__() if self._before is None else self._before(array)


# --- pools


@final
class Pool(_pools.Pool):
    """A pool of device memory from which CuPy allocates its arrays. See `pool`."""

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        allocator = cupy.cuda.CFunctionAllocator(*self._driver.addresses, self._driver)
        self._memory_pool: Any = cupy.cuda.MemoryPool(allocator.malloc)
        weakref.finalize(self, self._memory_pool.free_all_blocks).atexit = False  # CuPy's object may be part of a cycle

    def malloc(self, nbytes: int) -> Any:
        """Allocate memory in the pool. `cupy.cuda.set_allocator(pool.malloc)` puts all arrays of this process into the
        pool.
        """
        self._expect_awake()
        return self._memory_pool.malloc(nbytes)

    def empty_cache(self) -> None:
        """Free memory that CuPy has cached and that no array uses."""
        self._memory_pool.free_all_blocks()

    def _capturing(self) -> bool:
        return bool(cupy.cuda.get_current_stream(self.device.ordinal).is_capturing())

    def _using(self) -> AbstractContextManager[object]:
        found: AbstractContextManager[object] = cupy.cuda.using_allocator(self.malloc)
        return found


def pool(device: Any = "gpu") -> Pool:
    """Make a pool of device memory for CuPy's arrays. The memory can be shared, handed to the keeper, and put to sleep.

    Arrays that are made within `with pool:`, or after `cupy.cuda.set_allocator(pool.malloc)`, lie in large VMM
    allocations of CUDA, which are exported as file descriptors. They are shared in place. `xs.publish(…, keep=True)`
    hands them to the keeper, and another process can own them (`xs.attach(…, own=True)`). `pool.sleep()` gives the
    memory back to the device while the arrays keep their addresses, and `pool.wake()` brings it back.

    Arrays that outlive the pool keep their memory. A process can have 16 pools.

    Args:
        device: A CUDA device: an `xs.Device` or its name.

    Returns:
        The pool, which belongs to the caller.

    Raises:
        FeatureNotSupportedError: The device has no virtual memory that can be shared.
        OutOfMemoryError: The device does not have enough memory.
        DeviceError: The driver failed.

    Examples:
        >>> import cupy
        >>> from xpushare.integrations.cupy import pool
        >>> weights = pool("cuda:0")
        >>> with weights:
        ...     w = cupy.ones(1 << 20)
        >>> with xs.share(w) as handle:
        ...     handle.copied_nbytes
        0
    """
    return Pool(device)
