"""The checks of `xpushare doctor` for Level Zero devices."""

from __future__ import annotations

from collections.abc import Iterator

from xpushare.adapters.level_zero import BACKEND, INSTALL, _listing
from xpushare.adapters.level_zero._device import Gpu
from xpushare.adapters.vendor import Check
from xpushare.common.errors import XpuShareError

__all__ = ["examine"]


def examine() -> Iterator[Check]:
    """Check the loader, the drivers, and how the driver provides each feature on each device."""
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
        name = f"{BACKEND}:{info.ordinal}"
        try:
            ways = list(_ways(adapter.device(info)))
        except XpuShareError as error:
            yield Check("devices", name, "fails", str(error))
            continue
        for what, how, lacking in ways:
            yield (
                Check("driver", f"{name} {what}", "limited", f"lacks {lacking}", "a newer driver")
                if lacking
                else Check("driver", f"{name} {what}", "works", how)
            )


def _ways(gpu: Gpu) -> Iterator[tuple[str, str, str]]:
    """Yield for each feature its name, how the driver provides it, and what the driver lacks for it."""
    platform, words = gpu.platform, gpu.words
    context = f"{platform.version}, the default context" if platform.context else ""
    yield "API", context, "a default context: other libraries do not know our memory" if platform.own_context else ""
    yield "memory", gpu.how_shared(), gpu.lacking("shareable memory")
    yield "physical memory", "by file descriptor", gpu.lacks_physical_ipc()
    yield "host memory", f"pages of memfds, {platform.host_route}", gpu.lacking("host registration")
    yield "events", words.how(), words.lacking or words.slower
