"""These tests run over a libamdhip64 that `scripts/hip` has built; elsewhere they are skipped.

XPUSHARE_HIP says which: "plain" (like release 6 on a device that has everything) or "amd" (like release 5.2.3, with
waits on signal memory only). Below it is CUDA's driver, or the software driver that HIP_FORWARD_TO names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import forwarding
import pytest

MODE = os.environ.get("XPUSHARE_HIP")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        wanted = item.get_closest_marker("drivers")
        if MODE is None:
            item.add_marker(pytest.mark.skip(reason="needs a libamdhip64 that forwards: scripts/hip"))
        elif wanted is not None and MODE not in wanted.args:
            item.add_marker(pytest.mark.skip(reason=f"not for {MODE}"))


@pytest.fixture
def books() -> Iterator[forwarding.Library]:
    """The forwarding library of this process, which fails calls as told."""
    library = forwarding.library()
    library.reset()
    yield library
    library.reset()
