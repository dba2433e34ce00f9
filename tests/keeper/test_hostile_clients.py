"""Clients that send nonsense, flood the keeper, stop, or say nothing. The keeper lives, keeps what it has, and serves
everybody else.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hostile_messages import FACT, Talk, memory_file, step
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from keepers import environment, keep, keep_array, keeper_pid, kept_files, listed, reachable, stop_keeper

import xpushare as xs
from harness import Child, command, wait_until
from xpushare.sharing import keeping, naming


def precious() -> dict[str, Any]:
    xs.publish("precious", xs.array([1, 2, 3]), keep=True)
    (row,) = listed()
    return row


def expect_unharmed(row: dict[str, Any]) -> None:
    (found,) = [each for each in listed() if each["name"] == "precious"]
    assert {**found, "since": 0} == {**row, "since": 0}  # by the same keeper
    assert np.asarray(xs.attach(xs.lookup("precious", timeout=0))).tolist() == [1, 2, 3]


def fact(**changes: Any) -> bytes:
    return json.dumps([FACT(**changes)]).encode()


HEAD = ["other", True, 1, False, None]


def publication(**changes: Any) -> bytes:
    names = ("name", "replace", "versions", "mine", "earlier")
    return json.dumps([changes.get(name, value) for name, value in zip(names, HEAD, strict=True)]).encode() + b"\n"


@pytest.mark.parametrize(
    ("op", "content"),
    [
        (keeping.HOLD, b"[" * 1000),
        (keeping.HOLD, b"[" * 200_000),
        (keeping.PUBLISH, b"[" * 200_000 + b"\n"),
        (keeping.PUBLISH, publication(name=[["a"]] * 3)),
        (keeping.PUBLISH, publication(versions=1 << 70)),
        (keeping.HOLD, fact(backend=None)),
        (keeping.HOLD, fact(kind=[])),
        (keeping.HOLD, fact(payload=None)),
        (keeping.HOLD, fact(uuid=7)),
        (keeping.HOLD, fact(nbytes=1 << 70)),
        (keeping.HOLD, fact(offset=0.5)),
        (keeping.HOLD, fact(fds=1.0)),
        (keeping.HOLD, json.dumps([FACT(fds=5), FACT(fds=-4)]).encode()),
        (keeping.HOLD, b"null"),
        (keeping.HOLD, b"1" * 900),
        (keeping.DROP, b"\xff" * 4000),
        (keeping.DROP, b"x" * 5000),
        (keeping.REPLACE, b"keeper"),
        (keeping.REPLACE, b"../../keeper.1"),
        (keeping.REPLACE, b"keeper.1"),
    ],
    ids=lambda value: (value if len(value) < 20 else value[:12]).decode(errors="replace"),
)
def test_a_malformed_message_is_refused_and_ends_nothing(op: bytes, content: bytes) -> None:
    row = precious()
    before = kept_files()
    for _ in range(2):
        talk = Talk()
        assert talk.say(keeping.FDS, None, [memory_file()]) == b""
        assert talk.say(op, content, []) is None
        talk.close()
    wait_until(lambda: kept_files() == before, what="what was handed over to be given up")
    expect_unharmed(row)


def test_a_client_cannot_pass_versions_on_as_a_predecessor_does() -> None:
    """The largest version of all would leave no number for the next one, of any name."""
    row = precious()
    talk = Talk()
    talk.say(keeping.FDS, None, [memory_file()])
    handle = talk.say(keeping.HOLD, fact(), [])
    assert handle is not None
    assert (
        talk.say(keeping.PUBLISH, publication(earlier=[[(1 << 64) - 1, 1, "", 0.0, len(handle)]]) + handle, []) is None
    )
    assert talk.say(keeping.PUBLISH, publication() + handle, []) is not None
    assert talk.say(keeping.DROP, b"other", []) == b""
    talk.close()
    expect_unharmed(row)


def test_content_that_would_block_its_reader_is_refused() -> None:
    row = precious()
    talk = Talk()
    reading, writing = os.pipe()
    try:
        head = keeping.HOLD + (1).to_bytes(4, "little")
        socket.send_fds(talk.socket, [head], [reading])
        assert talk.answer() is None
    finally:
        os.close(reading)
        os.close(writing)
    talk.close()
    expect_unharmed(row)


# --- the keeper's own files


def test_a_refusal_of_a_name_that_another_process_has_costs_the_keeper_no_lock(publisher: Child) -> None:
    row = precious()
    publisher.call(publish_here, "taken")
    with pytest.raises(xs.InvalidArgumentError, match=f"process {publisher.pid} has published 'taken'"):
        xs.publish("taken", xs.empty(3), keep=True)
    assert keeper_pid() == row["keeper"]
    with pytest.raises(xs.InvalidArgumentError, match="keeper keeps it"):
        xs.unpublish("precious")


def publish_here(name: str) -> None:
    xs.publish(name, xs.empty(3))


def test_files_of_the_keeper_that_a_client_sends_it() -> None:
    """Closing them drops no lock."""
    row = precious()
    name = naming.names_folder() / "precious"
    talk = Talk()
    for path in (keeping.lock_path(), str(name)):
        for op in (keeping.FDS, keeping.LIST, b"?"):
            fd = xs.common.fds.OwnedFd(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            talk.say(op, None, [fd])
    talk.close()
    expect_unharmed(row)  # after that connection was ended
    assert keeper_pid() == row["keeper"]
    holder = naming._holder_at(name)
    assert holder == row["keeper"]


# --- floods and silence


@contextlib.contextmanager
def keeper_of(source: str, prefix: tuple[str, ...] = ()) -> Iterator[int]:
    """A keeper in the foreground, begun by that program."""
    with subprocess.Popen([*prefix, sys.executable, "-c", source], env=environment()) as process:
        wait_until(lambda: keeper_pid() == process.pid and reachable(), what="the keeper to begin")
        yield process.pid
        stop_keeper()
        assert process.wait(30) == 0


SERVE = "from xpushare.keeper import clients, process; {}; process.serve(-1, 0, {})"


def test_silent_connections_shut_nobody_out(publisher: Child) -> None:
    row = precious()
    publisher.call(connect_many, 1000)
    assert command("keep", "--list").returncode == 0
    xs.publish("other", xs.array([1]), keep=True)
    assert command("keep", "--drop", "other").returncode == 0
    expect_unharmed(row)


def connect_many(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, count + 100), hard), hard))
    kept_connections.extend(keeping.connect() for _ in range(count))


kept_connections: list[Any] = []


def test_stopped_clients_shut_nobody_out(publisher: Child) -> None:
    row = precious()
    with Child() as stopped:
        stopped.call(hand_over_and_wait, 100)
        assert stopped.pid is not None
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            publisher.call(keep, "weights", 1)
            expect_unharmed(row)
        finally:
            os.kill(stopped.pid, signal.SIGCONT)


def hand_over_and_wait(count: int) -> None:
    for _ in range(count):
        kept_connections.append(talk := Talk())
        talk.say(keeping.FDS, None, [memory_file()])
        talk.socket.send(keeping.LIST + bytes(4))  # whose answer it never reads


def test_a_silent_client_is_disconnected_and_told_so() -> None:
    with keeper_of(SERVE.format("clients.SILENT = 0.2", "0.0")):
        row = precious()
        found = keeping.connect()
        assert found is not None
        with keeping.Connection(found) as silent:
            silent._ask(keeping.FDS, None, [memory_file()])
            wait_until(lambda: kept_files() == 1, what="what it has handed over to be given up")
            with pytest.raises(keeping.KeeperGone, match="heard nothing on this connection"):
                silent.listed()
        expect_unharmed(row)


def test_a_keeper_with_few_descriptors() -> None:
    with keeper_of(SERVE.format("0", "0.0"), ("sh", "-c", 'ulimit -n 40; exec "$@"', "sh")):
        row = precious()
        idle = [keeping.connect() for _ in range(60)]
        expect_unharmed(row)
        talks = [Talk() for _ in range(3)]
        for talk in talks:
            talk.say(keeping.FDS, None, [memory_file() for _ in range(30)])
        with pytest.raises(xs.OutOfMemoryError, match="file descriptor"):
            xs.publish("large", [xs.empty(1 << 14) for _ in range(30)], keep=True)
        for each in (*idle, *[talk.socket for talk in talks]):
            assert each is not None
            each.close()
        expect_unharmed(row)


# --- what a user is told


def doctor_says() -> tuple[str, str]:
    from xpushare.cli.doctor import keeper as doctor

    check = next(iter(doctor.examine()))
    return check.state, f"{check.why} {check.fix}"


def test_a_stopped_keeper_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from xpushare.cli.doctor import keeper as doctor

    row = precious()
    monkeypatch.setattr(doctor, "_SECONDS", 0.2)
    os.kill(row["keeper"], signal.SIGSTOP)
    try:
        state, text = doctor_says()
        assert (state, f"kill -CONT {row['keeper']}" in text) == ("fails", True), text
        found = keeping.connect()
        assert found is not None
        unanswered = pytest.raises(xs.DeviceError, match=r"has not answered for 0\.2 s: it is busy, or stopped")
        with keeping.Connection(found, 0.2) as keeper, unanswered:
            keeper.listed()
    finally:
        os.kill(row["keeper"], signal.SIGCONT)
    assert doctor_says()[0] == "works"
    expect_unharmed(row)


def test_a_keeper_without_its_socket_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    row = precious()
    monkeypatch.setattr(keeping, "_START", 0.0)
    monkeypatch.setattr(keeping, "_start", lambda: None)
    path = naming.names_folder().parent / "keeper"
    path.rename(aside := path.with_name("aside"))
    try:
        state, text = doctor_says()
        assert (state, f"kill {row['keeper']}" in text) == ("fails", True), text
        with pytest.raises(xs.DeviceError, match="xpushare doctor"):
            xs.publish("other", xs.array([1]), keep=True)
    finally:
        aside.rename(path)
    expect_unharmed(row)


# --- times


CLOCK = """
import os, time
real, steps = time.time, []
time.time = lambda: real() + (3600 if os.path.exists(os.environ["XPUSHARE_RUNTIME_DIR"] + "/step") else 0)
"""


def test_a_step_of_the_wall_clock_drops_nothing() -> None:
    source = CLOCK + SERVE.format("0", "600.0")
    step_file = os.environ["XPUSHARE_RUNTIME_DIR"] + "/step"
    with keeper_of(source):
        row = precious()
        with open(step_file, "w"):
            pass
        try:
            for _ in range(3):  # turns of the keeper
                (found,) = listed()
            assert found["since"] - row["since"] in (3599, 3600, 3601), "it was published as long ago as before"
            expect_unharmed(row)
        finally:
            os.unlink(step_file)


FAILING = """
from xpushare.sharing import naming
unpublish = naming.unpublish
def failing(name):
    if name == "first":
        raise RuntimeError("a fault")
    unpublish(name)
naming.unpublish = failing
"""


def test_a_fault_of_one_name_drops_no_other_and_ends_nothing(publisher: Child) -> None:
    with keeper_of(FAILING + SERVE.format("0", "0.3")) as pid:
        publisher.call(keep_array, "first", 4096)
        publisher.call(keep_array, "second", 4096)
        wait_until(lambda: listed() == [], what="the names to expire")
        assert "second" not in xs.published()
        assert keeper_pid() == pid


# --- any messages


class _Seeded(random.Random):
    """The choices depend on the keeper's answers. Hypothesis, which expects the same draws again, draws a seed."""

    def below(self, most: int) -> int:
        return self.randrange(most)

    def content(self, most: int) -> bytes:
        return self.randbytes(self.randrange(most + 1))


class Hostile(RuleBasedStateMachine):
    """Some clients, each of which sends any messages."""

    @initialize()
    def begin(self) -> None:
        self.talks: list[Talk] = []
        self.row = next(each for each in listed() if each["name"] == "precious")

    @rule(seed=st.integers(0, (1 << 64) - 1))
    def message(self, seed: int) -> None:
        chance = _Seeded(seed)
        for talk in [each for each in self.talks if not each.open]:
            talk.close()
            self.talks.remove(talk)
        if not self.talks or (len(self.talks) < 3 and chance.below(2)):
            self.talks.append(Talk())
        step(chance, chance.choice(self.talks))

    @rule()
    def leave(self) -> None:
        for talk in self.talks:
            talk.close()
        self.talks = []

    @invariant()
    def lives(self) -> None:
        if hasattr(self, "row"):
            assert keeper_pid() == self.row["keeper"]

    def teardown(self) -> None:
        self.leave()
        if hasattr(self, "row"):
            expect_unharmed(self.row)


def any_messages(examples: int, steps: int) -> None:
    precious()
    before = kept_files()
    run_state_machine_as_test(
        Hostile,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, database=None,
            suppress_health_check=[*HealthCheck],
        ),
    )  # fmt: skip
    for name in [each["name"] for each in listed() if each["name"] != "precious"]:
        assert command("keep", "--drop", name).returncode == 0
    wait_until(lambda: kept_files() == before, what="what was handed over to be given up")


def test_no_messages_change_what_is_kept() -> None:
    any_messages(15, 12)


@pytest.mark.exhaustive
def test_no_messages_change_what_is_kept_at_length() -> None:
    any_messages(300, 50)
