"""Host memory that devices use: pages of a memfd. Every process that maps the pages registers them with its driver."""

from __future__ import annotations

from typing import Any, final

from xpushare._native import End
from xpushare.adapters.base import DriverMemory, Export, Form, Import
from xpushare.adapters.host.memory import check_imported, memfd_of, pages
from xpushare.adapters.stream import payload
from xpushare.adapters.stream.engine import Engine
from xpushare.adapters.stream.hooks import Device, Feature
from xpushare.adapters.stream.slot_pages import unreach
from xpushare.common.errors import FeatureNotSupportedError
from xpushare.common.fds import OwnedFd

__all__ = ["HostMemory"]


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
        return payload.described(
            payload.HOST, self.nbytes, self._mapping.nbytes, (self._fd.number,), inode=self._inode, form=Form.MEMFD
        )

    def release(self) -> None:
        mapping, self._mapping = self._mapping, None
        self._engine.teardown.submit(self._device, unreach, self._device, "unregistering host memory", mapping)
        if self._fd is not None:
            self._fd.close()
