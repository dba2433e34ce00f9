"""Lists the GPUs of this process without starting CUDA in it, since cuInit would make a later fork unsafe. Has the
checks of `xpushare doctor` for NVIDIA GPUs.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from xpushare.adapters.stream.listing import ask_child
from xpushare.adapters.vendor import Check
from xpushare.common.system import is_wsl

__all__ = [
    "DEVICES",
    "PROC",
    "Listed",
    "driver_version",
    "examine",
    "from_proc",
    "has_binding",
    "list_gpus",
    "old_driver",
    "pci_address",
]

PROC: Final = Path("/proc/driver/nvidia")
DEVICES: Final = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-ctrl-gpu")  # Linux, WSL, Tegra

# It runs in a process of its own, where cuInit does no harm.
_ASK: Final = """
import ctypes, json, sys
try:
    c = ctypes.CDLL("libcuda.so.1")
except OSError as e:
    sys.exit(json.dumps({"why": str(e)}))
code = c.cuInit(0)
if code:
    name = ctypes.c_char_p()
    c.cuGetErrorName(code, ctypes.byref(name))
    sys.exit(json.dumps({"why": "cuInit failed with %s (%d)" % ((name.value or b"?").decode(), code)}))
count = ctypes.c_int()
c.cuDeviceGetCount(ctypes.byref(count))
found = []
for i in range(count.value):
    d, name, raw = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.create_string_buffer(16)
    c.cuDeviceGet(ctypes.byref(d), i)
    c.cuDeviceGetName(name, 256, d)
    c.cuDeviceGetUuid_v2(raw, d)
    found.append((name.value.decode(), raw.raw.hex()))
print(json.dumps({"gpus": found}))
"""


class Listed(NamedTuple):
    """A GPU by its uuid (lower case, with dashes) and name."""

    uuid: str
    name: str


def driver_version() -> str:
    """Return the kernel driver's version, or "" if it is not known."""
    try:
        text = (PROC / "version").read_text()
    except OSError:
        return ""
    found = re.search(r"\b(\d{2,}\.\d+(?:\.\d+)*)\b", text)
    return found[1] if found else ""


def pci_address(gpu_uuid: str) -> str:
    """Return the address of the GPU on the PCI bus. Return "" if the driver does not list an address, or for a MIG
    instance, which has none.
    """
    for file in PROC.glob("gpus/*/information"):
        name = file.parent.name
        try:
            if f"GPU-{gpu_uuid}" in file.read_text() and re.fullmatch(
                r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", name
            ):
                return name
        except OSError:
            pass
    return ""


def has_binding() -> bool:
    """Return whether cuda-bindings is installed. Imports only the package `cuda`, and no module of the binding."""
    try:
        return importlib.util.find_spec("cuda.bindings.driver") is not None
    except (ImportError, ValueError):
        return False


def from_proc() -> list[Listed] | None:
    """Return the GPUs that the kernel driver lists and this process may open, in the order of their bus addresses.
    Return None if the driver lists none in /proc, or if its files lack what is needed.
    """
    found = []
    try:
        for folder in sorted((PROC / "gpus").iterdir()):
            lines = (folder / "information").read_text().splitlines()
            facts = dict(line.split(":", 1) for line in lines if ":" in line)
            gpu = re.search(r"GPU-([0-9a-f-]{36})", facts.get("GPU UUID", ""))
            if gpu is None:
                return None
            minor = facts.get("Device Minor", "").strip()
            if facts.get("GPU Excluded", "").strip() != "Yes" and os.access(f"/dev/nvidia{minor}", os.R_OK | os.W_OK):
                found.append(Listed(gpu[1], facts.get("Model", "NVIDIA GPU").strip()))
    except OSError:
        return None
    return found


def _visible(gpus: list[Listed], wanted: str) -> list[Listed] | None:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, in its order. Return None for spellings that only the driver can
    interpret.
    """
    chosen: list[Listed] = []
    for item in wanted.split(","):
        text = item.strip()
        if text.isdecimal() and int(text) < len(gpus):
            chosen.append(gpus[int(text)])
        elif re.fullmatch(r"GPU-[0-9a-f-]{4,36}", text):
            named = [gpu for gpu in gpus if gpu.uuid.startswith(text[4:])]
            if len(named) != 1:
                return None
            chosen += named
        else:
            return None
    kinds = {item.strip().isdecimal() for item in wanted.split(",")}
    return chosen if len(set(chosen)) == len(chosen) and len(kinds) == 1 else None


def _ask_child() -> tuple[list[Listed], str]:
    """Ask the driver for its GPUs in a child process. Returns the GPUs, and the reason if there are none."""
    answer = ask_child(_ASK, "CUDA")
    if "why" in answer:
        return [], str(answer["why"])
    return [Listed(str(uuid.UUID(raw)), name) for name, raw in answer["gpus"]], "the CUDA driver has no device"


def list_gpus() -> tuple[list[Listed], str]:
    """Return the GPUs of this process in CUDA's order, and the reason if there are none."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is not None and wanted.strip() in ("", "-1", "NoDevFiles"):
        return [], f"CUDA_VISIBLE_DEVICES={wanted!r} hides every GPU"
    gpus = from_proc()
    if gpus is None:
        if not any(map(os.path.exists, DEVICES)):
            return [], "there is no NVIDIA driver here (no /dev/nvidiactl)"
        return _ask_child()
    if not gpus:
        return [], "the NVIDIA driver lets this process use no GPU (no accessible /dev/nvidia0…)"
    # CUDA orders different models by speed unless told otherwise, and only the driver knows MIG instances.
    plain = len({gpu.name for gpu in gpus}) == 1 or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not plain or any(PROC.glob("capabilities/gpu*/mig/gi*")):
        return _ask_child()
    if wanted is None:
        return gpus, ""
    chosen = _visible(gpus, wanted)
    return (chosen, "") if chosen is not None else _ask_child()


# --- xpushare doctor --------------------------------------------------------------------------------------------------

_DRIVERS: Final = {12: 525, 13: 580}  # the oldest driver that each major version of CUDA runs on


def old_driver(driver: str, binding: str) -> str | None:
    """Return why a driver is too old for this version of cuda-bindings. Return None if it is not too old, or if the
    versions are unknown.
    """
    major, have = binding.partition(".")[0], driver.partition(".")[0]
    if not (major.isdecimal() and have.isdecimal()):
        return None
    need = _DRIVERS.get(int(major))
    if need is None or int(have) >= need:
        return None
    return f"the driver is {driver}, cuda-bindings {binding} needs {need} or newer"


def examine() -> Iterator[Check]:
    """Check what this process needs to use NVIDIA GPUs: binding, driver, device files and settings."""
    from xpushare import adapters

    group = "devices"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    adapter = adapters.adapter("cuda")
    found = adapter.devices()
    why = adapter.why_none()
    present = any(map(os.path.exists, DEVICES))
    every = from_proc() or []
    if not found and not present and not every and "CUDA_VISIBLE_DEVICES" not in why and "there are GPUs" not in why:
        yield Check(group, "cuda", "absent", why, "docker run --gpus all, or the NVIDIA driver, if there is a GPU")
        return
    driver = driver_version()
    binding = ""
    if has_binding():
        try:
            binding = importlib.metadata.version("cuda-bindings")
        except importlib.metadata.PackageNotFoundError:
            pass  # found beside the installed packages
    old = old_driver(driver, binding)
    if found:
        yield Check(group, "cuda", "works", f"{len(found)} GPUs, driver {driver or 'of unknown version'}")
    elif visible is not None and "CUDA_VISIBLE_DEVICES" in why:
        yield Check(group, "cuda", "limited", why, "unset CUDA_VISIBLE_DEVICES")
    elif old is not None:
        pass  # reported below
    elif not has_binding():
        yield Check(group, "cuda", "fails", why, "pip install '.[cuda]' in a checkout of xpushare")
    elif "libcuda" in why:
        fix = "install the driver's user part; containers: NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        yield Check(group, "cuda", "fails", why, fix)
    elif visible is not None:
        yield Check(group, "cuda", "limited", f"CUDA_VISIBLE_DEVICES={visible}: {why}", "unset CUDA_VISIBLE_DEVICES")
    else:
        yield Check(group, "cuda", "fails", why, "nvidia-smi says what the driver sees; docker run --gpus all")
    if old is not None:
        yield Check(group, "driver", "fails", old, "a newer driver, or pip install 'cuda-bindings<13'")
    hidden = [gpu for gpu in every if gpu.uuid not in {each.uuid for each in found}]
    if found and hidden and visible is not None:
        why = f"CUDA_VISIBLE_DEVICES={visible} hides {len(hidden)} of {len(every)} GPUs"
        yield Check(group, "hidden GPUs", "note", f"{why}; handles carry uuids, so ordinals may differ")
    if any(PROC.glob("capabilities/gpu*/mig/gi*")):
        why = "GPUs are partitioned: memory is shared between processes on the same instance only"
        yield Check(group, "MIG", "note", why, "CUDA_VISIBLE_DEVICES=MIG-<uuid>, the same in both processes")
    if is_wsl() and found:
        why = "under WSL the NVIDIA driver does not share memory between processes; host memory is shared as elsewhere"
        yield Check(group, "WSL", "limited", why, "Linux on the machine itself, or native_cpu:0")
