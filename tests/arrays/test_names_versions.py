"""Names whose value is replaced: `publish(…, replace=True)`, handles that follow their name, `watch`."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import ctypes
import itertools
import logging
import os
import pickle
import threading
import time
from typing import Any

import numpy as np
import pytest
import trio

import harness
import xpushare as xs
from harness import Child, kept, takes_little_cpu_time
from named_arrays import filled, unpublish_all, value_of
from sampling import sampled
from xpushare import _native
from xpushare.arrays import attach, changes
from xpushare.common import system
from xpushare.sharing import naming

VERSIONS = 2000
LOOKS = 20
KIND_OF_LOOK = ["array", "memory", "event"]


@pytest.fixture(autouse=True)
def _no_names_left() -> Any:
    yield
    unpublish_all()


def publish_value(name: str, value: float) -> None:
    xs.publish(name, filled(value), replace=True)


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_version_does_not_wait_for_the_disk(exchanges: bool, peer: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is renamed over another one is written to the disk first, by ext4; files that change places are not.
    A file system that cannot do that has versions all the same.
    """
    renamed: list[Any] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (renamed.append(paths), replace(*paths)))
    if not exchanges:
        monkeypatch.setattr(_native, "exchange", lambda _one, _other: False)
    publish_value("weights", 1)
    with xs.watch("weights") as versions:
        assert value_of(next(versions)) == 1
        publish_value("weights", 2)
        assert value_of(versions.next(10)) == 2
    assert peer.call(_look, "weights") == 2
    assert len(renamed) == (0 if exchanges else 1)
    xs.unpublish("weights")
    assert os.listdir(naming.names_folder()) == []


def _look(name: str) -> float:
    return value_of(xs.lookup(name, timeout=0))


def look_until(name: str, last: float, least: int = 1) -> tuple[int, float]:
    """Look and attach over and over, at least `least` times, until the last version, or a later one, is there."""
    looks, newest = 0, 0.0
    while newest < last or looks < least:
        value = value_of(xs.lookup(name, timeout=0))
        assert value >= newest, "an older version after a newer one"
        newest = value
        looks += 1
    return looks, newest


@pytest.mark.exhaustive
def test_replaced_by_the_thousand_under_several_readers() -> None:
    publish_value("w", 1)
    with Child() as one, Child() as two, Child() as three:
        readers = [child.start(look_until, "w", VERSIONS, LOOKS) for child in (one, two, three)]
        version = 1
        while version < VERSIONS or not all(reader.done() for reader in readers):
            version += 1
            publish_value("w", version)
        for reader in readers:
            looks, newest = reader.result(60)
            assert looks >= LOOKS
            assert VERSIONS <= newest <= version
    assert len(xs.published()) == 1


def test_threads_of_the_publisher_look_meanwhile() -> None:
    publish_value("w", 1)
    found: list[tuple[int, float]] = []
    thread = threading.Thread(target=lambda: found.append(look_until("w", 300)))
    thread.start()
    for version in range(2, 301):
        publish_value("w", version)
    thread.join(60)
    assert found[0][1] == 300


def _open_of(kind: str) -> tuple[Any, Any]:
    """How a thing of that kind is made and opened."""
    if kind == "array":
        return lambda: xs.empty(4), xs.attach
    if kind == "memory":
        return lambda: xs.malloc_device(64, "native_cpu:0"), xs.ipc.memory.open
    return lambda: xs.Event("native_cpu:0", enable_ipc=True), xs.ipc.event.open


@pytest.mark.parametrize("kind", KIND_OF_LOOK)
def test_a_replaced_handle_follows_its_name(kind: str, peer: Child) -> None:
    make, _open = _open_of(kind)

    def look(kind: str) -> None:
        kept["old"] = xs.lookup("w", timeout=0)
        kept["open"] = _open_of(kind)[1]

    def open_old() -> bool:
        kept["open"](kept["old"]).close()
        try:
            kept["open"](bytes(kept["old"]))
        except xs.HandleExpiredError:
            return True  # the bytes alone follow no name
        return False

    old, new = make(), make()
    xs.publish("w", old)
    peer.call(look, kind)
    xs.publish("w", new, replace=True)
    assert peer.call(open_old)
    xs.unpublish("w")
    with pytest.raises(xs.HandleExpiredError):
        peer.call(open_old)


def test_a_handle_follows_to_the_next_publisher(peer: Child) -> None:
    with Child() as first:
        first.call(publish_value, "w", 1)
        old = xs.lookup("w")
        first.call(xs.unpublish, "w")
        with pytest.raises(xs.HandleExpiredError):
            value_of(old)
    peer.call(publish_value, "w", 2)
    assert value_of(old) == 2
    peer.call(xs.unpublish, "w")


def test_replace_needs_no_earlier_version_and_takes_no_other_process_name(peer: Child) -> None:
    xs.publish("w", filled(1), replace=True)
    assert value_of(xs.lookup("w")) == 1
    with pytest.raises(xs.InvalidArgumentError, match=f"process {os.getpid()} has published"):
        peer.call(publish_value, "w", 2)
    with pytest.raises(xs.InvalidArgumentError, match="replace=True"):
        xs.publish("w", filled(3))
    assert value_of(xs.lookup("w")) == 1


def test_a_failed_replacement_leaves_the_old_version(monkeypatch: pytest.MonkeyPatch, peer: Child) -> None:
    publish_value("w", 1)
    with pytest.raises(xs.FeatureNotSupportedError):
        xs.publish("w", np.ones(2), replace=True)

    def interrupted(*_args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_native, "exchange", interrupted)
        with pytest.raises(KeyboardInterrupt):
            publish_value("w", 2)
    assert peer.call(lambda: value_of(xs.lookup("w"))) == 1

    exchange = _native.exchange

    def then_interrupted(source: Any, target: Any) -> bool:
        assert exchange(source, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_native, "exchange", then_interrupted)
        with pytest.raises(KeyboardInterrupt):
            publish_value("w", 3)  # it was put up before the interrupt: the name is ours, and lives
    assert peer.call(lambda: value_of(xs.lookup("w"))) == 3
    publish_value("w", 4)
    assert peer.call(lambda: value_of(xs.lookup("w"))) == 4


def test_a_replaced_version_leaves_nothing(no_fd_leak: None) -> None:  # noqa: ARG001
    for value in range(5):
        publish_value("w", value)
    assert len(os.listdir(_names_folder())) == 1
    xs.unpublish("w")


def _names_folder() -> str:
    from xpushare.sharing import identity

    return str(identity.runtime_dir() / "names")


def test_own_handles_live_on_when_replaced(peer: Child) -> None:
    with xs.share(filled(1)) as mine:
        xs.publish("w", mine)
        publish_value("w", 2)
        assert peer.call(value_of, bytes(mine)) == 1  # `publish` did not make it and does not end it


# --- watch


def take(name: str, last: float) -> list[float]:
    found = []
    with xs.watch(name) as versions:
        for handle in versions:
            found.append(value_of(handle))
            if found[-1] == last:
                return found
    raise AssertionError("a watch ended")


def take_one(name: str) -> float:
    if "versions" not in kept:
        kept["versions"] = xs.watch(name)
    return value_of(next(kept["versions"]))


def test_watch_yields_the_newest_then_each_that_comes() -> None:
    publish_value("w", 1)
    publish_value("w", 2)
    with Child() as child:
        assert child.call(take_one, "w") == 2
        waiting = child.start(take_one, "w")
        publish_value("w", 3)
        assert waiting.result() == 3
        publish_value("w", 4)
        publish_value("w", 5)
        assert child.call(take_one, "w") == 5
        child.call(kept.clear)


def test_watch_waits_for_the_first(peer: Child) -> None:
    waiting = peer.start(take, "later", 1)
    publish_value("later", 1)
    assert waiting.result(30) == [1]


def test_watch_goes_on_with_the_next_publisher() -> None:
    with xs.watch("w") as versions, Child() as first:
        first.call(publish_value, "w", 1)
        assert value_of(next(versions)) == 1
        first.kill()
        with Child() as second:
            second.call(publish_value, "w", 2)
            assert value_of(next(versions)) == 2


def test_watch_by_many_fast_versions(peer: Child) -> None:
    waiting = peer.start(take, "w", 500)
    for value in range(1, 501):
        publish_value("w", value)
    found = waiting.result(60)
    assert found == sorted(set(found))  # none twice, also where the attach followed to a newer one


def test_a_version_that_replaced_twice_what_was_yielded_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    publish_value("w", 1)
    with xs.watch("w") as versions:
        handle, tries, real = next(versions), itertools.count(1), attach.attach_message
        publish_value("w", 2)

        def attach_late(*arguments: Any) -> Any:
            if next(tries) == 2:
                publish_value("w", 3)
            return real(*arguments)

        monkeypatch.setattr(attach, "attach_message", attach_late)
        assert value_of(handle) == 3
        with pytest.raises(TimeoutError):
            versions.next(0)


def test_watch_ends_with_close_and_fork() -> None:
    versions = kept["versions"] = xs.watch("w")
    assert iter(versions) is versions
    assert "'w'" in repr(versions)
    with Child(method="fork") as child, pytest.raises(xs.ForkError):
        child.call(_next_of_parents)
    versions.close()
    versions.close()
    with pytest.raises(xs.InvalidArgumentError, match="closed"):
        next(versions)
    with pytest.raises(xs.InvalidArgumentError):
        xs.watch("no name")


def _next_of_parents() -> None:
    next(kept["versions"])


def test_watch_stays_in_its_process() -> None:
    with xs.watch("stays") as versions:
        for call in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="Send the name"):
                call(versions)


def test_watch_leaves_no_fd(no_fd_leak: None) -> None:  # noqa: ARG001
    for _ in range(5):
        with xs.watch("w") as versions, pytest.raises(TimeoutError):
            versions.next(0.01)


async def _take_async(name: str, last: float) -> list[float]:
    found = []
    async for handle in xs.watch(name):
        found.append(value_of(handle))
        if found[-1] == last:
            break
    return found


@pytest.mark.parametrize("inotify", [True, False])
@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_async_watch(library: str, inotify: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not inotify:
        _without_inotify(monkeypatch)
    publish_value("w", 1)
    others = 0

    async def main() -> list[float]:
        nonlocal others
        if library == "asyncio":
            task = asyncio.create_task(_take_async("w", 3))
            for value in (2, 3):
                await asyncio.sleep(0.01)  # the loop goes on meanwhile
                others += 1
                publish_value("w", value)
            return await asyncio.wait_for(task, 20)
        found: list[float] = []

        async def take_all() -> None:
            found.extend(await _take_async("w", 3))

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_all)
                for value in (2, 3):
                    await trio.sleep(0.01)
                    others += 1
                    publish_value("w", value)
        return found

    found = asyncio.run(main()) if library == "asyncio" else trio.run(main)
    assert others == 2
    assert found[0] == 1
    assert found[-1] == 3


def test_async_watch_is_cancelled() -> None:
    versions = xs.watch("never")

    async def under_asyncio() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(versions)

    async def under_trio() -> None:
        with trio.move_on_after(0.05) as scope:
            await anext(versions)
        assert scope.cancelled_caught

    asyncio.run(under_asyncio())
    trio.run(under_trio)
    publish_value("never", 1)
    assert value_of(versions.next(10)) == 1


def test_two_tasks_at_one_watch_are_refused() -> None:
    async def main() -> None:
        versions = xs.watch("never")
        first = asyncio.create_task(anext(versions))
        await asyncio.sleep(0.01)
        with pytest.raises(xs.InvalidArgumentError, match="each its own"):
            await anext(versions)
        first.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("published", [True, False])
def test_close_in_another_thread_ends_a_wait(published: bool) -> None:
    if published:
        publish_value("w", 1)
    versions = xs.watch("w")
    if published:
        assert value_of(next(versions)) == 1
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            next(versions)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    harness.wait_until(lambda: versions._changes is not None)
    versions.close()
    thread.join(10)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [xs.InvalidArgumentError]
    assert "closed" in str(errors[0])


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_close_in_another_thread_ends_an_async_wait(library: str) -> None:
    versions = xs.watch("w")

    def close() -> None:
        harness.wait_until(lambda: versions._awaited)
        versions.close()

    async def wait() -> None:
        with pytest.raises(xs.InvalidArgumentError, match="closed"):
            await anext(versions)

    thread = threading.Thread(target=close)
    thread.start()
    asyncio.run(asyncio.wait_for(wait(), 20)) if library == "asyncio" else trio.run(wait)
    thread.join()


@pytest.mark.parametrize("inotify", [True, False])
@pytest.mark.parametrize("library", ["", "asyncio", "trio"])
def test_watch_with_a_time_out(library: str, inotify: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not inotify:
        _without_inotify(monkeypatch)
    versions = xs.watch("w", timeout=0.05)

    async def take() -> Any:
        return await anext(versions)

    def taken() -> Any:
        if library == "asyncio":
            return asyncio.run(take())
        return trio.run(take) if library == "trio" else next(versions)

    for _ in range(2):  # one may go on after it
        with pytest.raises(TimeoutError, match=r"nobody has published 'w' within 0\.05 s"):
            taken()
    publish_value("w", 1)
    assert value_of(taken()) == 1
    with pytest.raises(TimeoutError, match="no new version of 'w' has come"):
        taken()
    publish_value("w", 2)
    assert value_of(taken()) == 2
    for wrong in ("1", float("nan")):
        with pytest.raises(xs.InvalidArgumentError):
            xs.watch("w", timeout=wrong)  # type: ignore[arg-type]


def publish_and_exit(name: str) -> int:
    publish_value(name, 1)
    return os.getpid()


def _no_pidfd(_pid: int) -> Any:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize("pidfd", [True, False])
@pytest.mark.parametrize("end", sampled(["killed", "exited"], ["killed"]))
@pytest.mark.parametrize("library", sampled(["", "asyncio", "trio"], ["", "asyncio"]))
def test_watch_tells_that_the_publisher_ended(
    end: str, library: str, pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not pidfd:
        monkeypatch.setattr(system, "pidfd_open", _no_pidfd)
    versions = xs.watch("w", timeout=20, lost=True)

    async def take() -> Any:
        return await anext(versions)

    def taken() -> Any:
        if library == "asyncio":
            return asyncio.run(take())
        return trio.run(take) if library == "trio" else next(versions)

    with Child() as child:
        pid = child.call(publish_and_exit, "w")
        assert value_of(taken()) == 1
        child.call(publish_value, "w", 2)  # a version that is replaced is not an end
        assert value_of(taken()) == 2
        if end == "killed":
            child.kill()
    assert taken() == xs.Lost(pid)
    with pytest.raises(TimeoutError):  # told once
        versions.next(0.05)
    publish_value("w", 3)  # of this process, whose end this watch does not see
    assert value_of(taken()) == 3


def test_an_end_comes_before_the_next_publishers_version() -> None:
    with xs.watch("w", lost=True) as versions:
        with Child() as child:
            pid = child.call(publish_and_exit, "w")
            assert value_of(versions.next(10)) == 1
            child.kill()
        publish_value("w", 2)
        assert versions.next(10) == xs.Lost(pid)
        assert value_of(versions.next(10)) == 2
    with xs.watch("w") as versions, Child() as child:  # nobody asked
        xs.unpublish("w")
        child.call(publish_and_exit, "w")
        assert value_of(versions.next(10)) == 1
        child.kill()
        with pytest.raises(TimeoutError):
            versions.next(0.2)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_end_of_a_publisher_in_another_pid_namespace() -> None:
    with Child(prefix=["unshare", "--pid", "--fork", "--kill-child"]) as inside, Child() as outside:
        outside.call(publish_value, "w", 1)
        assert inside.call(take_next, "w") == 1
        outside.call(publish_value, "w", 2)
        assert inside.call(take_next, "w") == 2
        outside.kill()
        assert inside.call(take_next, "w") == xs.Lost(0)


def take_next(name: str) -> Any:
    if "watch" not in kept:
        kept["watch"] = xs.watch(name, timeout=20, lost=True)
    found = next(kept["watch"])
    return found if isinstance(found, xs.Lost) else value_of(found)


def test_a_watch_that_sees_ends_leaves_no_fd(no_fd_leak: None) -> None:  # noqa: ARG001
    for _ in range(3):
        with Child() as child, xs.watch("w", lost=True) as versions:
            child.call(publish_and_exit, "w")
            versions.next(10)
            child.kill()
            assert isinstance(versions.next(10), xs.Lost)


# --- waiting without inotify


class _NoInotify(ctypes.CDLL):
    def inotify_init1(self, _flags: int) -> int:
        ctypes.set_errno(24)
        return -1


def _without_inotify(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user all of whose instances are taken."""
    monkeypatch.setattr(ctypes, "CDLL", _NoInotify)


def test_without_an_inotify_instance_a_lookup_waits_all_the_same(
    monkeypatch: pytest.MonkeyPatch, peer: Child, caplog: pytest.LogCaptureFixture
) -> None:
    _without_inotify(monkeypatch)
    with caplog.at_level(logging.INFO, "xpushare"):
        with pytest.raises(TimeoutError):
            xs.lookup("w", timeout=0.1)
        with xs.watch("w") as versions:
            pending = peer.start(publish_value, "w", 1)
            assert value_of(versions.next(20)) == 1
            pending.result()
    assert "no inotify" in caplog.text
    peer.call(xs.unpublish, "w")


def test_without_an_inotify_instance_a_wait_takes_little_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of conformance rule 9.1, which measures the waits with inotify."""
    _without_inotify(monkeypatch)
    with xs.watch("w") as versions:

        def wait() -> None:
            with contextlib.suppress(xs.InvalidArgumentError):  # the watch is closed
                versions.next()

        waiting = threading.Thread(target=wait)
        waiting.start()
        takes_little_cpu_time(waiting)
    waiting.join()


def hold_instances() -> int:
    """Take all the inotify instances that there are."""
    libc = ctypes.CDLL(None)
    kept["instances"] = []
    while (fd := libc.inotify_init1(os.O_CLOEXEC)) >= 0:
        kept["instances"].append(fd)
    return len(kept["instances"])


def test_when_a_users_instances_are_taken(peer: Child, other: Child) -> None:
    """Really taken, by another process of this user."""
    with open("/proc/sys/fs/inotify/max_user_instances", encoding="ascii") as file:
        if int(file.read()) > 1000:
            pytest.skip("this user's instances do not run out")
    with Child() as greedy:
        greedy.call(hold_instances)
        waiting = [each.start(take, "w", 1) for each in (peer, other)]
        publish_value("w", 1)
        assert [each.result(20) for each in waiting] == [[1], [1]]


# --- what is said


def test_attach_of_a_name_says_lookup() -> None:
    for text in ("weights", "a b", "x" * 128):
        with pytest.raises(xs.InvalidHandleError, match=r"xs\.lookup\('"):
            xs.attach(text)
        with pytest.raises(xs.InvalidHandleError, match=r"xs\.lookup\('"):
            xs.ipc.memory.open(text)


@pytest.mark.parametrize("kind", sampled(["array", "memory", "event"], ["array"]))
@pytest.mark.parametrize("watched", [True, False])
def test_a_name_that_nobody_has_any_more(kind: str, watched: bool) -> None:
    """Who took the name back, or died, and what to do."""
    verb: Any = {"array": xs.attach, "memory": xs.ipc.memory.open, "event": xs.ipc.event.open}[kind]
    with xs.watch("w", timeout=20) as versions:

        def look() -> Any:
            return next(versions) if watched else xs.lookup("w", timeout=20)

        with Child() as child:
            pid = child.call(publish_kind, "w", kind)
            handle = look()
            child.call(xs.unpublish, "w")
            with pytest.raises(
                xs.HandleExpiredError, match=rf"name 'w' has expired.*\(pid {pid}\) has unpublished"
            ) as told:
                verb(handle)
            assert "xs.lookup('w', timeout=…)" in str(told.value)
            child.call(publish_kind, "w", kind)
            handle = look()
            child.kill()
        with pytest.raises(xs.HandleExpiredError, match=rf"process that published 'w' \(pid {pid}\) has exited"):
            verb(handle)


def publish_kind(name: str, kind: str) -> int:
    kept[name] = {
        "array": lambda: xs.empty(4),
        "memory": lambda: xs.malloc_device(64, "native_cpu:0"),
        "event": lambda: xs.Event("native_cpu:0", enable_ipc=True),
    }[kind]()
    xs.publish(name, kept[name])
    return os.getpid()


def test_the_wrong_verb_for_what_was_looked_up() -> None:
    xs.publish("w", filled(1))
    with pytest.raises(xs.InvalidHandleError, match=r"xs\.attach"):
        xs.ipc.event.open(xs.lookup("w"))


def test_a_long_wait_without_a_time_out_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(changes, "WARN_AFTER", 0.05)
    publish_value("weights", 1)
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(value_of(xs.lookup("weigths"))))
    with caplog.at_level(logging.WARNING, "xpushare"):
        thread.start()
        harness.wait_until(lambda: "weigths" in caplog.text)
    assert "published in" in caplog.text
    assert "weights" in caplog.text
    begin = time.monotonic()
    publish_value("weigths", 2)
    thread.join(20)
    assert time.monotonic() - begin < 20
    assert found == [2]
    assert caplog.text.count("lookup has waited") == 1


def test_a_clock_that_is_set_back_makes_no_version_smaller() -> None:
    def publish_an_hour_later() -> int:
        now = time.time_ns
        time.time_ns = lambda: now() + 3600 * 10**9
        try:
            return publish_first("clock")
        finally:
            time.time_ns = now

    with Child() as before:
        first = before.call(publish_an_hour_later)
        before.call(xs.unpublish, "clock")
    assert publish_first("clock") > first
    xs.unpublish("clock")


def publish_first(name: str) -> int:
    kept["array"] = xs.zeros(3)
    return xs.publish(name, kept["array"])
