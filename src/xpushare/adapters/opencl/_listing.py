"""Which devices this process has, found without starting a driver in it: drivers have threads, which would make a
later fork unsafe. And what `xpushare doctor` says of them.
"""

from __future__ import annotations

import glob
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from xpushare import adapters
from xpushare._errors import XpuShareError
from xpushare.adapters.base import DeviceInfo
from xpushare.adapters.opencl._device import Cpu
from xpushare.adapters.opencl._driver import NO_ADDRESS, Driver
from xpushare.adapters.opencl.vendor import BACKEND, INSTALL, VARIABLES
from xpushare.adapters.stream.listing import ask_child
from xpushare.adapters.vendor import Check

__all__ = ["answer", "examine", "info", "list_devices", "none_usable", "present"]

_FOLDER: Final = "/etc/OpenCL/vendors"
# It runs in a process of its own.
_ASK: Final = "import sys\nsys.path[:] = {path!r}\nfrom xpushare.adapters.opencl._listing import answer\nanswer()"


def answer() -> None:
    """In the child: print what the drivers say."""
    driver = Driver(Cpu)
    try:
        print(json.dumps({"devices": [cpu.listed() for cpu in driver.gpus()], "refused": driver.refused}))
    except XpuShareError as error:
        print(json.dumps({"why": str(error)}))


def present() -> bool:
    """Whether the loader may find a driver."""
    return any(map(os.environ.get, VARIABLES)) or bool(glob.glob(f"{_FOLDER}/*.icd"))


def info(ordinal: int, listed: Sequence[Any]) -> DeviceInfo:
    """A device by what `Cpu.listed` says, here or in a child."""
    uuid, name, version = listed
    return DeviceInfo(BACKEND, ordinal, name, uuid, "cpu", version)


def none_usable(refused: Sequence[str]) -> str:
    """Why there is no device, where the drivers have only these."""
    return f"{', '.join(refused)}: {NO_ADDRESS}" if refused else f"the OpenCL loader finds no device; {INSTALL}"


def list_devices() -> tuple[list[DeviceInfo], str]:
    """The devices of this process by ordinals; and, where there are none, why."""
    if not present():
        return [], f"no OpenCL driver is installed (no {_FOLDER}/*.icd); {INSTALL}"
    said = ask_child(_ASK.format(path=sys.path), "OpenCL")
    if "why" in said:
        return [], f"{said['why']}; {INSTALL}"
    return [info(ordinal, each) for ordinal, each in enumerate(said["devices"])], none_usable(said["refused"])


def examine() -> Iterator[Check]:
    adapter: Any = adapters.adapter(BACKEND)
    found = adapter.devices()
    if not found:
        yield Check("devices", BACKEND, "fails" if present() else "absent", adapter.why_none(), INSTALL)
    for each in found:
        name, cpu = f"{BACKEND}:{each.ordinal}", adapter.device(each)
        if lacking := cpu.lacking("shareable memory"):
            yield Check("devices", name, "fails", f"lacks {lacking}", "another driver")
            continue
        yield Check("devices", name, "works", f"{each.name}, driver {each.driver_version}: it was tried")
        if ranges := cpu.lacks_system_svm():
            yield Check("driver", f"{name} ranges", "limited", f"lacks {ranges}", "another driver")
