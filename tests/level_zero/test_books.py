"""The books of `scripts/level_zero conformance` show what the adapter forgets, not what a program holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HELD = """
import xpushare as xs
memory = xs.malloc_device(4096, "level_zero:0")
host = xs.malloc_host(4096, "level_zero:0")
handle = xs.ipc.memory.get(memory)
event = xs.Event("level_zero:0", enable_ipc=True)
queue = xs.Queue("level_zero:0")
queue.fill(memory, b"x")
queue.signal(event)
"""
FORGOTTEN = """
from xpushare import adapters
found = adapters.adapter("level_zero")
found.allocate(found.devices()[0], "device", 4096)  # nobody owns it
"""


def left(program: str, folder: Path) -> str:
    """What the process of a program has written into its books."""
    books = folder / "books"
    path = os.pathsep.join([str(Path(__file__).parent / "books"), *filter(None, sys.path)])
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": path, "SOFTZE_BOOKS": str(books)}
    )
    return books.read_text().splitlines()[-1].partition(": ")[2]


@pytest.mark.drivers("soft", "stand-in")
def test_what_a_program_holds_is_no_leak(tmp_path: Path) -> None:
    assert left(HELD, tmp_path) == "0 left"


KEPT = """
from xpushare import adapters
with xs.empty(1 << 20, "u1", device="level_zero:0") as array:  # serves later arrays
    xs.share(array).close()
del array
held = xs.empty(1 << 20, "u1", device="level_zero:0"), xs.empty(1 << 21, "u1", device="level_zero:0")  # would
xs.share(held[0]).close()
with xs.empty(1 << 22, "u1", device="level_zero:0") as array:
    xs.share(array).close()
del array
adapters.adapter("level_zero").engine.teardown.settle(20)  # now it waits
"""


@pytest.mark.drivers("soft", "stand-in")
def test_what_serves_again_is_released_at_the_exit(tmp_path: Path) -> None:
    assert left(HELD + KEPT, tmp_path) == "0 left"


CHANNELS = """
import numpy
channel = xs.Channel.create(None, 64, "u1", device="level_zero:0")
reader = xs.Channel.open(channel.handle)
channel.send(numpy.ones(64, "u1"))
reader.receive(20).close()
"""


@pytest.mark.drivers("soft", "stand-in")
def test_a_channel_that_a_program_holds_is_no_leak(tmp_path: Path) -> None:
    assert left(HELD + CHANNELS, tmp_path) == "0 left"


@pytest.mark.drivers("soft", "stand-in")
def test_what_the_adapter_forgets_is_one(tmp_path: Path) -> None:
    assert "1 physical" in left(HELD + FORGOTTEN, tmp_path)
