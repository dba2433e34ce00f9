"""Channels with torch, JAX and trio, on the host: between processes, on both sides."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import Child, kept

COUNT = 6


def needs(library: str) -> None:
    """Skip without the library. It is imported by children alone: JAX changes the environment of its process."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")


def open_there() -> None:
    kept["ch"] = xs.Channel.open("libraries", timeout=30)


def send_by_torch(count: int) -> None:
    import torch

    for number in range(count):
        with kept["ch"].loan(30) as frame:
            torch.from_dlpack(frame).fill_(number)
    kept["ch"].send(torch.full((2, 3), float(count)))
    kept.pop("ch").close()


def sums_by_torch() -> list[float]:
    import torch

    found = [float(torch.from_dlpack(frame).sum()) for frame in kept["ch"]]
    kept.pop("ch").close()
    return found


def sums_by_jax() -> list[float]:
    import jax

    found = [float(jax.dlpack.from_dlpack(frame).sum()) for frame in kept["ch"]]
    kept.pop("ch").close()
    return found


@pytest.mark.parametrize(("library", "sums"), [("torch", sums_by_torch), ("jax", sums_by_jax)])
def test_a_library_reads(library: str, sums: Any) -> None:
    needs(library)
    # JAX has threads once it is imported, and no process that has threads should fork
    imports = ["torch"] if library == "torch" else []
    with xs.Channel.create("libraries", (2, 3), "float32") as ch, Child(imports=imports) as child:
        child.call(open_there)
        pending = child.start(sums)
        for number in range(COUNT):
            with ch.loan(30) as frame:
                np.asarray(frame)[:] = number
        ch.finish()
        assert pending.result() == [6.0 * number for number in range(COUNT)]


def create_there() -> None:
    kept["ch"] = xs.Channel.create("libraries", (2, 3), "float32", writers=2)


def test_torch_writes() -> None:
    needs("torch")
    with (
        xs.Channel.create("libraries", (2, 3), "float32", writers=2),
        xs.Channel.open("libraries") as reader,
        Child(imports=["torch"]) as child,
    ):
        child.call(create_there)
        pending = child.start(send_by_torch, COUNT)
        for number in range(COUNT + 1):
            with reader.receive(60) as frame:
                assert np.asarray(frame).tolist() == [[number] * 3] * 2
        pending.result()


def send_by_jax(count: int) -> None:
    import jax.numpy as jnp

    for number in range(count):
        kept["ch"].send({"x": jnp.full((2, 3), number, "float32")}, meta=number)
    kept.pop("ch").close()


def create_tree_there() -> None:
    kept["ch"] = xs.Channel.create("libraries", nbytes=1024, writers=2)


def test_jax_writes() -> None:
    needs("jax")
    with (
        xs.Channel.create("libraries", nbytes=1024, writers=2),
        xs.Channel.open("libraries") as reader,
        Child() as child,
    ):
        child.call(create_tree_there)
        pending = child.start(send_by_jax, COUNT)
        for number in range(COUNT):
            with reader.receive(60) as frame:
                assert frame.meta == number
                assert np.asarray(frame.array["x"]).tolist() == [[number] * 3] * 2
        pending.result()


def send_there(count: int) -> None:
    for number in range(count):
        with kept["ch"].loan(30) as frame:
            np.asarray(frame)[:] = number
    kept["ch"].finish()
    kept.pop("ch").close()


def test_trio() -> None:
    trio = pytest.importorskip("trio")

    async def main() -> list[float]:
        found: list[float] = []
        with xs.Channel.create("libraries", (2, 3), "float32", writers=2) as here, Child() as child:
            reader = xs.Channel.open("libraries")
            with trio.move_on_after(0.01) as scope:
                async for _ in reader:
                    raise AssertionError("nothing was sent")
            assert scope.cancelled_caught
            child.call(create_there)
            pending = child.start(send_there, COUNT)
            here.finish()
            async with trio.open_nursery() as nursery:

                async def read() -> None:
                    found.extend([float(np.asarray(frame).sum()) async for frame in reader])

                nursery.start_soon(read)
                [first] = await xs.any_of([reader])
                assert first is reader
            pending.result()
            reader.close()
        return found

    assert trio.run(main) == [6.0 * number for number in range(COUNT)]
