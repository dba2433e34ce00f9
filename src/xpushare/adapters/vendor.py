"""The record of a vendor: the facts that the package needs before it loads the vendor's driver, or if it never does.

Each adapter's folder has a module `vendor` with a record of that name. An adapter in a separate package names its
record as an entry point of the group `xpushare.adapters`. All other code reads these records, so no table of vendors
exists anywhere else. Importing a record starts no driver and loads no binding.
"""

from __future__ import annotations

import _ctypes
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from xpushare.adapters.base import Adapter, DeviceInfo, UsmKind

__all__ = ["DLPACK_NAMES", "UR_BACKENDS", "ArrayInterface", "Check", "DLPackType", "Vendor", "library_loaded"]

# Unified Runtime's names for ONEAPI_DEVICE_SELECTOR: selectors may contain them even if there is no adapter for them.
UR_BACKENDS: Final = frozenset({"level_zero", "opencl", "cuda", "hip", "native_cpu", "offload"})

# DLDeviceType of dlpack.h, for messages.
DLPACK_NAMES: Final = {
    1: "kDLCPU",
    2: "kDLCUDA",
    3: "kDLCUDAHost",
    4: "kDLOpenCL",
    7: "kDLVulkan",
    8: "kDLMetal",
    9: "kDLVPI",
    10: "kDLROCM",
    11: "kDLROCMHost",
    12: "kDLExtDev",
    13: "kDLCUDAManaged",
    14: "kDLOneAPI",
    15: "kDLWebGPU",
    16: "kDLHexagon",
    17: "kDLMAIA",
    18: "kDLTrn",
}


_loaded: Final[set[str]] = set()  # libraries that were found in this process; they never leave
_absent: Final[dict[str, int]] = {}  # those that were not, and how many libraries had been loaded by then


def library_loaded(name: str) -> bool:
    """Return whether a library is loaded in this process."""
    if name not in _loaded:
        from xpushare import _native

        loads = _native.library_loads()
        if _absent.get(name) == loads:
            return False
        try:
            handle = _ctypes.dlopen(name, os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:
            _absent[name] = loads
            return False
        _ctypes.dlclose(handle)
        _loaded.add(name)
    return True


class Check(NamedTuple):
    """One item that `xpushare doctor` examined. `state` is "works", "note" (nothing is wrong), "limited", "fails",
    "absent" (this machine does not offer the item) or "skipped".
    """

    group: str
    name: str
    state: str
    why: str
    fix: str | None = None


class DLPackType(NamedTuple):
    """A DLPack device type that arrays in this vendor's memory report. The arrays are our own, or those of other
    libraries.
    """

    number: int
    kinds: tuple[UsmKind, ...] = ()  # the kinds of our memory that have this type
    foreign: bool = True  # other libraries' arrays of this type belong to this vendor
    host: bool = False  # the host reads and writes this memory
    stream: int | None = None  # DLPack's number for the default stream; None: arrays of this type have no streams
    address: bool = True  # the array's pointer is an address, not a driver's handle

    @property
    def name(self) -> str:
        return DLPACK_NAMES.get(self.number, "unnamed")


def _filter_string(device: DeviceInfo) -> object:
    return f"{device.backend}:{device.type}:{device.ordinal}"


class ArrayInterface(NamedTuple):
    """An attribute that describes an array's memory, such as `__cuda_array_interface__`. This package reads the
    attribute from other libraries' arrays. Our own arrays on a device of this vendor have the attribute, too.
    """

    name: str
    layout: Literal["numpy", "sycl_usm"] = "numpy"  # NumPy's version 3, or version 1 of SYCL's USM array interface
    given: bool = True
    stream: int | None = None  # the interface's number of the default stream, if it has streams
    mine: Callable[[Mapping[str, Any]], bool] | None = (
        None  # whether an array is this vendor's, if vendors share the name
    )
    syclobj: Callable[[DeviceInfo], object] = _filter_string  # the object that names the device, in SYCL's


def _yes() -> bool:
    return True


def _nothing(_native: object) -> object | None:
    return None


def _no_checks() -> Iterable[Check]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """The record of a vendor: what is known about the vendor without its driver."""

    backend: str  # lower case; at most 16 characters, as handles carry it
    make: Callable[[], Adapter]  # imports and makes the adapter; called once per process, when it is first needed
    order: int = 50  # devices are listed in ascending order of this, then of the backends' names
    selected_only: bool = False  # the devices exist only when a selector names the backend
    in_use: Callable[[], bool] = _yes  # whether this process has loaded the driver: else no array is this vendor's
    pci_vendor: int = 0  # of its devices, or 0. `doctor` gives no advice if the bus has none of them
    install: str = ""  # what to install if there is a device but no driver or Python binding
    modules: tuple[str, ...] = ()  # the binding's top-level modules
    variables: tuple[str, ...] = ()  # environment variables that choose among the devices
    torch_type: str | None = None  # what torch (and with it Ray) calls this type of device
    dlpack: tuple[DLPackType, ...] = ()
    interfaces: tuple[ArrayInterface, ...] = ()
    streams: str = ""  # the streams that `stream_of` recognises, in words
    stream_methods: tuple[str, ...] = ()  # the methods by which an array or a stream object hands out its stream
    stream_of: Callable[[object], object | None] = (
        _nothing  # the driver's stream in another library's object; None: not a stream
    )
    event_of: Callable[[object], object | None] = _nothing  # the same for an event
    examine: Callable[[], Iterable[Check]] = _no_checks  # what `xpushare doctor` reports; may ask the adapter

    def __post_init__(self) -> None:
        if not re.fullmatch("[a-z][a-z0-9_]{0,15}", self.backend):
            raise ValueError(f"a backend's name is up to 16 of a-z, 0-9 and _, not {self.backend!r}")

    def dlpack_type(self, kind: UsmKind) -> int:
        """Return DLPack's device type for our memory of that kind."""
        return next(each.number for each in self.dlpack if kind in each.kinds)
