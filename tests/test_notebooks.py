"""What a notebook shows of arrays, handles, devices and `shares()`."""

from __future__ import annotations

import pickle
from html.parser import HTMLParser
from typing import Any

import pytest

import xpushare as xs
from xpushare.arrays.names import Shares

HOST = "native_cpu:0"


class Cells(HTMLParser):
    """The text of the cells, of a table that is well formed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert not attrs
        assert tag in ("table", "caption", "thead", "tbody", "tr", "th", "td")
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.found.append(data)


def cells(thing: Any) -> list[str]:
    bundle = thing._repr_mimebundle_()
    assert bundle == {"text/plain": repr(thing), "text/html": thing._repr_html_()}
    assert thing._repr_mimebundle_(include=["text/plain"]) == {"text/plain": repr(thing)}
    assert thing._repr_mimebundle_(exclude={"text/plain"}) == {"text/html": thing._repr_html_()}
    return Cells(bundle["text/html"]).found


def test_array() -> None:
    array = xs.zeros((2, 3), "f4")
    assert cells(array) == [
        "SharedArray", "shape", "(2, 3)", "dtype", "float32", "size", "24 bytes", "device", HOST,
    ]  # fmt: skip
    with xs.share(array, read_only=True) as handle:
        assert cells(xs.attach(handle))[-4:] == ["imported", "yes", "read-only", "yes"]
    array.close()
    assert cells(array) == ["SharedArray", "state", "closed"]


def test_handles() -> None:
    array = xs.zeros((2, 3))
    with xs.share(array) as one, xs.share({"a": array, "b": array}) as tree:
        assert cells(one)[:5] == ["ArrayHandle", "shape", "(2, 3)", "dtype", "float64"]
        assert cells(tree)[:3] == ["ArrayHandle", "arrays", "1"]
        assert cells(one.handle)[:5] == ["Handle", "kind", "memory", "size", "48 bytes"]
    assert cells(one)[-2:] == ["closed", "yes"]


def test_device() -> None:
    device = xs.Device(HOST)
    found = cells(device)
    assert found[:3] == [f"Device {HOST}", "name", device.name]
    assert device.uuid in found


def test_shares() -> None:
    label = '<b>&"bold"</b>'
    with xs.share(xs.zeros(3), label=label):
        found = xs.shares()
        assert isinstance(found, list)
        assert label in cells(found)
        assert "<b>" not in found._repr_html_()
        assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "a & b", "\"quoted\" 'text'"])
def test_text_is_escaped(text: str) -> None:
    row: Any = {
        "state": "shared", "kind": text, "nbytes": 1, "exporter": 1, "exporter_name": text, "importers": [],
        "handles": 1, "names": [text], "label": text,
    }  # fmt: skip
    shown = Shares([row])._repr_html_()
    assert "<script>" not in shown
    assert Cells(shown).found.count(text) == 3
