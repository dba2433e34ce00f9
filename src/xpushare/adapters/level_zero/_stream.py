"""In-order immediate command lists, in the form that the stream engine uses."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Final, Literal, NamedTuple, final

from xpushare._native import End
from xpushare.adapters.level_zero import _bindings as ze
from xpushare.adapters.level_zero import _numbers as n
from xpushare.adapters.level_zero._device import Gpu, Stamp
from xpushare.adapters.level_zero._driver import Driver
from xpushare.adapters.level_zero._numbers import Handle
from xpushare.adapters.stream.hooks import Calls, Device, Scope
from xpushare.adapters.stream.library import address_of
from xpushare.adapters.stream.native_event import IpcEvent
from xpushare.common.errors import FeatureNotSupportedError

__all__ = ["GivenEvent", "GivenList", "Mark", "OpenedEvent", "Stream"]

_NAP_FIRST: Final = 20e-6  # seconds
_NAP_MAX: Final = 1e-3
_patterns: Final = (ctypes.c_uint8 * 256)(*range(256))  # the source of fills: each byte at its own index


class Mark(NamedTuple):
    """A driver event and the pool that contains only this event. The engine appends the event to the command list, and
    the event completes when the list has run that far. The pool is 0 for a counter-based event, which needs no pool.
    """

    event: int
    pool: int


def _counter_based(gpu: Gpu, doing: str, flags: int) -> int:
    scope = n.SCOPE_HOST
    description = ze.ze_event_counter_based_desc_t(flags=n.COUNTER_IMMEDIATE | flags, signal=scope, wait=scope)
    context = gpu.platform.context
    return gpu.driver.made(doing, "zeEventCounterBasedCreate", context, gpu.handle, description)


@final
class OpenedEvent:
    """Another process's counter-based event, opened by its handle. This package never queries such an event: Intel's
    driver (26.27) aborts a process that queries an event whose last signaller was killed.
    """

    def __init__(self, gpu: Gpu, handle: bytes) -> None:
        doing, call = "opening an IPC event", ("zeEventCounterBasedOpenIpcHandle", gpu.platform.context)
        raw = ze.ze_ipc_event_counter_based_handle_t.from_buffer_copy(handle)
        if not gpu.platform.has(call[0]):
            raise FeatureNotSupportedError(
                f"{doing}: the driver is too old to share its events, which takes Level Zero API 1.15"
            )
        self._driver = gpu.driver
        self.handles = (ctypes.c_void_p * 1)(gpu.driver.made(doing, *call, raw))

    def __del__(self) -> None:
        if hasattr(self, "handles") and self._driver.started:
            self._driver.code("zeEventCounterBasedCloseIpcHandle", self.handles[0])


@final
class GivenEvent:
    """An event that the program has passed by its handle. An owned event is destroyed once no queue waits for it any
    more.
    """

    def __init__(self, gpu: Gpu, handle: int, owned: bool) -> None:
        self.handles = (ctypes.c_void_p * 1)(handle)
        self._driver = gpu.driver
        self._owned = owned

    def __del__(self) -> None:
        if self._owned and self._driver.started:
            self._driver.code("zeEventDestroy", self.handles[0])


@final
class GivenList:
    """An immediate command list that the program has passed by its handle. An owned list is destroyed, once its work
    has finished, with this object.
    """

    def __init__(self, driver: Driver[Gpu], handle: int, owned: bool) -> None:
        self._driver = driver
        self._handle = handle
        self._owned = owned

    def finish(self) -> None:
        """Wait for the list's work so far. Intel's driver would take a whole CPU for a wait, so this thread sleeps."""
        doing, call, nap = "waiting for a command list", "zeCommandListHostSynchronize", _NAP_FIRST
        while not self._driver.ready(doing, call, self._handle, 0):
            time.sleep(nap)
            nap = min(2 * nap, _NAP_MAX)

    def __del__(self) -> None:
        if self._owned and self._driver.started:
            self._driver.code("zeCommandListHostSynchronize", self._handle, n.FOREVER)
            self._driver.code("zeCommandListDestroy", self._handle)


@final
class Stream:
    """A command list that this package made, with the hooks that the queue engine calls.

    Lists on one engine run one after the other. A waiting list blocks the others, and the signal that it waits for may
    be queued in one of the blocked lists. So operations behind a wait are held back in this process until the awaited
    signal has been submitted to a device.
    """

    fill_units: Sequence[int] = (1,)
    around_calls: Callable[[], Scope] | None = None
    owner: object | None = None  # other libraries' lists are not used

    def __init__(self, gpu: Gpu, doing: str) -> None:
        driver = gpu.driver
        words = gpu.words
        self.device: Device = gpu
        self.current: Callable[[], Scope] = nullcontext
        self.relaxed: Callable[[], Scope] = nullcontext
        self.ordering: Literal["device", "shared", "held"] = "shared" if words.wait else "held"
        self._gpu = gpu
        self._driver = driver
        self._lock = threading.Lock()
        self._copy, self._fill, self._signal, self._wait, self._reset = (
            driver.address(name)
            for name in (
                "zeCommandListAppendMemoryCopy",
                "zeCommandListAppendMemoryFill",
                "zeCommandListAppendSignalEvent",
                "zeCommandListAppendWaitOnEvents",
                "zeEventHostReset",
            )
        )
        self.handle = gpu.new_list(doing)
        with End(driver.code, "zeCommandListDestroy", self.handle):
            raw = driver.raw(doing, Handle.COMMAND_LIST, self.handle)
            self.calls = words.calls(self.handle, raw, self._copy, self._fill)
        gpu.streams.add(self)

    def new_mark(self, doing: str) -> Mark:
        if self._gpu.platform.has("zeEventCounterBasedCreate"):
            return Mark(_counter_based(self._gpu, doing, n.COUNTER_HOST_VISIBLE), 0)
        pools = ze.ze_event_pool_desc_t(flags=n.POOL_HOST_VISIBLE, count=1)
        context = self._gpu.platform.context
        pool = self._driver.made(doing, "zeEventPoolCreate", context, pools, 0, None)
        with End(self._driver.code, "zeEventPoolDestroy", pool):
            events = ze.ze_event_desc_t(signal=n.SCOPE_HOST, wait=n.SCOPE_HOST)
            return Mark(self._driver.made(doing, "zeEventCreate", pool, events), pool)

    def mark(self, doing: str, mark: Mark) -> Calls:
        signal = (self._signal, self.handle, mark.event)
        return ((self._reset, mark.event), signal) if mark.pool else (signal,)

    def query(self, doing: str, mark: Mark) -> bool:
        return self._driver.ready(doing, "zeEventQueryStatus", mark.event)

    def busy(self, doing: str) -> bool:
        return not self._driver.ready(doing, "zeCommandListHostSynchronize", self.handle, 0)

    def finish(self, doing: str) -> None:
        """Wait for the list's work, unless the list has been destroyed."""
        with self._lock:
            if self.handle:
                self._driver(doing, "zeCommandListHostSynchronize", self.handle, n.FOREVER)

    def check_device(self, doing: str) -> None:
        self._driver(doing, "zeDeviceGetStatus", self._gpu.handle)

    def new_stamp(self, doing: str) -> tuple[int, Stamp, Calls]:
        stamp = Stamp(self._gpu, doing)
        return stamp.since, stamp, stamp.noting(self.handle)

    def copy(self, doing: str, dst: int, src: int, nbytes: int) -> Calls:
        return ((self._copy, self.handle, dst, src, nbytes, 0, 0, 0),)

    def fill(self, doing: str, dst: int, pattern: bytes, times: int) -> Calls:
        return ((self._fill, self.handle, dst, address_of(_patterns) + pattern[0], 1, times, 0, 0, 0),)

    def wait_native(self, doing: str, event: OpenedEvent | GivenEvent) -> Calls:
        return ((self._wait, self.handle, 1, address_of(event.handles)),)

    def record_native(self, doing: str) -> IpcEvent:
        driver = self._driver
        if not self._gpu.platform.has("zeEventCounterBasedGetIpcHandle"):
            raise FeatureNotSupportedError(
                f"{doing}: the driver is too old to share its events, which takes Level Zero API 1.15"
            )
        event = _counter_based(self._gpu, doing, n.COUNTER_IPC)
        with End(driver.code, "zeEventDestroy", event):
            raw = ze.ze_ipc_event_counter_based_handle_t()
            driver(doing, "zeCommandListAppendSignalEvent", self.handle, event)
            driver(doing, "zeEventCounterBasedGetIpcHandle", event, address_of(raw))
            return IpcEvent(event, bytes(raw.data), self.current, driver, "zeEventDestroy", event)

    def destroy(self, marks: Sequence[Mark]) -> None:
        for mark in marks:
            self._driver.code("zeEventDestroy", mark.event)
            if mark.pool:
                self._driver.code("zeEventPoolDestroy", mark.pool)
        with self._lock:
            self._driver.code("zeCommandListDestroy", self.handle)
            self.handle = 0
