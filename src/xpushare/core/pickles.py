"""The exports that pickling makes, how long a pickle stays valid, and the placeholder for an object whose pickle cannot
be opened.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar, Final, final
from weakref import WeakSet

from xpushare import _native
from xpushare._native import Slot
from xpushare.common import settings
from xpushare.common.aspects import Aspect
from xpushare.common.errors import (
    DeviceError,
    FeatureNotSupportedError,
    InvalidArgumentError,
    OutOfMemoryError,
    Unread,
)
from xpushare.common.leaving import Notice, Stage, at_leave
from xpushare.common.loading import logger
from xpushare.common.texts import counted, readable
from xpushare.core.device import Device
from xpushare.core.opening import memory_nbytes
from xpushare.core.resources import End
from xpushare.sharing import layout, node
from xpushare.sharing.handle import PICKLED, Handle, fields_of
from xpushare.sharing.table import Allocations, Table, deadline_in

__all__ = [
    "Implicit",
    "ImplicitAll",
    "Pickled",
    "Unopened",
    "anew",
    "forwards",
    "hope_for",
    "message",
    "reduced",
    "sent",
    "taken_back",
    "wait_for_all",
]

_GRACE: Final = "XPUSHARE_PICKLE_GRACE"
_BYTES: Final = "XPUSHARE_PICKLE_BYTES"
_NANOSECONDS: Final = 1_000_000_000
_warned: Final[WeakSet[object]] = WeakSet()  # objects that cannot be exported again; guarded by `Pickled.lock`


def _grace() -> int:
    """Return how long a pickle stays valid after its object has died, in nanoseconds."""
    return int(min(settings.seconds(_GRACE, 60.0) * _NANOSECONDS, 1 << 62))


def _most_nbytes(device: Device) -> int:
    """Return the limit, in bytes, on the memory of a device that pickles keep until they are opened."""
    most = settings.nbytes(_BYTES)
    return memory_nbytes(device) // 4 if most is None else most


# --- messages


@final
class _Message:
    """What one call of a pickler's `dump` pickles. A message is sent as a whole or not at all."""

    __slots__ = ("allocations", "arguments", "given", "inside", "open")

    def __init__(self, open_: bool = False) -> None:
        self.inside = _goes_to_family()
        self.allocations: Allocations = {}
        self.given: list[Handle] = []
        self.arguments: object = None  # of the newest object in the pickle
        self.open = open_  # until `message` ends

    def goes_on(self) -> bool:
        """Return whether the call of `dump` that pickled this message is still running. A pickler refers to everything
        that it has pickled.
        """
        return self.open or (self.arguments is not None and sys.getrefcount(self.arguments) > _UNREFERENCED)

    def add(self, device: Device, handles: Sequence[Handle]) -> None:
        """Add handles. Raises `OutOfMemoryError` if pickles that nobody has opened keep too much. Then no part of the
        message waits any more.
        """
        try:
            node.current().table().expect_room(handles, self.allocations, _most_nbytes(device))
        except OutOfMemoryError:
            self.take_back()
            raise

    def take_back(self) -> None:
        """Let go of what the message keeps, since it will not be sent."""
        table = node.current().table_if_any
        given, self.given = self.given, []
        self.allocations = {}
        for handle in given:
            if table is not None:
                table.take_open(handle)


_UNREFERENCED: Final = 2  # references to an object that nothing else refers to, with the argument itself


def _goes_to_family() -> bool:
    """Return whether a queue, a pool or the start of a process of `multiprocessing` pickles, so that only this process,
    its parents and their children can receive what is pickled. False if that is not known, as for a connection.
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name in _FAMILY:
            return True
        if not name.startswith(_CARRIERS):
            return False
        frame = frame.f_back
    return False


_FAMILY: Final = frozenset({
    "concurrent.futures.process", "multiprocessing.pool", "multiprocessing.popen_forkserver",
    "multiprocessing.popen_spawn_posix", "multiprocessing.queues",
})  # fmt: skip
_CARRIERS: Final = "xpushare.", "contextlib", "multiprocessing.", "torch.multiprocessing."


class _Here(threading.local):
    """The message that this thread is pickling, or has pickled last."""

    message: _Message | None = None


_here = _Here()


def _message() -> _Message:
    found = _here.message
    if found is None or not found.goes_on():
        found = _here.message = _Message()
    return found


def reduced(arguments: object) -> None:
    """Record that a pickler is about to write these arguments. If they are written, it refers to them until `dump` has
    returned.
    """
    found = _here.message
    if found is not None:
        found.arguments = arguments


@contextmanager
def message() -> Generator[None]:
    """Treat everything that is pickled in the block as one message. If the block raises, no part of the message waits
    any more.
    """
    outer = _here.message
    inner = _here.message = _Message(open_=True)
    try:
        with End(inner.take_back):
            yield
    finally:
        inner.open = False
        _here.message = outer


# --- exports


class Implicit:
    """Holds the handle of an export. When this object dies, the export ends.

    Args:
        get: The operation that exports. It puts the handle into the list `into`, which this object holds already, so
            that no interrupt loses the handle on its way.
        source: What to export.
    """

    __slots__ = ("__weakref__", "_end", "_taken")

    def __init__(self, get: Callable[..., Handle], source: object) -> None:
        self._taken: list[Handle] = []
        self._end = End.repeated(_withdraw_all, self._taken)
        get(source, implicit=True, into=self._taken)

    @property
    def handle(self) -> Handle:
        return self._taken[0]

    def end(self) -> None:
        """End the export now. Idempotent."""
        _withdraw_all(self._taken)


class ImplicitAll:
    """Holds the handles of several exports. When this object dies, the exports end."""

    __slots__ = ("_end", "handles")

    def __init__(self, handles: list[Handle]) -> None:
        self.handles = handles
        self._end = End.repeated(_withdraw_all, handles)


def _withdraw_all(handles: list[Handle]) -> None:
    table = node.current().table_if_any
    if table is not None:
        table.withdraw_all(handles, layout.REASON_FREED)


@final
class Pickled:
    """The handle that pickling an object makes. Its export outlives the object for a while, as `Table.outlive`
    describes.
    """

    # Two threads that pickle one object must make only one export, else one thread's bytes would expire. Re-entrant,
    # since the garbage collector may run inside.
    lock: ClassVar[Any] = threading.RLock()

    __slots__ = ("_end", "_grace", "handle")

    def __init__(self, handle: Handle) -> None:
        self.handle: Handle = handle
        self._grace = [0]
        self._end = End(_outlive, handle, self._grace)

    def sent(self, device: Device) -> Handle | None:
        """Return the handle for one more pickle, or None if its export has ended because the program called `put`.
        Raises `OutOfMemoryError` if pickles that nobody has opened keep too much.
        """
        self._grace[0] = _grace()
        if node.left():
            return self.handle
        message = _message()
        message.add(device, [self.handle])
        if not node.current().table().give_open(self.handle):
            return None
        message.given.append(self.handle)
        if not message.inside:
            node.current().table().sent_elsewhere(message.given[-1:])
        return self.handle


def _outlive(handle: Handle, grace: list[int]) -> None:
    table = node.current().table_if_any
    if table is not None:
        table.outlive([handle], grace[0])


def hope_for(slot: Slot) -> None:
    """Record that a pickle of an event was made. As long as the pickle is valid, some process may still open it and
    signal the event, so the signals that are waited for do not count as lost.
    """
    if not node.left():
        slot.pickled(deadline_in(_grace()))


def sent(made: dict[Device, list[Handle]], opens: int) -> None:
    """Record that these handles were made for one pickle alone, which may be opened `opens` times. The handles are
    treated as if their objects had died. Raises `OutOfMemoryError` if pickles that nobody has opened keep too much.
    """
    if node.left():
        return
    grace = _grace()  # first, since the variable may hold nonsense
    table = node.current().table()
    message = _message()
    for device, handles in made.items():
        message.add(device, handles)
    for handles in made.values():
        if not message.inside:
            table.sent_elsewhere(handles)
        for handle in handles * opens:
            table.give_open(handle)
        table.outlive(handles, grace)


def taken_back(made: dict[Device, list[Handle]]) -> None:
    """Withdraw handles of a pickle that will not be sent."""
    table = node.current().table_if_any
    if table is not None:
        table.withdraw_all([handle for handles in made.values() for handle in handles], layout.REASON_FREED)


def forwards(handle: Handle) -> bool:
    """Return whether a pickle of imported memory can carry the handle that the memory was opened from, and extend the
    validity of that handle. Returns False if the exporter of the handle has exited.
    """
    here = node.current()
    fields = fields_of(handle)
    if node.left():
        return True
    if here.is_own(fields.cookie):
        return not fields.flags & PICKLED or here.table().renew(handle, _grace())
    peer = here.peers.known(fields.cookie)
    if peer is None or not peer.alive():
        return False
    if fields.flags & PICKLED and here.peers.stands(handle):
        peer.domain.renew(fields.entry, deadline_in(_grace()))
    return True


def anew(source: object, device: Device, get: Callable[[], Handle]) -> Pickled | None:
    """Export an imported object again, from this process, after its exporter has exited. Returns None if the device or
    its driver cannot do that. A warning is logged once for each `source`. The caller holds `Pickled.lock`.
    """
    if node.left() or not device.has(Aspect.outlives_exporter):
        return None
    try:
        return Pickled(get())
    except (FeatureNotSupportedError, InvalidArgumentError, DeviceError) as error:
        if source not in _warned:
            _warned.add(source)
            logger().warning(
                "the process that exported %r is gone, and it cannot be exported from here: %s; its pickle "
                "carries the original handle, which has expired",
                source,
                error,
            )
        return None


def wait_for_all(deadline: float) -> None:
    """Wait until each pickle of this process has been opened or has expired, at most until `deadline` (seconds of
    `time.monotonic`). Does not wait for pickles that no living process can open any more.

    Called at a clean exit. The exit ends every object, so each pickle expires at most `XPUSHARE_PICKLE_GRACE` seconds
    later.
    """
    table = node.current().table_if_any
    if table is None:
        return
    deadline = min(deadline, time.monotonic() + _grace() / _NANOSECONDS) if deadline else 0.0
    notice = Notice()
    pause = 0.001
    while waiting := table.waiting_pickles(only_elsewhere=_family_has_ended(table)):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        notice.waits(
            "%s (%s) that no process has opened yet",
            counted(len(waiting), "pickle"),
            readable(sum([each.nbytes for each in waiting])),
            seconds=left,
        )
        time.sleep(min(pause, left))
        pause = min(pause * 2, 0.02)
    if waiting and deadline:  # after Ctrl-C the deadline is 0
        logger().warning(
            "process %d exits before all of its pickles have been opened (XPUSHARE_LINGER): the memory of the others "
            "goes with it",
            os.getpid(),
        )


def _family_has_ended(table: Table) -> bool:
    """Return whether no other process can receive anything that this process has put into queues and pools of
    `multiprocessing`. A child's queues may be its parent's, and a process that has opened memory of this one may have
    children of its own.
    """
    processes: Any = sys.modules.get("multiprocessing.process")
    return (
        processes is not None
        and processes.parent_process() is None
        and _native.forks() == 0
        and not processes.active_children()
        and not table.importers()
    )


@final
class Unopened(Unread):
    """The state of an object whose pickle could not be opened. It can be pickled again."""

    __slots__ = ("pickle",)

    def __init__(self, error: Exception, pickle: tuple[Any, ...]) -> None:
        super().__init__(error)
        self.pickle = pickle


def _after_fork() -> None:
    Pickled.lock = threading.RLock()  # a thread of the parent may have held the old lock


os.register_at_fork(after_in_child=_after_fork)
at_leave(wait_for_all, Stage.LINGER)
