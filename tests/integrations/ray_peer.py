"""Actors of the Ray tests. Workers import this module by name, too, so it registers the transport first."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np
import ray  # type: ignore[import-not-found,unused-ignore]

import xpushare as xs
from harness import wait_until
from xpushare.integrations.ray import register

register()


def made(name: str) -> Any:
    """What a producer makes: the same in every process."""
    grid = np.arange(24.0).reshape(4, 6)
    record = np.dtype([("when", "<M8[s]"), ("point", "<f4", (2,)), ("name", "S3")])
    return {
        "float64": lambda: grid,
        "float16": lambda: grid.astype("f2"),
        "complex": lambda: grid + 1j,
        "bool": lambda: grid > 7,
        "int8": lambda: grid.astype("i1"),
        "uint64": lambda: grid.astype("u8") + (1 << 63),
        "big-endian": lambda: grid.astype(">i4"),
        "text": lambda: np.array(["a", "bcd", "ü"]),
        "record": lambda: np.array([(7, (1, 2), b"abc"), (8, (3, 4), b"d")], record),
        "scalar": lambda: np.array(5, "i4"),
        "empty": lambda: np.empty((0, 3), "f4"),
        "Fortran order": lambda: np.asfortranarray(grid),
        "strided": lambda: grid[::-2, 1::2],
        "read-only": lambda: np.broadcast_to(np.arange(3), (2, 3)),
        "shared strided": lambda: shared(grid)[::-2, 1::2],
        "several": lambda: {"a": grid, "more": [shared(grid[:1]), np.empty(0), 7], "text": "b", "again": grid.T},
        "none": lambda: {"no": "array"},
        "objects": lambda: [grid, np.array([object()])],
    }[name]()


MADE = ("float64", "float16", "complex", "bool", "int8", "uint64", "big-endian", "text", "record", "scalar", "empty",
        "Fortran order", "strided", "read-only", "shared strided", "several", "none")  # fmt: skip


def shared(values: Any) -> Any:
    """A NumPy array in memory that others can map, with these values."""
    array = np.asarray(xs.empty(values.shape, values.dtype))
    array[:] = values
    return array


def seen(value: Any) -> Any:
    """All of a value, without arrays: what two processes can compare."""
    if isinstance(value, dict):
        return {name: seen(each) for name, each in value.items()}
    if isinstance(value, list):
        return [seen(each) for each in value]
    if isinstance(value, np.ndarray):
        return value.shape, str(value.dtype), value.tobytes()
    return value


def exports(pid: int) -> list[dict[str, Any]]:
    """What that process shares."""
    return [dict(row) for row in xs.shares() if row["exporter"] == pid]


@ray.remote(num_cpus=0)
class Peer:
    """A producer or a consumer."""

    def __init__(self) -> None:
        self.kept: Any = None

    def pid(self) -> int:
        return os.getpid()

    @ray.method(tensor_transport="XPUSHARE")
    def make(self, name: str) -> Any:
        self.kept = made(name)
        return self.kept

    def put(self, name: str) -> Any:
        """A reference that this actor owns, in a list: Ray hands it on as it is."""
        return [ray.put(made(name), _tensor_transport="XPUSHARE")]

    @ray.method(tensor_transport="XPUSHARE")
    def fill(self, nbytes: int, value: int, in_place: bool) -> Any:
        self.kept = np.asarray(xs.empty(nbytes, "u1")) if in_place else np.empty(nbytes, "u1")
        self.kept[:] = value
        return self.kept

    def first(self) -> Any:
        """The first element of what this actor made or keeps."""
        return self.kept.flat[0].item()

    def seen(self, value: Any) -> Any:
        return seen(value)

    def total(self) -> Any:
        return self.kept.sum().item()

    def fetch(self, references: list[Any]) -> Any:
        return seen(ray.get(references[0], timeout=30))

    def keep(self, value: Any) -> None:
        self.kept = value

    def add(self, value: Any, number: int) -> Any:
        """Change the first element in place; the sum."""
        value.flat[0] += number
        return value.sum().item()

    def wait(self, event: xs.Event) -> None:
        """Be busy until the event was signalled."""
        event.wait(60, at_least=1)


# --- other libraries --------------------------------------------------------------------------------------------------

NUMBERS = np.arange(24, dtype="f4").reshape(4, 6)[::2]


def array_of(library: str, device: str) -> Any:
    """`NUMBERS` as an array of the library, on "cpu" in memory that can be shared, or on "cuda"."""
    if library == "jax":
        import jax

        return jax.device_put(NUMBERS, jax.devices(device)[0])
    if library == "cupy":
        import cupy  # type: ignore[import-not-found,unused-ignore]

        return cupy.asarray(NUMBERS)
    array = xs.empty((4, 6), "f4")
    np.asarray(array)[::2] = NUMBERS
    if library == "xpushare":
        return array
    import torch

    tensor = torch.from_dlpack(array)[::2]
    return tensor if device == "cpu" else tensor.to(device)


def on_host(library: str, array: Any) -> Any:
    if library == "cupy":
        return array.get()
    if library == "torch":
        return array.cpu().numpy()
    found = np.asarray(array)
    return found[::2] if library == "xpushare" else found


def tensors(library: str) -> Any:
    """An actor class for arrays of a library, made where it is needed, as in a user's script."""
    name = f"XPUSHARE_{library}"
    data_type = {"torch": "Tensor", "jax": "Array", "cupy": "ndarray", "xpushare": "SharedArray"}[library]
    register(name, getattr(importlib.import_module(library), data_type))

    @ray.remote(num_cpus=0)
    class Tensors:
        @ray.method(tensor_transport=name)
        def make(self, device: str) -> Any:
            self.made = array_of(library, device)
            return self.made

        @ray.method(tensor_transport=name)
        def make_late(self, device: str) -> Any:
            """On a GPU: what a long queue of work leaves there."""
            import torch

            self.made = torch.zeros(1 << 24, device=device)
            for _ in range(500):
                self.made += 1
            return self.made

        def own(self) -> Any:
            return on_host(library, self.made).tolist()

        def pid(self) -> int:
            return os.getpid()

        def gpu(self) -> str:
            return xs.Device("cuda:0").uuid

        def look(self, array: Any) -> Any:
            return type(array).__name__, str(getattr(array, "device", "")), on_host(library, array).tolist()

        def change(self, array: Any) -> None:
            if library == "xpushare":
                array = np.asarray(array)
            array[:1] = -1

        def total(self, array: Any) -> float:
            return float(array.double().sum())

    return Tensors


def exchange(library: str, device: str) -> dict[str, Any]:
    """A producer on the near node and consumers there and on the far one: what the consumers saw, and what the producer
    has after each of them wrote to its array.
    """
    cls = tensors(library)
    producer, near, far = (cls.options(resources={where: 1}).remote() for where in ("near", "near", "far"))
    reference = producer.make.remote(device)
    pid = ray.get(producer.pid.remote(), timeout=60)
    found: dict[str, Any] = {"seen": ray.get([each.look.remote(reference) for each in (near, far)], timeout=60)}
    if library != "jax":  # its arrays are immutable
        for where, consumer in (("far", far), ("near", near)):
            ray.get(consumer.change.remote(reference), timeout=60)
            found[where] = ray.get(producer.own.remote(), timeout=60)
    found["exports"] = len(exports(pid))
    del reference
    wait_until(lambda: not exports(pid))
    return found


def late() -> list[float]:
    """The sums that a near and a far consumer find in a tensor that its producer's GPU is still working on."""
    cls = tensors("torch")
    producer, near, far = (cls.options(resources={where: 1}).remote() for where in ("near", "near", "far"))
    return list(
        ray.get(
            [each.total.remote(producer.make_late.remote("cuda")) for each in (near, far) for _ in "ab"], timeout=90
        )
    )


def between_gpus() -> Any:
    """What a consumer with another GPU than the producer sees, and the producer after the consumer wrote."""
    cls = tensors("torch").options(resources={"near": 1}, num_gpus=1)
    producer, consumer = cls.remote(), cls.remote()
    reference = producer.make.remote("cuda")
    uuids = ray.get([each.gpu.remote() for each in (producer, consumer)], timeout=60)
    found = ray.get(consumer.look.remote(reference), timeout=60)
    ray.get(consumer.change.remote(reference), timeout=60)
    return uuids, found, ray.get(producer.own.remote(), timeout=60)


def into_buffer() -> Any:
    """torch: `ray.get` fills a buffer of the caller's."""
    import torch

    producer = tensors("torch").options(resources={"near": 1}).remote()
    reference = producer.make.remote("cpu")
    buffer = torch.zeros(NUMBERS.shape)
    ray.experimental.set_target_for_ref(reference, [buffer])
    found = ray.get(reference, timeout=60)
    return found.data_ptr() == buffer.data_ptr(), buffer.tolist()
