"""Section 3, pickling: objects, imports and errors as bytes."""

# pyright: basic, reportPossiblyUnboundVariable=false, reportOptionalMemberAccess=false

from __future__ import annotations

import copy
import pickle
import re
import time
from functools import partial
from typing import Any

import pytest

import xpushare as xs
from xpushare.conformance import actions
from xpushare.conformance.actions import NBYTES, granule, make
from xpushare.conformance.forgery import unpickling
from xpushare.conformance.harness import Child, kept, wait_until
from xpushare.conformance.plugin import Pair
from xpushare.conformance.rules import rule

PATTERN = bytes(at % 251 for at in range(NBYTES))


@rule("3.12a")
def test_pickling(pair: Pair, peer: Child, kind: str) -> None:
    actions.export("thing", kind, pair.exporter, b"" if kind == "event" else b"sent")
    thing = kept["thing"]
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        name = f"received{protocol}"
        found = peer.call(actions.unpickle, name, pickle.dumps(thing, protocol))
        assert found == (type(thing).__name__, True)
        if kind != "event":
            assert peer.call(actions.read, name, 4) == b"sent"
    again = pickle.loads(pickle.dumps(thing))
    assert again.is_imported
    again.close()
    if kind == "memory":
        for part in (thing.slice(1, 2), thing.as_array(2, "uint8", 1)):
            assert peer.call(actions.unpickle, "part", pickle.dumps(part)) == (type(part).__name__, True)
        device = xs.Device(pair.exporter)
        assert pickle.loads(pickle.dumps(device)) == device
        assert peer.call(str, device) == str(device)


@rule("3.12b")
def test_forwarding(pair: Pair, peer: Child, other: Child, kind: str) -> None:
    handle = actions.export("thing", kind, pair.exporter)
    peer.call(actions.open_, "import", kind, handle, pair.importer)
    data = peer.call(actions.pickled, "import")
    assert other.call(actions.unpickle, "forwarded", data)[1]
    assert other.call(_handle_of, "forwarded") == handle
    peer.call(actions.drop)
    assert bytes(pickle.loads(data).handle) == handle


def _handle_of(name: str) -> bytes:
    return bytes(kept[name].handle)


@rule("3.12c")
def test_kept(pair: Pair, peer: Child, kind: str) -> None:
    for call in peer.call, _here:
        data = call(actions.pickle_and_close, kind, pair.exporter, "60")
        with pickle.loads(data) as thing:
            assert thing.is_imported
        data = call(actions.pickle_and_close, kind, pair.exporter, "0")
        assert re.search("closed|kept|keep|alive", unpickling(data))
        data = call(actions.pickle_and_close, kind, pair.exporter, "0.2")
        deadline = time.monotonic() + 0.2
        pickle.loads(data).close()
        wait_until(partial(_after, deadline), "the grace to be over")
        assert re.search("closed|kept|keep|alive", unpickling(data))
    data = peer.call(_make_and_pickle, kind, pair.exporter)
    pickle.loads(data).close()
    peer.call(actions.drop, "dropped")
    assert re.search("closed|kept|keep|alive", unpickling(data))


def _after(deadline: float) -> bool:
    return time.monotonic() > deadline


def _here(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


def _make_and_pickle(kind: str, device: str) -> bytes:
    kept["dropped"] = make(kind, device)
    return pickle.dumps(kept["dropped"])


@rule("3.12d")
def test_not_pickled(pair: Pair) -> None:
    device = xs.Device(pair.exporter)
    with xs.Queue(device) as queue:
        things: list[Any] = [queue, device.context]
        if device.has("ext_oneapi_virtual_mem"):
            kept["range"] = xs.VirtualRange(granule(pair.exporter), device)
            things.append(kept["range"])
        for thing in things:
            with pytest.raises(TypeError):
                pickle.dumps(thing)


@rule("3.12e")
def test_not_copied(pair: Pair, kind: str) -> None:
    with make(kind, pair.exporter) as thing:
        for function in (copy.copy, copy.deepcopy):
            with pytest.raises(TypeError):
                function(thing)


@rule("3.12f")
def test_errors_pickle() -> None:
    from xpushare import ur

    names = ["InvalidArgumentError", "HandleExpiredError", "FeatureNotSupportedError", "RouteError", "PeerLostError",
             "OutOfMemoryError", "ForkError", "DeviceError", "XpuShareError"]  # fmt: skip
    bases = {
        "InvalidArgumentError": ValueError, "FeatureNotSupportedError": NotImplementedError,
        "RouteError": PermissionError,
        "PeerLostError": ConnectionError, "OutOfMemoryError": MemoryError, "ForkError": RuntimeError,
        "DeviceError": RuntimeError,
    }  # fmt: skip
    errors = [*(getattr(xs, name) for name in names), xs.InvalidHandleError, ur.URError]
    for error in errors:
        made = error("what", result=ur.Result.ERROR_INVALID_SIZE, native=7, reasons=("one", "two"))
        made.add_note("where")
        again = pickle.loads(pickle.dumps(made))
        assert type(again) is error
        assert (again.message, again.result, again.native, again.reasons) == ("what", made.result, 7, ("one", "two"))
        assert str(again) == str(made)
        assert again.__notes__ == ["where"]
        assert isinstance(made, bases.get(error.__name__, xs.XpuShareError))
        assert isinstance(made, xs.XpuShareError)
