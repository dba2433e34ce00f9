"""Level Zero by bare calls, without the adapter."""

from __future__ import annotations

from ctypes import CDLL, byref, c_uint32, c_void_p
from typing import Any

from xpushare.adapters.level_zero._bindings import (
    LIBRARY,
    functions,
    ze_device_mem_alloc_desc_t,
    ze_external_memory_export_desc_t,
    ze_external_memory_export_fd_t,
    ze_host_mem_alloc_desc_t,
    ze_init_driver_type_desc_t,
    ze_memory_allocation_properties_t,
)

__all__ = ["Bare"]


class Bare:
    """The driver by bare calls: its context, its first device."""

    def __init__(self) -> None:
        library, self.ze = CDLL(LIBRARY), dict[str, Any]()
        for name, result, arguments in functions():
            if hasattr(library, name):
                self.ze[name] = getattr(library, name)
                self.ze[name].argtypes, self.ze[name].restype = arguments, result
        count, self.driver, self.device = c_uint32(1), c_void_p(), c_void_p()
        self("zeInitDrivers", byref(count), byref(self.driver), byref(ze_init_driver_type_desc_t(flags=1)))
        self.context = c_void_p(self.ze["zeDriverGetDefaultContext"](self.driver))
        self("zeDeviceGet", self.driver, byref(count), byref(self.device))

    def __call__(self, name: str, *arguments: object) -> None:
        result = self.ze[name](*arguments)
        assert result == 0, f"{name}: {result:#x}"

    def allocate(self, nbytes: int, exported: bool = False) -> c_void_p:
        address = c_void_p()
        export = ze_external_memory_export_desc_t(flags=1) if exported else None
        desc = ze_device_mem_alloc_desc_t(export)
        self("zeMemAllocDevice", self.context, byref(desc), nbytes, 0, self.device, byref(address))
        return address

    def host(self, nbytes: int) -> c_void_p:
        address = c_void_p()
        self("zeMemAllocHost", self.context, byref(ze_host_mem_alloc_desc_t()), nbytes, 0, byref(address))
        return address

    def exported(self, address: c_void_p) -> int:
        """The driver's own fd of an allocation."""
        fd = ze_external_memory_export_fd_t(flags=1, fd=-1)
        self("zeMemGetAllocProperties", self.context, address, byref(ze_memory_allocation_properties_t(fd)), None)
        return int(fd.fd)
