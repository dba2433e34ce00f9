"""The loader and the drivers of this process, started when they are first needed; their errors and their devices."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, final

from xpushare._errors import FeatureNotSupportedError, ForkError, InvalidArgumentError, XpuShareError
from xpushare._native import forks
from xpushare.adapters.base import DeviceInfo
from xpushare.adapters.level_zero import _bindings as ze
from xpushare.adapters.level_zero._numbers import DEVICE_TYPE_GPU, GPU_DRIVERS, Code, Handle
from xpushare.adapters.stream.hooks import Codes

if TYPE_CHECKING:
    from xpushare.adapters.level_zero._device import Gpu

__all__ = ["CODES", "Driver", "Platform", "address_of"]

CODES: Final = Codes(
    # The loader's name for a size that no device has is the third.
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
_FORKED: Final = (
    "Level Zero was started before this process was forked, and cannot be used in the child: start it with the spawn "
    "or forkserver method"
)

_IMPORTS: Final = ("zexDriverImportExternalPointer", "zexDriverReleaseImportedPointer")


def address_of(structure: Any) -> int:
    """The address of a ctypes object, which the caller keeps alive."""
    return ctypes.addressof(structure)


@final
class Platform:
    """One driver of the loader's, and its context: memory belongs to a context, and that of Unified Runtime is the
    driver's default one, too.
    """

    def __init__(self, driver: Driver, handle: int, api: tuple[int, int]) -> None:
        self.driver = driver
        self.handle = handle
        self.api = api
        self.about = ze.ze_driver_properties_t()
        driver("asking a driver", "zeDriverGetProperties", handle, address_of(self.about))
        self.devices: list[Gpu] = []
        self._functions: dict[str, int] = {}  # Intel's, as far as they were asked for
        self._context = 0
        self.own_context = False  # the driver has no default one, so our memory is unknown to other libraries
        self._lock = threading.Lock()

    @property
    def version(self) -> str:
        return ".".join(map(str, self.api))

    @property
    def context(self) -> int:
        if not self._context:
            with self._lock:
                if not self._context:
                    default = self._default()
                    self.own_context = not default
                    self._context = default or self._own()
        return self._context

    def _default(self) -> int:
        if not self.has("zeDriverGetDefaultContext"):
            return 0
        return self.driver.functions["zeDriverGetDefaultContext"](self.handle) or 0

    def _own(self) -> int:
        """A context of ours, on drivers without a default one."""
        description = ze.ze_context_desc_t()
        return self.driver.made("making a context", "zeContextCreate", self.handle, address_of(description))

    def has(self, name: str) -> bool:
        """Whether the loader has a function and the driver is of a version that may have it."""
        return name in self.driver.functions and self.api >= ze.FUNCTIONS[name][0]

    def extension(self, name: str) -> int:
        """The address of one of Intel's functions; 0 if the driver has none of that name."""
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
        """How the driver uses pages of the host in place: by an extension of Intel's, as an allocation at their
        address, or not at all. Intel's driver crashes at the process's end when such an allocation was freed and its
        pages are mapped no more (26.27), so that comes second.
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
        """Let the devices use these pages, until `unreach`."""
        if self.host_route == "mapped":
            pages = ze.ze_external_memmap_sysmem_ext_desc_t(pSystemMemory=address, size=nbytes)
            description = ze.ze_host_mem_alloc_desc_t(pages)
            found = self.driver.made(doing, "zeMemAllocHost", self.context, address_of(description), nbytes, 0)
            if found != address:
                self.driver.code("zeMemFree", self.context, found)
                raise FeatureNotSupportedError(f"{doing}: the driver uses these pages at another address only")
        elif self.host_route == "imported":
            self._imported(doing, 0, address, nbytes)

    def unreach(self, doing: str, address: int) -> None:
        if self.host_route == "mapped":
            self.driver(doing, "zeMemFree", self.context, address)
        elif self.host_route == "imported":
            self._imported(doing, 1, address)


@final
class Driver:
    """Calls the loader. `functions` is there once `start` has returned."""

    def __init__(self, make: Callable[[Platform, int, int, ze.ze_device_properties_t], Gpu]) -> None:
        """`make` makes a device: of which driver, its ordinal, handle and properties."""
        self._make = make
        self._lock = threading.Lock()
        self._forks: int | None = None
        self._gpus: list[Gpu] = []
        self.ended = False  # this process is exiting
        self.platforms: list[Platform] = []
        self.functions: dict[str, Callable[..., int]] = {}

    @property
    def started(self) -> bool:
        """Started in this very process."""
        return self._forks is not None and self._forks == forks()

    def start(self) -> None:
        """Load the loader and initialise the drivers once; a forked child is refused."""
        if self._forks is not None:
            if self._forks != forks():
                raise ForkError(_FORKED)
            return
        with self._lock:
            if self._forks is not None:
                return
            try:
                self.functions = ze.load()
            except OSError as error:
                raise FeatureNotSupportedError(f"starting Level Zero: the loader cannot be loaded: {error}") from error
            self._gpus = self._enumerate()
            self._forks = forks()

    def _enumerate(self) -> list[Gpu]:
        found: list[Gpu] = []
        self.platforms = []
        for handle in self._drivers():
            api = ctypes.c_uint32()
            self("asking a driver", "zeDriverGetApiVersion", handle, address_of(api))
            platform = Platform(self, handle, (api.value >> 16, api.value & 0xFFFF))
            self.platforms.append(platform)
            for device in self.several("listing the devices", "zeDeviceGet", ctypes.c_void_p, handle):
                properties = ze.ze_device_properties_t()
                self("asking a device", "zeDeviceGetProperties", device, address_of(properties))
                if properties.type == DEVICE_TYPE_GPU:
                    platform.devices.append(self._make(platform, len(found), device, properties))
                    found.append(platform.devices[-1])
        return found

    def _drivers(self) -> list[int]:
        doing = "starting Level Zero"
        if "zeInitDrivers" in self.functions:
            wanted = ze.ze_init_driver_type_desc_t(flags=GPU_DRIVERS)
            count = ctypes.c_uint32()
            code = self.code("zeInitDrivers", address_of(count), None, address_of(wanted))
            if not code:
                found = (ctypes.c_void_p * count.value)()
                self(doing, "zeInitDrivers", address_of(count), address_of(found), address_of(wanted))
                return list(found)[: count.value]
            if code not in (Code.UNINITIALIZED, Code.UNSUPPORTED_FEATURE):
                raise self.error(doing, "zeInitDrivers", code)
        code = self.code("zeInit", 1)  # GPUs only
        if code == Code.UNINITIALIZED:
            return []  # the loader found no driver
        if code:
            raise self.error(doing, "zeInit", code)
        return self.several(doing, "zeDriverGet", ctypes.c_void_p)

    # --- calls ---------------------------------------------------------------------------------------------

    def code(self, name: str, *arguments: Any) -> int:
        """Call, and return the driver's code. A function that the loader lacks is a feature that is not supported. When
        the process exits, there is nothing to do any more: it frees everything.
        """
        if self.ended:
            return 0
        function = self.functions.get(name)
        return Code.UNSUPPORTED_FEATURE if function is None else function(*arguments)

    def __call__(self, doing: str, name: str, *arguments: Any) -> None:
        """Call, or raise our error."""
        code = self.code(name, *arguments)
        if code:
            raise self.error(doing, name, code)

    def made(self, doing: str, name: str, *arguments: Any) -> int:
        """The handle or the address that a call puts where its last argument points."""
        found = ctypes.c_void_p()
        self(doing, name, *arguments, address_of(found))
        if self.ended:
            raise self.error(doing, name, Code.UNINITIALIZED)
        return found.value or 0

    def several(self, doing: str, name: str, kind: Any, *arguments: Any) -> list[Any]:
        """What a call lists that first says how many there are."""
        count = ctypes.c_uint32()
        self(doing, name, *arguments, address_of(count), None)
        found = (kind * count.value)()
        if issubclass(kind, ze.Extensible):
            for each in found:
                each.stype = kind.STYPE
        if count.value:
            self(doing, name, *arguments, address_of(count), address_of(found))
        return list(found)[: count.value]

    def ready(self, doing: str, name: str, *arguments: Any) -> bool:
        """What a call says that asks whether something has finished."""
        code = self.code(name, *arguments)
        if code in (0, Code.NOT_READY):
            return not code
        raise self.error(doing, name, code)

    def error(self, doing: str, name: str, code: int) -> XpuShareError:
        return CODES.error(doing, name, ze.RESULTS.get(code, "a result that this version does not know"), code)

    def address(self, name: str) -> int:
        """The address of a loader's function, for native code; 0 if the loader lacks it."""
        function = self.functions.get(name)
        return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]

    def raw(self, doing: str, kind: Handle, handle: int) -> int:
        """The driver's own handle, for functions that are called past the loader."""
        if "zelLoaderTranslateHandle" not in self.functions:
            return handle
        return self.made(doing, "zelLoaderTranslateHandle", kind, handle)

    # --- devices -------------------------------------------------------------------------------------------

    def gpus(self) -> list[Gpu]:
        if self._forks != forks():
            self.start()
        return self._gpus

    def gpu(self, info: DeviceInfo) -> Gpu:
        """The driver's device with that uuid, whatever its ordinal was when it was listed."""
        found = self.by_uuid(info.uuid)
        if found is None:
            visible = ", ".join(f"{gpu.ordinal} is {gpu.uuid}" for gpu in self.gpus()) or "none"
            raise InvalidArgumentError(
                f"the Level Zero drivers do not let this process use the device {info.uuid} (of their devices: "
                f"{visible}); a container hides it, or ZE_AFFINITY_MASK was changed after the devices were listed"
            )
        return found

    def by_uuid(self, name: str) -> Gpu | None:
        return next((gpu for gpu in self.gpus() if gpu.uuid == name), None)

    def by_handle(self, handle: int) -> Gpu | None:
        return next((gpu for gpu in self.gpus() if gpu.handle == handle), None)
