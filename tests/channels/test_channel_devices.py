"""Channels on devices with streams, shown on the software stream device: who waits for whose work, and what a death
loses.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import TIMEOUT, Child, kept
from xpushare.conformance.actions import Gate

NBYTES = 16


@pytest.fixture(autouse=True)
def _selected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "mock:*;native_cpu:*")


DEVICES = pytest.mark.parametrize("device", ["mock:0", "mock:1"])  # waits on the device, and held ones


def create(device: str, **options: Any) -> xs.Channel:
    return xs.Channel.create("test", NBYTES, "uint8", device=device, **options)


def create_there(device: str) -> None:
    kept["ch"] = create(device)
    kept["gate"] = Gate(device)


def open_there() -> None:
    kept["ch"] = xs.Channel.open("test", timeout=TIMEOUT)


def send_there(byte: bytes, gated: bool) -> None:
    queue = kept["gate"].queue if gated else xs.Queue(kept["ch"].device)
    with kept["ch"].loan(TIMEOUT) as frame:
        queue.fill(frame.array, byte)


def take_there(gated: bool) -> None:
    """Copy a frame by a queue, and close it at once."""
    kept["out"] = xs.malloc_device(NBYTES, kept["ch"].device)
    kept["gate"] = Gate(str(kept["ch"].device.backend) + ":" + str(kept["ch"].device.ordinal)) if gated else None
    kept["queue"] = kept["gate"].queue if gated else xs.Queue(kept["ch"].device)
    with kept["ch"].receive(TIMEOUT) as frame:
        kept["queue"].copy(kept["out"], frame.array)


def taken_there(opens: bool) -> bytes:
    if opens:
        kept["gate"].open()
    kept["queue"].synchronize(TIMEOUT)
    return bytes(memoryview(kept["out"]))


def close_there() -> None:
    for name in ("gate", "queue", "out", "ch"):
        found = kept.pop(name, None)
        if found is not None:
            found.close()


@DEVICES
def test_a_reader_waits_on_the_device(device: str) -> None:
    with create(device) as ch, Child() as child:
        child.call(open_there)
        gate = Gate(device)
        with ch.loan() as frame:
            gate.queue.fill(frame.array, b"a")
        child.call(take_there, False)  # returns, though nothing is there yet
        gate.open()
        assert child.call(taken_there, False) == b"a" * NBYTES
        child.call(close_there)
        gate.close()


@DEVICES
def test_a_slot_is_written_again_after_its_readers_work(device: str) -> None:
    with create(device, slots=3) as ch, Child() as child, xs.Queue(device) as queue:
        child.call(open_there)
        with ch.loan() as frame:
            queue.fill(frame.array, b"a")
        child.call(take_there, True)  # its copy waits
        for byte in (b"b", b"c", b"d"):  # the last one in the slot of the first
            with ch.loan(TIMEOUT) as frame:
                queue.fill(frame.array, byte)
            child.call(_skip)
        assert child.call(taken_there, True) == b"a" * NBYTES
        queue.synchronize(TIMEOUT)
        child.call(close_there)


def _skip() -> None:
    kept["ch"].receive(TIMEOUT).close()


@DEVICES
def test_send_copies_on_the_device(device: str) -> None:
    with ExitStack() as stack:
        enter = stack.enter_context
        ch = enter(create(device))
        reader = enter(xs.Channel.open("test"))
        source = xs.array(np.full(NBYTES, 5, "uint8"), device=device)
        ch.send(source)
        ch.send(np.full(NBYTES, 6, "uint8"), meta=[1])
        for expected in (5, 6):
            with reader.receive(TIMEOUT) as frame:
                assert np.asarray(frame).tolist() == [expected] * NBYTES
        assert frame.meta == [1]


def test_an_array_that_lies_in_another_order() -> None:
    """A slot has C order, which a copy of all bytes on the device would not make."""
    values = np.arange(9, dtype="i4").reshape(3, 3)
    place = np.asarray(xs.array(values, device="mock:0"))
    with xs.Channel.create("test", (3, 3), "i4", device="mock:0") as ch, xs.Channel.open("test") as reader:
        for view in (lambda x: x, lambda x: x.T, lambda x: x[::-1], lambda x: np.broadcast_to(x[1], (3, 3))):
            with xs.share(view(place)) as handle:
                found = xs.attach(handle)
            assert (found.device, found.strides) == (ch.device, view(place).strides)
            ch.send(found)
            with reader.receive(TIMEOUT) as frame:
                assert np.asarray(frame).tolist() == view(values).tolist()


def test_trees() -> None:
    with xs.Channel.create("test", nbytes=1000, device="mock:0") as ch, xs.Channel.open("test") as reader:
        ch.send({"a": np.arange(5), "b": [np.ones(3, "float32"), "x"]})
        with reader.receive(TIMEOUT) as frame:
            found = frame.array
            assert np.asarray(found["a"]).tolist() == [0, 1, 2, 3, 4]
            assert np.asarray(found["b"][0]).tolist() == [1, 1, 1]
            assert found["b"][1] == "x"


def test_what_a_dead_writers_device_owed_is_missed() -> None:
    with Child() as writer:
        writer.call(create_there, "mock:0")
        with xs.Channel.open("test", reconnect=True) as reader:
            writer.call(send_there, b"a", False)
            with reader.receive(TIMEOUT) as frame:
                assert np.asarray(frame).tolist() == list(b"a" * NBYTES)
            writer.call(send_there, b"b", True)  # never written
            writer.kill()
            with create("mock:0") as successor:
                with successor.loan(TIMEOUT) as loan:
                    np.asarray(loan)[:] = 9
                with reader.receive(TIMEOUT) as frame:
                    assert np.asarray(frame).tolist() == [9] * NBYTES
                    assert (frame.seq, frame.missed, frame.gap) == (3, 1, 1)


def test_a_dead_readers_work_is_not_waited_for() -> None:
    with create("mock:0", slots=3) as ch, Child() as child, xs.Queue("mock:0") as queue:
        child.call(open_there)
        with ch.loan() as frame:
            queue.fill(frame.array, b"a")
        child.call(take_there, True)
        child.kill()
        for _ in range(6):
            with ch.loan(TIMEOUT) as frame:
                queue.fill(frame.array, b"b")
        queue.synchronize(TIMEOUT)


@DEVICES
@pytest.mark.parametrize("held", [False, True])
def test_a_channel_that_lives_until_the_interpreter_ends(device: str, held: bool) -> None:
    program = f"""
import sys
import numpy as np
import xpushare as xs

sys.writer = xs.Channel.create("test", {NBYTES}, "uint8", device="{device}")  # is deleted after all exit functions
sys.reader = xs.Channel.open("test")
sys.writer.send(np.zeros({NBYTES}, "uint8"))
sys.frame = sys.reader.receive(10)
np.asarray(sys.frame)
if not {held}:
    sys.frame.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT)
    assert (done.returncode, done.stderr) == (0, "")
