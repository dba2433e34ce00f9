"""The hooks for virtual memory, and the engine for vendors whose drivers have virtual memory calls: the stream engine,
and the access that devices have to each other's memory. `adapters.stream.hooks` has the rules for all hooks.
"""

from __future__ import annotations

import bisect
import functools
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, final

from xpushare.adapters.base import Access, Form, OnDemand
from xpushare.adapters.stream import engine
from xpushare.adapters.stream.engine import always
from xpushare.adapters.stream.hooks import Device
from xpushare.common.errors import FeatureNotSupportedError

__all__ = ["Engine", "PeerAccess", "VirtualMemory", "find_origin"]


class VirtualMemory(Device, Protocol):
    """The hooks for a device's memory: calls that create, export, import and map allocations.

    An allocation lies at a *location*, which is the ordinal of a device. It lives as long as it has a handle or a
    mapping. The engine releases a mapping or an allocation only when no device uses it any more.
    """

    form: Form  # of the file descriptors of allocations
    origin: bytes  # tells importers the owner of the memory if their driver cannot; else empty
    one_access: bool  # whether one call of `set_access` is enough for several mappings side by side

    # The number of bytes of which the sizes of allocations and mappings are multiples. Cheap; needs nothing current.
    def granularity(self, recommended: bool) -> int: ...
    # Whether this device can use memory at a location. Cheap; needs nothing current.
    def reaches(self, location: int) -> bool: ...

    def create(self, doing: str, nbytes: int, shareable: bool) -> Any: ...
    # Another handle of the allocation that is mapped at an address. This hook and the next three need nothing current.
    def retain(self, doing: str, address: int) -> Any: ...
    def release(self, doing: str, handle: Any) -> None: ...
    # A file descriptor of a shareable allocation, close-on-exec. For many allocations, native code makes the
    # descriptors.
    def export_fd(self, doing: str, handle: Any) -> int: ...
    def export_on_demand(self, handles: Sequence[Any]) -> OnDemand: ...
    # A handle of the allocation behind a peer's file descriptor. The descriptor may be anything, and stays the
    # caller's. `origin` is the peer's `origin`.
    def import_fd(self, doing: str, fd: int, origin: bytes) -> Any: ...
    def location(self, doing: str, handle: Any) -> int: ...

    # Reserved addresses: those at `address`, or others if these are taken or it is 0.
    def reserve(self, doing: str, nbytes: int, address: int) -> int: ...
    def free(self, doing: str, address: int, nbytes: int) -> None: ...
    # Maps an allocation from its start; nobody has access yet. Fails with one of `Codes.wrong_size` if it is smaller
    # than `nbytes`.
    def map(self, doing: str, address: int, nbytes: int, handle: Any) -> None: ...
    def unmap(self, doing: str, address: int, nbytes: int) -> None: ...
    # Sets the access of the devices with these ordinals; other devices keep theirs.
    def set_access(self, doing: str, address: int, nbytes: int, ordinals: Sequence[int], access: Access) -> None: ...


V = TypeVar("V", bound=VirtualMemory)


@functools.lru_cache(64)
def _name(raw: bytes) -> str:
    return str(uuid.UUID(bytes=raw)) if len(raw) == 16 else "unknown"


def find_origin(device: VirtualMemory, by_uuid: Callable[[str], V | None], doing: str, raw: bytes) -> V:
    """Return the device that a peer's memory lies on. The device is found by its uuid, for drivers that do not report
    the device of an import. No other device must import the memory, even if it can reach the memory.
    """
    name = _name(raw)
    found = by_uuid(name)
    if found is None:
        raise FeatureNotSupportedError(f"{doing}: the memory is on device {name}, which this process may not see")
    if not device.reaches(found.ordinal):
        raise FeatureNotSupportedError(f"{doing}: it is memory of {found}, which {device} cannot reach: open it there")
    return found


class _Granted(NamedTuple):
    """The access that was granted to the bytes from a start address on."""

    nbytes: int
    location: int  # the device that they lie on
    access: Access
    ordinals: frozenset[int]  # of the devices that have it


@final
class PeerAccess(engine.OperandAccess):
    """Grants devices access to mappings, and remembers which access was granted, since looking it up is much faster
    than granting it again.
    """

    def __init__(self, devices: Callable[[], Sequence[VirtualMemory]]) -> None:
        self._devices = devices
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._granted: dict[int, _Granted] = {}  # by start

    def grant(
        self, device: VirtualMemory, doing: str, address: int, nbytes: int, location: int, access: Access
    ) -> None:
        """Give `device`, and every device in use here that reaches memory at `location`, access to a mapping.

        A device that is not in use yet gets access when a queue on it first uses the mapping (`ensure`). The caller has
        made the device current.
        """
        if not device.reaches(location):
            raise FeatureNotSupportedError(
                f"{doing}: {device} cannot reach memory of {self._devices()[location]} (no peer access): "
                "open it on that device"
            )
        devices = self._devices()
        reaching = [device.ordinal]
        if len(devices) > 1:
            reaching += [
                each.ordinal for each in devices if each is not device and each.active() and each.reaches(location)
            ]
        device.set_access(doing, address, nbytes, reaching, access)
        if len(devices) > 1:
            self.note(address, nbytes, location, access, frozenset(reaching))

    def note(self, address: int, nbytes: int, location: int, access: Access, ordinals: frozenset[int]) -> None:
        """Record an access that was set. The record replaces earlier records of the same bytes."""
        self.forget(address, nbytes)
        with self._lock:
            bisect.insort(self._starts, address)
            self._granted[address] = _Granted(nbytes, location, access, ordinals)

    def forget(self, address: int, nbytes: int) -> None:
        """Remove the records of these bytes, which were unmapped."""
        with self._lock:
            for start in self._within(address, nbytes):
                granted = self._granted.pop(start)
                self._starts.remove(start)
                # Keep the parts that extend beyond it on either side.
                for low, high in ((start, address), (address + nbytes, start + granted.nbytes)):
                    if low < high:
                        bisect.insort(self._starts, low)
                        self._granted[low] = granted._replace(nbytes=high - low)

    def _within(self, address: int, nbytes: int) -> list[int]:
        """Return the records about ranges that overlap these bytes."""
        first = max(bisect.bisect_right(self._starts, address) - 1, 0)
        last = bisect.bisect_left(self._starts, address + nbytes)
        return [start for start in self._starts[first:last] if start + self._granted[start].nbytes > address]

    def lacking(self, ordinal: int, address: int, nbytes: int) -> bool:
        with self._lock:
            for start in self._within(address, nbytes):
                if ordinal not in self._granted[start].ordinals:
                    return True
        return False

    def ensure(self, ordinal: int, address: int, nbytes: int) -> None:
        device = self._devices()[ordinal]
        with self._lock:
            for start in self._within(address, nbytes):
                granted = self._granted[start]
                if device.ordinal in granted.ordinals or not device.reaches(granted.location):
                    continue
                doing = f"giving {device} access to memory of {self._devices()[granted.location]}"
                device.set_access(doing, start, granted.nbytes, [device.ordinal], granted.access)
                self._granted[start] = granted._replace(ordinals=granted.ordinals | {device.ordinal})


@final
class Engine(engine.Engine):
    def __init__(
        self,
        backend: str,
        devices: Callable[[], Sequence[VirtualMemory]],
        spare_streams: int = 0,
        registered_slots: Callable[[Any], bool] = always,
    ) -> None:
        self.peer_access = PeerAccess(devices)
        super().__init__(
            backend, devices, self.peer_access, spare_streams=spare_streams, registered_slots=registered_slots
        )
        self.read_only: dict[int, bool] = {}  # ordinal -> whether the device maps memory read-only, once it was tried
