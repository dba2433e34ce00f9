"""The hooks: how a vendor's driver is presented to the stream engine, and what each hook must guarantee.

A hook makes driver calls and does little else: the engine keeps the tables, takes the locks and starts the threads. If
the driver reports an error, the hook raises the result of `Codes.error` for the driver's code, and releases everything
that it acquired. `doing` describes the attempt in error messages. Hooks may be called from several threads at once,
even from threads that the driver has never seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, final

from xpushare import _native
from xpushare.adapters.base import NativeEvent, Stamp
from xpushare.common.errors import DeviceError, FeatureNotSupportedError, OutOfMemoryError, XpuShareError
from xpushare.common.result import Result

__all__ = ["Calls", "Codes", "Device", "Feature", "IpcEvent", "QueueCalls", "Scope", "Stream"]

Scope = AbstractContextManager[object]
# Calls for native code to make in order: (address of the function, argument, …), see `_native.StreamQueue.submit`.
# None means that the hook has made its calls itself.
Calls = Sequence[tuple[int, ...]] | None
Feature = Literal["shareable memory", "event slots", "host registration", "read-only host registration"]


# --- failures -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Codes:
    """The meaning of a driver's error codes."""

    out_of_memory: frozenset[int]
    unsupported: frozenset[int]
    fatal: frozenset[int]  # unrecoverable: the device, or this process's use of it, is lost
    captured: frozenset[int] = frozenset()  # the stream is being captured into a graph, and refuses the call
    wrong_size: frozenset[int] = frozenset()  # a mapping was larger than its allocation
    advice: Mapping[int, str] = field(default_factory=dict[int, str])  # what the user can do, for messages

    def error(self, doing: str, call: str, name: str, code: int) -> XpuShareError:
        """Return the package's error for a code, which the driver calls `name`."""
        advice = self.advice.get(code)
        message = f"{doing}: {call} failed with {name} ({code})" + (f"; {advice}" if advice else "")
        if code in self.out_of_memory:
            return OutOfMemoryError(message, native=code, result=Result.ERROR_OUT_OF_DEVICE_MEMORY)
        if code in self.unsupported:
            return FeatureNotSupportedError(message, native=code)
        return DeviceError(message, native=code)


# --- calls without the GIL ------------------------------------------------------------------------------------


class QueueCalls(NamedTuple):
    """The calls that native code makes on streams. Native code makes these calls without the GIL. The only scope that
    is entered around the calls is `Stream.around_calls`.
    """

    native: _native.QueueCalls
    host: str  # the names of the driver's functions, for messages
    store: str = ""
    wait: str = ""
    captured: str = ""
    others: Mapping[int, str] = MappingProxyType({})  # the functions of `Calls`, by address
    host_runs_late: bool = False  # whether a mark may be reached before earlier host functions have run
    # The function that returns whether a stream's handle has work, and its result if there is some. Then
    # `Stream.current` makes Scopes. None: ask `Stream.busy`.
    busy: tuple[int, int] | None = None


# --- streams --------------------------------------------------------------------------------------------------


class Stream(Protocol):
    """One in-order stream: ours, or another library's. The engine makes the hooks' calls inside `current()`.

    The hooks `mark`, `copy`, `fill` and `wait_native` return driver calls, which native code makes in order. Native
    code makes the calls at once or, if operations have to be held back, later on a relay thread. `QueueCalls.native`
    prepares that thread. If `ordering` is "device", the driver itself waits for signals of events, and the hooks may
    make the calls themselves.
    """

    device: Device
    handle: int  # the driver's handle, for which "queue" stands in `calls`
    ordering: Literal["device", "shared", "held"]  # see `_native.StreamQueue`
    owner: object | None  # keeps another library's stream alive; None for our own streams, which `destroy` ends
    calls: QueueCalls
    # Entered around calls by recipe; None, which is faster, if they need no scope.
    around_calls: Callable[[], Scope] | None
    fill_units: Sequence[int]  # the pattern lengths that `fill` takes; always includes 1

    # A scope in which the stream's device is current, and captures are not disturbed. Its end restores the former
    # state.
    def current(self) -> Scope: ...
    # A cheaper scope, which suffices for `query` and `busy`.
    def relaxed(self) -> Scope: ...

    # A mark can be set many times. It is reached once the work that was queued before it was last set has finished.
    def new_mark(self, doing: str) -> Any: ...
    def mark(self, doing: str, mark: Any) -> Calls: ...
    # Return whether a mark is reached, and whether the stream has unfinished work. Neither call blocks.
    def query(self, doing: str, mark: Any) -> bool: ...
    def busy(self, doing: str) -> bool: ...
    # Raise the error that broke the device, if one did, even while the stream is stalled. Does not block.
    def check_device(self, doing: str) -> None: ...

    def copy(self, doing: str, dst: int, src: int, nbytes: int) -> Calls: ...
    # Write the pattern `times` times. Its length is in `fill_units`, and `dst` is a multiple of the length.
    def fill(self, doing: str, dst: int, pattern: bytes, times: int) -> Calls: ...

    # Return the device's time now, a stamp, and the calls by which the driver writes the time into the stamp. None if
    # the device cannot time its work.
    def new_stamp(self, doing: str) -> tuple[int, Stamp, Calls] | None: ...

    # Make later work wait until another library's event (from `Adapter.adopt_event`) has completed.
    def wait_native(self, doing: str, event: Any) -> Calls: ...
    # Record a shareable event of the driver. Raises `FeatureNotSupportedError` if the driver has none.
    def record_native(self, doing: str) -> NativeEvent: ...
    # Destroy the marks, and the stream if it is ours. Called once its work has finished, or the device is broken.
    # Never raises.
    def destroy(self, marks: Sequence[Any]) -> None: ...


# --- devices --------------------------------------------------------------------------------------------------


class Device(Protocol):
    """One device, as this process's driver knows it. `str(device)` names it in messages."""

    ordinal: int
    codes: Codes

    # Return `Codes.error` with the driver's name for the code.
    def error(self, doing: str, call: str, code: int) -> XpuShareError: ...
    # A scope for the hooks below, in which the device is current, and captures are not disturbed. Its end restores the
    # former state.
    def current(self) -> Scope: ...

    # `active` returns whether anybody in this process has used the device. `lacking` returns the part that the device
    # lacks for a feature, in the driver's words, or "". Neither starts a driver or needs a scope.
    def active(self) -> bool: ...
    def lacking(self, feature: Feature) -> str: ...

    # Wait until all work that this process has submitted to the device has finished, without ending a capture.
    # Called only while no queue of ours waits for an event. Needs no scope.
    def drain(self) -> None: ...

    # `reach` lets every device of this driver use pages of host memory, whatever else maps them, until `unreach`.
    # `reached` returns their address on the devices.
    def reach(self, doing: str, address: int, nbytes: int, read_only: bool) -> None: ...
    def reached(self, doing: str, address: int) -> int: ...
    def unreach(self, doing: str, address: int) -> None: ...


# --- events of the driver ---------------------------------------------------------------------------------------------


@final
class IpcEvent(NativeEvent):
    """An event that other processes can open by `handle`. `release` calls `destroy` inside the scope `current()`."""

    def __init__(
        self, native: int, handle: bytes, current: Callable[[], Scope], destroy: Callable[..., object], *what: Any
    ) -> None:
        self.native = native
        self.handle = handle
        self._current = current
        self._destroy = destroy, what

    def release(self) -> None:
        destroy, what = self._destroy
        with self._current():
            destroy("destroying an IPC event", *what)
