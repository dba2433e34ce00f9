"""What the other process does in the tests of arrays."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np

import xpushare as xs
from harness import kept


def backed_by(address: int) -> str:
    """The name of what is mapped at `address` of this process."""
    with open("/proc/self/maps") as file:
        for line in file:
            low, high = (int(part, 16) for part in line.split(" ", 1)[0].split("-"))
            if low <= address < high:
                return line.split(None, 5)[5].strip() if len(line.split(None, 5)) > 5 else ""
    return "nothing"


def content_of(values: Any) -> bytes:
    """The bytes of the elements, without the padding of structures: NumPy copies that or not, as it likes."""
    if values.dtype.names is None:
        return values.tobytes()  # type: ignore[no-any-return]
    return b"".join(content_of(values[name]) for name in values.dtype.names)


def looked_at(handle: Any, flip: bool = False) -> dict[str, Any]:
    """Attach, say what is there, flip every bit of it if asked to."""
    with xs.attach(handle) as array:
        values = np.asarray(array)
        found = {
            "shape": array.shape,
            "strides": values.strides,
            "dtype": array.dtype,
            "numpy_dtype": values.dtype,
            "content": content_of(values),
            "read_only": array.read_only,
            "writable": values.flags.writeable,
            "imported": array.is_imported,
            "nbytes": array.nbytes,
            "mapped": backed_by(array.ptr),
        }
        if flip:
            memory = np.frombuffer(array.memory, "u1") if array.memory.nbytes else np.empty(0, "u1")
            np.bitwise_not(memory, out=memory)
        return found


def attach_until_refused(handle: bytes, tries: int) -> int:
    """How often `attach` let us in."""
    good = 0
    for _ in range(tries):
        try:
            with xs.attach(handle) as array:
                assert np.asarray(array)[0] == 7
            good += 1
        except xs.HandleExpiredError as error:
            if "used up" not in str(error):
                raise
    return good


def read(array: xs.SharedArray) -> None:
    """Read an array in full, but what strides of 0 repeat once: the whole may be more than there is memory for."""
    values = np.asarray(array)
    values[tuple(slice(None if step else 1) for step in values.strides)].tobytes()


def try_hostile(handle: bytes) -> str:
    """What `attach` makes of a handle that lies. An array that it lets through is read."""
    try:
        array = xs.attach(handle)
    except (xs.InvalidHandleError, xs.HandleExpiredError) as error:
        return type(error).__name__
    read(array)
    return "attached"


def remember(handle: Any, name: str = "array", **options: Any) -> None:
    kept[name] = xs.attach(handle, **options)


def kept_content(name: str = "array") -> list[Any]:
    return np.asarray(kept[name]).tolist()


# --- pickling


def add_one(array: xs.SharedArray) -> float:
    """For pools: works on the caller's memory."""
    values = np.asarray(array)
    values += 1
    return float(values.sum())


def add_one_from(queue: multiprocessing.Queue[Any], answers: multiprocessing.Queue[Any]) -> None:
    answers.put(add_one(queue.get(timeout=20)))


def pass_on(array: xs.SharedArray) -> xs.SharedArray:
    """Pickles what was unpickled."""
    add_one(array)
    return array


# --- trees


def tree_seen(message: Any) -> Any:
    """The tree with the first element of each array."""
    return _first_elements(xs.attach(message))


def kept_tree(name: str) -> Any:
    return _first_elements(kept[name])


def _first_elements(tree: Any) -> Any:
    if isinstance(tree, xs.SharedArray):
        return float(np.asarray(tree).flat[0])
    if isinstance(tree, dict):
        return {key: _first_elements(value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_make"):
        return _Record(tree._fields, [_first_elements(value) for value in tree])
    if isinstance(tree, list | tuple):
        return type(tree)([_first_elements(value) for value in tree])
    return tree


class _Record:
    """A named tuple, for a process that does not have its type."""

    def __init__(self, fields: tuple[str, ...], values: list[Any]) -> None:
        self.fields = fields
        self.values = values

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self.fields, self.values, strict=True))


def try_hostile_tree(message: bytes) -> str:
    """What `attach` makes of the handle of a tree that lies; arrays that it lets through are read."""
    try:
        xs.attach(message, like=read)
    except (xs.InvalidHandleError, xs.HandleExpiredError) as error:
        return type(error).__name__
    return "attached"


def try_hostile_tensors(message: bytes) -> str:
    """The same with torch's tensors: native code makes those that torch makes of each array, or says what that says."""
    import torch

    found: list[Any] = []
    for like in torch, lambda array: torch.from_dlpack(array):
        try:
            found.append(repr(_described(xs.attach(message, like=like))))
        except (xs.InvalidHandleError, xs.HandleExpiredError) as error:
            found.append(error)
        except (BufferError, RuntimeError, TypeError) as error:
            found.append(error)
    first, second = found
    if isinstance(first, str):
        assert first == second
        return "attached"
    assert type(first) is type(second)
    return type(first).__name__


def _described(x: Any) -> Any:
    """A tree with what its tensors are, and the content of small ones."""
    if isinstance(x, dict):
        return {key: _described(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_described(each) for each in x]
    if not hasattr(x, "stride"):
        return x
    return x.shape, x.stride(), x.dtype, x.flatten().tolist() if x.numel() < 1 << 12 else None
