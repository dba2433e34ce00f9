"""What to tell about a lost point."""

from __future__ import annotations

from typing import Final

from xpushare._errors import PeerLostError
from xpushare._native import LAYOUT, Domain, Slot, Span

__all__ = ["note_failure", "peer_lost"]

_CAUSES: Final = {1: "died", 2: "had a failure in the queue that was to signal", 3: "exited while it owed the signal"}
_TEXT_AT: Final = 24  # in a member record: what its queue failed with, for people
_TEXT_NBYTES: Final = 40
_MEMBER_NBYTES: Final = 64


def _member(domain: Domain, index: int) -> Span:
    return Span(domain.address + LAYOUT["commons.members"] + index * _MEMBER_NBYTES, _MEMBER_NBYTES, False, domain)


def note_failure(domain: Domain, error: BaseException) -> None:
    """Leave the text of a queue's failure where the peers that lose points by it can read it."""
    text = f"{type(error).__name__}: {error}".encode()[:_TEXT_NBYTES]
    memoryview(_member(domain, domain.member))[_TEXT_AT:] = text.ljust(_TEXT_NBYTES, b"\0")


def peer_lost(slot: Slot, point: int) -> PeerLostError:
    """The error for a point of `slot` that was lost."""
    cause, pid = slot.blame()
    who = f"process {pid}" if pid else "the last other process that had the event open"
    how = _CAUSES.get(cause, "died")
    text = ""
    if cause == 2:
        for index, _pid, _since, _alive in slot.domain.members():
            record = memoryview(_member(slot.domain, index))
            if int.from_bytes(record[4:8], "little") == pid:
                text = bytes(record[_TEXT_AT:]).rstrip(b"\0").decode(errors="replace")
    return PeerLostError(f"point {point} of the event is lost: {who} {how}" + (f" ({text})" if text else ""))
