"""List the devices, the aspects that each has or lacks and why, driver versions, and your runtime folder and key.

The command changes nothing. If the folder or key is missing, the command reports this and does not create it. Asking a
device for its aspects may start its driver. The exit status is 0 if there is a device, 1 if there is none, and 2 if the
selector is invalid.
"""

from __future__ import annotations

import argparse
import enum
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import xpushare
from xpushare import Aspect, Device, adapters
from xpushare.cli import native_part_missing
from xpushare.cli.screen import coloured, wrapped
from xpushare.core.device import devices_named

__all__ = ["add_arguments", "collect", "run"]

_VARIABLES = (
    "ONEAPI_DEVICE_SELECTOR",
    "XPUSHARE_RUNTIME_DIR",
    "XPUSHARE_KEY_FILE",
    "XPUSHARE_PICKLE_GRACE",
    "XPUSHARE_PICKLE_BYTES",
    "XPUSHARE_KEEP_SECONDS",
    "XPUSHARE_KEEP_BYTES",
    "XPUSHARE_LINGER",
    "XPUSHARE_PARTIAL_WEIGHTS",
    "UR_ENABLE_LAYERS",
    "UR_LOG_VALIDATION",
    "UR_LOG_TRACING",
)


_COLOURS = {"yes": "green", "no": "dim", "unknown": "yellow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        metavar="SELECTOR",
        help="list only these devices: cpu, gpu, native_cpu:0, a uuid, or a selector as in ONEAPI_DEVICE_SELECTOR",
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print every query of Unified Runtime, as urinfo -v does"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def collect(selector: str | None = None, verbose: bool = False) -> dict[str, Any]:
    """Return the output of `info --json` as a dict, or of `info -v --json` if `verbose` is true. Raises
    `InvalidArgumentError` if the selector is invalid.
    """
    why = native_part_missing()
    found = devices_named(selector) if why is None else []
    return {
        "package": _package(),
        "host": {
            "python": platform.python_version(),
            "implementation": platform.python_implementation(),
            "kernel": platform.release(),
            "machine": platform.machine(),
        },
        "runtime": _runtime() if why is None else None,
        "environment": {name: os.environ[name] for name in _variables(why is None) if name in os.environ},
        "devices": [_device(device) | ({"queries": _queries(device)} if verbose else {}) for device in found],
        "backends_without_devices": _missing() if why is None else {"*": str(why)},
        "refused_devices": _refused() if why is None else {},
    }


def _package() -> dict[str, Any]:
    try:
        installed: str | None = importlib.metadata.version("xpushare")
    except importlib.metadata.PackageNotFoundError:
        installed = None  # the package runs from a source tree
    package: dict[str, Any] = {
        "version": xpushare.__version__,
        "installed_version": installed,
        "folder": str(Path(xpushare.__file__).parent),
        "native": None,
        "formats": None,
    }
    if native_part_missing() is None:
        from xpushare import _native
        from xpushare.sharing import handle, layout

        package["native"] = _native.__file__
        package["formats"] = {"handle": handle.VERSION, "table": layout.TABLE_VERSION}
    return package


def _runtime() -> dict[str, Any]:
    from xpushare.sharing import identity

    folder = identity.chosen_dir()  # not runtime_dir(), which would create the folder
    explicit = os.environ.get("XPUSHARE_KEY_FILE")
    key = Path(explicit) if explicit else folder / "key"
    exists, problem = True, None
    try:
        key.lstat()
        identity.user_key()
    except (FileNotFoundError, NotADirectoryError):
        exists = False
    except OSError as error:  # such as a folder that this user may not enter
        exists, problem = False, f"{key}: {error.strerror}"
    except xpushare.InvalidArgumentError as error:
        problem = str(error)
    return {
        "folder": str(folder),
        "folder_exists": os.path.isdir(folder),
        "key": str(key),
        "key_exists": exists,
        "key_problem": problem,
    }


def _variables(vendors: bool) -> list[str]:
    """Return the names of the environment variables that influence the result. If `vendors` is true, include the
    variables of the vendors' drivers.
    """
    return [*_VARIABLES, *(name for record in (adapters.vendors() if vendors else ()) for name in record.variables)]


def _device(device: Device) -> dict[str, Any]:
    return {
        "device": str(device),
        "backend": device.backend,
        "ordinal": device.ordinal,
        "name": device.name,
        "type": device.type,
        "uuid": device.uuid,
        "driver_version": device.driver_version,
        "memory_granularity": device.memory_granularity(),
        "memory_granularity_recommended": device.memory_granularity(recommended=True),
        "aspects": {str(aspect): device.support(aspect)._asdict() for aspect in Aspect},
    }


def _queries(device: Device) -> dict[str, Any]:
    """Return the results of all `urDeviceGetInfo` queries, as a dict by the names of the queries. A result is None if
    the device does not answer the query.
    """
    from xpushare import ur
    from xpushare.ur._objects import device_of

    found: dict[str, Any] = {}
    for member in ur.DeviceInfo:
        try:
            found[member.name] = _shown(ur.urDeviceGetInfo(device_of(device), member))
        except ur.URError as error:
            if error.result is not ur.Result.ERROR_UNSUPPORTED_ENUMERATION:
                raise
            found[member.name] = None
    return found


def _shown(value: Any) -> Any:
    """Convert a value for JSON."""
    if isinstance(value, list):
        return [_shown(each) for each in value]
    if isinstance(value, enum.Flag):
        return " | ".join(each.name or "" for each in value) or 0
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, int | str) else str(value)


def _missing() -> dict[str, str]:
    """Return the backends of this version that have no device on this machine, and the reasons. The device selector has
    no effect on this.
    """
    return {backend: adapters.why_none(backend) for backend in _backends() if not adapters.listed(backend)}


def _refused() -> dict[str, list[str]]:
    """Return the reasons why devices cannot be used by this version, as a dict by backend. Includes only backends that
    have other, usable devices.
    """
    found = {backend: adapters.refused(backend) for backend in _backends() if adapters.listed(backend)}
    return {backend: said for backend, said in found.items() if said}


def _backends() -> list[str]:
    return [record.backend for record in adapters.vendors() if not record.selected_only]


def _line(value: Any) -> str:
    if value is None:
        return "not answered"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _text(found: dict[str, Any]) -> str:
    package, host, runtime = found["package"], found["host"], found["runtime"]
    lines = [f"xpushare {package['version']}, {host['implementation']} {host['python']}, kernel {host['kernel']}"]
    if package["installed_version"] not in (None, package["version"]):
        lines.append(f"  but version {package['installed_version']} is the installed one")
    lines.append(f"  native part     {package['native'] or 'none'}")
    if runtime is not None:
        made = "" if runtime["folder_exists"] else " (not there yet: the first export makes it)"
        lines.append(f"  runtime folder  {runtime['folder']}{made}")
        state = runtime["key_problem"] or ("present" if runtime["key_exists"] else "not there yet")
        lines.append(f"  key             {runtime['key']} ({state})")
    lines += [f"  {name}={value}" for name, value in found["environment"].items()]
    for device in found["devices"]:
        lines += ["", f"{device['device']}  {device['name']}"]
        lines.append(f"  {device['type']}, driver {device['driver_version']}, uuid {device['uuid']}")
        lines.append(
            f"  memory granularity {device['memory_granularity']} bytes, "
            f"recommended {device['memory_granularity_recommended']} bytes"
        )
        width = max(map(len, device["aspects"]))
        for name, support in device["aspects"].items():
            line = wrapped(f"  {support['state']:<7}  {name:<{width}}  ", support["reason"])
            lines.append(line.replace(support["state"], coloured(support["state"], _COLOURS[support["state"]]), 1))
        if "queries" in device:
            lines += ["", "  urDeviceGetInfo"]
            lines += [f"  {name}: {_line(value)}" for name, value in device["queries"].items()]
    if not found["devices"]:
        lines += ["", "no device"]
    if found["backends_without_devices"]:
        lines += [
            "",
            *(wrapped(f"{name}: no device: ", why, 4) for name, why in found["backends_without_devices"].items()),
        ]
    if found["refused_devices"]:
        refused = ((name, why) for name, said in found["refused_devices"].items() for why in said)
        lines += ["", *(wrapped(f"{name}: not listed: ", why, 4) for name, why in refused)]
    return "\n".join(each if "\n" in each or "\x1b" in each else wrapped("", each, 18) for each in lines)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns 0 if there is a device, 1 if there is none, 2 if the selector is invalid."""
    try:
        found = collect(arguments.device, arguments.verbose)
    except xpushare.InvalidArgumentError as error:
        print(f"xpushare: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found, indent=2) if arguments.json else _text(found))
    return 0 if found["devices"] else 1
