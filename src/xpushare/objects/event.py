"""`Event`: the object face of events."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Any, NoReturn, final

from xpushare.core import event as core
from xpushare.core.declare import closing, made, watchers
from xpushare.core.event import Opened, Times
from xpushare.core.pickles import hope_for
from xpushare.core.resources import Resource
from xpushare.objects.lifecycle import Exportable, unpickles, use, why_unusable
from xpushare.sharing import node
from xpushare.timeline.waiting import in_loop

if TYPE_CHECKING:
    from xpushare._device import Context, DeviceLike

__all__ = ["Event", "event_over"]


@final
class Event(Exportable[Opened]):
    """A shared, monotonic timeline of signals.

    `pending` is the number of the newest signal anyone submitted, `value` the number up to which every signal completed
    (or was lost). A new event is complete: both are 0. With `enable_ipc=True` other processes open it by handle and
    signal, wait and query it as its maker does. Waits mean the newest point known at the call, or `at_least`, which may
    lie in the future: the form to use between processes. A wait never hangs on a dead process: it raises
    `PeerLostError`. `signals=True` says that this process is going to signal, `signals=False` that this object only
    waits; without either a process counts as a signaller from its first signal on. (urEventCreateExp; docs: the event
    protocol)

    A process that exits with the event open, or drops it without `close()` or `with`, counts as dead if it has not
    signalled the event. With `signals=True` it has to signal after saying so. A process that passed no `signals` and
    has only waited may exit at any time. A pickle that nobody opens within `XPUSHARE_PICKLE_GRACE` seconds counts as
    such an exit, unless another process that may signal has opened the event since the pickle was made. `ls` and
    `shares` show the `label`, which has at most 56 bytes.

    Raises `InvalidArgumentError` for IPC together with profiling, and `FeatureNotSupportedError` if a device of the
    context lacks the aspect.
    """

    __slots__ = ("__weakref__", "_natives", "forks", "held", "pickled")

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
        """An `Event` over another library's event. Raises `FeatureNotSupportedError` if no adapter knows it."""
        from xpushare.core import interop

        return event_over(interop.adopt_event(native))

    @property
    def ipc_enabled(self) -> bool:
        """Whether `ipc.event.get` accepts it; False for imports."""
        return use(self).ipc_enabled

    @property
    def value(self) -> int:
        """The number up to which every signal has completed (or was lost)."""
        return use(self).timeline.slot.value

    @property
    def pending(self) -> int:
        """The number of the newest signal that anyone has submitted."""
        return use(self).timeline.slot.pending

    @property
    def done(self) -> bool:
        """Whether the newest signal known now is complete. Raises `PeerLostError` if it was lost."""
        return core.done(use(self))

    @property
    def times(self) -> Times:
        """When the newest signal of a profiling event was queued, submitted, started and complete, in nanoseconds of
        the device's clock. (urEventGetProfilingInfo)

        Raises `InvalidArgumentError` if the event was made without `enable_profiling=True` or was not signalled yet,
        or while the signal is pending, and `PeerLostError` if it was lost.
        """
        return core.times(use(self))

    def signal(self) -> int:
        """Signal from the host; the signal is complete at once. Returns its number.

        Raises `InvalidArgumentError` while a signal that a queue submitted is pending: use one event per producer.
        """
        return core.signal(use(self))

    def wait(self, timeout: float | None = None, *, at_least: int | None = None) -> None:
        """Wait until the newest signal known now, or signal `at_least`, is complete.

        Before the first signal is known, `wait()` has nothing to wait for and returns at once: `at_least=1` waits for
        it. A `UserWarning` says so if a `timeout` was given.

        Raises `TimeoutError` after `timeout` seconds, and `PeerLostError` within a second of the death of the process
        that owed the signal, or of the last other process that could have sent it. `KeyboardInterrupt` interrupts the
        wait, and `close()` in another thread ends it with `InvalidArgumentError`. Under gevent it holds up the hub:
        call it by `gevent.get_hub().threadpool.apply`.
        """
        core.wait(use(self), timeout, at_least)

    async def reached(self, at_least: int | None = None) -> None:
        """`wait` for event loops (asyncio, trio): it can be cancelled and needs no thread. For time-outs use
        `asyncio.timeout` or `trio.move_on_after`.
        """
        await core.reached(use(self), at_least)

    def recovered(self, timeout: float | None = None) -> Awaitable[None] | None:
        """Wait until a loss has ended: another process has become a signaller, or a later signal is complete.

        For programs that go on after `PeerLostError`, since a wait that is lost raises at once, every time. A point
        that was lost stays so until a later signal is complete: wait for that one, `pending + 1`. Called in a running
        event loop it returns what to await, without a time-out. Raises `TimeoutError` after `timeout` seconds, and
        `PeerLostError` if the exporter is gone, as nobody can open the event any more.
        """
        if in_loop():
            return core.recovered_in_loop(use(self))
        return core.recovered(use(self), timeout)

    def __await__(self) -> Generator[Any, Any, None]:
        return self.reached(self.pending).__await__()

    def __bool__(self) -> NoReturn:
        raise TypeError("an Event has no truth value: did you mean event.done?")

    def native_ipc_handle(self) -> bytes:
        """The driver's own IPC handle of an event that completes with the newest signal known now (cudaIpcEventHandle_t
        on `cuda`).

        It is for code that knows only such handles; open it before this object is closed. Raises
        `FeatureNotSupportedError` if the driver has none.
        """
        from xpushare.core import interop

        native = interop.record_native(use(self))
        self._natives = (*self._natives, native)
        handle: bytes = native.driver.handle
        return handle

    def statistics(self) -> dict[str, Any]:
        """Who shares this event: its numbers, and the processes that have it open."""
        from xpushare.core.statistics import event_statistics

        return event_statistics(use(self))

    def close(self) -> None:
        """Give up this object's hold; the event is freed once no process and no unfinished queue operation holds it.
        Idempotent.
        """
        if watchers:
            closing(self)
        held, self.held = self.held, None
        if isinstance(held, Opened) and held.role is not None:
            held.role.detach()  # which ends what waits by this object
        self._natives = ()
        self.pickled = None

    def __repr__(self) -> str:
        found = self.held
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
        if found.signals is not False:  # else nobody who opens it signals
            hope_for(found.timeline.slot)
        return (_reopen, (handle, False)) if found.signals is False else (_reopen, (handle,))


def _hold(thing: Event, opened: Opened) -> None:
    thing.held = opened
    thing.forks = opened.timeline.forks
    thing.pickled = None
    thing._natives = ()  # pyright: ignore[reportPrivateUsage]
    if watchers:
        made(thing)


def event_over(opened: Opened) -> Event:
    """Make the `Event` of what was opened."""
    self = object.__new__(Event)
    _hold(self, opened)
    return self


@unpickles(Event)
def _reopen(handle: bytes, signals: bool | None = None) -> Event:
    return event_over(core.open_(handle, signals=signals))
