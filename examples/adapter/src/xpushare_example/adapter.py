"""The adapter: one device over host memory, of which each process may have a limited amount."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from xpushare import Aspect, OutOfMemoryError, Support
from xpushare.adapters import base
from xpushare.adapters.host import Calls, HostMemory, HostPhysical, HostQueue, HostRange

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

SUPPORT = {
    Aspect.ext_oneapi_ipc_memory: "memory is memfds",
    Aspect.ext_oneapi_ipc_physical_memory: "physical memory is memfds",
    Aspect.ext_oneapi_ipc_event: "events are words in shared pages",
    Aspect.ext_oneapi_virtual_mem: "mmap at fixed addresses",
    Aspect.ext_oneapi_per_event_profiling: "the host's clock",
    Aspect.two_way_events: "every process writes the same word",
    Aspect.host_signal_events: "the host is the device",
    Aspect.outlives_exporter: "the kernel counts the references on a memfd",
    Aspect.partial_map: "mmap takes an offset",
    Aspect.device_ordering: "the thread of a queue waits by itself",
}
MISSING = {
    Aspect.enforced_read_only: "an importer that holds a memfd can map it writable again",
    Aspect.foreign_memory: "no other library has memory on this device",
    Aspect.adopted_queues: "no other library has queues on this device",
}


def capacity() -> int:
    """Bytes that a process may have."""
    return int(os.environ.get("XPUSHARE_EXAMPLE_NBYTES", 1 << 30))


class Budget:
    """What is left of the device's memory in this process."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """A forked child has none of its parent's memory, and nobody there holds the lock."""
        self.free = capacity()
        self._lock = threading.Lock()

    @contextmanager
    def spending(self, nbytes: int) -> Generator[None]:
        """Take the bytes; give them back where the body fails."""
        with self._lock:
            if nbytes > self.free:
                raise OutOfMemoryError(f"example: {nbytes} bytes asked for, {self.free} left of {capacity()}")
            self.free -= nbytes
        try:
            yield
        except BaseException:
            self.give(nbytes)
            raise

    def give(self, nbytes: int) -> None:
        with self._lock:
            self.free += nbytes


BUDGET = Budget()
os.register_at_fork(after_in_child=BUDGET.renew)


class Memory(HostMemory):
    """An allocation; an import is a plain `HostMemory`, for its bytes are the exporter's."""

    def release(self) -> None:
        super().release()
        BUDGET.give(self.nbytes)


class Physical(HostPhysical):
    """Physical memory of this process, likewise."""

    def release(self) -> None:
        super().release()
        BUDGET.give(self.nbytes)


class Example(base.Adapter):
    """One device."""

    backend = "example"
    maps_memfds = True
    calls = Calls()

    def devices(self) -> list[base.DeviceInfo]:
        try:
            boot = BOOT_ID.read_text().strip()
        except OSError:
            return []
        identity = uuid.uuid5(uuid.NAMESPACE_OID, f"xpushare-example/{boot}")  # in every process of this host
        return [base.DeviceInfo(self.backend, 0, "Example device", str(identity), "accelerator", "0.1.0")]

    def why_none(self) -> str:
        return f"{BOOT_ID} cannot be read, which tells this host from others: mount /proc"

    def support(self, device: base.DeviceInfo, aspect: Aspect) -> Support:
        if aspect in SUPPORT:
            return Support("yes", SUPPORT[aspect])
        return Support("no", MISSING.get(aspect, "this adapter is older than the aspect"))

    def properties(self, device: base.DeviceInfo) -> base.Properties:
        return base.Properties("xpushare", 1, capacity(), BUDGET.free, True)

    def granularity(self, device: base.DeviceInfo, recommended: bool) -> int:
        return 1 << 16

    def allocate(self, device: base.DeviceInfo, kind: base.UsmKind, nbytes: int) -> base.DriverMemory:
        with BUDGET.spending(nbytes):
            return Memory.allocate(self.calls, nbytes)

    def import_memory(self, device: base.DeviceInfo, what: base.Import) -> base.DriverMemory:
        return HostMemory.imported(self.calls, what)

    def imports(self, device: base.DeviceInfo, physical: bool) -> dict[base.Form, base.Same]:
        return {base.Form.MEMFD: base.Same.HOST}

    def foreign(self, address: int, nbytes: int | None = None) -> None:
        return None

    def physical(self, device: base.DeviceInfo, nbytes: int, enable_ipc: bool) -> base.DriverPhysical:
        with BUDGET.spending(nbytes):
            return Physical.create(self.calls, nbytes)

    def import_physical(self, device: base.DeviceInfo, what: base.Import) -> base.DriverPhysical:
        return HostPhysical.imported(self.calls, what)

    def reserve(self, device: base.DeviceInfo, nbytes: int, address: int) -> base.DriverRange:
        return HostRange(self.calls, nbytes, address, self.granularity(device, False))

    def reaches(self, device: base.DeviceInfo, peer: base.DeviceInfo) -> bool:
        return True

    def queue(self, device: base.DeviceInfo) -> base.DriverQueue:
        return HostQueue()

    def adopt_domain(self, device: base.DeviceInfo, domain: base.Domain) -> None:
        pass  # the device is the host, which reaches the pages of events

    def settle(self) -> None:
        pass  # a queue's thread lets go of operands at once

    def adopt_queue(self, native: object) -> None:
        return None

    def stream(self, device: base.DeviceInfo, number: int | None, array: object) -> None:
        return None

    def adopt_event(self, native: object) -> None:
        return None
