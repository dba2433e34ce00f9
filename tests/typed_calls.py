"""Calls whose types the tests of type checkers ask for, and calls that these refuse; nothing runs them."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportUnknownMemberType=false

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple, reveal_type

import jax
import numpy as np
import torch

import xpushare as xs

Weights = dict[str, xs.SharedArray]


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def total(array: xs.SharedArray) -> float:
    return float(np.asarray(array).sum())


def shared(array: xs.SharedArray, memory: xs.Memory, cache: xs.VirtualRange, jax_array: jax.Array) -> None:
    reveal_type(xs.share(array))  # ArrayHandle[SharedArray]
    reveal_type(xs.share(memory))  # ArrayHandle[SharedArray]
    reveal_type(xs.share(np.ones(3)))  # ArrayHandle[SharedArray]
    reveal_type(xs.share(torch.ones(3), read_only=True))  # ArrayHandle[SharedArray]
    reveal_type(xs.share(jax_array))  # ArrayHandle[SharedArray]
    reveal_type(xs.share(bytearray(8), copy=True))  # ArrayHandle[SharedArray]
    reveal_type(xs.share(cache))  # ArrayHandle[Any]
    reveal_type(xs.share({"a": np.ones(3), "b": np.ones(4)}))  # ArrayHandle[dict[str, SharedArray]]
    reveal_type(xs.share({0: torch.ones(3)}))  # ArrayHandle[dict[int, SharedArray]]
    reveal_type(xs.share([array, array]))  # ArrayHandle[list[SharedArray]]
    reveal_type(xs.share((np.ones(3), {"step": 7})))  # ArrayHandle[Any]
    reveal_type(xs.share(Pair(torch.ones(3), torch.ones(3))))  # ArrayHandle[Any]


def share_every_leaf() -> None:
    xs.share(
        {
            "layers": [{"weight": np.ones((2, 2)), "bias": torch.ones(2)}, None],
            "pair": Pair(torch.ones(3), torch.ones(3)),
            "step": 7, "rate": 0.1, "phase": 1j, "name": "resnet", "raw": b"\0", "frozen": True, "loss": np.float32(1),
            0: np.ones(3),
        }
    ).close()  # fmt: skip
    mixed = {"x": np.ones(3), "step": 7}
    xs.share(mixed).close()
    xs.share(()).close()


def share_state_dicts(model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: OrderedDict[str, Any]) -> None:
    for tree in (model.state_dict(), optimizer.state_dict(), state):
        with xs.share(tree, copy=True) as handle:
            xs.attach(handle)["weight"]
            model.load_state_dict(xs.attach(handle, like=torch), assign=True)


def attached(handle: xs.ArrayHandle, tree: xs.ArrayHandle[Weights], any_tree: xs.ArrayHandle[Any]) -> None:
    reveal_type(xs.attach(handle))  # SharedArray
    reveal_type(xs.attach(bytes(handle)))  # SharedArray
    reveal_type(xs.attach(str(handle)))  # SharedArray
    reveal_type(xs.attach(tree))  # dict[str, SharedArray]
    reveal_type(xs.attach(tree, only="a")["a"].shape)  # tuple[int, ...]
    reveal_type(xs.attach(any_tree))  # Any
    reveal_type(xs.attach(xs.ArrayHandle(str(handle))))  # SharedArray
    reveal_type(xs.attach(xs.ArrayHandle[Weights](bytes(handle))))  # dict[str, SharedArray]
    with xs.share({"w": np.ones(3)}) as shared:
        reveal_type(xs.attach(shared)["w"])  # SharedArray
    with xs.share([np.ones(3)]) as shared_list:
        reveal_type(xs.attach(shared_list)[0])  # SharedArray


def attached_like(handle: xs.ArrayHandle, raw: bytes) -> None:
    reveal_type(xs.attach(handle, like="numpy"))  # ndarray
    reveal_type(xs.attach(handle, like=np))  # ndarray
    reveal_type(xs.attach(handle, like="torch"))  # Tensor
    reveal_type(xs.attach(handle, like=torch))  # Tensor
    reveal_type(xs.attach(raw, like=torch))  # Tensor
    reveal_type(xs.attach(handle, like="jax"))  # Array
    reveal_type(xs.attach(handle, like=jax))  # Array
    reveal_type(xs.attach(handle, like="cupy"))  # Any
    reveal_type(xs.attach(handle, like=total))  # float
    reveal_type(xs.attach(raw, like="torch"))  # Tensor
    reveal_type(xs.attach(xs.ArrayHandle[Weights](raw), like="torch"))  # Any


def trees_attached_like(
    tree: xs.ArrayHandle[Weights], layers: xs.ArrayHandle[list[xs.SharedArray]], any_tree: xs.ArrayHandle[Any],
    nested: xs.ArrayHandle[dict[str, Weights]], unknown_values: xs.ArrayHandle[dict[str, Any]],
) -> None:  # fmt: skip
    reveal_type(xs.attach(tree, like="numpy"))  # Any
    reveal_type(xs.attach(tree, like=np))  # dict[str, ndarray
    reveal_type(xs.attach(tree, like="torch"))  # Any
    reveal_type(xs.attach(tree, like=torch, only="a"))  # dict[str, Tensor]
    reveal_type(xs.attach(tree, like="jax"))  # Any
    reveal_type(xs.attach(tree, like=jax))  # dict[str, Array]
    reveal_type(xs.attach(tree, like=total))  # dict[str, float]
    reveal_type(xs.attach(tree, like="cupy"))  # Any
    reveal_type(xs.attach(layers, like="numpy"))  # Any
    reveal_type(xs.attach(layers, like="torch"))  # Any
    reveal_type(xs.attach(layers, like=torch))  # list[Tensor]
    reveal_type(xs.attach(layers, like="jax"))  # Any
    with xs.share({0: np.ones(3)}) as shared:
        reveal_type(xs.attach(shared, like="numpy")[0])  # Any
    reveal_type(xs.attach(any_tree, like=torch))  # Any
    reveal_type(xs.attach(nested, like=torch))  # Any
    reveal_type(xs.attach(unknown_values, like="torch"))  # Any


def declared(raw: bytes, text: str) -> None:
    """What comes by bytes, text or name is what the caller says of it."""
    one: Weights = xs.attach(raw)
    two: list[Any] = xs.attach(text)
    three: Weights = xs.attach(xs.lookup("weights"))
    print(one, two, three)


def found() -> None:
    reveal_type(xs.lookup("weights"))  # Handle | ArrayHandle[SharedArray]
    reveal_type(xs.attach(xs.lookup("weights")))  # SharedArray
    for handle in xs.watch("weights"):
        reveal_type(handle)  # Handle | ArrayHandle[Any]
        reveal_type(xs.attach(handle))  # Any
        reveal_type(xs.attach(handle, like=torch))  # Any


def published(array: xs.SharedArray, pages: xs.PhysicalMemory, cache: xs.VirtualRange, handle: xs.ipc.Handle) -> None:
    for item in (
        array,
        np.ones(3),
        {"w": array, "step": 7},
        [array],
        pages,
        cache,
        xs.Event(),
        handle,
        xs.share(array),
    ):
        reveal_type(xs.publish("name", item))  # int


def others() -> None:
    reveal_type(xs.empty(3).device.name)  # str
    reveal_type(xs.empty(3).shape)  # tuple[int, ...]
    reveal_type(xs.empty(3).dtype)  # dtype[Any]
    reveal_type(xs.share(np.ones(3)).dtype)  # dtype[Any]
    reveal_type(xs.empty(3).handle)  # ArrayHandle[SharedArray]
    reveal_type(xs.shares())  # Shares
    reveal_type(xs.Event().signal())  # int
    reveal_type(xs.Event().wait(1))  # None
    reveal_type(xs.Channel.create("frames", 3))  # Channel
    reveal_type(xs.Channel.open("frames").receive())  # Frame
    reveal_type(xs.wait_any([xs.Event()]))  # list[Event]
    reveal_type(xs.wait_any([(xs.Event(), 1)]))  # list[tuple[Event, int]]
    reveal_type(xs.wait_any([xs.Event(), xs.Channel.open("f"), xs.watch("w"), (xs.Event(), 1)]))  # list[Event |
    reveal_type(xs.zeros(3, "bfloat16"))  # SharedArray
    reveal_type(xs.ipc.memory.get(np.ones(3)))  # Handle
    reveal_type(xs.ipc.memory.get(xs.malloc_host(8)))  # Handle
    reveal_type(np.frombuffer(memoryview(xs.malloc_host(8)), np.int32).size)  # int


async def awaited(event: xs.Event, frames: xs.Channel) -> None:
    reveal_type(await event)  # None
    reveal_type(await event.reached(1))  # None
    reveal_type(await xs.any_of([event]))  # list[Event]
    reveal_type(await xs.any_of([event, frames]))  # list[Event |
    await event.recovered()
    async for frame in frames:
        reveal_type(frame)  # Frame
    async for handle in xs.watch("weights", lost=True):
        reveal_type(handle)  # Handle | ArrayHandle[Any] | Lost


def refused(array: xs.SharedArray, raw: bytes) -> None:
    """Each line is an error to both type checkers, or the comment that ignores it would be one."""
    xs.share(3)  # type: ignore[call-overload]
    xs.share("text")  # type: ignore[call-overload]
    xs.share(None)  # type: ignore[call-overload]
    xs.share({array.ndim})  # type: ignore[call-overload]
    xs.share(xs.Event())  # type: ignore[call-overload]
    xs.publish("name", 3)  # type: ignore[arg-type]
    xs.ipc.memory.get(3)  # type: ignore[arg-type]
    xs.attach(array)  # type: ignore[call-overload]
    xs.Channel("frames")  # type: ignore[arg-type]
    xs.Channel(name="frames")  # type: ignore[arg-type]
    xs.SharedArray((3,))  # type: ignore[arg-type]
    xs.zeros(3, 7)  # type: ignore[arg-type]
    xs.wait_any(xs.Event())  # type: ignore[call-overload]
    xs.wait_any([xs.Lock()])  # type: ignore[type-var]
    array["w"]  # type: ignore[index]
    xs.attach(raw)["w"]  # type: ignore[index]
    len(xs.attach(raw))  # type: ignore[arg-type]
    numpy: np.ndarray[Any, Any] = xs.attach(raw)  # type: ignore[assignment]
    print(numpy)
