"""Send JAX arrays through `multiprocessing` by handle: `xpushare.integrations.jax.install()`."""

from __future__ import annotations

import importlib
from typing import Any

from xpushare.integrations import _reductions as common

__all__ = ["install", "uninstall"]

jax: Any = importlib.import_module("jax")  # if JAX is missing, type checkers take `import jax` for this module


def install(*, opens: int = 1) -> None:
    """Send JAX arrays by handle, without a copy, through every queue, pipe, pool and process argument.

    This works for arrays on one device whose memory can be shared, and for host arrays in memory of this package. JAX
    sends all other arrays by value. The memory stays allocated until the receiver has released the array. If a message
    is never received, its memory is released after `XPUSHARE_PICKLE_GRACE` seconds. The receiver needs this package,
    but need not call this function. `install` starts JAX's backend. Idempotent.

    Args:
        opens: How often each message can be received, in any processes. Use more than one for a pool
            that retries, or for several receivers.

    Raises:
        InvalidArgumentError: `opens` is below 1.

    Examples:
        >>> import jax
        >>> from multiprocessing.reduction import ForkingPickler
        >>> from xpushare.integrations.jax import install, uninstall
        >>> install()
        >>> sent = jax.dlpack.from_dlpack(xs.array([1.0, 2.0], dtype="float32"))
        >>> ForkingPickler.loads(ForkingPickler.dumps(sent)).tolist()
        [1.0, 2.0]
        >>> uninstall()
    """
    common.install("jax", {type(jax.numpy.zeros(1)): _Reduction}, opens)


def uninstall() -> None:
    """Restore the reductions that were registered before `install`. Idempotent.

    Examples:
        >>> from xpushare.integrations.jax import install, uninstall
        >>> install()
        >>> uninstall() is None
        True
    """
    common.uninstall("jax")


class _Reduction:
    """The reduction for JAX arrays: called with an array, it returns what a pickle contains in place of the array.
    `before` is the reduction that was registered before, or None.
    """

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, array: Any) -> Any:
        found = None
        if array.is_fully_addressable and len(array.devices()) == 1 and not array.weak_type:
            found = common.sent(array, "jax")
        if found is not None:
            return found
        return array.__reduce__() if self._before is None else self._before(array)
