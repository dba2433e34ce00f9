"""The dictionaries that `statistics()` of memory, physical memory and events returns."""

from __future__ import annotations

from typing import Any

from xpushare._native import Domain
from xpushare.core.event import Opened
from xpushare.core.memory import Range, kept_nbytes
from xpushare.core.physical import Held
from xpushare.sharing import node

__all__ = ["event_statistics", "memory_statistics", "physical_statistics"]


def _exports_of(source: object) -> list[dict[str, Any]]:
    table = node.current().table_if_any
    if table is None:
        return []
    return [
        {
            "generation": each.generation,
            "nbytes": each.handle.nbytes,
            "read_only": each.handle.read_only,
            "importers": len(table.domain.holders(each.entry)),
        }
        for each in table.exports()
        if each.source is source
    ]


def memory_statistics(found: Range) -> dict[str, Any]:
    allocation = found.allocation
    return {
        "kind": allocation.kind,
        "nbytes": found.nbytes,
        "allocation_nbytes": allocation.nbytes,
        "imported": found.handle is not None,
        "kept_nbytes": kept_nbytes(),  # of this process
        "exports": _exports_of(allocation),
    }


def physical_statistics(found: Held) -> dict[str, Any]:
    return {
        "nbytes": found.pages.nbytes,
        "imported": found.handle is not None,
        "ipc_enabled": found.pages.ipc_enabled,
        "exports": _exports_of(found.pages),
    }


def event_statistics(found: Opened) -> dict[str, Any]:
    slot = found.timeline.slot
    domain: Domain = found.timeline.driver
    attached = set(slot.attached())
    return {
        "value": slot.value,
        "pending": slot.pending,
        "imported": found.handle is not None,
        "ipc_enabled": found.ipc_enabled,
        "processes": [
            {"pid": pid, "alive": alive, "self": index == domain.member}
            for index, pid, _since, alive in domain.members()
            if index in attached
        ],
    }
