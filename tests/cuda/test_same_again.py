"""Memory that one process sends to another again and again, between processes on the software driver."""

from __future__ import annotations

import sys

import pytest
import vmm_tree_peer as peer

from harness import Child, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
NUMBER = 300  # more than a quarter of the descriptors that the reader may have


def test_what_was_closed_just_now_is_not_opened_anew(owner: Child, reader: Child) -> None:
    """Memory of cudaMalloc, each time by a new export of the same allocations. Their imports hold no descriptors."""
    reader.call(peer.few_descriptors)
    owner.call(peer.allocate, NUMBER)
    assert reader.call(peer.look, owner.call(peer.share_anew)) == (NUMBER, NUMBER)
    for _ in range(3):
        assert reader.call(peer.look, owner.call(peer.share_anew)) == (NUMBER, 0)
    owner.call(peer.allocate, 10)
    assert reader.call(peer.look, owner.call(peer.share_anew)) == (10, 10), "other allocations"
    reader.call(peer.trim)
    assert reader.call(peer.look, owner.call(peer.share_anew)) == (10, 10)


def test_new_memory_lies_where_earlier_did_once_the_reader_has_dropped_it(owner: Child, reader: Child) -> None:
    """Each message carries new memory, as buckets of weights do. The reader keeps it mapped for now, but nothing there
    reads it any more once its device has finished.
    """
    for child in owner, reader:
        child.call(peer.keep_for, 100)
    addresses = set()

    def serves_again() -> bool:
        raw, address = owner.call(peer.bucket)
        reader.call(peer.take_and_drop, raw)
        before = len(addresses)
        addresses.add(address)
        return len(addresses) == before

    for _ in range(8):
        wait_until(serves_again)
