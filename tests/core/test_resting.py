"""Closed imports of the host's memory stay mapped once their exporter uses it again. soak/reuse.py does that, too."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from peering import nothing_kept  # noqa: F401 - used by every test here

import xpushare as xs
from harness import Child, fd_count, kept
from xpushare import _native
from xpushare.sharing import node, routes

NBYTES = 3 << 20


@pytest.fixture
def peer() -> Iterator[Child]:
    with Child() as child:
        yield child


class Fresh:
    """A fresh array, full of its number, as a program has one each time."""

    def __init__(self, number: int, pickles: bool = False) -> None:
        self.array = xs.empty(NBYTES, "uint8")
        self.ptr = self.array.memory.ptr
        np.asarray(self.array)[:] = number
        self.handle = None if pickles else xs.share(self.array)
        self.raw = pickle.dumps(self.array) if pickles else bytes(self.handle or b"")

    def end(self) -> None:
        if self.handle is not None:
            self.handle.close()
        self.array.close()
        del self.array


# --- in the peer


def opened(raw: bytes, pickled: bool) -> xs.SharedArray:
    found: xs.SharedArray = pickle.loads(raw) if pickled else xs.attach(raw)
    return found


def look(raw: bytes, pickled: bool = False) -> tuple[int, int]:
    """The first byte, and how many bytes this process keeps mapped of what is closed."""
    with opened(raw, pickled) as array:
        found = int(np.asarray(array)[0])
    del array
    return found, _native.kept_nbytes()


def warden_runs() -> bool:
    return any(task.joinpath("comm").read_text() == "xpushare-warden\n" for task in Path("/proc/self/task").iterdir())


def mapped() -> int:
    """How many bytes of arrays this process has mapped."""
    found = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:xpushare-memory" in line:
            begin, end = (int(each, 16) for each in line.split()[0].split("-"))
            found += end - begin
    return found


def in_a_child() -> int:
    """What a forked child has mapped of it, in whole MiB."""
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            code = mapped() >> 20
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def views(raw: bytes) -> None:
    with xs.attach(raw) as array:
        kept.setdefault("views", []).append(np.asarray(array))


def view_shows() -> list[int]:
    return [int(view[0]) for view in kept["views"]]


# --- tests


@pytest.mark.parametrize("route", ["any", "socket"])
@pytest.mark.parametrize("pickles", [False, True])
def test_what_comes_again_is_mapped_already(peer: Child, pickles: bool, route: str) -> None:
    """From the second time on. Meanwhile its exporter has it for itself, and uses it for the next array."""
    if route != "any":
        peer.call(routes.use_only, route)
    found, descriptors, places = [], [], set()
    for number in range(1, 6):
        fresh = Fresh(number, pickles)
        places.add(fresh.ptr)
        found.append(peer.call(look, fresh.raw, pickles))
        descriptors.append(fd_count(peer.pid))
        fresh.end()
    assert [first for first, _kept in found] == [1, 2, 3, 4, 5]
    assert [kept_nbytes for _first, kept_nbytes in found] == [0, *[NBYTES] * 4]
    assert len(places) == 1
    assert descriptors[2:] == [descriptors[1]] * 3
    assert peer.call(mapped) == NBYTES
    assert peer.call(xs.trim) == NBYTES
    assert peer.call(mapped) == 0
    fresh = Fresh(7, pickles)
    assert peer.call(look, fresh.raw, pickles) == (7, NBYTES)
    fresh.end()


def test_a_process_that_opens_each_memory_once_keeps_nothing(peer: Child) -> None:
    for number in range(1, 4):
        with xs.empty(NBYTES, "uint8", isolated=True) as array, xs.share(array) as handle:
            np.asarray(array)[:] = number
            assert peer.call(look, bytes(handle)) == (number, 0)
    assert not peer.call(warden_runs)
    assert peer.call(mapped) == 0


def test_a_handle_that_has_ended_opens_nothing(peer: Child) -> None:
    raws = []
    for number in range(1, 4):
        fresh = Fresh(number)
        peer.call(look, fresh.raw)
        raws.append(fresh.raw)
        fresh.end()
    for raw in raws:
        with pytest.raises(xs.HandleExpiredError):
            peer.call(look, raw)
    assert peer.call(_native.kept_nbytes) == NBYTES
    fresh = Fresh(9)
    assert peer.call(look, fresh.raw) == (9, NBYTES)
    fresh.end()


def test_a_view_that_is_open_stays_as_it_is(peer: Child) -> None:
    """What somebody looks at is not at rest, so its memory does not serve again."""
    for number in range(1, 4):
        fresh = Fresh(number)
        peer.call(look, fresh.raw)
        fresh.end()
    fresh = Fresh(4)
    peer.call(views, fresh.raw)
    fresh.end()
    other = Fresh(5)
    assert other.ptr != fresh.ptr
    assert peer.call(look, other.raw)[0] == 5
    assert peer.call(view_shows) == [4]
    other.end()


def test_a_forked_child_has_none_of_it(peer: Child) -> None:
    for number in range(1, 4):
        fresh = Fresh(number)
        peer.call(look, fresh.raw)
        fresh.end()
    assert peer.call(in_a_child) == 0
    fresh = Fresh(8)
    assert peer.call(look, fresh.raw)[0] == 8
    fresh.end()


def test_what_a_dead_exporter_had_is_given_up(peer: Child) -> None:
    def make(number: int) -> bytes:
        fresh = kept["fresh"] = Fresh(number)
        return fresh.raw

    def end() -> None:
        kept.pop("fresh").end()

    def resting() -> int:
        node.current().peers.sweep()
        return len(node.current().idle.host)

    with Child() as exporter:
        for number in range(1, 4):
            assert peer.call(look, exporter.call(make, number))[0] == number
            exporter.call(end)
        assert peer.call(resting) == 1
        exporter.kill()
        assert peer.call(resting) == 0
        assert peer.call(mapped) == 0


def test_a_process_that_opens_only_what_is_open_knows_few_of_the_dead(peer: Child) -> None:
    """Nothing of such an open looks at other exporters. The next one that is met does, so there is at most the last."""

    def make() -> bytes:
        return kept.setdefault("fresh", Fresh(5)).raw  # type: ignore[no-any-return]

    def holds(raw: bytes) -> None:
        kept["open"] = xs.attach(raw)

    def opens_again(raw: bytes) -> tuple[int, int, int]:
        for _ in range(100):
            xs.attach(raw).close()
        return len(node.current().peers._peers), mapped(), fd_count()

    fresh = Fresh(1)
    peer.call(holds, fresh.raw)
    found = []
    for _ in range(4):
        with Child() as exporter:
            assert peer.call(look, exporter.call(make))[0] == 5
            exporter.kill()
        found.append(peer.call(opens_again, fresh.raw))
    assert [(peers, nbytes) for peers, nbytes, _fds in found] == [(2, NBYTES)] * 4
    assert len({fds for _peers, _nbytes, fds in found}) == 1
    peer.call(kept.clear)
    fresh.end()


def test_many_at_rest_are_few(peer: Child) -> None:
    """The oldest give way, as for all that waits to be used again."""

    def keep_many(raws: list[bytes]) -> tuple[int, int]:
        for _ in range(2):
            for each in [xs.attach(raw) for raw in raws]:
                each.close()
        del each
        return len(node.current().idle.host), _native.kept_nbytes() // (20 << 10)

    arrays = [xs.empty(20 << 10, "uint8") for _ in range(70)]
    handles = [xs.share(array) for array in arrays]
    resting, mappings = peer.call(keep_many, [bytes(handle) for handle in handles])
    assert resting <= 64
    assert mappings <= 64
    for handle in handles:
        handle.close()
    for array in arrays:
        array.close()


def test_it_is_an_export_of_this_process_after_the_exporter(peer: Child) -> None:
    """A pickle's descriptor waits with the mapping, so that it can be passed on once the exporter has gone."""

    def make(number: int) -> bytes:
        fresh = kept["fresh"] = Fresh(number, True)
        return fresh.raw

    def end() -> None:
        kept.pop("fresh").end()

    def take(raw: bytes) -> None:
        kept["array"] = pickle.loads(raw)

    def passes_on() -> bytes:
        return pickle.dumps(kept["array"])

    with Child() as exporter:
        for number in range(1, 4):
            assert peer.call(look, exporter.call(make, number), True)[0] == number
            exporter.call(end)
        peer.call(take, exporter.call(make, 6))
        exporter.kill()
    with pickle.loads(peer.call(passes_on)) as array:
        assert np.asarray(array)[-1] == 6


def test_threads_open_and_close_the_same_memory(peer: Child) -> None:
    """More pieces than are kept, so that each close drops one that another thread may be about to open."""

    def share() -> list[bytes]:
        kept["memory"] = [xs.malloc_device(4096, "native_cpu:0") for _ in range(100)]
        return [bytes(xs.ipc.memory.get(each)) for each in kept["memory"]]

    def work(raws: list[bytes]) -> list[str]:
        import sys
        import threading

        errors: list[str] = []
        sys.unraisablehook = lambda told: errors.append(repr(told.exc_value))
        sys.setswitchinterval(1e-6)

        def run(first: int) -> None:
            try:
                for turn in range(4000):
                    xs.ipc.memory.open(raws[(7 * turn + first) % 100]).close()
            except BaseException as error:
                errors.append(repr(error))

        threads = [threading.Thread(target=run, args=(first,)) for first in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return errors

    with Child() as exporter:
        assert peer.call(work, exporter.call(share)) == []
