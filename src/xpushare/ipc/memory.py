"""Handles of USM (unified shared memory) allocations, with the functions of
`sycl::ext::oneapi::experimental::ipc::memory`.
"""

from xpushare.ipc._memory import close, get, open, put

__all__ = ["close", "get", "open", "put"]


def __dir__() -> list[str]:
    return __all__
