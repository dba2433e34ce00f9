"""Loans and frames that only a cycle references are collected, and their slots are free again."""

import gc
import weakref

import pytest

import xpushare as xs


def test_a_loan_whose_metadata_refers_to_it() -> None:
    with xs.Channel.create("circles", 3, slots=3) as writer, xs.Channel.open("circles") as reader:
        for _ in range(10):
            loan = writer.loan(timeout=5)
            loan.__enter__()
            loan.meta = [loan]
            gone = weakref.ref(loan)
            del loan
            gc.collect()
            assert gone() is None
        with pytest.raises(TimeoutError):
            reader.receive(0)
        for _ in range(10):
            writer.send([1.0, 2.0, 3.0])
            reader.receive(5).close()
