"""Fixtures of the tests of `xpushare.ur`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ur_runtime import Runtime, leave_nothing


@pytest.fixture(autouse=True)
def _declared(declared_errors: None) -> None:
    """In all tests here."""


@pytest.fixture
def rt(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    """On `native_cpu`; for a test of a function that only drivers have something for, on the mock adapter."""
    name = getattr(request.node, "callspec", None) and request.node.callspec.params.get("name", "")
    if name and "NativeHandle" in str(name):
        yield request.getfixturevalue("mock")
        return
    yield Runtime()
    leave_nothing()


@pytest.fixture
def mock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """The same on the mock adapter, which has two devices and a driver that can be made to fail."""
    from xpushare.adapters.mock import driver

    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "mock:*")
    yield Runtime("mock")
    driver().reset()
    leave_nothing()
