"""SGLang's, verl's and LMCache's ways to hand over tensors, by their plug-ins and by their own calls, in one run.

python -m benchmarks.gpu.engines_more [--json FILE]

The engines need not be installed: their own side is the calls that their code makes, named by file and line of the
released wheels (SGLang 0.5.23, verl 0.9.1, LMCache 0.5.6), with a pipe in the place of their sockets on both sides.
The tensors are the 578 of `benchmarks.trees`. The clock of the weights runs from the call until every worker has copied
all of them into parameters of its own and its GPU has finished. The ways take turns; medians with quartiles, in
microseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import pickle
import time
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

import xpushare as xs
from benchmarks import show
from benchmarks.gpu.driver import MIB, SPAWN
from benchmarks.trees import model
from xpushare.bench.measure import Row, alternate, compare, machine

ROUNDS: Final = 7
BUCKET: Final = 512 * MIB
SLOTS: Final = 3
LAYERS: Final = 80
OPERATIONS: Final = 50
SGLANG: Final = "weight_sync/tensor_bucket.py:54-72, utils/common.py:3074, utils/patch_torch.py:72"
SEPARATE: Final = "weight_sync/utils.py:51, utils/common.py:3074, utils/patch_torch.py:72"
VERL: Final = "vllm_rollout/bucketed_weight_transfer.py:102-340"
LMCACHE: Final = "devices/cuda/ipc_wrapper.py:194, 228"
LMCACHE_EVENTS: Final = "base/event_ipc.py:221-252"


# --- the engines' own calls


def _to_uuid(made: tuple[Any, tuple[Any, ...]]) -> tuple[Any, tuple[Any, ...]]:
    import torch

    function, args = made
    return function, (*args[:6], str(torch.cuda.get_device_properties(args[6]).uuid), *args[7:])


def rebuild(*args: Any) -> Any:
    """SGLang's reading of a tensor: the device by its uuid."""
    import torch
    from torch.multiprocessing import reductions

    for device in range(torch.cuda.device_count()):
        if str(torch.cuda.get_device_properties(device).uuid) == args[6]:
            return reductions.rebuild_cuda_tensor(*args[:6], device, *args[7:])
    raise RuntimeError(f"no device {args[6]}")


def _serialized(thing: Any, ours: bool) -> bytes:
    import torch
    from torch.multiprocessing import reductions

    def theirs(tensor: Any) -> Any:
        _, args = _to_uuid(reductions.reduce_tensor(tensor))
        return rebuild, args

    buffer = io.BytesIO()
    if ours:
        ForkingPickler(buffer).dump(thing)
    else:
        ForkingPickler.register(torch.Tensor, theirs)
        ForkingPickler(buffer).dump(thing)
    return buffer.getvalue()


class Worker:
    """The other process: it has parameters, and loads what comes."""

    def __init__(self, pipe: Any) -> None:
        import torch

        self._torch = torch
        self._pipe = pipe
        self._parameters = model("cuda", "torch", 0)

    def _load(self, named: Any) -> None:
        for name, tensor in named:
            self._parameters[name].copy_(tensor)

    def _done(self) -> bytes:
        self._torch.cuda.synchronize()
        return b"%d" % int(self._parameters["h.47.mlp.c_proj.bias"][0].item())

    def bucket(self, ours: bool) -> bytes:
        """SGLang: one message."""
        found = pickle.loads(self._pipe.recv_bytes())
        if ours:
            self._load(zip(found["metadata"], found["flattened_tensor"], strict=True))
        else:
            flat = found["flattened_tensor"]
            self._load(
                (name, flat[start:end].view(dtype).reshape(shape))
                for name, (shape, dtype, start, end) in found["metadata"].items()
            )
            del flat
        answer = self._done()
        del found
        return answer

    def separate(self, ours: bool) -> bytes:  # noqa: ARG002
        """SGLang: a message for each tensor."""
        self._load((name, pickle.loads(raw)) for name, raw in pickle.loads(self._pipe.recv_bytes()))
        return self._done()

    def buckets(self, ours: bool) -> bytes:
        """verl: one bucket again and again."""
        from xpushare.integrations import _engines

        if ours:
            with xs.Channel.open(self._pipe.recv_bytes()) as channel:
                self._pipe.send_bytes(b"open")
                for named in _engines.receive_buckets(channel):
                    self._load(named)
                return self._done()
        function, args = pickle.loads(self._pipe.recv_bytes())
        flat = function(*args)
        self._pipe.send_bytes(b"open")
        while True:
            metadata, last = pickle.loads(self._pipe.recv_bytes())
            self._load(
                (name, flat[at : at + dtype.itemsize * shape.numel()].view(dtype).view(shape))
                for name, (shape, dtype, at) in metadata.items()
            )
            self._torch.cuda.synchronize()
            if last:
                break
            self._pipe.send_bytes(b"next")
        answer = self._done()
        del flat
        self._torch.cuda.ipc_collect()
        self._torch.cuda.empty_cache()
        return answer

    def cache(self, ours: bool) -> bytes:
        """LMCache: the layers of a KV cache."""
        torch = self._torch
        tensors = []
        for handle, shape in pickle.loads(self._pipe.recv_bytes()):
            if ours:
                storage = xs.attach(handle, like=torch).untyped_storage()
            else:
                storage = torch.UntypedStorage._new_shared_cuda(*handle)
            tensors.append(torch.empty((), device="cuda", dtype=torch.bfloat16).set_(storage, 0, shape))
        return b"%d" % int(tensors[-1].view(-1)[0].item())

    def events(self, ours: bool) -> bytes:
        """LMCache: wait for the engine's event, record one, until the engine says nothing more."""
        torch = self._torch
        stream = torch.cuda.current_stream()
        events = Events(ours)
        while raw := self._pipe.recv_bytes():
            events.wait(raw, stream)
            self._pipe.send_bytes(events.recorded(stream))
        return b"1"

    def trim(self, ours: bool) -> bytes:  # noqa: ARG002
        gc.collect()
        self._torch.cuda.ipc_collect()
        xs.trim()
        return b"0"


class Events:
    """Events as LMCache's protocol has them."""

    def __init__(self, ours: bool) -> None:
        self._ours = ours
        self._kept: list[Any] = []  # as LMCache's ring of exported events
        self._line: Any = None
        self._peers: dict[bytes, Any] = {}

    def recorded(self, stream: Any) -> bytes:
        import torch

        if not self._ours:
            event = torch.cuda.Event(interprocess=True)
            event.record(stream)
            raw = event.ipc_handle()
            self._kept.append(event)
            return bytes(raw)
        if self._line is None:
            queue = xs.Queue.from_native(stream)
            made = xs.Event(queue.device, enable_ipc=True, signals=True)
            self._line = queue, made, bytes(xs.ipc.event.get(made))
        queue, made, handle = self._line
        return handle + queue.signal(made).to_bytes(8, "little")

    def wait(self, raw: bytes, stream: Any) -> None:
        import torch

        if not self._ours:
            event = torch.cuda.Event.from_ipc_handle(torch.device("cuda:0"), raw)
            self._kept.append(event)
            event.wait(stream)
            return
        if raw[:-8] not in self._peers:
            self._peers[raw[:-8]] = xs.ipc.event.open(raw[:-8], signals=False)
        xs.Queue.from_native(stream).wait(self._peers[raw[:-8]], at_least=int.from_bytes(raw[-8:], "little"))


def work(pipe: Any) -> None:
    """Serve (name, ours) until nothing comes."""
    worker = Worker(pipe)
    pipe.send_bytes(b"ready")
    while asked := pipe.recv():
        pipe.send_bytes(getattr(worker, asked[0])(asked[1]))


# --- the trainer


class Trainer:
    def __init__(self, workers: int) -> None:
        import torch

        self._torch = torch
        self._pipes: list[Any] = []
        for _ in range(workers):
            here, there = SPAWN.Pipe()
            SPAWN.Process(target=work, args=(there,), daemon=True).start()
            self._pipes.append(here)
        for pipe in self._pipes:
            pipe.recv_bytes()
        self._step = 0
        self.state = model("cuda", "torch", 0)

    def timed(self, name: str, ours: bool, send: Callable[[list[Any], bool], None], count: int) -> float:
        """Microseconds until `count` workers have the new weights."""
        from xpushare.integrations import torch as reductions

        pipes = self._pipes[:count]
        self._step = self._step % 100 + 1
        for tensor in self.state.values():
            tensor.fill_(self._step)
        self._torch.cuda.synchronize()
        before = dict(ForkingPickler._extra_reducers)
        if ours:
            reductions.install()
        for pipe in pipes:
            pipe.send((name, ours))
        start = time.perf_counter_ns()
        send(pipes, ours)
        values = {int(pipe.recv_bytes()) for pipe in pipes}
        took = (time.perf_counter_ns() - start) / 1000
        reductions.uninstall()
        ForkingPickler._extra_reducers.clear()
        ForkingPickler._extra_reducers.update(before)
        if values != {self._step}:
            raise RuntimeError(f"{name}: the workers have {values} instead of {self._step}")
        for pipe in pipes:
            pipe.send(("trim", ours))
        for pipe in pipes:
            pipe.recv_bytes()
        gc.collect()
        self._torch.cuda.ipc_collect()
        self._torch.cuda.empty_cache()
        xs.trim()
        return took

    def bucket(self, pipes: list[Any], ours: bool) -> None:
        torch = self._torch
        payload: dict[str, Any]
        if ours:
            payload = {"flattened_tensor": list(self.state.values()), "metadata": list(self.state)}
        else:
            flats, metadata, at = [], {}, 0
            for name, tensor in self.state.items():
                flats.append(tensor.flatten().view(torch.uint8))
                metadata[name] = tensor.shape, tensor.dtype, at, at + tensor.nbytes
                at += tensor.nbytes
            payload = {"flattened_tensor": torch.cat(flats), "metadata": metadata}
        for pipe in pipes:
            pipe.send_bytes(_serialized(payload, ours))

    def separate(self, pipes: list[Any], ours: bool) -> None:
        for pipe in pipes:
            pipe.send_bytes(pickle.dumps([(name, _serialized(each, ours)) for name, each in self.state.items()]))

    def buckets(self, pipes: list[Any], ours: bool) -> None:
        if ours:
            self._by_channel(pipes)
        else:
            for pipe in pipes:  # verl's sender has one receiver
                self._by_bucket(pipe)

    def _by_channel(self, pipes: list[Any]) -> None:
        from xpushare.integrations import _engines

        with xs.Channel.create(
            None, (BUCKET // SLOTS,), "uint8", device="cuda:0", slots=SLOTS, meta_nbytes=_engines.META_NBYTES
        ) as channel:
            for pipe in pipes:
                pipe.send_bytes(channel.handle)
            for pipe in pipes:
                pipe.recv_bytes()
            _engines.send_buckets(channel, self.state.items())
            for pipe in pipes:  # as verl, the sender's memory stays until the receivers are done
                pipe.poll(60)

    def _by_bucket(self, pipe: Any) -> None:
        torch = self._torch
        from torch.multiprocessing.reductions import reduce_tensor

        flat = torch.empty(BUCKET, dtype=torch.uint8, device="cuda:0")
        pipe.send_bytes(pickle.dumps(reduce_tensor(flat)))
        pipe.recv_bytes()
        metadata: dict[str, Any] = {}
        at = 0
        for name, weight in self.state.items():
            if at + weight.nbytes > BUCKET and metadata:
                torch.cuda.synchronize()
                pipe.send_bytes(pickle.dumps((metadata, False)))
                pipe.recv_bytes()
                metadata, at = {}, 0
            metadata[name] = weight.shape, weight.dtype, at
            flat[at : at + weight.nbytes].view(weight.dtype).view(weight.shape).copy_(weight, non_blocking=True)
            at += weight.nbytes
        torch.cuda.synchronize()
        pipe.send_bytes(pickle.dumps((metadata, True)))
        pipe.poll(60)

    @contextlib.contextmanager
    def layers(self) -> Iterator[Callable[[list[Any], bool], None]]:
        """A KV cache, and what registers it."""
        torch = self._torch
        made = [torch.empty(2, 256, 16, 8, 128, dtype=torch.bfloat16, device="cuda") for _ in range(LAYERS)]
        exports: list[Any] = []

        def send(pipes: list[Any], ours: bool) -> None:
            for each in made:
                each.fill_(self._step)
            wrapped: list[Any] = []
            for each in made:
                storage = each.untyped_storage()
                if ours:
                    flat = torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)
                    exports.append(xs.share(flat))
                    wrapped.append((bytes(exports[-1]), each.shape))
                else:
                    wrapped.append((storage._share_cuda_(), each.shape))
            for pipe in pipes:
                pipe.send_bytes(pickle.dumps(wrapped))

        yield send
        for each in exports:
            each.close()

    def round_trips(self, ours: bool) -> float:
        """Microseconds of one operation: the engine's event, the server's, both waited for by streams."""
        stream = self._torch.cuda.current_stream()
        pipe = self._pipes[0]
        pipe.send(("events", ours))
        events = Events(ours)
        samples = []
        for _ in range(OPERATIONS):
            start = time.perf_counter_ns()
            pipe.send_bytes(events.recorded(stream))
            events.wait(pipe.recv_bytes(), stream)
            stream.synchronize()
            samples.append((time.perf_counter_ns() - start) / 1000)
        pipe.send_bytes(b"")
        pipe.recv_bytes()
        return sorted(samples)[len(samples) // 2]

    def end(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)


def engines() -> list[Row]:
    trainer = Trainer(2)
    rows = []

    def compared(scenario: str, count: int, name: str, send: Callable[[list[Any], bool], None], calls: str) -> None:
        ours, theirs = alternate(
            ROUNDS, lambda: trainer.timed(name, True, send, count), lambda: trainer.timed(name, False, send, count)
        )
        rows.append(compare(scenario, f"to {count} worker(s)", ours, calls, theirs))

    compared("SGLang, one bucket of 578 tensors", 2, "bucket", trainer.bucket, SGLANG)
    compared("SGLang, 578 tensors by themselves", 2, "separate", trainer.separate, SEPARATE)
    compared("verl, 578 tensors through 512 MiB", 1, "buckets", trainer.buckets, VERL)
    compared("verl, 578 tensors through 512 MiB", 2, "buckets", trainer.buckets, VERL)
    with trainer.layers() as send:
        compared("LMCache, a KV cache of 80 layers", 1, "cache", send, LMCACHE)
    ours, theirs = alternate(5, lambda: trainer.round_trips(True), lambda: trainer.round_trips(False))
    rows.append(compare("LMCache, events", "one operation", ours, LMCACHE_EVENTS, theirs))
    trainer.end()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    show(machine(), engines(), options.json)


if __name__ == "__main__":
    main()
