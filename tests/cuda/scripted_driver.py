"""A stand-in for `cuda.bindings.driver`: the subset that the adapter uses, with the driver's rules, over host memory.

It records every call, can fail any of them, and knows what was acquired and not given back (`left`). Two devices,
peers of each other. Work on streams runs at once, except behind a wait for a value (`settle` looks again).
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections import defaultdict
from typing import Any

MIB2 = 1 << 21
WORD_OPERATION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint)
HOST_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p)
COPY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
SETS = {bits: ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, kind, ctypes.c_uint64, ctypes.c_uint64)
        for bits, kind in ((8, ctypes.c_uint8), (16, ctypes.c_uint16), (32, ctypes.c_uint32))}  # fmt: skip
ON_EVENT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)
WAIT_EVENT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint)
EXCHANGE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
PUSH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)
POP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64))
SET_CURRENT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)
IPC_HANDLE = type("IpcHandle", (ctypes.Structure,), {"_fields_": [("raw", ctypes.c_char * 64)]})
OPEN_HANDLE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), IPC_HANDLE, ctypes.c_uint)
POINTER_ATTRIBUTE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_int, ctypes.c_uint64)
POINTER_ATTRIBUTES = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)),
    ctypes.c_uint64,
)  # fmt: skip
NAME_HANDLE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(IPC_HANDLE), ctypes.c_uint64)
LOCATION = type("Location", (ctypes.Structure,), {"_fields_": [("type", ctypes.c_int), ("id", ctypes.c_int)]})
PROPERTIES = type("Properties", (ctypes.Structure,), {"_fields_": [
    ("type", ctypes.c_int), ("requestedHandleTypes", ctypes.c_int), ("location", LOCATION), ("win32", ctypes.c_void_p),
    ("flags", ctypes.c_ubyte * 8),
]})  # fmt: skip
ACCESS = type("Access", (ctypes.Structure,), {"_fields_": [("location", LOCATION), ("flags", ctypes.c_int)]})
OUT, SIZE, NUMBER = ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t, ctypes.c_uint64
CREATE = ctypes.CFUNCTYPE(ctypes.c_int, OUT, SIZE, ctypes.POINTER(PROPERTIES), NUMBER)
RESERVE = ctypes.CFUNCTYPE(ctypes.c_int, OUT, SIZE, SIZE, NUMBER, NUMBER)
MAP = ctypes.CFUNCTYPE(ctypes.c_int, NUMBER, SIZE, SIZE, NUMBER, NUMBER)
PIECE = ctypes.CFUNCTYPE(ctypes.c_int, NUMBER, SIZE)
SET_ACCESS = ctypes.CFUNCTYPE(ctypes.c_int, NUMBER, SIZE, ctypes.POINTER(ACCESS), SIZE)
REGISTER = ctypes.CFUNCTYPE(ctypes.c_int, NUMBER, SIZE, ctypes.c_uint)
STREAM_QUERY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_int))


class Struct:
    """An opaque structure, or one with fields."""

    def __init__(self, raw: bytes = bytes(64)) -> None:
        self._buffer = ctypes.create_string_buffer(raw, max(len(raw), 64))

    def getPtr(self) -> int:
        return ctypes.addressof(self._buffer)

    @property
    def raw(self) -> bytes:
        return self._buffer.raw[:64]


class Fields:
    def __init__(self) -> None:
        self.location = type("Location", (), {"type": 0, "id": -1})()
        self.requestedHandleTypes = 0
        self.type = 0
        self.flags = 0


class Description(Fields):
    """Of an external resource, or of a piece of it."""

    def __init__(self) -> None:
        super().__init__()
        self.handle = type("Handle", (), {"fd": -1})()
        self.size = self.offset = 0


class Range:
    """Something mapped: what the pointer attributes tell."""

    def __init__(
        self, start: int, nbytes: int, device: int, reserved: tuple[int, int] | None = None, **facts: int
    ) -> None:
        self.start, self.nbytes, self.device, self.facts = start, nbytes, device, facts
        self.reserved = reserved or (start, nbytes)


class Allocation(PROPERTIES):  # type: ignore[misc, valid-type]
    def getPtr(self) -> int:
        return ctypes.addressof(self)


class ScriptedDriver:
    CUmemAllocationProp = Allocation
    CUmemAccessDesc = Fields
    CUipcMemHandle = CUmemPoolPtrExportData = Struct
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC = CUDA_EXTERNAL_MEMORY_BUFFER_DESC = Description

    def __init__(self, devices: int = 2) -> None:
        self.devices = devices
        self.calls: list[str] = []
        self.mine: list[str] = []  # those of the thread that made this
        self.thread = threading.get_ident()
        self.fail: dict[int, int] = {}  # index in `mine` -> code
        self.fail_named: dict[str, int] = {}
        self.sticky = 0
        self.lock = threading.RLock()
        self.numbers = itertools.count(0x1000)
        self.addresses = itertools.count(0x7F00_0000_0000, 1 << 32)
        self.live: dict[str, set[int]] = defaultdict(set)  # kind of resource -> what is not given back
        self.stacks: dict[int, list[int]] = defaultdict(list)
        self.modes: dict[int, int] = defaultdict(int)
        self.contexts: dict[int, int] = {}
        self.attributes: dict[int, int] = defaultdict(lambda: 1)
        self.sizes: dict[int, int] = {}
        self.pieces: dict[int, tuple[int, int]] = {}  # address -> (bytes, handle)
        self.references: dict[int, int] = defaultdict(int)
        self.homes: dict[int, int] = {}
        self.types: dict[int, int] = {}  # of handles that an allocation has
        self.access: dict[int, dict[int, int]] = defaultdict(dict)
        self.foreign: list[Range] = []
        self.files: dict[tuple[int, int], int] = {}  # (device, inode) of an exported fd -> handle
        self.capturing: set[int] = set()
        self.stuck: dict[int, list[Any]] = defaultdict(list)
        self.writes: list[tuple[int, int]] = []
        self.functions_run = 0
        self.relays: set[int] = set()  # threads whose capture mode and context native code has set
        self.unsafe: list[str] = []  # calls that would have ended somebody's capture
        self.functions = {  # as C sees them
            b"cuStreamWriteValue64": WORD_OPERATION(lambda *given: self.cuStreamWriteValue64(*given)[0]),
            b"cuStreamWaitValue64": WORD_OPERATION(lambda *given: self.cuStreamWaitValue64(*given)[0]),
            b"cuLaunchHostFunc": HOST_FUNCTION(lambda *given: self.cuLaunchHostFunc(*given)[0]),
            b"cuStreamIsCapturing": STREAM_QUERY(self._is_capturing),
            b"cuMemcpyAsync": COPY(lambda *given: self.cuMemcpyAsync(*given)[0]),
            b"cuMemsetD8Async": SETS[8](lambda *given: self.cuMemsetD8Async(*given)[0]),
            b"cuMemsetD16Async": SETS[16](lambda *given: self.cuMemsetD16Async(*given)[0]),
            b"cuMemsetD32Async": SETS[32](lambda *given: self.cuMemsetD32Async(*given)[0]),
            b"cuEventRecord": ON_EVENT(lambda *given: self.cuEventRecord(*given)[0]),
            b"cuStreamWaitEvent": WAIT_EVENT(lambda *given: self.cuStreamWaitEvent(*given)[0]),
            b"cuThreadExchangeStreamCaptureMode": EXCHANGE(self._exchange),
            b"cuCtxSetCurrent": SET_CURRENT(self._set_current),
            b"cuCtxPushCurrent": PUSH(lambda context: self.cuCtxPushCurrent(context)[0]),
            b"cuCtxPopCurrent": POP(lambda at: self._answer(at, *self.cuCtxPopCurrent())),
            b"cuStreamQuery": PUSH(lambda stream: self.cuStreamQuery(stream)[0]),
            b"cuIpcCloseMemHandle": PUSH(lambda address: self.cuIpcCloseMemHandle(address)[0]),
            b"cuIpcOpenMemHandle": OPEN_HANDLE(
                lambda at, handle, flags: self._answer(at, *self.cuIpcOpenMemHandle(Struct(bytes(handle)), flags))
            ),
            b"cuPointerGetAttribute": POINTER_ATTRIBUTE(
                lambda at, *asked: self._answer(at, *self.cuPointerGetAttribute(*asked))
            ),
            b"cuPointerGetAttributes": POINTER_ATTRIBUTES(self._pointers),
            b"cuIpcGetMemHandle": NAME_HANDLE(self._name_handle),
            b"cuMemCreate": CREATE(
                lambda at, nbytes, what, flags: self._answer(at, *self.cuMemCreate(nbytes, what[0], flags))
            ),
            b"cuMemRelease": PUSH(lambda handle: self.cuMemRelease(handle)[0]),
            b"cuMemAddressReserve": RESERVE(lambda at, *given: self._answer(at, *self.cuMemAddressReserve(*given))),
            b"cuMemAddressFree": PIECE(lambda *given: self.cuMemAddressFree(*given)[0]),
            b"cuMemMap": MAP(lambda *given: self.cuMemMap(*given)[0]),
            b"cuMemUnmap": PIECE(lambda *given: self.cuMemUnmap(*given)[0]),
            b"cuMemSetAccess": SET_ACCESS(
                lambda at, nbytes, which, count: self.cuMemSetAccess(at, nbytes, which[:count], count)[0]
            ),
            b"cuMemHostRegister": REGISTER(lambda *given: self.cuMemHostRegister(*given)[0]),
            b"cuMemHostUnregister": PUSH(lambda address: self.cuMemHostUnregister(address)[0]),
        }

    def _exchange(self, mode: Any) -> int:
        return self._answer(mode, *self.cuThreadExchangeStreamCaptureMode(mode[0]))

    def _set_current(self, context: int) -> int:
        self.relays.add(threading.get_ident())
        self.stacks[threading.get_ident()][-1:] = [context]
        return 0

    def _answer(self, at: Any, code: int, value: int | None = None) -> int:
        if not code:
            at[0] = value
        return code

    def _pointers(self, count: int, attributes: Any, values: Any, address: int) -> int:
        code, found = self.cuPointerGetAttributes(count, attributes[:count], address)
        for place, value in zip(values[:count], found or (), strict=False):
            place[0] = value
        return int(code)

    def _name_handle(self, handle: Any, address: int) -> int:
        code, made = self.cuIpcGetMemHandle(address)
        if not code:
            handle[0] = IPC_HANDLE.from_buffer_copy(made.raw)
        return int(code)

    def _is_capturing(self, stream: int, status: Any) -> int:
        code, found = self.cuStreamIsCapturing(stream)
        if not code:
            status[0] = found
        return int(code)

    # numbers stand for themselves
    CUdevice_attribute = CUpointer_attribute = CUstreamCaptureMode = CUmemAllocationHandleType = staticmethod(int)
    CUmemAllocationType = CUmemLocationType = CUmemAccess_flags = CUmemAllocationGranularity_flags = staticmethod(int)
    CUresult = CUstream = CUmemoryPool = CUexternalMemoryHandleType = CUmemRangeHandleType = staticmethod(int)

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if not name.startswith("cu") or not callable(found):
            return found

        def call(*arguments: Any) -> tuple[Any, ...]:
            with self.lock:
                self.calls.append(name)
                code = self.fail_named.get(name, 0)
                if threading.get_ident() == self.thread:
                    code = self.fail.get(len(self.mine), code)
                    self.mine.append(name)
                if code:
                    return (code, None)
                if name in UNSAFE and self.modes[threading.get_ident()] != 2:
                    self.unsafe.append(name)
                if self.sticky and name in STICKY_CALLS:
                    return (self.sticky, None)
                return found(*arguments)

        return call

    def new(self, kind: str) -> int:
        number = next(self.numbers)
        self.live[kind].add(number)
        return number

    @property
    def left(self) -> dict[str, set[int]]:
        """What was acquired and not given back, but contexts, which stay, and streams that only the adapter knows."""
        return {kind: found for kind, found in self.live.items() if found and kind != "context"}

    @property
    def balanced(self) -> bool:
        ours = (self.stacks, self.modes)
        return not any(found for each in ours for thread, found in each.copy().items() if thread not in self.relays)

    # --- start, devices, contexts
    def cuInit(self, _flags: int) -> tuple[Any, ...]:
        return (0,)

    def cuGetErrorName(self, code: int) -> tuple[Any, ...]:
        return 0, {2: b"CUDA_ERROR_OUT_OF_MEMORY", 700: b"CUDA_ERROR_ILLEGAL_ADDRESS"}.get(code, b"CUDA_ERROR_SCRIPTED")

    def cuDeviceGetCount(self) -> tuple[Any, ...]:
        return 0, self.devices

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        return 0, ordinal

    def cuDeviceGetUuid(self, device: int) -> tuple[Any, ...]:
        return 0, Struct(bytes([device + 1] * 16))

    def cuDeviceGetName(self, _length: int, device: int) -> tuple[Any, ...]:
        return 0, f"Scripted {device}".encode() + bytes(8)

    def cuDeviceGetAttribute(self, attribute: int, _device: int) -> tuple[Any, ...]:
        return 0, self.attributes[attribute]

    def cuDeviceCanAccessPeer(self, _device: int, _other: int) -> tuple[Any, ...]:
        return 0, 1

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        if device not in self.contexts:
            self.contexts[device] = self.new("context")
        return 0, self.contexts[device]

    def cuDevicePrimaryCtxGetState(self, device: int) -> tuple[Any, ...]:
        return 0, 0, int(device in self.contexts)

    def cuCtxPushCurrent(self, context: int) -> tuple[Any, ...]:
        self.stacks[threading.get_ident()].append(context)
        return (0,)

    def cuCtxPopCurrent(self) -> tuple[Any, ...]:
        return 0, self.stacks[threading.get_ident()].pop()

    def cuCtxGetCurrent(self) -> tuple[Any, ...]:
        stack = self.stacks[threading.get_ident()]
        return 0, stack[-1] if stack else 0

    def cuCtxGetDevice(self) -> tuple[Any, ...]:
        current = self.cuCtxGetCurrent()[1]
        found = [device for device, context in self.contexts.items() if context == current]
        return (0, found[0]) if found else (201, None)

    def cuMemGetInfo(self) -> tuple[Any, ...]:
        return 0, 1 << 36, 1 << 37

    def cuThreadExchangeStreamCaptureMode(self, mode: int) -> tuple[Any, ...]:
        me = threading.get_ident()
        before, self.modes[me] = self.modes[me], int(mode)
        return 0, before

    # --- virtual memory
    def cuMemGetAllocationGranularity(self, _prop: Any, _option: int) -> tuple[Any, ...]:
        return 0, MIB2

    def cuMemCreate(self, nbytes: int, prop: Any, _flags: int) -> tuple[Any, ...]:
        if nbytes % MIB2 or prop.type != 1 or prop.location.type != 1:
            return 1, None
        handle = self.new("handle")
        self.types[handle] = prop.requestedHandleTypes
        self.sizes[handle], self.homes[handle] = nbytes, prop.location.id
        self.references[handle] = 1
        return 0, handle

    def cuMemRelease(self, handle: int) -> tuple[Any, ...]:
        if self.references[handle] <= 0:
            return (1,)
        self.references[handle] -= 1
        self._drop(handle)
        return (0,)

    def _drop(self, handle: int) -> None:
        if not self.references[handle]:
            self.live["handle"].discard(handle)

    def cuMemRetainAllocationHandle(self, address: int) -> tuple[Any, ...]:
        for start, (nbytes, handle) in self.pieces.items():
            if start <= address < start + nbytes:
                self.references[handle] += 1
                self.live["handle"].add(handle)
                return 0, handle
        return 1, None

    def cuMemExportToShareableHandle(self, handle: int, kind: int, _flags: int) -> tuple[Any, ...]:
        if handle not in self.sizes or not kind & self.types[handle]:
            return 1, None
        if kind == 8:
            return 0, Struct(handle.to_bytes(8, "little") + b"fabric".ljust(56))
        master, slave = os.openpty()  # a character device, as the driver's fds are
        os.close(master)
        self.files[os.fstat(slave).st_dev, os.fstat(slave).st_rdev] = handle
        return 0, slave

    def cuMemImportFromShareableHandle(self, fd: int, _kind: int) -> tuple[Any, ...]:
        found = self.files.get((os.fstat(fd).st_dev, os.fstat(fd).st_rdev))
        if found is None:
            return 999, None
        self.references[found] += 1
        self.live["handle"].add(found)
        return 0, found

    def cuMemGetAllocationPropertiesFromHandle(self, handle: int) -> tuple[Any, ...]:
        fields = Fields()
        fields.location.type, fields.location.id = 1, self.homes[handle]
        return 0, fields

    def cuMemAddressReserve(self, _nbytes: int, _alignment: int, address: int, _flags: int) -> tuple[Any, ...]:
        at = address if address and address not in self.live["address"] else next(self.addresses)
        self.live["address"].add(at)
        return 0, at

    def cuMemAddressFree(self, address: int, nbytes: int) -> tuple[Any, ...]:
        if any(address <= at < address + nbytes for at in self.pieces):
            return (1,)
        self.live["address"].discard(address)
        return (0,)

    def cuMemMap(self, address: int, nbytes: int, offset: int, handle: int, _flags: int) -> tuple[Any, ...]:
        if offset or nbytes > self.sizes[handle] or address in self.pieces:
            return (801,)
        self.pieces[address] = (nbytes, handle)
        self.references[handle] += 1
        self.live["mapping"].add(address)
        return (0,)

    def cuMemUnmap(self, address: int, nbytes: int) -> tuple[Any, ...]:
        if self.pieces.get(address, (0, 0))[0] != nbytes:
            return (1,)
        handle = self.pieces.pop(address)[1]
        self.references[handle] -= 1
        self._drop(handle)
        self.live["mapping"].discard(address)
        self.access.pop(address, None)
        return (0,)

    def cuMemSetAccess(self, address: int, nbytes: int, descriptors: list[Any], count: int) -> tuple[Any, ...]:
        if count != len(descriptors):
            return (1,)
        at = address
        while at < address + nbytes:
            if at not in self.pieces:
                return (1,)
            for one in descriptors:
                self.access[at][one.location.id] = one.flags
            at += self.pieces[at][0]
        return (0,)

    def cuMemGetHandleForAddressRange(self, address: int, nbytes: int, kind: int, flags: int) -> tuple[Any, ...]:
        held = [(at, size) for at, (size, _handle) in self.pieces.items()]
        held += [(each.start, each.nbytes) for each in self.foreign if each.start not in self.live["legacy"]]
        if kind != 1 or flags or address % 4096 or nbytes % 4096:
            return 1, None
        if not any(start <= address and address + nbytes <= start + size for start, size in held):
            return 1, None
        fd = os.memfd_create("dma-buf", 0)  # as the driver's, it is inherited
        os.ftruncate(fd, nbytes)
        return 0, fd

    # --- other memory
    def cuMemAllocManaged(self, nbytes: int, _flags: int) -> tuple[Any, ...]:
        at = next(self.addresses)
        self.live["managed"].add(at)
        self.sizes[at] = nbytes
        return 0, at

    def cuMemFree(self, address: int) -> tuple[Any, ...]:
        kind = "managed" if address in self.live["managed"] else "import"
        if address not in self.live[kind]:
            return (1,)
        self.live[kind].discard(address)
        return (0,)

    def cuMemHostRegister(self, address: int, _nbytes: int, flags: int) -> tuple[Any, ...]:
        if address in self.live["registration"] | self.live["page"]:
            return (712,)
        self.live["page" if flags == 0 else "registration"].add(address)
        return (0,)

    def cuMemHostUnregister(self, address: int) -> tuple[Any, ...]:
        for kind in ("page", "registration"):
            if address in self.live[kind]:
                self.live[kind].discard(address)
                return (0,)
        return (713,)

    def cuMemHostGetDevicePointer(self, address: int, _flags: int) -> tuple[Any, ...]:
        return 0, address

    def cuIpcGetMemHandle(self, address: int) -> tuple[Any, ...]:
        return 0, Struct(address.to_bytes(8, "little") + b"legacy".ljust(56))

    def cuIpcOpenMemHandle(self, handle: Struct, _flags: int) -> tuple[Any, ...]:
        if not handle.raw[8:].startswith(b"legacy"):
            return 1, None
        at = next(self.addresses)
        self.live["legacy"].add(at)
        self.foreign.append(Range(at, MIB2, 0, legacy=1))
        return 0, at

    def cuIpcCloseMemHandle(self, address: int) -> tuple[Any, ...]:
        if address not in self.live["legacy"]:
            return (1,)
        self.live["legacy"].discard(address)
        return (0,)

    def cuImportExternalMemory(self, given: Description) -> tuple[Any, ...]:
        if given.type != 1 or os.fstat(given.handle.fd).st_size != given.size:
            return (1,)
        os.close(given.handle.fd)  # it is the driver's
        made = self.new("external")
        self.sizes[made] = given.size
        return 0, made

    def cuExternalMemoryGetMappedBuffer(self, memory: int, piece: Description) -> tuple[Any, ...]:
        if memory not in self.live["external"] or piece.offset + piece.size > self.sizes[memory]:
            return (1,)
        at = next(self.addresses)
        self.live["import"].add(at)
        return 0, at

    def cuDestroyExternalMemory(self, memory: int) -> tuple[Any, ...]:
        self.live["external"].remove(memory)
        return (0,)

    def cuMemPoolExportToShareableHandle(self, _pool: int, _kind: int, _flags: int) -> tuple[Any, ...]:
        return 0, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def cuMemPoolExportPointer(self, address: int) -> tuple[Any, ...]:
        return 0, Struct(address.to_bytes(8, "little") + b"pool".ljust(56))

    def cuMemPoolImportFromShareableHandle(self, _fd: int, _kind: int, _flags: int) -> tuple[Any, ...]:
        return 0, self.new("pool")

    def cuMemPoolSetAccess(self, _pool: int, _descriptors: list[Any], _count: int) -> tuple[Any, ...]:
        return (0,)

    def cuMemPoolImportPointer(self, _pool: int, _data: Struct) -> tuple[Any, ...]:
        at = next(self.addresses)
        self.live["import"].add(at)
        self.foreign.append(Range(at, MIB2, 0, pool=100))
        return 0, at

    def cuMemPoolDestroy(self, pool: int) -> tuple[Any, ...]:
        self.live["pool"].discard(pool)
        return (0,)

    def cuGetProcAddress(self, name: bytes, _version: int, _flags: int) -> tuple[Any, ...]:
        found = self.functions.get(name)
        return 0, 0xF00D if found is None else ctypes.cast(found, ctypes.c_void_p).value, 0

    def cuPointerGetAttribute(self, attribute: int, address: int) -> tuple[Any, ...]:
        return self._pointer(attribute, address)

    def _pointer(self, attribute: int, address: int) -> tuple[Any, ...]:
        for found in self.foreign:
            if found.start <= address < found.start + found.nbytes:
                facts = found.facts
                return 0, {
                    2: facts.get("memory_type", 2),
                    7: facts.get("buffer", 7),
                    8: facts.get("managed", 0),
                    9: found.device,
                    10: facts.get("legacy", 0),
                    11: found.reserved[0],  # of VMM memory the whole reservation
                    12: found.reserved[1],
                    14: facts.get("allowed", 0),
                    17: facts.get("pool", 0),
                }[attribute]
        return 1, None

    def cuPointerGetAttributes(self, count: int, attributes: list[int], address: int) -> tuple[Any, ...]:
        found = [self._pointer(attribute, address) for attribute in attributes]
        return 0, [0 if code else value for code, value in found[:count]]

    # --- streams and events
    def cuStreamCreate(self, _flags: int) -> tuple[Any, ...]:
        return 0, self.new("stream")

    def cuStreamDestroy(self, stream: int) -> tuple[Any, ...]:
        self.live["stream"].discard(stream)
        return (0,)

    def cuStreamGetCtx(self, _stream: int) -> tuple[Any, ...]:
        return 0, self.contexts[0]

    def cuStreamGetId(self, stream: int) -> tuple[Any, ...]:
        return 0, stream

    def cuStreamIsCapturing(self, stream: int) -> tuple[Any, ...]:
        return 0, int(stream in self.capturing)

    def cuStreamQuery(self, stream: int) -> tuple[Any, ...]:
        return (600 if self.stuck[stream] else 0,)

    def _do(self, stream: int, work: Any) -> tuple[Any, ...]:
        self.stuck[stream].append(work)
        self.settle()
        return (0,)

    def settle(self) -> None:
        """Run what can run: each piece of work says whether it is done."""
        with self.lock:
            moved = True
            while moved:
                moved = False
                for queued in list(self.stuck.values()):
                    while queued and queued[0]():
                        queued.pop(0)
                        moved = True

    def cuStreamWaitValue64(self, stream: int, address: int, value: int, _flags: int) -> tuple[Any, ...]:
        return self._do(stream, lambda: ctypes.c_uint64.from_address(address).value >= value)

    def cuStreamWriteValue64(self, stream: int, address: int, value: int, _flags: int) -> tuple[Any, ...]:
        def write() -> bool:
            ctypes.c_uint64.from_address(address).value = value
            self.writes.append((stream, value))
            return True

        return self._do(stream, write)

    def cuLaunchHostFunc(self, stream: int, function: int, data: int) -> tuple[Any, ...]:
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)

        def run() -> bool:
            call(data)
            self.functions_run += 1
            return True

        return self._do(stream, run)

    def cuMemcpyAsync(self, dst: int, src: int, nbytes: int, stream: int) -> tuple[Any, ...]:
        if not self.stacks[threading.get_ident()]:
            return (201,)
        return self._do(stream, lambda: ctypes.memmove(dst, src, nbytes) or True)

    def _set(self, dst: int, raw: bytes, count: int, stream: int) -> tuple[Any, ...]:
        if dst % len(raw):
            return (716,)
        if not self.stacks[threading.get_ident()]:
            return (201,)
        return self._do(stream, lambda: ctypes.memmove(dst, raw * count, len(raw) * count) or True)

    def cuMemsetD8Async(self, dst: int, value: int, count: int, stream: int) -> tuple[Any, ...]:
        return self._set(dst, value.to_bytes(1, "little"), count, stream)

    def cuMemsetD16Async(self, dst: int, value: int, count: int, stream: int) -> tuple[Any, ...]:
        return self._set(dst, value.to_bytes(2, "little"), count, stream)

    def cuMemsetD32Async(self, dst: int, value: int, count: int, stream: int) -> tuple[Any, ...]:
        return self._set(dst, value.to_bytes(4, "little"), count, stream)

    def cuStreamWaitEvent(self, stream: int, event: int, _flags: int) -> tuple[Any, ...]:
        return self._do(stream, lambda: bool(self.sizes[event]))

    def cuEventCreate(self, _flags: int) -> tuple[Any, ...]:
        event = self.new("event")
        self.sizes[event] = 1
        return 0, event

    def cuEventDestroy(self, event: int) -> tuple[Any, ...]:
        self.live["event"].discard(event)
        return (0,)

    def cuEventRecord(self, event: int, stream: int) -> tuple[Any, ...]:
        self.sizes[event] = 0

        def done() -> bool:
            self.sizes[event] = 1
            return True

        return self._do(stream, done)

    def cuEventQuery(self, event: int) -> tuple[Any, ...]:
        return (0 if self.sizes[event] else 600,)

    def cuIpcGetEventHandle(self, event: int) -> tuple[Any, ...]:
        return 0, Struct(event.to_bytes(8, "little") + b"event".ljust(56))


# Measured on an H200 (benchmarks/gpu/probe.py): what ends a capture of another thread unless this one is RELAXED…
UNSAFE = frozenset(
    (
        "cuMemAllocManaged",
        "cuMemFree",
        "cuMemHostRegister",
        "cuMemHostUnregister",
        "cuEventQuery",
        "cuStreamQuery",
        "cuStreamGetId",
        "cuIpcOpenMemHandle",
        "cuIpcCloseMemHandle",
    )
)
# … and what a broken context answers with its error.
STICKY_CALLS = frozenset(
    (
        "cuStreamQuery",
        "cuEventQuery",
        "cuStreamWriteValue64",
        "cuStreamWaitValue64",
        "cuLaunchHostFunc",
        "cuMemcpyAsync",
        "cuEventRecord",
        "cuMemHostUnregister",
        "cuMemHostRegister",
        "cuEventDestroy",
        "cuStreamDestroy",
    )
)
