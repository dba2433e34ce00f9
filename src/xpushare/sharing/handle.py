"""The 256-byte handle: its format, sealing and parsing. docs/layout.md describes it for people."""

from __future__ import annotations

import base64
import binascii
import functools
import struct
import uuid
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, final

from xpushare._errors import InvalidArgumentError, InvalidHandleError, Unread, XpuShareError
from xpushare._native import CONSTANTS, LAYOUT, MAGICS, STRUCTS, BufferBase, Fields
from xpushare.sharing import identity

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = [
    "FIELDS",
    "Exporter",
    "Fields",
    "Handle",
    "HandleLike",
    "Named",
    "bytes_of",
    "decode_text",
    "encode_text",
    "fields_of",
    "following",
    "handle_of",
    "keyed_hash",
    "newest",
    "pack",
    "parse",
    "raw_of",
    "verified",
]

MAGIC: Final = MAGICS["handle"]
VERSION: Final = CONSTANTS["VERSION"]
KINDS: Final = {CONSTANTS[f"KIND_{name.upper()}"]: name for name in ("memory", "physical_memory", "event")}
KIND_NUMBERS: Final = {name: number for number, name in KINDS.items()}
READ_ONLY: Final = CONSTANTS["ENTRY_READ_ONLY"]
COUNTED: Final = CONSTANTS["ENTRY_COUNTED"]
PICKLED: Final = CONSTANTS["ENTRY_PICKLED"]
NAME_LENGTH_MAX: Final = 128  # of a name that `publish` takes; no handle's text is that short
_NBYTES: Final = LAYOUT["handle.size"]
SEAL_NBYTES: Final = _NBYTES - LAYOUT["handle.seal"]
NAMES_DEVICE: Final = slice(LAYOUT["handle.backend"], LAYOUT["handle.boot_id"])  # backend and uuid

# name, struct format; in order, without gaps
FIELDS: Final = tuple((name, code) for name, (_at, code) in STRUCTS["handle"].items() if name != "seal")
_STRUCT: Final = struct.Struct("<" + "".join(code for _name, code in FIELDS))


class Exporter(NamedTuple):
    """The process that made a handle."""

    pid: int
    boot_id: str
    pid_namespace: int


def pack(**values: Any) -> bytes:
    """A handle without its seal. Fields that are not given have the value that all handles of this boot have, or 0."""
    values = {"magic": MAGIC, "version": VERSION, "boot_id": identity.boot_id(), **values}
    return _STRUCT.pack(*(values.get(name, b"" if code.endswith("s") else 0) for name, code in FIELDS))


def keyed_hash(data: bytes) -> bytes:
    """BLAKE2b-256 of `data` under the user's key."""
    return identity.sealing().hash(data)


def encode_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode_text(text: str) -> bytes:
    """The bytes behind `text`. Accepts only the spelling that `encode_text` makes, with white space around it."""
    text = text.strip()  # a line of a file or of another program's output
    if len(text) <= NAME_LENGTH_MAX:
        raise InvalidHandleError(f"{text!r} is no handle; if it is a name, xs.lookup({text!r}) gives its handle")
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise InvalidHandleError(f"not the text of a handle: {error}") from None
    if encode_text(raw) != text:
        raise InvalidHandleError("not the text of a handle: stray bits at its end")
    return raw


_verified: dict[bytes, Handle] = {}
_VERIFIED_LIMIT: Final = 1024


@functools.lru_cache(256)
def _backend(field: bytes) -> str:
    return field.rstrip(b"\0").decode()


class Named:
    """A handle that may have been looked up by a name, and then follows it: see `following`."""

    __slots__ = ()  # the classes have these two

    _newest: Callable[[], Named | None]
    _unread: Unread  # of a pickle's content that is no handle here: then it has bytes, and no more

    def __bytes__(self) -> bytes:
        raise NotImplementedError

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:  # what `_unread` leaves unset
            if name in ("_fields", "_parts"):
                self._unread.throw()
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)


HandleLike: TypeAlias = "Named | ReadableBuffer | str"  # of what `lookup` gives, the kind is not known


def bytes_of(handle: object, meant: str) -> bytes:
    """The bytes of what is neither a handle nor text. `InvalidArgumentError` unless it is bytes-like; an object of this
    package is no handle, though its memory may be read as bytes.
    """
    try:
        if not isinstance(handle, BufferBase):
            return bytes(memoryview(handle))  # type: ignore[arg-type]
    except TypeError:
        pass
    except ValueError as error:  # a memoryview that was released, a closed mmap
        raise InvalidArgumentError(f"{meant}, not this {type(handle).__name__}: {error}") from error
    raise InvalidArgumentError(f"{meant}, not {type(handle).__name__}")


@final
class Handle(Named):
    """A verified handle: 256 bytes that name one export of one process of this user on this host.

    `Handle(h)` takes a handle, its bytes (any bytes-like object) or its text, and raises `InvalidHandleError` for
    anything else: wrong length, altered bytes, another version, another user's key, another boot or host. `bytes(h)`
    and `str(h)` return the bytes and the text. Handles are compared by content, and can be hashed and pickled.
    Verifying a handle touches no driver and no other process.
    """

    __slots__ = ("_fields", "_newest", "_raw", "_unread")
    NBYTES: Final = _NBYTES

    _fields: Fields
    _raw: bytes

    def __new__(cls, handle: HandleLike, /) -> Handle:
        if isinstance(handle, bytes):
            raw = handle
        elif isinstance(handle, Handle):
            return handle
        elif isinstance(handle, str):
            raw = decode_text(handle)
        elif isinstance(handle, Named):
            raise InvalidHandleError("this is a handle of an array: xs.attach opens it, its `handle` is its memory's")
        else:
            raw = bytes_of(handle, "a handle is a Handle, bytes or str")
        self = _verified.get(raw)
        if self is None:
            self = cls._make(raw, parse(raw))
            if len(_verified) >= _VERIFIED_LIMIT:
                _verified.clear()
            _verified[raw] = self
        return self

    @classmethod
    def _make(cls, raw: bytes, fields: Fields) -> Handle:
        self = object.__new__(cls)
        self._raw = raw
        self._fields = fields
        return self

    @classmethod
    def _make_unread(cls, raw: bytes, why: Unread) -> Handle:
        self = object.__new__(cls)
        self._raw = raw
        self._unread = why
        return self

    @property
    def kind(self) -> str:
        """ "memory", "physical_memory" or "event"."""
        return KINDS[self._fields.kind]

    @property
    def backend(self) -> str:
        """The backend of the exporter's device."""
        return _backend(self._fields.backend)

    @property
    def device_uuid(self) -> str:
        """The uuid of the exporter's device."""
        return str(uuid.UUID(bytes=self._fields.device_uuid))

    @property
    def nbytes(self) -> int:
        """The number of bytes of the shared range (0 for an event)."""
        return self._fields.nbytes

    @property
    def exposed_nbytes(self) -> int:
        """How many bytes an importer could reach: drivers map whole granules."""
        return self._fields.exposed_nbytes

    @property
    def read_only(self) -> bool:
        return bool(self._fields.flags & READ_ONLY)

    @property
    def exporter(self) -> Exporter:
        """The pid, boot id and pid namespace of the process that made this handle."""
        return Exporter(self._fields.pid, str(uuid.UUID(bytes=self._fields.boot_id)), self._fields.pid_namespace)

    def __bytes__(self) -> bytes:
        return self._raw

    def __str__(self) -> str:
        return encode_text(self._raw)

    def __repr__(self) -> str:
        if hasattr(self, "_unread"):
            return f"<Handle that is none here: {self._unread}>"
        access = " read-only" if self.read_only else ""
        size = f" {self.nbytes} bytes{access}" if self.kind != "event" else ""
        fields = self._fields
        return f"<Handle {self.kind}{size} on {self.backend}, exported by pid {fields.pid}, #{fields.generation}>"

    def __eq__(self, other: object) -> bool:
        return self._raw == other._raw if isinstance(other, Handle) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._raw)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self._raw,)

    def __copy__(self) -> Handle:
        return self

    def __deepcopy__(self, memo: object) -> Handle:
        return self


def _unpickle(raw: bytes) -> Handle:
    try:
        return Handle(raw)
    except XpuShareError as error:
        return _make_unread(raw, Unread(error))


# For the other modules of the package; no Python frame.
fields_of: Final[Callable[[Handle], Fields]] = attrgetter("_fields")
raw_of: Final[Callable[[Handle], bytes]] = attrgetter("_raw")
handle_of: Final[Callable[[bytes, Fields], Handle]] = attrgetter("_make")(Handle)  # of bytes that are one
_make_unread: Final[Callable[[bytes, Unread], Handle]] = attrgetter("_make_unread")(Handle)


_N = TypeVar("_N", bound=Named)


def following(handle: _N, newest: Callable[[], Named | None]) -> _N:
    """The handle as an object of its own that follows a name: `newest` gives what the name says, None where nobody has
    it.
    """
    found: Any = (
        handle_of(raw_of(handle), fields_of(handle)) if isinstance(handle, Handle) else handle
    )  # that one is cached
    found._newest = newest
    named: _N = found
    return named


def newest(handle: object) -> Any:
    """What the name says by now that an expired handle was looked up by. None where there is none, or it says no other
    handle.
    """
    look = getattr(handle, "_newest", None) if isinstance(handle, Named) else None
    found = None if look is None else look()
    return None if found is None or bytes(found) == bytes(handle) else found  # type: ignore[call-overload]


def parse(raw: bytes) -> Fields:
    """What these bytes say. `InvalidHandleError` unless they are a handle of this user and boot."""
    fields = identity.sealing().read(raw)
    if fields is None:
        raise InvalidHandleError(_why_bad(raw))
    _expect_this_boot(fields)
    return fields


def verified(raw: bytes, fields: Fields) -> Handle:
    """The handle of bytes that `Seal` has read as a part of others. `InvalidHandleError` if it is of another boot."""
    _expect_this_boot(fields)
    return handle_of(raw, fields)


def _expect_this_boot(fields: Fields) -> None:
    if fields.boot_id != identity.boot_id():
        raise InvalidHandleError("the handle comes from another host, or from before the last boot")


def _why_bad(raw: bytes) -> str:
    """Why `Seal.read` refuses these bytes."""
    if len(raw) != Handle.NBYTES:
        return f"a handle has {Handle.NBYTES} bytes, this has {len(raw)}"
    fields = Fields(raw)
    if fields.magic != MAGIC:
        return "these bytes are no handle (they do not begin with XPUSHARE)"
    if fields.version != VERSION:
        return f"the handle has format version {fields.version}, this package reads version {VERSION}"
    if keyed_hash(raw[:-SEAL_NBYTES]) != raw[-SEAL_NBYTES:]:
        return (
            "the handle's seal does not fit: it was altered on the way, or made with another user's key "
            "(both processes need the same XPUSHARE_KEY_FILE or XPUSHARE_RUNTIME_DIR)"
        )
    return (
        f"the handle says things this version does not know (kind {fields.kind}, flags {fields.flags:#x}, "
        f"backend {fields.backend!r}, entry {fields.entry}, pid {fields.pid}, fd {fields.table_fd})"
    )
