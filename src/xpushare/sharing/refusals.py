"""The errors for an exporter or an export that cannot be opened, and for bytes that are no handle or no message of this
user and boot, made from the codes with which native code refuses.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
from collections.abc import Callable
from typing import Final, TypeAlias

from xpushare._native import (
    CONSTANTS,
    Fields,
    MessageState,
    Refusal,
    fields_of,
)
from xpushare.common.elements import extent
from xpushare.common.errors import (
    HandleExpiredError,
    InvalidHandleError,
    OutOfMemoryError,
    XpuShareError,
    exporter_gone,
    from_os_error,
)
from xpushare.sharing import layout

__all__ = ["OF_ARRAY", "Blocked", "error_of", "flaw_of", "leaf_flaw_of", "why_blocked"]


class Blocked(Exception):
    """Raised if a route is blocked. The text names the obstacle, and how to remove it."""


_Maker: TypeAlias = Callable[[Refusal, Fields], Blocked | XpuShareError]


def _gone(how: str) -> _Maker:
    return lambda refusal, fields: exporter_gone(fields.pid, how.format(os.strerror(refusal.errno)))


def _failed(doing: str) -> _Maker:
    def make(refusal: Refusal, fields: Fields) -> Blocked | XpuShareError:
        error = OSError(refusal.errno, f"{refusal.what}: {os.strerror(refusal.errno)}")
        return from_os_error(error, doing.format(what=refusal.what, detail=refusal.detail, pid=fields.pid))

    return make


def _invalid(text: str) -> _Maker:
    return lambda refusal, fields: InvalidHandleError(
        text.format(what=refusal.what, detail=refusal.detail, pid=fields.pid)
    )


def _expired(why: str) -> HandleExpiredError:
    return HandleExpiredError(f"the handle has expired: {why}")


def _version(what: str) -> _Maker:
    return lambda refusal, fields: layout.wrong_version(
        f"{what} of process {fields.pid}", refusal.detail, layout.TABLE_VERSION
    )


def why_blocked(call: str, number: int) -> Blocked:
    """Return the error for a system call of the route by pidfd_getfd that failed with the errno `number`."""
    if call != "pidfd_getfd" or number not in (errno.EPERM, errno.ENOSYS):
        return Blocked(f"{call}: {os.strerror(number)}")
    if number == errno.ENOSYS:
        return Blocked("this kernel is older than Linux 5.6, or seccomp hides the call")
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", encoding="utf-8") as file:
            scope = file.read().strip()
    except OSError:
        scope = "0"
    yama = (
        f"Yama's ptrace_scope is {scope} (0 would allow it, or prctl(PR_SET_PTRACER) in the exporter); "
        if scope != "0"
        else ""
    )
    return Blocked(
        f"not permitted: {yama}the exporter runs as another user, is not dumpable (prctl PR_SET_DUMPABLE) or has "
        "more privileges, "
        "or seccomp forbids it (in containers: --cap-add=SYS_PTRACE in the importer)"
    )


_MAPPING: Final = "mapping the table of process {pid}"
_MEMORY: Final = "mapping {detail} bytes of process {pid}"
_MAKERS: Final[dict[int, _Maker]] = {
    CONSTANTS[f"REFUSED_{name}"]: maker
    for name, maker in {
        "OTHER_PIDS": lambda _refusal, _fields: Blocked(
            "the exporter is in another PID namespace (share it: --pid=container:…, hostPID, shareProcessNamespace)"
        ),
        "PIDFD_BLOCKED": lambda refusal, _fields: why_blocked(refusal.what, refusal.errno),
        "PID_OURS": _gone("its pid is this process's now"),
        "PID_UNUSED": _gone("no process has its pid"),
        "PID_REUSED": _gone("its pid now belongs to a process without that file descriptor, or it is exiting"),
        "FD_REUSED": _gone("its pid or file descriptor number was used again by something else"),
        "MET_ENDING": _gone("it ended while it was being opened ({})"),
        "CALL_FAILED": _failed("{what}"),
        "TABLE_UNREAD": _failed("looking at the exporter's table"),
        "TABLE_FAILED": _failed(_MAPPING),
        "TABLE_UNFIT": _invalid(_MAPPING + ": {what}"),
        "TABLE_OTHER": _invalid(_MAPPING + ": it is not the one that the handle names"),
        "TABLE_VERSION": _version("the table"),
        "COMMONS_OTHER": _invalid(_MAPPING + ": its commons is another file"),
        "COMMONS_VERSION": _version("the commons"),
        "COMMONS_FULL": lambda refusal, fields: OutOfMemoryError(
            f"process {fields.pid} serves as many importing processes as it can (1023)", native=refusal.errno
        ),
        "EXPORTER_ENDED": _gone("it ended"),
        "ENTRY_NONE": _invalid("the handle names no entry of a table"),
        "ENTRY_ENDED": lambda refusal, _fields: _expired(
            layout.REASONS.get(refusal.detail, "its exporter withdrew it")
        ),
        "ENTRY_UNFIT": _invalid("the handle does not fit what process {pid} exports under it"),
        "NOT_DIRECT": lambda _refusal, _fields: Blocked("the exporter was met by another route"),
        "ON_DEMAND": lambda _refusal, _fields: Blocked(
            "these file descriptors are made on demand, by the exporter's socket only"
        ),
        "FD_FREED": lambda _refusal, _fields: _expired("the object behind it was freed just now"),
        "FD_OTHER": lambda _refusal, _fields: _expired("its file descriptor number was used again"),
        "OBJECT_UNREAD": _failed("looking at an object of process {pid}"),
        "MEMORY_FAILED": _failed(_MEMORY),
        "MEMORY_UNFIT": _invalid(_MEMORY + ": {what}"),
    }.items()
}


def error_of(refusal: Refusal, fields: Fields) -> Blocked | XpuShareError:
    """Return the error for a refused attempt to reach the exporter or the export that `fields` name. It is `Blocked` if
    another route may succeed.
    """
    return _MAKERS[refusal.code](refusal, fields)


# --- flaws of bytes

OF_ARRAY: Final = "this is a handle of an array: xs.attach opens it, and its attribute `handle` is that of its memory"
_OF_CHANNEL: Final = "this is the handle of a channel: xs.Channel.open opens it"
_OF_TEXT: Final = "these bytes are the text of a handle: decode them, since a text is passed as a str"
_TEXT_BEGIN: Final = base64.b64encode(b"XPUSH")[:6]  # of the texts of all kinds of handles


_ALIENS: Final = {layout.MESSAGE_MAGIC: OF_ARRAY, layout.CHANNEL_MAGIC: _OF_CHANNEL, _TEXT_BEGIN: _OF_TEXT}
_FLAWS: Final = {
    CONSTANTS[f"FLAW_{name}"]: text
    for name, text in {
        "HANDLE_LENGTH": "a handle has {size} bytes, this has {nbytes}",
        "HANDLE_MAGIC": "these bytes are not a handle (they do not begin with XPUSHARE)",
        "HANDLE_VERSION": "the handle has format version {handle.version}, this package reads version {version}",
        "HANDLE_SEAL": "handle",
        "HANDLE_VALUES": "the handle says things this version does not know (kind {handle.kind}, flags "
        "{handle.flags:#x}, backend {handle.backend!r}, entry {handle.entry}, pid {handle.pid}, fd {handle.table_fd})",
        "HANDLE_BOOT": "the handle comes from another host, or from before the last boot",
        "MESSAGE_HANDLE": "this is a handle of {a_kind}, not of an array: open it with ipc.{kind}.open",
        "MESSAGE_MAGIC": "these {nbytes} bytes are not an array handle: `attach` takes what `xs.share` returned",
        "MESSAGE_LENGTH": "these {nbytes} bytes are not a whole array handle: they were cut on the way",
        "MESSAGE_VERSION": "the array handle has format version {head[version]}, this package reads version {message}",
        "MESSAGE_SEAL": "array handle",
        "MESSAGE_VALUES": "the array handle says things this version does not know ({head[memory]} allocations, "
        "{head[events]} events, {head[arrays]} arrays)",
        "MESSAGE_KIND": "the array handle names {kind} where {due} is due",
        "MESSAGE_EXPORTER": "the array handle names {due} that is none of its exporter",
        "MESSAGE_POINT": "the array handle says a point that no event reaches",
        "LEAF_PART": "an array of the array handle refers to memory that the handle does not have",
        "LEAF_SHAPE": "the array handle says shape {shape}, which no array can have",
        "LEAF_BYTES": "the array handle says bytes {first} to {last} of memory that has {nbytes}",
        "LEAF_REST": "the array handle has lengths and strides of no array",
    }.items()
}
_LENGTHS_AND_MAGICS: Final = [CONSTANTS[f"FLAW_{each}"] for each in ("HANDLE_LENGTH", "HANDLE_MAGIC", "MESSAGE_MAGIC")]
_SEALS: Final = CONSTANTS["FLAW_HANDLE_SEAL"], CONSTANTS["FLAW_MESSAGE_SEAL"]
_OF_ONE_LEAF: Final = CONSTANTS["FLAW_LEAF_SHAPE"], CONSTANTS["FLAW_LEAF_BYTES"]


def _wrong_seal(what: str, pid: int) -> str:
    """Return the error message for a `what` (a handle, for example) with a wrong seal. `pid` is the exporter's pid, if
    the bytes contain one.
    """
    owner = None
    with contextlib.suppress(OSError):
        owner = os.stat(f"/proc/{pid}").st_uid
    if owner is not None and owner != os.geteuid():
        return f"the {what} was made by another user (uid {owner}): xpushare shares between processes of one user only"
    return (
        f"the {what}'s seal does not fit: it was cut or altered on the way, or made by another user or with another "
        "key. xpushare shares between processes of one user only; in containers, both need the same "
        "XPUSHARE_KEY_FILE or XPUSHARE_RUNTIME_DIR"
    )


def flaw_of(code: int, raw: bytes, at: int = 0) -> InvalidHandleError:
    """Return the error for bytes that are not a handle, or not a message. If a message is valid except for one of its
    handles, that handle begins at `at`.
    """
    if code in _LENGTHS_AND_MAGICS:
        for magic, text in _ALIENS.items():
            if raw[at:].startswith(magic):
                return InvalidHandleError(text)
    end = layout.MESSAGE.size
    head = layout.head_of(raw[:end].ljust(end, b"\0"))
    begin = at or (end if raw.startswith(layout.MESSAGE_MAGIC) else 0)
    handle = Fields(raw[begin : begin + layout.HANDLE_NBYTES].ljust(layout.HANDLE_NBYTES, b"\0"))
    if code in _SEALS:
        return InvalidHandleError(_wrong_seal(_FLAWS[code], handle.pid))
    kind = layout.KINDS.get(handle.kind)
    due = "memory" if at < end + head["memory"] * layout.HANDLE_NBYTES else "event"
    text = _FLAWS[code].format(
        nbytes=len(raw), size=layout.HANDLE_NBYTES, version=layout.TABLE_VERSION, message=CONSTANTS["MESSAGE_VERSION"],
        handle=handle, head=head, kind=kind, due=due, a_kind="an event" if kind == "event" else kind,
    )  # fmt: skip
    return InvalidHandleError(text)


def leaf_flaw_of(code: int, leaf: int, message: MessageState, itemsizes: tuple[int, ...]) -> InvalidHandleError:
    """Return the error for a message whose array number `leaf` is invalid."""
    if code not in _OF_ONE_LEAF:
        return InvalidHandleError(_FLAWS[code])
    memory, _event, shape, strides, dtype, offset = message._elements[leaf]
    low, high = extent(shape, strides, itemsizes[dtype])
    nbytes = fields_of(message._memory[memory]).nbytes
    return InvalidHandleError(_FLAWS[code].format(shape=shape, first=offset + low, last=offset + high, nbytes=nbytes))
