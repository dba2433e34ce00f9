"""Channels on the host, between processes: modes, policies, ends of streams, deaths, takeover."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import Child, kept, wait_until
from words import words_of
from xpushare.arrays import changes
from xpushare.channels import groups


@contextlib.contextmanager
def channel(name: str = "test", shape: Any = 2, dtype: Any = "int64", **options: Any) -> Iterator[xs.Channel]:
    with xs.Channel.create(name, shape, dtype, **options) as made:
        yield made


def send(ch: xs.Channel, *values: int) -> None:
    for value in values:
        with ch.loan(10) as frame:
            np.asarray(frame)[:] = value


def send_all(ch: xs.Channel, count: int) -> None:
    send(ch, *range(count))
    ch.finish()


def first(frame: Any) -> int:
    with frame:
        return int(np.asarray(frame)[0])


def take(ch: xs.Channel, count: int) -> list[int]:
    return [first(ch.receive(10)) for _ in range(count)]


# --- in other processes


def open_there(name: str = "test", **options: Any) -> int:
    kept["ch"] = xs.Channel.open(name, timeout=10, **options)
    return os.getpid()


def create_there(name: str = "test", **options: Any) -> None:
    kept["ch"] = xs.Channel.create(name, 2, "int64", **options)


def send_there(*values: int) -> None:
    send(kept["ch"], *values)


def take_there(count: int = 1) -> list[int]:
    return take(kept["ch"], count)


def hold_there(timeout: float | None = 10) -> int:
    kept["frame"] = kept["ch"].receive(timeout)
    return int(np.asarray(kept["frame"])[0])


def let_go_there() -> None:
    kept.pop("frame").close()


def close_there() -> None:
    kept.pop("frame", None)
    kept.pop("ch").close()


def loan_there() -> None:
    kept["loan"] = kept["ch"].loan(10)
    np.asarray(kept["loan"].__enter__())[:] = 99


# --- frames


def test_frames_of_a_shape() -> None:
    with channel(shape=(2, 3), dtype="float32") as ch, xs.Channel.open("test") as reader:
        with ch.loan() as frame:
            np.asarray(frame)[:] = 7
            frame.meta = {"t": 1.5, "k": [1, None, "x", b"y", True, (2,)]}
        assert frame.seq == 1
        assert ch.send(np.full((2, 3), 8, "float32")) == 2
        with reader.receive(10) as got:
            assert np.array_equal(np.asarray(got), np.full((2, 3), 7, "float32"))
            assert got.meta == {"t": 1.5, "k": [1, None, "x", b"y", True, (2,)]}
            assert (got.seq, got.missed, got.writer, got.array.shape) == (1, 0, os.getpid(), (2, 3))
            assert np.from_dlpack(got)[0, 0] == 7
        with pytest.raises(xs.InvalidArgumentError, match="closed"):
            np.asarray(got)
        with reader.receive(10) as got:
            assert got.meta is None
            assert np.asarray(got, "int32").dtype == np.int32
            assert np.asarray(got)[0, 0] == 8
        with pytest.raises(xs.InvalidArgumentError, match="on loan"):
            np.asarray(frame)


def test_frames_are_not_copied() -> None:
    with channel() as ch, Child() as child:
        child.call(open_there)
        with ch.loan() as frame:
            view = np.asarray(frame)
        assert child.call(hold_there) == 0
        view[:] = 5  # against the rules, and seen
        assert child.call(lambda: int(np.asarray(kept["frame"])[0])) == 5
        child.call(close_there)


def _mapped(least: int) -> int:
    """How many mappings of allocations of at least so many bytes this process has."""
    with open("/proc/self/maps") as file:
        ranges = [line.split()[0].split("-") for line in file if "/memfd:xpushare-memory" in line]
    return sum(int(end, 16) - int(start, 16) >= least for start, end in ranges)


def test_closing_releases_the_slots() -> None:
    nbytes = 1 << 26
    before = _mapped(nbytes)
    ch = xs.Channel.create("test", nbytes // 8, "uint8", slots=8)
    reader = xs.Channel.open("test")
    ch.send(np.zeros(nbytes // 8, "uint8"))
    with reader.receive(10) as frame:
        assert np.asarray(frame)[0] == 0
    del frame
    assert _mapped(nbytes) > before
    reader.close()
    ch.close()
    assert _mapped(nbytes) == before
    for each in (ch, reader):
        for use in (lambda each=each: each.device, lambda each=each: each.send(b""), lambda each=each: each.receive(0)):
            with pytest.raises(xs.InvalidArgumentError, match="this Channel is closed"):
                use()


def test_trees_and_other_shapes() -> None:
    tree = {"a": np.arange(3), "b": [np.ones((2, 2), "float32"), 5, None], "c": (np.zeros(0), "x", 1.5, b"z")}
    with xs.Channel.create("test", nbytes=1000) as ch, xs.Channel.open("test") as reader:
        for sent in (tree, np.arange(12).reshape(3, 4)[:, ::2], [np.float32(3)], {"only": "text"}):
            ch.send(sent, meta="m")
            with reader.receive(10) as got:
                same(got.array, sent)
                assert got.meta == "m"
        with ch.loan() as frame:
            np.asarray(frame)[:4] = 9
        with reader.receive(10) as got:
            assert np.asarray(got).shape == (1000,)
        with pytest.raises(xs.InvalidArgumentError, match="larger nbytes"):
            ch.send(np.zeros(1001, "uint8"))
        with pytest.raises(xs.InvalidArgumentError, match=r"64 bits"):
            ch.send({"x": 1 << 70})


def same(found: Any, sent: Any) -> None:
    if isinstance(sent, np.ndarray):
        assert np.array_equal(np.asarray(found), sent)
        assert np.asarray(found).dtype == sent.dtype
    elif isinstance(sent, dict):
        assert list(found) == list(sent)
        for key in sent:
            same(found[key], sent[key])
    elif isinstance(sent, list | tuple):
        assert type(found) is type(sent)
        assert len(found) == len(sent)
        for one, other in zip(found, sent, strict=True):
            same(one, other)
    else:
        assert found == sent
        assert type(found) is type(sent)


def test_what_is_refused() -> None:
    with channel(meta_nbytes=16) as ch, xs.Channel.open("test") as reader:
        with pytest.raises(xs.InvalidArgumentError, match="frames of this channel are"):
            ch.send(np.zeros(3))
        with pytest.raises(xs.InvalidArgumentError, match="meta_nbytes"):
            ch.send(np.zeros(2, "int64"), meta="x" * 100)
        with pytest.raises(xs.InvalidArgumentError, match="metadata is"):
            ch.send(np.zeros(2, "int64"), meta={"x": np.zeros(2)})
        with pytest.raises(xs.InvalidArgumentError, match=r"made by Channel\.create"):
            ch.receive(0)
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(ch)
        with pytest.raises(TimeoutError, match="no frame"):
            reader.receive(0)
        with ch.loan(), pytest.raises(xs.InvalidArgumentError, match="has a loan"), ch.loan():
            pass
    with pytest.raises(xs.InvalidArgumentError, match="closed"):
        ch.loan().__enter__()
    wrong: list[dict[str, Any]] = [
        {}, {"nbytes": 0}, {"nbytes": 1, "dtype": "f4"}, {"nbytes": 8, "slots": 2}, {"nbytes": 8, "history": 9},
        {"nbytes": 8, "on_full": "wait"}, {"nbytes": 8, "shape": 2},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(xs.InvalidArgumentError):
            xs.Channel.create("test", **options)
    wrong = [{"mode": "some"}, {"start": "now"}]
    for options in wrong:
        with pytest.raises(xs.InvalidArgumentError):
            xs.Channel.open("test", **options)
    with pytest.raises(xs.InvalidHandleError):
        xs.Channel.open(b"XPUSHXXX")
    with pytest.raises(xs.InvalidArgumentError, match="a channel without a name"):
        xs.Channel.open(None)  # type: ignore[arg-type]
    with pytest.raises(TimeoutError, match="created the channel"):
        xs.Channel.open("test", timeout=0)


def test_closing_a_reader_closes_its_frames() -> None:
    with channel() as ch:
        reader = xs.Channel.open("test")
        ch.send(np.zeros(2, "int64"))
        frame = reader.receive(0)
        reader.close()
        assert frame.closed
        assert "closed" in repr(frame)
        for use in (np.asarray, np.from_dlpack, lambda x: x.array, lambda x: x.__enter__()):
            with pytest.raises(xs.InvalidArgumentError, match="this frame is closed"):
                use(frame)
        frame.close()


def test_a_tree_is_not_an_array() -> None:
    with channel(shape=None, dtype=None, nbytes=100) as ch, xs.Channel.open("test") as reader:
        ch.send({"x": np.zeros(2)})
        with reader.receive(0) as frame:
            for use in (np.asarray, np.from_dlpack):
                with pytest.raises(TypeError, match="contains a dict of arrays"):
                    use(frame)


@pytest.mark.parametrize("on_full", ["block", "raise"])
def test_a_wrong_array_is_refused_even_if_no_slot_is_free(on_full: Any) -> None:
    with channel(on_full=on_full) as ch, xs.Channel.open("test") as reader:
        while ch.statistics()["sent"] < ch.statistics()["slots"]:
            ch.send(np.zeros(2, "int64"))
        with pytest.raises((TimeoutError, xs.ChannelFull)):
            ch.send(np.zeros(2, "int64"), timeout=0)
        with pytest.raises(xs.InvalidArgumentError, match="frames of this channel are"):
            ch.send(np.zeros(3))  # which does not wait for a slot
        assert reader.receive(0).seq == 1


def test_a_block_that_raises_sends_nothing() -> None:
    with channel() as ch, xs.Channel.open("test") as reader:
        with pytest.raises(KeyError), ch.loan():
            raise KeyError
        send(ch, 2)
        with reader.receive(10) as got:
            assert (got.seq, int(np.asarray(got)[0])) == (1, 2)


# --- modes


def test_reprs_show_the_name() -> None:
    with xs.Channel.create("frames", 3) as writer, xs.Channel.open("frames") as reader:
        loan = writer.loan()
        assert repr(loan) == "<Loan of 'frames'>"
        with loan:
            assert repr(loan) == "<Loan of 'frames' open>"
        assert repr(loan) == "<Loan 1 of 'frames' sent>"
        with reader.receive() as frame:
            assert repr(frame) == "<Frame 1 of 'frames'>"
        assert repr(frame) == "<Frame 1 of 'frames' closed>"


def test_all_and_newest_and_one_on_one_channel() -> None:
    with (
        channel() as ch,
        xs.Channel.open("test") as everything,
        xs.Channel.open("test", mode="newest") as newest,
        xs.Channel.open("test", mode="one") as one,
        xs.Channel.open("test", mode="one") as other,
    ):
        send(ch, 1, 2, 3, 4)
        assert take(everything, 4) == [1, 2, 3, 4]
        with newest.receive(10) as frame:
            assert (int(np.asarray(frame)[0]), frame.missed) == (4, 3)
        with pytest.raises(TimeoutError):
            newest.receive(0)
        assert take(one, 1) + take(other, 2) + take(one, 1) == [1, 2, 3, 4]
        send(ch, 5)
        assert take(newest, 1) == [5]


@pytest.mark.parametrize("history", [0, 2])
def test_where_a_reader_begins(history: int) -> None:
    with channel(slots=4, on_full="overwrite", history=history) as ch:
        send(ch, *range(6))
        with (
            xs.Channel.open("test", start="oldest") as old,
            xs.Channel.open("test") as new,
            xs.Channel.open("test", mode="newest", start="oldest") as last,
        ):
            send(ch, 6)
            assert take(old, 1)[0] <= 6 - history
            assert take(new, 1) == [6]
            assert take(last, 1) == [6]


def test_newest_finds_the_last_frame_of_before() -> None:
    with channel() as ch:
        send(ch, 1, 2)
        with xs.Channel.open("test", mode="newest", start="oldest") as last:
            assert take(last, 1) == [2]


def test_frames_of_before_a_reader_opened_are_not_missed() -> None:
    with channel(slots=4, on_full="overwrite") as ch, xs.Channel.open("test", mode="newest") as holder:
        send(ch, 0)
        held = holder.receive(10)
        send(ch, *range(1, 8))
        with xs.Channel.open("test", start="oldest") as late:
            found = []
            for _ in range(4):
                with late.receive(10) as frame:
                    found.append((int(np.asarray(frame)[0]), frame.missed))
            assert found == [(0, 0), (5, 0), (6, 0), (7, 0)]
            send(ch, *range(8, 13))  # into the three slots that nobody holds
            with late.receive(10) as frame:
                assert (int(np.asarray(frame)[0]), frame.missed) == (10, 2)
            [member] = [each for each in ch.statistics()["members"] if each["mode"] == "all"]
            assert member["missed"] == 2
        held.close()


# --- a full channel


def test_block_waits_for_a_reader() -> None:
    with channel(slots=3) as ch, xs.Channel.open("test") as reader:
        send(ch, 0, 1, 2)
        with pytest.raises(TimeoutError, match="no slot"), ch.loan(0.01):
            pass
        frame = reader.receive(10)
        with pytest.raises(TimeoutError), ch.loan(0.01):
            pass
        frame.close()
        send(ch, 3)
        assert take(reader, 3) == [1, 2, 3]


def test_raise() -> None:
    with channel(slots=3, on_full="raise") as ch, xs.Channel.open("test") as reader:
        send(ch, 0, 1, 2)
        with pytest.raises(xs.ChannelFull, match="all of its slots"), ch.loan():
            pass
        assert take(reader, 1) == [0]
        send(ch, 3)


def test_overwrite_takes_the_oldest_that_nobody_holds() -> None:
    with channel(slots=4, on_full="overwrite") as ch, xs.Channel.open("test") as reader:
        send(ch, 0, 1)
        held = reader.receive(10)
        send(ch, *range(2, 10))
        assert first(held) == 0
        with reader.receive(10) as frame:
            assert int(np.asarray(frame)[0]) == 7
            assert (frame.missed, frame.gap) == (6, 6)
        with reader.receive(10) as frame:
            assert (frame.missed, frame.gap) == (6, 0)
        send(ch, *range(10, 16))
        with reader.receive(10) as frame:
            assert (int(np.asarray(frame)[0]), frame.missed, frame.gap) == (12, 9, 3)


def test_overwrite_takes_jobs_that_nobody_has_begun() -> None:
    with channel(slots=4, on_full="overwrite") as ch, xs.Channel.open("test", mode="one") as worker:
        send(ch, 0)
        job = worker.receive(10)
        send(ch, *range(1, 8))
        assert first(job) == 0
        with worker.receive(10) as frame:
            assert int(np.asarray(frame)[0]) == 5
            assert (frame.missed, frame.gap) == (4, 4)
        with xs.Channel.open("test", mode="one") as late, late.receive(10) as frame:
            assert (int(np.asarray(frame)[0]), frame.missed, frame.gap) == (6, 4, 0)


def test_readers_hold_no_more_than_their_share() -> None:
    with channel(slots=4) as ch, xs.Channel.open("test") as one, xs.Channel.open("test") as other:
        send(ch, 0, 1, 2)
        frames = [one.receive(10), one.receive(10)]
        with pytest.raises(TimeoutError):
            one.receive(0)
        same_frame = other.receive(10)  # is held already
        frames[0].close()
        same_frame.close()
        assert first(one.receive(10)) == 2
        frames[1].close()


def test_a_long_wait_for_a_channel_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Once, with the channels that there are."""
    monkeypatch.setattr(changes, "WARN_AFTER", 0.05)
    opened: list[str] = []

    def open_late() -> None:
        with xs.Channel.open("tset") as reader:
            opened.append(reader.name)

    with channel(), caplog.at_level(logging.WARNING, "xpushare"):
        thread = threading.Thread(target=open_late)
        thread.start()
        wait_until(lambda: "Channel.open has waited" in caplog.text)
        with channel("tset"):
            thread.join(20)
    assert opened == ["tset"]
    assert "'tset', which nobody has created (channels now: test). Did you mean 'test'?" in caplog.text
    assert caplog.text.count("has waited") == 1


def test_a_receive_in_vain_says_whose_frames_to_close() -> None:
    with channel(slots=4) as ch, xs.Channel.open("test") as one, xs.Channel.open("test") as other:
        with pytest.raises(TimeoutError, match=r"no frame of 'test' came within 0 s$"):
            one.receive(0)
        send(ch, 0, 1, 2)
        first_of_other = other.receive(10)
        assert first(one.receive(10)) == 0
        held = [one.receive(10)]
        with pytest.raises(TimeoutError, match=r"is there, but the readers hold 2 frames, .* slots=4\. Close frames"):
            one.receive(0)
        first_of_other.close()
        held.append(one.receive(10))
        with pytest.raises(TimeoutError, match=r"this reader holds 2 frames, as many as .* slots=4\. Close frames"):
            one.receive(0)
        for frame in held:
            frame.close()


def test_without_readers_nobody_waits() -> None:
    with channel(slots=3) as ch:
        send(ch, *range(20))


def outcome(ch: xs.Channel) -> str:
    """Send a frame without waiting. Return "sent", or the error's type and message."""
    try:
        ch.send(np.zeros(2, "int64"), timeout=0)
    except (TimeoutError, OSError, xs.XpuShareError) as error:
        return f"{type(error).__name__}: {error}"
    return "sent"


def send_one(ch: xs.Channel) -> tuple[threading.Thread, list[str]]:
    """Send a frame in a thread. Return the thread, and a list that gets the seq or the error's type."""
    found: list[str] = []

    def run() -> None:
        try:
            found.append(f"sent {ch.send(np.zeros(2, 'int64'), timeout=30)}")
        except (TimeoutError, OSError, xs.XpuShareError) as error:
            found.append(type(error).__name__)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


@pytest.mark.parametrize("mode", ["all", "newest", "one"])
@pytest.mark.parametrize("on_full", ["block", "overwrite", "raise"])
def test_a_writer_that_blocks_without_readers(on_full: Any, mode: str) -> None:
    waits = "TimeoutError: no process opened 'test' to read within 0 s"
    with channel(slots=1024, on_full=on_full, on_no_readers="block") as ch:
        assert outcome(ch) == waits
        thread, found = send_one(ch)
        with Child() as child:
            child.call(open_there, mode=mode)
            thread.join(30)
            assert found == ["sent 1"]
            assert outcome(ch) == "sent"
            child.kill()
            wait_until(lambda: outcome(ch) == waits)
        with xs.Channel.open("test", mode=mode):
            assert outcome(ch) == "sent"
        assert outcome(ch) == waits
        ch.finish()  # does not wait


def test_a_writer_that_raises_without_readers() -> None:
    with channel(slots=1024, on_no_readers="raise") as ch:
        assert outcome(ch).startswith("TimeoutError: no process opened 'test' to read")
        thread, found = send_one(ch)
        with Child() as child:
            pid = child.call(open_there)
            thread.join(30)
            assert found == ["sent 1"]
            child.kill()
            wait_until(lambda: outcome(ch) != "sent")
            assert outcome(ch).startswith(f"PeerLostError: the last reader of 'test' (pid {pid}) has died")
        with xs.Channel.open("test", mode="newest") as one:
            assert outcome(ch) == "sent"
            with xs.Channel.open("test"):
                pass
            assert outcome(ch) == "sent"
            one.receive(10).close()
        assert outcome(ch).startswith("BrokenPipeError: the last reader of 'test' has closed it")
        with pytest.raises(BrokenPipeError), ch.loan():
            pass
        with xs.Channel.open("test"):
            assert outcome(ch) == "sent"
        ch.finish()


def test_the_last_reader_dies_while_a_writer_waits_for_its_slots() -> None:
    with channel(slots=3, on_no_readers="raise") as ch, Child() as child:
        child.call(open_there)
        send(ch, 0, 1, 2)
        thread, found = send_one(ch)
        child.kill()
        thread.join(30)
        assert found == ["PeerLostError"]


def test_jobs_wait_for_the_first_worker() -> None:
    with channel(on_no_readers="block") as ch, Child() as child:
        thread = threading.Thread(target=send, args=(ch, 1, 2, 3))
        thread.start()
        child.call(open_there, mode="one")
        assert child.call(take_there, 3) == [1, 2, 3]
        thread.join(30)


def test_every_writer_says_the_same_of_readers() -> None:
    with channel(writers=2, on_no_readers="block"), Child() as child:
        with pytest.raises(xs.InvalidArgumentError, match="on_no_readers='block', not 'drop'"), channel(writers=2):
            pass
        child.call(create_there, writers=2, on_no_readers="block")
    with pytest.raises(xs.InvalidArgumentError, match="on_no_readers is one of 'drop', 'block', 'raise'"):
        xs.Channel.create("test", 2, on_no_readers="wait")  # type: ignore[arg-type]


def test_an_object_that_only_writes_is_no_reader() -> None:
    with channel(writers=2, on_no_readers="block") as ch, xs.Channel.open("test") as other:
        assert outcome(ch) == "sent"
        assert outcome(other).startswith("TimeoutError: no process opened")
        assert outcome(ch).startswith("TimeoutError: no process opened")


def test_one_who_only_writes_is_waited_for_by_nobody() -> None:
    with channel(slots=4, writers=2) as ch, xs.Channel.open("test") as both:
        send(both, *range(10))
        send(ch, *range(10))


# --- work queues


def test_a_job_is_handed_out_again() -> None:
    with channel() as ch, Child() as worker, xs.Channel.open("test", mode="one") as mine:
        worker.call(open_there, mode="one")
        send(ch, 1)
        assert worker.call(hold_there) == 1
        with pytest.raises(TimeoutError):
            mine.receive(0)
        worker.kill()
        job = mine.receive(10)
        assert job.deliveries == 2
        with pytest.raises(ValueError, match="once more"), job:
            raise ValueError("once more")
        with mine.receive(10) as job:
            assert job.deliveries == 3
        with pytest.raises(TimeoutError):
            mine.receive(0)


def test_threads_share_a_writer_and_a_reader() -> None:
    found: list[int] = []

    def take_all(reader: xs.Channel) -> None:
        found.extend(map(first, reader))

    def send_from(ch: xs.Channel, start: int) -> None:
        send(ch, *range(start, start + 100))

    with channel(on_full="block") as ch, xs.Channel.open("test") as reader:
        takers = [threading.Thread(target=take_all, args=(reader,)) for _ in range(3)]
        senders = [threading.Thread(target=send_from, args=(ch, 100 * number)) for number in range(3)]
        for each in takers + senders:
            each.start()
        for each in senders:
            each.join()
        ch.finish()
        for each in takers:
            each.join()
    assert sorted(found) == list(range(300))


def test_a_dropped_frame_is_not_acknowledged() -> None:
    with channel() as ch, xs.Channel.open("test", mode="one") as worker:
        send(ch, 1)
        job = worker.receive(10)
        del job
        gc.collect()
        with worker.receive(10) as again:
            assert again.deliveries == 2


def test_dead_letters() -> None:
    with channel(slots=3, redeliver=2) as ch, xs.Channel.open("test", mode="one") as worker:
        for value in range(6):
            send(ch, value)
            for _ in range(2):
                with contextlib.suppress(ValueError), worker.receive(10):
                    raise ValueError
        found = ch.failed()
        assert [int(np.asarray(each)[0]) for each in found] == [2, 3, 4, 5]
        assert found[0].deliveries == 2
        found.pop(0).close()
        del found
        gc.collect()
        again = ch.failed()
        assert [first(each) for each in again] == [3, 4, 5]
        assert ch.failed() == []
        send(ch, 6)
        assert take(worker, 1) == [6]


def test_a_dead_letter_of_readers_that_died() -> None:
    """A supervisor finds it, though no reader is left that could receive."""
    with channel(redeliver=2) as ch:
        xs.Channel.open("test", mode="one").close()  # so that the frame waits for workers
        send(ch, 1)
        for _ in range(2):
            with Child() as worker:
                worker.call(open_there, mode="one", start="oldest")
                assert worker.call(hold_there) == 1
                worker.kill()
        assert [(first(each), each.deliveries) for each in ch.failed()] == [(1, 2)]


def test_jobs_end_when_all_are_acknowledged() -> None:
    with channel() as ch, Child() as worker, xs.Channel.open("test", mode="one") as mine:
        worker.call(open_there, mode="one")
        send(ch, 1)
        assert worker.call(hold_there) == 1
        ch.finish()
        with pytest.raises(TimeoutError):  # the worker may still die
            mine.receive(0)
        worker.call(let_go_there)
        assert list(mine) == []
        worker.call(close_there)


def test_jobs_wait_for_workers_to_come_back() -> None:
    with channel(slots=3) as ch:
        with xs.Channel.open("test", mode="one") as worker:
            send(ch, 0)
            assert take(worker, 1) == [0]
        send(ch, 1, 2, 3)
        with pytest.raises(TimeoutError), ch.loan(0.01):
            pass
        with xs.Channel.open("test", mode="one") as worker:
            assert take(worker, 3) == [1, 2, 3]


# --- ends


def test_the_end_of_a_stream() -> None:
    with channel() as ch, xs.Channel.open("test") as reader:
        send(ch, 1, 2)
        ch.finish()
        with pytest.raises(xs.InvalidArgumentError, match="finish"):
            send(ch, 3)
        values = [int(np.asarray(frame)[0]) for frame in reader]
        assert values == [1, 2]
        with pytest.raises(EOFError):
            reader.receive()


def test_iteration_closes_the_frame_before() -> None:
    with channel(slots=3) as ch, xs.Channel.open("test") as reader:
        seen: list[Any] = []
        thread = threading.Thread(target=send_all, args=(ch, 20))
        thread.start()
        for frame in reader:
            assert all(each.closed for each in seen)
            seen.append(frame)
        thread.join()
        assert len(seen) == 20


def test_all_writers_have_to_finish() -> None:
    with (
        channel(writers=2) as ch,
        xs.Channel.create("test", 2, "int64", writers=2) as other,
        xs.Channel.open("test") as reader,
    ):
        with pytest.raises(xs.InvalidArgumentError, match=r"already has 2 writers, .* writers=3"):
            xs.Channel.create("test", 2, "int64", writers=2)
        ch.finish()
        send(other, 1)
        assert take(reader, 1) == [1]
        with pytest.raises(TimeoutError):
            reader.receive(0)
        other.finish()
        assert list(reader) == []


@pytest.mark.parametrize("how", ["kill", "exit", "close"])
def test_the_last_writer_goes_without_finishing(how: str) -> None:
    with Child() as writer:
        writer.call(create_there)
        with xs.Channel.open("test") as reader:
            writer.call(send_there, 1, 2)
            if how == "kill":
                writer.kill()
            elif how == "close":
                writer.call(close_there)
            else:
                writer.__exit__(None, None, None)
            assert take(reader, 2) == [1, 2]
            with pytest.raises(xs.PeerLostError, match="without finish"):
                reader.receive(10)


def test_a_waiting_reader_is_told() -> None:
    with Child() as writer, Child() as reader:
        writer.call(create_there)
        reader.call(open_there)
        pending = reader.start(take_there, 1)
        writer.kill()
        with pytest.raises(xs.PeerLostError):
            pending.result()


def test_a_loan_of_the_dead_is_dropped() -> None:
    with channel(slots=4, writers=2) as ch, Child() as child, xs.Channel.open("test") as reader:
        child.call(open_there)
        child.call(loan_there)
        child.kill()
        send(ch, *range(4))
        assert take(reader, 4) == [0, 1, 2, 3]


def test_a_reader_dies_while_it_blocks_the_writer() -> None:
    with channel(slots=3) as ch, Child() as child:
        child.call(open_there)
        send(ch, 0, 1, 2)
        assert child.call(hold_there) == 0
        sent: list[int] = []
        thread = threading.Thread(target=lambda: sent.append(ch.send(np.zeros(2, "int64"), timeout=30)))
        thread.start()
        child.kill()
        thread.join(30)
        assert sent == [4]


def test_a_reader_dies_holding_all_it_may_and_the_writer_would_rather_raise() -> None:
    with channel(slots=3, on_full="raise") as ch, Child() as child:
        child.call(open_there)
        send(ch, 0, 1, 2)
        assert child.call(hold_there) == 0
        with pytest.raises(xs.ChannelFull):
            send(ch, 3)
        child.kill()
        send(ch, 3)


# --- takeover


def test_a_successor_takes_the_channel_over() -> None:
    with Child() as writer:
        writer.call(create_there)
        with xs.Channel.open("test", reconnect=True) as reader:
            writer.call(send_there, 1, 2)
            writer.kill()
            assert take(reader, 2) == [1, 2]
            with pytest.raises(TimeoutError):
                reader.receive(0.01)
            with pytest.raises(xs.InvalidArgumentError, match="other frames"):
                xs.Channel.create("test", 3, "int64")
            with Child() as successor:
                successor.call(create_there)
                successor.call(send_there, 3)
                with reader.receive(10) as frame:
                    assert (int(np.asarray(frame)[0]), frame.seq, frame.missed) == (3, 3, 0)
                with pytest.raises(xs.InvalidArgumentError, match="already has 1 writer, as many"):
                    xs.Channel.create("test", 2, "int64")
                with xs.Channel.open("test") as late:  # opened by what the reader shares
                    successor.call(send_there, 4)
                    assert take(late, 1) == [4]


def test_a_channel_of_the_dead_is_made_anew() -> None:
    with Child() as writer:
        writer.call(create_there)
        writer.call(send_there, 1)
        writer.kill()
    with channel(shape=5) as ch, xs.Channel.open("test", start="oldest") as reader:
        with pytest.raises(TimeoutError):
            reader.receive(0)
        assert ch.statistics()["sent"] == 0


def test_open_waits_for_create() -> None:
    with Child() as child:
        pending = child.start(_open_late)
        with channel() as ch:
            assert pending.result() == ch.handle
            child.call(close_there)


def _open_late() -> bytes:
    kept["ch"] = xs.Channel.open("test", timeout=30)
    handle: bytes = kept["ch"].handle
    return handle


# --- waiting


def test_a_reader_in_another_process_wakes() -> None:
    with channel() as ch, Child() as child:
        child.call(open_there)
        for value in range(20):
            pending = child.start(take_there, 1)
            send(ch, value)
            assert pending.result() == [value]
        child.call(close_there)


def test_interrupts() -> None:
    def interrupted() -> str:
        try:
            kept["ch"].receive()
        except KeyboardInterrupt:
            return "interrupted"
        return "received"

    with channel(), Child() as child:
        child.call(open_there)
        pending = child.start(interrupted)
        wait_until(lambda: sleepers() == 1)
        os.kill(child.pid, signal.SIGINT)
        assert pending.result() == "interrupted"
        child.call(close_there)


def sleepers() -> int:
    """Whether somebody sleeps until something changes."""
    words = words_of(next(iter(groups._known.values())))
    return int.from_bytes(words[28:32], "little")


def test_wait_any() -> None:
    with channel() as ch, xs.Channel.open("test") as reader, xs.Event("native_cpu:0") as event:
        with pytest.raises(TimeoutError):
            xs.wait_any([reader, (event, 1)], 0.01)
        thread = threading.Timer(0.01, send, (ch, 5))
        thread.start()
        assert xs.wait_any([(event, 1), reader], 30) == [reader]
        thread.join()
        assert xs.wait_any([reader], 0) == [reader]
        assert take(reader, 1) == [5]
        event.signal()
        assert xs.wait_any([reader, (event, 1)], 10) == [(event, 1)]
        ch.finish()
        assert xs.wait_any([reader], 10) == [reader]
        with pytest.raises(xs.InvalidArgumentError, match=r"made by Channel\.create"):
            xs.wait_any([ch], 0)


def test_wait_any_is_told_of_a_death() -> None:
    with Child() as writer:
        writer.call(create_there)
        with xs.Channel.open("test") as reader:
            thread = threading.Timer(0.01, writer.kill)
            thread.start()
            assert xs.wait_any([reader], 30) == [reader]
            thread.join()
            with pytest.raises(xs.PeerLostError):
                reader.receive(0)


def test_async_iteration() -> None:
    async def read(reader: xs.Channel) -> list[int]:
        return [int(np.asarray(frame)[0]) async for frame in reader]

    with channel() as ch, xs.Channel.open("test") as reader:
        thread = threading.Thread(target=send_all, args=(ch, 30))
        thread.start()
        assert asyncio.run(asyncio.wait_for(read(reader), 30)) == list(range(30))
        thread.join()


def test_any_of() -> None:
    async def wait(reader: xs.Channel, ch: xs.Channel) -> None:
        asyncio.get_running_loop().call_later(0.01, send, ch, 1)
        assert await asyncio.wait_for(xs.any_of([reader]), 30) == [reader]
        assert take(reader, 1) == [1]
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(xs.any_of([reader]), 0.02)

    with channel() as ch, xs.Channel.open("test") as reader:
        asyncio.run(wait(reader, ch))


# --- the rest


def test_several_writers_race() -> None:
    def write(first: int, count: int) -> None:
        with xs.Channel.create("test", 2, "int64", writers=3) as mine:
            for value in range(first, first + count):
                mine.send(np.full(2, value), timeout=30)
            mine.finish()

    with channel(writers=3) as ch, xs.Channel.open("test") as reader, Child() as one, Child() as two:
        pending = [one.start(write, 1000, 100), two.start(write, 2000, 100)]
        found: list[int] = []
        seqs: list[int] = []
        while len(found) < 200:
            with reader.receive(30) as frame:
                found.append(int(np.asarray(frame)[0]))
                seqs.append(frame.seq)
        for each in pending:
            each.result()
        assert seqs == list(range(1, 201))
        assert [each for each in found if each < 2000] == list(range(1000, 1100))
        assert [each for each in found if each >= 2000] == list(range(2000, 2100))
        ch.finish()
        assert list(reader) == []


def test_after_a_fork() -> None:
    def inherited() -> bool:
        theirs = kept.pop("inherited")
        with pytest.raises(xs.ForkError):
            theirs.receive(0)
        theirs.close()
        with xs.Channel.open("test", start="oldest") as mine:
            return take(mine, 1) == [7]

    with channel() as ch, xs.Channel.open("test") as reader:
        kept["inherited"] = reader
        with Child(method="fork") as child:
            send(ch, 7)
            assert child.call(inherited)
        del kept["inherited"]
        assert take(reader, 1) == [7]


def test_the_numbers_of_living_readers_and_writers() -> None:
    with channel(writers=2) as ch, Child() as reader, Child() as writer:
        assert (ch.reader_count, ch.writer_count) == (0, 1)
        reader.call(open_there, mode="one")
        writer.call(create_there, writers=2)
        with xs.Channel.open("test") as other:
            assert (ch.reader_count, ch.writer_count) == (other.reader_count, other.writer_count) == (2, 2)
            reader.kill()
            writer.kill()
            wait_until(lambda: (ch.reader_count, ch.writer_count) == (1, 1))
        assert (ch.reader_count, ch.writer_count) == (0, 1)
    with pytest.raises(xs.InvalidArgumentError, match="closed"):
        _ = ch.reader_count


def test_the_time_of_a_frame_is_that_of_its_send() -> None:
    with channel() as ch, Child() as child:
        child.call(create_there, "other")
        with xs.Channel.open("other") as reader:
            before = time.monotonic_ns()
            child.call(send_there, 1, 2)
            after = time.monotonic_ns()
            times = []
            for _ in range(2):
                with reader.receive(10) as frame:
                    times.append(frame.time_ns)
            assert before < times[0] < times[1] < after
        with xs.Channel.open("test", mode="one") as worker:
            send(ch, 1)
            job = worker.receive(10)
            sent = job.time_ns
            del job  # which is delivered again
            with worker.receive(10) as job:
                assert (job.deliveries, job.time_ns) == (2, sent)


def test_statistics() -> None:
    with channel(label="camera") as ch, xs.Channel.open("test", label="screen") as reader:
        send(ch, 1, 2)
        frame = reader.receive(10)
        found = ch.statistics()
        assert (found["name"], found["sent"]) == ("test", 2)
        writer, other = found["members"]
        assert (writer["label"], writer["writes"], writer["pid"]) == ("camera", True, os.getpid())
        assert (other["label"], other["mode"], other["lag"], other["held"]) == ("screen", "all", 1, 1)
        frame.close()


def test_a_close_ends_waits() -> None:
    raised: list[BaseException] = []

    def wait(reader: xs.Channel) -> None:
        try:
            reader.receive()
        except xs.InvalidArgumentError as error:
            raised.append(error)

    with channel(), xs.Channel.open("test") as reader:
        thread = threading.Thread(target=wait, args=(reader,))
        thread.start()
        wait_until(lambda: sleepers() == 1)
        reader.close()
        thread.join(30)
        assert len(raised) == 1


@pytest.mark.usefixtures("no_fd_leak")
def test_nothing_is_left() -> None:
    def once() -> None:
        with channel() as ch, Child() as child:
            child.call(open_there)
            send(ch, 1)
            assert child.call(take_there) == [1]
            child.call(close_there)

    once()


def test_ls_shows_channels() -> None:
    import json

    from harness import command

    with channel(label="camera") as ch, Child() as child:
        pid = child.call(open_there, label="screen")
        send(ch, 1)
        found = [each for each in json.loads(command("ls", "--json").stdout)["channels"] if each["name"] == "test"]
        assert [each["sent"] for each in found] == [1]
        assert [(each["pid"], each["label"], each["mode"], each["lag"]) for each in found[0]["members"]] == [
            (os.getpid(), "camera", None, 0),
            (pid, "screen", "all", 1),
        ]
        text = command("ls", "--name", "test").stdout
        assert "channel test, 1 frame sent" in text
        assert f"{pid} screen reads all: 1 behind, 0 missed, 0 held" in text
        child.call(close_there)


def test_the_memory_of_channels_and_locks_has_their_names() -> None:
    name = "counter-" + "n" * 120  # cut: a label is shorter than the longest name
    with channel(), xs.Channel.create(name, 2), xs.Lock("database"), xs.Lock(), xs.Atomic(0):
        found = [each["label"] for each in xs.shares() if each["exporter"] == os.getpid()]
        assert found.count("locks and atomics") == 1  # they share one memory
        for label in ("channel test", f"channel {name}"[:56]):
            assert found.count(label) == 2  # its control words and its slots


@pytest.mark.parametrize("dtype", [">i4", "datetime64[s]", "float32", [("a", "i4"), ("b", "f8")], "S3"])
def test_frames_are_arrays_of_any_dtype(dtype: Any) -> None:
    """Some of them have a buffer, which NumPy asks for first, and others not."""
    with channel(shape=3, dtype=dtype) as ch, xs.Channel.open("test") as reader:
        values = np.arange(3).astype(dtype) if not isinstance(dtype, list) else np.ones(3, dtype)
        for _ in range(2):
            with ch.loan() as loan:
                np.asarray(loan)[...] = values
            with reader.receive(10) as frame:
                found = np.asarray(frame)
                assert found.dtype == np.dtype(dtype)
                assert found.tolist() == values.tolist()
                assert np.asarray(frame, copy=True).base is None


def test_a_frames_buffer() -> None:
    with channel() as ch, xs.Channel.open("test") as reader:
        with ch.loan() as loan:
            np.asarray(loan)[:] = 5, 6
            with pytest.raises(TypeError, match="not x"):
                loan.__array__(x=1)
        with pytest.raises(BufferError, match="use its array"):
            memoryview(loan)
        with pytest.raises(xs.InvalidArgumentError, match="not on loan"):
            np.asarray(loan)
        with reader.receive(10) as frame:
            np.asarray(frame)
            view = memoryview(frame)
            assert (view.format, view.shape, view.tolist()) == ("l", (2,), [5, 6])
        with pytest.raises(xs.InvalidArgumentError, match="closed"):
            np.asarray(frame)


def test_a_loan_is_used_again() -> None:
    with channel() as ch, xs.Channel.open("test") as reader:
        loan = ch.loan()
        for value in range(3):
            with loan:
                np.asarray(loan.array)[:] = value
                with pytest.raises(xs.InvalidArgumentError, match="in use"):
                    loan.__enter__()
            assert loan.seq == value + 1
        assert take(reader, 3) == [0, 1, 2]
