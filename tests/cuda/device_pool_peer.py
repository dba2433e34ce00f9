"""Arrays in a pool, as torch and CuPy make them: what runs in the children of `test_device_pools`."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import xpushare as xs
from harness import kept
from xpushare.integrations import _pools

__all__ = [
    "Array", "Pool", "captures", "close_handle", "content", "find", "freed_while_asleep", "in_a_fork", "keep_them",
    "make", "open_it", "sleeping", "states", "withdrawn",
]  # fmt: skip


class Pool(_pools.Pool):
    """A library that calls the driver's functions as torch does."""

    capturing = False
    using = 0

    def allocate(self, nbytes: int) -> int:
        return int(self.function(0, ctypes.c_void_p)(nbytes, self.device.ordinal, None) or 0)

    def free(self, address: int) -> None:
        self.function(1, None)(address, 0, self.device.ordinal, None)

    def function(self, which: int, result: Any) -> Any:
        library = ctypes.CDLL(self._driver.library)
        first: Any = ctypes.c_void_p if which else ctypes.c_ssize_t
        rest = (ctypes.c_ssize_t,) * which
        kind = ctypes.CFUNCTYPE(result, first, *rest, ctypes.c_int, ctypes.c_void_p)
        return ctypes.cast(getattr(library, self._driver.functions[which]), kind)

    def _capturing(self) -> bool:
        return self.capturing

    def empty_cache(self) -> None:
        """It keeps nothing."""

    @contextmanager
    def _using(self) -> Iterator[None]:
        self.using += 1
        yield
        self.using -= 1


class Array:
    """An array of a library, which frees its memory when it dies."""

    def __init__(self, pool: Pool, nbytes: int) -> None:
        self.pool, self.nbytes, self.address = pool, nbytes, pool.allocate(nbytes)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    def fill(self, value: int) -> None:
        ctypes.memset(self.address, value, self.nbytes)

    def bytes(self) -> set[int]:
        return {*ctypes.string_at(self.address, self.nbytes)}

    def __del__(self) -> None:
        self.pool.free(self.address)


def make(sizes: list[int]) -> tuple[str, int]:
    """Fill the n-th of so many arrays with n + 1. Returns the handle of all, and in how many allocations they lie."""
    pool = kept["pool"] = Pool("cuda:0")
    arrays = kept["arrays"] = [Array(pool, nbytes) for nbytes in sizes]
    for number, each in enumerate(arrays, 1):
        each.fill(number)
    handle = kept["handle"] = xs.share(arrays)
    return str(handle), len(handle.handles)


def close_handle() -> None:
    kept.pop("handle").close()


def content() -> list[set[int]]:
    return [each.bytes() for each in kept["arrays"]]


def open_it(handle: str, own: bool = False) -> list[set[int]]:
    """The bytes of each array."""
    found = kept["opened"] = xs.attach(handle, own=own)
    return [{*ctypes.string_at(each.__cuda_array_interface__["data"][0], each.nbytes)} for each in found]


def find(name: str) -> list[set[int]]:
    return open_it(str(xs.lookup(name, timeout=0)))


def withdrawn() -> str:
    """What becomes of a second opening of a handle."""
    kept.pop("opened", None)
    try:
        xs.attach(str(kept["handle"]))
    except xs.HandleExpiredError as error:
        return str(error)
    return ""


def sleeping(keep: bool) -> str:
    """Why the pool does not sleep; else "", and it has slept."""
    pool, addresses = kept["pool"], [each.address for each in kept["arrays"]]
    nbytes = pool.nbytes
    try:
        pool.sleep(keep)
    except xs.XpuShareError as error:
        return str(error)
    assert (pool.asleep, pool.nbytes) == (True, 0)
    assert not pool.allocate(64)  # while it sleeps it has no memory for anybody
    try:
        xs.share(kept["arrays"])
    except xs.FeatureNotSupportedError as error:
        assert "put to sleep" in str(error)  # noqa: PT017
    pool.wake()
    assert (pool.asleep, pool.nbytes) == (False, nbytes)
    assert [each.address for each in kept["arrays"]] == addresses
    return ""


def freed_while_asleep() -> list[set[int]]:
    """Let all arrays but the last die while the pool sleeps; the bytes of the last one after the wake."""
    pool, arrays = kept["pool"], kept["arrays"]
    pool.sleep(keep=True)
    number = len(pool._driver.pieces())
    del arrays[:-1]
    assert len(pool._driver.pieces()) < number
    pool.wake()
    return content()


def keep_them(name: str) -> int:
    return xs.publish(name, kept["arrays"], keep=True)


def in_a_fork() -> str:
    """What a forked child can do with the pool of its parent."""
    pool = kept["pool"]
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            pool.sleep()
        except xs.ForkError:
            os.write(writing, b"refused" if not pool.allocate(64) else b"allocated")
        os._exit(0)
    os.close(writing)
    assert os.waitpid(pid, 0)[1] == 0
    with os.fdopen(reading) as answer:
        return answer.read()


def captures() -> str:
    """Why the pool does not sleep while its library captures a graph."""
    kept["pool"].capturing = True
    try:
        return sleeping(False)
    finally:
        kept["pool"].capturing = False


def states() -> list[str]:
    """What is refused of a pool that sleeps, and of one that does not."""
    pool, found = kept["pool"], []
    with pool, pool:
        assert pool.using == 2
    assert pool.using == 0

    def outcome(function: Any) -> None:
        try:
            function()
        except xs.InvalidArgumentError as error:
            found.append(str(error))

    pool.sleep()
    outcome(pool.__enter__)
    outcome(pool.sleep)
    pool.wake()
    outcome(pool.wake)
    return found
