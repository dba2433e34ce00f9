"""The error for a lost signal, and the texts that explain why the signal was lost."""

from __future__ import annotations

import struct
from typing import Final, final
from weakref import WeakKeyDictionary

from xpushare._native import CONSTANTS, DONE, LAYOUT, PENDING, STRUCTS, Domain, Slot, Span, load64
from xpushare.common.errors import PeerLostError

__all__ = ["QUEUE_FAILED", "Losses", "note_failure", "peer_lost"]

QUEUE_FAILED: Final = CONSTANTS["CAUSE_QUEUE"]
_CAUSES: Final = {
    CONSTANTS["CAUSE_DEATH"]: "died",
    QUEUE_FAILED: "had a failure in the queue that was to signal",
    CONSTANTS["CAUSE_EXIT"]: "exited while it owed the signal",
    CONSTANTS["CAUSE_ABANDONED"]: "exited, or dropped the event without closing it, before it signalled",
}
_UNOPENED: Final = CONSTANTS["CAUSE_UNOPENED"]
_MEMBER_NBYTES: Final = LAYOUT["member.size"]
_PID_AT, _PID = STRUCTS["member"]["pid"]
_TEXT_AT: Final = LAYOUT["member.text"]
_TEXT_NBYTES: Final = _MEMBER_NBYTES - _TEXT_AT
_LOST_AT: Final = LAYOUT["slot.lost"]  # the word in which the newest loss is recorded


def _member(domain: Domain, index: int) -> Span:
    return Span(domain.address + LAYOUT["commons.members"] + index * _MEMBER_NBYTES, _MEMBER_NBYTES, False, domain)


def note_failure(domain: Domain, error: BaseException) -> None:
    """Record the text of a queue's failure, for the processes that wait for signals of this queue."""
    text = f"{type(error).__name__}: {error}".encode()[:_TEXT_NBYTES]
    memoryview(_member(domain, domain.member))[_TEXT_AT:] = text.ljust(_TEXT_NBYTES, b"\0")


def _printable(text: bytes) -> str:
    """Return a peer's text without terminal control characters."""
    return "".join(
        each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text.decode(errors="replace")
    )


def peer_lost(slot: Slot, point: int) -> PeerLostError:
    """Return the error for the lost signal number `point` of the event in `slot`. The error's notes say what to do."""
    cause, pid = slot.blame()
    if cause == _UNOPENED:
        return PeerLostError(
            f"signal {point} of the event is lost: a pickle of it was sent, and nobody opened that in its time "
            "(XPUSHARE_PICKLE_GRACE): look whether the receiver failed before, with the traceback that it printed"
        )
    if cause not in _CAUSES:  # no process died, and no queue failed
        return PeerLostError(
            f"signal {point} of the event is lost: the process that shared it has gone, and nobody is left to signal. "
            "Share another event"
        )
    who = f"process {pid}"
    how = _CAUSES[cause]
    text = ""
    if cause == QUEUE_FAILED:
        for index, _pid, _since, _alive in slot.domain.members():
            record = memoryview(_member(slot.domain, index))
            if struct.unpack_from(f"<{_PID}", record, _PID_AT)[0] == pid:
                text = _printable(bytes(record[_TEXT_AT:]).partition(b"\0")[0])
    error = PeerLostError(f"signal {point} of the event is lost: {who} {how}" + (f" ({text})" if text else ""))
    error.add_note(
        f"Look at what {who} printed, such as a traceback. To go on, event.recovered() waits until another process "
        "signals or opens the event with signals=True"
    )
    return error


@final
class Losses:
    """The lost points that a queue has already reported, so that it reports each of them only once."""

    __slots__ = ("_ahead", "_met")

    def __init__(self) -> None:
        # The word of the newest recorded loss that the queue has met.
        self._met: WeakKeyDictionary[Slot, int] = WeakKeyDictionary()
        # The newest loss that the queue met before it was recorded: its point, the event's newest point then, and the
        # blame.
        self._ahead: WeakKeyDictionary[Slot, tuple[int, int, tuple[int, int]]] = WeakKeyDictionary()

    def new(self, slot: Slot, point: int) -> bool:
        """Record that `point` is lost, and return whether the queue has not reported this before. A point can be lost
        before the slot records it: while an earlier point of a living process is pending, or if no process has
        submitted the point.
        """
        ahead, top, blame = self._ahead.get(slot, (0, 0, (0, 0)))
        outstanding = ahead <= top  # otherwise no process had submitted it
        known = slot.state(ahead) if ahead else DONE
        if slot.state(point) == PENDING:
            # All submitted points are lost together. Points that nobody has submitted yet count as a new loss after the
            # next signal.
            if known == PENDING and (outstanding or slot.pending == top):
                self._ahead[slot] = ahead, slot.pending, blame
                return False
            self._ahead[slot] = point, slot.pending, slot.blame()
            return True
        if known != PENDING and point <= max(ahead, top) and (outstanding or slot.blame() == blame):
            return False  # the loss that the queue has met is recorded by now
        word = load64(slot.address + _LOST_AT)
        if self._met.get(slot) == word:
            return False
        self._met[slot] = word
        return True
