"""The vendor record of `hip`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpushare.adapters.hip import BACKEND, INSTALL, event_of, in_use_here, stream_of
from xpushare.adapters.vendor import ArrayInterface, DLPackType, Vendor

if TYPE_CHECKING:
    from xpushare.adapters.base import Adapter

__all__ = ["vendor"]


def _make() -> Adapter:
    from xpushare.adapters.hip._adapter import Hip

    return Hip()


vendor: Final = Vendor(
    backend=BACKEND,
    make=_make,
    order=30,
    in_use=in_use_here,
    pci_vendor=0x1002,
    install=INSTALL,
    variables=("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    dlpack=(DLPackType(10, kinds=("device", "shared"), stream=0), DLPackType(11, kinds=("host",), host=True)),
    interfaces=(ArrayInterface("__cuda_array_interface__", stream=1, mine=lambda _interface: in_use_here()),),
    streams="torch and CuPy streams where these are built for ROCm, a raw hipStream_t",
    stream_of=stream_of,
    event_of=event_of,
)
