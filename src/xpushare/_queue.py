"""`Queue`: the object face of in-order queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from xpushare._array import Memory, SharedArray, order_before, placed
from xpushare._elements import c_strides
from xpushare._errors import InvalidArgumentError
from xpushare._event import Event
from xpushare._lifecycle import DeviceObject, use
from xpushare._physical_memory import VirtualRange, whole_range
from xpushare.core import queue as core
from xpushare.core.event import Opened
from xpushare.core.memory import Range
from xpushare.core.queue import Work

if TYPE_CHECKING:
    from xpushare._device import Context, DeviceLike

__all__ = ["Queue"]


def _bytes_of(what: str, operand: Memory | SharedArray | VirtualRange) -> tuple[Range, int, int]:
    """Where an operand's bytes are: range, offset into it, how many."""
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
    """What was attached is read and written in the order of its producer's stream."""
    for operand in operands:
        if isinstance(operand, SharedArray):
            order_before(operand, work)
    return work


def _event(event: Event) -> Opened:
    if not isinstance(event, Event):
        raise InvalidArgumentError(f"this takes an Event, not {type(event).__name__}")
    return use(event)


@final
class Queue(DeviceObject[Work]):
    """An in-order queue of work on `device`.

    Operations return when they are queued; what fails later comes out of `synchronize`. Operands stay alive until their
    operation has finished. `Queue.from_native(x)` works on another library's stream instead, ordered with what is
    queued there. (urQueueCreate)
    """

    __slots__ = ("__weakref__", "_forks", "_held")

    _copy_advice = "it is the order of its work. Queue(device) makes another"
    _pickle_advice = "it belongs to its process. Send an Event that it signals"

    def __init__(self, device: DeviceLike | None = None, *, context: Context | None = None) -> None:
        self._hold(core.create(device, context))

    def _hold(self, work: Work) -> None:
        self._held = work
        self._forks = work.forks

    @classmethod
    def from_native(cls, native: object) -> Queue:
        """Over a torch or CuPy stream, an object with `__cuda_stream__`, or a raw stream pointer; it stays its
        library's.

        `FeatureNotSupportedError` for what no adapter here knows.
        """
        self = object.__new__(cls)
        self._hold(core.adopt(native))
        return self

    def copy(
        self,
        dst: Memory | SharedArray | VirtualRange,
        src: Memory | SharedArray | VirtualRange,
        nbytes: int | None = None,
    ) -> None:
        """Copy `nbytes` (default: all of `src`). `InvalidArgumentError` when they do not fit, or `dst` is read-only.
        (urEnqueueUSMMemcpy)
        """
        core.copy(_order(self._use(), dst, src), _bytes_of("dst", dst), _bytes_of("src", src), nbytes)

    def fill(self, dst: Memory | SharedArray | VirtualRange, pattern: bytes, nbytes: int | None = None) -> None:
        """Repeat `pattern` over `nbytes` (default: all of `dst`), a multiple of its length. (urEnqueueUSMFill)"""
        core.fill(_order(self._use(), dst), _bytes_of("dst", dst), pattern, nbytes)

    def submit(self, fn: Callable[..., object], *args: Any) -> None:
        """Run `fn(*args)` in order (`native_cpu` only; else `FeatureNotSupportedError`). Its exception comes out of
        `synchronize`.
        """
        core.submit(self._use(), fn, args)

    def signal(self, event: Event) -> int:
        """Signal `event` when the work queued so far has finished; the number of the signal.

        While another signaller's point is pending the queue first waits for that one.
        (urEnqueueEventsWaitWithBarrierExt)
        """
        return core.signal(self._use(), _event(event))

    def wait(self, event: Event, *, at_least: int | None = None) -> None:
        """Hold back what is queued later until the newest signal known now, or `at_least`, is complete.
        (urEnqueueEventsWait)
        """
        core.wait(self._use(), _event(event), at_least)

    def synchronize(self, timeout: float | None = None) -> None:
        """Wait until everything queued has finished.

        Raises `TimeoutError` after `timeout` seconds, `PeerLostError` once for each wait that was released by a loss, a
        callable's own exception, `DeviceError`. (urQueueFinish)
        """
        core.synchronize(self._use(), timeout)

    def close(self) -> None:
        """Give up this object's hold; what is queued still runs, then the queue goes. Idempotent."""
        self._held = None

    def __repr__(self) -> str:
        return "<Queue closed>" if self._held is None else f"<Queue on {self._held.device}>"
