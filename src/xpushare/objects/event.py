"""`Event`: the public class for events."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Any, NoReturn, final

from xpushare.core import event as core
from xpushare.core.declare import closing, made, public, watchers
from xpushare.core.event import Opened, Times
from xpushare.core.pickles import hope_for
from xpushare.core.resources import Resource
from xpushare.objects.lifecycle import Exportable, advise, unpickles, use, why_unusable
from xpushare.sharing import node
from xpushare.timeline.waiting import in_loop

if TYPE_CHECKING:
    from xpushare.core.device import Context, DeviceLike

__all__ = ["Event", "event_over"]


@final
class Event(Exportable[Opened]):
    """A timeline of signals that processes share.

    Signals are numbered from 1 on. `pending` is the number of the newest signal that any process has submitted. `value`
    is the number up to which every signal has completed or was lost. With `enable_ipc=True`, other processes can open
    the event by a handle. They can then signal it, wait for it and query it, as the process that made it can.

    By default, a wait is for the newest signal known at the call. With `at_least`, it is for the signal with that
    number, which may lie in the future. Use `at_least` to wait for a signal of another process.

    A wait for the next signal continues as long as a living process counts as a signaller, and then raises
    `PeerLostError`. Pass `signals=True` in the process that is going to signal. If that process dies, every wait ends,
    even if other processes have the event open.

    A process that exits with the event open and has never signalled it is treated as if it had crashed. There is one
    exception: if the process did not pass `signals=True` and has waited for the event, its exit counts as a `close`. A
    pickle that is not opened within `XPUSHARE_PICKLE_GRACE` seconds is treated like a crashed process, unless another
    possible signaller has opened the event since.

    Args:
        device: The device. None means `default_device()`: the first GPU, if there is one.
        context: The context to create the event in, by default the device's own.
        enable_ipc: Allows `ipc.event.get` and pickling to export the event.
        enable_profiling: Records `times`. Such an event cannot be shared.
        signals: With True, this process is going to signal, and counts as a signaller at once. With False, this object
            only waits, and never counts. With None, the process counts once it has signalled. As long as no process
            counts, every process that has the event open without `signals=False` is treated as a signaller.
        label: The event's name in `ls` and `shares`, at most 56 bytes.

    Raises:
        InvalidArgumentError: Both `enable_ipc` and `enable_profiling` are set, or another argument is invalid.
        FeatureNotSupportedError: A device of the context does not support such events.

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
        """Return a new `Event` that completes when another library's event completes.

        Args:
            native: An event of torch, CuPy or another library. Its latest recording counts.

        Returns:
            An event with one signal. The other library still owns its event.

        Raises:
            FeatureNotSupportedError: No adapter supports events of this type.

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
        """Whether `ipc.event.get` accepts the event. False for events that were opened from a handle."""
        return use(self).ipc_enabled

    @property
    def value(self) -> int:
        """The number up to which every signal has completed, or was lost."""
        return use(self).timeline.slot.value

    @property
    def pending(self) -> int:
        """The number of the newest signal that any process has submitted."""
        return use(self).timeline.slot.pending

    @property
    def done(self) -> bool:
        """Whether the newest signal known now is complete. If it was lost, this raises `PeerLostError`."""
        return core.done(use(self))

    @property
    def times(self) -> Times:
        """When the newest signal of a profiling event was queued, submitted, started and complete.

        The times are nanoseconds of the device's clock. Raises `InvalidArgumentError` if the event was created without
        `enable_profiling=True`, or if the signal is not complete. Raises `PeerLostError` if the signal was lost.
        (urEventGetProfilingInfo)
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

        On a fresh event, `wait()` has nothing to wait for. It returns at once, with a `UserWarning` unless the
        `timeout` is 0.

        Under gevent, this blocks the hub. Call it through `gevent.get_hub().threadpool.apply`.

        Args:
            timeout: Seconds to wait. None waits as long as it takes.
            at_least: The number of the signal, which may lie in the future. None means the newest one
                known now.

        Raises:
            TimeoutError: The signal did not complete in time.
            PeerLostError: The process that should have signalled has ended, or its queue has failed. The error is
                raised within a second of that.
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

        The wait can be cancelled, and needs no thread. For time-outs use `asyncio.timeout` or `trio.move_on_after`.
        `await event` does the same as `await event.reached()`.

        Args:
            at_least: The number of the signal, which may lie in the future. None means the newest one
                known now.

        Raises:
            PeerLostError: The process that should have signalled has ended, or its queue has failed.
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
        """After a signal was lost, wait until another process has opened the event to signal it, or has signalled it.

        Use this to continue after `PeerLostError`. Until another process has done so, each wait for a lost signal
        raises `PeerLostError` at once. A lost signal stays lost until a later signal is complete. So wait for signal
        `pending + 1` next.

        Args:
            timeout: Seconds to wait. None waits as long as it takes. In a running event loop, `timeout` is ignored.

        Returns:
            None. In a running event loop, an awaitable.

        Raises:
            TimeoutError: No other process opened or signalled the event in time.
            PeerLostError: The exporter has exited, so no process can open the event any more.

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
        """Make a driver event that completes with the newest signal known now, and return the driver's own IPC handle
        of it. Use this for code that accepts only such handles. The other process has to open the handle before this
        object is closed.

        Returns:
            The bytes of the driver's handle, cudaIpcEventHandle_t on `cuda`.

        Raises:
            FeatureNotSupportedError: The driver has no IPC handles for events.

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
            A dict. `value`, `pending` and `ipc_enabled` are the attributes of these names. `imported` says whether the
            event was opened from a handle. `processes` lists the processes that have the event open. Each entry has
            `pid`, `alive` and `self`, which is true for this process.

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
        held = self._held
        self._give_up()
        if isinstance(held, Opened) and held.role is not None:
            held.role.detach()  # ends all waits through this object
        self._natives = ()

    def __repr__(self) -> str:
        found: Opened | None = self._held
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
    thing._hold(opened, opened.timeline.forks)
    thing._natives = ()  # pyright: ignore[reportPrivateUsage]
    if watchers:
        made(thing)


def event_over(opened: Opened) -> Event:
    """Make the `Event` object for an event that this process has created or opened."""
    self = object.__new__(Event)
    _hold(self, opened)
    return self


@unpickles(Event)
def _reopen(handle: bytes, signals: bool | None = None) -> Event:
    return event_over(core.open_(handle, signals=signals))


def _brief(event: Event) -> Any:
    from xpushare.core.recording import brief

    return brief(event._held)


public(Event, brief=_brief)
