"""`cuda`: NVIDIA GPUs through the driver API (`cuda-bindings`); no compiled CUDA code.

Device memory and physical memory are VMM allocations with POSIX fds. Host memory consists of memfds that every process
registers with its driver. Events are words in registered host pages, which streams write and wait for. Where the
driver's documentation does not describe a behaviour, we measured it; docs/backends/cuda.md has the results.

This module recognises CUDA's objects without the driver: whether this process uses CUDA, and which streams arrays are
on. It imports no driver and no binding, so any module may import it.
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

from xpushare.adapters import runtime
from xpushare.adapters.cuda import _numbers as n
from xpushare.adapters.runtime import library_of
from xpushare.adapters.vendor import library_loaded

__all__ = ["BACKEND", "INSTALL", "RawStream", "current_stream", "event_of", "in_use_here", "stream_of"]

BACKEND: Final = "cuda"
INSTALL: Final = "install the binding with: pip install '.[cuda]' in a checkout of xpushare"


def in_use_here() -> bool:
    """Return whether this process has loaded libcuda. If it has not, no pointer and no stream here is CUDA's."""
    return library_loaded("libcuda.so.1")


class RawStream(NamedTuple):
    """A stream that is known only by its handle. The handles of default streams are the same for every device, so
    `device_id` says which device is meant.
    """

    handle: int
    device_id: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def current_stream(array: object, ordinal: int) -> object:
    """Return the stream that the library of `array` is working on. Return the legacy default stream if the library does
    not report its stream.
    """
    library = library_of(array)
    module = sys.modules.get(library)
    if library == "torch" and module is not None:
        return module.cuda.current_stream(ordinal)
    if library == "cupy" and module is not None:
        stream = module.cuda.get_current_stream(ordinal)
        # CuPy has one object for the default streams of all devices, so the object does not name the device.
        return RawStream(stream.ptr, ordinal) if stream.ptr in (0, n.LEGACY_STREAM, n.PER_THREAD_STREAM) else stream
    if library in ("jax", "jaxlib"):
        array.__dlpack__(stream=n.LEGACY_STREAM)  # type: ignore[attr-defined]  # has that stream wait for its content
        return RawStream(n.LEGACY_STREAM, ordinal)
    interface = getattr(array, "__cuda_array_interface__", None)
    said = interface.get("stream") if isinstance(interface, dict) else None
    return RawStream(said if isinstance(said, int) and said > 0 else n.LEGACY_STREAM, ordinal)


def stream_of(native: object) -> tuple[int, int | None] | None:
    """Return the raw stream of another library's stream object, and its device's ordinal if the object has it. Return
    None if it is not a CUDA stream.
    """
    return None if runtime.is_hip(native) else runtime.stream_of(native)


def event_of(native: object) -> int | None:
    """Return the handle of another library's event (0 if it was never recorded), or None if it is not a CUDA event."""
    return None if runtime.is_hip(native) else runtime.event_of(native)
