"""The hooks: what a vendor tells the stream engine of its driver, and what each must guarantee.

A hook makes driver calls and nothing else: it keeps no tables, takes no locks and starts no threads. It fails with what
`Codes.error` makes of the driver's code, and then has acquired nothing. `doing` says in a message what was tried. Hooks
may be called from several threads at once, and from threads that the vendor's library has never seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Literal, NamedTuple, Protocol

from xpushare._errors import DeviceError, FeatureNotSupportedError, OutOfMemoryError, XpuShareError
from xpushare._result import Result
from xpushare.adapters.base import Access, NativeEvent, OnDemand

__all__ = ["Argument", "Codes", "Device", "Feature", "QueueCalls", "Recipe", "Scope", "Stream", "VirtualMemory"]

Scope = AbstractContextManager[object]
Feature = Literal["shareable memory", "event slots", "host registration", "read-only host registration"]


# --- failures -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Codes:
    """What a driver's error codes mean."""

    out_of_memory: frozenset[int]
    unsupported: frozenset[int]
    fatal: frozenset[int]  # no later call undoes it: the device, or this process's use of it, is lost
    captured: frozenset[int]  # a stream refuses the call because somebody captures it into a graph
    wrong_size: frozenset[int]  # what `VirtualMemory.map` answers where the memory is smaller than that
    advice: Mapping[int, str] = field(default_factory=dict[int, str])  # the reader's next step

    def error(self, doing: str, call: str, name: str, code: int) -> XpuShareError:
        """The package's error for a code, which the driver calls `name`."""
        advice = self.advice.get(code)
        message = f"{doing}: {call} failed with {name} ({code})" + (f"; {advice}" if advice else "")
        if code in self.out_of_memory:
            return OutOfMemoryError(message, native=code, result=Result.ERROR_OUT_OF_DEVICE_MEMORY)
        if code in self.unsupported:
            return FeatureNotSupportedError(message, native=code)
        return DeviceError(message, native=code)


# --- calls without the GIL ------------------------------------------------------------------------------------


class Argument(Enum):
    """An argument of a recipe that is known only when the call is made."""

    QUEUE = auto()  # the stream's handle
    ADDRESS = auto()  # of the event's word, as the device sees it
    POINT = auto()  # of the event, 64 bits
    POINT_LOW = auto()  # its low 32 bits
    FUNCTION = auto()  # for the host to run, `void function(void *data)`
    DATA = auto()  # for that function
    STATUS = auto()  # where the call writes an int that is not 0 while somebody captures the stream


class Recipe(NamedTuple):
    """A driver function that native code calls: `int function(arguments…)`, 0 is success."""

    name: str
    function: int  # its address
    arguments: tuple[int | Argument, ...]


class QueueCalls(NamedTuple):
    """What native code calls on a stream, without the GIL and with nothing made current but `Stream.around_calls`."""

    store: Recipe  # when the work before has finished, the device writes the point to the word, with system scope
    wait: Recipe  # the device goes on when the word is at least the point
    host: Recipe  # when the work before has finished, a thread of the driver runs the function
    captured: Recipe | None  # whether somebody captures the stream; None where nobody can


# --- streams --------------------------------------------------------------------------------------------------


class Stream(Protocol):
    """One in-order stream: ours, or another library's. The engine calls these with `current()` unless it says else."""

    device: VirtualMemory
    handle: int  # what `Argument.QUEUE` stands for
    owner: object | None  # keeps another library's stream alive; None for a stream of ours, which `destroy` ends
    calls: QueueCalls
    around_calls: Callable[[], Scope] | None  # around calls by recipe; None where they need nothing, which is faster
    fill_units: Sequence[int]  # the pattern lengths that `fill` takes, 1 among them

    def current(self) -> Scope:
        """Around the other hooks: the stream's device is current and captures are left alone; then as before."""
        ...

    def relaxed(self) -> Scope:
        """Likewise, where only `query` or `busy` is called: what those need."""
        ...

    def new_mark(self, doing: str) -> Any:
        """Something to `mark` the stream with, again and again."""
        ...

    def mark(self, doing: str, mark: Any) -> None:
        """The mark is reached when the work queued so far has finished; what it said before counts no more."""
        ...

    def query(self, doing: str, mark: Any) -> bool:
        """Whether the stream has reached the mark. Never blocks."""
        ...

    def busy(self, doing: str) -> bool:
        """Whether the stream has unfinished work. Never blocks."""
        ...

    def check_device(self, doing: str) -> None:
        """Raise what broke the device, even when the stream is held up. Never blocks."""
        ...

    def copy(self, doing: str, dst: int, src: int, nbytes: int) -> None: ...
    def fill(self, doing: str, dst: int, pattern: bytes, count: int) -> None:
        """Write `count` patterns of a length in `fill_units`, of which `dst` is a multiple."""
        ...

    def wait_native(self, doing: str, event: Any) -> None:
        """Work queued later starts when another library's event (of `Adapter.adopt_event`) has completed."""
        ...

    def record_native(self, doing: str) -> NativeEvent:
        """The driver's own shareable event, recorded now. `FeatureNotSupportedError` where there is none."""
        ...

    def destroy(self, marks: Sequence[Any]) -> None:
        """End the marks, and a stream of ours; let go of another library's. Its work has finished, or the device is
        broken. Never raises."""
        ...


# --- devices --------------------------------------------------------------------------------------------------


class Device(Protocol):
    """One device, as the driver of this process knows it. `str(device)` names it in messages."""

    ordinal: int
    codes: Codes

    def error(self, doing: str, call: str, code: int) -> XpuShareError:
        """`Codes.error`, with the driver's name for the code."""
        ...

    def current(self) -> Scope:
        """Around the other hooks: the device is current and captures are left alone; then as before."""
        ...

    def active(self) -> bool:
        """Whether anybody in this process has used the device. Starts nothing."""
        ...

    def lacking(self, feature: Feature) -> str:
        """The driver's name for what the device lacks for a feature, else "". Starts nothing."""
        ...

    def drain(self) -> None:
        """Return when the work submitted to the device so far, by anybody in this process, has finished; without ending
        a capture. Makes its own calls current. The engine calls it while no queue of ours waits for an event."""
        ...

    def reach(self, doing: str, address: int, nbytes: int, read_only: bool) -> None:
        """Let every device of this driver use pages of host memory, whatever maps them besides, until `unreach`."""
        ...

    def reached(self, doing: str, address: int) -> int:
        """Where the devices see reached pages."""
        ...

    def unreach(self, doing: str, address: int) -> None: ...


class VirtualMemory(Device, Protocol):
    """The memory of a device, by the family of calls that create, export, import and map allocations.

    Allocations lie on a device (their *location*, an ordinal) and have a handle, which keeps them as long as a mapping
    does. A fresh mapping has no access. What is mapped or unmapped here is never in use by a device at that time.
    """

    def granularity(self, recommended: bool) -> int:
        """Bytes of which allocations and mappings are multiples. Cheap."""
        ...

    def create(self, doing: str, nbytes: int, shareable: bool) -> Any: ...
    def retain(self, doing: str, address: int) -> Any:
        """One more handle of the allocation that is mapped at the address. Needs nothing current."""
        ...

    def release(self, doing: str, handle: Any) -> None:
        """Give a handle up. Needs nothing current."""
        ...

    def export_fd(self, doing: str, handle: Any) -> int:
        """A file descriptor of a shareable allocation, closed on exec. Needs nothing current."""
        ...

    def export_on_demand(self, handles: Sequence[Any]) -> OnDemand:
        """Likewise for many, made by native code one by one."""
        ...

    def import_fd(self, doing: str, fd: int) -> Any:
        """The allocation behind a peer's file descriptor, which may be anything and stays the caller's."""
        ...

    def location(self, doing: str, handle: Any) -> int: ...
    def reaches(self, location: int) -> bool:
        """Whether this device can use memory at a location. Cheap."""
        ...

    def reserve(self, doing: str, nbytes: int, address: int) -> int:
        """Addresses: those at `address`, or others where these are taken or 0."""
        ...

    def free(self, doing: str, address: int, nbytes: int) -> None:
        """Give reserved addresses back."""
        ...

    def map(self, doing: str, address: int, nbytes: int, handle: Any) -> None:
        """Map an allocation from its start. One of `Codes.wrong_size` where it is smaller than `nbytes`."""
        ...

    def unmap(self, doing: str, address: int, nbytes: int) -> None: ...
    def set_access(self, doing: str, address: int, nbytes: int, ordinals: Sequence[int], access: Access) -> None:
        """Let the devices with these ordinals use mapped memory so; the others' access stays."""
        ...
