"""Labels that users give to shared memory and events. `ls` and `shares` show them."""

from __future__ import annotations

import unicodedata
from typing import Final

from xpushare.common.errors import InvalidArgumentError
from xpushare.sharing import layout
from xpushare.sharing.table import labels

__all__ = ["LABEL_MOST", "label_argument", "labels"]

LABEL_MOST: Final = layout.LABEL.size - layout.LABEL_TEXT


def label_argument(label: str | None) -> str | None:
    """Return a label that can be displayed, or None for no label. Raises `InvalidArgumentError` if the label is too
    long or cannot be displayed.
    """
    if label is None:
        return None
    if not isinstance(label, str):
        raise InvalidArgumentError(f"label is a str, not {type(label).__name__}")
    if any(unicodedata.category(each)[0] == "C" for each in label):
        raise InvalidArgumentError(f"a label is text that can be shown, without control characters: {label!r:.200}")
    if len(label.encode()) > LABEL_MOST:
        raise InvalidArgumentError(f"a label has at most {LABEL_MOST} bytes in UTF-8: {label!r:.200}")
    return label or None
