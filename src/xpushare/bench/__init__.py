"""The scenarios of `xpushare bench`: each returns rows that compare us with what a user would pick instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from xpushare.bench import calls, events, footprint, imports, memory, virtual
from xpushare.bench.measure import Row, Settings

__all__ = ["SCENARIOS", "Scenario"]

Scenario = Callable[[Settings], list[Row]]

SCENARIOS: Final[dict[str, Scenario]] = {
    "new_handle": memory.new_handle,
    "hand_over": memory.hand_over,
    "already_open": memory.already_open,
    "read_once": memory.read_once,
    "fresh_array": memory.fresh_array,
    "eight_workers": footprint.eight_workers,
    "import_time": imports.import_time,
    "two_cpus": events.two_cpus,
    "one_cpu": events.one_cpu,
    "crowded": events.crowded,
    "waiting": events.waiting,
    "map_unmap": virtual.map_unmap,
    "faces": calls.faces,
}
