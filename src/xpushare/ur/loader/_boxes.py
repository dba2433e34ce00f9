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

from xpushare._device import Device
from xpushare.adapters.host.queue import HostQueue
from xpushare.adapters.stream.queue import DeviceQueue
from xpushare.common.errors import XpuShareError
from xpushare.core.declare import layers_on
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
    """Placeholder for the object of a handle that was released before, or that never existed."""

    def __repr__(self) -> str:
        return "a handle that was released before, or that is none"


STALE: Final = _Stale()


class _BoxWord(ctypes.Union):
    _fields_: ClassVar = [("function", ctypes.c_uint16), ("traits", ctypes.c_uint16)]


class _BoxLast(ctypes.Union):
    _fields_: ClassVar = [("queue", ctypes.c_void_p), ("backend", ctypes.c_uint16)]


class _Box(ctypes.Structure):
    """A box: the C struct `xp_box` of the library, to which a C handle points."""

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
    """Return the number by which the library identifies the backend of a device, in the struct `xp_box` of a queue."""
    return _backends.setdefault(device.backend, len(_backends))


def _device_number(device: Device) -> int:
    """Return the number by which the library identifies a device."""
    return _devices.setdefault(device, len(_devices))


def _engine_queue(queue: Queue) -> int:
    """Return the address of the native queue, to which the library passes commands without Python. Return 0 if the
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

    For objects of the kinds in `COUNTED`, the library counts the references in the box, without Python. The Python
    object has a count of its own, of the references that Python knows of. That count is at least 1 as long as the
    handle is valid.
    """

    def __init__(
        self, make: Callable[[], int], count: Callable[[int, int], object], known: Callable[[int], bool]
    ) -> None:
        """Start with no handles. `make` makes a box. `count` adds a number to the references that a box counts. `known`
        returns whether a handle exists or has existed.
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
        """Return the handle of an object, or 0 for None."""
        if found is None:
            return 0
        new = found.__class__ is Queue and found.references and id(found) not in self._of
        engine = _engine_queue(found) if new else 0
        with self._lock:
            known = self._of.get(id(found))
            handle = self._add(found, engine) if known is None else known
            self._tell(handle, found)
        if known is None and found.references and self.ask is not None:
            self.ask(handle, found)
        return handle

    def _add(self, found: Any, engine: int) -> int:
        """Make a new handle."""
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
        """Write the properties of a queue that the library needs into the queue's box."""
        device = queue.device.shared
        box.backend = _backend(device)
        box.traits = sum(1 << i for i, aspect in enumerate(TRAITS) if device.has(aspect))
        if isinstance(use(queue.shared).driver, HostQueue) and not queue.profiling:
            box.traits |= HOST

    def fill(self, handle: int, event: Event) -> Event:
        """Bind a handle that the program already has to `event`, unless the handle is bound to an event already. Return
        the event to which the handle is bound. The program owns the first reference of `event`.
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
        """Add to the count in the box by how much the count of the Python object has changed since the last call."""
        references: int = found.references  # read once, since a callback may release one in the meantime
        seen = self._seen.get(handle, references)
        if references != seen:
            self._count(handle, references - seen)
            self._seen[handle] = references

    def tell(self, found: Any) -> None:
        """Subtract from the count in the object's box the references that Python itself has released."""
        with self._lock:
            handle = self._of.get(id(found))
            if handle is not None:
                self._tell(handle, found)

    def lend(self, event: Event) -> int:
        """Return the handle of an event, after taking a reference to it, which the library will release."""
        handle = self.put(event)
        self._count(handle, 1)
        return handle

    def take_back(self, handle: int) -> None:
        """Release the reference that `lend` took. Called if the library never received the handle."""
        self._count(handle, -1)

    def learn(self, handle: int) -> None:
        """Copy the reference count in the box to the Python object, before Python reads the count or releases a
        reference.
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
        """End the object of a handle whose last reference the program has released."""
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
        """Return whether the program has released its last reference of the handle. Returns False in a thread that
        carries out commands which the program has submitted before, since these may use the handle.
        """
        return not _Box.from_address(handle).references and threading.get_ident() not in self._carriers

    def _carried_out(self, handle: int) -> Any:
        """Return the event of a command that was carried out, or passed to a device, without Python. The event is made
        now, and the handle is bound to it.
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
        """Context manager. Inside, this thread carries out commands that the program has submitted, and may use handles
        whose last reference the program has released since.
        """
        self._carriers.add(threading.get_ident())
        try:
            yield
        finally:
            self._carriers.discard(threading.get_ident())

    def drop(self, *given: Any) -> None:
        """Forget the objects whose last reference was released."""
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
    """Tell the library of the memory at this address, so that it can enqueue commands which use the memory without
    Python.
    """
    found = _objects.places.known(address)
    if found is not None:
        device = found.device
        library.xpushare_ur_range(
            found.address, found.nbytes, _backend(device), _device_number(device), not found.read_only
        )
