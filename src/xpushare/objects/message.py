"""The content of a message except its handles: the dtypes and the tree of its arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from xpushare._native import CONSTANTS
from xpushare.common.elements import dlpack_type
from xpushare.common.errors import InvalidHandleError
from xpushare.common.system import boot_id, boot_ids
from xpushare.objects.dtypes import build_dtype, describe_dtype
from xpushare.sharing import identity
from xpushare.sharing.refusals import flaw_of, leaf_flaw_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xpushare._native import MessageState

__all__ = [
    "NBYTES_MAX",
    "NDIM_MAX",
    "ONE_ARRAY",
    "Content",
    "content_of",
    "read_message",
    "read_text",
    "text_of",
]

NBYTES_MAX: Final = CONSTANTS["MESSAGE_MOST"]
NDIM_MAX: Final = CONSTANTS["ARRAY_DIMS"]
ONE_ARRAY: Final = 0  # the tree that is one array


@dataclass(slots=True, eq=False)  # a named tuple takes longer to read
class Content:
    """The data that the text part of a message describes: the dtypes and the tree of its arrays."""

    dtypes: tuple[Any, ...]
    itemsizes: tuple[int, ...]
    on_dlpack: tuple[tuple[tuple[int, int, int], int], ...] | None  # DLPack's types and item sizes; None: it lacks one
    tree: Any  # in terms of JSON: see `arrays.containers`


# --- the text: JSON of the dtypes, each with its item size, and of the tree

_TEXTS_LIMIT: Final = 256
_CONTENT_LIMIT: Final = 256
_CONTENT_NBYTES: Final = 1 << 16  # longer texts are read each time
# Of one array. By the id of the dtype, which lives: structures that compare equal may differ, in being aligned say.
_texts: dict[int, tuple[Any, bytes]] = {}
_contents: dict[bytes, Content] = {}


def text_of(dtypes: Sequence[Any], tree: Any) -> bytes:
    """Return the text part of a message, for arrays with these dtypes. Raises `InvalidArgumentError` for a dtype
    without a name.
    """
    if tree is ONE_ARRAY:
        (dtype,) = dtypes
        known = _texts.get(id(dtype))
        if known is not None:
            return known[1]
    import json  # slow to import

    described = [[describe_dtype(each), each.itemsize] for each in dtypes]
    text = json.dumps([described, tree], ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if tree is ONE_ARRAY:
        if len(_texts) >= _TEXTS_LIMIT:
            _texts.clear()
        _texts[id(dtypes[0])] = dtypes[0], text
    return text


def content_of(message: MessageState) -> Content:
    """Return the content of a message. Raises `InvalidHandleError` if an array does not lie inside its memory, or if
    the message's text does not describe dtypes and a tree.
    """
    text = message._text
    found = _contents.get(text)
    if found is None:
        found = read_text(text)
        if len(text) <= _CONTENT_NBYTES:
            if len(_contents) >= _CONTENT_LIMIT:
                _contents.clear()
            _contents[text] = found
    flaw = message._flaw(found.itemsizes)
    if flaw is not None:
        raise leaf_flaw_of(*flaw, message, found.itemsizes)
    return found


def read_text(text: bytes) -> Content:
    """Return the content that a text made by `text_of` describes. Raises `InvalidHandleError` for any other text."""
    import json  # slow to import

    try:
        found: Any = json.loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise InvalidHandleError(f"the array handle's text is not JSON: {error}") from None
    if not (type(found) is list and len(found) == 2 and type(found[0]) is list):
        raise InvalidHandleError(f"the array handle's text says no dtypes and tree: {found!r:.200}")
    described, tree = found
    for each in described:
        if not (type(each) is list and len(each) == 2 and type(each[1]) is int):
            raise InvalidHandleError(f"the array handle's text says no dtype: {each!r:.200}")
    dtypes = tuple([build_dtype(each, itemsize) for each, itemsize in described])
    itemsizes = tuple([each.itemsize for each in dtypes])
    try:
        on_dlpack = tuple([(dlpack_type(each), each.itemsize) for each in dtypes])
    except BufferError:
        on_dlpack = None
    return Content(dtypes, itemsizes, on_dlpack, tree)


def read_message(raw: bytes) -> Any:
    """Return the `ArrayHandle` of these bytes. Raises `InvalidHandleError` unless they are of this user and boot."""
    seal = identity.seal or identity.sealing()
    found = seal.read_message(raw, boot_ids[0] if boot_ids else boot_id())
    if type(found) is tuple:
        raise flaw_of(found[0], raw, found[1])
    return found
