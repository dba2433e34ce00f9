"""examples/safetensors_weights.py: every kind of element that a file of weights has."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpushare as xs

safetensors: Any = pytest.importorskip("safetensors.torch")
torch: Any = pytest.importorskip("torch")
KINDS = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int16", "int8", "uint8", "bool"]


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_every_kind_of_element(tmp_path: Path, library: str) -> None:
    pytest.importorskip("ml_dtypes")
    place = Path(__file__).parents[1] / "examples" / "safetensors_weights.py"
    spec = importlib.util.spec_from_file_location("safetensors_weights", place)
    assert spec is not None
    assert spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    model = {name: torch.tensor([[0, 1, 2]]).to(getattr(torch, name)) for name in KINDS}
    path = tmp_path / "model.safetensors"
    safetensors.save_file(model, path)
    data, _queue = example.load(path, xs.Device("native_cpu:0"))
    with xs.share(data) as handle:
        found = example.attach(path, bytes(handle), torch if library == "torch" else np)
        for name in KINDS:
            assert found[name].shape == (1, 3)
            assert name in str(found[name].dtype)
            assert [float(each) for each in found[name].reshape(-1)] == [0, 1, 1 if name == "bool" else 2]
        del found
