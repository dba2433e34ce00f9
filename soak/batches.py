"""100,000 batches of a DataLoader of torch by a channel: what the process holds stays flat. Needs torch."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from soak.common import Skipped, Soak, describe_held, held, main

_BATCH = 4
_SAMPLE = 1024  # bytes
_WORKERS = 2
_MOST_GROWTH = 8 << 20  # bytes: what allocators' arenas may still do after the first batches


class Samples:
    """Sample i, of bytes that say i."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int) -> Any:
        torch: Any = importlib.import_module("torch")
        return torch.full((_SAMPLE // 8,), i, dtype=torch.int64)


def run(soak: Soak) -> None:
    if importlib.util.find_spec("torch") is None:
        raise Skipped("torch is not installed")
    from xpushare.integrations.torch import Batches

    data: Any = importlib.import_module("torch.utils.data")
    count = soak.count(100_000, 300)
    with Batches(_BATCH * _SAMPLE, workers=_WORKERS) as batches:
        loader = data.DataLoader(Samples(count * _BATCH), _BATCH, num_workers=_WORKERS, collate_fn=batches.collate_fn)
        before = after = None
        fds = ["", ""]
        seen = 0
        for batch in batches.of(loader):
            first = seen * _BATCH
            found = batch[:, 0].tolist()
            soak.check(found == list(range(first, first + _BATCH)), f"batch {seen} holds {found}")
            seen += 1
            if seen == count // 10:
                before, fds[0] = held(), describe_held()
            elif seen == count * 9 // 10:  # before the workers end
                after, fds[1] = held(), describe_held()
    soak.check(seen == count, f"{seen} of {count} batches came")
    assert before is not None
    assert after is not None
    soak.say(f"{count} batches of {_BATCH * _SAMPLE} bytes: after a tenth of them {before}; after nine tenths {after}")
    # A pidfd for each worker is opened when this process first waits for one.
    soak.check(after.fds <= before.fds + _WORKERS, f"fds {before.fds} -> {after.fds}: {fds[0]} -> {fds[1]}")
    soak.check(after.mappings <= before.mappings + 40, f"mappings {before.mappings} -> {after.mappings}")
    growth = after.resident - before.resident
    soak.check(growth < _MOST_GROWTH, f"resident memory grew by {growth} bytes")


if __name__ == "__main__":
    sys.exit(main("batches", run))
