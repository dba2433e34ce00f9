"""Every number that a public call takes: whatever it is, the call works, or raises an error of this package."""

from __future__ import annotations

import contextlib
import gc
import inspect
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import Child

DEVICE = "native_cpu:0"
GRANULE = xs.Device(DEVICE).memory_granularity()
NUMBERS: list[Any] = [
    0, 1, -1, 2**31, 2**32, 2**43, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**100, 10**5000,
    -(2**31), -(2**63), -(2**64), True, np.int64(-1),
    np.int64(1), np.uint64(2**64 - 1), np.float32(1.5), np.bool_(True), 0.5, 1e300, -0.5,
    float("nan"), float("inf"), -float("inf"), Decimal("1e5000"), Decimal("sNaN"), Fraction(1, 3), 1j, "1", b"1", [1],
    (), {}, np.array(3), np.array([1, 2]), object(),
]  # fmt: skip
REFUSALS = (xs.XpuShareError, TimeoutError)


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function, class and method, by its name, except records, which only calls return."""
    for name in xs.__all__:
        found = getattr(xs, name)
        if isinstance(found, types.ModuleType) or (
            inspect.isclass(found) and (issubclass(found, BaseException | str | tuple) or is_dataclass(found))
        ):
            continue
        if callable(found):
            yield name, found
        if inspect.isclass(found):
            for method in dir(found):
                if not method.startswith("_") and callable(getattr(found, method)):
                    yield f"{name}.{method}", getattr(found, method)
    for kind in ("memory", "physical_memory", "event"):
        for verb in ("get", "open", "close", "put"):
            if found := getattr(getattr(xs.ipc, kind), verb, None):
                yield f"ipc.{kind}.{verb}", found


def label(value: Any) -> str:
    return f"a number of {value.bit_length()} bits" if isinstance(value, int) else repr(value)


def numeric(call: Callable[..., Any]) -> list[str]:
    """The parameters that take a number; native code has no annotations."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except ValueError:
        return []
    native = not any(each.annotation is not each.empty for each in parameters)
    return [
        each.name
        for each in parameters
        if each.name != "self" and (native or re.search(r"\b(int|float)\b", str(each.annotation)))
    ]


@contextlib.contextmanager
def channel() -> Iterator[tuple[xs.Channel, xs.Channel]]:
    with xs.Channel.create(None, 4, "uint8") as writer, xs.Channel.open(writer.handle) as reader:
        yield writer, reader


def mapped_to(place: xs.VirtualRange, **options: Any) -> None:
    place.map(xs.PhysicalMemory(GRANULE, DEVICE), **{"at": GRANULE} | options)


def protected(place: xs.VirtualRange, **options: Any) -> None:
    place.set_access(**{"at": 0, "nbytes": GRANULE, "access": "r"} | options)


def ended(made: Any) -> None:
    for each in made if isinstance(made, list) else [made]:
        if hasattr(each, "close"):
            each.close()


def received(**options: Any) -> None:
    with channel() as (writer, reader):
        writer.send(np.zeros(4, "uint8"))
        reader.receive(**options).close()


def loaned(**options: Any) -> None:
    with channel() as (writer, _reader), writer.loan(**options):
        pass


def sent(**options: Any) -> None:
    with channel() as (writer, _reader):
        writer.send(np.zeros(4, "uint8"), **options)


def opened(**options: Any) -> None:
    with channel() as (writer, _reader):
        xs.Channel.open(writer.handle, **options).close()


def created(**options: Any) -> None:
    xs.Channel.create(None, **{"shape": 4, "dtype": "uint8"} | options).close()


def created_of_bytes(**options: Any) -> None:
    xs.Channel.create(None, **options).close()


def with_event(call: Callable[..., Any]) -> Callable[..., None]:
    def run(**options: Any) -> None:
        with xs.Event(DEVICE) as event, xs.Queue(DEVICE) as queue:
            event.signal()
            call(event, queue, **options)

    return run


def awaited(event: xs.Event, _queue: xs.Queue, **options: Any) -> None:
    """Begin to wait: a number that may come is waited for."""
    steps = event.reached(**options).__await__()
    with contextlib.suppress(StopIteration, RuntimeError):  # there is no loop
        next(iter(steps))


def reached_by_a_queue(event: xs.Event, queue: xs.Queue, **options: Any) -> None:
    queue.wait(event, **options)
    event.close()  # ends what nobody signals


def with_memory(call: Callable[..., Any]) -> Callable[..., None]:
    def run(**options: Any) -> None:
        with xs.malloc_device(4096, DEVICE) as memory, xs.Queue(DEVICE) as queue:
            ended(call(memory, queue, **options))
            queue.synchronize(10)

    return run


def with_range(call: Callable[..., Any], growable: bool = False) -> Callable[..., None]:
    def run(**options: Any) -> None:
        with xs.VirtualRange(4 * GRANULE, DEVICE, growable=growable) as place:
            if growable:
                place.grow(GRANULE)
            else:
                place.map(xs.PhysicalMemory(GRANULE, DEVICE))
            ended(call(place, **options))
            gc.collect()

    return run


def with_name(call: Callable[..., Any]) -> Callable[..., None]:
    def run(**options: Any) -> None:
        with xs.zeros(4) as array:
            xs.publish("numbers", array)
            try:
                call(**options)
            finally:
                xs.unpublish("numbers")

    return run


def watched(**options: Any) -> None:
    with xs.watch("numbers", **options) as versions:
        next(versions)


def published(**options: Any) -> None:
    with xs.zeros(4) as array:
        try:
            xs.publish("numbers-too", array, **options)
        finally:
            with contextlib.suppress(xs.XpuShareError):
                xs.unpublish("numbers-too")


def shared(**options: Any) -> None:
    with xs.zeros(4) as array:
        xs.share(array, **options).close()


def numbers_of(call: Callable[..., Any]) -> Callable[..., None]:
    def run(**options: Any) -> None:
        with xs.Atomic(5) as number:
            call(number, **options)

    return run


def locked(**options: Any) -> None:
    lock = xs.Lock()
    try:
        lock.acquire(**options)
        lock.release()
    finally:
        lock.close()


CALLS: dict[str, Callable[..., Any]] = {
    "Atomic": lambda **options: xs.Atomic(**options).close(),
    "Atomic.add": numbers_of(lambda number, n: number.add(n)),
    "Atomic.store": numbers_of(lambda number, value: number.store(value)),
    "Atomic.compare_exchange": numbers_of(lambda number, **o: number.compare_exchange(**{"old": 4, "new": 3} | o)),
    "Atomic.wait": numbers_of(lambda number, **options: number.wait(**{"value": 4} | options)),
    "Channel.create": created,
    "Channel.create of bytes": created_of_bytes,
    "Channel.loan": loaned,
    "Channel.open": opened,
    "Channel.receive": received,
    "Channel.send": sent,
    "Event.reached": with_event(awaited),
    "Event.recovered": with_event(lambda event, _queue, **options: event.recovered(**options)),
    "Event.wait": with_event(lambda event, _queue, **options: event.wait(**{"timeout": 0.01} | options)),
    "Lock.acquire": locked,
    "Memory.as_array": with_memory(lambda m, _q, **o: m.as_array(**{"shape": 4, "dtype": "uint8"} | o)),
    "Memory.slice": with_memory(lambda memory, _queue, **o: memory.slice(**{"offset": 0, "nbytes": 8} | o)),
    "PhysicalMemory": lambda nbytes: xs.PhysicalMemory(nbytes, DEVICE).close(),
    "Queue.copy": with_memory(lambda memory, queue, **o: queue.copy(memory, memory.slice(0, 8), **o)),
    "Queue.fill": with_memory(lambda memory, queue, **options: queue.fill(memory, b"x", **options)),
    "Queue.synchronize": with_memory(lambda _memory, queue, **options: queue.synchronize(**options)),
    "Queue.wait": with_event(reached_by_a_queue),
    "VirtualRange": lambda **o: xs.VirtualRange(**{"nbytes": GRANULE, "device": DEVICE} | o).close(),
    "VirtualRange.access": with_range(lambda place, at: place.access(at)),
    "VirtualRange.as_array": with_range(lambda place, **o: place.as_array(**{"shape": 4, "dtype": "uint8"} | o)),
    "VirtualRange.grow": with_range(lambda place, nbytes: place.grow(nbytes), growable=True),
    "VirtualRange.map": with_range(mapped_to),
    "VirtualRange.set_access": with_range(protected),
    "VirtualRange.shrink": with_range(lambda place, nbytes: place.shrink(nbytes), growable=True),
    "VirtualRange.unmap": with_range(lambda place, **o: place.unmap(**{"at": 0, "nbytes": GRANULE} | o)),
    "empty": lambda shape: xs.empty(shape, "uint8").close(),
    "zeros": lambda shape: xs.zeros(shape, "uint8").close(),
    "lookup": with_name(lambda **options: xs.lookup("numbers", **{"timeout": 0.01} | options)),
    "malloc_device": lambda nbytes: xs.malloc_device(nbytes, DEVICE).close(),
    "malloc_host": lambda nbytes: xs.malloc_host(nbytes, DEVICE).close(),
    "malloc_shared": lambda nbytes: xs.malloc_shared(nbytes, DEVICE).close(),
    "publish": published,
    "share": shared,
    "wait_any": with_event(lambda event, _queue, **options: xs.wait_any([(event, 1)], **options)),
    "watch": with_name(watched),
}  # fmt: skip
POSITIONAL = {"Atomic.add": ["n"], "Atomic.store": ["value"], "Channel.create of bytes": ["nbytes"]}
FOUND = {name: numeric(call) for name, call in public()}


def test_each_call_that_takes_numbers_is_tried() -> None:
    assert {name for name, taken in FOUND.items() if taken} == CALLS.keys() - {"Channel.create of bytes"}


def tried(name: str) -> tuple[list[str], int]:
    """Return what went wrong with which number, and how many numbers were taken."""
    wrong, worked = [], 0
    for parameter in POSITIONAL.get(name) or FOUND[name]:
        for value in NUMBERS:
            try:
                CALLS[name](**{parameter: value})
                worked += 1
            except REFUSALS:
                pass
            except Exception as error:
                wrong.append(f"{parameter}={label(value)}: {error!r:.150}")
            gc.collect()
    return wrong, worked


@pytest.mark.parametrize("name", CALLS)
def test_whatever_number(name: str) -> None:
    with Child() as child:  # queues that wait for what nobody signals end with it
        wrong, worked = child.call(tried, name)
    assert not wrong, "\n".join(wrong)
    assert worked, "no number is right"
