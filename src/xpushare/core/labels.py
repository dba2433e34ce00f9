"""What people call the memory and the events that they share. `ls` and `shares` show it."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from xpushare.common.errors import InvalidArgumentError
from xpushare.sharing import layout, node

if TYPE_CHECKING:
    from xpushare.sharing.handle import Handle

__all__ = ["label_argument", "labels", "tell"]

_MOST: Final = layout.LABEL_NBYTES - 8

labels: Final[WeakKeyDictionary[Any, str]] = WeakKeyDictionary()
"""By allocation or timeline. Empty in most processes: look whether it is first."""


def label_argument(label: str | None) -> str | None:
    """A label that can be shown. Raises `InvalidArgumentError`."""
    if label is None:
        return None
    if not isinstance(label, str):
        raise InvalidArgumentError(f"label is a str, not {type(label).__name__}")
    if any(unicodedata.category(each)[0] == "C" for each in label):
        raise InvalidArgumentError(f"a label is text that can be shown, without control characters: {label!r:.200}")
    if len(label.encode()) > _MOST:
        raise InvalidArgumentError(f"a label has at most {_MOST} bytes in UTF-8: {label!r:.200}")
    return label or None


def tell(source: Any, handle: Handle) -> None:
    """Label an export of an allocation or a timeline, if that has a label."""
    label = labels.get(source)
    if label is not None:
        node.current().table().label(handle, label)
