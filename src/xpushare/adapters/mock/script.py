"""The driver of the software stream device (`mock`). It follows a script, which determines the calls that fail and the
calls that stall.

Memory operations are system calls, made through `Calls`. Streams are threads of `software_streams.c`, whose functions
have the names of `STREAM_CALLS`.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from xpushare import _native
from xpushare.adapters.host.memory import Calls
from xpushare.adapters.stream.hooks import Codes, QueueCalls
from xpushare.common.errors import DeviceError, XpuShareError
from xpushare.common.leaving import Stage, at_leave

__all__ = ["CODES", "LIBRARY", "STREAM_CALLS", "ScriptedDriver", "driver"]

LIBRARY: Final = Path(__file__).with_name("software_streams.so")
STREAM_CALLS: Final = (
    *("stream_create", "stream_destroy", "stream_query", "store64", "wait64_geq", "host", "captured", "copy", "fill"),
    *("mark_create", "mark_destroy", "mark_record", "mark_query", "register", "unregister"),
    *("device_check", "device_synchronize"),
)
CODES: Final = Codes(
    out_of_memory=frozenset({2}),
    unsupported=frozenset({8}),
    fatal=frozenset({70}),
    captured=frozenset({90}),
    advice={70: "end this process"},
)
_NAMES: Final = {2: "MOCK_OUT_OF_MEMORY", 8: "MOCK_UNSUPPORTED", 70: "MOCK_DEVICE_LOST", 90: "MOCK_CAPTURED"}
_NOT_READY: Final = 600


class ScriptedDriver(Calls):
    """Makes the calls of the mock driver, counts the calls, and applies the script to each call."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._failures: dict[str, tuple[int, BaseException]] = {}
        self._stalls: dict[str, threading.Event] = {}
        self._beside: dict[int, tuple[int, Literal["device", "shared", "held"]]] = {}

    # --- memory ----------------------------------------------------------------------------------------------

    def __call__(self, name: str, *arguments: Any) -> Any:
        with self._lock:
            self._counts[name] += 1
            number = self._counts[name]
            at, error = self._failures.get(name, (-1, None))
            stall = self._stalls.get(name)
        if stall is not None:
            stall.wait()
        if error is not None and at in (number, 0):
            raise error
        return super().__call__(name, *arguments)

    # --- streams ---------------------------------------------------------------------------------------------

    @functools.cached_property
    def library(self) -> ctypes.CDLL:
        library = ctypes.CDLL(str(LIBRARY))
        at_leave(lambda _deadline: library.ss_exit(), Stage.STOP)  # before the memory in use is unmapped
        return library

    def address(self, name: str) -> int:
        """Return the function's address, for native code."""
        found = ctypes.cast(getattr(self.library, f"ss_{name}"), ctypes.c_void_p).value
        assert found is not None
        return found

    @functools.cached_property
    def queue_calls(self) -> QueueCalls:
        return self.new_queue_calls(0)

    def new_queue_calls(self, budget: int) -> QueueCalls:
        """Make the object through which queues call the driver. At most `budget` streams wait at the same time for
        signals that may never come. If `budget` is 0, any number of streams may wait.
        """
        word: Final = ("queue", "address", "point")
        native = _native.QueueCalls(
            (self.address("host"), ("queue", "function", "data")),
            (self.address("store64"), word),
            (self.address("wait64_geq"), word),
            (self.address("captured"), ("queue", "status_out")),
            budget=budget,
            copy=(self.address("copy"), ("queue", "to", "from", "nbytes")),
            fills=((self.address("fill"), ("queue", "to", "value", "times")),),
        )
        others = {self.address(name): name for name in ("copy", "fill", "mark_record", "host")}
        return QueueCalls(native, "host", "store64", "wait64_geq", "captured", others)

    def error(self, doing: str, call: str, code: int) -> XpuShareError:
        return CODES.error(doing, call, _NAMES.get(code, "MOCK_ERROR"), code)

    def call(self, doing: str, name: str, *arguments: int) -> bool:
        """Call a function of the driver. Return False if the call queries a state and the driver answers "not ready",
        otherwise True. Raises if the call fails.
        """
        code = getattr(self.library, f"ss_{name}")(*map(ctypes.c_uint64, arguments))
        if code not in (0, _NOT_READY):
            raise self.error(doing, name, code)
        return bool(code == 0)

    def made(self, doing: str, name: str, *arguments: int) -> int:
        """Call a function of the driver that creates an object. Return the number of the new object."""
        made = ctypes.c_uint64()
        self.call(doing, name, *arguments, ctypes.addressof(made))
        return made.value

    def new_stream(self, doing: str, ordinal: int) -> int:
        return self.made(doing, "stream_create", ordinal, self._beside.get(ordinal, (0, ""))[0])

    def ordering(self, ordinal: int) -> Literal["device", "shared", "held"]:
        """Return the ordering of streams that are created on a device later: the way in which they wait for signals of
        events. docs/architecture.md describes the three orderings.
        """
        return self._beside[ordinal][1] if ordinal in self._beside else "held" if ordinal else "device"

    # --- the script ------------------------------------------------------------------------------------------

    @property
    def counts(self) -> Counter[str]:
        """How often each call was made."""
        return self._counts + Counter({name: self.library.ss_calls(name.encode()) for name in STREAM_CALLS})

    def fail(self, name: str, error: BaseException | None = None, *, nth: int = 1) -> None:
        """Make the `nth` call of `name` from now on (0: every call) raise `error`. By default, it raises `DeviceError`
        with mock's code 1. Calls on streams return the error's code.
        """
        failure = error or DeviceError(f"{name}: MOCK_ERROR (1), as the script says", native=1)
        if name in STREAM_CALLS:
            self.library.ss_rule(name.encode(), nth, getattr(failure, "native", None) or 1, 0)
        with self._lock:
            self._failures[name] = (nth and self._counts[name] + nth, failure)

    @contextmanager
    def stall(self, name: str) -> Generator[None]:
        """Keep calls of `name` from returning until the `with` block ends."""
        release = threading.Event()
        with self._lock:
            self._stalls[name] = release
        if name in STREAM_CALLS:
            self.library.ss_rule(name.encode(), 0, 0, 1)
        try:
            yield
        finally:
            with self._lock:
                del self._stalls[name]
            release.set()
            self.library.ss_go(name.encode())

    @contextmanager
    def shared_hardware(
        self, ordinal: int, ordering: Literal["device", "shared", "held"] = "shared"
    ) -> Generator[None]:
        """Context manager. New streams of the device that are created inside share one hardware queue, on which a
        waiting stream blocks the others.
        """
        first = self.new_stream("sharing hardware", ordinal)
        self._beside[ordinal] = first, ordering
        try:
            yield
        finally:
            del self._beside[ordinal]
            self.library.ss_stream_destroy(ctypes.c_uint64(first))

    def reset(self) -> None:
        """Remove the failures from the script, and set the counts to 0."""
        with self._lock:
            self._failures.clear()
            self._counts.clear()
        self.library.ss_forget()


_driver = ScriptedDriver()


def driver() -> ScriptedDriver:
    """Return the scripted driver of this process."""
    return _driver
