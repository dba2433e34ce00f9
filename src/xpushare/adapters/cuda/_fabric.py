"""Allocations that have a fabric handle in addition to the file descriptor. The transports of inference engines use the
fabric handle to reach an allocation from other nodes.
"""

from __future__ import annotations

from xpushare.adapters.cuda import _numbers as n
from xpushare.adapters.cuda._driver import FABRIC, Gpu, struct_bytes
from xpushare.adapters.cuda._numbers import Error
from xpushare.adapters.stream.background import quietly
from xpushare.common.aspects import Support
from xpushare.common.errors import DeviceError, FeatureNotSupportedError, XpuShareError

__all__ = ["fabric_handle", "support"]


def support(gpu: Gpu) -> Support:
    """Return whether allocations with a file descriptor and a fabric handle can be made. Asks the driver, then makes
    one such allocation as a test.
    """
    doing = "trying an allocation with a fabric handle"
    try:
        with gpu.current():
            gpu.release(doing, gpu.create_for_fabric(doing, gpu.granularity(False)))
    except XpuShareError as error:
        return Support("no", str(error))
    return Support("yes", "an allocation with both handles was made")


def fabric_handle(gpu: Gpu, address: int) -> bytes:
    """Return the fabric handle (CUmemFabricHandle) of the allocation that is mapped at an address."""
    doing, driver = f"asking for a fabric handle on {gpu}", gpu.driver
    kind = driver.api.CUmemAllocationHandleType(n.FABRIC)
    allocation = gpu.retain(doing, address)
    try:
        return struct_bytes(driver(doing, "cuMemExportToShareableHandle", allocation, kind, 0))
    except DeviceError as error:
        if error.native != Error.INVALID_VALUE:
            raise
        raise FeatureNotSupportedError(
            f"{doing}: the allocation was made without one: set {FABRIC}=1 before it is made", native=error.native
        ) from error
    finally:
        quietly(gpu.release, doing, allocation)
