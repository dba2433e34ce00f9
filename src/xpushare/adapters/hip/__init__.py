"""`hip`: AMD GPUs through HIP's runtime library, which is called through ctypes.

If the driver supports allocations with POSIX fds, device memory and physical memory are such allocations. Otherwise
they are hipMalloc memory with IPC handles. Host memory consists of memfds that every process registers. Events are
words in registered host pages if streams can write and wait for them. docs/backends/hip.md lists what was verified, and
how.

This module recognises HIP's objects without the driver: whether HIP is in use, and other libraries' streams and events.
torch and CuPy call AMD's GPUs "cuda". Each of the two libraries reports whether it was built for HIP or for CUDA. An
object of a library that does not report it may be HIP's if HIP's library is loaded.
"""

from __future__ import annotations

import os
import sys
from typing import Final, NamedTuple

from xpushare.adapters import runtime
from xpushare.adapters.runtime import library_of
from xpushare.adapters.vendor import library_loaded

__all__ = ["BACKEND", "INSTALL", "RawStream", "current_stream", "event_of", "in_use_here", "libraries", "stream_of"]

BACKEND: Final = "hip"
INSTALL: Final = (
    "install ROCm's HIP runtime (libamdhip64); XPUSHARE_HIP_LIBRARY names one that the linker does not find"
)


def libraries() -> list[str]:
    """Return the file names to try for HIP's library: the name that the user gives, or else the names in HIP's
    releases.
    """
    named = os.environ.get("XPUSHARE_HIP_LIBRARY")
    return [named] if named else [f"libamdhip64.so{release}" for release in (".7", ".6", ".5", "")]


def in_use_here() -> bool:
    """Return whether this process has loaded HIP's library. If it has not, no pointer and no stream here is HIP's."""
    return any(map(library_loaded, libraries()))


class RawStream(NamedTuple):
    """A stream that is known only by its handle. The handles of default streams are the same for every device, so
    `device_id` says which device is meant.
    """

    handle: int
    device_id: int


def _is_hip(native: object) -> bool:
    """Return whether an object of another library may belong to HIP. Return True if the library does not say whether it
    uses HIP or CUDA.
    """
    said = runtime.is_hip(native)
    return in_use_here() if said is None else said


def current_stream(array: object, ordinal: int) -> object:
    """Return the stream that the library of `array` is working on. Return the default stream if the library does not
    report its stream.
    """
    library = library_of(array)
    if library not in ("torch", "cupy") or not _is_hip(array):
        return RawStream(0, ordinal)
    cuda = sys.modules[library].cuda
    return cuda.current_stream(ordinal) if library == "torch" else RawStream(cuda.get_current_stream().ptr, ordinal)


def stream_of(native: object) -> tuple[int, int | None] | None:
    """Return the raw stream of another library's stream object, and its device's ordinal if the object has it. Return
    None if it is not a HIP stream.
    """
    if isinstance(native, RawStream):
        return native
    return runtime.stream_of(native) if _is_hip(native) else None


def event_of(native: object) -> int | None:
    """Return the handle of another library's event (0 if it was never recorded), or None if it is not a HIP event."""
    return runtime.event_of(native) if _is_hip(native) else None
