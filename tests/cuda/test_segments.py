"""Trees of another library's tensors in expandable segments, over a scripted driver: mappings side by side in one
reservation, in which tensors lie end to end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import vmm_tree_peer as peer
from scripted_driver import MIB2, ScriptedDriver
from segments import SEGMENT, Library, tensors

import xpushare as xs
from harness import Child, wait_until
from xpushare import adapters
from xpushare.adapters import vendor
from xpushare.adapters.cuda._adapter import Cuda
from xpushare.sharing import node

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    adapters.record("cuda")  # as whoever makes an adapter does
    made = Cuda(ScriptedDriver())
    monkeypatch.setattr("xpushare.core.device._known", {})
    monkeypatch.setattr(node.current(), "foreign", node.ByName())
    monkeypatch.setattr(vendor, "_loaded", {*vendor._loaded, "libcuda.so.1"})
    monkeypatch.setitem(adapters._adapters, "cuda", made)
    monkeypatch.setattr(Library, "type", tensors(), raising=False)
    made.devices()
    yield made
    assert made.engine.teardown.settle(5)
    wait_until(lambda: made._driver.api.balanced)


def exported(handle: xs.ArrayHandle) -> list[tuple[int, int]]:
    """Of each export: the number of its first segment, and how many it has."""
    table = node.current().table()
    found = [table.find(each).source for each in handle.handles]
    start = min(each.address for each in found)
    return [((each.address - start) // SEGMENT, each.nbytes // SEGMENT) for each in found]


def test_a_tensor_that_begins_in_a_known_segment_and_ends_beyond(cuda: Cuda) -> None:
    library = Library(cuda, [SEGMENT] * 4)
    first, second = library.tensor(SEGMENT // 2), library.tensor(SEGMENT)
    far = library.tensor(64, 3 * SEGMENT)  # not side by side with these
    with xs.share([far, first, second]) as handle:
        assert exported(handle) == [(3, 1), (0, 2)]


def test_tensors_end_to_end_are_one_export(cuda: Cuda) -> None:
    """Small ones lie in a reservation of their own, as torch's do."""
    library, small = Library(cuda, [SEGMENT] * 30), Library(cuda, [MIB2] * 2)
    tree = []
    for nbytes in (3 * SEGMENT, SEGMENT // 2, SEGMENT - 512, 2 * SEGMENT + 1) * 2:
        tree += [library.tensor(nbytes), small.tensor(100)]
    before = len(library.driver.calls)
    with xs.share(tree) as handle:
        assert exported(handle)[0] == (0, 13)
        assert len(handle.handles) == 2
        asked = library.driver.calls[before:].count("cuPointerGetAttribute")
        assert asked < 5 * 13  # the edges of most mappings are guessed
        table = node.current().table()
        sources = [table.find(each).source for each in handle.handles]
        assert [each.nbytes for each in sources] == [13 * SEGMENT, MIB2]
        for number, each in enumerate(tree):
            source = sources[number % 2]
            assert source.address <= each.address <= each.address + each.nbytes <= source.address + source.nbytes
    for order in (tree[::-1], tree[6:] + tree[:6], sorted(tree, key=lambda each: each.nbytes)):
        with xs.share(order) as handle:
            assert sorted(exported(handle))[-1] == (0, 13) or sorted(exported(handle))[0] == (0, 13)
            assert len(handle.handles) == 2


@pytest.mark.parametrize("gap", [SEGMENT, 4096])
def test_what_lies_in_between_is_not_exported(cuda: Cuda, gap: int) -> None:
    library = Library(cuda, [SEGMENT] * 6)
    first = library.tensor(SEGMENT)
    library.at += gap
    second = library.tensor(SEGMENT // 4)
    with xs.share([first, second]) as handle:
        assert exported(handle) == [(0, 1), (gap // SEGMENT + 1, 1)]


def test_an_export_ends_at_so_many_bytes(cuda: Cuda) -> None:
    library = Library(cuda, [SEGMENT] * 60)
    tree = [library.tensor(SEGMENT * 7 // 2) for _ in range(16)]
    with xs.share(tree) as handle:
        assert exported(handle) == [(0, 25), (24, 25), (49, 7)]  # 7 of 70 MiB each, and what they begin and end in
    huge = library.tensor(SEGMENT * 60, 0)
    with xs.share([huge]) as handle:
        assert exported(handle) == [(0, 60)]


def test_segments_of_too_many_sizes_are_exported_apart(cuda: Cuda) -> None:
    """One export describes runs of few sizes."""
    library = Library(cuda, [MIB2 * (1 + number % 2) for number in range(20)])
    tree = [library.tensor(MIB2 * (1 + number % 2)) for number in range(20)]
    with xs.share(tree) as handle:
        assert len(handle.handles) > 1
    with pytest.raises(xs.FeatureNotSupportedError, match="too many sizes"):
        xs.share([library.tensor(MIB2 * 30, 0)])


def test_another_process_maps_each_segment_once(owner: Child, reader: Child) -> None:
    """One request is for the descriptors of all, which the owner makes on demand."""
    reader.call(peer.by_socket_alone)
    handle, segments = owner.call(peer.make_segments, [MIB2 * 3 // 2] * 5)
    assert segments == [8, 1]
    found, calls = reader.call(peer.open_tree, handle)
    assert [set(each) for each in found] == [{value} for value in range(6)]
    assert [len(each) for each in found] == [MIB2 * 3 // 2] * 5 + [64]
    assert calls == {"cuMemImportFromShareableHandle": 9, "cuMemSetAccess": 1, "cuMemAddressReserve": 1}
    # An owner that has been at it for longer than some milliseconds leaves the rest to a request of its own.
    assert reader.call(peer.requests) in ([1, 2], [1, 2, 1])
    assert owner.call(peer.made) == 9
