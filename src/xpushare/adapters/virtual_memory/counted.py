"""Memory of drivers without reference counts. Such a driver frees an allocation when its handle is released, even if
the allocation is mapped, and may be able to map an allocation at only one address at a time.
"""

from __future__ import annotations

import abc
import os
import threading
from dataclasses import dataclass, field
from typing import Final

from xpushare.adapters.stream.background import quietly
from xpushare.adapters.virtual_memory.fds import DriverFds, file_of
from xpushare.common.errors import InvalidHandleError, XpuShareError

__all__ = ["CountedMemory", "Pages"]

_counting: Final = threading.RLock()  # one for all, since a device maps memory of others


@dataclass(slots=True)
class Pages:
    """An allocation and the number of its users. When the last user releases the allocation, it is destroyed."""

    device: CountedMemory
    handle: int
    nbytes: int
    fds: DriverFds
    users: int = 1  # this handle, and mappings
    original: Pages | None = None  # of an import of this process's own memory, which uses its original
    idle: list[Pages] = field(default_factory=list["Pages"])  # such imports that are not mapped now
    file: tuple[int, int] | None = None  # the file by which a peer's allocation was imported


class CountedMemory(abc.ABC):
    """Implements `retain`, `release`, `location`, `map` and `unmap` of `VirtualMemory`."""

    ordinal: int

    def __init__(self) -> None:
        self._mapped: dict[int, Pages] = {}  # by address
        self._imports: dict[tuple[int, int] | None, Pages] = {}  # of peers' memory, by file

    @abc.abstractmethod
    def export_fd(self, doing: str, handle: Pages) -> int: ...
    @abc.abstractmethod
    def import_pages(self, doing: str, nbytes: int, fd: int) -> Pages:
        """Import the memory behind a file descriptor. The caller keeps the descriptor."""

    @abc.abstractmethod
    def destroy_pages(self, doing: str, pages: Pages) -> None: ...
    @abc.abstractmethod
    def map_pages(self, doing: str, address: int, pages: Pages) -> bool:
        """Map the whole allocation. Returns False if the driver refuses, possibly because the allocation is mapped at
        another address. An import with an `original` is never mapped at another address.
        """

    @abc.abstractmethod
    def unmap_pages(self, doing: str, address: int, nbytes: int) -> None: ...

    def import_shared(self, doing: str, nbytes: int, fd: int) -> Pages:
        """Import as `import_pages` does, or reuse an earlier import of the same file. The driver may use one kernel
        handle for all imports of a file, and close the handle when the first of these imports is destroyed.
        """
        file = file_of(fd)
        with _counting:
            found = self._imports.get(file)
            if found is None:
                found = self._imports[file] = self.import_pages(doing, nbytes, fd)
                found.file = file
            else:
                found.users += 1
            return found

    def location(self, doing: str, handle: Pages) -> int:
        return handle.device.ordinal

    def retain(self, doing: str, address: int) -> Pages:
        with _counting:
            found = self._mapped[address]
            found.users += 1
            return found

    def release(self, doing: str, handle: Pages) -> None:
        original = handle.original
        with _counting:
            handle.users -= 1
            if handle.users:
                return
            if original is not None:
                original.idle.append(handle)
            else:  # while the lock is held, so that the next import of the file happens afterwards
                handle.device._imports.pop(handle.file, None)
                for again in handle.idle:
                    quietly(self.destroy_pages, doing, again)
                self.destroy_pages(doing, handle)
        if original is not None:
            self.release(doing, original)

    def map(self, doing: str, address: int, nbytes: int, handle: Pages) -> None:
        if nbytes != handle.nbytes:
            raise InvalidHandleError(
                f"{doing}: the exporter's table says {nbytes} bytes, its memory has {handle.nbytes}"
            )
        with _counting:
            handle.users += 1
        self._mapped[address] = handle  # before the driver maps it, so that an interrupt leaves no mapping unrecorded
        try:
            if not self.map_pages(doing, address, handle):
                handle = self._mapped[address] = self._again(doing, handle)
                self.map_pages(doing, address, handle)
        except BaseException as error:
            if not isinstance(error, XpuShareError):  # an interrupt, before the driver's call or after it
                quietly(self.unmap_pages, doing, address, nbytes)
            self._mapped.pop(address, None)
            quietly(self.release, doing, handle)
            raise

    def _again(self, doing: str, pages: Pages) -> Pages:
        """Import this process's own pages once more, for a mapping at another address, and return the new import, which
        the caller uses instead of `pages`. The driver may use one kernel handle for the import and the original, and
        close it as soon as one of them is destroyed. So the import is kept as long as the original, and is reused.
        """
        with _counting:
            if pages.idle:
                again = pages.idle.pop()
                again.users = 1
                return again
        fd = self.export_fd(doing, pages)
        try:
            again = pages.device.import_pages(doing, pages.nbytes, fd)
        finally:
            os.close(fd)
        again.original = pages
        return again

    def unmap(self, doing: str, address: int, nbytes: int) -> None:
        with _counting:
            pages = self._mapped.pop(address, None)
        if pages is None:
            return  # an interrupted call has unmapped it
        try:
            self.unmap_pages(doing, address, nbytes)
        finally:
            self.release(doing, pages)
