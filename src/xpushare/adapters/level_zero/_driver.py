"""The loader and the drivers of this process, started when they are first needed, with their errors and their
devices.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, Literal, Protocol, TypeVar, final

from xpushare.adapters.level_zero import _bindings as ze
from xpushare.adapters.level_zero._bindings import DEVICE_TYPE_GPU, GPU_DRIVERS, Code, Handle
from xpushare.adapters.stream.driver import LibraryDriver, address_of
from xpushare.adapters.stream.hooks import Codes
from xpushare.common.errors import FeatureNotSupportedError

__all__ = ["CODES", "Driver", "Platform"]

CODES: Final = Codes(
    # The third code is the loader's name for a size that no device has.
    out_of_memory=frozenset({Code.OUT_OF_HOST_MEMORY, Code.OUT_OF_DEVICE_MEMORY, Code.UNSUPPORTED_SIZE}),
    unsupported=frozenset({Code.UNSUPPORTED_FEATURE, Code.UNSUPPORTED_VERSION, Code.UNSUPPORTED_ENUMERATION}),
    fatal=frozenset({Code.DEVICE_LOST, Code.DEVICE_REQUIRES_RESET}),
    captured=frozenset(),
    wrong_size=frozenset({Code.INVALID_SIZE, Code.INVALID_ARGUMENT}),
    advice={
        Code.OUT_OF_DEVICE_MEMORY: "free memory of the device, or ask for less",
        Code.DEVICE_LOST: "the device hung or was reset (dmesg says why): end this process",
        Code.INSUFFICIENT_PERMISSIONS: "add the user to the group of /dev/dri/renderD* (render or video)",
        Code.UNSUPPORTED_FEATURE: "a newer driver may have it",
        Code.UNINITIALIZED: "this process is exiting",
    },
)
_IMPORTS: Final = ("zexDriverImportExternalPointer", "zexDriverReleaseImportedPointer")


@final
class Platform:
    """One of the loader's drivers, and its context, to which memory belongs. Unified Runtime uses the driver's default
    context, too.
    """

    def __init__(self, driver: Driver[Any], handle: int, api: tuple[int, int]) -> None:
        self.driver = driver
        self.handle = handle
        self.api = api
        self.about = driver.asked("asking a driver", "zeDriverGetProperties", handle, into=ze.ze_driver_properties_t())
        self._functions: dict[str, int] = {}  # Intel's, as far as they were looked up
        self._context = 0
        self.own_context = False  # the driver has no default context, so other libraries do not know our memory
        self._lock = threading.Lock()

    @property
    def version(self) -> str:
        return ".".join(map(str, self.api))

    @property
    def context(self) -> int:
        return self._context or self._find_context()

    def _find_context(self) -> int:
        with self._lock:
            if not self._context:
                default, found = "zeDriverGetDefaultContext", 0
                if self.has(default):
                    found = self.driver.functions[default](self.handle) or 0
                self.own_context = not found
                if self.own_context:
                    doing, call = "making a context", "zeContextCreate"
                    found = self.driver.made(doing, call, self.handle, ze.ze_context_desc_t())
                self._context = found
            return self._context

    def has(self, name: str) -> bool:
        """Return whether the loader has a function and the driver is new enough to support the function."""
        return name in self.driver.functions and self.api >= ze.FUNCTIONS[name][0]

    def extension(self, name: str) -> int:
        """Return the address of one of Intel's functions, or 0 if the driver has none of that name."""
        found = self._functions.get(name)
        if found is None:
            pointer = ctypes.c_void_p()
            self.driver.code("zeDriverGetExtensionFunctionAddress", self.handle, name.encode(), address_of(pointer))
            found = self._functions[name] = pointer.value or 0
        return found

    @cached_property
    def extensions(self) -> set[str]:
        found = self.driver.several(
            "listing extensions", "zeDriverGetExtensionProperties", ze.ze_driver_extension_properties_t, self.handle
        )
        return {each.name.decode(errors="replace") for each in found}

    # --- pages of the host ---------------------------------------------------------------------------------

    @cached_property
    def host_route(self) -> Literal["imported", "mapped", ""]:
        """How the driver uses host pages in place: by an extension of Intel's, by an allocation at the pages' address,
        or not at all (""). The extension is preferred: if an allocation at an address was freed and its pages were
        unmapped, Intel's driver (26.27) crashes at the end of the process.
        """
        if all(map(self.extension, _IMPORTS)):
            return "imported"
        return "mapped" if "ZE_extension_external_memmap_sysmem" in self.extensions else ""

    def _imported(self, doing: str, which: int, *arguments: int) -> None:
        name = _IMPORTS[which]
        function = ctypes.CFUNCTYPE(ctypes.c_uint32, *ze.EXTENSIONS[name])(self.extension(name))
        code = function(self.driver.raw(doing, Handle.DRIVER, self.handle), *arguments)
        if code:
            raise self.driver.error(doing, name, code)

    def reach(self, doing: str, address: int, nbytes: int) -> None:
        """Let the devices use these pages until `unreach`."""
        if self.host_route == "mapped":
            pages = ze.ze_external_memmap_sysmem_ext_desc_t(pSystemMemory=address, size=nbytes)
            description = ze.ze_host_mem_alloc_desc_t(pages)
            found = self.driver.made(doing, "zeMemAllocHost", self.context, description, nbytes, 0)
            if found != address:
                self.driver.code("zeMemFree", self.context, found)
                raise FeatureNotSupportedError(f"{doing}: the driver can use these pages only at another address")
        elif self.host_route == "imported":
            self._imported(doing, 0, address, nbytes)

    def unreach(self, doing: str, address: int) -> None:
        if self.host_route == "mapped":
            self.driver(doing, "zeMemFree", self.context, address)
        elif self.host_route == "imported":
            self._imported(doing, 1, address)


class _Device(Protocol):
    ordinal: int
    uuid: str
    handle: int


G = TypeVar("G", bound=_Device)


@final
class Driver(LibraryDriver[G]):
    """Calls Level Zero's loader. `G` is the class of this package that represents a device."""

    codes = CODES
    names = ze.RESULTS
    missing = Code.UNSUPPORTED_FEATURE
    not_ready = Code.NOT_READY
    exiting = Code.UNINITIALIZED
    by_address = ze.Extensible

    def __init__(self, make: Callable[[Platform, int, int, ze.ze_device_properties_t], G]) -> None:
        """Prepare to call the loader, which is loaded at the first use. `make` is called for each GPU with its
        platform, ordinal, Level Zero handle and properties. It returns the `G` that represents the GPU.
        """
        super().__init__("Level Zero", "ZE_AFFINITY_MASK")
        self._make = make
        self.platforms: list[Platform] = []

    def _start(self) -> list[G]:
        self.load(ze.LIBRARY, ze.functions())
        found: list[G] = []
        self.platforms = []
        for handle in self._drivers():
            api = self.asked("asking a driver", "zeDriverGetApiVersion", handle, into=ctypes.c_uint32()).value
            platform = Platform(self, handle, (api >> 16, api & 0xFFFF))
            self.platforms.append(platform)
            for device in self.several("listing the devices", "zeDeviceGet", ctypes.c_void_p, handle):
                empty = ze.ze_device_properties_t()
                properties = self.asked("asking a device", "zeDeviceGetProperties", device, into=empty)
                if properties.type == DEVICE_TYPE_GPU:
                    found.append(self._make(platform, len(found), device, properties))
        return found

    def _drivers(self) -> list[int]:
        doing = "starting Level Zero"
        if "zeInitDrivers" in self.functions:
            wanted = ze.ze_init_driver_type_desc_t(flags=GPU_DRIVERS)
            count = ctypes.c_uint32()
            code = self.code("zeInitDrivers", address_of(count), None, wanted)
            if not code:
                found = (ctypes.c_void_p * count.value)()
                self(doing, "zeInitDrivers", address_of(count), address_of(found), wanted)
                return list(found)[: count.value]
            if code not in (Code.UNINITIALIZED, Code.UNSUPPORTED_FEATURE):
                raise self.error(doing, "zeInitDrivers", code)
        code = self.code("zeInit", 1)  # GPUs only
        if code == Code.UNINITIALIZED:
            return []  # the loader found no driver
        if code:
            raise self.error(doing, "zeInit", code)
        return self.several(doing, "zeDriverGet", ctypes.c_void_p)

    def raw(self, doing: str, kind: Handle, handle: int) -> int:
        """Return the driver's own handle, for functions that are called without the loader."""
        if "zelLoaderTranslateHandle" not in self.functions:
            return handle
        return self.made(doing, "zelLoaderTranslateHandle", kind, handle)

    def by_handle(self, handle: int) -> G | None:
        return next((gpu for gpu in self.gpus() if gpu.handle == handle), None)
