"""`ArrayHandle`: a sealed message that names an array in shared memory. docs/layout.md describes its bytes."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from xpushare._elements import check_dtype, dlpack_type, extent, named_by_typestr
from xpushare._errors import InvalidArgumentError, InvalidHandleError, Unread, XpuShareError
from xpushare._lifecycle import Closable
from xpushare._native import CONSTANTS, MAGICS, STRUCTS, HandleBase, forks
from xpushare.core.declare import misused
from xpushare.sharing import identity, layout, node
from xpushare.sharing.handle import (
    KIND_NUMBERS,
    SEAL_NBYTES,
    Handle,
    HandleLike,
    Named,
    bytes_of,
    decode_text,
    encode_text,
    fields_of,
    keyed_hash,
    raw_of,
    verified,
)

if TYPE_CHECKING:
    from xpushare.core.ordering import Mark

__all__ = [
    "ArrayHandle",
    "Parts",
    "checked_parts",
    "decode_dtype",
    "dtypes",
    "encode_dtype",
    "expect_open",
    "other_messages",
    "seal_array",
    "texts",
]

MAGIC: Final = MAGICS["array"]
VERSION: Final = CONSTANTS["ARRAY_VERSION"]
NDIM_MAX: Final = CONSTANTS["ARRAY_DIMS"]
DTYPE_NBYTES_MAX: Final = 1 << 16
_LIMIT: Final = 1 << 63
NESTING_MAX: Final = 16
_HAS_EVENT: Final = CONSTANTS["ARRAY_EVENT"]
HEADER: Final = struct.Struct("<" + "".join(code for _at, code in STRUCTS["array"].values()))
# Compiled at their first use, as json is imported then: memory alone needs neither.
_PLAIN: Final = r"[<>|=][biufcSUV]\d{1,10}|[<>][mM]8(\[\d{0,10}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?"
_NAMED: Final = r"bfloat16|float[468]_e[a-z0-9]{1,16}|u?int[124]"  # of ml_dtypes


class Parts(NamedTuple):
    """The content of the bytes; the array itself is checked when it is attached."""

    memory: Handle
    event: Handle | None
    point: int  # of the event, from which on the content is there
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int  # of the first element from the start of the memory's range
    itemsize: int
    dtype: bytes
    copied: int
    fits: bool  # the elements lie in the memory's range, and an array can have that shape


class ArrayHandle(HandleBase, Named, Closable[Parts]):
    """A verified handle of an array: a memory handle, dtype, shape and strides, and the event that orders its content.

    `share` makes it. `ArrayHandle(h)` takes an array handle, its bytes (any bytes-like object) or its text, as `Handle`
    does; `bytes(h)` and `str(h)` return these. Array handles are compared by content, and can be hashed and pickled.

    Only the object that `share` returned owns the export: `close()` on it (or leaving its `with` block) withdraws the
    handle for new attaches; what is attached stays attached. Losing the object withdraws nothing, and is a
    `ResourceWarning` unless the export ends by itself (`opens=`, `ttl=`). `close()` on any other object, parsed or
    unpickled, in this process or another, closes only that object. If only the bytes are left, the exporter can call
    `xs.ipc.memory.put(ArrayHandle(h).handle)`. `attach` raises `InvalidArgumentError` for a closed object, and
    `HandleExpiredError` for the bytes of a withdrawn handle.
    """

    __slots__ = ("__weakref__", "_dtype", "_held", "_newest", "_parts", "_raw", "_unread")

    _begins = "_seal"
    _owns_export = True
    _copy_advice = "it owns its export. ArrayHandle(bytes(h)) parses it anew"
    _parts: Parts  # what it describes, also once it is closed
    _raw: bytes
    _dtype: Any
    _owner: int | None  # the fork in which this object owns the export

    def __new__(cls, handle: HandleLike, /) -> ArrayHandle:
        if type(handle) is bytes:
            raw = handle
        elif isinstance(handle, ArrayHandle):
            return handle
        elif isinstance(handle, str):
            raw = decode_text(handle)
        elif isinstance(handle, Handle):  # told apart by its magic
            raw = bytes(handle)
        else:
            raw = bytes_of(handle, "an array handle is an ArrayHandle, bytes or str")
        parts = _verified.get(raw)
        if parts is None:
            other = other_messages.get(raw[: len(MAGIC)])
            if other is not None:
                return other(raw)
            parts = _parse(raw)
            if len(_verified) >= _VERIFIED_LIMIT:
                _verified.clear()
            _verified[raw] = parts
        return cls._make(raw, parts)

    @classmethod
    def _make(cls, raw: bytes, parts: Parts, owner: int | None = None) -> ArrayHandle:
        self = object.__new__(cls)
        self._raw = raw
        self._parts = self._held = parts
        self._dtype = None
        self._owner = owner
        return self

    @classmethod
    def _make_unread(cls, raw: bytes, why: Unread) -> ArrayHandle:
        self: Any = object.__new__(cls)
        self._raw = raw
        self._dtype = self._owner = None
        self._held = self._unread = why  # not closed; `_parts` stays unset
        made: ArrayHandle = self
        return made

    @classmethod
    def _seal(
        cls,
        memory: Handle,
        dtype: Any,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        order: Mark | None = None,
        copied: int = 0,
        owner: int | None = None,
    ) -> ArrayHandle:
        known = texts.get(id(dtype))
        text = known[1] if known is not None and known[0] is dtype else encode_dtype(dtype)
        if len(shape) > NDIM_MAX:
            raise InvalidArgumentError(f"an array has at most {NDIM_MAX} dimensions, this has {len(shape)}")
        if len(text) > DTYPE_NBYTES_MAX - 1:
            raise InvalidArgumentError(
                f"the dtype's description has {len(text)} bytes; {DTYPE_NBYTES_MAX - 1} are the most"
            )
        event, point = (None, 0) if order is None else (order.handle, order.point)
        itemsize = dtype.itemsize
        raw = identity.sealing().seal_array(
            raw_of(memory), None if event is None else raw_of(event), point, text, itemsize, shape, strides, offset,
            copied,
        )  # fmt: skip
        parts = _new(Parts, (memory, event, point, shape, strides, offset, itemsize, text, copied, True))
        return cls._make(raw, parts, owner)

    @property
    def handle(self) -> Handle:
        """The handle of the memory that the elements lie in."""
        return self._parts.memory

    @property
    def handles(self) -> tuple[Handle, ...]:
        """`handle` alone; of a tree the handles of all memory that its arrays lie in."""
        return (self.handle,)

    @property
    def event(self) -> Handle | None:
        """The handle of the event that orders the content; None if none is needed."""
        return self._parts.event

    @property
    def shape(self) -> tuple[int, ...]:
        return self._parts.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next, per dimension."""
        return self._parts.strides

    @property
    def dtype(self) -> Any:
        """A NumPy dtype. Raises `InvalidArgumentError` for bfloat16 and the like if ml_dtypes is not installed."""
        if self._dtype is None:
            self._dtype = decode_dtype(self._parts.dtype, self._parts.itemsize)
        return self._dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self._parts.shape) * self._parts.itemsize

    @property
    def read_only(self) -> bool:
        return self._parts.memory.read_only

    @property
    def copied_nbytes(self) -> int:
        """Bytes that `share(copy=True)` copied; 0 when the array was shared in place."""
        return self._parts.copied

    def close(self) -> None:
        """Withdraw the handle for new attaches if `share` returned this object; else close only the object.
        Idempotent.
        """
        self._held = None
        owner, self._owner = self._owner, None
        if owner is None or owner != forks():
            return
        table = node.current().table_if_any
        if table is not None:
            table.withdraw(self._parts.memory, layout.REASON_PUT)  # False where its opens were used up: it is gone

    # The defaults keep what is needed at interpreter exit, when module globals are gone.
    def _abandoned(self, _forks: Callable[[], int] = forks, _left: list[bool] = node.left) -> None:
        """The object dies, which may own an export."""
        if _left or self._owner != _forks():
            return
        table = node.current().table_if_any
        if table is not None and table.lose(self._parts.memory):
            import warnings

            warnings.warn(
                f"unclosed {self!r} is lost: its memory is held until this process ends. Close it, or share with "
                "opens= or ttl=",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def _use(self) -> Parts:
        """Unlike `use`, it allows forked children: a handle is just bytes."""
        if self._held is None:
            raise misused("lifetime", InvalidArgumentError("this ArrayHandle is closed"), self)
        return self._parts

    def _checked(self) -> Parts:
        """The content. Raises `InvalidHandleError` if the array does not lie inside the memory that it names."""
        parts = self._parts if self._held is not None else self._use()  # which raises
        if not parts.fits:
            raise InvalidHandleError(_why_unfit(parts))
        return parts

    def __bytes__(self) -> bytes:
        return self._raw

    def __str__(self) -> str:
        return encode_text(self._raw)

    def __repr__(self) -> str:
        if hasattr(self, "_unread"):
            return f"<ArrayHandle that is none here: {self._unread}>"
        parts = self._parts
        try:
            dtype = str(self.dtype)
        except InvalidArgumentError:
            dtype = parts.dtype.decode(errors="replace")
        more = " read-only" if self.read_only else ""
        more += f", {parts.copied} bytes copied" if parts.copied else ""
        more += ", closed" if self._held is None else ""
        fields = fields_of(parts.memory)
        return f"<ArrayHandle {parts.shape} {dtype} on {parts.memory.backend}, exported by pid {fields.pid}{more}>"

    def __eq__(self, other: object) -> bool:
        return self._raw == other._raw if isinstance(other, ArrayHandle) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._raw)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self._raw,)


def _unpickle(raw: bytes) -> ArrayHandle:
    import xpushare

    try:
        return xpushare.ArrayHandle(raw)  # the public name loads the module that reads handles of trees
    except XpuShareError as error:
        return _make_unread(raw, Unread(error))


class _Seal(Protocol):
    def __call__(
        self,
        memory: Handle,
        dtype: Any,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        order: Mark | None = None,
        copied: int = 0,
        owner: int | None = None,
        /,
    ) -> ArrayHandle: ...


# For the other modules of the package.
checked_parts: Final[Callable[[ArrayHandle], Parts]] = attrgetter("_checked")(ArrayHandle)
expect_open: Final[Callable[[ArrayHandle], Parts]] = attrgetter("_use")(ArrayHandle)
seal_array: Final[_Seal] = attrgetter("_seal")(ArrayHandle)
_make_unread: Final[Callable[[bytes, Unread], ArrayHandle]] = attrgetter("_make_unread")(ArrayHandle)


# By their magics, what other modules read from bytes.
other_messages: Final[dict[bytes, Callable[[bytes], ArrayHandle]]] = {}
_verified: dict[bytes, Parts] = {}
_VERIFIED_LIMIT: Final = 1024


_new: Any = tuple.__new__  # not by the named tuple's own `__new__`, which is slower


def _parse(raw: bytes) -> Parts:
    found = identity.sealing().read_array(raw)
    if found is None:
        raise InvalidHandleError(_why_bad(raw))
    raw, fields, event_raw, event_fields, point, shape, strides, offset, itemsize, text, copied, fits = found
    memory = verified(raw, fields)
    event = None if event_raw is None else verified(event_raw, event_fields)
    parts: Parts = _new(Parts, (memory, event, point, shape, strides, offset, itemsize, text, copied, fits))
    return parts


def _why_bad(raw: bytes) -> str:
    """Why `Seal.read_array` refuses these bytes. Raises what is wrong with a handle in them."""
    if len(raw) == Handle.NBYTES and raw[:8] != MAGIC:
        found = Handle(raw)
        return f"this is a handle of {found.kind}, not of an array: open it with ipc.{found.kind}.open"
    if len(raw) < HEADER.size + Handle.NBYTES + SEAL_NBYTES:
        return f"an array handle has more than {len(raw)} bytes"
    magic, version, flags, length, ndim, text_nbytes, _itemsize, reserved, _offset, point, _copied = HEADER.unpack_from(
        raw
    )
    if magic != MAGIC:
        return "these bytes are no array handle (they do not begin with XPUSHARR)"
    if version != VERSION:
        return f"the array handle has format version {version}, this package reads version {VERSION}"
    handles = 2 if flags & _HAS_EVENT else 1
    if length != len(raw) or keyed_hash(_covered(raw, handles)) != raw[-SEAL_NBYTES:]:
        return (
            "the array handle's seal does not fit: it was cut or altered on the way, or made with another user's key "
            "(both processes need the same XPUSHARE_KEY_FILE or XPUSHARE_RUNTIME_DIR)"
        )
    expected = HEADER.size + handles * Handle.NBYTES + 16 * ndim + text_nbytes + SEAL_NBYTES
    if flags & ~_HAS_EVENT or reserved or ndim > NDIM_MAX or length != expected:
        return (
            f"the array handle says things this version does not know (flags {flags:#x}, {ndim} dimensions, "
            f"{length} bytes where {expected} are due)"
        )
    if point >= 1 << 43:
        return f"the array handle says point {point}, which no event reaches"
    memory = Handle(raw[HEADER.size : HEADER.size + Handle.NBYTES])
    if fields_of(memory).kind != KIND_NUMBERS["memory"]:
        return f"the array handle names {memory.kind}, not memory"
    Handle(raw[HEADER.size + Handle.NBYTES : HEADER.size + 2 * Handle.NBYTES])
    return "the array handle names an event that is none of its exporter"


def _covered(raw: bytes, handles: int) -> bytes:
    """What the seal covers: of each handle only its own seal, which stands for it."""
    ends = [HEADER.size + number * Handle.NBYTES for number in range(1, handles + 1)]
    seals = b"".join(raw[end - SEAL_NBYTES : end] for end in ends)
    return raw[: HEADER.size] + seals + raw[ends[-1] : -SEAL_NBYTES]


def _why_unfit(parts: Parts) -> str:
    low, high = extent(parts.shape, parts.strides, parts.itemsize)
    nonzero = math.prod(length for length in parts.shape if length) * parts.itemsize
    if nonzero >= _LIMIT or not all(-_LIMIT < step < _LIMIT for step in (low, high)):
        return f"the array handle says shape {parts.shape}, which no array can have"
    return (
        f"the array handle says bytes {parts.offset + low} to {parts.offset + high} of memory that has "
        f"{parts.memory.nbytes}"
    )


# --- dtypes as JSON: a string, [base, shape] for sub-arrays, an object for structures


# By identity: structures that compare equal may differ, in being aligned say.
texts: Final[dict[int, tuple[Any, bytes, int]]] = {}  # with the item size
_TEXTS_LIMIT: Final = 256


def encode_dtype(dtype: Any) -> bytes:
    """The dtype as JSON."""
    import json

    check_dtype(dtype)
    text = json.dumps(_described(dtype), separators=(",", ":"), ensure_ascii=False).encode()
    if len(texts) >= _TEXTS_LIMIT:
        texts.clear()
    texts[id(dtype)] = dtype, text, dtype.itemsize
    return text


def _described(dtype: Any) -> Any:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [_described(base), list(shape)]
    if dtype.names is not None:
        fields = [dtype.fields[name] for name in dtype.names]
        found = {
            "names": list(dtype.names),
            "formats": [_described(field[0]) for field in fields],
            "offsets": [int(field[1]) for field in fields],
            "itemsize": dtype.itemsize,
            "aligned": bool(dtype.isalignedstruct),
        }
        titles = [field[2] if len(field) > 2 else None for field in fields]
        if any(titles):
            found["titles"] = titles
        return found
    if named_by_typestr(dtype) and re.fullmatch(_PLAIN, dtype.str):
        return dtype.str
    if dtype.type.__module__.partition(".")[0] == "ml_dtypes":
        return str(dtype.name)
    raise InvalidArgumentError(f"dtype {dtype!r} cannot be shared: another process has no way to name it")


def _loaded(text: bytes) -> Any:
    import json

    try:
        return json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidHandleError(f"the array handle's dtype is no dtype: {error}") from None


dtypes: Final[dict[bytes, tuple[Any, int, tuple[int, int, int] | None]]] = {}  # and item sizes, and DLPack's types


def decode_dtype(text: bytes, itemsize: int) -> Any:
    """The dtype that `encode_dtype` described. Raises `InvalidHandleError` for any other description."""
    known = dtypes.get(text)
    if known is not None and known[1] == itemsize:
        return known[0]
    found = _built(_loaded(text), 0)
    if found.hasobject:
        raise InvalidHandleError("the array handle says elements that are Python objects")
    if found.subdtype is not None:
        raise InvalidHandleError("the array handle says elements that are sub-arrays")
    if found.itemsize != itemsize:
        raise InvalidHandleError(f"the array handle says items of {itemsize} bytes and a dtype of {found.itemsize}")
    if len(dtypes) >= _TEXTS_LIMIT:
        dtypes.clear()
    try:
        on_dlpack = dlpack_type(found)
    except BufferError:
        on_dlpack = None
    dtypes[text] = found, itemsize, on_dlpack
    return found


def named_dtype(name: str) -> Any:
    """bfloat16 and the like, by their `ml_dtypes` names."""
    import numpy

    try:
        import ml_dtypes  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise InvalidArgumentError(
            f"the array's dtype is {name}, which needs ml_dtypes: pip install ml_dtypes"
        ) from None
    kind = getattr(ml_dtypes, name, None)
    found = numpy.dtype(kind) if isinstance(kind, type) else None
    if found is None or found.type is not kind:
        raise InvalidHandleError(f"the array handle's dtype is no dtype: {name!r}")
    return found


def _built(described: Any, depth: int) -> Any:
    import numpy

    try:
        if isinstance(described, str) and re.fullmatch(_PLAIN, described):
            return numpy.dtype(described)
        if isinstance(described, str) and re.fullmatch(_NAMED, described):
            return named_dtype(described)
        if depth < NESTING_MAX and isinstance(described, list):
            base, shape = cast("Any", described)
            lengths: Any = tuple(cast("Any", shape)) if isinstance(shape, list) else None
            if lengths is not None and all(type(length) is int and length >= 0 for length in lengths):
                return numpy.dtype((_built(base, depth + 1), lengths))
        if depth < NESTING_MAX and isinstance(described, dict):
            fields: Any = dict(cast("dict[str, Any]", described))
            if set(fields) - {"titles"} == {"names", "formats", "offsets", "itemsize", "aligned"}:
                aligned = fields.pop("aligned") is True
                fields["formats"] = [_built(each, depth + 1) for each in fields["formats"]]
                return numpy.dtype(fields, align=aligned)
    except InvalidArgumentError:  # also of the nested ones
        raise
    except Exception as error:  # whatever NumPy raises for a description that makes no sense
        raise InvalidHandleError(f"the array handle's dtype is no dtype: {error}") from None
    raise InvalidHandleError(f"the array handle's dtype is no dtype: {described!r:.200}")
