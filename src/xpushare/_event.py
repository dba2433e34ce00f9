"""`Event`: the object face of events."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn, Self, final

from xpushare._errors import ForkError, InvalidArgumentError
from xpushare._native import forks
from xpushare.core import event as core
from xpushare.core.event import Opened
from xpushare.core.memory import FORK_ADVICE, Implicit
from xpushare.core.resources import Resource

if TYPE_CHECKING:
    from xpushare._device import Context, Device, DeviceLike
    from xpushare.sharing.handle import Handle

__all__ = ["Event"]


@final
class Event:
    """A shared, monotonic timeline of signals.

    `pending` is the number of the newest signal anyone submitted, `value` the number up to which every signal completed
    (or was lost). A new event is complete: both are 0. With `enable_ipc=True` other processes open it by handle and
    signal, wait and query it as its maker does. Waits mean the newest point known at the call, or `at_least`, which may
    lie in the future: the form to use between processes. A wait never hangs on a dead process: it raises
    `PeerLostError`. (urEventCreateExp; docs: the event protocol)

    Raises `InvalidArgumentError` for IPC plus profiling, `FeatureNotSupportedError` where a device of the context lacks
    the aspect.
    """

    __slots__ = ("__weakref__", "_implicit", "_natives", "_opened")

    _opened: Opened | None
    _implicit: Implicit | None
    _natives: tuple[Resource, ...]  # driver events that were handed out

    def __init__(
        self,
        device: DeviceLike | None = None,
        *,
        context: Context | None = None,
        enable_ipc: bool = False,
        enable_profiling: bool = False,
    ) -> None:
        self._implicit = None
        self._natives = ()
        self._opened = None
        self._opened = core.create(device, context, enable_ipc, enable_profiling)

    @classmethod
    def _make(cls, opened: Opened) -> Event:
        self = object.__new__(cls)
        self._implicit = None
        self._natives = ()
        self._opened = opened
        return self

    @classmethod
    def from_native(cls, native: object) -> Event:
        """An Event over another library's event. `FeatureNotSupportedError` where no adapter knows it."""
        from xpushare.core.interop import adopt_event

        return cls._make(adopt_event(native))

    def _use(self) -> Opened:
        found = self._opened
        if found is None:
            raise InvalidArgumentError("this Event is closed")
        if found.timeline._forks != forks():
            raise ForkError(f"this Event {FORK_ADVICE}")
        return found

    @property
    def device(self) -> Device:
        return self._use().device

    @property
    def context(self) -> Context:
        return self._use().context

    @property
    def is_imported(self) -> bool:
        return self._use().handle is not None

    @property
    def ipc_enabled(self) -> bool:
        """Whether `ipc.event.get` takes it; False on imports."""
        return self._use().ipc_enabled

    @property
    def handle(self) -> Handle:
        """The handle that an import was opened from."""
        found = self._use().handle
        if found is None:
            raise InvalidArgumentError("this Event is not imported: xs.ipc.event.get(event) makes a handle")
        return found

    @property
    def value(self) -> int:
        """The number up to which every signal completed (or was lost)."""
        return self._use().timeline.slot.value

    @property
    def pending(self) -> int:
        """The number of the newest signal that anyone submitted."""
        return self._use().timeline.slot.pending

    @property
    def done(self) -> bool:
        """Whether the newest signal known now is complete. Raises `PeerLostError` when it was lost."""
        return core.done(self._use())

    def signal(self) -> int:
        """Signal from the host, complete at once; the number of the signal.

        `InvalidArgumentError` while a signal that a queue submitted is pending: use one event per producer.
        """
        return core.signal(self._use())

    def wait(self, timeout: float | None = None, *, at_least: int | None = None) -> None:
        """Wait until the newest signal known now, or signal `at_least`, is complete.

        `timeout` in seconds, then `TimeoutError`. `PeerLostError` within a second of the death of the process that owed
        the signal, or of the last other process that could have sent it. `KeyboardInterrupt` comes through.
        """
        core.wait(self._use(), timeout, at_least)

    async def reached(self, at_least: int | None = None) -> None:
        """`wait` for event loops (asyncio, trio): cancellable, no thread; time-outs are `asyncio.timeout` and
        `trio.move_on_after`.
        """
        await core.reached(self._use(), at_least)

    def __await__(self) -> Generator[Any, Any, None]:
        return self.reached(self.pending).__await__()

    def __bool__(self) -> NoReturn:
        raise TypeError("an Event has no truth value: did you mean event.done?")

    def native_ipc_handle(self) -> bytes:
        """The driver's own IPC handle of an event that completes with the newest signal known now (cudaIpcEventHandle_t
        on `cuda`).

        For code that knows only those: open it before this object is closed. `FeatureNotSupportedError` where the
        driver has none.
        """
        from xpushare.core import interop

        native = interop.record_native(self._use())
        self._natives = (*self._natives, native)
        handle: bytes = native.driver.handle
        return handle

    def statistics(self) -> dict[str, Any]:
        """Who shares this event: numbers, and the processes that have it open."""
        from xpushare.core.statistics import event_statistics

        return event_statistics(self._use())

    @property
    def closed(self) -> bool:
        return self._opened is None

    def close(self) -> None:
        """Give up this object's hold; the event goes when no process and no unfinished queue operation has it.
        Idempotent.
        """
        self._opened = None
        self._natives = ()
        self._implicit = None

    def __enter__(self) -> Self:
        self._use()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._opened is None:
            return "<Event closed>"
        how = "imported " if self._opened.handle is not None else ""
        if self._opened.timeline.foreign_process:
            return f"<Event {how}of the parent process, on {self._opened.device}>"
        slot = self._opened.timeline.slot
        return f"<Event {how}value {slot.value} pending {slot.pending} on {self._opened.device}>"

    def __reduce__(self) -> tuple[Any, ...]:
        found = self._use()
        if found.handle is not None:
            return _reopen, (bytes(found.handle),)
        with Implicit.lock:
            if self._implicit is None:
                self._implicit = Implicit(core.get(found, implicit=True))
        return _reopen, (bytes(self._implicit.handle),)

    def __copy__(self) -> NoReturn:
        raise TypeError("an Event cannot be copied: open its handle for another object over the same state")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()


def _reopen(handle: bytes) -> Event:
    return Event._make(core.open_(handle))
