"""The clean exit: what queues can finish is finished, in one bounded time, however the process was made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from leaving_peer import HOWS

import xpushare as xs
from harness import program, withdraw_all
from sampling import sampled

DEVICES = ["native_cpu:0", "mock:0", "mock:1"]
SOME_DEVICES = sampled(DEVICES, DEVICES[:1])  # an exit does not ask what kind of queue is at work
LONG = {"XPUSHARE_LINGER": "600"}  # who lingers in vain fails the test


@contextmanager
def process(how: str, what: str, *arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A process of `leaving_peer`, with its children; they do not survive the block."""
    source = f"import sys; sys.path[:] = {sys.path!r}; import leaving_peer; leaving_peer.main()"
    with subprocess.Popen(
        [sys.executable, "-c", source, how, what, *arguments],
        env={**os.environ, "PYTHONWARNINGS": "ignore::DeprecationWarning", **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as made:
        try:
            yield made
        finally:
            try:
                os.killpg(made.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def leaving_pid(made: subprocess.Popen[str]) -> int:
    """The process that leaves, once it does."""
    assert made.stdout is not None
    line = made.stdout.readline().split()
    assert line[:1] == ["leaving"], (line, made.stderr and made.stderr.read())
    return int(line[1])


class Gate:
    """An event whose first point is submitted, and comes when the gate is opened."""

    def __init__(self) -> None:
        self.event = xs.Event("native_cpu:0", enable_ipc=True)
        self._queue = xs.Queue("native_cpu:0")
        self._opened = threading.Event()
        self._queue.submit(self._opened.wait)
        self._queue.signal(self.event)
        self.handle = str(xs.ipc.event.get(self.event))

    def open(self) -> None:
        self._opened.set()


@pytest.fixture(autouse=True)
def _puts() -> Iterator[None]:
    """Put what a test has exported."""
    yield
    withdraw_all()


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open()


@pytest.fixture
def end() -> Iterator[xs.Event]:
    with xs.Event("native_cpu:0", enable_ipc=True) as event:
        yield event


@pytest.fixture
def out() -> Iterator[xs.Memory]:
    with xs.malloc_host(1 << 20, "native_cpu:0") as memory:
        yield memory


@pytest.mark.parametrize("device", SOME_DEVICES)
@pytest.mark.parametrize("how", HOWS)
def test_queued_work_is_done(how: str, device: str, gate: Gate, out: xs.Memory, end: xs.Event) -> None:
    handles = gate.handle, str(xs.ipc.memory.get(out)), str(xs.ipc.event.get(end))
    with process(how, "work", device, *handles, **LONG) as made:
        leaving_pid(made)
        assert made.poll() is None
        gate.open()
        output = made.communicate(timeout=30)
    assert (made.returncode, *output) == (0, "", "")
    end.wait(0, at_least=1)
    assert bytes(memoryview(out)) == b"\x2a" * out.nbytes


@pytest.mark.parametrize("device", SOME_DEVICES)
@pytest.mark.parametrize("how", ["script", "fork"])
def test_what_cannot_be_finished_is_not_waited_for(how: str, device: str, end: xs.Event) -> None:
    with process(how, "stuck", device, str(xs.ipc.event.get(end)), **LONG) as made:
        output = made.communicate(timeout=30)
    assert (made.returncode, *output) == (0, "", "")
    end.wait(0, at_least=1)


@pytest.mark.parametrize("device", DEVICES)
def test_the_time_is_bounded(device: str, gate: Gate, out: xs.Memory, end: xs.Event) -> None:
    handles = gate.handle, str(xs.ipc.memory.get(out)), str(xs.ipc.event.get(end))
    with process("script", "work", device, *handles, XPUSHARE_LINGER="0.2") as made:
        pid = leaving_pid(made)
        _, errors = made.communicate(timeout=30)
    assert made.returncode == 0
    assert errors == f"process {pid} exits before its queues have finished (XPUSHARE_LINGER)\n"
    with pytest.raises(xs.PeerLostError, match="exited while it owed the signal"):
        end.wait(10, at_least=1)


@pytest.mark.parametrize("how", ["script", "fork", "spawn"])
def test_an_interrupt_ends_the_lingering_and_keeps_the_status(
    how: str, gate: Gate, out: xs.Memory, end: xs.Event
) -> None:
    handles = gate.handle, str(xs.ipc.memory.get(out)), str(xs.ipc.event.get(end))
    with process(how, "work_and_status", "native_cpu:0", *handles, **LONG) as made:
        os.kill(leaving_pid(made), signal.SIGINT)
        _, errors = made.communicate(timeout=30)
    assert made.returncode == 3
    assert errors.splitlines()[1:] == [], "one warning, no traceback"
    with pytest.raises(xs.PeerLostError, match="exited while it owed the signal"):
        end.wait(10, at_least=1)


@pytest.mark.parametrize("how", sampled(HOWS[2:], HOWS[2:3]))
def test_an_array_arrives_that_a_child_queued_last(how: str) -> None:
    with process("script", "receive", how, **LONG) as made:
        output = made.communicate(timeout=60)
    assert sorted(output[0].splitlines()) == ["feeders 0", "status 0", "sum 999"], output
    assert made.returncode == 0


@pytest.mark.parametrize("device", SOME_DEVICES)
def test_calls_after_the_process_has_left(device: str) -> None:
    with process("script", "calls_after_leaving", device) as made:
        output = made.communicate(timeout=60)
    assert (made.returncode, *output) == (0, "over\n", "")


def run(source: str, **env: str) -> tuple[str, str]:
    done = program(source, env=env)
    assert done.returncode == 0, done
    return done.stdout, done.stderr


ORDER = """
import os, signal, time
from xpushare.common.leaving import Stage, at_leave

def linger(deadline):
    print("linger", round(deadline - time.monotonic()) if deadline else "no more", flush=True)
    if INTERRUPT:
        os.kill(os.getpid(), signal.SIGINT)
    raise ValueError("as planned")

at_leave(lambda deadline: print("stop", bool(deadline)), Stage.STOP)
at_leave(linger, Stage.LINGER)
at_leave(linger, Stage.LINGER)
at_leave(lambda deadline: print("finish", bool(deadline)), Stage.FINISH)
"""


def test_stages() -> None:
    out, errors = run("INTERRUPT = False" + ORDER, XPUSHARE_LINGER="40")
    assert out.split("\n") == ["finish True", "linger 40", "stop True", ""]
    assert "ValueError: as planned" in errors


def test_an_interrupted_callback_is_called_once_more() -> None:
    out, errors = run("INTERRUPT = True" + ORDER)
    assert out.split("\n") == ["finish True", "linger 10", "linger no more", "stop False", ""]
    assert "KeyboardInterrupt" not in errors


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_a_time_that_is_none(text: str) -> None:
    out, errors = run("INTERRUPT = False" + ORDER, XPUSHARE_LINGER=text)
    assert "linger 10" in out
    assert errors.startswith(f"XPUSHARE_LINGER is a number of seconds, not {text!r}: 10 is used\n")


def test_ctrl_c_that_ends_the_process_does_not_linger() -> None:
    source = "INTERRUPT = False" + ORDER + "\ntry:\n    raise KeyboardInterrupt\nfinally:\n    pass\n"
    done = program(source)
    assert "linger no more" in done.stdout
