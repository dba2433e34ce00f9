"""Sharing of growable `VirtualRange` objects, and ranges that follow them in other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xpushare._native import End
from xpushare.common.elements import as_dtype
from xpushare.common.errors import InvalidArgumentError, InvalidHandleError
from xpushare.core import event, growth, memory, physical
from xpushare.core.device import Device, device_for_handle
from xpushare.core.opening import give_open
from xpushare.objects.array import array_over
from xpushare.objects.message import RANGE
from xpushare.objects.physical_memory import growth_of, range_over
from xpushare.sharing.handle import Handle

if TYPE_CHECKING:
    from xpushare.core.device import DeviceLike
    from xpushare.objects.array import SharedArray
    from xpushare.objects.array_handle import ArrayHandle
    from xpushare.objects.physical_memory import VirtualRange

__all__ = ["described", "follower"]


def described(source: VirtualRange, read_only: bool) -> tuple[SharedArray, Any]:
    """Return the parts of a message for a growable range: an array with the range's current state, and a list that
    replaces the tree. The list has the size of the address range, its device, whether followers may only read, and the
    handle of the event that reports changes.
    """
    reserved, growing = growth_of(source)
    if growing.follows:
        raise InvalidArgumentError("this range follows one of another process: send its original handle")
    directory = array_over(growing.directory.replace(lease=growing), (growth.DIRECTORY_NBYTES,), as_dtype("uint8"))
    device = reserved.device
    names = device.backend, device.uuid
    return directory, [RANGE, reserved.nbytes, *names, bool(read_only), str(growing.told_by())]


def follower(message: ArrayHandle, tree: Any, device: DeviceLike | None) -> VirtualRange:
    """Open a range that follows the growable range in a message, and bring it up to date."""
    _tag, nbytes, backend, name, read_only, told_by = tree
    kinds = (type(nbytes), type(backend), type(name), type(read_only), type(told_by))
    if kinds != (int, str, str, bool, str) or message._count != 1:
        raise InvalidHandleError(f"the array handle says of a range what cannot be: {tree!r:.200}")
    chosen = Device(device) if device is not None else _named(backend, name)
    reserved = physical.reserve(nbytes, chosen, None, None)
    directory = memory.open_(message._memory[0], growth.HOST)
    changed = event.open_(Handle(told_by), growth.HOST, None, False)
    made = range_over(reserved, growth.follow(reserved, directory, changed, read_only))
    with End(give_open, message._memory[0]), End(made.close):
        made.refresh()
    return made


def _named(backend: str, name: str) -> Device:
    import uuid

    try:
        return device_for_handle(backend, uuid.UUID(name).bytes)
    except ValueError as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidHandleError(f"the array handle names no device: {name!r:.100}") from None
