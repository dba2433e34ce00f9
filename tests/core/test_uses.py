"""What was closed is in use until the device work submitted before has finished: until then its exporter keeps it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peering import nothing_kept  # noqa: F401 - used by every test here

import xpushare as xs
from harness import Child, kept, wait_until
from xpushare.adapters.mock.adapter import ForeignArray, default_stream
from xpushare.adapters.mock.script import driver
from xpushare.common.leaving import Stage, at_leave
from xpushare.core.opening import room_of
from xpushare.core.reuse import waiting
from xpushare.sharing import node
from xpushare.sharing.idle import Uses

NBYTES = 1 << 16
SELECTOR = "native_cpu:*;mock:*"


@pytest.fixture(autouse=True)
def mock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", SELECTOR)
    xs.Device("mock:0")  # it recognises arrays from now on


@pytest.fixture
def importer() -> Iterator[Child]:
    """A process whose closed imports stay mapped."""
    with Child() as child:
        child.call(lambda: os.environ.update(ONEAPI_DEVICE_SELECTOR=SELECTOR, XPUSHARE_KEEP_SECONDS="60"))
        yield child


@pytest.fixture
def array() -> Iterator[ForeignArray]:
    made = ForeignArray(NBYTES)
    yield made
    made.free()


class Part:
    """Some bytes of an array, as a tensor of a pool's segment is."""

    def __init__(self, array: ForeignArray, offset: int, nbytes: int) -> None:
        address = array.memory.address + offset
        self.__array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}


# --- in the importer ------------------------------------------------------------------------------


def opens(handle: bytes, name: str = "array") -> int:
    """Returns how many mappings were made for it."""
    before = driver().counts["register"]
    kept[name] = xs.attach(handle)
    return driver().counts["register"] - before


def closes(name: str = "array") -> None:
    kept.pop(name).close()


def begins_work() -> None:
    """Another library's stream works until `finishes_work`."""
    kept["go"] = threading.Event()
    default_stream(0).call(kept["go"].wait)


def finishes_work() -> None:
    kept.pop("go").set()


def reads(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(1)


def works_until_told(path: str) -> None:
    default_stream(0).call(partial(reads, path))


def tells_when_it_has_left(path: str) -> None:
    """At its exit, once it has left its peers. Its devices still work: the driver waits for them next."""
    at_leave(lambda _deadline: Path(path).write_bytes(b"x"), Stage.STOP)


def kept_nbytes() -> int:
    return node.current().idle.nbytes


def calls_for_many_closes(handles: list[bytes]) -> int:
    """How often the device is asked about its work when they are closed at once, while it works."""
    arrays = [xs.attach(handle) for handle in handles]
    room = room_of(xs.Device("mock:0"))
    assert room is not None
    uses = room.uses
    assert uses is not None
    after_work, calls = uses._after_work, []

    def counted(then: Callable[[], object]) -> object:
        calls.append(1)
        return after_work(then)

    uses._after_work = counted
    begins_work()
    for each in arrays:
        each.close()
    del each
    arrays.clear()
    finishes_work()
    wait_until(lambda: not uses and uses._under_way() is None)
    return len(calls)


def goes_on_while_the_device_works(handles: list[bytes]) -> list[bool]:
    """Return whether each thing that a program does ends while the teardown waits for another library's long work."""
    first, second = (xs.attach(handle) for handle in handles[:2])
    queue, foreign, fresh = xs.Queue("mock:0"), ForeignArray(NBYTES), xs.empty(NBYTES, "uint8", device="mock:0")
    begins_work()
    before = driver().counts["device_synchronize"]
    first.close()
    wait_until(lambda: driver().counts["device_synchronize"] > before)
    work: list[Callable[[], object]] = [
        lambda: xs.share(foreign).close(),
        lambda: xs.attach(handles[2]).close(),
        second.close,
        fresh.close,
        xs.trim,
        lambda: xs.empty(NBYTES, "uint8", device="mock:0").close(),
        lambda: queue.signal(xs.Event("mock:0")),
        queue.close,
    ]
    threads = [threading.Thread(target=each, daemon=True) for each in work]
    for thread in threads:
        thread.start()
        thread.join(10)
    ended = [not thread.is_alive() for thread in threads]
    finishes_work()
    foreign.free()
    return ended


# --- tests ----------------------------------------------------------------------------------------


def keeps_for(seconds: str) -> None:
    os.environ["XPUSHARE_KEEP_SECONDS"] = seconds


def lingering() -> int:
    """How much foreign memory is kept for importers, after a sweep."""
    table = node.current().table()
    table.sweep()
    return table.statistics()["lingering"]


@pytest.mark.parametrize("seconds", ["60", "0"], ids=["kept mapped", "unmapped"])
def test_it_is_kept_until_the_device_has_finished(importer: Child, array: ForeignArray, seconds: str) -> None:
    importer.call(keeps_for, seconds)
    handle = xs.share(array)
    importer.call(opens, bytes(handle))
    importer.call(begins_work)
    handle.close()
    assert lingering() == 1
    importer.call(closes)
    assert not node.current().table().held_objects()
    for _ in range(3):
        assert lingering() == 1
    importer.call(finishes_work)
    wait_until(lambda: lingering() == 0)
    assert importer.call(kept_nbytes) == (NBYTES if seconds == "60" else 0)


def test_it_is_in_use_again_once_it_was_opened_again(importer: Child, array: ForeignArray) -> None:
    for mapped in 1, 0:
        handle = xs.share(array)
        assert importer.call(opens, bytes(handle)) == mapped
        importer.call(begins_work)
        importer.call(closes)
        handle.close()  # after the import
        assert lingering() == 1
        importer.call(finishes_work)
        wait_until(lambda: lingering() == 0)
        assert importer.call(kept_nbytes) == NBYTES


def test_each_part_of_a_mapping_is_in_use_by_itself(importer: Child, array: ForeignArray) -> None:
    """Another part, which stays open, neither ends the use nor prolongs it."""
    first, second = (xs.share(Part(array, offset, 4096)) for offset in (0, 4096))
    assert importer.call(opens, bytes(first), "first") == 1
    assert importer.call(opens, bytes(second), "second") == 0
    importer.call(begins_work)
    importer.call(closes, "second")
    second.close()
    assert lingering() == 1
    importer.call(finishes_work)
    wait_until(lambda: lingering() == 0)
    first.close()
    assert lingering() == 1
    importer.call(closes, "first")
    wait_until(lambda: lingering() == 0)


def test_an_importer_that_was_killed_uses_nothing(importer: Child, array: ForeignArray) -> None:
    handle = xs.share(array)
    importer.call(opens, bytes(handle))
    importer.call(begins_work)
    importer.call(closes)
    handle.close()
    assert lingering() == 1
    importer.kill()
    wait_until(lambda: lingering() == 0)


@contextmanager
def exiting(importer: Child, folder: Path, ends_up: Callable[[], object]) -> Iterator[None]:
    """The importer exits after `ends_up`. In the block it has left, and its device still works. Later it has ended."""
    left, go = (str(folder / name) for name in ("left", "go"))
    pipes = []
    for path in left, go:
        os.mkfifo(path)
        pipes.append(os.open(path, os.O_RDWR))  # nobody waits for the other end
    importer.call(works_until_told, go)
    importer.call(ends_up)
    with ThreadPoolExecutor(1) as pool:
        try:
            ended = pool.submit(importer.exit)
            os.read(pipes[0], 1)
            yield
        finally:
            os.write(pipes[1], b"x")
            for each in pipes:
                os.close(each)
        assert ended.result() == 0


@pytest.mark.parametrize("ends_up", [closes, int], ids=["closed", "open"])
def test_an_importer_that_exits_uses_it_until_it_has_ended(
    importer: Child, array: ForeignArray, tmp_path: Path, ends_up: Callable[[], object]
) -> None:
    importer.call(tells_when_it_has_left, str(tmp_path / "left"))  # before the driver is loaded, so first at the exit
    handle = xs.share(array)
    importer.call(opens, bytes(handle))
    handle.close()
    with exiting(importer, tmp_path, ends_up):
        for _ in range(3):
            assert lingering() == 1
    wait_until(lambda: lingering() == 0)


def test_our_own_memory_serves_again_when_the_device_has_finished(importer: Child) -> None:
    array = xs.empty(NBYTES, "uint8", device="mock:0")
    np.asarray(array)[:] = 7
    handle = xs.share(array)
    importer.call(opens, bytes(handle))
    importer.call(begins_work)
    importer.call(closes)
    handle.close()
    array.close()
    wait_until(lambda: waiting(xs.Device("mock:0"), "device"))
    [block] = waiting(xs.Device("mock:0"), "device")
    assert not block.free()
    importer.call(finishes_work)
    wait_until(block.free)
    assert importer.call(kept_nbytes) == NBYTES


def test_work_that_takes_long_holds_nothing_else_up(importer: Child) -> None:
    arrays = [ForeignArray(NBYTES) for _ in range(3)]
    handles = [xs.share(each) for each in arrays]
    assert all(importer.call(goes_on_while_the_device_works, [bytes(each) for each in handles]))
    for handle, each in zip(handles, arrays, strict=True):
        handle.close()
        each.free()


def test_many_closes_ask_the_device_seldom(importer: Child) -> None:
    arrays = [ForeignArray(NBYTES) for _ in range(50)]
    handles = [xs.share(each) for each in arrays]
    assert importer.call(calls_for_many_closes, [bytes(each) for each in handles]) in (1, 2)
    for handle, each in zip(handles, arrays, strict=True):
        handle.close()
        each.free()
    assert lingering() == 0


class Use:
    """In the place of a lease."""

    def __init__(self, ended: list[bool]) -> None:
        self._ended = ended

    def end(self) -> None:
        self._ended[:] = [True]

    def __del__(self) -> None:
        self.end()


def closed(uses: Any, count: int) -> list[list[bool]]:
    """Close so many objects. Returns what tells whether their uses have ended."""
    made = []
    for _ in range(count):
        made.append([False])
        uses.append(Use(made[-1]))
        uses()
    return made


def living(made: list[list[bool]]) -> list[bool]:
    return [not ended for [ended] in made]


def test_a_call_serves_what_was_closed_before_it() -> None:
    calls: list[Callable[[], object]] = []
    uses = Uses(calls.append)
    made = closed(uses, 3)
    assert len(calls) == 1
    calls.pop()()
    assert living(made) == [False, True, True]
    assert len(calls) == 1
    made += closed(uses, 1)
    calls.pop()()
    assert living(made) == [False, False, False, True]
    calls.pop()()
    assert not any(living(made))
    assert not calls
    made = closed(uses, 1)
    calls.pop()()
    assert not any(living(made))
    assert not calls


def test_a_call_that_a_broken_device_never_makes_ends_its_uses() -> None:
    calls: list[Callable[[], object]] = []
    uses = Uses(calls.append)
    made = closed(uses, 2)
    calls.clear()
    assert living(made) == [False, True]
    calls.clear()
    assert not any(living(made))
    assert not calls


def test_uses_end_and_the_next_call_is_made_whoever_still_refers_to_them() -> None:
    """Without the GIL, objects may die late."""
    calls: list[Callable[[], object]] = []
    uses = Uses(calls.append)
    made = closed(uses, 2)
    kept_alive = [*calls, *calls[0].uses]  # type: ignore[attr-defined]
    calls.pop()()
    assert living(made) == [False, True]
    calls.pop()()
    assert not any(living(made))
    kept_alive.clear()
    assert not calls


def test_an_interrupt_ends_no_use() -> None:
    calls: list[Callable[[], object]] = []
    fail = True

    def after_work(then: Callable[[], object]) -> None:
        if fail:
            raise KeyboardInterrupt
        calls.append(then)

    uses, made = Uses(after_work), [[False]]
    uses.append(Use(made[0]))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        uses()
    assert living(made) == [True]
    fail = False
    made += closed(uses, 1)
    assert len(calls) == 1
    calls.pop()()
    assert not any(living(made))
    assert not calls
