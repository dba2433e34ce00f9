"""Other libraries' streams and events, HIP's own IPC events, and whose "cuda" array it is."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import forwarding
import pytest

import xpushare as xs
from harness import Child
from xpushare import adapters
from xpushare.adapters import vendor
from xpushare.adapters.hip._numbers import Handle

DEVICE = "hip:0"
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


class TorchStream:
    """A stream as torch's for ROCm is one: "cuda" by name."""

    __module__ = "torch.cuda.streams"

    def __init__(self) -> None:
        self.library = ctypes.CDLL(forwarding.LIBRARY)
        made = ctypes.c_void_p()
        assert self.library.hipStreamCreateWithFlags(ctypes.byref(made), 1) == 0
        self.cuda_stream = made.value
        self.device = type("device", (), {"index": 0})()
        self._called: list[object] = []

    def run(self, function: Callable[[], object]) -> None:
        """Work of the library's."""
        call = CALLBACK(lambda _stream, _status, _data: function())
        self._called.append(call)
        assert self.library.hipStreamAddCallback(ctypes.c_void_p(self.cuda_stream), call, None, 0) == 0

    def close(self) -> None:
        self.library.hipStreamDestroy(ctypes.c_void_p(self.cuda_stream))


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module: Any = ModuleType("torch")
    module.version = ModuleType("torch.version")
    module.version.hip = "6.4.3"
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.mark.usefixtures("torch")
def test_ours_come_after_theirs_and_before() -> None:
    stream, seen = TorchStream(), list[str]()
    with xs.malloc_host(64, DEVICE) as memory, xs.Event(DEVICE) as event:
        queue = xs.Queue.from_native(stream)
        stream.run(lambda: (time.sleep(0.05), seen.append("theirs")))
        queue.signal(event)
        seen.append("signalled")
        queue.fill(memory, b"\x05")
        assert memoryview(memory)[0] == 5  # done when it returns
        event.wait(5)
        later = event.signal()
        queue.wait(event, at_least=later)
        queue.synchronize(5)
        queue.close()
    assert seen == ["theirs", "signalled"]
    stream.close()
    gc.collect()


def test_a_stream_of_torch_for_cuda_is_not_hip_s(torch: ModuleType) -> None:
    torch.version.hip = None  # type: ignore[attr-defined]
    stream = TorchStream()
    record = adapters.record("hip")
    assert record is not None
    assert record.stream_of(stream) is None
    stream.close()


@pytest.mark.usefixtures("torch")
def test_a_stream_of_torch_for_hip_is_not_cuda_s() -> None:
    stream = TorchStream()
    record = adapters.record("cuda")
    assert record is not None
    assert record.stream_of(stream) is None
    assert record.stream_of(7) == (7, None)
    stream.close()


def test_a_number_where_both_libraries_are_loaded() -> None:
    """The memory decides whose stream it is. Without memory it is HIP's only if CUDA has no devices."""
    with Child() as child:
        assert child.call(_numbered) == ["hip:0", "this int may be a stream of cuda or of hip", [1, 2, 3]]


def _numbered() -> list[Any]:
    import numpy as np

    vendor._loaded.add("libcuda.so.1")
    listed = adapters.listed
    adapters.listed = lambda backend: [] if backend == "cuda" else listed(backend)
    stream = TorchStream()
    queue = xs.Queue.from_native(stream.cuda_stream)
    on = str(queue.device)
    queue.close()
    adapters.listed = lambda _backend: listed("hip")
    with pytest.raises(xs.InvalidArgumentError) as caught:
        xs.Queue.from_native(stream.cuda_stream)
    adapters.listed = listed
    values = xs.array(np.arange(1, 4), device=DEVICE)
    with xs.share(values, stream=stream.cuda_stream) as handle:
        content = np.asarray(xs.array(xs.attach(handle), device="native_cpu:0")).tolist()
    stream.close()
    return [on, str(caught.value).partition(", which")[0], content]


UNLOADED = """
from xpushare import adapters
record = adapters.record("hip")
class Array:
    __cuda_array_interface__ = {"shape": (4,), "typestr": "|u1", "data": (4096, False), "version": 3}
class Stream:
    cuda_stream = 7
assert not record.in_use()
assert record.interfaces[0].mine(Array.__cuda_array_interface__) is False
assert record.stream_of(Stream()) is None and record.stream_of(7) is None and record.event_of(7) is None
import ctypes
ctypes.CDLL(__import__("os").environ["XPUSHARE_HIP_LIBRARY"])
assert record.in_use()
assert record.interfaces[0].mine(Array.__cuda_array_interface__) is True
assert record.stream_of(Stream()) == (7, None)
"""


def test_the_library_that_is_loaded_decides() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", UNLOADED], env=env, check=True, timeout=60)


def open_natively(handle: bytes) -> tuple[int, int]:
    """What another process's HIP says of an IPC event: when it is opened, and in the end."""
    library, event = ctypes.CDLL(forwarding.LIBRARY), ctypes.c_void_p()
    opened = library.hipIpcOpenEventHandle(ctypes.byref(event), Handle.from_buffer_copy(handle))
    end = time.monotonic() + 5
    while library.hipEventQuery(event) and time.monotonic() < end:
        time.sleep(0.001)
    return opened, library.hipEventQuery(event)


def test_hip_s_own_ipc_event() -> None:
    with xs.Queue(DEVICE) as queue, xs.Event(DEVICE) as event, Child() as child:
        queue.signal(event)
        event.wait(5)  # a queue records none while it holds a wait
        native = event.native_ipc_handle()
        raw = native if isinstance(native, bytes) else bytes(native)
        assert len(raw) == 64
        assert child.call(open_natively, raw) == (0, 0)


@pytest.mark.usefixtures("torch")
def test_an_event_of_another_library() -> None:
    stream, seen = TorchStream(), list[str]()
    made = ctypes.c_void_p()
    assert stream.library.hipEventCreateWithFlags(ctypes.byref(made), 2) == 0
    stream.run(lambda: (time.sleep(0.05), seen.append("theirs")))
    assert stream.library.hipEventRecord(made, ctypes.c_void_p(stream.cuda_stream)) == 0

    class TorchEvent:
        __module__ = "torch.cuda.streams"
        cuda_event = made.value
        device = stream.device

    with xs.Event.from_native(TorchEvent()) as event:
        event.wait(5)
        assert seen == ["theirs"]
    stream.library.hipEventDestroy(made)
    stream.close()


@pytest.mark.drivers("plain")
def test_words_are_tried() -> None:
    """Where the library refuses a wait, queues hold what waits; where it refuses a store, host functions complete."""
    with Child() as child:
        assert child.call(ordering_after, "") == "shared"
    with Child() as child:
        assert child.call(ordering_after, "hipStreamWaitValue64") == "held"
    with Child() as child:
        assert child.call(ordering_after, "hipStreamWriteValue64") == "held"


def ordering_after(refused: str) -> str:
    """How queues wait where the library refuses a function; events work all the same."""
    if refused:
        forwarding.library().fail(refused, 0, 1)
    adapter: Any = adapters.adapter("hip")
    with xs.Queue(DEVICE) as queue, xs.Queue(DEVICE) as other, xs.Event(DEVICE) as event:
        point = queue.signal(event)
        other.wait(event, at_least=point)
        other.synchronize(5)
        event.wait(5)
    ordering: str = adapter.new_stream(adapter.devices()[0], "asking").ordering
    return ordering
