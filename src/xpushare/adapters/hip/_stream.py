"""HIP's streams and events, in the form that the stream engine uses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Literal, final

from xpushare._native import End
from xpushare.adapters.hip import _numbers as n
from xpushare.adapters.hip._driver import Gpu
from xpushare.adapters.runtime import RuntimeStream
from xpushare.adapters.stream.hooks import Calls, Device, Scope
from xpushare.adapters.stream.native_event import IpcEvent

__all__ = ["Stream"]


@final
class Stream(RuntimeStream):
    """A stream of our own, with the hooks that the stream engine calls. After some operations, the engine queues a
    *mark*, to learn when the stream has finished them. HIP's marks are HIP events. Streams share four hardware queues
    (GPU_MAX_HW_QUEUES), and a wait is a kernel that blocks one of them. So the device waits only for points whose
    signals this process has already submitted to the device. If a queue waits for any other point, the operations
    behind the wait are held back in this process.
    """

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
            super().__init__(gpu.new_stream(doing), gpu.driver.stream_functions, "hip", n.COPY_DEFAULT)

    def new_mark(self, doing: str) -> int:
        return self._driver.made(doing, "hipEventCreateWithFlags", n.UNTIMED)

    def mark(self, doing: str, mark: int) -> Calls:
        return ((self.record, mark, self.handle),)

    def query(self, doing: str, mark: int) -> bool:
        return self._driver.ready(doing, "hipEventQuery", mark)

    def busy(self, doing: str) -> bool:
        return not self._driver.ready(doing, "hipStreamQuery", self.handle)

    def check_device(self, doing: str) -> None:
        self.busy(doing)

    def record_native(self, doing: str) -> IpcEvent:
        driver = self._driver
        event = driver.made(doing, "hipEventCreateWithFlags", n.UNTIMED | n.INTERPROCESS)
        with End(driver.code, "hipEventDestroy", event):
            driver(doing, "hipEventRecord", event, self.handle)
            handle = driver.asked(doing, "hipIpcGetEventHandle", event, into=n.Handle())
            return IpcEvent(event, bytes(handle), self.current, driver, "hipEventDestroy", event)

    def destroy(self, marks: Sequence[int]) -> None:
        for mark in marks:
            self._driver.code("hipEventDestroy", mark)
        self._driver.code("hipStreamDestroy", self.handle)
        self.handle = 0
