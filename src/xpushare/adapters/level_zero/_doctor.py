"""What is between this process and its Level Zero devices, for `xpushare doctor`."""

from __future__ import annotations

from collections.abc import Iterator

from xpushare._errors import XpuShareError
from xpushare.adapters.level_zero import _listing
from xpushare.adapters.level_zero._protocols import BACKEND, INSTALL
from xpushare.adapters.vendor import Check

__all__ = ["examine"]


def examine() -> Iterator[Check]:
    """The loader, the drivers, and which way each device goes."""
    from xpushare import adapters
    from xpushare.adapters.level_zero._adapter import LevelZero

    adapter = adapters.adapter(BACKEND)
    assert isinstance(adapter, LevelZero)
    found = adapter.devices()
    if not found:
        state = "fails" if _listing.present() else "absent"
        yield Check("devices", BACKEND, state, adapter.why_none(), INSTALL)
        return
    yield Check("devices", BACKEND, "works", f"{len(found)} GPUs, driver {found[0].driver_version}")
    for info in found:
        try:
            gpu = adapter.device(info)
            lines = list(gpu.report())
        except XpuShareError as error:
            yield Check("devices", f"{BACKEND}:{info.ordinal}", "fails", str(error))
            continue
        for name, why, lacking in lines:
            state, fix = ("limited", "a newer driver") if lacking else ("works", None)
            yield Check("driver", f"{BACKEND}:{info.ordinal} {name}", state, why, fix)
