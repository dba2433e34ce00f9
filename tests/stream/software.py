"""A device that records what the engine asks it for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

from xpushare.adapters.stream.hooks import Codes
from xpushare.common.errors import XpuShareError

CODES = Codes(
    out_of_memory=frozenset({2}),
    unsupported=frozenset({8}),
    fatal=frozenset({70}),
    captured=frozenset({90}),
    wrong_size=frozenset({1}),
    advice={70: "end this process"},
)


class Device:
    """A device over host memory, which records what it is asked for."""

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self.codes = CODES
        self.log: list[tuple[Any, ...]] = []
        self.reachable: set[int] = set()  # addresses
        self.drained = threading.Event()  # cleared: draining does not return
        self.drained.set()
        self.fail: dict[str, int] = {}
        self.used = True
        self.peers = {0, 1}

    def __str__(self) -> str:
        return f"device {self.ordinal}"

    def _do(self, doing: str, name: str, *arguments: Any) -> None:
        if name in self.fail:
            raise self.error(doing, name, self.fail[name])
        self.log.append((name, *arguments))

    def error(self, doing: str, call: str, code: int) -> XpuShareError:
        return CODES.error(doing, call, f"ERROR_{code}", code)

    def current(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def active(self) -> bool:
        return self.used

    def lacking(self, _feature: str) -> str:
        return ""

    def drain(self) -> None:
        self.drained.wait()
        self._do("draining", "drain")

    def reach(self, doing: str, address: int, nbytes: int, read_only: bool) -> None:
        self._do(doing, "reach", nbytes, read_only)
        self.reachable.add(address)

    def reached(self, doing: str, address: int) -> int:
        self._do(doing, "reached")
        return address

    def unreach(self, doing: str, address: int) -> None:
        self._do(doing, "unreach")
        self.reachable.remove(address)

    # what peer access needs of virtual memory
    def reaches(self, location: int) -> bool:
        return location in self.peers

    def set_access(self, doing: str, address: int, nbytes: int, ordinals: Sequence[int], access: str) -> None:
        self._do(doing, "set_access", address, nbytes, tuple(ordinals), access)
