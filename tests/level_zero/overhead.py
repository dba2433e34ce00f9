"""What this package costs over bare calls by ctypes: open and close of another process's memory, signal and wait.
`scripts/level_zero overhead` runs it on each driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable
from ctypes import byref, c_uint32, c_uint64, c_void_p
from typing import Final

from bare import Bare

import xpushare as xs
from harness import Child, kept
from xpushare import _native, adapters
from xpushare.adapters.level_zero import _bindings as ze
from xpushare.adapters.level_zero._adapter import LevelZero
from xpushare.bench.measure import alternate, spread

DEVICE: Final = "level_zero:0"
NBYTES: Final = 8 << 20
SAMPLES: Final = 100
SECOND: Final = 10**9  # nanoseconds
STORE: Final = "zexCommandListAppendWriteToMemory"
COMMAND_LIST: Final = 4  # ZEL_HANDLE_COMMAND_LIST
HOST_SCOPE: Final = 4  # ZEX_MEM_ACTION_SCOPE_FLAG_HOST


def level_zero() -> LevelZero:
    found = adapters.adapter("level_zero")
    assert isinstance(found, LevelZero)
    return found


def export() -> tuple[str, int, int]:
    """A handle of memory of this process; its pid, and the descriptor of as much memory for who opens it by hand."""
    kept["memory"] = xs.malloc_device(NBYTES, DEVICE)
    kept["other"] = level_zero().allocate(level_zero().devices()[0], "device", NBYTES)
    return str(xs.ipc.memory.get(kept["memory"])), os.getpid(), kept["other"].export(False).fds[0]


class ByHand:
    """The same, by as few calls as it takes."""

    def __init__(self, pid: int, fd: int) -> None:
        self._pid, self._fd = pid, fd
        self._bare = bare = Bare()
        self._list, self._event = c_void_p(), c_void_p()
        ordinal = 1 if os.environ["XPUSHARE_LEVEL_ZERO"] == "neo" else 0
        queue = ze.ze_command_queue_desc_t(ordinal=ordinal, flags=2, mode=2)  # in-order, asynchronous
        bare("zeCommandListCreateImmediate", bare.context, bare.device, byref(queue), byref(self._list))
        event = ze.ze_event_counter_based_desc_t(flags=1 | 4, signal=4, wait=4)  # immediate, visible to the host
        bare("zeEventCounterBasedCreate", bare.context, bare.device, byref(event), byref(self._event))
        self._wait = ctypes.CDLL(ze.LIBRARY).zeEventHostSynchronize
        self._wait.argtypes = (c_void_p, c_uint64)
        pointer = c_void_p()
        bare("zeDriverGetExtensionFunctionAddress", bare.driver, STORE.encode(), byref(pointer))
        self._store = ctypes.CFUNCTYPE(c_uint32, *ze.EXTENSIONS[STORE])(pointer.value or 0)
        raw = c_void_p()  # the driver's own handle: the loader does not know the function
        bare("zelLoaderTranslateHandle", COMMAND_LIST, self._list, byref(raw))
        self._raw, self._scope, self._at = raw, ze.zex_write_to_mem_desc_t(HOST_SCOPE), bare.host(64)
        self._word, self._point = c_uint64.from_address(self._at.value or 0), 0

    def open_and_close(self) -> None:
        bare, context = self._bare, self._bare.context
        pidfd = os.pidfd_open(self._pid)
        fd = _native.OwnedFd.fetched(pidfd, self._fd).take()
        os.close(pidfd)
        assert os.lseek(fd, 0, os.SEEK_END) == NBYTES  # the driver would take any size
        physical, address = c_void_p(), c_void_p()
        given = ze.ze_external_memory_import_fd_t(flags=2, fd=fd)
        memory = ze.ze_physical_mem_desc_t(given, flags=1, size=NBYTES)
        bare("zePhysicalMemCreate", context, bare.device, byref(memory), byref(physical))
        bare("zeVirtualMemReserve", context, None, NBYTES, byref(address))
        bare("zeVirtualMemMap", context, address, NBYTES, physical, 0, 0)
        bare("zeVirtualMemSetAccessAttribute", context, address, NBYTES, 1)
        bare("zeVirtualMemUnmap", context, address, NBYTES)
        bare("zeVirtualMemFree", context, address, NBYTES)
        bare("zePhysicalMemDestroy", context, physical)
        with contextlib.suppress(OSError):
            os.close(fd)  # Intel's driver has

    def signal_and_wait(self) -> None:
        self._bare("zeCommandListAppendSignalEvent", self._list, self._event)
        assert self._wait(self._event, 10 * SECOND) == 0

    def store(self) -> None:
        """What a point is to a device; the driver completes an event of an idle list without the device."""
        self._point += 1
        assert self._store(self._raw, byref(self._scope), self._at, self._point) == 0
        self._bare("zeCommandListHostSynchronize", self._list, 10 * SECOND)
        assert self._word.value == self._point


def timed(call: Callable[[], object], trims: bool) -> Callable[[], float]:
    """Samples of `call` in us. What it leaves to a thread is over before the next one, and with `trims` what it keeps
    for a moment is given up.
    """

    def sample() -> float:
        start = time.perf_counter_ns()
        call()
        took = (time.perf_counter_ns() - start) / 1000
        if trims:
            xs.trim()
        level_zero().engine.teardown.settle(10)
        return took

    return sample


def show(name: str, ours: Callable[[], object], theirs: Callable[[], object], trims: bool = False) -> None:
    """A line about both, which take turns."""
    found = [spread(samples) for samples in alternate(SAMPLES, timed(ours, trims), timed(theirs, False))]
    texts = [f"{each.median:.1f} ({each.low:.1f} to {each.high:.1f})" for each in found]
    print(f"{name:34}{texts[0]:>26}{texts[1]:>26}{found[0].median / found[1].median:8.2f}", flush=True)


def main() -> None:
    with Child() as child, xs.Queue(DEVICE) as queue, xs.Event(DEVICE, enable_ipc=True) as event:
        handle, pid, fd = child.call(export)
        by_hand = ByHand(pid, fd)

        def signal_and_wait() -> None:
            queue.signal(event)
            event.wait(10)

        def open_and_close() -> None:
            xs.ipc.memory.open(handle).close()

        print(f"{'us, median and quartiles':34}{'this package':>26}{'bare calls':>26}{'ratio':>8}")
        show("open and close", open_and_close, by_hand.open_and_close, trims=True)
        show("  again, within a moment", open_and_close, by_hand.open_and_close)
        with xs.ipc.memory.open(handle):
            show("  of what is open already", open_and_close, by_hand.open_and_close)
        show("signal and wait", signal_and_wait, by_hand.signal_and_wait)
        show("  bare: a store", signal_and_wait, by_hand.store)


if __name__ == "__main__":
    main()
