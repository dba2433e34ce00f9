"""Channels whose slots end with the process that made them: a successor makes new ones, to which readers move."""

# pyright: reportPrivateUsage=false
# (a device is told that it lacks an aspect)

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import TIMEOUT, Child, kept
from xpushare import Support

DEVICE = "mock:0"
NBYTES = 8


MORTAL = Support("no", "the test says so")


def mortal() -> None:
    """Have this process find that memory of the device ends with its maker."""
    xs.Device(DEVICE)._aspects[xs.Aspect.outlives_exporter] = MORTAL


@pytest.fixture(autouse=True)
def _mortal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "mock:*;native_cpu:*")
    monkeypatch.setitem(xs.Device(DEVICE)._aspects, xs.Aspect.outlives_exporter, MORTAL)


def create_there(**options: Any) -> None:
    mortal()
    kept["ch"] = xs.Channel.create("test", NBYTES, "uint8", device=DEVICE, **options)


def send_there(*values: int) -> None:
    for value in values:
        kept["ch"].send(np.full(NBYTES, value, "uint8"))


def open_there(mode: Any = "all", reconnect: bool = True) -> None:
    mortal()
    kept["ch"] = xs.Channel.open("test", mode=mode, reconnect=reconnect, timeout=TIMEOUT)


def take_there(count: int) -> list[tuple[int, int]]:
    return take(kept["ch"], count)


def take(ch: xs.Channel, count: int) -> list[tuple[int, int]]:
    """The value of each of some frames, and how many were missed."""
    found = []
    for _ in range(count):
        with ch.receive(TIMEOUT) as frame:
            found.append((int(np.asarray(frame)[0]), frame.missed))
    return found


def close_there() -> None:
    kept.pop("ch").close()


def test_a_waiting_reader_moves_to_the_successors_channel() -> None:
    with Child() as writer, Child() as reader, Child() as successor:
        writer.call(create_there)
        reader.call(open_there)
        writer.call(send_there, 1)
        assert reader.call(take_there, 1) == [(1, 0)]
        pending = reader.start(take_there, 2)
        writer.kill()
        successor.call(create_there)
        successor.call(send_there, 2, 3)
        assert pending.result() == [(2, 0), (3, 0)]
        successor.call(close_there)
        reader.call(close_there)


@pytest.mark.parametrize("mode", ["all", "newest", "one"])
def test_what_was_left_counts_as_missed(mode: Any) -> None:
    with Child() as writer, Child() as successor:
        writer.call(create_there)
        with xs.Channel.open("test", mode=mode, reconnect=True) as reader:
            writer.call(send_there, 1, 2, 3)
            with reader.receive(TIMEOUT) as frame:
                got = 3 if mode == "newest" else 1
                assert int(np.asarray(frame)[0]) == got
            writer.kill()
            successor.call(create_there)
            successor.call(send_there, 4)
            assert take(reader, 1) == [(4, 2)]
            successor.call(close_there)


def test_readers_of_one_process_and_a_second_successor() -> None:
    with Child() as writer:
        writer.call(create_there)
        with (
            xs.Channel.open("test", mode="one", reconnect=True) as one,
            xs.Channel.open("test", reconnect=True) as other,
        ):
            writer.kill()
            for value in 1, 2:
                with Child() as successor:
                    successor.call(create_there)
                    successor.call(send_there, value)
                    assert [take(one, 1), take(other, 1)] == [[(value, 0)], [(value, 0)]]
                    successor.kill()


def test_the_successor_is_a_process_that_reads() -> None:
    with Child() as writer:
        writer.call(create_there)
        with xs.Channel.open("test", reconnect=True) as reader:
            writer.kill()
            with xs.Channel.create("test", NBYTES, "uint8", device=DEVICE) as successor:
                successor.send(np.full(NBYTES, 5, "uint8"))
                assert take(reader, 1) == [(5, 0)]


def test_a_reader_without_reconnect_is_told() -> None:
    with Child() as writer, Child() as successor:
        writer.call(create_there)
        with xs.Channel.open("test") as reader, xs.Channel.open("test", reconnect=True) as other:
            writer.kill()
            successor.call(create_there)
            with pytest.raises(xs.PeerLostError, match="reconnect"):
                reader.receive(TIMEOUT)
            with pytest.raises(xs.HandleExpiredError, match="create or open it again"), other.loan() as _loan:
                pass
            successor.call(close_there)


def test_nobody_joins_slots_that_have_ended() -> None:
    with Child() as writer, Child() as successor:
        writer.call(create_there)
        with xs.Channel.open("test", reconnect=True) as reader:
            writer.kill()
            with pytest.raises(TimeoutError, match="nobody has created"):
                xs.Channel.open("test", timeout=0)
            successor.call(create_there)
            with xs.Channel.open("test", timeout=TIMEOUT) as late:
                successor.call(send_there, 1)
                assert take(late, 1) == take(reader, 1) == [(1, 0)]
            successor.call(close_there)


def test_nobody_writes_to_slots_that_have_ended() -> None:
    with Child() as maker, Child() as successor:
        maker.call(create_there, writers=2)
        with xs.Channel.open("test", reconnect=True) as other:
            assert other.send(np.full(NBYTES, 1, "uint8")) == 1
            maker.kill()
            with pytest.raises(xs.HandleExpiredError, match="create the channel again"):
                other.send(np.full(NBYTES, 2, "uint8"))
            with pytest.raises(xs.HandleExpiredError), other.loan() as loan:
                _array = loan.array
            successor.call(create_there)
            successor.call(send_there, 3)
            assert take(other, 1) == [(3, 1)]
            successor.call(close_there)


def test_wait_any_and_asyncio_follow() -> None:
    async def first(ch: xs.Channel) -> int:
        async for frame in ch:
            return int(np.asarray(frame)[0])
        raise AssertionError("the stream has not ended")

    with Child() as writer:
        writer.call(create_there)
        with xs.Channel.open("test", reconnect=True) as reader:
            writer.kill()
            with pytest.raises(TimeoutError):
                xs.wait_any([reader], 0)
            with Child() as successor:
                successor.call(create_there)
                pending = successor.start(send_there, 1)
                assert xs.wait_any([reader], TIMEOUT) == [reader]
                assert take(reader, 1) == [(1, 0)]
                pending.result()
                successor.kill()
            with Child() as successor:
                successor.call(create_there)
                pending = successor.start(send_there, 2)
                assert asyncio.run(first(reader)) == 2
                pending.result()
                successor.call(close_there)


def test_a_successor_dies_before_it_has_made_the_channel() -> None:
    """The readers are told, and wait for the next one; so they do if the file of the old channel is still there."""
    with Child() as writer, Child() as dying, Child() as reader, Child() as successor:
        writer.call(create_there)
        reader.call(open_there)
        pending = reader.start(take_there, 1)
        writer.kill()
        with pytest.raises(RuntimeError, match="before the name is free"):
            dying.call(create_and_stop)
        dying.kill()
        successor.call(create_there)
        successor.call(send_there, 7)
        assert pending.result() == [(7, 0)]
        successor.call(close_there)
        reader.call(close_there)


def create_and_stop() -> None:
    from xpushare.channels import groups

    def stop(_path: Any) -> None:
        raise RuntimeError("before the name is free")

    groups.os.unlink = stop  # type: ignore[attr-defined]
    create_there()
