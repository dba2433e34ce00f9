"""The mock driver in the form that the stream engine uses: its devices and streams, with the hooks that the engine
calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Literal

from xpushare.adapters.base import NativeEvent
from xpushare.adapters.mock.others import MockEvent, host_call
from xpushare.adapters.mock.script import CODES, ScriptedDriver
from xpushare.adapters.stream import hooks
from xpushare.adapters.stream.background import quietly
from xpushare.adapters.stream.hooks import Calls, Feature, Scope
from xpushare.common.errors import FeatureNotSupportedError, XpuShareError

__all__ = ["Device", "Stream"]


class Device:
    """A device whose memory is the host's."""

    def __init__(self, driver: ScriptedDriver, ordinal: int) -> None:
        self.codes = CODES
        self.driver = driver
        self.ordinal: int = ordinal
        self._used = False

    def __str__(self) -> str:
        return f"mock device {self.ordinal}"

    def error(self, doing: str, call: str, code: int) -> XpuShareError:
        return self.driver.error(doing, call, code)

    def current(self) -> Scope:
        self._used = True
        return nullcontext()

    def active(self) -> bool:
        return self._used

    def lacking(self, feature: Feature) -> str:
        return ""

    def drain(self) -> None:
        self.driver.call("draining", "device_synchronize", self.ordinal)

    def reach(self, doing: str, address: int, nbytes: int, read_only: bool) -> None:
        self.driver.call(doing, "register", address)

    def reached(self, doing: str, address: int) -> int:
        return address

    def unreach(self, doing: str, address: int) -> None:
        self.driver.call(doing, "unregister", address)


class Stream:
    """A stream whose work runs on a thread. After some operations, the engine queues a *mark*, to learn when the stream
    has finished them. The mock driver's marks are its events.
    """

    fill_units: Sequence[int] = (1,)
    around_calls: Callable[[], Scope] | None = None

    def __init__(self, device: Device, handle: int, owner: object | None) -> None:
        self.device: hooks.Device = device
        self.current: Callable[[], Scope] = device.current
        self.relaxed: Callable[[], Scope] = device.current
        self.handle: int = handle
        self.owner = owner
        self.ordering: Literal["device", "shared", "held"] = device.driver.ordering(device.ordinal)
        self.calls = device.driver.queue_calls
        self._driver = device.driver

    def _do(self, doing: str, name: str, *arguments: int) -> Calls:
        if self.ordering != "device":
            return [(self._driver.address(name), *arguments)]
        self._driver.call(doing, name, *arguments)
        return None

    def new_mark(self, doing: str) -> int:
        return self._driver.made(doing, "mark_create")

    def mark(self, doing: str, mark: int) -> Calls:
        return self._do(doing, "mark_record", mark, self.handle)

    def query(self, doing: str, mark: int) -> bool:
        return self._driver.call(doing, "mark_query", mark)

    def busy(self, doing: str) -> bool:
        return not self._driver.call(doing, "stream_query", self.handle)

    def check_device(self, doing: str) -> None:
        self._driver.call(doing, "device_check", self.device.ordinal)

    def new_stamp(self, doing: str) -> None:
        return None  # the driver does not time its work

    def copy(self, doing: str, dst: int, src: int, nbytes: int) -> Calls:
        return self._do(doing, "copy", self.handle, dst, src, nbytes)

    def fill(self, doing: str, dst: int, pattern: bytes, times: int) -> Calls:
        return self._do(doing, "fill", self.handle, dst, pattern[0], times)

    def wait_native(self, doing: str, event: MockEvent) -> Calls:
        return self._do(doing, "host", *host_call(self.handle, event.function))

    def record_native(self, doing: str) -> NativeEvent:
        raise FeatureNotSupportedError("this device has no driver events to share: use xs.ipc.event.get")

    def destroy(self, marks: Sequence[int]) -> None:
        for mark in marks:
            quietly(self._driver.call, "", "mark_destroy", mark)
        if self.owner is None:
            quietly(self._driver.call, "", "stream_destroy", self.handle)
        else:
            self.owner = ()
