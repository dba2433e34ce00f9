"""An adapter in a package of its own. This module is its record; it loads no driver."""

from __future__ import annotations

from collections.abc import Iterable

from xpushare.adapters.base import Adapter
from xpushare.adapters.vendor import ArrayInterface, Check, DLPackType, Vendor

__all__ = ["vendor"]


def make() -> Adapter:
    from xpushare_example.adapter import Example

    return Example()


def examine() -> Iterable[Check]:
    from xpushare_example.adapter import capacity

    yield Check("example", "memory", "works", f"{capacity()} bytes for each process")


vendor = Vendor(
    backend="example",
    make=make,
    dlpack=(DLPackType(1, kinds=("device", "host", "shared"), foreign=False, host=True),),  # kDLCPU
    interfaces=(ArrayInterface("__array_interface__"),),
    examine=examine,
)
