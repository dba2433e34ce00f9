"""libcuda by ctypes: what somebody would write by hand, and a page of words that two processes share."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from xpushare.bench.measure import Row, compare

MIB: Final = 1 << 20
SPAWN: Final = multiprocessing.get_context("spawn")
Samples = list[float]


def row(scenario: str, name: str, ours: Sequence[float], other: str, theirs: Sequence[float]) -> Row:
    """Return a row of samples in seconds."""
    return compare(scenario, name, [each * 1e6 for each in ours], other, [each * 1e6 for each in theirs])


class Raw:
    """libcuda by ctypes: what somebody would write by hand. The primary context of `device` is made current."""

    def __init__(self, device: int = 0) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.check(self.cuda.cuInit(0))
        self.device = device
        self.context = ctypes.c_void_p()
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device))
        self.check(self.cuda.cuCtxPushCurrent_v2(self.context))
        word, pointer, number = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint
        for name in ("cuStreamWriteValue64_v2", "cuStreamWaitValue64_v2"):
            getattr(self.cuda, name).argtypes = [pointer, word, word, number]
        self.cuda.cuEventRecord.argtypes = self.cuda.cuStreamWaitEvent.argtypes = [pointer, pointer]
        self.cuda.cuStreamWaitEvent.argtypes = [pointer, pointer, number]
        self.cuda.cuEventQuery.argtypes = [pointer]
        self.cuda.cuMemHostRegister_v2.argtypes = [pointer, ctypes.c_size_t, number]
        self.cuda.cuIpcOpenMemHandle_v2.argtypes = [pointer, IpcHandle, number]
        self.cuda.cuIpcOpenEventHandle.argtypes = [pointer, IpcHandle]
        self.cuda.cuIpcCloseMemHandle.argtypes = [word]
        self.cuda.cuMemAddressReserve.argtypes = [pointer, ctypes.c_size_t, ctypes.c_size_t, word, word]
        self.cuda.cuMemMap.argtypes = [word, ctypes.c_size_t, ctypes.c_size_t, word, word]
        self.cuda.cuMemSetAccess.argtypes = [word, ctypes.c_size_t, pointer, ctypes.c_size_t]
        self.cuda.cuMemUnmap.argtypes = self.cuda.cuMemAddressFree.argtypes = [word, ctypes.c_size_t]
        self.cuda.cuMemRelease.argtypes = [word]
        self.cuda.cuMemImportFromShareableHandle.argtypes = [pointer, pointer, number]

    @staticmethod
    def check(code: int) -> None:
        if code:
            raise RuntimeError(f"the CUDA driver answered {code}")

    def stream(self) -> Any:
        found = ctypes.c_void_p()
        self.check(self.cuda.cuStreamCreate(ctypes.byref(found), 1))
        return found

    def event(self) -> tuple[Any, bytes]:
        """An interprocess event and its handle."""
        found, handle = ctypes.c_void_p(), IpcHandle()
        self.check(self.cuda.cuEventCreate(ctypes.byref(found), 2 | 4))
        self.check(self.cuda.cuIpcGetEventHandle(ctypes.byref(handle), found))
        return found, bytes(handle)

    def open_event(self, raw: bytes) -> Any:
        found = ctypes.c_void_p()
        self.check(self.cuda.cuIpcOpenEventHandle(ctypes.byref(found), IpcHandle.from_buffer_copy(raw)))
        return found

    def register(self, address: int, nbytes: int) -> int:
        """The device's address of host pages, registered."""
        self.check(self.cuda.cuMemHostRegister_v2(address, nbytes, 1 | 2))
        found = ctypes.c_uint64()
        self.check(self.cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(found), ctypes.c_void_p(address), 0))
        return found.value

    def unregister(self, address: int) -> None:
        self.check(self.cuda.cuMemHostUnregister(ctypes.c_void_p(address)))

    def synchronize(self) -> None:
        self.check(self.cuda.cuCtxSynchronize())


class IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


class Receiver(NamedTuple):
    """Another process that opens tensors, and what this one sends them by."""

    pipe: Any
    queue: Any  # torch's
    process: Any
    raw: Raw  # of this process, whose torch has started

    @classmethod
    def start(cls, receive: Callable[[Any, Any], None]) -> Receiver:
        """Return once `receive`, called there with a pipe and the queue, has sent bytes."""
        import torch
        import torch.multiprocessing as tmp

        queue = tmp.get_context("spawn").Queue()
        here, there = SPAWN.Pipe()
        process = SPAWN.Process(target=receive, args=(there, queue), daemon=True)
        process.start()
        torch.zeros(1, device="cuda")
        raw = Raw(0)
        here.recv_bytes()
        return cls(here, queue, process, raw)


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int))


class Page:
    """A page of 64-bit words that two processes share."""

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), 4096)
        self.words = memoryview(self.map).cast("Q")
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))


@contextlib.contextmanager
def page() -> Iterator[str]:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(4096)
        yield file.name
