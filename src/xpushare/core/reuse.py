"""Memory of arrays that nobody has any more serves later arrays: making and mapping new pages takes longer than filling
them.
"""

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
from xpushare.sharing import node
from xpushare.sharing.kept import Kept, Room

__all__ = ["Block", "allocation_of", "nbytes", "new_block", "take", "trim"]

_MOST = 64  # blocks of a device that wait: each may have a file descriptor
_ROUGHLY = 4  # a block may be larger than asked, by a part of that many, and a page


@final
class Block(Exposure):
    """Memory of this process's arrays, from its making to its release, whatever arrays lie in it one after another.

    `free()` says whether anybody may still have what was exported of it.
    """

    __slots__ = ("_waits", "after_work", "device", "driver", "kind", "nbytes", "room", "used")

    def __init__(self, device: Device, driver: DriverMemory, kind: UsmKind, room: Room | None) -> None:
        self.room = room
        self.after_work = adapter_of(device).after_work
        self.device = device
        self.driver = driver
        self.nbytes = driver.nbytes
        self.kind: UsmKind = kind
        self.used = False  # it has served before: its content is unspecified
        self._waits = False

    def rest(self) -> None:
        """Wait for the next use. From then on the memory may be released at any moment."""
        self.used = self._waits = True
        if self.room is None:
            self.driver.rest()
        else:
            _kept.keep(self, b"", self.nbytes, self.room, _same, End(self.give_up))

    def wake(self) -> bool:
        """Wait no longer. False if the memory was released."""
        if self.room is None:
            return self.driver.wake()
        end = _kept.take(self)
        self._waits = False  # before the end dies
        return end is not None

    def give_up(self) -> None:
        """Release the memory, unless it serves again."""
        if self._waits:
            self._waits = False
            self.driver.release()

    def release(self) -> int:
        """Release the memory, which waits, and return how many bytes that were; 0 if it was released."""
        if not self.wake():
            return 0
        self.driver.release()
        return self.nbytes


def _same(end: End) -> End:
    return end


_kept = Kept(lambda: None)  # of devices; what is the host's own waits in native code
_waiting: dict[tuple[Device, UsmKind], list[Block]] = {}  # the newest last
_finishing: set[Block] = set()  # their devices may still work with them
_lock = threading.RLock()  # re-entrant: the garbage collector may run anywhere, and bring a block


def new_block(device: Device, driver: DriverMemory, kind: UsmKind) -> Block | None:
    """The new memory as a block. None if it cannot serve again."""
    room = room_of(device)
    if not driver.reusable or (room is not None and not room.prepare()):
        return None
    return Block(device, driver, kind, room)


def allocation_of(block: Block) -> Allocation:
    """The allocation of the next arrays in a block."""
    made = Allocation(block.device, block.driver, block.kind, serial=block.serial, end=End(_ended, block))
    made.exposure = block
    made.prepared = block.prepared
    return made


def _ended(block: Block) -> None:
    """No view, capsule, queue or export of this process has the allocation any more."""
    node.current().allocations.remove(block.driver.address)
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
    """Device work of before the end has finished."""
    with _lock:
        there = block in _finishing
        _finishing.discard(block)
    if there:
        _wait(block)


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
    """The newest block that is large enough, though not much larger, and that nobody has. None if there is none."""
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
    """Take a block out. False if another thread has done that."""
    with _lock:
        try:
            blocks.remove(block)
        except ValueError:
            return False
    return True


def nbytes() -> int:
    """How many bytes of devices wait. What is the host's own, native code counts."""
    return _kept.nbytes


def trim() -> int:
    """Release what waits on devices, and return how many bytes that were. What is the host's own, native code frees."""
    with _lock:
        blocks = [block for each in _waiting.values() for block in each]
        finishing = list(_finishing)
        _waiting.clear()
        _finishing.clear()
    for block in finishing:
        block.driver.release()
    return sum(block.release() for block in blocks if block.room is not None) + sum(each.nbytes for each in finishing)


def _after_fork() -> None:
    global _kept, _lock
    _kept, _lock = Kept(lambda: None), threading.RLock()
    _waiting.clear()  # the memory is the parent's
    _finishing.clear()


os.register_at_fork(after_in_child=_after_fork)
