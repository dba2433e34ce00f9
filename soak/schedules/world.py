"""Plays a schedule: each step is a message to a process, or a Unix signal; after it every wait, and every number that a
process can read, is compared with the oracle's.

A step is four numbers, of which any are good: they choose among what there is. So a schedule stays one when steps are
taken out of it.
"""

from __future__ import annotations

import itertools
import os
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final

from soak.common import Failure
from soak.forked import START, Zygote, ended, runs
from soak.schedules.model import Event, Gate, Kind, Model, Object, Process, Queue, Read, Signal, Wait
from soak.schedules.process import PROCESSES, READS

__all__ = ["STEPS", "Step", "World"]

Step = tuple[str, int, int, int]

_MOST: Final = 2.0  # seconds: one that the rule allows, and one more
_QUIET: Final = 0.01  # how long nothing may come after a step that loses nothing
_MOST_OWED: Final = 6  # points of an event: an event remembers eight owners
_MOST_OBJECTS: Final = 3
_SIGNALS: Final = (None, None, True, False)


class _Running:
    """The process behind one of the model's."""

    def __init__(self, pid: int, connection: Connection) -> None:
        self.pid = pid
        self.connection = connection
        self.answers: list[Any] = []
        self.reports: list[tuple[int, Any]] = []
        self.base: dict[str, int] = {}  # what it held when it had nothing open

    def receive(self, timeout: float) -> bool:
        """Take in one message; its answer is kept in `answers`, reports in `reports`."""
        if not self.connection.poll(timeout):
            return False
        token, found = self.connection.recv()
        if token is None:
            self.answers.append(found)
        else:
            self.reports.append((token, found))
        return True


class World:
    """One schedule."""

    def __init__(self, zygote: Zygote, devices: Sequence[Mapping[Kind, str]], counts: Counter[str]) -> None:
        """`devices`: of the processes in turn, with the same kinds."""
        self._zygote = zygote
        self._devices = devices
        others: list[Kind] = [kind for kind in devices[0] if kind != "host"]
        self._kinds: list[Kind] = [*(others * 2)[:2], "host"]
        self._counts = counts
        self._model = Model(self._completed)
        self._slots: list[Process | None] = [None] * PROCESSES
        self._running: dict[Process, _Running] = {}
        self._handles: dict[Event, tuple[bytes, bytes]] = {}  # of the event, of its board
        self._gates: dict[int, tuple[Process, Gate]] = {}
        self._numbers = itertools.count(1)
        self._closed: set[tuple[Process, Any]] = set()  # processes, and events of which they have closed an object
        self._lost = False  # this step may have lost something, so that a false loss could show
        self.story: list[str] = []

    # --- talking ------------------------------------------------------------------------------------------

    def _tell(self, text: str) -> None:
        self.story.append(text)

    def _fail(self, text: str) -> None:
        errors = self._zygote.said()
        raise Failure(text + (f"\n  stderr:\n{errors}" if errors else ""))

    def _ask(self, process: Process, name: str, *arguments: Any, timeout: float = _MOST) -> Any:
        found = self._running[process]
        try:
            found.connection.send((name, *arguments))
            begin = time.monotonic()
            while not found.answers:
                waited = time.monotonic() - begin
                patient = waited < START and runs(found.pid) if waited >= timeout else True
                if not found.receive(max(0.1, timeout - waited)) and not patient:
                    self._hung(process, f"{name}{arguments} has not returned within {timeout:g} s")
        except (EOFError, ConnectionError):
            status = os.waitstatus_to_exitcode(os.waitpid(found.pid, 0)[1])
            process.alive = False
            self._fail(f"process {self._name(process)} ended in {name}{arguments}, exit status {status}")
        return found.answers.pop()

    def _hung(self, process: Process, text: str) -> None:
        for other in self._model.living():
            if not other.stopped:
                os.kill(self._running[other].pid, signal.SIGUSR1)
                time.sleep(0.1)
        self._fail(f"process {self._name(process)}: {text}")

    def _on(self, process: Process) -> Mapping[Kind, str]:
        """Its devices."""
        return self._devices[process.slot % len(self._devices)]

    @staticmethod
    def _name(process: Process) -> str:
        return f"{'abcdef'[process.slot]}{process.number}"

    # --- steps --------------------------------------------------------------------------------------------

    def play(self, steps: Iterable[Step]) -> None:
        for name, who, which, extra in steps:
            self._lost = False
            if _STEPS[name](self, who % PROCESSES, which, extra):
                self._counts[name] += 1
                self._counts["steps"] += 1
                self._settle()
        self._lost = True
        self._settle()

    def _process(self, slot: int) -> Process | None:
        """The process of a slot, started if there is none; None while it is stopped."""
        found = self._slots[slot]
        if found is None:
            found = Process(slot, next(self._numbers))
            pid, connection = self._zygote.process()
            running = self._running[found] = _Running(pid, connection)
            self._model.processes.append(found)
            self._slots[slot] = found
            running.base = self._ask(
                found,
                "warm_up",
                sorted({each for devices in self._devices for each in devices.values()}),
                timeout=START,
            )
            self._counts["processes"] += 1
            self._tell(f"{self._name(found)} starts (process {pid})")
        return None if found.stopped else found

    def _create(self, process: Process, which: int, extra: int) -> Object | None:
        if process.exports is not None:
            return None
        number, event = next(self._numbers), Event(next(self._numbers), process, self._kind(which))
        signals, device = _SIGNALS[extra % 4], self._on(process)[event.kind]
        handles = self._ask(process, "create", number, event.number, f"event-{process.slot}", device, signals)
        if not isinstance(handles, tuple):
            self._fail(f"{self._name(process)}: the name is not free: {handles}")
        process.exports = event
        self._handles[event] = handles
        self._model.events.append(event)
        self._tell(f"{self._name(process)} makes event {event.number}, signals={signals}, on {device}")
        return self._model.open(number, process, event, signals)

    def _kind(self, which: int) -> Kind:
        return self._kinds[which % len(self._kinds)]

    def _open(self, process: Process, event: Event, kind: Kind, signals: bool | None) -> Object | None:
        exporter, number = event.exporter, next(self._numbers)
        if not exporter.alive or exporter.stopped:
            return None
        wanted, board = self._handles[event]
        name, device = f"event-{exporter.slot}", self._on(process)[kind]
        handle = self._ask(process, "open", number, event.number, name, device, signals, board)
        if handle != wanted:
            self._fail(f"{self._name(process)} cannot open event {event.number} by its name: {handle!r:.100}")
        self._tell(f"{self._name(process)} opens event {event.number}, signals={signals}")
        return self._model.open(number, process, event, signals)

    def _object(self, process: Process, which: int) -> Object | None:
        """One that it has open, or could open, or makes."""
        opened = list(process.objects.values())
        known = {found.event for found in opened}
        others = [
            other.exports
            for other in self._model.living()
            if other.exports is not None and other.exports not in known and not other.stopped
        ]
        if not opened and not others:
            return self._create(process, which, 0)
        chosen = [*opened, *others][which % (len(opened) + len(others))]
        return chosen if isinstance(chosen, Object) else self._open(process, chosen, self._kind(which), None)

    def _queue(self, process: Process, kind: Kind) -> Queue:
        """Its queue of a kind."""
        for queue in process.queues.values():
            if queue.kind == kind:
                return queue
        found = Queue(next(self._numbers), process, kind, Event(next(self._numbers), process, kind))
        self._ask(process, "queue", found.number, self._on(process)[kind])
        process.queues[found.number] = found
        return found

    def _ready(self, queue: Queue) -> bool:
        """Whether more may be queued: not behind a loss that was not told yet, nor while somebody synchronizes."""
        return not queue.spoiled and queue not in queue.process.syncs.values()

    def make(self, who: int, which: int, extra: int) -> bool:
        process = self._process(who)
        return process is not None and self._create(process, which, extra) is not None

    def open(self, who: int, which: int, extra: int) -> bool:
        process = self._process(who)
        events = [other.exports for other in self._model.living() if other.exports is not None and not other.stopped]
        if process is None or not events:
            return False
        event = events[which % len(events)]
        if sum(found.event is event for found in process.objects.values()) >= _MOST_OBJECTS:
            return False
        return self._open(process, event, self._kind(extra), _SIGNALS[extra % 4]) is not None

    def close(self, who: int, which: int, _extra: int) -> bool:
        process = self._process(who)
        if process is None or not process.objects:
            return False
        found = list(process.objects.values())[which % len(process.objects)]
        event = found.event
        last = sum(other.event is event for other in process.objects.values()) == 1
        used = process in event.used_by_queues or any(waited is event for waited, _ in process.waits.values())
        if last and event.joined is process and used:
            return False  # when it detaches is not for the schedule to say
        self._ask(process, "close", found.number, event.number, last)
        self._tell(f"{self._name(process)} closes event {event.number}")
        self._model.close(found)
        self._closed.add((process, event))
        self._lost = True
        return True

    def signal(self, who: int, which: int, _extra: int) -> bool:
        process = self._process(who)
        found = None if process is None else self._object(process, which)
        if process is None or found is None:
            return False
        event = found.event
        answer = self._ask(process, "signal", found.number)
        self._tell(f"{self._name(process)} signals event {event.number}: {answer}")
        expected: object = "InvalidArgumentError"
        if found.signals is not False:
            event.may_signal(process)  # also if it is refused
            if not event.owed:
                event.top += 1
                event.submitted += 1
                event.complete(event.top)
                event.signalled.add(process)
                expected = event.top
        if answer != expected:
            self._fail(f"{self._name(process)}: a signal of event {event.number} gave {answer}, not {expected}")
        return True

    def wait(self, who: int, which: int, extra: int, how: str = "wait") -> bool:
        process = self._process(who)
        found = None if process is None else self._object(process, which)
        if process is None or found is None or len(process.waits) >= 8:
            return False
        point, token = found.event.top + (1, 1, 2, 0, 3)[extra % 5], next(self._numbers)
        self._ask(process, "wait", token, found.number, point, how)
        self._tell(f"{self._name(process)} waits for point {point} of event {found.event.number} ({how})")
        process.waits[token] = found.event, point
        found.event.waited.add(process)
        self._lost = True
        return True

    def wait_async(self, who: int, which: int, extra: int) -> bool:
        return self.wait(who, which, extra, "await")

    def queue_wait(self, who: int, which: int, extra: int) -> bool:
        process = self._process(who)
        found = None if process is None else self._object(process, extra)
        if process is None or found is None:
            return False
        return self._queue_waits(self._queue(process, self._kind(which)), found, extra)

    def _queue_waits(self, queue: Queue, found: Object, extra: int) -> bool:
        process, event = queue.process, found.event
        point = event.top + (1, 0, 1, 2)[extra % 4]
        if not self._ready(queue) or len(queue.operations) >= 8:
            return False
        if queue.kind == "device" and event.owed and point > event.top and event.future_lost(process):
            return False  # whether it begins to wait depends on who has noticed a death
        answer = self._ask(process, "queue_wait", queue.number, found.number, point)
        self._tell(f"{self._name(process)}'s {queue.kind} queue waits for point {point} of event {event.number}")
        if answer is not None:
            self._fail(f"{self._name(process)}: a queue's wait for event {event.number} gave {answer}")
        event.used_by_queues.add(process)
        pending, _ = self._ask(process, "observe")[found.number]
        self._model.queue_wait(queue, event, point, pending)
        self._lost = True
        return True

    def queue_signal(self, who: int, which: int, extra: int) -> bool:
        process = self._process(who)
        found = None if process is None else self._object(process, extra)
        if process is None or found is None or len(found.event.owed) >= _MOST_OWED:
            return False
        queue, event = self._queue(process, self._kind(which)), found.event
        if not self._ready(queue):
            return False
        if queue.kind == event.kind:
            stamp = queue.wrote[event] = event.newest[process.slot] = next(self._numbers)
            self._ask(process, "write", queue.number, event.number, process.slot, stamp)
            self._tell(f"{self._name(process)}'s {queue.kind} queue writes {stamp} for event {event.number}")
        answer = self._ask(process, "queue_signal", queue.number, found.number)
        self._tell(f"{self._name(process)}'s {queue.kind} queue signals event {event.number}: {answer}")
        expected: object = "InvalidArgumentError"
        if found.signals is not False:
            expected = self._model.submit(queue, event)
            if event in queue.wrote:
                event.written[event.top] = process.slot, queue.wrote[event]
        if answer != expected:
            self._fail(f"{self._name(process)}: a queue's signal of event {event.number} gave {answer}, not {expected}")
        return True

    def read(self, who: int, which: int, extra: int) -> bool:
        """A queue waits for an event, and copies its board."""
        process = self._process(who)
        found = None if process is None else self._object(process, which)
        if process is None or found is None:
            return False
        queue, event = self._queue(process, found.event.kind), found.event
        free = set(range(READS)) - {read.place for read in process.reads.values() if read.queue is queue}
        if not free or (extra % 3 and not self._queue_waits(queue, found, extra)) or not self._ready(queue):
            return False
        token, read = next(self._numbers), queue.read(event, min(free))
        self._ask(process, "read", token, queue.number, event.number, read.place)
        self._tell(f"{self._name(process)}'s {queue.kind} queue reads the board of event {event.number}")
        process.waits[token] = queue.landed, self._model.submit(queue, queue.landed)
        process.reads[token] = read
        return True

    def gate(self, who: int, which: int, _extra: int) -> bool:
        process = self._process(who)
        if process is None:
            return False
        queue = self._queue(process, self._kind(which))
        if not self._ready(queue) or len(queue.operations) >= 8:
            return False
        gate = Gate(next(self._numbers))
        self._ask(process, "gate", queue.number, gate.number)
        self._tell(f"{self._name(process)}'s {queue.kind} queue is held up by {gate.number}")
        self._gates[gate.number] = process, gate
        queue.operations.append(gate)
        return True

    def release(self, who: int, which: int, _extra: int) -> bool:
        process = self._process(who)
        closed = [gate for owner, gate in self._gates.values() if owner is process and not gate.open]
        if process is None or not closed:
            return False
        self._release(process, closed[which % len(closed)])
        return True

    def _release(self, process: Process, gate: Gate) -> None:
        self._ask(process, "release", gate.number)
        self._tell(f"{self._name(process)} goes on from {gate.number}")
        gate.open = True

    def synchronize(self, who: int, which: int, _extra: int) -> bool:
        process = self._process(who)
        queues = (
            []
            if process is None
            else [queue for queue in process.queues.values() if queue not in process.syncs.values()]
        )
        if process is None or not queues:
            return False
        queue, token = queues[which % len(queues)], next(self._numbers)
        self._ask(process, "synchronize", token, queue.number)
        self._tell(f"{self._name(process)} synchronizes with its {queue.kind} queue")
        process.syncs[token] = queue
        return True

    # --- the processes ------------------------------------------------------------------------------------

    def stop(self, who: int, _which: int, _extra: int) -> bool:
        process = self._slots[who]
        if process is None or process.stopped:
            return False
        for queue in process.queues.values():
            # When such a process goes on, its device may be faster than its warden: both outcomes are right.
            if queue.kind == "device" and any(isinstance(each, Wait) for each in queue.operations):
                return False
        os.kill(self._running[process].pid, signal.SIGSTOP)
        os.waitpid(self._running[process].pid, os.WUNTRACED)
        self._tell(f"{self._name(process)} is stopped")
        process.stopped = True
        return True

    def resume(self, who: int, _which: int, _extra: int) -> bool:
        process = self._slots[who]
        if process is None or not process.stopped:
            return False
        os.kill(self._running[process].pid, signal.SIGCONT)
        self._tell(f"{self._name(process)} goes on")
        process.stopped = False
        self._lost = True
        return True

    def kill(self, who: int, _which: int, _extra: int) -> bool:
        process = self._slots[who]
        if process is None:
            return False
        running = self._running[process]
        os.kill(running.pid, signal.SIGKILL)
        os.waitpid(running.pid, 0)
        running.connection.close()
        self._tell(f"{self._name(process)} is killed")
        self._gone(process, True)
        return True

    def leave(self, who: int, _which: int, _extra: int) -> bool:
        process = self._process(who)
        if process is None:
            return False
        for event in self._model.events:
            owners = [owner for _number, (owner, _signal) in sorted(event.owed.items())]
            if process in owners and owners[0] is not process:
                return False  # its loss is put off, and until then the protocol tells nobody
        self._leave(process)
        return True

    def _leave(self, process: Process) -> None:
        running = self._running[process]
        self._tell(f"{self._name(process)} exits")
        running.connection.send(("exit",))
        if not ended(running.pid, _MOST):
            self._hung(process, f"has not ended within {_MOST:g} s")
        status = os.waitstatus_to_exitcode(os.waitpid(running.pid, 0)[1])
        running.connection.close()
        self._gone(process, False)
        if status:
            self._fail(f"{self._name(process)} ended with status {status}")

    def _gone(self, process: Process, died: bool) -> None:
        self._slots[process.slot] = None
        self._model.end(process, died)
        process.exports = None
        self._lost = True

    # --- what must hold -----------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Wait until all that must come has come, and look whether anything else has."""
        self._model.advance()
        start = time.monotonic()
        while True:
            self._collect()
            late = self._late()
            if late is None:
                break
            process, text = late
            if time.monotonic() - start > _MOST:
                begin = time.monotonic()
                self._ask(process, "observe", timeout=START)
                if time.monotonic() - begin < 0.2:  # else the machine is busy, and not the process
                    self._hung(process, f"after {_MOST:g} s {text}")
            self._poll(0.02)
        if self._lost:
            self._poll(_QUIET)
            self._collect()

    def _completed(self, queue: Queue, signal: Signal) -> bool:
        """Whether the device or the warden was first. Who has closed the event may not know; then nobody can ask."""
        event, point = signal.event, signal.point
        number = None
        process = queue.process
        if event is not queue.landed:
            known = [found for other in self._open_processes() for found in other.objects.values()]
            found = next((found for found in known if found.event is event), None)
            if found is None:
                return False
            process, number = found.process, found.number
            event.waited.add(process)
        answer = self._ask(process, "outcome", point, number, queue.number)
        if answer not in ("done", "lost"):
            self._hung(process, f"point {point} of event {event.number} is neither done nor lost: {answer}")
        self._counts[f"put off, then {answer}"] += 1
        self._tell(f"point {point} of event {event.number}, whose loss was put off, is {answer}")
        return answer == "done"

    def _open_processes(self) -> list[Process]:
        return [process for process in self._model.living() if not process.stopped]

    def _poll(self, timeout: float) -> None:
        poll = select.poll()
        for process in self._open_processes():
            poll.register(self._running[process].connection.fileno(), select.POLLIN)
        poll.poll(timeout * 1000)

    def _collect(self) -> None:
        for process in self._open_processes():
            running = self._running[process]
            try:
                while running.receive(0):
                    pass
            except (EOFError, ConnectionError):
                status = os.waitstatus_to_exitcode(os.waitpid(running.pid, 0)[1])
                process.alive = False
                self._fail(f"process {self._name(process)} ended by itself, status {status}")
            for token, found in running.reports:
                self._judge(process, token, found)
            running.reports.clear()

    def _judge(self, process: Process, token: int, found: Any) -> None:
        if token in process.syncs:
            queue = process.syncs.pop(token)
            if self._expect_sync(queue) == "pending":
                self._fail(f"{self._name(process)}: its {queue.kind} queue has finished before it can")
            least, most = int(queue.news), queue.losses + queue.inner
            if not isinstance(found, int) or not least <= found <= most:
                self._fail(f"{self._name(process)}: synchronize told {found} losses, not {least} to {most}")
            queue.losses = queue.inner = 0
            queue.news = False
            queue.spoiled = False
            if found:
                queue.waited.clear()
            return
        event, point = process.waits.pop(token)
        read = process.reads.pop(token, None)
        if read is not None and isinstance(found, list):
            self._compare(read, found)
            found = "done"
        elif found == "done":
            process.saw[event] = max(point, process.saw.get(event, 0))
        if found == "InvalidArgumentError" and (process, event) in self._closed:
            self._counts["waits ended by a close"] += 1
            return
        outcome = {"done": "done", "PeerLostError": "lost"}.get(found, found)
        expected = event.expect(process, point)
        if outcome != expected and not (outcome == "lost" and expected == "either"):
            self._fail(
                f"{self._name(process)}: the wait for point {point} of event {event.number} ended with {found}, "
                f"expected: {expected}"
            )
        self._counts[f"waits {outcome}"] += 1

    def _compare(self, read: Read, found: list[tuple[int, int]]) -> None:
        """What a queue copied from a board, and what it may have found there."""
        for cell, (low, high) in enumerate(found):
            least, most = read.least(cell), read.event.newest.get(cell, 0)
            if not least <= low <= high <= most:
                reader, event = self._name(read.queue.process), read.event.number
                self._fail(
                    f"{reader}: point {read.seen} of event {event} was complete, and cell {cell} of its board has "
                    f"{low} to {high}, not {least} to {most}"
                )
            self._counts["cells that had to show something"] += least > 0

    @staticmethod
    def _expect_sync(queue: Queue) -> str:
        if not queue.operations:
            return "done"
        return "either" if all(getattr(each, "doomed", False) for each in queue.operations) else "pending"

    def _late(self) -> tuple[Process, str] | None:
        """What is still to come, if anything."""
        for process in self._open_processes():
            for event, point in process.waits.values():
                expected = event.expect(process, point)
                if expected in ("done", "lost"):
                    return process, f"the wait for point {point} of event {event.number} is not {expected}"
            for queue in process.syncs.values():
                if self._expect_sync(queue) == "done":
                    return process, f"synchronize with its {queue.kind} queue has not returned"
        for process in self._open_processes():
            for number, numbers in self._ask(process, "observe").items():
                found = process.objects[number].event
                if any(signal.doomed or not owner.alive for owner, signal in found.owed.values()):
                    continue
                if numbers != (found.top, found.effective):
                    wanted = f"{found.top}, {found.effective}"
                    return process, f"pending and value of event {found.number} are {numbers}, not {wanted}"
        return None

    # --- the end ------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """All go on, close everything, and end: nothing is left."""
        for process in list(self._model.living()):
            if process.stopped:
                self.resume(process.slot, 0, 0)
        self._settle()
        for process, gate in self._gates.values():
            if process.alive and not gate.open:
                self._release(process, gate)
                self._settle()
        idle = [p for p in self._model.living() if not p.waits and not any(q.operations for q in p.queues.values())]
        for process in idle:
            self._ask(process, "holds")
        for process in [p for p in self._model.living() if p not in idle[:1]]:
            self._leave(process)
        for process in idle[:1]:  # now nobody else is there
            self._nothing_left(process)
            self._leave(process)
        if self._zygote.said():
            self._fail("something was written to stderr")

    def _nothing_left(self, process: Process) -> None:
        end, base = time.monotonic() + _MOST, self._running[process].base
        while True:
            now = self._ask(process, "holds")
            if all(now[name] <= base[name] for name in base):
                return
            if time.monotonic() > end:
                fds = self._ask(process, "describe")
                self._fail(f"{self._name(process)} is left with {now}, before {base}: {fds}")
            time.sleep(0.005)

    def end(self) -> None:
        """Whatever has happened: no process is left."""
        for process in list(self._model.living()):
            running = self._running[process]
            os.kill(running.pid, signal.SIGKILL)
            os.waitpid(running.pid, 0)
            running.connection.close()
        self._zygote.forget()


_STEPS: Final[dict[str, Callable[[World, int, int, int], bool]]] = {
    "make": World.make,
    "open": World.open,
    "close": World.close,
    "signal": World.signal,
    "wait": World.wait,
    "wait_async": World.wait_async,
    "queue_wait": World.queue_wait,
    "queue_signal": World.queue_signal,
    "read": World.read,
    "gate": World.gate,
    "release": World.release,
    "synchronize": World.synchronize,
    "stop": World.stop,
    "resume": World.resume,
    "kill": World.kill,
    "leave": World.leave,
}
STEPS: Final[Sequence[str]] = (
    *("make", "open", "open", "close", "signal", "signal", "signal", "wait", "wait", "wait", "wait", "wait_async"),
    *("queue_wait", "queue_wait", "queue_signal", "queue_signal", "queue_signal", "gate", "release", "release"),
    *("read", "read", "read"),
    *("synchronize", "stop", "resume", "resume", "kill", "kill", "leave"),
)
