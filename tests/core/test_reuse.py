"""Memory of arrays serves later arrays once nobody has it; soak/reuse.py plays with that for longer."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable

import numpy as np
import pytest
from peering import nothing_kept  # noqa: F401 - used by every test here

import xpushare as xs
from harness import Child, kept, wait_until
from xpushare import _native
from xpushare.core import memory as core
from xpushare.core import reuse
from xpushare.sharing import node

NBYTES = 3 << 20


class Shared:
    """An array that is shared, and what comes at its place."""

    def __init__(self) -> None:
        self.array = xs.empty(NBYTES, "uint8")
        np.asarray(self.array)[:] = 7
        self.address = self.array.memory.ptr
        self.handle = xs.share(self.array)

    def end(self) -> None:
        self.handle.close()
        self.array.close()


def serves_again(address: int, device: str = "native_cpu:0") -> bool:
    """Whether one of the next arrays of that size is the memory from there. They are gone when this returns."""
    waiting = sum(map(len, node.current().idle.own(reuse._BySize).waiting.values()))
    arrays = [xs.empty(NBYTES, "uint8", device=device) for _ in range(waiting + 1)]
    found = next((array for array in arrays if array.memory.ptr == address), None)
    return found is not None and content(found) == 7  # new memory, which is zero, may have the address of old memory


def content(array: xs.SharedArray) -> int:
    """Its first byte."""
    return int(np.asarray(array)[0])


def opens(handle: bytes) -> None:
    kept["array"] = xs.attach(handle)
    assert np.asarray(kept["array"])[-1] == 7


def closes() -> None:
    kept.pop("array").close()


def forks_and_closes() -> None:
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    kept["pid"] = pid
    closes()


def ends_its_child() -> None:
    os.kill(kept["pid"], signal.SIGKILL)
    os.waitpid(kept.pop("pid"), 0)


def runs_another_program() -> None:
    os.execv(sys.executable, [sys.executable, "-c", "import signal; signal.pause()"])


def test_what_was_withdrawn_serves_again() -> None:
    shared = Shared()
    assert not serves_again(shared.address)
    shared.end()
    assert serves_again(shared.address)
    with xs.empty(NBYTES - 1000, "uint8") as array:
        assert array.memory.ptr == shared.address
        assert array.memory.nbytes == NBYTES - 1000
    with xs.empty(NBYTES // 2, "uint8") as array:
        assert array.memory.ptr != shared.address


@pytest.mark.parametrize("last", ["handle", "array", "view", "capsule", "pickle"])
def test_it_waits_for_the_last_who_has_it_here(last: str) -> None:
    array = xs.empty(NBYTES, "uint8")
    np.asarray(array)[:] = 7
    address = array.memory.ptr
    holds: dict[str, object] = {
        "handle": xs.share(array),
        "view": np.asarray(array)[5:9],
        "capsule": array.__dlpack__(),
        "pickle": pickle.dumps(array),
        "array": array,
    }
    del array
    raw = holds["pickle"]
    for name in [name for name in holds if name != last]:
        held = holds.pop(name)
        if isinstance(held, xs.ArrayHandle | xs.SharedArray):
            held.close()
        elif name == "pickle":
            pickle.loads(held).close()  # type: ignore[arg-type]
        del held
    assert not serves_again(address)
    held = holds.pop(last)
    if isinstance(held, xs.ArrayHandle | xs.SharedArray):
        held.close()
    elif last == "pickle":
        pickle.loads(raw).close()  # type: ignore[arg-type]
    del held
    wait_until(lambda: serves_again(address))


def test_every_importer_has_to_close_it() -> None:
    shared = Shared()
    with Child() as one, Child() as other:
        for child in (one, other):
            child.call(opens, bytes(shared.handle))
        shared.end()
        one.call(closes)
        assert not serves_again(shared.address)
        other.call(closes)
        assert serves_again(shared.address)


def test_a_view_of_an_importer_stays_as_it_was() -> None:
    shared = Shared()
    with Child() as child:
        child.call(opens, bytes(shared.handle))
        child.call(lambda: kept.update(view=np.asarray(kept["array"])))
        child.call(closes)
        shared.end()
        with xs.empty(NBYTES, "uint8") as array:
            np.asarray(array)[:] = 9
        assert child.call(lambda: bool((kept["view"] == 7).all()))


@pytest.mark.parametrize("died", [True, False])
def test_an_importer_that_has_ended_has_it_no_more(died: bool) -> None:
    shared = Shared()
    with Child() as child:
        child.call(opens, bytes(shared.handle))
        shared.end()
        if died:
            child.kill()
        else:
            child.call(closes)
            child.exit()
    wait_until(lambda: serves_again(shared.address))


def never(shared: Shared) -> None:
    """It has been closed everywhere, as far as leases tell, and still does not come back."""
    table = node.current().table()
    wait_until(lambda: not table.held_objects())
    for _ in range(3):
        assert not serves_again(shared.address)


def test_never_after_a_fork_of_an_importer() -> None:
    shared = Shared()
    with Child() as child:
        child.call(opens, bytes(shared.handle))
        child.call(forks_and_closes)
        shared.end()
        never(shared)
        child.call(ends_its_child)


def test_never_after_a_fork_of_an_importer_that_was_killed() -> None:
    shared = Shared()
    with Child() as child:
        child.call(opens, bytes(shared.handle))
        child.call(lambda: kept.update(pid=os.fork() or signal.pause()))
        grandchild = child.call(lambda: kept["pid"])
        try:
            child.kill()
            shared.end()
            never(shared)
        finally:
            os.kill(grandchild, signal.SIGKILL)


def test_never_after_a_fork_of_the_exporter() -> None:
    shared = Shared()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    shared.end()
    never(shared)


def test_never_where_an_importers_end_cannot_be_seen() -> None:
    shared = Shared()
    with Child() as child:
        child.call(opens, bytes(shared.handle))
        child.start(runs_another_program)  # its locks go, and it lives on
        shared.end()
        never(shared)
        child.kill()


def test_never_after_an_importer_left_with_it_open() -> None:
    shared = Shared()
    with Child() as child:
        child.call(opens, bytes(shared.handle))
        child.exit()
    shared.end()
    never(shared)


def test_never_once_this_process_has_mapped_it_anew() -> None:
    shared = Shared()
    mapped = core.open_(shared.handle.handle, None, None, True)
    shared.end()
    never(shared)
    assert mapped.address != shared.address


@pytest.mark.parametrize(
    "make",
    [
        lambda: xs.empty(NBYTES, "uint8", isolated=True),
        lambda: xs.malloc_host(NBYTES, "native_cpu:0"),
        lambda: xs.malloc_device(NBYTES, "native_cpu:0"),
    ],
    ids=["isolated", "malloc_host", "malloc_device"],
)
def test_isolated_memory_never_served_and_never_does(make: Callable[[], xs.SharedArray | xs.Memory]) -> None:
    shared = Shared()
    shared.end()
    with make() as memory:
        found = memory if isinstance(memory, xs.Memory) else memory.memory
        assert found.ptr != shared.address
        values = np.asarray(memory)
        assert not values.any()
        values[:] = 9
        del values
        xs.ipc.memory.put(xs.ipc.memory.get(found))
    del memory, found
    with xs.empty(NBYTES, "uint8") as first, xs.empty(NBYTES, "uint8") as second:
        assert (content(first), content(second)) == (7, 0)


def test_zeros_are_zero_in_memory_that_served() -> None:
    shared = Shared()
    shared.end()
    with xs.zeros((NBYTES // 8,), "float64") as array:
        assert array.memory.ptr == shared.address
        assert not np.asarray(array).any()
    with xs.zeros(5, "int32") as small, xs.zeros((0, 3)) as nothing:
        assert not np.asarray(small).any()
        assert nothing.shape == (0, 3)


def test_copies_serve_again() -> None:
    values = np.full(NBYTES, 7, "uint8")
    with xs.array(values) as array:
        address = array.memory.ptr
    with xs.share(values, copy=True) as handle, xs.attach(handle) as array:
        assert array.memory.ptr == address
        assert (np.asarray(array) == values).all()
    del array
    assert serves_again(address)


def test_arrays_of_an_arena_that_served_are_zero() -> None:
    arrays = [xs.empty(16 << 10, "uint8") for _ in range(16)]
    first: int = min(array.memory.ptr for array in arrays)
    for array in arrays:
        np.asarray(array)[:] = 7
        xs.share(array).close()
    del array
    arrays.clear()
    small = xs.empty(16 << 10, "uint8")  # the arena that is being filled has no room
    assert small.memory.ptr == first
    assert not np.asarray(small).any()
    small.close()


def test_a_handle_of_before_opens_nothing_of_later() -> None:
    shared = Shared()
    raw = bytes(shared.handle)
    shared.end()
    with xs.empty(NBYTES, "uint8") as array, xs.share(array) as handle, Child() as child:
        assert array.memory.ptr == shared.address
        np.asarray(array)[:] = 7
        with pytest.raises(xs.HandleExpiredError):
            child.call(opens, raw)
        child.call(opens, bytes(handle))
        child.call(closes)


def test_trim_gives_it_back() -> None:
    shared = Shared()
    shared.end()
    assert core.kept_nbytes() >= NBYTES
    assert xs.trim() >= NBYTES
    assert core.kept_nbytes() < NBYTES


def test_it_goes_by_itself() -> None:
    shared = Shared()
    shared.end()
    wait_until(lambda: core.kept_nbytes() < NBYTES)


def nothing_idle() -> bool:
    idle = node.current().idle
    return not any(idle.own(reuse._BySize).waiting.values()) and not idle.items and not idle.host and idle.total() == 0


def test_trim_comes_to_what_a_device_may_still_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "native_cpu:*;mock:*")
    for _ in range(20):  # whether or not its work has finished by then
        xs.empty(NBYTES, "uint8", device="mock:0").close()
        assert xs.trim() >= NBYTES
        assert nothing_idle()


def test_trim_comes_to_what_is_about_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "native_cpu:*;mock:*")
    wait, trimmed = reuse._wait, []

    def trims_first(block: reuse.Block) -> None:
        trimmed.append(xs.trim())
        wait(block)

    monkeypatch.setattr(reuse, "_wait", trims_first)
    xs.empty(NBYTES, "uint8", device="mock:0").close()
    wait_until(lambda: trimmed)
    assert trimmed == [NBYTES]
    wait_until(nothing_idle)


def keeps_a_view(handle: bytes) -> None:
    kept.setdefault("views", []).append(np.asarray(xs.attach(handle)))


def drops_the_first_view() -> None:
    del kept["views"][0]


def of_the_last_view() -> int:
    return int(kept["views"][-1][0])


def test_memory_that_came_to_the_address_of_what_was_given_back_is_another() -> None:
    """Memory waits while an importer has it, and is given back. Other memory comes to its address, and waits, too."""
    with Child() as child:
        first = Shared()
        child.call(keeps_a_view, bytes(first.handle))
        first.end()
        _native.trim()  # as the warden does after a while
        arrays: list[xs.SharedArray] = []
        while not arrays or arrays[-1].memory.ptr != first.address:
            assert len(arrays) < 100, "no memory comes to the address"
            arrays.append(xs.empty(NBYTES, "uint8"))
        second = arrays[-1]
        np.asarray(second)[:] = 8
        handle = xs.share(second)
        child.call(keeps_a_view, bytes(handle))
        child.call(drops_the_first_view)
        handle.close()
        second.close()  # nobody has the first any more, but the child has the second
        for _ in range(3):
            arrays.append(xs.empty(NBYTES, "uint8"))
            np.asarray(arrays[-1])[:] = 9
        assert child.call(of_the_last_view) == 8
