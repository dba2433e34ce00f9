"""The registry of idle memory: one clock, one limit, one `trim` for five caches, of which a forked child has none."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

import xpushare as xs
from harness import Child, kept, wait_until
from xpushare.core.device import adapter_of
from xpushare.core.memory import kept_nbytes
from xpushare.sharing import node

NBYTES = 1 << 16


@pytest.fixture
def exporter() -> Iterator[Child]:
    with Child() as child:
        child.call(sees_mock)
        yield child


@pytest.fixture
def process() -> Iterator[Child]:
    """In which all happens, so that it begins with nothing."""
    with Child() as child:
        child.call(sees_mock)
        yield child


def sees_mock() -> None:
    os.environ["ONEAPI_DEVICE_SELECTOR"] = "native_cpu:*;mock:*"


def shares(device: str, count: int = 1) -> list[bytes]:
    arrays = kept[device] = [xs.empty(NBYTES, "uint8", device=device, isolated=True) for _ in range(count)]
    handles = kept["handles of", device] = [xs.share(array) for array in arrays]
    return [bytes(handle) for handle in handles]


def imports(raw: bytes) -> None:
    xs.attach(raw).close()


def frees(device: str) -> None:
    xs.empty(NBYTES, "uint8", device=device).close()


def fills_all(host: bytes, mock: bytes) -> list[int]:
    """Return the size of the idle memory after each step."""
    found = []
    xs.share(np.zeros(1), copy=True).close()  # starts the warden
    xs.trim()
    steps = [
        lambda: xs.empty(NBYTES, "uint8", isolated=True).close(),  # own memory
        lambda: imports(mock),  # an import with a lease
        lambda: (imports(host), imports(host)),  # of a peer
        lambda: frees("mock:0"),  # a block with device work
        lambda: xs.empty(1).close(),  # an arena
    ]
    for step in steps:
        step()
        found.append(kept_nbytes())
    return found


def of_a_fork() -> int:
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            code = min(kept_nbytes() + len(node.current().idle.items) + len(node.current().idle.host) + xs.trim(), 254)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def looks() -> int:
    """How many functions the thread of the device calls regularly."""
    looked: list[object] = adapter_of(xs.Device("mock:0")).look_after.__self__._looks  # type: ignore[union-attr]
    return len(looked)


def test_trim_empties_all_and_a_forked_child_has_none(process: Child, exporter: Child) -> None:
    [host], [mock] = (exporter.call(shares, device) for device in ("native_cpu:0", "mock:0"))
    sizes = process.call(fills_all, host, mock)
    assert len(set(sizes)) == len(sizes)
    assert sizes == sorted(sizes)
    assert process.call(of_a_fork) == 0
    assert process.call(xs.trim) >= 3 * NBYTES
    assert process.call(kept_nbytes) == 0
    assert process.call(lambda: len(node.current().idle.items) + len(node.current().idle.host)) == 0
    wait_until(lambda: process.call(looks) == 0)  # the clock sleeps


def test_one_clock_ends_all_of_a_device(process: Child, exporter: Child) -> None:
    """Also what comes while the clock runs for another cache."""

    def both(raw: bytes) -> None:
        os.environ["XPUSHARE_KEEP_SECONDS"] = "0.2"
        imports(raw)
        frees("mock:0")

    process.call(both, exporter.call(shares, "mock:0")[0])
    wait_until(lambda: process.call(kept_nbytes) == 0)
    wait_until(lambda: process.call(looks) == 0)


def test_one_limit_counts_all_of_a_device(process: Child, exporter: Child) -> None:
    def most(raws: list[bytes]) -> tuple[int, int]:
        os.environ["XPUSHARE_KEEP_BYTES"] = str(3 * NBYTES)
        os.environ["XPUSHARE_KEEP_SECONDS"] = "60"
        for raw in raws:
            imports(raw)
        before = kept_nbytes()
        frees("mock:0")
        frees("mock:0")
        return before, kept_nbytes()

    assert process.call(most, exporter.call(shares, "mock:0", 3)) == (3 * NBYTES, 3 * NBYTES)
