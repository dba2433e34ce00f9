"""Weights to two workers by the plug-ins of inference engines, against the torch calls of the engines' own code.

python -m benchmarks.gpu.engines [--device cuda:0] [--rounds 12] [--only vllm,checkpoint_engine,handles] [--json FILE]

Both sides of a row take turns in one run, with one trainer and two workers. The engines are not imported: their calls
are written out, each with the file and line of the release that has it. "Take" is done when both workers have all
tensors, have read one element of every 170th and have said so; "load" when both have copied all tensors into their own.
The model is that of `benchmarks.trees`: 578 tensors, 3.1 GB on a GPU. "Same" sends the same tensors each time, as a
trainer that updates in place does, "new" sends tensors that nobody has opened yet.

`handles` is the case of a mixture of experts that goes in 115 messages of 170 tensors each (19,550 tensors). torch's
allocator takes thousands of allocations for them, each of which is opened, a pool of ours a few. "Still open": sent
again at once, within the two seconds for which a worker keeps what it has closed. What was read is checked after the
clock has stopped.
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
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

import xpushare as xs
from benchmarks import show
from benchmarks.gpu.driver import SPAWN, row
from benchmarks.trees import REST, model
from xpushare.bench.measure import Row, alternate, machine

torch: Any = importlib.import_module("torch")
reductions: Any = importlib.import_module("torch.multiprocessing.reductions")
WORKERS: Final = 2
NAME: Final = "bench-engines"
MESSAGES, IN_A_MESSAGE, SHAPE = 115, 170, (256, 768)
BUCKET: Final = 512 << 20


def _settle(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _index(device: str) -> int:
    return torch.device(device).index or 0


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

    # what the plug-ins do

    def published(self, version: int, load: bool) -> None:
        with self.reader.reading(version) as tensors:
            self.use(tensors, load)

    def trim(self) -> None:
        gc.collect()
        xs.trim()
        time.sleep(REST)

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
                for name, tensor in bucket:
                    self.own[name].copy_(tensor)
        _settle(self.device)

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
        gc.collect()
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
    pipe.send_bytes(b"ready")
    while (asked := pickle.loads(pipe.recv_bytes())) is not None:
        verb, arguments = asked
        answer: Any
        try:
            answer = getattr(worker, verb)(*arguments)
        except Exception:
            answer = RuntimeError(traceback.format_exc())
        pipe.send_bytes(pickle.dumps(answer))
        gc.collect()
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
        self.value = 0
        pairs = [SPAWN.Pipe() for _ in range(WORKERS)]
        self.processes = [SPAWN.Process(target=work, args=(device, there), daemon=True) for _, there in pairs]
        self.pipes: list[Any] = [here for here, _ in pairs]
        for process in self.processes:
            process.start()
        for pipe in self.pipes:
            pipe.recv_bytes()

    def make(self, new: bool) -> None:
        """The next value of all weights, in place or in new tensors."""
        self.value = self.value % 100 + 1
        if new or not self.weights:
            self.weights = {}
            self.weights = model(self.device, "tree", self.value)
        for tensor in self.weights.values():
            tensor.fill_(self.value)
        _settle(self.device)

    def ask(self, verb: str, *arguments: Any) -> None:
        message = pickle.dumps((verb, arguments))
        for pipe in self.pipes:
            pipe.send_bytes(message)

    def answers(self) -> list[Any]:
        found = [pickle.loads(pipe.recv_bytes()) for pipe in self.pipes]
        for each in found:
            if isinstance(each, Exception):
                raise each
        return found

    def checked(self, seconds: float) -> float:
        self.ask("check")
        for found in self.answers():
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

    def channel(self) -> float:
        self.make(False)
        start = time.perf_counter()
        with self.bucket_channel() as channel:
            self.ask("channel", bytes(channel.handle))
            for pipe in self.pipes:
                pipe.recv_bytes()
            send = importlib.import_module("xpushare.integrations._engines").send_buckets
            send(channel, self.weights.items(), timeout=60)
            self.answers()
        return self.checked(time.perf_counter() - start)

    def bucket_channel(self) -> xs.Channel:
        from xpushare.integrations._engines import META_NBYTES, device_of

        return xs.Channel.create(
            None, (BUCKET,), "uint8", device=device_of(self.device), slots=3, meta_nbytes=META_NBYTES
        )

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
        gc.collect()
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

    def trees(self, pool: Any = None, *, anew: bool = True) -> float:
        parts = self.experts(pool)
        if anew:
            self.ask("trim")
            self.answers()
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

    def end(self) -> None:
        for pipe in self.pipes:
            pipe.send_bytes(pickle.dumps(None))
        for process in self.processes:
            process.join(30)


def _group(device: str, measure: Callable[[Trainer], list[Row]]) -> list[Row]:
    trainer = Trainer(device)
    try:
        return measure(trainer)
    finally:
        trainer.end()


def vllm(trainer: Trainer, rounds: int) -> list[Row]:
    rows: list[Row] = []
    for what, load, new in (("take", False, False), ("take", False, True), ("load", True, False)):
        ours, theirs = alternate(
            rounds,
            lambda load=load, new=new: trainer.published(load, new),
            lambda load=load, new=new: trainer.vllm_ipc(load, new),
            warm_up=2,
        )
        rows.append(row("vLLM, 578 tensors", f"{what}, {'new' if new else 'same'}", ours, "its IPC engine", theirs))
    return rows


def checkpoint_engine(trainer: Trainer, rounds: int) -> list[Row]:
    trainer.published(True, False)  # the workers' own tensors
    ours, theirs = alternate(rounds, trainer.channel, trainer.checkpoint_engine, warm_up=2)
    return [row("checkpoint-engine, 578 tensors", f"buckets of {BUCKET >> 20} MiB", ours, "its buffer", theirs)]


def handles(trainer: Trainer, rounds: int) -> list[Row]:
    from xpushare.integrations.torch import pool

    memory = pool(trainer.device)
    ours, pooled, theirs = alternate(
        max(rounds // 3, 2), trainer.trees, lambda: trainer.trees(memory), trainer.pickled, warm_up=1
    )
    other = "torch's reductions, pickled"
    again = [trainer.trees(anew=False) for _ in range(6)][1:]
    return [
        row("115 handles of 170 tensors", name, samples, other, theirs)
        for name, samples in (("opened anew", ours), ("opened anew, in a pool", pooled), ("still open", again))
    ]


GROUPS: Final[dict[str, Callable[[Trainer, int], list[Row]]]] = {
    "vllm": vllm, "checkpoint_engine": checkpoint_engine, "handles": handles,
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
    for name in options.only.split(","):
        rows += _group(options.device, lambda trainer, name=name: GROUPS[name](trainer, options.rounds))
        show(where, rows, options.json)
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
