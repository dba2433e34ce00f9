"""LMCache's own registry, wire format and protocols (the package from the index, in an environment of its own:
scripts/engines), in two processes with the plug-in. Its CUDA side is in tests/cuda/test_hardware_engines.py.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest

import xpushare as xs
from harness import Child, kept

if importlib.util.find_spec("lmcache") is None:
    pytest.skip("LMCache is not installed: scripts/engines lmcache", allow_module_level=True)

pytestmark = pytest.mark.timeout(600)
SLOW: Any = {"timeout": 240.0}  # of a child that imports the engine on a busy machine


def discovered() -> tuple[list[str], str, bool]:
    """What LMCache finds, and takes for CUDA's tensors."""
    import lmcache.v1.platform as platform
    from lmcache.v1.platform.base.ipc_wire import WRAPPER_TYPES, CudaIPCData

    spec = platform.get_device_spec("cuda")
    assert spec is not None
    plain = WRAPPER_TYPES[CudaIPCData] == ("cuda.ipc_wrapper", "CudaIPCWrapper")
    return sorted(platform._DEVICE_REGISTRY), spec.backend_name, plain


def test_it_is_there_and_takes_no_part() -> None:
    with Child(env={"LMCACHE_DEVICE_BACKEND": None}, **SLOW) as child:
        names, chosen, plain = child.call(discovered)
    assert "xpushare" in names
    assert (chosen, plain) == ("cuda", True)


def without_a_gpu() -> str:
    import lmcache.v1.platform

    return lmcache.v1.platform.torch_device_type


def test_it_refuses_where_it_cannot_work() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with (
        Child(env={"LMCACHE_DEVICE_BACKEND": "xpushare"}, **SLOW) as child,
        pytest.raises(RuntimeError, match="not available"),
    ):
        child.call(without_a_gpu)


def started() -> None:
    """The specification as with the option set, on the host."""
    import lmcache.v1.platform  # noqa: F401  # before the option, which wants a GPU

    os.environ["LMCACHE_DEVICE_BACKEND"] = "xpushare"
    from xpushare.integrations.lmcache import Spec

    kept["spec"] = Spec()


def cache() -> bytes:
    """A KV cache of three layers, as an engine registers it: in LMCache's own bytes."""
    import torch
    from lmcache.v1.multiprocess.custom_types import get_customized_encoder
    from lmcache.v1.platform.base.ipc_wrapper import DeviceIPCWrapper

    pool = torch.from_dlpack(xs.zeros(1 << 16, "uint8"))
    layers = [
        pool[: 1 << 15].view(torch.bfloat16).view(2, 16, 64, 8).permute(0, 2, 1, 3),
        pool[1 << 15 :].view(torch.float8_e4m3fn).view(32, 1024),
        torch.from_dlpack(xs.zeros(1 << 12, "uint8")).view(torch.float16).view(4, 512),
    ]
    kept["layers"] = layers
    wrappers = [kept["spec"].ipc_wrapper_cls.wrap(each) for each in layers]
    again = kept["spec"].ipc_wrapper_cls.wrap(layers[0])
    assert again == wrappers[0]  # an export for each storage, however often the engine registers
    assert wrappers[0] != wrappers[1]
    assert wrappers[0]._batch is wrappers[2]._batch
    encoded: bytes = get_customized_encoder(list[DeviceIPCWrapper]).encode(wrappers)
    return encoded


def registered(raw: bytes) -> list[tuple[tuple[int, ...], str]]:
    """What the server makes of it: tensors, into which it writes."""
    from lmcache.v1.multiprocess.custom_types import get_customized_decoder
    from lmcache.v1.platform.base.ipc_wrapper import DeviceIPCWrapper
    from lmcache.v1.platform.cache_context import _detect_device_type

    wrappers = get_customized_decoder(list[DeviceIPCWrapper]).decode(raw)
    attached: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        attach = xs.attach
        patch.setattr(xs, "attach", lambda *arguments, **options: attached.append(1) or attach(*arguments, **options))
        assert _detect_device_type(wrappers) == "cuda"
        assert not attached  # by its class, rather than by opening each tensor
        tensors = [each.to_tensor() for each in wrappers]
    assert len(attached) == 1  # all layers by one call
    for number, tensor in enumerate(tensors):
        tensor.fill_(number + 1)
    shown = [(tuple(each.shape), str(each.dtype)) for each in tensors]
    for each in wrappers:
        each.close()
    return shown


def once_more(number: int) -> bytes:
    """The engine registers one of its layers again."""
    from lmcache.v1.multiprocess.custom_types import get_customized_encoder
    from lmcache.v1.platform.base.ipc_wrapper import DeviceIPCWrapper

    wrappers = [kept["spec"].ipc_wrapper_cls.wrap(kept["layers"][number])]
    encoded: bytes = get_customized_encoder(list[DeviceIPCWrapper]).encode(wrappers)
    return encoded


def layers() -> list[tuple[float, float]]:
    return [(float(each.float().min()), float(each.float().max())) for each in kept["layers"]]


def dropped() -> int:
    from xpushare.integrations import lmcache

    del kept["layers"]
    return len(lmcache._exports)


def recorded() -> bytes:
    """An event on a stream that has yet to come to it."""
    events = kept["spec"].event_ipc_backend
    if "gate" not in kept:
        kept["queue"], kept["gate"] = xs.Queue("native_cpu:0"), xs.Event(enable_ipc=True, signals=True)
        kept["queue"].wait(kept["gate"], at_least=1)
    event = events.create_event("cpu")
    assert events.query_event(event)  # one that was never recorded is complete, as CUDA's
    events.record_event(event, kept["queue"])
    raw: bytes = events.export_event(event, "cpu")
    return raw


def opened_gate() -> None:
    kept["gate"].signal()


def awaited(raw: bytes, name: str) -> Any:
    events = kept["spec"].event_ipc_backend
    event = events.import_event(raw, "cpu")
    if name == "query":
        return events.query_event(event)
    if name == "wait":
        kept["waiting"] = xs.Queue("native_cpu:0")
        events.wait_event(event, kept["waiting"])
        return None
    events.synchronize_event(event, "cpu")
    return None


def waited() -> None:
    kept["waiting"].synchronize(30)


def timelines() -> int:
    count: int = kept["spec"].event_ipc_backend._peers.cache_info().currsize
    return count


def test_a_cache_and_its_events_go_to_the_server() -> None:
    with Child(started, **SLOW) as engine, Child(started, **SLOW) as server:
        raw = engine.call(cache)
        assert server.call(registered, raw) == [
            ((2, 16, 64, 8), "torch.bfloat16"),  # LMCache turns a view into the layout of its memory
            ((32, 1024), "torch.float8_e4m3fn"),
            ((4, 512), "torch.float16"),
        ]
        assert engine.call(layers) == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]

        assert server.call(registered, engine.call(once_more, 2)) == [((4, 512), "torch.float16")]
        assert engine.call(layers)[2] == (1.0, 1.0)

        points = [engine.call(recorded) for _ in range(3)]
        assert not server.call(awaited, points[0], "query")
        server.call(awaited, points[2], "wait")
        engine.call(opened_gate)
        server.call(waited)
        server.call(awaited, points[2], "synchronize")
        assert all(server.call(awaited, each, "query") for each in points)
        assert server.call(timelines) == 1

        assert engine.call(dropped) == 0
        with pytest.raises(xs.HandleExpiredError):
            server.call(registered, raw)


def test_an_engines_death_ends_the_servers_wait() -> None:
    with Child(started, **SLOW) as server, Child(started, **SLOW) as engine:
        point = engine.call(recorded)
        assert not server.call(awaited, point, "query")
        pending = server.start(awaited, point, "synchronize")
        engine.kill()
        with pytest.raises(xs.PeerLostError):
            pending.result(30)
        with pytest.raises(xs.PeerLostError):  # rather than: complete
            server.call(awaited, point, "query")
