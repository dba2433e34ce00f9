"""Opening a channel, lock or atomic while other processes open, make, close it or end, are stopped, or fail."""

# pyright: reportPrivateUsage=false
# (the tests come between the steps of an open)

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import TIMEOUT, Child, kept, takes_little_cpu_time, wait_until
from xpushare import _native
from xpushare.channels import groups
from xpushare.channels.geometry import WRITERS_MOST
from xpushare.channels.survey import channels
from xpushare.core import memory
from xpushare.objects.array import memory_over
from xpushare.sharing import locked_files
from xpushare.sharing.lives import state_of

OPENS: dict[str, Callable[[], Any]] = {
    "channel": lambda: xs.Channel.open("test", timeout=TIMEOUT),
    "create": lambda: xs.Channel.create("test", 2, slots=66, writers=64),
    "lock": lambda: xs.Lock("test"),
    "atomic": lambda: xs.Atomic(0, "test"),
}
MAKES = {**OPENS, "channel": OPENS["create"]}  # what another process has open meanwhile


def open_there(how: str) -> None:
    kept["it"] = OPENS[how]()


def make_there(how: str) -> None:
    kept["it"] = MAKES[how]()


def close_there() -> None:
    kept.pop("it").close()


def end_the_main_thread() -> None:
    """Leave this process as in the moment of its end in which nothing of it can be opened, and a thread still runs."""
    from xpushare import _native

    _native.start_warden()
    ctypes.CDLL(None).syscall(_EXIT, 0)


_EXIT = {"x86_64": 60}.get(os.uname().machine, 93)  # the system call that ends a thread


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> list[groups._Busy]:
    """For which processes this one has waited."""
    found: list[groups._Busy] = []
    wait = groups._Turn.wait

    def noted(turn: groups._Turn, busy: groups._Busy) -> None:
        found.append(busy)
        wait(turn, busy)

    monkeypatch.setattr(groups._Turn, "wait", noted)
    return found


@contextlib.contextmanager
def opening(how: str) -> Iterator[list[Any]]:
    """Open it in a thread; what it returned or raised."""
    done: list[Any] = []

    def run() -> None:
        try:
            done.append(OPENS[how]())
        except Exception as error:
            done.append(error)

    thread = threading.Thread(target=run, name="opening")
    thread.start()
    yield done
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    with contextlib.closing(done[0]):
        pass


def withdraw_all() -> None:
    """Leave this process as in the moment of its end in which its memory is gone and it still lives."""
    for group in groups._members.values():
        for each in group._exports:
            each.end()


@pytest.mark.parametrize("ends", [withdraw_all, end_the_main_thread])
@pytest.mark.parametrize("how", OPENS)
def test_an_open_that_meets_an_end_begins_again(how: str, ends: Callable[[], None], busy: list[groups._Busy]) -> None:
    with Child() as first, Child() as second:
        first.call(make_there, how)
        pending = first.start(ends)
        if ends is withdraw_all:
            pending.result()
        else:
            wait_until(lambda: state_of(first.pid)[0] == b"Z")
        with opening(how) as done:
            wait_until(lambda: busy)
            assert busy[0].pid == first.pid
            first.kill()
            second.call(make_there, how)
        assert not isinstance(done[0], Exception)
        second.call(close_there)


class Interrupted(BaseException):
    pass


def path_of(how: str) -> Path:
    return groups.folder() / groups._file(
        {"lock": groups.LOCK, "atomic": groups.ATOMIC}.get(how, groups.CHANNEL), "test"
    )


def is_locked(path: Path) -> bool:
    """Whether a process has the lock on the file."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        return _native.NameLock.holder(file.fileno()) is not None
    return False


@pytest.mark.parametrize("how", OPENS)
@pytest.mark.parametrize("error", [xs.OutOfMemoryError("none is left"), Interrupted(), xs.HandleExpiredError("gone")])
def test_a_join_that_fails_keeps_nothing(how: str, error: BaseException) -> None:
    """Not even while somebody keeps the exception, and with it the frames that it came through."""

    def fail() -> int:
        def refuse(_handle: object) -> None:
            raise error

        gc.disable()
        opened, memory.open_ = memory.open_, refuse  # type: ignore[assignment]
        groups._STOPPED_MOST = groups._BUSY_MOST = 0.01  # type: ignore[misc]
        try:
            if how == "channel":
                xs.Channel.open("test", timeout=0.01)
            else:
                open_there(how)
        except BaseException as found:
            kept["error"] = found
        finally:
            memory.open_ = opened
        return len(_native.fds_linked_to("/proc/self/fd", str(groups.folder()), str(groups.folder())))

    with contextlib.closing(MAKES[how]()), Child() as child:
        assert child.call(fail) == 0
        assert not is_locked(path_of(how))
        assert child.call(lambda: "error" in kept)


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("how", [each for each in OPENS if each != "atomic"])
def test_an_interrupt_of_a_join_keeps_no_lock(how: str, fresh: bool) -> None:
    """Wherever it comes: where a Python function begins, or a C function has returned."""

    def interrupted(at: int) -> bool:
        """Whether the open was interrupted: at the event with that number in these modules, if there are so many."""
        left = [at]

        def count(frame: Any, event: str, _argument: object) -> None:
            if event in ("call", "c_return") and frame.f_code.co_filename in (groups.__file__, locked_files.__file__):
                left[0] -= 1
                if not left[0]:
                    sys.setprofile(None)
                    raise Interrupted

        sys.setprofile(count)
        try:
            if how == "channel":
                xs.Channel.open("test", timeout=0).close()
            else:
                OPENS[how]().close()
        except (Interrupted, TimeoutError) as error:
            kept.setdefault("errors", []).append(error)
        finally:
            sys.setprofile(None)
        return left[0] <= 0

    if not fresh:
        made = MAKES[how]()
    path = path_of(how)
    with Child() as child:
        child.call(gc.disable)
        at = 1
        while child.call(interrupted, at):
            at += 1
            assert not is_locked(path), at
        assert at > 20
    if not fresh:
        made.close()
    groups._swept = -groups._SWEEP_REST
    groups._sweep(groups.folder())


def test_an_open_that_times_out_keeps_no_descriptor() -> None:
    kept["errors"] = []
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(TimeoutError) as error:
            xs.Channel.open("test", timeout=0.01)
        kept["errors"].append(error.value)
    assert len(os.listdir("/proc/self/fd")) == before
    del kept["errors"]


@pytest.mark.parametrize("how", OPENS)
def test_joins_do_not_wait_for_each_other(how: str) -> None:
    def stop_in_a_join() -> None:
        admit = groups.Place.admit

        def stopped(place: groups.Place, *arguments: Any) -> Any:
            os.kill(os.getpid(), signal.SIGSTOP)
            return admit(place, *arguments)

        groups.Place.admit = stopped  # type: ignore[method-assign, assignment]
        open_there(how)

    with contextlib.closing(MAKES[how]()), Child() as child:
        pending = child.start(stop_in_a_join)
        wait_until(lambda: groups._is_stopped(child.pid))
        with contextlib.closing(OPENS[how]()):  # by a member
            pass
        with Child() as other:  # by a newcomer
            other.call(open_there, how)
            other.call(close_there)
        os.kill(child.pid, signal.SIGCONT)
        pending.result()
        child.call(close_there)


@contextlib.contextmanager
def stopped_process(how: str, where: str) -> Iterator[Child]:
    """A process that is stopped while it makes what `how` opens, or while it removes its file: `where` is a function of
    `os`.
    """

    def stop() -> None:
        function = getattr(os, where)

        def stopped(*arguments: Any) -> Any:
            setattr(os, where, function)
            os.kill(os.getpid(), signal.SIGSTOP)
            return function(*arguments)

        made = MAKES[how]() if where == "unlink" else None
        setattr(os, where, stopped)
        if made is None:
            make_there(how)
        else:
            made.close()

    with Child() as child:
        pending = child.start(stop)
        wait_until(lambda: groups._is_stopped(child.pid))
        yield child
        os.kill(child.pid, signal.SIGCONT)
        pending.result()
        if where != "unlink":
            child.call(close_there)


@pytest.mark.parametrize("how", ["create", "lock", "atomic"])
def test_nobody_waits_for_a_maker(how: str, busy: list[groups._Busy]) -> None:
    with stopped_process(how, "link") as maker, contextlib.closing(OPENS[how]()) as mine:
        os.kill(maker.pid, signal.SIGCONT)  # it finds that another was faster, and opens the same
        if how == "atomic":
            mine.add(5)
            wait_until(lambda: len(groups._known["atomic.test"].native.handles()) == 2)
            assert maker.pid in [groups._known["atomic.test"].native.pid(member) for member in (0, 1)]
    assert not busy


def test_the_callers_time_decides(busy: list[groups._Busy], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_STOPPED_MOST", 0.0)  # for calls without a timeout only
    with stopped_process("create", "unlink") as remover:
        with pytest.raises(
            TimeoutError, match=f"process {remover.pid} has been .* the channel 'test' .* It is stopped"
        ):
            xs.Channel.open("test", timeout=0.01)
        with opening("channel") as done:
            before = len(busy)
            wait_until(lambda: len(busy) > before + 2)
            with contextlib.closing(xs.Lock("other")):  # which does not wait, too
                pass
            os.kill(remover.pid, signal.SIGCONT)
            wait_until(lambda: not is_locked(path_of("channel")))
            with contextlib.closing(OPENS["create"]()):
                wait_until(lambda: done)
        assert not isinstance(done[0], Exception)


def test_waiting_for_a_remover_takes_little_cpu_time() -> None:
    with stopped_process("lock", "unlink") as remover, opening("lock") as done:
        (waiting,) = (each for each in threading.enumerate() if each.name == "opening")
        takes_little_cpu_time(waiting)
        assert not done
        os.kill(remover.pid, signal.SIGCONT)


@pytest.mark.parametrize("how", ["create", "lock", "atomic"])
def test_a_stopped_remover_is_named(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_STOPPED_MOST", 0.01)
    with (
        stopped_process(how, "unlink") as remover,
        pytest.raises(TimeoutError, match=f"process {remover.pid} .* resume or end it"),
    ):
        OPENS[how]()


def test_each_process_in_the_way_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_BUSY_MOST", 1e-9)
    turn = groups._Turn("lock 'test'", None)
    for pid in range(-20, 0):
        turn.wait(groups._Busy(pid, "joining"))
    with pytest.raises(TimeoutError, match="process -1 has been joining the lock 'test'"):
        turn.wait(groups._Busy(-1, "joining"))


@pytest.mark.parametrize("members", [128, 3, 1024])
def test_one_end_too_many(members: int) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(xs.Channel.create("test", 2, slots=3, members=members))
        ends = [stack.enter_context(xs.Channel.open("test")) for _ in range(members - 1)]
        advice = "are not needed" if members == 1024 else "larger members="
        with pytest.raises(xs.InvalidArgumentError, match=f"the channel 'test' has {members} ends, and .*{advice}$"):
            xs.Channel.open("test")
        with pytest.raises(xs.InvalidArgumentError, match=f"with other .*members={members}, not 4"):
            xs.Channel.create("test", 2, slots=3, members=4)
        ends[-1].close()
        with xs.Channel.open("test"):
            pass
        assert len(channels()[0]["members"]) == members - 1


def take_every_index() -> None:
    """Lock the bytes of all members of a group that do not live, as if they did."""
    fd = next(iter(groups._known.values())).native.fd
    for number in range(_native.GROUP_MEMBERS):
        _native.lock(fd, _native.GROUP_LIFE + number)


@pytest.mark.parametrize("how", OPENS)
def test_one_process_too_many(how: str) -> None:
    kind = "channel" if how == "create" else how
    with Child() as child:
        child.call(make_there, how)
        child.call(take_every_index)
        with pytest.raises(xs.InvalidArgumentError, match=f"the {kind} 'test' is open in as many processes as it can"):
            OPENS[how]()
        if how in ("lock", "atomic"):
            late = pickle.loads(child.call(lambda: pickle.dumps(kept["it"])))
            assert "not opened: " in repr(late)
            assert "as many processes" in repr(late)
            for _ in range(2):  # a new exception each time
                with pytest.raises(xs.InvalidArgumentError, match="as many processes") as found:
                    late.acquire() if how == "lock" else late.load()
                assert len(found.traceback) < 5
            late.close()
        child.call(close_there)


def test_no_more_writers_than_a_channel_can_have() -> None:
    with xs.Channel.create("test", 2, slots=66, writers=64), contextlib.ExitStack() as stack:
        for _ in range(63):
            stack.enter_context(xs.Channel.create("test", 2, slots=66, writers=64))
        with pytest.raises(xs.InvalidArgumentError, match="64 writers, the most that a channel can have"):
            xs.Channel.create("test", 2, slots=66, writers=64)


def test_the_pages_name_the_same_limits() -> None:
    page = (Path(__file__).parents[2] / "docs" / "channels.md").read_text()
    members = f"{_native.GROUP_MEMBERS:,}"
    assert f"can have {WRITERS_MOST} writers, and 128 writers and readers together" in page
    assert f"`members=`, at most {members}" in page
    assert f"can be open in {members} processes" in page
    for made in (xs.Channel.create, xs.Lock, xs.Atomic):
        assert members in (made.__doc__ or "")
    assert "128" in (xs.Channel.open.__doc__ or "")
    assert f"from 1 to {WRITERS_MOST}" in (xs.Channel.create.__doc__ or "")


@pytest.mark.parametrize("kind", ["Lock", "Atomic"])
def test_what_cannot_be_unpickled_can_be_shown_and_says_why(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(getattr(xs, kind)()) as there:
        raw = pickle.dumps(there)
    errors: tuple[Exception | None, ...] = (
        None, TimeoutError("it is stopped"), MemoryError("none is left"), OSError("input")
    )  # fmt: skip
    for error in errors:
        if error is not None:
            monkeypatch.setattr(groups, "meet", lambda *_arguments, _error=error, **_options: raised(_error))
        late = pickle.loads(raw)
        assert repr(late).startswith(f"<{kind} not opened: ")
        with pytest.raises(type(error or xs.HandleExpiredError("")), match=str(error or "nobody has")):
            late.acquire() if kind == "Lock" else late.add(1)
        assert pickle.dumps(late) == raw  # where it can be opened, it will be
        late.close()
        assert repr(late) == f"<{kind} closed>"


def raised(error: Exception) -> None:
    raise error


def test_the_repr_of_an_atomic_of_the_parent_process() -> None:
    with xs.Atomic(3, "test") as number:
        kept["number"] = number
        with Child(method="fork") as child:
            assert child.call(lambda: repr(kept["number"])) == "<Atomic 'test' that cannot be used here>"
        del kept["number"]


def test_another_version_of_the_words_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_another_version(how: str) -> None:
        make_there(how)
        place = next(iter(groups._known.values()))
        memoryview(memory_over(place.ranges[0]))[8:12] = (4242).to_bytes(4, "little")

    monkeypatch.setattr(groups, "_STOPPED_MOST", 0.01)
    for how in OPENS:
        with Child() as child:
            child.call(of_another_version, how)
            with pytest.raises(xs.InvalidHandleError, match=f"version 4242 .* version {_native.GROUP_VERSION}"):
                OPENS[how]()
            child.call(close_there)


def test_a_look_at_a_channel_leaves_no_number_of_a_descriptor() -> None:
    """Another file may have that number when this process clears up, and says nothing of who has the channel open."""
    with Child() as child:
        child.call(make_there, "create")
        with contextlib.ExitStack() as stack:
            assert [each["name"] for each in channels()] == ["test"]
            for _ in range(8):
                stack.enter_context(tempfile.TemporaryFile())
            groups.reap(True)
        OPENS["channel"]().close()
        child.call(close_there)


def test_the_memory_of_a_group_that_a_peer_sends_costs_no_life() -> None:
    """Closing any descriptor of a file drops this process's locks on it, by which others see that it lives."""

    def receive_own_memory() -> None:
        from xpushare.common.fds import OwnedFd

        place = next(iter(groups._known.values()))
        OwnedFd(os.dup(place.native.fd)).close()

    with Child() as child:
        child.call(make_there, "create")
        with xs.Channel.open("test"):
            child.call(receive_own_memory)
            place = next(iter(groups._known.values()))
            assert child.pid in [place.native.pid(member) for member in (0, 1)]
            assert {each["pid"] for each in channels()[0]["members"]} == {os.getpid(), child.pid}
        child.call(close_there)


def use_own_files(how: str) -> None:
    """Read, copy and remove the files of this process, as a backup and a user would."""
    for name in os.listdir(groups.folder()):
        path = groups.folder() / name
        content = path.read_bytes()
        path.with_name("copy").write_bytes(content)
        path.with_name("copy").unlink()
        if how == "removed":
            path.unlink()


@pytest.mark.parametrize("how", ["read", "removed"])
def test_what_a_process_does_with_its_files_changes_nothing(how: str) -> None:
    """It is also without effect on those that it has not made. A removed file is made again."""
    with Child() as child, contextlib.closing(xs.Lock("made-here")) as lock:
        child.call(lambda: kept.update(made=xs.Lock("made-there"), channel=xs.Channel.create("test", 2)))
        child.call(lambda: kept.update(lock=xs.Lock("made-here")))
        with contextlib.closing(xs.Lock("made-there")) as other, lock, other, xs.Channel.open("test") as reader:
            use_own_files(how)
            groups._swept = -groups._SWEEP_REST
            child.call(lambda: xs.Lock().close())  # makes files again
            groups._sweep(groups.folder())
            for each in ("lock", "made"):
                with pytest.raises(TimeoutError):
                    child.call(lambda each=each: kept[each].acquire(0.01))

            def second_owner() -> list[str]:
                owned = []
                for name in ("made-here", "made-there"):
                    with contextlib.suppress(TimeoutError), contextlib.closing(xs.Lock(name)) as found:
                        found.acquire(0.01)
                        owned.append(name)
                return owned

            with Child() as stranger:
                assert stranger.call(second_owner) == []
            child.call(lambda: kept["channel"].send([1.0, 2.0]))
            with reader.receive(TIMEOUT) as frame:
                assert frame.seq == 1
        child.call(lambda: [kept.pop(each).close() for each in ("made", "lock", "channel")])


def test_a_removed_file_whose_name_another_has_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.closing(xs.Lock("test")) as lock, Child() as child:
        path_of("lock").unlink()
        child.call(open_there, "lock")
        with contextlib.closing(xs.Lock("test")) as other, lock:
            assert "has opened the lock 'test' before somebody removed the file" in caplog.text
            other.acquire(0)  # it is the child's
            other.release()
        child.call(close_there)


def test_thousands_of_locks_take_few_descriptors() -> None:
    xs.Lock().close()  # starts threads
    before = len(os.listdir("/proc/self/fd"))
    locks = [xs.Lock() for _ in range(2000)]
    assert len(os.listdir("/proc/self/fd")) < before + 10
    while locks:
        locks.pop().close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_full_home_is_followed_by_another() -> None:
    with contextlib.closing(xs.Lock()) as first:
        home = groups.home()
        memory = memoryview(memory_over(home.ranges[0]))
        members, places = struct.unpack_from("<II", memory, 24)
        struct.pack_into("<I", memory, 32, places)
        generations: Any = np.ndarray(places, "u8", memory, 64 + 544 * members, 144)
        generations[generations == 0] = 1  # as if each place had an object
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(contextlib.closing(xs.Lock()))
            assert groups.home() is not home
            with first:
                pass
    assert groups._home is None
