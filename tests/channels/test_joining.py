"""Joining a channel, lock or atomic while other processes join, make, leave or end, are stopped, or fail."""

# pyright: reportPrivateUsage=false
# (the tests come between the steps of a join)

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import xpushare as xs
from harness import TIMEOUT, Child, kept, takes_little_cpu_time, wait_until
from xpushare import _native
from xpushare.channels import crews
from xpushare.channels.geometry import WRITERS_MOST
from xpushare.channels.survey import channels
from xpushare.core import memory
from xpushare.sharing import locked_files

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


def about_to_end() -> None:
    """Leave this process as in the moment of its end in which its memory is gone and its membership is not."""
    crew = next(iter(crews._known.values()))
    crew.exports.clear()


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> list[crews._Busy]:
    """For which processes this one has waited."""
    found: list[crews._Busy] = []
    wait = crews._Turn.wait

    def noted(turn: crews._Turn, busy: crews._Busy) -> None:
        found.append(busy)
        wait(turn, busy)

    monkeypatch.setattr(crews._Turn, "wait", noted)
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


@pytest.mark.parametrize("how", OPENS)
def test_an_open_that_meets_an_end_begins_again(how: str, busy: list[crews._Busy]) -> None:
    with Child() as first, Child() as second:
        first.call(make_there, how)
        first.call(about_to_end)
        with opening(how) as done:
            wait_until(lambda: busy)
            assert busy[0].pid == first.pid
            first.kill()
            second.call(make_there, how)
        assert not isinstance(done[0], Exception)
        second.call(close_there)


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("how", OPENS)
@pytest.mark.parametrize("error", [xs.OutOfMemoryError("none is left"), Interrupted(), xs.HandleExpiredError("gone")])
def test_a_join_that_fails_keeps_nothing(how: str, error: BaseException) -> None:
    """Not even while somebody keeps the exception, and with it the frames that it came through."""

    def fail() -> int:
        def refuse(_handle: object) -> None:
            raise error

        gc.disable()
        opened, memory.open_ = memory.open_, refuse  # type: ignore[assignment]
        crews._STOPPED_MOST = crews._BUSY_MOST = 0.01  # type: ignore[misc]
        try:
            if how == "channel":
                xs.Channel.open("test", timeout=0.01)
            else:
                open_there(how)
        except BaseException as found:
            kept["error"] = found
        finally:
            memory.open_ = opened
        return len(_native.fds_linked_to("/proc/self/fd", str(crews.folder()), str(crews.folder())))

    with contextlib.closing(MAKES[how]()), Child() as child:
        assert child.call(fail) == 0
        crew = next(iter(crews._known.values()))
        assert _native.lock_holder(crew.number, _native.CREW_JOIN) is None
        assert child.call(lambda: "error" in kept)


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("how", [each for each in OPENS if each != "atomic"])
def test_an_interrupt_of_a_join_keeps_no_lock(how: str, fresh: bool) -> None:
    """Wherever it comes: where a Python function begins, or a C function has returned."""

    def interrupted(at: int) -> bool:
        """Whether the open was interrupted: at the event with that number in these modules, if there are so many."""
        left = [at]

        def count(frame: Any, event: str, _argument: object) -> None:
            if event in ("call", "c_return") and frame.f_code.co_filename in (crews.__file__, locked_files.__file__):
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
    path = crews.folder() / crews._file({"lock": crews.LOCK, "atomic": crews.ATOMIC}.get(how, crews.CHANNEL), "test")
    with Child() as child:
        child.call(gc.disable)
        at = 1
        while child.call(interrupted, at):
            at += 1
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                if fresh:  # closing the file of a crew of this process would drop its locks
                    assert _native.lock_holder(file.fileno(), _native.CREW_JOIN) is None, at
            if not fresh:
                assert _native.lock_holder(next(iter(crews._known.values())).number, _native.CREW_JOIN) is None, at
        assert at > 20
    if not fresh:
        made.close()
    crews._swept = -crews._SWEEP_REST
    crews._sweep(crews.folder())


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
        admit = crews.Crew.admit

        def stopped(crew: crews.Crew, *arguments: Any) -> Any:
            os.kill(os.getpid(), signal.SIGSTOP)
            return admit(crew, *arguments)

        crews.Crew.admit = stopped  # type: ignore[method-assign]
        open_there(how)

    with contextlib.closing(MAKES[how]()), Child() as child:
        pending = child.start(stop_in_a_join)
        wait_until(lambda: crews._is_stopped(child.pid))
        crew = next(iter(crews._known.values()))
        assert _native.lock_holder(crew.number, _native.CREW_JOIN) == child.pid
        with contextlib.closing(OPENS[how]()):  # by a member
            pass
        with Child() as other:  # by a newcomer
            other.call(open_there, how)
            other.call(close_there)
        os.kill(child.pid, signal.SIGCONT)
        pending.result()
        child.call(close_there)


@contextlib.contextmanager
def stopped_maker(how: str) -> Iterator[Child]:
    """A process that is stopped while it makes what `how` opens."""

    def stop() -> None:
        allocate = memory.allocate

        def stopped(*arguments: Any) -> Any:
            memory.allocate = allocate
            os.kill(os.getpid(), signal.SIGSTOP)
            return allocate(*arguments)

        memory.allocate = stopped
        make_there(how)

    with Child() as child:
        pending = child.start(stop)
        wait_until(lambda: crews._is_stopped(child.pid))
        yield child
        os.kill(child.pid, signal.SIGCONT)
        pending.result()
        child.call(close_there)


def test_the_callers_time_decides(busy: list[crews._Busy], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "_STOPPED_MOST", 0.0)  # for calls without a timeout only
    with stopped_maker("channel") as maker:
        with pytest.raises(TimeoutError, match=f"process {maker.pid} has been .* the channel 'test' .* It is stopped"):
            xs.Channel.open("test", timeout=0.01)
        with opening("channel") as done:
            before = len(busy)
            wait_until(lambda: len(busy) > before + 2)
            with contextlib.closing(xs.Lock("other")):  # which does not wait, too
                pass
            os.kill(maker.pid, signal.SIGCONT)
        assert not isinstance(done[0], Exception)


def test_waiting_for_a_maker_takes_little_cpu_time() -> None:
    with stopped_maker("channel") as maker, opening("channel") as done:
        (waiting,) = (each for each in threading.enumerate() if each.name == "opening")
        takes_little_cpu_time(waiting)
        assert not done
        os.kill(maker.pid, signal.SIGCONT)


@pytest.mark.parametrize("how", ["create", "lock", "atomic"])
def test_a_stopped_maker_is_named(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "_STOPPED_MOST", 0.01)
    with stopped_maker(how) as maker, pytest.raises(TimeoutError, match=f"process {maker.pid} .* resume or end it"):
        OPENS[how]()


def test_each_process_in_the_way_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "_BUSY_MOST", 1e-9)
    turn = crews._Turn("lock 'test'", None)
    for pid in range(-20, 0):
        turn.wait(crews._Busy(pid, "joining"))
    with pytest.raises(TimeoutError, match="process -1 has been joining the lock 'test'"):
        turn.wait(crews._Busy(-1, "joining"))


@pytest.mark.parametrize("how", OPENS)
def test_one_member_too_many(how: str) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(MAKES[how]()))
        members = [stack.enter_context(contextlib.closing(OPENS["channel" if how == "create" else how]()))]
        while len(members) < 127:
            members.append(stack.enter_context(contextlib.closing(OPENS["channel" if how == "create" else how]())))
        kind = "channel" if how == "create" else how
        with pytest.raises(xs.InvalidArgumentError, match=f"the {kind} 'test' has 128 members"):
            OPENS[how]()
        if how in ("lock", "atomic"):
            late = pickle.loads(pickle.dumps(members[0]))
            assert "not opened: " in repr(late)
            assert "128 members" in repr(late)
            for _ in range(2):  # a new exception each time
                with pytest.raises(xs.InvalidArgumentError, match="128 members") as found:
                    late.acquire() if how == "lock" else late.load()
                assert len(found.traceback) < 5
            late.close()
        members[-1].close()
        with contextlib.closing(OPENS[how]()):
            pass


def test_no_more_writers_than_a_channel_can_have() -> None:
    with xs.Channel.create("test", 2, slots=66, writers=64), contextlib.ExitStack() as stack:
        for _ in range(63):
            stack.enter_context(xs.Channel.create("test", 2, slots=66, writers=64))
        with pytest.raises(xs.InvalidArgumentError, match="64 writers, the most that a channel can have"):
            xs.Channel.create("test", 2, slots=66, writers=64)


def test_the_pages_name_the_same_limits() -> None:
    page = (Path(__file__).parents[2] / "docs" / "channels.md").read_text()
    members = _native.CREW_MEMBERS
    assert f"can have {WRITERS_MOST} writers, and {members} writers and readers together" in page
    assert f"can be open {members} times" in page
    for made in (xs.Channel.create, xs.Channel.open, xs.Lock, xs.Atomic):
        assert str(members) in (made.__doc__ or "")
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
            monkeypatch.setattr(crews, "meet", lambda *_arguments, _error=error, **_options: raised(_error))
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
        crew = next(iter(crews._known.values()))
        memoryview(crews.memory_over(crew.ranges[0]))[8:12] = (4242).to_bytes(4, "little")

    monkeypatch.setattr(crews, "_STOPPED_MOST", 0.01)
    for how in OPENS:
        with Child() as child:
            child.call(of_another_version, how)
            with pytest.raises(xs.InvalidHandleError, match=f"version 4242 .* version {_native.CREW_VERSION}"):
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
            crews.reap(True)
        OPENS["channel"]().close()
        child.call(close_there)


def test_a_crews_file_that_a_peer_sends_costs_no_lock() -> None:
    """Closing any descriptor of a file drops this process's locks on it, by which others see that it lives."""

    def receive_own_file() -> None:
        from xpushare.common.fds import OwnedFd

        OwnedFd(os.open(crews.folder() / "channel.test", os.O_RDWR | os.O_CLOEXEC)).close()

    with Child() as child:
        child.call(make_there, "create")
        child.call(receive_own_file)
        fd = os.open(crews.folder() / "channel.test", os.O_RDWR)
        try:
            assert _native.lock_holder(fd, _native.CREW_LIFE, _native.CREW_MEMBERS) == child.pid
        finally:
            os.close(fd)
        assert [each["name"] for each in channels()] == ["test"]
        child.call(close_there)
