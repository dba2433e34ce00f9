"""The payload of an export: the data, besides sizes and file descriptors, from which the importer's adapter can map the
memory.
"""

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
    """Make the export of `nbytes` bytes of memory, for which the importer maps `mapped` bytes. The payload starts with
    a common head. `own` is the part after the head, whose meaning depends on `kind`.
    """
    return export_of(nbytes, mapped, _HEAD.pack(kind, mapped) + own, fds, inode, on_demand, form)


def unsized(kind: int) -> tuple[bytes, int]:
    """Return the common head of a payload with 0 as the size, and the offset at which the size is stored. The size has
    8 bytes, in little-endian order.
    """
    return _HEAD.pack(kind, 0), _HEAD.size - 8


def read_head(doing: str, what: Import) -> tuple[int, bytes]:
    """Read a peer's payload. Return the kind of the export, and the part of the payload whose meaning depends on the
    kind.
    """
    if len(what.payload) < _HEAD.size:
        raise InvalidHandleError(f"{doing}: the exporter's table says nothing about the kind of memory")
    kind, mapped = _HEAD.unpack_from(what.payload)
    if mapped != what.exposed_nbytes or what.nbytes > mapped:
        raise InvalidHandleError(f"{doing}: the exporter's table contradicts itself")
    return kind, what.payload[_HEAD.size :]
