"""Trees in memory of cudaMalloc, between real processes over a scripted driver: all allocations at one go."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
from scripted_driver import MIB2, ScriptedDriver
from scripted_driver import Range as Extent

import harness
import xpushare as xs
from harness import Child, kept, wait_until
from xpushare import adapters
from xpushare.adapters.cuda._adapter import Cuda
from xpushare.arrays import description
from xpushare.arrays.description import Located
from xpushare.core import memory
from xpushare.core.device import known_device
from xpushare.core.memory import Range
from xpushare.sharing import node

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

NUMBER = 70  # allocations: more than are opened between two looks at the signals
START = 0x7E00_0000_0000
PACKAGE = os.path.dirname(xs.__file__) + os.sep


def start() -> tuple[ScriptedDriver, Cuda]:
    driver = ScriptedDriver()
    for index in range(NUMBER):
        driver.foreign.append(Extent(START + index * MIB2, MIB2, 0, legacy=1, buffer=1000 + index))
    cuda = Cuda(driver)
    cuda.devices()
    adapters._adapters["cuda"] = cuda
    return driver, cuda


def exported() -> list[xs.ipc.Handle]:
    """A handle of a piece of each allocation."""
    if "driver" not in kept:
        kept["driver"], kept["cuda"] = start()
    ranges = [
        description.range_at(Located(START + index * MIB2 + 512, 64, False, "cuda"), kept) for index in range(NUMBER)
    ]
    return memory.get_all(ranges, False)


def pushed() -> int:
    count: int = kept["driver"].calls.count("cuCtxPushCurrent")
    return count


def withdraw(handle: xs.ipc.Handle) -> None:
    xs.ipc.memory.put(handle)


@pytest.fixture(scope="module")
def exporter() -> Iterator[Child]:
    with Child() as child:
        harness.children.discard(child)  # one for all tests
        yield child


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedDriver]:
    monkeypatch.setattr("xpushare.core.device._known", {})
    scripted = ScriptedDriver()
    cuda = Cuda(scripted)
    kept["gpu"] = known_device(cuda, cuda.devices()[0])
    yield scripted
    closed(scripted)
    assert cuda.engine.teardown.settle(5)
    wait_until(lambda: scripted.balanced)
    assert not scripted.unsafe


def closed(driver: ScriptedDriver) -> None:
    """Nothing stays mapped."""
    gc.collect()
    xs.trim()
    wait_until(lambda: not driver.live["legacy"])


@pytest.fixture
def handles(exporter: Child) -> list[xs.ipc.Handle]:
    found: list[xs.ipc.Handle] = exporter.call(exported)
    return found


def opened(handles: list[xs.ipc.Handle]) -> list[Range]:
    found: list[Range] = []
    memory.open_all(handles, kept["gpu"], found)
    return found


def test_all_are_opened_by_one_call(driver: ScriptedDriver, handles: list[xs.ipc.Handle]) -> None:
    found = opened([*handles, handles[3], handles[0]])
    assert [each.handle for each in found] == [*handles, handles[3], handles[0]]
    assert [each.offset for each in found] == [512] * len(found)
    assert {each.allocation.address for each in found} == driver.live["legacy"]
    assert found[3].allocation is found[-2].allocation
    assert driver.calls.count("cuIpcOpenMemHandle") == NUMBER
    assert driver.calls.count("cuCtxPushCurrent") <= 3, "the first one, all others, and to ask how much memory there is"
    opened(handles)
    assert driver.calls.count("cuIpcOpenMemHandle") == NUMBER, "they are open"
    del found
    gc.collect()
    opened(handles)
    assert driver.calls.count("cuIpcOpenMemHandle") == NUMBER, "they are kept for a moment"
    closed(driver)


def test_all_are_exported_by_one_call(handles: list[xs.ipc.Handle], exporter: Child) -> None:
    assert len(set(handles)) == NUMBER
    assert exporter.call(pushed) == 1


def test_several_threads_open_each_once(driver: ScriptedDriver, handles: list[xs.ipc.Handle]) -> None:
    start, found = threading.Barrier(4), dict[int, list[Range]]()

    def open_them(number: int) -> None:
        mine = handles[number * 5 :] + handles[: number * 5]  # they overlap, in different orders
        start.wait(10)
        found[number] = opened(mine if number < 3 else mine[::-1])

    threads = [threading.Thread(target=open_them, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 4
    assert {each.allocation.address for mine in found.values() for each in mine} == driver.live["legacy"]
    assert driver.calls.count("cuIpcOpenMemHandle") == NUMBER
    found.clear()


def test_who_waits_for_a_batch_goes_on_alone(driver: ScriptedDriver, handles: list[xs.ipc.Handle]) -> None:  # noqa: ARG001
    """One of its keys may find no route; the others are not told so."""
    peers, found = node.current().peers, dict[str, str]()
    turn = peers._turn_together(["one", "other"])

    def refuse() -> str:
        raise xs.RouteError("no way", reasons=())

    def make(key: str, how: Callable[[], str]) -> None:
        try:
            found[key] = peers.once(key, lambda: None, how)
        except xs.RouteError as error:
            found[key] = error.message

    with turn:
        ways: dict[str, Callable[[], str]] = {"one": refuse, "other": lambda: "made"}
        threads = [threading.Thread(target=make, args=each) for each in ways.items()]
        for thread in threads:
            thread.start()
        assert peers._turn("one") is peers._turn("other") is turn
        turn.over = True
    assert peers._turn("one") is not peers._turn("other")
    for thread in threads:
        thread.join(20)
    assert found == {"one": "no way", "other": "made"}


@pytest.mark.parametrize("code", [2, 999])
def test_a_call_that_fails_in_the_middle(driver: ScriptedDriver, handles: list[xs.ipc.Handle], code: int) -> None:
    first = opened(handles[:1])
    driver.mine.clear()
    opened(handles)
    calls = [at for at, name in enumerate(driver.mine) if name == "cuIpcOpenMemHandle"]
    closed_but_first(driver)
    driver.mine.clear()
    driver.fail[calls[40]] = code
    assert len(opened(handles)) == NUMBER, "what fails once is tried again, one by one"
    closed_but_first(driver)
    driver.fail.clear()
    driver.fail_named["cuIpcOpenMemHandle"] = code
    found: list[Range] = []
    with pytest.raises(
        xs.DeviceError if code == 999 else xs.OutOfMemoryError, match=rf"cuIpcOpenMemHandle.*\({code}\)"
    ):
        memory.open_all(handles, kept["gpu"], found)
    assert len(found) == 1, "what was open before"
    found.clear()
    driver.fail_named.clear()
    closed_but_first(driver)
    del first


def closed_but_first(driver: ScriptedDriver) -> None:
    gc.collect()
    xs.trim()
    wait_until(lambda: len(driver.live["legacy"]) == 1)


def test_what_was_withdrawn_is_not_opened(
    driver: ScriptedDriver, exporter: Child, handles: list[xs.ipc.Handle]
) -> None:
    exporter.call(withdraw, handles[30])
    found: list[Range] = []
    with pytest.raises(xs.HandleExpiredError, match="put"):
        memory.open_all(handles, kept["gpu"], found)
    assert len(found) == 30
    assert handles[30] not in [each.handle for each in found]
    found.clear()
    closed(driver)


def test_memory_that_is_smaller_than_the_exporter_says(
    driver: ScriptedDriver, handles: list[xs.ipc.Handle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripted_driver.MIB2", MIB2 // 2)
    with pytest.raises(xs.InvalidHandleError, match=f"says {MIB2} bytes, its memory has {MIB2 // 2}"):
        opened(handles)
    closed(driver)


class Interrupt:
    """As in tests/core/test_interrupts.py, but not where a context manager ends: no Python can make up for that."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(PACKAGE):
            above: FrameType | None = frame
            while above is not None and above.f_code.co_name not in ("__del__", "__exit__"):
                above = above.f_back
            self.left -= above is None
            if self.left == 0 and above is None:
                raise KeyboardInterrupt


def test_an_interrupt_leaves_nothing_open(driver: ScriptedDriver, handles: list[xs.ipc.Handle]) -> None:
    few = handles[:4]
    first = opened(few[:1])
    count = 0
    while count < 2000:
        count += 1
        interrupt = Interrupt(count)
        found: list[Range] = []
        sys.setprofile(interrupt)
        try:
            memory.open_all(few, kept["gpu"], found)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        found.clear()
        closed_but_first(driver)
        assert not node.current().peers._turns_together()
    assert 100 < count < 2000
    found.clear()
    del first
