"""Pools of this package's memory, from which other libraries allocate their arrays. A pool can be put to sleep, which
frees its device memory for other uses.
"""

from __future__ import annotations

import abc
import threading
import weakref
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import xpushare as xs
from xpushare._native import forks
from xpushare.adapters.base import DriverPool, Piece
from xpushare.arrays.keep import handed_over
from xpushare.core import memory
from xpushare.core.device import adapter_of, info_of, require
from xpushare.core.memory import Range
from xpushare.core.resources import Allocation
from xpushare.sharing import layout, node

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Pool"]


class _Copied(NamedTuple):
    """A piece of the pool's memory whose content was saved, and the offset of the saved bytes in host memory."""

    piece: Piece
    to: Range
    at: int


class Pool(abc.ABC):
    """Device memory from which another library allocates its arrays. All of the memory belongs to this process, and
    goes back to the driver when the library frees it.
    """

    def __init__(self, device: Any) -> None:
        self.device: xs.Device = xs.Device(str(device))
        for aspect in xs.Aspect.ext_oneapi_virtual_mem, xs.Aspect.ext_oneapi_ipc_memory:
            require(self.device, aspect)
        self._driver: DriverPool = adapter_of(self.device).pool(info_of(self.device))
        self._forks = forks()
        self._lock = threading.RLock()
        self._entered = threading.local()
        self._asleep = False
        self._content: list[_Copied] = []
        weakref.finalize(self, _release, self._driver, self._forks)

    @abc.abstractmethod
    def _using(self) -> AbstractContextManager[object]:
        """Return a context in which the library allocates from this pool, on this thread."""

    @abc.abstractmethod
    def _capturing(self) -> bool:
        """Return whether the library's current stream is capturing a graph."""

    @abc.abstractmethod
    def empty_cache(self) -> None:
        """Free memory that the library has cached and that no array uses."""

    def __enter__(self) -> Self:
        """Allocate this thread's new arrays on the device from the pool until the end of the block. `with` blocks may
        be nested.

        Raises `InvalidArgumentError` while the pool sleeps, and `ForkError` in a forked child.
        """
        self._expect_awake()
        using = self._using()
        using.__enter__()
        self._entered.__dict__.setdefault("blocks", []).append(using)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.blocks.pop().__exit__(kind, error, trace)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that the pool holds now. The value is 0 while the pool sleeps."""
        self._expect_own()
        return 0 if self._asleep else sum(each.nbytes for each in self._driver.pieces())

    @property
    def asleep(self) -> bool:
        """Whether `sleep` has released the pool's device memory and `wake` has not restored it yet."""
        return self._asleep

    def _expect_own(self) -> None:
        if self._forks != forks():
            raise xs.ForkError(f"this pool {memory.FORK_ADVICE}")

    def _expect_awake(self) -> None:
        self._expect_own()
        if self._asleep:
            raise xs.InvalidArgumentError("this pool sleeps: wake it first")

    def sleep(self, keep: bool = False) -> None:
        """Give the memory back to the device, while all arrays keep their addresses.

        This withdraws the handles of everything in the pool, and waits for all work that was submitted to the
        device. Until `wake`, work on the arrays, or a replay of a graph that uses them, causes a device
        fault.

        Args:
            keep: Copies the content to page-locked host memory. Without it the content is lost.

        Raises:
            InvalidArgumentError: Another process or the keeper holds some of the memory, the current stream is
                capturing a graph, or the pool sleeps already.
            OutOfMemoryError: There is not enough host memory for the content.
            ForkError: The pool belongs to the parent of this process.
            DeviceError: The driver failed.
        """
        with self._lock:
            self._expect_awake()
            if self._capturing():
                raise xs.InvalidArgumentError("a pool does not go to sleep while a graph is captured: end the capture")
            pieces = self._driver.pieces()
            self._withdraw(pieces)
            self._content = self._copied(pieces) if keep else []
            self._asleep = True  # before anything else, since `wake` repairs a failure from here on
            self._driver.sleep()

    def wake(self) -> None:
        """Allocate device memory for the pool's arrays again, at the same addresses as before. After `sleep(keep=True)`
        the content is restored. Otherwise it is unspecified.

        Raises:
            OutOfMemoryError: The device has too little memory. The pool stays asleep.
            InvalidArgumentError: The pool does not sleep.
            ForkError: The pool belongs to the parent of this process.
            DeviceError: The driver failed.
        """
        with self._lock:
            self._expect_own()
            if not self._asleep:
                raise xs.InvalidArgumentError("this pool does not sleep")
            self._driver.wake()
            there = {each.address for each in self._driver.pieces()}  # the library may have freed some in the meantime
            content = [each for each in self._content if each.piece.address in there]
            self._copy([(each.piece.address, each.to.address + each.at, each.piece.used) for each in content])
            self._content, self._asleep = [], False

    def _withdraw(self, pieces: list[Piece]) -> None:
        """Withdraw all handles of the pool's memory. Raises `InvalidArgumentError` if the keeper or another process
        holds some of the memory.
        """

        def inside(source: object) -> bool:
            if not isinstance(source, Allocation) or source.device != self.device:
                return False
            return any(each.address <= source.address < each.address + each.nbytes for each in pieces)

        if any(inside(each.allocation) for each in handed_over()):
            raise xs.InvalidArgumentError(
                "the keeper has memory of this pool, which publish(keep=True) handed over: it stays on the device"
            )
        table = node.current().table_if_any
        if table is None:
            return
        table.withdraw_all([each.handle for each in table.exports() if inside(each.source)], layout.REASON_PUT)
        if users := table.users(inside):
            pids = sorted(each for each in users if each)
            who = f"process {', '.join(map(str, pids))}" if pids else "another process"
            raise xs.InvalidArgumentError(
                f"memory of this pool is open in {who}: close it there, then let the pool sleep"
            )

    def _copied(self, pieces: list[Piece]) -> list[_Copied]:
        """Copy the memory that the library uses to host memory. Returns the location of each copy."""
        total = sum(each.used for each in pieces)
        if not total:
            return []
        to = memory.allocate("host", total, self.device, None, False)
        self._driver.drain()  # before one of our streams reads it
        content, at = [], 0
        for each in pieces:
            if each.used:
                content.append(_Copied(each, to, at))
                at += each.used
        self._copy([(to.address + each.at, each.piece.address, each.piece.used) for each in content])
        return content

    def _copy(self, pairs: list[tuple[int, int, int]]) -> None:
        """Copy memory between the device and the host, and wait for the copies. Each item of `pairs` is a target
        address, a source address and a number of bytes.
        """
        if not pairs:
            return
        queue = adapter_of(self.device).queue(info_of(self.device))
        try:
            for to, from_, nbytes in pairs:
                queue.copy(to, from_, nbytes, self)
            queue.synchronize(None)
        finally:
            queue.release()

    def __repr__(self) -> str:
        state = ", asleep" if self._asleep else ""
        return f"<Pool on {self.device}{state}>"


def _release(driver: DriverPool, forked: int) -> None:
    if forked == forks():
        driver.release()
