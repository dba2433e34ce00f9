"""LMCache integration. An engine passes its KV cache to LMCache's server by handle. Events of this package order the
work of the two processes.

Set `LMCACHE_DEVICE_BACKEND=xpushare` in the engine and in the server to enable the plug-in. docs/engines/lmcache.md
describes the changes.
"""

# LMCache's protocols pass events, devices and streams as plain objects.
# mypy: disable-error-code="override"

from __future__ import annotations

import functools
import importlib
import os
import sys
import weakref
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

from lmcache.v1.platform.base import ipc_wire  # type: ignore[import-not-found,unused-ignore]
from lmcache.v1.platform.devices.cuda import CudaDeviceSpec  # type: ignore[import-not-found,unused-ignore]

import xpushare as xs
from xpushare.core.device import require
from xpushare.integrations._engines import device_of, torch

__all__ = ["Events", "Point", "Spec", "wrapper"]

_DEVICES: Final = "lmcache.v1.platform.devices"
_exports: Final[dict[tuple[int, int], tuple[Batch, int]]] = {}  # by the storage's address and length
_opened: Final[WeakValueDictionary[bytes, Storages]] = WeakValueDictionary()  # by the handle of the batch


class Spec(CudaDeviceSpec):  # type: ignore[misc,unused-ignore]
    """An LMCache backend for CUDA devices that uses handles and events of this package."""

    def __init__(self) -> None:
        self._events: Events | None = None
        if self._chosen():
            # LMCache reads only descriptors of a closed list and looks for their classes among its own modules. This
            # descriptor takes the place of CUDA's, whose handle is bytes too.
            ipc_wire.WRAPPER_TYPES[ipc_wire.CudaIPCData] = ("xpushare", "Wrapper")
            sys.modules[f"{_DEVICES}.xpushare"] = sys.modules[__name__]

    @staticmethod
    def _chosen() -> bool:
        return os.environ.get("LMCACHE_DEVICE_BACKEND", "").strip().lower() == "xpushare"

    @property
    def backend_name(self) -> str:
        return "xpushare"

    def is_available(self) -> bool:
        """Return whether this backend can be used. Return False unless `LMCACHE_DEVICE_BACKEND` selects it, since
        LMCache raises an error if two backends are available.
        """
        return self._chosen() and super().is_available()

    @property
    def ipc_wrapper_cls(self) -> Any:
        return wrapper()

    @property
    def event_ipc_backend(self) -> Events:
        if self._events is None:
            self._events = Events(self.device_type)
        return self._events


def __getattr__(name: str) -> Any:  # LMCache imports `Wrapper` from here when it reads the first descriptor
    if name == "Wrapper":
        return wrapper()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def wrapper() -> Any:
    """Return the class of tensor descriptors. It is made on the first call, since its base class can be imported only
    after LMCache itself.
    """
    contiguity = importlib.import_module("lmcache.v1.gpu_connector.kv_format.contiguity")
    base: Any = importlib.import_module("lmcache.v1.platform.base.ipc_wrapper").DeviceIPCWrapper

    class Wrapper(base):  # type: ignore[misc,unused-ignore]
        """Describes a tensor for another process. The description names a storage in a batch, and the tensor's place in
        this storage.
        """

        device_type = "cuda"  # otherwise LMCache opens each tensor once more to find its device
        _opened: Storages | None = None

        @classmethod
        def wrap(cls, tensor: Any) -> Any:
            """Describe a tensor. Its storage stays exported for as long as the tensor lives."""
            found = cls()
            storage, place = tensor.untyped_storage(), tensor.device.index or 0
            found._batch, number = _batch_of(tensor, storage)
            found.handle = (place, None, storage.nbytes(), number, None, 0, None, False)
            view = contiguity.attempt_permute_to_contiguous_view(tensor)
            found.dtype, found.shape, found.stride = view.dtype, tuple(view.shape), tuple(view.stride())
            found.storage_offset = int(view.storage_offset())
            found.device_uuid = cls._get_device_uuid(place)
            return found

        def to_wire(self) -> Any:
            handle = self.handle[0], self._batch.exported(), *self.handle[2:]
            return ipc_wire.CudaIPCData(version=1, metadata=self.wire_metadata(), handle=handle)

        @classmethod
        def from_wire(cls, data: Any) -> Any:
            found = cls()
            found.restore_metadata(data.metadata)
            found.handle = data.handle
            return found

        def to_tensor(self) -> Any:
            """Return the tensor, a view of the other process's memory. The memory stays mapped until `close` has been
            called and the tensor has been freed.

            The first call opens all storages of the batch.
            """
            raw, number = self.handle[1], self.handle[3]
            self._opened = _opened.get(raw) or _opened.setdefault(raw, Storages(xs.attach(raw, like=torch)))
            storage = self._opened[number].untyped_storage()
            tensor = torch.empty(0, dtype=self.dtype, device=storage.device)
            return tensor.set_(storage, self.storage_offset, self.shape, self.stride)

        def close(self) -> None:
            self._opened = None

    Wrapper.__module__, Wrapper.__qualname__ = f"{_DEVICES}.xpushare", "Wrapper"  # LMCache compares these
    return Wrapper


class Storages(list[Any]):
    """The storages of a received batch, as flat tensors of bytes."""


class Batch:
    """Storages that an engine has described one after the other. They are exported together as one tree."""

    def __init__(self) -> None:
        self.flats: list[Any] = []
        self.handle: xs.ArrayHandle[Any] | None = None

    def exported(self) -> bytes:
        if self.handle is None:
            self.handle = xs.share(self.flats, label="LMCache")
        return bytes(self.handle)

    def end(self) -> None:
        """End the export. This is called when a tensor of the batch is freed, since the engine frees its whole cache at
        once.
        """
        for key in [key for key, (batch, _) in _exports.items() if batch is self]:
            del _exports[key]
        self.flats.clear()
        if self.handle is not None:
            self.handle.close()


def _batch_of(tensor: Any, storage: Any) -> tuple[Batch, int]:
    """Return the batch of a storage, and the index of the storage in the batch."""
    key = storage.data_ptr(), storage.nbytes()
    if key not in _exports:
        last = next(reversed(_exports.values()), None)
        batch = Batch() if last is None or last[0].handle is not None else last[0]
        _exports[key] = batch, len(batch.flats)
        batch.flats.append(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))
        weakref.finalize(tensor, batch.end)
    return _exports[key]


@dataclass
class Point:
    """An event of LMCache. It consists of the `xs.Event` of the stream that recorded it, the event's handle, and the
    number of the signal.
    """

    event: xs.Event | None = None
    handle: bytes = b""
    number: int = 0


class Events:
    """Implements LMCache's interface for events between processes. Each stream has one `xs.Event`, which each peer
    opens once.
    """

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type
        self._lines: dict[object, tuple[xs.Queue, xs.Event, bytes]] = {}
        # The timelines of other processes that were used last stay open.
        self._peers = functools.lru_cache(256)(functools.partial(xs.ipc.event.open, signals=False))

    def check_event_support(self, device: object) -> None:
        """Raise `FeatureNotSupportedError`, which is a `RuntimeError`, if events of the device cannot order the engine
        and the server.
        """
        for aspect in xs.Aspect.ext_oneapi_ipc_event, xs.Aspect.adopted_queues:
            require(device_of(device), aspect)

    def create_event(self, device: object) -> Point:  # noqa: ARG002
        return Point()

    def record_event(self, event: Point, stream: object) -> None:
        line = self._lines.get(stream)
        if line is None:
            queue = _queue(stream)
            made = xs.Event(queue.device, enable_ipc=True, signals=True, label="LMCache")
            line = self._lines.setdefault(stream, (queue, made, bytes(xs.ipc.event.get(made))))
        event.event, event.handle = line[1:]
        event.number = line[0].signal(line[1])

    def export_event(self, event: Point, device: object) -> bytes:  # noqa: ARG002
        if not event.handle:
            raise xs.InvalidArgumentError("this event was not recorded: record it on a stream, then export it")
        return event.handle + event.number.to_bytes(8, "little")

    def import_event(self, handle: bytes, device: object) -> Point:  # noqa: ARG002
        raw = bytes(handle[:-8])
        return Point(self._peers(raw), raw, int.from_bytes(handle[-8:], "little"))

    def wait_event(self, event: Point, stream: object) -> None:
        """Make the stream wait for the event. If the other process dies first, the next wait that this package queues
        on the stream raises `PeerLostError`.
        """
        if event.event is not None:
            _queue(stream).wait(event.event, at_least=event.number)

    def query_event(self, event: Point) -> bool:
        """Return whether the event is complete. Raises `PeerLostError` if the process that recorded the event died
        before the event was complete.
        """
        if event.event is None:
            return True
        if event.event.value < event.number:
            return False
        event.event.wait(0, at_least=event.number)  # raises for a lost one, which counts in `value`
        return True

    def synchronize_event(self, event: Point, device: object) -> None:  # noqa: ARG002
        """Wait for the event. Raises `PeerLostError` if the process that recorded the event dies before the event is
        complete.
        """
        if event.event is not None:
            event.event.wait(at_least=event.number)


def _queue(stream: Any) -> xs.Queue:
    return stream if isinstance(stream, xs.Queue) else xs.Queue.from_native(stream)
