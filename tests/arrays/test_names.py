"""`publish`, `lookup`, `published`, `unpublish`."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harness
import xpushare as xs
from harness import Child, kept, open_fds
from xpushare.arrays import changes
from xpushare.sharing import identity, node


def folder() -> Path:
    return identity.runtime_dir() / "names"


def files() -> list[str]:
    return sorted(os.listdir(folder()))


def publish_array(name: str, value: float = 1.0) -> str:
    """In a child: publish an array, or say who has the name."""
    kept[name] = array = xs.empty(4)
    np.asarray(array)[:] = value
    try:
        xs.publish(name, array)
    except xs.InvalidArgumentError as error:
        return str(error)
    return "published"


def looked_up(name: str, timeout: float | None = 0) -> list[float]:
    return np.asarray(xs.attach(xs.lookup(name, timeout=timeout))).tolist()


@pytest.fixture(autouse=True)
def _no_names_left() -> Any:
    yield
    for name in list(xs.published()):
        with_own = name
        xs.unpublish(with_own)
    assert files() == []


def test_array(peer: Child) -> None:
    array = xs.empty(3)
    np.asarray(array)[:] = [1, 2, 3]
    xs.publish("weights", array)
    assert peer.call(looked_up, "weights") == [1, 2, 3]
    np.asarray(array)[0] = 9
    assert peer.call(looked_up, "weights") == [9, 2, 3]
    assert list(xs.published()) == ["weights"]
    assert peer.call(xs.published) == xs.published()
    handle = xs.lookup("weights")
    assert isinstance(handle, xs.ArrayHandle)
    xs.unpublish("weights")
    assert xs.published() == {}
    with pytest.raises(xs.HandleExpiredError):  # the export of `publish` ends with the name
        xs.attach(handle)
    with pytest.raises(TimeoutError, match="weights"):
        peer.call(looked_up, "weights")


def test_memory_event_and_physical_memory(peer: Child) -> None:
    with xs.malloc_device(64, "native_cpu:0") as memory, xs.Event("native_cpu:0", enable_ipc=True) as event:
        physical = xs.PhysicalMemory(1 << 16, "native_cpu:0", enable_ipc=True)
        xs.publish("m", memory)
        xs.publish("e", event)
        xs.publish("p", physical)
        assert {name: handle.kind for name, handle in peer.call(xs.published).items()} == {
            "m": "memory", "e": "event", "p": "physical_memory",
        }  # fmt: skip
        peer.call(_signal_by_name, "e")
        event.wait(10, at_least=1)
        for name in "mep":
            xs.unpublish(name)


def _signal_by_name(name: str) -> None:
    with xs.ipc.event.open(xs.lookup(name)) as event:
        event.signal()


def test_own_handle(peer: Child) -> None:
    with xs.share(xs.empty(2)) as handle:
        xs.publish("own", handle)
        assert xs.lookup("own") == handle
        xs.unpublish("own")
        peer.call(xs.attach, bytes(handle)).close()  # it was not made by `publish` and does not end with the name
        foreign = peer.call(_shared)
        with pytest.raises(xs.InvalidArgumentError, match="exporter"):
            xs.publish("foreign", foreign)


def _shared() -> xs.ArrayHandle:
    return xs.share(xs.empty(1))


def test_private_arrays_are_refused() -> None:
    with pytest.raises(xs.FeatureNotSupportedError):
        xs.publish("private", np.ones(2))
    assert files() == []


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b", "ä", "x" * 129, "a\n", "a\0", 3, None, b"x"])
def test_wrong_names(name: Any) -> None:
    for use in (lambda: xs.publish(name, xs.empty(1)), lambda: xs.unpublish(name), lambda: xs.lookup(name, timeout=0)):
        with pytest.raises(xs.InvalidArgumentError):
            use()


def test_longest_name() -> None:
    name = "Aa0._-" + "x" * 122
    xs.publish(name, xs.empty(1))
    assert list(xs.published()) == [name]


def test_files_are_this_users() -> None:
    xs.publish("mine", xs.empty(1))
    assert stat.S_IMODE(folder().stat().st_mode) == 0o700
    assert stat.S_IMODE((folder() / "mine").stat().st_mode) == 0o600


def test_open_folder_is_refused() -> None:
    xs.published()
    folder().chmod(0o755)
    try:
        with pytest.raises(xs.InvalidArgumentError, match="open to other users"):
            xs.published()
    finally:
        folder().chmod(0o700)


def test_unpublish_needs_the_publisher(peer: Child) -> None:
    xs.publish("here", xs.empty(1))
    advice = f"has not published 'here': process {os.getpid()} has. Unpublish it there"
    with pytest.raises(xs.InvalidArgumentError, match=advice):
        peer.call(xs.unpublish, "here")
    assert list(peer.call(xs.published)) == ["here"]


def test_a_live_name_is_taken(peer: Child) -> None:
    xs.publish("taken", xs.empty(1))
    with pytest.raises(xs.InvalidArgumentError, match="this process"):
        xs.publish("taken", xs.empty(1))
    refused = peer.call(publish_array, "taken")
    assert f"process {os.getpid()} has published 'taken'; only that process can replace it" in refused


def test_looking_does_not_loosen_the_own_names(peer: Child) -> None:
    """Closing any fd of a file drops this process's POSIX locks on it: nothing here may open an own file."""
    xs.publish("held", xs.empty(1))
    xs.lookup("held")
    xs.published()
    xs.publish("other", xs.empty(1))
    xs.unpublish("other")
    with pytest.raises(TimeoutError):
        xs.lookup("absent", timeout=0)
    assert "has published" in peer.call(publish_array, "held")
    assert list(peer.call(xs.published)) == ["held"]


@pytest.mark.filterwarnings(
    "ignore:os.fork:RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # JAX, if it is here
def test_a_forked_child_neither_has_nor_ends_the_names(peer: Child) -> None:
    xs.publish("parents", xs.empty(1))
    with Child(method="fork") as child:
        with pytest.raises(xs.InvalidArgumentError, match="has not published"):
            child.call(xs.unpublish, "parents")
        assert list(child.call(xs.published)) == ["parents"]
    assert list(peer.call(xs.published)) == ["parents"]


def test_one_of_two_publishers_wins(peer: Child, other: Child) -> None:
    for round_ in range(30):
        name = f"race-{round_}"
        answers = [
            each.result() for each in [peer.start(publish_array, name, 1.0), other.start(publish_array, name, 2.0)]
        ]
        assert answers.count("published") == 1, answers
        winner = 1.0 + answers.index("published")
        assert looked_up(name) == [winner] * 4
        (peer, other)[answers.index("published")].call(xs.unpublish, name)


def test_dead_publishers_are_reclaimed() -> None:
    with Child() as child:
        assert child.call(publish_array, "a") == "published"
        assert child.call(publish_array, "b") == "published"
        assert sorted(xs.published()) == ["a", "b"]
        child.kill()
    assert files() == ["a", "b"]
    xs.publish("a", xs.empty(1))  # the name is free again
    assert files() == ["a"]
    xs.unpublish("a")


@pytest.mark.parametrize("use", ["published", "lookup", "unpublish"])
def test_any_call_removes_what_the_dead_left(use: str) -> None:
    xs.publish("live", xs.empty(1))
    with Child() as child:
        child.call(publish_array, "dead")
        child.kill()
    assert files() == ["dead", "live"]
    if use == "published":
        assert list(xs.published()) == ["live"]
    elif use == "lookup":
        xs.lookup("live")
    else:
        xs.unpublish("live")
    assert "dead" not in files()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_publisher_in_another_pid_namespace() -> None:
    """Its pid means nothing here; that it lives, and that it died, is seen all the same."""
    with Child(prefix=["unshare", "--pid", "--fork", "--kill-child"]) as child:
        assert child.call(publish_array, "inside") == "published"
        assert list(xs.published()) == ["inside"]
        with pytest.raises(xs.InvalidArgumentError, match="has published"):
            xs.publish("inside", xs.empty(1))
        child.kill()
    # `unshare` is gone at once, its child a moment later; a call that meets its end may leave the file to the next.
    harness.wait_until(lambda: xs.published() == {} and files() == [])


@pytest.mark.exhaustive
def test_many_reclaim_one_dead_name() -> None:
    """Who comes late must not remove the new publisher's file."""
    with Child() as one, Child() as two, Child() as three:
        for round_ in range(10):
            name = f"reborn-{round_}"
            with Child() as doomed:
                assert doomed.call(publish_array, name) == "published"
                doomed.kill()
            answers = [each.result() for each in [child.start(publish_array, name) for child in (one, two, three)]]
            assert answers.count("published") == 1, answers
            assert list(xs.published()) == [name]
            (one, two, three)[answers.index("published")].call(xs.unpublish, name)


def test_a_clean_exit_removes_the_names() -> None:
    with Child() as child:
        child.call(publish_array, "short")
        assert files() == ["short"]
    assert files() == []


def read_own(name: str, to: str) -> None:
    """Open and close the file of a name, as a copy of the folder does."""
    (folder() / name).read_bytes()
    shutil.copy(folder() / name, to)


def test_a_process_may_read_and_copy_the_files_of_its_names(tmp_path: Path) -> None:
    with Child() as child:
        child.call(publish_array, "read")
        child.call(read_own, "read", str(tmp_path / "copy"))
        assert list(xs.published()) == ["read"]
        with pytest.raises(xs.InvalidArgumentError, match=f"process {child.pid} has published"):
            xs.publish("read", xs.empty(1))
        child.kill()
        assert xs.published() == {}


def test_a_process_may_remove_the_file_of_its_name() -> None:
    with Child() as child:
        child.call(publish_array, "removed")
        (folder() / "removed").unlink()
        xs.publish("removed", xs.empty(1))
        child.call(xs.unpublish, "removed")  # its own, of which no file is left
        assert list(xs.published()) == ["removed"]
        xs.unpublish("removed")


def test_an_unlocked_temporary_file_goes() -> None:
    xs.published()
    (folder() / ".new-left").write_bytes(b"half")
    assert xs.published() == {}
    assert files() == []


def test_lookup_waits(peer: Child) -> None:
    waiting = peer.start(looked_up, "later", 20)
    assert not _answered(waiting, 0.2)
    array = xs.empty(2)
    np.asarray(array)[:] = 4
    xs.publish("later", array)
    assert waiting.result() == [4, 4]


def _answered(pending: harness.Pending, within: float) -> bool:
    try:
        harness.wait_until(pending.done, within)
    except harness.HarnessError:
        return False
    return True


def test_lookup_does_not_take_a_dead_publisher_for_one(peer: Child) -> None:
    with Child() as child:
        child.call(publish_array, "dead")
        child.kill()
    with pytest.raises(TimeoutError):
        peer.call(looked_up, "dead", 0.05)


def test_lookup_can_be_interrupted() -> None:
    timer = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        xs.lookup("never")
    timer.join()


def test_lookup_leaves_no_fd(no_fd_leak: None, peer: Child) -> None:  # noqa: ARG001
    peer.call(publish_many, 20)
    for _ in range(5):
        with pytest.raises(TimeoutError):
            xs.lookup("never", timeout=0.01)
        xs.publish("here", xs.empty(1))
        xs.lookup("here")
        peer.call(xs.published)
        xs.unpublish("here")
        found = list(open_fds().values())
        assert found.count(str(folder())) <= 1, "each call looks at the next few files of the folder"
    for name in xs.published():
        peer.call(xs.unpublish, name)


def test_what_is_no_handle() -> None:
    """A living process that holds a file with other bytes: by name an error, in the list left out."""
    with Child() as child:
        child.call(_hold_garbage, str(folder() / "strange"))
        with pytest.raises(xs.InvalidHandleError):
            xs.lookup("strange", timeout=0)
        assert xs.published() == {}
        child.kill()
    xs.published()


def _link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


STRAY = {
    "link": _link,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "socket": _socket,
}


@pytest.fixture
def stray() -> Any:
    """One of each that is not a file, in the folder of the names."""
    xs.published()
    paths = [folder() / name.replace(" ", "-") for name in STRAY]
    for path, make in zip(paths, STRAY.values(), strict=True):
        make(path)
    yield paths
    for path in paths:
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_what_is_no_file_is_in_nobodys_way(stray: list[Path], peer: Child) -> None:
    xs.publish("w", xs.empty(1))
    assert list(xs.published()) == list(peer.call(xs.published)) == ["w"]
    for path in stray:
        for use in (lambda path=path: xs.lookup(path.name, timeout=0), lambda path=path: xs.publish(path.name, b"")):
            with pytest.raises(xs.InvalidHandleError, match=f"{path} is not a file that this user published: remove"):
                use()
    xs.publish("w", xs.empty(1), replace=True)
    xs.unpublish("w")
    assert peer.call(xs.published) == {}


def test_what_is_no_file_ends_no_wait(
    stray: list[Path], peer: Child, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(changes, "WARN_AFTER", 0.01)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(looked_up("later", None)))
    with caplog.at_level(logging.WARNING, "xpushare"):
        thread.start()
        harness.wait_until(lambda: "lookup has waited" in caplog.text)  # which lists the names that there are
    assert peer.call(publish_array, "later") == "published"
    thread.join(20)
    assert found == [[1.0] * 4]
    assert len(stray) == len(STRAY)
    peer.call(xs.unpublish, "later")


def test_unpublish_when_the_folder_is_a_folder_no_more(peer: Child, no_fd_leak: None) -> None:  # noqa: ARG001
    """The name is gone then, and what `publish` exported."""
    with xs.malloc_device(64, "native_cpu:0") as memory:
        xs.publish("w", memory)
        handle = xs.lookup("w")
        place = folder()
        aside = place.with_name("aside")
        place.rename(aside)
        place.write_bytes(b"")
        try:
            xs.unpublish("w")
            for use in (xs.published, lambda: xs.publish("w", memory), lambda: xs.lookup("w", timeout=0)):
                with pytest.raises(xs.InvalidArgumentError, match="is not a folder"):
                    use()
        finally:
            place.unlink()
            aside.rename(place)
        with pytest.raises(xs.HandleExpiredError):
            peer.call(_open, bytes(handle))


def _open(raw: bytes) -> None:
    xs.ipc.memory.open(raw).close()


def _hold_garbage(path: str) -> None:
    from xpushare import _native

    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    assert _native.lock(fd, 0)
    os.write(fd, b"garbage")


# --- how much a call looks at


def publish_many(count: int) -> None:
    kept["array"] = xs.empty(1)
    for number in range(count):
        xs.publish(f"many-{os.getpid()}-{number}", kept["array"])


class _Looks:
    """Counts the files and the entries of folders that this process looks at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in "lstat", "stat", "open":
            monkeypatch.setattr(os, name, self._counting(getattr(os, name)))
        listdir, scandir = os.listdir, os.scandir

        def listed(folder: Any) -> list[str]:
            found = listdir(folder)
            self.count += len(found)
            return found

        monkeypatch.setattr(os, "listdir", listed)
        monkeypatch.setattr(os, "scandir", lambda folder: _Scan(scandir(folder), self))

    def _counting(self, function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            return function(*arguments, **options)

        return call

    def of(self, act: Any) -> int:
        self.count = 0
        act()
        return self.count


class _Scan:
    def __init__(self, scan: Any, looks: _Looks) -> None:
        self._scan = scan
        self._looks = looks
        self.close = scan.close

    def __iter__(self) -> _Scan:
        return self

    def __next__(self) -> Any:
        self._looks.count += 1
        return next(self._scan)

    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def look_for_nothing() -> None:
    with pytest.raises(TimeoutError, match="nobody has published 'nothing'"):
        xs.lookup("nothing", timeout=0)


@pytest.mark.parametrize("whose", ["own", "another's"])
def test_a_call_does_not_look_at_every_name(whose: str, peer: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    many = 600
    array = xs.empty(1)
    if whose == "own":
        publish_many(many)
    else:
        peer.call(publish_many, many)
    try:
        looks = _Looks(monkeypatch)
        for _ in range(3):
            assert looks.of(lambda: xs.publish("w", array)) < many / 4
            assert looks.of(lambda: xs.publish("w", array, replace=True)) < many / 4
            assert looks.of(lambda: xs.lookup("w", timeout=0)) < many / 4
            assert looks.of(look_for_nothing) < many / 2
            assert looks.of(lambda: xs.unpublish("w")) < many / 4
    finally:
        monkeypatch.undo()
        for name in list(xs.published()):
            xs.unpublish(name) if whose == "own" else peer.call(xs.unpublish, name)


def test_what_the_dead_left_goes_although_a_call_looks_at_a_few_files(peer: Child) -> None:
    with Child() as child:
        child.call(publish_many, 30)
        peer.call(publish_many, 100)
        child.kill()
    xs.publish("mine", xs.empty(1))
    for _ in range(100):
        xs.lookup("mine")
    assert len(files()) == 101
    for name in list(xs.published()):
        xs.unpublish(name) if name == "mine" else peer.call(xs.unpublish, name)


# --- handles that are given to `publish`


def exports() -> int:
    gc.collect()
    return node.current().table().statistics()["exports"]


def anonymous_array() -> Any:
    return xs.share(np.ones(100), copy=True)


def anonymous_tree() -> Any:
    return xs.share({"a": np.ones(100), "b": [np.ones(2)]}, copy=True)


def anonymous_handle() -> Any:
    return xs.ipc.memory.get(xs.malloc_host(64, "native_cpu:0"))


ANONYMOUS = [anonymous_array, anonymous_tree, anonymous_handle]


@pytest.mark.parametrize("make", ANONYMOUS)
@pytest.mark.parametrize("versions", [1, 3])
def test_an_anonymous_handle_ends_with_its_version(make: Any, versions: int, peer: Child) -> None:
    before = exports()
    xs.publish("w", make(), versions=versions)
    each = exports() - before
    for _ in range(5):
        xs.publish("w", make(), replace=True, versions=versions)
    assert exports() - before == each * versions
    if make is not anonymous_handle:
        peer.call(_attached, "w")
    xs.unpublish("w")
    assert exports() == before


def _attached(name: str) -> None:
    xs.attach(xs.lookup(name, timeout=0))


@pytest.mark.parametrize("end", ["close", "drop"])
def test_a_handle_is_held_by_its_versions_and_by_its_object(end: str, peer: Child) -> None:
    before = exports()
    handle = xs.share(np.ones(4), copy=True)
    xs.publish("one", handle)
    xs.publish("other", handle)
    xs.unpublish("one")
    if end == "close":
        handle.close()
    del handle
    assert peer.call(looked_up, "other") == [1] * 4
    assert exports() > before
    xs.unpublish("other")
    assert exports() == before


def test_a_handle_that_is_not_closed_outlives_its_versions(peer: Child) -> None:
    before = exports()
    handle = xs.share(np.ones(4), copy=True)
    xs.publish("one", handle)
    xs.unpublish("one")
    peer.call(xs.attach, bytes(handle)).close()
    del handle  # the only thing that is left of it: no ResourceWarning
    assert exports() == before


@pytest.mark.parametrize("make", [anonymous_array, anonymous_tree])
@pytest.mark.parametrize(
    ("name", "options"), [("taken", {}), ("no name", {}), (3, {}), ("w", {"versions": 99}), ("w", {"copy": True})]
)
def test_an_anonymous_handle_ends_if_it_cannot_be_published(make: Any, name: Any, options: dict[str, Any]) -> None:
    xs.publish("taken", xs.empty(1))
    before = exports()
    with pytest.raises(xs.InvalidArgumentError):
        xs.publish(name, make(), **options)
    assert exports() == before


def test_publish_copies(peer: Child) -> None:
    before = exports()
    xs.publish("w", np.ones(4), copy=True)
    each = exports() - before
    xs.publish("w", {"x": np.full(4, 2.0)}, copy=True, replace=True)
    assert exports() - before == each
    xs.publish("w", np.full(4, 3.0), copy=True, replace=True)
    assert peer.call(looked_up, "w") == [3] * 4
    xs.unpublish("w")
    assert exports() == before


def test_publish_copies_arrays_only() -> None:
    with xs.malloc_host(64, "native_cpu:0") as memory, xs.Event(enable_ipc=True) as event, xs.share(xs.empty(1)) as one:
        bare = xs.ipc.memory.get(memory)
        for thing in memory, event, one, bare:
            with pytest.raises(xs.InvalidArgumentError, match="copy=True is for an array or a tree of arrays"):
                xs.publish("w", thing, copy=True)  # type: ignore[arg-type]
        xs.ipc.memory.put(bare)
