"""Offsets in the table and the commons; docs/layout.md explains them, src/native/engine/layout.h has the C side."""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["COMMONS_NBYTES", "ENTRY", "ENTRY_COUNT", "ENTRY_NBYTES", "LIFE", "TABLE", "TABLE_ENTRIES", "TABLE_NBYTES"]

TABLE_MAGIC: Final = b"XPUSHTAB"
TABLE_VERSION: Final = 1
# magic, version, pid, cookie, pid namespace, commons fd, bell fd, commons inode
TABLE: Final = struct.Struct("<8sII16sQIIQ")
TABLE_ENTRIES: Final = 4096
TABLE_DEVICES: Final = 64  # the devices that the entries name, for `ls`: backend, uuid
DEVICE: Final = struct.Struct("<16s16s")
DEVICE_COUNT: Final = (TABLE_ENTRIES - TABLE_DEVICES) // DEVICE.size
ENTRY_NBYTES: Final = 256
ENTRY_COUNT: Final = 1 << 18
TABLE_NBYTES: Final = TABLE_ENTRIES + ENTRY_COUNT * ENTRY_NBYTES
COMMONS_NBYTES: Final = 0x6200000
COMMONS_MAGIC: Final = b"XPUSHCOM"
COMMONS: Final = struct.Struct("<8sI4x16s")  # magic, version, cookie
MEMBERS: Final = 4096
MEMBER: Final = struct.Struct("<IIQQ40x")  # state, pid, pid namespace, attached
MEMBER_COUNT: Final = 1024
HOLDERS: Final = 0x100000
HOLDER_NBYTES: Final = MEMBER_COUNT // 8
LIFE: Final = 0x40000000  # member i is alive while it locks byte LIFE + i of the commons

FDS_INLINE: Final = 8
PAYLOAD_NBYTES: Final = 128
# generation, retired, reason, kind, flags, slot, nonce, object, nbytes, exposed, inode, fd_count, payload_nbytes, fds,
# payload
FDS: Final = struct.Struct(f"<{FDS_INLINE}i")
ENTRY: Final = struct.Struct(f"<QQIIII16sQQQQII{4 * FDS_INLINE}s8x{PAYLOAD_NBYTES}s")
RETIRED_AT: Final = 8  # retired, reason: <QI
ABOUT_AT: Final = 120  # for `ls`: 1 + index of the device (0: not said), seconds since the epoch
ABOUT: Final = struct.Struct("<II")
assert ENTRY.size == ENTRY_NBYTES

ENTRY_READ_ONLY: Final = 1
ENTRY_COUNTED: Final = 2
ENTRY_ON_DEMAND: Final = 4
ENTRY_MEMFD: Final = 8  # the one fd is a sealed memfd of exposed_nbytes: an importer may map it right away

REASON_PUT: Final = 1
REASON_FREED: Final = 2
REASON_OPENS: Final = 3
REASONS: Final = {
    REASON_PUT: "it was put",
    REASON_FREED: "the object behind it was closed before it was opened: keep what you pickle or share alive until the "
    "receiver has opened it",
    REASON_OPENS: "its opens are used up",
}
