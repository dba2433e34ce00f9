"""The stand-ins that test_hardware_engines.py uses where an engine's package is missing."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from engine_stand_ins import stand_in

import xpushare as xs
from harness import Child

pytest.importorskip("torch")


def described() -> tuple[list[str], bytes]:
    """The names in LMCache's descriptor of a tensor, and the pickled descriptor."""
    stand_in()
    import torch

    from xpushare.integrations import lmcache

    wrapper = lmcache.wrapper()
    wrapper._get_device_uuid = staticmethod(str)  # there is no GPU
    tensor = torch.from_dlpack(xs.empty(4096, "uint8"))
    wire = wrapper.wrap(tensor).to_wire()
    return sorted(wire.metadata), pickle.dumps((wire.metadata, wire.handle))


@pytest.mark.skipif(importlib.util.find_spec("lmcache") is not None, reason="LMCache itself is installed")
def test_a_descriptor_has_lmcaches_fields_and_no_tensor() -> None:
    """A tensor that is pickled by value names its GPU by a number, which another process may not have."""
    with Child(timeout=60.0) as child:
        names, raw = child.call(described)
    assert names == ["device_uuid", "dtype", "shape", "storage_offset", "stride"]
    assert b"torch.storage" not in raw
    assert b"_rebuild_tensor" not in raw
