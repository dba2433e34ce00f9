"""CuPy arrays through `multiprocessing` by handle: `xpushare.integrations.cupy.install()`."""

from __future__ import annotations

import importlib
from typing import Any

from xpushare.integrations import _reductions as common

__all__ = ["install", "uninstall"]

cupy: Any = importlib.import_module("cupy")  # type checkers take `import cupy` for this module where it is missing


def install(*, opens: int = 1) -> None:
    """Let CuPy arrays go by handle, without a copy, through every `multiprocessing` queue, pipe, pool and process
    argument.

    This holds for arrays whose allocator's memory can be shared. Everything else goes CuPy's way, by value. The memory
    is held until the receiver has dropped the array; a message that nobody receives holds it for XPUSHARE_PICKLE_GRACE
    seconds. The receiver needs this package, but need not call this.

    Each pickle can be received `opens` times, in any processes: more than once for a pool that tries again, or for a
    message to several receivers. Raises `InvalidArgumentError` for an `opens` below 1. Idempotent.
    """
    common.install("cupy", {cupy.ndarray: _Reduction}, opens)


def uninstall() -> None:
    """Register what was there before. Idempotent."""
    common.uninstall("cupy")


class _Reduction:
    """Reduces arrays; `before` is another package's reduction, if there is one."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, array: Any) -> Any:
        found = common.sent(array, "cupy")
        if found is not None:
            return found
        return array.__reduce__() if self._before is None else self._before(array)
