"""`Event`: the public class for events."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Any, NoReturn, final

from xpushare._native import give_up, held_by, hold
from xpushare.core import event as core
from xpushare.core.declare import closing, made, watchers
from xpushare.core.event import Opened, Times
from xpushare.core.pickles import hope_for
from xpushare.core.resources import Resource
from xpushare.objects.lifecycle import Exportable, advise, unpickles, use, why_unusable
from xpushare.sharing import node
from xpushare.timeline.waiting import in_loop

if TYPE_CHECKING:
    from xpushare._device import Context, DeviceLike

__all__ = ["Event", "event_over"]


@final
class Event(Exportable[Opened]):
    """A timeline of signals that processes share.

    Signals are numbered from 1 on. `pending` is the newest number that anybody has submitted, and
    `value` the number up to which every signal has completed. With `enable_ipc=True` other processes
    open the event by handle, and signal, wait and query it as its maker does.

    A wait is for the newest signal known at the call, or for `at_least`, which may lie in the future.
    Between processes use `at_least`.

    A wait for the next signal continues as long as some living process counts as a signaller, and then
    raises `PeerLostError`. So pass `signals=True` in the process that is going to signal: its death
    then ends every wait, even if other processes have the event open.

    A process that exits with the event open and without having signalled is treated as dead. Without
    `signals=True` that holds only if the process has not waited for the event. A pickle that nobody
    opens within `XPUSHARE_PICKLE_GRACE` seconds is treated like a dead process, unless another possible
    signaller has opened the event since.

    Args:
        device: The device. None means `default_device()`: the first GPU, if there is one.
        context: The context to make it in, by default the device's own.
        enable_ipc: Allows `ipc.event.get` and pickles to export it.
        enable_profiling: Records `times`. Such an event cannot be shared.
        signals: True: this process is going to signal, and counts as a signaller at once. False: this
            object only waits, and never counts. None: the process counts once it has signalled. Until
            any process counts, all processes do that have the event open without `signals=False`.
        label: The event's name in `ls` and `shares`, at most 56 bytes.

    Raises:
        InvalidArgumentError: IPC and profiling exclude each other, or an option does not fit.
        FeatureNotSupportedError: A device of the context cannot do that.

    Examples:
        >>> with xs.Event("native_cpu:0") as event:
        ...     event.signal(), event.signal(), event.value
        (1, 2, 2)
    """

    __slots__ = ("_natives",)

    _kind = "event"
    _copy_advice = "open its handle for another object over the same state"
    _natives: tuple[Resource, ...]  # driver events that were handed out

    def __init__(
        self,
        device: DeviceLike | None = None,
        *,
        context: Context | None = None,
        enable_ipc: bool = False,
        enable_profiling: bool = False,
        signals: bool | None = None,
        label: str | None = None,
    ) -> None:
        _hold(self, core.create(device, context, enable_ipc, enable_profiling, signals, label))

    @classmethod
    def from_native(cls, native: object) -> Event:
        """Make an `Event` that completes when another library's event does.

        Args:
            native: An event of torch, CuPy or another library, as it is recorded now.

        Returns:
            An event with one signal. The other library still owns its event.

        Raises:
            FeatureNotSupportedError: No adapter knows such an event.

        Examples:
            `recorded` stands for a recorded `torch.cuda.Event`. The mock device runs without a GPU.

            >>> from xpushare.adapters.mock import MockEvent
            >>> recorded = MockEvent(lambda: None)
            >>> with xs.Event.from_native(recorded) as event:
            ...     event.wait(60)
            ...     event.done, event.pending
            (True, 1)
        """
        from xpushare.core import interop

        return event_over(interop.adopt_event(native))

    @property
    def ipc_enabled(self) -> bool:
        """Whether `ipc.event.get` accepts the event; False for imports."""
        return use(self).ipc_enabled

    @property
    def value(self) -> int:
        """The number up to which every signal has completed, or was lost."""
        return use(self).timeline.slot.value

    @property
    def pending(self) -> int:
        """The number of the newest signal that anybody has submitted."""
        return use(self).timeline.slot.pending

    @property
    def done(self) -> bool:
        """Whether the newest signal known now is complete. If it was lost, this raises `PeerLostError`."""
        return core.done(use(self))

    @property
    def times(self) -> Times:
        """When the newest signal of a profiling event was queued, submitted, started and complete.

        The times are nanoseconds of the device's clock. (urEventGetProfilingInfo) Raises
        `InvalidArgumentError` if the event was made without `enable_profiling=True` or the signal
        is not complete, and `PeerLostError` if it was lost.
        """
        return core.times(use(self))

    def signal(self) -> int:
        """Signal from the host. The signal is complete at once.

        Returns:
            The number of the signal.

        Raises:
            InvalidArgumentError: A signal that a queue submitted is pending. Use one event per producer.
            FeatureNotSupportedError: The host cannot signal events of this device.

        Examples:
            >>> with xs.Event("native_cpu:0") as event:
            ...     event.signal()
            1
        """
        return core.signal(use(self))

    def wait(self, timeout: float | None = None, *, at_least: int | None = None) -> None:
        """Wait on the host for a signal.

        On a fresh event, `wait()` has nothing to wait for and returns at once. A `UserWarning` says so if
        a `timeout` was given.

        Under gevent, this blocks the hub. Call it through `gevent.get_hub().threadpool.apply`.

        Args:
            timeout: Seconds to wait. None waits as long as it takes.
            at_least: The number of the signal, which may lie in the future. None means the newest one
                known now.

        Raises:
            TimeoutError: The signal did not complete in time.
            PeerLostError: The process that would have signalled has ended, or its queue has failed. This
                comes within a second.
            InvalidArgumentError: The event is closed, even by another thread during the wait.

        Examples:
            >>> import threading
            >>> with xs.Event("native_cpu:0") as event:
            ...     threading.Thread(target=event.signal).start()
            ...     event.wait(at_least=1)
            ...     event.value
            1
        """
        core.wait(use(self), timeout, at_least)

    async def reached(self, at_least: int | None = None) -> None:
        """Wait in an event loop for a signal.

        It can be cancelled and needs no thread. For time-outs use `asyncio.timeout` or
        `trio.move_on_after`. `await event` is the same without a number.

        Args:
            at_least: The number of the signal, which may lie in the future. None means the newest one
                known now.

        Raises:
            PeerLostError: The process that would have signalled has ended, or its queue has failed.
            InvalidArgumentError: The event is closed.

        Examples:
            >>> import asyncio
            >>> with xs.Event("native_cpu:0") as event:
            ...     asyncio.run(event.reached(event.signal()))
            ...     event.done
            True
        """
        await core.reached(use(self), at_least)

    # Any: None, of which type checkers would say that it cannot be awaited.
    def recovered(self, timeout: float | None = None) -> Awaitable[None] | Any:
        """Wait until a loss has ended: another process has opened the event to signal it, or has
        signalled it.

        Use this to continue after `PeerLostError`. Until the loss has ended, each wait for a lost signal
        raises at once. A lost signal stays lost until a later one is complete: wait for `pending + 1` next.

        Args:
            timeout: Seconds to wait. None waits as long as it takes. In a running event loop it does
                not apply.

        Returns:
            None, or in a running event loop an awaitable.

        Raises:
            TimeoutError: The loss has not ended in time.
            PeerLostError: The exporter is gone, so nobody can open the event any more.

        Examples:
            >>> def wait_for(event, number):
            ...     try:
            ...         event.wait(at_least=number)
            ...     except xs.PeerLostError:
            ...         event.recovered(timeout=60)  # until its signaller has been started again
            ...         event.wait(at_least=event.pending + 1)
            >>> with xs.Event("native_cpu:0", enable_ipc=True) as event:
            ...     wait_for(event, event.signal())
            ...     event.recovered() is None  # nothing is lost
            True
        """
        if in_loop():
            return core.recovered_in_loop(use(self))
        return core.recovered(use(self), timeout)

    def __await__(self) -> Generator[Any, Any, None]:
        return self.reached(self.pending).__await__()

    def __bool__(self) -> NoReturn:
        raise TypeError("an Event has no truth value: did you mean event.done?")

    def native_ipc_handle(self) -> bytes:
        """Return the driver's own IPC handle of an event, for code that accepts only such handles.
        The driver's event completes with the newest signal known now. Open it before this object is
        closed.

        Returns:
            The bytes of the driver's handle, cudaIpcEventHandle_t on `cuda`.

        Raises:
            FeatureNotSupportedError: The driver has no such handles.

        Examples:
            >>> with xs.Event("native_cpu:0") as event:
            ...     event.native_ipc_handle()
            Traceback (most recent call last):
            ...
            xpushare.FeatureNotSupportedError: ...
        """
        from xpushare.core import interop

        native = interop.record_native(use(self))
        self._natives = (*self._natives, native)
        handle: bytes = native.driver.handle
        return handle

    def statistics(self) -> dict[str, Any]:
        """Report the event's numbers and the processes that have it open.

        Returns:
            A dict. `value`, `pending` and `ipc_enabled` are the attributes of these names. `imported` tells
            whether the event was opened from a handle. `processes` are those that have it open, each with
            `pid`, `alive`, and `self` for this process.

        Raises:
            InvalidArgumentError: The event is closed.

        Examples:
            >>> with xs.Event("native_cpu:0", enable_ipc=True) as event:
            ...     event.statistics()["pending"]
            0
        """
        from xpushare.core.statistics import event_statistics

        return event_statistics(use(self))

    def close(self) -> None:
        """End this object's use of the event, and end waits made through it. Idempotent.

        The event is freed once no process and no unfinished queue operation holds it.

        Examples:
            >>> event = xs.Event("native_cpu:0")
            >>> event.close()
            >>> event
            <Event closed>
        """
        if watchers:
            closing(self)
        held = held_by(self)
        give_up(self)
        if isinstance(held, Opened) and held.role is not None:
            held.role.detach()  # ends all waits through this object
        self._natives = ()

    def __repr__(self) -> str:
        found: Opened | None = held_by(self)
        why = why_unusable(found)
        if found is None or why:
            return f"<Event {why}>"
        how = "imported " if found.handle is not None else ""
        if found.timeline.foreign_process:
            return f"<Event {how}of the parent process, on {found.device}>"
        slot = found.timeline.slot
        if node.left():
            return f"<Event {how}of a process that has left, on {found.device}>"
        return f"<Event {how}value {slot.value} pending {slot.pending} on {found.device}>"

    def _reduce(self) -> tuple[Any, ...]:
        found = use(self)
        handle = bytes(self._handle_to_pickle(found, core.get))
        if found.signals is not False:  # otherwise nobody who opens the pickle will signal
            hope_for(found.timeline.slot)
        return (_reopen, (handle, False)) if found.signals is False else (_reopen, (handle,))


advise(
    Event,
    set="signal() completes the next number",
    is_set="done says whether the newest signal is complete, and value the number of it",
    clear="signals are numbered and never taken back. wait(at_least=event.pending + 1) waits for the next one",
    record="queue.signal(event) signals once the queue's work has finished",
    query="done says whether the newest signal is complete",
    synchronize="wait() waits for it",
)


def _hold(thing: Event, opened: Opened) -> None:
    hold(thing, opened, opened.timeline.forks)
    thing._natives = ()  # pyright: ignore[reportPrivateUsage]
    if watchers:
        made(thing)


def event_over(opened: Opened) -> Event:
    """Make the `Event` of an opened slot."""
    self = object.__new__(Event)
    _hold(self, opened)
    return self


@unpickles(Event)
def _reopen(handle: bytes, signals: bool | None = None) -> Event:
    return event_over(core.open_(handle, signals=signals))
