"""Reuse of the memory of freed arrays. Allocating and mapping new pages takes longer than filling existing ones."""

from __future__ import annotations

from functools import partial
from typing import final

from xpushare._native import Exposure
from xpushare.adapters.base import DriverMemory, UsmKind
from xpushare.core.device import Device, adapter_of, info_of
from xpushare.core.opening import room_of
from xpushare.core.resources import Allocation, End
from xpushare.sharing import node
from xpushare.sharing.idle import HOST, Cache, Room

__all__ = ["Block", "allocation_of", "new_block", "take", "waiting"]

_MOST = 64  # the most blocks that wait for each device, since each may have a file descriptor
_ROUGHLY = 4  # a block may be larger than requested by one part in four, and a page


@final
class Block(Exposure):
    """Memory for arrays of this process, from its allocation to its release. Several arrays may use the memory in turn.

    `free()` returns True if no other process can have the memory open any more, False if another process may have it
    open, and None if this process can never find out.
    """

    __slots__ = ("_waits", "after_work", "device", "driver", "kind", "nbytes", "room", "used")

    def __init__(self, device: Device, driver: DriverMemory, kind: UsmKind, room: Room) -> None:
        self.room = room
        self.after_work = adapter_of(device).after_work
        self.device = device
        self.driver = driver
        self.nbytes = driver.nbytes
        self.kind: UsmKind = kind
        self.used = False  # whether it was used before, so that its content is unspecified
        self._waits = False

    def rest(self) -> None:
        """Make the memory idle, once the device has finished its work on it. From now on it may be released at any
        moment.
        """
        self.used = self._waits = True
        idle, end = node.here[0].idle, End(self.give_up)
        if self.room is HOST:
            self.driver.rest()
            idle.keep_host(self, b"", (), end)
        else:
            idle.keep(self, b"", self.nbytes, self.room, (), end, 1, self.after_work is None)

    def wake(self) -> bool:
        """Start using the memory again. Returns False if it has been released."""
        idle = node.here[0].idle
        item = idle.host.pop(self, None) if self.room is HOST else idle.take(self)
        if item is None:
            return False
        self._waits = False  # first, since dropping `item` calls `give_up`
        return self.room is not HOST or self.driver.wake()

    def give_up(self) -> None:
        """Release the memory unless it is in use again."""
        if self._waits:
            self._waits = False
            _leaves(self)
            self.driver.release()

    def release(self) -> None:
        """Release the memory if it is idle."""
        if self.wake():
            self.driver.release()


@final
class _BySize(Cache):
    """The blocks that arrays can use again. The newest are last. The registry of idle memory counts their bytes."""

    def __init__(self) -> None:
        self.waiting: dict[tuple[Device, UsmKind], list[Block]] = {}


def waiting(device: Device, kind: UsmKind) -> list[Block]:
    """Return the list of the idle blocks of one kind."""
    return node.here[0].idle.own(_BySize).waiting.setdefault((device, kind), [])


def new_block(device: Device, driver: DriverMemory, kind: UsmKind) -> Block | None:
    """Wrap new memory in a block. Returns None if the memory cannot be reused later."""
    room = room_of(device)
    return Block(device, driver, kind, room) if driver.reusable and room.prepare() else None


def allocation_of(block: Block) -> Allocation:
    """Return the allocation that the next arrays of a block use."""
    made = Allocation(block.device, block.driver, block.kind, serial=block.serial, end=End(_ended, block))
    made.exposure = block
    made.prepared = block.prepared
    return made


def _ended(block: Block) -> None:
    """Make the block idle, or release its memory if another process may keep access to it forever. Called when no view,
    capsule, queue or export of this process uses the memory any more.
    """
    if block.free() is None:
        block.driver.release()
        return
    block.rest()
    if block.after_work is None:
        _wait(block)
    else:
        block.after_work(info_of(block.device), partial(_finished, block))


def _finished(block: Block) -> None:
    """Called once the device has finished all work on the block."""
    idle = node.here[0].idle
    with idle.lock:
        if idle.renew(block):
            _wait(block)


def _wait(block: Block) -> None:
    """Let the next arrays use a block, unless it has been released meanwhile."""
    idle = node.here[0].idle
    oldest = None
    with idle.lock:
        if block in idle.host or block in idle.items:
            blocks = waiting(block.device, block.kind)
            blocks.append(block)
            oldest = blocks.pop(0) if len(blocks) > _MOST else None
    if oldest is not None:
        oldest.release()


def take(device: Device, kind: UsmKind, nbytes: int) -> Block | None:
    """Return the newest available block that is large enough but not much larger, or None if there is no such block."""
    blocks = waiting(device, kind)
    most = nbytes + nbytes // _ROUGHLY + 4096
    for block in reversed(blocks.copy()):
        if not nbytes <= block.nbytes <= most:
            continue
        free = block.free()
        if free is False or not _leaves(block):
            continue
        if free is None:
            block.release()
        elif block.wake():
            return block
    return None


def _leaves(block: Block) -> bool:
    """Remove a block from those that arrays can use. Returns False if it is not among them."""
    blocks = waiting(block.device, block.kind)
    with node.here[0].idle.lock:
        if block in blocks:
            blocks.remove(block)
            return True
    return False
