"""The error for a lost point, and the texts that explain it."""

from __future__ import annotations

from typing import Final, final
from weakref import WeakKeyDictionary

from xpushare._errors import PeerLostError
from xpushare._native import CONSTANTS, LAYOUT, PENDING, Domain, Slot, Span, load64

__all__ = ["QUEUE_FAILED", "Losses", "note_failure", "peer_lost"]

QUEUE_FAILED: Final = CONSTANTS["CAUSE_QUEUE"]
_CAUSES: Final = {
    CONSTANTS["CAUSE_DEATH"]: "died",
    QUEUE_FAILED: "had a failure in the queue that was to signal",
    CONSTANTS["CAUSE_EXIT"]: "exited while it owed the signal",
}
_MEMBER_NBYTES: Final = LAYOUT["member.size"]
_PID_AT: Final = LAYOUT["member.pid"]
_TEXT_AT: Final = LAYOUT["member.text"]
_TEXT_NBYTES: Final = _MEMBER_NBYTES - _TEXT_AT
_LOST_AT: Final = LAYOUT["slot.lost"]  # the word that tells the newest loss


def _member(domain: Domain, index: int) -> Span:
    return Span(domain.address + LAYOUT["commons.members"] + index * _MEMBER_NBYTES, _MEMBER_NBYTES, False, domain)


def note_failure(domain: Domain, error: BaseException) -> None:
    """Leave the text of a queue's failure where the peers that lose points because of it can read it."""
    text = f"{type(error).__name__}: {error}".encode()[:_TEXT_NBYTES]
    memoryview(_member(domain, domain.member))[_TEXT_AT:] = text.ljust(_TEXT_NBYTES, b"\0")


def _printable(text: bytes) -> str:
    """What a peer wrote, without what a terminal would obey."""
    return "".join(
        each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text.decode(errors="replace")
    )


def peer_lost(slot: Slot, point: int) -> PeerLostError:
    """The error for a point of `slot` that was lost."""
    cause, pid = slot.blame()
    if cause not in _CAUSES:  # nobody died or failed
        return PeerLostError(
            f"point {point} of the event is lost: the process that shared it has gone, and nobody is left to signal"
        )
    who = f"process {pid}"
    how = _CAUSES[cause]
    text = ""
    if cause == QUEUE_FAILED:
        for index, _pid, _since, _alive in slot.domain.members():
            record = memoryview(_member(slot.domain, index))
            if int.from_bytes(record[_PID_AT : _PID_AT + 4], "little") == pid:
                text = _printable(bytes(record[_TEXT_AT:]).partition(b"\0")[0])
    return PeerLostError(f"point {point} of the event is lost: {who} {how}" + (f" ({text})" if text else ""))


@final
class Losses:
    """The losses that a queue has met."""

    __slots__ = ("_met",)

    def __init__(self) -> None:
        self._met: WeakKeyDictionary[Slot, tuple[int, bool]] = WeakKeyDictionary()  # the newest loss of each event

    def new(self, slot: Slot, point: int) -> bool:
        """Whether the queue meets the loss of `point` for the first time. While a living process's earlier point puts a
        loss off, the slot does not show it.
        """
        loss = load64(slot.address + _LOST_AT), slot.state(point) == PENDING
        if self._met.get(slot) == loss:
            return False
        self._met[slot] = loss
        return True
