"""The scenarios of `xpushare bench`. Each scenario returns rows that compare xpushare with the tool that a user would
otherwise use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from xpushare.bench import events, memory
from xpushare.bench.measure import Row, Settings

__all__ = ["SCENARIOS", "Scenario"]

Scenario = Callable[[Settings], list[Row]]

SCENARIOS: Final[dict[str, Scenario]] = {
    "hand_over": memory.hand_over,
    "new_handle": memory.new_handle,
    "already_open": memory.already_open,
    "read_once": memory.read_once,
    "fresh_array": memory.fresh_array,
    "eight_workers": memory.eight_workers,
    "event": events.event,
    "waiting": events.waiting,
}
