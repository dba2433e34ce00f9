"""Elements that NumPy has only with the package `ml_dtypes` (bfloat16, float8), on an installation without it: torch
needs no dtype of NumPy.
"""

from __future__ import annotations

import ctypes
import importlib.util
import pickle
import sys
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import Child

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
pytestmark = pytest.mark.skipif(torch is None, reason="needs torch")

Call = Callable[..., Any]
NAMES = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]


def _hide() -> None:
    sys.modules["ml_dtypes"] = None  # type: ignore[assignment]


@pytest.fixture
def without() -> Iterator[Call]:
    with Child(imports=["torch"]) as child:
        child.call(_hide)
        yield child.call


def tensor(name: str) -> Any:
    return torch.tensor([[1.5, -2.0, 0.25], [4.0, 8.0, -0.5]]).to(getattr(torch, name))


def same(found: Any, expected: Any) -> bool:
    return found.dtype is expected.dtype and torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


def _taken(raw: bytes, name: str) -> None:
    found = xs.attach(raw, like="torch")
    assert same(found["w"], tensor(name))
    assert same(found["t"].contiguous(), tensor(name)[:, :2].t().contiguous())
    assert found["wide"].stride()[0] == 0
    assert same(found["wide"].contiguous(), tensor(name)[1].expand(5, 3).contiguous())


def _share(name: str) -> bytes:
    w = tensor(name)
    tree = {"w": torch.nn.Parameter(w, False), "t": w[:, :2].t(), "wide": w[1].clone().expand(5, 3)}
    handle = xs.share(tree, copy=True, ttl=60)
    _taken(bytes(handle), name)
    return bytes(handle)


def _in_place(name: str) -> None:
    shared = torch.from_dlpack(xs.empty(6 * 2, "u1")).view(getattr(torch, name))[:6].view(2, 3)
    shared.copy_(tensor(name))
    with xs.share(shared) as handle, xs.share([shared[0], shared[:, 1]]) as tree:
        assert name in repr(handle)
        assert handle.nbytes == shared.nbytes
        assert same(xs.attach(handle, like=torch), shared)
        assert same(xs.attach(tree, like=torch)[0], shared[0])
        assert same(torch.from_dlpack(xs.attach(tree)[1]).contiguous(), shared[:, 1].contiguous())
        with pytest.raises(xs.InvalidArgumentError, match=r"pip install ml_dtypes"):
            _ = handle.dtype


def _array(name: str) -> None:
    a = xs.array(tensor(name))
    assert name in repr(a)
    assert name in a._repr_html_()
    assert (a.shape, a.nbytes) == ((2, 3), tensor(name).nbytes)
    assert same(torch.from_dlpack(a), tensor(name))
    assert same(torch.from_dlpack(pickle.loads(pickle.dumps(a))), tensor(name))
    for use in (
        lambda: a.dtype, lambda: np.asarray(a), lambda: np.array(a), lambda: xs.array(a, dtype="f4"),
        lambda: xs.array([1.0, 2.0], dtype=name), lambda: xs.array(tensor(name), dtype="f4"),
    ):  # fmt: skip
        with pytest.raises(xs.InvalidArgumentError, match=f"no {name} without.*pip install ml_dtypes"):
            use()
    with pytest.raises(BufferError, match=name):
        memoryview(a)
    made = xs.zeros((2, 3), name)
    assert torch.from_dlpack(made).float().tolist() == [[0] * 3] * 2
    with pytest.raises(xs.InvalidArgumentError, match=f"Did you mean '{name}'"):
        xs.empty(3, name[:-1] + name[-1] * 2)


def _channels(name: str) -> None:
    with xs.Channel.create(None, nbytes=4096) as ch, xs.Channel.open(ch.handle) as reader:
        ch.send({"w": tensor(name), "bytes": tensor(name).view(torch.uint8), "other": tensor("float8_e5m2")})
        with reader.receive(5) as frame:
            assert same(torch.from_dlpack(frame.array["w"]), tensor(name))
            assert torch.from_dlpack(frame.array["bytes"]).dtype is torch.uint8
            assert same(torch.from_dlpack(frame.array["other"]), tensor("float8_e5m2"))
    with xs.Channel.create(None, (2, 3), name) as ch, xs.Channel.open(ch.handle) as reader:
        assert name in repr(ch)
        with pytest.raises(xs.InvalidArgumentError, match=name):
            ch.send(tensor(name).float())
        ch.send(tensor(name))
        with reader.receive(5) as frame:
            assert same(torch.from_dlpack(frame.array), tensor(name))
            with pytest.raises(xs.InvalidArgumentError, match="ml_dtypes"):
                np.asarray(frame)


def _published(name: str) -> None:
    with xs.share({"w": tensor(name)}, copy=True) as handle:
        xs.publish("weights", handle)
        assert same(xs.attach(xs.lookup("weights", timeout=5), like=torch)["w"], tensor(name))
        xs.unpublish("weights")


def _pickled(name: str) -> None:
    from xpushare.integrations.torch import install, uninstall

    sent = torch.from_dlpack(xs.empty(12, "u1")).view(getattr(torch, name))[:6]
    sent.copy_(tensor(name).view(-1))
    install()
    try:
        found = ForkingPickler.loads(bytes(ForkingPickler.dumps([sent, sent[2:4], torch.nn.Parameter(sent, False)])))
    finally:
        uninstall()
    assert same(found[0], sent)
    assert same(found[1], sent[2:4])
    assert type(found[2]) is torch.nn.Parameter
    sent.view(torch.uint8)[0] = 77
    assert found[0].view(torch.uint8)[0] == found[2].view(torch.uint8)[0] == 77


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", [_share, _in_place, _array, _channels, _published, _pickled])
def test_torch_needs_no_dtype_of_numpy(without: Call, check: Call, name: str) -> None:
    without(check, name)


def _numpy_scalar() -> bytes:
    import ml_dtypes  # type: ignore[import-not-found,unused-ignore]

    tree = {"array": np.full(3, 1.5, ml_dtypes.bfloat16), "four": np.ones(2, ml_dtypes.int4)}
    return bytes(xs.share(tree, copy=True, ttl=60))


def _received(raw: bytes) -> None:
    found = xs.attach(raw)
    assert torch.from_dlpack(found["array"]).tolist() == [1.5] * 3
    with pytest.raises(xs.InvalidArgumentError, match="no int4 without"):
        _ = found["four"].dtype
    with xs.share(found) as again:  # what it cannot name here goes on by its name
        assert ctypes.string_at(xs.attach(again)["four"].ptr, 2) == b"\1\1"


@pytest.mark.skipif(importlib.util.find_spec("ml_dtypes") is None, reason="needs ml_dtypes")
def test_between_processes_with_and_without(without: Call) -> None:
    with Child(imports=["torch"]) as other:
        without(_received, other.call(_numpy_scalar))
        for name in NAMES:
            other.call(_taken, without(_share, name), name)
