"""Memory of all processes together: an array handed to eight workers, against a copy in each by pickle."""

from __future__ import annotations

import multiprocessing
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from xpushare.bench.measure import Row, Settings, compare
from xpushare.bench.worker import Kept, Worker

__all__ = ["eight_workers"]

_MIB: Final = 1 << 20
_WORKERS: Final = 8
_MOST: Final = 1.05  # times the array, in all processes together


def _pss(worker: Worker) -> int:
    """Bytes of memory, shared pages in equal parts to those that map them: summed, each page counts once."""
    text = Path(f"/proc/{worker.pid}/smaps_rollup").read_text()
    return int(text.split("\nPss:")[1].split()[0]) * 1024


def _warm_up(kept: Kept) -> None:  # noqa: ARG001
    """Import and start what either way needs."""
    import numpy as np

    import xpushare as xs

    np.asarray(xs.empty(_MIB, "u1")).sum()


def _make_shared(kept: Kept, nbytes: int) -> bytes:
    import numpy as np

    import xpushare as xs

    array = kept["array"] = xs.empty(nbytes, "u1")
    np.asarray(array)[:] = 7
    kept["handle"] = xs.share(array)
    return bytes(kept["handle"])


def _attach(kept: Kept, handle: bytes) -> int:
    """Every byte read; the array stays attached."""
    import numpy as np

    import xpushare as xs

    kept["array"] = xs.attach(handle)
    return int(np.asarray(kept["array"]).sum(dtype="u8"))


def _send_copies(kept: Kept, nbytes: int) -> None:
    import numpy as np

    array = kept["array"] = np.full(nbytes, 7, "u1")
    for pipe in kept["pipes"]:
        pipe.send(array)


def _receive(kept: Kept) -> int:
    kept["array"] = kept["pipe"].recv()
    return int(kept["array"].sum(dtype="u8"))


def _measure(settings: Settings, nbytes: int, shared: bool) -> float:
    """What the array costs in its owner and all workers, in times its size."""
    pipes = [multiprocessing.get_context("spawn").Pipe(duplex=False) for _ in range(_WORKERS)]
    with ExitStack() as stack:
        owner = stack.enter_context(Worker(settings, {"pipes": [there for _, there in pipes]}))
        workers = [stack.enter_context(Worker(settings, {"pipe": here})) for here, _ in pipes]
        processes = [owner, *workers]
        for worker in processes:
            worker.start(_warm_up)
        for worker in processes:
            worker.result()
        before = sum(map(_pss, processes))
        totals: list[Any]
        if shared:
            handle = owner.call(_make_shared, nbytes)
            totals = [worker.call(_attach, handle) for worker in workers]
        else:
            owner.start(_send_copies, nbytes)
            totals = [worker.call(_receive) for worker in workers]
            owner.result()
        assert totals == [7 * nbytes] * _WORKERS
        return (sum(map(_pss, processes)) - before) / nbytes


def eight_workers(settings: Settings) -> list[Row]:
    """The memory that an array costs once it is handed to eight workers, in times its size."""
    ours, theirs = settings.count(1024, 64) * _MIB, settings.count(256, 16) * _MIB
    row = compare(
        "eight_workers",
        f"memory of {ours // _MIB} MiB handed to {_WORKERS} workers, in all processes",
        [_measure(settings, ours, shared=True)],
        f"{theirs // _MIB} MiB by multiprocessing.Pipe, a copy in each",
        [_measure(settings, theirs, shared=False)],
        unit="times the array",
        wanted="that of one",
        notes=["Pss of owner and workers from /proc/PID/smaps_rollup, less what they had before"],
    )
    row.met = row.ours.median <= _MOST
    return [row]
