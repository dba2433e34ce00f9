"""`Queue`: the object face of in-order queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self, final

from xpushare._array import SharedArray, c_strides
from xpushare._errors import ForkError, InvalidArgumentError
from xpushare._event import Event
from xpushare._memory import Memory
from xpushare._native import forks
from xpushare._physical_memory import VirtualRange
from xpushare.core import queue as core
from xpushare.core.memory import FORK_ADVICE, Range
from xpushare.core.queue import Work

if TYPE_CHECKING:
    from xpushare._device import Context, Device, DeviceLike

__all__ = ["Queue"]


def _bytes_of(what: str, operand: Memory | SharedArray | VirtualRange) -> tuple[Range, int, int]:
    """Where an operand's bytes are: range, offset into it, how many."""
    if isinstance(operand, Memory):
        found = operand._use()
        return found, 0, found.nbytes
    if isinstance(operand, SharedArray):
        if operand.strides != c_strides(operand.shape, operand.dtype.itemsize) and operand.size > 1:
            raise InvalidArgumentError(f"{what} is not contiguous: queues copy and fill contiguous bytes")
        return operand._use(), operand._offset, operand.nbytes
    if isinstance(operand, VirtualRange):
        piece = operand._piece()
        return piece, 0, piece.nbytes
    raise InvalidArgumentError(f"{what} is a Memory, SharedArray or VirtualRange, not {type(operand).__name__}")


def _order(work: Work, *operands: object) -> Work:
    """What was attached is read and written in the order of its producer's stream."""
    for operand in operands:
        if isinstance(operand, SharedArray):
            operand._before(work)
    return work


def _event(event: Event) -> Any:
    if not isinstance(event, Event):
        raise InvalidArgumentError(f"this takes an Event, not {type(event).__name__}")
    return event._use()


@final
class Queue:
    """An in-order queue of work on `device`.

    Operations return when they are queued; what fails later comes out of `synchronize`. Operands stay alive until their
    operation has finished. `Queue.from_native(x)` works on another library's stream instead, ordered with what is
    queued there. (urQueueCreate)
    """

    __slots__ = ("__weakref__", "_work")

    _work: Work | None

    def __init__(self, device: DeviceLike | None = None, *, context: Context | None = None) -> None:
        self._work = None
        self._work = core.create(device, context)

    @classmethod
    def from_native(cls, native: object) -> Queue:
        """Over a torch or CuPy stream, an object with `__cuda_stream__`, or a raw stream pointer; it stays its
        library's.

        `FeatureNotSupportedError` for what no adapter here knows.
        """
        self = object.__new__(cls)
        self._work = core.adopt(native)
        return self

    def _use(self) -> Work:
        found = self._work
        if found is None:
            raise InvalidArgumentError("this Queue is closed")
        if found._forks != forks():
            raise ForkError(f"this Queue {FORK_ADVICE}")
        return found

    @property
    def device(self) -> Device:
        return self._use().device

    @property
    def context(self) -> Context:
        return self._use().context

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

    @property
    def closed(self) -> bool:
        return self._work is None

    def close(self) -> None:
        """Give up this object's hold; what is queued still runs, then the queue goes. Idempotent."""
        self._work = None

    def __enter__(self) -> Self:
        self._use()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<Queue closed>" if self._work is None else f"<Queue on {self._work.device}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Queue cannot be pickled: it belongs to its process. Send an Event that it signals")
