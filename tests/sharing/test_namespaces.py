"""Memory of the host in boxes such as containers are: what docs/containers.md says of each is what happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import boxes
import xpushare as xs
from harness import Child, kept
from xpushare.sharing import identity

HOST = "host memory and events"
EVERY_TIME = ("the same namespaces", boxes.KUBERNETES)  # of those that work


def load() -> None:
    """Import what an attempt needs. This reads no key and starts no thread."""
    import xpushare.arrays.attach
    import xpushare.ipc
    import xpushare.objects.event
    import xpushare.sharing.routes.pidfd
    import xpushare.sharing.routes.socket  # noqa: F401

    xs.zeros(4).close()


def export() -> dict[str, Any]:
    array = kept["array"] = xs.zeros(1 << 16, "u1")
    np.asarray(array)[:] = 7
    event = kept["event"] = xs.Event("native_cpu:0", enable_ipc=True)
    return {HOST: (bytes(xs.share(array)), bytes(xs.ipc.event.get(event)))}


def attempt(handles: tuple[bytes, bytes]) -> None:
    with xs.attach(handles[0]) as array, xs.ipc.event.open(handles[1]) as event:
        assert np.asarray(array)[-1] == 7
        np.asarray(array)[0] = 8
        assert event.signal() == 1
        event.wait(5, at_least=1)


def test_the_page_has_a_row_for_each_box() -> None:
    assert list(boxes.rows()) == list(boxes.BOXES)


def test_a_box_is_skipped_only_if_its_user_cannot_import_the_bindings() -> None:
    missing = boxes.Outcome("FeatureNotSupportedError", "no driver: cuda-bindings cannot be imported (No module)")
    other = boxes.Box(enter=lambda: None)
    assert boxes.without_bindings(other, {"a": missing, "b": missing}) == f"not tried: {missing.message}"
    assert boxes.without_bindings(boxes.Box(), {"a": missing}) is None
    for found in boxes.Outcome("works", ""), boxes.Outcome("RouteError", "no way"):
        assert boxes.without_bindings(other, {"a": missing, "b": found}) is None
        assert boxes.without_bindings(other, {"a": found}) is None


def chosen() -> Iterator[object]:
    for name, said in boxes.rows().items():
        seldom = said[HOST].outcome == "works" and name not in EVERY_TIME
        yield pytest.param(name, marks=[pytest.mark.exhaustive] if seldom else [])


@pytest.mark.parametrize("name", list(chosen()))
def test_host_memory(name: str, open_folder: Path) -> None:
    box = boxes.BOXES[name]
    if why := boxes.lacking(box):
        pytest.skip(why)
    found = boxes.tried(box, open_folder, identity.user_key(), export, {HOST: attempt}, load)[HOST]
    said = boxes.rows()[name][HOST]
    assert found.outcome == said.outcome, found
    for word in said.words:
        assert word in found.message


def owe() -> bytes:
    import threading

    event = kept["event"] = xs.Event("native_cpu:0", enable_ipc=True)
    queue = kept["queue"] = xs.Queue("native_cpu:0")
    queue.submit(threading.Event().wait)
    queue.signal(event)
    return bytes(xs.ipc.event.get(event))


def test_a_death_is_seen_where_a_filter_refuses_pidfds() -> None:
    box = boxes.BOXES[boxes.KUBERNETES]
    if why := boxes.lacking(box):
        pytest.skip(why)
    filtered = box.exporter  # both with the test's folder
    with Child(prefix=filtered) as exporter, Child(prefix=filtered) as importer:
        importer.call(open_event, exporter.call(owe))
        exporter.kill()
        importer.call(expect_loss)


def open_event(handle: bytes) -> None:
    kept["event"] = xs.ipc.event.open(handle)


def expect_loss() -> None:
    with kept.pop("event") as event, pytest.raises(xs.PeerLostError):
        event.wait(5)
