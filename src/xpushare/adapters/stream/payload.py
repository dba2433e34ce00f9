"""The payload of an export: what the importer's adapter must know besides the sizes and the file descriptors."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from xpushare._errors import FeatureNotSupportedError, InvalidHandleError
from xpushare.adapters.base import Export, Import, OnDemand

__all__ = ["ALLOCATION", "HOST", "SEGMENTS", "described", "read_head", "read_sizes", "write_sizes"]

# Kinds of memory. The other numbers are the vendors' own.
ALLOCATION, SEGMENTS, HOST = 1, 4, 5
_HEAD: Final = struct.Struct("<B7xQ")  # kind, bytes mapped; then the kind's own
_RUN: Final = struct.Struct("<QI")  # segments of one size, one after the other: bytes each, how many
_RUNS_MAX: Final = (128 - _HEAD.size) // _RUN.size


def described(
    kind: int,
    nbytes: int,
    mapped: int,
    fds: tuple[int, ...] = (),
    *,
    inode: int = 0,
    own: bytes = b"",
    on_demand: OnDemand | None = None,
) -> Export:
    """An export of `nbytes`, of which the importer maps `mapped`; `own` is what the kind adds to the payload."""
    return Export(nbytes, mapped, fds, inode, _HEAD.pack(kind, mapped) + own, on_demand)


def read_head(doing: str, what: Import) -> tuple[int, bytes]:
    """(kind, the kind's own) of a peer's payload."""
    if len(what.payload) < _HEAD.size:
        raise InvalidHandleError(f"{doing}: the exporter's table says nothing about the kind of memory")
    kind, mapped = _HEAD.unpack_from(what.payload)
    if mapped != what.exposed_nbytes or what.nbytes > mapped:
        raise InvalidHandleError(f"{doing}: the exporter's table contradicts itself")
    return kind, what.payload[_HEAD.size :]


def write_sizes(doing: str, sizes: Sequence[int]) -> bytes:
    """The sizes of segments that lie side by side, as runs of one size."""
    runs = [(nbytes, len(list(same))) for nbytes, same in groupby(sizes)]
    if len(runs) > _RUNS_MAX:
        raise FeatureNotSupportedError(
            f"{doing}: it lies over allocations of too many sizes ({len(runs)} runs of one size, at most "
            f"{_RUNS_MAX}): copy it (share(copy=True))"
        )
    return b"".join(_RUN.pack(*run) for run in runs)


def read_sizes(doing: str, raw: bytes, mapped: int, count: int) -> list[int]:
    """The sizes of `count` segments, from a peer's runs."""
    sizes: list[int] = []
    for at in range(0, len(raw) - _RUN.size + 1, _RUN.size):
        nbytes, times = _RUN.unpack_from(raw, at)
        if times > count - len(sizes) or nbytes * times > mapped:
            raise InvalidHandleError(f"{doing}: the exporter's segments do not fit its memory")
        sizes += [nbytes] * times
    return sizes
