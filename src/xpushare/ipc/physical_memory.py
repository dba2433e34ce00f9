"""Handles of physical memory, with the functions of `sycl::ext::oneapi::experimental::ipc::physical_memory`.

There is no `close`: the last reference to an import closes it.
"""

from xpushare.ipc._physical_memory import get, open, put

__all__ = ["get", "open", "put"]


def __dir__() -> list[str]:
    return __all__
