"""Maps C handles to objects of `xpushare.ur`.

A C handle is the address of a *box*, a struct `xp_box` that the library allocates. The first word of a box points to
the dispatch table of Unified Runtime's loader. When a handle is released, its box stays for the rest of the process, so
that later uses of the handle are recognised as errors.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from xpushare.adapters.host.queue import HostQueue
from xpushare.adapters.stream.queue import DeviceQueue
from xpushare.common.errors import XpuShareError
from xpushare.core.declare import layers_on
from xpushare.core.device import Device
from xpushare.objects.lifecycle import use
from xpushare.ur import _objects
from xpushare.ur._functions.enqueue import complete, handed_over, renew
from xpushare.ur._objects import HANDLES, Counted, Event, Queue
from xpushare.ur.loader import LIBRARY
from xpushare.ur.loader._tables import COUNTED, HOST, NUMBERED, TRAITS, command_of

__all__ = ["NUMBERS", "STALE", "Boxes", "library", "reachable"]

_log: Final = logging.getLogger("xpushare.ur")

library: Final = ctypes.CDLL(str(LIBRARY))
library.xpushare_ur_range.argtypes = [
    *(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint16, ctypes.c_uint16, ctypes.c_bool)
]
library.xpushare_ur_device_queue.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32]
library.xpushare_ur_no_range.argtypes = [ctypes.c_uint64]
library.xpushare_ur_forget.argtypes = [ctypes.c_void_p]
library.xpushare_ur_remember.argtypes = [
    ctypes.c_void_p,
    ctypes.c_uint32,
    ctypes.c_uint32,
    ctypes.c_char_p,
    ctypes.c_size_t,
]


class _Stale:
    """The type of `STALE`, which replaces the object of a handle that has been released or never existed."""

    def __repr__(self) -> str:
        return "a handle that was released before, or that is none"


STALE: Final = _Stale()


class _BoxWord(ctypes.Union):
    _fields_: ClassVar = [("function", ctypes.c_uint16), ("traits", ctypes.c_uint16)]


class _BoxLast(ctypes.Union):
    _fields_: ClassVar = [("queue", ctypes.c_void_p), ("backend", ctypes.c_uint16)]


class _Box(ctypes.Structure):
    """The C struct `xp_box` of the library, whose address is a C handle."""

    _anonymous_: ClassVar = ["word", "last"]
    _fields_: ClassVar = [
        ("dispatch", ctypes.c_void_p),
        ("kind", ctypes.c_uint8),
        ("type", ctypes.c_uint8),
        ("owed", ctypes.c_uint8),
        ("done", ctypes.c_uint8),
        ("known", ctypes.c_uint8),
        ("word", _BoxWord),
        ("references", ctypes.c_int32),
        ("holds", ctypes.c_int32),
        ("event", ctypes.c_void_p),
        ("last", _BoxLast),
        ("point", ctypes.c_uint64),
    ]


_EVENT: Final = 1 + COUNTED.index("event")
_QUEUE: Final = 1 + COUNTED.index("queue")
NUMBERS: Final = {HANDLES[kind]: number for number, kind in enumerate(COUNTED, 1)}


_backends: Final[dict[str, int]] = {}
_devices: Final[dict[Device, int]] = {}


def _backend(device: Device) -> int:
    """Return the number that identifies a device's backend in the library. It is stored in the box of a queue."""
    return _backends.setdefault(device.backend, len(_backends))


def _device_number(device: Device) -> int:
    """Return the number that identifies a device in the library."""
    return _devices.setdefault(device, len(_devices))


def _engine_queue(queue: Queue) -> int:
    """Return the address of the native queue to which the library can pass commands without Python. Return 0 if the
    queue does not support this.
    """
    driver = use(queue.shared).driver
    if layers_on or queue.profiling or not isinstance(driver, DeviceQueue) or not driver.works_natively:
        return 0
    try:
        renew(queue)
    except XpuShareError as error:
        _log.info("a queue gets its commands by Python alone: %s", error)
        return 0
    return driver.engine


class Boxes:
    """Maps C handles to Python objects. A handle is the address of a box (the C struct `xp_box`).

    For the kinds of objects in `COUNTED`, the library counts references in the box, without Python. The Python object
    has its own count, which includes only the references that Python knows about. That count is at least 1 while the
    handle is valid.
    """

    def __init__(
        self, make: Callable[[], int], count: Callable[[int, int], object], known: Callable[[int], bool]
    ) -> None:
        """Start without any handles. `make` creates a box and returns its address. `count` adds a number to the
        reference count in a box. `known` returns whether an address is or has been a handle.
        """
        self._make = make
        self._count = count
        self.known = known
        self.ask: Callable[[int, Any], object] | None = None  # asks for the properties of a new handle's object
        self._lock = threading.Lock()
        self._carriers: set[int] = set()  # the threads that are carrying out commands
        self._of: dict[int, int] = {}  # by identity; `objects` keeps the objects alive
        self._seen: dict[int, int] = {}  # handle -> the references of the counted object that its box has counted
        self.objects: dict[int, Any] = {}

    def put(self, found: Any) -> int:
        """Return the handle of an object, or 0 for None. Create the handle if the object has none."""
        if found is None:
            return 0
        new = found.__class__ is Queue and found.references and id(found) not in self._of
        engine = _engine_queue(found) if new else 0
        if new and found.backend == "level_zero":
            library.xpushare_ur_fills()
        with self._lock:
            known = self._of.get(id(found))
            handle = self._add(found, engine) if known is None else known
            self._tell(handle, found)
        if known is None and found.references and self.ask is not None:
            self.ask(handle, found)
        return handle

    def _add(self, found: Any, engine: int) -> int:
        """Create and return a handle for an object. `engine` is the address of the native queue if the object is a
        queue that has one, otherwise 0.
        """
        handle = self._make()
        if not handle:
            raise MemoryError
        self.objects[handle] = found
        self._of[id(found)] = handle
        number = NUMBERS.get(found.__class__)
        if number is not None and found.references:
            box = _Box.from_address(handle)
            box.references = self._seen[handle] = found.references
            if number == _EVENT:
                box.event = use(found.shared).timeline.slot.engine
            elif number == _QUEUE:
                self._describe(box, found)
                if engine:
                    library.xpushare_ur_device_queue(handle, engine, _device_number(found.device.shared))
            box.type = box.kind = number
        return handle

    @staticmethod
    def _describe(box: _Box, queue: Queue) -> None:
        """Write those properties of a queue that the library needs into the queue's box."""
        device = queue.device.shared
        box.backend = _backend(device)
        box.traits = sum(1 << i for i, aspect in enumerate(TRAITS) if device.has(aspect))
        if isinstance(use(queue.shared).driver, HostQueue) and not queue.profiling:
            box.traits |= HOST

    def fill(self, handle: int, event: Event) -> Event:
        """Bind an existing handle to `event`, unless the handle is already bound to an event. Return the event to which
        the handle is then bound. The program owns the first reference of `event`.
        """
        with self._lock:
            known: Event | None = self.objects.get(handle)
            if known is not None:
                return known
            self.objects[handle] = event
            self._of[id(event)] = handle
            self._seen[handle] = event.references
            box = _Box.from_address(handle)
            if not box.point:
                box.event = use(event.shared).timeline.slot.engine
            box.known = 1
            return event

    def _tell(self, handle: int, found: Any) -> None:
        """Add to the reference count in the box how much the Python object's count has changed since the last call."""
        references: int = found.references  # read once, since a callback may release one in the meantime
        seen = self._seen.get(handle, references)
        if references != seen:
            self._count(handle, references - seen)
            self._seen[handle] = references

    def tell(self, found: Any) -> None:
        """Update the reference count in the object's box after Python has released references itself."""
        with self._lock:
            handle = self._of.get(id(found))
            if handle is not None:
                self._tell(handle, found)

    def lend(self, event: Event) -> int:
        """Add a reference to an event for the library, which will release it. Return the event's handle."""
        handle = self.put(event)
        self._count(handle, 1)
        return handle

    def take_back(self, handle: int) -> None:
        """Release the reference that `lend` added, because the library could not receive the handle."""
        self._count(handle, -1)

    def learn(self, handle: int) -> None:
        """Update the Python object's reference count from the count in the box. This is necessary before Python returns
        the count or releases a reference.
        """
        if handle in self._seen and not self._released(handle):
            found = self.objects[handle]
            with self._lock:
                counted = _Box.from_address(handle).references
                more = counted - self._seen[handle]
                for _ in range(abs(more)):
                    found.take() if more > 0 else found.release()
                self._seen[handle] = counted

    def end(self, handle: int) -> None:
        """Remove a handle whose last reference the program has released, and release its object."""
        with self._lock:
            found: Counted | None = self.objects.pop(handle, None)
            if found is None:
                return  # its event could not be made
            del self._of[id(found)], self._seen[handle]
        while found.references:
            found.release()

    def get(self, handle: int) -> Any:
        if not handle:
            return None
        found = self.objects.get(handle)
        if found is None:
            return self._carried_out(handle)
        return STALE if handle in self._seen and self._released(handle) else found

    def _released(self, handle: int) -> bool:
        """Return whether the program has released its last reference to the handle's object. Always return False in a
        thread that carries out earlier commands of the program, since these may still use the handle.
        """
        return not _Box.from_address(handle).references and threading.get_ident() not in self._carriers

    def _carried_out(self, handle: int) -> Any:
        """Create the event of a command that was completed, or passed to a device, without Python. Bind the handle to
        the event and return it. Return `STALE` if there is no such command.
        """
        if not self.known(handle) or self._released(handle):
            return STALE
        box = _Box.from_address(handle)
        if not (box.done or box.point):
            return STALE
        queue, command = self.objects[box.queue], command_of(NUMBERED[box.function])
        made = handed_over(queue, command, box.event, box.point) if box.point else complete(queue, command)
        return self.fill(handle, made)

    @contextmanager
    def carrying(self) -> Generator[None]:
        """A context manager for carrying out commands that the program submitted earlier. Inside it, this thread may
        use handles even if the program has since released their last reference.
        """
        self._carriers.add(threading.get_ident())
        try:
            yield
        finally:
            self._carriers.discard(threading.get_ident())

    def drop(self, *given: Any) -> None:
        """Remove the handles of those objects whose last reference has been released."""
        for each in given:
            handle = self._of.get(id(each))
            if handle is None or not isinstance(each, Counted):
                continue
            with self._lock:
                self._tell(handle, each)
                if not each.references:
                    del self._of[id(each)], self.objects[handle]
                    library.xpushare_ur_forget(handle)
                    if self._seen.pop(handle, None) is not None:
                        _Box.from_address(handle).kind = 0


def reachable(address: int) -> None:
    """Tell the library about the memory at an address, so that it can enqueue commands on it without Python."""
    found = _objects.places.known(address)
    if found is not None:
        device = found.device
        library.xpushare_ur_range(
            found.address, found.nbytes, _backend(device), _device_number(device), not found.read_only
        )
