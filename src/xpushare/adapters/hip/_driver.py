"""HIP's library in this process, loaded when it is first needed, with its errors and its devices."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from typing import Any, ClassVar, Final, TypeVar, final

from xpushare import _native
from xpushare._native import Scopes
from xpushare.adapters.base import Access, Form, OnDemand
from xpushare.adapters.hip import INSTALL, libraries
from xpushare.adapters.hip import _numbers as n
from xpushare.adapters.hip._numbers import AccessDesc, AllocationProp, Attribute, Error, Pointer
from xpushare.adapters.host.memory import page_of_memfd
from xpushare.adapters.runtime import FUNCTIONS, RegisteredPage, copy_and_fills, native_driver
from xpushare.adapters.stream.background import quietly
from xpushare.adapters.stream.driver import LibraryDriver, address_of
from xpushare.adapters.stream.engine import unreach
from xpushare.adapters.stream.hooks import Codes, Feature, QueueCalls
from xpushare.adapters.vendor import library_loaded
from xpushare.adapters.virtual_memory.counted import CountedMemory, DriverFds, Pages
from xpushare.adapters.virtual_memory.engine import find_origin
from xpushare.common.errors import DeviceError, FeatureNotSupportedError, InvalidHandleError, XpuShareError

__all__ = ["CODES", "Driver", "Gpu"]

T = TypeVar("T")
_NONE: Final = (
    "there is no AMD GPU that this process may use: rocminfo shows them, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES "
    "hide them, and /dev/kfd and /dev/dri/renderD* belong to the groups render and video"
)
CODES: Final = Codes(
    out_of_memory=frozenset({Error.OutOfMemory}),
    unsupported=frozenset({Error.NotSupported}),
    # ECC, an illegal address, a kernel that takes too long, a lost context, an assertion, a failed kernel.
    fatal=frozenset({214, 700, 702, 709, 710, 719}),
    captured=frozenset(range(Error.StreamCaptureUnsupported, Error.StreamCaptureWrongThread + 1)),
    wrong_size=frozenset({Error.InvalidValue, Error.NotSupported, Error.OutOfMemory}),
    advice={
        Error.OutOfMemory: "free memory of the device, or ask for less",
        Error.NoDevice: _NONE,
        Error.InvalidDevice: _NONE,  # also the answer if there is no device
        Error.HostMemoryAlreadyRegistered: "another library of this process has registered these pages",
        **dict.fromkeys((Error.IllegalAddress, Error.LaunchFailure), "earlier work failed: end this process"),
    },
)
_TRIED: Final = 0x123456789ABCDEF0  # these bits show a half-written or torn store
_SECONDS: Final = 1.0  # how long a trial waits
_STORE, _WAIT, _CAPTURED = ("hipStreamWriteValue64", "hipStreamWaitValue64", "hipStreamIsCapturing")
_CLEAR: Final = "hipGetLastError"
_HIP_6: Final = 60_000_000
_MORE: Final = {"range": "MemGetAddressRange", "get": "GetDevice", "set": "SetDevice"}
_FD_BY_VALUE: Final = 70_100_000  # before release 7.1, an import takes the address of the file descriptor


@final
class Driver(LibraryDriver["Gpu"]):
    """Calls HIP's library. The library's functions return their results through their first arguments."""

    codes = CODES
    names: ClassVar[Mapping[int, str]] = {}  # the library knows the ordinals
    missing = Error.NotSupported
    not_ready = Error.NotReady
    exiting = Error.Deinitialized
    by_address = AllocationProp

    def __init__(self) -> None:
        super().__init__("HIP", "HIP_VISIBLE_DEVICES")
        self.version = self.lazy = 0
        self._name: Any = None
        self.native: _native.Driver
        self.relaxed: Scopes  # as CUDA's

    def _load(self) -> Any:
        """Load HIP's library. If this process has loaded one already, use that one, otherwise the first file name that
        can be loaded.
        """
        failures: list[str] = []
        for name in sorted(libraries(), key=lambda name: not library_loaded(name)):
            try:
                return ctypes.CDLL(name)
            except OSError as error:
                failures.append(str(error))
        raise FeatureNotSupportedError(f"starting HIP: {failures[0]}; {INSTALL}")

    def _start(self) -> list[Gpu]:
        doing, library = "starting HIP", self._load()
        for name, arguments in (n.FUNCTIONS | {_CLEAR: ()}).items():
            if (function := getattr(library, name, None)) is not None:
                function.argtypes = arguments
                self.functions[name] = function
        self._name = library.hipGetErrorName
        self._name.restype = ctypes.c_char_p
        self(doing, "hipInit", 0)
        self.version = self.made(doing, "hipRuntimeGetVersion")
        # hipIpcMemLazyEnablePeerAccess was 0 before release 6, and each release accepts only its own number.
        self.lazy = int(self.version >= _HIP_6)
        numbers = {"flags": self.lazy, "mode": n.RELAXED, "clear": self.address(_CLEAR)}
        self.native = native_driver("hip", self._required, self.error, {}, _MORE, **numbers)
        self.relaxed = Scopes(self.native)
        found = [Gpu(self, ordinal) for ordinal in range(self.made(doing, "hipGetDeviceCount"))]
        for gpu in found:  # some devices have no uuid of their own
            if sum(each.uuid == gpu.uuid for each in found) > 1 or not int(uuid.UUID(gpu.uuid)):
                gpu.uuid = str(uuid.uuid5(uuid.NAMESPACE_OID, f"xpushare/hip/{gpu.pci}"))
            gpu.origin = uuid.UUID(gpu.uuid).bytes
        return found

    def code(self, name: str, *arguments: Any) -> int:
        """Call the library and return its code. Clears the thread's last error after a failure, since other libraries
        read it after their own launches.
        """
        code = super().code(name, *arguments)
        if code not in (0, self.not_ready) and _CLEAR in self.functions and not self.ended:
            self.functions[_CLEAR]()
        return code

    def end(self) -> None:
        super().end()
        self.native.end()

    def _required(self, name: str) -> int:
        """Return the address of a function. Raise the error of its call if the library lacks the function."""
        if not (found := self.address(name)):
            raise self.error("starting HIP", name, self.missing)
        return found

    @cached_property
    def stream_functions(self) -> dict[str, int]:
        """The addresses of the functions that native code calls on streams."""
        return {name: self.address(name) for name in (f"hip{each}" for each in FUNCTIONS)}

    def asked(self, doing: str, name: str, *arguments: Any, into: T) -> T:
        """Make a call, and return the value that it writes to the address in its first argument."""
        self(doing, name, address_of(into), *arguments)
        return into

    def error(self, doing: str, call: str, code: int) -> XpuShareError:
        return CODES.error(doing, call, self._name(code).decode(), code)

    def pointer(self, attribute: Pointer, address: int) -> int | None:
        """Return an attribute of an address, or None if the driver does not know the address."""
        return self.native.ask(attribute, address)


@final
class Gpu(CountedMemory):
    """One device, with the hooks that the stream engine calls."""

    def __init__(self, driver: Driver, ordinal: int) -> None:
        super().__init__()
        self.driver = driver
        self.ordinal = ordinal
        doing, raw = f"asking GPU {ordinal}", ctypes.create_string_buffer(256)
        driver(doing, "hipDeviceGetUuid", address_of(raw), ordinal)
        self.uuid = str(uuid.UUID(bytes=raw.raw[:16]))
        self.origin = b""  # the device's uuid, once it is known to be unique
        self.current = Scopes(driver.native, ordinal)
        driver(doing, "hipDeviceGetPCIBusId", address_of(raw), 64, ordinal)
        self.pci = raw.value.decode(errors="replace").lower()
        driver(doing, "hipDeviceGetName", address_of(raw), 256, ordinal)
        self.name = raw.value.decode(errors="replace")
        self.codes = CODES
        self.form = Form.DMA_BUF
        self.one_access = False  # AMD's documentation does not promise it
        self.error = driver.error
        self._page = RegisteredPage()  # for `drain`
        self._stuck: ExitStack | None = None  # the objects of a trial that has not finished

    def __str__(self) -> str:
        return f"HIP device {self.ordinal}"

    def listed(self) -> tuple[str, str, int, str]:
        """Return the name, uuid, driver version and PCI address of the device, for the list of devices."""
        return self.name, self.uuid, self.driver.version, self.pci

    def attribute(self, attribute: Attribute) -> int:
        """Return an attribute of the device, or 0 if the driver does not know it."""
        out = ctypes.c_int()
        code = self.driver.code("hipDeviceGetAttribute", address_of(out), attribute, self.ordinal)
        return 0 if code else out.value

    def active(self) -> bool:
        return True  # the library starts all devices at once

    @cached_property
    def lacks_virtual_memory(self) -> str:
        """The feature that is missing for creating, exporting and mapping memory, or "" if none is. Determined by
        exporting one test allocation.
        """
        if not self.attribute(Attribute.VirtualMemoryManagementSupported):
            return "hipDeviceAttributeVirtualMemoryManagementSupported"
        doing = f"trying memory with file descriptors on {self}"
        try:
            with self.current(), ExitStack() as undo:
                pages = self.create(doing, self._granularity(False), True)
                undo.callback(quietly, self.release, doing, pages)
                os.close(self.export_fd(doing, pages))
        except XpuShareError as error:
            return str(error)
        return ""

    def lacking(self, feature: Feature) -> str:
        if feature == "read-only host registration":
            return "a way to use read-only pages of the host (HIP takes hipHostRegisterReadOnly, and ignores it)"
        return ""

    @cached_property
    def queue_calls(self) -> QueueCalls:
        """The calls that native code makes on streams of this device. All streams share this object."""
        address, functions, (stores, waits, _) = self.driver.address, self.driver.stream_functions, self.words
        newer = address("hipLaunchHostFunc")
        host = "hipLaunchHostFunc" if newer else "hipStreamAddCallback"
        make: Any = _native.QueueCalls
        native = make(
            (address(host), ("queue", "function", "data", *(() if newer else (0,)))),
            (address(_STORE), ("queue", "address", "point", 0)) if stores else None,
            (address(_WAIT), ("queue", "address", "point", n.AT_LEAST, n.ALL_BITS)) if waits else None,
            (address(_CAPTURED), ("queue", "status_out")),
            host_data=0 if newer else 2,
            relay=(
                (address("hipThreadExchangeStreamCaptureMode"), (("int_at", n.RELAXED),)),
                (address("hipSetDevice"), (self.ordinal,)),
            ),
            **copy_and_fills(functions, "hip", n.COPY_DEFAULT),
        )
        others = {at: name for name, at in functions.items()}
        return QueueCalls(native, host, _STORE, _WAIT, _CAPTURED, others)

    def new_stream(self, doing: str) -> int:
        return self.driver.made(doing, "hipStreamCreateWithFlags", n.NON_BLOCKING)

    @cached_property
    def words(self) -> tuple[bool, bool, str]:
        """Whether streams can store words in registered host pages, whether they can wait for such words, and the
        reason if not. Determined by trying both on a test stream.
        """
        try:
            with self.current(), ExitStack() as undo:
                return self._try_words(undo)
        except (XpuShareError, OSError) as error:
            return False, False, str(error)

    def _try_words(self, undo: ExitStack) -> tuple[bool, bool, str]:
        doing, driver = f"trying words on {self}", self.driver
        page = page_of_memfd()
        self.reach(doing, page.address, page.nbytes)
        undo.callback(unreach, self, doing, page)
        at = self.reached(doing, page.address)
        word = ctypes.c_uint64.from_address(page.address)
        stream = self.new_stream(doing)
        undo.callback(driver.code, "hipStreamDestroy", stream)

        def fails(name: str, *arguments: int) -> str:
            """Make a call on the test stream. Return "" if the call succeeded, otherwise why it was refused or did not
            finish. If the call did not finish, the objects that it uses are never released.
            """
            code = driver.code(name, stream, *arguments)
            if code:
                return str(driver.error(doing, name, code))
            word.value = max(word.value, 3)  # the device must see a store that the host makes during the wait
            end = time.monotonic() + _SECONDS
            while not driver.ready(doing, "hipStreamQuery", stream):
                if time.monotonic() > end:
                    self._stuck = undo.pop_all()
                    return f"{doing}: {name} does not end"
            return ""

        why = fails(_STORE, at, _TRIED, 0)
        if why or word.value != _TRIED:
            return (False, False, why or f"{doing}: {_STORE} wrote {word.value:#x}, not {_TRIED:#x}")
        word.value = 2
        why = fails(_WAIT, at, 3, n.AT_LEAST, n.ALL_BITS)
        if why and self._stuck is None:
            with suppress(XpuShareError):
                own = driver.made(doing, "hipExtMallocWithFlags", 8, n.SIGNAL_MEMORY)
                undo.callback(driver.code, "hipFree", own)
                if not fails(_WAIT, own, 0, n.AT_LEAST, n.ALL_BITS):
                    why += "; it works on signal memory, which is private to a process"
        return True, not why, why

    def reach(self, doing: str, address: int, nbytes: int, read_only: bool = False) -> None:
        self.driver(doing, "hipHostRegister", address, nbytes, n.PORTABLE | n.MAPPED)

    def reached(self, doing: str, address: int) -> int:
        return self.driver.made(doing, "hipHostGetDevicePointer", address, 0)

    def unreach(self, doing: str, address: int) -> None:
        self.driver(doing, "hipHostUnregister", address)

    def drain(self) -> None:
        doing = f"waiting for the work on {self}"
        with self.current():
            reach, unreach = functools.partial(self.reach, doing), functools.partial(self.unreach, doing)
            self._page.renew(reach, unreach)

    def _granularity(self, recommended: bool) -> int:
        doing, call = "asking for the granularity", "hipMemGetAllocationGranularity"
        prop = AllocationProp(n.PINNED, n.POSIX_FD, n.ON_DEVICE, self.ordinal)
        return self.driver.made(doing, call, prop, int(recommended))

    def granularity(self, recommended: bool) -> int:
        return mmap.PAGESIZE if self.lacks_virtual_memory else self._granularity(recommended)

    def reaches(self, location: int) -> bool:
        call = "asking for peer access", "hipDeviceCanAccessPeer", self.ordinal, location
        return location == self.ordinal or bool(self.driver.made(*call))

    def create(self, doing: str, nbytes: int, shareable: bool) -> Pages:
        if not self.attribute(Attribute.VirtualMemoryManagementSupported):
            raise FeatureNotSupportedError(f"{doing}: {self} lacks {self.lacks_virtual_memory}")
        prop = AllocationProp(n.PINNED, n.POSIX_FD if shareable else 0, n.ON_DEVICE, self.ordinal)
        return Pages(self, self.driver.made(doing, "hipMemCreate", nbytes, prop, 0), nbytes, DriverFds())

    def destroy_pages(self, doing: str, pages: Pages) -> None:
        self.driver(doing, "hipMemRelease", pages.handle)

    def export_fd(self, doing: str, handle: Pages) -> int:
        fd = self.driver.made(doing, "hipMemExportToShareableHandle", handle.handle, n.POSIX_FD, 0)
        os.set_inheritable(fd, False)
        return fd

    def export_on_demand(self, handles: Sequence[Pages]) -> OnDemand:
        raise FeatureNotSupportedError("HIP cannot report which allocations lie behind another library's mapping")

    def import_fd(self, doing: str, fd: int, origin: bytes) -> Pages:
        owner = find_origin(self, self.driver.by_uuid, doing, origin)
        try:
            nbytes = max(os.lseek(fd, 0, os.SEEK_END), 0)
        except OSError:
            nbytes = 0  # the file does not have a size
        with owner.current():
            return owner.import_pages(doing, nbytes, fd)

    def import_pages(self, doing: str, nbytes: int, fd: int) -> Pages:
        given = ctypes.c_int(fd)
        what = fd if self.driver.version >= _FD_BY_VALUE else address_of(given)
        try:
            handle = self.driver.made(doing, "hipMemImportFromShareableHandle", what, n.POSIX_FD)
        except DeviceError as error:
            raise InvalidHandleError(f"{error}: the exporter's file descriptor may not be HIP memory") from error
        return Pages(self, handle, nbytes, DriverFds())

    def map(self, doing: str, address: int, nbytes: int, handle: Pages) -> None:
        if handle.nbytes > nbytes or not handle.nbytes:  # the file has whole kernel pages, or no size
            handle.nbytes = nbytes
        super().map(doing, address, nbytes, handle)

    def map_pages(self, doing: str, address: int, pages: Pages) -> bool:
        self.driver(doing, "hipMemMap", address, pages.nbytes, 0, pages.handle, 0)
        return True

    def unmap_pages(self, doing: str, address: int, nbytes: int) -> None:
        self.driver(doing, "hipMemUnmap", address, nbytes)

    def reserve(self, doing: str, nbytes: int, address: int) -> int:
        return self.driver.made(doing, "hipMemAddressReserve", nbytes, 0, address, 0)

    def free(self, doing: str, address: int, nbytes: int) -> None:
        self.driver(doing, "hipMemAddressFree", address, nbytes)

    def set_access(self, doing: str, address: int, nbytes: int, ordinals: Sequence[int], access: Access) -> None:
        found = (AccessDesc * len(ordinals))(*(AccessDesc(n.ON_DEVICE, each, n.ACCESS[access]) for each in ordinals))
        self.driver(doing, "hipMemSetAccess", address, nbytes, address_of(found), len(ordinals))
