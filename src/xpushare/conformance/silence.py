"""A pytest plugin that enables the validation layers, and fails each test in which a layer reports an error.

A test also fails if it does not release all exports, objects of `xpushare.ur` and addresses from `xpushare.ur` that it
made. Tests that misuse the package on purpose have the mark `misuse`. In such tests, layers may report errors.

    python -m pytest -p xpushare.conformance.silence tests/core
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

__all__ = ["MISUSE"]

MISUSE: Final = "misuse: misuses the package on purpose, which the validation layers report"


class Silence:
    """Collects the messages of the validation layers during one test."""

    def __init__(self) -> None:
        from xpushare.core.logger import listeners
        from xpushare.core.validation import books

        self.told: list[str] = []
        self._before = books.retained(objects=False)
        listeners.append(self._listen)

    def _listen(self, _name: str, _level: object, text: str) -> None:
        if not text.startswith("#") and not text.endswith("here:"):
            self.told.append(text)

    def end(self) -> list[str]:
        """Stop collecting messages. Return descriptions of the objects that the test has not released."""
        from xpushare.core.logger import listeners
        from xpushare.core.validation import books

        listeners.remove(self._listen)
        before = set(map(id, self._before))
        left = (each for each in books.retained(objects=False) if each.made and id(each) not in before)
        return [f"{each.what} of {each.made[0][0]}:{each.made[0][1]}" for each in left]


_KEY: Final = pytest.StashKey[Silence]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MISUSE)


def pytest_sessionstart() -> None:
    import xpushare as xs  # not before the conftest has set up the runtime folder

    xs.enable_layers("UR_LAYER_FULL_VALIDATION")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[Any]:
    item.stash[_KEY] = Silence()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[Any]:
    result = yield
    silence = item.stash[_KEY]
    left = silence.end()
    assert not left, f"the test has not given back {left}"
    assert item.get_closest_marker("misuse") or not silence.told, f"the layers report {silence.told}"
    return result
