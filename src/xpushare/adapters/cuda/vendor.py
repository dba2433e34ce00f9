"""The vendor record of `cuda`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from xpushare.adapters.cuda import INSTALL, event_of, in_use_here, stream_of
from xpushare.adapters.cuda._numbers import LEGACY_STREAM
from xpushare.adapters.vendor import ArrayInterface, Check, DLPackType, Vendor

if TYPE_CHECKING:
    from xpushare.adapters.base import Adapter

__all__ = ["vendor"]


def _make() -> Adapter:
    from xpushare.adapters.cuda._adapter import Cuda

    return Cuda()


def _examine() -> Iterable[Check]:
    from xpushare.adapters.cuda._listing import examine

    return examine()


vendor: Final = Vendor(
    backend="cuda",
    make=_make,
    order=10,
    in_use=in_use_here,
    pci_vendor=0x10DE,
    install=INSTALL,
    modules=("cuda",),
    variables=("CUDA_VISIBLE_DEVICES",),
    torch_type="cuda",
    dlpack=(
        DLPackType(2, kinds=("device",), stream=LEGACY_STREAM),
        DLPackType(3, kinds=("host",), host=True),
        DLPackType(13, kinds=("shared",), stream=LEGACY_STREAM),
    ),
    interfaces=(ArrayInterface("__cuda_array_interface__", stream=LEGACY_STREAM),),
    streams="torch and CuPy streams, __cuda_stream__, a raw CUstream pointer",
    stream_methods=("__cuda_stream__",),
    stream_of=stream_of,
    event_of=event_of,
    examine=_examine,
)
