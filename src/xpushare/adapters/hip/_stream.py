"""HIP's streams and events, in the form that the stream engine uses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Literal, final

from xpushare.adapters.hip import _numbers as n
from xpushare.adapters.hip._driver import Gpu
from xpushare.adapters.stream.hooks import Calls, Device, Scope

__all__ = ["IpcEvent", "Stream"]


@final
class IpcEvent:
    """An event that other processes can open by `handle` (hipIpcOpenEventHandle)."""

    def __init__(self, gpu: Gpu, event: int, handle: bytes) -> None:
        self._gpu = gpu
        self._event = self.native = event
        self.handle = handle

    def release(self) -> None:
        with self._gpu.current():
            self._gpu.driver("destroying an IPC event", "hipEventDestroy", self._event)


@final
class Stream:
    """A stream of ours, and the engine's hooks for it; a mark is an event.

    Streams share four hardware queues (GPU_MAX_HW_QUEUES), and a wait is a kernel that holds one up. So the device
    waits only for what this process has handed to it; the queue holds the rest.
    """

    fill_units: Sequence[int] = tuple(n.MEMSET)
    around_calls: Callable[[], Scope] | None = None
    owner: object | None = None

    def __init__(self, gpu: Gpu, doing: str) -> None:
        self.device: Device = gpu
        self.current: Callable[[], Scope] = gpu.current
        self.relaxed: Callable[[], Scope] = functools.partial(gpu.driver.scope, None)
        self.calls = gpu.queue_calls
        self.ordering: Literal["device", "shared", "held"] = "shared" if gpu.words[1] else "held"
        self._gpu = gpu
        self._driver = gpu.driver
        with gpu.current():
            self.handle = gpu.new_stream(doing)

    def new_mark(self, doing: str) -> int:
        return self._driver.made(doing, "hipEventCreateWithFlags", n.UNTIMED)

    def mark(self, doing: str, mark: int) -> Calls:
        return ((self._driver.address("hipEventRecord"), mark, self.handle),)

    def query(self, doing: str, mark: int) -> bool:
        return self._driver.ready(doing, "hipEventQuery", mark)

    def busy(self, doing: str) -> bool:
        return not self._driver.ready(doing, "hipStreamQuery", self.handle)

    def check_device(self, doing: str) -> None:
        self.busy(doing)

    def copy(self, doing: str, dst: int, src: int, nbytes: int) -> Calls:
        return ((self._driver.address("hipMemcpyAsync"), dst, src, nbytes, n.COPY_DEFAULT, self.handle),)

    def fill(self, doing: str, dst: int, pattern: bytes, times: int) -> Calls:
        function = self._driver.address(n.MEMSET[len(pattern)])
        return ((function, dst, int.from_bytes(pattern, "little"), times, self.handle),)

    def wait_native(self, doing: str, event: int) -> Calls:
        return ((self._driver.address("hipStreamWaitEvent"), self.handle, event, 0),)

    def record_native(self, doing: str) -> IpcEvent:
        driver, handle = self._driver, n.Handle()
        event = driver.made(doing, "hipEventCreateWithFlags", n.UNTIMED | n.INTERPROCESS)
        try:
            driver(doing, "hipEventRecord", event, self.handle)
            driver(doing, "hipIpcGetEventHandle", handle, event)
        except BaseException:
            driver.code("hipEventDestroy", event)
            raise
        return IpcEvent(self._gpu, event, bytes(handle))

    def destroy(self, marks: Sequence[int]) -> None:
        for mark in marks:
            self._driver.code("hipEventDestroy", mark)
        self._driver.code("hipStreamDestroy", self.handle)
