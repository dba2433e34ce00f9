"""Trees over many allocations of virtual memory, between processes on the software driver: a few calls set the access
of all of them.
"""

from __future__ import annotations

import sys

import pytest
import vmm_tree_peer as peer

from harness import Child
from sampling import sampled

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
NUMBER = 260  # more than are made at one go
CONTENT = [bytes([value % 256]) * 64 for value in range(NUMBER)]


@pytest.fixture
def handle(owner: Child) -> str:
    found: str = owner.call(peer.make, NUMBER)
    return found


def test_the_access_of_all_is_set_by_few_calls(handle: str, reader: Child) -> None:
    found, calls = reader.call(peer.open_tree, handle)
    assert found == CONTENT
    assert calls == {  # up to 253 together
        "cuMemImportFromShareableHandle": NUMBER, "cuMemSetAccess": 2, "cuMemAddressReserve": 2,
    }  # fmt: skip
    assert reader.call(peer.mapped) == (NUMBER, 2)


def test_the_descriptors_come_by_few_requests(handle: str, reader: Child) -> None:
    reader.call(peer.by_socket_alone)
    found, calls = reader.call(peer.open_tree, handle)
    assert found == CONTENT
    assert calls["cuMemSetAccess"] == 2
    assert reader.call(peer.requests) == [1, 253, 7]  # entries: to meet the exporter, as many as one answer carries
    assert reader.call(peer.close_some, 0, (0, 0)) == []


def test_each_ends_by_itself(handle: str, reader: Child) -> None:
    """Addresses that mappings share go with the last of these."""
    reader.call(peer.open_tree, handle)
    assert reader.call(peer.close_some, 256, (256, 2)) == CONTENT[:256]
    assert reader.call(peer.close_some, 40, (40, 1)) == CONTENT[:40]
    assert reader.call(peer.close_some, 0, (0, 0)) == []
    found, _ = reader.call(peer.open_tree, handle)
    assert found == CONTENT


@pytest.mark.parametrize(
    ("name", "count"),
    sampled(
        [("cuMemImportFromShareableHandle", 70), ("cuMemMap", 70), ("cuMemSetAccess", 1), ("cuMemAddressReserve", 1)],
        [("cuMemMap", 70)],
    ),
)
def test_what_fails_leaves_nothing(handle: str, reader: Child, name: str, count: int) -> None:
    text, left = reader.call(peer.open_failing, handle, name, count)
    assert text.startswith("DeviceError")
    assert name in text
    assert left == (0, 0)
    assert reader.call(peer.open_tree, handle)[0] == CONTENT
