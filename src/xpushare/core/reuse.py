"""Reuse of the memory of freed arrays. Allocating and mapping new pages takes longer than filling existing ones."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import final

from xpushare._device import Device, adapter_of, info_of
from xpushare._native import Exposure
from xpushare.adapters.base import DriverMemory, UsmKind
from xpushare.core.opening import room_of
from xpushare.core.resources import Allocation, End
from xpushare.sharing.kept import Kept, Room

__all__ = ["Block", "allocation_of", "nbytes", "new_block", "take", "trim"]

_MOST = 64  # the most blocks that wait for each device, since each may have a file descriptor
_ROUGHLY = 4  # a block may be larger than requested by one part in four, and a page


@final
class Block(Exposure):
    """Memory for arrays of this process, from its allocation to its release. Several arrays may use the memory in turn.

    `free()` returns True if no other process can have the memory open any more, False if another process may have it
    open, and None if this process can never find out.
    """

    __slots__ = ("_waits", "after_work", "device", "driver", "kind", "nbytes", "room", "used")

    def __init__(self, device: Device, driver: DriverMemory, kind: UsmKind, room: Room | None) -> None:
        self.room = room
        self.after_work = adapter_of(device).after_work
        self.device = device
        self.driver = driver
        self.nbytes = driver.nbytes
        self.kind: UsmKind = kind
        self.used = False  # whether it was used before, so that its content is unspecified
        self._waits = False

    def rest(self) -> None:
        """Make the memory available for the next use. From then on it may be released at any moment."""
        self.used = self._waits = True
        if self.room is None:
            self.driver.rest()
        else:
            _kept.keep(self, b"", self.nbytes, self.room, (), End(self.give_up))

    def wake(self) -> bool:
        """Start using the memory again. Returns False if it has been released."""
        if self.room is None:
            return self.driver.wake()
        item = _kept.take(self)
        self._waits = False  # first, since dropping `item` calls `give_up`
        return item is not None

    def give_up(self) -> None:
        """Release the memory unless it is in use again."""
        if self._waits:
            self._waits = False
            self.driver.release()

    def release(self) -> int:
        """Release the available memory and return its size in bytes, or 0 if it was released before."""
        if not self.wake():
            return 0
        self.driver.release()
        return self.nbytes


_kept = Kept(lambda: None)  # memory of devices; native code keeps that of the host
_waiting: dict[tuple[Device, UsmKind], list[Block]] = {}  # the newest last
_finishing: set[Block] = set()  # devices may still be using them
_moving: set[Block] = set()  # from there to those that wait; `trim` takes them out
_lock = threading.RLock()  # re-entrant, since a garbage collection anywhere may return a block


def new_block(device: Device, driver: DriverMemory, kind: UsmKind) -> Block | None:
    """Wrap new memory in a block. Returns None if the memory cannot be reused later."""
    room = room_of(device)
    if not driver.reusable or (room is not None and not room.prepare()):
        return None
    return Block(device, driver, kind, room)


def allocation_of(block: Block) -> Allocation:
    """Return the allocation that the next arrays of a block use."""
    made = Allocation(block.device, block.driver, block.kind, serial=block.serial, end=End(_ended, block))
    made.exposure = block
    made.prepared = block.prepared
    return made


def _ended(block: Block) -> None:
    """Make the block available again, or release its memory if another process may keep access to it forever. Called
    when no view, capsule, queue or export of this process uses the memory any more.
    """
    if block.free() is None:
        block.driver.release()
        return
    if block.after_work is None:
        _wait(block)
    else:
        with _lock:
            _finishing.add(block)
        block.after_work(info_of(block.device), partial(_finished, block))


def _finished(block: Block) -> None:
    """Make the block available again. Called once the device has finished all work on the block."""
    with _lock:
        if block not in _finishing:
            return
        _finishing.discard(block)
        _moving.add(block)
    _wait(block)
    with _lock:
        trimmed = block not in _moving
        _moving.discard(block)
    if trimmed and _leaves(_waiting.get((block.device, block.kind), []), block):
        block.release()


def _wait(block: Block) -> None:
    block.rest()
    oldest = None
    with _lock:
        blocks = _waiting.setdefault((block.device, block.kind), [])
        blocks.append(block)
        if len(blocks) > _MOST:
            oldest = blocks.pop(0)
    if oldest is not None:
        oldest.release()


def take(device: Device, kind: UsmKind, nbytes: int) -> Block | None:
    """Return the newest available block that is large enough but not much larger, or None if there is no such block."""
    blocks = _waiting.get((device, kind))
    if not blocks:
        return None
    most = nbytes + nbytes // _ROUGHLY + 4096
    for block in reversed(blocks.copy()):
        if not nbytes <= block.nbytes <= most:
            continue
        free = block.free()
        if free is False or not _leaves(blocks, block):
            continue
        if free is None:
            block.release()
        elif block.wake():
            return block
    return None


def _leaves(blocks: list[Block], block: Block) -> bool:
    """Remove a block. Returns False if another thread has already removed it."""
    with _lock:
        try:
            blocks.remove(block)
        except ValueError:
            return False
    return True


def nbytes() -> int:
    """Return how many bytes of device memory are available for reuse. Reusable memory of the host is counted by native
    code.
    """
    return _kept.nbytes


def trim() -> int:
    """Release available device memory and return its size in bytes. Reusable memory of the host is freed by native
    code.
    """
    with _lock:
        blocks = [block for each in _waiting.values() for block in each]
        finishing, moving = list(_finishing), list(_moving.difference(blocks))
        _waiting.clear()
        _finishing.clear()
        _moving.clear()
    for block in finishing:
        block.driver.release()
    gone = sum(block.release() for block in blocks if block.room is not None)
    return gone + sum(each.nbytes for each in finishing + moving)


def _after_fork() -> None:
    global _kept, _lock
    _kept, _lock = Kept(lambda: None), threading.RLock()
    _waiting.clear()  # the memory belongs to the parent
    _finishing.clear()
    _moving.clear()


os.register_at_fork(after_in_child=_after_fork)
