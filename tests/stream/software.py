"""A driver of software streams behind the engine's hooks: each runs on a thread, over host memory."""

# ruff: noqa: ARG002 - hooks take more than this driver needs
from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from xpushare import _native
from xpushare._errors import FeatureNotSupportedError, XpuShareError
from xpushare.adapters.stream.hooks import Calls, Codes, QueueCalls

CODES = Codes(
    out_of_memory=frozenset({2}),
    unsupported=frozenset({8}),
    fatal=frozenset({70}),
    captured=frozenset({90}),
    wrong_size=frozenset({1}),
    advice={70: "end this process"},
)


HOST = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
STATUS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_int))


class Device:
    """A device over host memory, which records what it is asked for."""

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self.codes = CODES
        self.log: list[tuple[Any, ...]] = []
        self.reachable: set[int] = set()  # addresses
        self.drained = threading.Event()  # cleared: draining does not return
        self.drained.set()
        self.fail: dict[str, int] = {}
        self.used = True
        self.peers = {0, 1}

    def __str__(self) -> str:
        return f"device {self.ordinal}"

    def _do(self, doing: str, name: str, *arguments: Any) -> None:
        if name in self.fail:
            raise self.error(doing, name, self.fail[name])
        self.log.append((name, *arguments))

    def error(self, doing: str, call: str, code: int) -> XpuShareError:
        return CODES.error(doing, call, f"ERROR_{code}", code)

    def current(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def active(self) -> bool:
        return self.used

    def lacking(self, feature: str) -> str:
        return ""

    def drain(self) -> None:
        self.drained.wait()
        self._do("draining", "drain")

    def reach(self, doing: str, address: int, nbytes: int, read_only: bool) -> None:
        self._do(doing, "reach", nbytes, read_only)
        self.reachable.add(address)

    def reached(self, doing: str, address: int) -> int:
        self._do(doing, "reached")
        return address

    def unreach(self, doing: str, address: int) -> None:
        self._do(doing, "unreach")
        self.reachable.remove(address)

    # what peer access needs of virtual memory
    def reaches(self, location: int) -> bool:
        return location in self.peers

    def set_access(self, doing: str, address: int, nbytes: int, ordinals: Sequence[int], access: str) -> None:
        self._do(doing, "set_access", address, nbytes, tuple(ordinals), access)


class Stream:
    """An in-order stream on a thread. Where it holds operations its hooks return calls, else they make them."""

    fill_units = (1, 4)
    around_calls = None

    def __init__(self, device: Device, ordering: str = "device", owner: object | None = None) -> None:
        self.device: Any = device
        self.handle = 7
        self.ordering: Any = ordering
        self.owner = owner
        self.work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.queued = self.done = 0
        self.names: list[str] = []  # of what was queued
        self.codes: dict[str, int] = {}  # what a function answers instead of queueing
        self.capturing = False
        self.destroyed = threading.Event()
        self.marks: dict[int, bool] = {}  # whether each is reached
        self.functions = {
            "store": self._function("store", 4, lambda _q, at, point, _z: _native.store64(at, point)),
            "wait": self._function("wait", 4, lambda _q, at, point, _z: self._poll(at, point)),
            "host": self._function("host", 3, lambda _q, function, data: HOST(function)(data)),
            "copy": self._function("copy", 3, _native.copy),
            "fill": self._function("fill", 4, self._fill),
            "mark": self._function("mark", 1, lambda mark: self.marks.__setitem__(mark, True)),
            "captured": STATUS(self._captured),
        }
        word = ("queue", "address", "point", 0)
        native = _native.QueueCalls(
            (self._address("host"), ("queue", "function", "data")),
            (self._address("store"), word),
            (self._address("wait"), word) if ordering == "device" else None,
            (self._address("captured"), ("queue", "status_out")),
        )
        others = {self._address(name): name for name in ("copy", "fill", "mark")}
        self.calls = QueueCalls(native, "host", "store", "wait", "captured", others)
        threading.Thread(target=self._run, daemon=True).start()

    def _function(self, name: str, count: int, run: Callable[..., object]) -> Any:
        """As C calls it: queues `run`."""
        made = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * count)
        return made(lambda *arguments: self._queue(name, lambda: run(*arguments)))

    def _address(self, name: str) -> int:
        found = ctypes.cast(self.functions[name], ctypes.c_void_p).value
        assert found is not None
        return found

    def _captured(self, _stream: int, status: Any) -> int:
        status[0] = int(self.capturing)
        return 0

    def _queue(self, name: str, run: Callable[[], object]) -> int:
        if name in self.codes:
            return self.codes[name]
        self.names.append(name)
        self.queued += 1
        self.work.put(run)
        return 0

    @staticmethod
    def _fill(dst: int, pattern: int, length: int, times: int) -> None:
        ctypes.memmove(dst, pattern.to_bytes(8, "little")[:length] * times, length * times)

    def _poll(self, at: int, point: int) -> None:
        while _native.load64(at) < point:
            time.sleep(0.0002)

    def _run(self) -> None:
        while True:
            self.work.get()()
            self.done += 1

    def _call(self, doing: str, name: str, *arguments: int) -> Calls:
        if self.ordering != "device":
            return [(self._address(name), *arguments)]
        code = self.functions[name](*arguments)
        if code:
            raise self.device.error(doing, name, code)
        return None

    def current(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    relaxed = current

    def new_mark(self, doing: str) -> int:
        mark = len(self.marks) + 1
        self.marks[mark] = False
        return mark

    def mark(self, doing: str, mark: int) -> Calls:
        self.marks[mark] = False
        return self._call(doing, "mark", mark)

    def query(self, doing: str, mark: int) -> bool:
        return self.marks[mark]

    def busy(self, doing: str) -> bool:
        return self.done < self.queued

    def check_device(self, doing: str) -> None:
        if "device" in self.codes:
            raise self.device.error(doing, "check", self.codes["device"])

    def copy(self, doing: str, dst: int, src: int, nbytes: int) -> Calls:
        return self._call(doing, "copy", dst, src, nbytes)

    def fill(self, doing: str, dst: int, pattern: bytes, times: int) -> Calls:
        return self._call(doing, "fill", dst, int.from_bytes(pattern, "little"), len(pattern), times)

    def wait_native(self, doing: str, event: Any) -> Calls:
        raise FeatureNotSupportedError("these streams know no events")

    def record_native(self, doing: str) -> Any:
        raise FeatureNotSupportedError("these streams know no events")

    def destroy(self, marks: Sequence[int]) -> None:
        for mark in marks:
            del self.marks[mark]
        self.destroyed.set()
