"""Which way points go is found by trial: what a driver accepts, and does wrong, is not used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import xpushare as xs
from xpushare import _native, adapters
from xpushare.adapters.level_zero._adapter import LevelZero

DEVICE = "level_zero:0"
INSTANT = 1 << 20  # completed by the host
# Prints whether pages are registered.
PROGRAM = """
import test_level_zero_words as t
t.order()
print(t.registered())
"""


def registered() -> bool:
    """Whether the device, which stores and waits, reaches only pages that the driver was told about."""
    adapter = adapters.adapter("level_zero")
    assert isinstance(adapter, LevelZero)
    words = adapter.device(adapter.devices()[0]).words
    assert words.store
    assert words.wait
    return words.registered


def order() -> None:
    """Points of several events, which lie at several places of a page."""
    events = [xs.Event(DEVICE, enable_ipc=True) for _ in range(4)]
    with xs.Queue(DEVICE) as queue, xs.Queue(DEVICE) as other:
        for event in events:
            queue.signal(event)
            other.wait(event)
            other.signal(event)
        queue.synchronize(10)
        other.synchronize(10)
    assert [event.value for event in events] == [2] * 4
    for event in events:
        event.close()


@pytest.mark.drivers("soft", "neo")
def test_points_beyond_32_bits() -> None:
    """Intel's driver compares 32 bits, at least here: points from 2^31 on are held."""
    with xs.Event(DEVICE, enable_ipc=True) as event, xs.Queue(DEVICE) as queue, xs.Queue(DEVICE) as other:
        slot = event._use().timeline.slot
        start = 2**32 - 2
        _native.store64(slot.address + _native.LAYOUT["slot.value"], start)  # as if these points had come and gone
        _native.store64(slot.address + _native.LAYOUT["slot.pending"], start << 21 | INSTANT)
        for point in range(start + 1, start + 6):
            queue.signal(event)
            other.wait(event, at_least=point)
            other.synchronize(10)
            assert event.value >= point
        assert event.value == start + 5


@pytest.mark.drivers("neo")
def test_intel_s_driver_stores_where_it_imported_nothing() -> None:
    order()
    assert not registered()


@pytest.mark.drivers("soft", "stand-in")
def test_the_driver_is_told_about_pages() -> None:
    order()
    assert registered()


@pytest.mark.drivers("soft")
def test_a_driver_that_stores_at_the_start_of_what_was_imported() -> None:
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    environ = {**os.environ, "PYTHONPATH": path, "SOFTZE_PLAIN": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("False\n", "")
