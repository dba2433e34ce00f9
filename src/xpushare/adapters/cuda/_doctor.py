"""The checks of `xpushare doctor` for NVIDIA GPUs."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from typing import Final

from xpushare.adapters.cuda import _listing
from xpushare.adapters.vendor import Check
from xpushare.common.system import is_wsl

__all__ = ["examine", "old_driver"]

_DRIVERS: Final = {12: 525, 13: 580}  # the oldest driver that each major version of CUDA runs on
_INSTALL: Final = "pip install '.[cuda]' in a checkout of xpushare"


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
    present = any(map(os.path.exists, _listing.DEVICES))
    every = _listing.from_proc() or []
    if not found and not present and not every and "CUDA_VISIBLE_DEVICES" not in why and "there are GPUs" not in why:
        yield Check(group, "cuda", "absent", why, "docker run --gpus all, or the NVIDIA driver, if there is a GPU")
        return
    driver = _listing.driver_version()
    binding = ""
    if _listing.has_binding():
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
    elif not _listing.has_binding():
        yield Check(group, "cuda", "fails", why, _INSTALL)
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
    if any(_listing.PROC.glob("capabilities/gpu*/mig/gi*")):
        why = "GPUs are partitioned: memory is shared between processes on the same instance only"
        yield Check(group, "MIG", "note", why, "CUDA_VISIBLE_DEVICES=MIG-<uuid>, the same in both processes")
    if is_wsl() and found:
        why = "under WSL the NVIDIA driver does not share memory between processes; host memory is shared as elsewhere"
        yield Check(group, "WSL", "limited", why, "Linux on the machine itself, or native_cpu:0")
