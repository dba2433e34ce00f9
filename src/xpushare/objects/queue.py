"""`Queue`: the public class for in-order queues."""

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
    from xpushare.core.device import Context, DeviceLike

__all__ = ["Queue", "queue_over"]


def _bytes_of(what: str, operand: Memory | SharedArray | VirtualRange) -> tuple[Range, int, int]:
    """Return where an operand's bytes are: the range, the offset in the range, and the number of bytes."""
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
    raise InvalidArgumentError(
        f"{what} is a Memory, SharedArray or VirtualRange, not {type(operand).__name__}: "
        "xs.array(x) makes a shared copy"
    )


def _order(work: Work, *operands: object) -> Work:
    """Make `work` wait for the streams that produce the attached arrays among its operands."""
    for operand in operands:
        if isinstance(operand, SharedArray):
            order_before(operand, work)
    return work


def _no_event(found: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"this takes an Event, not {type(found).__name__}")


@final
class Queue(DeviceObject[Work]):
    r"""An in-order queue of work on a device.

    Calls return once their work is queued. `synchronize` raises the errors that occur later. Operands stay alive until
    their work has finished. Threads may share a queue. Signal handlers may use queues of
    `native_cpu` only. (urQueueCreate)

    Args:
        device: The device. None means `default_device()`: the first GPU, if there is one.
        context: The context to create the queue in, by default the device's own.

    Raises:
        InvalidArgumentError: There is no such device.
        FeatureNotSupportedError: The device has no engine that can copy.
        DeviceError: The driver failed.

    Examples:
        >>> a = xs.empty(3)
        >>> with xs.Queue("native_cpu:0") as queue:
        ...     queue.fill(a, b"\0")
        ...     queue.synchronize()
        >>> np.asarray(a).tolist()
        [0.0, 0.0, 0.0]
    """

    __slots__ = ()

    _copy_advice = "it is the order of its work. Queue(device) makes another"
    _pickle_advice = "it belongs to its process. Send an Event that it signals"

    def __init__(self, device: DeviceLike | None = None, *, context: Context | None = None) -> None:
        _hold(self, core.create(device, context))

    @classmethod
    def from_native(cls, native: object) -> Queue:
        """Make a queue over another library's stream. Its operations run in order with the stream's
        other work.

        Args:
            native: A stream of torch or CuPy, an object with `__cuda_stream__`, or a raw pointer.

        Returns:
            The queue. The other library still owns the stream.

        Raises:
            FeatureNotSupportedError: No adapter supports streams of this type.

        Examples:
            `stream` stands for a stream of torch. The mock device runs without a GPU.

            >>> from xpushare.adapters.mock import MockStream
            >>> stream = MockStream()
            >>> with xs.Queue.from_native(stream) as queue, xs.Event("native_cpu:0") as event:
            ...     number = queue.signal(event)
            ...     event.wait(60, at_least=number)
            ...     event.value
            1
        """
        return queue_over(core.adopt(native))

    def copy(
        self,
        dst: Memory | SharedArray | VirtualRange,
        src: Memory | SharedArray | VirtualRange,
        nbytes: int | None = None,
    ) -> None:
        """Copy bytes from one operand to another. (urEnqueueUSMMemcpy)

        Args:
            dst: The destination.
            src: The source.
            nbytes: The number of bytes, by default all of `src`.

        Raises:
            InvalidArgumentError: The bytes do not fit, an array is not contiguous, or `dst` is read-only.

        Examples:
            >>> a, b = xs.array([1, 2, 3]), xs.empty(3, int)
            >>> with xs.Queue("native_cpu:0") as queue:
            ...     queue.copy(b, a)
            ...     queue.synchronize()
            >>> np.asarray(b).tolist()
            [1, 2, 3]
        """
        work, to, of = use(self), _bytes_of("dst", dst), _bytes_of("src", src)
        core.copy(_order(work, dst, src), to, of, nbytes)

    def fill(self, dst: Memory | SharedArray | VirtualRange, pattern: bytes, nbytes: int | None = None) -> None:
        """Fill an operand with repetitions of a pattern. (urEnqueueUSMFill)

        Args:
            dst: The operand to fill.
            pattern: The bytes to repeat.
            nbytes: The number of bytes, a multiple of the pattern's length. By default all of `dst`.

        Raises:
            InvalidArgumentError: The bytes do not fit, or `dst` is read-only.

        Examples:
            >>> memory = xs.malloc_host(6, "native_cpu:0")
            >>> with xs.Queue("native_cpu:0") as queue:
            ...     queue.fill(memory, b"ab")
            ...     queue.synchronize()
            >>> bytes(memory)
            b'ababab'
        """
        work, to = use(self), _bytes_of("dst", dst)
        core.fill(_order(work, dst), to, pattern, nbytes)

    def submit(self, fn: Callable[..., object], *args: Any) -> None:
        """Run a function in order with the other work. `synchronize` raises its exception.

        Args:
            fn: The function.
            args: Its arguments.

        Raises:
            FeatureNotSupportedError: The device is not `native_cpu`.

        Examples:
            >>> seen = []
            >>> with xs.Queue("native_cpu:0") as queue:
            ...     queue.submit(seen.append, 7)
            ...     queue.synchronize()
            >>> seen
            [7]
        """
        core.submit(use(self), fn, args)

    def signal(self, event: Event) -> int:
        """Signal an event once the work queued so far has finished.

        If another process or queue has a pending signal on the event, the queue first waits for that signal.
        (urEnqueueEventsWaitWithBarrierExt)

        Args:
            event: The event.

        Returns:
            The number of the signal.

        Raises:
            InvalidArgumentError: The event is closed.
            FeatureNotSupportedError: The queue's device cannot access the event.

        Examples:
            >>> with xs.Queue("native_cpu:0") as queue, xs.Event("native_cpu:0") as event:
            ...     number = queue.signal(event)
            ...     event.wait(at_least=number)
            ...     event.value
            1
        """
        if not isinstance(event, Event):
            raise _no_event(event)
        return core.signal(use(self), use(event))

    def wait(self, event: Event, *, at_least: int | None = None) -> None:
        """Make work that is queued later wait until a signal is complete. (urEnqueueEventsWait)

        The call itself returns at once. If the signal is lost, `synchronize` raises
        `PeerLostError`.

        Args:
            event: The event.
            at_least: The number of the signal, which may lie in the future. None means the newest one
                known now.

        Raises:
            InvalidArgumentError: The event is closed.
            FeatureNotSupportedError: The queue's device cannot access the event.

        Examples:
            >>> with xs.Queue("native_cpu:0") as queue, xs.Event("native_cpu:0") as event:
            ...     queue.wait(event, at_least=1)
            ...     number = event.signal()
            ...     queue.synchronize(timeout=60)
            ...     number
            1
        """
        if not isinstance(event, Event):
            raise _no_event(event)
        core.wait(use(self), use(event), at_least)

    def synchronize(self, timeout: float | None = None) -> None:
        """Wait on the host until everything queued has finished. (urQueueFinish)

        If a signal that the queue waits for is lost, the signals queued later are lost, too, until
        `synchronize` has raised the error.

        Args:
            timeout: Seconds to wait. None waits as long as it takes.

        Raises:
            TimeoutError: The work did not finish in time.
            PeerLostError: A signal that the queue waited for is lost. Each loss is raised once.
            DeviceError: The driver failed.
            Exception: The exception of a submitted function.

        Examples:
            >>> with xs.Queue("native_cpu:0") as queue:
            ...     queue.submit(int, "x")
            ...     queue.synchronize()
            Traceback (most recent call last):
            ...
            ValueError: invalid literal for int() with base 10: 'x'
        """
        core.synchronize(use(self), timeout)

    def close(self) -> None:
        """End this object's use of the queue. Queued work still runs. Idempotent.

        Examples:
            >>> queue = xs.Queue("native_cpu:0")
            >>> queue.close()
            >>> queue
            <Queue closed>
        """
        if watchers:
            closing(self)
        self._give_up()

    def __repr__(self) -> str:
        found: Work | None = self._held
        return "<Queue closed>" if found is None else f"<Queue on {found.device}>"


def _hold(thing: Queue, work: Work) -> None:
    thing._hold(work, work.forks)
    if watchers:
        made(thing)


def queue_over(work: Work) -> Queue:
    """Make the `Queue` object for a driver queue."""
    self = object.__new__(Queue)
    _hold(self, work)
    return self
