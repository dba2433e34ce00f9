"""What was closed stays mapped for a moment: what comes again needs no driver, and nobody else notices."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

import xpushare as xs
from harness import Child, kept
from sampling import sampled
from xpushare.adapters.mock.adapter import ForeignArray
from xpushare.adapters.mock.script import driver
from xpushare.sharing import idle as keeping
from xpushare.sharing import node
from xpushare.sharing.idle import Idle, Room

NBYTES = 1 << 16
Until = Callable[..., None]


@pytest.fixture
def peer() -> Iterator[Child]:
    with Child() as child:
        yield child


# --- in the peer ----------------------------------------------------------------------------------


def registered() -> int:
    return driver().counts["register"] - driver().counts["unregister"]


def first_byte(handle: str) -> tuple[int, int]:
    """The byte, and how many mappings were made for it."""
    before = driver().counts["register"]
    with xs.ipc.memory.open(handle) as memory:
        found = memoryview(memory)[0]
    return found, driver().counts["register"] - before


def attached(handle: str) -> tuple[int, int]:
    before = driver().counts["register"]
    with xs.attach(handle) as array:
        found = memoryview(array.memory)[0]
    return found, driver().counts["register"] - before


def kept_nbytes() -> int:
    return node.current().idle.nbytes


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("xpushare")]


def say(name: str, value: str) -> None:
    os.environ[name] = value


def trim() -> int:
    return xs.trim()


def allocate_when_short() -> int:
    """An allocation that fails at its first try."""
    driver().fail("memfd", xs.OutOfMemoryError("none left"), nth=1)
    with xs.malloc_device(NBYTES, "mock:0"):
        return kept_nbytes()


# --- tests ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_fd_leak")
def test_what_comes_again_needs_no_driver(peer: Child) -> None:
    peer.call(trim)
    with xs.malloc_device(NBYTES, "mock:0") as memory:
        memoryview(memory)[0] = 1
        first = xs.ipc.memory.get(memory)
        assert peer.call(first_byte, str(first)) == (1, 1)
        assert set(peer.call(threads)) <= {"xpushare-mock-teardown", "xpushare-mock-watch"}  # none for this
        assert memory.statistics()["exports"][0]["importers"] == 0  # for the exporter it is closed
        memoryview(memory)[0] = 2
        assert peer.call(first_byte, str(first)) == (2, 0)
        xs.ipc.memory.put(first)
        with pytest.raises(xs.HandleExpiredError, match="the exporter closed it"):
            peer.call(first_byte, str(first))
        second = xs.ipc.memory.get(memory.slice(8, 8))
        assert peer.call(first_byte, str(second)) == (0, 0)
        read_only = xs.ipc.memory.get(memory, read_only=True)  # another access is another mapping
        assert peer.call(first_byte, str(read_only)) == (2, 1)
        assert peer.call(kept_nbytes) == 2 * NBYTES
        assert peer.call(trim) >= 2 * NBYTES
        assert peer.call(kept_nbytes) == 0
        assert peer.call(first_byte, str(second)) == (0, 1)
        assert peer.call(allocate_when_short) == 0
        for handle in second, read_only:
            xs.ipc.memory.put(handle)


def exported_twice() -> list[str]:
    kept["both"] = [xs.malloc_device(NBYTES, "mock:0") for _ in range(2)]
    return [str(xs.ipc.memory.get(memory)) for memory in kept["both"]]


def test_it_ends_in_a_forked_child(peer: Child, until: Until) -> None:
    """Whose threads are not the parent's."""
    first, second = peer.call(exported_twice)
    first_byte(first)
    assert kept_nbytes() >= NBYTES
    with Child(method="fork") as forked:
        forked.call(first_byte, second)
        assert forked.call(kept_nbytes) >= NBYTES
        until(lambda: forked.call(kept_nbytes) == 0)
    peer.call(lambda: [memory.close() for memory in kept.pop("both")] and None)


@pytest.mark.usefixtures("no_fd_leak")
def test_what_is_shared_anew_needs_no_driver(peer: Child) -> None:
    with xs.malloc_device(NBYTES, "mock:0") as memory:
        counted = xs.share(memory.as_array((NBYTES,), "uint8"), opens=2)
        assert peer.call(attached, str(counted)) == (0, 1)
        assert peer.call(attached, str(counted)) == (0, 0)
        with pytest.raises(xs.HandleExpiredError, match="opens are used up"):
            peer.call(attached, str(counted))
        counted.close()
    arrays = [ForeignArray(NBYTES) for _ in range(3)]
    for made in 1, 0:
        for number, array in enumerate(arrays):
            ctypes.memset(array.memory.address, number, 1)
            handle = xs.share(array)
            assert peer.call(attached, str(handle)) == (number, made)
            handle.close()
    arrays.pop().free()
    arrays.append(ForeignArray(NBYTES))  # perhaps at the same address: another allocation
    with xs.share(arrays[-1]) as handle:
        assert peer.call(attached, str(handle)) == (0, 1)
    for array in arrays:
        array.free()


def exporter() -> str:
    kept["memory"] = xs.malloc_device(NBYTES, "mock:0")
    return str(xs.ipc.memory.get(kept["memory"]))


@pytest.mark.parametrize("dies", [True, False], ids=["exporter dies", "time is over"])
def test_it_ends_by_itself(until: Until, monkeypatch: pytest.MonkeyPatch, dies: bool) -> None:
    monkeypatch.setattr(keeping, "SECONDS", 60.0 if dies else 0.05)
    xs.trim()
    before = registered()
    with Child() as child:
        with xs.ipc.memory.open(child.call(exporter)):
            pass
        assert kept_nbytes() == NBYTES or not dies
        if dies:
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
        until(lambda: kept_nbytes() == 0)
        until(lambda: registered() == before)


def times() -> list[float]:
    return [item.until for item in node.current().idle.items.values()]


def test_a_refused_open_renews_nothing(peer: Child) -> None:
    peer.call(trim)
    with xs.malloc_device(NBYTES, "mock:0") as memory:
        handle = xs.ipc.memory.get(memory)
        peer.call(first_byte, str(handle))
        before = peer.call(times)
        xs.ipc.memory.put(handle)
        for _ in range(3):
            with pytest.raises(xs.HandleExpiredError, match="the exporter closed it"):
                peer.call(first_byte, str(handle))
        assert peer.call(times) in (before, [])
        peer.call(trim)


class Keeper:
    """The thread that looks."""

    def __init__(self) -> None:
        self.looks: list[Callable[[], bool]] = []

    def look_after(self, look: Callable[[], bool]) -> bool:
        self.looks.append(look)
        return True

    def look(self) -> None:
        self.looks = [look for look in self.looks if look()]


def test_it_bears_what_goes_wrong(caplog: pytest.LogCaptureFixture) -> None:
    """A look that fails, a device that does not say its size or has no thread, and what finalisers keep at any
    moment.
    """

    def fail() -> int:
        raise xs.DeviceError("lost")

    keeper = Keeper()
    found = Idle(fail)
    room = Room(lambda: 400, lambda: 0, keeper.look_after)
    assert not Room(fail, fail, keeper.look_after).prepare()
    assert not Room(lambda: 400, fail, lambda _look: False).prepare()
    assert room.prepare()
    keeper.look()
    assert not keeper.looks
    for _ in range(2):
        found.keep(1, b"", 10, room, (), object())
        keeper.look()
        assert found.nbytes == 0
        assert not keeper.looks
    assert "lost" in caplog.text

    def keeps_more(_item: object) -> bool:
        found.keep(object(), b"", 10, room, (), object())
        return False

    found.keep(2, b"", 10, room, (), object())
    found.give_up(keeps_more)
    found.end()
    found.keep(3, b"", 10, room, (), object())
    assert found.nbytes == 0
    keeper.look()
    assert not keeper.looks


def test_an_interrupt_miscounts_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, found = Keeper(), Idle(lambda: None)
    room = Room(lambda: 400, lambda: 0, keeper.look_after)
    assert room.prepare()
    keeper.look()
    found.keep(1, b"", 60, room, (), object())
    with monkeypatch.context() as patch:
        patch.setattr(found, "_of", Interrupting(found._of))
        with pytest.raises(KeyboardInterrupt):
            found.take(1)
    assert 1 not in found.items
    keeper.look()
    assert found.nbytes == 0
    assert not keeper.looks


class Interrupting(dict[object, object]):
    def __getitem__(self, key: object) -> object:
        raise KeyboardInterrupt


def test_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    class End:
        def __init__(self, number: int) -> None:
            self.number = number

        def __del__(self) -> None:
            ended.append(self.number)

    free = 0
    found = Idle(lambda: None)
    keeper = Keeper()
    room, other = Room(lambda: 400, lambda: free, keeper.look_after), Room(lambda: 400, lambda: 0, keeper.look_after)
    assert room.prepare()
    assert other.prepare()
    keeper.look()

    def keep(number: int, nbytes: int, where: Room) -> None:
        found.keep(number, b"", nbytes, where, (), End(number))

    keep(1, 60, room)
    keep(2, 100, other)
    keep(3, 101, room)  # too much at once
    keep(1, 1, room)  # there is one
    assert ended == [3, 1]
    ended.clear()
    keep(4, 50, room)  # the oldest of this device goes
    assert ended == [1]
    assert found.take(1) is None
    assert found.take(4).end.number == 4
    assert found.nbytes == 100
    keep(5, 50, room)
    with monkeypatch.context() as patch:
        patch.setattr(keeping, "_MOST", 1)
        keep(6, 50, room)
    assert found.nbytes == 50
    monkeypatch.setattr(keeping, "_DESCRIPTORS", 2)
    for number, nbytes, descriptors in ((7, 10, 0), (8, 10, 1), (9, 10, 0), (10, 10, 1)):  # 6 has one
        found.keep(number, b"", nbytes, room, (), End(number), descriptors)
    assert list(found.items) == [7, 8, 9, 10]  # only the oldest had to go
    found.keep(11, b"", 10, room, (), End(11))
    assert list(found.items) == [9, 10, 11]
    assert found.take(9).end.number == 9
    found.give_up(lambda item: item.nbytes == 10)
    keep(12, 50, room)
    assert found.nbytes == 50
    assert len(keeper.looks) == 2, "one for each device"
    keeper.look()
    assert found.nbytes == 50
    free = 40  # other processes need it
    keeper.look()
    assert found.nbytes == 0
    assert not keeper.looks
    assert found.give_up() == 0


@pytest.mark.parametrize(("name", "value"), [("XPUSHARE_KEEP_SECONDS", "0"), ("XPUSHARE_KEEP_BYTES", "0")])
def test_nothing_is_kept_where_that_is_said(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    keeper = Keeper()
    room = Room(lambda: 400, lambda: 0, keeper.look_after)
    found = Idle(lambda: None)
    assert not room.prepare()
    found.keep(1, b"", 10, room, (), object())
    assert found.nbytes == 0
    assert not keeper.looks


def test_the_settings_bound_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPUSHARE_KEEP_SECONDS", "5.5")
    monkeypatch.setenv("XPUSHARE_KEEP_BYTES", "30")
    now = 1000.0
    monkeypatch.setattr(keeping.time, "monotonic", lambda: now)
    keeper = Keeper()
    room, found = Room(fail_to_say, lambda: 0, keeper.look_after), Idle(lambda: None)
    assert room.prepare()  # the device is not asked
    for number, nbytes in ((1, 31), (2, 20), (3, 10)):
        found.keep(number, b"", nbytes, room, (), object())
    assert [number in found.items for number in (1, 2, 3)] == [False, True, True]
    now += 5
    keeper.look()
    assert found.nbytes == 30
    now += 1
    keeper.look()
    assert found.nbytes == 0


def fail_to_say() -> int:
    raise xs.DeviceError("not asked")


@pytest.mark.parametrize("name", ["XPUSHARE_KEEP_SECONDS", "XPUSHARE_KEEP_BYTES"])
@pytest.mark.parametrize("value", sampled(["soon", "-1", "nan", "1e999"], ["soon"]))
def test_settings_of_what_is_kept_that_make_no_sense(peer: Child, name: str, value: str) -> None:
    peer.call(say, name, value)
    with pytest.raises(xs.InvalidArgumentError, match=name):
        peer.call(lambda: xs.empty(NBYTES, "u1", device="mock:0"))


def test_an_import_is_not_kept_where_that_is_said(peer: Child) -> None:
    peer.call(say, "XPUSHARE_KEEP_SECONDS", "0")
    with xs.malloc_device(NBYTES, "mock:0") as memory:
        handle = str(xs.ipc.memory.get(memory))
        assert [peer.call(first_byte, handle)[1] for _ in range(2)] == [1, 1]
        assert peer.call(kept_nbytes) == 0
