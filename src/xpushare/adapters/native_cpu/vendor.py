"""The vendor record of `native_cpu`."""

from __future__ import annotations

from typing import Final

from xpushare.adapters.native_cpu import NativeCpu
from xpushare.adapters.vendor import ArrayInterface, DLPackType, Vendor

__all__ = ["vendor"]


vendor: Final = Vendor(
    backend="native_cpu",
    make=NativeCpu,
    order=90,
    torch_type="cpu",
    dlpack=(DLPackType(1, kinds=("device", "host", "shared"), host=True),),
    interfaces=(ArrayInterface("__array_interface__"),),
)
