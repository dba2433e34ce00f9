"""Determines how the queues of a device complete signals of events and wait for them, by trying the driver's
functions.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, NamedTuple, Protocol

from xpushare import _native
from xpushare.adapters.host.memory import page_of_memfd
from xpushare.adapters.level_zero import _bindings as ze
from xpushare.adapters.level_zero import _numbers as n
from xpushare.adapters.level_zero._driver import Driver, Platform
from xpushare.adapters.level_zero._numbers import Code, Handle
from xpushare.adapters.stream.hooks import Device, QueueCalls
from xpushare.adapters.stream.library import address_of
from xpushare.adapters.stream.slot_pages import unreach
from xpushare.common.errors import XpuShareError

__all__ = ["Words", "try_words"]

_STORE: Final = "zexCommandListAppendWriteToMemory"
_WAIT: Final = {64: "zexCommandListAppendWaitOnMemory64", 32: "zexCommandListAppendWaitOnMemory"}
_HOST: Final = "zeCommandListAppendHostFunction"
_TRIED: Final = 0x123456789ABCDEF0  # these bits show a half-written or torn store
_SECOND: Final = 10**9  # the longest time of a trial, in nanoseconds

# Read by the driver when native code calls it.
_to_host: Final = ze.zex_write_to_mem_desc_t(n.SCOPE_HOST)
_at_least: Final = ze.zex_wait_on_mem_desc_t(n.WAIT_AT_LEAST, n.SCOPE_HOST)
_refuse: Final = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)(
    lambda _function, _data: Code.UNSUPPORTED_FEATURE
)
_called: Final[list[object]] = []  # host functions of trials, which a driver may call late
_refused: Final = ctypes.cast(_refuse, ctypes.c_void_p).value or 0


class Words(NamedTuple):
    """Addresses of the driver's functions that complete signals of events and wait for them. An address is 0 if the
    function did not work on the device.
    """

    host: int = 0
    host_name: str = ""
    store: int = 0
    wait: int = 0
    wait_bits: int = 64
    registered: bool = True  # the driver must be told about the pages first
    lacking: str = ""  # why the device has no events
    slower: str = ""  # what it lacks for the fastest route, and the route that it uses

    def how(self) -> str:
        if self.slower:
            return f"the driver lacks {self.slower}"
        return f"tried: the device stores points, and queues wait on it ({self.wait_bits} bits)"

    def calls(self, handle: int, raw: int, copy: int, fill: int) -> QueueCalls:
        """Return the calls that native code makes on a command list. `handle` is the handle that the loader knows, and
        `raw` is the handle that the driver knows. `copy` and `fill` are functions of the loader.
        """
        function: tuple[int, tuple[int | str, ...]] = (_refused, ("function", "data"))
        if self.host:
            of_loader = self.host_name in ze.FUNCTIONS
            function = (self.host, (handle if of_loader else raw, "function", "data", 0, 0, 0, 0))
        store = (self.store, (raw, address_of(_to_host), "address", "point")) if self.store else None
        value = "point" if self.wait_bits == 64 else "point_low"
        wait = (self.wait, (raw, address_of(_at_least), "address", value, 0)) if self.wait else None
        native: Any = _native.QueueCalls
        made = native(
            function,
            store,
            wait,
            wait_bits=self.wait_bits,
            copy=(copy, ("queue", "to", "from", "nbytes", 0, 0, 0)),
            fills=((fill, ("queue", "to", "value_at", 1, "times", 0, 0, 0)),),
        )
        return QueueCalls(made, self.host_name, _STORE, _WAIT[self.wait_bits])


class _Gpu(Device, Protocol):
    """The members of a device that `try_words` needs to test the driver's functions."""

    platform: Platform
    driver: Driver[Any]

    @property
    def counter_max(self) -> int: ...
    def new_list(self, doing: str) -> int: ...


def try_words(gpu: _Gpu) -> Words:
    """Test the driver's write and wait functions on a command list and a page that are made for the test. Never raises.
    If a function fails, the result contains the reason.
    """
    try:
        with ExitStack() as undo:
            return _try(gpu, undo)
    except (XpuShareError, OSError) as error:
        return Words(lacking=f"a trial that works: {error}")


def _try(gpu: _Gpu, undo: ExitStack) -> Words:
    doing = f"trying events on {gpu}"
    driver, platform = gpu.driver, gpu.platform
    handle = gpu.new_list(doing)
    undo.callback(driver.code, "zeCommandListDestroy", handle)
    raw = driver.raw(doing, Handle.COMMAND_LIST, handle)
    page = page_of_memfd()
    at = page.address + page.nbytes // 2 + 8  # not at the start, where Intel's driver stores whatever the address
    word = ctypes.c_uint64.from_address(at)

    def works(name: str, function: int, *arguments: Any) -> str:
        """Return "" if the driver accepted the call and the command ran, otherwise the reason."""
        kinds = ze.EXTENSIONS.get(name) or ze.FUNCTIONS[name][1]
        code = ctypes.CFUNCTYPE(ctypes.c_uint32, *kinds)(function)(*arguments)
        if not code:
            code = driver.code("zeCommandListHostSynchronize", handle, _SECOND)
        return f"it answers {ze.RESULTS.get(code, hex(code))}" if code else ""

    found = Words(lacking=_HOST)
    for name in (_HOST, "zexCommandListAppendHostFunction"):
        of_loader = name in ze.FUNCTIONS
        host = driver.address(name) if of_loader else platform.extension(name)
        ran: list[object] = []
        callback = ze.HOST_FUNCTION(ran.append)
        _called.append(callback)
        arguments = (ctypes.cast(callback, ctypes.c_void_p), 1, None, None, 0, None)
        why = works(name, host, handle if of_loader else raw, *arguments) if host else "it is missing"
        if ran and not why:
            found = Words(host, name)
            break
        found = Words(lacking=f"functions of the host in order ({name}: {why or 'it did not run'})")
    if found.lacking:
        return found
    store = platform.extension(_STORE)
    if not platform.host_route or not store:
        missing = _STORE if platform.host_route else "a way to use the host's pages in place"
        return found._replace(slower=f"{missing}: host functions complete points")
    why = ""
    for registered in (True, False):
        with ExitStack() as undo:
            if registered:
                gpu.reach(doing, page.address, page.nbytes, False)
                undo.callback(unreach, gpu, doing, page)
            why = works(_STORE, store, raw, address_of(_to_host), at, _TRIED)
            if not why and word.value == _TRIED:
                return _try_wait(gpu, found._replace(store=store, registered=registered), works, raw, at)
            why = why or f"it wrote {word.value:#x}"
    return found._replace(slower=f"a {_STORE} that works ({why}): host functions complete points")


def _try_wait(gpu: _Gpu, found: Words, works: Callable[..., str], raw: int, at: int) -> Words:
    """Try the wait function on a word that is already past the awaited number, so it must return at once."""
    why = ""
    for bits in (64, 32) if gpu.counter_max > 0xFFFFFFFF else (32,):
        wait = gpu.platform.extension(_WAIT[bits])
        why = works(_WAIT[bits], wait, raw, address_of(_at_least), at, 2, None) if wait else "it is missing"
        if not why:
            return found._replace(wait=wait, wait_bits=bits)
    return found._replace(slower=f"a {_WAIT[32]} that works ({why}): queues hold what waits")
