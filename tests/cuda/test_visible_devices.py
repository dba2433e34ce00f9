"""Exporter and importer with other values of CUDA_VISIBLE_DEVICES: every form opens, or the error names the fix."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, Final

import pytest
from gpu_peer import CudaMalloc, queue, read

import xpushare as xs
from harness import Child, kept

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(180)]

NBYTES: Final = 1 << 21
SLOW: Final = 120.0
EXPANDABLE: Final = dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "expandable_segments:True")
HAS_TORCH: Final = importlib.util.find_spec("torch") is not None


def seven(made: Any) -> Any:
    queue().fill(made, b"\7")
    queue().synchronize(30)
    return made


def make_physical() -> xs.PhysicalMemory:
    made = xs.PhysicalMemory(NBYTES, "cuda:0", enable_ipc=True)
    with xs.VirtualRange(NBYTES, "cuda:0") as addresses:
        addresses.map(made)
        seven(addresses.as_array((NBYTES,), "u1"))
    return made


def make_torch() -> Any:
    import torch

    made = torch.full((NBYTES,), 7, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    return made


FORMS: Final[dict[str, tuple[Callable[[], Any], str]]] = {  # how an object is made, and the kind of its handle
    "xs.empty": (lambda: seven(xs.empty(NBYTES, "u1", device="cuda:0")), "memory"),
    "cudaMalloc": (lambda: CudaMalloc(NBYTES, 7), "memory"),
    "pool": (lambda: CudaMalloc(NBYTES, 7, pool=True), "memory"),
    "physical memory": (make_physical, "physical_memory"),
    "xs.malloc_host": (lambda: seven(xs.malloc_host(NBYTES, "cuda:0")), "memory"),
    "event": (lambda: xs.Event("cuda:0", enable_ipc=True), "event"),
} | ({"expandable_segments": (make_torch, "memory")} if HAS_TORCH else {})


def export() -> tuple[str, dict[str, bytes]]:
    """In a child: the uuid of its first GPU, and a handle of an object of each form on it."""
    handles = {}
    for form, (make, kind) in FORMS.items():
        made = kept[form] = make()
        handles[form] = bytes(getattr(xs.ipc, kind).get(made))
    return xs.Device("cuda:0").uuid, handles


def opened(form: str, raw: bytes, device: str | None = None) -> str:
    """In a child: open an object and use it; the uuid of the device, or the error."""
    kind = FORMS[form][1]
    try:
        with getattr(xs.ipc, kind).open(raw, device=device) as found:
            on = str(found.device)
            if kind == "event":
                found.signal()
                found.wait(30)
            elif kind == "physical_memory":
                with xs.VirtualRange(NBYTES, on) as addresses:
                    addresses.map(found)
                    assert read(addresses.as_array((NBYTES,), "u1"), NBYTES, on)[-1] == 7
            elif on.startswith("native_cpu"):
                assert memoryview(found)[-1] == 7
            else:
                assert read(found, NBYTES, on)[-1] == 7
            return str(found.device.uuid)
    except xs.XpuShareError as error:
        return f"{type(error).__name__}: {error}"


def uuids() -> list[str]:
    return [device.uuid for device in xs.devices("cuda:*")]


def two() -> list[str]:
    found = uuids()
    if len(found) < 2:
        pytest.skip("needs two GPUs")
    return found


def attempts(theirs: str, ours: str, device: dict[str, str] | None = None) -> tuple[str, dict[str, str]]:
    """The uuid of the exporter's GPU, and of each form what came of it with the importer's GPUs."""
    with (
        Child(env={"CUDA_VISIBLE_DEVICES": theirs, **EXPANDABLE}, timeout=SLOW) as exporter,
        Child(env={"CUDA_VISIBLE_DEVICES": ours}, timeout=SLOW) as importer,
    ):
        uuid, handles = exporter.call(export)
        on = device or {}
        return uuid, {form: importer.call(opened, form, raw, on.get(form)) for form, raw in handles.items()}


def test_an_ordinal_here_and_the_uuid_there() -> None:
    first = uuids()[0]
    uuid, found = attempts("0", f"GPU-{first}")
    assert uuid == first
    assert found == dict.fromkeys(FORMS, uuid)


def test_other_ordinals() -> None:
    _first, second = two()[:2]
    uuid, found = attempts("1", "0,1")
    assert uuid == second
    assert found == dict.fromkeys(FORMS, uuid)


def test_the_other_order() -> None:
    first, _second = two()[:2]
    uuid, found = attempts("0,1", "1,0")
    assert uuid == first
    assert found == dict.fromkeys(FORMS, uuid)


def expect_refused(found: dict[str, str], uuid: str) -> None:
    """The host opens the event: it is a word in the host's memory. All else names the variable."""
    assert found.pop("event") == xs.Device("native_cpu:0").uuid
    for form, said in found.items():
        assert said.startswith("InvalidArgumentError"), (form, said)
        assert uuid in said
        assert "CUDA_VISIBLE_DEVICES" in said


def test_the_gpu_is_hidden_there() -> None:
    two()
    uuid, found = attempts("0", "1")
    expect_refused(found, uuid)


def test_all_gpus_are_hidden_there() -> None:
    uuid, found = attempts("0", "")
    expect_refused(found, uuid)


def test_the_host_opens_host_memory_of_a_hidden_gpu() -> None:
    _uuid, found = attempts("0", "", {"xs.malloc_host": "native_cpu:0"})
    assert found["xs.malloc_host"] == xs.Device("native_cpu:0").uuid
