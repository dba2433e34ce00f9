"""The harness itself: what the other tests build on."""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import harness
from harness import Child, ChildDied, HarnessError, children, fd_count, wait_until


def add(x: int, y: int) -> int:
    return x + y


def refuse() -> None:
    raise ValueError("no")


def unpicklable() -> object:
    raise type("Odd", (Exception,), {"__reduce__": lambda _self: (refuse, ())})("odd")


def test_calls(no_fd_leak: None) -> None:  # noqa: ARG001
    with Child() as child:
        assert child.call(add, 1, y=2) == 3
        assert child.call(lambda: os.getpid()) == child.pid != os.getpid()
        with pytest.raises(ValueError, match="no") as caught:
            child.call(refuse)
        assert "in refuse" in caught.value.__notes__[0]
        with pytest.raises(HarnessError, match="odd"):
            child.call(unpicklable)
    assert not child.alive


def test_pending_results_keep_their_order() -> None:
    with Child() as child:
        slow, fast = child.start(time.sleep, 0.3), child.start(add, 1, 1)
        assert not fast.done()
        assert fast.result() == 2
        assert slow.result(0) is None


def test_source() -> None:
    with Child("x = 3") as child:
        assert child.call(lambda: harness.kept["x"]) == 3
    with pytest.raises(ZeroDivisionError):
        Child("1 / 0")


def test_time_out_is_no_timeout_error(no_fd_leak: None) -> None:  # noqa: ARG001
    with Child() as child:
        pending = child.start(time.sleep, 60)
        with pytest.raises(HarnessError, match="not answered"):
            pending.result(0.1)
        child.kill()
        with pytest.raises(ChildDied):
            pending.result()
        with pytest.raises(ChildDied):
            child.call(add, 1, 1)
    assert child not in children


def test_death_is_told() -> None:
    with Child() as child, pytest.raises(ChildDied, match="exit status 3"):
        child.call(os._exit, 3)
    with Child() as child:
        child.start(os._exit, 5)
        wait_until(lambda: not child.alive)
        assert child.exit() == 5


def test_bad_exit_status_is_an_error() -> None:
    with pytest.raises(HarnessError, match="ended with exit status 4"), Child() as child:
        child.call(exec, "import atexit, os; atexit.register(os._exit, 4)")


def test_fork() -> None:
    marker = [1]
    with Child(method="fork") as child:
        marker.append(2)
        assert child.call(sum, marker) == 3
        assert child.call(lambda: os.getppid()) == os.getpid()
        assert child.exit() == 0


def began() -> tuple[object, ...]:
    """What tells how a process began."""
    with open("/proc/self/cmdline") as file:
        return "forkserver" in file.read(), os.environ.get("XS_A"), os.getcwd(), threading.active_count()


def test_prepared_children_are_as_fresh_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with Child() as child, Child() as other:
        assert child.call(began) == (True, None, os.getcwd(), 1)
        assert child.call(os.getppid) == other.call(os.getppid) != os.getpid()
        child.call(harness.kept.update, x=1)
        assert other.call(dict, harness.kept) == {}
        assert child.call(signal.getsignal, signal.SIGINT) is signal.default_int_handler
    with Child(method="spawn") as child:
        assert child.call(began)[0] is False
        assert child.call(os.getppid) == os.getpid()
    monkeypatch.setenv("XS_A", "1")
    with Child() as child:
        assert child.call(began)[:2] == (False, "1")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    with Child() as child:
        assert child.call(began) == (False, None, str(tmp_path), 1)


def test_an_answer_that_nobody_waits_for_any_more_is_no_other_questions() -> None:
    """Ctrl-C came between a question to what forks and its answer."""
    with Child() as child:
        server = harness._forkserver_of(os.getpid(), ())
        server._number += 1
        server._socket.send(pickle.dumps((server._number, child.pid)))
        with Child() as another:
            assert another.call(os.getpid) == another.pid
        assert server.exit_status(child.pid) is None


def test_a_prepared_child_writes_where_this_process_does(capfd: pytest.CaptureFixture[str]) -> None:
    with Child() as child:
        child.call(os.write, 1, b"out")
        child.call(os.write, 2, b"err")
    assert capfd.readouterr() == ("out", "err")


def test_a_program_ends_as_an_interpreter_does() -> None:
    says = "atexit.register(print, 'at exit'); print(__name__, *sys.argv, os.environ['XS_A']); 1 / 0"
    done = harness.program(f"import atexit, os, sys; {says}", "a", env={"XS_A": "1"})
    assert (done.returncode, done.stdout) == (1, "__main__ -c a 1\nat exit\n")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert harness.program("raise SystemExit(3)").returncode == 3


def test_environment_and_prefix() -> None:
    with Child(env={"XS_A": "1", "HOME": None}, prefix=["nice"]) as child:
        assert child.call(lambda: (os.environ.get("XS_A"), os.environ.get("HOME"))) == ("1", None)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_another_user_reads_no_more_modules() -> None:
    def become() -> tuple[set[int], list[int]]:
        harness.become_another_user(12345)
        with pytest.raises(PermissionError):
            os.setuid(0)
        with pytest.raises(ModuleNotFoundError):
            import xpushare.cli  # noqa: F401
        import faulthandler  # noqa: F401 - is not of a file
        import json  # noqa: F401 - is here already

        return {*os.getresuid(), *os.getresgid()}, os.getgroups()

    def load() -> None:
        import json  # noqa: F401

    with Child(load) as child:
        assert child.call(become) == ({12345}, [])


def test_counts() -> None:
    with Child() as child:
        child.call(int)  # it has started, and what its imports opened is closed
        before = fd_count(child.pid)
        child.call(lambda: harness.kept.update(fd=os.open("/dev/null", os.O_RDONLY)))
        assert fd_count(child.pid) == before + 1
    assert harness.rss() > 1 << 20
    assert harness.mapping_count() > 10
    with pytest.raises(HarnessError, match="never"):
        wait_until(lambda: False, 0.05, "never")


class AtTeardown:
    def __init__(self, note: Callable[[bytes], object]) -> None:
        self.note = note

    def __del__(self) -> None:
        self.note(b"modules\n")


def leave_notes(path: Path) -> None:
    """Have the end of this process write what it does: a thread that it joins, `atexit`, the teardown of modules."""
    note = functools.partial(os.write, os.open(path, os.O_WRONLY | os.O_CREAT))
    going = threading.Event()
    atexit.register(note, b"atexit\n")
    globals()["at_teardown"] = AtTeardown(note)
    threading.Thread(target=lambda: (going.set(), threading.main_thread().join(), note(b"thread\n"))).start()
    going.wait()


@pytest.mark.parametrize(
    ("teardown", "asked", "notes"),
    [(True, False, "thread atexit modules"), (False, False, "thread atexit"), (False, True, "thread atexit modules")],
)
def test_the_end_of_a_prepared_child(
    teardown: bool, asked: bool, notes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "teardown", teardown)
    path = tmp_path / "notes"
    with Child() as child:
        child.call(leave_notes, path)
        if asked:
            child.exit()
    assert path.read_text().split() == notes.split()
