"""The oracle: what API.md (section 5) and the event protocol's page ("Signallers") say of each wait and each number.

Nothing here knows how the package does it. A step of the schedule changes the model; `advance` then draws all
consequences, as if every process had noticed everything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Event", "Gate", "Kind", "Model", "Object", "Process", "Queue", "Read", "Signal", "Wait"]

Outcome = Literal["done", "lost", "pending", "either"]
Kind = Literal["host", "device", "held"]  # of a device: who waits for events, of what its queues do


@dataclass(eq=False, slots=True)
class Process:
    slot: int
    number: int  # among all that ever ran
    alive: bool = True
    stopped: bool = False
    objects: dict[int, Object] = field(default_factory=dict)
    queues: dict[int, Queue] = field(default_factory=dict)
    waits: dict[int, tuple[Event, int]] = field(default_factory=dict)  # by token
    reads: dict[int, Read] = field(default_factory=dict)  # among the waits
    syncs: dict[int, Queue] = field(default_factory=dict)
    exports: Event | None = None
    saw: dict[Event, int] = field(default_factory=dict)  # points that its waits saw complete


@dataclass(eq=False, slots=True)
class Object:
    """An event as one process has it open."""

    number: int
    process: Process
    event: Event
    signals: bool | None


@dataclass(eq=False, slots=True)
class Gate:
    """Work in a queue that ends when the schedule says so."""

    number: int
    open: bool = False


@dataclass(eq=False, slots=True)
class Wait:
    event: Event
    point: int
    lost: bool = False  # seen by the warden
    over: bool = False  # lost, but a device that comes here goes on all the same


@dataclass(eq=False, slots=True)
class Signal:
    event: Event
    point: int
    stored: bool = False  # by the device: what is outstanding before it is in front of it in its queue
    doomed: bool = False  # behind a lost wait
    put_off: bool = False  # that loss, by what is outstanding before it


@dataclass(eq=False, slots=True)
class Read:
    """A queue's copy of an event's board. It shows at least what was written before the signals that were seen."""

    queue: Queue
    event: Event
    place: int  # where it is copied to
    seen: int  # point
    own: int  # what this queue wrote last

    def least(self, cell: int) -> int:
        before = self.event.written_before(self.seen).get(cell, 0)
        return max(before, self.own) if cell == self.queue.process.slot else before


@dataclass(eq=False, slots=True)
class Queue:
    number: int
    process: Process
    kind: Kind
    landed: Event  # of its process alone: signalled after each read
    operations: deque[Gate | Wait | Signal] = field(default_factory=deque)
    spoiled: bool = False  # a wait was lost, and `synchronize` has not said so yet
    losses: int = 0  # of its waits
    news: bool = False  # one of them has to be told: each loss is told once
    met: dict[Event, int] = field(default_factory=dict)  # how many points had been submitted when a loss was met
    inner: int = 0  # of waits for another signaller's point, before a signal
    waited: dict[Event, int] = field(
        default_factory=dict
    )  # points; what is queued later has seen them, if none is lost
    wrote: dict[Event, int] = field(default_factory=dict)  # the newest stamp

    def lose(self, event: Event) -> None:
        """A wait is lost. It is another loss than the one before if somebody has signalled since."""
        self.losses += 1
        self.news = self.news or self.met.get(event) != event.submitted
        self.met[event] = event.submitted

    def read(self, event: Event, place: int) -> Read:
        seen = max(self.waited.get(event, 0), self.process.saw.get(event, 0))
        return Read(self, event, place, seen, self.wrote.get(event, 0))


@dataclass(eq=False, slots=True)
class Event:
    """An event, and its board: memory of a cell for each process, into which queues copy stamps that only grow."""

    number: int
    exporter: Process
    kind: Kind  # of the device that the board is on
    top: int = 0  # the newest submitted point
    submitted: int = 0  # how many were, but those that a process takes upon itself to lose them
    value: int = 0
    low: int = 0  # points low + 1 … high were lost
    high: int = 0
    owed: dict[int, tuple[Process, Signal]] = field(default_factory=dict)  # outstanding points
    signallers: set[Process] = field(default_factory=set)
    candidates: set[Process] = field(default_factory=set)
    ever: bool = False
    loss: Literal[0, 1, 2] = 0
    joined: Process | None = None
    used_by_queues: set[Process] = field(default_factory=set)
    died_waiting: bool = False  # a process, whose device waited for it
    late: bool = False  # a point was lost before its store; from then on the host completes points, and no device races
    written: dict[int, tuple[int, int]] = field(default_factory=dict)  # cell and stamp, by the point that tells of it
    completed: set[int] = field(default_factory=set)  # points, not those lost
    newest: dict[int, int] = field(default_factory=dict)  # stamps by cell
    declared: set[Process] = field(default_factory=set)  # `signals=True`; like the two below since the first object
    signalled: set[Process] = field(default_factory=set)  # since it declared itself, if it did
    waited: set[Process] = field(default_factory=set)

    @property
    def effective(self) -> int:
        return max(self.value, self.high)

    def state(self, point: int) -> Literal["done", "lost", "pending"]:
        if self.value > self.high:
            return "done" if point <= self.value else "pending"
        return "done" if point <= self.low else "lost" if point <= self.high else "pending"

    # --- the future ---------------------------------------------------------------------------------------

    def future_lost(self, waiter: Process) -> bool:
        loss = 0 if self.joined not in (None, waiter) else self.loss
        gone = waiter is not self.exporter and not self.exporter.alive
        if not loss and not gone:
            return False
        if self.signallers:
            relied = self.signallers
        elif loss == 2 or (gone and self.ever):
            relied = set()
        else:
            relied = self.candidates
        return not (relied - {waiter})

    def expect(self, waiter: Process, point: int) -> Outcome:
        """What a host's wait for `point` comes to."""
        state = self.state(point)
        if state != "pending":
            return state
        if point > self.top:
            return "lost" if self.future_lost(waiter) else "pending"
        before = [owed for number, owed in self.owed.items() if number <= point]
        if any(not owner.alive for owner, _ in before):
            return "lost"
        return "either" if any(signal.doomed for _, signal in before) else "pending"

    def join(self, process: Process, signaller: bool) -> None:
        (self.signallers if signaller else self.candidates).add(process)
        if self.loss and (signaller or (self.loss == 1 and not self.signallers)):
            known = signaller and self.loss == 1 and self.candidates - {process}
            if self.joined not in (None, process) or known:
                self.loss, self.joined = 0, None
            else:
                self.joined = process
        self.ever = self.ever or signaller

    def may_signal(self, process: Process) -> None:
        if process not in self.signallers:
            self.join(process, True)

    def open(self, process: Process, signals: bool | None, first: bool) -> None:
        """An object that may signal; the first of the process forgets what those before did."""
        if first:
            for acts in (self.declared, self.signalled, self.waited):
                acts.discard(process)
            self.join(process, False)
        if signals:
            self.declared.add(process)
            self.signalled.discard(process)
            self.may_signal(process)

    def abandoned_by(self, process: Process) -> bool:
        """Whether the process, if it exits now, leaves somebody without what it promised."""
        able = any(found.event is self and found.signals is not False for found in process.objects.values())
        owes = any(owner is process for owner, _ in self.owed.values())
        acted = process in self.signalled or (process in self.waited and process not in self.declared)
        return able and not owes and not acted

    # --- points -------------------------------------------------------------------------------------------

    def written_before(self, point: int) -> dict[int, int]:
        """The newest stamps by cell of which complete signals up to `point` tell."""
        found: dict[int, int] = {}
        for told in self.completed & self.written.keys():
            if told <= point:
                cell, stamp = self.written[told]
                found[cell] = max(stamp, found.get(cell, 0))
        return found

    def complete(self, point: int) -> None:
        self.completed.add(point)
        self.owed.pop(point, None)
        self.value = max(self.value, point)

    def lose(self) -> None:
        """Everything outstanding, since each later signal waits for the earlier one."""
        if self.value > self.high:
            self.low = self.value
        self.high = self.top
        self.owed.clear()

    # --- processes that go --------------------------------------------------------------------------------

    def leave(self, process: Process, died: bool) -> None:
        first = self.owed.get(self.effective + 1)
        owes = first is not None and first[0] is process
        if owes:
            self.lose()
        signaller, candidate = process in self.signallers, process in self.candidates
        self.signallers.discard(process)
        self.candidates.discard(process)
        fresh = not self.signallers and (self.loss != 2 or self.joined is not None)
        if self.joined is process:
            self.loss, self.joined = 0, None
        if owes or (died and signaller):
            self.loss, self.joined = 2, None
        elif died and candidate and fresh:
            self.loss, self.joined = 1, None


class Model:
    def __init__(self, completed: Callable[[Queue, Signal], bool]) -> None:
        """`completed`: whether a point, which may be done or lost, was completed."""
        self._completed = completed
        self.processes: list[Process] = []
        self.events: list[Event] = []

    def living(self) -> Iterator[Process]:
        return (process for process in self.processes if process.alive)

    # --- steps --------------------------------------------------------------------------------------------

    def open(self, number: int, process: Process, event: Event, signals: bool | None) -> Object:
        found = process.objects[number] = Object(number, process, event, signals)
        if signals is not False:
            others = [other for other in process.objects.values() if other.event is event and other is not found]
            event.open(process, signals, not any(map(self._able, others)))
        return found

    @staticmethod
    def _able(found: Object) -> bool:
        return found.signals is not False

    def close(self, found: Object) -> None:
        process, event = found.process, found.event
        del process.objects[found.number]
        others = [other for other in process.objects.values() if other.event is event]
        if not any(self._able(other) for other in others):
            event.signallers.discard(process)
            event.candidates.discard(process)
        if not others and event.joined is process:
            event.loss, event.joined = 0, None

    def submit(self, queue: Queue, event: Event) -> int:
        event.may_signal(queue.process)
        event.signalled.add(queue.process)
        _, before = event.owed.get(event.top, (None, None))
        stored = (
            queue.kind == "device"
            and not event.late
            and (before is None or (before.stored and before in queue.operations))
        )
        event.top += 1
        event.submitted += 1
        signal = Signal(event, event.top, stored)
        event.owed[event.top] = queue.process, signal
        event.used_by_queues.add(queue.process)
        queue.operations.append(signal)
        return event.top

    @staticmethod
    def queue_wait(queue: Queue, event: Event, point: int, pending: int) -> None:
        """`pending`: of the event, as the process sees it after the call."""
        event.waited.add(queue.process)
        lost = event.state(point) == "lost" or (point > event.top and event.future_lost(queue.process))
        if not lost or queue.kind == "host":
            queue.operations.append(Wait(event, point))
            queue.waited[event] = max(point, queue.waited.get(event, 0))
            return
        queue.lose(event)  # a stream does not begin to wait
        queue.spoiled = True
        if pending == point > event.top and queue.kind == "device" and not event.owed:
            event.top = point  # nobody had noticed the loss before
            event.lose()

    def end(self, process: Process, died: bool) -> None:
        process.alive = process.stopped = False
        for event in self.events:
            event.died_waiting = event.died_waiting or (died and self._device_waits(process, event))
            event.leave(process, died or event.abandoned_by(process))
        for queue in process.queues.values():
            queue.operations.clear()
        process.waits.clear()
        process.reads.clear()
        process.syncs.clear()

    # --- consequences -------------------------------------------------------------------------------------

    def advance(self) -> None:
        while any([self._reap(), *(self._run(queue) for queue in self._running())]):
            pass

    def _running(self) -> list[Queue]:
        return [queue for process in self.living() if not process.stopped for queue in process.queues.values()]

    def _reap(self) -> bool:
        """Losses that were put off behind a living process's point."""
        found = False
        for event in self.events:
            first = event.owed.get(event.effective + 1)
            if first is not None and not first[0].alive:
                event.leave(first[0], True)
                found = True
        return found

    @staticmethod
    def _device_waits(process: Process, event: Event, but: Queue | None = None) -> bool:
        queues = [queue for queue in process.queues.values() if queue.kind == "device" and queue is not but]
        operations = [each for queue in queues for each in queue.operations]
        return any(isinstance(each, Wait) and each.event is event for each in operations)

    def _run(self, queue: Queue) -> bool:
        if queue.kind == "device":
            if self._abandon(queue) or self._lose_behind(queue):
                return True
            self._go_on(queue)
        if queue.kind != "host" and self._lose_doomed(queue):
            return True
        if not queue.operations or not self._passes(queue, queue.operations[0]):
            return False
        queue.operations.popleft()
        return True

    def _abandon(self, queue: Queue) -> bool:
        """A device waits for a future point that is lost: its process takes the points up to it upon itself."""
        for operation in queue.operations:
            if isinstance(operation, Wait):
                event = operation.event
                if operation.point > event.top and not event.owed and event.future_lost(queue.process):
                    event.top = operation.point
                    event.lose()
                    return True
        return False

    def _lose_behind(self, queue: Queue) -> bool:
        """The warden sees that a wait of a device is lost, wherever in the queue that is."""
        for operation in queue.operations:
            if isinstance(operation, Gate) or operation.event.state(operation.point) != "lost":
                continue
            if isinstance(operation, Wait) and not operation.lost:
                queue.lose(operation.event)
                operation.lost = True
            elif isinstance(operation, Signal) and not operation.doomed:
                queue.inner += 1
            else:
                continue
            self._spoil(queue, operation)
            return True
        return False

    def _go_on(self, queue: Queue) -> None:
        """The value that a device waits for is raised by a later signal, and 0.2 s after the loss if another queue's
        device may have come to its wait for that event.
        """
        for wait in queue.operations:
            if isinstance(wait, Wait) and wait.lost and not wait.over:
                wait.over = (
                    wait.event.state(wait.point) != "lost"
                    or wait.event.died_waiting
                    or any(self._device_waits(process, wait.event, queue) for process in self.living())
                )

    def _lose_doomed(self, queue: Queue) -> bool:
        for operation in queue.operations:
            if not isinstance(operation, Signal) or not operation.doomed:
                continue
            event = operation.event
            if operation.point > event.effective + 1:
                operation.put_off = operation.stored
            elif operation.point == event.effective + 1:
                # What was put off could not be lost before the point in front of it was complete. When that is, the
                # device goes on to complete this one, if nothing stops it any more, or the warden loses it: whoever is
                # first (the protocol's page, "What a device has queued behind a lost point").
                if operation.put_off and self._comes_to(queue, operation) and self._completed(queue, operation):
                    operation.doomed = False
                    event.complete(operation.point)
                else:
                    event.late = event.late or operation.stored
                    event.lose()
                return True
        return False

    @staticmethod
    def _comes_to(queue: Queue, signal: Signal) -> bool:
        """Whether nothing in front of a signal stops the device."""
        for operation in queue.operations:
            if operation is signal:
                break
            if isinstance(operation, Gate):
                passes = operation.open
            elif isinstance(operation, Wait):
                passes = operation.over or operation.event.state(operation.point) == "done"
            else:
                passes = operation.stored or operation.point <= operation.event.effective + 1
            if not passes:
                return False
        return True

    @staticmethod
    def _spoil(queue: Queue, at: Wait | Signal) -> None:
        """What is behind a lost wait is lost; a signal waits for those before it."""
        queue.spoiled = True
        operations = list(queue.operations)
        for operation in operations[operations.index(at) :]:
            if isinstance(operation, Signal):
                operation.doomed = True

    def _passes(self, queue: Queue, operation: Gate | Wait | Signal) -> bool:
        if isinstance(operation, Gate):
            return operation.open
        event, point = operation.event, operation.point
        # A device's wait ends with the loss, which is put off while a living process owes an earlier point.
        outcome = event.state(point) if queue.kind == "device" else event.expect(queue.process, point)
        if isinstance(operation, Wait):
            if outcome == "lost" and not operation.lost:
                queue.lose(event)
                self._spoil(queue, operation)
            return operation.lost or outcome in ("done", "lost")
        if not operation.doomed and outcome == "lost":  # by an earlier one
            queue.inner += 1
            self._spoil(queue, operation)
        if point <= event.effective:
            return True
        if point != event.effective + 1:
            return False
        if operation.doomed:
            event.lose()
        else:
            event.complete(point)
        return True
