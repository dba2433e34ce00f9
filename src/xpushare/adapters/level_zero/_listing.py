"""Lists the devices of this process without starting a driver in it, since that would make a later fork unsafe."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from xpushare.adapters.base import DeviceInfo
from xpushare.adapters.level_zero import BACKEND, INSTALL
from xpushare.adapters.level_zero._bindings import INTEL
from xpushare.adapters.stream.listing import Found, ask_driver, has_render_node

__all__ = ["VARIABLES", "info", "list_devices", "present"]

VARIABLES: Final = (
    "ZE_AFFINITY_MASK",
    "ZE_FLAT_DEVICE_HIERARCHY",
    "ZE_ENABLE_ALT_DRIVERS",
    "ZE_ENABLE_PCI_ID_DEVICE_ORDER",
)
_DRIVERS: Final = ("ZE_ENABLE_ALT_DRIVERS", "ZEL_DRIVERS_ORDER")  # these name drivers that need no Intel GPU


def present(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a driver may find a device. This is so if the kernel has an Intel GPU, or if an environment
    variable names a driver that needs none.
    """
    return any(environ.get(name) for name in _DRIVERS) or has_render_node(INTEL)


def info(ordinal: int, listed: Sequence[Any]) -> DeviceInfo:
    """Make the listed device from a result of `Gpu.listed`, which may come from a child process."""
    device, name, version, driver_uuid, pci = listed
    return DeviceInfo(BACKEND, ordinal, name, device, "gpu", version, pci, driver_uuid)


def list_devices() -> Found:
    if not present():
        return Found([], "the kernel shows no Intel GPU (no /dev/dri/renderD* of one)")
    said = ask_driver("Level Zero", "xpushare.adapters.level_zero._device", "Driver, Gpu", "Driver(Gpu)")
    if "why" in said:
        return Found([], f"{said['why']}; {INSTALL}")
    why = f"the Level Zero loader has no GPU driver with a device; {INSTALL}"
    return Found([info(ordinal, each) for ordinal, each in enumerate(said["devices"])], why)
