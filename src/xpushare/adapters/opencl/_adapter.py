"""The adapter: the driver contract in terms of the modules beside this one."""

from __future__ import annotations

import glob
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from xpushare import _system
from xpushare._aspects import Aspect, Support
from xpushare._errors import XpuShareError
from xpushare.adapters import base
from xpushare.adapters.base import DeviceInfo, DriverMemory, DriverQueue, Form, Import, Same
from xpushare.adapters.host.memory import HostPhysical, HostRange
from xpushare.adapters.opencl._device import Cpu
from xpushare.adapters.opencl._driver import NO_ADDRESS, Driver
from xpushare.adapters.opencl._protocols import BACKEND, INSTALL, VARIABLES, queue_of
from xpushare.adapters.opencl._stream import Stream, Theirs
from xpushare.adapters.stream.adapter import StreamAdapter
from xpushare.adapters.stream.engine import Engine
from xpushare.adapters.stream.host_memory import HostMemory
from xpushare.adapters.stream.host_ordered import HostOrderedQueue
from xpushare.adapters.stream.listing import ask_child
from xpushare.adapters.stream.queue import DeviceQueue
from xpushare.adapters.vendor import Check

__all__ = ["OpenCL", "answer"]

_MISSING: Final = {
    Aspect.ext_oneapi_per_event_profiling: "this adapter does not time its signals",
    Aspect.enforced_read_only: "an importer that holds a memfd can map it writable again",
    Aspect.foreign_memory: (
        "the drivers' own allocations are private to this process: make a buffer over our memory (CL_MEM_USE_HOST_PTR)"
    ),
    Aspect.device_ordering: "its queues hold their operations until the point comes: a kernel that waited would spin",
}
_RANGES: Final = (Aspect.ext_oneapi_virtual_mem, Aspect.ext_oneapi_ipc_physical_memory, Aspect.partial_map)
_contexts: Final[list[Any]] = []  # of samples: Intel's driver wants a queue's context to live as long
_UNITS, _NBYTES, _VENDOR = 0x1002, 0x101F, 0x102C
_FOLDER: Final = "/etc/OpenCL/vendors"
# It runs in a process of its own.
_ASK: Final = "import sys\nsys.path[:] = {path!r}\nfrom xpushare.adapters.opencl._adapter import answer\nanswer()"


def answer() -> None:
    """Print what the drivers say. They have threads, which would make a later fork unsafe in the process that asks."""
    driver = Driver(Cpu)
    try:
        print(json.dumps({"devices": [cpu.listed() for cpu in driver.gpus()], "refused": driver.refused}))
    except XpuShareError as error:
        print(json.dumps({"why": str(error)}))


def _info(ordinal: int, listed: Sequence[str]) -> DeviceInfo:
    """A device by what `Cpu.listed` says, here or in a child."""
    uuid, name, version = listed
    return DeviceInfo(BACKEND, ordinal, name, uuid, "cpu", version)


class OpenCL(StreamAdapter):
    """CPU devices of OpenCL's drivers."""

    backend = BACKEND
    maps_memfds = False
    has_streams = False  # no array says which queue it is ordered on

    def __init__(self) -> None:
        self._driver = Driver(Cpu)
        super().__init__(Engine(BACKEND, self._driver.gpus))
        self._listed: tuple[list[str | None], list[DeviceInfo], str] | None = None
        self._driver.end_after(self.engine.teardown)

    def _present(self) -> bool:
        """Whether the loader may find a driver."""
        return any(map(os.environ.get, VARIABLES)) or bool(glob.glob(f"{_FOLDER}/*.icd"))

    def _list(self) -> tuple[list[DeviceInfo], str]:
        """The devices, from the drivers once they run, before that from a child's; and why there are none."""
        if self._driver.started:
            return self._found([cpu.listed() for cpu in self._driver.gpus()], self._driver.refused)
        asked = [os.environ.get(name) for name in VARIABLES]
        if self._listed is None or self._listed[0] != asked:
            said: dict[str, Any] = {"why": f"no OpenCL driver is installed (no {_FOLDER}/*.icd)"}
            if self._present():
                said = ask_child(_ASK.format(path=sys.path), "OpenCL")
            none: tuple[list[DeviceInfo], str] = [], f"{said.get('why')}; {INSTALL}"
            self._listed = asked, *(none if "why" in said else self._found(said["devices"], said["refused"]))
        return self._listed[1:]

    def _found(self, devices: Sequence[Sequence[str]], refused: Sequence[str]) -> tuple[list[DeviceInfo], str]:
        why = f"{', '.join(refused)}: {NO_ADDRESS}" if refused else f"the OpenCL loader finds no device; {INSTALL}"
        return [_info(*each) for each in enumerate(devices)], why

    def examine(self) -> Iterator[Check]:
        """What `xpushare doctor` reports."""
        found = self.devices()
        if not found:
            yield Check("devices", BACKEND, "fails" if self._present() else "absent", self.why_none(), INSTALL)
        for info in found:
            name, lacking = f"{BACKEND}:{info.ordinal}", self.device(info).lacking("shareable memory")
            state, why = ("fails", f"lacks {lacking}") if lacking else ("works", f"{info.name}: it was tried")
            yield Check("devices", name, state, why, "another driver" if lacking else None)
            if ranges := "" if lacking else self.device(info).lacks_system_svm():
                yield Check("driver", f"{name} ranges", "limited", f"lacks {ranges}", "another driver")

    def devices(self) -> list[DeviceInfo]:
        return list(self._list()[0])

    def why_none(self) -> str:
        return self._list()[1]

    def device(self, info: DeviceInfo) -> Cpu:
        return self._driver.gpu(info)

    def support(self, device: DeviceInfo, aspect: Aspect) -> Support:
        if aspect in _MISSING:
            return Support("no", _MISSING[aspect])
        try:
            cpu = self.device(device)
            lacking = cpu.lacking("shareable memory") or (cpu.lacks_system_svm() if aspect in _RANGES else "")
        except XpuShareError as error:
            return Support("unknown", f"the driver cannot be asked: {error}")
        how = "the driver says that kernels use any address" if aspect in _RANGES else "tried on the device"
        return Support("no", f"the driver lacks {lacking}") if lacking else Support("yes", how)

    def properties(self, device: DeviceInfo) -> base.Properties:
        cpu = self.device(device)
        total = cpu.number(_NBYTES)
        return base.Properties(cpu.text(_VENDOR), cpu.number(_UNITS), total, total, True)

    def granularity(self, device: DeviceInfo, recommended: bool) -> int:
        page = _system.page_nbytes()
        return max(1 << 21, page) if recommended else page

    def reaches(self, device: DeviceInfo, peer: DeviceInfo) -> bool:
        return True  # it is the host's

    def allocate(self, device: DeviceInfo, kind: base.UsmKind, nbytes: int) -> DriverMemory:
        return HostMemory.allocate(self.engine, self.device(device), nbytes)

    def import_memory(self, device: DeviceInfo, what: Import) -> DriverMemory:
        return HostMemory.imported(self.engine, self.device(device), what)

    def imports(self, device: DeviceInfo, physical: bool) -> dict[Form, Same]:
        return {Form.MEMFD: Same.HOST}

    def foreign(self, address: int, nbytes: int | None = None) -> base.Foreign | None:
        return None

    def physical(self, device: DeviceInfo, nbytes: int, enable_ipc: bool) -> base.DriverPhysical:
        return HostPhysical.create(self.engine.calls, nbytes)

    def import_physical(self, device: DeviceInfo, what: Import) -> base.DriverPhysical:
        return HostPhysical.imported(self.engine.calls, what)

    def reserve(self, device: DeviceInfo, nbytes: int, address: int) -> base.DriverRange:
        return HostRange(self.engine.calls, nbytes, address, self.granularity(device, False))

    def new_stream(self, info: DeviceInfo, doing: str) -> Stream:
        return Stream(self.device(info), doing)

    def adopt_queue(self, native: object) -> tuple[DeviceInfo, DriverQueue] | None:
        """A queue of ours in their context, in order with theirs by events of the driver."""
        handle = queue_of(native)
        if handle is None:
            return None
        cpu, context = self._driver.adopted(handle)
        ours = DeviceQueue(self.engine, Stream(cpu, "adopting a queue", context))
        try:
            theirs = Theirs(self._driver, handle, context, ours)
        except BaseException:
            ours.release()
            raise
        return _info(cpu.ordinal, cpu.listed()), HostOrderedQueue(ours, theirs.before, theirs.after)

    def stream(self, device: DeviceInfo, number: int | None, array: object) -> object | None:
        return None

    def adopt_event(self, native: object) -> tuple[DeviceInfo, Any] | None:
        return None

    def samples(self) -> Samples:
        return Samples(self)


class Samples:
    """What `xpushare.conformance.samples` asks for. There are no arrays: what drivers allocate is private."""

    def __init__(self, adapter: OpenCL) -> None:
        self._adapter = adapter

    def stream(self, device: str) -> Any:
        import pyopencl  # type: ignore[import-not-found]

        found = self._adapter.devices()[int(device.partition(":")[2])]
        _contexts.append(pyopencl.Context([pyopencl.Device.from_int_ptr(self._adapter.device(found).handle)]))
        return pyopencl.CommandQueue(_contexts[-1])
