"""A way to wait for all work of a device without ending stream captures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from xpushare.adapters.host.memory import page_of_memfd

__all__ = ["RegisteredPage"]


@final
class RegisteredPage:
    """A page of our own that is registered with the driver. Unregistering the page is a way to wait for a device
    without ending stream captures.

    This class is for drivers whose usual calls that wait for a device end captures, whatever the capture mode is. When
    such a driver unregisters a page, it waits for the work of all streams without ending captures. Other threads may be
    unable to allocate or register memory meanwhile.
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
