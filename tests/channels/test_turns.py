"""Threads of one process that use the same channel object take turns: who waits is not overtaken."""

# pyright: reportPrivateUsage=false
# (whether a thread waits is in the channel's words)

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import TIMEOUT, wait_until
from words import words_of
from xpushare.channels import groups


@pytest.fixture
def writer() -> Iterator[xs.Channel]:
    with xs.Channel.create("turns", 1, "int64") as made:
        yield made


def sleeps() -> bool:
    """Whether some thread may sleep until the channel changes."""
    words: Any = words_of(next(iter(groups._known.values())))
    return bool(words[28])  # `sleepers` of the bell, which follows the lock


def received(reader: xs.Channel) -> int:
    with reader.receive(TIMEOUT) as frame:
        return frame.seq


class Thread:
    """Runs a function, which has begun to wait when this has been made."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.found: list[Any] = []
        self._thread = threading.Thread(target=lambda: self.found.append(function()))
        assert not sleeps()
        self._thread.start()
        wait_until(sleeps)

    def result(self) -> Any:
        self._thread.join(TIMEOUT)
        assert self.found
        return self.found[0]


def test_a_loan_in_a_loop_lets_another_thread_have_its_turn(writer: xs.Channel) -> None:
    order: list[str] = []

    def other() -> None:
        with writer.loan(TIMEOUT):
            order.append("other")

    with writer.loan():
        thread = Thread(other)
        with pytest.raises(xs.InvalidArgumentError, match="has a loan of this object already"):
            writer.send([1])
    with writer.loan(TIMEOUT):
        order.append("this")
    thread.result()
    assert order == ["other", "this"]


def test_a_receiver_in_a_loop_does_too(writer: xs.Channel) -> None:
    with xs.Channel.open("turns", mode="one") as reader:
        thread = Thread(lambda: received(reader))
        for value in 1, 2:
            writer.send([value])
        assert received(reader) == 2
        assert thread.result() == 1


def test_one_that_waits_no_longer_is_in_nobodys_way(writer: xs.Channel) -> None:
    def late() -> str:
        try:
            with writer.loan(0.01):
                return "lent"
        except TimeoutError:
            return "late"

    loan = writer.loan()
    with loan:
        threads = [threading.Thread(target=late) for _ in range(5)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(TIMEOUT)
            assert not each.is_alive()
    assert writer.send([1], timeout=TIMEOUT) == loan.seq + 1


def test_a_signal_handler_receives_while_its_thread_waits(writer: xs.Channel) -> None:
    seen: list[int] = []
    with xs.Channel.open("turns", mode="one") as reader:

        def handle(_number: int, _frame: object) -> None:
            writer.send([1])
            seen.append(received(reader))
            writer.send([2])

        before = signal.signal(signal.SIGUSR1, handle)
        main = threading.main_thread().ident
        assert main is not None

        def interrupt() -> None:
            wait_until(sleeps)
            signal.pthread_kill(main, signal.SIGUSR1)

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            assert received(reader) == 2
        finally:
            signal.signal(signal.SIGUSR1, before)
            thread.join(TIMEOUT)
    assert seen == [1]


def test_many_threads_of_one_writer(writer: xs.Channel) -> None:
    with xs.Channel.open("turns") as reader:

        def send() -> None:
            for value in range(50):
                with writer.loan(TIMEOUT) as frame:
                    np.asarray(frame)[:] = value

        threads = [threading.Thread(target=send) for _ in range(4)]
        for each in threads:
            each.start()
        got: list[int] = []
        while len(got) < 200:
            with reader.receive(TIMEOUT) as frame:
                got.append(int(np.asarray(frame)[0]))
        for each in threads:
            each.join(TIMEOUT)
            assert not each.is_alive()
        assert sorted(got) == sorted(list(range(50)) * 4)
