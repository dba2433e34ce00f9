"""What the tests of the keeper have in common."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

import xpushare as xs
from harness import kept, wait_until
from xpushare.sharing import keeping

__all__ = [
    "environment",
    "keep",
    "keep_array",
    "keeper_fds",
    "keeper_pid",
    "kept_files",
    "listed",
    "reachable",
    "stop_keeper",
    "tree",
    "values",
    "values_of",
]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def listed() -> list[dict[str, Any]]:
    with keeping.connected() as keeper:
        return [] if keeper is None else keeper.listed()


def reachable() -> bool:
    """Whether a keeper answers."""
    with keeping.connected() as keeper:
        return keeper is not None


def keeper_pid() -> int | None:
    """Whoever locks the file for its life."""
    return keeping.keeper_pid()


def stop_keeper() -> None:
    with keeping.connected() as keeper:
        if keeper is not None:
            keeper.stop()
    wait_until(lambda: keeper_pid() is None, what="the keeper to end")
    assert (listed(), xs.published()) == ([], {})


def keeper_fds() -> list[str]:
    folder = f"/proc/{keeper_pid()}/fd"
    found = []
    for name in os.listdir(folder):
        try:
            found.append(os.readlink(f"{folder}/{name}"))
        except FileNotFoundError:
            continue
    return found


def kept_files() -> int:
    """How many descriptors of memory the keeper has."""
    return sum("xpushare-memory" in each or "xpushare-physical" in each for each in keeper_fds())


def tree(value: float) -> dict[str, Any]:
    """Of several allocations."""
    parts = [xs.empty(1 << 13) for _ in range(3)]
    for part in parts:
        np.asarray(part)[:] = value
    return {"parts": parts, "value": value}


def keep(name: str, value: float, **options: Any) -> int:
    """In a child: publish a tree that is kept."""
    kept[name] = tree(value)
    return xs.publish(name, kept[name], keep=True, **options)


def keep_array(name: str, nbytes: int, **options: Any) -> int:
    kept[name] = xs.zeros(nbytes, "u1") if hasattr(xs, "zeros") else xs.empty(nbytes, "u1")
    return xs.publish(name, kept[name], keep=True, **options)


def values_of(found: Any) -> set[float]:
    """All values of a tree."""
    return {found["value"], *(float(each) for part in found["parts"] for each in np.unique(np.asarray(part)))}


def values(name: str, timeout: float = 0) -> set[float]:
    return values_of(xs.attach(xs.lookup(name, timeout=timeout)))
