"""The code that CUDA's and HIP's backends share: HIP has CUDA's functions under other names, and torch and CuPy use the
same objects for both, and call both "cuda".

The functions recognise streams and events of other libraries by their attributes. They use no driver and no binding.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

from xpushare import _native
from xpushare.adapters.host.memory import page_of_memfd
from xpushare.adapters.stream.hooks import Calls
from xpushare.common.errors import InvalidArgumentError, XpuShareError

__all__ = [
    "FUNCTIONS",
    "RegisteredPage",
    "RuntimeStream",
    "copy_and_fills",
    "event_of",
    "is_hip",
    "library_of",
    "native_driver",
    "ordinal_of",
    "stream_of",
]


def library_of(native: object) -> str:
    """Return the top-level module of an object's class."""
    return type(native).__module__.partition(".")[0]


def is_hip(native: object) -> bool | None:
    """Return whether an object belongs to HIP and not to CUDA. Return None if the object's library does not say, or if
    the object is a number.
    """
    library = library_of(native)
    module: Any = sys.modules.get(library)
    if library == "torch":
        return getattr(getattr(module, "version", None), "hip", None) is not None
    if library == "cupy":
        return bool(getattr(getattr(getattr(module, "cuda", None), "runtime", None), "is_hip", False))
    return False if library == "cuda" else None


def ordinal_of(native: object) -> int | None:
    """Return the device ordinal of a stream or an event, or None if it has none."""
    device: Any = getattr(native, "device", None)
    for which, name in ((device, "index"), (device, "device_id"), (native, "device_id")):
        said = getattr(which, name, None)
        if isinstance(said, int):
            return said if said >= 0 else None
    return None


def stream_of(native: object) -> tuple[int, int | None] | None:
    """Return (raw stream, device ordinal if known) of another library's stream object, or None if it is not a
    stream.
    """
    if isinstance(native, int) and not isinstance(native, bool):
        return native, None
    raw = getattr(native, "cuda_stream", None)  # torch
    if isinstance(raw, int):
        return raw, ordinal_of(native)
    protocol = getattr(native, "__cuda_stream__", None)
    if callable(protocol):
        said = protocol()
        if not (isinstance(said, tuple) and len(said) == 2 and said[0] == 0 and isinstance(said[1], int)):
            raise InvalidArgumentError(f"__cuda_stream__ of {type(native).__name__} returned {said!r}, not (0, stream)")
        return said[1], ordinal_of(native)
    library = library_of(native)  # first: of another object `ptr` and `handle` may mean anything, and raise
    raw = getattr(native, "ptr", None) if library == "cupy" else None  # before it had __cuda_stream__
    if isinstance(raw, int):
        return raw, ordinal_of(native)
    raw = getattr(native, "handle", None) if library == "numba" else None
    if isinstance(raw, ctypes.c_void_p):
        return raw.value or 0, ordinal_of(native)
    return None


def event_of(native: object) -> int | None:
    """Return the raw event of another library's event object, or 0 if the event was never recorded. Return None if the
    object is not an event.
    """
    raw = getattr(native, "cuda_event", None)  # torch
    if isinstance(raw, int):
        return raw
    library = library_of(native)
    raw = getattr(native, "ptr", None) if library == "cupy" else None
    if isinstance(raw, int):
        return raw
    raw = getattr(native, "handle", None) if library in ("cuda", "numba", "numba_cuda") else None
    if raw is not None:
        return int(raw.value or 0) if isinstance(raw, ctypes.c_void_p) else int(raw)
    return None


_MEMORY: Final = {  # what `_native.Driver` calls the functions about memory
    "ask": "PointerGetAttribute",
    "name": "IpcGetMemHandle",
    "open": "IpcOpenMemHandle",
    "close": "IpcCloseMemHandle",
    "exchange": "ThreadExchangeStreamCaptureMode",
}


def native_driver(
    prefix: str,
    address: Callable[[str], int],
    error: Callable[[str, str, int], XpuShareError],
    asked: Mapping[int, int | None],
    more: dict[str, str],
    **numbers: int,
) -> _native.Driver:
    """Return the driver for native code. `address` returns the address of a driver function, and `error` the error for
    what was being done, the function's name and its code. `prefix` precedes the names. `asked` are the attributes of an
    address, with the values that they must have. `more` are the functions that only one of the two drivers has, and
    `numbers` the other arguments of `_native.Driver`.
    """
    names = {key: prefix + name for key, name in (_MEMORY | more).items()}
    entering = [names[key] for key in ("exchange", "push", "get", "set") if key in names]
    arguments: Any = numbers | {key: address(name) for key, name in names.items()}
    return _native.Driver(
        lambda step, code: error("making a device current", entering[step], code),
        attributes=tuple(asked),
        wanted=tuple(value for value in asked.values() if value is not None),
        **arguments,
    )


# Their names, which each driver begins in its own way.
FUNCTIONS: Final = (
    "MemcpyAsync",
    "MemsetD8Async",
    "MemsetD16Async",
    "MemsetD32Async",
    "EventRecord",
    "StreamWaitEvent",
)


def copy_and_fills(functions: Mapping[str, int], prefix: str, *copying: int) -> dict[str, Any]:
    """Return the arguments `copy` and `fills` of `_native.QueueCalls`, which describe how native code calls the driver.
    This function takes the same arguments as `RuntimeStream`, except the handle.
    """
    copy, *fills = (functions[prefix + name] for name in FUNCTIONS[:4])
    return {
        "copy": (copy, ("to", "from", "nbytes", *copying, "queue")),
        "fills": tuple((fill, ("to", "value", "times", "queue")) for fill in fills),
    }


class RuntimeStream:
    """Implements `copy`, `fill` and `wait_native` of `hooks.Stream`."""

    fill_units: Sequence[int] = (1, 2, 4)

    def __init__(self, handle: int, functions: Mapping[str, int], prefix: str, *copying: int) -> None:
        """Wrap the driver's stream `handle`. `functions` maps the names of driver functions to their addresses.
        `prefix` precedes the names. `copying` are the arguments that the copy function takes after destination, source
        and size.
        """
        self.handle = handle
        self._copy, *fills, self.record, self._wait_event = (functions[prefix + name] for name in FUNCTIONS)
        self._fills = dict(zip(self.fill_units, fills, strict=True))
        self._copying = copying

    def new_stamp(self, doing: str) -> None:
        return None  # it does not time its work

    def copy(self, doing: str, dst: int, src: int, nbytes: int) -> Calls:
        return ((self._copy, dst, src, nbytes, *self._copying, self.handle),)

    def fill(self, doing: str, dst: int, pattern: bytes, times: int) -> Calls:
        return ((self._fills[len(pattern)], dst, int.from_bytes(pattern, "little"), times, self.handle),)

    def wait_native(self, doing: str, event: Any) -> Calls:
        return ((self._wait_event, self.handle, event, 0),)


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
