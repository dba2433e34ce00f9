"""Which devices this process has, found without starting a driver in it: that would make a later fork unsafe."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from xpushare.adapters.base import DeviceInfo
from xpushare.adapters.level_zero import _bindings
from xpushare.adapters.level_zero._numbers import DEVICE_TYPE_GPU, GPU_DRIVERS, driver_version
from xpushare.adapters.level_zero._protocols import BACKEND, INSTALL
from xpushare.adapters.stream.listing import ask_child

__all__ = ["VARIABLES", "info", "list_devices", "present"]

VARIABLES: Final = (
    "ZE_AFFINITY_MASK",
    "ZE_FLAT_DEVICE_HIERARCHY",
    "ZE_ENABLE_ALT_DRIVERS",
    "ZE_ENABLE_PCI_ID_DEVICE_ORDER",
)
_DRIVERS: Final = ("ZE_ENABLE_ALT_DRIVERS", "ZEL_DRIVERS_ORDER")  # name drivers that need no Intel GPU
_DRM: Final = Path("/sys/class/drm")
_INTEL: Final = "0x8086"

# It runs in a process of its own, with nothing of this package but the bindings.
_ASK: Final = """
import ctypes, importlib.util, json, sys
spec = importlib.util.spec_from_file_location("bindings", {bindings!r})
ze = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ze)
at = ctypes.addressof

def fail(why):
    sys.exit(json.dumps(dict(why=why)))

def call(name, *arguments):
    code = f[name](*arguments)
    if code:
        fail("%s failed with %s" % (name, ze.RESULTS.get(code, hex(code))))

def several(name, *arguments):
    count = ctypes.c_uint32()
    call(name, *arguments, at(count), None)
    found = (ctypes.c_void_p * count.value)()
    if count.value:
        call(name, *arguments, at(count), at(found))
    return list(found)[: count.value]

try:
    f = ze.load()
except OSError as error:
    fail("the loader cannot be loaded: %s" % error)
wanted, count = ze.ze_init_driver_type_desc_t(flags={drivers}), ctypes.c_uint32()
drivers = []
if "zeInitDrivers" in f and not f["zeInitDrivers"](at(count), None, at(wanted)):
    found = (ctypes.c_void_p * count.value)()
    call("zeInitDrivers", at(count), at(found), at(wanted))
    drivers = list(found)
elif f["zeInit"](1) == 0:
    drivers = several("zeDriverGet")
devices = []
for driver in drivers:
    about = ze.ze_driver_properties_t()
    call("zeDriverGetProperties", driver, at(about))
    for device in several("zeDeviceGet", driver):
        found, bus = ze.ze_device_properties_t(), ze.ze_pci_ext_properties_t()
        call("zeDeviceGetProperties", device, at(found))
        if found.type != {gpu}:
            continue
        known = not f["zeDevicePciGetPropertiesExt"](device, at(bus))
        place = (bus.domain, bus.bus, bus.device, bus.function) if known else ()
        name = found.name.decode(errors="replace")
        devices.append((bytes(found.uuid).hex(), name, about.driverVersion, bytes(about.uuid).hex(), place))
print(json.dumps(dict(devices=devices)))
"""


def present(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a driver may find a device: the kernel has an Intel GPU, or somebody has named another driver."""
    if any(environ.get(name) for name in _DRIVERS):
        return True
    for vendor in _DRM.glob("renderD*/device/vendor"):
        try:
            if vendor.read_text().strip() == _INTEL:
                return True
        except OSError:
            pass
    return False


def info(ordinal: int, raw: bytes, name: str, version: int, driver: bytes, place: Any) -> DeviceInfo:
    """A device as it is listed, whether by the driver of this process or by a child."""
    import uuid

    address = "{:04x}:{:02x}:{:02x}.{:x}".format(*place) if place else ""
    device, driver_uuid = str(uuid.UUID(bytes=raw)), str(uuid.UUID(bytes=driver))
    return DeviceInfo(BACKEND, ordinal, name, device, "gpu", driver_version(version), address, driver_uuid)


def list_devices() -> tuple[list[DeviceInfo], str]:
    """The devices of this process by ordinals; and, where there are none, why."""
    if not present():
        return [], "the kernel shows no Intel GPU (no /dev/dri/renderD* of one)"
    answer = ask_child(_ASK.format(bindings=_bindings.__file__, drivers=GPU_DRIVERS, gpu=DEVICE_TYPE_GPU), "Level Zero")
    if "why" in answer:
        return [], f"{answer['why']}; {INSTALL}"
    found = [
        info(ordinal, bytes.fromhex(raw), name, version, bytes.fromhex(driver), place)
        for ordinal, (raw, name, version, driver, place) in enumerate(answer["devices"])
    ]
    return found, f"the Level Zero loader has no GPU driver with a device; {INSTALL}"
