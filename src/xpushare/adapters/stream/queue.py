"""Queues: in-order streams of a device, ours or another library's."""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar, final
from weakref import ref

from xpushare._native import (
    CAPTURED,
    LOST,
    NOT_HELD,
    PENDING,
    SYSTEM,
    Scopes,
    Slot,
    Span,
    StreamQueue,
    load64,
)
from xpushare.adapters.base import DriverQueue, NativeEvent, Profile
from xpushare.adapters.host.queue import queue_numbers
from xpushare.adapters.stream.engine import Engine
from xpushare.adapters.stream.hooks import Calls, Stream
from xpushare.adapters.stream.memory import HostMemory
from xpushare.common.errors import (
    DeviceError,
    FeatureNotSupportedError,
    InvalidArgumentError,
    XpuShareError,
    from_os_error,
)
from xpushare.timeline.loss import QUEUE_FAILED, Losses, note_failure, peer_lost

__all__ = ["AdoptedQueues", "Copy", "DeviceQueue", "Fill", "fill_steps"]


# --- pattern fills ----------------------------------------------------------------------------------------------------

_PIECEWISE_MAX: Final = 64  # longest pattern, in bytes, that is written piece by piece


class Fill(NamedTuple):
    """A fill of `times` patterns, starting at the address `dst`."""

    dst: int
    pattern: bytes
    times: int


class Copy(NamedTuple):
    dst: int
    src: int
    nbytes: int


def fill_steps(
    dst: int, pattern: bytes, nbytes: int, units: Sequence[int], stage: Callable[[bytes], int]
) -> list[Fill | Copy]:
    """Return the fills and copies that fill `nbytes` bytes with a pattern. `nbytes` is a multiple of the pattern's
    length. `units` are the lengths of the patterns that the device can fill with.

    `stage` copies a long pattern into memory that the device can read, and returns its address.
    """
    if len(set(pattern)) == 1:
        return [Fill(dst, pattern[:1], nbytes)]
    length = len(pattern)
    if length in units and dst % length == 0:
        return [Fill(dst, pattern, nbytes // length)]
    # Write the pattern once, then double the filled part by copies.
    steps: list[Fill | Copy]
    if length > _PIECEWISE_MAX:
        steps = [Copy(dst, stage(pattern), length)]
    else:
        unit = max(unit for unit in units if length % unit == 0 and dst % unit == 0)
        steps = [Fill(dst + at, pattern[at : at + unit], 1) for at in range(0, length, unit)]
    done = length
    while done < nbytes:
        part = min(done, nbytes - done)
        steps.append(Copy(dst + done, dst, part))
        done += part
    return steps


# --- queues -----------------------------------------------------------------------------------------------------------

P = ParamSpec("P")
T = TypeVar("T")

# An empty scope around calls; native, which avoids a Python frame.
_NOTHING: Final = Scopes()
_new: Any = tuple.__new__  # faster than a named tuple's own `__new__`
_WAITS_KEPT: Final = 64  # number of waits at which settled ones are first sorted out
_SPIN: Final = 50e-6  # seconds for which the driver is polled without sleeping
_NAP_FIRST: Final = 20e-6
_NAP_MAX: Final = 1e-3
_NAP_LONGEST: Final = 8e-3  # of a wait that has taken a second already


@final
class DeviceQueue(DriverQueue):
    """A queue over a stream. The engine checks the queue regularly (`Watch`) as long as signals are pending or
    operations use their operands.
    """

    def __init__(self, engine: Engine, stream: Stream, marks: Sequence[Any] = ()) -> None:
        self.number = next(queue_numbers)
        self._engine = engine
        self._stream = stream
        self._device = stream.device
        self._slot_pages = engine.slot_pages
        self._teardown = engine.teardown
        self._wait_lock = engine.teardown.wait_lock
        self._adopted = stream.owner is not None
        self._native = StreamQueue(self.number, stream.handle, stream.calls.native, stream.ordering, self._adopted)
        self._holds = stream.ordering != "device"  # whether `_native` may hold operations
        # Points are submitted in the order in which they are queued. A full stream blocks whoever queues more.
        self._order = threading.Lock()
        # Entered around calls by recipe, while `_order` is held.
        self._around: Callable[[], AbstractContextManager[object]] = stream.around_calls or _NOTHING
        self._releasing = threading.RLock()  # held while operands are released; always taken before `_state`
        self._state = threading.RLock()  # guards the attributes below; never held across a blocking call
        self._marks = [_Mark(mark, 0) for mark in marks]  # free marks, for reuse
        self._kept: deque[tuple[_Mark, object]] = deque()  # (mark after the operation, its operands)
        self._kept_ever = 0  # how many entries `_kept` has ever had
        self._signalled: _Signal | None = None  # the newest signal
        self._late: deque[_Signal] = deque()  # signals that may still be pending after the stream has passed them
        self._waits: deque[_Wait] = deque()
        self._sort_at = _WAITS_KEPT
        # One for each event of another library; alive while the queue waits for it.
        self._foreign: list[weakref.ref[_Dropped]] = []
        self._owed: dict[int, Slot] = {}  # by id; changed only while `_order` is held
        self._timelines: list[Slot] = []  # timelines of commands that native code has queued (`own`), the newest last
        self._failures: deque[BaseException] = deque()
        self._losses = Losses()
        self._broken: DeviceError | None = None
        self._place = 0  # place of the newest operation submitted here, if `_native` may hold it
        # The places of the operations that were dropped because the driver refused one of them.
        self._dropped = range(0)
        self._watched = False
        self._released = False
        # For a queue with several users: drops one, and returns whether it was the last.
        self.drop_user: Callable[[], bool] | None = None
        engine.teardown.register(self)

    # --- failures ------------------------------------------------------------------------------------------

    def _call(self, hook: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call a hook. If the hook fails because the device is broken, mark the queue as broken."""
        try:
            return hook(*arguments, **keywords)
        except XpuShareError as error:
            raise self._judged(error) from error.__cause__

    def _judged(self, error: XpuShareError) -> XpuShareError:
        """Return the error to raise for a driver's error. If the error means that the device is broken, mark all
        pending signals as lost.
        """
        codes = self._device.codes
        if error.native in codes.captured:
            return _capturing()
        if isinstance(error, DeviceError) and error.native in codes.fatal:
            self._break(error)
        return error

    def _failed(self, doing: str, call: str, code: int) -> XpuShareError:
        """Return the error to raise for an error code that the native queue returned."""
        if code > SYSTEM:
            return from_os_error(OSError(code - SYSTEM, os.strerror(code - SYSTEM)), doing)
        if code == NOT_HELD:
            return FeatureNotSupportedError(
                f"{doing}: streams here share hardware, so a stream of another library can wait only for points that "
                "this process has submitted: use xs.Queue"
            )
        return self._judged(self._device.error(doing, call, code))

    def _break(self, error: DeviceError) -> None:
        """Mark all pending signals as lost, because the device is broken."""
        with self._state:
            if self._broken is None:
                self._broken = error
            owed, self._owed = {id(slot): slot for slot in self._timelines} | self._owed, {}
        for slot in owed.values():
            try:
                self._note(slot, error)
                slot.fail(QUEUE_FAILED)
            except ValueError:
                pass  # the event was closed here, so nobody can learn of the failure through it

    def _note(self, slot: Slot, error: BaseException) -> None:
        domain = self._slot_pages.domain(slot)
        if domain is not None:
            note_failure(domain, error)

    def _check(self) -> None:
        """Raise if the queue accepts no work, because the device is broken or the stream is being captured."""
        if self._broken is not None:
            raise self._broken
        if self._adopted:  # only another library's stream can be captured, since no library has a stream of ours
            self._expect_open(self._native.check())

    def _expect_open(self, code: int) -> None:
        if code == CAPTURED:
            raise _capturing()
        if code and self._holds:
            raise self._failed("queueing", "what was held", code)
        if code:
            raise self._failed("looking for a capture", self._stream.calls.captured, code)

    def _notice_refusal(self) -> None:
        """Make `synchronize` report, once, that the driver refused operations that the queue had held back."""
        failure = self._native.failure() if self._holds and not self._dropped else None
        if failure is not None:
            place, code = failure
            self._dropped = range(place, max(place, self._place) + 1)
            self._failures.append(self._failed("queueing", "what was held", code))

    # --- queueing ------------------------------------------------------------------------------------------

    def _submit(self, doing: str, calls: Calls) -> int:
        """Queue the driver calls that hooks have returned. Return the place of these calls in the queue, or 0 if
        `calls` is empty.
        """
        if not calls:
            return 0
        place, code = self._native.submit(calls)
        if code:
            raise self._failed(doing, self._stream.calls.others.get(calls[place][0], "the driver"), code)
        with self._state:
            self._place = max(self._place, place)
        return place

    def _mark(self, doing: str, steps: Sequence[Fill | Copy] = ()) -> _Mark:
        """Queue the steps, and after them a mark, which tells when the stream has finished them. Return the mark. The
        caller has made the device current.
        """
        stream = self._stream
        with self._state:
            mark = self._marks.pop() if self._marks else None
        if mark is None:
            mark = _Mark(self._call(stream.new_mark, doing), 0)
        try:
            calls: list[tuple[int, ...]] = []
            for step in steps:
                if isinstance(step, Copy):
                    calls += stream.copy(doing, *step) or ()
                else:
                    calls += stream.fill(doing, *step) or ()
            calls += stream.mark(doing, mark.mark) or ()
            mark.place = self._submit(doing, calls)
        except BaseException as error:
            self._give_back(mark)
            if isinstance(error, XpuShareError):
                raise self._judged(error) from error.__cause__
            raise
        return mark

    def _give_back(self, mark: _Mark) -> None:
        with self._state:
            self._marks.append(mark)

    def _watch(self) -> None:
        if not self._watched:
            self._watched = True
            self._engine.watch.add(self)

    def _operate(self, doing: str, steps: Sequence[Fill | Copy], keep: object) -> None:
        """Queue steps, and keep a reference to `keep` until they have finished."""
        with self._order, self._stream.current():
            self._check()
            self._reap()
            try:
                mark = self._mark(doing, steps)
            except BaseException:  # steps that were queued before the failure use the operands, too
                self._keep(self._mark(doing), keep)
                raise
            self._keep(mark, keep)
        if not self._watched:
            self._watch()

    def _keep(self, mark: _Mark, keep: object) -> None:
        with self._state:
            self._kept.append((mark, keep))
            self._kept_ever += 1

    def _reach(self, *operands: tuple[int, int]) -> None:
        """Give the queue's device access to the operands. Each operand is a pair of an address and a number of
        bytes.
        """
        access = self._engine.operand_access
        if access is None:
            return
        ordinal = self._device.ordinal
        for operand in operands:
            if access.lacking(ordinal, *operand):
                with self._stream.current():
                    access.ensure(ordinal, *operand)

    def copy(self, dst: int, src: int, nbytes: int, keep: object) -> None:
        self._reach((dst, nbytes), (src, nbytes))
        self._operate(f"copying {nbytes} bytes", [Copy(dst, src, nbytes)], keep)

    def fill(self, dst: int, pattern: bytes, nbytes: int, keep: object) -> None:
        self._reach((dst, nbytes))
        staged: list[_Dropped] = []

        def stage(pattern: bytes) -> int:
            memory = HostMemory.allocate(self._engine, self._device, len(pattern))
            staged.append(_Dropped(memory.release))
            memoryview(Span(memory.address, len(pattern), False, memory))[:] = pattern
            return memory.address

        steps = fill_steps(dst, pattern, nbytes, self._stream.fill_units, stage)
        self._operate(f"filling {nbytes} bytes", steps, (keep, staged))

    def call(self, function: Callable[[], object]) -> None:
        raise FeatureNotSupportedError(
            "this queue runs no Python functions: wait for the event that it signals, or use a queue of native_cpu"
        )

    def signal(self, slot: Slot, profile: Profile | None) -> int:
        if profile is not None:
            self._time(profile)
        word = self._slot_pages.address(self._device, slot)
        with self._order, self._around():
            if self._broken is not None:
                raise self._broken
            point, after, code = self._native.signal(slot, word)
            if not point:
                self._expect_open(code)
            self._owed[id(slot)] = slot
            if after or code or self._broken is not None:
                self._finish_signal(slot, word, point, after, code)
            signalled: _Signal = _new(_Signal, (ref(slot), point))
            self._signalled = signalled
            if self._stream.calls.host_runs_late:
                self._late.append(signalled)
                self._forget_run()
        if not self._watched:
            self._watch()
        return point

    def _time(self, profile: Profile) -> None:
        """Make the driver record the time at which the stream reaches this place."""
        doing = "timing a signal"
        with self._order, self._stream.current():
            self._check()
            self._reap()
            made = self._call(self._stream.new_stamp, doing)
            if made is None:
                raise FeatureNotSupportedError("events of this device are not profiled: Event(enable_profiling=False)")
            now, stamp, calls = made
            profile.begin(now, stamp)
            self._submit(doing, calls)
            self._keep(self._mark(doing), stamp)

    def _forget_run(self) -> None:
        with self._state:
            while self._late and not self._late[0].pending():
                self._late.popleft()

    def _finish_signal(self, slot: Slot, word: int, point: int, after: int, code: int) -> None:
        """Finish a signal that native code has submitted, which is the point `point` of the event in `slot`. `code` is
        the error code of native code. If `after` is not 0, another signaller of the event has submitted the point
        `after` before, so queue a wait for that point, then complete `point`. If `code` is an error or this fails, mark
        the event in `slot` as failed and raise.
        """
        try:
            if after and not code:
                self._wait(slot, word, after)
                code = self._native.finish(slot, point)
            if code:
                calls = self._stream.calls
                raise self._failed("signalling", calls.host if after else calls.store, code)
            if self._broken is not None:  # the device broke before this point was in `_owed`
                raise self._broken
        except BaseException as error:
            self._note(slot, error)
            slot.fail(QUEUE_FAILED)  # the point was submitted, and will never complete
            raise

    def _must_wait(self, slot: Slot, point: int) -> bool:
        """Return whether the queue has to wait for the signal with the number `point`. Queues must not start a wait
        during a teardown, so first let a running teardown finish. If the signal is complete or lost before that, return
        False.
        """
        nap = _NAP_FIRST
        while self._teardown.busy:
            if slot.state(point) != PENDING:
                return False
            time.sleep(nap)
            nap = min(2 * nap, _NAP_MAX)
        return True

    def _wait(self, slot: Slot, word: int, point: int) -> None:
        with self._wait_lock if not self._teardown.busy or self._must_wait(slot, point) else _NOTHING():
            code = self._native.wait(slot, word, point)
            if code:
                raise self._failed("waiting", self._stream.calls.wait, code)
            with self._state:
                own = self._newest_own() if self._timelines else None
                self._waits.append(_new(_Wait, (slot, point, self._kept_ever, self._signalled, own)))
        if len(self._waits) > self._sort_at:
            self._sort_waits()
            self._sort_at = max(_WAITS_KEPT, 2 * len(self._waits))

    def wait(self, slot: Slot, point: int) -> None:
        word = self._slot_pages.address(self._device, slot)
        with self._order, self._around():
            if self._adopted or self._broken is not None:
                self._check()
            state = slot.state(point)
            if state == PENDING:
                try:
                    self._wait(slot, word, point)
                except ValueError as error:
                    raise InvalidArgumentError(str(error)) from None
            elif state == LOST:
                self._native.lost(slot)
                with self._state:
                    self._meet(slot, point)

    def _meet(self, slot: Slot, point: int) -> None:
        """Record that the queue waits for a lost point, as a failure that `synchronize` raises. Each lost point is
        recorded once. The caller holds `_state`.
        """
        if self._losses.new(slot, point):
            self._failures.append(peer_lost(slot, point))

    def _sort_waits(self, passed: bool = False) -> None:
        """Record waits for lost points as failures, one for each lost point, and remove waits that have ended. While
        the device may still be waiting for a lost point, the wait is not removed, and keeps its event alive. If
        `passed` is true, the stream has passed all waits, so the device waits for none of them.
        """
        with self._state:
            for _ in range(len(self._waits)):
                wait = self._waits.popleft()
                slot, point = wait.slot, wait.point
                try:
                    state = slot.state(point)
                    waiting = state == LOST and _holds_device(slot, point)
                except ValueError:
                    continue  # the event was closed here, so its state is unknown
                if waiting and not passed:
                    self._waits.append(wait)
                elif slot.released(point) or state == LOST:
                    # Even if an earlier point delays the loss, or a later signal followed.
                    self._meet(slot, point)
                elif state == PENDING:
                    self._waits.append(wait)

    def waits(self) -> list[Callable[[], bool]]:
        self._sort_waits()
        with self._state:
            self._foreign = [each for each in self._foreign if each() is not None]
            points = [functools.partial(_waits, ref(self), wait) for wait in self._waits]
            return [*points, *(functools.partial(self._waits_native, each) for each in self._foreign)]

    def still_waits(self, wait: _Wait) -> bool:
        """Return whether the device still waits for the point of `wait`. It does not if `wait` has been removed from
        the queue's list of waits, or if the value of the event has reached the point.
        """
        with self._state:
            if not any(each is wait for each in self._waits):
                return False
        try:
            return _holds_device(wait.slot, wait.point)
        except ValueError:
            return False  # the event has been closed here

    def _waits_native(self, unsure: weakref.ref[_Dropped]) -> bool:
        if unsure() is not None:
            try:
                self.settle()
            except XpuShareError:
                return False  # nothing waits on a broken device
        return unsure() is not None

    @property
    def place(self) -> int:
        return self._native.place

    def handed(self) -> int:
        return self._native.handed

    def wait_native(self, event: Any, keep: object) -> None:
        """Hold back work that is queued from now on until another library's event has completed."""
        doing = "waiting for an event of another library"
        with self._order, self._stream.current():
            self._check()
            self._reap()
            self._native.unsure(True)  # until the wait is over
            unsure = _Dropped(self._native.unsure, False)
            with self._wait_lock:
                self._submit(doing, self._call(self._stream.wait_native, doing, event))
                with self._state:
                    self._foreign.append(weakref.ref(unsure))
            self._keep(self._mark(doing), (keep, unsure))
        self._watch()

    def record_native(self) -> NativeEvent:
        with self._order, self._stream.current():
            self._check()
            if self._native.held:
                raise FeatureNotSupportedError(
                    "recording an IPC event: the queue is waiting for an event, and holds its later work in this "
                    "process: wait for that event first"
                )
            return self._call(self._stream.record_native, "recording an IPC event")

    def native(self) -> int:
        return self._stream.handle

    # --- what native code queues ---------------------------------------------------------------------------

    @property
    def works_natively(self) -> bool:
        """Return whether native code may queue commands without Python. Each such command signals an event that no
        other queue signals.
        """
        return self._stream.calls.native.works and not self._adopted and self._stream.around_calls is None

    @property
    def engine(self) -> int:
        """Return the address of the native queue, which lives as long as this object."""
        return self._native.engine

    @property
    def spent(self) -> bool:
        """Return whether the queue needs a new timeline (an event that only this queue signals). That is so if the
        queue has no timeline yet, or if another signal on the old timeline would hide that an earlier signal was lost.
        """
        return self._broken is None and self._native.spent

    def own(self, slot: Slot) -> None:
        """From now on, let native code signal the event in `slot` as the timeline of this queue. Only this queue
        signals the event.
        """
        address = self._slot_pages.address(self._device, slot)
        with self._state:
            self._timelines.append(slot)
        self._native.own(slot, address)
        self._watch()

    def _newest_own(self) -> _Signal | None:
        return _Signal(ref(self._timelines[-1]), self._timelines[-1].pending) if self._timelines else None

    def clean(self) -> bool:
        """Return whether no work of this queue has failed, and no queued work can fail any more."""
        self._sort_waits()
        self._notice_refusal()
        with self._state:
            foreign = any(each() is not None for each in self._foreign)
            return not (self._waits or self._failures or self._broken or self._dropped or foreign)

    # --- waiting and looking after -------------------------------------------------------------------------

    def _reached(self, mark: _Mark) -> bool:
        doing = "asking for an event"
        if mark.place:
            self._notice_refusal()
            # Set the mark again: operations that the driver already has may still use their operands.
            if mark.place in self._dropped:
                mark.place = self._submit(doing, self._call(self._stream.mark, doing, mark.mark))
            if self._native.handed < mark.place:
                return False
        try:
            return self._stream.query(doing, mark.mark)
        except XpuShareError as error:
            raise self._judged(error) from error.__cause__

    def _reap(self) -> None:
        """Release the memory that finished operations have used. The caller has entered a scope of the stream, in which
        driver calls do not disturb captures.
        """
        with self._releasing:
            # Releasing operands may call this queue, so `_state` is free. `_releasing` is held, since `settle` waits
            # for it. So no variable of this method may keep the operands alive.
            self._take_finished().clear()

    def _take_finished(self) -> list[object]:
        finished: list[object] = []
        with self._state:
            while self._kept and self._reached((first := self._kept[0])[0]):
                if not self._kept or self._kept[0] is not first:
                    continue  # the query ran a finaliser or a signal handler, which has taken the entry
                mark, keep = self._kept.popleft()
                self._marks.append(mark)
                finished.append(keep)
        return finished

    def settle(self) -> None:
        """Release the memory that finished operations have used. If another thread is releasing it, wait for that
        thread. Does nothing on a broken device.
        """
        with self._releasing:
            if self._broken is None and self._kept:
                with self._stream.current():
                    self._reap()

    def synchronize(self, timeout: float | None) -> None:
        start = time.monotonic()
        place = self._native.handed
        if timeout == 0 and self.idle():  # skips the mark, which takes a moment even on an idle stream
            self.settle()
            self._report(place)
            return
        with self._order, self._stream.current():
            self._check()
            mark = self._mark("synchronizing")
            late = list(self._late)
            place = mark.place or self._native.handed
        reached = False
        try:
            while True:
                with self._stream.relaxed():
                    # Signals that the driver refused never complete. `_report` raises the refusal.
                    reached = self._reached(mark) and (bool(self._dropped) or not any(map(_Signal.pending, late)))
                    if reached:
                        self._reap()
                        break
                waited = time.monotonic() - start
                if timeout is not None and waited >= timeout:
                    raise TimeoutError(f"the queue has not finished within {timeout:g} s")
                if waited > _SPIN:  # short naps, so that Ctrl-C works
                    nap = max(min(waited / 8, _NAP_MAX), min(waited / 256, _NAP_LONGEST))
                    time.sleep(nap if timeout is None else min(nap, max(timeout - waited, 0.0)))
        finally:
            if reached or not mark.place:
                self._give_back(mark)  # free for reuse, since the next use sets it again
            else:
                self._keep(mark, None)  # native code may still hold it
        self._report(place)

    def _report(self, place: int) -> None:
        """Raise the oldest error that has not been raised yet. The caller has waited until the stream has finished its
        work up to the place `place`.
        """
        self._sort_waits(True)
        self._notice_refusal()
        failure = self._failures.popleft() if self._failures else None
        if not self._failures:
            self._native.told(place)
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback refers to this frame, and would keep the queue alive

    def told(self) -> None:
        self._native.told(max(self._place, self._native.handed))

    def idle(self) -> bool:
        if self._broken is not None:
            return True
        stream = self._stream
        if (busy := stream.calls.busy) is not None and not self._late:
            current: Any = stream.current
            found = self._native.idle(*busy, stream.handle, current)
            if found is not None:
                return found
        with stream.current():
            if self._adopted and (code := self._native.check()):
                self._expect_open(code)
            if self._late:
                self._forget_run()
            if self._native.held or self._late:
                return False
            try:
                return not stream.busy("asking for a stream")
            except XpuShareError as error:
                raise self._judged(error) from error.__cause__

    def unfinished(self) -> bool | tuple[Slot, int]:
        if self._broken is not None:
            return False
        try:
            self.settle()
        except XpuShareError:
            return False
        self._sort_waits()
        with self._state:
            wait = self._waits[0] if self._waits else None
            signalled = self._signalled if wait is None else wait.signalled
            own = self._newest_own() if wait is None else wait.own
            first = self._kept_ever - len(self._kept)  # number of the oldest unfinished operation
            kept = self._kept_ever if wait is None else wait.kept
            # An earlier host function may run after the newest one.
            late = list(self._late) if signalled in self._late else []
        if first < kept or any(each is not None and each.pending() for each in (signalled, own)):
            return True
        if any(each.pending() for each in itertools.takewhile(lambda each: each is not signalled, late)):
            return True
        return wait is not None and (wait.slot, wait.point)

    def look_after(self) -> bool:
        """Check pending signals, and release the memory that finished operations have used. `Watch` calls this
        regularly. Returns False if nothing is left to check.
        """
        self._sort_waits()
        self._notice_refusal()
        if self._order.acquire(blocking=False):  # otherwise somebody is queueing an operation: check next time
            try:
                owed = self._owed | {id(slot): slot for slot in self._timelines}
                self._owed = {key: slot for key, slot in owed.items() if _owes(slot) or self._native.late(slot)}
                self._keep_late()
            finally:
                self._order.release()
        if self._broken is None and (self._kept or self._owed or self._released):
            with self._stream.current():
                try:
                    self._stream.check_device("looking after a queue")
                except XpuShareError as error:
                    self._judged(error)
                else:
                    self._reap()
        if self._broken is not None:  # native code does not know, and may have queued more since
            for slot in self._timelines:
                with suppress(ValueError):  # the event has been closed
                    slot.fail(QUEUE_FAILED)
        with self._state:
            if self._broken is not None:  # nothing runs on a broken device any more
                self._marks += [mark for mark, _keep in self._kept]
                self._kept.clear()
            # Native code does not report what it queues, so its queues are watched as long as they are open.
            native = bool(self._timelines) and not self._released
            busy = bool(native or self._kept or self._owed or (self._released and self._unfinished()))
            self._watched = busy
            ends = self._released and not busy
            self._released = self._released and busy
        if ends:
            self._end()
        return busy

    def _keep_late(self) -> None:
        """Keep alive the events whose signals were lost although the stream is still going to store them, until it has
        done so. The caller holds `_order`.
        """
        late = {key: slot for key, slot in self._owed.items() if not _owes(slot)}
        if not late or self._broken is not None or (self._adopted and self._native.check()):
            return
        try:
            with self._stream.current():
                mark = self._mark("looking after a queue")
        except XpuShareError:
            return  # try next time; a broken device stores nothing any more
        self._keep(mark, [_Dropped(self._native.landed, slot) for slot in late.values()])
        with self._state:
            for key in late:
                del self._owed[key]

    def _unfinished(self) -> bool:
        """Return whether the stream still has work that needs this object. This object keeps the events alive that the
        stream waits for.
        """
        if self._broken is not None:
            return False
        if self._adopted:
            return bool(self._waits)
        try:
            with self._stream.relaxed():
                return self._native.held > 0 or self._stream.busy("looking after a queue")
        except XpuShareError:
            return False

    def release(self) -> None:
        if self.drop_user is not None and not self.drop_user():
            return
        if self._adopted and not (self._watched or self._marks or self._kept or self._waits):
            return  # nothing was queued on the other library's stream, so nothing has to end
        self._released = True
        try:
            if not self.look_after():  # usually the work has finished by now
                return
        except XpuShareError:
            pass  # the watch meets the same error, and logs it
        self._watched = True
        self._engine.watch.add(self)

    def _end(self) -> None:
        """Return the stream and its marks for reuse, or destroy them, now that the work has finished. The stream is
        destroyed in the background, because the driver may wait for other streams first, and such a stream may be
        waiting for the caller's next signal.
        """
        marks = [each.mark for each in self._marks]
        self._marks.clear()
        if self._adopted or self._broken is not None or not self._engine.spare_streams.give(self._stream, marks):
            self._engine.teardown.submit(self._device, self._stream.destroy, marks, drained=False)


@dataclass(slots=True)
class _Mark:
    """A mark of the stream, which tells when the stream has reached that place. `place` is the mark's place in the
    queue, or 0 if the queue never holds operations back. The mark is valid once it has been passed to the driver.
    """

    mark: Any
    place: int


class _Signal(NamedTuple):
    """A signal that was queued. This object does not keep the event of the signal alive."""

    slot: ref[Slot]
    point: int

    def pending(self) -> bool:
        slot = self.slot()
        try:
            return slot is not None and slot.state(self.point) == PENDING
        except ValueError:
            return False  # the event has been closed here


class _Wait(NamedTuple):
    """A wait for `point` of the event in `slot`, with the state of the queue before the wait: how many operations with
    operands have ever been queued (`kept`), the last signal that `DeviceQueue` has queued (`signalled`), and the last
    signal that native code has queued on its own (`own`).
    """

    slot: Slot
    point: int
    kept: int
    signalled: _Signal | None
    own: _Signal | None


@final
class AdoptedQueues:
    """The queues over other libraries' streams. Each stream has only one queue, so that all signals on the stream come
    from one signaller.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.RLock()  # re-entrant, since a finaliser may release a queue at any moment
        self._used: dict[Hashable, tuple[DeviceQueue, int]] = {}  # identity of a stream -> queue, users

    def queue(self, identity: Hashable | None, stream: Stream, lasting: bool = False) -> DeviceQueue:
        """Return the queue over a stream. The caller has to call `release` once for each call of this method.
        `identity` distinguishes the stream from a later stream with the same handle. `identity` is None if the driver
        cannot be asked now. `lasting` means that the stream, and with it the queue, lives as long as the process.
        """
        if identity is None:
            return DeviceQueue(self._engine, stream)
        with self._lock:
            found, users = self._used.get(identity, (None, int(lasting)))
            if found is None:
                found = DeviceQueue(self._engine, stream)
                found.drop_user = functools.partial(self._drop_user, identity)
                found.lasting = lasting
            self._used[identity] = found, users + 1
            return found

    def _drop_user(self, identity: Hashable) -> bool:
        with self._lock:
            found, users = self._used.pop(identity)
            if users > 1:
                self._used[identity] = found, users - 1
            return users == 1


class _Dropped:
    """Calls `hook` when the last reference to this object goes away."""

    def __init__(self, hook: Callable[..., object], *arguments: object) -> None:
        self._hook = hook
        self._arguments = arguments

    def __del__(self) -> None:
        self._hook(*self._arguments)


def _holds_device(slot: Slot, point: int) -> bool:
    """Return whether a device that waits for the point is still waiting. A device that waits for a lost point goes on
    waiting until the value of the event reaches the point.
    """
    state = slot.state(point)
    return state == PENDING or (state == LOST and load64(slot.address) < point)


def _waits(queue: ref[DeviceQueue], wait: _Wait) -> bool:
    found = queue()
    return found is not None and found.still_waits(wait)  # a queue that is gone waits for nothing


def _owes(slot: Slot) -> bool:
    try:
        return slot.owes()
    except ValueError:
        return False  # the event has been closed here


def _capturing() -> InvalidArgumentError:
    return InvalidArgumentError(
        "the stream is being captured into a graph: signals, waits and copies of this package cannot be part of one"
    )
