"""Waiting for all work of a device without ending a capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from xpushare.adapters.host.memory import page_of_memfd

__all__ = ["RegisteredPage"]


@final
class RegisteredPage:
    """A page of ours that is registered with the driver. Unregistering it is a way to wait for a device without ending
    stream captures.

    It is for drivers whose calls that wait for a device end captures in every capture mode. If such a driver
    unregisters any page, it waits for the work of all streams, and captures go on. Other threads may be unable to
    allocate or register memory meanwhile.
    """

    def __init__(self) -> None:
        self._page: Any = None

    def renew(self, register: Callable[[int, int], object], unregister: Callable[[int], object]) -> None:
        """Unregister the page, which waits for the device, and register it again. `register` takes (address, bytes)."""
        page, self._page = self._page, None
        if page is None:
            page = page_of_memfd()
            register(page.address, page.nbytes)
        unregister(page.address)
        register(page.address, page.nbytes)
        self._page = page
