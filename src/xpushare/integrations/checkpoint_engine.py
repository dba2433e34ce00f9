"""checkpoint-engine integration. The parameter server sends buckets of weights through one channel, and the worker
answers through another.

checkpoint-engine 0.4.2 has no plug-ins. vLLM's option
`worker_extension_cls="xpushare.integrations.checkpoint_engine.WorkerExtension"` loads the worker's side. The patch
docs/engines/checkpoint_engine.patch changes the parameter server.
"""

# mypy: disable-error-code="misc,no-any-unimported"
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import contextlib
import importlib
import traceback
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

import xpushare as xs
from xpushare.integrations._engines import META_NBYTES, device_of
from xpushare.integrations._vllm_model import Staged, changing

__all__ = ["SCHEME", "BucketSender", "WorkerExtension", "update_weights_from_channel"]

torch: Any = importlib.import_module("torch")
_worker: Any = importlib.import_module("checkpoint_engine.worker")
SCHEME: Final = "xpushare:"  # of addresses that name a channel, where others name a socket
_SLOTS: Final = 3  # one to fill while the worker reads another, and the one that a channel keeps free


class BucketSender:
    """Sends buckets of weights from the parameter server to one worker. It replaces checkpoint-engine's buffer and
    socket. Each device has its own sender.

    Buckets have at most `nbytes` bytes. The worker may take `timeout` seconds to answer.
    """

    def __init__(self, name: str, nbytes: int, device: Any, *, timeout: float | None = 300) -> None:
        self._name = name
        self._timeout = timeout
        self._answers: xs.Channel | None = None
        self._buckets = xs.Channel.create(
            name, (nbytes,), "uint8", device=device_of(device), slots=_SLOTS, meta_nbytes=META_NBYTES
        )

    @property
    def address(self) -> str:
        """The address to give to the worker, instead of a socket's address."""
        return SCHEME + self._name

    @contextlib.contextmanager
    def bucket(self, items: Iterable[dict[str, Any]]) -> Generator[Any, None, None]:
        """Yield a flat tensor for the `with` block to fill on torch's current stream. It is sent to the worker at the
        end of the block, unless the block raises.

        `items` describes the tensors in the bucket, in the form of `checkpoint_engine.ps._to_named_tensor`. The first
        bucket waits for the worker, and every bucket waits for a free slot.
        """
        self._connect()
        with self._buckets.loan(self._timeout) as loan:
            loan.meta = [
                [item["name"], str(item["dtype"]).removeprefix("torch."), list(item["shape"]), item["offset"]]
                for item in items
            ]
            yield torch.from_dlpack(loan.array)

    def finish(self) -> None:
        """Wait until the worker has loaded all buckets and run its hook.

        Raises `RuntimeError` with the worker's traceback if the worker failed, and `PeerLostError` if it died.
        """
        answers = self._connect()
        self._buckets.finish()
        with answers.receive(self._timeout) as answer:
            if answer.meta:
                raise RuntimeError(f"the worker failed to update its weights: {answer.meta}")

    def _connect(self) -> xs.Channel:
        """Wait for the worker, and return the channel for its answers. The worker creates it after opening the channel
        that carries the buckets.
        """
        if self._answers is None:
            self._answers = xs.Channel.open(_answers_of(self._name), timeout=self._timeout)
        return self._answers

    def close(self) -> None:
        """Close both channels. A worker that is still waiting for a bucket gets `PeerLostError`. Idempotent."""
        self._buckets.close()
        if self._answers is not None:
            self._answers.close()


def _answers_of(name: str) -> str:
    return f"{name}.answers"


def update_weights_from_channel(
    address: str,
    *,
    run: Callable[[list[tuple[str, Any]]], None],
    post_hook: Callable[[], None] | None = None,
    timeout: float | None = 300,
) -> None:
    """Update the worker's weights. This replaces `checkpoint_engine.worker.update_weights_from_ipc`.

    Calls `run` with the tensors of each bucket, which are views of the bucket, and then `post_hook`. If they raise, the
    server gets the traceback. Raises `PeerLostError` if the server exits before its last bucket, and `TimeoutError` if
    no bucket arrives for `timeout` seconds.
    """
    name = address.removeprefix(SCHEME)
    with (
        xs.Channel.open(name, timeout=timeout) as buckets,
        xs.Channel.create(_answers_of(name), (1,), "uint8", meta_nbytes=1 << 16) as answers,
    ):
        failed = ""
        try:
            _run_all(buckets, run, timeout)
            if post_hook is not None:
                post_hook()
        except Exception:
            failed = traceback.format_exc()[-8000:]
            raise
        finally:
            with answers.loan() as answer:
                answer.meta = failed
            answers.finish()


def _run_all(buckets: xs.Channel, run: Callable[[list[tuple[str, Any]]], None], timeout: float | None) -> None:
    while True:
        try:
            frame = buckets.receive(timeout)
        except EOFError:
            return
        with frame:
            payload = [
                {"name": name, "dtype": getattr(torch, dtype), "shape": torch.Size(shape), "offset": offset}
                for name, dtype, shape, offset in frame.meta
            ]
            run(_worker._extract_weights(payload, torch.from_dlpack(frame.array)))


class WorkerExtension(_worker.VllmColocateWorkerExtension):
    """Extends checkpoint-engine's extension of vLLM's worker, so that it can load weights from a channel as well as
    from a socket.

    Weights that do not fit the model, or are missing at the end, end the update. If no layer has changed by then, the
    model is as it was. Otherwise the engine ends, since its model is a mixture. A subclass with
    `partial_weights = True` accepts updates that leave out whole layers.
    """

    partial_weights = False

    def update_weights_from_ipc(self, zmq_handles: dict[str, str]) -> None:
        """Load weights from the address that `zmq_handles` has for this worker's device. vLLM's own functions put them
        into the model.
        """
        place = "cpu" if self.device.type == "cpu" else self._device_uuid
        if not zmq_handles[place].startswith(SCHEME):
            super().update_weights_from_ipc(zmq_handles)
            return
        drafter = getattr(getattr(self.model_runner, "drafter", None), "model", None)
        models = [self.model_runner.model, *([] if drafter is None else [drafter])]
        staged = [Staged(model, streamed=True) for model in models]

        def load(weights: list[tuple[str, Any]]) -> None:
            mine = [(name, tensor.clone()) for name, tensor in weights]  # vLLM keeps the parts of an incomplete layer
            for each in staged:
                each.take(mine)

        def processed() -> None:
            staged[0].expect_all(self.model_config, partial=self.partial_weights)  # drafters share layers
            for each in staged:
                each.apply(self.model_config)

        with changing(*staged):
            update_weights_from_channel(zmq_handles[place], run=load, post_hook=processed)
