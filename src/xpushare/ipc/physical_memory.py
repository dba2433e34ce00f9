"""Handles of physical memory, with the functions of `sycl::ext::oneapi::experimental::ipc::physical_memory`.

There is no `close` function. `PhysicalMemory.close` closes an opened object, as does dropping the last reference to it.
"""

from xpushare.ipc._physical_memory import get, open, put

__all__ = ["get", "open", "put"]


def __dir__() -> list[str]:
    return __all__
