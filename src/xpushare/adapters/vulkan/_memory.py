"""Device memory of Vulkan, behind the opaque file descriptors that Vulkan exports and imports.

No address of this process reaches it. What stands for its address is a reserved range that nobody can read or write, so
that pieces of it are told apart as those of any other memory are.
"""

from __future__ import annotations

import uuid
from typing import Final, final

from xpushare import _system
from xpushare._errors import FeatureNotSupportedError, InvalidHandleError, from_os_error
from xpushare._fds import OwnedFd
from xpushare.adapters.base import DeviceInfo, DriverMemory, Export, Form, Import

__all__ = ["DRIVER_NBYTES", "OpaqueMemory", "imported"]

DRIVER_NBYTES: Final = 16  # of the driver's uuid, which follows the first byte of a payload


@final
class OpaqueMemory(DriverMemory):
    """An allocation by its file descriptor: one that the program exported, or another process's for it to import."""

    host_accessible = False
    lasting_export = True

    def __init__(self, fd: OwnedFd, nbytes: int, dedicated: bool, driver: bytes, size: int | None = None) -> None:
        """Take `fd` over. Of an allocation of `nbytes`, this is the first `size` (None: all)."""
        try:
            self._place = _system.Reservation(nbytes, 0)
        except OSError as error:
            raise from_os_error(error, f"reserving {nbytes} bytes of addresses") from error
        self.fd = fd
        self.dedicated = dedicated
        self.exposed_nbytes = nbytes
        self.address = self._place.address
        self.nbytes = nbytes if size is None else size
        self._driver = driver

    @classmethod
    def of_program(cls, fd: OwnedFd, nbytes: int, dedicated: bool, device: DeviceInfo) -> OpaqueMemory:
        return cls(fd, nbytes, dedicated, uuid.UUID(device.driver_uuid).bytes)

    def export(self, read_only: bool) -> Export:
        if read_only:
            raise FeatureNotSupportedError("neither Vulkan nor CUDA can import Vulkan's memory read-only")
        payload = bytes([self.dedicated]) + self._driver
        return Export(self.nbytes, self.exposed_nbytes, (self.fd.number,), payload=payload, form=Form.OPAQUE_FD)

    def release(self) -> None:
        """Both the descriptor and the addresses go with this object, which the program may hold, too."""


def imported(doing: str, what: Import, driver: bytes) -> OpaqueMemory:
    """Another process's memory, which Vulkan itself imports only where the program asks for it."""
    if len(what.fds) != 1:
        raise InvalidHandleError(f"{doing}: the exporter sent {len(what.fds)} file descriptors, 1 expected")
    dedicated = what.form is Form.OPAQUE_FD and what.payload[:1] == b"\1"
    return OpaqueMemory(OwnedFd(what.fds[0].take()), what.exposed_nbytes, dedicated, driver, what.nbytes)
