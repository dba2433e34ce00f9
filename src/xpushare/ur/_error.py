"""Defines `URError`, and converts the package's other errors to `URError`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final, NoReturn

from xpushare.common.errors import XpuShareError
from xpushare.common.result import Result

__all__ = ["HostTaskError", "URError", "fail", "last_error", "out_of_memory"]

_last: Final = threading.local()


def last_error() -> tuple[str, int]:
    """Return the message and the driver's error number of this thread's last `ERROR_ADAPTER_SPECIFIC`. Return "" and 0
    if there was none.
    """
    found: tuple[str, int] = getattr(_last, "error", ("", 0))
    return found


class URError(XpuShareError):
    """Raised when a function of `xpushare.ur` fails. `.result` is Unified Runtime's code for the failure.

    If another error of `xpushare` caused the failure, that error is the `__cause__`, and its `native` and `reasons` are
    copied to this error.
    """

    def __str__(self) -> str:
        return f"{self.message} ({self.result.name})"


class HostTaskError(Exception):
    """Raised internally for a failed host task, so that `urQueueFinish` can report it. The `__cause__` is the exception
    that the host task raised.
    """


def fail(function: str, error: XpuShareError, results: Mapping[Result, Result]) -> NoReturn:
    """Raise a `URError` for `error`, with the name `function` in its message. `results` maps the general result code of
    an error to the code that this function uses instead.
    """
    if isinstance(error, URError):
        raise URError(f"{function}: {error.message}", result=error.result) from error.__cause__
    result = results.get(error.result, error.result)
    if result is Result.ERROR_ADAPTER_SPECIFIC:
        _last.error = error.message, error.native or 0
    raise URError(
        f"{function}: {error.message}",
        result=result,
        native=error.native,
        reasons=error.reasons,
    ) from error


def out_of_memory(function: str) -> NoReturn:
    """Raise the error for the case that Python runs out of memory in `function`."""
    raise URError(f"{function}: this process has no memory left", result=Result.ERROR_OUT_OF_HOST_MEMORY) from None
