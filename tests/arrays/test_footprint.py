"""An array handed to eight workers costs the memory of one."""

from __future__ import annotations

from pathlib import Path

from xpushare.bench import memory
from xpushare.bench.measure import Settings


def test_eight_workers_cost_the_memory_of_one(tmp_path: Path) -> None:
    """In all processes together; what each has of its own besides is small against 64 MiB."""
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    settings = Settings(True, "native_cpu:0", str(folder))
    assert 0.99 < memory.footprint(settings, 64 << 20, shared=True) < 1.2
