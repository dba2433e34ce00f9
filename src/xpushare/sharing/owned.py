"""Memory that another process allocated and that this process can export itself, by its own file descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from xpushare._native import DUPLICATE
from xpushare.adapters.base import Export, Form, Hardware, Import
from xpushare.common import system
from xpushare.common.errors import DeviceError, FeatureNotSupportedError, XpuShareError, from_os_error
from xpushare.common.fds import OnDemand, OwnedFd, close_all
from xpushare.sharing import layout

__all__ = ["Owned", "descriptors", "expect_lasting"]


def descriptors(what: Export) -> list[OwnedFd]:
    """Return duplicates of the descriptors of an export of this process. For an export on demand, the driver makes the
    descriptors now.
    """
    fds: list[OwnedFd] = []
    try:
        if what.on_demand is None:
            fds += map(system.dup, what.fds)
            return fds
        import ctypes

        number = ctypes.c_int()
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_uint64, ctypes.c_int64, ctypes.c_uint64
        )
        make = kind(what.on_demand.function)
        for each in what.on_demand.objects:
            number.value = -1
            code = make(ctypes.byref(number), each, what.on_demand.a, what.on_demand.b)
            if code or number.value < 0:
                raise DeviceError(f"the driver makes no descriptor of the memory (error {code})", native=code)
            fds.append(OwnedFd(number.value))
    except BaseException as error:
        close_all(fds)
        if isinstance(error, OSError) and not isinstance(error, XpuShareError):
            raise from_os_error(error, "duplicating descriptors of memory") from error
        raise
    return fds


def expect_lasting(form: Form, count: int) -> None:
    """Raise `FeatureNotSupportedError` unless an export of this form, with this many descriptors, outlives
    its maker.
    """
    if form is Form.DRIVER or not count:
        raise FeatureNotSupportedError(
            "this memory ends with the process that made it, so no other process can own it: its driver shares it by a "
            "handle of that process. Memory of xs.empty, and of PyTorch with expandable_segments:True, outlives its "
            "maker; copy into such memory before it is shared"
        )


@final
class Owned:
    """The file descriptors of an allocation, and the facts of its export. With these, this process can export the
    allocation without a driver.
    """

    __slots__ = ("_export", "exporter", "fds")

    def __init__(self, fds: Sequence[OwnedFd], export: Export, exporter: Hardware | None) -> None:
        """Take over `fds`. `export` is given without descriptors. `exporter` is the exporting device if it belongs to
        another backend.
        """
        self.fds: Final = tuple(fds)
        self._export: Final = export
        self.exporter: Final = exporter

    @classmethod
    def of(cls, what: Import) -> Owned:
        """Return an `Owned` with duplicates of the descriptors of an import."""
        expect_lasting(what.form, len(what.fds))
        fds: list[OwnedFd] = []
        try:
            fds += map(system.dup, (each.number for each in what.fds))
            inode = system.fstat(fds[0].number).st_ino if what.form is Form.MEMFD else 0
        except OSError as error:
            close_all(fds)
            raise from_os_error(error, f"owning {what.exposed_nbytes} bytes of another process") from error
        export = Export(what.nbytes, what.exposed_nbytes, (), inode, what.payload, form=what.form, offset=what.offset)
        return cls(fds, export, what.exporter)

    def export(self) -> Export:
        """Return the export, as described by the process that allocated the memory, with this process's descriptors."""
        numbers = tuple([fd.number for fd in self.fds])
        if len(numbers) > layout.FDS_INLINE:
            return self._export._replace(on_demand=OnDemand(DUPLICATE, numbers, 0, 0))
        return self._export._replace(fds=numbers)

    def close(self) -> None:
        close_all(self.fds)
