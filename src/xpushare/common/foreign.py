"""Data of other processes. Nobody vouches for it: `skipping` goes on behind data that is damaged, and `printable` makes
text safe for a terminal.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Generator
from typing import Final

from xpushare.common.errors import HandleExpiredError, XpuShareError
from xpushare.common.loading import logger

__all__ = ["printable", "skipping"]

_MOST: Final = 1000
_told: set[str] = set()  # the warnings that were logged, so that each is logged once


def printable(text: str) -> str:
    """Return the text with an escape such as `\\x1b` for each character that would control a terminal, change the
    direction of the text, or cannot be encoded.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@contextlib.contextmanager
def skipping(what: str) -> Generator[None]:
    """Read data of another process inside the block. If the data is damaged, end the block and log a warning that names
    `what`, such as "the channel 'frames'". If the other process has ended meanwhile, end the block silently.

    Raises an error only if this process has no file descriptor left, which says nothing about the data.
    """
    try:
        yield
    except Exception as error:  # whatever a reader of hostile bytes runs into
        number = error.native if isinstance(error, XpuShareError) else getattr(error, "errno", None)
        if number in (errno.EMFILE, errno.ENFILE):
            raise
        if number in (errno.ENOENT, errno.ESRCH) or isinstance(error, HandleExpiredError):
            return
        _warn(printable(f"skipping {what}: {error or type(error).__name__}"))


def _warn(text: str) -> None:
    if text not in _told:
        if len(_told) >= _MOST:
            _told.clear()
        _told.add(text)
        logger().warning("%s", text)
