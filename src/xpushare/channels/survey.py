"""Lists the existing channels, and their writers and readers, for `statistics` and `xpushare ls`."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Final

from xpushare import _native
from xpushare.channels import crews
from xpushare.channels.crews import CHANNEL, Crew
from xpushare.channels.geometry import stride_of
from xpushare.common.errors import XpuShareError

__all__ = ["channels", "surveyed"]

_MODES: Final = (None, "all", "newest", "one")
_WRITER: Final = 4
_FINISHED: Final = 8


def surveyed(crew: Crew) -> dict[str, Any]:
    """Return the statistics of a channel: its name, the number of frames sent, and its living members."""
    members, following = _native.channel_survey(crew.native)
    numbers, text = _native.channel_geometry(crew.native)
    uuid, backend, _frames = json.loads(text)
    return {
        "name": None if crew.name.startswith(".") else crew.name,
        "backend": backend,
        "device": uuid,
        "nbytes": stride_of(numbers[0]) * (numbers[1] + numbers[2]),
        "frame_nbytes": numbers[0],
        "slots": numbers[1],
        "sent": following - 1,
        "members": [_member(each, following) for each in members],
    }


def _member(found: tuple[Any, ...], following: int) -> dict[str, Any]:
    member, pid, role, cursor, missed, received, held, label = found
    mode = _MODES[role & 3]
    return {
        "member": member, "pid": pid, "label": label, "writes": bool(role & _WRITER),
        "finished": bool(role & _FINISHED), "mode": mode,
        "lag": max(following - cursor, 0) if mode in ("all", "newest") else 0, "missed": missed, "received": received,
        "held": held,
    }  # fmt: skip


def channels() -> list[dict[str, Any]]:
    """Return the statistics of all channels of this user that a living process has open. Channels that this process
    cannot read are left out.
    """
    found: list[dict[str, Any]] = []
    for name in crews.names(CHANNEL):
        with contextlib.suppress(XpuShareError, OSError, ValueError), crews.looked_into(CHANNEL, name) as crew:
            if crew is not None:
                found.append(surveyed(crew))
    return found
