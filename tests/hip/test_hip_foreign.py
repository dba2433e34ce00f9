"""Memory of hipMalloc that native code opens, once Python has opened some on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from samples import RocmArray

import xpushare as xs
from harness import Child
from xpushare import adapters
from xpushare.adapters.hip import _memory

NBYTES = 1 << 21


def refuse(*_given: object) -> None:
    raise AssertionError("Python was asked")


def attach(handle: bytes, natively: bool) -> list[int]:
    """Return the first bytes of an array. `natively`: Python opens none of its memory."""
    with pytest.MonkeyPatch.context() as patch:
        if natively:
            patch.setattr(_memory, "open_own", refuse)
        with xs.attach(handle) as found, xs.array(found, device="native_cpu:0") as copy:
            values: list[int] = np.asarray(copy)[:3].tolist()
    return values


def test_native_code_opens_it() -> None:
    adapter: Any = adapters.adapter("hip")
    info = adapter.devices()[0]
    arrays = [RocmArray(adapter, info, NBYTES) for _ in range(2)]
    with Child() as child:
        for number, array in enumerate(arrays):
            with array.gpu.current():
                array.gpu.driver.code("hipMemsetD8Async", array.address, 7 + number, NBYTES, 0)
            with xs.share(array) as handle:
                assert child.call(attach, bytes(handle), number > 0) == [7 + number] * 3
