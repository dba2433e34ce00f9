"""Trees over many allocations: what runs in the children of `test_vmm_trees`, `test_segments` and `test_same_again`."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import resource
from collections import Counter
from functools import partial
from typing import Any

from scripted_driver import MIB2, ScriptedDriver
from segments import Library, tensors

import xpushare as xs
from harness import kept, wait_until
from xpushare import adapters
from xpushare.sharing import routes
from xpushare.sharing.routes import socket as socket_route

__all__ = [
    "allocate",
    "bucket",
    "by_socket_alone",
    "close_some",
    "few_descriptors",
    "keep_for",
    "look",
    "made",
    "make",
    "make_segments",
    "mapped",
    "open_failing",
    "open_tree",
    "requests",
    "share_anew",
    "take_and_drop",
    "trim",
]
EXPORT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64)


def bytes_of(array: xs.SharedArray) -> bytes:
    return ctypes.string_at(array.__cuda_array_interface__["data"][0], array.nbytes)


def make(number: int) -> str:
    """The n-th array is full of n."""
    arrays = [xs.empty(64, "u1", device="cuda:0") for _ in range(number)]
    for value, each in enumerate(arrays):
        ctypes.memset(each.__cuda_array_interface__["data"][0], value % 256, each.nbytes)
    kept["arrays"], kept["handle"] = arrays, xs.share(arrays)
    assert len(kept["handle"].handles) == number
    return str(kept["handle"])


def make_segments(sizes: list[int]) -> tuple[str, list[int]]:
    """Tensors of those sizes end to end, and one of 64 bytes elsewhere; the n-th is full of n. The tree's handle,
    and how many segments each export has.
    """
    driver: Any = kept["cuda"]
    driver._pointer = partial(ScriptedDriver._pointer, driver)  # it knows what `Library` maps
    driver.functions[b"cuMemExportToShareableHandle"] = EXPORT(
        lambda at, *given: driver._answer(at, *driver.cuMemExportToShareableHandle(*given))
    )
    Library.type = tensors()
    cuda: Any = xs.Device("cuda:0") and adapters.adapter("cuda")
    libraries = Library(cuda, [MIB2] * (sum(sizes) // MIB2 + 2)), Library(cuda, [MIB2])
    tree = [*(libraries[0].tensor(nbytes) for nbytes in sizes), libraries[1].tensor(64)]
    for value, each in enumerate(tree):
        ctypes.memset(each.address, value, each.nbytes)
    kept["libraries"] = libraries
    kept["handle"] = handle = xs.share(tree)
    return str(handle), [exposed(each) // MIB2 for each in handle.handles]


def exposed(handle: xs.ipc.Handle) -> int:
    return int(handle.exposed_nbytes)


def made() -> int:
    """How many descriptors were made."""
    return int(kept["cuda"].calls.count("cuMemExportToShareableHandle"))


def counts() -> dict[str, int]:
    names = "cuMemImportFromShareableHandle", "cuMemSetAccess", "cuMemAddressReserve"
    return {name: kept["cuda"].calls.count(name) for name in names}


def open_tree(handle: str) -> tuple[list[bytes], dict[str, int]]:
    """The bytes of each array, and how many driver calls of each kind that took."""
    before = counts()
    kept["opened"] = xs.attach(handle)
    return [bytes_of(each) for each in kept["opened"]], {name: now - before[name] for name, now in counts().items()}


def allocate(number: int) -> None:
    """Have a library allocate memory; the n-th tensor is full of n."""
    driver: Any = kept["cuda"]
    kind = tensors()
    kept["tree"] = [kind(driver.allocate(4096), 4096) for _ in range(number)]
    for value, each in enumerate(kept["tree"]):
        ctypes.memset(each.address, value % 256, each.nbytes)


def share_anew() -> str:
    """The handle of a new export, which ends the one before."""
    before = kept.pop("handle", None)
    kept["handle"] = xs.share(kept["tree"])
    if before is not None:
        before.close()
    return str(kept["handle"])


def look(handle: str) -> tuple[int, int]:
    """Attach, read and close all. Returns how many arrays there are, and how many imports the driver has opened."""
    calls = kept["cuda"].calls
    before = calls.count("cuIpcOpenMemHandle")
    found: Any = xs.attach(handle)
    assert [set(bytes_of(each)) for each in found] == [{value % 256} for value in range(len(found))]
    for each in found:
        each.close()
    return len(found), calls.count("cuIpcOpenMemHandle") - before


def trim() -> None:
    xs.trim()


def keep_for(seconds: int) -> None:
    """Set for how long this process keeps what it closes or frees, before it first uses the device's memory."""
    os.environ["XPUSHARE_KEEP_SECONDS"] = str(seconds)


def bucket() -> tuple[bytes, int]:
    """Send new memory and drop it. Returns the message and the memory's address."""
    array = xs.empty(MIB2, "u1", device="cuda:0")
    return pickle.dumps(array), array.__cuda_array_interface__["data"][0]


def take_and_drop(raw: bytes) -> None:
    pickle.loads(raw).close()


def few_descriptors() -> None:
    """Have a soft limit of 1024 descriptors, as most processes do."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def by_socket_alone() -> None:
    """Have this process fetch file descriptors from exporters' sockets alone, and note its requests."""
    plain = socket_route._Line._exchange
    kept["requests"] = []

    def exchange(line: Any, connection: Any, op: int, wanted: list[Any], before: bool) -> Any:
        kept["requests"].append(len(wanted))
        return plain(line, connection, op, wanted, before)

    socket_route._Line._exchange = exchange  # type: ignore[method-assign]
    routes.use_only("socket")


def requests() -> list[int]:
    """How many entries each request was for."""
    found: list[int] = kept["requests"]
    return found


def mapped() -> tuple[int, int]:
    """How many mappings and reservations there are, by the calls that did not fail."""
    calls = Counter(kept["cuda"].calls)
    calls.subtract(kept.get("failed", ()))
    return (
        calls["cuMemMap"] - calls["cuMemUnmap"],
        calls["cuMemAddressReserve"] - calls["cuMemAddressFree"],
    )


def close_some(first: int, left: tuple[int, int]) -> list[bytes]:
    """Close all arrays from `first` on; wait until so much is left, and read the others."""
    del kept["opened"][first:]
    gc.collect()

    def settled() -> bool:
        xs.trim()
        return mapped() == left

    wait_until(settled, what="the mappings to go")
    return [bytes_of(each) for each in kept["opened"]]


def open_failing(handle: str, name: str, count: int) -> tuple[str, Any]:
    """The error of an open whose driver call of that name fails from the n-th on; and what is left mapped."""
    driver = kept["cuda"]
    plain, left = object.__getattribute__(driver, name), [count]

    def fail(*given: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            return plain(*given)
        kept.setdefault("failed", []).append(name)
        return 999, None

    setattr(driver, name, fail)
    try:
        xs.attach(handle)
    except xs.XpuShareError as error:
        text = f"{type(error).__name__}: {error}"
    else:
        text = ""
    finally:
        delattr(driver, name)
    gc.collect()

    def gone() -> bool:
        xs.trim()
        return mapped() == (0, 0)

    wait_until(gone, what="what was mapped before the error to go")
    return text, mapped()
