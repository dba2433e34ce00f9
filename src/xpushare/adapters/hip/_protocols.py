"""Recognises what is HIP's without the driver: whether it is in use here, and other libraries' streams and events.

torch and CuPy call AMD's GPUs "cuda". They say themselves for which of the two they were built; of what does not say
it, the library that is loaded decides.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final, NamedTuple

from xpushare.adapters.vendor import library_loaded

__all__ = ["BACKEND", "INSTALL", "LIBRARIES", "RawStream", "current_stream", "event_of", "in_use_here", "stream_of"]

BACKEND: Final = "hip"
INSTALL: Final = (
    "install ROCm's HIP runtime (libamdhip64); XPUSHARE_HIP_LIBRARY names one that the linker does not find"
)
_ROCM: Final = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so")
LIBRARIES: Final = (os.environ.get("XPUSHARE_HIP_LIBRARY", ""), *_ROCM)[not os.environ.get("XPUSHARE_HIP_LIBRARY") :]


def in_use_here() -> bool:
    """Whether somebody in this process has loaded HIP's library. If not, no pointer and no stream here is HIP's."""
    return any(map(library_loaded, LIBRARIES))


class RawStream(NamedTuple):
    """A stream by its handle, and the device that a default one is meant on."""

    handle: int
    device_id: int


def _is_hip(native: object) -> bool:
    """Whether an object of another library is HIP's, as far as its library tells."""
    library = type(native).__module__.partition(".")[0]
    module: Any = sys.modules.get(library)
    if library == "torch":
        return getattr(getattr(module, "version", None), "hip", None) is not None
    if library == "cupy":
        return bool(module.cuda.runtime.is_hip)
    return in_use_here() and (library == "hip" or not library_loaded("libcuda.so.1"))


def current_stream(array: object, ordinal: int) -> object:
    """The stream that the library of `array` works on now; the default stream if the library does not say."""
    library = type(array).__module__.partition(".")[0]
    if library in ("torch", "cupy") and _is_hip(array):
        cuda = sys.modules[library].cuda
        stream = cuda.current_stream(ordinal) if library == "torch" else cuda.get_current_stream(ordinal)
        return stream if stream_of(stream) != (0, None) else RawStream(0, ordinal)
    return RawStream(0, ordinal)


def stream_of(native: object) -> tuple[int, int | None] | None:
    """(raw stream, device ordinal if it says that) of another library's stream object; None if it is no stream."""
    if isinstance(native, RawStream):
        return native
    raw = native if isinstance(native, int) and not isinstance(native, bool) else None
    for name in ("cuda_stream", "ptr"):  # torch, CuPy
        raw = getattr(native, name, None) if raw is None else raw
    if not isinstance(raw, int) or not _is_hip(native):
        return None
    ordinal = getattr(getattr(native, "device", None), "index", getattr(native, "device_id", None))
    return raw, ordinal if isinstance(ordinal, int) and ordinal >= 0 else None


def event_of(native: object) -> int | None:
    """The raw event of another library's event object; None if it is no event, 0 if it was never recorded."""
    raw = getattr(native, "cuda_event", getattr(native, "ptr", None))
    return raw if isinstance(raw, int) and _is_hip(native) else None
