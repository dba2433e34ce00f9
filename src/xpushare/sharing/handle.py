"""The 256-byte handle: its format, sealing and parsing. docs/layout.md describes it for people."""

from __future__ import annotations

import base64
import binascii
import functools
import struct
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, final

from xpushare import _native
from xpushare._native import (
    CONSTANTS,
    LAYOUT,
    MAGICS,
    STRUCTS,
    BufferBase,
    Fields,
    HandleState,
    fields_of,
)
from xpushare.common import texts
from xpushare.common.errors import InvalidArgumentError, InvalidHandleError, Unread, XpuShareError
from xpushare.common.texts import readable
from xpushare.sharing import identity
from xpushare.sharing.layout import KINDS
from xpushare.sharing.refusals import OF_ARRAY, flaw_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = [
    "FIELDS",
    "Exporter",
    "Fields",
    "Handle",
    "HandleLike",
    "Named",
    "decode_text",
    "encode_text",
    "fields_of",
    "following",
    "handle_bytes",
    "handle_of",
    "keyed_hash",
    "newest",
    "pack",
    "parse",
]

MAGIC: Final = MAGICS["handle"]
VERSION: Final = CONSTANTS["VERSION"]
KIND_NUMBERS: Final = {name: number for number, name in KINDS.items()}
READ_ONLY: Final = CONSTANTS["ENTRY_READ_ONLY"]
COUNTED: Final = CONSTANTS["ENTRY_COUNTED"]
PICKLED: Final = CONSTANTS["ENTRY_PICKLED"]
NAME_LENGTH_MAX: Final = 128  # of a name that `publish` takes; no handle's text is that short
_NBYTES: Final = LAYOUT["handle.size"]
SEAL_NBYTES: Final = _NBYTES - LAYOUT["handle.seal"]

# name, struct format; in order, without gaps
FIELDS: Final = tuple((name, code) for name, (_at, code) in STRUCTS["handle"].items() if name != "seal")
_STRUCT: Final = struct.Struct("<" + "".join(code for _name, code in FIELDS))


class Exporter(NamedTuple):
    """The process that made a handle.

    Attributes:
        pid: The process's pid in its own PID namespace.
        boot_id: The id of the boot of the process's host.
        pid_namespace: The inode of the process's PID namespace.
    """

    pid: int
    boot_id: str
    pid_namespace: int


def pack(**values: Any) -> bytes:
    """Return a handle without its seal. Fields that are not given are 0, or the value that all handles of this boot
    share.
    """
    values = {"magic": MAGIC, "version": VERSION, "boot_id": identity.boot_id(), **values}
    return _STRUCT.pack(*(values.get(name, b"" if code.endswith("s") else 0) for name, code in FIELDS))


def keyed_hash(data: bytes) -> bytes:
    """Return the BLAKE2b-256 hash of `data` under the user's key."""
    return identity.sealing().hash(data)


def encode_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode_text(text: str) -> bytes:
    """Return the bytes that `text` stands for. Accepts only output of `encode_text`, with white space around it."""
    text = text.strip()  # a line of a file or of another program's output
    if text.startswith("<") and text.endswith(">"):
        raise InvalidHandleError("this is the repr of a handle: send bytes(handle) or str(handle)")
    if len(text) <= NAME_LENGTH_MAX:
        raise InvalidHandleError(f"{text!r} is not a handle. If it is a published name, attach(xs.lookup({text!r}))")
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raw = b""
    if encode_text(raw) != text:
        raise InvalidHandleError(
            "this is not the text of a handle: it was cut or altered on the way. Send str(handle) whole"
        )
    return raw


_verified: dict[bytes, Handle] = {}
_VERIFIED_LIMIT: Final = 1024


@functools.lru_cache(256)
def _backend(field: bytes) -> str:
    return field.rstrip(b"\0").decode()


class Named:
    """The base of handles that can be looked up by a name. If such a handle has expired, the name's current handle
    takes its place (see `following`).
    """

    __slots__ = ()

    @property
    def version(self) -> int | None:
        """The version number that `publish` returned, for a handle from `lookup` or `watch`. None for any other handle.
        If the version has been replaced since, `attach` opens the newer version, unless the handle is from
        `lookup(version=)`.
        """
        handle: Any = self  # a native handle, too
        found: int | None = getattr(handle._newest, "version", None)
        return found

    def __bytes__(self) -> bytes:
        raise NotImplementedError


HandleLike: TypeAlias = "Named | ReadableBuffer | str"  # `lookup` returns a `Named` of unknown kind


def handle_bytes(handle: object, meant: str, advice: str = "") -> bytes:
    """Return the bytes of a handle given as any buffer. Raises `InvalidArgumentError` for anything else, with a message
    that begins with `meant`, the expected object. `advice` replaces this message for an object of this package whose
    memory can be read as bytes but which is not a handle.
    """
    kind = type(handle)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    if isinstance(handle, BufferBase):
        raise InvalidArgumentError(advice or f"{meant}, not {name}")
    try:
        view = memoryview(handle)  # type: ignore[arg-type]
        if view.itemsize == 1:  # a float64 array is meant as an array
            return bytes(view)
    except TypeError:
        pass
    except (ValueError, BufferError) as error:  # a memoryview that was released, a closed mmap, a deleted array
        raise InvalidArgumentError(f"{meant}, not this {name}: {error}") from error
    raise InvalidArgumentError(f"{meant}, not {name}")


@final
class Handle(HandleState, Named):
    """A verified handle: 256 bytes that name one export of one process of this user on this host.

    `bytes(h)` and `str(h)` are the whole handle. The text is safe in URLs, arguments and variables. Handles compare by
    content, and can be hashed and pickled. Verifying a handle uses no driver and contacts no other process.

    Args:
        handle (Handle | bytes | str): A handle, its bytes or its text.

    Raises:
        InvalidHandleError: The length is wrong, the bytes were altered, or they belong to another
            version, user, boot or host.

    Examples:
        >>> handle = xs.ipc.memory.get(xs.malloc_host(64, "native_cpu:0"))
        >>> xs.ipc.Handle(str(handle)) == handle, len(bytes(handle))
        (True, 256)
        >>> xs.ipc.memory.put(handle)
    """

    __slots__ = ()
    NBYTES: Final = _NBYTES

    def __new__(cls, handle: HandleLike, /) -> Handle:
        if isinstance(handle, bytes):
            raw = handle
        elif isinstance(handle, Handle):
            return handle
        elif isinstance(handle, str):
            raw = decode_text(handle)
        elif isinstance(handle, Named):
            raise InvalidHandleError(OF_ARRAY)
        else:
            raw = handle_bytes(handle, "a handle is a Handle, bytes or str")
        found = _verified.get(raw)
        if found is None:
            found = parse(raw)
            if len(_verified) >= _VERIFIED_LIMIT:
                _verified.clear()
            _verified[raw] = found
        return found

    @property
    def kind(self) -> str:
        """`memory`, `physical_memory` or `event`."""
        return KINDS[fields_of(self).kind]

    @property
    def backend(self) -> str:
        """The backend of the exporter's device."""
        return _backend(fields_of(self).backend)

    @property
    def device_uuid(self) -> str:
        """The uuid of the exporter's device."""
        return str(uuid.UUID(bytes=fields_of(self).device_uuid))

    @property
    def nbytes(self) -> int:
        """Size of the exported range in bytes, or 0 for an event."""
        return fields_of(self).nbytes

    @property
    def exposed_nbytes(self) -> int:
        """How many bytes an importer can access. This is often more than `nbytes`, since drivers map whole granules."""
        return fields_of(self).exposed_nbytes

    @property
    def read_only(self) -> bool:
        """Whether importers get no write access."""
        return bool(fields_of(self).flags & READ_ONLY)

    @property
    def exporter(self) -> Exporter:
        """The pid, boot id and pid namespace of the process that made this handle."""
        fields = fields_of(self)
        return Exporter(fields.pid, str(uuid.UUID(bytes=fields.boot_id)), fields.pid_namespace)

    def __str__(self) -> str:
        return encode_text(bytes(self))

    def _repr_html_(self) -> str:
        unread = self._unread
        if unread is not None:
            return texts.facts("Handle", {"state": unread})
        size = None if self.kind == "event" else readable(self.nbytes)
        said = {
            "kind": self.kind, "size": size, "backend": self.backend, "device": self.device_uuid,
            "exporter": f"pid {fields_of(self).pid}", "read-only": "yes" if self.read_only else None,
        }  # fmt: skip
        return texts.facts("Handle", said)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return texts.bundle(self, include, exclude)

    def __repr__(self) -> str:
        unread = self._unread
        if unread is not None:
            return f"<Handle that is none here: {unread}>"
        access = " read-only" if self.read_only else ""
        size = f" {self.nbytes} bytes{access}" if self.kind != "event" else ""
        fields = fields_of(self)
        return f"<Handle {self.kind}{size} on {self.backend}, exported by pid {fields.pid}, #{fields.generation}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (bytes(self),)

    def __copy__(self) -> Handle:
        return self

    def __deepcopy__(self, memo: object) -> Handle:
        return self


def _unpickle(raw: bytes) -> Handle:
    try:
        return Handle(raw)
    except XpuShareError as error:
        unread: Handle = HandleState._of(raw, Unread(error))
        return unread


_native.register(Handle=Handle)
handle_of: Final[Callable[[bytes], Handle]] = HandleState._of  # of bytes that have been verified


_N = TypeVar("_N", bound=Named)


def following(handle: _N, newest: Callable[[], Named]) -> _N:
    """Return the handle as a separate object that follows a name. `newest` returns the name's current handle, and
    raises if nobody publishes the name.
    """
    found: Any = handle
    named: _N = found._following(newest)
    return named


def newest(handle: object) -> Any:
    """Return the current handle of the name by which an expired handle was looked up. Returns None if `handle` was not
    looked up by a name, or is still the name's current handle. Raises `HandleExpiredError` if nobody publishes the name
    any more.
    """
    look = handle._newest if isinstance(handle, Named) else None  # type: ignore[attr-defined]
    found = None if look is None else look()
    return None if found is None or bytes(found) == bytes(handle) else found  # type: ignore[call-overload]


def parse(raw: bytes) -> Handle:
    """Return the handle with these bytes. Raises `InvalidHandleError` unless the handle was made by this user since the
    host booted.
    """
    found: Handle | int = identity.sealing().read(raw, identity.boot_id())
    if isinstance(found, int):
        raise flaw_of(found, raw)
    return found
