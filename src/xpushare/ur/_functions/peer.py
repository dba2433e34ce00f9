"""Functions that control the access of devices to each other's memory."""

from __future__ import annotations

from typing import Any, Final

from xpushare.common.result import Result
from xpushare.core.device import adapter_of, info_of
from xpushare.ur._enums import ExpPeerInfo
from xpushare.ur._error import URError
from xpushare.ur._objects import Device
from xpushare.ur._spec import UNSUPPORTED_QUERY, Info, function

_enabled: Final[set[tuple[Device, Device]]] = set()


def _reaches(pair: tuple[Device, Device]) -> bool:
    device, peer = (each.shared for each in pair)
    if device.backend != peer.backend:
        return False
    return device == peer or bool(adapter_of(device).reaches(info_of(device), info_of(peer)))


_PEER: Final = Info(
    ExpPeerInfo,
    {"int32": "UR_PEER_ACCESS_SUPPORT UR_PEER_ATOMICS_SUPPORT"},
    answers={
        ExpPeerInfo.UR_PEER_ACCESS_SUPPORT: lambda pair: int(_reaches(pair)),
        ExpPeerInfo.UR_PEER_ATOMICS_SUPPORT: lambda pair: int(all(each.shared.type == "cpu" for each in pair)),
    },
)


@function(
    165,
    ("UNSUPPORTED_FEATURE", "`commandDevice` cannot use memory of `peerDevice`"),
    ("INVALID_OPERATION", "the access is already enabled"),
)
def urUsmP2PEnablePeerAccessExp(commandDevice: Device, peerDevice: Device) -> None:
    """Let `commandDevice` use memory of `peerDevice`.

    This only checks that the access is possible. Queues of xpushare enable the access themselves for copies and fills.
    """
    pair = commandDevice, peerDevice
    if not _reaches(pair):
        raise URError(f"{commandDevice!r} cannot use memory of {peerDevice!r}", result=Result.ERROR_UNSUPPORTED_FEATURE)
    if pair in _enabled:
        raise URError(f"{commandDevice!r} may use memory of {peerDevice!r}", result=Result.ERROR_INVALID_OPERATION)
    _enabled.add(pair)


@function(166, ("INVALID_OPERATION", "the access is not enabled"))
def urUsmP2PDisablePeerAccessExp(commandDevice: Device, peerDevice: Device) -> None:
    """Disable access that `urUsmP2PEnablePeerAccessExp` enabled."""
    pair = commandDevice, peerDevice
    if pair not in _enabled:
        raise URError(f"access to {peerDevice!r} is not enabled", result=Result.ERROR_INVALID_OPERATION)
    _enabled.remove(pair)


@function(167, UNSUPPORTED_QUERY)
def urUsmP2PPeerAccessGetInfoExp(commandDevice: Device, peerDevice: Device, propName: ExpPeerInfo) -> Any:
    """Return 1 if `commandDevice` can use memory of `peerDevice`, otherwise 0. For the query `UR_PEER_ATOMICS_SUPPORT`,
    return 1 if atomic operations of `commandDevice` work on that memory, otherwise 0.
    """
    return _PEER.answer(propName, (commandDevice, peerDevice))
