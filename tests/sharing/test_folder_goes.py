"""A runtime folder that is removed under running processes, as by a logout, or that appears after they have started."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import Child, fd_count, kept, wait_until
from interrupting import Interrupt
from xpushare.channels import groups
from xpushare.sharing import keeping


class _Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def listen() -> None:
    kept["said"] = _Said()
    logging.getLogger("xpushare").addHandler(kept["said"])


def said() -> str:
    texts = kept["said"].texts
    text = "\n".join(texts)
    texts.clear()
    return text


def using(run: Path) -> Child:
    return Child(listen, env={"XPUSHARE_RUNTIME_DIR": str(run)})


def publish(name: str, value: float) -> None:
    xs.publish(name, xs.array([value]), replace=True)


def value_of(name: str, timeout: float = 0) -> float:
    return float(np.asarray(xs.attach(xs.lookup(name, timeout=timeout)))[0])


def lock(name: str | None) -> Any:
    kept["lock"] = xs.Lock(name)
    return kept["lock"]


def take(name: str) -> bool:
    try:
        lock(name).acquire(timeout=0.1)
    except TimeoutError:
        return False
    return True


def release() -> None:
    kept["lock"].release()


WAITS: dict[str, Callable[[], Any]] = {
    "lookup": lambda: xs.lookup("late", timeout=60),
    "watch": lambda: next(xs.watch("late", timeout=60)),
    "wait_any": lambda: xs.wait_any([xs.watch("late")], 60) and xs.lookup("late", timeout=0),
    "any_of": lambda: asyncio.run(xs.any_of([xs.watch("late")])) and xs.lookup("late", timeout=0),
    "async for": lambda: asyncio.run(anext(xs.watch("late"))),
    "Channel.open": lambda: xs.Channel.open("late", timeout=60).close(),
}


def begin_waiting(how: str) -> None:
    names()  # makes the folder
    kept["found"] = []
    kept["waiter"] = threading.Thread(target=lambda: kept["found"].append(WAITS[how]()), daemon=True)
    kept["waiter"].start()


def waits() -> bool:
    """Whether the thread waits by inotify, in this process."""
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since
            if "inotify" in os.readlink(f"/proc/self/fd/{fd}"):
                return True
    return False


def remove(run: Path) -> None:
    """Remove the folder, while a process may be about to make files in it."""
    before = run.stat().st_ino

    def gone() -> bool:
        shutil.rmtree(run, ignore_errors=True)
        return not run.exists() or run.stat().st_ino != before

    wait_until(gone)


def found() -> float | None:
    kept["waiter"].join(60)
    (handle,) = kept["found"]
    return None if handle is None else float(np.asarray(xs.attach(handle))[0])


def publish_all() -> None:
    publish("late", 2)
    kept["channel"] = xs.Channel.create("late", 3)


def names() -> list[str]:
    return list(xs.published())


def refusal(name: str) -> str:
    with pytest.raises(xs.InvalidArgumentError) as refused:
        publish(name, 0)
    return str(refused.value)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.mark.parametrize("what", ["folder", "key", "names"])
def test_what_was_removed_is_made_again(run: Path, what: str) -> None:
    with using(run) as one:
        one.call(publish, "before", 1)
        key = (run / "key").read_bytes()
        if what == "key":
            (run / "key").unlink()
        else:
            shutil.rmtree(run / "names" if what == "names" else run)
        assert one.call(names) == ["before"]
        assert ("was removed" in one.call(said)) is (what != "names")
        one.call(publish, "after", 2)
        assert one.call(said) == "", "told once"
        assert (run / "key").read_bytes() == key
        with using(run) as other:
            assert [other.call(value_of, name) for name in ("before", "after")] == [1, 2]
            assert other.call(said) == ""


@pytest.mark.parametrize("how", WAITS)
def test_a_wait_makes_the_folder_again(run: Path, how: str) -> None:
    """So a process that starts afterwards finds the key, and the wait ends as it would have."""
    with using(run) as one:
        one.call(begin_waiting, how)
        key = (run / "key").read_bytes()
        wait_until(lambda: one.call(waits))
        for _ in range(2):
            remove(run)
            wait_until((run / "key").exists)
        assert (run / "key").read_bytes() == key
        with using(run) as other:
            other.call(publish_all)
            assert other.call(said) == ""
            assert one.call(found) == (None if how == "Channel.open" else 2)


def test_a_lock_stays_one(run: Path) -> None:
    with using(run) as one:
        assert one.call(take, "l")
        shutil.rmtree(run)
        one.call(names)  # any call that needs the folder
        with using(run) as other:
            assert not other.call(take, "l")
            one.call(release)
            assert other.call(take, "l")
            other.call(release)
            assert one.call(take, "l"), "the same process, opening it again"
            one.call(release)


def test_a_lock_of_several_processes_stays_one(run: Path) -> None:
    with using(run) as one, using(run) as other:
        for each in one, other:
            assert each.call(take, "l")
            each.call(release)
        shutil.rmtree(run)
        for each in one, other:
            each.call(names)
            assert "was removed" in each.call(said)
        assert one.call(take, "l")
        with using(run) as third:
            assert not third.call(take, "l")
            one.call(release)
            assert third.call(take, "l")
            third.call(release)


def test_a_lock_that_becomes_two_is_told(run: Path) -> None:
    """Another process has made one of that name before this one has noticed that the file was removed."""
    with using(run) as one, using(run) as other:
        assert one.call(take, "l")
        (run / "crews" / "lock.l").unlink()
        assert other.call(take, "l")
        assert one.call(take, "l") is False
        assert "opened the lock 'l' before somebody removed the file in the runtime folder" in one.call(said)
        other.call(release)


def restore_with_interrupts() -> None:
    """Make the file of a lock again, with an interrupt at each point of that."""
    place = lock("l") and groups._known["lock.l"]
    errors: list[BaseException] = []
    before = fd_count()
    for nth in range(1, 1000):
        place.path.unlink()
        interrupt = Interrupt(nth, deep=True)
        sys.setprofile(interrupt)
        try:
            assert place.restored()
        except KeyboardInterrupt as error:
            errors.append(error)  # its frames refer to what they opened
        finally:
            sys.setprofile(None)
        assert fd_count() == before, f"interrupted at point {nth}"
        assert set(os.listdir(place.path.parent)) <= {"lock.l"}
        if interrupt.left > 0:
            assert nth > 10
            return
        assert place.restored()
    raise AssertionError("it never ends")


def test_an_interrupted_attempt_to_make_a_file_again_leaves_nothing(run: Path) -> None:
    with using(run) as one:
        one.call(restore_with_interrupts)


@pytest.mark.parametrize("what", ["folder", "key"])
def test_two_keys_are_told(run: Path, what: str) -> None:
    """A process that starts between the removal and the next call of an old one makes a key: both say so."""
    with using(run) as old:
        for value in 0, 1:
            old.call(publish, "before", value)
        (run / "key").unlink() if what == "key" else shutil.rmtree(run)
        with using(run) as new:
            new.call(publish, "after", 2)
            assert f"made a new key in {run}" in (text := new.call(said))
            assert f": {old.pid}. " in text
            assert "made it again with another key" in old.call(refusal, "w")
            assert new.call(names) == ["after"]


def test_processes_that_start_together_are_not_told(run: Path) -> None:
    """Another process is faster to make the key, and removes a file of its own, as each that makes a lock does."""

    def meet_a_faster_one() -> None:
        from xpushare.sharing import identity

        make = identity._make_key

        def slowly(path: Path) -> bool:
            faster = others.enter_context(using(run))
            faster.call(take, "l")
            return make(path)

        with contextlib.ExitStack() as others:
            identity._make_key = slowly
            publish("name", 1)
            assert os.listdir(run / "crews") == ["lock.l"]
        identity._make_key = make

    with using(run) as one:
        one.call(meet_a_faster_one)
        assert one.call(said) == ""


def test_a_folder_that_cannot_be_made_again(tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    with using(above / "run") as one:
        one.call(publish, "before", 1)
        shutil.rmtree(above)
        text = one.call(refusal, "w")
        assert "cannot be made again" in text
        assert "loginctl enable-linger" in text
        above.mkdir()
        assert one.call(names) == ["before"]


def test_a_lookup_waits_on_when_the_folder_is_removed(run: Path) -> None:
    with using(run) as one, using(run) as other:
        other.call(publish, "first", 1)
        waiting = one.start(value_of, "later", 60)
        wait_until(lambda: "inotify" in "".join(_links(one.pid)))
        shutil.rmtree(run)
        other.call(publish, "later", 2)
        assert waiting.result() == 2


def _links(pid: int) -> list[str]:
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            continue
    return found


def test_threads_find_the_folder_again(run: Path) -> None:
    def work() -> None:
        publish("mine", 1)
        with xs.Lock("l") as _held:
            pass
        shutil.rmtree(run)
        threads = [threading.Thread(target=publish, args=(f"w{n}", n)) for n in range(4)]
        threads += [threading.Thread(target=lambda: xs.Lock("l").close()) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    with using(run) as one:
        one.call(work)
        assert one.call(names) == ["mine", "w0", "w1", "w2", "w3"]


@pytest.fixture
def login(tmp_path: Path) -> dict[str, str | None]:
    """The environment of processes for which a login makes the folder `session`."""
    (tmp_path / "temporary").mkdir()
    return {
        "XPUSHARE_RUNTIME_DIR": None,
        "TMPDIR": str(tmp_path / "temporary"),
        "XDG_RUNTIME_DIR": str(tmp_path / "session"),
    }


def test_processes_join_a_service_that_started_before_the_login(tmp_path: Path, login: dict[str, str | None]) -> None:
    if os.path.isdir(f"/run/user/{os.geteuid()}"):
        pytest.skip("this user is logged in")
    with Child(listen, env=login) as service:
        service.call(publish, "before", 1)
        assert service.call(take, "l")
        (tmp_path / "session").mkdir(mode=0o700)
        service.call(publish, "after", 2)
        with Child(listen, env=login) as user:
            assert [user.call(value_of, name) for name in ("before", "after")] == [1, 2]
            assert not user.call(take, "l")
        assert service.call(said) == ""
    assert os.listdir(tmp_path / "session") == []
    with Child(listen, env=login) as user:
        user.call(publish, "alone", 1)
    assert (tmp_path / "session" / "xpushare" / "key").exists()


def test_a_service_says_that_others_use_another_folder(tmp_path: Path, login: dict[str, str | None]) -> None:
    if os.path.isdir(f"/run/user/{os.geteuid()}"):
        pytest.skip("this user is logged in")
    with Child(listen, env=login) as service:
        service.call(publish, "before", 1)
        other = tmp_path / "session" / "xpushare"
        other.mkdir(mode=0o700, parents=True)
        (tmp_path / "session").chmod(0o700)
        with using(other) as user:
            user.call(publish, "theirs", 1)
            assert service.call(names) == ["before"]
            assert f"Processes that use {other} find none of its names" in service.call(said)
            assert service.call(names) == ["before"]
            assert service.call(said) == ""


def look_with_interrupts() -> None:
    """Look for the keeper, with an interrupt at each point of that."""
    xs.share(xs.empty(4), copy=True).close()
    assert keeping.connect() is None
    before = fd_count()
    for nth in range(1, 1000):
        interrupt = Interrupt(nth, deep=True)
        sys.setprofile(interrupt)
        try:
            keeping.connect()
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        gc.collect()
        assert fd_count() == before, f"interrupted at point {nth}"
        if interrupt.left > 0:
            assert nth > 10
            return
    raise AssertionError("it never ends")


def test_an_interrupted_look_for_the_keeper_leaves_no_descriptor(run: Path) -> None:
    with using(run) as one:
        one.call(look_with_interrupts)
