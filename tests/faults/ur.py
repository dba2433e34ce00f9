"""Faults of the Unified Runtime face."""

from __future__ import annotations

from typing import Any

from faults.planting import mutant, nothing, set_


@mutant("ur answers one result for another", "8.1", "8.3", "8.5")
def ur_wrong_result() -> None:
    from xpushare import ur

    original = ur.URError.__init__

    def init(self: Any, message: str, **options: Any) -> None:
        original(self, message, **options)
        if self.result is ur.Result.ERROR_INVALID_SIZE:
            self.result = ur.Result.ERROR_INVALID_VALUE

    set_(ur.URError, "__init__", init)


@mutant("ur ignores the reference count", "8.9")
def ur_refcount() -> None:
    from xpushare.ur import _objects

    def release(self: Any) -> None:
        self.references = 0
        self._end()

    set_(_objects.Counted, "release", release)


@mutant("ur takes dead handles", "8.2", "8.9")
def ur_dead_handles() -> None:
    from xpushare.ur import _objects

    set_(_objects.Counted, "release", nothing)


@mutant("urUSMFree frees opened memory", "8.4")
def ur_free_opened() -> None:
    from xpushare import ur

    original = ur.urUSMFree

    def free(context: Any, pointer: Any) -> None:
        from xpushare.ur import _objects

        if pointer in _objects.places.opened:
            ur.urIPCCloseMemHandleExp(context, pointer)
        else:
            original(context, pointer)

    set_(ur, "urUSMFree", free)


@mutant("ur does not refuse memory of unknown addresses", "8.4")
def ur_unknown_addresses() -> None:
    from xpushare import ur

    original = ur.urUSMFree

    def free(context: Any, pointer: Any) -> None:
        try:
            original(context, pointer)
        except ur.URError as error:
            if error.result is not ur.Result.ERROR_INVALID_MEM_OBJECT:
                raise

    set_(ur, "urUSMFree", free)


@mutant("profiling times are always there", "8.12")
def ur_profiling() -> None:
    from xpushare import ur

    original = ur.urEventGetProfilingInfo

    def info(event: Any, query: Any) -> int:
        try:
            found: int = original(event, query)
        except ur.URError as error:
            if error.result is not ur.Result.ERROR_PROFILING_INFO_NOT_AVAILABLE:
                raise
            return 0
        return found

    set_(ur, "urEventGetProfilingInfo", info)
