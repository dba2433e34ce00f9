"""An exit that abandons an event is a death (API, section 5)."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import xpushare as xs
from harness import Child, kept
from sampling import sampled

DEVICE = "native_cpu:0"
SOON = 1.5  # a second after the exit, and what the test itself takes
A_MOMENT = 0.1
README = """
    import multiprocessing, os, signal, sys, time
    import numpy as np
    import xpushare as xs

    def double(handle, done):
        {first}
        np.asarray(xs.attach(handle))[:] *= 2
        {failure}

    if __name__ == "__main__":
        array, done = xs.empty(1000, "float32"), xs.Event("native_cpu:0", enable_ipc=True)
        with xs.share(array) as handle:
            child = multiprocessing.get_context({method!r}).Process(target=double, args=(handle, {done}))
            child.start()
            child.join()
            ended = time.monotonic()
            try:
                done.wait(60, at_least=1)
            except xs.PeerLostError as error:
                print("lost", time.monotonic() - ended, error)
"""


def opened(handle: xs.ipc.Handle | bytes, signals: bool | None = None, name: str = "event") -> None:
    kept[name] = pickle.loads(handle) if isinstance(handle, bytes) else xs.ipc.event.open(handle, signals=signals)


def signalled(name: str = "event") -> int:
    event: xs.Event = kept[name]
    return event.signal()


def dropped(name: str = "event") -> None:
    del kept[name]
    gc.collect()


def closed(name: str = "event") -> None:
    kept.pop(name).close()


def waited() -> None:
    with pytest.raises(TimeoutError):
        kept["event"].wait(0, at_least=1)


def lost(event: xs.Event, point: int = 1) -> str:
    began = time.monotonic()
    with pytest.raises(xs.PeerLostError) as caught:
        event.wait(30, at_least=point)
    assert time.monotonic() - began < SOON
    return str(caught.value)


def pending(event: xs.Event, point: int = 1) -> None:
    with pytest.raises(TimeoutError):
        event.wait(A_MOMENT, at_least=point)


FAILURES = (
    "raise ValueError", "sys.exit(1)", "done.signall()", "import no_such_module", "pass", "os._exit(0)",
    "os.kill(os.getpid(), signal.SIGTERM)",
)  # fmt: skip
SHORT = {("spawn", "raise ValueError"), ("spawn", "os._exit(0)"), ("forkserver", "pass"), ("forkserver", FAILURES[-1])}


@pytest.mark.parametrize(
    ("method", "failure"),
    sampled(itertools.product(("spawn", "forkserver"), FAILURES), SHORT),
)
def test_the_readme_program_ends_when_its_child_fails(method: str, failure: str, tmp_path: Path) -> None:
    text = README.format(method=method, first="pass", failure=failure, done="done")
    _ends(text, tmp_path)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_it_ends_when_the_child_declared_and_fails(method: str, tmp_path: Path) -> None:
    text = README.format(
        method=method,
        first="done = xs.ipc.event.open(done, signals=True)",
        failure="raise ValueError",
        done="xs.ipc.event.get(done)",
    )
    _ends(text, tmp_path)


def _ends(text: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(text))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=50, check=False)
    said, took, *_ = done.stdout.split()
    assert said == "lost", done.stderr
    assert float(took) < SOON, done.stderr


@pytest.mark.parametrize("signals", [None, True])
def test_an_exit_without_a_signal_is_a_death(event: xs.Event, peer: Child, signals: bool | None) -> None:
    peer.call(opened, kept["handle"], signals)
    pending(event)
    peer.exit()
    assert f"process {peer.pid} exited, or dropped" in lost(event)


def test_an_exit_of_who_only_waits_is_none(event: xs.Event, peer: Child, other: Child) -> None:
    peer.call(opened, kept["handle"], None)
    peer.call(waited)
    other.call(opened, kept["handle"], False)
    peer.exit()
    other.exit()
    pending(event)


def test_a_declared_process_that_waits_and_exits_abandons(event: xs.Event, peer: Child) -> None:
    peer.call(opened, kept["handle"], True)
    peer.call(waited)
    peer.exit()
    lost(event)


@pytest.mark.parametrize("end", ["exit", "close", "drop"])
def test_after_a_signal_no_end_is_a_death(event: xs.Event, peer: Child, end: str) -> None:
    peer.call(opened, kept["handle"], True)
    peer.call(signalled)
    if end == "exit":
        peer.exit()
    else:
        peer.call(closed if end == "close" else dropped)
    event.wait(10, at_least=1)
    pending(event, 2)


def test_a_close_without_a_signal_is_no_death(event: xs.Event, peer: Child) -> None:
    peer.call(opened, kept["handle"], True)
    peer.call(closed)
    peer.exit()
    pending(event)


def test_a_worker_of_a_pool_that_drops_the_event_and_comes_again(event: xs.Event, peer: Child) -> None:
    peer.call(opened, kept["handle"])
    peer.call(dropped)
    lost(event)
    peer.call(opened, kept["handle"])  # which ends the loss
    pending(event)
    assert peer.call(signalled) == 1
    peer.call(dropped)
    pending(event, 2)
    peer.call(opened, kept["handle"], True)  # what was signalled before that does not count
    peer.call(dropped)
    lost(event, 2)


@pytest.mark.parametrize("last", ["close", "drop", "exit"])
def test_two_objects_of_a_process_end_with_the_last_one(event: xs.Event, peer: Child, last: str) -> None:
    for name in ("event", "second"):
        peer.call(opened, kept["handle"], None, name)
    peer.call(dropped)
    pending(event)
    if last == "exit":
        peer.exit()
    else:
        peer.call(closed if last == "close" else dropped, "second")
    lost(event)


def test_workers_one_after_another(event: xs.Event, peer: Child, other: Child) -> None:
    peer.call(opened, kept["handle"])
    assert peer.call(signalled) == 1
    peer.exit()
    pending(event, 2)
    other.call(opened, kept["handle"])
    assert other.call(signalled) == 2
    other.exit()
    event.wait(10, at_least=2)
    pending(event, 3)


def test_a_reader_that_leaves_before_the_producer_comes(event: xs.Event, peer: Child, other: Child) -> None:
    peer.call(opened, kept["handle"])
    peer.exit()
    lost(event)
    other.call(opened, kept["handle"])
    pending(event)
    assert other.call(signalled) == 1
    event.wait(10, at_least=1)


def test_others_that_may_signal_are_waited_for(event: xs.Event, peer: Child, other: Child) -> None:
    for each in (peer, other):
        each.call(opened, kept["handle"])
    peer.exit()
    pending(event)
    other.exit()
    lost(event)


def test_a_device_is_let_go_after_an_abandoning_exit(event: xs.Event, peer: Child) -> None:
    peer.call(opened, kept["handle"])
    with xs.Queue(DEVICE) as queue:
        queue.wait(event, at_least=1)
        peer.exit()
        began = time.monotonic()
        with pytest.raises(xs.PeerLostError):
            queue.synchronize(30)
        assert time.monotonic() - began < SOON


def test_an_exporter_that_abandons_its_event(peer: Child, other: Child) -> None:
    handle = peer.call(_exported)
    other.call(opened, handle)
    wait = other.start(lambda: kept["event"].wait(30, at_least=1))
    peer.exit()
    with pytest.raises(xs.PeerLostError):
        wait.result()


def _exported() -> xs.ipc.Handle:
    event = kept["event"] = xs.Event(DEVICE, enable_ipc=True, signals=True)
    return xs.ipc.event.get(event)


def test_a_forked_child_abandons_only_what_it_opened(event: xs.Event, peer: Child) -> None:
    peer.call(opened, kept["handle"])
    peer.call(_fork_and_exit)
    pending(event)
    peer.exit()
    lost(event)


def _fork_and_exit() -> None:
    pid = os.fork()
    if pid == 0:
        kept.clear()
        gc.collect()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


# --- pickles that nobody opens


@pytest.fixture
def grace(monkeypatch: pytest.MonkeyPatch) -> float:
    """Pickles are good for so long, in seconds."""
    monkeypatch.setenv("XPUSHARE_PICKLE_GRACE", "0.3")
    return 0.3


BROKEN = {
    "a failing import": "import no_such_module",
    "a typo": "xs.Evnt",
    "a missing guard": "multiprocessing.current_process().name == 'MainProcess' or sys.exit(1)",
}


@pytest.mark.parametrize("method", sampled(["spawn", "forkserver"], ["spawn"]))
@pytest.mark.parametrize("form", BROKEN)
def test_the_readme_program_ends_when_its_child_never_opens_the_event(
    method: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XPUSHARE_PICKLE_GRACE", "0.3")  # what is left of it when the child has ended
    text = textwrap.dedent(README.format(method=method, first="pass", failure="pass", done="done"))
    program = tmp_path / "program.py"
    first = f"if __name__ != '__main__':\n    import multiprocessing, sys, xpushare as xs\n    {BROKEN[form]}\n"
    program.write_text(first + text)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=50, check=False)
    said, took, *rest = done.stdout.split()
    assert said == "lost", done.stderr
    assert float(took) < SOON
    assert "nobody opened" in " ".join(rest)


@pytest.mark.usefixtures("grace")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_program_that_is_typed_in_ends(method: str) -> None:
    """As in a notebook: the child does not find the function that it is to run."""
    text = textwrap.dedent(README.format(method=method, first="pass", failure="pass", done="done"))
    done = subprocess.run(
        [sys.executable, "-"], input=text, capture_output=True, text=True, timeout=50, check=False
    )  # fmt: skip
    said, took, *_ = done.stdout.split()
    assert said == "lost", done.stderr
    assert float(took) < SOON


@pytest.mark.usefixtures("grace")
def test_a_pickle_that_nobody_opens_ends_hope(event: xs.Event, peer: Child) -> None:
    sent = pickle.dumps(event)
    assert "nobody opened" in lost(event)
    with pytest.raises(xs.PeerLostError):  # again, and at once
        event.wait(0, at_least=1)
    peer.call(opened, pickle.dumps(event))  # it can still be opened, which ends the loss
    pending(event)
    assert peer.call(signalled) == 1
    event.wait(5, at_least=1)
    del sent


def test_one_that_is_opened_in_time_is_no_loss(event: xs.Event, peer: Child, grace: float) -> None:
    peer.call(opened, pickle.dumps(event))
    with pytest.raises(TimeoutError):
        event.wait(grace + A_MOMENT, at_least=1)
    peer.exit()
    assert f"process {peer.pid} exited" in lost(event)


def test_one_of_two_that_is_opened_is_enough(event: xs.Event, peer: Child, grace: float) -> None:
    sent = [pickle.dumps(event) for _ in range(2)]
    peer.call(opened, sent[0])
    peer.call(closed)
    with pytest.raises(TimeoutError):
        event.wait(grace + A_MOMENT, at_least=1)
    again = pickle.dumps(event)  # one that was made since, and that nobody opens
    lost(event)
    del again


def test_a_pickle_on_its_way_counts_among_those_who_have_the_event(event: xs.Event, peer: Child, other: Child) -> None:
    peer.call(opened, pickle.dumps(event))
    sent = pickle.dumps(event)
    peer.exit()
    pending(event)
    other.call(opened, sent)
    assert other.call(signalled) == 1
    event.wait(5, at_least=1)


def test_an_import_that_is_pickled_on(event: xs.Event, peer: Child) -> None:
    peer.call(opened, kept["handle"])
    peer.call(_pickled_on, {"XPUSHARE_PICKLE_GRACE": "0.3"})
    peer.call(closed)
    assert "nobody opened" in lost(event)


def _pickled_on(environment: dict[str, str]) -> None:
    os.environ.update(environment)
    kept["sent"] = pickle.dumps(kept["event"])


def test_pickles_of_ends_that_only_wait_are_no_promise(event: xs.Event, grace: float) -> None:
    with xs.ipc.event.open(kept["handle"], signals=False) as reader:
        sent = pickle.dumps(reader)
        with pytest.raises(TimeoutError):
            event.wait(grace + A_MOMENT, at_least=1)
    del sent


@pytest.mark.usefixtures("grace")
def test_who_only_waits_has_not_opened_the_pickle(event: xs.Event, peer: Child, other: Child) -> None:
    """It will never signal. Somebody who may has opened it, and keeps the wait going."""
    sent = pickle.dumps(event)
    peer.call(opened, kept["handle"], False)
    assert "nobody opened" in lost(event)
    other.call(opened, sent)
    pending(event)


@pytest.mark.usefixtures("grace")
def test_a_device_and_a_loop_learn_that_nobody_opened_it(event: xs.Event) -> None:
    import asyncio

    with xs.Queue(DEVICE) as queue:
        sent = pickle.dumps(event)
        queue.wait(event, at_least=1)
        began = time.monotonic()
        with pytest.raises(xs.PeerLostError, match="nobody opened"):
            asyncio.run(_reached(event))
        with pytest.raises(xs.PeerLostError, match="nobody opened"):
            queue.synchronize(30)
        assert time.monotonic() - began < SOON
        del sent


async def _reached(event: xs.Event) -> None:
    await event.reached(1)
