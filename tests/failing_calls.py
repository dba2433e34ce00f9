"""Each call of a driver fails in turn: an error of this package, nothing left behind, and the next try works."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Mapping, Set
from typing import Any, Protocol

import xpushare as xs
from harness import Child

__all__ = ["Books", "each_call_fails"]

NBYTES = 1 << 16


class Books(Protocol):
    """A driver's books, and its script, in one process."""

    def left(self) -> dict[str, int]: ...  # how many there are of each kind
    def calls(self) -> dict[str, int]: ...  # how often each function was called
    def fail(self, function: str, nth: int) -> object: ...
    def reset(self) -> object: ...


def _use(device: str, memory: str, event: str, physical: str | None) -> None:
    """All that the package offers, of this process and of the peer whose handles these are."""
    with contextlib.ExitStack() as stack:
        queue = stack.enter_context(xs.Queue(device))
        mine = stack.enter_context(xs.malloc_device(NBYTES, device))
        host = stack.enter_context(xs.malloc_host(NBYTES, device))
        stack.enter_context(xs.malloc_shared(NBYTES, device))
        handle = xs.ipc.memory.get(mine)
        stack.callback(xs.ipc.memory.put, handle)
        own = stack.enter_context(xs.Event(device, enable_ipc=True))
        theirs = stack.enter_context(xs.ipc.event.open(event))
        opened = stack.enter_context(xs.ipc.memory.open(memory))
        queue.fill(mine, b"\x07")
        queue.copy(host, opened)
        queue.copy(opened, mine)
        queue.signal(own)
        queue.signal(theirs)
        queue.wait(own)
        queue.synchronize(10)
        if physical is not None:
            unit = xs.Device(device).memory_granularity()
            pages = stack.enter_context(xs.PhysicalMemory(unit, device, enable_ipc=True))
            other = stack.enter_context(xs.ipc.physical_memory.open(physical))
            with xs.VirtualRange(2 * unit, device) as addresses:
                addresses.map(pages)
                addresses.map(other, at=unit)
                addresses.unmap(0, unit)
                addresses.unmap(unit, unit)
            shared = xs.ipc.physical_memory.get(pages)
            stack.callback(xs.ipc.physical_memory.put, shared)


def _used(books: Callable[[], Books], *what: Any) -> tuple[dict[str, int], dict[str, int]]:
    """What stays for good after good use, and which functions were called."""
    _use(*what)
    calls = books().calls()
    last, since = books().left(), time.monotonic()
    while time.monotonic() - since < 1:  # threads free what was closed, a moment later
        gc.collect()
        time.sleep(0.02)
        if (now := books().left()) != last:
            last, since = now, time.monotonic()
    return last, calls


def _failing(
    books: Callable[[], Books], function: str, good: dict[str, int], *what: Any
) -> tuple[dict[str, int], list[str]]:
    """What is left in excess of `good` after use whose calls of one function fail, and good use; and the errors."""
    errors: list[str] = []
    for nth in (1, 2):
        books().fail(function, nth)
        try:
            _use(*what)
        except (xs.XpuShareError, TimeoutError) as error:
            errors.append(type(error).__name__)
    books().reset()
    with contextlib.suppress(xs.FeatureNotSupportedError):  # decided by the call that failed, for good
        _use(*what)
    end = time.monotonic() + 5
    while (
        excess := {kind: number for kind, number in books().left().items() if number > good.get(kind, 0)}
    ) and time.monotonic() < end:
        gc.collect()
        time.sleep(0.02)
    return excess, errors


def each_call_fails(
    device: str, books: Callable[[], Books], give_back: Set[str], least: int, allowed: Mapping[str, int] | None = None
) -> None:
    """Fail the first and the second call of every function that good use of a device calls, but for those of
    `give_back`, in a process each. Good use calls more than `least` functions. `allowed` may be left besides what stays
    for good after good use.
    """
    wrong: dict[str, str] = {}
    errors = 0
    with contextlib.ExitStack() as stack:
        memory = stack.enter_context(xs.malloc_device(NBYTES, device))
        event = stack.enter_context(xs.Event(device, enable_ipc=True))
        held = [xs.ipc.memory.get(memory), xs.ipc.event.get(event)]
        stack.callback(xs.ipc.memory.put, held[0])
        stack.callback(xs.ipc.event.put, held[1])
        physical = None
        if xs.Device(device).has("ext_oneapi_virtual_mem"):
            unit = xs.Device(device).memory_granularity()
            pages = stack.enter_context(xs.PhysicalMemory(unit, device, enable_ipc=True))
            handle = xs.ipc.physical_memory.get(pages)
            stack.callback(xs.ipc.physical_memory.put, handle)
            physical = str(handle)
        what = device, *map(str, held), physical
        with Child() as child:
            good, called = child.call(_used, books, *what)
        assert len(called) > least
        good |= allowed or {}
        for function in sorted(called.keys() - give_back):
            with Child() as child:
                excess, raised = child.call(_failing, books, function, good, *what)
            errors += len(raised)
            if excess:
                wrong[function] = f"{excess}, after {raised}"
    print(f"{len(called)} functions, {errors} errors; what stays for good: {good}")
    assert errors, "no call that failed was told"
    assert not wrong, "\n".join(f"{function}: {what}" for function, what in wrong.items())
