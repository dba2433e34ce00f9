"""`attach` of an array in memory of cudaMalloc, between real processes over a scripted driver."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted_driver import MIB2, ScriptedDriver
from scripted_driver import Range as Extent

import harness
import xpushare as xs
from harness import Child, kept, wait_until
from xpushare import adapters
from xpushare.adapters import vendor
from xpushare.adapters.cuda import _memory
from xpushare.adapters.cuda._adapter import Cuda
from xpushare.core import memory
from xpushare.sharing import node

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

NUMBER = 4
START = 0x7E00_0000_0000


def new_driver() -> tuple[ScriptedDriver, Cuda]:
    adapters.record("cuda")  # as whoever makes an adapter does
    driver = ScriptedDriver()
    for index in range(NUMBER):
        driver.foreign.append(Extent(START + index * MIB2, MIB2, 0, legacy=1, buffer=1000 + index))
    return driver, Cuda(driver)


class OfALibrary:
    """An array of 64 bytes."""

    def __init__(self, address: int) -> None:
        self.address = address

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (4, 16), "typestr": "|u1", "data": (self.address, False), "version": 3, "stream": 1}


def shared(index: int, offset: int = 512) -> bytes:
    """In the exporter: an array in one of its allocations."""
    if "driver" not in kept:
        vendor._loaded.add("libcuda.so.1")
        kept["driver"], adapters._adapters["cuda"] = new_driver()
        adapters._adapters["cuda"].devices()
    handle = kept[index, offset] = xs.share(OfALibrary(START + index * MIB2 + offset))
    return bytes(handle)


def withdraw(index: int) -> None:
    kept.pop((index, 512)).close()


@pytest.fixture(scope="module")
def exporter() -> Iterator[Child]:
    with Child() as child:
        harness.children.discard(child)  # one for all tests
        yield child


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, exporter: Child) -> Iterator[ScriptedDriver]:
    """It has opened memory before: which device opens it is decided."""
    driver, cuda = new_driver()
    driver.foreign.clear()
    monkeypatch.setattr("xpushare.core.device._known", {})
    monkeypatch.setattr("xpushare.core.device._named_by_handles", {})
    monkeypatch.setitem(adapters._adapters, "cuda", cuda)
    first = xs.ArrayHandle(exporter.call(shared, 0))
    opener, device, context = memory.opener_for(first.handle, "cuda:0", None)
    node.current().peers.imports.decide(first.handle, opener, opener.number, device, context)
    xs.attach(first).close()
    closed(driver)
    driver.calls.clear()
    yield driver
    driver.fail_named.clear()
    closed(driver)
    assert cuda.engine.teardown.settle(5)
    wait_until(lambda: driver.balanced)
    assert not driver.unsafe


def closed(driver: ScriptedDriver) -> None:
    """Nothing stays mapped, and the thread that unmaps has made its last call."""
    gc.collect()
    xs.trim()
    wait_until(lambda: not driver.live["legacy"] and driver.balanced)


def test_the_driver_is_asked_once(driver: ScriptedDriver, exporter: Child) -> None:
    raw = exporter.call(shared, 1)
    array = xs.attach(raw)
    assert driver.calls == [
        "cuThreadExchangeStreamCaptureMode", "cuCtxPushCurrent", "cuIpcOpenMemHandle", "cuPointerGetAttribute",
        "cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode",
    ]  # fmt: skip
    assert (array.shape, array.strides, array.read_only) == ((4, 16), (16, 1), False)
    held = array._held
    assert held is not None
    assert {held.allocation.address} == driver.live["legacy"]
    assert (held.allocation.nbytes, held.offset, array.memory.nbytes) == (MIB2, 512, 64)
    again = xs.attach(raw)
    assert again.ptr == array.ptr
    del held
    array.close()
    again.close()
    assert driver.live["legacy"], "it is kept for a moment"
    with xs.attach(raw):
        assert driver.calls.count("cuIpcOpenMemHandle") == 1


def test_python_opens_the_first_only(exporter: Child, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others of that device are mapped by one native call. Python opens what that refuses, and says what is wrong."""
    first, other = exporter.call(shared, 1), exporter.call(shared, 2)
    asked: list[int] = []
    real = _memory.open_legacy

    def open_(engine: Any, gpu: Any, found: Any) -> Any:
        asked.append(len(found))
        return real(engine, gpu, found)

    monkeypatch.setattr(_memory, "open_legacy", open_)
    with xs.attach(first):
        assert not asked  # the fixture has opened one before
    driver.fail_named["cuIpcOpenMemHandle"] = 999
    with pytest.raises(xs.DeviceError, match="cuIpcOpenMemHandle"):
        xs.attach(other)
    assert asked


@pytest.mark.parametrize(
    "call", ["cuThreadExchangeStreamCaptureMode", "cuCtxPushCurrent", "cuIpcOpenMemHandle", "cuPointerGetAttribute"]
)
def test_a_call_that_fails_leaves_nothing_open(driver: ScriptedDriver, exporter: Child, call: str) -> None:
    raw = exporter.call(shared, 1)
    driver.fail_named[call] = 999
    if call == "cuPointerGetAttribute":  # older drivers may not know it
        xs.attach(raw).close()
    else:
        with pytest.raises(xs.DeviceError, match=call):
            xs.attach(raw)
        assert not driver.live["legacy"]
    driver.fail_named.clear()
    with xs.attach(raw):
        pass


def test_memory_that_is_too_small(driver: ScriptedDriver, exporter: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ScriptedDriver._pointer

    def small(self: ScriptedDriver, attribute: int, address: int) -> tuple[Any, ...]:
        code, found = real(self, attribute, address)
        return code, found // 2 if int(attribute) == int(_memory.Pointer.RANGE_SIZE) else found

    monkeypatch.setattr(ScriptedDriver, "_pointer", small)
    with pytest.raises(xs.InvalidHandleError, match="its memory has"):
        xs.attach(exporter.call(shared, 1))
    assert not driver.live["legacy"]


def test_an_interrupt_leaves_nothing_open(
    driver: ScriptedDriver, exporter: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = exporter.call(shared, 1)

    def interrupt(*_arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_memory.Mapped, "__init__", interrupt)
        with pytest.raises(KeyboardInterrupt):
            xs.attach(raw)
    assert not driver.live["legacy"]
    with xs.attach(raw):
        pass


def opening(driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch, first: Callable[[], object]) -> None:
    """Have `first` called by the driver when it opens something."""

    def open_(*arguments: Any) -> Any:
        first()
        return ScriptedDriver.cuIpcOpenMemHandle(driver, *arguments)

    monkeypatch.setattr(driver, "cuIpcOpenMemHandle", open_, raising=False)


def test_a_handle_that_ends_while_it_is_opened(
    driver: ScriptedDriver, exporter: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = exporter.call(shared, 1)
    left = [1]

    def end() -> None:
        if left:
            exporter.call(withdraw, left.pop())

    opening(driver, monkeypatch, end)
    with pytest.raises(xs.HandleExpiredError):
        xs.attach(raw)
    closed(driver)
    assert node.current().peers.statistics()["mapped"] == 0


@pytest.mark.usefixtures("driver")
def test_another_open_of_it_comes_first(exporter: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal's handler may open it. Both handles cover their parts of what is kept."""
    left = [exporter.call(shared, 1)]
    two = exporter.call(shared, 1, 4096)
    real, found = _memory.Mapped.__init__, list[xs.SharedArray]()

    def make(*arguments: Any) -> None:
        if left:
            found.append(xs.attach(left.pop()))
        real(*arguments)

    monkeypatch.setattr(_memory.Mapped, "__init__", make)
    found.append(xs.attach(two))
    ranges = [array._held for array in found]
    allocation, *others = {id(held.allocation): held.allocation for held in ranges if held is not None}.values()
    assert not others
    assert [allocation.handle_covering(offset, 64) is not None for offset in (512, 4096, 8192)] == [True, True, False]
    del ranges, allocation
    found.clear()


def test_several_threads_open_it_once(driver: ScriptedDriver, exporter: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, other = exporter.call(shared, 1), exporter.call(shared, 1, 4096)
    found: list[xs.SharedArray] = []
    begun, go = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go.wait(20)

    opening(driver, monkeypatch, wait)
    ways = [lambda: xs.attach(raw), lambda: xs.attach(other), lambda: xs.attach(raw, device="cuda:0")]
    threads = [threading.Thread(target=lambda way=way: found.append(way())) for way in ways]
    threads[0].start()
    assert begun.wait(20)
    for each in threads[1:]:
        each.start()
        each.join(0.2)  # it cannot be seen to wait
    assert not found
    go.set()
    for each in threads:
        each.join(20)
    assert len(found) == len(ways)
    assert len({id(array._held.allocation) for array in found}) == 1
    assert driver.calls.count("cuIpcOpenMemHandle") == 1
    found.clear()


def test_others_are_opened_while_one_is_slow(
    driver: ScriptedDriver, exporter: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, other = exporter.call(shared, 1), exporter.call(shared, 2)
    begun, go, first = threading.Event(), threading.Event(), [1]

    def wait() -> None:
        if first:
            first.clear()
            driver.lock.release()  # the scripted driver's, which serves one call at a time
            begun.set()
            try:
                assert go.wait(20)
            finally:
                driver.lock.acquire()

    opening(driver, monkeypatch, wait)
    thread = threading.Thread(target=lambda: xs.attach(slow).close())
    thread.start()
    assert begun.wait(20)
    xs.attach(other).close()
    go.set()
    thread.join(20)
