"""Loads the package's own modules, and `logging`, at their first use. Until `load` is called, this module imports no
other module of the package.
"""

from __future__ import annotations

from _thread import get_ident
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

__all__ = ["load", "logger"]

_loading: set[int] = set()  # the threads that load a module now


def load(name: str) -> ModuleType:
    """Return the module of that name, loading it if necessary.

    Modules do not call this while they are being loaded. If this thread is already loading a module, a signal handler
    or a finaliser has therefore interrupted that load. Then this function raises `RuntimeError`, since the
    interrupted module is only partly initialised. It raises no `ImportError`: Python takes that for a missing module or
    codec if it comes out of a handler in the midst of a search, and remembers it.
    """
    me = get_ident()
    if me in _loading:
        raise RuntimeError(
            f"{name} cannot be loaded now: the handler of a signal, or a finaliser, has interrupted this thread while "
            "it loads the package. Use what the handler needs once before signals come"
        )
    try:
        _loading.add(me)
        with import_module("xpushare.common.errors").doing("loading a module of xpushare"):
            return import_module(name)
    except ImportError as error:
        if "XPUSHARE_PRIVATE" not in str(error):
            raise
        raise ImportError(
            "this process has loaded the engine (libxpushare.so.1) of another build of xpushare, and can have one. "
            f"Use one installation of the package in a process: {error}"
        ) from None
    finally:
        _loading.discard(me)


def logger() -> logging.Logger:
    """Return the package's logger."""
    import logging  # slow to import, and rarely needed

    return logging.getLogger("xpushare")
