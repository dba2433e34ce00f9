"""HIP's library in this process, loaded when it is first needed; its errors, and its devices."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from ctypes import c_int
from functools import cached_property
from types import TracebackType
from typing import Any, ClassVar, Final, NamedTuple, final

from xpushare import _native
from xpushare._errors import DeviceError, FeatureNotSupportedError, InvalidHandleError, XpuShareError
from xpushare.adapters.base import Access, Form, OnDemand
from xpushare.adapters.hip import _numbers as n
from xpushare.adapters.hip._numbers import ACCESS, CONSTANTS, AccessDesc, AllocationProp, Attribute, Error, Pointer
from xpushare.adapters.hip._protocols import INSTALL, LIBRARIES
from xpushare.adapters.host.memory import page_of_memfd
from xpushare.adapters.stream.background import quietly
from xpushare.adapters.stream.hooks import Codes, Feature, QueueCalls
from xpushare.adapters.stream.library import LibraryDriver, address_of
from xpushare.adapters.stream.slot_pages import unreach
from xpushare.adapters.vendor import library_loaded
from xpushare.adapters.virtual_memory.counted import CountedMemory, Pages
from xpushare.adapters.virtual_memory.fds import DriverFds
from xpushare.adapters.virtual_memory.peer_access import find_origin

__all__ = ["CODES", "Driver", "Gpu"]

_NONE: Final = (
    "there is no AMD GPU that this process may use: rocminfo shows them, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES "
    "hide them, and /dev/kfd and /dev/dri/renderD* belong to the groups render and video"
)
CODES: Final = Codes(
    out_of_memory=frozenset({Error.OutOfMemory}),
    unsupported=frozenset({Error.NotSupported}),
    fatal=frozenset(
        {
            Error.ECCNotCorrectable,
            Error.IllegalAddress,
            Error.LaunchTimeOut,
            Error.ContextIsDestroyed,
            Error.Assert,
            Error.LaunchFailure,
        }
    ),
    captured=frozenset(range(Error.StreamCaptureUnsupported, Error.StreamCaptureWrongThread + 1)),
    wrong_size=frozenset({Error.InvalidValue, Error.NotSupported, Error.OutOfMemory}),
    advice={
        Error.OutOfMemory: "free memory of the device, or ask for less",
        Error.Deinitialized: "this process is exiting",
        Error.NoDevice: _NONE,
        Error.InvalidDevice: _NONE,  # the answer without a device, too
        Error.HostMemoryAlreadyRegistered: "another library of this process has registered these pages",
        Error.IllegalAddress: "earlier work on this device failed: end this process",
        Error.LaunchFailure: "earlier work on this device failed: end this process",
    },
)
_TRIED: Final = 0x123456789ABCDEF0  # shows a half or a torn store
_SECONDS: Final = 1.0  # for which a trial waits
_STORE, _WAIT, _CAPTURED = "hipStreamWriteValue64", "hipStreamWaitValue64", "hipStreamIsCapturing"
_ALL_BITS: Final = 0xFFFFFFFFFFFFFFFF
_OTHERS: Final = (
    "hipMemcpyAsync",
    "hipMemsetD8Async",
    "hipMemsetD16Async",
    "hipMemsetD32Async",
    "hipEventRecord",
    "hipStreamWaitEvent",
)


@final
class Driver(LibraryDriver["Gpu"]):
    """Calls the library. Its functions return what they make by their first arguments."""

    codes = CODES
    names: ClassVar[Mapping[int, str]] = {}  # the library knows them
    missing = Error.NotSupported
    not_ready = Error.NotReady
    exiting = Error.Deinitialized
    by_address = ctypes.Structure

    def __init__(self) -> None:
        super().__init__("HIP", "HIP_VISIBLE_DEVICES")
        self.version = 0
        self._name: Any = None

    def _load(self) -> Any:
        """The library that somebody here has loaded, else the first that there is."""
        failures: list[str] = []
        for name in sorted(LIBRARIES, key=lambda name: not library_loaded(name)):
            try:
                return ctypes.CDLL(name)
            except OSError as error:
                failures.append(str(error))
        raise FeatureNotSupportedError(f"starting HIP: {failures[0]}; {INSTALL}")

    def _start(self) -> list[Gpu]:
        doing, library = "starting HIP", self._load()
        for name, arguments in n.FUNCTIONS.items():
            function = getattr(library, name, None)
            if function is not None:
                function.argtypes, function.restype = arguments, c_int
                self.functions[name] = function
        library.hipGetErrorName.restype = ctypes.c_char_p
        self._name = library.hipGetErrorName
        self(doing, "hipInit", 0)
        self.version = self.first(doing, "hipRuntimeGetVersion")
        found = [Gpu(self, ordinal) for ordinal in range(self.first(doing, "hipGetDeviceCount"))]
        for gpu in found:  # some have no number of their own
            if sum(each.uuid == gpu.uuid for each in found) > 1 or not int(uuid.UUID(gpu.uuid)):
                gpu.uuid = str(uuid.uuid5(uuid.NAMESPACE_OID, f"xpushare/hip/{gpu.pci}"))
            gpu.origin = uuid.UUID(gpu.uuid).bytes
        return found

    def first(self, doing: str, name: str, *arguments: Any, into: Any = None) -> int:
        """The number or the address that a call writes to where its first argument points."""
        out = c_int() if into is None else into
        self(doing, name, address_of(out), *arguments)
        if self.ended:
            raise self.error(doing, name, self.exiting)
        return out.value or 0

    def address_from(self, doing: str, name: str, *arguments: Any) -> int:
        return self.first(doing, name, *arguments, into=ctypes.c_void_p())

    def error(self, doing: str, call: str, code: int) -> XpuShareError:
        name = self._name(code)
        return CODES.error(doing, call, name.decode() if name else "an error that the library does not know", code)

    def pointer(self, attribute: Pointer, address: int) -> int | None:
        """An attribute of an address; None if the driver knows none. It writes one, four or eight bytes."""
        out = ctypes.c_uint64()
        return None if self.code("hipPointerGetAttribute", address_of(out), attribute, address) else out.value

    def relaxed(self) -> _Scope:
        return _Scope(self, None)


class _Scope:
    """Leaves captures of all threads alone, and makes a device current; afterwards all is as before."""

    __slots__ = ("_before", "_driver", "_mode", "_ordinal")

    def __init__(self, driver: Driver, ordinal: int | None) -> None:
        self._driver = driver
        self._ordinal = ordinal
        self._mode = c_int(CONSTANTS["hipStreamCaptureModeRelaxed"])

    def __enter__(self) -> None:
        driver, ordinal = self._driver, self._ordinal
        driver("leaving captures alone", "hipThreadExchangeStreamCaptureMode", address_of(self._mode))
        self._before = ordinal
        if ordinal is not None:
            try:
                self._before = driver.first("making a device current", "hipGetDevice")
                if self._before != ordinal:
                    driver("making a device current", "hipSetDevice", ordinal)
            except BaseException:
                driver.code("hipThreadExchangeStreamCaptureMode", address_of(self._mode))
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before != self._ordinal:
            self._driver.code("hipSetDevice", self._before)
        self._driver.code("hipThreadExchangeStreamCaptureMode", address_of(self._mode))


class _Words(NamedTuple):
    """What streams of a device do with words in registered pages of the host, as it was tried."""

    stores: bool
    waits: bool
    why: str  # what they do not do


@final
class Gpu(CountedMemory):
    """One device, and the engine's hooks for it."""

    def __init__(self, driver: Driver, ordinal: int) -> None:
        super().__init__()
        self.driver = driver
        self.ordinal = ordinal
        doing, raw = f"asking GPU {ordinal}", ctypes.create_string_buffer(256)
        driver(doing, "hipDeviceGetUuid", address_of(raw), ordinal)
        self.uuid = str(uuid.UUID(bytes=raw.raw[:16]))
        driver(doing, "hipDeviceGetPCIBusId", address_of(raw), 64, ordinal)
        self.pci = raw.value.decode(errors="replace").lower()
        driver(doing, "hipDeviceGetName", address_of(raw), 256, ordinal)
        self.name = raw.value.decode(errors="replace")
        self.codes = CODES
        self.form = Form.DMA_BUF
        self.origin = b""  # its uuid
        self.error = driver.error
        self._lock = threading.RLock()
        self._words: _Words | None = None
        self._calls: QueueCalls | None = None
        self._page: Any = None  # registered, for `drain`
        self._idle = 0  # a stream
        self._stuck: ExitStack | None = None  # what a trial uses that has not come to its end

    def __str__(self) -> str:
        return f"HIP device {self.ordinal}"

    def listed(self) -> tuple[str, str, str, str]:
        """What a listing says: uuid, name, the library's version, and the address on the PCI bus."""
        major, rest = divmod(self.driver.version, 10_000_000)
        return self.uuid, self.name, f"{major}.{rest // 100_000}.{rest % 100_000}", self.pci

    def attribute(self, attribute: Attribute) -> int:
        """What the driver says; 0 of what it does not know."""
        out = c_int()
        code = self.driver.code("hipDeviceGetAttribute", address_of(out), attribute, self.ordinal)
        return 0 if code else out.value

    def current(self) -> _Scope:
        return _Scope(self.driver, self.ordinal)

    def active(self) -> bool:
        return True  # the library starts all devices at once

    @cached_property
    def lacks_virtual_memory(self) -> str:
        """What the driver lacks of memory that is created, exported and mapped; also tried."""
        if not self.attribute(Attribute.VirtualMemoryManagementSupported):
            return "hipDeviceAttributeVirtualMemoryManagementSupported"
        doing = f"trying memory with file descriptors on {self}"
        try:
            with self.current():
                pages = self.create(doing, self._granularity(False), True)
                try:
                    os.close(self.export_fd(doing, pages))
                finally:
                    quietly(self.release, doing, pages)
        except XpuShareError as error:
            return f"memory with file descriptors: {error}"
        return ""

    def lacking(self, feature: Feature) -> str:
        if feature == "read-only host registration":
            return "a way to use read-only pages of the host (HIP takes hipHostRegisterReadOnly, and ignores it)"
        return ""

    def queue_calls(self) -> QueueCalls:
        """What native code calls on the streams here, one for all of them."""
        address = self.driver.address
        with self._lock:
            if self._calls is None:
                words, host = self.words(), "hipLaunchHostFunc"
                function: tuple[int, tuple[int | str, ...]] = (address(host), ("queue", "function", "data"))
                if not function[0]:
                    host = "hipStreamAddCallback"
                    function = (address(host), ("queue", "function", "data", 0))
                make: Any = _native.QueueCalls
                native = make(
                    function,
                    (address(_STORE), ("queue", "address", "point", 0)) if words.stores else None,
                    (address(_WAIT), ("queue", "address", "point", CONSTANTS["hipStreamWaitValueGte"], _ALL_BITS))
                    if words.waits
                    else None,
                    (address(_CAPTURED), ("queue", "status_out")),
                    host_data=0 if host == "hipLaunchHostFunc" else 2,
                    relay=(
                        (address("hipThreadExchangeStreamCaptureMode"), ("mode",)),
                        (address("hipSetDevice"), (self.ordinal,)),
                    ),
                )
                others = {address(name): name for name in _OTHERS}
                self._calls = QueueCalls(native, host, _STORE, _WAIT, _CAPTURED, others)
            return self._calls

    def new_stream(self, doing: str) -> int:
        return self.driver.address_from(doing, "hipStreamCreateWithFlags", CONSTANTS["hipStreamNonBlocking"])

    def check(self, doing: str) -> None:
        """Raise what broke the device: a query of any stream answers it, so of an idle one of ours. With it current."""
        with self._lock:
            self._idle = self._idle or self.new_stream(doing)
        self.driver.ready(doing, "hipStreamQuery", self._idle)

    # --- words ---------------------------------------------------------------------------------------------

    def words(self) -> _Words:
        """Tried once."""
        with self._lock:
            if self._words is None:
                try:
                    with self.current(), ExitStack() as undo:
                        self._words = self._try_words(undo)
                except (XpuShareError, OSError) as error:
                    self._words = _Words(False, False, str(error))
            return self._words

    def _try_words(self, undo: ExitStack) -> _Words:
        doing, driver = f"trying words on {self}", self.driver
        page = page_of_memfd()
        self.reach(doing, page.address, page.nbytes, False)
        undo.callback(unreach, self, doing, page)
        at = self.reached(doing, page.address)
        word = ctypes.c_uint64.from_address(page.address)
        stream = self.new_stream(doing)
        undo.callback(driver.code, "hipStreamDestroy", stream)

        def passes() -> bool:
            """Whether the stream comes to its end. One that does not is left alone: its page must stay, too."""
            end = time.monotonic() + _SECONDS
            while not driver.ready(doing, "hipStreamQuery", stream):
                if time.monotonic() > end:
                    self._stuck = undo.pop_all()
                    return False
            return True

        def refused(name: str, *arguments: int) -> str:
            code = driver.code(name, stream, *arguments)
            return str(driver.error(doing, name, code)) if code else ""

        why = refused(_STORE, at, _TRIED, 0)
        if why or not passes() or word.value != _TRIED:
            return _Words(False, False, why or f"{_STORE} wrote {word.value:#x}, not {_TRIED:#x}")
        word.value = 2
        why = refused(_WAIT, at, 3, CONSTANTS["hipStreamWaitValueGte"], _ALL_BITS)
        word.value = 3  # the device must notice what the host stores while it waits
        if not why:
            why = "" if passes() else f"{_WAIT} did not see the host's store"
        else:  # HIP promises waits on its own signal memory, which no other process can have
            own, flag = ctypes.c_void_p(), CONSTANTS["hipMallocSignalMemory"]
            if not driver.code("hipExtMallocWithFlags", address_of(own), 8, flag):
                undo.callback(driver.code, "hipFree", own.value)
                if not refused(_WAIT, own.value or 0, 0, CONSTANTS["hipStreamWaitValueGte"], _ALL_BITS) and passes():
                    why += "; it works on signal memory, which is private to a process"
        return _Words(True, not why, why)

    def reach(self, doing: str, address: int, nbytes: int, read_only: bool) -> None:
        flags = CONSTANTS["hipHostRegisterPortable"] | CONSTANTS["hipHostRegisterMapped"]
        self.driver(doing, "hipHostRegister", address, nbytes, flags)

    def reached(self, doing: str, address: int) -> int:
        return self.driver.address_from(doing, "hipHostGetDevicePointer", address, 0)

    def unreach(self, doing: str, address: int) -> None:
        self.driver(doing, "hipHostUnregister", address)

    def drain(self) -> None:
        """hipDeviceSynchronize ends captures, whatever this thread's mode. hipHostUnregister waits for all streams of
        the device that was current at the registration, and leaves captures alone (both by AMD's source). So this
        unregisters a page of ours, and registers it again.
        """
        doing = f"waiting for the work on {self}"
        with self.current():
            page, self._page = self._page, None
            if page is None:
                page = page_of_memfd()
                self.reach(doing, page.address, page.nbytes, False)
            self.unreach(doing, page.address)
            self.reach(doing, page.address, page.nbytes, False)
            self._page = page

    # --- memory --------------------------------------------------------------------------------------------

    def _prop(self, shareable: bool) -> AllocationProp:
        kind = CONSTANTS["hipMemHandleTypePosixFileDescriptor"] if shareable else 0
        return AllocationProp(CONSTANTS["hipMemAllocationTypePinned"], kind, *self._location(self.ordinal))

    @staticmethod
    def _location(ordinal: int) -> tuple[int, int]:
        return CONSTANTS["hipMemLocationTypeDevice"], ordinal

    def _granularity(self, recommended: bool) -> int:
        return self.driver.first(
            "asking for the granularity",
            "hipMemGetAllocationGranularity",
            self._prop(True),
            int(recommended),
            into=ctypes.c_size_t(),
        )

    def granularity(self, recommended: bool) -> int:
        return mmap.PAGESIZE if self.lacks_virtual_memory else self._granularity(recommended)

    def reaches(self, location: int) -> bool:
        doing = "asking for peer access"
        return location == self.ordinal or bool(
            self.driver.first(doing, "hipDeviceCanAccessPeer", self.ordinal, location)
        )

    def create(self, doing: str, nbytes: int, shareable: bool) -> Pages:
        if not self.attribute(Attribute.VirtualMemoryManagementSupported):
            raise FeatureNotSupportedError(f"{doing}: {self} lacks {self.lacks_virtual_memory}")
        handle = self.driver.address_from(doing, "hipMemCreate", nbytes, self._prop(shareable), 0)
        return Pages(self, handle, nbytes, DriverFds())

    def destroy_pages(self, doing: str, pages: Pages) -> None:
        self.driver(doing, "hipMemRelease", pages.handle)

    def export_fd(self, doing: str, handle: Pages) -> int:
        kind = CONSTANTS["hipMemHandleTypePosixFileDescriptor"]
        fd = self.driver.first(doing, "hipMemExportToShareableHandle", handle.handle, kind, 0)
        os.set_inheritable(fd, False)
        return fd

    def export_on_demand(self, handles: Sequence[Pages]) -> OnDemand:
        raise FeatureNotSupportedError("HIP does not say which allocations lie behind another library's mapping")

    def import_fd(self, doing: str, fd: int, origin: bytes) -> Pages:
        owner = find_origin(self, self.driver.by_uuid, doing, origin)
        try:
            nbytes = max(os.lseek(fd, 0, os.SEEK_END), 0)
        except OSError:
            nbytes = 0  # such a file does not say it
        with owner.current():
            return owner.import_pages(doing, nbytes, fd)

    def import_pages(self, doing: str, nbytes: int, fd: int) -> Pages:
        kind = CONSTANTS["hipMemHandleTypePosixFileDescriptor"]
        try:
            handle = self.driver.address_from(doing, "hipMemImportFromShareableHandle", fd, kind)
        except DeviceError as error:
            raise InvalidHandleError(f"{error}: the exporter's file descriptor may be no memory of HIP's") from error
        return Pages(self, handle, nbytes, DriverFds())

    def map(self, doing: str, address: int, nbytes: int, handle: Pages) -> None:
        if handle.nbytes > nbytes or not handle.nbytes:  # files have whole pages of the kernel's, or do not say it
            handle.nbytes = nbytes
        super().map(doing, address, nbytes, handle)

    def map_pages(self, doing: str, address: int, pages: Pages) -> bool:
        self.driver(doing, "hipMemMap", address, pages.nbytes, 0, pages.handle, 0)
        return True

    def unmap_pages(self, doing: str, address: int, nbytes: int) -> None:
        self.driver(doing, "hipMemUnmap", address, nbytes)

    def reserve(self, doing: str, nbytes: int, address: int) -> int:
        return self.driver.address_from(doing, "hipMemAddressReserve", nbytes, 0, address, 0)

    def free(self, doing: str, address: int, nbytes: int) -> None:
        self.driver(doing, "hipMemAddressFree", address, nbytes)

    def set_access(self, doing: str, address: int, nbytes: int, ordinals: Sequence[int], access: Access) -> None:
        found = (AccessDesc * len(ordinals))(*(AccessDesc(*self._location(each), ACCESS[access]) for each in ordinals))
        self.driver(doing, "hipMemSetAccess", address, nbytes, address_of(found), len(ordinals))
