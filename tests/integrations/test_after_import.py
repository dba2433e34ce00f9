"""Changes to modules that are imported later, as the plug-in of an engine makes them."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest

from xpushare.integrations import _after_import
from xpushare.integrations._after_import import after_import


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a package with one module, `late`."""
    name = "after_import_package"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / name / "late.py").write_text("def value():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(_after_import, "_wanted", {})
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for each in (name, f"{name}.late"):
        monkeypatch.delitem(sys.modules, each, raising=False)
    return name


def test_a_module_is_changed_once_it_is_imported(package: str) -> None:
    changed: list[int] = []

    def change(module: ModuleType) -> None:
        changed.append(module.value())
        module.value = lambda: 2

    after_import(f"{package}.late", change)
    assert not changed
    assert f"{package}.late" not in sys.modules
    module = importlib.import_module(f"{package}.late")
    assert (changed, module.value()) == ([1], 2)
    assert inspect.getsource(module).startswith("def value")  # of the loader beneath
    importlib.reload(module)
    assert changed == [1]


def test_one_that_is_there_is_changed_at_once(package: str) -> None:
    module = importlib.import_module(f"{package}.late")
    changed: list[ModuleType] = []
    after_import(f"{package}.late", changed.append)
    assert changed == [module]


def test_one_that_cannot_be_found_stays_missing(package: str) -> None:
    changed: list[ModuleType] = []
    after_import(f"{package}.nowhere", changed.append)
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"{package}.nowhere")
    assert not changed
