"""verl integration. It sends weights from the trainer to the rollout through one channel, and has a checkpoint engine
for trainers and rollouts on one host.

`VERL_USE_EXTERNAL_PLUGINS=xpushare` replaces the bucketed transfer to vLLM's workers, and
`checkpoint_engine.backend=xpushare` selects the checkpoint engine. docs/engines/verl.md describes the changes.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import xpushare as xs
from xpushare.integrations import _engines, _verl_worker
from xpushare.integrations._after_import import after_import
from xpushare.integrations._engines import torch

__all__: list[str] = []

_PIECE: Final = "\0"  # begins the name of a part of a tensor that is larger than a frame
_SLOTS: Final = 3


def _place() -> Any:
    """Return the torch device that verl uses in this process."""
    device = importlib.import_module("verl.utils.device")
    name = device.get_device_name()
    return torch.device("cpu") if name == "cpu" else torch.device(name, device.get_device_id())


def _channel(nbytes: int) -> xs.Channel:
    """Make a channel whose slots together have the size `nbytes` of verl's bucket."""
    return xs.Channel.create(
        None, (nbytes // _SLOTS,), "uint8", device=_engines.device_of(_place()), slots=_SLOTS,
        meta_nbytes=_engines.META_NBYTES, label="verl",
    )  # fmt: skip


async def _send(channel: xs.Channel, weights: Any) -> None:
    """Send all weights. Weights larger than a frame are sent in several pieces."""
    most = channel.statistics()["frame_nbytes"]
    each = importlib.import_module("verl.workers.rollout.utils").ensure_async_iterator
    with _engines.Buckets(channel) as to:
        async for name, weight in each(weights):
            if weight.nbytes <= most:
                to.add(name, weight)
                continue
            flat = weight.detach().contiguous().view(-1).view(torch.uint8)
            described = name, str(weight.dtype).removeprefix("torch."), list(weight.shape)
            for at in range(0, weight.nbytes, most):
                to.add(_PIECE + json.dumps([*described, at]), flat[at : at + most])


def _receive(channel: xs.Channel) -> Iterator[list[tuple[str, Any]]]:
    """Yield the weights of each frame. They are valid until the next frame is requested."""
    whole: Any = None
    flat: Any = None
    for bucket in _engines.receive_buckets(channel):
        weights = []
        for name, tensor in bucket:
            if not name.startswith(_PIECE):
                weights.append((name, tensor))
                continue
            name, dtype, shape, at = json.loads(name.removeprefix(_PIECE))
            if at == 0:
                whole = torch.empty(shape, dtype=getattr(torch, dtype), device=tensor.device)
                flat = whole.view(-1).view(torch.uint8)
            flat[at : at + tensor.nbytes].copy_(tensor, non_blocking=True)
            if at + tensor.nbytes == flat.nbytes:
                weights.append((name, whole))
                whole = flat = None
        yield weights


# --- the bucketed transfer to the workers of an engine on the same GPU


async def _send_weights(self: Any, weights: Any) -> None:
    """Send weights through a channel. Returns when the receiver has finished its work with the weights.

    Raises `PeerLostError` if the receiver exits or fails before that.
    """
    with _channel(self.bucket_size) as channel, xs.Event(channel.device, enable_ipc=True) as done:
        handle = xs.ipc.event.get(done)
        try:
            self._init_socket()
            self.socket.send_pyobj((channel.handle, bytes(handle)))
            self.socket.recv()  # both are open
            await _send(channel, weights)
            await done.reached(1)
        finally:
            xs.ipc.event.put(handle)
            self._cleanup()


def _receive_weights(self: Any, on_bucket_received: Callable[[list[tuple[str, Any]], bool], object]) -> None:
    """Pass the weights of each frame to the callback, which may use them on the current stream. The last call of the
    callback passes no weights.

    Raises `PeerLostError` if the sender exits before the last frame.
    """
    self._init_socket()
    try:
        handle, event = self.socket.recv_pyobj()
        done = xs.ipc.event.open(event, signals=True)
        with xs.Channel.open(handle) as channel:
            self.socket.send(b"")
            try:
                for weights in _receive(channel):
                    on_bucket_received(weights, False)
                    weights.clear()
                on_bucket_received([], True)
            except BaseException:
                del done  # dropped without `close()`: the sender's wait ends
                raise
            _engines.signal(done, _place())
            done.close()
    finally:
        xs.trim()  # the engine wants the bucket's memory now
        self._cleanup()


def _replace(module: Any) -> None:
    for kind, name, function in (
        (module.BucketedWeightSender, "async_send_weights", _send_weights),
        (module.BucketedWeightReceiver, "receive_weights", _receive_weights),
    ):
        before = getattr(kind, name)

        def either(self: Any, *args: Any, before: Any = before, function: Any = function, **named: Any) -> Any:
            return (before if self.use_shm else function)(self, *args, **named)  # shm: for devices without IPC

        setattr(kind, name, either)


# --- the checkpoint engine


def _register(module: Any) -> None:
    @module.CheckpointEngineRegistry.register("xpushare")
    class CheckpointEngine(module.CheckpointEngine):  # type: ignore[misc]
        """Sends weights from the trainer's first rank to all ranks of the rollout on the same host, through one
        channel.
        """

        def __init__(self, bucket_size: int, is_master: bool = False) -> None:
            self._bucket_size = bucket_size
            self._is_master = is_master
            self._channel: xs.Channel | None = None
            self._done: list[xs.Event] = []  # of the master: one of each rank of the rollout
            self._handles: list[xs.ipc.Handle] = []

        def prepare(self) -> dict[str, Any]:
            if self._is_master:
                self._channel = _channel(self._bucket_size)
                return {"channel": self._channel.handle}
            self._done = [xs.Event(_engines.device_of(_place()), enable_ipc=True, signals=True, label="verl")]
            self._handles = [xs.ipc.event.get(self._done[0])]
            return {"done": bytes(self._handles[0])}

        @classmethod
        def build_topology(cls, trainers: int, rollouts: int, metadata: list[dict[str, Any]]) -> Any:
            done = [each["done"] for each in metadata[trainers:]]
            return (
                {"channel": [b""] * trainers, "done": [done, *[[]] * (trainers - 1)]},
                {"channel": [metadata[0]["channel"]] * rollouts, "done": [[]] * rollouts},
            )

        def init_process_group(self, channel: bytes, done: list[bytes]) -> None:
            if self._is_master:
                self._done = [xs.ipc.event.open(each, signals=False) for each in done]
            elif channel:
                self._channel = xs.Channel.open(channel)

        async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:  # noqa: ARG002
            """Send the weights. Returns when all ranks of the rollout have finished with them. Raises `PeerLostError`
            if one of these ranks exits before that.
            """
            if self._channel is None:  # of another rank, which takes part in gathering each tensor
                async for _ in importlib.import_module("verl.workers.rollout.utils").ensure_async_iterator(weights):
                    pass
                return
            await _send(self._channel, weights)
            for each in self._done:
                await each.reached(1)

        async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, Any]]:  # noqa: ARG002
            """Yield `(name, tensor)` pairs. Each tensor is valid until the next pair is requested. Raises
            `PeerLostError` if the trainer exits.
            """
            assert self._channel is not None
            for weights in _receive(self._channel):
                while weights:
                    yield weights.pop(0)
            _engines.signal(self._done[0], _place())

        def finalize(self) -> None:
            for handle in self._handles:
                xs.ipc.event.put(handle)
            for each in self._done:
                each.close()
            if self._channel is not None:
                self._channel.close()
            self._channel, self._done, self._handles = None, [], []


after_import("verl.checkpoint_engine.base", _register)
if "xpushare" in (each.strip() for each in os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "").lower().split(",")):
    after_import("verl.workers.rollout.vllm_rollout.bucketed_weight_transfer", _replace)
    after_import("verl.workers.rollout.vllm_rollout.utils", _verl_worker.extend)
