"""Host memory that is used again: making or mapping new pages takes longer than filling them."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final, cast

import xpushare as xs
from xpushare._array import memory_over
from xpushare._elements import as_dtype, as_shape
from xpushare._lifecycle import use
from xpushare.adapters.host.memory import Calls, HostMemory
from xpushare.core.memory import Range, on_trim
from xpushare.core.resources import Allocation
from xpushare.sharing import node
from xpushare.sharing.handle import fields_of

__all__ = ["attach", "empty"]

_KEPT_SECONDS: Final = 10.0
_KEPT_NBYTES: Final = 1 << 30
_MET_MOST: Final = 1 << 12


def empty(shape: int | tuple[int, ...], dtype: Any = float) -> xs.SharedArray:
    """A C-ordered array in host memory that actors can map, like `xpushare.empty`, but with unspecified elements.

    Its memory is used again for the next array once nobody has it open any more, here or elsewhere, since new pages
    take longer than filling them. Up to 1 GiB waits for its next use, each piece for 10 to 20 s. So an array that
    actors attach may have, around its own bytes, the content of earlier arrays of this process. Raises
    `InvalidArgumentError`, `OutOfMemoryError`.
    """
    lengths, kind = as_shape(shape), as_dtype(dtype)
    nbytes = max(math.prod(lengths) * kind.itemsize, 1)
    _start_watch()
    table = node.current().table()
    held = table.held_objects()
    block = _spare.take(lambda each: nbytes <= each.nbytes <= 2 * nbytes and each.serial not in held)
    if block is None:
        block = cast("_Block", _Block.allocate(Calls(), nbytes))
        block.serial = table.new_object()
    device = xs.Device("native_cpu:0")
    allocation = Allocation(device, block, "device", serial=block.serial)  # for importers it is the same memory
    return memory_over(Range(allocation, 0, nbytes, device, device.context, False, None, None)).as_array(lengths, kind)


class _Block(HostMemory):
    """Host memory that is not released but kept when the last reference to it in this process is dropped."""

    serial: int

    def release(self) -> None:
        _spare.keep(self, self.nbytes)


class _Kept:
    """Memory that waits for its next use."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may run anywhere, and bring a block
        self._items: dict[int, tuple[float, int, Any]] = {}  # since when, bytes, what; the oldest first

    def keep(self, item: Any, nbytes: int) -> None:
        with self._lock:
            self._items.pop(id(item), None)
            self._items[id(item)] = time.monotonic(), nbytes, item
        self.drop()

    def take(self, fits: Callable[[Any], bool]) -> Any:
        """The newest item that fits; None if there is none."""
        with self._lock:
            for key, (_since, _nbytes, item) in reversed(list(self._items.items())):
                if fits(item):
                    del self._items[key]
                    return item
        return None

    def drop(self, everything: bool = False) -> int:
        """Release what is too old or too much; how many bytes that was."""
        dropped: list[Any] = []
        gone = 0
        with self._lock:
            too_old = time.monotonic() - _KEPT_SECONDS
            total = sum(nbytes for _since, nbytes, _item in self._items.values())
            for key, (since, nbytes, item) in list(self._items.items()):
                if since > too_old and total - gone <= _KEPT_NBYTES and not everything:
                    break
                del self._items[key]
                gone += nbytes
                dropped.append(item)
        del dropped  # outside the lock: unmapping takes a while
        return gone


_spare = _Kept()  # blocks
_mapped = _Kept()  # allocations of other processes
_met: set[tuple[bytes, int]] = set()  # those that were attached here: the exporter's cookie, its object
_watch: threading.Thread | None = None


def _start_watch() -> None:
    """Start the thread that ends the waiting. Not done when something begins to wait, which may be during a garbage
    collection.
    """
    global _watch
    if _watch is None:
        _watch = threading.Thread(target=_drop_now_and_then, name="xpushare-reuse", daemon=True)
        _watch.start()


def _drop_now_and_then() -> None:
    while True:
        time.sleep(_KEPT_SECONDS)
        _spare.drop()
        _mapped.drop()


def _after_fork() -> None:
    global _spare, _mapped, _watch
    _spare, _mapped, _watch = _Kept(), _Kept(), None  # the memory is the parent's


os.register_at_fork(after_in_child=_after_fork)
on_trim(lambda: _spare.drop(everything=True) + _mapped.drop(everything=True))


def attach(handle: bytes) -> xs.SharedArray:
    """The array. Host memory that is received again stays mapped for a while, although its exporter sees it closed with
    the last view.
    """
    array: xs.SharedArray = xs.attach(handle)
    allocation = use(array).allocation
    if allocation.imported and array.device.backend == "native_cpu":
        fields = fields_of(xs.ArrayHandle(handle).handle)
        name = fields.cookie, fields.object
        if name in _met:
            _start_watch()
            _mapped.keep(allocation, allocation.nbytes)
        elif len(_met) >= _MET_MOST:
            _met.clear()
        _met.add(name)
    return array
