"""`publish(keep=True)` and the process that keeps."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keepers import (
    environment,
    keep,
    keep_array,
    keeper_fds,
    keeper_pid,
    kept_files,
    listed,
    reachable,
    stop_keeper,
    tree,
    values,
    values_of,
)

import xpushare as xs
from harness import TIMEOUT, Child, kept, wait_until
from sampling import sampled
from xpushare.common import system
from xpushare.sharing import keeping, routes
from xpushare.sharing.routes import socket as socket_route

ROUNDS = 12  # kills at random lines of `publish`
MIB = 1 << 20


@contextlib.contextmanager
def keeping_with(*options: str) -> Any:
    """`xpushare keep` in the foreground."""
    command = [sys.executable, "-m", "xpushare", "keep", *options]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE) as process:
        wait_until(lambda: keeper_pid() == process.pid and reachable(), what="the keeper to begin")
        yield process
        stop_keeper()
        assert process.wait(30) == 0


def test_an_heir_has_all_values(publisher: Child, peer: Child) -> None:
    version = publisher.call(keep, "weights", 7)
    publisher.kill()
    assert peer.call(values, "weights") == {7}
    assert xs.lookup("weights", timeout=0).version == version
    (row,) = listed()
    assert (row["name"], row["version"], row["publisher"], row["objects"]) == ("weights", version, publisher.pid, 3)
    assert row["keeper"] == keeper_pid() != publisher.pid
    # It can be passed on, and published again.
    found = xs.attach(xs.lookup("weights"), own=True)
    assert xs.publish("weights", found, keep=True, replace=True) > version
    assert peer.call(values, "weights") == {7}


def test_what_is_kept_is_written_by_everybody(publisher: Child, peer: Child) -> None:
    publisher.call(keep, "weights", 1)
    publisher.kill()
    found = xs.attach(xs.lookup("weights"))
    for part in found["parts"]:
        np.asarray(part)[:] = 1.5
    del found
    assert peer.call(values, "weights") == {1, 1.5}


def test_memory_physical_memory_and_read_only_arrays(publisher: Child) -> None:
    granule = publisher.call(keep_others)
    publisher.kill()
    with xs.ipc.memory.open(xs.lookup("memory")) as memory:
        assert bytes(memory) == b"m" * 100
    pages = xs.ipc.physical_memory.open(xs.lookup("pages"))
    with xs.VirtualRange(granule) as place:
        place.map(pages)
        assert bytes(memoryview(place)[:5]) == b"pages"
    handle = xs.lookup("handle")
    assert handle.read_only
    assert not np.asarray(xs.attach(handle)).flags.writeable
    assert np.asarray(xs.attach(xs.lookup("empty"))["none"]).shape == (0,)


def keep_others() -> int:
    memory = xs.malloc_device(100)
    memoryview(memory)[:] = b"m" * 100
    xs.publish("memory", memory, keep=True)
    granule = xs.Device("native_cpu:0").memory_granularity()
    pages = xs.PhysicalMemory(granule, enable_ipc=True)
    with xs.VirtualRange(granule) as place:
        place.map(pages)
        memoryview(place)[:5] = b"pages"
    xs.publish("pages", pages, keep=True)
    with xs.share(xs.array(np.arange(4.0)), read_only=True) as handle:
        xs.publish("handle", handle, keep=True)
    xs.publish("empty", {"none": xs.empty(0)}, keep=True)
    return granule


def test_a_kept_name_needs_replace(publisher: Child, peer: Child) -> None:
    first = publisher.call(keep, "weights", 1)
    old = xs.attach(xs.lookup("weights"))
    with pytest.raises(xs.InvalidArgumentError, match="replace=True"):
        peer.call(keep, "weights", 2)
    assert peer.call(values, "weights") == {1}
    assert peer.call(keep, "weights", 2, replace=True) > first
    assert publisher.call(values, "weights") == {2}
    assert values_of(old) == {1}, "who has the old version open has it for good"
    assert kept_files() == 3, "the old version is its readers' alone"
    advice = "keeper keeps 'weights': publish with keep=True and replace=True, or run `xpushare keep --drop weights`"
    with pytest.raises(xs.InvalidArgumentError, match=advice):
        peer.call(publish_plainly, "weights")
    with pytest.raises(xs.InvalidArgumentError, match=r"the keeper keeps it\. Run `xpushare keep --drop weights`"):
        peer.call(xs.unpublish, "weights")
    assert [row["name"] for row in listed()] == ["weights"]


def publish_plainly(name: str) -> None:
    xs.publish(name, xs.empty(3), replace=True)


def test_several_versions(publisher: Child) -> None:
    versions = [publisher.call(keep, "weights", value, replace=True, versions=2) for value in (1, 2, 3)]
    publisher.kill()
    assert values_of(xs.attach(xs.lookup("weights", version=versions[1], timeout=0))) == {2}
    with pytest.raises(xs.HandleExpiredError):
        xs.lookup("weights", version=versions[0], timeout=0)
    assert kept_files() == 6


def test_a_name_of_this_process_is_handed_over(publisher: Child, peer: Child) -> None:
    """Whoever looks meanwhile sees the old version or the new one."""
    publisher.call(publish_here, "weights", 1)
    old = xs.lookup("weights")
    with pytest.raises(xs.InvalidArgumentError, match="replace=True"):
        publisher.call(keep, "weights", 2)
    publisher.call(keep, "weights", 2, replace=True)
    assert publisher.call(values, "weights") == {2}
    publisher.kill()
    assert peer.call(values, "weights") == {2}
    assert values_of(xs.attach(old)) == {2}, "it follows its name"


def publish_here(name: str, value: float) -> None:
    kept[name] = tree(value)
    xs.publish(name, kept[name])


def test_what_cannot_be_kept_is_refused_with_the_way_out(peer: Child) -> None:
    kept["theirs"] = xs.attach(peer.call(shared))
    for thing, error, match in (
        (xs.Event(enable_ipc=True), xs.FeatureNotSupportedError, "events are not kept"),
        (np.empty(3), xs.FeatureNotSupportedError, "copy=True"),
        ({"a": tree(1), "b": kept["theirs"]}, xs.InvalidArgumentError, "own=True"),
        (xs.PhysicalMemory(xs.Device("cpu").memory_granularity()), xs.InvalidArgumentError, "enable_ipc"),
        ({1, 2}, xs.InvalidArgumentError, "set"),
    ):
        with pytest.raises(error, match=match):
            xs.publish("refused", thing, keep=True)
    kept.pop("theirs")
    assert xs.published() == {}
    assert listed() == []


def shared() -> bytes:
    kept["array"] = xs.empty(3)
    kept["handle"] = xs.share(kept["array"])
    return bytes(kept["handle"])


def test_a_full_keeper_evicts_nothing(publisher: Child, peer: Child) -> None:
    with keeping_with("--max-bytes", "3M"):
        publisher.call(keep_array, "first", 2 * MIB)
        with pytest.raises(xs.OutOfMemoryError, match="--drop"):
            peer.call(keep_array, "second", 2 * MIB)
        with pytest.raises(xs.OutOfMemoryError):  # old and new would stand side by side
            publisher.call(keep_array, "first", 2 * MIB, replace=True)
        assert [row["name"] for row in listed()] == ["first"]
        peer.call(keep_array, "third", MIB)
        assert command("--drop", "first") == (0, "")
        peer.call(keep_array, "second", 2 * MIB)
        assert [row["name"] for row in listed()] == ["second", "third"]


def command(*options: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "xpushare", "keep", *options],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout


def test_time_to_live(publisher: Child) -> None:
    with keeping_with("--ttl", "0.2"):
        publisher.call(keep, "weights", 1)
        wait_until(lambda: listed() == [], what="the name to expire")
        assert kept_files() == 0
        assert xs.published() == {}


def test_commands(publisher: Child) -> None:
    assert command("--list")[0] == command("--stop")[0] == command("--drop", "weights")[0] == 1
    publisher.call(keep, "weights", 1)
    status, text = command("--list")
    assert status == 0
    assert text.startswith("weights  version ")
    assert f"published by {publisher.pid} " in text
    ls = [sys.executable, "-m", "xpushare", "ls", "--name", "weights"]  # others of this user may have left something
    found = subprocess.run(ls, env=environment(), capture_output=True, text=True, check=False).stdout
    assert f"kept by process {keeper_pid()}:\n  weights" in found
    assert command()[0] == 1, "there is one keeper"
    assert command("--drop", "none")[0] == 1
    reader = xs.attach(xs.lookup("weights"))
    assert command("--drop", "weights") == (0, "")
    assert kept_files() == 0, "the memory is the readers' alone"
    assert values_of(reader) == {1}
    assert command("--list") == (0, "nothing is kept\n")
    pid = keeper_pid()
    assert pid is not None
    publisher.call(keep, "weights", 1)
    os.kill(pid, signal.SIGTERM)  # as --stop
    wait_until(lambda: keeper_pid() is None)
    assert xs.published() == {}


@pytest.mark.exhaustive
def test_a_keeper_is_replaced_while_readers_come_and_go(publisher: Child, peer: Child) -> None:
    """No attach fails, versions and what is known of them stay, and whoever publishes meanwhile succeeds."""
    publisher.call(keep, "weights", 1, versions=2)
    publisher.call(keep, "weights", 2, versions=2, replace=True)
    publisher.call(keep_others)
    looked_up, before, first = xs.lookup("weights"), listed(), keeper_pid()
    versions = [each.version for each in (xs.lookup("weights", version=looked_up.version), looked_up)]
    with Child() as reader, Child() as writer, contextlib.ExitStack() as keepers:
        reading = reader.start(read_until, "weights", "end")
        writing = writer.start(keep_until, "other", "end")
        for _ in range(3):
            wait_until(lambda: reader.alive and "other" in xs.published())
            successor = keepers.enter_context(
                subprocess.Popen([sys.executable, "-m", "xpushare", "keep", "--replace"], env=environment())
            )
            keepers.callback(stop_keeper)
            wait_until(lambda: keeper_pid() == successor.pid, what="the successor")  # noqa: B023
        xs.publish("end", xs.empty(1))
        assert reading.result() > 3
        assert writing.result() > 3
        xs.unpublish("end")
        assert keeper_pid() != first
        after = [row for row in listed() if row["name"] != "other"]
        assert [{**row, "keeper": 0} for row in after] == [{**row, "keeper": 0} for row in before]
        assert values_of(xs.attach(looked_up)) == {2}, "it follows its name"
        assert xs.lookup("weights").version == versions[1]
        assert bytes(xs.ipc.memory.open(xs.lookup("memory"))) == b"m" * 100
        assert peer.call(values, "weights") == {2}


def test_a_successor_that_dies_takes_nothing_along(publisher: Child, peer: Child) -> None:
    for at in range(3):
        publisher.call(keep, f"weights{at}", at)
    before = listed()
    with Child() as successor:
        successor.start(succeed_and_die, 2)
        wait_until(lambda: not successor.alive, what="its death")
    assert [peer.call(values, f"weights{at}", TIMEOUT) for at in range(3)] == [{0}, {1}, {2}]
    assert listed() == before
    assert kept_files() == 9
    publisher.call(keep, "weights1", 7, replace=True)
    assert peer.call(values, "weights1") == {7}


def succeed_and_die(count: int) -> None:
    """Be a keeper that dies when it has that many names."""
    from xpushare.keeper import process

    publish = process.naming.publish

    def publishing(*arguments: Any) -> int:
        version = publish(*arguments)
        if len(process.naming.names) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return version

    process.naming.publish = publishing
    process.serve(-1, 0, 0.0, True)


def read_until(name: str, end: str) -> int:
    count = 0
    while end not in xs.published():
        assert values_of(xs.attach(xs.lookup(name, timeout=0))) == {2}
        count += 1
    return count


def keep_until(name: str, end: str) -> int:
    count = 0
    while end not in xs.published():
        keep(name, count, replace=True)
        count += 1
    return count


def test_the_doctor_says_what_would_end_it(publisher: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    from xpushare.cli.doctor import keeper as doctor

    assert [(each.name, each.state) for each in doctor.examine()] == [("process", "note")]
    publisher.call(keep, "weights", 1)
    for unit, states in (
        ("", ["works"]),
        ("xpushare-keeper.service", ["works"]),
        ("app.service", ["works", "limited"]),
    ):
        monkeypatch.setattr(doctor, "_unit", lambda _pid, found=unit: found)
        assert [each.state for each in doctor.examine()] == states


def test_a_keeper_that_is_killed_loses_names_and_no_mapping(publisher: Child, peer: Child) -> None:
    publisher.call(keep, "weights", 1)
    publisher.kill()
    found = xs.attach(xs.lookup("weights"), own=True)
    pid = keeper_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: keeper_pid() is None)
    assert values_of(found) == {1}
    with pytest.raises(TimeoutError):
        xs.lookup("weights", timeout=0)
    xs.publish("weights", found, keep=True)  # by the next one
    del found
    assert peer.call(values, "weights") == {1}


def test_one_keeper_however_many_begin_at_once() -> None:
    with contextlib.ExitStack() as children:
        publishers = [children.enter_context(Child()) for _ in range(3)]
        begun = [each.start(keep, f"weights{at}", at) for at, each in enumerate(publishers)]
        for each in begun:
            each.result()
    assert [row["name"] for row in listed()] == ["weights0", "weights1", "weights2"]
    assert {row["keeper"] for row in listed()} == {keeper_pid()}


def test_a_slim_process_that_inherits_nothing(publisher: Child) -> None:
    read = publisher.call(open_inheritable)
    publisher.call(keep, "weights", 1)
    pid = keeper_pid()
    assert f"pipe:[{read}]" not in keeper_fds()
    with open(f"/proc/{pid}/maps") as file:
        maps = file.read()
    assert "numpy" not in maps
    assert "cuda" not in maps
    with open(f"/proc/{pid}/smaps_rollup") as file:
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in file.read().splitlines()[1:]}
    assert sizes["Private_Clean"] + sizes["Private_Dirty"] <= 13 << 10  # KiB; the page says what was measured


def open_inheritable() -> int:
    read, write = os.pipe()
    os.set_inheritable(read, True)
    os.set_inheritable(write, True)
    return os.fstat(read).st_ino


# --- the publisher dies while it hands over


def die_at(name: str, value: float, line: int) -> int:
    """Publish, and be killed before that line of Python. Returns how many lines it takes."""
    kept["tree"] = tree(value)
    count = 0

    def trace(_frame: Any, event: str, _argument: Any) -> Any:
        nonlocal count
        if event == "line":
            count += 1
            if count == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    try:
        xs.publish(name, kept["tree"], keep=True, replace=True)
    finally:
        sys.settrace(None)
    return count


@pytest.mark.exhaustive
def test_a_publisher_that_is_killed_leaves_the_old_version_or_the_new_one(peer: Child) -> None:
    with Child() as child:
        child.call(die_at, "weights", 0, 0)
        lines = child.call(die_at, "weights", 0, 0)
    chance = random.Random(28)
    seen, last = set(), 0.0
    for value in range(1, ROUNDS + 1):
        with Child() as child:
            child.call(keep, f"own{value}", value)  # so that every module is loaded
            dying = child.start(die_at, "weights", value, chance.randrange(1, lines + 1))
            wait_until(lambda: not child.alive, what="its death")
            del dying
        for _ in range(2):  # after the second answer, the keeper has read what the dead publisher sent
            listed()
        found = peer.call(values, "weights")
        assert found in ({last}, {float(value)})
        seen.add(found == {last})
        last = found.pop()
        command("--drop", f"own{value}")
        wait_until(lambda: kept_files() == 3, what="what was handed over to be given up")
    assert len(listed()) == 1


@pytest.mark.parametrize(
    "after",
    sampled([keeping.FDS, keeping.HOLD, keeping.PUBLISH], [keeping.HOLD]),
    ids=["descriptors", "exports", "name"],
)
def test_a_publisher_that_dies_between_two_messages(publisher: Child, peer: Child, after: bytes) -> None:
    publisher.call(keep, "weights", 1)
    with Child() as child:
        child.start(die_after, after)
        wait_until(lambda: not child.alive)
    wait_until(lambda: kept_files() == 3, what="what was handed over to be given up")
    wait_until(lambda: peer.call(values, "weights") == ({2} if after == keeping.PUBLISH else {1}))


def die_after(op: bytes) -> None:
    """Die before the keeper's answer can be read."""
    send = keeping._send

    def sending(connection: Any, sent: bytes, content: Any, fds: Any = ()) -> None:
        send(connection, sent, content, fds)
        if sent == op:
            os.kill(os.getpid(), signal.SIGKILL)

    keeping._send = sending
    keep("weights", 2, replace=True)


# --- many, and hostile ones


def test_a_tree_of_many_allocations(publisher: Child, peer: Child) -> None:
    """More descriptors than a packet carries."""
    publisher.call(keep_many, 500)
    publisher.kill()
    assert peer.call(sum_of, "many") == sum(range(500))


def by_socket_alone() -> list[int]:
    """Have this process fetch descriptors by sockets alone, and note for how many entries each request is."""
    plain, asked = socket_route._Line._exchange, list[int]()

    def exchange(line: Any, connection: Any, op: int, wanted: list[Any], before: bool) -> Any:
        asked.append(len(wanted))
        return plain(line, connection, op, wanted, before)

    socket_route._Line._exchange = exchange  # type: ignore[method-assign]
    routes.use_only("socket")
    return asked


def heir_by_socket() -> tuple[int, list[int]]:
    asked = by_socket_alone()
    found = xs.attach(xs.lookup("many", timeout=0))
    return sum(int(np.asarray(each)[-1]) == value for value, each in enumerate(found)), asked


def test_the_keeper_answers_for_many_allocations_at_once(publisher: Child) -> None:
    publisher.call(keep_many, 40, 1 << 16)  # each has an allocation of its own
    publisher.kill()
    with Child() as heir:
        assert heir.call(heir_by_socket) == (40, [1, 40])


def keep_many(count: int, length: int = 1 << 13) -> None:
    arrays = [xs.empty(length, "u2") for _ in range(count)]
    for number, array in enumerate(arrays):
        np.asarray(array)[-1] = number
    xs.publish("many", arrays, keep=True)


def sum_of(name: str) -> int:
    return sum(int(np.asarray(each)[-1]) for each in xs.attach(xs.lookup(name)))


def test_nonsense_is_refused_and_changes_nothing(publisher: Child, peer: Child) -> None:
    publisher.call(keep, "weights", 1)
    body = system.memfd("test")
    os.write(body.number, b'["name", true, 1, false]\n' + b"x" * 300)
    for op in (*(bytes([code]) for code in range(256)), b"FF", b""):
        with socket_of_the_keeper() as connection:
            if op == keeping.STOP:
                continue
            socket.send_fds(connection, [op.ljust(1) + (1).to_bytes(4, "little")], [body.number])
            connection.recv(8)
    with socket_of_the_keeper() as connection:
        connection.send(b"H" + (7).to_bytes(4, "little"))  # of descriptors that never come
        assert connection.recv(8)[:1] == b"-"
    assert peer.call(values, "weights") == {1}
    assert kept_files() == 3


@contextlib.contextmanager
def socket_of_the_keeper() -> Any:
    with keeping.socket_at() as path:
        connection = system.connect(path, 10)
    with connection:
        yield connection


@pytest.mark.parametrize(
    "change",
    [
        {"nbytes": 1 << 40}, {"exposed_nbytes": 1 << 40}, {"offset": 1 << 20}, {"length": 1 << 20}, {"form": 0},
        {"form": 9}, {"kind": "event"}, {"kind": "other"}, {"backend": "x" * 99}, {"uuid": "none"}, {"payload": "zz"},
        {"payload": "00" * 999}, {"fds": 2}, {"nbytes": -1}, {"nbytes": "many"},
    ],
    ids=lambda change: "_".join(map(str, *change.items()))[:40],
)  # fmt: skip
def test_exports_that_contradict_themselves(change: dict[str, Any]) -> None:
    from xpushare.core import memory
    from xpushare.core.device import info_of
    from xpushare.objects.lifecycle import use
    from xpushare.sharing.table import descriptors

    with xs.malloc_device(8192) as mine, keeping.connected(start=True) as keeper:
        assert keeper is not None
        _, what = memory.said_by(use(mine).allocation)
        on: Any = info_of(mine.device)
        fds = descriptors(what)
        fact = keeping.Fact.of("memory", on, what, 1, 0, 8192, False)
        with pytest.raises(xs.XpuShareError):
            keeper.hold([fact._replace(**change)], fds)
        assert len(keeper.hold([fact], fds)) == 1
    wait_until(lambda: kept_files() == 0, what="what was not published to be given up")


def test_two_threads(publisher: Child) -> None:
    publisher.call(keep_in_threads)
    assert [row["name"] for row in listed()] == ["weights0", "weights1", "weights2"]


def keep_in_threads() -> None:
    threads = [threading.Thread(target=keep, args=(f"weights{at}", at)) for at in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", [[], ["--keep"]], ids=["owners", "keeper"])
def test_the_example(how: list[str]) -> None:
    program = Path(__file__).parents[2] / "examples" / "hot_restart.py"
    command = [sys.executable, program, "--layers", "3", "--restarts", "2", *how]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "3 layers went through 2 servers that were killed, loaded once\n")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("example", "says"),
    [("blue_green", "2 servers moved to version 2.0"), ("sleeping_server", "3 times the server slept")],
)
def test_the_examples_of_versions_and_sleep(example: str, says: str) -> None:
    program = Path(__file__).parents[2] / "examples" / f"{example}.py"
    done = subprocess.run([sys.executable, program], env=environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(says)


def test_a_keeper_of_another_version(publisher: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher.call(keep, "weights", 7)
    with monkeypatch.context() as patch:
        patch.setattr(keeping, "FORMAT", 99)
        with pytest.raises(xs.FeatureNotSupportedError, match=r"has version \d+ of its messages, .* has version 99"):
            listed()
        with pytest.raises(xs.FeatureNotSupportedError, match="keep --stop"):
            xs.publish("array", xs.zeros(3), keep=True)
    with monkeypatch.context() as patch:
        patch.setattr(keeping, "FORMATS", b"?")  # as to a keeper of the first version, which does not know the question
        with pytest.raises(xs.FeatureNotSupportedError, match=r"has version 1 of its messages"):
            listed()
