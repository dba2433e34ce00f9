"""Messages made with the key, that say whatever a test wants."""

from __future__ import annotations

import json
import struct
from typing import Any

from xpushare._native import CONSTANTS, MAGICS
from xpushare.sharing import layout
from xpushare.sharing.handle import SEAL_NBYTES, Handle, keyed_hash

HEADER = layout.MESSAGE
ARRAY = layout.LEAF
VERSION = CONSTANTS["MESSAGE_VERSION"]
EVENT_NBYTES = Handle.NBYTES + 8  # the handle and its point


def sealed(body: bytes) -> bytes:
    """With its seal, which covers of each handle only the handle's own seal."""
    fields = HEADER.unpack_from(body)
    memory, events = fields[4], fields[5]
    covered, at = [body[: HEADER.size]], HEADER.size
    for size in [Handle.NBYTES] * min(memory, 1 << 10) + [EVENT_NBYTES] * min(events, 1 << 10):
        covered.append(body[at + Handle.NBYTES - SEAL_NBYTES : at + size])
        at += size
    return body + keyed_hash(b"".join([*covered, body[at:]]))


def built(
    memory: Any,
    arrays: list[tuple[int, ...]] | None = None,
    steps: tuple[int, ...] = (4, 8),
    text: Any = None,
    *,
    marks: tuple[bytes, ...] = (),
    **changes: Any,
) -> bytes:
    """A message; `changes` are fields of its header. An array: memory, event, dtype, dimensions, 0, offset."""
    records = [(0, 0, 0, 1, 0, 0)] if arrays is None else arrays
    default = [[["<f8", 8]], 0] if text is None else text
    raw = text if isinstance(text, bytes) else json.dumps(default, separators=(",", ":")).encode()
    handles = memory if isinstance(memory, list) else [memory]
    tail = b"".join(map(bytes, handles)) + b"".join(marks) + b"".join(ARRAY.pack(*each) for each in records)
    tail += b"".join(struct.pack("<Q", each & ((1 << 64) - 1)) for each in steps) + raw
    fields = {
        "magic": MAGICS["message"],
        "version": VERSION,
        "reserved0": 0,
        "length": HEADER.size + len(tail) + SEAL_NBYTES,
        "memory": len(handles),
        "events": len(marks),
        "arrays": len(records),
        "steps": len(steps),
        "text": len(raw),
        "reserved1": 0,
        "copied": 0,
    }
    return sealed(HEADER.pack(*{**fields, **changes}.values()) + tail)


def built_array(
    memory: Any,
    *,
    shape: tuple[int, ...] = (4,),
    strides: tuple[int, ...] = (8,),
    offset: int = 0,
    dtype: bytes = b'"<f8"',
    itemsize: int = 8,
    event: Any = None,
    point: int = 0,
    ndim: int | None = None,
    **changes: Any,
) -> bytes:
    """A message of one array, whose dtype is JSON."""
    mark = () if event is None else (bytes(event) + struct.pack("<Q", point),)
    record = 0, int(event is not None), 0, len(shape) if ndim is None else ndim, 0, offset
    text = b"[[[" + dtype + b"," + str(itemsize).encode() + b"]],0]"
    return built(memory, [record], (*shape, *strides), text, marks=mark, **changes)
