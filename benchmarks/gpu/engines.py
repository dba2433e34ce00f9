"""Weights, KV caches and events by the plug-ins of inference engines, against the torch calls of the engines' own code.

python -m benchmarks.gpu.engines [--device cuda:0] [--rounds 12] [--only vllm,sglang,…] [--json FILE]

Both sides of a row take turns in one run, with one trainer and two workers, which pipes connect in the place of the
engines' sockets. The engines are not imported: their calls are written out, each with the file and line of the release
that has it (vLLM 0.32.0, checkpoint-engine 0.4.2, SGLang 0.5.23, verl 0.9.1, LMCache 0.5.6). What was read is checked
after the clock has stopped. The model is that of `benchmarks.trees`: 578 tensors, 3.1 GB on a GPU.

vLLM: "take" is done when both workers have all tensors, have read one element of every 170th and have said so; "load"
when both have copied all tensors into their own. "Same" sends the same tensors each time, as a trainer that updates in
place does, "new" sends tensors that nobody has opened yet.

SGLang, verl and checkpoint-engine: the clock runs until every worker has copied all tensors into its own and its GPU
has finished. Between two rounds of SGLang, verl and LMCache all processes give back what they keep, except where a row
says "again". "The copies alone" are those that verl's way needs, in one process and one stream.

`handles` is the case of a mixture of experts that goes in 115 messages of 170 tensors each (19,550 tensors). torch's
allocator takes thousands of allocations for them, each of which is opened, a pool of ours a few. "Still open": sent
again at once, within the two seconds for which a worker keeps what it has closed. With torch's reductions a worker
closes all before it answers. Ours closes it later, in a thread of its own: "closed afterwards" is what that takes if
everything is given back at once.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.reduction import ForkingPickler
from statistics import median
from typing import Any, Final

import xpushare as xs
from benchmarks import show
from benchmarks.gpu.driver import MIB, SPAWN, row
from benchmarks.trees import model
from xpushare import adapters
from xpushare.bench.measure import Row, alternate, machine, spread

torch: Any = importlib.import_module("torch")
reductions: Any = importlib.import_module("torch.multiprocessing.reductions")
WORKERS: Final = 2
NAME: Final = "bench-engines"
MESSAGES, IN_A_MESSAGE, SHAPE = 115, 170, (256, 768)
BUCKET: Final = 512 * MIB
SLOTS: Final = 3
LAYERS: Final = 80
OPERATIONS: Final = 50
# Where the engines' own calls stand.
SGLANG: Final = "weight_sync/tensor_bucket.py:54-72, utils/common.py:3074, utils/patch_torch.py:72"
SEPARATE: Final = "weight_sync/utils.py:51, utils/common.py:3074, utils/patch_torch.py:72"
VERL: Final = "vllm_rollout/bucketed_weight_transfer.py:102-340"
LMCACHE: Final = "devices/cuda/ipc_wrapper.py:194, 228"
LMCACHE_EVENTS: Final = "base/event_ipc.py:221-252"


def _settle(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


class Laps:
    """What the steps of a round have taken, in seconds, by their names."""

    def __init__(self) -> None:
        self.taken: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, step: str) -> None:
        """End a step, and begin the next one."""
        now = time.perf_counter()
        self.taken[step] = self.taken.get(step, 0.0) + now - self._since
        self._since = now


def collect_all() -> None:
    """Collect garbage as a process does whose objects of before are not frozen."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def give_back() -> None:
    """Close and free what nobody uses. Returns when all of it is closed, so that none of it falls into a clock."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
    xs.trim()
    if torch.cuda.is_available() and not adapters.adapter("cuda").engine.teardown.settle(60):  # type: ignore[attr-defined]
        raise RuntimeError("the teardowns have not come to an end")


def _index(device: str) -> int:
    return torch.device(device).index or 0


def rebuild(*args: Any) -> Any:
    """SGLang's reading of a tensor: the device by its uuid."""
    for device in range(torch.cuda.device_count()):
        if str(torch.cuda.get_device_properties(device).uuid) == args[6]:
            return reductions.rebuild_cuda_tensor(*args[:6], device, *args[7:])
    raise RuntimeError(f"no device {args[6]}")


def _reduced(tensor: Any) -> Any:
    """SGLang's writing of one."""
    _, args = reductions.reduce_tensor(tensor)
    return rebuild, (*args[:6], str(torch.cuda.get_device_properties(args[6]).uuid), *args[7:])


@contextlib.contextmanager
def serializer(ours: bool) -> Iterator[Callable[[Any], bytes]]:
    """SGLang's serializer, with our reductions or its own."""
    plugin = importlib.import_module("xpushare.integrations.torch")
    before = dict(ForkingPickler._extra_reducers)  # type: ignore[attr-defined]

    def serialized(thing: Any) -> bytes:
        buffer = io.BytesIO()
        ForkingPickler(buffer).dump(thing)
        return buffer.getvalue()

    plugin.install() if ours else ForkingPickler.register(torch.Tensor, _reduced)
    try:
        yield serialized
    finally:
        plugin.uninstall()
        ForkingPickler._extra_reducers.clear()  # type: ignore[attr-defined]
        ForkingPickler._extra_reducers.update(before)  # type: ignore[attr-defined]


class Events:
    """Events as LMCache's protocol has them."""

    def __init__(self, ours: bool) -> None:
        self._ours = ours
        self._kept: list[Any] = []  # as LMCache's ring of exported events
        self._line: Any = None
        self._peers: dict[bytes, Any] = {}

    def recorded(self, stream: Any) -> bytes:
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
        return bytes(handle + queue.signal(made).to_bytes(8, "little"))

    def wait(self, raw: bytes, stream: Any) -> None:
        if not self._ours:
            event = torch.cuda.Event.from_ipc_handle(torch.device("cuda:0"), raw)
            self._kept.append(event)
            event.wait(stream)
            return
        if raw[:-8] not in self._peers:
            self._peers[raw[:-8]] = xs.ipc.event.open(raw[:-8], signals=False)
        xs.Queue.from_native(stream).wait(self._peers[raw[:-8]], at_least=int.from_bytes(raw[-8:], "little"))


# --- the workers


class Worker:
    """One of two receivers: it does what it is asked, one after the other."""

    def __init__(self, device: str) -> None:
        from xpushare.integrations._engines import Reader

        self.device = device
        self.reader = Reader(NAME, device)
        self.own: dict[str, Any] = {}
        self.seen: list[Any] = []

    def use(self, tensors: dict[str, Any], load: bool) -> None:
        """Copy all tensors, or look at the first element of some."""
        if load:
            if not self.own:
                self.own = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
            for name, tensor in tensors.items():
                self.own[name].copy_(tensor)
            self.seen = []
        else:
            some = list(tensors.values())[::IN_A_MESSAGE]
            self.seen = [tensor.view(-1)[:1].clone() for tensor in some]
            _settle(self.device)

    def check(self) -> list[float]:
        found = self.seen or [tensor.view(-1)[:1] for tensor in self.own.values()]
        return sorted(set(torch.cat(found).float().tolist()))

    def load(self, named: Iterable[tuple[str, Any]]) -> None:
        self.seen = []
        for name, tensor in named:
            self.own[name].copy_(tensor)

    def parameters(self) -> None:
        self.own = model(self.device, "tree", 0)

    # what the plug-ins do

    def published(self, version: int, load: bool) -> None:
        with self.reader.reading(version) as tensors:
            self.use(tensors, load)

    def trim(self) -> None:
        give_back()

    def trees(self, handles: list[bytes]) -> None:
        tensors: dict[str, Any] = {}
        for handle in handles:
            tensors.update(xs.attach(handle, like=torch))
        self.use(tensors, False)

    def channel(self, handle: bytes) -> None:
        from xpushare.integrations._engines import receive_buckets

        with xs.Channel.open(handle) as channel:
            self.reply(b"open")
            for bucket in receive_buckets(channel, timeout=60):
                self.load(bucket)
            _settle(self.device)

    def cache(self, handle: bytes, shapes: list[tuple[int, ...]]) -> None:
        """LMCache: the layers of a KV cache, as one tree."""
        flats = xs.attach(handle, like=torch)
        self.layers(zip((flat.untyped_storage() for flat in flats), shapes, strict=True))

    def layers(self, found: Iterable[tuple[Any, tuple[int, ...]]]) -> None:
        tensors = [
            torch.empty((), device=self.device, dtype=torch.bfloat16).set_(storage, 0, shape)
            for storage, shape in found
        ]  # fmt: skip
        self.seen = [tensor.view(-1)[:1].clone() for tensor in tensors[-1:]]
        _settle(self.device)

    def events(self, ours: bool) -> None:
        """LMCache: wait for the engine's event, record one, until the engine says nothing more."""
        stream, events = torch.cuda.current_stream(), Events(ours)
        while raw := self.receive():
            events.wait(raw, stream)
            self.reply(events.recorded(stream))

    # what the engines do

    def vllm_ipc(self, raw: bytes, load: bool) -> None:
        """vLLM 0.32.0, vllm/distributed/weight_transfer/ipc_engine.py:218-238 and base.py:502 (synchronize)."""
        names, handles = pickle.loads(raw)
        tensors: dict[str, Any] = {}
        for name, handle in zip(names, handles, strict=True):
            uuid = str(torch.cuda.get_device_properties(_index(self.device)).uuid)
            args = list(handle[uuid])
            args[6] = _index(self.device)
            tensors[name] = reductions.rebuild_cuda_tensor(*args)
        self.use(tensors, load)
        torch.accelerator.synchronize()

    def pickled(self, messages: list[bytes]) -> None:
        """A pickle of reduced tensors: torch's own reductions, as the engines' serializers use them."""
        tensors: dict[str, Any] = {}
        for each in messages:
            tensors.update(pickle.loads(each))
        self.use(tensors, False)

    def flattened(self, raw: bytes, ours: bool) -> dict[str, float]:
        """SGLang's weight_updater.py:383-411, for a bucket of either side."""
        laps = Laps()
        found = pickle.loads(raw)
        flat = found["flattened_tensor"]
        if ours:  # what the plug-in adds to the constructor of the bucket
            plugin = importlib.import_module("xpushare.integrations.sglang")
            plugin._init(lambda *_: None, None, None, flat, found["metadata"])
        laps.lap("open")
        self.load(
            (name, flat[start:end].view(dtype).reshape(shape))
            for name, (shape, dtype, start, end) in found["metadata"].items()
        )
        _settle(self.device)
        laps.lap("copy")
        del flat, found
        laps.lap("drop")
        return laps.taken

    def listed(self, named: list[tuple[str, bytes]]) -> None:
        """SGLang's weight_updater.py:368-371: all tensors of a list, each by a message of its own, and then the load.
        Ours come by the first message.
        """
        tensors: list[Any] = []
        for _, raw in named:
            found = pickle.loads(raw)
            if isinstance(found, list):
                tensors = found
            elif not isinstance(found, int):
                tensors.append(found)
        self.load(zip((name for name, _ in named), tensors, strict=True))
        _settle(self.device)

    def verl_bucket(self, raw: bytes) -> None:
        """verl 0.9.1, bucketed_weight_transfer.py:230-340: one bucket again and again."""
        function, args = pickle.loads(raw)
        flat = function(*args)
        self.reply(b"open")
        last = False
        while not last:
            metadata, last = pickle.loads(self.receive())
            self.load(
                (name, flat[at : at + dtype.itemsize * shape.numel()].view(dtype).view(shape))
                for name, (shape, dtype, at) in metadata.items()
            )
            torch.cuda.synchronize()
            if not last:
                self.reply(b"next")
        del flat
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()

    def lmcache(self, wrapped: list[tuple[Any, tuple[int, ...]]]) -> None:
        """LMCache 0.5.6, devices/cuda/ipc_wrapper.py:228, for each layer."""
        self.layers((torch.UntypedStorage._new_shared_cuda(*handle), shape) for handle, shape in wrapped)

    def checkpoint_engine(self, raw: bytes) -> None:
        """checkpoint-engine 0.4.2, checkpoint_engine/worker.py:16-25 (rebuild), 35-47 (extract) and 62-100."""
        function, args = pickle.loads(raw)
        args = list(args)
        args[6] = _index(self.device)
        buffer = function(*args)
        self.reply(b"")
        while (payload := pickle.loads(self.receive())) is not None:
            for item in payload:
                size = item["dtype"].itemsize * item["shape"].numel()
                part = buffer[item["offset"] : item["offset"] + size]
                self.own[item["name"]].copy_(part.view(dtype=item["dtype"]).view(item["shape"]))
            torch.cuda.synchronize()
            self.reply(b"")
        torch.cuda.synchronize()
        del buffer
        collect_all()
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
        torch.cuda.synchronize()

    reply: Callable[[bytes], None]
    receive: Callable[[], bytes]


def work(device: str, pipe: Any) -> None:
    if device != "cpu":
        torch.zeros(1, device=device)
    worker = Worker(device)
    worker.reply, worker.receive = pipe.send_bytes, pipe.recv_bytes
    collect_all()  # a collection takes 65 ms beside torch's modules, and would fall into somebody's clock
    pipe.send_bytes(b"ready")
    while (asked := pickle.loads(pipe.recv_bytes())) is not None:
        verb, arguments = asked
        answer: Any
        try:
            answer = getattr(worker, verb)(*arguments)
        except Exception:
            answer = RuntimeError(traceback.format_exc())
        pipe.send_bytes(pickle.dumps(answer))
    worker.reader.close()


# --- the trainer


class Trainer:
    """The side that has the weights."""

    def __init__(self, device: str) -> None:
        from xpushare.integrations._engines import Publisher

        self.device = device
        self.publisher = Publisher(NAME)
        self.weights: dict[str, Any] = {}
        self.pooled: dict[str, Any] = {}  # the same, in memory of ours
        self.cache: list[Any] = []
        self.laps: dict[bool, list[dict[str, float]]] = {True: [], False: []}  # of rounds of either side
        self.value = 0
        pairs = [SPAWN.Pipe() for _ in range(WORKERS)]
        self.processes = [SPAWN.Process(target=work, args=(device, there), daemon=True) for _, there in pairs]
        self.pipes: list[Any] = [here for here, _ in pairs]
        for process in self.processes:
            process.start()
        for pipe in self.pipes:
            pipe.recv_bytes()
        collect_all()

    def make(self, new: bool) -> None:
        """The next value of all weights, in place or in new tensors."""
        self.value = self.value % 100 + 1
        if new or not self.weights:
            self.weights = {}
            self.weights = model(self.device, "tree", self.value)
        for tensor in self.weights.values():
            tensor.fill_(self.value)
        _settle(self.device)

    def ask(self, verb: str, *arguments: Any, count: int = WORKERS) -> None:
        message = pickle.dumps((verb, arguments))
        for pipe in self.pipes[:count]:
            pipe.send_bytes(message)

    def answers(self, count: int = WORKERS) -> list[Any]:
        found = [pickle.loads(pipe.recv_bytes()) for pipe in self.pipes[:count]]
        for each in found:
            if isinstance(each, Exception):
                raise each
        return found

    def checked(self, seconds: float, count: int = WORKERS) -> float:
        self.ask("check", count=count)
        for found in self.answers(count):
            if found != [float(self.value)]:
                raise RuntimeError(f"{found} was read instead of {self.value}")
        return seconds

    def published(self, load: bool, new: bool) -> float:
        self.make(new)
        start = time.perf_counter()
        version = self.publisher.publish(self.weights.items())
        self.ask("published", version, load)
        self.answers()
        self.publisher.wait(60)
        self.publisher.withdraw()
        return self.checked(time.perf_counter() - start)

    def vllm_ipc(self, load: bool, new: bool) -> float:
        """vLLM 0.32.0, ipc_engine.py:390-399 (reduce), clients.py:44 (pickle), ipc_engine.py:373 (ipc_collect)."""
        self.make(new)
        start = time.perf_counter()
        names, handles, held = list[str](), list[Any](), list[Any]()
        uuid = str(torch.cuda.get_device_properties(_index(self.device)).uuid)
        for name, tensor in self.weights.items():
            names.append(name)
            held.append(tensor.detach().contiguous())
            handles.append({uuid: reductions.reduce_tensor(held[-1])[1]})
        self.ask("vllm_ipc", pickle.dumps((names, handles)), load)
        self.answers()
        torch.cuda.ipc_collect()
        return self.checked(time.perf_counter() - start)

    def channel(self, nbytes: int = BUCKET, count: int = WORKERS) -> float:
        self.make(False)
        start = time.perf_counter()
        engines = importlib.import_module("xpushare.integrations._engines")
        place = engines.device_of(self.device)
        with xs.Channel.create(
            None, (nbytes,), "uint8", device=place, slots=SLOTS, meta_nbytes=engines.META_NBYTES
        ) as channel:
            self.ask("channel", bytes(channel.handle), count=count)
            for pipe in self.pipes[:count]:
                pipe.recv_bytes()
            engines.send_buckets(channel, self.weights.items(), timeout=60)
            self.answers(count)
        return self.checked(time.perf_counter() - start, count)

    def checkpoint_engine(self) -> float:
        """checkpoint-engine 0.4.2, checkpoint_engine/ps.py:35-48 (payload), 774-783 (buffer) and 792-872 (buckets)."""
        self.make(False)
        start = time.perf_counter()
        buffer = torch.empty(BUCKET * 2, dtype=torch.uint8, device=self.device)
        handle = reductions.reduce_tensor(buffer)
        self.ask("checkpoint_engine", pickle.dumps(handle))
        rest = list(self.weights.items())
        number = 0
        while rest:
            at, payload = number % 2 * BUCKET, list[Any]()
            end = at + BUCKET
            while rest and at + rest[0][1].nbytes <= end:
                name, tensor = rest.pop(0)
                buffer[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
                payload.append({"name": name, "dtype": tensor.dtype, "shape": tensor.shape, "offset": at})
                at += -(-tensor.nbytes // 256) * 256
            for pipe in self.pipes:
                pipe.recv_bytes()
            torch.cuda.synchronize()
            for pipe in self.pipes:
                pipe.send_bytes(pickle.dumps(payload))
            number += 1
        for pipe in self.pipes:
            pipe.recv_bytes()
        for pipe in self.pipes:
            pipe.send_bytes(pickle.dumps(None))
        self.answers()
        del buffer, handle
        torch.cuda.synchronize()
        collect_all()
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        return self.checked(time.perf_counter() - start)

    # a mixture of experts

    def experts(self, pool: Any = None) -> list[dict[str, Any]]:
        """The messages, of tensors that torch has allocated, or that lie in a pool of ours."""
        made = self.weights if pool is None else self.pooled
        if not made:
            with pool or contextlib.nullcontext():
                for i in range(MESSAGES):
                    for j in range(IN_A_MESSAGE):
                        made[f"{i}.{j}"] = torch.empty(SHAPE, dtype=torch.bfloat16, device=self.device)
        self.value = self.value % 100 + 1
        for tensor in made.values():
            tensor.fill_(self.value)
        _settle(self.device)
        items = list(made.items())
        return [dict(items[i : i + IN_A_MESSAGE]) for i in range(0, len(items), IN_A_MESSAGE)]

    def trees(self, pool: Any = None) -> float:
        parts = self.experts(pool)
        start = time.perf_counter()
        handles = [xs.share(part) for part in parts]
        self.ask("trees", [bytes(handle) for handle in handles])
        self.answers()
        for handle in handles:
            handle.close()
        return self.checked(time.perf_counter() - start)

    def pickled(self) -> float:
        parts = self.experts()
        start = time.perf_counter()
        messages: list[bytes] = []
        for part in parts:
            buffer = io.BytesIO()
            ForkingPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(part)
            messages.append(buffer.getvalue())
        self.ask("pickled", messages)
        self.answers()
        torch.cuda.ipc_collect() if self.device != "cpu" else None
        return self.checked(time.perf_counter() - start)

    # SGLang, verl, LMCache

    def rested(self, seconds: float) -> float:
        """After a round: all processes give back what they keep."""
        self.ask("trim")
        self.answers()
        give_back()
        return seconds

    def flattened(self, ours: bool, nbytes: int = 1 << 62) -> float:
        """SGLang: buckets of at most so many bytes, one after the other."""
        self.make(False)
        start, laps = time.perf_counter(), Laps()
        rest = list(self.weights.items())
        with serializer(ours) as serialized:
            while rest:
                parts, metadata, at = list[Any](), dict[str, Any](), 0
                while rest and (not parts or at + rest[0][1].nbytes <= nbytes):
                    name, tensor = rest.pop(0)
                    parts.append(tensor.flatten().view(torch.uint8))
                    metadata[name] = tensor.shape, tensor.dtype, at, at + tensor.nbytes
                    at += tensor.nbytes
                laps.lap("flatten")
                flat = torch.from_dlpack(xs.empty(at, "uint8", device=self.device)) if ours else None
                laps.lap("allocate")
                flat = torch.cat(parts, out=flat)
                laps.lap("concatenate")
                payload = {"flattened_tensor": flat, "metadata": metadata}
                messages = [pickle.dumps(("flattened", (serialized(payload), ours))) for _ in self.pipes]
                laps.lap("serialize")
                del flat, payload
                for pipe, message in zip(self.pipes, messages, strict=True):
                    pipe.send_bytes(message)
                found = self.answers()
                laps.lap("wait")
                for step in found[0]:
                    laps.taken[step] = laps.taken.get(step, 0.0) + max(each[step] for each in found)
        self.laps[ours].append(laps.taken)
        return self.checked(time.perf_counter() - start)

    def steps(self, rounds: int) -> list[str]:
        """Return what the steps of the last rounds of either side have taken, in milliseconds."""
        found: list[str] = []
        for ours, all_laps in self.laps.items():
            last = all_laps[-rounds:]
            if last:
                steps = ", ".join(f"{step} {1e3 * median(each[step] for each in last):.2f}" for step in last[0])
                found.append(f"{'plug-in' if ours else 'SGLang'}: {steps} ms")
            all_laps.clear()
        return found

    def listed(self, ours: bool) -> float:
        """SGLang: a list of tensors, each with a message of its own, for each worker."""
        self.make(False)
        start = time.perf_counter()
        names = list(self.weights)
        with serializer(ours) as serialized:
            for pipe in self.pipes:
                if ours:
                    raws = [serialized(list(self.weights.values())), *map(serialized, range(1, len(names)))]
                else:
                    raws = [serialized(tensor) for tensor in self.weights.values()]
                pipe.send_bytes(pickle.dumps(("listed", (list(zip(names, raws, strict=True)),))))
            self.answers()
        return self.checked(time.perf_counter() - start)

    def verl_bucket(self, count: int) -> float:
        """verl: its sender has one receiver, so it sends once for each."""
        self.make(False)
        start = time.perf_counter()
        for pipe in self.pipes[:count]:
            flat = torch.empty(BUCKET, dtype=torch.uint8, device=self.device)
            pipe.send_bytes(pickle.dumps(("verl_bucket", (pickle.dumps(reductions.reduce_tensor(flat)),))))
            pipe.recv_bytes()
            metadata: dict[str, Any] = {}
            at = 0
            for name, weight in self.weights.items():
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
            pickle.loads(pipe.recv_bytes())
        return self.checked(time.perf_counter() - start, count)

    def copies(self) -> float:
        """What verl's way copies: out of the weights into a bucket, and out of that, in one process."""
        self.make(False)
        flat = torch.empty(BUCKET, dtype=torch.uint8, device=self.device)
        if not self.pooled:
            self.pooled = {name: torch.empty_like(tensor) for name, tensor in self.weights.items()}
        _settle(self.device)
        start = time.perf_counter()
        rest, at = list(self.weights.items()), 0
        while rest:
            views, at = dict[str, Any](), 0
            while rest and at + rest[0][1].nbytes <= BUCKET:
                name, weight = rest.pop(0)
                views[name] = flat[at : at + weight.nbytes].view(weight.dtype).view(weight.shape)
                views[name].copy_(weight, non_blocking=True)
                at += weight.nbytes
            for name, view in views.items():
                self.pooled[name].copy_(view)
        _settle(self.device)
        return time.perf_counter() - start

    def layers(self, ours: bool) -> float:
        """LMCache: until the server has tensors of a KV cache."""
        self.value = self.value % 100 + 1
        if not self.cache:
            shape = (2, 256, 16, 8, 128)
            self.cache = [torch.empty(shape, dtype=torch.bfloat16, device=self.device) for _ in range(LAYERS)]
        for each in self.cache:
            each.fill_(self.value)
        _settle(self.device)
        shapes = [tuple(each.shape) for each in self.cache]
        start = time.perf_counter()
        storages = [each.untyped_storage() for each in self.cache]
        if ours:
            flats = [torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage) for storage in storages]
            with xs.share(flats) as handle:
                self.ask("cache", bytes(handle), shapes, count=1)
                self.answers(1)
        else:
            wrapped = [(storage._share_cuda_(), shape) for storage, shape in zip(storages, shapes, strict=True)]
            self.ask("lmcache", wrapped, count=1)
            self.answers(1)
        return self.checked(time.perf_counter() - start, 1)

    def operations(self, ours: bool) -> float:
        """LMCache: the engine's event, the server's, both waited for by streams. The median of some operations."""
        stream = torch.cuda.current_stream()
        self.ask("events", ours, count=1)
        events, samples = Events(ours), list[float]()
        for _ in range(OPERATIONS):
            start = time.perf_counter()
            self.pipes[0].send_bytes(events.recorded(stream))
            events.wait(self.pipes[0].recv_bytes(), stream)
            stream.synchronize()
            samples.append(time.perf_counter() - start)
        self.pipes[0].send_bytes(b"")
        self.answers(1)
        return sorted(samples)[len(samples) // 2]

    def end(self) -> None:
        for pipe in self.pipes:
            pipe.send_bytes(pickle.dumps(None))
        for process in self.processes:
            process.join(30)


def vllm(trainer: Trainer, rounds: int) -> list[Row]:
    rows: list[Row] = []
    for what, load, new in (("take", False, False), ("take", False, True), ("load", True, False)):
        ours, theirs = alternate(
            rounds,
            lambda load=load, new=new: trainer.published(load, new),
            lambda load=load, new=new: trainer.vllm_ipc(load, new),
            warm_up=1,
        )
        rows.append(row("vLLM, 578 tensors", f"{what}, {'new' if new else 'same'}", ours, "its IPC engine", theirs))
    return rows


def checkpoint_engine(trainer: Trainer, rounds: int) -> list[Row]:
    trainer.published(True, False)  # the workers' own tensors
    ours, theirs = alternate(rounds, trainer.channel, trainer.checkpoint_engine, warm_up=1)
    return [row("checkpoint-engine, 578 tensors", f"buckets of {BUCKET >> 20} MiB", ours, "its buffer", theirs)]


def sglang(trainer: Trainer, rounds: int) -> list[Row]:
    trainer.ask("parameters")
    trainer.answers()
    rows: list[Row] = []
    for scenario, what, send, again, calls in (
        ("SGLang, one bucket of 578 tensors", "to 2 worker(s)", trainer.flattened, False, SGLANG),
        ("SGLang, one bucket of 578 tensors", "to 2 worker(s), again", trainer.flattened, True, SGLANG),
        *(
            ("SGLang, buckets of 512 MiB", what, lambda ours: trainer.flattened(ours, BUCKET), again, SGLANG)
            for what, again in (("to 2 worker(s)", False), ("to 2 worker(s), again", True))
        ),
        ("SGLang, 578 tensors by themselves", "to 2 worker(s)", trainer.listed, False, SEPARATE),
    ):

        def one(ours: bool, send: Any = send, again: bool = again) -> float:
            took: float = send(ours)
            return took if again else trainer.rested(took)

        ours, theirs = alternate(rounds, lambda one=one: one(True), lambda one=one: one(False), warm_up=1)
        rows.append(row(scenario, what, ours, calls, theirs))
        rows[-1].notes += trainer.steps(rounds)
    return rows


def verl(trainer: Trainer, rounds: int) -> list[Row]:
    trainer.ask("parameters")
    trainer.answers()
    rows: list[Row] = []
    for count in (1, 2):
        ours, theirs, copies = alternate(
            rounds,
            lambda count=count: trainer.rested(trainer.channel(BUCKET // SLOTS, count)),
            lambda count=count: trainer.rested(trainer.verl_bucket(count)),
            trainer.copies,
            warm_up=1,
        )
        what = "verl, 578 tensors through 512 MiB"
        rows.append(row(what, f"to {count} worker(s)", ours, VERL, theirs))
        rows.append(row(what, f"to {count} worker(s), beside its copies", ours, "the copies alone", copies))
    return rows


def lmcache(trainer: Trainer, rounds: int) -> list[Row]:
    ours, theirs = alternate(
        rounds,
        lambda: trainer.rested(trainer.layers(True)),
        lambda: trainer.rested(trainer.layers(False)),
        warm_up=1,
    )
    rows = [row("LMCache, a KV cache of 80 layers", "to 1 worker(s)", ours, LMCACHE, theirs)]
    ours, theirs = alternate(5, lambda: trainer.operations(True), lambda: trainer.operations(False))
    rows.append(row("LMCache, events", "one operation", ours, LMCACHE_EVENTS, theirs))
    return rows


def handles(trainer: Trainer, rounds: int) -> list[Row]:
    from xpushare.integrations.torch import pool

    memory = pool(trainer.device)
    trainer.weights, trainer.pooled = {}, {}
    closing: list[float] = []

    def anew() -> float:
        took, start = trainer.trees(), time.perf_counter()
        trainer.rested(0)
        closing.append(time.perf_counter() - start)
        return took

    ours, pooled, theirs = alternate(
        max(rounds // 3, 2), anew, lambda: trainer.rested(trainer.trees(memory)), trainer.pickled, warm_up=1
    )
    other = "torch's reductions, pickled"
    again = [trainer.trees() for _ in range(6)][1:]
    trainer.weights, trainer.pooled = {}, {}
    what = "115 handles of 170 tensors"
    return [
        *(
            row(what, name, samples, other, theirs)
            for name, samples in (("opened anew", ours), ("opened anew, in a pool", pooled), ("still open", again))
        ),
        Row(what, "closed afterwards", "us", spread([each * 1e6 for each in closing])),
    ]


GROUPS: Final[dict[str, Callable[[Trainer, int], list[Row]]]] = {
    "vllm": vllm, "checkpoint_engine": checkpoint_engine, "handles": handles, "sglang": sglang, "verl": verl,
    "lmcache": lmcache,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="as torch calls it")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", default=",".join(GROUPS), help="some of %(default)s")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    where = machine() | {"device": xs.Device(options.device).name, "torch": torch.__version__}
    rows: list[Row] = []
    trainer = Trainer(options.device)
    try:
        for name in options.only.split(","):
            rows += GROUPS[name](trainer, options.rounds)
            show(where, rows, options.json)
            sys.stdout.flush()
    finally:
        trainer.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
