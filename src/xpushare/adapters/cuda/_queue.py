"""Queues: CUDA streams, ours or another library's, and native CUDA events."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from xpushare._errors import DeviceError, FeatureNotSupportedError, InvalidArgumentError, XpuShareError
from xpushare._native import CAPTURED, LOST, PENDING, Slot, Span, StreamQueue
from xpushare.adapters._host_queue import queue_numbers
from xpushare.adapters.base import DriverQueue, Profile
from xpushare.adapters.cuda import _numbers as n
from xpushare.adapters.cuda._driver import Context, struct_bytes
from xpushare.adapters.cuda._events import Words
from xpushare.adapters.cuda._later import Later, Watch, holds
from xpushare.adapters.cuda._memory import HostUsm
from xpushare.adapters.cuda._numbers import CAPTURE_ERRORS, Error
from xpushare.timeline.loss import note_failure, peer_lost

__all__ = ["CudaQueue", "NativeEvent", "Streams"]

_QUEUE_FAILED: Final = 2  # cause in docs/events-protocol.md
# What no later call undoes: ECC, NVLink and contained errors, kernels that failed, a context that is gone, "unknown".
_FATAL: Final = frozenset({4, 214, 220, 226, 304, 700, 702, 709, 710, *range(714, 722), 999})
_WAITS_KEPT: Final = 64  # waits remembered before the settled ones are sorted out
_PATTERN_MAX: Final = 64  # bytes of a pattern that is written word by word
_SPIN: Final = 100e-6  # seconds of asking the driver again and again before sleeping
_NAP_FIRST: Final = 20e-6
_NAP_MAX: Final = 1e-3


@final
class NativeEvent:
    """A CUDA event that other processes can open by `handle` (cudaIpcOpenEventHandle)."""

    def __init__(self, context: Context, event: Any, handle: bytes) -> None:
        self._context = context
        self._event = event
        self.handle = handle

    def release(self) -> None:
        with self._context.current():
            self._context.driver("destroying an IPC event", "cuEventDestroy", self._event)


@final
class CudaQueue(DriverQueue):
    """A stream. What it owes (points) and holds (operands) is looked after by the adapter's watch until it is settled.

    Stream calls need no current context (measured), except on the default streams, which are the current context's.
    """

    def __init__(self, context: Context, words: Words, later: Later, watch: Watch, stream: Any, owner: object) -> None:
        self.number = next(queue_numbers)
        self._context = context
        self._driver = context.driver
        self._words = words
        self._calm = later.calm
        self._watch = watch
        self._later = later
        self._stream = stream
        self._owner = owner  # of an adopted stream; None for our own
        self._native = context.driver.stream_queue(self.number, int(stream), owner is not None)
        self._default = owner is not None and int(stream) in (0, n.LEGACY_STREAM, n.PER_THREAD_STREAM)
        # Points are submitted in the order in which they are queued. A full stream blocks whoever queues more.
        self._order = threading.Lock()
        # Around a signal or a wait; those on a default stream go to the current context's.
        self._turn: Any = _Turn(self._order, context) if self._default else self._order
        self._state = threading.RLock()  # what follows; never held while anything blocks
        self._events: list[Any] = []  # to be used again
        self._kept: deque[tuple[Any, object]] = deque()  # (event after the operation, what it uses)
        self._waits: deque[tuple[Slot, int]] = deque()
        self._sort_at = _WAITS_KEPT
        self._owed: dict[int, Slot] = {}  # by id; added to and taken from with `_order`
        self._failures: deque[BaseException] = deque()
        self._broken: DeviceError | None = None
        self._watched = False
        self._released = False
        self.let_go: Callable[[], bool] | None = None  # of a queue that has several users: whether this was the last
        later.mind(self)

    @classmethod
    def create(cls, context: Context, words: Words, later: Later, watch: Watch) -> CudaQueue:
        with context.current():
            stream = context.driver("making a queue", "cuStreamCreate", n.STREAM_NON_BLOCKING)
        return cls(context, words, later, watch, stream, None)

    # --- queueing ------------------------------------------------------------------------------------------

    def _call(self, doing: str, name: str, *arguments: Any) -> None:
        """A call that queues something; a failure of the device breaks the queue."""
        code = int(getattr(self._driver.api, name)(*arguments)[0])
        if code:
            raise self._failed(doing, name, code)

    def _failed(self, doing: str, name: str, code: int) -> BaseException:
        """The error for a code; what no later call will undo loses the points that are owed."""
        if code in CAPTURE_ERRORS:
            return _capturing()
        error = self._driver.error(doing, name, code)
        if isinstance(error, DeviceError) and code in _FATAL:
            self._break(error)
        return error

    def _break(self, error: DeviceError) -> None:
        """The context is gone: what this queue owes is lost."""
        with self._state:
            if self._broken is None:
                self._broken = error
            owed, self._owed = list(self._owed.values()), {}
        for slot in owed:
            try:
                self._note(slot, error)
                slot.fail(_QUEUE_FAILED)
            except ValueError:
                pass  # the event was closed here: nobody can be told through it

    def _note(self, slot: Slot, error: BaseException) -> None:
        domain = self._words.domain(slot)
        if domain is not None:
            note_failure(domain, error)

    def _check(self) -> None:
        """Refuse what cannot be queued: on a broken context, or while somebody captures the stream."""
        if self._broken is not None:
            raise self._broken
        if self._owner is not None:  # nobody else has our own stream: it is in no capture
            self._expect_open(self._native.check())

    def _expect_open(self, code: int) -> None:
        if code:
            raise (
                _capturing() if code == CAPTURED else self._failed("looking for a capture", "cuStreamIsCapturing", code)
            )

    def _event(self, doing: str) -> Any:
        """An event recorded now. With the context current."""
        with self._state:
            event = self._events.pop() if self._events else None
        if event is None:
            event = self._driver(doing, "cuEventCreate", n.EVENT_DISABLE_TIMING)
        try:
            self._call(doing, "cuEventRecord", event, self._stream)
        except BaseException:
            self._give_back(event)
            raise
        return event

    def _give_back(self, event: Any) -> None:
        with self._state:
            self._events.append(event)

    def _look_after(self) -> None:
        if not self._watched:
            self._watched = True
            self._watch.add(self)

    def _operate(self, doing: str, calls: Sequence[tuple[Any, ...]], keep: object) -> None:
        """Queue calls and hold `keep` until they have finished."""
        with self._order, self._context.current():
            self._check()
            self._reap()
            try:
                for name, *arguments in calls:
                    self._call(doing, name, *arguments, self._stream)
            finally:  # also what was queued before a failure uses the operands
                event = self._event(doing)
                with self._state:
                    self._kept.append((event, keep))
        self._look_after()

    def _reach(self, *operands: tuple[int, int]) -> None:
        """Let this queue's device use the mappings of the operands: (address, bytes)."""
        if len(self._driver.gpus()) > 1:
            with self._context.current():
                for address, nbytes in operands:
                    self._driver.reach.ensure(self._context.gpu, address, nbytes)

    def copy(self, dst: int, src: int, nbytes: int, keep: object) -> None:
        self._reach((dst, nbytes), (src, nbytes))
        self._operate(f"copying {nbytes} bytes", [("cuMemcpyAsync", dst, src, nbytes)], keep)

    def fill(self, dst: int, pattern: bytes, nbytes: int, keep: object) -> None:
        self._reach((dst, nbytes))
        calls, staging = self._fill_calls(dst, pattern, nbytes)
        self._operate(f"filling {nbytes} bytes", calls, (keep, staging))

    def _fill_calls(self, dst: int, pattern: bytes, nbytes: int) -> tuple[list[tuple[Any, ...]], _Staging | None]:
        """The driver calls that fill, and host memory that they read."""
        unit = len(pattern)
        if len(set(pattern)) == 1:
            return [("cuMemsetD8Async", dst, pattern[0], nbytes)], None
        for size, name in ((2, "cuMemsetD16Async"), (4, "cuMemsetD32Async")):
            if unit == size and dst % size == 0:
                return [(name, dst, int.from_bytes(pattern, "little"), nbytes // size)], None
        # Write the pattern once, then copy what is there behind itself.
        calls: list[tuple[Any, ...]] = []
        staging = None
        if unit > _PATTERN_MAX:
            staging = _Staging(HostUsm.allocate(self._context.gpu, self._later, unit), pattern)
            calls.append(("cuMemcpyAsync", dst, staging.address, unit))
        elif unit % 4 == 0 and dst % 4 == 0:
            words = memoryview(pattern).cast("I")
            calls += [("cuMemsetD32Async", dst + 4 * i, word, 1) for i, word in enumerate(words)]
        else:
            calls += [("cuMemsetD8Async", dst + i, byte, 1) for i, byte in enumerate(pattern)]
        done = unit
        while done < nbytes:
            part = min(done, nbytes - done)
            calls.append(("cuMemcpyAsync", dst + done, dst, part))
            done += part
        return calls, staging

    def call(self, function: Callable[[], object]) -> None:
        raise FeatureNotSupportedError(
            "a queue of a GPU runs no Python functions: wait for the event that it signals, or use a native_cpu queue"
        )

    def signal(self, slot: Slot, profile: Profile | None) -> int:
        if profile is not None:
            raise FeatureNotSupportedError("events of this device are not profiled: Event(enable_profiling=False)")
        word = self._words.address(self._context.gpu, slot)
        with self._turn:
            if self._broken is not None:
                raise self._broken
            point, after, code = self._native.signal(slot, word)
            if not point:
                self._expect_open(code)
            self._owed[id(slot)] = slot
            if after or code or self._broken is not None:
                self._finish_signal(slot, word, point, after, code)
        if not self._watched:
            self._look_after()
        return point

    def _finish_signal(self, slot: Slot, word: int, point: int, after: int, code: int) -> None:
        """The completion of a point that was submitted while another signaller's, `after`, was pending; and what went
        wrong.
        """
        try:
            if after and not code:
                self._wait(slot, word, after)
                code = self._native.finish(slot, point)
            if code:
                raise self._failed("signalling", "cuLaunchHostFunc" if after else "cuStreamWriteValue64", code)
            if self._broken is not None:  # since before it was known what this queue owes
                raise self._broken
        except BaseException as error:
            self._note(slot, error)
            slot.fail(_QUEUE_FAILED)  # it was submitted, and will not come
            raise

    def _wait(self, slot: Slot, word: int, point: int) -> None:
        with self._calm:
            code = self._native.wait(slot, word, point)
            if code:
                raise self._failed("waiting", "cuStreamWaitValue64", code)
            self._waits.append((slot, point))
        if len(self._waits) > self._sort_at:
            self._sort_waits()
            self._sort_at = max(_WAITS_KEPT, 2 * len(self._waits))

    def wait(self, slot: Slot, point: int) -> None:
        word = self._words.address(self._context.gpu, slot)
        with self._turn:
            if self._owner is not None or self._broken is not None:
                self._check()
            state = slot.state(point)
            if state == PENDING:
                try:
                    self._wait(slot, word, point)
                except ValueError as error:
                    raise InvalidArgumentError(str(error)) from None
            elif state == LOST:
                with self._state:
                    self._failures.append(peer_lost(slot, point))

    def _sort_waits(self, passed: bool = False) -> None:
        """Turn the waits that were lost into failures, one a slot, and forget those that are settled. A lost one holds
        its event until the device was let go, as it is known to be where the stream has `passed` it.
        """
        with self._state:
            lost: set[int] = set()
            for _ in range(len(self._waits)):  # what is added meanwhile comes behind
                slot, point = self._waits.popleft()
                try:
                    state = slot.state(point)
                    waiting = holds(slot, point)
                except ValueError:
                    continue  # the event was closed here: its state cannot be known any more
                released = slot.released(point)
                if state == PENDING or (waiting and not released and not passed):
                    self._waits.append((slot, point))
                elif (released or state == LOST) and id(slot) not in lost:
                    lost.add(id(slot))
                    self._failures.append(peer_lost(slot, point))

    def waits(self) -> list[tuple[Slot, int]]:
        """The points that this queue waits for now."""
        self._sort_waits()
        with self._state:
            return list(self._waits.copy())

    def settle(self) -> None:
        """Let go of the operands of finished operations; on a broken context there is nothing to ask."""
        if self._broken is None and self._kept:
            with self._context.current(), self._driver.relaxed():
                self._reap()

    def wait_native(self, event: int, keep: object) -> None:
        """Work queued later starts when another library's CUDA event has completed."""
        doing = "waiting for a CUDA event"
        with self._order, self._context.current():
            self._check()
            self._reap()
            self._call(doing, "cuStreamWaitEvent", self._stream, event, 0)
            mark = self._event(doing)
            with self._state:
                self._kept.append((mark, keep))
        self._look_after()

    def record_native(self) -> NativeEvent:
        """A CUDA IPC event that completes when the work queued before has finished."""
        doing = "recording an IPC event"
        driver = self._driver
        with self._order, self._context.current():
            self._check()
            event = driver(doing, "cuEventCreate", n.EVENT_DISABLE_TIMING | n.EVENT_INTERPROCESS)
            try:
                self._call(doing, "cuEventRecord", event, self._stream)
                return NativeEvent(self._context, event, struct_bytes(driver(doing, "cuIpcGetEventHandle", event)))
            except BaseException:
                driver.api.cuEventDestroy(event)
                raise

    # --- waiting and looking after -------------------------------------------------------------------------

    def _finished(self, event: Any) -> bool:
        """Whether what was queued before `event` has finished. With captures left alone."""
        code = int(self._driver.api.cuEventQuery(event)[0])
        if code in (0, Error.NOT_READY):
            return not code
        raise self._failed("asking for an event", "cuEventQuery", code)

    def _reap(self) -> None:
        """Let go of the operands of finished operations."""
        gone = []  # dropped outside the lock: their end may call us
        with self._state:
            while self._kept and self._finished(self._kept[0][0]):
                event, keep = self._kept.popleft()
                self._events.append(event)
                gone.append(keep)
        del gone

    def synchronize(self, timeout: float | None) -> None:
        start = time.monotonic()
        with self._order, self._context.current():
            self._check()
            event = self._event("synchronizing")
        try:
            nap = _NAP_FIRST
            while True:
                with self._driver.relaxed():
                    if self._finished(event):
                        break
                waited = time.monotonic() - start
                if timeout is not None and waited >= timeout:
                    raise TimeoutError(f"the queue has not finished within {timeout:g} s")
                if waited > _SPIN:  # in naps, so that Ctrl-C comes through
                    time.sleep(nap if timeout is None else min(nap, max(timeout - waited, 0.0)))
                    nap = min(nap * 1.25, _NAP_MAX)
            with self._driver.relaxed():
                self._reap()
        finally:
            self._give_back(event)  # recorded anew when it is used again
        self._sort_waits(True)
        if self._failures:
            raise self._failures.popleft()

    def idle(self) -> bool:
        if self._broken is not None:
            return True
        with self._context.current():
            self._check()
            code = int(self._driver.api.cuStreamQuery(self._stream)[0])
        if code in (0, Error.NOT_READY):
            return not code
        raise self._failed("asking for a stream", "cuStreamQuery", code)

    def tick(self) -> bool:
        """Look after what is owed and held; called by the watch. False when that is nothing."""
        self._sort_waits()
        if self._order.acquire(blocking=False):  # else somebody queues something: next time
            try:
                self._owed = {key: slot for key, slot in self._owed.items() if _owes(slot) or self._native.late(slot)}
                self._keep_late()
            finally:
                self._order.release()
        if self._broken is None and (self._kept or self._owed or self._released):
            with self._context.current():
                code = self._context.pulse()
                if code:
                    self._failed("looking after a queue", "cuStreamQuery", code)
                else:
                    self._reap()
        with self._state:
            if self._broken is not None:
                self._kept.clear()  # a dead context runs nothing any more
            busy = bool(self._kept or self._owed or (self._released and self._unfinished()))
            self._watched = busy
        if self._released and not busy:
            self._end()
        return busy

    def _keep_late(self) -> None:
        """Hold the events whose points were lost while the stream still had their stores, until these have come. With
        `_order`.
        """
        late = {key: slot for key, slot in self._owed.items() if not _owes(slot)}
        if not late or self._broken is not None or (self._owner is not None and self._native.check()):
            return
        try:
            with self._context.current():
                event = self._event("looking after a queue")
        except XpuShareError:
            return  # next time; a broken context has no stores to come
        with self._state:
            self._kept.append((event, _Late(self._native, list(late.values()))))
            for key in late:
                del self._owed[key]

    def _unfinished(self) -> bool:
        """Whether the stream still has work that needs this object: the events it waits for must not go before."""
        if self._broken is not None:
            return False
        if self._owner is not None:
            return bool(self._waits)
        with self._driver.relaxed():
            return int(self._driver.api.cuStreamQuery(self._stream)[0]) == Error.NOT_READY

    def release(self) -> None:
        if self.let_go is not None and not self.let_go():
            return
        if self._owner is not None and not (self._watched or self._events or self._kept or self._waits):
            return  # nothing was queued on the other library's stream: there is nothing to end
        self._released = True
        self._watched = True
        self._watch.add(self)

    def _end(self) -> None:
        """The work has finished: give the events and our own stream up."""
        self._released = False
        with self._context.current():
            for event in self._events:
                self._driver.api.cuEventDestroy(event)
            self._events.clear()
            if self._owner is None:
                self._driver.api.cuStreamDestroy(self._stream)  # on a dead context there is nothing to destroy
        self._owner = self


@final
class Streams:
    """The queues over other libraries' streams: one for each stream, so that what it signals is one signaller's."""

    def __init__(self, words: Words, later: Later, watch: Watch) -> None:
        self._parts = words, later, watch
        self._lock = threading.RLock()  # re-entrant: a finaliser may release a queue at any moment
        self._used: dict[tuple[int, int], tuple[CudaQueue, int]] = {}  # (context, 1 + id of the stream) -> queue, users

    def queue(self, context: Context, stream: Any, owner: object) -> CudaQueue:
        """The queue over a stream; every call has a `release` of its own."""
        default = int(stream) in (0, n.LEGACY_STREAM)
        number = 0  # of the default stream, which nobody can capture
        if not default:
            with context.current():
                code, status = context.driver.api.cuStreamIsCapturing(stream)[:2]
                if code or int(status):  # asking for its id would end the capture (measured)
                    return CudaQueue(context, *self._parts, stream, owner)
                # A handle is used again after its stream was destroyed, an id is not.
                number = 1 + int(context.driver("adopting a stream", "cuStreamGetId", stream))
        key = context.number, number
        with self._lock:
            found, users = self._used.get(key, (None, int(default)))  # the default stream's stays
            if found is None:
                found = CudaQueue(context, *self._parts, stream, self if default else owner)
                found.let_go = functools.partial(self._let_go, key)
            self._used[key] = found, users + 1
            return found

    def _let_go(self, key: tuple[int, int]) -> bool:
        with self._lock:
            found, users = self._used.pop(key)
            if users > 1:
                self._used[key] = found, users - 1
            return users == 1


@final
class _Turn:
    """A lock, and under it a context current."""

    __slots__ = ("_context", "_lock", "_scope")

    def __init__(self, lock: threading.Lock, context: Context) -> None:
        self._lock = lock
        self._context = context

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            self._scope = self._context.pushed()
            self._scope.__enter__()
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *_exc: object) -> None:
        self._scope.__exit__(None, None, None)
        self._lock.release()


class _Late:
    """Events that late stores may still go to."""

    def __init__(self, native: StreamQueue, slots: list[Slot]) -> None:
        self._native = native
        self._slots = slots

    def __del__(self) -> None:
        for slot in self._slots:
            self._native.landed(slot)


def _owes(slot: Slot) -> bool:
    try:
        return slot.owes()
    except ValueError:
        return False  # the event was closed here


class _Staging:
    """Host memory that a fill reads; given back with the last reference."""

    def __init__(self, memory: HostUsm, content: bytes) -> None:
        self._memory = memory
        self.address = memory.address
        memoryview(Span(memory.address, len(content), False, memory))[:] = content

    def __del__(self) -> None:
        self._memory.release()


def _capturing() -> InvalidArgumentError:
    return InvalidArgumentError(
        "the stream is being captured into a graph: signals, waits and copies of this package cannot be part of one"
    )
