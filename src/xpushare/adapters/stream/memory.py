"""What every vendor's memory has in common: the payload of an export (the data, besides sizes and file descriptors,
from which the importer's adapter can map the memory), and host memory that devices use. Host memory consists of pages
of a memfd, which every process that maps them registers with its driver.
"""

from __future__ import annotations

import struct
from typing import Any, Final, final

from xpushare._native import End
from xpushare.adapters.base import DriverMemory, Export, Form, Import, OnDemand
from xpushare.adapters.host.memory import check_imported, memfd_of, pages
from xpushare.adapters.stream.engine import Engine, unreach
from xpushare.adapters.stream.hooks import Device, Feature
from xpushare.common.errors import FeatureNotSupportedError, InvalidHandleError
from xpushare.common.fds import OwnedFd

__all__ = [
    "ALLOCATION",
    "HOST",
    "OWN_NBYTES",
    "SEGMENTS",
    "HostMemory",
    "described",
    "export_of",
    "read_head",
    "unsized",
]


# --- payloads ---------------------------------------------------------------------------------------------------------

# Kinds of memory. The other numbers are the vendors' own.
ALLOCATION, SEGMENTS, HOST = 1, 4, 5
_HEAD: Final = struct.Struct("<B7xQ")  # the kind and the mapped bytes; each kind appends its own data
_new: Any = tuple.__new__  # faster than a named tuple's own `__new__`
OWN_NBYTES: Final = 128 - _HEAD.size  # the limit for a kind's own data


def export_of(
    nbytes: int,
    mapped: int,
    payload: bytes,
    fds: tuple[int, ...] = (),
    inode: int = 0,
    on_demand: OnDemand | None = None,
    form: Form = Form.DRIVER,
) -> Export:
    made: Export = _new(Export, (nbytes, mapped, fds, inode, payload, on_demand, form, 0))
    return made


def described(
    kind: int,
    nbytes: int,
    mapped: int,
    fds: tuple[int, ...] = (),
    *,
    inode: int = 0,
    own: bytes = b"",
    on_demand: OnDemand | None = None,
    form: Form = Form.DRIVER,
) -> Export:
    """Make the export of `nbytes` bytes of memory, for which the importer maps `mapped` bytes. The payload starts with
    a common head. `own` is the part after the head, whose meaning depends on `kind`.
    """
    return export_of(nbytes, mapped, _HEAD.pack(kind, mapped) + own, fds, inode, on_demand, form)


def unsized(kind: int) -> tuple[bytes, int]:
    """Return the common head of a payload with 0 as the size, and the offset at which the size is stored. The size has
    8 bytes, in little-endian order.
    """
    return _HEAD.pack(kind, 0), _HEAD.size - 8


def read_head(doing: str, what: Import) -> tuple[int, bytes]:
    """Read a peer's payload. Return the kind of the export, and the part of the payload whose meaning depends on the
    kind.
    """
    if len(what.payload) < _HEAD.size:
        raise InvalidHandleError(f"{doing}: the exporter's table says nothing about the kind of memory")
    kind, mapped = _HEAD.unpack_from(what.payload)
    if mapped != what.exposed_nbytes or what.nbytes > mapped:
        raise InvalidHandleError(f"{doing}: the exporter's table contradicts itself")
    return kind, what.payload[_HEAD.size :]


# --- host memory ------------------------------------------------------------------------------------------------------


@final
class HostMemory(DriverMemory):
    """A mapped memfd. The file descriptor stays open if this process may have to export the memory."""

    host_accessible = True
    lasting_export = True
    keepable = True
    reusable = True

    def __init__(
        self, engine: Engine, device: Device, fd: OwnedFd | None, inode: int, mapping: Any, nbytes: int
    ) -> None:
        self._engine = engine
        self._device = device
        self._fd = fd
        self._inode = inode
        self._mapping = mapping
        self.descriptors = int(fd is not None)
        self.address: int = mapping.address
        self.nbytes = nbytes

    @staticmethod
    def _map(engine: Engine, device: Device, doing: str, fd: int, nbytes: int, read_only: bool) -> Any:
        needed: tuple[Feature, ...] = ("host registration", "read-only host registration")
        for feature in needed[: 1 + read_only]:
            if lacking := device.lacking(feature):
                raise FeatureNotSupportedError(f"{doing}: {device} lacks {lacking}")
        mapping = engine.calls.checked(doing, "Mapping", fd, nbytes, 0, not read_only)
        with device.current():
            device.reach(doing, mapping.address, nbytes, read_only)
        return mapping

    @classmethod
    def allocate(cls, engine: Engine, device: Device, nbytes: int) -> HostMemory:
        doing = f"allocating {nbytes} bytes of host memory"
        mapped = pages(nbytes)
        fd = memfd_of(engine.calls, doing, "xpushare-memory", mapped)
        with End(fd.close):
            inode = engine.calls.checked(doing, "fstat", fd.number).st_ino
            return cls(engine, device, fd, inode, cls._map(engine, device, doing, fd.number, mapped, False), nbytes)

    @classmethod
    def imported(cls, engine: Engine, device: Device, what: Import) -> HostMemory:
        doing = f"mapping {what.exposed_nbytes} bytes of host memory of another process"
        fd = check_imported(engine.calls, doing, what)
        inode = engine.calls.checked(doing, "fstat", fd).st_ino if what.again else 0
        mapping = cls._map(engine, device, doing, fd, what.exposed_nbytes, what.read_only)
        kept = OwnedFd(what.fds[0]) if what.again else None
        return cls(engine, device, kept, inode, mapping, what.nbytes)

    def export(self, read_only: bool) -> Export:
        if self._fd is None:
            raise FeatureNotSupportedError(
                "exporting imported memory: only memory that was unpickled, or attached with own=True, can be "
                "exported again"
            )
        assert self._mapping is not None
        return described(
            HOST, self.nbytes, self._mapping.nbytes, (self._fd.number,), inode=self._inode, form=Form.MEMFD
        )

    def release(self) -> None:
        mapping, self._mapping = self._mapping, None
        self._engine.teardown.submit(self._device, unreach, self._device, "unregistering host memory", mapping)
        if self._fd is not None:
            self._fd.close()
