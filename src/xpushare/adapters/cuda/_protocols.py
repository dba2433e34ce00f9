"""Recognises what is CUDA's without the driver: whether CUDA is in use here, and the streams and events of other
libraries.

Imports no driver and no binding, so anybody may import it.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final, NamedTuple

from xpushare._errors import InvalidArgumentError
from xpushare.adapters.cuda import _numbers as n
from xpushare.adapters.vendor import library_loaded

__all__ = ["BACKEND", "INSTALL", "RawStream", "current_stream", "event_of", "in_use_here", "stream_of"]

BACKEND: Final = "cuda"
INSTALL: Final = "install the binding with: pip install 'xpushare[cuda]'"


def in_use_here() -> bool:
    """Whether somebody in this process has loaded libcuda. If not, no pointer and no stream here is CUDA's."""
    return library_loaded("libcuda.so.1")


class RawStream(NamedTuple):
    """A stream by its handle, and the device that a default one is meant on."""

    handle: int
    device_id: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def current_stream(array: object, ordinal: int) -> object:
    """The stream that the library of `array` works on now; the legacy default stream if the library does not say."""
    library = type(array).__module__.split(".")[0]
    module = sys.modules.get(library)
    if library == "torch" and module is not None:
        return module.cuda.current_stream(ordinal)
    if library == "cupy" and module is not None:
        stream = module.cuda.get_current_stream(ordinal)
        # CuPy's default streams are one object for all devices, which says none.
        return RawStream(stream.ptr, ordinal) if stream.ptr in (0, n.LEGACY_STREAM, n.PER_THREAD_STREAM) else stream
    if library in ("jax", "jaxlib"):
        array.__dlpack__(stream=n.LEGACY_STREAM)  # type: ignore[attr-defined]  # has that stream wait for its content
        return RawStream(n.LEGACY_STREAM, ordinal)
    interface = getattr(array, "__cuda_array_interface__", None)
    said = interface.get("stream") if isinstance(interface, dict) else None
    return RawStream(said if isinstance(said, int) and said > 0 else n.LEGACY_STREAM, ordinal)


def stream_of(native: object) -> tuple[int, int | None] | None:
    """(raw stream, device ordinal if it says that) of another library's stream object; None if it is no stream."""
    if isinstance(native, int) and not isinstance(native, bool):
        return native, None
    ordinal = getattr(getattr(native, "device", None), "index", None)
    if ordinal is None:
        ordinal = getattr(native, "device_id", None)
    if not isinstance(ordinal, int) or ordinal < 0:
        ordinal = None
    raw = getattr(native, "cuda_stream", None)  # torch
    if isinstance(raw, int):
        return raw, ordinal
    protocol = getattr(native, "__cuda_stream__", None)
    if callable(protocol):
        said = protocol()
        if not (isinstance(said, tuple) and len(said) == 2 and said[0] == 0 and isinstance(said[1], int)):
            raise InvalidArgumentError(f"__cuda_stream__ of {type(native).__name__} returned {said!r}, not (0, stream)")
        return said[1], ordinal
    raw = getattr(native, "ptr", None)  # CuPy before it had __cuda_stream__
    if isinstance(raw, int) and type(native).__module__.split(".")[0] == "cupy":
        return raw, ordinal
    raw = getattr(native, "handle", None)  # numba
    if isinstance(raw, ctypes.c_void_p) and type(native).__module__.split(".")[0] == "numba":
        return raw.value or 0, ordinal
    return None


def event_of(native: object) -> int | None:
    """The raw event of another library's event object; None if it is no event, 0 if it was never recorded."""
    raw = getattr(native, "cuda_event", None)  # torch
    if isinstance(raw, int):
        return raw
    module = type(native).__module__.split(".")[0]
    raw = getattr(native, "ptr", None)  # CuPy
    if isinstance(raw, int) and module == "cupy":
        return raw
    raw = getattr(native, "handle", None)  # cuda.core, numba
    if raw is not None and module in ("cuda", "numba", "numba_cuda"):
        return int(raw.value or 0) if isinstance(raw, ctypes.c_void_p) else int(raw)
    return None
