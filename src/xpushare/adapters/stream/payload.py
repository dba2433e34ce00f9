"""The payload of an export: the facts that the importer's adapter needs besides sizes and file descriptors."""

from __future__ import annotations

import struct
from typing import Any, Final

from xpushare.adapters.base import Export, Form, Import, OnDemand
from xpushare.common.errors import InvalidHandleError

__all__ = ["ALLOCATION", "HOST", "OWN_NBYTES", "SEGMENTS", "described", "export_of", "read_head", "unsized"]

# Kinds of memory. The other numbers are the vendors' own.
ALLOCATION, SEGMENTS, HOST = 1, 4, 5
_HEAD: Final = struct.Struct("<B7xQ")  # the kind and the mapped bytes; each kind appends its own data
_new: Any = tuple.__new__  # faster than a named tuple's own `__new__`
OWN_NBYTES: Final = 128 - _HEAD.size  # the limit for a kind's own data


def export_of(
    nbytes: int,
    mapped: int,
    payload: bytes,
    fds: tuple[int, ...] = (),
    inode: int = 0,
    on_demand: OnDemand | None = None,
    form: Form = Form.DRIVER,
) -> Export:
    made: Export = _new(Export, (nbytes, mapped, fds, inode, payload, on_demand, form, 0))
    return made


def described(
    kind: int,
    nbytes: int,
    mapped: int,
    fds: tuple[int, ...] = (),
    *,
    inode: int = 0,
    own: bytes = b"",
    on_demand: OnDemand | None = None,
    form: Form = Form.DRIVER,
) -> Export:
    """Return an export of `nbytes`, for which the importer maps `mapped` bytes. `own` is the kind-specific part of the
    payload, after the common head.
    """
    return export_of(nbytes, mapped, _HEAD.pack(kind, mapped) + own, fds, inode, on_demand, form)


def unsized(kind: int) -> tuple[bytes, int]:
    """Return the head of a payload with 0 as its size, and the offset of the size, which has 8 bytes in little-endian
    order.
    """
    return _HEAD.pack(kind, 0), _HEAD.size - 8


def read_head(doing: str, what: Import) -> tuple[int, bytes]:
    """Read (kind, the kind's own part) from a peer's payload."""
    if len(what.payload) < _HEAD.size:
        raise InvalidHandleError(f"{doing}: the exporter's table says nothing about the kind of memory")
    kind, mapped = _HEAD.unpack_from(what.payload)
    if mapped != what.exposed_nbytes or what.nbytes > mapped:
        raise InvalidHandleError(f"{doing}: the exporter's table contradicts itself")
    return kind, what.payload[_HEAD.size :]
