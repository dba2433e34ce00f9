"""The record of `hip`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from xpushare.adapters.hip._protocols import BACKEND, INSTALL, event_of, in_use_here, stream_of
from xpushare.adapters.vendor import ArrayInterface, Check, DLPackType, Vendor

if TYPE_CHECKING:
    from xpushare.adapters.base import Adapter

__all__ = ["vendor"]


def _make() -> Adapter:
    from xpushare.adapters.hip._adapter import Hip

    return Hip()


def _examine() -> Iterable[Check]:
    from xpushare.adapters.hip._adapter import examine

    return examine()


def _mine(_interface: Mapping[str, Any]) -> bool:
    return in_use_here()


vendor: Final = Vendor(
    backend=BACKEND,
    make=_make,
    order=30,
    in_use=in_use_here,
    install=INSTALL,
    modules=("hip",),
    variables=("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    torch_type="cuda",
    dlpack=(
        DLPackType(10, kinds=("device", "shared"), stream=0),
        DLPackType(11, kinds=("host",), host=True),
    ),
    interfaces=(ArrayInterface("__cuda_array_interface__", stream=1, mine=_mine),),
    streams="torch and CuPy streams where these are built for ROCm, a raw hipStream_t",
    stream_of=stream_of,
    event_of=event_of,
    examine=_examine,
)
