"""Find the devices to test. Run each vendor's own checks, and check for settings that hide devices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import xpushare as xs
from xpushare import adapters
from xpushare.adapters.vendor import Check, Vendor
from xpushare.core.device import devices_named

__all__ = ["examine"]

_BUS: Final = Path("/sys/bus/pci/devices")
_ACCELERATORS: Final = "0x03", "0x12"  # PCI's classes of display controllers and processing accelerators


def _listed(record: Vendor) -> list[Check]:
    """Report the devices of a vendor that has no checks of its own. Returns an empty list if the vendor's devices need
    no driver or Python package.
    """
    if not record.install:
        return []
    found = adapters.listed(record.backend)
    if not found:
        why = adapters.why_none(record.backend)
        return [Check("devices", record.backend, "absent", why, None if record.install in why else record.install)]
    said = [(f"{record.backend}:{each.ordinal}", f"{each.name}, driver {each.driver_version}") for each in found]
    refused = adapters.refused(record.backend)
    return [
        *(Check("devices", name, "note", f"listed: {what}") for name, what in said),
        *(Check("devices", record.backend, "absent", f"not listed: {what}") for what in refused),
    ]


def _in_machine(record: Vendor) -> bool:
    """Return whether the machine may have a device of the vendor, according to the PCI bus."""
    if not record.pci_vendor:
        return True
    try:
        found = [((each / "vendor").read_text(), (each / "class").read_text()) for each in _BUS.iterdir()]
    except OSError:  # the PCI bus is not visible here
        return True
    return any(int(vendor, 16) == record.pci_vendor and kind.startswith(_ACCELERATORS) for vendor, kind in found)


def wrong_selector(selector: str | None) -> str | None:
    """Return why the value of `--device` is not a valid selector, or None if it is valid. Errors in the environment
    variable ONEAPI_DEVICE_SELECTOR are not reported here, but by `examine`.
    """
    try:
        devices_named(selector)
    except xs.InvalidArgumentError as error:
        if selector is not None and repr(os.environ.get("ONEAPI_DEVICE_SELECTOR")) not in str(error):
            return str(error)
    except OSError:
        pass  # `examine` reports it
    return None


def examine(selector: str | None) -> tuple[list[xs.Device], list[Check]]:
    """Return the devices to test, and the results of the checks on devices and on settings that hide them."""
    group = "devices"
    checks: list[Check] = []
    for record in adapters.vendors():
        try:
            told = list(record.examine()) or _listed(record)
            here = _in_machine(record)
            checks += [each if here or each.state != "absent" else each._replace(fix=None) for each in told]
        except Exception as error:  # another package's adapter may raise anything
            why = f"its own examination failed ({type(error).__name__}: {error})"
            checks.append(Check(group, f"adapter {record.backend}", "limited", why, "report it to whose adapter it is"))
    every = sum(len(adapters.listed(record.backend)) for record in adapters.vendors() if not record.selected_only)
    checks += [Check(group, f"adapter {each.name}", "limited", each.why, each.fix) for each in adapters.problems()]
    variable = os.environ.get("ONEAPI_DEVICE_SELECTOR")
    try:
        found = devices_named(selector)
    except xs.InvalidArgumentError as error:
        return [], [*checks, Check(group, "selector", "fails", str(error), "unset ONEAPI_DEVICE_SELECTOR")]
    except OSError as error:
        return [], [*checks, Check(group, "list", "fails", str(error), "mount -t proc proc /proc")]
    if not found:
        said = [f"ONEAPI_DEVICE_SELECTOR={variable}"] if variable else []
        said += [f"--device {selector}"] if selector else []
        fix = "unset ONEAPI_DEVICE_SELECTOR" if variable else "another --device"
        why = f"{' and '.join(said)} leaves none of the {every} devices" if said else "there is no device"
        checks.append(Check(group, "selector", "fails", why, fix))
    elif variable and len(found) < every:
        why = f"ONEAPI_DEVICE_SELECTOR={variable} leaves {len(found)} of {every}"
        checks.append(Check(group, "selector", "note", why))
    return found, checks
