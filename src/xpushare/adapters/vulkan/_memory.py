"""Device memory of Vulkan, behind the opaque file descriptors that Vulkan exports and imports.

This process cannot map such memory. It reserves an inaccessible range of addresses for it instead, so that parts of the
memory can be identified by address, like parts of other memory.
"""

from __future__ import annotations

import itertools
import uuid
from typing import Final, final

from xpushare.adapters.base import DeviceInfo, DriverMemory, Export, Form, Import
from xpushare.common import system
from xpushare.common.errors import FeatureNotSupportedError, InvalidHandleError, from_os_error
from xpushare.common.fds import OwnedFd

__all__ = ["OpaqueMemory", "origin_of"]

_numbers: Final = itertools.count(1)


def origin_of(doing: str, what: Import) -> tuple[str, str]:
    """Return the uuids of the exporter's driver and device, which follow the first byte in the payload of
    `OpaqueMemory.export`.
    """
    if len(what.payload) != 33:
        raise InvalidHandleError(f"{doing}: the exporter's table does not say its driver and device")
    return str(uuid.UUID(bytes=what.payload[1:17])), str(uuid.UUID(bytes=what.payload[17:]))


@final
class OpaqueMemory(DriverMemory):
    """An allocation behind an opaque file descriptor. Either this program has exported the allocation, or another
    process has exported it and this program can import it.
    """

    host_accessible = False
    lasting_export = True

    def __init__(self, device: DeviceInfo, fd: OwnedFd, exposed_nbytes: int, nbytes: int, dedicated: bool) -> None:
        """Take over `fd`. This memory is the first `nbytes` of an allocation of `exposed_nbytes`."""
        try:
            self._place = system.Reservation(exposed_nbytes, 0)
        except OSError as error:
            raise from_os_error(error, f"reserving {exposed_nbytes} bytes of addresses") from error
        self.device = device
        self.fd = fd
        self.dedicated = dedicated
        self.exposed_nbytes = exposed_nbytes
        self.address = self._place.address
        self.nbytes = nbytes
        self.number = next(_numbers)

    def export(self, read_only: bool) -> Export:
        if read_only:
            raise FeatureNotSupportedError("neither Vulkan nor CUDA can import Vulkan's memory read-only")
        origin = uuid.UUID(self.device.driver_uuid).bytes + uuid.UUID(self.device.uuid).bytes
        payload = bytes([self.dedicated]) + origin
        return Export(self.nbytes, self.exposed_nbytes, (self.fd.number,), payload=payload, form=Form.OPAQUE_FD)

    def release(self) -> None:
        """Do nothing. The descriptor and the addresses are released with this object, to which the program may still
        have a reference.
        """
