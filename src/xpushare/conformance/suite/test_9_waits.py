"""Section 9: no wait takes CPU time. `_WAITS` lists every way to wait that the package has."""

# pyright: basic

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import inspect
import secrets
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import xpushare as xs
from xpushare.conformance import actions
from xpushare.conformance.actions import Held
from xpushare.conformance.harness import TIMEOUT, Child, kept, wait_until
from xpushare.conformance.plugin import Pair
from xpushare.conformance.rules import rule

_SECONDS: Final = 1.0  # of one measurement
_SHARE: Final = 0.005  # of a CPU, for one wait
_DEVICE_SHARE: Final = 0.02  # the same while a signal is pending that only a device completes
_PROTOCOLS: Final = ("__await__", "__anext__", "__aenter__", "__next__")  # methods that wait


class _Things:
    """The objects that the waits below wait for. Nothing happens to any of them."""

    def __init__(self, device: str, name: str) -> None:
        self.name = name
        self.event = xs.Event(device, enable_ipc=True)
        self.lost = kept["lost"]  # an event whose next signal is going to be lost
        self.held = Held(device)
        self.queued = xs.Event(device, enable_ipc=True)
        self.held.queue.signal(self.queued)
        self.lock, self.locked = xs.Lock(), xs.Lock(f"{name}-lock")  # the peer holds the second one
        self.lock.acquire()
        self.number = xs.Atomic(0)
        self.writer = xs.Channel.create(f"{name}-empty", 8, "u1", device=device)
        self.left = [xs.Channel.open(f"{name}-left", reconnect=True) for _ in range(2)]  # the writer is going to die
        self.full = xs.Channel.create(f"{name}-full", 8, "u1", device=device, slots=3)
        self.unread = xs.Channel.open(f"{name}-full")
        while actions.attempt(self.full.send, bytes(8), None, 0) != "TimeoutError":
            pass

    def reader(self) -> xs.Channel:
        return xs.Channel.open(f"{self.name}-empty", timeout=0)

    def watch(self) -> Any:
        """Return a watch whose newest version was seen already. The peer has published it."""
        watch = xs.watch(f"{self.name}-there", timeout=TIMEOUT, lost=True)
        watch.next(0)
        return watch


async def _first(iterable: Any) -> None:
    async for _ in iterable:
        return


async def _next_signal(event: xs.Event) -> None:
    await event


# Every public call that waits, and how to make it wait. The text after a comma tells apart several ways. "device"
# means that only a device completes the signal that the call waits for. Each wait runs in a thread of its own.
_WAITS: Final[dict[str, Callable[[_Things], object]]] = {
    "Event.wait, at_least": lambda t: t.event.wait(TIMEOUT, at_least=1),
    "Event.wait, device": lambda t: t.queued.wait(TIMEOUT),
    "Event.recovered": lambda t: t.lost.recovered(TIMEOUT),
    "Queue.synchronize, device": lambda t: t.held.queue.synchronize(TIMEOUT),
    "wait_any, event": lambda t: xs.wait_any([(t.event, 1)], TIMEOUT),
    "wait_any, device": lambda t: xs.wait_any([t.queued], TIMEOUT),
    "wait_any, channel": lambda t: xs.wait_any([t.reader()], TIMEOUT),
    "wait_any, channel without a writer": lambda t: xs.wait_any([t.left[0]], TIMEOUT),
    "wait_any, watch": lambda t: xs.wait_any([t.watch()], TIMEOUT),
    "wait_any, several": lambda t: xs.wait_any([(t.event, 1), t.watch(), t.reader()], TIMEOUT),
    "lookup": lambda t: xs.lookup(t.name, timeout=TIMEOUT),
    "lookup, version": lambda t: xs.lookup(f"{t.name}-there", timeout=TIMEOUT, version=1 << 60),
    "watch": lambda t: next(xs.watch(t.name, timeout=TIMEOUT)),
    "Watch.next": lambda t: t.watch().next(),
    "Watch.__next__": lambda t: next(t.watch()),
    "Channel.open": lambda t: xs.Channel.open(f"{t.name}-nobody", timeout=TIMEOUT),
    "Channel.receive": lambda t: t.reader().receive(TIMEOUT),
    "Channel.receive, without a writer": lambda t: t.left[1].receive(TIMEOUT),
    "Channel.__iter__": lambda t: next(iter(t.reader())),
    "Channel.loan": lambda t: t.full.loan(TIMEOUT).__enter__(),
    "Channel.send": lambda t: t.full.send(bytes(8), timeout=TIMEOUT),
    "Lock.acquire": lambda t: t.lock.acquire(TIMEOUT),
    "Lock.acquire, of another process": lambda t: t.locked.acquire(TIMEOUT),
    "Lock.__enter__": lambda t: t.lock.__enter__(),
    "Atomic.wait": lambda t: t.number.wait(0, TIMEOUT),
}
# The same for waits in an event loop, once for each kind of event loop.
_ASYNC_WAITS: Final[dict[str, Callable[[_Things], Awaitable[object]]]] = {
    "Event.__await__, device": lambda t: _next_signal(t.queued),
    "Event.reached": lambda t: t.event.reached(1),
    "Event.recovered, awaited": lambda t: t.lost.recovered(),
    "any_of, event": lambda t: xs.any_of([(t.event, 1)]),
    "any_of, several": lambda t: xs.any_of([(t.event, 1), t.watch(), t.reader()]),
    "Watch.__anext__": lambda t: _first(t.watch()),
    "Lock.__aenter__": lambda t: t.locked.__aenter__(),
    "Channel.__aiter__": lambda t: _first(t.reader()),
}


async def _begun(begin: Callable[[], Awaitable[object]]) -> None:
    await begin()


def _in_trio(begin: Callable[[], Awaitable[object]]) -> None:
    import trio

    trio.run(_begun, begin)


def _in_asyncio(begin: Callable[[], Awaitable[object]]) -> None:
    asyncio.run(_begun(begin))


class _Wait(threading.Thread):
    """One wait, in a thread of its own."""

    def __init__(self, name: str, wait: Callable[[], object]) -> None:
        super().__init__(name=name, daemon=True)
        self._wait = wait
        self._clock: int | None = None
        self.outcome = ""
        self.allowed = _DEVICE_SHARE if "device" in name else _SHARE

    def run(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        try:
            self.outcome = f"{self.name} has returned {self._wait()!r}"
        except BaseException as error:
            self.outcome = f"{self.name} has raised {error!r}"

    def seconds(self) -> float | None:
        """Return how much CPU time the thread has used. Return None if it has not begun or has ended."""
        try:
            return None if self._clock is None else time.clock_gettime(self._clock)
        except OSError:
            return None


def _started(things: _Things) -> list[_Wait]:
    waits = [_Wait(name, functools.partial(wait, things)) for name, wait in _WAITS.items()]
    loops = {"asyncio": _in_asyncio, **({"trio": _in_trio} if importlib.util.find_spec("trio") else {})}
    waits += [
        _Wait(f"{name}, {loop}", functools.partial(run, functools.partial(wait, things)))
        for loop, run in loops.items()
        for name, wait in _ASYNC_WAITS.items()
    ]
    for wait in waits:
        wait.start()
    wait_until(lambda: all(wait.seconds() is not None or wait.outcome for wait in waits), "all waits")
    return waits


def _measured(waits: list[_Wait]) -> dict[str, float]:
    """Measure for a while how much of a CPU each of the waits takes. Return those that take more than they may."""
    began, whole, before = time.monotonic(), time.process_time(), [wait.seconds() or 0.0 for wait in waits]
    time.sleep(_SECONDS)
    after, whole = [wait.seconds() or 0.0 for wait in waits], time.process_time() - whole
    took = time.monotonic() - began
    ended = [wait.outcome for wait in waits if wait.outcome]
    assert not ended, f"these did not wait: {ended}"
    shares = [(b - a) / took for a, b in zip(before, after, strict=True)]
    found = {wait.name: share for wait, share in zip(waits, shares, strict=True) if share > wait.allowed}
    package = whole / took - sum(shares)
    return {**found, "the package's own threads": package} if package > _DEVICE_SHARE else found


def _busy() -> dict[str, float]:
    """Start every wait, and measure until none takes more CPU time than it may. Return those that always do."""
    things = kept["things"]
    assert actions.attempt(things.lost.wait, TIMEOUT, at_least=1) == "PeerLostError"
    waits = _started(things)
    end = time.monotonic() + TIMEOUT / 2
    while (found := _measured(waits)) and time.monotonic() < end:
        pass
    return found


def _make(device: str, name: str) -> None:
    kept["things"] = _Things(device, name)


def _export_lost(device: str) -> str:
    kept["lost"] = xs.Event(device, enable_ipc=True)
    return str(xs.ipc.event.get(kept["lost"]))


def _publish_and_lock(name: str) -> None:
    kept["there"], kept["lock"] = xs.zeros(3), xs.Lock(f"{name}-lock")
    xs.publish(f"{name}-there", kept["there"])
    kept["lock"].acquire()


def _write(name: str) -> None:
    kept["left"] = xs.Channel.create(f"{name}-left", 8, "u1")


@rule("9.1")
def test_waits_take_no_cpu_time(pair: Pair) -> None:
    name = f"conformance-{secrets.token_hex(8)}"
    with Child() as waiter, Child() as writer, Child() as peer:
        handle = waiter.call(_export_lost, pair.exporter)
        writer.call(actions.open_, "event", "event", handle, pair.importer, signals=True)
        writer.call(_write, name)
        peer.call(_publish_and_lock, name)
        waiter.call(_make, pair.exporter, name)
        writer.kill()
        assert waiter.call(_busy) == {}
        waiter.kill()  # with its waits


def _public_waits() -> set[str]:
    """Return the public functions and methods that may wait, as far as their signatures show it."""
    found: set[str] = set()
    watch = type(xs.watch("conformance"))
    things = {each: getattr(xs, each) for each in xs.__all__ if not each.startswith("_")}
    for name, thing in {**things, watch.__name__: watch}.items():
        calls = {name: thing} if inspect.isroutine(thing) else {}
        if inspect.isclass(thing):
            calls = {f"{name}.{each}": getattr(thing, each) for each in dir(thing)}
        for call, function in calls.items():
            last = call.rpartition(".")[2]
            if last in _PROTOCOLS:
                found.add(call)
            elif callable(function) and not last.startswith("_"):
                with contextlib.suppress(TypeError, ValueError):  # it has no signature
                    if "timeout" in inspect.signature(function).parameters or inspect.iscoroutinefunction(function):
                        found.add(call)
    return found


@rule("9.1")
def test_every_wait_is_measured(pair: Pair) -> None:  # noqa: ARG001
    measured = {name.partition(",")[0] for name in (*_WAITS, *_ASYNC_WAITS)}
    assert _public_waits() <= measured
