"""The vendor record of `opencl`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xpushare.adapters.opencl import BACKEND, INSTALL, LOADER, VARIABLES, queue_of
from xpushare.adapters.vendor import DLPackType, Vendor, library_loaded

if TYPE_CHECKING:
    from xpushare.adapters.base import Adapter

__all__ = ["vendor"]


def _make() -> Adapter:
    from xpushare.adapters.opencl._adapter import OpenCL

    return OpenCL()


vendor: Final = Vendor(
    backend=BACKEND,
    make=_make,
    order=95,  # the host itself comes first: `Device("cpu")` is native_cpu:0
    in_use=lambda: library_loaded(LOADER),
    install=INSTALL,
    variables=VARIABLES,
    dlpack=(
        DLPackType(1, kinds=("device", "host", "shared"), foreign=False, host=True),
        DLPackType(4, address=False),  # a cl_mem
    ),
    streams="pyopencl.CommandQueue",
    stream_of=queue_of,
)
