"""Recognises streams and events of other libraries by their attributes. torch and CuPy use the same objects for CUDA
and for HIP, and call both "cuda". Imports no driver and no binding.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from xpushare.common.errors import InvalidArgumentError

__all__ = ["event_of", "is_hip", "library_of", "ordinal_of", "stream_of"]


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
