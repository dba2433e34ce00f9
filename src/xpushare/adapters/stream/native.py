"""The one place where a vendor's recipes become native code's queue."""

from __future__ import annotations

from xpushare._native import Lane
from xpushare.adapters.stream.hooks import Argument, Stream

__all__ = ["native_queue"]

_WORD = (Argument.QUEUE, Argument.ADDRESS, Argument.POINT)


def native_queue(number: int, stream: Stream) -> Lane:
    """What submits points of events to a stream, and has it wait for them, without the GIL."""
    store, wait, host, captured = stream.calls
    if (
        store.arguments != (*_WORD, 0)
        or wait.arguments[:3] != _WORD
        or host.arguments != (Argument.QUEUE, Argument.FUNCTION, Argument.DATA)
        or (captured is not None and captured.arguments != (Argument.QUEUE, Argument.STATUS))
    ):
        raise NotImplementedError(f"native code does not make these calls: {stream.calls}")
    (flags,) = wait.arguments[3:]
    assert isinstance(flags, int)
    # Nobody else has a stream of ours, so nobody captures it.
    capturing = captured.function if captured is not None and stream.owner is not None else 0
    return Lane(number, stream.handle, store.function, wait.function, flags, host.function, capturing)
