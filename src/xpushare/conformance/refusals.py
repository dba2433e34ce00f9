"""Check that a device without an aspect refuses the calls that need it. A table has a call for each aspect, and the
error that the call must raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import xpushare as xs
from xpushare import Aspect
from xpushare.conformance.actions import NBYTES, granule

__all__ = ["NotRefused", "check_refused"]


class NotRefused(AssertionError):
    """The device lacks the aspect, but a call that needs the aspect succeeded, or raised a different error than the
    contract demands.
    """


def _export(device: str) -> None:
    with xs.malloc_device(NBYTES, device) as memory:
        xs.ipc.memory.put(xs.ipc.memory.get(memory))


def _host_signal(device: str) -> None:
    with xs.Event(device) as event:
        event.signal()


def _importer_signals(device: str) -> None:
    with xs.Event(device, enable_ipc=True) as event, xs.Queue(device) as queue:
        handle = xs.ipc.event.get(event)
        try:
            with xs.ipc.event.open(handle, device=device) as opened:
                queue.signal(opened)
        finally:
            xs.ipc.event.put(handle)


def _part(device: str) -> None:
    one = granule(device)
    with xs.PhysicalMemory(2 * one, device) as pages, xs.VirtualRange(2 * one, device) as place:
        place.map(pages, nbytes=one)


def _foreign(device: str) -> None:
    import numpy

    del device
    xs.ipc.memory.get(numpy.zeros(8))


_CALLS: Final[dict[Aspect, Callable[[str], Any]]] = {
    Aspect.ext_oneapi_ipc_memory: _export,
    Aspect.ext_oneapi_ipc_physical_memory: lambda device: xs.PhysicalMemory(granule(device), device, enable_ipc=True),
    Aspect.ext_oneapi_ipc_event: lambda device: xs.Event(device, enable_ipc=True),
    Aspect.ext_oneapi_virtual_mem: lambda device: xs.VirtualRange(granule(device), device),
    Aspect.ext_oneapi_per_event_profiling: lambda device: xs.Event(device, enable_profiling=True),
    Aspect.two_way_events: _importer_signals,
    Aspect.host_signal_events: _host_signal,
    Aspect.partial_map: _part,
    Aspect.foreign_memory: _foreign,
}
_OTHERWISE: Final[dict[Aspect, type[Exception]]] = {
    Aspect.partial_map: xs.InvalidArgumentError
}  # as the contract demands


def check_refused(aspect: Aspect, device: str) -> str:
    """Check that the device, which lacks the aspect, refuses a call that needs the aspect. Returns the result
    as text.
    """
    call = _CALLS.get(aspect)
    if call is None:
        return "it has no call of its own that could be refused"
    wanted = _OTHERWISE.get(aspect, xs.FeatureNotSupportedError)
    try:
        call(device)
    except wanted:
        return f"refused with {wanted.__name__}"
    except Exception as error:
        raise NotRefused(f"its use ends with {type(error).__name__}: {error}") from None
    raise NotRefused("its use is not refused")
