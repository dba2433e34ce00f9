"""What people call what they share (API, section 6): `ls` and `shares` show it."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

import xpushare as xs
from harness import Child, command, kept

DEVICE = "native_cpu:0"


def rows(label: str) -> list[dict[str, object]]:
    return [dict(row) for row in xs.shares() if row["label"] == label]


def test_share_labels_what_it_exports() -> None:
    tree = {"a": xs.empty(4), "b": [xs.empty(1 << 16)]}
    with xs.share(tree, label="the weights") as handle:
        found = rows("the weights")
        assert len(found) == len(handle.handles)
        assert all(row["kind"] == "memory" for row in found)
        listed = json.loads(command("ls", "--json").stdout)
        assert sum(row["label"] == "the weights" for row in listed["rows"]) == len(found)
        assert "the weights" in command("ls").stdout
    assert rows("the weights") == []


def test_an_array_and_an_event_have_labels_of_their_own() -> None:
    array, plain = xs.empty(4, label="frames"), xs.zeros(4, label="masks")
    with xs.Event(DEVICE, enable_ipc=True, label="frame ready") as event:
        handle = xs.ipc.event.get(event)
        sent = pickle.dumps(array)
        with xs.share(plain), xs.share([array], label="both"):
            assert [row["kind"] for row in rows("frame ready")] == ["event"]
            assert len(rows("masks")) == 1
            assert len(rows("frames") + rows("both")) == 1  # one object, called by either
        xs.ipc.event.put(handle)
    del sent


def test_a_label_goes_with_its_export() -> None:
    """The next export of the entry has none."""
    for _ in range(3):
        with xs.share(xs.zeros(4), label="once"):
            assert len(rows("once")) == 1
        with xs.share(xs.zeros(4)):
            assert rows("once") == []


def _shared() -> bytes:
    handle = kept["handle"] = xs.share(xs.zeros(4))
    return bytes(handle)


def test_what_is_wrong() -> None:
    array = xs.empty(4)
    for wrong in (3, "two\nlines", "x" * 57, "\N{GREEK SMALL LETTER MU}" * 29):
        for call in (
            lambda wrong=wrong: xs.share(array, label=wrong),
            lambda wrong=wrong: xs.empty(4, label=wrong),
            lambda wrong=wrong: xs.Event(DEVICE, label=wrong),
        ):
            with pytest.raises(xs.InvalidArgumentError, match="label"):
                call()
    with Child() as peer:
        imported = xs.attach(peer.call(_shared))
        with pytest.raises(xs.InvalidArgumentError, match="label"):
            xs.share(imported, label="mine")
        assert np.asarray(imported).tolist() == [0.0] * 4
        imported.close()
