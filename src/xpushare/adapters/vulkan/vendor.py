"""The vendor record of `vulkan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpushare.adapters.vendor import ArrayInterface, DLPackType, Vendor

if TYPE_CHECKING:
    from xpushare.adapters.base import Adapter

__all__ = ["vendor"]


def _make() -> Adapter:
    from xpushare.adapters.vulkan._adapter import Vulkan

    return Vulkan()


vendor: Final = Vendor(
    backend="vulkan",
    make=_make,
    order=60,
    selected_only=True,
    dlpack=(DLPackType(7, address=False),),
    interfaces=(ArrayInterface("__vulkan_memory__", given=False),),
)
