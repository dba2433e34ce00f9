"""All errors of the package:

XpuShareError(.result: ur.Result, .native: int | None, .reasons: tuple[str, ...])
 ├─ InvalidArgumentError (ValueError)               misuse by the caller
 │   └─ InvalidHandleError                          corrupt, forged, wrong kind, version or host
 ├─ HandleExpiredError                              withdrawn, freed, exporter gone, pid or fd reused
 ├─ FeatureNotSupportedError (NotImplementedError)  the device lacks the aspect
 ├─ RouteError (PermissionError)                    no route to the exporter's object; `reasons` says what blocks each
 ├─ PeerLostError (ConnectionError)                 the process that should have signalled died or failed
 ├─ ChannelFull                                     every slot is in use, and the channel was made with on_full="raise"
 ├─ OutOfMemoryError (MemoryError)                  host or device memory, or file descriptors
 ├─ ForkError (RuntimeError)                        an object of the parent used in a forked child
 ├─ DeviceError (RuntimeError)                      the driver's own error, with its name and number
 └─ ur.URError                                      raised by `xpushare.ur` only

A time-out raises the built-in `TimeoutError`, a refused buffer `BufferError`.
"""

from __future__ import annotations

import copy
import errno
from contextlib import ContextDecorator
from typing import Any, ClassVar, Final, NoReturn

from xpushare.common.result import Result

__all__ = [
    "ChannelFull",
    "DeviceError",
    "FeatureNotSupportedError",
    "ForkError",
    "HandleExpiredError",
    "InvalidArgumentError",
    "InvalidHandleError",
    "OutOfMemoryError",
    "PeerLostError",
    "RouteError",
    "Unread",
    "XpuShareError",
    "doing",
    "from_os_error",
]


class XpuShareError(Exception):
    """Base of every error of this package.

    `result` is Unified Runtime's result code for the error. `native` is the driver's error number or the errno, or
    None. `reasons` says what blocked each route that was tried.
    """

    default_result: ClassVar[Result] = Result.ERROR_UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        result: Result | None = None,
        native: int | None = None,
        reasons: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.result: Result = self.default_result if result is None else result
        self.native = native
        self.reasons: tuple[str, ...] = tuple(reasons)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        made = _rebuild, (type(self), self.message, self.result, self.native, self.reasons)
        notes = getattr(self, "__notes__", None)
        return (*made, {"__notes__": notes}) if notes else made


def _rebuild(
    cls: type[XpuShareError], message: str, result: Result, native: int | None, reasons: tuple[str, ...]
) -> XpuShareError:
    return cls(message, result=result, native=native, reasons=reasons)


class InvalidArgumentError(XpuShareError, ValueError):
    """Misuse by the caller (SYCL: errc::invalid)."""

    default_result = Result.ERROR_INVALID_ARGUMENT


class InvalidHandleError(InvalidArgumentError):
    """The bytes are not a handle of this user, this boot, this version and the expected kind."""

    default_result = Result.ERROR_INVALID_VALUE


class HandleExpiredError(XpuShareError):
    """The handle is no longer valid. Its exporter has closed it or has exited, it has been opened `opens` times, its
    `ttl` has run out, or it belongs to a version of a published name that is no longer kept.
    """

    default_result = Result.ERROR_INVALID_VALUE


class FeatureNotSupportedError(XpuShareError, NotImplementedError):
    """The device or the memory does not support the feature (SYCL: errc::feature_not_supported). The message names an
    alternative.
    """

    default_result = Result.ERROR_UNSUPPORTED_FEATURE


class RouteError(XpuShareError, PermissionError):
    """No route could carry the exporter's file descriptors to this process. `reasons` names each route, what blocked
    it, and how to unblock it.
    """

    default_result = Result.ERROR_INVALID_ARGUMENT


class PeerLostError(XpuShareError, ConnectionError):
    """The process that should have signalled has died, or its queue has failed. A channel raises this error if its last
    writer has ended without `finish()`.
    """

    default_result = Result.ERROR_IN_EVENT_LIST_EXEC_STATUS


class ChannelFull(XpuShareError):
    """Every slot of the channel is unread or in use by a reader, and the channel was created with `on_full="raise"`."""

    default_result = Result.ERROR_OUT_OF_RESOURCES


class OutOfMemoryError(XpuShareError, MemoryError):
    """Host memory, device memory or file descriptors ran out."""

    default_result = Result.ERROR_OUT_OF_HOST_MEMORY


class ForkError(XpuShareError, RuntimeError):
    """The object belongs to the parent process. A forked child cannot use it."""

    default_result = Result.ERROR_INVALID_OPERATION


class DeviceError(XpuShareError, RuntimeError):
    """A driver call failed (SYCL: errc::runtime). The message contains the driver's name and number for the failure."""

    default_result = Result.ERROR_ADAPTER_SPECIFIC


for _error in (
    InvalidArgumentError, InvalidHandleError, HandleExpiredError, FeatureNotSupportedError, RouteError, PeerLostError,
    ChannelFull, OutOfMemoryError, ForkError, DeviceError,
):  # fmt: skip
    _error.__module__ = "xpushare"  # tracebacks show the name by which users catch it


def unusable(why: str | None) -> XpuShareError:
    """Return the error for an object that this process cannot use. `why` is the reason, or None if the object belongs
    to the parent process.
    """
    if why is not None:
        return InvalidArgumentError(why)
    return ForkError(
        "this belongs to the parent of this process: after a fork the child cannot use it. Open its name here, or "
        "start the child with spawn or forkserver and send it there"
    )


def exporter_gone(pid: int, how: str) -> HandleExpiredError:
    """Return the error for a handle whose exporter has ended. `how` is a text that says how this process knows that the
    exporter has ended.
    """
    return HandleExpiredError(
        f"the process that shared this (pid {pid}) has exited ({how}). Keep it running until the receiver has "
        "attached, or publish with keep=True"
    )


def from_os_error(error: OSError, doing: str) -> XpuShareError:
    """Return this package's error for a failed system call: `OutOfMemoryError` if memory or file descriptors ran out,
    else `DeviceError`. The new error keeps the errno. `doing` says what failed.
    """
    text = f"{doing}: {error.strerror or error}"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return OutOfMemoryError(
            f"{text}; this process has no file descriptor left: close objects or raise `ulimit -n`",
            native=error.errno,
            result=Result.ERROR_OUT_OF_RESOURCES,
        )
    if error.errno in (errno.ENOMEM, errno.ENOSPC):
        return OutOfMemoryError(text, native=error.errno)
    return DeviceError(text, native=error.errno)


class doing(ContextDecorator):  # lower case, as it reads as a clause: `with doing("publishing a name")`
    """A context manager and decorator that converts each OSError inside it by `from_os_error`. Time-outs and this
    package's own errors pass unchanged.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, XpuShareError | TimeoutError):
            raise from_os_error(error, self._what) from error


class Unread:
    """The state of an object whose pickle cannot be opened in this process. Unpickling itself never raises an error.
    Each use of the object raises the error instead.
    """

    __slots__ = ("_error",)

    def __init__(self, error: Exception) -> None:
        # Without the traceback, whose frames would keep objects alive. A copy has it if tblib is in use.
        self._error: Final = copy.copy(error).with_traceback(None)

    def __str__(self) -> str:
        return str(self._error)

    def __call__(self) -> NoReturn:
        """Raise the error."""
        raise copy.copy(self._error).with_traceback(None)
