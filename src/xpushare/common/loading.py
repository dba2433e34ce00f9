"""Loads the package's own modules at their first use. Until `load` is called, this module imports no other module of
the package.
"""

from __future__ import annotations

from _thread import get_ident
from importlib import import_module, invalidate_caches
from types import ModuleType

__all__ = ["load"]

_loading: dict[int, list[ImportError]] = {}  # the threads that load a module now, and what they refused meanwhile


def load(name: str) -> ModuleType:
    """Return the module of that name, loading it if necessary.

    Modules do not call this while they are being loaded. If this thread is already loading a module, a signal handler
    or a finaliser has therefore interrupted that load. Then this function raises `ImportError`, since the
    interrupted module is only partly initialised.
    """
    me = get_ident()
    if me in _loading:
        refusal = ImportError(
            f"{name} cannot be loaded now: the handler of a signal, or a finaliser, has interrupted this thread while "
            "it loads the package. Use what the handler needs once before signals come"
        )
        _loading[me].append(refusal)
        raise refusal
    refused: list[ImportError] = []
    _loading[me] = refused  # the block begins without a chance for an interrupt
    try:
        with import_module("xpushare.common.errors").doing("loading a module of xpushare"):
            try:
                return import_module(name)
            except ImportError as error:
                if not refused or error in refused:
                    raise
            # Python takes an ImportError in its search of a folder for "not here", and remembers that.
            invalidate_caches()
            return import_module(name)
    except ImportError as error:
        if "XPUSHARE_PRIVATE" not in str(error):
            raise
        raise ImportError(
            "this process has loaded the engine (libxpushare.so.1) of another build of xpushare, and can have one. "
            f"Use one installation of the package in a process: {error}"
        ) from None
    finally:
        _loading.pop(me, None)
        refused.clear()  # their tracebacks hold this frame
