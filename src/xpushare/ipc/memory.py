"""Handles of USM memory, as `sycl::ext::oneapi::experimental::ipc::memory` has them."""

from xpushare.ipc._memory import close, get, open, put

__all__ = ["close", "get", "open", "put"]


def __dir__() -> list[str]:
    return __all__
