"""Ctrl-C at every point of the making, opening and closing of locks, atomics and channels leaves no descriptor, export
or file. The files of the dead go, however many living ones there are.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import xpushare as xs
from harness import Child, kept
from interrupting import Handler, Interrupt
from xpushare.channels import groups
from xpushare.sharing import node


def make_lock() -> None:
    xs.Lock().close()


def make_atomic() -> None:
    xs.Atomic(7).close()


def make_channel() -> None:
    xs.Channel.create(None, 16).close()


def open_lock() -> None:
    xs.Lock("stays").close()


def open_atomic() -> None:
    xs.Atomic(0, "stays").close()


def open_channel() -> None:
    xs.Channel.open("stays").close()


def drop_lock() -> None:
    xs.Lock()


CALLS: list[Callable[[], None]] = [
    make_lock, make_atomic, make_channel, open_lock, open_atomic, open_channel, drop_lock,
]  # fmt: skip


def held() -> dict[str, Any]:
    gc.collect()
    xs.trim()
    links = Counter[str]()
    for number in os.listdir("/proc/self/fd"):
        try:
            links[os.readlink(f"/proc/self/fd/{number}")] += 1
        except OSError:
            continue
    table = node.current().table_if_any
    return {
        "fds": {link: n for link, n in links.items() if "xpushare" in link or "/crews/" in link},
        "exports": len(table.exports()) if table is not None else 0,
        "files": sorted(os.listdir(groups.folder())),
    }


@pytest.fixture
def standing() -> Iterator[None]:
    """Another process has a lock, an atomic and a channel open."""

    def stand() -> None:
        kept["all"] = xs.Lock("stays"), xs.Atomic(1, "stays"), xs.Channel.create("stays", 16)

    with Child() as child:
        child.call(stand)
        yield


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
@pytest.mark.usefixtures("standing")
def test_an_interrupt_leaves_nothing(call: Callable[[], None], step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _what: None)  # interrupted finalisers, whose frames would stay
    call()
    call()  # by now exporters that have died since the last test are known
    before = held()
    for nth in range(1, 4000, step):
        interrupt = Interrupt(nth, deep=True)
        sys.setprofile(interrupt)
        try:
            call()
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        assert held() == before, f"interrupted at point {nth}"
        worked: list[bool] = []
        thread = threading.Thread(target=lambda worked=worked: worked.append(call() is None))
        thread.start()
        thread.join(30)
        assert worked, "no lock is left held"
        if interrupt.left > 0:
            assert nth > 30
            return
    raise AssertionError("it never ends")


def newest_first(where: Path) -> list[str]:
    """The names in a folder, in the order of a tmpfs."""
    with os.scandir(where) as found:
        return [each.name for each in sorted(found, key=lambda each: -each.stat().st_mtime_ns)]


def test_files_of_the_dead_go(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(count: int) -> None:
        kept["locks"] = [xs.Lock() for _ in range(count)]

    def sweep_once() -> None:
        groups._swept = -groups._SWEEP_REST
        xs.Lock().close()

    with Child() as dead, Child() as living:
        dead.call(make, 40)
        dead.kill()
        living.call(make, 10)
        monkeypatch.setattr(groups, "_SWEEP_MOST", 8)  # fewer than living ones, which are younger
        monkeypatch.setattr(os, "listdir", newest_first)
        for _ in range(100):
            sweep_once()
            if len(newest_first(groups.folder())) == 10:
                return
    raise AssertionError("files of the dead stay")


def open_again(name: str) -> Any:
    return xs.Atomic(1, name)


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("first", ["made", "open elsewhere"])
@pytest.mark.parametrize("inner", ["both", "other"])
def test_a_handler_opens_the_same_one_or_is_refused(first: str, inner: str, step: int) -> None:
    """A handler comes at each point of the opening and closing of a number. It opens the number, or another one."""

    def change_in_a_child() -> None:
        with open_again("both") as number:
            assert number.load() == 3

    with Child() as child:
        for nth in range(1, 4000, step):
            if first == "open elsewhere":
                child.call(lambda: kept.update(number=open_again("both")))
            got: list[xs.Atomic] = []
            refused: list[str] = []

            def work(got: list[xs.Atomic] = got, refused: list[str] = refused) -> None:
                try:
                    got.append(open_again(inner))
                except xs.InvalidArgumentError as error:
                    refused.append(str(error))

            handler = Handler(nth, work)
            sys.setprofile(handler)
            open_again("both").close()
            sys.setprofile(None)
            assert all(inner == "both" and "in the midst of" in each for each in refused)
            with open_again("both") as number:
                number.store(2)
                for each in got:
                    assert each.load() == (2 if inner == "both" else 1), f"interrupted at point {nth}"
                    each.add(1 if inner == "both" else 0)
                number.store(3)
                child.call(change_in_a_child)
            for each in got:
                each.close()
            child.call(lambda: kept.pop("number", xs.Lock()).close())
            if handler.left > 0:
                assert nth > 30
                assert not [each for each in os.listdir(groups.folder()) if "both" in each]
                return
    raise AssertionError("it never ends")
