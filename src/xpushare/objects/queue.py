"""`Queue`: the object face of in-order queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from xpushare.common.elements import c_strides
from xpushare.common.errors import InvalidArgumentError
from xpushare.core import queue as core
from xpushare.core.declare import closing, made, watchers
from xpushare.core.memory import Range
from xpushare.core.queue import Work
from xpushare.objects.array import Memory, SharedArray, order_before, placed
from xpushare.objects.event import Event
from xpushare.objects.lifecycle import DeviceObject, use
from xpushare.objects.physical_memory import VirtualRange, whole_range

if TYPE_CHECKING:
    from xpushare._device import Context, DeviceLike

__all__ = ["Queue", "queue_over"]


def _bytes_of(what: str, operand: Memory | SharedArray | VirtualRange) -> tuple[Range, int, int]:
    """Where an operand's bytes are: a range, an offset into it, and how many bytes."""
    if isinstance(operand, Memory):
        found = use(operand)
        return found, 0, found.nbytes
    if isinstance(operand, SharedArray):
        if operand.strides != c_strides(operand.shape, operand.dtype.itemsize) and operand.size > 1:
            raise InvalidArgumentError(f"{what} is not contiguous: queues copy and fill contiguous bytes")
        return (*placed(operand), operand.nbytes)
    if isinstance(operand, VirtualRange):
        piece = whole_range(operand)
        return piece, 0, piece.nbytes
    raise InvalidArgumentError(f"{what} is a Memory, SharedArray or VirtualRange, not {type(operand).__name__}")


def _order(work: Work, *operands: object) -> Work:
    """Have `work` read and write attached arrays in the order of their producers' streams."""
    for operand in operands:
        if isinstance(operand, SharedArray):
            order_before(operand, work)
    return work


def _no_event(found: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"this takes an Event, not {type(found).__name__}")


@final
class Queue(DeviceObject[Work]):
    """An in-order queue of work on `device`.

    Operations return once they are queued; `synchronize` raises what fails later. Operands stay alive until their
    operation has finished. `Queue.from_native(x)` works on another library's stream instead, in order with what is
    queued there. Threads may share a queue. A handler of a signal may queue on one of `native_cpu`; on a queue of
    another device it would wait for ever, where it interrupted the same thread at queueing there. (urQueueCreate)
    """

    __slots__ = ("__weakref__", "forks", "held")

    _copy_advice = "it is the order of its work. Queue(device) makes another"
    _pickle_advice = "it belongs to its process. Send an Event that it signals"

    def __init__(self, device: DeviceLike | None = None, *, context: Context | None = None) -> None:
        _hold(self, core.create(device, context))

    @classmethod
    def from_native(cls, native: object) -> Queue:
        """A queue over a torch or CuPy stream, an object with `__cuda_stream__`, or a raw stream pointer; the stream
        still belongs to its library.

        Raises `FeatureNotSupportedError` for what no adapter here knows.
        """
        return queue_over(core.adopt(native))

    def copy(
        self,
        dst: Memory | SharedArray | VirtualRange,
        src: Memory | SharedArray | VirtualRange,
        nbytes: int | None = None,
    ) -> None:
        """Copy `nbytes` (default: all of `src`). Raises `InvalidArgumentError` if they do not fit, or if `dst` is
        read-only. (urEnqueueUSMMemcpy)
        """
        work, to, of = use(self), _bytes_of("dst", dst), _bytes_of("src", src)
        core.copy(_order(work, dst, src), to, of, nbytes)

    def fill(self, dst: Memory | SharedArray | VirtualRange, pattern: bytes, nbytes: int | None = None) -> None:
        """Repeat `pattern` over `nbytes` (default: all of `dst`), a multiple of its length. (urEnqueueUSMFill)"""
        work, to = use(self), _bytes_of("dst", dst)
        core.fill(_order(work, dst), to, pattern, nbytes)

    def submit(self, fn: Callable[..., object], *args: Any) -> None:
        """Run `fn(*args)` in order (on `native_cpu` only; else `FeatureNotSupportedError`). `synchronize` raises its
        exception.
        """
        core.submit(use(self), fn, args)

    def signal(self, event: Event) -> int:
        """Signal `event` once the work queued so far has finished; returns the number of the signal.

        While a point of another signaller is pending, the queue first waits for that point.
        (urEnqueueEventsWaitWithBarrierExt)
        """
        if not isinstance(event, Event):
            raise _no_event(event)
        return core.signal(use(self), use(event))

    def wait(self, event: Event, *, at_least: int | None = None) -> None:
        """Hold back work that is queued later until the newest signal known now, or signal `at_least`, is complete.
        (urEnqueueEventsWait)
        """
        if not isinstance(event, Event):
            raise _no_event(event)
        core.wait(use(self), use(event), at_least)

    def synchronize(self, timeout: float | None = None) -> None:
        """Wait until everything queued has finished.

        Raises `TimeoutError` after `timeout` seconds, `PeerLostError` once for each loss that a wait met, the exception
        of a submitted callable, and `DeviceError`. Until then, what is signalled behind a lost wait is lost, too.
        (urQueueFinish)
        """
        core.synchronize(use(self), timeout)

    def close(self) -> None:
        """Give up this object's hold; queued work still runs, then the queue is freed. Idempotent."""
        if watchers:
            closing(self)
        self.held = None

    def __repr__(self) -> str:
        return "<Queue closed>" if self.held is None else f"<Queue on {self.held.device}>"


def _hold(thing: Queue, work: Work) -> None:
    thing.held = work
    thing.forks = work.forks
    if watchers:
        made(thing)


def queue_over(work: Work) -> Queue:
    """Make the `Queue` of a stream."""
    self = object.__new__(Queue)
    _hold(self, work)
    return self
