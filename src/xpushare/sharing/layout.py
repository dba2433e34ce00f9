"""The layout of the table of exports, and of the commons (the memory that an exporter and its importers all write), as
Python reads them. src/engine/layout.h declares the layout, and docs/layout.md explains it.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from xpushare._native import CONSTANTS, LAYOUT, MAGICS, STRUCTS
from xpushare.common.errors import InvalidHandleError

__all__ = [
    "COMMONS_NBYTES",
    "ENTRY",
    "ENTRY_COUNT",
    "ENTRY_NBYTES",
    "LIFE",
    "TABLE",
    "TABLE_ENTRIES",
    "TABLE_NBYTES",
    "expect_version",
    "wrong_version",
]


def wrong_version(what: str, found: int, wanted: int) -> InvalidHandleError:
    """Return the error for `what`, which another process has written, if it is of another version than `wanted`."""
    return InvalidHandleError(
        f"{what} has version {found} of the shared layout, and this process has version {wanted}: use the same "
        "version of xpushare in all processes"
    )


def expect_version(what: str, found: int, wanted: int) -> None:
    """Raise `InvalidHandleError` if `what`, which another process has written, is of another version than `wanted`."""
    if found != wanted:
        raise wrong_version(what, found, wanted)


def head_of(message: bytes) -> dict[str, Any]:
    """Return the fields at the beginning of a message, by the names of `xp_message`."""
    return dict(zip(STRUCTS["message"], MESSAGE.unpack_from(message), strict=True))


def _struct(of: str, *fields: str, nbytes: int = 0) -> struct.Struct:
    """Return a `Struct` that reads `fields` of the C structure `of`, beginning at the first of these fields. The
    `Struct` skips the gaps between the fields, and is at least `nbytes` long.
    """
    start = at = STRUCTS[of][fields[0]][0]
    code = "<"
    for field in fields:
        begin, each = STRUCTS[of][field]
        code += f"{begin - at}x{each}"
        at = begin + struct.calcsize("<" + each)
    return struct.Struct(code + f"{max(nbytes - (at - start), 0)}x")


TABLE_MAGIC: Final = MAGICS["table"]
TABLE_VERSION: Final = CONSTANTS["VERSION"]
TABLE: Final = _struct("table", *STRUCTS["table"])
TABLE_ENTRIES: Final = LAYOUT["table.header"]
TABLE_DEVICES: Final = LAYOUT["table.devices"]  # the devices that the entries name
DEVICE: Final = _struct("device", *STRUCTS["device"])  # backend, uuid, PCI address, uuid of the driver
DEVICE_COUNT: Final = (TABLE_ENTRIES - TABLE_DEVICES) // DEVICE.size
ENTRY_NBYTES: Final = LAYOUT["entry.size"]
ENTRY_COUNT: Final = LAYOUT["table.entries"]
TABLE_DEADLINES: Final = LAYOUT["table.deadlines"]
TABLE_LABELS: Final = LAYOUT["table.labels"]
LABEL_TEXT: Final = LAYOUT["label.text"]
LABEL: Final = _struct("label", *STRUCTS["label"])
TABLE_NBYTES: Final = LAYOUT["table.size"]
DEADLINES: Final = LAYOUT["table.deadlines"]  # a word for each entry: CLOCK_MONOTONIC nanoseconds, 0: none
COMMONS_NBYTES: Final = LAYOUT["commons.size"]
COMMONS_MAGIC: Final = MAGICS["commons"]
COMMONS: Final = _struct("commons", "magic", "version", "cookie")
MEMBERS: Final = LAYOUT["commons.members"]
MEMBER: Final = _struct("member", "state", "pid", "pid_namespace", "attached_ns", nbytes=LAYOUT["member.size"])
HOLDERS: Final = LAYOUT["commons.holders"]
HOLDER_NBYTES: Final = LAYOUT["holders.size"]
SLOTS: Final = LAYOUT["commons.slots"]  # of events
SLOT_NUMBER: Final = 21  # where the number of the newest signal begins in `pending`: docs/events-protocol.md
SLOT_INSTANT: Final = 1 << 20  # in `pending`: the host signalled, and that signal is complete
SLOT_COUNT: Final = LAYOUT["commons.slot_count"]
SLOT: Final = _struct("slot", "value", "pending", nbytes=LAYOUT["slot.size"])
LIFE: Final = LAYOUT["commons.life"]  # member i is alive while it locks byte LIFE + i of the commons

KINDS: Final = {CONSTANTS[f"KIND_{name.upper()}"]: name for name in ("memory", "physical_memory", "event")}
HANDLE_NBYTES: Final = LAYOUT["handle.size"]
CHANNEL_MAGIC: Final = b"XPUSHCHN"
MESSAGE_MAGIC: Final = MAGICS["message"]
LEAF: Final = _struct("leaf", *STRUCTS["leaf"])
GEOMETRY: Final = _struct("geometry", *STRUCTS["geometry"], nbytes=LAYOUT["geometry.size"])  # of a channel
NAME_FILE: Final = _struct(  # the beginning of a file that leads to a channel, lock or atomic
    "name_file", "version", "pid", "place", "kind", "generation", "id", nbytes=LAYOUT["name_file.records"]
)
MESSAGE: Final = _struct("message", *STRUCTS["message"])  # the beginning of what `share` returns for arrays

FDS_INLINE: Final = CONSTANTS["ENTRY_FDS"]
PAYLOAD_NBYTES: Final = ENTRY_NBYTES - LAYOUT["entry.payload"]
FDS: Final = struct.Struct(f"<{FDS_INLINE}i")
OBJECT_AT: Final = LAYOUT["entry.object"]
BRIEF: Final = _struct(  # the fields that an overview needs
    "entry", "generation", "retired", "kind", "slot", "object", "nbytes", "exposed_nbytes", "inode", "offset", "device",
    "since", nbytes=ENTRY_NBYTES,
)  # fmt: skip
ENTRY: Final = _struct("entry", *(field for field in STRUCTS["entry"] if field != "since"))

ENTRY_READ_ONLY: Final = CONSTANTS["ENTRY_READ_ONLY"]
ENTRY_COUNTED: Final = CONSTANTS["ENTRY_COUNTED"]
ENTRY_ON_DEMAND: Final = CONSTANTS["ENTRY_ON_DEMAND"]
ENTRY_PICKLED: Final = CONSTANTS["ENTRY_PICKLED"]
ENTRY_FORM: Final = CONSTANTS["ENTRY_FORM"]  # the three bits that are the `Form` of the export
ENTRY_FORM_BIT: Final = CONSTANTS["ENTRY_FORM_BIT"]  # the lowest of them

REASON_PUT: Final = CONSTANTS["REASON_PUT"]
REASON_FREED: Final = CONSTANTS["REASON_FREED"]
REASON_OPENS: Final = CONSTANTS["REASON_OPENS"]
REASON_TTL: Final = CONSTANTS["REASON_TTL"]
REASON_PICKLE: Final = CONSTANTS["REASON_PICKLE"]
REASONS: Final = {
    REASON_PUT: "the exporter closed it (its `with xs.share(...)` block ended, or close() or put() ran). Keep it open "
    "until the receiver has attached, or use xs.share(x, opens=1)",
    REASON_FREED: "the object behind it was closed before it was opened: keep what you pickle or share alive until the "
    "receiver has opened it",
    REASON_OPENS: "its opens are used up. Share the array again, or with a larger opens=",
    REASON_TTL: "its ttl has passed. Share the array again, or with a longer ttl=",
    REASON_PICKLE: "the object behind it was closed, and the pickle has been opened once (or as often as "
    "install(opens=n) said for each pickle), or waited longer than XPUSHARE_PICKLE_GRACE seconds: keep what you pickle "
    "alive until the receiver has opened it, or raise opens=",
}
