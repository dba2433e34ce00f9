"""`sycl::ext::oneapi::experimental::ipc::event`: handles of events. There is no `close`, since releasing an event
closes it.
"""

from __future__ import annotations

from xpushare._device import Context, DeviceLike
from xpushare.common.errors import HandleExpiredError, InvalidArgumentError
from xpushare.core import event as _core
from xpushare.objects.event import Event, event_over
from xpushare.objects.lifecycle import use
from xpushare.sharing.handle import Handle, HandleLike, newest

__all__ = ["get", "open", "put"]


def get(event: Event, *, context: Context | None = None) -> Handle:
    """A handle of an event that was made with `enable_ipc=True` in this process; each call makes a distinct handle,
    valid until `put`.

    Raises `InvalidArgumentError` for an imported event, or one that was not made for sharing. (urIPCGetEventHandleExp)
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
    """Open a handle: a new `Event` that shares its state with the exporter's. Errors as `ipc.memory.open`.

    `signals=True`: this process is going to signal, so that waits elsewhere are lost with it from now on.
    `signals=False`: this object only waits; its process going away harms nobody's wait. (urIPCOpenEventHandleExp)
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
    """Withdraw a handle of this process; events that were opened from it stay valid. (urIPCPutEventHandleExp)"""
    _core.put(h)
