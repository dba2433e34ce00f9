"""Faults of queues and events."""

from __future__ import annotations

import operator
from typing import Any

from faults.planting import mutant, nothing, set_


@mutant("copy ignores the bounds", "5.2", "8.5")
def copy_ignores_bounds() -> None:
    from xpushare.core import queue

    original = queue.operand

    def operand(work: Any, what: str, source: Any, offset: int, total: int, nbytes: Any, write: bool) -> Any:
        length = total if nbytes is None else operator.index(nbytes)
        return original(work, what, source, offset, total, max(0, min(length, total)), write)

    set_(queue, "operand", operand)


@mutant("fill ignores all but the pattern's first byte", "5.1")
def fill_ignores_pattern() -> None:
    from xpushare.core import queue

    original = queue.fill
    set_(
        queue, "fill", lambda work, dst, pattern, nbytes: original(work, dst, bytes(pattern)[:1] * len(pattern), nbytes)
    )


@mutant("a pattern that does not divide the size is accepted", "5.2")
def fill_takes_any_pattern() -> None:
    from xpushare.core import queue

    original = queue.fill
    set_(
        queue,
        "fill",
        lambda work, dst, pattern, nbytes: original(
            work,
            dst,
            pattern[:1] if isinstance(pattern, bytes) and len(pattern) == 3 else pattern,
            nbytes,
        ),
    )


@mutant("a queue runs its newest operation first", "5.3", part="HostQueue")
def queue_order() -> None:
    from queue import LifoQueue

    from xpushare.adapters.host.queue import HostQueue

    original = HostQueue.__init__

    def init(self: Any) -> None:
        original(self)
        self._todo = LifoQueue()

    set_(HostQueue, "__init__", init)


@mutant("what fails in a queue is swallowed at synchronize", "5.4", "5.17", "5.19")
def failures_swallowed() -> None:
    from xpushare.core import queue

    original = queue.synchronize

    def synchronize(work: Any, timeout: Any) -> None:
        try:
            original(work, timeout)
        except TimeoutError:
            raise
        except Exception as error:
            if not isinstance(error, ValueError) or "timeout" not in str(error):
                return
            raise

    set_(queue, "synchronize", synchronize)


@mutant("synchronize returns early", "5.23", part="HostQueue")
def synchronize_early() -> None:
    from xpushare.adapters.host.queue import HostQueue

    set_(HostQueue, "synchronize", lambda _self, _timeout: None)


@mutant("signal returns the number before", "5.6", "5.7", "5.11")
def signal_number() -> None:
    from xpushare.core import event, queue

    for module in (event, queue):
        original = module.signal
        set_(module, "signal", lambda *args, original=original: original(*args) - 1)


@mutant("a queue's signal is complete before the work ahead of it", "5.7", "5.8", part="HostQueue")
def value_ahead() -> None:
    from xpushare.adapters.host.queue import HostQueue

    def signal(self: Any, slot: Any, profile: Any) -> int:
        point, _first = slot.submit(self.number)
        slot.complete(point)
        self._put(lambda: None)
        del profile
        number: int = point
        return number

    set_(HostQueue, "signal", signal)


@mutant("Event.wait returns early", "5.9", "5.7")
def wait_early() -> None:
    from xpushare.core import event

    set_(event, "wait", nothing)


@mutant("at_least is ignored", "5.9", "5.5")
def at_least_ignored() -> None:
    from xpushare.core import event

    original = event.wait
    set_(event, "wait", lambda opened, timeout, _at_least: original(opened, timeout, None))


@mutant("a queue's wait holds nothing back", "5.8", "5.25")
def queue_wait_ignored() -> None:
    from xpushare.core import queue

    original = queue.wait

    def wait(work: Any, opened: Any, at_least: Any) -> None:
        original(work, opened, 0 if (isinstance(at_least, int) and at_least >= 0) or at_least is None else at_least)

    set_(queue, "wait", wait)


@mutant("reached returns early", "5.10")
def reached_early() -> None:
    from xpushare.core import event

    async def reached(_opened: Any, _at_least: Any) -> None:
        pass

    set_(event, "reached", reached)


@mutant("a lost point counts as done", "5.15", "5.20", "8.13")
def lost_is_done() -> None:
    from xpushare import _native
    from xpushare.core import event

    original = event.wait

    def wait(opened: Any, timeout: Any, at_least: Any) -> None:
        slot = opened.timeline.slot
        point = slot.pending if at_least is None else at_least
        if slot.wait(point, timeout) != _native.LOST:
            original(opened, timeout, at_least)

    set_(event, "wait", wait)


@mutant("PeerLostError is never raised: waits go on", "5.15", "5.16")
def peer_lost_never() -> None:
    import time

    from xpushare.common.errors import PeerLostError
    from xpushare.core import event

    original = event.wait

    def wait(opened: Any, timeout: Any, at_least: Any) -> None:
        try:
            original(opened, timeout, at_least)
        except PeerLostError:
            threshold = time.monotonic() + (3600 if timeout is None else timeout)
            while time.monotonic() < threshold:
                time.sleep(0.05)
            raise TimeoutError("waited in vain") from None

    set_(event, "wait", wait)


@mutant("the clean exit of a process is a loss", "5.18")
def exit_is_loss() -> None:
    from xpushare._native import left
    from xpushare.common.leaving import Stage, at_leave
    from xpushare.sharing import node

    def leave(_deadline: float) -> None:
        import os

        left(True)
        table = node.current().table_if_any
        for peer in list(node.current().peers._peers.values()):
            for found in node.current().peers.imports.objects():
                if hasattr(found, "slot") and found.slot.domain is peer.domain:
                    found.slot.submit(99)
        del table
        os._exit(0)

    at_leave(leave, Stage.LINGER)


@mutant("a host signal is allowed over a pending point", "5.12")
def host_signal_over_pending() -> None:
    from xpushare.core import event

    original = event.signal

    def signal(opened: Any) -> int:
        slot = opened.timeline.slot
        if slot.pending > slot.value:
            point: int = slot.submit(77)[0]
            return point
        return original(opened)

    set_(event, "signal", signal)


@mutant("a second signaller's queue does not wait for the pending point", "5.12", part="HostQueue")
def second_signaller() -> None:
    from xpushare.adapters.host.queue import HostQueue

    original = HostQueue._signal

    def signal(self: Any, slot: Any, point: int, _first: int, profile: Any) -> None:
        original(self, slot, point, 0, profile)

    set_(HostQueue, "_signal", signal)


@mutant("work behind a lost wait never runs", "5.17", part="HostQueue")
def released_work_dropped() -> None:
    from xpushare import _native
    from xpushare.adapters.host import queue as host_queue
    from xpushare.timeline.loss import peer_lost

    def wait(self: Any, slot: Any, point: int) -> None:
        if slot.wait(point) == _native.LOST:
            self._failures.append(peer_lost(slot, point))
            while not self._todo.empty():
                operation, arguments = self._todo.get()
                if operation.__name__ == "release":  # somebody synchronizes
                    operation(*arguments)
                self._pending.pop()

    set_(host_queue.HostQueue, "_wait", wait)


@mutant("signals behind a lost wait complete", "5.17", "5.28", part="HostQueue")
def loss_forgotten() -> None:
    from xpushare.adapters.host.queue import HostQueue

    def signal(_self: Any, slot: Any, point: int, first: int, _profile: Any) -> None:
        if first:
            slot.wait(first)
        slot.complete(point)

    set_(HostQueue, "_signal", signal)


@mutant("IPC and profiling together are accepted", "5.13")
def ipc_and_profiling() -> None:
    from xpushare.core import event

    original = event.create
    set_(
        event,
        "create",
        lambda device, context, ipc, profiling, *rest: original(device, context, ipc, profiling and not ipc, *rest),
    )


@mutant("every event opens a file", "5.14")
def event_costs_fd() -> None:
    import os

    from xpushare.core import event

    original = event.open_
    opened: list[int] = []

    def open_(*args: Any, **options: Any) -> Any:
        opened.append(os.open(os.devnull, os.O_RDONLY))
        return original(*args, **options)

    set_(event, "open_", open_)


@mutant("nobody says what an event is opened for", "5.30", "5.32")
def roles_ignored() -> None:
    from xpushare._native import Slot
    from xpushare.core import event

    set_(event, "role_of", lambda domain, index, _signals: Slot(domain, index))


@mutant("a signaller is one for good", "5.31")
def roles_kept() -> None:
    from xpushare.core import event

    original = event.role_of
    roles: list[Any] = []

    def role_of(*args: Any) -> Any:
        roles.append(original(*args))
        return roles[-1]

    set_(event, "role_of", role_of)


@mutant("bool of an event works", "5.22")
def bool_works() -> None:
    from xpushare.objects.event import Event

    set_(Event, "__bool__", lambda self: self.done)


@mutant("waits for points that nobody has submitted are left out", "5.25", "5.26", part="HostQueue")
def future_points_ignored() -> None:
    from xpushare.adapters.host.queue import HostQueue

    original = HostQueue.wait

    def wait(self: Any, slot: Any, point: int) -> None:
        if point <= slot.pending:
            original(self, slot, point)

    set_(HostQueue, "wait", wait)


@mutant("all queues share one that runs in order of submission", "5.26", "5.27", part="HostQueue")
def one_hardware_queue() -> None:
    import threading

    from xpushare.adapters.host.queue import HostQueue

    original = HostQueue._wait
    alone = threading.Lock()

    def wait(self: Any, slot: Any, point: int) -> None:
        with alone:
            original(self, slot, point)

    set_(HostQueue, "_wait", wait)


@mutant("a clean exit drops what queues hold", "5.33")
def exit_drops_work() -> None:
    from xpushare.core import queue

    set_(queue._Queues, "all", lambda _self: [])


@mutant("a clean exit waits for what nobody has submitted", "5.33")
def exit_waits_for_ever() -> None:
    from xpushare.core import queue

    set_(queue, "_goes_on", bool)


@mutant("nobody minds that a pickle is not opened", "5.34")
def pickles_forgotten() -> None:
    from xpushare.objects import event

    set_(event, "hope_for", lambda _slot: None)


@mutant("an adopted queue does not wait", "5.29")
def adopted_does_not_wait() -> None:
    from xpushare.core import queue

    original = queue.adopt

    def adopt(native: object) -> Any:
        work = original(native)
        set_(work.driver, "wait", nothing)
        return work

    set_(queue, "adopt", adopt)


@mutant("an event of a device that is not here is refused", "3.13c")
def hidden_event_refused() -> None:
    from xpushare.core import event, opening

    set_(event, "event_device", opening.opening_device)
