"""Handles of events, with the functions of `sycl::ext::oneapi::experimental::ipc::event`.

There is no `close` function. `Event.close` closes an event, as does dropping the last reference to it.
"""

from xpushare.ipc._event import get, open, put

__all__ = ["get", "open", "put"]


def __dir__() -> list[str]:
    return __all__
