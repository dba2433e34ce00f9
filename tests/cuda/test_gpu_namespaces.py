"""Memory of a GPU in boxes such as containers are: what docs/containers.md says of each is what happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpu_peer import CudaMalloc, queue, read

import boxes
import xpushare as xs
from harness import kept
from xpushare.sharing import identity

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(120)]

OURS, LEGACY = "`xs.empty` on CUDA", "`cudaMalloc`"
NBYTES = 1 << 21


def export() -> dict[str, Any]:
    ours = kept["ours"] = xs.empty(NBYTES, "u1", device="cuda:0")
    theirs = kept["theirs"] = CudaMalloc(NBYTES, 7)
    queue().fill(ours, b"\7")
    queue().synchronize(30)
    return {OURS: bytes(xs.share(ours)), LEGACY: bytes(xs.share(theirs))}


def attempt(handle: bytes) -> None:
    with xs.attach(handle) as array:
        assert read(array, NBYTES)[-1] == 7
        queue().fill(array, b"\7", 1)
        queue().synchronize(30)


def load() -> None:
    """Import what an attempt needs, CUDA's binding and its driver included: a process that becomes another user can
    import nothing afterwards. This reads no key and starts no thread.
    """
    import xpushare.arrays.attach
    import xpushare.ipc
    import xpushare.sharing.routes  # noqa: F401

    xs.zeros(4).close()
    assert xs.devices("cuda:*")[0].name


@pytest.mark.parametrize("name", boxes.BOXES)
def test_gpu_memory(name: str, open_folder: Path) -> None:
    box = boxes.BOXES[name]
    if why := boxes.lacking(box):
        pytest.skip(why)
    attempts = {OURS: attempt, LEGACY: attempt}
    found = boxes.tried(box, open_folder, identity.user_key(), export, attempts, load, timeout=90.0)
    if why := boxes.without_bindings(box, found):
        pytest.skip(why)
    said = boxes.rows()[name]
    assert {form: said[form].outcome for form in found} == {form: each.outcome for form, each in found.items()}, found
    for form, each in found.items():
        for word in said[form].words:
            assert word in each.message
