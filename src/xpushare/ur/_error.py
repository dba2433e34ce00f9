"""`URError`, and the translation of the package's errors to `URError`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final, NoReturn

from xpushare.common.errors import XpuShareError
from xpushare.common.result import Result

__all__ = ["HostTaskError", "URError", "fail", "last_error", "out_of_memory"]

_last: Final = threading.local()


def last_error() -> tuple[str, int]:
    """Return the message and the driver's number of this thread's last `ERROR_ADAPTER_SPECIFIC`, or "" and 0 if there
    was none.
    """
    found: tuple[str, int] = getattr(_last, "error", ("", 0))
    return found


class URError(XpuShareError):
    """A function of `xpushare.ur` failed. `.result` is Unified Runtime's code for the failure.

    If an error of another part of `xpushare` caused the failure, it is the `__cause__`, and `native` and `reasons` are
    copied from it.
    """

    def __str__(self) -> str:
        return f"{self.message} ({self.result.name})"


class HostTaskError(Exception):
    """Carries the exception of a host task to `urQueueFinish`. The exception is the cause of this error."""


def fail(function: str, error: XpuShareError, results: Mapping[Result, Result]) -> NoReturn:
    """Raise `error` as the `URError` of `function`. `results` maps general result codes to the codes with which this
    function reports them.
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
    """Raise the error with which `function` fails if Python runs out of memory."""
    raise URError(f"{function}: this process has no memory left", result=Result.ERROR_OUT_OF_HOST_MEMORY) from None
