"""The vendor record of `level_zero`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from xpushare.adapters.level_zero import BACKEND, INSTALL, in_use_here, ipc_event_of, sycl_queue_of
from xpushare.adapters.vendor import ArrayInterface, Check, DLPackType, Vendor

if TYPE_CHECKING:
    from xpushare.adapters.base import Adapter

__all__ = ["vendor"]


def _make() -> Adapter:
    from xpushare.adapters.level_zero._adapter import LevelZero

    return LevelZero()


def _examine() -> Iterable[Check]:
    from xpushare.adapters.level_zero._doctor import examine

    return examine()


vendor: Final = Vendor(
    backend=BACKEND,
    make=_make,
    order=20,
    in_use=in_use_here,
    pci_vendor=0x8086,
    install=INSTALL,
    variables=("ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY"),
    torch_type="xpu",
    dlpack=(
        DLPackType(14, kinds=("device", "shared")),
        DLPackType(1, kinds=("host",), foreign=False, host=True),
    ),
    interfaces=(ArrayInterface("__sycl_usm_array_interface__", layout="sycl_usm"),),
    streams="dpctl.SyclQueue",
    stream_of=sycl_queue_of,
    event_of=ipc_event_of,
    examine=_examine,
)
