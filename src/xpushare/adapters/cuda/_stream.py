"""CUDA streams and events, in the form that the stream engine uses."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, final

from xpushare._native import End, query
from xpushare.adapters.cuda import _numbers as n
from xpushare.adapters.cuda._driver import Context, struct_bytes
from xpushare.adapters.cuda._external import Point
from xpushare.adapters.runtime import RuntimeStream
from xpushare.adapters.stream.hooks import Calls, Device, Scope
from xpushare.adapters.stream.native_event import IpcEvent

__all__ = ["Stream"]


@final
class Stream(RuntimeStream):
    """A stream, with the hooks that the stream engine calls. After some operations, the engine queues a *mark*, to
    learn when the stream has finished them. CUDA's marks are pairs of a CUDA event and its number.

    Streams share hardware channels. If too many streams would wait, operations on our own streams are held back in this
    process. Operations on streams of other libraries cannot be held back. Calls on words and events need no current
    context, except on the default streams, which belong to the current context. The calls that `synchronize` repeats
    are inlined, which saves one Python frame each.
    """

    def __init__(self, context: Context, stream: Any, owner: object | None) -> None:
        self._context = context
        self._driver = context.driver
        self._stream = stream
        self.device: Device = context.gpu
        super().__init__(int(stream), context.driver.stream_functions(), "cu")
        self.lasting = owner is not None and self.handle in (0, n.LEGACY_STREAM)  # the context's default stream
        self.current: Callable[[], Scope] = context.current
        self.relaxed: Callable[[], Scope] = context.driver.relaxed
        self.ordering: Literal["device", "shared", "held"] = "shared" if owner is None else "device"
        self.owner = context if self.lasting else owner
        default = self.lasting or (owner is not None and self.handle == n.PER_THREAD_STREAM)
        self.around_calls: Callable[[], Scope] | None = context.pushed if default else None
        self.calls = context.gpu.queue_calls()
        self._query = context.driver.function("cuStreamQuery")

    @classmethod
    def create(cls, context: Context, doing: str) -> Stream:
        context.gpu.queue_calls()  # or raises before there is a stream
        with context.current():
            context.check(doing)  # creates its own stream now, not while queues wait
            return cls(context, context.driver(doing, "cuStreamCreate", n.STREAM_NON_BLOCKING), None)

    def identity(self) -> Hashable | None:
        """Return a key that identifies this stream. No later stream has the same key, even if the driver reuses the
        handle.

        Return None while the stream is being captured, since asking for the stream's id would end the capture.
        """
        context = self._context
        if self.lasting:
            return context.number, 0
        with context.current():
            code, status = self._driver.api.cuStreamIsCapturing(self._stream)[:2]
            if code or int(status):
                return None
            return context.number, 1 + int(self._driver("adopting a stream", "cuStreamGetId", self._stream))

    def new_mark(self, doing: str) -> tuple[Any, int]:
        event = self._driver(doing, "cuEventCreate", n.EVENT_DISABLE_TIMING)
        return event, int(event)

    def mark(self, doing: str, mark: tuple[Any, int]) -> Calls:
        return ((self.record, mark[1], self.handle),)

    def query(self, doing: str, mark: tuple[Any, int]) -> bool:
        code = self._driver.api.cuEventQuery(mark[0])[0]
        return not code or self._driver.ready(doing, "cuEventQuery", int(code))

    def busy(self, doing: str) -> bool:
        code = query(self._query, self.handle)
        return bool(code) and not self._driver.ready(doing, "cuStreamQuery", code)

    def check_device(self, doing: str) -> None:
        self._context.check(doing)

    def wait_native(self, doing: str, event: int | Point) -> Calls:
        if isinstance(event, Point):
            return event.calls(self.handle)
        return super().wait_native(doing, event)

    def record_native(self, doing: str) -> IpcEvent:
        driver = self._driver
        event = driver(doing, "cuEventCreate", n.EVENT_DISABLE_TIMING | n.EVENT_INTERPROCESS)
        with End(driver.api.cuEventDestroy, event):
            driver(doing, "cuEventRecord", event, self._stream)
            handle = struct_bytes(driver(doing, "cuIpcGetEventHandle", event))
            return IpcEvent(int(event), handle, self.current, driver, "cuEventDestroy", event)

    def destroy(self, marks: Sequence[tuple[Any, int]]) -> None:
        api = self._driver.api  # on a broken context there is nothing to destroy
        for event, _number in marks:
            api.cuEventDestroy(event)
        if self.owner is None:
            api.cuStreamDestroy(self._stream)
        else:
            self.owner = ()
