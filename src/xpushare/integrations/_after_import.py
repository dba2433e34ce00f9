"""Patches a module as soon as it is imported. Some engines need this, because they load their plug-ins before they
import the module to patch.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

__all__ = ["after_import"]

Change = Callable[[ModuleType], object]
_wanted: Final[dict[str, Change]] = {}


def after_import(name: str, change: Change) -> None:
    """Call `change` with the module called `name`. If the module is already imported, this happens at once. Otherwise
    it happens as soon as the module is imported.
    """
    if name in sys.modules:
        change(sys.modules[name])
        return
    _wanted[name] = change
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        change = _wanted.pop(fullname, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(fullname)  # found by the other finders
        if spec is None or spec.loader is None:
            _wanted[fullname] = change
            return spec
        spec.loader = _Loader(spec.loader, change)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, change: Change) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._loader.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change(module)

    def __getattr__(self, name: str) -> Any:  # its source, its resources
        return getattr(self._loader, name)


_finder: Final = _Finder()
