"""The functions of `xpushare.ipc.event`. They are defined here so that the public module contains no other names, which
editors would offer to users.
"""

from __future__ import annotations

from xpushare.common.errors import HandleExpiredError, InvalidArgumentError
from xpushare.core import event as _core
from xpushare.core.device import Context, DeviceLike
from xpushare.objects.event import Event, event_over
from xpushare.objects.lifecycle import use
from xpushare.sharing.handle import Handle, HandleLike, newest

__all__ = ["get", "open", "put"]


def get(event: Event, *, context: Context | None = None) -> Handle:
    """Export an event, and return a handle of it. (urIPCGetEventHandleExp)

    Args:
        event: An event that this process created with `enable_ipc=True`.
        context: The context of the event, by default the device's own.

    Returns:
        A new handle, valid until `put`.

    Raises:
        InvalidArgumentError: The event was opened from a handle, or was created without `enable_ipc=True`.

    Examples:
        >>> event = xs.Event("native_cpu:0", enable_ipc=True)
        >>> handle = xs.ipc.event.get(event)
        >>> handle.kind
        'event'
        >>> xs.ipc.event.put(handle)
        >>> event.close()
    """
    if not isinstance(event, Event):
        raise InvalidArgumentError(f"ipc.event.get takes an Event, not {type(event).__name__}")
    return _core.get(use(event), context)


def open(
    h: HandleLike,
    *,
    device: DeviceLike | None = None,
    context: Context | None = None,
    signals: bool | None = None,
) -> Event:
    """Open a handle of an event. (urIPCOpenEventHandleExp)

    Args:
        h: A handle, its bytes or its text.
        device: The device to open the handle on. None means the device that the handle names.
        context: The context to open the handle in, by default the device's own.
        signals: With True, this process is going to signal. If it dies, even before its first signal, every waiter is
            notified. With False, this object only waits, and its end affects no waiter. With None, the process counts
            as a signaller once it has signalled (see `Event`).

    Returns:
        A new `Event` that shares its state with the exporter's.

    Raises:
        InvalidHandleError: The bytes are not an event handle that this user has made since the last boot.
        HandleExpiredError: The exporter has withdrawn the handle (`put`), or has exited.
        RouteError: Every route to the exporter's event is blocked. `reasons` lists how to unblock each.
        FeatureNotSupportedError: The device cannot open this event.

    Examples:
        >>> event = xs.Event("native_cpu:0", enable_ipc=True)
        >>> handle = xs.ipc.event.get(event)
        >>> with xs.ipc.event.open(handle, signals=True) as opened:
        ...     opened.signal(), event.value
        (1, 1)
        >>> xs.ipc.event.put(handle)
        >>> event.close()
    """
    while True:
        try:
            return event_over(_core.open_(h, device, context, signals))
        except HandleExpiredError:
            again = newest(h)
            if again is None:
                raise
            h = again


def put(h: Handle | bytes | str) -> None:
    """Withdraw a handle of this process, so that no process can open it any more. Events that are already open stay
    valid. (urIPCPutEventHandleExp)

    Args:
        h: A handle that `get` returned in this process, its bytes or its text.

    Raises:
        InvalidArgumentError: Another process made the handle, or the handle was already withdrawn.
        InvalidHandleError: The bytes are not a handle.

    Examples:
        >>> event = xs.Event("native_cpu:0", enable_ipc=True)
        >>> handle = xs.ipc.event.get(event)
        >>> xs.ipc.event.put(bytes(handle))
        >>> xs.ipc.event.open(handle)
        Traceback (most recent call last):
        ...
        xpushare.HandleExpiredError: the handle has expired...
        >>> event.close()
    """
    _core.put(h)
