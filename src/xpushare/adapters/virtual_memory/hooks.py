"""The hooks for virtual memory. `adapters.stream.hooks` has the rules for all hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from xpushare.adapters.base import Access, Form, OnDemand
from xpushare.adapters.stream.hooks import Device

__all__ = ["VirtualMemory"]


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
