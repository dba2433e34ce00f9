"""`native_cpu`: the host itself. Memory is sealed memfds, queues are threads, events are futexes."""

from __future__ import annotations

import functools
import operator
import os
import platform
import time
import uuid
from typing import Any, NamedTuple

from xpushare._native import Domain
from xpushare.adapters.base import (
    Adapter,
    DeviceInfo,
    DriverMemory,
    DriverPhysical,
    DriverQueue,
    DriverRange,
    Foreign,
    Form,
    Import,
    Properties,
    Same,
    UsmKind,
)
from xpushare.adapters.host.memory import Calls, HostDmaBuf, HostMemory, HostPhysical, HostRange
from xpushare.common import system
from xpushare.common.aspects import Aspect, Support
from xpushare.common.errors import FeatureNotSupportedError, from_os_error
from xpushare.common.fds import OwnedFd
from xpushare.common.system import BOOT_ID, boot_id

__all__ = ["NativeCpu"]

_SUPPORT = {
    Aspect.ext_oneapi_ipc_memory: "memory lies in memfds",
    Aspect.ext_oneapi_ipc_physical_memory: "physical memory lies in memfds",
    Aspect.ext_oneapi_ipc_event: "events are words in shared pages",
    Aspect.ext_oneapi_virtual_mem: "mmap at fixed addresses",
    Aspect.ext_oneapi_per_event_profiling: "the host's clock",
    Aspect.two_way_events: "every process writes the same word",
    Aspect.host_signal_events: "the host is the device",
    Aspect.outlives_exporter: "the kernel counts the references on a memfd",
    Aspect.partial_map: "mmap takes an offset",
    Aspect.device_ordering: "the thread of a queue is its device and waits itself",
}
_MISSING = {
    Aspect.enforced_read_only: (
        "an importer that holds a memfd can map it writable again (F_SEAL_FUTURE_WRITE would also bind the exporter)"
    ),
    Aspect.foreign_memory: "memory of other libraries is private to this process: share(copy=True) copies it",
    Aspect.adopted_queues: "other libraries have no queues on the host",
}


class NativeCpu(Adapter):
    """The adapter of the host. The host is a single device, which consists of all processors and all memory."""

    backend = "native_cpu"
    calls = Calls()
    maps_memfds = True
    has_streams = False  # a host library's result is complete when its call returns
    runs_functions = True

    def devices(self) -> list[DeviceInfo]:
        try:
            boot_id()
        except FeatureNotSupportedError:
            return []
        # The boot's id is a random uuid itself. `uuid5` would load `hashlib`, which is slow to import.
        identity = uuid.UUID(bytes=bytes(map(operator.xor, boot_id(), b"xpushare\0\0host\0\0")))
        return [
            DeviceInfo(self.backend, 0, f"Host CPU ({platform.machine()})", str(identity), "cpu", platform.release())
        ]

    def why_none(self) -> str:
        return f"{BOOT_ID} cannot be read, by which processes tell this host from others: mount -t proc proc /proc"

    def support(self, device: DeviceInfo, aspect: Aspect) -> Support:
        if aspect in _SUPPORT:
            return Support("yes", _SUPPORT[aspect])
        return Support("no", _MISSING[aspect])

    def properties(self, device: DeviceInfo) -> Properties:
        page = system.page_nbytes()
        total, free = (os.sysconf(name) * page for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
        cpu = _cpu()
        return Properties(
            cpu.vendor,
            len(os.sched_getaffinity(0)),
            total,
            free,
            True,
            vendor_id=_PCI_VENDORS.get(cpu.vendor, 0),
            clock_mhz=cpu.clock_mhz,
            cache_nbytes=cpu.cache_nbytes,
            cache_line_nbytes=cpu.cache_line_nbytes,
        )

    def granularity(self, device: DeviceInfo, recommended: bool) -> int:
        page = system.page_nbytes()
        return max(1 << 21, page) if recommended else page

    def allocate(self, device: DeviceInfo, kind: UsmKind, nbytes: int) -> DriverMemory:
        return HostMemory.allocate(self.calls, nbytes, keep=True)

    def import_memory(self, device: DeviceInfo, what: Import) -> DriverMemory:
        return HostDmaBuf.imported(what) if what.form is Form.DMA_BUF else HostMemory.imported(self.calls, what)

    def dma_buf(
        self, device: DeviceInfo, memory: DriverMemory, address: int, nbytes: int
    ) -> tuple[OwnedFd, int] | None:
        return memory.dma_buf(address) if isinstance(memory, HostDmaBuf) else None

    def adopt_dma_buf(self, device: DeviceInfo, doing: str, fd: OwnedFd, nbytes: int) -> DriverMemory:
        return HostDmaBuf(doing, fd, nbytes, nbytes)

    def imports(self, device: DeviceInfo, physical: bool) -> dict[Form, Same]:
        return {Form.MEMFD: Same.HOST} if physical else {Form.MEMFD: Same.HOST, Form.DMA_BUF: Same.HOST}

    def foreign(self, address: int, nbytes: int | None = None) -> Foreign | None:
        return None

    def physical(self, device: DeviceInfo, nbytes: int, enable_ipc: bool) -> DriverPhysical:
        return HostPhysical.create(self.calls, nbytes)

    def import_physical(self, device: DeviceInfo, what: Import) -> DriverPhysical:
        return HostPhysical.imported(self.calls, what)

    def reserve(self, device: DeviceInfo, nbytes: int, address: int) -> DriverRange:
        return HostRange(self.calls, nbytes, address, self.granularity(device, False))

    def reaches(self, device: DeviceInfo, peer: DeviceInfo) -> bool:
        return True

    def queue(self, device: DeviceInfo) -> DriverQueue:
        from xpushare.adapters.host.queue import HostQueue

        return HostQueue()

    def adopt_queue(self, native: object) -> tuple[DeviceInfo, DriverQueue] | None:
        return None

    def stream(self, device: DeviceInfo, number: int | None, array: object) -> object | None:
        return None

    def adopt_event(self, native: object) -> tuple[DeviceInfo, Any] | None:
        return None

    def clock(self, device: DeviceInfo) -> tuple[int, int]:
        now = time.monotonic_ns()
        return now, now

    def settle(self) -> None:
        pass  # a queue's thread releases its memory at once

    def adopt_domain(self, device: DeviceInfo, domain: Domain) -> None:
        pass  # the host reaches its own pages


_PCI_VENDORS = {"GenuineIntel": 0x8086, "AuthenticAMD": 0x1022}


class _Cpu(NamedTuple):
    vendor: str
    clock_mhz: int
    cache_nbytes: int
    cache_line_nbytes: int


@functools.cache
def _cpu() -> _Cpu:
    """Return what the kernel reports for the first processor."""
    try:
        return _read_cpu()
    except OSError as error:
        raise from_os_error(error, "reading what the kernel says of the processor") from error


def _read_cpu() -> _Cpu:
    found: dict[str, str] = {}
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    vendor = found.get("vendor_id") or found.get("CPU implementer") or "unknown"
    kilohertz = _sysfs("cpufreq/cpuinfo_max_freq")
    clock = kilohertz // 1000 or round(float(found.get("cpu MHz", 0)))
    return _Cpu(vendor, clock, _sysfs("cache/index*/size"), _sysfs("cache/index*/coherency_line_size"))


def _sysfs(name: str) -> int:
    """Return a number from a sysfs file of the first processor. If several files match the pattern (one for each
    cache), the last one is used. Return 0 if no file matches.
    """
    import glob  # slow to import

    found = sorted(glob.glob(f"/sys/devices/system/cpu/cpu0/{name}"))
    if not found:
        return 0
    with open(found[-1], encoding="utf-8") as file:
        text = file.read().strip()
    return int(text.removesuffix("K")) << (10 if text.endswith("K") else 0)
