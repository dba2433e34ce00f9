"""Each call of the library fails in turn: an error of this package, nothing left behind, and the next try works."""

from __future__ import annotations

import contextlib
import gc
import time

import pytest
from forwarding import library

import xpushare as xs
from harness import Child

DEVICE = "hip:0"
NBYTES = 1 << 16
# What gives back: where the library refuses that, the object stays. And what only tells, or has no way to fail.
GIVE_BACK = {
    "hipFree",
    "hipIpcCloseMemHandle",
    "hipHostUnregister",
    "hipMemRelease",
    "hipMemAddressFree",
    "hipMemUnmap",
    "hipEventDestroy",
    "hipStreamDestroy",
}
FAILS = {"plain": 30, "amd": 25}  # functions, at least


def use(memory: str, event: str, physical: str | None) -> None:
    """All that the package offers, of this process and of the peer whose handles these are."""
    with contextlib.ExitStack() as stack:
        queue = stack.enter_context(xs.Queue(DEVICE))
        mine = stack.enter_context(xs.malloc_device(NBYTES, DEVICE))
        host = stack.enter_context(xs.malloc_host(NBYTES, DEVICE))
        stack.enter_context(xs.malloc_shared(NBYTES, DEVICE))
        handle = xs.ipc.memory.get(mine)
        stack.callback(xs.ipc.memory.put, handle)
        own = stack.enter_context(xs.Event(DEVICE, enable_ipc=True))
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
            unit = xs.Device(DEVICE).memory_granularity()
            pages = stack.enter_context(xs.PhysicalMemory(unit, DEVICE, enable_ipc=True))
            other = stack.enter_context(xs.ipc.physical_memory.open(physical))
            with xs.VirtualRange(2 * unit, DEVICE) as addresses:
                addresses.map(pages)
                addresses.map(other, at=unit)
                addresses.unmap(0, unit)
                addresses.unmap(unit, unit)
            shared = xs.ipc.physical_memory.get(pages)
            stack.callback(xs.ipc.physical_memory.put, shared)


def used(*handles: str | None) -> tuple[dict[str, int], dict[str, int]]:
    """What stays for good after good use, and which functions were called."""
    use(*handles)  # type: ignore[arg-type]
    calls = library().calls()
    last, since = library().left(), time.monotonic()
    while time.monotonic() - since < 1:  # threads free what was closed, a moment later
        gc.collect()
        time.sleep(0.02)
        if (now := library().left()) != last:
            last, since = now, time.monotonic()
    return last, calls


def failing(function: str, good: dict[str, int], *handles: str | None) -> tuple[dict[str, int], list[str]]:
    """What is left in excess of `good` after use whose calls of one function fail, and good use; and the errors."""
    errors: list[str] = []
    for nth in (1, 2):
        library().fail(function, nth, 801)
        try:
            use(*handles)  # type: ignore[arg-type]
        except (xs.XpuShareError, TimeoutError) as error:
            errors.append(type(error).__name__)
    library().reset()
    with contextlib.suppress(xs.FeatureNotSupportedError):  # decided by the call that failed, for good
        use(*handles)  # type: ignore[arg-type]
    end = time.monotonic() + 5
    while (
        excess := {kind: number for kind, number in library().left().items() if number > good.get(kind, 0)}
    ) and time.monotonic() < end:
        gc.collect()
        time.sleep(0.02)
    return excess, errors


@pytest.mark.timeout(600)
def test_each_call_fails_in_turn() -> None:
    wrong: dict[str, str] = {}
    errors = 0
    virtual = xs.Device(DEVICE).has("ext_oneapi_virtual_mem")
    with contextlib.ExitStack() as stack:
        memory = stack.enter_context(xs.malloc_device(NBYTES, DEVICE))
        event = stack.enter_context(xs.Event(DEVICE, enable_ipc=True))
        held = [xs.ipc.memory.get(memory), xs.ipc.event.get(event)]
        stack.callback(xs.ipc.memory.put, held[0])
        stack.callback(xs.ipc.event.put, held[1])
        if virtual:
            unit = xs.Device(DEVICE).memory_granularity()
            pages = stack.enter_context(xs.PhysicalMemory(unit, DEVICE, enable_ipc=True))
            held.append(xs.ipc.physical_memory.get(pages))
            stack.callback(xs.ipc.physical_memory.put, held[2])
        texts = [*map(str, held), *([] if virtual else [None])]
        with Child() as child:
            good, called = child.call(used, *texts)
        assert len(called) > FAILS["plain" if virtual else "amd"]
        for function in sorted(called.keys() - GIVE_BACK):
            with Child() as child:
                excess, raised = child.call(failing, function, good, *texts)
            errors += len(raised)
            if excess:
                wrong[function] = f"{excess}, after {raised}"
    print(f"{len(called)} functions, {errors} errors; what stays for good: {good}")
    assert not wrong, "\n".join(f"{function}: {what}" for function, what in wrong.items())
