"""Ctrl-C, and handlers that use the range themselves, at every point of a change of a virtual range: the range lists
exactly what is mapped, a refused call changes nothing, and the next calls work.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

import xpushare as xs
from interrupting import Handler, Interrupt
from sampling import sampled
from xpushare.core import event as events
from xpushare.core.pickles import Implicit
from xpushare.objects.lifecycle import use
from xpushare.sharing import layout, node

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # interrupted finalisers
steps = pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.exhaustive)])
ACCESS = {"rw": "rw", "r-": "r", "--": "none"}

Change = Callable[[xs.VirtualRange], Any]


def granule(device: Any) -> int:
    return xs.Device(device).memory_granularity()


def pages(device: str) -> xs.PhysicalMemory:
    return xs.PhysicalMemory(granule(device), device, enable_ipc=True)


def kernel_access(place: xs.VirtualRange) -> list[str]:
    """The access to each granule of the range, as the kernel has it; "none" where no memory file is mapped."""
    found, one = ["none"] * 4, granule(place.device)
    with open("/proc/self/maps") as file:
        for line in file:
            where, permissions, *rest = line.split()
            low, high = (int(each, 16) for each in where.split("-"))
            for at in range(4):
                if low <= place.ptr + at * one < high and "/memfd:" in " ".join(rest):
                    found[at] = ACCESS[permissions[:2]]
    return found


def expect_agreement(place: xs.VirtualRange) -> None:
    said, one = ["none"] * 4, granule(place.device)
    for at, nbytes, access in place.mapped():
        for each in range(at // one, (at + nbytes) // one):
            said[each] = access
    assert said == kernel_access(place)
    assert said == [place.access(at * one) for at in range(4)]


def fresh(device: str) -> xs.VirtualRange:
    """A range of four granules, of which the first two are mapped, one by one."""
    one = granule(device)
    place = xs.VirtualRange(4 * one, device)
    for at in range(2):
        with pages(device) as each:
            place.map(each, at * one)
            with memoryview(place.as_array(one, "uint8", at * one)) as view:
                view[0] = at + 1
    return place


def view(place: xs.VirtualRange) -> Any:
    return memoryview(place.as_array(2 * granule(place.device), "uint8"))


CHANGES: dict[str, Change] = {
    "map": lambda place: place.map(pages(str(place.device)), 2 * granule(place.device)),
    "unmap": lambda place: place.unmap(0, 2 * granule(place.device)),
    "hide": lambda place: place.set_access(0, 2 * granule(place.device), "none"),
    "protect": lambda place: place.set_access(0, 2 * granule(place.device), "r"),
    "view": lambda place: view(place).release(),
}


def expect_usable(place: xs.VirtualRange) -> None:
    """After whatever came: the content is the same, and all can be unmapped and mapped."""
    expect_agreement(place)
    one = granule(place.device)
    for at, nbytes, access in place.mapped():
        if access == "none":
            place.set_access(at, nbytes, "r")
        assert bytes(memoryview(place.as_array(1, "uint8", at)))[0] == {0: 1, one: 2}.get(at, 0)
    gc.collect()
    for at, nbytes, _access in place.mapped():
        place.unmap(at, nbytes)
    assert kernel_access(place) == ["none"] * 4
    for at in range(4):
        place.map(pages(str(place.device)), at * one)
    memoryview(place)[0] = 1
    expect_agreement(place)
    gc.collect()
    place.unmap(0, 4 * one)
    expect_agreement(place)


def each_point(run: Callable[[int], int], step: int) -> None:
    """Call `run` with 1, 1 + step, … until that point is not reached any more: then it returns more than 0."""
    for nth in range(1, 2000, step):
        if run(nth) > 0:
            assert nth > 3
            return
    raise AssertionError("it never ends")


@steps
@pytest.mark.parametrize("name", CHANGES)
def test_an_interrupted_change(device: str, name: str, step: int) -> None:
    def run(nth: int) -> int:
        place = fresh(device)
        interrupt = Interrupt(nth)
        sys.setprofile(interrupt)
        try:
            CHANGES[name](place)
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        gc.collect()
        expect_usable(place)
        place.close()
        return interrupt.left

    each_point(run, step)


def test_two_interrupts(device: str) -> None:
    """The second comes while the first one's change is taken back."""
    for name in ("map", "unmap", "hide"):
        for nth in range(3, 60, 8):
            for second in range(1, 12, 4):
                place = fresh(device)
                with pytest.MonkeyPatch.context() as patch:
                    core = sys.modules["xpushare.core.physical"]
                    settle = core.Reserved.settle

                    def interrupted(self: Any, settle: Any = settle, second: int = second) -> None:
                        sys.setprofile(Interrupt(second) if self.unsettled else None)
                        settle(self)

                    patch.setattr(core.Reserved, "settle", interrupted)
                    sys.setprofile(Interrupt(nth))
                    try:
                        CHANGES[name](place)
                    except KeyboardInterrupt:
                        pass
                    finally:
                        sys.setprofile(None)
                gc.collect()
                expect_usable(place)
                place.close()


@pytest.mark.parametrize("inner", sampled(list(CHANGES), ["unmap", "view"]))
@steps
@pytest.mark.parametrize("name", CHANGES)
def test_a_handler_that_uses_the_range(name: str, inner: str, step: int) -> None:
    refused = 0

    def run(nth: int) -> int:
        place = fresh("native_cpu:0")
        views: list[Any] = []

        def work() -> None:
            nonlocal refused
            before = place.mapped()
            try:
                if inner == "view":
                    views.append(view(place))
                else:
                    CHANGES[inner](place)
            except xs.InvalidArgumentError:
                refused += 1
                assert place.mapped() == before

        handler = Handler(nth, work)
        sys.setprofile(handler)
        try:
            CHANGES[name](place)
        except xs.InvalidArgumentError:
            pass  # after what the handler did
        finally:
            sys.setprofile(None)
        expect_agreement(place)
        if views:
            assert "none" not in kernel_access(place)[:2]
            views.pop().release()
        gc.collect()
        expect_usable(place)
        place.close()
        return handler.left

    each_point(run, step)
    assert refused or inner == "view"


def expect_growable(place: xs.VirtualRange, follower: xs.VirtualRange) -> None:
    assert sum(nbytes for _, nbytes, _ in place.mapped()) >= place.nbytes
    expect_agreement(place)
    expect_agreement(follower)
    gc.collect()
    one = granule(place.device)
    for nbytes in (one, 3 * one, 2 * one):
        if place.nbytes < nbytes:
            place.grow(nbytes - place.nbytes)
        elif place.nbytes > nbytes:
            place.shrink(place.nbytes - nbytes)
        follower.refresh()
        assert place.nbytes == follower.nbytes == nbytes
        memoryview(place)[nbytes - 1] = 7
        assert memoryview(follower)[nbytes - 1] == 7
        expect_agreement(place)
        expect_agreement(follower)
        gc.collect()
    place.shrink(2 * one)
    follower.refresh()
    assert place.mapped() == follower.mapped() == []


GROWS: dict[str, Callable[[xs.VirtualRange, xs.VirtualRange], Any]] = {
    "grow": lambda place, _follower: place.grow(granule(place.device)),
    "shrink": lambda place, _follower: place.shrink(granule(place.device)),
    "refresh": lambda _place, follower: follower.refresh(),
}


def exports() -> int:
    gc.collect()
    xs.trim()
    return len(node.current().table().exports())


def grown(device: str) -> tuple[xs.VirtualRange, xs.ArrayHandle, xs.VirtualRange]:
    """A growable range of two granules, and a follower that has one more and one less to map."""
    one = granule(device)
    place = xs.VirtualRange(4 * one, device, growable=True)
    place.grow(one)
    place.grow(one)
    handle = xs.share(place)
    follower = xs.attach(handle)
    assert isinstance(follower, xs.VirtualRange)
    place.shrink(one)
    place.grow(one)
    return place, handle, follower


@steps
@pytest.mark.parametrize("name", GROWS)
def test_an_interrupted_growth(device: str, name: str, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _what: None)  # interrupted finalisers, whose frames would stay

    def run(nth: int) -> int:
        exports_before = exports()
        place, handle, follower = grown(device)
        before = place.nbytes, follower.nbytes
        told = follower.changed.pending
        interrupt = Interrupt(nth)
        sys.setprofile(interrupt)
        try:
            GROWS[name](place, follower)
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        gc.collect()
        if place.nbytes != before[0]:
            assert place.nbytes == before[0] + {"grow": 1, "shrink": -1}[name] * granule(device)
            assert follower.changed.pending > told  # its followers hear of it
        expect_growable(place, follower)
        handle.close()
        follower.close()
        place.close()
        del place, handle, follower
        assert exports() == exports_before, f"interrupted at point {nth}"
        return interrupt.left

    each_point(run, step)


@pytest.mark.parametrize("inner", sampled(list(GROWS), ["shrink"]))
@steps
@pytest.mark.parametrize("name", GROWS)
def test_a_handler_that_grows_the_range(name: str, inner: str, step: int) -> None:
    def run(nth: int) -> int:
        place, handle, follower = grown("native_cpu:0")

        def work() -> None:
            before = place.nbytes, follower.nbytes, place.mapped(), follower.mapped()
            try:
                GROWS[inner](place, follower)
            except xs.InvalidArgumentError:
                assert (place.nbytes, follower.nbytes, place.mapped(), follower.mapped()) == before

        handler = Handler(nth, work)
        sys.setprofile(handler)
        try:
            GROWS[name](place, follower)
        except xs.InvalidArgumentError:
            pass  # after what the handler did
        finally:
            sys.setprofile(None)
        expect_growable(place, follower)
        handle.close()
        follower.close()
        place.close()
        return handler.left

    each_point(run, step)


def test_a_piece_is_exported_no_more_even_if_the_finaliser_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    current, interrupts = node.current, [KeyboardInterrupt()]

    def interrupted() -> node.Node:
        if interrupts:
            raise interrupts.pop()
        return current()

    with xs.Event("native_cpu:0", enable_ipc=True) as event:
        export = Implicit(events.get, use(event))
        handle = export.handle
        monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
        monkeypatch.setattr(node, "current", interrupted)
        del export
        assert not interrupts
        assert not node.current().table().withdraw(handle, layout.REASON_FREED)
