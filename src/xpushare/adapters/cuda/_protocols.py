"""Recognises what is CUDA's without the driver: whether CUDA is in use here, and which streams arrays are on.

Imports no driver and no binding, so anybody may import it.
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

from xpushare.adapters.cuda import _numbers as n
from xpushare.adapters.runtime import objects
from xpushare.adapters.runtime.objects import library_of
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
    library = library_of(array)
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
    """(raw stream, device ordinal if it says that) of another library's stream object; None if it is none of CUDA's."""
    return None if objects.is_hip(native) else objects.stream_of(native)


def event_of(native: object) -> int | None:
    """The same for an event: its handle, 0 if it was never recorded."""
    return None if objects.is_hip(native) else objects.event_of(native)
