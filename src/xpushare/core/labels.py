"""What people call the memory and the events that they share. `ls` and `shares` show it."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from xpushare.common.errors import InvalidArgumentError
from xpushare.sharing import layout, node

if TYPE_CHECKING:
    from xpushare.sharing.handle import Handle

__all__ = ["label_argument", "labelled", "put_label", "tell"]

_MOST: Final = layout.LABEL_NBYTES - 8

_labels: Final[WeakKeyDictionary[Any, str]] = WeakKeyDictionary()  # by allocation or timeline
labelled: Final[list[bool]] = []
"""Empty, as in most processes, until the first label: look at it before calling `tell`."""


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


def put_label(source: Any, text: str) -> None:
    """Label an allocation or a timeline, and so all its later exports."""
    _labels[source] = text
    if not labelled:
        labelled.append(True)


def tell(source: Any, handle: Handle) -> None:
    """Label an export of an allocation or a timeline, if that has a label."""
    text = _labels.get(source)
    if text is not None:
        node.current().table().label(handle, text)
