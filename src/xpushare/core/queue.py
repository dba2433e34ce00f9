"""Operations on queues."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Self, final
from weakref import WeakKeyDictionary, ref

from xpushare._native import PENDING, Domain, Slot
from xpushare.adapters.base import DriverQueue
from xpushare.adapters.vendor import Vendor
from xpushare.common.errors import (
    DeviceError,
    FeatureNotSupportedError,
    InvalidArgumentError,
    OutOfMemoryError,
    PeerLostError,
)
from xpushare.common.leaving import Stage, at_leave
from xpushare.common.loading import logger
from xpushare.core.declare import operation
from xpushare.core.device import Context, Device, DeviceLike, adapter_of, info_of, known_device, resolve
from xpushare.core.event import Opened, may_signal, point_argument, quiet_if_leaving, timeout_argument
from xpushare.core.memory import Range, piece
from xpushare.core.resources import Pin, Resource

__all__ = [
    "Work",
    "adopt",
    "any_unfinished",
    "copy",
    "create",
    "fill",
    "operand",
    "pause",
    "signal",
    "submit",
    "synchronize",
    "wait",
    "wait_for_device",
]


_PAUSE: Final = 1e-3  # seconds between checks of queues that have to finish


class _Queues:
    """The driver queues of this process, including closed ones that still finish their work. It holds only weak
    references.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # re-entrant, for signal handlers
        self._queues: WeakKeyDictionary[DriverQueue, Device] = WeakKeyDictionary()

    def add(self, queue: DriverQueue, device: Device) -> None:
        with self._lock:
            self._queues[queue] = device

    def all(self, device: Device | None = None) -> list[DriverQueue]:
        """Return the queues of a device, or of all devices."""
        with self._lock:
            return [queue for queue, of in self._queues.items() if device is None or of == device]


_queues = _Queues()


def _goes_on(unfinished: bool | tuple[Slot, int]) -> bool:
    """Return whether a queue can progress without a signal from another process or another queue of this process."""
    if isinstance(unfinished, bool):
        return unfinished
    slot, point = unfinished
    try:
        return slot.state(point) != PENDING or (point <= slot.pending and not slot.owes_next())
    except ValueError:
        return True  # the event was closed here, which ends the wait


def _finish(deadline: float) -> None:
    """At a clean exit, wait until the queues have finished all work that they can finish.

    A queue cannot progress by itself while it waits for a signal that no process has submitted, or that another queue
    of this process has yet to signal. The wait ends once no queue can progress and none has progressed since the
    previous check.
    """
    before: dict[int, bool | tuple[Slot, int]] | None = None
    while True:
        found = {id(queue): queue.unfinished() for queue in _queues.all()}
        if any(map(_goes_on, found.values())):
            if time.monotonic() >= deadline:
                logger().warning("process %d exits before its queues have finished (XPUSHARE_LINGER)", os.getpid())
                return
            before = None
            time.sleep(_PAUSE)
        elif found == before:
            return
        else:
            before = found


def any_unfinished() -> bool:
    """Return whether a queue of this process has unfinished work. This also releases the operands of finished work."""
    unfinished = [queue.unfinished() for queue in _queues.all()]
    return any(each is not False for each in unfinished)


def pause() -> None:
    """Sleep for a moment between two checks of the queues."""
    time.sleep(_PAUSE)


def wait_for_device(device: Device) -> None:
    """Wait until this process's queues on the device have finished, including closed ones. This does not raise the
    errors of the queues, which each queue's own `synchronize` raises.
    """
    for queue in _queues.all(device):
        while queue.unfinished() is not False:
            time.sleep(_PAUSE)


def _after_fork() -> None:
    global _queues
    _queues = _Queues()  # the parent's queues have no threads here


os.register_at_fork(after_in_child=_after_fork)
at_leave(_finish, Stage.FINISH)


@final
class Work(Resource):
    """A driver queue."""

    __slots__ = ("_reached", "context")

    driver: DriverQueue
    context: Context
    _reached: dict[int, ref[Domain]]

    def __new__(cls, device: Device, context: Context, driver: DriverQueue) -> Self:
        self = super().__new__(cls, device, driver, driver.release)
        _queues.add(driver, device)
        self.context = context
        self._reached = {}
        return self

    def reach(self, event: Opened) -> None:
        """Make the event's slot accessible to this queue's device."""
        domain = event.timeline.driver
        known = self._reached.get(id(domain))
        if known is None or known() is not domain:
            adapter_of(self.device).adopt_domain(info_of(self.device), domain)
            self._reached[id(domain)] = ref(domain)


class Operand(NamedTuple):
    """The bytes that a queue operation reads or writes, and the object that keeps them in place."""

    address: int
    nbytes: int
    keep: object
    read_only: bool


@operation("Queue", raises=(InvalidArgumentError, FeatureNotSupportedError, OutOfMemoryError, DeviceError))
def create(device: DeviceLike | None, context: Context | None) -> Work:
    """Create an in-order queue."""
    chosen, chosen_context = resolve(device, context)
    return Work(chosen, chosen_context, adapter_of(chosen).queue(info_of(chosen)))


@operation("Queue.from_native", raises=(InvalidArgumentError, FeatureNotSupportedError, OutOfMemoryError, DeviceError))
def adopt(native: object) -> Work:
    """Return a queue over another library's stream. Its operations run in order with the stream's other work. The
    stream still belongs to the library.
    """
    from xpushare import adapters

    for own in (True, False):
        found = _adopted(native, adapters.records(own))
        if found is not None:
            return found
    known = "; ".join(f"{record.backend}: {record.streams}" for record in adapters.vendors() if record.streams)
    raise FeatureNotSupportedError(f"{type(native).__name__} is not a stream that an adapter here knows ({known})")


def _adopted(native: object, vendors: Iterable[Vendor]) -> Work | None:
    from xpushare import adapters

    claims = [record for record in vendors if record.stream_of(native) is not None]
    if len(claims) > 1:
        rivals = [each for each in claims if each.in_use() and adapters.listed(each.backend)]
        if len(rivals) > 1:
            names = " or of ".join(each.backend for each in rivals)
            raise InvalidArgumentError(
                f"this {type(native).__name__} may be a stream of {names}, which all have devices here: pass "
                "its library's stream object, or pass it with memory of the device, as in share(array, stream=…)"
            )
        claims = rivals or claims
    for record in claims:
        adapter = adapters.adapter(record.backend)
        found = adapter.adopt_queue(native)
        if found is not None:
            info, driver = found
            device = known_device(adapter, info)
            return Work(device, device.context, driver)
    return None


def operand(queue: Work, what: str, source: Range, offset: int, total: int, nbytes: int | None, write: bool) -> Operand:
    _, length = piece(what, total, 0, nbytes)
    if source.device.backend != queue.device.backend and not source.allocation.host_accessible:
        raise InvalidArgumentError(f"{what} is on {source.device}, which a queue of {queue.device} cannot reach")
    part = source.replace(offset=source.offset + offset, nbytes=length)
    keep, read_only = part.hold()
    if isinstance(keep, Pin):
        keep.works()
    if write and read_only:
        raise InvalidArgumentError(f"{what} is read-only")
    return Operand(part.address, length, keep, read_only)


@operation("Queue.copy", raises=(InvalidArgumentError, OutOfMemoryError, DeviceError))
def copy(queue: Work, dst: tuple[Range, int, int], src: tuple[Range, int, int], nbytes: int | None) -> None:
    """Copy `nbytes` (default: all of `src`) from the start of `src` to the start of `dst`. Each operand is a tuple of a
    range, the offset in the range and the number of bytes.
    """
    source = operand(queue, "src", *src, nbytes, False)
    target = operand(queue, "dst", *dst, source.nbytes, True)
    if source.nbytes and source.address != target.address:  # some drivers refuse to copy bytes onto themselves
        queue.driver.copy(target.address, source.address, source.nbytes, (source.keep, target.keep))


@operation("Queue.fill", raises=(InvalidArgumentError, OutOfMemoryError, DeviceError))
def fill(queue: Work, dst: tuple[Range, int, int], pattern: bytes, nbytes: int | None) -> None:
    """Fill the first `nbytes` (default: all) of `dst` with repetitions of `pattern`."""
    try:
        pattern = bytes(memoryview(pattern))
    except TypeError:
        raise InvalidArgumentError(f"a pattern is bytes such as b'\\0', not {type(pattern).__name__}") from None
    except ValueError as error:  # a memoryview that was released, a closed mmap
        raise InvalidArgumentError(f"a pattern is bytes, not this {type(pattern).__name__}: {error}") from error
    target = operand(queue, "dst", *dst, nbytes, True)
    if not pattern:
        raise InvalidArgumentError("the pattern is empty")
    if target.nbytes % len(pattern):
        raise InvalidArgumentError(
            f"the {target.nbytes} bytes to fill are not a multiple of the pattern's {len(pattern)} bytes"
        )
    if target.nbytes:
        queue.driver.fill(target.address, pattern, target.nbytes, target.keep)


@operation("Queue.submit", raises=(InvalidArgumentError, FeatureNotSupportedError, OutOfMemoryError, DeviceError))
def submit(queue: Work, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    """Run a callable on the queue's thread, after the work queued before. `synchronize` raises the callable's
    exception.
    """
    if not callable(function):
        raise InvalidArgumentError(f"submit takes a callable, not {type(function).__name__}")
    queue.driver.call(functools.partial(function, *arguments))


@operation("Queue.signal", raises=(InvalidArgumentError, FeatureNotSupportedError, OutOfMemoryError, DeviceError))
def signal(queue: Work, event: Opened) -> int:
    """Signal the event once the work queued before has finished. Returns the number of the signal."""
    if event.signals is False:
        may_signal(event)  # raises the reason if this end may not signal
    if event.queue_refusal:
        raise FeatureNotSupportedError(event.queue_refusal)
    queue.reach(event)
    try:
        return queue.driver.signal(event.timeline.slot, event.profile)
    except ValueError as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"{error} (use one event per producer)") from None


@operation("Queue.wait", raises=(InvalidArgumentError, FeatureNotSupportedError, OutOfMemoryError, DeviceError))
def wait(queue: Work, event: Opened, at_least: int | None) -> None:
    """Hold back work queued later until the newest signal known now, or signal `at_least`, is complete."""
    queue.reach(event)
    slot = event.timeline.slot
    queue.driver.wait(slot, point_argument(at_least, slot))


@operation(
    "Queue.synchronize", raises=(InvalidArgumentError, TimeoutError, PeerLostError, OutOfMemoryError, DeviceError)
)
def synchronize(queue: Work, timeout: float | None) -> None:
    """Wait on the host until everything queued has finished. Raises the queue's errors that have not been raised
    before.
    """
    seconds = timeout_argument(timeout)
    if timeout is not None and timeout < 0:
        raise InvalidArgumentError(f"timeout is a number of seconds, 0 or more, not {timeout}")
    try:
        queue.driver.synchronize(seconds)
    except Exception:
        quiet_if_leaving()
        raise
