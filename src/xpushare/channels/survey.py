"""Lists the existing channels, and their writers and readers, for `statistics` and `xpushare ls`."""

from __future__ import annotations

from typing import Any, Final

from xpushare.channels import groups
from xpushare.channels.geometry import read_numbers, stride_of
from xpushare.channels.groups import CHANNEL, Place
from xpushare.common.errors import InvalidHandleError
from xpushare.common.foreign import printable, skipping

__all__ = ["channels", "surveyed"]

_MODES: Final = (None, "all", "newest", "one")
_WRITER: Final = 4
_FINISHED: Final = 8


def surveyed(place: Place) -> dict[str, Any]:
    """Return the statistics of a channel: its name, the number of frames sent, and its living writers
    and readers. Raises `InvalidHandleError` if one has damaged them.
    """
    numbers, uuid, backend, _frames = read_numbers(place)
    try:
        members, following = place.native.channel_survey()
    except ValueError as error:
        raise InvalidHandleError(f"the channel's state is damaged: {error}") from None
    return {
        "name": None if place.name.startswith(".") else place.name,
        "backend": backend,
        "device": uuid,
        "nbytes": stride_of(numbers.nbytes) * (numbers.slots + numbers.spare),
        "frame_nbytes": numbers.nbytes,
        "slots": numbers.slots,
        "sent": max(following - 1, 0),
        "members": [_member(each, following) for each in members],
    }


def _member(found: tuple[Any, ...], following: int) -> dict[str, Any]:
    member, pid, role, cursor, missed, received, held, label = found
    mode = _MODES[role & 3]
    return {
        "member": member, "pid": pid, "label": printable(label), "writes": bool(role & _WRITER),
        "finished": bool(role & _FINISHED), "mode": mode,
        "lag": max(following - cursor, 0) if mode in ("all", "newest") else 0, "missed": missed, "received": received,
        "held": held,
    }  # fmt: skip


def channels() -> list[dict[str, Any]]:
    """Return the statistics of all channels of this user that a living process has open. A channel that this process
    cannot read is left out, and a warning is logged.
    """
    found: list[dict[str, Any]] = []
    for name in groups.names(CHANNEL):
        what = "a channel without a name" if name.startswith(".") else f"the channel {name!r}"
        with skipping(what), groups.looked_into(name) as place:
            if place is not None:
                found.append(surveyed(place))
    return found
