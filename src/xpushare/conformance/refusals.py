"""Check what must be refused: forged handles, and calls that need an aspect which the device lacks.

A forged handle has a valid seal, to test the checks that `open` makes after it has accepted the seal. docs/layout.md
describes the fields and the seal. The offsets are repeated here as numbers, so that the suite notices if the layout
changes. For the aspects, a table has a call for each, and the error that the call must raise.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import xpushare as xs
from xpushare import Aspect
from xpushare.conformance.actions import NBYTES, granule, verbs

__all__ = [
    "BOOT",
    "ENTRY",
    "GENERATION",
    "KIND",
    "OFFSET",
    "PID",
    "SIZE",
    "TABLE_FD",
    "UUID",
    "VERSION",
    "NotRefused",
    "check_refused",
    "refused",
    "reseal",
    "unpickling",
]

# --- forged handles ---------------------------------------------------------------------------------------------------

VERSION, KIND, UUID, BOOT, PID, TABLE_FD, GENERATION, ENTRY = 8, 10, 32, 48, 72, 76, 96, 104
OFFSET, SIZE, SEAL = 136, 144, 224


def reseal(handle: bytes, at: int, content: bytes) -> bytes:
    """Return a copy of the handle with the bytes at offset `at` replaced by `content`. The copy has a new seal, made
    with this user's key.
    """
    key = Path(os.environ["XPUSHARE_RUNTIME_DIR"], "key").read_bytes()
    body = handle[:at] + content + handle[at + len(content) : SEAL]
    return body + hashlib.blake2b(body, digest_size=32, key=key).digest()


def refused(error: type[BaseException], kind: str, handle: Any, device: str | None = None) -> str:
    """Check that opening the handle raises exactly the class `error`, not a subclass. Returns the error's message."""
    with pytest.raises(error) as caught:
        verbs(kind).open(handle, device=device)
    assert type(caught.value) is error
    return str(caught.value)


def unpickling(data: bytes) -> str:
    """Check that unpickling `data` succeeds, and that the first use of the object raises `HandleExpiredError`. Returns
    the error's message.
    """
    thing = pickle.loads(data)
    with pytest.raises(xs.HandleExpiredError) as caught:
        thing.__enter__()
    return str(caught.value)


# --- aspects that a device lacks --------------------------------------------------------------------------------------


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
