"""The GPU side of the plug-ins of SGLang, verl and LMCache. Their own modules are in tests/integrations."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from multiprocessing.connection import Client, Listener
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

from engine_stand_ins import stand_in

import xpushare as xs
from harness import Child, kept, wait_until

pytest.importorskip("torch")
pytestmark = [pytest.mark.cuda, pytest.mark.timeout(120)]
SLOW: Any = {"timeout": 110.0}
CYCLES = 200_000_000  # some tenths of a second, so that whoever does not wait sees the content of before


def started() -> None:
    """Both plug-ins and torch's reductions, as in a process of an engine."""
    stand_in()
    os.environ["LMCACHE_DEVICE_BACKEND"] = "xpushare"
    import torch

    from xpushare.integrations import torch as reductions
    from xpushare.integrations.lmcache import Spec

    reductions.install()
    torch.zeros(1, device="cuda")
    kept["spec"] = Spec()


# --- the forms that cross: SGLang's message, LMCache's descriptor, a bucket


def messages(device: int) -> list[bytes]:
    """In the trainer: a tensor of that GPU in each form."""
    import torch

    tensor = kept[device] = torch.full((4096,), 3.0 + device, device=f"cuda:{device}", dtype=torch.bfloat16)
    wire = kept["spec"].ipc_wrapper_cls.wrap(tensor).to_wire()
    return [bytes(ForkingPickler.dumps({"flattened_tensor": [tensor]})), pickle.dumps((wire.metadata, wire.handle))]


def seen(raw: list[bytes]) -> list[tuple[int | None, float]]:
    """In a rank: of each form the ordinal here and an element; it adds one to the last."""
    import torch
    from lmcache.v1.platform.base.ipc_wire import CudaIPCData

    bucket = pickle.loads(raw[0])["flattened_tensor"][0]
    metadata, handle = pickle.loads(raw[1])
    layer = kept["spec"].ipc_wrapper_cls.from_wire(CudaIPCData(1, metadata, handle)).to_tensor()
    found = [(each.device.index, float(each[-1])) for each in (bucket, layer)]
    layer[-1] += 1
    torch.cuda.synchronize()
    return found


def last(device: int) -> float:
    return float(kept[device][-1])


def bucket_channel(device: int) -> bytes:
    from xpushare.integrations import _engines

    kept["channel"] = xs.Channel.create(
        None, (1 << 20,), "uint8", device=f"cuda:{device}", slots=3, meta_nbytes=_engines.META_NBYTES
    )
    handle: bytes = kept["channel"].handle
    return handle


def open_channel(handle: bytes) -> None:
    kept["reader"] = xs.Channel.open(handle)


def fill_channel(device: int) -> None:
    from xpushare.integrations import _engines

    _engines.send_buckets(kept["channel"], [(f"w{i}", kept[device]) for i in range(300)])


def read_channel() -> tuple[int, set[float]]:
    from xpushare.integrations import _engines

    values: list[float] = []
    for bucket in _engines.receive_buckets(kept["reader"]):
        values.extend(float(tensor[0]) for _, tensor in bucket)
    kept.pop("reader").close()
    return len(values), set(values)


@pytest.mark.parametrize("own", [False, True])
def test_ranks_name_their_gpus_by_uuid(own: bool) -> None:
    """The trainer sees all GPUs, and each rank its own one, by ordinal 0."""
    devices = xs.devices("cuda:*")
    if own and len(devices) < 2:
        pytest.skip("needs two GPUs")
    with Child(started, **SLOW) as trainer:
        for device in range(2 if own else 1):
            visible = {"CUDA_VISIBLE_DEVICES": str(device) if own else f"GPU-{devices[0].uuid}"}
            with Child(started, env=visible, **SLOW) as rank:
                assert rank.call(seen, trainer.call(messages, device)) == [(0, 3.0 + device)] * 2
                assert trainer.call(last, device) == 4.0 + device
                rank.call(open_channel, trainer.call(bucket_channel, device))
                filling = trainer.start(fill_channel, device)
                assert rank.call(read_channel) == (300, {3.0 + device})
                filling.result()


# --- SGLang's buckets


def bucket(step: int) -> tuple[bytes, bytes, int]:
    """In the trainer: a bucket of weights that a stream has yet to write, serialized before it does."""
    import torch

    from xpushare.integrations import sglang

    weights = kept.setdefault("weights", [(f"w{i}", torch.zeros(100_000 + i, device="cuda")) for i in range(40)])
    made = SimpleNamespace()

    def original(self: Any, named_tensors: Any, flattened_tensor: Any, metadata: Any) -> None:
        assert named_tensors is None
        self.flattened_tensor, self.metadata = flattened_tensor, metadata

    torch.cuda._sleep(CYCLES)
    for _, tensor in weights:
        tensor.fill_(step)
    sglang._init(original, made, weights)
    for _, tensor in weights:
        tensor.fill_(-1)  # the bucket is a copy
    described = [(each.start_idx, each.end_idx) for each in made.metadata]
    return bytes(ForkingPickler.dumps(made.flattened_tensor)), pickle.dumps(described), made.flattened_tensor.data_ptr()


def copied(raw: bytes, described: bytes, step: int) -> None:
    """In the rank: make SGLang's bucket of it, queue the copies, and wait for nothing."""
    import torch

    from xpushare.integrations import sglang

    made = SimpleNamespace()

    def original(self: Any, named_tensors: Any, flattened_tensor: Any, metadata: Any) -> None:
        assert named_tensors is None
        self.flattened_tensor, self.metadata = flattened_tensor, metadata

    sglang._init(original, made, None, pickle.loads(raw), pickle.loads(described))
    parts = [made.flattened_tensor[start:end].view(torch.float32) for start, end in made.metadata]
    kept[f"step {step}"] = [part.clone() for part in parts]


def values(step: int) -> set[float]:
    return {float(each) for copy in kept.pop(f"step {step}") for each in (copy.min(), copy.max())}


def test_a_buckets_memory_serves_again_in_order() -> None:
    """Once a rank has closed a bucket and its copies have ended, new buckets lie in its place, although it is still
    mapped there. The next bucket is made while the rank still copies.
    """
    keeping: Any = {"env": {"XPUSHARE_KEEP_SECONDS": "100"}, **SLOW}  # nothing is unmapped because of its age
    with Child(started, **keeping) as trainer, Child(started, **keeping) as rank:
        steps = iter(range(1, 60))
        addresses: list[int] = []

        def all_serve_again() -> bool:
            """Whether each of the last five buckets lies where an earlier one did."""
            step = next(steps)
            raw, described, address = trainer.call(bucket, step)
            rank.call(copied, raw, described, step)
            if step > 1:
                assert rank.call(values, step - 1) == {float(step - 1)}
            addresses.append(address)
            return step > 5 and all(addresses.index(each) < at for at, each in list(enumerate(addresses))[-5:])

        wait_until(all_serve_again)


# --- LMCache's events


def recorded(busy: bool) -> bytes:
    """In the engine: work, and an event behind it."""
    import torch

    events = kept["spec"].event_ipc_backend
    events.check_event_support(0)
    stream = kept.setdefault("stream", torch.cuda.Stream())
    with torch.cuda.stream(stream):
        if busy:
            torch.cuda._sleep(CYCLES)
        kept[0].fill_(9)
    event = events.create_event(0)
    events.record_event(event, stream)
    raw: bytes = events.export_event(event, 0)
    return raw


def behind(event: bytes, raw: list[bytes]) -> tuple[float, bool, int]:
    """In the server: what a stream finds that waited for it."""
    import torch
    from lmcache.v1.platform.base.ipc_wire import CudaIPCData

    events = kept["spec"].event_ipc_backend
    metadata, handle = pickle.loads(raw[1])
    layer = kept["spec"].ipc_wrapper_cls.from_wire(CudaIPCData(1, metadata, handle)).to_tensor()
    point = events.import_event(event, torch.device("cuda:0"))
    stream = torch.cuda.Stream()
    events.wait_event(point, stream)
    with torch.cuda.stream(stream):
        value = layer[-1].float().clone()
    stream.synchronize()
    events.synchronize_event(point, 0)
    return float(value), events.query_event(point), events._peers.cache_info().currsize


def test_a_server_waits_for_the_engines_stream() -> None:
    with Child(started, **SLOW) as engine, Child(started, **SLOW) as server:
        raw = engine.call(messages, 0)
        for busy in True, False, True:
            assert server.call(behind, engine.call(recorded, busy), raw) == (9.0, True, 1)


# --- verl's transfer


def transfer(pipe: Any) -> Any:
    """What verl's sender and receiver have: a socket, here a pipe, and a size."""
    socket = SimpleNamespace(send_pyobj=pipe.send, recv_pyobj=pipe.recv, send=pipe.send_bytes, recv=pipe.recv_bytes)
    return SimpleNamespace(socket=socket, bucket_size=48 << 20, _init_socket=lambda: None, _cleanup=pipe.close)


def listening(address: str) -> None:
    kept["listener"] = Listener(address)


def send(step: int) -> None:
    import torch

    from xpushare.integrations import verl

    def weights() -> Any:
        for i in range(578):
            torch.cuda._sleep(100_000)  # gathering each takes a while
            yield f"w{i}", torch.full((100_000,), float(step), device="cuda", dtype=torch.bfloat16)
        yield "head", torch.arange(30_000_000, device="cuda", dtype=torch.int32) + step

    asyncio.run(verl._send_weights(transfer(kept["listener"].accept()), weights()))


def receive(address: str) -> tuple[int, bool, bool]:
    import torch

    from xpushare.integrations import verl

    found: dict[str, Any] = {}

    def loaded(bucket: list[tuple[str, Any]], _is_last: bool) -> None:
        for name, tensor in bucket:
            found[name] = tensor.clone()

    verl._receive_weights(transfer(Client(address)), loaded)
    head = found.pop("head")
    step = int(found["w0"][0])
    return (
        len(found),
        all(bool((each == step).all()) for each in found.values()),
        bool((head == torch.arange(30_000_000, device="cuda", dtype=torch.int32) + step).all()),
    )


def test_verls_weights_come_whole(tmp_path: Path) -> None:
    address = str(tmp_path / "socket")
    with Child(started, **SLOW) as trainer, Child(started, **SLOW) as worker:
        trainer.call(listening, address)
        for step in range(1, 4):
            pending = worker.start(receive, address)
            trainer.call(send, step)
            assert pending.result(100) == (578, True, True)
